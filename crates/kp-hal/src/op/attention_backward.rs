//! Gradients of attention by Q, K, V and the sinks.

use super::{
    AttentionSpec, Kv, NeedList, Scheme, Spec,
    args::args,
    op,
    problem::{BadProblem, exclusive},
};
use crate::{
    dtype::DType,
    text::{Reader, Writer},
};
use std::fmt;

op! {
    /// The backward pass of [`super::Attention`]; see [`AttentionBackwardSpec`].
    AttentionBackward, AttentionBackwardSpec, AttentionBackwardArgs, AttentionBackwardProblem, attention_backward
}

/// The twin of a forward problem, with the same words after `attention_backward`.
///
/// Gradients have type and layout of what they are gradients of; gradients of the sinks are f32. K and V are
/// dense and nothing is scaled. The forward pass must have stored its log-sum-exp, so `forward.lse` is always set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AttentionBackwardSpec {
    /// What was computed.
    pub forward: AttentionSpec,
}

args! {
    /// Buffers of an [`AttentionBackward`]; as in [`super::AttentionArgs`] where not said.
    AttentionBackwardArgs {
        /// Queries.
        input q,
        /// Keys.
        input k,
        /// Values.
        input v,
        /// What the forward pass returned.
        input o,
        /// What the forward pass stored.
        input lse,
        /// The loss by O, laid out as O.
        input grad_o,
        /// The loss by Q, laid out as Q.
        output grad_q,
        /// The loss by K, laid out as K.
        output grad_k,
        /// The loss by V, laid out as V.
        output grad_v,
        ?
        /// I32, `batch + 1`; gradients of queries of no sequence are not written.
        input q_offsets,
        /// I32, `batch + 1`; gradients of keys of no sequence are not written.
        input kv_offsets,
        /// I32, one per sequence; gradients of keys past it are zero.
        input kv_lens,
        /// F32, one per query head.
        input slopes,
        /// F32, one per query head.
        input sinks,
        /// U8; see `Mask::Blocks`.
        input blocks,
        /// F32, one per query head: the loss by the sinks.
        output grad_sinks,
        =
    }
}

impl Spec for AttentionBackwardSpec {
    const NAME: &'static str = "attention_backward";

    fn check(&self) -> Result<(), BadProblem> {
        let AttentionSpec { q, kv, storage, .. } = self.forward;
        exclusive(storage != Kv::Dense, "attention_backward", "page")?;
        exclusive(q.scheme != Scheme::None || kv.scheme != Scheme::None, "attention_backward", "scaled q, k or v")?;
        self.forward.check()
    }

    fn canonical(self) -> Self {
        Self { forward: AttentionSpec { lse: true, ..self.forward } }
    }

    fn needs(&self, list: &mut NeedList) {
        let f = &self.forward;
        list.input("q", true, f.q.dtype, f.q_span());
        list.input("k", true, f.kv.dtype, f.k_span());
        list.input("v", true, f.kv.dtype, f.v_span());
        list.input("o", true, f.o, f.o_span());
        list.input("lse", true, DType::F32, f.lse_count());
        list.input("grad_o", true, f.o, f.o_span());
        list.output("grad_q", true, f.q.dtype, f.q_span());
        list.output("grad_k", true, f.kv.dtype, f.k_span());
        list.output("grad_v", true, f.kv.dtype, f.v_span());
        f.needs_of_mask(list);
        list.output("grad_sinks", f.sinks, DType::F32, f.q_heads.into());
    }

    fn flops(&self) -> f64 {
        // Five products: scores, grad of P, and grads of Q and K over qk_dim, grad of V over v_dim.
        let (qk, v) = (f64::from(self.forward.qk_dim), f64::from(self.forward.v_dim));
        2.0 * self.forward.scores() * (3.0 * qk + 2.0 * v)
    }

    fn rate_dtype(&self) -> DType {
        self.forward.rate_dtype()
    }

    fn write(&self, out: &mut Writer<'_, '_>) -> fmt::Result {
        // `lse` is implied.
        AttentionSpec { lse: false, ..self.forward }.write(out)
    }

    fn read(words: &mut Reader<'_>) -> Result<Self, BadProblem> {
        AttentionSpec::read(words).map(|forward| Self { forward })
    }
}

//! Gradients of attention.

use super::{
    Attend, Tensor,
    attention::prepare,
    run::{Output, Run, refuse},
};
use kp_hal::{
    DType, Result,
    op::{AttentionBackwardArgs, AttentionBackwardSpec},
};

/// The loss by what attention took, each in its shape and type.
#[derive(Clone, Debug)]
pub struct AttentionGradients {
    /// By Q.
    pub q: Tensor,
    /// By K.
    pub k: Tensor,
    /// By V.
    pub v: Tensor,
    /// By the sinks, if there were any: f32.
    pub sinks: Option<Tensor>,
}

impl Tensor {
    /// Gradients of [`Tensor::attention_with_lse`] of these queries, with the same `k`, `v` and options, by what it
    /// returned (`o`, `lse`) and the loss by `o`. Gradients of rows behind the last packed sequence are zeros.
    ///
    /// # Errors
    /// As the forward pass; also for paged or scaled operands, which have no gradients.
    pub fn attention_backward(
        &self,
        [k, v]: [&Tensor; 2],
        [o, lse, grad_o]: [&Tensor; 3],
        options: &Attend<'_>,
    ) -> Result<AttentionGradients> {
        const OP: &str = "attention_backward";
        let p = prepare([self, k, v], options, true, true)?;
        let o = o.of_shape(OP, "o", &p.o_shape)?;
        let grad_o = grad_o.of_shape(OP, "the gradient by o", &p.o_shape)?;
        for (name, t) in [("o", &o), ("the gradient by o", &grad_o)] {
            if t.dtype() != p.spec.o {
                return Err(refuse(OP, [(name, t.describe())], format!("it must be {}", p.spec.o)));
            }
        }
        let lse = lse.vector_of(OP, "lse", p.o_shape[..p.o_shape.len() - 1].iter().product(), DType::F32)?;
        let spec = AttentionBackwardSpec { forward: p.spec };
        let _ = kp_hal::Spec::build(spec).map_err(|bad| bad.of(OP))?;
        let engine = &self.engine;
        let room = |t: &Tensor| Output::new(engine, t.shape(), t.dtype());
        let (mut q_out, mut k_out, mut v_out) = (room(self)?, room(k)?, room(v)?);
        let mut sinks_out = p.sinks.as_ref().map(room).transpose()?;
        if let Some(queries) = options.queries {
            let keys = options.keys.unwrap_or(queries);
            if queries.total() < self.shape()[0] || keys.total() < k.shape()[0] {
                // Rows of no sequence are not written, and memory may hold anything.
                [&mut q_out, &mut k_out, &mut v_out].into_iter().try_for_each(|out| out.clear(engine))?;
            }
        }
        let mut run = Run::new(engine, OP);
        let args = AttentionBackwardArgs {
            q_offsets: run.maybe(p.q_offsets.as_ref()),
            kv_offsets: run.maybe(p.kv_offsets.as_ref()),
            kv_lens: run.maybe(p.kv_lens.as_ref()),
            slopes: run.maybe(p.slopes.as_ref()),
            sinks: run.maybe(p.sinks.as_ref()),
            blocks: run.maybe(p.blocks.as_ref()),
            grad_sinks: sinks_out.as_mut().map(|sinks| sinks.data.codes.slice_mut()),
            ..AttentionBackwardArgs::new(
                run.read(&p.q),
                run.read(&p.k),
                run.read(&p.v),
                run.read(&o),
                run.read(&lse),
                run.read(&grad_o),
                q_out.data.codes.slice_mut(),
                k_out.data.codes.slice_mut(),
                v_out.data.codes.slice_mut(),
            )
        };
        let how = run.launch(spec, &args)?;
        let [q, k, v] = [q_out, k_out, v_out].map(|out| out.finish(engine, how));
        Ok(AttentionGradients { q, k, v, sinks: sinks_out.map(|out| out.finish(engine, how)) })
    }
}

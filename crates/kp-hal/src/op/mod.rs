//! What can be asked for. One file per operation: spec, arguments, needs, text.
//!
//! # A problem as text
//!
//! One line, words between blanks: the op, its sizes, its types, then options `key=value` and flags in any order. What is not said has
//! its default, and what has its default is not written, so that each problem has one text.
//!
//! | op | sizes and types | computes |
//! |---|---|---|
//! | [`gemm`](GemmSpec) | `BATCHxMxNxK A:B:D` | products of matrices, and what follows them |
//! | [`grouped_gemm`](GroupedGemmSpec) | `GROUPSxMxNxK A:B:D` | a product for each group of rows |
//! | [`attention`](AttentionSpec) | `BATCHxQ_HEADS[:KV_HEADS]xQ_LEN[:KV_LEN]xQK_DIM[:V_DIM] Q:KV:O` | scaled dot-product attention |
//! | [`attention_backward`](AttentionBackwardSpec) | as `attention` | its gradients |
//! | [`quantize`](QuantizeSpec) | `ROWSxCOLS X:Q` | narrow codes with scales |
//! | [`dequantize`](DequantizeSpec) | `ROWSxCOLS Q:Y` | numbers from them |
//! | [`norm`](NormSpec) | `ROWSxCOLS X:Y kind=` | layer norm, RMS norm, length 1 |
//! | [`norm_backward`](NormBackwardSpec) | `ROWSxCOLS X:GRAD_Y kind=` | its gradients |
//! | [`softmax`](SoftmaxSpec) | `ROWSxCOLS X:Y` | softmax of each row, or its logarithm |
//! | [`activation`](ActivationSpec) | `ROWSxCOLS X:Y` | a function of each number, gates, sums, products |
//! | [`rope`](RopeSpec) | `TOKENSxHEADSxDIM X:Y positions=` | rotary position embedding |
//! | [`reduce`](ReduceSpec) | `ROWSxCOLS X:Y op=` | sums, means and extremes of rows, columns or sequences |
//! | [`cast`](CastSpec) | `BATCHxROWSxCOLS X:Y` | other types and layouts |
//! | [`gather`](GatherSpec) | `ROWSxCOLS TABLE:Y from=` | rows by index |
//!
//! Sizes are counts, 0 among them. A type is a [`DType`](crate::DType) and, for a narrow one, how it is scaled ([`Format`]):
//! `e4m3@1x128`, `i4@g32/f16`, `e2m1@nv`. Each spec's documentation names its options; every op knows `repro=`
//! ([`Repro`]) and `align=` ([`Align`]).

mod act;
mod activation;
mod any;
mod args;
mod attention;
mod attention_backward;
mod cast;
mod dequantize;
mod expr;
mod format;
mod gather;
mod gemm;
mod grouped_gemm;
mod layout;
mod mask;
mod norm;
mod norm_backward;
mod problem;
mod quantize;
mod reduce;
mod rope;
mod sequences;
mod softmax;

pub use act::{Act, Epilogue, Gate};
pub use activation::{Activation, ActivationArgs, ActivationProblem, ActivationSpec};
pub use any::{AnyProblem, EachOp, OpVisitor, each_op};
pub use args::{ArgError, Args, MAX_OPERANDS, Need, NeedList, Needs, Operand, View};
pub use attention::{Attention, AttentionArgs, AttentionProblem, AttentionSpec};
pub use attention_backward::{
    AttentionBackward, AttentionBackwardArgs, AttentionBackwardProblem, AttentionBackwardSpec,
};
pub use cast::{Cast, CastArgs, CastProblem, CastSpec};
pub use dequantize::{Dequantize, DequantizeArgs, DequantizeProblem, DequantizeSpec};
pub use expr::{Expr, Vars};
pub use format::{Format, ScaleLayout, Scheme};
pub use gather::{Gather, GatherArgs, GatherProblem, GatherSpec};
pub use gemm::{Acc, Addend, Gemm, GemmArgs, GemmProblem, GemmSpec, Sparsity};
pub use grouped_gemm::{GroupedGemm, GroupedGemmArgs, GroupedGemmProblem, GroupedGemmSpec, Grouping};
pub use layout::{Matrix, Order, Rows};
pub use mask::Mask;
pub use norm::{Norm, NormArgs, NormKind, NormProblem, NormSpec};
pub use norm_backward::{NormBackward, NormBackwardArgs, NormBackwardProblem, NormBackwardSpec};
pub use problem::{Align, BadProblem, Problem, Repro, Spec, needs};
pub use quantize::{Overflow, Quantize, QuantizeArgs, QuantizeProblem, QuantizeSpec, ScaleRule, Scales};
pub use reduce::{Reduce, ReduceArgs, ReduceOp, ReduceProblem, ReduceSpec, Reduced};
pub use rope::{Rope, RopeArgs, RopePairs, RopeProblem, RopeSpec};
pub use sequences::{HeadLayout, Kv, Lens};
pub use softmax::{Softmax, SoftmaxArgs, SoftmaxProblem, SoftmaxSpec};

use crate::kernel::{KernelList, Kernels};

/// An operation: a marker type that ties a spec to its arguments and to its list of kernels.
pub trait Op: Sized + Send + Sync + 'static {
    /// The first word of its problems: `gemm`.
    const NAME: &'static str = <Self::Spec as Spec>::NAME;
    /// What may be asked.
    type Spec: OpSpec<Op = Self>;
    /// What a launch takes.
    type Args<'a>: Args<'a>;
    /// This op's list in a backend's table.
    fn kernels(table: &Kernels) -> KernelList<Self>;
}

/// A spec that knows its op, so that `plan(&problem)` needs no type written out.
pub trait OpSpec: Spec {
    /// The operation it describes.
    type Op: Op<Spec = Self>;
}

/// Ties marker, spec, arguments, problem alias and list together.
macro_rules! op {
    ($(#[$doc:meta])* $op:ident, $spec:ident, $args:ident, $problem:ident, $field:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $op {}

        impl $crate::op::Op for $op {
            type Spec = $spec;
            type Args<'a> = $args<'a>;
            fn kernels(table: &$crate::Kernels) -> $crate::KernelList<Self> {
                table.$field
            }
        }

        impl $crate::op::OpSpec for $spec {
            type Op = $op;
        }

        #[doc = concat!("A [`", stringify!($spec), "`] that was checked.")]
        pub type $problem = $crate::op::Problem<$spec>;
    };
}
use op;

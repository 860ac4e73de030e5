//! A problem of any op: what a line of a suite, of wisdom or of a command holds.

use super::{BadProblem, Op, Problem};
use std::{fmt, str::FromStr};

/// Code that works for every op, called with the one that is meant.
pub trait OpVisitor {
    /// What it answers.
    type Out;
    /// Called with the problem.
    fn visit<O: Op>(self, problem: &Problem<O::Spec>) -> Self::Out;
}

/// Code to run once per op.
pub trait EachOp {
    /// Called once for each op, in the order of names.
    fn op<O: Op>(&mut self);
}

macro_rules! any {
    ($($op:ident $spec:ident,)*) => {
        /// A problem of any op.
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum AnyProblem { $(#[doc = concat!("A [`super::", stringify!($op), "`].")] $op(Problem<super::$spec>),)* }

        impl AnyProblem {
            /// Every op's name, in order.
            pub const OPS: &[&'static str] = &[$(<super::$op as Op>::NAME,)*];

            /// Calls `visitor` with the problem and its op.
            pub fn visit<V: OpVisitor>(&self, visitor: V) -> V::Out {
                match self { $(Self::$op(problem) => visitor.visit::<super::$op>(problem),)* }
            }
        }

        impl fmt::Display for AnyProblem {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(Self::$op(problem) => problem.fmt(f),)* }
            }
        }

        impl FromStr for AnyProblem {
            type Err = BadProblem;
            fn from_str(text: &str) -> Result<Self, BadProblem> {
                let name = text.split_whitespace().next().ok_or(BadProblem::Missing { what: "op" })?;
                match name {
                    $(<super::$op as Op>::NAME => text.parse().map(Self::$op),)*
                    _ => Err(BadProblem::Invalid { what: "op", expected: NAMES, got: crate::text::clip(name) }),
                }
            }
        }

        $(impl From<Problem<super::$spec>> for AnyProblem {
            fn from(problem: Problem<super::$spec>) -> Self {
                Self::$op(problem)
            }
        })*

        /// Calls `code` once per op.
        pub fn each_op(code: &mut impl EachOp) {
            $(code.op::<super::$op>();)*
        }
    };
}
any! {
    Activation ActivationSpec,
    Attention AttentionSpec,
    AttentionBackward AttentionBackwardSpec,
    Cast CastSpec,
    Dequantize DequantizeSpec,
    Gather GatherSpec,
    Gemm GemmSpec,
    GroupedGemm GroupedGemmSpec,
    Norm NormSpec,
    NormBackward NormBackwardSpec,
    Quantize QuantizeSpec,
    Reduce ReduceSpec,
    Rope RopeSpec,
    Softmax SoftmaxSpec,
}

// An op with a list of kernels but no row above would be one that no line of text can ask for.
const _: () = assert!(AnyProblem::OPS.len() == crate::Kernels::OPS, "an op lacks its row in `any!`");

const NAMES: &str = "one of activation, attention, attention_backward, cast, dequantize, gather, gemm, grouped_gemm, \
                     norm, norm_backward, quantize, reduce, rope, softmax";

impl fmt::Debug for AnyProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(feature = "serde")]
mod serde_text {
    use super::AnyProblem;

    impl serde::Serialize for AnyProblem {
        fn serialize<Z: serde::Serializer>(&self, out: Z) -> Result<Z::Ok, Z::Error> {
            out.collect_str(self)
        }
    }

    impl<'de> serde::Deserialize<'de> for AnyProblem {
        fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
            let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(input)?;
            text.parse().map_err(serde::de::Error::custom)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_in_the_message_are_all() {
        assert_eq!(NAMES, format!("one of {}", AnyProblem::OPS.join(", ")));
    }
}

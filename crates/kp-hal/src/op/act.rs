//! Activations, and what a GEMM does to its sums before it stores them.

use super::{
    NeedList,
    problem::{BadProblem, dtype_in},
};
use crate::{
    dtype::DType,
    text::{Reader, Writer, spelled},
};
use std::fmt;

/// A function of one number. NaN stays NaN.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Act {
    /// x
    #[default]
    Identity,
    /// max(x, 0)
    Relu,
    /// x · Φ(x), Φ being the normal distribution function (by erf)
    Gelu,
    /// x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))
    GeluTanh,
    /// x / (1 + e⁻ˣ)
    Silu,
    /// 1 / (1 + e⁻ˣ)
    Sigmoid,
    /// tanh(x)
    Tanh,
}
spelled!(Act {
    Identity = "identity",
    Relu = "relu",
    Gelu = "gelu",
    GeluTanh = "gelu_tanh",
    Silu = "silu",
    Sigmoid = "sigmoid",
    Tanh = "tanh",
});

/// Where the two halves of a gated activation lie: y = act(g) · u.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Gate {
    /// Not gated: y = act(x).
    #[default]
    None,
    /// The first half of the columns is g, the second u.
    Halves,
    /// Columns 2j and 2j + 1 are g and u of output column j.
    Pairs,
}
spelled!(Gate { None = "none", Halves = "halves", Pairs = "pairs" });

impl Gate {
    /// Input columns per output column: 2 when gated.
    pub const fn columns(self) -> u32 {
        match self {
            Self::None => 1,
            Self::Halves | Self::Pairs => 2,
        }
    }

    /// Input columns of g and u for output column `j` of `cols`; u equals g when not gated.
    pub const fn sources(self, j: u32, cols: u32) -> (u32, u32) {
        match self {
            Self::None => (j, j),
            Self::Halves => (j, j + cols),
            Self::Pairs => (2 * j, 2 * j + 1),
        }
    }
}

/// What happens to the sums of a GEMM: `act(x + bias)`, gated, plus a residual.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Epilogue {
    /// Type of a vector of n numbers, added to every row before the activation.
    pub bias: Option<DType>,
    /// The activation.
    pub act: Act,
    /// Whether pairs of columns are combined, which halves the columns of D.
    pub gate: Gate,
    /// Type of a matrix laid out as D, added after the activation.
    pub residual: Option<DType>,
}

/// The types that biases, residuals and norm weights may have.
pub(super) const PLAIN_FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::Bf16];
/// `PLAIN_FLOATS` in words.
pub(super) const PLAIN_FLOATS_TEXT: &str = "f64, f32, f16 or bf16";

impl Epilogue {
    pub(super) fn check(&self) -> Result<(), BadProblem> {
        for (name, dtype) in [("bias", self.bias), ("residual", self.residual)] {
            if let Some(dtype) = dtype {
                dtype_in(name, dtype, &PLAIN_FLOATS, PLAIN_FLOATS_TEXT)?;
            }
        }
        Ok(())
    }

    /// `biases` and `residuals` are element counts.
    pub(super) fn needs(&self, list: &mut NeedList, biases: u64, residuals: u64) {
        list.input("bias", self.bias.is_some(), self.bias.unwrap_or(DType::F32), biases);
        list.input("residual", self.residual.is_some(), self.residual.unwrap_or(DType::F32), residuals);
    }

    pub(super) fn write(&self, out: &mut Writer<'_, '_>) -> fmt::Result {
        out.maybe("bias", self.bias)?;
        out.option("act", &self.act, &Act::Identity)?;
        out.option("gate", &self.gate, &Gate::None)?;
        out.maybe("residual", self.residual)
    }

    pub(super) fn read(words: &mut Reader<'_>) -> Result<Self, BadProblem> {
        Ok(Self {
            bias: words.option("bias", PLAIN_FLOATS_TEXT)?,
            act: words.option("act", Act::FORMS)?.unwrap_or_default(),
            gate: words.option("gate", Gate::FORMS)?.unwrap_or_default(),
            residual: words.option("residual", PLAIN_FLOATS_TEXT)?,
        })
    }
}

//! One product per group of rows, each with its own B: the experts of a mixture.

use super::{
    GemmSpec, NeedList, Spec,
    args::args,
    op,
    problem::{BadProblem, exclusive},
};
use crate::{
    dtype::DType,
    text::{Reader, Writer, spelled},
};
use std::fmt;

op! {
    /// Matrix multiplication of groups of rows; see [`GroupedGemmSpec`].
    GroupedGemm, GroupedGemmSpec, GroupedGemmArgs, GroupedGemmProblem, grouped_gemm
}

/// A GEMM whose `batch` is the number of groups: B is `groups`×`k`×`n`, group g multiplies its rows by B\[g\].
///
/// Which rows a group has is known to the device only, so the text gives the most there can be:
/// `grouped_gemm GROUPSxMxNxK A:B:D grouping=contiguous|masked …`, the rest as in `gemm`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GroupedGemmSpec {
    /// The product; `gemm.batch` counts the groups.
    pub gemm: GemmSpec,
    /// Whose rows are whose.
    pub grouping: Grouping,
}

/// Whose rows are whose.
///
/// The numbers are data, so they may be anything: kernels take one below 0 as 0 and one past `m` as `m`, and touch nothing outside.
/// If they do not ascend, what rows that two groups claim become is not said.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Grouping {
    /// A is `m`×`k` and D `m`×`n` in all; group g has rows `groups[g] .. groups[g + 1]`, ascending from 0 and
    /// at most `m`; `groups` holds one number more than there are groups. Rows past the last group are not written.
    #[default]
    Contiguous,
    /// A is `groups`×`m`×`k` and D `groups`×`m`×`n`; group g has its first `groups[g]` rows, at most `m`.
    /// Rows past those are not written.
    Masked,
}
spelled!(Grouping { Contiguous = "contiguous", Masked = "masked" });

impl GroupedGemmSpec {
    /// How often A and D repeat.
    const fn row_batch(&self) -> u32 {
        match self.grouping {
            Grouping::Contiguous => 1,
            Grouping::Masked => self.gemm.batch,
        }
    }
}

args! {
    /// Buffers and scalars of a [`GroupedGemm`]; as in [`super::GemmArgs`] where not said.
    GroupedGemmArgs {
        /// Left operand.
        input a,
        /// Right operands.
        input b,
        /// Result.
        output d,
        /// I32 numbers that say which rows belong to which group; see [`Grouping`].
        input groups,
        ?
        /// Scales of A.
        input a_scale,
        /// The one f32 that multiplies all of A's scales.
        input a_global,
        /// Zero points of A.
        input a_zero,
        /// Scales of B, `batch` = groups.
        input b_scale,
        /// The one f32 that multiplies all of B's scales.
        input b_global,
        /// Zero points of B.
        input b_zero,
        /// `groups`×`n` numbers.
        input bias,
        /// Laid out as D.
        input residual,
        /// Scales of D.
        output d_scale,
        /// The f32 that everything in D is divided by: `@tensor` and `@nv`.
        input d_global,
        =
        /// Multiplies the product.
        alpha: 1.0,
    }
}

impl Spec for GroupedGemmSpec {
    const NAME: &'static str = "grouped_gemm";

    fn check(&self) -> Result<(), BadProblem> {
        exclusive(self.gemm.c != super::Addend::None, "grouped_gemm", "c")?;
        exclusive(self.gemm.sparsity != super::Sparsity::Dense, "grouped_gemm", "sparse")?;
        self.gemm.check_parts(self.row_batch(), self.row_batch())
    }

    fn canonical(self) -> Self {
        let GemmSpec { batch, m, n, k, .. } = self.gemm;
        let (a_cols, d_cols, rows) = (self.gemm.a_cols(), self.gemm.d_cols(), self.row_batch());
        let gemm = GemmSpec {
            a: self.gemm.a.canonical(m, a_cols, rows),
            b: self.gemm.b.canonical(k, n, batch),
            d: self.gemm.d.canonical(m, d_cols, rows),
            ..self.gemm
        };
        Self { gemm, ..self }
    }

    fn needs(&self, list: &mut NeedList) {
        let GemmSpec { batch, n, epilogue, .. } = self.gemm;
        let plain = GemmSpec { epilogue: super::Epilogue { bias: None, ..epilogue }, ..self.gemm };
        plain.needs_parts(list, self.row_batch(), self.row_batch());
        let biases = u64::from(batch) * u64::from(n);
        list.input("bias", epilogue.bias.is_some(), epilogue.bias.unwrap_or(DType::F32), biases);
        let numbers = match self.grouping {
            Grouping::Contiguous => u64::from(batch) + 1,
            Grouping::Masked => batch.into(),
        };
        list.input("groups", true, DType::I32, numbers);
    }

    fn flops(&self) -> f64 {
        let GemmSpec { m, n, k, .. } = self.gemm;
        2.0 * f64::from(self.row_batch()) * f64::from(m) * f64::from(n) * f64::from(k)
    }

    fn rate_dtype(&self) -> DType {
        self.gemm.rate_dtype()
    }

    fn write(&self, out: &mut Writer<'_, '_>) -> fmt::Result {
        let GemmSpec { batch, m, n, k, .. } = self.gemm;
        out.word(format_args!("{batch}x{m}x{n}x{k}"))?;
        self.gemm.write_parts(out)?;
        out.option("grouping", &self.grouping, &Grouping::default())
    }

    fn read(words: &mut Reader<'_>) -> Result<Self, BadProblem> {
        let dims = words.dims("GROUPSxMxNxK")?;
        let gemm = GemmSpec::read_parts(words, dims)?;
        let grouping = words.option("grouping", Grouping::FORMS)?.unwrap_or_default();
        Ok(Self { gemm, grouping })
    }
}

//! D = epilogue(alpha · A·B + beta · C).

use super::{
    Epilogue, NeedList, Scheme, Spec,
    args::args,
    format::{Access, Format},
    layout::{Matrix, MatrixNames, Order, matrix_names},
    op,
    problem::{BadProblem, dtype_in, exclusive, multiple, refuse_if},
};
use crate::{
    dtype::DType,
    text::{Reader, Unread, Writer, spelled},
};
use std::{fmt, str::FromStr};

op! {
    /// Matrix multiplication with a fused epilogue; see [`GemmSpec`].
    Gemm, GemmSpec, GemmArgs, GemmProblem, gemm
}

/// A is `m`×`k`, B is `k`×`n`, C and D are `m`×`n` (D is `m`×`n/2` if gated), each repeated `batch` times.
///
/// ```text
/// X = alpha · A·B + beta · C + bias        sums kept in `acc`
/// D = act(X)  or  act(X_g) · X_u           see `Gate`
/// D = store(D + residual)                  rounded to nearest even
/// ```
/// Past D's largest number, integers and floats of 8 and 4 bits saturate (e5m2 too, although it has infinities); wider
/// floats become infinite.
/// A's scheme sees `m` rows of `k`, B's `n` rows of `k`, D's `m` rows of its columns.
/// Text: `gemm BATCHxMxNxK A:B:D` and then `a= b= d=` (layout), `acc= c= sparse= bias= act= gate= residual=`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GemmSpec {
    /// How many products.
    pub batch: u32,
    /// Rows of A and D.
    pub m: u32,
    /// Columns of B.
    pub n: u32,
    /// Columns of A, rows of B.
    pub k: u32,
    /// The left operand; its rows hold `k/2` codes if sparse.
    pub a: Matrix,
    /// The right operand.
    pub b: Matrix,
    /// The result.
    pub d: Matrix,
    /// What sums are kept in.
    pub acc: Acc,
    /// What beta multiplies.
    pub c: Addend,
    /// Whether half of A is known to be zero.
    pub sparsity: Sparsity,
    /// What happens to the sums.
    pub epilogue: Epilogue,
}

/// What sums are kept in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Acc {
    /// f64.
    F64,
    /// f32, or no less accurate; of 8-bit floats, sums of up to 128 products may be those of a coarser matrix unit, which are
    /// then added in f32.
    F32,
    /// The matrix unit's own accumulator, which for 8-bit floats may keep as few as 13 mantissa bits.
    F32Fast,
    /// f32, and A, of floats of 16 or 32 bits, may be rounded before it is multiplied: each run of 32 elements of a row, from
    /// multiples of 32 on, to whole numbers from −127 to 127 times 1/127 of its largest magnitude. So each element of A may be
    /// off by 1/254 of that; whole numbers of which one is ±127 are kept. Runs below 2⁻¹¹⁸ may become zeros, and what a NaN or
    /// an infinity meets may become NaN. B has at most 8 bits; values of NF4 may be off by 2⁻¹² of themselves, but not −1, 0 and 1. A permission: who does not use it computes as for [`Acc::F32`].
    F32Q8,
    /// f16.
    F16,
    /// i32, exact; wraps on overflow.
    I32,
}
spelled!(Acc { F64 = "f64", F32 = "f32", F32Fast = "f32fast", F32Q8 = "f32q8", F16 = "f16", I32 = "i32" });

impl Acc {
    /// The usual accumulator of a product of `a` and `b`.
    pub fn of(a: DType, b: DType) -> Self {
        match (a.is_float(), b.is_float()) {
            (false, false) => Self::I32,
            _ if a == DType::F64 => Self::F64,
            _ => Self::F32,
        }
    }

    /// Elements of a row of A that [`Acc::F32Q8`] rounds together.
    pub const RUN: u32 = 32;

    /// Whether sums are f32, whatever else is permitted.
    pub const fn is_f32(self) -> bool {
        matches!(self, Self::F32 | Self::F32Fast | Self::F32Q8)
    }
}

/// What beta multiplies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Addend {
    /// Nothing; beta is not read.
    #[default]
    None,
    /// A matrix of this type, `m`×`n`, rows contiguous and tight, batches too.
    Given(DType),
    /// What D held before. Not when gated or scaled.
    InPlace,
}

impl fmt::Display for Addend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Given(dtype) => dtype.fmt(f),
            Self::InPlace => f.write_str("d"),
        }
    }
}

impl FromStr for Addend {
    type Err = Unread;
    /// # Errors
    /// [`Unread`] with the form expected.
    fn from_str(s: &str) -> Result<Self, Unread> {
        const BAD: Unread = Unread { expected: "none, d or a type" };
        match s {
            "none" => Ok(Self::None),
            "d" => Ok(Self::InPlace),
            _ => s.parse().map(Self::Given).map_err(|_| BAD),
        }
    }
}

/// Structure of A's zeros.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Sparsity {
    /// None.
    #[default]
    Dense,
    /// Of every 4 consecutive elements of a row at most 2 are not zero. A holds those 2 (`m`×`k/2`); `a_meta`
    /// holds their two 2-bit positions, ascending, low bits first: two groups of 4 per byte, `m` rows of `k/8` bytes.
    TwoOfFour,
}
spelled!(Sparsity { Dense = "dense", TwoOfFour = "2:4" });

args! {
    /// Buffers and scalars of a [`Gemm`].
    GemmArgs {
        /// Left operand.
        input a,
        /// Right operand.
        input b,
        /// Result.
        output d,
        ?
        /// Scales of A.
        input a_scale,
        /// The one f32 that multiplies all of A's scales.
        input a_global,
        /// Zero points of A.
        input a_zero,
        /// Positions of A's kept elements.
        input a_meta,
        /// Scales of B.
        input b_scale,
        /// The one f32 that multiplies all of B's scales.
        input b_global,
        /// Zero points of B.
        input b_zero,
        /// What beta multiplies.
        input c,
        /// `n` numbers.
        input bias,
        /// Laid out as D.
        input residual,
        /// Scales of D: written, but for `@tensor`, whose one scale is [`GemmArgs::d_global`].
        output d_scale,
        /// The f32 that everything in D is divided by before it is stored: `@tensor` and `@nv`.
        input d_global,
        =
        /// Multiplies the product.
        alpha: 1.0,
        /// Multiplies C; 0 means C is not read.
        beta: 1.0,
    }
}

pub(super) const A: MatrixNames = matrix_names!("a");
pub(super) const B: MatrixNames = matrix_names!("b");
pub(super) const D: MatrixNames = matrix_names!("d");
const TYPES: &str = "A:B:D, each dtype[@scheme]";

impl GemmSpec {
    /// A plain product of tight matrices, rows contiguous.
    pub fn new(m: u32, n: u32, k: u32, [a, b, d]: [Format; 3]) -> Self {
        Self {
            batch: 1,
            m,
            n,
            k,
            a: Matrix::tight(a, Order::Row, m, k),
            b: Matrix::tight(b, Order::Row, k, n),
            d: Matrix::tight(d, Order::Row, m, n),
            acc: Acc::of(a.dtype, b.dtype),
            c: Addend::None,
            sparsity: Sparsity::Dense,
            epilogue: Epilogue::default(),
        }
    }

    /// The same with B's columns contiguous, as a weight stored `n`×`k` is, and tight.
    #[must_use]
    pub fn with_b_transposed(self) -> Self {
        Self { b: Matrix::tight(self.b.format, Order::Col, self.k, self.n), ..self }
    }

    /// Codes in a row of A: `k`, or half of it if sparse.
    pub const fn a_cols(&self) -> u32 {
        match self.sparsity {
            Sparsity::Dense => self.k,
            Sparsity::TwoOfFour => self.k / 2,
        }
    }

    /// Columns of D: `n`, or half of it if gated.
    pub const fn d_cols(&self) -> u32 {
        self.n / self.epilogue.gate.columns()
    }

    /// What `check` checks, but for A's and D's extent, which grouping changes.
    pub(super) fn check_parts(&self, a_batch: u32, d_batch: u32) -> Result<(), BadProblem> {
        let Self { batch, m, n, k, a, b, d, acc, .. } = *self;
        self.epilogue.check()?;
        multiple("n of a gated product", self.epilogue.gate.columns().into(), n.into())?;
        if self.sparsity == Sparsity::TwoOfFour {
            multiple("k of a sparse a", 8, k.into())?;
            exclusive(a.order != Order::Row, "sparse=2:4", "an a that does not lie in rows")?;
        }
        a.check(&A, (m, self.a_cols(), a_batch), false)?;
        b.check(&B, (k, n, batch), false)?;
        d.check(&D, (m, self.d_cols(), d_batch), true)?;
        let panels = |m: &Matrix| matches!(m.order, Order::Panel { .. });
        exclusive(panels(&a) || panels(&d), "panels", "a or d")?;
        for (operand, got) in [("a", a.dtype()), ("b", b.dtype())] {
            let wide = matches!(got, DType::I32 | DType::I64);
            refuse_if(wide, operand, got, "a float or an integer of at most 8 bits")?;
        }
        let wide = |t: DType| t == DType::F64;
        refuse_if(wide(a.dtype()) && !wide(b.dtype()), "b", b.dtype(), "f64 as a is")?;
        refuse_if(wide(b.dtype()) && !wide(a.dtype()), "a", a.dtype(), "f64 as b is")?;
        if wide(a.dtype()) != (acc == Acc::F64) {
            let expected = if acc == Acc::F64 { "no f64 where a and b are not" } else { "f64 where a and b are" };
            return Err(BadProblem::Invalid { what: "acc", expected, got: acc.to_string() });
        }
        let integers = !a.dtype().is_float() && !b.dtype().is_float();
        exclusive(acc == Acc::I32 && !integers, "acc=i32", "an operand that is no integer")?;
        if acc == Acc::F32Q8 {
            let rounded = a.dtype().is_float() && a.dtype().bits() >= 16;
            refuse_if(!rounded, "a", a.dtype(), "a float of 16 or 32 bits with acc=f32q8")?;
            refuse_if(b.dtype().bits() > 8, "b", b.dtype(), "a type of at most 8 bits with acc=f32q8")?;
            exclusive(a.format.scheme != Scheme::None, "acc=f32q8", "scales of a")?;
            exclusive(self.sparsity != Sparsity::Dense, "acc=f32q8", "sparse=2:4")?;
        }
        let unsigned = matches!(d.dtype(), DType::U4 | DType::U8);
        refuse_if(unsigned, "d", d.dtype(), "a float or a signed integer")?;
        exclusive(d.format.has_zero(), "d", "zero points")?;
        match self.c {
            Addend::None => Ok(()),
            Addend::Given(dtype) => dtype_in("c", dtype, &C_TYPES, "f64, f32, f16, bf16 or i32"),
            Addend::InPlace => {
                exclusive(self.epilogue.gate.columns() > 1, "c=d", "gate")?;
                dtype_in("d with c=d", d.dtype(), &C_TYPES, "f64, f32, f16, bf16 or i32")
            }
        }
    }

    /// Lists what is alike in plain and grouped products.
    pub(super) fn needs_parts(&self, list: &mut NeedList, a_batch: u32, d_batch: u32) {
        let Self { batch, m, n, k, a, b, d, .. } = *self;
        a.needs(list, &A, (m, self.a_cols(), a_batch), (m, k), Access::INPUT);
        let meta = u64::from(m).saturating_mul(u64::from(a_batch)).saturating_mul(u64::from(k / 8));
        list.input("a_meta", self.sparsity == Sparsity::TwoOfFour, DType::U8, meta);
        b.needs(list, &B, (k, n, batch), (n, k), Access::INPUT);
        let d_cols = self.d_cols();
        let span = d.span(m, d_cols, d_batch);
        // The scale of `@tensor` is read, so it is `d_global`, an input, rather than `d_scale`, an output.
        let names = match d.format.scheme {
            Scheme::Tensor => ["d", "d_global", "", ""],
            _ => ["d", "d_scale", "d_global", "d_zero"],
        };
        let codes_read = self.c == Addend::InPlace;
        let access = Access { codes_read, ..Access::fused_output(d.format) };
        d.format.needs(list, names, span, (m, d_cols, d_batch), access);
        if let Addend::Given(dtype) = self.c {
            let elements = u64::from(m) * u64::from(n);
            list.input("c", true, dtype, elements.saturating_mul(d_batch.into()));
        }
        self.epilogue.needs(list, n.into(), span);
    }

    pub(super) fn write_parts(&self, out: &mut Writer<'_, '_>) -> fmt::Result {
        let Self { m, n, k, a, b, d, .. } = self;
        out.word(format_args!("{}:{}:{}", a.format, b.format, d.format))?;
        a.write(out, "a", (*m, self.a_cols()))?;
        b.write(out, "b", (*k, *n))?;
        d.write(out, "d", (*m, self.d_cols()))?;
        out.option("acc", &self.acc, &Acc::of(a.dtype(), b.dtype()))?;
        out.option("c", &self.c, &Addend::None)?;
        out.option("sparse", &self.sparsity, &Sparsity::Dense)?;
        self.epilogue.write(out)
    }

    pub(super) fn read_parts(words: &mut Reader<'_>, [batch, m, n, k]: [u32; 4]) -> Result<Self, BadProblem> {
        let [a, b, d] = words.types::<Format, 3>(TYPES)?;
        let mut spec = Self { batch, ..Self::new(m, n, k, [a, b, d]) };
        spec.acc = words.option("acc", Acc::FORMS)?.unwrap_or(spec.acc);
        spec.c = words.option("c", "d or a type")?.unwrap_or_default();
        spec.sparsity = words.option("sparse", Sparsity::FORMS)?.unwrap_or_default();
        spec.epilogue = Epilogue::read(words)?;
        spec.a = Matrix::read(words, "a", a, (m, spec.a_cols()))?;
        spec.b = Matrix::read(words, "b", b, (k, n))?;
        spec.d = Matrix::read(words, "d", d, (m, spec.d_cols()))?;
        Ok(spec)
    }
}

const C_TYPES: [DType; 5] = [DType::F64, DType::F32, DType::F16, DType::Bf16, DType::I32];

impl Spec for GemmSpec {
    const NAME: &'static str = "gemm";

    fn check(&self) -> Result<(), BadProblem> {
        self.check_parts(self.batch, self.batch)
    }

    fn canonical(self) -> Self {
        let Self { batch, m, n, k, .. } = self;
        Self {
            a: self.a.canonical(m, self.a_cols(), batch),
            b: self.b.canonical(k, n, batch),
            d: self.d.canonical(m, self.d_cols(), batch),
            ..self
        }
    }

    fn needs(&self, list: &mut NeedList) {
        self.needs_parts(list, self.batch, self.batch);
    }

    fn flops(&self) -> f64 {
        2.0 * f64::from(self.batch) * f64::from(self.m) * f64::from(self.n) * f64::from(self.k)
    }

    fn rate_dtype(&self) -> DType {
        // A narrow weight is widened to the activation's type before it is multiplied.
        if self.a.dtype().bits() >= self.b.dtype().bits() { self.a.dtype() } else { self.b.dtype() }
    }

    fn write(&self, out: &mut Writer<'_, '_>) -> fmt::Result {
        let Self { batch, m, n, k, .. } = self;
        out.word(format_args!("{batch}x{m}x{n}x{k}"))?;
        self.write_parts(out)
    }

    fn read(words: &mut Reader<'_>) -> Result<Self, BadProblem> {
        let dims = words.dims("BATCHxMxNxK")?;
        Self::read_parts(words, dims)
    }
}

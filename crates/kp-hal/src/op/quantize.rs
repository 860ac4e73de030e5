//! Numbers to narrow codes with scales.

use super::{
    Format, NeedList, Rows, Scheme, Spec,
    act::{PLAIN_FLOATS, PLAIN_FLOATS_TEXT},
    args::args,
    format::Access,
    layout::MatrixNames,
    norm::X,
    op,
    problem::{BadProblem, dtype_in, exclusive},
};
use crate::{
    dtype::DType,
    text::{Reader, Writer, spelled},
};
use std::fmt;

op! {
    /// From numbers to codes and scales; see [`QuantizeSpec`].
    Quantize, QuantizeSpec, QuantizeArgs, QuantizeProblem, quantize
}

/// `rows` × `cols` numbers become codes, block by block: with amax the block's largest magnitude and MAX the
/// largest code, the scale is amax / MAX as `rule` rounds it, and each code is the one nearest to x / scale (ties to
/// even). MAX is 127 for `I8`, 7 for `I4`. A scale too small or too large for its type is the smallest positive or the
/// largest number of the type. A block of zeros has scale 1 (E8M0 and UE4M3: the code 0) and the codes of 0.
///
/// `@nv`: global = amax of everything / (448 · 6), 1 if that is 0, block scale = UE4M3(amax / 6 / global), code of
/// x / (block scale · global). Zero points (`@g…z`, unsigned codes only): scale = (max − min) / (code range), zero =
/// the code of 0, that is −min / scale rounded, both over the block's values and 0. NaN: the code is NaN if the type
/// has one, and the largest magnitude ignores it; types without NaN store the code of 0. An infinite x saturates and
/// its block's scale is that of the largest finite magnitude.
/// Text: `quantize ROWSxCOLS X:Q` then `ldx= ldq= rule= overflow= scales=`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QuantizeSpec {
    /// Rows, the scheme's outer dimension.
    pub rows: u32,
    /// Columns, the scheme's inner dimension.
    pub cols: u32,
    /// What is quantized: f64, f32, f16 or bf16.
    pub x: Rows,
    /// Codes and scales.
    pub q: Rows,
    /// How a scale is rounded.
    pub rule: ScaleRule,
    /// What becomes of numbers past the largest code.
    pub overflow: Overflow,
    /// Whether scales are computed.
    pub scales: Scales,
}

/// How amax / MAX becomes a scale.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum ScaleRule {
    /// To the nearest number of the scale's type; for E8M0 a power of two, ties to the larger.
    Nearest,
    /// `2^(floor(log2 amax) − floor(log2 MAX))`, the rule of OCP Microscaling 1.0, section 6.3. Numbers may saturate.
    Floor,
    /// The smallest power of two that is no less: nothing saturates.
    Up,
}
spelled!(ScaleRule { Nearest = "nearest", Floor = "floor", Up = "up" });

impl ScaleRule {
    /// The usual rule of a format: `Floor` for `@mx`, else `Nearest`.
    pub const fn of(format: Format) -> Self {
        match format.scheme {
            Scheme::Mx => Self::Floor,
            _ => Self::Nearest,
        }
    }
}

/// What becomes of numbers past the largest code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Overflow {
    /// The largest code.
    #[default]
    Saturate,
    /// Infinity if the type has one, else NaN. Only for 8-bit floats.
    Propagate,
}
spelled!(Overflow { Saturate = "saturate", Propagate = "propagate" });

/// Who makes the scales.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Scales {
    /// The kernel, from the numbers.
    #[default]
    Computed,
    /// The caller, of an earlier tensor: `given_scale` (and `given_zero`) are read. Not for `@nv` and `@mx`.
    Given,
}
spelled!(Scales { Computed = "computed", Given = "given" });

args! {
    /// Buffers of a [`Quantize`].
    QuantizeArgs {
        /// Numbers.
        input x,
        /// Codes.
        output q,
        ?
        /// Scales.
        output scale,
        /// The one f32 of `@nv`.
        output global,
        /// Zero points.
        output zero,
        /// Scales to use as they are.
        input given_scale,
        /// Zero points to use as they are.
        input given_zero,
        =
    }
}

pub(super) const Q: MatrixNames = MatrixNames {
    operand: "q",
    scale: "scale",
    global: "global",
    zero: "zero",
    ld: "ld of q",
    stride: "batch stride of q",
};

impl QuantizeSpec {
    /// Tight rows, the format's usual rule, saturating, scales computed.
    pub fn new(rows: u32, cols: u32, x: DType, q: Format) -> Self {
        Self {
            rows,
            cols,
            x: Rows::tight(x, cols),
            q: Rows::tight(q, cols),
            rule: ScaleRule::of(q),
            overflow: Overflow::default(),
            scales: Scales::default(),
        }
    }
}

impl Spec for QuantizeSpec {
    const NAME: &'static str = "quantize";

    fn check(&self) -> Result<(), BadProblem> {
        let q = self.q.format;
        dtype_in("x", self.x.dtype(), &PLAIN_FLOATS, PLAIN_FLOATS_TEXT)?;
        exclusive(self.x.format.scheme != Scheme::None, "x", "scales")?;
        dtype_in("q", q.dtype, &NARROW, NARROW_TEXT)?;
        self.x.check(&X, self.rows, self.cols)?;
        self.q.check(&Q, self.rows, self.cols)?;
        exclusive(q.scheme == Scheme::Nv && self.rule != ScaleRule::Nearest, "@nv", "rules other than nearest")?;
        exclusive(q.scheme == Scheme::None && self.rule != ScaleRule::Nearest, "rule", "a q without scales")?;
        exclusive(q.has_zero() && self.rule != ScaleRule::Nearest, "zero points", "rules other than nearest")?;
        let signed = !matches!(q.dtype, DType::U4 | DType::U8);
        exclusive(q.has_zero() && signed, "zero points", "signed codes")?;
        let fp8 = matches!(q.dtype, DType::E4m3 | DType::E5m2 | DType::E4m3Fnuz | DType::E5m2Fnuz);
        exclusive(self.overflow == Overflow::Propagate && !fp8, "overflow=propagate", "q other than 8-bit floats")?;
        let own = matches!(q.scheme, Scheme::None | Scheme::Mx | Scheme::Nv);
        exclusive(self.scales == Scales::Given && own, "scales=given", "a q that is unscaled, @mx or @nv")
    }

    fn needs(&self, list: &mut NeedList) {
        let Self { rows, cols, .. } = *self;
        self.x.needs(list, &X, rows, cols, Access::INPUT);
        match self.scales {
            Scales::Computed => self.q.needs(list, &Q, rows, cols, Access::OUTPUT),
            Scales::Given => {
                let names = ["q", "given_scale", "global", "given_zero"];
                let access = Access { scale_read: true, ..Access::OUTPUT };
                self.q.format.needs(list, names, self.q.span(rows, cols), (rows, cols, 1), access);
            }
        }
    }

    fn flops(&self) -> f64 {
        // One comparison and one multiplication per number.
        2.0 * f64::from(self.rows) * f64::from(self.cols)
    }

    fn rate_dtype(&self) -> DType {
        self.x.dtype()
    }

    fn write(&self, out: &mut Writer<'_, '_>) -> fmt::Result {
        out.word(format_args!("{}x{}", self.rows, self.cols))?;
        out.word(format_args!("{}:{}", self.x.format, self.q.format))?;
        self.x.write(out, "ldx", self.cols)?;
        self.q.write(out, "ldq", self.cols)?;
        out.option("rule", &self.rule, &ScaleRule::of(self.q.format))?;
        out.option("overflow", &self.overflow, &Overflow::default())?;
        out.option("scales", &self.scales, &Scales::default())
    }

    fn read(words: &mut Reader<'_>) -> Result<Self, BadProblem> {
        let [rows, cols] = words.dims("ROWSxCOLS")?;
        let [x, q] = words.types::<Format, 2>("X:Q, each dtype[@scheme]")?;
        Ok(Self {
            x: Rows::read(words, "ldx", x, cols)?,
            q: Rows::read(words, "ldq", q, cols)?,
            rule: words.option("rule", ScaleRule::FORMS)?.unwrap_or(ScaleRule::of(q)),
            overflow: words.option("overflow", Overflow::FORMS)?.unwrap_or_default(),
            scales: words.option("scales", Scales::FORMS)?.unwrap_or_default(),
            ..Self::new(rows, cols, x.dtype, q)
        })
    }
}

/// What numbers are quantized to.
pub(super) const NARROW: [DType; 10] = [
    DType::E4m3,
    DType::E5m2,
    DType::E4m3Fnuz,
    DType::E5m2Fnuz,
    DType::E2m1,
    DType::Nf4,
    DType::I4,
    DType::U4,
    DType::I8,
    DType::U8,
];
/// `NARROW` in words.
pub(super) const NARROW_TEXT: &str = "a type of at most 8 bits";

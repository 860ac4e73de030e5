//! How stored codes become numbers: a type and, for narrow types, how blocks of it are scaled.

use super::{
    NeedList,
    problem::{BadProblem, dtype_in, exclusive},
};
use crate::{
    dtype::DType,
    text::{Unread, number, spelled},
};
use std::{fmt, str::FromStr};

/// How codes are rescaled: `value = code · scale`, `code · scale · global`, or `(code − zero) · scale`.
///
/// An operand is seen as *outer* rows of *inner* elements, inner being the dimension that is summed over
/// (k of a GEMM's A and B, the columns elsewhere); a scale serves a block of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Scheme {
    /// The code is the value.
    #[default]
    None,
    /// One f32 for everything.
    Tensor,
    /// One f32 per outer row.
    Row,
    /// One f32 per block of `outer` × `inner` elements: 1×128, 128×128.
    Block {
        /// Rows of a block.
        outer: u16,
        /// Elements of a row of a block.
        inner: u16,
    },
    /// One E8M0 per 32 inner elements (OCP Microscaling 1.0).
    Mx,
    /// One UE4M3 per 16 inner elements, times one f32 for everything (NVFP4).
    Nv,
    /// One scale per `inner` inner elements, as weight-only quantization uses.
    Group {
        /// Elements that share a scale.
        inner: u16,
        /// Type of the scales: `F32`, `F16` or `Bf16`.
        scale: DType,
        /// Whether an integer zero point (one `U8` per scale) is subtracted from the code.
        zero: bool,
    },
}

/// In which order scales lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ScaleLayout {
    /// Row-major `[outer blocks][inner blocks]`.
    #[default]
    Inner,
    /// `[inner blocks][outer blocks]`, the outer count rounded up to 4 so that each run starts 16-byte aligned
    /// (as bulk copies of f32 scales need).
    Outer,
    /// Tiles of 128 outer × 4 inner blocks, 512 bytes each, tiles row-major; within a tile, scale (o, i) is
    /// at byte `(o % 32) · 16 + (o / 32) · 4 + i` (the block-scaled matrix units of sm_100).
    Tiles,
}
spelled!(ScaleLayout { Inner = "inner", Outer = "outer", Tiles = "tiles" });

/// A type with its scaling; written `e4m3@1x128`, `e2m1@nv^tiles`, `i4@g128/f16z`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Format {
    /// Type of the codes.
    pub dtype: DType,
    /// How they are scaled.
    pub scheme: Scheme,
    /// Where the scales lie.
    pub scales: ScaleLayout,
}

impl From<DType> for Format {
    fn from(dtype: DType) -> Self {
        Self { dtype, scheme: Scheme::None, scales: ScaleLayout::Inner }
    }
}

impl Format {
    /// `dtype` scaled by `scheme`, scales row-major.
    pub const fn new(dtype: DType, scheme: Scheme) -> Self {
        Self { dtype, scheme, scales: ScaleLayout::Inner }
    }

    /// Type of one scale, if there are any.
    pub const fn scale_dtype(self) -> Option<DType> {
        match self.scheme {
            Scheme::None => None,
            Scheme::Tensor | Scheme::Row | Scheme::Block { .. } => Some(DType::F32),
            Scheme::Mx => Some(DType::E8m0),
            Scheme::Nv => Some(DType::Ue4m3),
            Scheme::Group { scale, .. } => Some(scale),
        }
    }

    /// Whether one f32 multiplies everything on top of the block scales.
    pub const fn has_global(self) -> bool {
        matches!(self.scheme, Scheme::Nv)
    }

    /// Whether a zero point is subtracted.
    pub const fn has_zero(self) -> bool {
        matches!(self.scheme, Scheme::Group { zero: true, .. })
    }

    /// Rows and elements of a row that share a scale; `u32::MAX` for all.
    pub const fn block(self) -> (u32, u32) {
        match self.scheme {
            Scheme::None | Scheme::Tensor => (u32::MAX, u32::MAX),
            Scheme::Row => (1, u32::MAX),
            Scheme::Block { outer, inner } => (outer as u32, inner as u32),
            Scheme::Mx => (1, 32),
            Scheme::Nv => (1, 16),
            Scheme::Group { inner, .. } => (1, inner as u32),
        }
    }

    /// Blocks along outer and inner.
    pub const fn blocks(self, outer: u32, inner: u32) -> (u32, u32) {
        let (o, i) = self.block();
        (outer.div_ceil(o), inner.div_ceil(i))
    }

    /// Scales stored for `outer` × `inner` elements, the layout's padding included.
    pub const fn scale_count(self, outer: u32, inner: u32) -> u64 {
        let (o, i) = self.blocks(outer, inner);
        let (o, i) = (o as u64, i as u64);
        match (self.scheme, self.scales) {
            (Scheme::None, _) => 0,
            (Scheme::Tensor, _) => 1,
            (_, ScaleLayout::Inner) => o * i,
            (_, ScaleLayout::Outer) => o.next_multiple_of(4) * i,
            // Padding may carry either factor past 32 bits.
            (_, ScaleLayout::Tiles) => o.next_multiple_of(128).saturating_mul(i.next_multiple_of(4)),
        }
    }

    /// Where the scale of block (`o`, `i`) lies among `scale_count(outer, inner)`.
    pub const fn scale_index(self, (o, i): (u32, u32), (outer, inner): (u32, u32)) -> u64 {
        let (outer_blocks, inner_blocks) = self.blocks(outer, inner);
        let (o, i) = (o as u64, i as u64);
        match self.scales {
            ScaleLayout::Inner => o * inner_blocks as u64 + i,
            ScaleLayout::Outer => i * (outer_blocks as u64).next_multiple_of(4) + o,
            ScaleLayout::Tiles => {
                let tile = o / 128 * (inner_blocks as u64).div_ceil(4) + i / 4;
                tile * 512 + o % 32 * 16 + o % 128 / 32 * 4 + i % 4
            }
        }
    }

    /// Refuses combinations that no hardware or library means.
    pub(super) fn check(self, operand: &'static str) -> Result<(), BadProblem> {
        use DType::{Bf16, E2m1, E4m3, E5m2, F16, F32, I4, I8, Nf4, U4, U8};
        const FP8: [DType; 4] = [E4m3, E5m2, DType::E4m3Fnuz, DType::E5m2Fnuz];
        let t = self.dtype;
        if t.is_scale() {
            return Err(BadProblem::DType { operand, got: t, expected: "no scale type" });
        }
        match self.scheme {
            Scheme::None => {}
            Scheme::Tensor | Scheme::Row | Scheme::Block { .. } => {
                let narrow = [FP8.as_slice(), &[E2m1, Nf4, I4, I8]].concat();
                dtype_in(operand, t, &narrow, "a signed type of at most 8 bits to be scaled")?;
            }
            Scheme::Mx => dtype_in(operand, t, &[E4m3, E5m2, E2m1, I8], "e4m3, e5m2, e2m1 or i8 with @mx")?,
            Scheme::Nv => dtype_in(operand, t, &[E2m1], "e2m1 with @nv")?,
            Scheme::Group { scale, zero, .. } => {
                dtype_in("the scale", scale, &[F32, F16, Bf16], "f32, f16 or bf16")?;
                if zero {
                    dtype_in(operand, t, &[I4, U4, I8, U8], "an integer of at most 8 bits to have zero points")?;
                } else {
                    let narrow = [FP8.as_slice(), &[E2m1, Nf4, I4, U4, I8, U8]].concat();
                    dtype_in(operand, t, &narrow, "a type of at most 8 bits with @g")?;
                }
            }
        }
        if let (0, _) | (_, 0) = self.block() {
            return Err(BadProblem::TooSmall { what: "a block of scales", min: 1, got: 0 });
        }
        exclusive(
            self.scales == ScaleLayout::Tiles && !matches!(self.scheme, Scheme::Mx | Scheme::Nv),
            "^tiles",
            "schemes other than @mx and @nv",
        )?;
        exclusive(
            self.scales == ScaleLayout::Outer && matches!(self.scheme, Scheme::None | Scheme::Tensor | Scheme::Row),
            "^outer",
            "schemes with at most one scale per row",
        )
    }

    /// Lists codes, scales, global and zero points under `names`; `outer` rows of `inner` in each of `batch`.
    pub(super) fn needs(
        self,
        list: &mut NeedList,
        names: [&'static str; 4],
        elements: u64,
        (outer, inner, batch): (u32, u32, u32),
        access: Access,
    ) {
        let [codes, scale, global, zero] = names;
        let scales = u64::from(batch).saturating_mul(self.scale_count(outer, inner));
        let scales = if self.scheme == Scheme::Tensor { 1 } else { scales };
        list.push(codes, true, self.dtype, elements, access.codes_read);
        if let Some(dtype) = self.scale_dtype() {
            list.push(scale, true, dtype, scales, access.scale_read);
        }
        list.push(global, self.has_global(), DType::F32, 1, access.global_read);
        list.push(zero, self.has_zero(), DType::U8, scales, access.scale_read);
    }
}

/// Which parts of a scaled operand a kernel reads.
#[derive(Clone, Copy)]
pub(super) struct Access {
    pub(super) codes_read: bool,
    pub(super) scale_read: bool,
    pub(super) global_read: bool,
}

impl Access {
    pub(super) const INPUT: Self = Self { codes_read: true, scale_read: true, global_read: true };
    /// All parts are computed.
    pub(super) const OUTPUT: Self = Self { codes_read: false, scale_read: false, global_read: false };

    /// An output that a kernel scales as it stores it: what belongs to the whole tensor cannot be known
    /// then, so the one scale of `@tensor` and the global of `@nv` are the caller's.
    pub(super) const fn fused_output(format: Format) -> Self {
        Self { scale_read: matches!(format.scheme, Scheme::Tensor), global_read: true, ..Self::OUTPUT }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.dtype)?;
        match self.scheme {
            Scheme::None => {}
            Scheme::Tensor => f.write_str("@tensor")?,
            Scheme::Row => f.write_str("@row")?,
            Scheme::Block { outer, inner } => write!(f, "@{outer}x{inner}")?,
            Scheme::Mx => f.write_str("@mx")?,
            Scheme::Nv => f.write_str("@nv")?,
            Scheme::Group { inner, scale, zero } => {
                write!(f, "@g{inner}/{scale}{}", if zero { "z" } else { "" })?;
            }
        }
        if self.scales == ScaleLayout::Inner { Ok(()) } else { write!(f, "^{}", self.scales) }
    }
}

impl FromStr for Format {
    type Err = Unread;
    /// # Errors
    /// [`Unread`] with the form expected.
    fn from_str(s: &str) -> Result<Self, Unread> {
        const LAYOUTS: Unread = Unread { expected: "dtype@SCHEME^LAYOUT, LAYOUT one of outer, tiles" };
        let (s, scales) = match s.split_once('^') {
            // What equals the default has one spelling: none.
            Some((_, "inner")) => return Err(LAYOUTS),
            Some((s, layout)) => (s, layout.parse().map_err(|_| LAYOUTS)?),
            None => (s, ScaleLayout::Inner),
        };
        let (dtype, scheme) = match s.split_once('@') {
            Some((dtype, scheme)) => (dtype, scheme.parse()?),
            None => (s, Scheme::None),
        };
        Ok(Self { dtype: dtype.parse()?, scheme, scales })
    }
}

impl FromStr for Scheme {
    type Err = Unread;
    /// # Errors
    /// [`Unread`] with the form expected.
    fn from_str(s: &str) -> Result<Self, Unread> {
        const BAD: Unread = Unread {
            expected: "dtype@SCHEME, SCHEME one of tensor, row, mx, nv, OUTERxINNER, gINNER/TYPE[z], sizes below 65536",
        };
        Ok(match s {
            "tensor" => Self::Tensor,
            "row" => Self::Row,
            "mx" => Self::Mx,
            "nv" => Self::Nv,
            _ => match s.strip_prefix('g') {
                Some(group) => {
                    let (inner, scale) = group.split_once('/').ok_or(BAD)?;
                    let (scale, zero) = scale.strip_suffix('z').map_or((scale, false), |s| (s, true));
                    Self::Group { inner: number(inner).ok_or(BAD)?, scale: scale.parse().map_err(|_| BAD)?, zero }
                }
                None => {
                    let (outer, inner) = s.split_once('x').ok_or(BAD)?;
                    Self::Block { outer: number(outer).ok_or(BAD)?, inner: number(inner).ok_or(BAD)? }
                }
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_round_trip() {
        for text in [
            "bf16",
            "e4m3@tensor",
            "e4m3@row",
            "e4m3@1x128^outer",
            "e2m1@mx^tiles",
            "e2m1@nv",
            "i4@g128/f16z",
            "nf4@g64/f32",
        ] {
            let format: Format = text.parse().expect(text);
            assert_eq!(format.to_string(), text);
            assert_eq!(format.check("a"), Ok(()), "{text}");
        }
        for text in [
            "",
            "@row",
            "e4m3@",
            "e4m3@x",
            "e4m3@1x",
            "i4@g/f16",
            "e4m3^inner",
            "e4m3@1x128^",
            "e4m3@-1x1",
            "e4m3@65536x1",
        ] {
            assert!(text.parse::<Format>().is_err(), "{text}");
        }
        for text in ["f32@tensor", "e8m0", "e4m3@nv", "e4m3@1x0", "nf4@g64/f32z", "e4m3@1x128^tiles", "i4@g32/e8m0"] {
            assert!(text.parse::<Format>().expect(text).check("a").is_err(), "{text}");
        }
    }

    #[test]
    fn every_block_has_its_own_place() {
        for text in ["e4m3@1x128", "e4m3@1x128^outer", "e2m1@mx^tiles", "e4m3@128x128", "e4m3@row", "e4m3@tensor"] {
            let format: Format = text.parse().expect(text);
            let shape = (300, 700);
            let (outer, inner) = format.blocks(shape.0, shape.1);
            let mut seen: Vec<u64> =
                (0..outer).flat_map(|o| (0..inner).map(move |i| format.scale_index((o, i), shape))).collect();
            assert!(seen.iter().all(|&at| at < format.scale_count(shape.0, shape.1)), "{text}");
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len() as u64, u64::from(outer) * u64::from(inner), "{text}");
        }
    }
}

//! Rotary position embedding.

use super::{
    NeedList, Rows, Spec,
    act::{PLAIN_FLOATS, PLAIN_FLOATS_TEXT},
    args::args,
    format::Access,
    norm::{X, Y},
    op,
    problem::{BadProblem, at_least, at_most, dtype_in, multiple},
};
use crate::{
    dtype::DType,
    text::{Reader, Writer, spelled},
};
use std::fmt;

op! {
    /// Rotation of pairs of numbers by the token's position; see [`RopeSpec`].
    Rope, RopeSpec, RopeArgs, RopeProblem, rope
}

/// Of each head's `dim` numbers the first `rotated` are turned, pair by pair; the others are copied.
///
/// ```text
/// y1 = x1 · cos[p][j] − x2 · sin[p][j]
/// y2 = x2 · cos[p][j] + x1 · sin[p][j]       p = positions[token], j = 0 .. rotated / 2
/// ```
/// `inverse` turns the other way: the backward pass. Where a token's position is outside 0 .. `positions`, what
/// would be turned is NaN.
/// Text: `rope TOKENSxHEADSxDIM X:Y positions=` then `pairs= rotated= ldx= ldy= inverse`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RopeSpec {
    /// Tokens.
    pub tokens: u32,
    /// Heads of a token.
    pub heads: u32,
    /// Numbers of a head.
    pub dim: u32,
    /// Numbers of a head that are turned; even.
    pub rotated: u32,
    /// Rows of the tables.
    pub positions: u32,
    /// Which two numbers are a pair.
    pub pairs: RopePairs,
    /// `[token][head][dim]`; `ld` is the distance between tokens.
    pub x: Rows,
    /// As X.
    pub y: Rows,
    /// Whether to turn back.
    pub inverse: bool,
}

/// Which two numbers are pair j.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum RopePairs {
    /// j and j + rotated / 2 (GPT-NeoX, Llama as published by Hugging Face).
    #[default]
    Halves,
    /// 2j and 2j + 1 (GPT-J, the RoFormer paper).
    Adjacent,
}
spelled!(RopePairs { Halves = "halves", Adjacent = "adjacent" });

impl RopePairs {
    /// The places of pair `j` in a head.
    pub const fn places(self, j: u32, rotated: u32) -> (u32, u32) {
        match self {
            Self::Halves => (j, j + rotated / 2),
            Self::Adjacent => (2 * j, 2 * j + 1),
        }
    }
}

args! {
    /// Buffers of a [`Rope`].
    RopeArgs {
        /// Input.
        input x,
        /// Output.
        output y,
        /// I32, one per token.
        input positions,
        /// F32, `[positions][rotated / 2]`.
        input cos,
        /// F32, as `cos`.
        input sin,
        ?
        =
    }
}

impl RopeSpec {
    /// Tight tokens of one type, whole heads turned.
    pub fn new(tokens: u32, heads: u32, dim: u32, positions: u32, dtype: DType) -> Self {
        let tight = Rows::tight(dtype, heads.saturating_mul(dim));
        Self {
            tokens,
            heads,
            dim,
            rotated: dim,
            positions,
            pairs: RopePairs::default(),
            x: tight,
            y: tight,
            inverse: false,
        }
    }

    /// Numbers of a token.
    pub const fn cols(&self) -> u32 {
        self.heads.saturating_mul(self.dim)
    }
}

impl Spec for RopeSpec {
    const NAME: &'static str = "rope";

    fn check(&self) -> Result<(), BadProblem> {
        dtype_in("x", self.x.dtype(), &PLAIN_FLOATS, PLAIN_FLOATS_TEXT)?;
        dtype_in("y", self.y.dtype(), &PLAIN_FLOATS, PLAIN_FLOATS_TEXT)?;
        at_most("numbers of a token", u32::MAX.into(), u64::from(self.heads) * u64::from(self.dim))?;
        at_most("rotated", self.dim.into(), self.rotated.into())?;
        multiple("rotated", 2, self.rotated.into())?;
        at_least("positions", 1, self.positions.into())?;
        self.x.check_plain(&X, self.tokens, self.cols())?;
        self.y.check_plain(&Y, self.tokens, self.cols())
    }

    fn needs(&self, list: &mut NeedList) {
        self.x.needs(list, &X, self.tokens, self.cols(), Access::INPUT);
        self.y.needs(list, &Y, self.tokens, self.cols(), Access::OUTPUT);
        list.input("positions", true, DType::I32, self.tokens.into());
        let table = u64::from(self.positions) * u64::from(self.rotated / 2);
        list.input("cos", true, DType::F32, table);
        list.input("sin", true, DType::F32, table);
    }

    fn bytes(&self) -> u64 {
        // At most one row of each table per token is touched.
        let rows = Self { positions: self.positions.min(self.tokens), ..*self };
        let mut list = NeedList::default();
        rows.needs(&mut list);
        list.total_bytes()
    }

    fn flops(&self) -> f64 {
        3.0 * f64::from(self.tokens) * f64::from(self.heads) * f64::from(self.rotated)
    }

    fn rate_dtype(&self) -> DType {
        self.x.dtype()
    }

    fn write(&self, out: &mut Writer<'_, '_>) -> fmt::Result {
        out.word(format_args!("{}x{}x{}", self.tokens, self.heads, self.dim))?;
        out.word(format_args!("{}:{}", self.x.format, self.y.format))?;
        out.word(format_args!("positions={}", self.positions))?;
        out.option("pairs", &self.pairs, &RopePairs::default())?;
        out.option("rotated", &self.rotated, &self.dim)?;
        self.x.write(out, "ldx", self.cols())?;
        self.y.write(out, "ldy", self.cols())?;
        out.flag("inverse", self.inverse)
    }

    fn read(words: &mut Reader<'_>) -> Result<Self, BadProblem> {
        use super::layout::Whole;
        let [tokens, heads, dim] = words.dims("TOKENSxHEADSxDIM")?;
        let [x, y] = words.types("X:Y")?.map(|dtype: DType| dtype.into());
        let Whole(positions) =
            words.option("positions", "a whole number")?.ok_or(BadProblem::Missing { what: "positions" })?;
        let cols = heads.saturating_mul(dim);
        Ok(Self {
            tokens,
            heads,
            dim,
            rotated: words.option::<Whole>("rotated", "a whole number")?.map_or(dim, |w| w.0),
            positions,
            pairs: words.option("pairs", RopePairs::FORMS)?.unwrap_or_default(),
            x: Rows::read(words, "ldx", x, cols)?,
            y: Rows::read(words, "ldy", y, cols)?,
            inverse: words.flag("inverse"),
        })
    }
}

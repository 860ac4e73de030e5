//! O = softmax(scale · Q·Kᵀ + mask) · V, head by head.

use super::{
    Format, Mask, NeedList, Scheme, Spec,
    act::{PLAIN_FLOATS, PLAIN_FLOATS_TEXT},
    args::args,
    format::Access,
    op,
    problem::{BadProblem, at_least, at_most, dtype_in, exclusive, multiple, refuse_if},
    sequences::{HeadLayout, Kv, Lens, Pair},
};
use crate::{
    dtype::DType,
    text::{Reader, Real, Writer, is_digits, past_32_bits},
};
use std::fmt;

op! {
    /// Scaled dot-product attention; see [`AttentionSpec`].
    Attention, AttentionSpec, AttentionArgs, AttentionProblem, attention
}

/// Query head h attends with key head `h / (q_heads / kv_heads)`.
///
/// ```text
/// S = scale · q·k                 over the `qk_dim` numbers of a head
/// S = softcap · tanh(S / softcap) if `softcap`
/// S = S + slope(h) · (k − q)      if `alibi`, positions as in `Mask`
/// S = −∞ where masked
/// P = exp(S) / (Σ exp(S) + exp(sink(h)))      the sink only if `sinks`
/// O = P · v                       `v_dim` numbers per head
/// LSE = ln(Σ exp(S) + exp(sink(h)))
/// ```
/// Sums are f32, f64 if Q is f64; P may be rounded to the type of V before it multiplies V.
///
/// Text: `attention BATCHxQ_HEADS[:KV_HEADS]xQ_LEN[:KV_LEN]xQK_DIM[:V_DIM] Q:KV:O`, then
/// `layout= lens= page= mask= scale= softcap= ldq= ldk= ldv= ldo=` and the flags `alibi sinks lse`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AttentionSpec {
    /// How many sequences.
    pub batch: u32,
    /// Heads of Q and O.
    pub q_heads: u32,
    /// Heads of K and V; divides `q_heads`.
    pub kv_heads: u32,
    /// Queries of the longest sequence.
    pub q_len: u32,
    /// Keys of the longest sequence.
    pub kv_len: u32,
    /// Numbers of one head of Q and K.
    pub qk_dim: u32,
    /// Numbers of one head of V and O.
    pub v_dim: u32,
    /// Type of Q; 8-bit types may be scaled `@tensor` or `@row` (a number per token and head).
    pub q: Format,
    /// Type of K and of V, scaled as Q may be.
    pub kv: Format,
    /// Type of O.
    pub o: DType,
    /// How heads and tokens are nested.
    pub layout: HeadLayout,
    /// How sequences of different lengths are stored.
    pub lens: Lens,
    /// How K and V are stored.
    pub storage: Kv,
    /// Which keys a query sees.
    pub mask: Mask,
    /// Multiplies Q·Kᵀ; `1 / √qk_dim` if `None`.
    pub scale: Option<Real>,
    /// Bounds the scores.
    pub softcap: Option<Real>,
    /// Whether scores fall linearly with distance, by one slope per query head.
    pub alibi: bool,
    /// Whether each query head has a score that takes part in the sum but has no value.
    pub sinks: bool,
    /// Whether the log-sum-exp is stored.
    pub lse: bool,
    /// Distance between tokens of Q, K, V and O, in elements.
    pub ld: [u32; 4],
}

args! {
    /// Buffers of an [`Attention`].
    AttentionArgs {
        /// Queries.
        input q,
        /// Keys.
        input k,
        /// Values.
        input v,
        /// Result.
        output o,
        ?
        /// Scales of Q: one f32, or `[tokens][q_heads]`.
        input q_scale,
        /// Scales of K: one f32, or `[tokens][kv_heads]`, pages as tokens.
        input k_scale,
        /// Scales of V, as of K.
        input v_scale,
        /// I32, `batch + 1`, ascending from 0; see [`Lens`].
        input q_offsets,
        /// I32, `batch + 1`, ascending from 0; see [`Lens`].
        input kv_offsets,
        /// I32, one per sequence; see [`Lens`].
        input kv_lens,
        /// I32, `[batch][ceil(kv_len / page)]`; see [`Kv`].
        input page_table,
        /// F32, one per query head.
        input slopes,
        /// F32, one per query head.
        input sinks,
        /// U8; see `Mask::Blocks`.
        input blocks,
        /// F32, `[batch][q_heads][q_len]`, or `[q_heads][q_total]` if packed.
        output lse,
        =
    }
}

impl AttentionSpec {
    /// Full attention over dense sequences of one length, heads of Q and K as wide as those of V.
    pub fn new(batch: u32, heads: [u32; 2], lens: [u32; 2], dim: u32, dtype: DType) -> Self {
        let mut spec = Self {
            batch,
            q_heads: heads[0],
            kv_heads: heads[1],
            q_len: lens[0],
            kv_len: lens[1],
            qk_dim: dim,
            v_dim: dim,
            q: dtype.into(),
            kv: dtype.into(),
            o: dtype,
            layout: HeadLayout::default(),
            lens: Lens::default(),
            storage: Kv::default(),
            mask: Mask::default(),
            scale: None,
            softcap: None,
            alibi: false,
            sinks: false,
            lse: false,
            ld: [0; 4],
        };
        spec.ld = spec.tight_ld();
        spec
    }

    /// The `ld` of Q, K, V and O without gaps; `u32::MAX` for what is more, which no problem has.
    pub fn tight_ld(&self) -> [u32; 4] {
        self.tight_rows().map(|row| row.try_into().unwrap_or(u32::MAX))
    }

    /// The same with room for any heads.
    fn tight_rows(&self) -> [u64; 4] {
        let row = |heads: u32, dim: u32, dtype: DType| {
            let heads = if self.layout == HeadLayout::Bshd { heads } else { 1 };
            // 2⁶⁴ − 2³³ + 1 at most, so there is room to round up.
            (u64::from(heads) * u64::from(dim)).next_multiple_of(dtype.per_byte().into())
        };
        [
            row(self.q_heads, self.qk_dim, self.q.dtype),
            row(self.kv_heads, self.qk_dim, self.kv.dtype),
            row(self.kv_heads, self.v_dim, self.kv.dtype),
            row(self.q_heads, self.v_dim, self.o),
        ]
    }

    /// What multiplies Q·Kᵀ.
    pub fn score_scale(&self) -> f32 {
        self.scale.map_or_else(|| 1.0 / (self.qk_dim.max(1) as f32).sqrt(), Real::get)
    }

    /// Sequences and their tokens as Q stores them: `(batch, q_len)`, or `(1, q_total)` if packed.
    pub const fn q_extent(&self) -> (u32, u32) {
        match self.lens {
            Lens::Packed { q_total, .. } => (1, q_total),
            _ => (self.batch, self.q_len),
        }
    }

    /// Sequences and their tokens as K and V store them; pages count as sequences.
    pub const fn kv_extent(&self) -> (u32, u32) {
        match (self.storage, self.lens) {
            (Kv::Paged { page, pages }, _) => (pages, page),
            (Kv::Dense, Lens::Packed { kv_total, .. }) => (1, kv_total),
            (Kv::Dense, _) => (self.batch, self.kv_len),
        }
    }

    /// Distance in elements between heads and between sequences of an operand with this `ld`, `heads` and `dim`.
    pub fn strides(&self, ld: u32, heads: u32, dim: u32, len: u32) -> (u64, u64) {
        let sequence = u64::from(ld) * u64::from(len);
        match self.layout {
            HeadLayout::Bshd => (dim.into(), sequence),
            HeadLayout::Bhsd => (sequence, sequence.saturating_mul(heads.into())),
        }
    }

    /// Elements from the first to the last one touched.
    pub(super) fn span(&self, ld: u32, (heads, dim): (u32, u32), (batch, len): (u32, u32)) -> u64 {
        if batch == 0 || len == 0 || heads == 0 || dim == 0 {
            return 0;
        }
        let (head, sequence) = self.strides(ld, heads, dim, len);
        u64::from(batch - 1)
            .saturating_mul(sequence)
            .saturating_add(u64::from(heads - 1).saturating_mul(head))
            .saturating_add(u64::from(len - 1) * u64::from(ld))
            .saturating_add(dim.into())
    }

    pub(super) fn q_span(&self) -> u64 {
        self.span(self.ld[0], (self.q_heads, self.qk_dim), self.q_extent())
    }

    pub(super) fn k_span(&self) -> u64 {
        self.span(self.ld[1], (self.kv_heads, self.qk_dim), self.kv_extent())
    }

    pub(super) fn v_span(&self) -> u64 {
        self.span(self.ld[2], (self.kv_heads, self.v_dim), self.kv_extent())
    }

    pub(super) fn o_span(&self) -> u64 {
        self.span(self.ld[3], (self.q_heads, self.v_dim), self.q_extent())
    }

    /// How many log-sum-exps there are.
    pub(super) fn lse_count(&self) -> u64 {
        let (batch, len) = self.q_extent();
        (u64::from(batch) * u64::from(len)).saturating_mul(self.q_heads.into())
    }

    /// Lists what says which key a query sees, alike forward and backward.
    pub(super) fn needs_of_mask(&self, list: &mut NeedList) {
        let packed = matches!(self.lens, Lens::Packed { .. });
        let paged = matches!(self.storage, Kv::Paged { .. });
        let sequences = u64::from(self.batch);
        list.input("q_offsets", packed, DType::I32, sequences + 1);
        list.input("kv_offsets", packed && !paged, DType::I32, sequences + 1);
        list.input("kv_lens", paged || self.lens == Lens::Padded, DType::I32, sequences);
        if let Kv::Paged { page, .. } = self.storage {
            let row = u64::from(self.kv_len.div_ceil(page.max(1)));
            list.input("page_table", true, DType::I32, sequences.saturating_mul(row));
        }
        list.input("slopes", self.alibi, DType::F32, self.q_heads.into());
        list.input("sinks", self.sinks, DType::F32, self.q_heads.into());
        if let Mask::Blocks { q, k } = self.mask {
            let blocks = u64::from(self.q_len.div_ceil(q.max(1))) * u64::from(self.kv_len.div_ceil(k.max(1)));
            list.input("blocks", true, DType::U8, blocks);
        }
    }

    /// Scores that are not masked, as far as the mask's shape alone tells; all for blocks and expressions.
    fn visible(&self) -> f64 {
        let (q_len, kv_len) = (f64::from(self.q_len), f64::from(self.kv_len));
        let first = kv_len - q_len;
        // The sum over queries at positions first, first + 1, … of the keys that each sees, by the trapezoid rule.
        let sum = |seen: &dyn Fn(f64) -> f64| {
            const STEPS: u32 = 64;
            let at = |i: u32| seen(first + q_len * (f64::from(i) + 0.5) / f64::from(STEPS)).clamp(0.0, kv_len);
            (0..STEPS).map(at).sum::<f64>() / f64::from(STEPS) * q_len
        };
        match self.mask {
            Mask::Full | Mask::Blocks { .. } | Mask::Expr(_) => q_len * kv_len,
            Mask::Causal => sum(&|q| q + 0.5),
            Mask::Prefix { len } => sum(&|q| (q + 0.5).max(len.into())),
            Mask::Window { left, right } => {
                sum(&|q| (q + 0.5 + f64::from(right)).min(kv_len) - (q - 0.5 - f64::from(left)).max(0.0))
            }
        }
    }

    /// Queries × keys over all sequences and heads, masked ones left out.
    pub(super) fn scores(&self) -> f64 {
        let sequences = match self.lens {
            // Packed lengths are known to the device only: the mean stands for all.
            Lens::Packed { q_total, .. } if self.q_len > 0 => f64::from(q_total) / f64::from(self.q_len),
            _ => self.batch.into(),
        };
        sequences * f64::from(self.q_heads) * self.visible()
    }
}

impl Spec for AttentionSpec {
    const NAME: &'static str = "attention";

    fn check(&self) -> Result<(), BadProblem> {
        at_least("q_heads", 1, self.q_heads.into())?;
        at_least("kv_heads", 1, self.kv_heads.into())?;
        multiple("q_heads", self.kv_heads.into(), self.q_heads.into())?;
        at_least("qk_dim", 1, self.qk_dim.into())?;
        at_least("v_dim", 1, self.v_dim.into())?;
        self.mask.check()?;
        for (name, format) in [("q", self.q), ("kv", self.kv)] {
            format.check(name)?;
            refuse_if(!format.dtype.is_float(), name, format.dtype, "a float")?;
            let known = matches!(format.scheme, Scheme::None | Scheme::Tensor | Scheme::Row);
            exclusive(!known, "attention", "schemes other than @tensor and @row")?;
        }
        let scaled = [(self.q, self.q_heads, self.q_extent().1), (self.kv, self.kv_heads, self.kv_extent().1)];
        for (_, heads, len) in scaled.into_iter().filter(|(format, ..)| format.scheme == Scheme::Row) {
            at_most("scales of a sequence", u32::MAX.into(), u64::from(heads) * u64::from(len))?;
        }
        dtype_in("o", self.o, &PLAIN_FLOATS, PLAIN_FLOATS_TEXT)?;
        for row in self.tight_rows() {
            at_most("numbers of a token", u32::MAX.into(), row)?;
        }
        let tight = self.tight_ld();
        for (name, ld, tight) in
            [("ldq", 0, tight[0]), ("ldk", 1, tight[1]), ("ldv", 2, tight[2]), ("ldo", 3, tight[3])]
                .map(|(name, i, tight)| (name, self.ld[i], tight))
        {
            at_least(name, tight.into(), ld.into())?;
        }
        let dims = [(self.q, self.qk_dim, "qk_dim"), (self.kv, self.qk_dim, "qk_dim"), (self.kv, self.v_dim, "v_dim")];
        for (format, dim, name) in dims {
            multiple(name, format.dtype.per_byte().into(), dim.into())?;
        }
        for (format, ld) in [(self.q, self.ld[0]), (self.kv, self.ld[1]), (self.kv, self.ld[2])] {
            multiple("ld", format.dtype.per_byte().into(), ld.into())?;
        }
        if let Some(cap) = self.softcap.filter(|cap| cap.get() <= 0.0) {
            return Err(BadProblem::Invalid { what: "softcap", expected: "above 0", got: cap.to_string() });
        }
        if let Kv::Paged { page, .. } = self.storage {
            at_least("page", 1, page.into())?;
            exclusive(self.lens == Lens::Fixed, "page", "lens=fixed")?;
            exclusive(matches!(self.lens, Lens::Packed { kv_total: 1.., .. }), "page", "a total of packed keys")?;
        }
        Ok(())
    }

    fn needs(&self, list: &mut NeedList) {
        // Scales `@row` are one per token and head, heads innermost, as if heads were tokens of a row.
        let scaled = |heads: u32, (batch, len): (u32, u32)| (len.saturating_mul(heads), 1, batch);
        let q_rows = scaled(self.q_heads, self.q_extent());
        let kv_rows = scaled(self.kv_heads, self.kv_extent());
        self.q.needs(list, ["q", "q_scale", "", ""], self.q_span(), q_rows, Access::INPUT);
        self.kv.needs(list, ["k", "k_scale", "", ""], self.k_span(), kv_rows, Access::INPUT);
        self.kv.needs(list, ["v", "v_scale", "", ""], self.v_span(), kv_rows, Access::INPUT);
        list.output("o", true, self.o, self.o_span());
        self.needs_of_mask(list);
        list.output("lse", self.lse, DType::F32, self.lse_count());
    }

    fn flops(&self) -> f64 {
        2.0 * self.scores() * (f64::from(self.qk_dim) + f64::from(self.v_dim))
    }

    fn bytes(&self) -> u64 {
        let mut list = NeedList::default();
        // A pool may hold far more pages than the sequences use: count `kv_len` keys each.
        let dense = match self.storage {
            Kv::Paged { .. } => Self { storage: Kv::Dense, lens: Lens::Fixed, ..*self },
            Kv::Dense => *self,
        };
        dense.needs(&mut list);
        list.total_bytes()
    }

    fn rate_dtype(&self) -> DType {
        if self.q.dtype.bits() >= self.kv.dtype.bits() { self.q.dtype } else { self.kv.dtype }
    }

    fn write(&self, out: &mut Writer<'_, '_>) -> fmt::Result {
        let heads = Pair(self.q_heads, self.kv_heads);
        let lens = Pair(self.q_len, self.kv_len);
        let dims = Pair(self.qk_dim, self.v_dim);
        out.word(format_args!("{}x{heads}x{lens}x{dims}", self.batch))?;
        out.word(format_args!("{}:{}:{}", self.q, self.kv, self.o))?;
        out.option("layout", &self.layout, &HeadLayout::default())?;
        out.option("lens", &self.lens, &Lens::default())?;
        if let Kv::Paged { page, pages } = self.storage {
            out.word(format_args!("page={page}/{pages}"))?;
        }
        out.option("mask", &self.mask, &Mask::default())?;
        out.maybe("scale", self.scale)?;
        out.maybe("softcap", self.softcap)?;
        for ((key, ld), tight) in LD_KEYS.iter().zip(self.ld).zip(self.tight_ld()) {
            out.option(key, &ld, &tight)?;
        }
        out.flag("alibi", self.alibi)?;
        out.flag("sinks", self.sinks)?;
        out.flag("lse", self.lse)
    }

    fn read(words: &mut Reader<'_>) -> Result<Self, BadProblem> {
        const FORM: &str = "BATCHxQ_HEADS[:KV_HEADS]xQ_LEN[:KV_LEN]xQK_DIM[:V_DIM]";
        let word = words.word(FORM)?;
        let invalid = || BadProblem::Invalid { what: "dims", expected: FORM, got: crate::text::clip(word) };
        let part = |part: &str| match part.split(':').find(|number| is_digits(number) && number.parse::<u32>().is_err())
        {
            Some(past) => Err(past_32_bits("a dim", past)),
            None => part.parse().map_err(|_| invalid()),
        };
        let parts: Vec<Pair> = word.split('x').map(part).collect::<Result<_, _>>()?;
        let [Pair(batch, same), Pair(q_heads, kv_heads), Pair(q_len, kv_len), Pair(qk_dim, v_dim)] = parts[..] else {
            return Err(invalid());
        };
        if batch != same {
            return Err(invalid());
        }
        let [q, kv, o] = words.types::<Format, 3>("Q:KV:O, each dtype[@scheme]")?;
        exclusive(o.scheme != Scheme::None, "o", "scales")?;
        let mut spec = Self { v_dim, ..Self::new(batch, [q_heads, kv_heads], [q_len, kv_len], qk_dim, o.dtype) };
        (spec.q, spec.kv) = (q, kv);
        spec.layout = words.option("layout", HeadLayout::FORMS)?.unwrap_or_default();
        spec.lens = words.option("lens", "fixed, padded or packed/Q_TOTAL/KV_TOTAL")?.unwrap_or_default();
        spec.storage = words.option("page", "TOKENS/PAGES")?.unwrap_or_default();
        spec.mask = words.option("mask", Mask::FORMS)?.unwrap_or_default();
        spec.scale = words.option("scale", "a finite number")?;
        spec.softcap = words.option("softcap", "a finite number")?;
        spec.ld = spec.tight_ld();
        for (key, ld) in LD_KEYS.iter().zip(&mut spec.ld) {
            if let Some(given) = words.option::<super::layout::Whole>(key, "a number of elements")? {
                *ld = given.0;
            }
        }
        spec.alibi = words.flag("alibi");
        spec.sinks = words.flag("sinks");
        spec.lse = words.flag("lse");
        Ok(spec)
    }
}

const LD_KEYS: [&str; 4] = ["ldq", "ldk", "ldv", "ldo"];

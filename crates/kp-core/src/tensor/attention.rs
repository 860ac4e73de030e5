//! Scaled dot-product attention.

use super::{
    Sequences, Tensor,
    norm::real,
    run::{Output, Run, dim, refuse},
    view::shape_text,
};
use kp_hal::{
    DType, Result,
    op::{AttentionArgs, AttentionSpec, HeadLayout, Kv, Lens, Mask, Scheme},
};

/// What attention sees and how it scores; `kp_hal::op::AttentionSpec` has the formulas.
///
/// ```
/// use kp_core::tensor::Attend;
/// use kp_hal::op::Mask;
/// let options = Attend { mask: Mask::Causal, softcap: Some(50.0), ..Attend::default() };
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Attend<'t> {
    /// Which keys a query sees.
    pub mask: Mask,
    /// For [`Mask::Blocks`]: `u8`, blocks of queries × blocks of keys, 0 where nothing is seen.
    pub blocks: Option<&'t Tensor>,
    /// Multiplies Q·Kᵀ; 1 / √(numbers of a head) otherwise.
    pub scale: Option<f32>,
    /// Bounds the scores by `softcap · tanh(score / softcap)`.
    pub softcap: Option<f32>,
    /// ALiBi: f32, one slope per query head.
    pub slopes: Option<&'t Tensor>,
    /// f32, one per query head: a score that takes part in the sum but has no value.
    pub sinks: Option<&'t Tensor>,
    /// Sequences packed in the rows of Q: Q is `tokens`×`heads`×`dim`.
    pub queries: Option<&'t Sequences>,
    /// Sequences packed in the rows of K and V; those of Q otherwise.
    pub keys: Option<&'t Sequences>,
    /// For padded batches: `i32`, how many keys of each sequence count. Less than 0 is taken as 0, more than K has as all.
    pub kv_lens: Option<&'t Tensor>,
    /// K and V lie in pages of a pool; excludes `keys` and `kv_lens`.
    pub pages: Option<Pages<'t>>,
}

/// Where the keys of each sequence lie in a pool of pages; K and V are `pages`×`tokens of a page`×`heads`×`dim`.
#[derive(Clone, Copy, Debug)]
pub struct Pages<'t> {
    /// `i32`, a row of page numbers per sequence. A number below 0 is taken as 0, one past the pool as its last page. Those of pages that
    /// no key of a sequence is in may be anything.
    pub table: &'t Tensor,
    /// `i32`, keys of each sequence. Less than 0 is taken as 0, more than `longest` as `longest`.
    pub lens: &'t Tensor,
    /// At least the keys of the longest sequence; a row of `table` holds the pages of so many.
    pub longest: usize,
}

pub(super) const OP: &str = "attention";

/// A problem of attention with its operands straightened.
pub(super) struct Prepared {
    pub(super) spec: AttentionSpec,
    pub(super) q: Tensor,
    pub(super) k: Tensor,
    pub(super) v: Tensor,
    pub(super) q_offsets: Option<Tensor>,
    pub(super) kv_offsets: Option<Tensor>,
    pub(super) kv_lens: Option<Tensor>,
    pub(super) page_table: Option<Tensor>,
    pub(super) slopes: Option<Tensor>,
    pub(super) sinks: Option<Tensor>,
    pub(super) blocks: Option<Tensor>,
    /// Of the result, as the caller sees it.
    pub(super) o_shape: Vec<usize>,
}

impl Tensor {
    /// Attention of these queries to keys `k` and values `v`.
    ///
    /// Shapes: `batch`×`len`×`heads`×`dim`, or without `batch` for one sequence or packed ones
    /// ([`Attend::queries`]). Query heads must be a multiple of key heads. Views of a fused projection and
    /// `batch`×`heads`×`len`×`dim` seen through [`Tensor::swap_dims`] are taken as they lie. Q, or K and V, may be
    /// 8-bit with one scale, or one per token and head. The result has Q's shape but the heads of V, and Q's type, or
    /// `f32` if that is narrow. Rows of Q behind the last packed sequence are zero bytes in the result.
    ///
    /// # Errors
    /// `BadOperands` if shapes do not go together, `Unsupported` if no kernel does this, `OutOfMemory`.
    pub fn attention(&self, k: &Tensor, v: &Tensor, options: &Attend<'_>) -> Result<Self> {
        Ok(self.attend(k, v, options, false)?.0)
    }

    /// Attention, and the logarithm of each query's sum of exponentials, which the backward pass needs:
    /// `batch`×`heads`×`len`, or `heads`×`tokens` if packed, tokens behind the last sequence zeros.
    ///
    /// # Errors
    /// As [`Tensor::attention`].
    pub fn attention_with_lse(&self, k: &Tensor, v: &Tensor, options: &Attend<'_>) -> Result<(Self, Self)> {
        let (o, lse) = self.attend(k, v, options, true)?;
        Ok((o, lse.expect("it was asked for")))
    }

    fn attend(&self, k: &Tensor, v: &Tensor, options: &Attend<'_>, lse: bool) -> Result<(Self, Option<Self>)> {
        let p = prepare([self, k, v], options, lse, false)?;
        let engine = &self.engine;
        // The result lies as Q does, and is seen as Q is.
        let swapped = p.spec.layout == HeadLayout::Bhsd;
        let mut stored = p.o_shape.clone();
        let rank = stored.len();
        if swapped {
            stored.swap(rank - 3, rank - 2);
        }
        let mut o = Output::new(engine, &stored, p.spec.o)?;
        let heads = p.spec.q_heads as usize;
        let lse_shape = match &p.o_shape[..] {
            [batch, len, ..] if rank == 4 => vec![*batch, heads, *len],
            [len, ..] => vec![heads, *len],
            [] => unreachable!("it has at least three dimensions"),
        };
        let mut lse = lse.then(|| Output::new(engine, &lse_shape, DType::F32)).transpose()?;
        if options.queries.is_some_and(|queries| queries.total() < p.o_shape[0]) {
            // Rows of no sequence are not written, and memory may hold anything.
            o.clear(engine)?;
            lse.as_mut().map_or(Ok(()), |lse| lse.clear(engine))?;
        }
        let mut run = Run::new(engine, OP);
        let args = AttentionArgs {
            q_scale: p.q.scale(),
            k_scale: p.k.scale(),
            v_scale: p.v.scale(),
            q_offsets: run.maybe(p.q_offsets.as_ref()),
            kv_offsets: run.maybe(p.kv_offsets.as_ref()),
            kv_lens: run.maybe(p.kv_lens.as_ref()),
            page_table: run.maybe(p.page_table.as_ref()),
            slopes: run.maybe(p.slopes.as_ref()),
            sinks: run.maybe(p.sinks.as_ref()),
            blocks: run.maybe(p.blocks.as_ref()),
            lse: lse.as_mut().map(|lse| lse.data.codes.slice_mut()),
            ..AttentionArgs::new(run.read(&p.q), run.read(&p.k), run.read(&p.v), o.data.codes.slice_mut())
        };
        let how = run.launch(p.spec, &args)?;
        let o = o.finish(engine, how);
        let o = if swapped { o.swap_dims(rank - 3, rank - 2)? } else { o };
        Ok((o, lse.map(|lse| lse.finish(engine, how))))
    }
}

/// Checks shapes, straightens what must be, and builds the problem; `tight` straightens Q, K and V in any case.
pub(super) fn prepare([q, k, v]: [&Tensor; 3], options: &Attend<'_>, lse: bool, tight: bool) -> Result<Prepared> {
    let shapes = || [("q", q.describe()), ("k", k.describe()), ("v", v.describe())];
    let wrong = |rule: &'static str| Err(refuse(OP, shapes(), rule));
    let packed = options.queries.is_some();
    let q4 = four(q.shape());
    let kv_rank = if options.pages.is_some() { 4 } else { q.rank() };
    let (Some([q_batch, q_len, q_heads, qk_dim]), Some(k4), Some(v4)) = (q4, four(k.shape()), four(v.shape())) else {
        return wrong("each must be batch x len x heads x dim, or len x heads x dim");
    };
    let [kv_batch, kv_len, kv_heads, k_dim] = k4;
    let v_dim = v4[3];
    if k.rank() != kv_rank || v.rank() != kv_rank {
        return wrong("k and v must have the dimensions of q, or four if paged");
    }
    if packed && q.rank() != 3 {
        return wrong("packed sequences have no batch dimension: q must be tokens x heads x dim");
    }
    if k4[..3] != v4[..3] {
        return wrong("k and v must have the same batch, length and heads");
    }
    if k_dim != qk_dim {
        return wrong("heads of q and k must be equally long");
    }
    if kv_heads == 0 || !q_heads.is_multiple_of(kv_heads) {
        return wrong("heads of q must be a multiple of heads of k");
    }
    if !packed && options.pages.is_none() && kv_batch != q_batch {
        return wrong("q and k must have the same batch");
    }
    if k.format != v.format {
        return wrong("k and v must have one format");
    }
    if options.pages.is_some() && (options.keys.is_some() || options.kv_lens.is_some()) {
        return wrong("pages have their own lengths: neither keys nor kv_lens goes with them");
    }
    if options.keys.is_some() && !packed {
        return wrong("packed keys need packed queries");
    }
    if matches!(options.mask, Mask::Blocks { .. }) != options.blocks.is_some() {
        return wrong("the mask of blocks needs blocks, and no other mask takes them");
    }
    if packed && options.kv_lens.is_some() {
        return wrong("packed sequences have their own lengths: kv_lens does not go with them");
    }

    let keys = options.keys.or(options.queries);
    if let Some((queries, keys)) = options.queries.zip(keys) {
        let short = queries.total() > q_len || (options.pages.is_none() && keys.total() > kv_len);
        if short || queries.count() != keys.count() {
            let rule = format!(
                "{} sequences of {} queries and {} of {} keys must fit",
                queries.count(),
                queries.total(),
                keys.count(),
                keys.total()
            );
            return Err(refuse(OP, shapes(), rule));
        }
    }
    let batch = options.queries.map_or(q_batch, Sequences::count);
    let longest_q = options.queries.map_or(q_len, Sequences::longest);
    let longest_kv = match (options.pages, keys) {
        (Some(pages), _) => pages.longest,
        (None, Some(keys)) if packed => keys.longest(),
        _ => kv_len,
    };
    let lens = if packed {
        let kv_total = if options.pages.is_some() { 0 } else { dim("keys", kv_len)? };
        Lens::Packed { q_total: dim("queries", q_len)?, kv_total }
    } else if options.kv_lens.is_some() || options.pages.is_some() {
        Lens::Padded
    } else {
        Lens::Fixed
    };
    let storage = match options.pages {
        Some(_) => Kv::Paged { page: dim("tokens of a page", kv_len)?, pages: dim("pages", kv_batch)? },
        None => Kv::Dense,
    };

    let (layout, [q, k, v], [ldq, ldk, ldv]) = straighten([q, k, v], tight)?;
    let o = if q.format.scheme == Scheme::None && q.dtype().bits() >= 16 { q.dtype() } else { DType::F32 };
    let mut spec = AttentionSpec {
        qk_dim: dim("numbers of a head", qk_dim)?,
        v_dim: dim("numbers of a head", v_dim)?,
        q: q.format,
        kv: k.format,
        o,
        layout,
        lens,
        storage,
        mask: options.mask,
        scale: options.scale.map(|scale| real(OP, "scale", scale)).transpose()?,
        softcap: options.softcap.map(|cap| real(OP, "softcap", cap)).transpose()?,
        alibi: options.slopes.is_some(),
        sinks: options.sinks.is_some(),
        lse,
        ..AttentionSpec::new(
            dim("batch", batch)?,
            [dim("heads of q", q_heads)?, dim("heads of k", kv_heads)?],
            [dim("queries", longest_q)?, dim("keys", longest_kv)?],
            1,
            o,
        )
    };
    spec.ld = [ldq, ldk, ldv, spec.tight_ld()[3]];

    let per_head = |name, t: Option<&Tensor>| t.map(|t| t.vector_of(OP, name, q_heads, DType::F32)).transpose();
    let lens = options.kv_lens.or(options.pages.map(|pages| pages.lens));
    let page_table = options.pages.map(|pages| {
        let each = pages.longest.div_ceil(kv_len.max(1));
        if pages.table.len() != batch * each {
            let is = [("the page table", pages.table.describe())];
            let rule = format!("{} keys in pages of {kv_len} take {batch} rows of {each} pages", pages.longest);
            return Err(refuse(OP, is, rule));
        }
        pages.table.vector_of(OP, "the page table", pages.table.len(), DType::I32)
    });
    let blocks = match options.mask {
        Mask::Blocks { q, k } => {
            let count = longest_q.div_ceil(q.max(1) as usize) * longest_kv.div_ceil(k.max(1) as usize);
            options.blocks.map(|blocks| blocks.vector_of(OP, "blocks", count, DType::U8)).transpose()?
        }
        _ => None,
    };
    let offsets = |s: Option<&Sequences>| s.map(|s| s.offsets().clone());
    let mut o_shape = vec![q_len, q_heads, v_dim];
    if q.rank() == 4 {
        o_shape.insert(0, q_batch);
    }
    Ok(Prepared {
        spec,
        q_offsets: offsets(options.queries),
        kv_offsets: if options.pages.is_some() { None } else { offsets(keys.filter(|_| packed)) },
        kv_lens: lens.map(|lens| lens.vector_of(OP, "kv_lens", batch, DType::I32)).transpose()?,
        page_table: page_table.transpose()?,
        slopes: per_head("slopes", options.slopes)?,
        sinks: per_head("sinks", options.sinks)?,
        blocks,
        o_shape,
        q,
        k,
        v,
    })
}

/// Sizes with a batch in front.
fn four(shape: &[usize]) -> Option<[usize; 4]> {
    match *shape {
        [batch, len, heads, dim] => Some([batch, len, heads, dim]),
        [len, heads, dim] => Some([1, len, heads, dim]),
        _ => None,
    }
}

/// Q, K and V in one layout, with their distances between tokens: as they lie if all agree, else tight copies.
fn straighten(tensors: [&Tensor; 3], tight: bool) -> Result<(HeadLayout, [Tensor; 3], [u32; 3])> {
    for layout in [HeadLayout::Bshd, HeadLayout::Bhsd] {
        let lds = tensors.map(|t| distance(t, layout).filter(|_| !tight));
        if let [Some(q), Some(k), Some(v)] = lds {
            return Ok((layout, tensors.map(Clone::clone), [q, k, v]));
        }
    }
    let mut straight = Vec::with_capacity(3);
    let mut lds = Vec::with_capacity(3);
    for tensor in tensors {
        let copy = tensor.contiguous()?;
        let is = || [("an operand", format!("{} {}", shape_text(tensor.shape()), tensor.format))];
        let ld = distance(&copy, HeadLayout::Bshd);
        lds.push(ld.ok_or_else(|| refuse(OP, is(), "scaled heads must be contiguous and of whole bytes"))?);
        straight.push(copy);
    }
    let [q, k, v] = straight.try_into().expect("three were copied");
    Ok((HeadLayout::Bshd, [q, k, v], [lds[0], lds[1], lds[2]]))
}

/// The distance between tokens if the tensor lies as `layout` says.
fn distance(tensor: &Tensor, layout: HeadLayout) -> Option<u32> {
    let [batch, len, heads, dim] = four(tensor.shape())?;
    let strides = tensor.strides();
    let [sl, sh, sd] = strides[strides.len() - 3..].try_into().ok()?;
    let sb = if strides.len() == 4 { strides[0] } else { 0 };
    if tensor.format.scheme != Scheme::None && (tensor.flipped || layout == HeadLayout::Bhsd) {
        return None;
    }
    let empty = tensor.is_empty();
    if !empty && dim > 1 && sd != 1 {
        return None;
    }
    let (ld, least, regular) = match layout {
        HeadLayout::Bshd => {
            let ld = if len > 1 {
                sl
            } else if batch > 1 {
                sb
            } else {
                heads * dim
            };
            (ld, heads * dim, (heads == 1 || sh == dim) && (batch == 1 || sb == ld * len))
        }
        HeadLayout::Bhsd => {
            let ld = if len > 1 {
                sl
            } else if heads > 1 {
                sh
            } else if batch > 1 {
                sb
            } else {
                dim
            };
            (ld, dim, (heads == 1 || sh == ld * len) && (batch == 1 || sb == ld * len * heads))
        }
    };
    let ld = if empty { least } else { ld };
    let whole = ld.is_multiple_of(tensor.dtype().per_byte() as usize);
    if (regular || empty) && whole && ld >= least { u32::try_from(ld).ok() } else { None }
}

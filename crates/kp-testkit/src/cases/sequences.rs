//! Operands of attention that say which keys a query sees: lengths, offsets, pages, blocks; and the tokens that count.

use crate::{
    fill::{Fill, FillKind},
    operands::Operands,
    reference::heads::Tensors,
};
use kp_hal::op::{AttentionSpec, Kv, Lens, Mask, Scheme};

/// Fills Q, K and V with their scales, and everything that the mask needs. Keys past a sequence's length stay poison, as
/// do entries of the page table that no key uses.
pub(super) fn fill(p: &AttentionSpec, operands: &mut Operands, fill: &mut Fill) {
    lengths(p, operands, fill);
    // The backward pass knows no scales, not even absent ones.
    for (name, format) in [("q_scale", p.q), ("k_scale", p.kv), ("v_scale", p.kv)] {
        if format.scheme != Scheme::None {
            operands.fill_scales(name, fill);
        }
    }
    for head in 0..u64::from(p.q_heads) {
        let slope = if fill.kind() == FillKind::Exact { 1.0 } else { fill.unit() / 2.0 };
        if operands.has("slopes") {
            operands.codes_mut("slopes").set_value(head, slope);
        }
        if operands.has("sinks") {
            let sink = fill.normal();
            operands.codes_mut("sinks").set_value(head, sink);
        }
    }
    blocks(p, operands, fill);
    tokens(p, operands, fill, &["q"], &["k", "v"]);
}

/// Fills the tokens that count in operands laid out as Q or O, and in operands laid out as K or V.
pub(super) fn tokens(p: &AttentionSpec, operands: &mut Operands, fill: &mut Fill, queries: &[&str], keys: &[&str]) {
    let mut places: Vec<(String, Vec<u64>)> = Vec::new();
    let tensors = Tensors::new(p, operands);
    for sequence in tensors.sequences() {
        for name in queries {
            let (heads, dim) = if *name == "q" { (&tensors.q, p.qk_dim) } else { (&tensors.o, p.v_dim) };
            let tokens = (0..sequence.queries).flat_map(|t| (0..p.q_heads).map(move |h| (t, h)));
            let at = tokens.flat_map(|(t, h)| (0..dim).map(move |i| (t, h, i)));
            places.push(((*name).to_owned(), at.map(|(t, h, i)| heads.index(sequence.place(t), h, i)).collect()));
        }
        for name in keys {
            let (heads, dim) = if *name == "k" { (&tensors.k, p.qk_dim) } else { (&tensors.v, p.v_dim) };
            let tokens = (0..sequence.keys).flat_map(|t| (0..p.kv_heads).map(move |h| (t, h)));
            let at = tokens.flat_map(|(t, h)| (0..dim).map(move |i| (t, h, i)));
            places
                .push(((*name).to_owned(), at.map(|(t, h, i)| heads.index(tensors.key(&sequence, t), h, i)).collect()));
        }
    }
    for (name, places) in places {
        let mut codes = operands.codes_mut(&name);
        places.into_iter().for_each(|at| codes.set_code(at, fill.code(codes.dtype)));
    }
}

fn lengths(p: &AttentionSpec, operands: &mut Operands, fill: &mut Fill) {
    if let Lens::Packed { q_total, kv_total } = p.lens {
        let q = cut(q_total, p.q_len, p.batch, fill);
        operands.set_ints("q_offsets", q);
        if p.storage == Kv::Dense {
            let kv = cut(kv_total, p.kv_len, p.batch, fill);
            operands.set_ints("kv_offsets", kv);
        }
    }
    if !operands.has("kv_lens") {
        return;
    }
    let empty_pool = matches!(p.storage, Kv::Paged { pages: 0, .. });
    let most = if empty_pool { 0 } else { p.kv_len };
    // The first is as long as can be, the second empty.
    let lens: Vec<u32> = (0..p.batch)
        .map(|b| match b {
            0 => most,
            1 => 0,
            _ => fill.below(u64::from(most) + 1) as u32,
        })
        .collect();
    operands.set_ints("kv_lens", lens.iter().map(|&len| len.into()));
    if let Kv::Paged { page, pages } = p.storage {
        let mut pool: Vec<u32> = (0..pages).collect();
        for i in (1..pool.len()).rev() {
            pool.swap(i, fill.below(i as u64 + 1) as usize);
        }
        let row = u64::from(p.kv_len.div_ceil(page));
        let mut used = pool.iter().cycle();
        for (b, len) in lens.iter().enumerate() {
            for i in 0..u64::from(len.div_ceil(page)) {
                let number = *used.next().expect("a pool of no pages has no keys");
                operands.codes_mut("page_table").set_code(b as u64 * row + i, number.into());
            }
        }
    }
}

/// Offsets of `parts` sequences of at most `longest` tokens, `total` together if that many fit; some are empty.
fn cut(total: u32, longest: u32, parts: u32, fill: &mut Fill) -> Vec<i64> {
    let (mut offsets, mut left) = (vec![0], u64::from(total));
    let longest = u64::from(longest);
    for part in 0..u64::from(parts) {
        let others = (u64::from(parts) - part - 1) * longest;
        let (least, most) = (left.saturating_sub(others).min(longest), left.min(longest));
        // The second is as short as can be, so that there is an empty one where that is possible.
        let len = if part == 1 { least } else { least + fill.below(most - least + 1) };
        left -= len;
        offsets.push(offsets[part as usize] + len as i64);
    }
    offsets
}

/// Half of the blocks are seen; the first row of blocks sees nothing if there is another.
fn blocks(p: &AttentionSpec, operands: &mut Operands, fill: &mut Fill) {
    if let Mask::Blocks { q, k } = p.mask {
        let (down, across) = (u64::from(p.q_len.div_ceil(q)), u64::from(p.kv_len.div_ceil(k)));
        let mut codes = operands.codes_mut("blocks");
        for at in 0..down * across {
            let hidden = down > 1 && at < across;
            // Any number but 0 says yes.
            codes.set_code(at, if hidden { 0 } else { fill.below(2) * (1 + fill.below(255)) });
        }
    }
}

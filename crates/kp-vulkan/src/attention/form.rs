//! What a problem of attention is to the shaders: constants that a pipeline is made with, and the arguments that are pushed.
//! Field by field as `kernels/attention/glsl/problem.glsl` declares them.

use super::merge::MERGE;
use crate::{
    caps::{COOPMAT, COOPMAT_BF16},
    device::VulkanDevice,
    launch::{groups, planned, push},
    layouts::{Check, counts, reads},
    pipelines::{Build, Function},
    queue::VulkanQueue,
    shaders::Shader,
};
use kp_hal::{
    Caps, DType, Device, Launch, Plan, Queue, Result, Slice, Unsupported, Variant,
    op::{Attention, AttentionArgs, AttentionProblem, AttentionSpec, Format, Kv, Lens, Mask, Scheme},
};
use std::sync::Arc;

/// Operands that not every problem has, at most, of one problem: as many as there is room for among the arguments.
const MOST_GIVEN: usize = 9;

push! {
    /// Arguments of the shaders.
    struct AttentionPush {
        q: u64,
        k: u64,
        v: u64,
        o: u64,
        given: [u64; MOST_GIVEN],
        batch: u32,
        q_len: u32,
        kv_len: u32,
        q_total: u32,
        /// Or pages.
        kv_total: u32,
        splits: u32,
    }
}

/// Parts that keys are cut into, at most: there are more only where rows are few.
pub(super) const MOST_SPLITS: u32 = 256;

/// The feature of matrices of the one 16-bit type that queries, keys and values have.
///
/// # Errors
/// They have another, or differ, or have scales.
pub(super) fn matrices(p: &AttentionSpec) -> std::result::Result<&'static str, Unsupported> {
    let need = match p.q.dtype {
        DType::F16 => COOPMAT,
        DType::Bf16 => COOPMAT_BF16,
        got => return Err(Unsupported::DType { operand: "q", got }),
    };
    if p.kv.dtype != p.q.dtype {
        return Err(Unsupported::DType { operand: "kv", got: p.kv.dtype });
    }
    match [("q", p.q), ("kv", p.kv)].into_iter().find(|(_, format)| format.scheme != Scheme::None) {
        Some((operand, format)) => Err(Unsupported::Scheme { operand, got: format.to_string() }),
        None => Ok(need),
    }
}

/// What all kernels ask of a problem.
///
/// # Errors
/// The first part that they do not know.
pub(super) fn known(p: &AttentionSpec) -> Check {
    counts(&[("batch", p.batch), ("q_len", p.q_len), ("kv_len", p.kv_len)])?;
    // Each is an item of work, or several with as many parts; items are counted with 32 bits.
    let all = p.q_len.saturating_mul(p.q_heads).saturating_mul(p.batch);
    counts(&[("queries of all heads and sequences", all)])?;
    reads(&[("q", p.q.dtype), ("kv", p.kv.dtype), ("o", p.o)])?;
    // Scratch is one more, in the variants that split.
    let given = present(p).into_iter().filter(|&has| has).count();
    if given >= MOST_GIVEN {
        let max = MOST_GIVEN as u64 - 1;
        return Err(Unsupported::TooLarge { dim: "optional operands", max, got: given as u64 });
    }
    Ok(())
}

/// Which of the optional operands a problem has, in the shaders' order.
pub(crate) fn present(p: &AttentionSpec) -> [bool; 11] {
    let scaled = |format: Format| format.scheme != Scheme::None;
    let (packed, paged) = (matches!(p.lens, Lens::Packed { .. }), matches!(p.storage, Kv::Paged { .. }));
    let lens = p.lens == Lens::Padded || paged;
    let (q, kv, blocks) = (scaled(p.q), scaled(p.kv), matches!(p.mask, Mask::Blocks { .. }));
    [q, kv, kv, packed, packed && !paged, lens, paged, p.alibi, p.sinks, blocks, p.lse]
}

/// The constant of flags, and its bit from which on it says where runs are.
const FLAGS: usize = 19;
const RUNS_FROM: u32 = 8;

/// Constants 0 to 31.
pub(crate) fn constants(p: &AttentionSpec) -> Vec<u32> {
    let lens = match p.lens {
        Lens::Fixed => 0,
        Lens::Padded => 1,
        Lens::Packed { .. } => 2,
    };
    let page = match p.storage {
        Kv::Dense => 0,
        Kv::Paged { page, .. } => page,
    };
    let mut code = [0_u32; 12];
    let (mask, first, second) = match p.mask {
        Mask::Full => (0, 0, 0),
        Mask::Causal => (1, 0, 0),
        Mask::Window { left, right } => (2, left, right),
        Mask::Prefix { len } => (3, len, 0),
        Mask::Blocks { q, k } => (4, q, k),
        Mask::Expr(expr) => {
            for (i, &byte) in expr.code().iter().enumerate() {
                code[i / 4] |= u32::from(byte) << (8 * (i % 4));
            }
            (5, expr.code().len() as u32, 0)
        }
    };
    let by_row = |format: Format| format.scheme == Scheme::Row;
    let scaled = |format: Format| format.scheme != Scheme::None;
    let flags = [p.alibi, p.sinks, p.lse, scaled(p.q), by_row(p.q), scaled(p.kv), by_row(p.kv)];
    let flags = flags.iter().zip(0..).map(|(&on, bit)| u32::from(on) << bit).sum();
    let [q_ld, k_ld, v_ld, o_ld] = p.ld;
    let first_ones = [p.q.dtype as u32, p.kv.dtype as u32, p.o as u32, p.qk_dim, p.v_dim, p.q_heads, p.kv_heads];
    let places = [p.layout as u32, q_ld, k_ld, v_ld, o_ld, lens, page, mask, first, second];
    let softcap = p.softcap.map_or(0.0, |cap| cap.get());
    let numbers = [p.score_scale().to_bits(), softcap.to_bits(), flags];
    [first_ones.as_slice(), &places, &numbers, &code].concat()
}

/// Rows that share a head of keys, in the longest sequence.
pub(super) fn rows(p: &AttentionSpec) -> u64 {
    u64::from(p.q_len) * u64::from(p.q_heads / p.kv_heads)
}

/// Tiles of `tile` such rows, over all sequences and heads of keys.
pub(super) fn tiles(p: &AttentionSpec, tile: u32) -> u64 {
    u64::from(p.batch) * u64::from(p.kv_heads) * rows(p).div_ceil(tile.into())
}

/// Parts to cut keys into: as many as keep the device's units busy, of some blocks of `block` keys each, but 2.
pub(super) fn splits(caps: &Caps, p: &AttentionSpec, tile: u32, block: u32) -> u32 {
    let wanted = (4 * u64::from(caps.units)).div_ceil(tiles(p, tile).max(1));
    let most = p.kv_len.div_ceil(4 * block);
    (wanted as u32).min(most).clamp(2, MOST_SPLITS)
}

/// What a kernel adds to the form that all have.
pub(super) struct Main {
    pub(super) name: &'static str,
    pub(super) shader: &'static Shader,
    /// Which operands have runs of eight numbers that are loaded at once, a bit each, if it asks.
    pub(super) runs: u32,
    /// Constants from 32.
    pub(super) constants: Vec<u32>,
    pub(super) subgroup: Option<u32>,
    /// Rows of a group.
    pub(super) tile: u32,
    pub(super) splits: u32,
}

/// A plan of one launch, or of two if keys are split.
///
/// # Errors
/// `Driver` if the driver refuses a kernel.
pub(super) fn plan(
    device: &Arc<dyn Device>,
    p: &AttentionProblem,
    variant: Variant,
    main: Main,
) -> Result<Plan<Attention>> {
    let vulkan: &VulkanDevice = device.downcast_ref().expect("a device of this backend");
    let mut all = constants(p);
    all[FLAGS] |= main.runs << RUNS_FROM;
    let build = |shader, own: &[u32], subgroup| Build { shader, constants: [&all, own].concat(), subgroup };
    let work = vulkan.function(&build(main.shader, &main.constants, main.subgroup))?;
    let parts = u64::from(p.batch) * u64::from(p.kv_heads) * rows(p);
    let split = main.splits > 1;
    let merge = split.then(|| vulkan.function(&build(&MERGE, &[], None))).transpose()?;
    let (q_total, kv_total) = match p.lens {
        Lens::Packed { q_total, kv_total } => (q_total, kv_total),
        _ => (0, 0),
    };
    let kv_total = if let Kv::Paged { pages, .. } = p.storage { pages } else { kv_total };
    let (batch, q_len, kv_len, splits) = (p.batch, p.q_len, p.kv_len, main.splits);
    let arguments = AttentionPush { batch, q_len, kv_len, q_total, kv_total, splits, ..AttentionPush::default() };
    let most = vulkan.max_groups();
    let work = (work, groups(tiles(p, main.tile) * u64::from(splits), most));
    let merge = merge.map(|function| (function, groups(parts, most)));
    let code = Code { name: main.name, work, merge, arguments, present: present(p) };
    let scratch = if split { parts * u64::from(splits) * u64::from(p.v_dim + 2) * 4 } else { 0 };
    // SAFETY: the shaders touch what the spec names, and of scratch the parts that were counted.
    Ok(unsafe { planned(main.name, variant, device.id(), p, scratch, Box::new(code)) })
}

/// The launches of a plan: functions with their groups.
struct Code {
    name: &'static str,
    work: (Function, u32),
    merge: Option<(Function, u32)>,
    arguments: AttentionPush,
    present: [bool; 11],
}

impl Launch<Attention> for Code {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &AttentionArgs<'_>) -> Result<()> {
        if self.work.1 == 0 {
            return Ok(());
        }
        let queue: &mut VulkanQueue = queue.downcast_mut().expect("same device, so same backend");
        let addr = |slice: &Option<Slice<'_>>| slice.as_ref().map_or(0, Slice::addr);
        let all = [
            addr(&args.q_scale),
            addr(&args.k_scale),
            addr(&args.v_scale),
            addr(&args.q_offsets),
            addr(&args.kv_offsets),
            addr(&args.kv_lens),
            addr(&args.page_table),
            addr(&args.slopes),
            addr(&args.sinks),
            addr(&args.blocks),
            args.lse.as_ref().map_or(0, |lse| lse.addr()),
        ];
        let scratch = self.merge.map(|_| queue.scratch_addr());
        let mut push = self.arguments;
        (push.q, push.k, push.v, push.o) = (args.q.addr(), args.k.addr(), args.v.addr(), args.o.addr());
        let given = all.into_iter().zip(self.present).filter_map(|(addr, has)| has.then_some(addr)).chain(scratch);
        push.given.iter_mut().zip(given).for_each(|(place, addr)| *place = addr);
        for (function, groups) in [Some(self.work), self.merge].into_iter().flatten() {
            // SAFETY: the functions take these arguments and came from the plan's device; the rest is the caller's promise.
            unsafe { queue.launch(self.name, function, groups, &push) }?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> AttentionProblem {
        text.parse().expect("a problem")
    }

    #[test]
    fn a_problem_is_its_constants() {
        let p = problem("attention 2x8:2x9:17x64:32 bf16:e4m3@row:f32 mask=window/4/1 softcap=2.5 sinks lse");
        let all = constants(&p);
        assert_eq!(all.len(), 32);
        assert_eq!(all[3..14], [64, 32, 8, 2, 0, 512, 128, 64, 256, 0, 0]);
        assert_eq!(all[14..17], [2, 4, 1]);
        assert_eq!(all[17..20], [0.125_f32.to_bits(), 2.5_f32.to_bits(), 0b110_0110]);
        assert_eq!(present(&p).iter().filter(|&&has| has).count(), 4);
        let p = problem("attention 1x1x4x8 f32:f32:f32 mask=(q>=k)");
        assert_eq!(constants(&p)[14..17], [5, 3, 0]);
        assert_eq!(constants(&p)[20], u32::from_le_bytes(*b"qkg\0"));
    }

    #[test]
    fn keys_are_split_where_rows_are_few() {
        let mut caps = Caps::new(kp_hal::DeviceKind::Gpu, "vulkan1.2");
        caps.units = 132;
        let of = |text: &str| splits(&caps, &problem(text), 16, 32);
        assert_eq!(of("attention 1x32:8x1:65536x128 bf16:bf16:bf16"), 66);
        assert_eq!(of("attention 64x32:8x1:8192x128 bf16:bf16:bf16"), 2);
        assert_eq!(of("attention 1x1x1:1024x128 bf16:bf16:bf16"), 8, "no part is a few keys");
    }

    #[test]
    fn operands_beyond_the_room_are_refused() {
        assert!(known(&problem("attention 1x2x4x16 f32:f32:f32 alibi sinks lse lens=padded")).is_ok());
        let many = "attention 3x2x4x16 e4m3@row:e4m3@row:f32 lens=packed/9/0 page=4/9 mask=blocks/2/2 alibi sinks lse";
        assert!(known(&problem(many)).is_err());
    }
}

//! Gradients of attention on the ordinary units of any device, each pair of query and key computed again from the log-sum-exp: see
//! `kernels/attention_backward/glsl`. Limits: no f64; operands of 8 bits and more.
//!
//! ```text
//! rows   D = Σ O · dO            to scratch
//! pairs  dQ, then dK and dV      each sum by one thread, in order
//! rows   gradients of the sinks, if there are any
//! ```

use super::rows::ROWS;
use crate::{
    attention::form::{constants, present},
    device::VulkanDevice,
    launch::{addr, groups, planned, push},
    layouts::{counts, reads},
    pipelines::{Build, Function},
    queue::VulkanQueue,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, DType, Device, Kernel, Launch, Nanos, Plan, Queue, Result, SliceMut, Support, Unsupported, Variant, Variants,
    op::{AttentionBackward, AttentionBackwardArgs, AttentionBackwardProblem, Lens, Spec},
    source_hash,
};
use std::sync::Arc;

/// The kernel that runs on every device.
pub(crate) struct Pairs;

static PAIRS: Shader = shader!("attention_backward", "pairs", open 32 but [4]);

/// Optional operands of the forward problem, at most: two of lengths, slopes, sinks, blocks, the log-sum-exp; and three of this op's.
const MOST_GIVEN: usize = 9;

push! {
    /// Arguments of the shaders: those of `kernels/attention/glsl/problem.glsl`.
    struct BackwardPush {
        q: u64,
        k: u64,
        v: u64,
        o: u64,
        given: [u64; MOST_GIVEN],
        batch: u32,
        q_len: u32,
        kv_len: u32,
        q_total: u32,
        kv_total: u32,
        splits: u32,
    }
}

/// Threads of a group of `pairs.comp`, its lines, and numbers of a head in a chunk.
const THREADS: u32 = 128;
const TILE: u64 = 16;
const CHUNK: u32 = 32;

/// Threads of a group of `rows.comp`.
const ROW_THREADS: u64 = 64;

/// Chunks whose sums threads have registers for.
const MOST_CHUNKS: u32 = 16;

impl Kernel<AttentionBackward> for Pairs {
    fn name(&self) -> &'static str {
        "pairs"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("pairs.rs")) ^ ROWS.hash().rotate_left(1) ^ PAIRS.hash().rotate_left(2) }
    }

    fn supports(&self, caps: &Caps, p: &AttentionBackwardProblem) -> Support {
        let f = &p.forward;
        counts(&[("batch", f.batch), ("q_len", f.q_len), ("kv_len", f.kv_len)])?;
        let all = f.q_len.max(f.kv_len).saturating_mul(f.q_heads).saturating_mul(f.batch);
        counts(&[("lines of all heads and sequences", all)])?;
        reads(&[("q", f.q.dtype), ("kv", f.kv.dtype), ("o", f.o)])?;
        // Two threads cannot share a byte of a gradient.
        for (operand, got) in [("q", f.q.dtype), ("kv", f.kv.dtype)] {
            if got.bits() < 8 {
                return Err(Unsupported::DType { operand, got });
            }
        }
        let (dim, most) = (f.qk_dim.max(f.v_dim), MOST_CHUNKS * CHUNK);
        if dim > most {
            return Err(Unsupported::TooLarge { dim: "numbers of a head", max: most.into(), got: dim.into() });
        }
        if caps.max_threads < THREADS {
            let max = caps.max_threads.into();
            return Err(Unsupported::TooLarge { dim: "threads of a workgroup", max, got: THREADS.into() });
        }
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &AttentionBackwardProblem, _: Variant) -> Nanos {
        let work = p.flops() / (caps.rates.get(DType::F32) * 0.04);
        Nanos::from_secs(3.0 * caps.launch_ns as f64 * 1e-9 + work.max(p.bytes() as f64 / caps.bytes_per_s))
    }

    fn plan(
        &self,
        device: &Arc<dyn Device>,
        p: &AttentionBackwardProblem,
        variant: Variant,
    ) -> Result<Plan<AttentionBackward>> {
        let vulkan: &VulkanDevice = device.downcast_ref().expect("a device of this backend");
        let (f, most) = (&p.forward, vulkan.max_groups());
        let all = constants(f);
        let chunks = f.qk_dim.max(f.v_dim).div_ceil(CHUNK);
        let function =
            |shader, own: &[u32]| vulkan.function(&Build { shader, constants: [&all, own].concat(), subgroup: None });
        let heads = u64::from(f.batch) * u64::from(f.kv_heads);
        let rows = u64::from(f.q_len) * u64::from(f.q_heads / f.kv_heads);
        let (q_total, kv_total, queries) = match f.lens {
            Lens::Packed { q_total, kv_total } => (q_total, kv_total, q_total.into()),
            _ => (0, 0, u64::from(f.batch) * u64::from(f.q_len)),
        };
        let sinks = match f.sinks {
            true => Some((function(&ROWS, &[1])?, f.q_heads)),
            false => None,
        };
        let code = Code {
            products: (function(&ROWS, &[0])?, groups((heads * rows).div_ceil(ROW_THREADS), most)),
            queries: (function(&PAIRS, &[0, chunks])?, groups(heads * rows.div_ceil(TILE), most)),
            keys: (function(&PAIRS, &[1, chunks])?, groups(heads * u64::from(f.kv_len).div_ceil(TILE), most)),
            sinks,
            has_queries: queries > 0,
            present: present(f),
            push: BackwardPush {
                batch: f.batch,
                q_len: f.q_len,
                kv_len: f.kv_len,
                q_total,
                kv_total,
                splits: 1,
                ..BackwardPush::default()
            },
        };
        let scratch = 4 * queries * u64::from(f.q_heads);
        // SAFETY: the shaders touch what the spec names, and of scratch a number for each query and head.
        Ok(unsafe { planned(self.name(), variant, device.id(), p, scratch, Box::new(code)) })
    }
}

/// The launches of a plan: functions with their groups.
struct Code {
    products: (Function, u32),
    queries: (Function, u32),
    keys: (Function, u32),
    sinks: Option<(Function, u32)>,
    has_queries: bool,
    present: [bool; 11],
    push: BackwardPush,
}

impl Launch<AttentionBackward> for Code {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &AttentionBackwardArgs<'_>) -> Result<()> {
        let queue: &mut VulkanQueue = queue.downcast_mut().expect("same device, so same backend");
        // Without queries there is none, and nobody looks at it.
        let scratch = if self.has_queries { queue.scratch_addr() } else { 0 };
        // None is scaled or paged.
        let forward = [
            0,
            0,
            0,
            addr(&args.q_offsets),
            addr(&args.kv_offsets),
            addr(&args.kv_lens),
            0,
            addr(&args.slopes),
            addr(&args.sinks),
            addr(&args.blocks),
            args.lse.addr(),
        ];
        let given = forward.into_iter().zip(self.present).filter_map(|(addr, has)| has.then_some(addr));
        let with = |o: u64, result: u64| {
            let mut push = self.push;
            (push.q, push.k, push.v, push.o) = (args.q.addr(), args.k.addr(), args.v.addr(), o);
            let all = given.clone().chain([scratch, args.grad_o.addr(), result]);
            push.given.iter_mut().zip(all).for_each(|(place, addr)| *place = addr);
            push
        };
        let of_sinks = args.grad_sinks.as_ref().map_or(0, SliceMut::addr);
        let steps = [
            Some((self.products, with(args.o.addr(), 0))),
            Some((self.queries, with(args.grad_q.addr(), 0))),
            Some((self.keys, with(args.grad_k.addr(), args.grad_v.addr()))),
            self.sinks.map(|sinks| (sinks, with(0, of_sinks))),
        ];
        for ((function, groups), push) in steps.into_iter().flatten().filter(|((_, groups), _)| *groups > 0) {
            // SAFETY: the functions take these arguments and came from the plan's device; the rest is the caller's promise.
            unsafe { queue.launch("pairs", function, groups, &push) }?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_has_room_for_its_operands() {
        let text = "attention_backward 3x2x4x16 f32:f32:f32 lens=packed/9/9 mask=blocks/2/2 alibi sinks";
        let p: AttentionBackwardProblem = text.parse().expect("a problem");
        let given = present(&p.forward).into_iter().filter(|&has| has).count();
        assert_eq!(given + 3, MOST_GIVEN, "as many as there can be");
    }
}

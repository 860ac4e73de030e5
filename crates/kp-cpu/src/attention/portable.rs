//! Attention with no buffer of scores: O = softmax(scale · Q·Kᵀ + mask) · V.
//!
//! [`super::run`] cuts the work and [`super::chunk`] computes it, in f32, or f64 where an operand is f64.

use super::{
    chunk::{BLOCK, CHUNK, PANEL},
    machine::{self, Compiled},
    places::Dims,
    plan::{self, Code, SOURCES},
    run::{Loops, Shape, run},
};
use crate::{kernel, rows::with_real};
use kp_hal::{
    Caps, Device, Kernel, Launch, Nanos, Plan, Queue, Result, Support, Variant,
    op::{Attention, AttentionArgs, AttentionProblem},
    source_hash,
};
use std::{borrow::Cow, sync::Arc};

/// The kernel.
pub(crate) struct Portable;

impl Kernel<Attention> for Portable {
    fn name(&self) -> &'static str {
        "portable"
    }

    fn code(&self) -> u64 {
        const { SOURCES ^ source_hash(include_bytes!("portable.rs")) ^ source_hash(include_bytes!("run.rs")).rotate_left(1) }
    }

    fn supports(&self, caps: &Caps, problem: &AttentionProblem) -> Support {
        plan::supports(caps, problem, problem.repro())
    }

    fn estimate(&self, caps: &Caps, problem: &AttentionProblem, variant: Variant) -> Nanos {
        let floors = plan::floors(caps, problem);
        let roofline = machine::estimate(floors, caps, variant);
        // Few rows hide nothing of what it takes to read keys, turn them and write them back as numbers: 2 to 3 cycles each.
        let few = Code { spec: *problem.spec(), variant }.tiling().few;
        let ready = if few { plan::readying(caps, problem, floors.0, 2.5) } else { 0.0 };
        Nanos::from_secs(roofline.as_secs() + ready)
    }

    fn note(&self, _: &Caps, problem: &AttentionProblem, variant: Variant) -> Option<Cow<'static, str>> {
        Code { spec: *problem.spec(), variant }.note()
    }

    fn plan(&self, device: &Arc<dyn Device>, problem: &AttentionProblem, variant: Variant) -> Result<Plan<Attention>> {
        let code = Code { spec: *problem.spec(), variant };
        let scratch = with_real!(code.is_wide(), R => shape::<R>(&code).scratch_bytes());
        // SAFETY: `run` computes what the spec says, from and to the operands the spec names.
        Ok(unsafe { kernel::plan(self, device, problem, variant, scratch, code) })
    }
}

impl Launch<Attention> for Code {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &AttentionArgs<'_>) -> Result<()> {
        let scratch = kernel::own(queue).scratch();
        // SAFETY: the caller's promise.
        with_real!(self.is_wide(), R => unsafe { run(shape::<R>(self), &self.spec, scratch, args) });
        Ok(())
    }
}

/// How its work is cut, and the loops of its variant.
fn shape<R: Compiled>(code: &Code) -> Shape<R> {
    let (dims, tiling) = (Dims::new(&code.spec), code.tiling());
    let q = tiling.tile * if tiling.few { dims.qk_ld() } else { dims.qk_width };
    let room = [q, BLOCK * dims.qk_ld(), BLOCK * dims.v_ld(), BLOCK * PANEL];
    Shape::new(&code.spec, tiling, Loops { run: R::machine(code.variant).chunk, chunk: CHUNK, room })
}

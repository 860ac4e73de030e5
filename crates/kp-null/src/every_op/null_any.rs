//! Accepts any problem of any op and computes nothing: outputs keep what they held.

use crate::queue::NullQueue;
use kp_hal::{
    Caps, Device, Kernel, Launch, Nanos, Op, Plan, Problem, Queue, Result, Support, Variant, Variants, source_hash,
};
use std::sync::Arc;

/// Computed while compiling: at run time it would take longer than the ranking that asks for it.
const CODE: u64 = source_hash(include_bytes!("null_any.rs"));

/// The kernel of last resort: slower than anything made for the problem, says its estimate.
pub(crate) struct NullAny;

impl<O: Op> Kernel<O> for NullAny {
    fn name(&self) -> &'static str {
        "null_any"
    }

    fn code(&self) -> u64 {
        CODE
    }

    fn supports(&self, _: &Caps, _: &Problem<O::Spec>) -> Support {
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, problem: &Problem<O::Spec>, _: Variant) -> Nanos {
        Nanos(Nanos::roofline(caps, problem).0.saturating_mul(4).saturating_add(caps.launch_ns))
    }

    fn plan(&self, device: &Arc<dyn Device>, problem: &Problem<O::Spec>, variant: Variant) -> Result<Plan<O>> {
        let name = Kernel::<O>::name(self);
        // SAFETY: `Nothing` launches nothing, so it touches no byte.
        Ok(unsafe { Plan::new(name, variant, device.id(), problem, 0, Box::new(Nothing)) })
    }
}

/// A launch that only tells the queue.
pub(crate) struct Nothing;

impl<O: Op> Launch<O> for Nothing {
    unsafe fn launch(&self, queue: &mut dyn Queue, _: &O::Args<'_>) -> Result<()> {
        queue.downcast_mut::<NullQueue>().expect("same device, so same backend").launch()
    }
}

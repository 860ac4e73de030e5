//! A kernel that runs every problem of its op, on every machine, in one way.
//!
//! Most ops have one such kernel, last in their list. What differs between ops is a [`Portable`].

use crate::kernel;
use kp_hal::{Caps, Device, Kernel, Launch, Op, Plan, Problem, Queue, Result, Support, Variant, Variants};
use std::{marker::PhantomData, sync::Arc};

/// An op with a kernel for every problem.
pub(crate) trait Portable: Op {
    /// Hash of the file that holds the kernel.
    const CODE: u64;

    /// Bytes of scratch that `run` wants.
    fn scratch_bytes(problem: &Problem<Self::Spec>) -> u64 {
        let _ = problem;
        0
    }

    /// Solves the problem.
    ///
    /// # Safety
    /// As `Launch::launch`; `scratch` has at least `scratch_bytes`.
    unsafe fn run(problem: &Problem<Self::Spec>, scratch: &mut [u8], args: &Self::Args<'_>);
}

/// The kernel of a [`Portable`] op.
pub(crate) struct Every<O>(PhantomData<fn() -> O>);

impl<O: Portable> Every<O> {
    pub(crate) const KERNEL: Self = Self(PhantomData);
}

impl<O: Portable> Kernel<O> for Every<O> {
    fn name(&self) -> &'static str {
        "portable"
    }

    fn code(&self) -> u64 {
        O::CODE
    }

    fn supports(&self, _: &Caps, _: &Problem<O::Spec>) -> Support {
        Ok(Variants::ONE)
    }

    fn plan(&self, device: &Arc<dyn Device>, problem: &Problem<O::Spec>, variant: Variant) -> Result<Plan<O>> {
        let scratch_bytes = O::scratch_bytes(problem);
        let code = Code::<O>(*problem);
        // SAFETY: `Portable::run` promises it.
        Ok(unsafe { kernel::plan(self, device, problem, variant, scratch_bytes, code) })
    }
}

struct Code<O: Op>(Problem<O::Spec>);

impl<O: Portable> Launch<O> for Code<O> {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &O::Args<'_>) -> Result<()> {
        // SAFETY: the caller's promise, the reserved scratch included.
        unsafe { O::run(&self.0, kernel::own(queue).scratch(), args) };
        Ok(())
    }
}

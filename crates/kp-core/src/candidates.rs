//! Which kernels can solve a problem, and why the others cannot.
//!
//! Pure: facts in, answers out. A `Caps` written down by hand is as good as a device.

use kp_hal::{Caps, Kernel, Kernels, Label, Nanos, Op, OpSpec, Problem, Unsupported, Variant};
use std::fmt;

/// One way to solve a problem.
pub struct Candidate<O: Op> {
    /// The kernel.
    pub kernel: &'static dyn Kernel<O>,
    /// One of its variants.
    pub variant: Variant,
    /// What the kernel predicts.
    pub estimate: Nanos,
    /// What was measured on this device before, if it was; filled in by [`rank`](crate::rank()).
    pub measured: Option<Nanos>,
}

impl<O: Op> Candidate<O> {
    /// Kernel and variant: `sm90_e4m3_1d2d#3`.
    pub fn label(&self) -> Label {
        Label { kernel: self.kernel.name(), variant: self.variant }
    }

    /// The time it is ranked by: as measured, else as estimated.
    pub fn time(&self) -> Nanos {
        self.measured.unwrap_or(self.estimate)
    }
}

impl<O: Op> Clone for Candidate<O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O: Op> Copy for Candidate<O> {}

impl<O: Op> fmt::Debug for Candidate<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.measured.is_some() { "measured" } else { "estimated" };
        write!(f, "{} {} {how}", self.label(), self.time())
    }
}

/// Every kernel's answer: the candidates and, for the rest, the reason.
pub struct Candidates<O: Op> {
    /// Every variant that can.
    pub accepted: Vec<Candidate<O>>,
    /// Every kernel of which no variant can, with its reason.
    pub rejected: Vec<(&'static str, Unsupported)>,
}

impl<O: Op> fmt::Debug for Candidates<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidates").field("accepted", &self.accepted).field("rejected", &self.rejected).finish()
    }
}

/// Asks every kernel of the problem's op, in the table's order.
pub fn candidates<S: OpSpec>(table: &Kernels, caps: &Caps, problem: &Problem<S>) -> Candidates<S::Op> {
    let mut found = Candidates { accepted: Vec::new(), rejected: Vec::new() };
    for &kernel in S::Op::kernels(table) {
        match kernel.supports(caps, problem) {
            Ok(variants) => found.accepted.extend(variants.iter().map(|variant| {
                let estimate = kernel.estimate(caps, problem, variant);
                Candidate { kernel, variant, estimate, measured: None }
            })),
            Err(why) => found.rejected.push((kernel.name(), why)),
        }
    }
    found
}

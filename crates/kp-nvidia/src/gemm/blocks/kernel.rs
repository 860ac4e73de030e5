//! A family as a kernel of each op that it serves.

use super::Family;
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Result, Support, Variant,
    op::{Gemm, GemmProblem, GroupedGemm, GroupedGemmProblem},
};
use std::sync::Arc;

impl Kernel<Gemm> for Family {
    fn name(&self) -> &'static str {
        self.name
    }

    fn code(&self) -> u64 {
        self.code
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        self.computes(caps, p.spec(), None, p.repro(), p.align())
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        self.time(caps, p.spec(), None, variant)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let code = self.ready(device, p.spec(), None, variant)?;
        // SAFETY: maps and arguments are of the spec's operands; there is no scratch.
        Ok(unsafe { Plan::new(self.name, variant, device.id(), p, 0, Box::new(code)) })
    }
}

impl Kernel<GroupedGemm> for Family {
    fn name(&self) -> &'static str {
        self.name
    }

    fn code(&self) -> u64 {
        self.code
    }

    fn supports(&self, caps: &Caps, p: &GroupedGemmProblem) -> Support {
        self.computes(caps, &p.gemm, Some(p.grouping), p.repro(), p.align())
    }

    fn estimate(&self, caps: &Caps, p: &GroupedGemmProblem, variant: Variant) -> Nanos {
        self.time(caps, &p.gemm, Some(p.grouping), variant)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GroupedGemmProblem, variant: Variant) -> Result<Plan<GroupedGemm>> {
        let code = self.ready(device, &p.gemm, Some(p.grouping), variant)?;
        // SAFETY: as above.
        Ok(unsafe { Plan::new(self.name, variant, device.id(), p, 0, Box::new(code)) })
    }
}

//! Matrix products of groups of rows.

mod coopmat;
mod coopmat_weights;
mod simt;
mod tiles;

use kp_hal::{
    Caps, KernelList,
    op::{GroupedGemm, GroupedGemmProblem, Repro},
};

/// Best first.
pub(crate) const LIST: KernelList<GroupedGemm> = &[&coopmat::Coopmat, &coopmat_weights::CoopmatWeights, &simt::Simt];

/// Whether a kernel before `name` runs `p`, and a row's bits may not depend on how many there are: kernels add in orders of their own, so
/// the first takes a row whatever their number is.
fn is_invariant_elsewhere(caps: &Caps, p: &GroupedGemmProblem, name: &str) -> bool {
    let before = || LIST.iter().take_while(|kernel| kernel.name() != name);
    p.repro() == Repro::BatchInvariant && before().any(|kernel| kernel.supports(caps, p).is_ok())
}

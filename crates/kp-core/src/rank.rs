//! Which candidate is fastest.
//!
//! Pure, like [`candidates`](crate::candidates()): the same facts give the same order.

use crate::candidates::Candidates;
use kp_hal::{Label, Nanos, Op};

/// Orders the candidates: first those that were measured, fastest first; then the others by estimate.
///
/// `measured` is asked with each candidate's label and the hash of its kernel's code. A measurement comes before
/// any estimate, because an estimate may be no more than the floor that no kernel reaches. Equals keep their order,
/// which is the backend's: best first.
pub fn rank<O: Op>(found: &mut Candidates<O>, measured: impl Fn(Label, u64) -> Option<Nanos>) {
    for candidate in &mut found.accepted {
        candidate.measured = measured(candidate.label(), candidate.kernel.code());
    }
    found.accepted.sort_by_key(|c| (c.measured.is_none(), c.time()));
}

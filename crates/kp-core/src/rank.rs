//! Which candidate is fastest.
//!
//! Pure, like [`candidates`](crate::candidates()): the same facts give the same order.

use crate::candidates::{Candidate, Candidates};
use kp_hal::{Nanos, Op};

/// Orders the candidates: first those that were measured, fastest first; then the others by estimate.
///
/// `measured` answers what is known of a candidate. A measurement comes before any estimate, because an estimate may
/// be no more than the floor that no kernel reaches. Equals keep their order, which is the backend's: best first.
pub fn rank<O: Op>(found: &mut Candidates<O>, measured: impl Fn(&Candidate<O>) -> Option<Nanos>) {
    for candidate in &mut found.accepted {
        candidate.measured = measured(candidate);
    }
    found.accepted.sort_by_key(|c| (c.measured.is_none(), c.time()));
}

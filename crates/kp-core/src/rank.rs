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
    let keys: Vec<_> = found.accepted.iter().map(|c| (c.measured.is_none(), c.time())).collect();
    found.accepted = least_first(&keys).iter().map(|&i| found.accepted[i]).collect();
}

/// The places of `keys`, the least first, equals in their order. Apart from [`rank`] so that sorting is not compiled for
/// every op.
fn least_first(keys: &[(bool, Nanos)]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by_key(|&i| keys[i]);
    order
}

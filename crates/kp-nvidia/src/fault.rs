//! What is known when work has failed: the driver reports a failed kernel at some later call, and then to every call.

use crate::{driver::Status, timeline::Timelines};
use kp_hal::{Error, Fault};

/// How many launches a queue remembers the names of.
const REMEMBERED: usize = 64;

/// The names of a queue's last launches, each with the mark it came after.
pub(crate) struct Launches {
    ring: [(&'static str, u64); REMEMBERED],
    count: usize,
}

impl Launches {
    pub(crate) const fn new() -> Self {
        Self { ring: [("", 0); REMEMBERED], count: 0 }
    }

    /// Notes a launch after mark `after`.
    #[inline]
    pub(crate) fn note(&mut self, name: &'static str, after: u64) {
        self.ring[self.count % REMEMBERED] = (name, after);
        self.count = self.count.wrapping_add(1);
    }

    /// Launches after mark `mark`, oldest first; of many only the last.
    fn since(&self, mark: u64) -> impl Iterator<Item = &(&'static str, u64)> {
        let first = self.count.saturating_sub(REMEMBERED);
        (first..self.count).map(|at| &self.ring[at % REMEMBERED]).filter(move |(_, after)| *after >= mark)
    }

    /// What can be said of a failure: everything up to mark `done` is fine, `marks` were made.
    pub(crate) fn fault(&self, done: u64, marks: u64, status: Status, timelines: &Timelines) -> Fault {
        let mut driver = timelines.lose(status.error()).clone();
        let suspects: Vec<_> = self.since(done).collect();
        // Work after the last mark belongs to the mark that is never made.
        let suspect = if suspects.iter().any(|(_, after)| *after == marks) { marks + 1 } else { marks };
        let kernels: Vec<_> = suspects.into_iter().map(|(name, _)| *name).collect();
        if kernels.is_empty() && done == marks {
            driver.text = format!("{}; not by work of this queue", driver.text).into();
        }
        Fault { last_good: done, suspect, kernels, driver, device_lost: true }
    }
}

impl Timelines {
    /// The error for a call that belongs to no queue.
    pub(crate) fn refused(&self, status: Status) -> Error {
        if !status.is_lost() {
            return status.error().into();
        }
        let driver = self.lose(status.error()).clone();
        Fault { last_good: 0, suspect: 0, kernels: Vec::new(), driver, device_lost: true }.into()
    }
}

//! What is known when work has failed: the driver reports a failed kernel at some later call, and then to every call.

use crate::{driver::Status, timeline::Timelines};
use kp_hal::{DriverError, Error, Fault};

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
        lost(self.lose(status.error()))
    }
}

/// The error for a call that belongs to no queue, on a device that is lost.
pub(crate) fn lost(error: &DriverError) -> Error {
    let driver = error.clone();
    Fault { last_good: 0, suspect: 0, kernels: Vec::new(), driver, device_lost: true }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ILLEGAL: Status = Status { call: "cuStreamSynchronize", code: 700 };

    #[test]
    fn a_fault_names_what_ran_since_the_last_good_mark() {
        let timelines = Timelines::default();
        let mut launches = Launches::new();
        for (name, after) in [("a", 0), ("b", 1), ("c", 1), ("d", 2)] {
            launches.note(name, after);
        }
        let fault = |done, marks| launches.fault(done, marks, ILLEGAL, &timelines);
        assert_eq!(fault(0, 3).kernels, ["a", "b", "c", "d"]);
        assert_eq!((fault(1, 3).kernels, fault(1, 3).suspect), (vec!["b", "c", "d"], 3));
        // After the last mark, so it is the mark to come that would not be reached.
        assert_eq!((fault(2, 2).kernels, fault(2, 2).suspect), (vec!["d"], 3));
        let innocent = fault(3, 3);
        assert!(
            innocent.kernels.is_empty() && innocent.driver.text.ends_with("not by work of this queue"),
            "{innocent:?}"
        );
    }

    #[test]
    fn of_many_launches_the_last_are_remembered() {
        let mut launches = Launches::new();
        for at in 0..1000 {
            launches.note(if at < 990 { "old" } else { "new" }, at);
        }
        let fault = launches.fault(0, 1000, ILLEGAL, &Timelines::default());
        assert_eq!(fault.kernels.len(), REMEMBERED);
        assert!(fault.kernels[REMEMBERED - 10..].iter().all(|name| *name == "new") && fault.kernels[0] == "old");
    }

    #[test]
    fn the_first_error_is_the_one_that_is_told() {
        let timelines = Timelines::default();
        let first = timelines.refused(ILLEGAL);
        let later = timelines.refused(Status { call: "cuMemFreeAsync", code: 719 });
        assert_eq!(first, later);
        assert!(matches!(timelines.refused(Status { call: "x", code: 1 }).kind(), kp_hal::ErrorKind::Driver(_)));
    }
}

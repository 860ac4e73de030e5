//! What is known when work has failed: the driver reports a lost device at some later call, and then to every call.

use crate::driver::Status;
use kp_hal::{DriverError, Error, Fault, Result};
use std::sync::OnceLock;

/// How many launches a queue remembers the names of.
const REMEMBERED: usize = 64;

/// Whether a device is lost, and what the driver said when it first told.
#[derive(Debug, Default)]
pub(crate) struct Lost(OnceLock<DriverError>);

impl Lost {
    /// Fails on a device that is lost.
    ///
    /// # Errors
    /// `Fault`, of no queue.
    pub(crate) fn check(&self) -> Result<()> {
        match self.0.get() {
            None => Ok(()),
            Some(driver) => Err(nobodys(driver)),
        }
    }

    /// The error for a call that belongs to no queue.
    pub(crate) fn refused(&self, status: Status) -> Error {
        match status.is_lost() {
            true => nobodys(self.tell(status)),
            false => status.error().into(),
        }
    }

    fn tell(&self, status: Status) -> &DriverError {
        self.0.get_or_init(|| status.error())
    }
}

/// A fault of no queue.
fn nobodys(driver: &DriverError) -> Error {
    Fault { last_good: 0, suspect: 0, kernels: Vec::new(), driver: driver.clone(), device_lost: true }.into()
}

/// The names of a queue's last launches, each with the mark it came after.
#[derive(Debug)]
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

    /// What can be said of a failure: everything up to mark `done` is fine, `marks` were made.
    pub(crate) fn fault(&self, done: u64, marks: u64, status: Status, lost: &Lost) -> Fault {
        let mut driver = lost.tell(status).clone();
        let last = (self.count.saturating_sub(REMEMBERED)..self.count).map(|at| self.ring[at % REMEMBERED]);
        let suspects: Vec<_> = last.filter(|&(_, after)| after >= done).collect();
        // Work after the last mark belongs to the mark that is never made.
        let suspect = if suspects.iter().any(|&(_, after)| after == marks) { marks + 1 } else { marks };
        let kernels: Vec<_> = suspects.into_iter().map(|(name, _)| name).collect();
        if kernels.is_empty() && done == marks {
            driver.text = format!("{}; not by work of this queue", driver.text).into();
        }
        Fault { last_good: done, suspect, kernels, driver, device_lost: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ash::vk;

    const LOST: Status = Status { call: "vkWaitSemaphores", code: vk::Result::ERROR_DEVICE_LOST };

    #[test]
    fn a_fault_names_what_ran_since_the_last_good_mark() {
        let (lost, mut launches) = (Lost::default(), Launches::new());
        for (name, after) in [("a", 0), ("b", 1), ("c", 1), ("d", 2)] {
            launches.note(name, after);
        }
        let fault = |done, marks| launches.fault(done, marks, LOST, &lost);
        assert_eq!(fault(0, 3).kernels, ["a", "b", "c", "d"]);
        assert_eq!((fault(1, 3).kernels, fault(1, 3).suspect), (vec!["b", "c", "d"], 3));
        assert_eq!((fault(2, 2).kernels, fault(2, 2).suspect), (vec!["d"], 3));
        assert!(fault(3, 3).driver.text.ends_with("not by work of this queue"));
    }

    #[test]
    fn a_lost_device_stays_lost_and_a_refusal_passes() {
        let lost = Lost::default();
        let refused = lost.refused(Status { call: "vkCreateBuffer", code: vk::Result::ERROR_OUT_OF_HOST_MEMORY });
        assert!(matches!(refused.kind(), kp_hal::ErrorKind::Driver(_)) && lost.check().is_ok());
        let first = lost.refused(LOST);
        let later = lost.refused(Status { call: "vkQueueSubmit", code: vk::Result::ERROR_DEVICE_LOST });
        assert_eq!(first, later);
        assert_eq!(lost.check().expect_err("it is lost"), first);
    }
}

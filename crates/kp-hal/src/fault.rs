//! What is known when work has failed: a driver reports a failed kernel, or a lost device, at some later call, and cannot say which
//! launch it was. Backends note what they launch, and remember the first error that ended the device.

use crate::error::{DriverError, Error, Result};
use std::{fmt, sync::OnceLock};

/// An asynchronous failure, narrowed to what is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Everything up to and including this mark of the queue had completed.
    pub last_good: u64,
    /// The newest mark that may have caused it.
    pub suspect: u64,
    /// Kernels launched in between, oldest first.
    pub kernels: Vec<&'static str>,
    /// What the driver said.
    pub driver: DriverError,
    /// No queue of this device will work again.
    pub device_lost: bool,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { last_good, suspect, kernels, driver, device_lost } = self;
        write!(f, "work between marks {last_good} and {suspect} failed: {driver}; launched there: ")?;
        match &kernels[..] {
            [] => f.write_str("no kernel")?,
            [first, rest @ ..] => {
                f.write_str(first)?;
                rest.iter().try_for_each(|kernel| write!(f, ", {kernel}"))?;
            }
        }
        f.write_str(if *device_lost { "; the device is lost" } else { "" })
    }
}

/// Whether a device is lost, and what the driver said when it first told: every later error is an echo of that one.
#[derive(Debug, Default)]
pub struct Lost(OnceLock<DriverError>);

impl Lost {
    /// Fails on a device that is lost.
    ///
    /// # Errors
    /// `Fault`, of no queue.
    pub fn check(&self) -> Result<()> {
        match self.0.get() {
            None => Ok(()),
            Some(driver) => Err(of_no_queue(driver)),
        }
    }

    /// Remembers that the device is lost; the error for a call that belongs to no queue.
    pub fn tell(&self, driver: DriverError) -> Error {
        of_no_queue(self.first(driver))
    }

    fn first(&self, driver: DriverError) -> &DriverError {
        self.0.get_or_init(|| driver)
    }
}

fn of_no_queue(driver: &DriverError) -> Error {
    Fault { last_good: 0, suspect: 0, kernels: Vec::new(), driver: driver.clone(), device_lost: true }.into()
}

/// How many launches a queue remembers the names of.
const REMEMBERED: usize = 64;

/// The names of a queue's last 64 launches, each with the mark it came after.
#[derive(Debug)]
pub struct Launches {
    ring: [(&'static str, u64); REMEMBERED],
    count: usize,
}

impl Default for Launches {
    fn default() -> Self {
        Self { ring: [("", 0); REMEMBERED], count: 0 }
    }
}

impl Launches {
    /// Notes a launch after mark `after`.
    #[inline]
    pub fn note(&mut self, name: &'static str, after: u64) {
        self.ring[self.count % REMEMBERED] = (name, after);
        self.count = self.count.wrapping_add(1);
    }

    /// What can be said when the driver told of a failure that ends the queue, or the device, which is then `lost`: everything up
    /// to mark `done` is fine, `marks` were made.
    pub fn fault(&self, done: u64, marks: u64, driver: DriverError, lost: Option<&Lost>) -> Fault {
        let mut driver = lost.map_or(&driver, |lost| lost.first(driver.clone())).clone();
        let first = self.count.saturating_sub(REMEMBERED);
        let last = (first..self.count).map(|at| self.ring[at % REMEMBERED]);
        let suspects: Vec<_> = last.filter(|&(_, after)| after >= done).collect();
        // Work after the last mark belongs to the mark that is never made.
        let suspect = if suspects.iter().any(|&(_, after)| after == marks) { marks + 1 } else { marks };
        let kernels: Vec<_> = suspects.into_iter().map(|(name, _)| name).collect();
        if lost.is_some() && kernels.is_empty() && done == marks {
            driver.text = format!("{}; not by work of this queue", driver.text).into();
        }
        Fault { last_good: done, suspect, kernels, driver, device_lost: lost.is_some() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn illegal() -> DriverError {
        DriverError { call: "cuStreamSynchronize", code: 700, text: "illegal address".into() }
    }

    #[test]
    fn a_fault_names_the_numbers() {
        let kernels = vec!["simt_f32", "sm90_bf16"];
        let fault = Fault { last_good: 3, suspect: 5, kernels, driver: illegal(), device_lost: true };
        assert_eq!(
            Error::from(fault).to_string(),
            "work between marks 3 and 5 failed: cuStreamSynchronize returned 700: illegal address; \
             launched there: simt_f32, sm90_bf16; the device is lost"
        );
    }

    #[test]
    fn a_fault_names_what_ran_since_the_last_good_mark() {
        let (lost, mut launches) = (Lost::default(), Launches::default());
        for (name, after) in [("a", 0), ("b", 1), ("c", 1), ("d", 2)] {
            launches.note(name, after);
        }
        let fault = |done, marks| launches.fault(done, marks, illegal(), Some(&lost));
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
        let mut launches = Launches::default();
        for at in 0..1000 {
            launches.note(if at < 990 { "old" } else { "new" }, at);
        }
        let fault = launches.fault(0, 1000, illegal(), Some(&Lost::default()));
        assert_eq!(fault.kernels.len(), REMEMBERED);
        let (old, new) = fault.kernels.split_at(REMEMBERED - 10);
        assert!(old.iter().all(|name| *name == "old") && new.iter().all(|name| *name == "new"), "{fault:?}");
    }

    #[test]
    fn the_first_error_is_the_one_that_is_told() {
        let lost = Lost::default();
        assert_eq!(lost.check(), Ok(()));
        let first = lost.tell(illegal());
        let later = DriverError { call: "cuMemFreeAsync", code: 719, text: "launch failure".into() };
        assert_eq!((lost.tell(later.clone()), lost.check()), (first.clone(), Err(first)));
        assert_eq!(Launches::default().fault(0, 1, later, Some(&lost)).driver, illegal());
    }
}

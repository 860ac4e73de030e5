//! What an engine learns, and how it is kept.

use super::{Engine, Knowledge, not_while_recording};
use crate::{
    error::Result,
    wisdom::{Fact, Peaks, Warning, Wisdom},
};
use kp_hal::{
    AnyProblem, Caps, Label, Op,
    op::{EachOp, each_op},
};
use std::{
    collections::HashMap,
    path::Path,
    sync::{PoisonError, RwLockWriteGuard},
};

impl Engine {
    /// Where wisdom is kept; `None` if in memory only.
    pub fn wisdom_path(&self) -> Option<&Path> {
        self.0.store.as_ref().map(|store| store.path())
    }

    /// Adds a measurement. It takes part in the next ranking; plans already made stay until
    /// [`forget_plans`](Self::forget_plans).
    pub fn record(&self, problem: &AnyProblem, label: Label, fact: Fact) {
        let mut knowledge = self.knowledge();
        knowledge.wisdom.record(&self.0.machine, problem, label, fact);
        knowledge.fresh.record(&self.0.machine, problem, label, fact);
    }

    /// Measures what the device reaches, about a second, and keeps the best ever seen as wisdom: for explanations from now
    /// on, and on disk when it is saved next. Returns the capabilities as measured now.
    ///
    /// # Errors
    /// What the device returned; `NotCapturable` while this thread records.
    pub fn measure_peaks(&self) -> kp_hal::Result<Caps> {
        not_while_recording("measuring peaks")?;
        let measured = self.0.device.clone().measure()?;
        // A device that cannot measure itself repeats what it states.
        if measured == *self.caps() {
            return Ok(measured);
        }
        let peaks = Peaks::of(&measured);
        let mut knowledge = self.knowledge();
        knowledge.wisdom.record_peaks(&self.0.machine, &peaks);
        knowledge.fresh.record_peaks(&self.0.machine, &peaks);
        Ok(measured)
    }

    /// What the device was measured to reach, now or by an earlier run; `None` if nobody asked yet.
    pub fn peaks(&self) -> Option<Peaks> {
        let knowledge = self.0.knowledge.read().unwrap_or_else(PoisonError::into_inner);
        knowledge.wisdom.peaks(&self.0.machine).cloned()
    }

    /// Merges what was recorded since the last save into the wisdom file, and takes over what others saved there: the file is
    /// locked from reading to replacing it, so that several processes and threads lose nothing of each other.
    /// Facts of this device whose kernel has changed since are dropped. Without a file, this does nothing.
    ///
    /// Returns the lines of the file that were kept out.
    ///
    /// # Errors
    /// `Wisdom` if the file cannot be written or is something else; what was recorded stays in memory, to be saved later.
    pub fn save_wisdom(&self) -> Result<Vec<Warning>> {
        let Some(store) = &self.0.store else { return Ok(Vec::new()) };
        let _saving = self.0.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = std::mem::take(&mut self.knowledge().fresh);
        let saved = store.update(|wisdom| {
            wisdom.merge(&fresh);
            self.forget_stale(wisdom);
        });
        let mut knowledge = self.knowledge();
        match saved {
            Ok((mut wisdom, warnings)) => {
                // Recorded while the file was written: newer still.
                wisdom.merge(&knowledge.fresh);
                knowledge.wisdom = wisdom;
                Ok(warnings.shown)
            }
            Err(error) => {
                let newer = std::mem::replace(&mut knowledge.fresh, fresh);
                knowledge.fresh.merge(&newer);
                Err(error)
            }
        }
    }

    /// Whether saving can work, before minutes are spent on what cannot be kept.
    ///
    /// # Errors
    /// As [`save_wisdom`](Self::save_wisdom).
    pub fn check_wisdom_writable(&self) -> Result<()> {
        self.0.store.as_ref().map_or(Ok(()), |store| store.check_writable())
    }

    /// Drops facts of this device that were measured with another source of their kernel. Kernels that this build
    /// does not have keep theirs: another build may.
    fn forget_stale(&self, wisdom: &mut Wisdom) {
        let mut codes = Codes { table: self.0.backend.kernels(), of: HashMap::new() };
        each_op(&mut codes);
        wisdom.retain(&self.0.machine, |problem, kernel, _, fact| {
            let op = problem.split_whitespace().next().unwrap_or_default();
            codes.of.get(&(op, kernel)).is_none_or(|&code| code == fact.code)
        });
    }

    fn knowledge(&self) -> RwLockWriteGuard<'_, Knowledge> {
        self.0.knowledge.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The hash of every kernel's code, by op and name.
struct Codes {
    table: &'static kp_hal::Kernels,
    of: HashMap<(&'static str, &'static str), u64>,
}

impl EachOp for Codes {
    fn op<O: Op>(&mut self) {
        self.of.extend(O::kernels(self.table).iter().map(|kernel| ((O::NAME, kernel.name()), kernel.code())));
    }
}

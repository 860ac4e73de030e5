//! Which launches may run beside those before them.
//!
//! A queue is in order, yet a launch has to wait only for those that write what it accesses, or access what it writes. A barrier makes all
//! behind it wait for all before it, and costs 2.4 µs on an H200, where one row by 134 MB of weights takes 40: so it is recorded where a
//! launch meets memory of one since the last barrier so, and nowhere else. A layer's products by one input then run beside each other.

/// Accesses that are remembered, at most: so many launches since a barrier are enough to fill a device.
const MOST: usize = 64;

/// Bytes that may be stored together: neighbours in so many meet.
const UNIT: u64 = 64;

/// Bytes that a launch accesses, in whole [`UNIT`]s.
#[derive(Clone, Copy, Debug)]
struct Access {
    first: u64,
    end: u64,
    writes: bool,
}

impl Access {
    fn meets(&self, other: &Self) -> bool {
        (self.writes || other.writes) && self.first < other.end && other.first < self.end
    }
}

/// What launches since the last barrier access, and what the one does that is being recorded.
#[derive(Debug, Default)]
pub(crate) struct Hazards {
    before: Vec<Access>,
    /// Whether some of them may have accessed anything.
    any: bool,
    now: Vec<Access>,
    /// Whether `now` is all that the launch accesses, and whether it has recorded no command yet.
    is_known: bool,
    is_first: bool,
}

impl Hazards {
    /// Behind what nobody knows.
    pub(crate) fn after_unknown() -> Self {
        Self { any: true, ..Self::default() }
    }

    /// Begins a launch of one command or several that accesses nothing but what [`Self::access`] tells.
    pub(crate) fn begin(&mut self) {
        self.now.clear();
        (self.is_known, self.is_first) = (true, true);
    }

    /// Tells of bytes that the launch accesses, before its first command.
    pub(crate) fn access(&mut self, addr: u64, bytes: u64, writes: bool) {
        if bytes > 0 {
            let end = addr.saturating_add(bytes).checked_next_multiple_of(UNIT).unwrap_or(u64::MAX);
            self.now.push(Access { first: addr / UNIT * UNIT, end, writes });
        }
    }

    /// Whether the next command has to wait for all before it: the first of a launch for other launches, the others for that one's.
    pub(crate) fn must_wait(&mut self) -> bool {
        let is_first = self.is_known && std::mem::take(&mut self.is_first);
        if is_first && !self.meets() {
            return false;
        }
        self.passed();
        self.any = !self.is_known;
        true
    }

    fn meets(&self) -> bool {
        let meets = |now: &Access| self.before.iter().any(|before| before.meets(now));
        let is_full = self.before.len() + self.now.len() > MOST;
        self.any || is_full || self.now.iter().any(meets)
    }

    /// Ends the launch.
    pub(crate) fn end(&mut self) {
        self.before.append(&mut self.now);
        self.is_known = false;
    }

    /// All that was recorded comes before what follows: there was a barrier.
    pub(crate) fn passed(&mut self) {
        self.before.clear();
        self.any = false;
    }

    /// Something unknown was submitted.
    pub(crate) fn add_unknown(&mut self) {
        self.any = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a launch of one command waits, of accesses in units.
    fn waits(hazards: &mut Hazards, accesses: &[(u64, u64, bool)]) -> bool {
        hazards.begin();
        accesses.iter().for_each(|&(addr, units, writes)| hazards.access(UNIT * addr, UNIT * units, writes));
        let waits = hazards.must_wait();
        hazards.end();
        waits
    }

    const READ: bool = false;
    const WRITE: bool = true;

    #[test]
    fn launches_that_share_what_they_read_wait_for_none() {
        let hazards = &mut Hazards::default();
        assert!(!waits(hazards, &[(0, 100, READ), (1000, 10, WRITE)]));
        assert!(!waits(hazards, &[(0, 100, READ), (1010, 10, WRITE)]));
        assert!(!waits(hazards, &[(0, 100, READ), (1020, 10, WRITE), (5000, 0, WRITE)]));
    }

    #[test]
    fn what_is_written_is_waited_for() {
        for (first, second) in [(WRITE, READ), (READ, WRITE), (WRITE, WRITE)] {
            let hazards = &mut Hazards::default();
            assert!(!waits(hazards, &[(100, 10, first)]));
            assert!(!waits(hazards, &[(0, 100, WRITE), (110, 5, WRITE)]), "neighbours");
            assert!(waits(hazards, &[(300, 1, READ), (109, 1, second)]));
            // The barrier is behind the first two.
            assert!(!waits(hazards, &[(0, 100, WRITE)]));
            assert!(waits(hazards, &[(50, 100, second), (60, 1, WRITE)]));
        }
    }

    #[test]
    fn neighbours_in_a_unit_meet() {
        for (end, must) in [(UNIT - 1, true), (UNIT, false)] {
            let hazards = &mut Hazards::default();
            hazards.begin();
            hazards.access(0, end, WRITE);
            assert!(!hazards.must_wait());
            hazards.end();
            hazards.begin();
            hazards.access(end, 1, WRITE);
            assert_eq!(hazards.must_wait(), must, "{end}");
        }
        let hazards = &mut Hazards::default();
        hazards.begin();
        hazards.access(u64::MAX - 1, 100, WRITE);
        assert!(!hazards.must_wait(), "the last bytes of all");
    }

    #[test]
    fn a_launch_s_own_commands_follow_each_other() {
        let hazards = &mut Hazards::default();
        hazards.begin();
        hazards.access(0, 10 * UNIT, WRITE);
        assert_eq!([hazards.must_wait(), hazards.must_wait(), hazards.must_wait()], [false, true, true]);
        hazards.end();
        assert!(waits(hazards, &[(5, 1, READ)]), "the last of them is under way");
    }

    #[test]
    fn nobody_runs_beside_what_is_not_known() {
        let hazards = &mut Hazards::default();
        assert!(!waits(hazards, &[(0, 10, WRITE)]));
        assert!(hazards.must_wait(), "a command of which nothing was told");
        assert!(hazards.must_wait());
        assert!(waits(hazards, &[(20, 10, WRITE)]));
        assert!(!waits(hazards, &[(30, 10, WRITE)]));
        hazards.add_unknown();
        assert!(waits(hazards, &[(40, 10, WRITE)]));
        assert!(waits(&mut Hazards::after_unknown(), &[(0, 1, READ)]));
    }

    #[test]
    fn what_is_remembered_ends() {
        let hazards = &mut Hazards::default();
        let waits = (0..200).filter(|&i| waits(hazards, &[(i, 1, WRITE)])).count();
        assert_eq!(waits, 200 / MOST);
    }
}

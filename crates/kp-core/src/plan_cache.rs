//! Plans made so far on one device for one op. Shared by threads; read-mostly.

use kp_hal::{Label, Op, Plan, Problem, Result};
use std::{
    cmp::Ordering::{Equal, Greater, Less},
    collections::HashMap,
    fmt,
    hash::{BuildHasherDefault, Hasher},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// Most plans kept; the next one makes room.
pub const CAPACITY: usize = 4096;

/// Plans dropped at once when full, so that looking for the oldest is rare.
const BATCH: usize = CAPACITY / 16;

/// Most problems whose failed kernels are remembered.
const FAILURES: usize = 256;

/// Kernels that could not plan a problem, each with its error's words.
pub type Failures = Vec<(Label, String)>;

/// At most [`CAPACITY`] plans; the least recently used make room.
///
/// Time is counted in insertions, so that a hit writes nothing unless a plan was added since the last hit on it.
pub struct PlanCache<O: Op> {
    plans: RwLock<Plans<O>>,
    /// So few, and so rarely asked for, that a list does.
    failures: RwLock<Vec<(Problem<O::Spec>, Failures)>>,
    /// Counts insertions.
    now: AtomicU64,
    /// Counts clearings.
    epoch: AtomicU64,
}

/// The plans, and where in the list those of a fingerprint are: one, since of two problems with the same fingerprint,
/// which is rarer than a broken machine, the later takes the earlier's place. So the map is the same type for every op.
struct Plans<O: Op> {
    places: HashMap<u64, usize, BuildHasherDefault<Fingerprint>>,
    list: Vec<Entry<O>>,
}

impl<O: Op> Default for Plans<O> {
    fn default() -> Self {
        Self { places: HashMap::default(), list: Vec::new() }
    }
}

impl<O: Op> Plans<O> {
    #[inline]
    fn find(&self, problem: &Problem<O::Spec>) -> Option<&Entry<O>> {
        let &place = self.places.get(&problem.fingerprint())?;
        self.list.get(place).filter(|entry| entry.plan.problem() == problem)
    }

    fn insert(&mut self, entry: Entry<O>) {
        let fingerprint = entry.plan.problem().fingerprint();
        match self.places.get(&fingerprint) {
            Some(&place) => self.list[place] = entry,
            None => {
                if self.list.len() >= CAPACITY {
                    self.make_room();
                }
                self.places.insert(fingerprint, self.list.len());
                self.list.push(entry);
            }
        }
    }

    /// Drops the `BATCH` plans not used for longest.
    fn make_room(&mut self) {
        let (age, mut of_that_age) = oldest(self.list.iter().map(|e| e.used.load(Ordering::Relaxed)).collect());
        self.list.retain(|entry| match entry.used.load(Ordering::Relaxed).cmp(&age) {
            Less => false,
            Equal if of_that_age > 0 => {
                of_that_age -= 1;
                false
            }
            Equal | Greater => true,
        });
        self.places.clear();
        for (place, entry) in self.list.iter().enumerate() {
            self.places.insert(entry.plan.problem().fingerprint(), place);
        }
    }

    fn clear(&mut self) {
        self.places.clear();
        self.list.clear();
    }
}

struct Entry<O: Op> {
    plan: Arc<Plan<O>>,
    /// The cache's when the plan was begun: one that was begun before a clearing and ready after it is not found.
    epoch: u64,
    /// `now` at the last hit.
    used: AtomicU64,
}

impl<O: Op> Default for PlanCache<O> {
    fn default() -> Self {
        Self { plans: RwLock::default(), failures: RwLock::default(), now: AtomicU64::new(0), epoch: AtomicU64::new(0) }
    }
}

impl<O: Op> fmt::Debug for PlanCache<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlanCache({}: {} plans)", O::NAME, self.len())
    }
}

// A panic while one of the locks is held can only be the map's own, so what it holds is whole: poison is ignored.
impl<O: Op> PlanCache<O> {
    /// The plan of `problem`, if there is one.
    #[inline]
    pub fn find(&self, problem: &Problem<O::Spec>) -> Option<Arc<Plan<O>>> {
        let plans = self.plans.read().unwrap_or_else(PoisonError::into_inner);
        // Acquire, with the Release of `clear`: who sees the new epoch sees what made the clearing needed.
        let entry = plans.find(problem).filter(|entry| entry.epoch == self.epoch.load(Ordering::Acquire))?;
        // Relaxed, here and below: a stale clock evicts a plan a little early and is otherwise harmless.
        let now = self.now.load(Ordering::Relaxed);
        if entry.used.load(Ordering::Relaxed) != now {
            entry.used.store(now, Ordering::Relaxed);
        }
        Some(entry.plan.clone())
    }

    /// The plan of `problem`, made by `make` if there is none. No lock is held meanwhile; of two threads that make
    /// the same plan at once, both get the one that was ready first.
    ///
    /// # Errors
    /// What `make` returned; nothing is kept then.
    #[inline]
    pub fn find_or(&self, problem: &Problem<O::Spec>, make: impl FnOnce() -> Result<Plan<O>>) -> Result<Arc<Plan<O>>> {
        if let Some(plan) = self.find(problem) {
            return Ok(plan);
        }
        let epoch = self.epoch.load(Ordering::Acquire);
        Ok(self.insert(make()?, epoch))
    }

    #[cold]
    fn insert(&self, plan: Plan<O>, epoch: u64) -> Arc<Plan<O>> {
        let mut plans = self.plans.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = plans.find(plan.problem()).filter(|there| there.epoch >= epoch) {
            return there.plan.clone();
        }
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        let plan = Arc::new(plan);
        plans.insert(Entry { plan: plan.clone(), epoch, used: AtomicU64::new(now) });
        plan
    }

    /// How many plans there are.
    pub fn len(&self) -> usize {
        self.plans.read().unwrap_or_else(PoisonError::into_inner).list.len()
    }

    /// Whether there is no plan.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets all plans and failures. Plans in use live on.
    pub fn clear(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
        self.plans.write().unwrap_or_else(PoisonError::into_inner).clear();
        self.failures.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Remembers which kernels failed to plan `problem`, for as long as the cache is not cleared.
    pub fn note_failures(&self, problem: &Problem<O::Spec>, failed: Failures) {
        let mut failures = self.failures.write().unwrap_or_else(PoisonError::into_inner);
        if failures.len() >= FAILURES {
            failures.clear();
        }
        failures.retain(|(of, _)| of != problem);
        failures.push((*problem, failed));
    }

    /// The kernels that failed when `problem` was planned.
    pub fn failures(&self, problem: &Problem<O::Spec>) -> Failures {
        let failures = self.failures.read().unwrap_or_else(PoisonError::into_inner);
        failures.iter().find(|(of, _)| of == problem).map(|(_, failed)| failed.clone()).unwrap_or_default()
    }
}

/// The greatest of the `BATCH` least `ages`, and how many of them are that great: several may share it, and only as many of
/// them go as are needed.
fn oldest(mut ages: Vec<u64>) -> (u64, usize) {
    let (older, &mut age, _) = ages.select_nth_unstable(BATCH - 1);
    (age, BATCH - older.iter().filter(|&&used| used < age).count())
}

/// Passes on the one number that a problem hashes as, its fingerprint.
#[derive(Default, Clone, Copy)]
struct Fingerprint(u64);

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(self.0.rotate_left(8) ^ u64::from(byte)));
    }

    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }
}

//! One pool of threads for the process: parallel loops that start in well under a microsecond.
//!
//! The caller opens a gate behind which its loop stands; idle workers see that while they still spin,
//! or are woken, and take part. When the indices have run out the caller closes the gate and waits
//! for those inside only, so a worker that never woke costs nothing.

mod gate;

use gate::Gate;
use std::{
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex, OnceLock, TryLockError,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread::{self, Thread},
    time::{Duration, Instant},
};

/// How long an idle worker spins before it parks: longer than the gap between two launches of a model,
/// short enough to burn nothing that matters.
const SPIN: Duration = Duration::from_micros(50);

/// How many threads take part in a parallel loop, the caller among them: `KP_THREADS`, else what affinity
/// and control group allow.
pub(crate) fn count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let allowed = || thread::available_parallelism().map_or(1, NonZeroUsize::get).min(MOST);
        asked().ok().flatten().unwrap_or_else(allowed)
    })
}

/// The most threads of the pool.
const MOST: usize = 1024;

/// What `KP_THREADS` says; a device is not opened if that is no such number.
///
/// # Errors
/// What it must be.
pub(crate) fn asked() -> Result<Option<usize>, String> {
    read(&std::env::var_os("KP_THREADS").unwrap_or_default().to_string_lossy())
}

fn read(text: &str) -> Result<Option<usize>, String> {
    match text.trim() {
        "" => Ok(None),
        number => match number.parse() {
            Ok(count @ 1..=MOST) => Ok(Some(count)),
            _ => Err(format!("KP_THREADS must be a number from 1 to {MOST}, got {text:?}")),
        },
    }
}

/// Runs `body(i)` for every `i` in `0..tasks`, each once, on as many threads as help. Returns when all are done.
///
/// Which thread runs which index is not fixed, so determinism is for `body` to keep: one index, one output.
/// While another caller's loop runs, it runs on the calling thread alone, and on the others too as soon as they are free;
/// so a loop inside a loop runs on one thread.
///
/// # Panics
/// With the panic of a `body`, after the others have finished.
pub(crate) fn for_each(tasks: usize, body: impl Fn(usize) + Sync) {
    run(tasks, &body);
}

/// The same of a body that is compiled once, whether it runs on one thread or on many.
fn run(tasks: usize, body: &(dyn Fn(usize) + Sync)) {
    if tasks <= 1 || count() == 1 {
        return (0..tasks).for_each(body);
    }
    Pool::global().run(tasks, body);
}

/// Tasks of a loop, dealt to its slots: one after the other to whoever asks; or a share to each, where the loop is so short
/// that asking takes longer than waiting for the slowest. (Cores of two chiplets need 0.2 µs to hear of each other's writes.)
pub(crate) struct Deal {
    tasks: usize,
    slots: usize,
    next: Option<AtomicUsize>,
}

impl Deal {
    /// Of tasks that take `multiply_adds` in all, about the same each.
    pub(crate) fn new(tasks: usize, slots: usize, multiply_adds: u64) -> Self {
        Self { tasks, slots, next: (multiply_adds >= LONG).then(|| AtomicUsize::new(0)) }
    }

    /// The tasks of a slot, each of which is visited once.
    pub(crate) fn of(&self, slot: usize) -> impl Iterator<Item = usize> {
        let [mut at, end] = [slot, slot + 1].map(|slot| self.tasks * slot / self.slots.max(1));
        std::iter::from_fn(move || {
            let task = match &self.next {
                Some(next) => next.fetch_add(1, Relaxed),
                None if at < end => at,
                None => self.tasks,
            };
            at += 1;
            (task < self.tasks).then_some(task)
        })
    }
}

/// Multiply-adds of a loop that is not short.
const LONG: u64 = 16 << 20;

/// Tasks of a loop in shares: a slot takes those of its own share one after the other, then what is left of the others. Slots
/// of different shares touch no memory of each other's until then.
pub(crate) struct Shares {
    tasks: usize,
    slots: usize,
    shares: usize,
    helps: bool,
    taken: [Apart; MOST_SHARES],
}

/// On lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Apart(AtomicUsize);

const MOST_SHARES: usize = 16;

impl Shares {
    /// Of `tasks` tasks for `slots` slots, `shares` of them or as many as there can be.
    pub(crate) fn new(tasks: usize, slots: usize, shares: usize) -> Self {
        Self { tasks, slots, shares: shares.clamp(1, MOST_SHARES), helps: true, taken: Default::default() }
    }

    /// The same of tasks that take so many multiply-adds in all: where these are few, no slot takes what is left of others.
    pub(crate) fn of_work(self, multiply_adds: u64) -> Self {
        self.helping(multiply_adds >= LONG)
    }

    /// The same where slots take what is left of others, or do not.
    pub(crate) fn helping(self, helps: bool) -> Self {
        Self { helps, ..self }
    }

    /// The task that follows one in its share.
    pub(crate) fn after(&self, task: usize) -> Option<usize> {
        let first = |share: usize| self.tasks * share / self.shares;
        (task + 1 < self.tasks && (1..self.shares).all(|share| first(share) != task + 1)).then_some(task + 1)
    }

    /// The tasks of a slot, each of which is visited once.
    pub(crate) fn of(&self, slot: usize) -> impl Iterator<Item = usize> {
        let own = self.shares * slot / self.slots.max(1);
        let all = (own..self.shares).chain(0..own);
        all.take(if self.helps { self.shares } else { 1 }).flat_map(move |share| {
            let [start, end] = [share, share + 1].map(|share| self.tasks * share / self.shares);
            std::iter::from_fn(move || {
                let task = start + self.taken[share].0.fetch_add(1, Relaxed);
                (task < end).then_some(task)
            })
        })
    }
}

/// As [`for_each`] of tasks that do little more than read or write `bytes` bytes in all: on the calling thread alone if that
/// takes no longer than a second one needs to begin.
pub(crate) fn for_each_of(tasks: usize, bytes: usize, body: impl Fn(usize) + Sync) {
    let body: &(dyn Fn(usize) + Sync) = &body;
    if bytes < FEW_BYTES { (0..tasks).for_each(body) } else { run(tasks, body) }
}

const FEW_BYTES: usize = 32 << 10;

struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Thread>,
    /// Held by the caller whose loop runs.
    busy: Mutex<()>,
}

struct Shared {
    gate: Gate<Loop>,
    /// Whether each worker sleeps, or is about to.
    parked: Box<[AtomicBool]>,
}

/// One parallel loop, as its workers see it.
#[derive(Clone, Copy)]
struct Loop {
    /// Runs indices, as a thread of so many, until there are none left. Lives on the caller's stack.
    take_part: &'static (dyn Fn(usize) + Sync),
}

/// The indices of a loop, each of which is taken once. The first are homes: every thread takes its own first, so that it finds in its cache
/// what it left there in the loop before, and others' last, if they have not come yet.
struct Indices {
    tasks: usize,
    homes: usize,
    /// The next that is no home.
    next: AtomicUsize,
    /// Which homes were taken.
    taken: [AtomicU64; MOST / 64],
}

impl Indices {
    fn new(tasks: usize, threads: usize) -> Self {
        let homes = threads.min(tasks).min(MOST);
        Self { tasks, homes, next: AtomicUsize::new(homes), taken: [const { AtomicU64::new(0) }; MOST / 64] }
    }

    /// One for thread `me`, 0 being the caller's.
    fn take(&self, me: usize) -> Option<usize> {
        if me < self.homes && self.claim(me) {
            return Some(me);
        }
        if self.next.load(Relaxed) < self.tasks {
            let i = self.next.fetch_add(1, Relaxed);
            if i < self.tasks {
                return Some(i);
            }
        }
        let mut all = (me + 1..self.homes).chain(0..me.min(self.homes));
        all.find(|&home| self.claim(home))
    }

    fn claim(&self, home: usize) -> bool {
        let (word, bit) = (&self.taken[home / 64], 1 << (home % 64));
        word.load(Relaxed) & bit == 0 && word.fetch_or(bit, Relaxed) & bit == 0
    }

    /// Nobody finds one any more.
    fn stop(&self) {
        self.next.store(self.tasks, Relaxed);
        self.taken.iter().for_each(|word| word.store(!0, Relaxed));
    }
}

impl Pool {
    fn global() -> &'static Self {
        static POOL: OnceLock<Pool> = OnceLock::new();
        POOL.get_or_init(|| Self::new(count() - 1))
    }

    fn new(workers: usize) -> Self {
        let shared =
            Arc::new(Shared { gate: Gate::new(), parked: (0..workers).map(|_| AtomicBool::new(false)).collect() });
        // A thread that cannot be started is one fewer: every loop runs with what there is.
        let workers = (0..workers)
            .map_while(|i| {
                let shared = shared.clone();
                thread::Builder::new().name(format!("kp-cpu {i}")).spawn(move || shared.work(i)).ok()
            })
            .map(|handle| handle.thread().clone())
            .collect();
        Self { shared, workers, busy: Mutex::new(()) }
    }

    fn run(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        let indices = Indices::new(tasks, self.workers.len() + 1);
        let _busy = loop {
            // Nested calls come from a thread that holds the lock or works for one who does, and never get it.
            match self.busy.try_lock() {
                Ok(busy) => break busy,
                // An earlier loop panicked; it left nothing half done.
                Err(TryLockError::Poisoned(busy)) => break busy.into_inner(),
                Err(TryLockError::WouldBlock) => match indices.take(0) {
                    Some(i) => body(i),
                    None => return,
                },
            }
        };
        let panic = Mutex::new(None);
        let take_part = |me| {
            while let Some(i) = indices.take(me) {
                if let Err(why) = catch_unwind(AssertUnwindSafe(|| body(i))) {
                    indices.stop();
                    panic.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(why);
                }
            }
        };
        let take_part: &(dyn Fn(usize) + Sync) = &take_part;
        // SAFETY: only the lifetime changes. `close` waits until no worker is inside, before anything borrowed here
        // is gone; nothing between opening and closing unwinds, since `take_part` catches what bodies throw.
        let take_part =
            unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(take_part) };
        // SAFETY: `busy` keeps other callers out, and the loop before was closed.
        unsafe { self.shared.gate.open(Loop { take_part }) };
        for (worker, parked) in self.workers.iter().zip(&self.shared.parked).take(tasks - 1) {
            if parked.swap(false, SeqCst) {
                worker.unpark();
            }
        }
        take_part(0);
        self.shared.gate.close();
        if let Some(why) = panic.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            resume_unwind(why);
        }
    }
}

impl Shared {
    fn work(&self, me: usize) {
        let (mut seen, mut idle_since, mut spins) = (0, Instant::now(), 0_u32);
        loop {
            if self.gate.enter(&mut seen, |open| (open.take_part)(me + 1)) {
                (idle_since, spins) = (Instant::now(), 0);
                continue;
            }
            std::hint::spin_loop();
            spins += 1;
            if spins.is_multiple_of(64) && idle_since.elapsed() > SPIN {
                // Swaps on both sides: either the caller's comes second and wakes us, or ours does and we see its loop.
                self.parked[me].swap(true, SeqCst);
                if !self.gate.is_news(seen) {
                    thread::park();
                }
                self.parked[me].store(false, SeqCst);
                (idle_since, spins) = (Instant::now(), 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(pool: &Pool, tasks: usize) -> usize {
        let total = AtomicUsize::new(0);
        pool.run(tasks, &|i| {
            total.fetch_add(i + 1, SeqCst);
        });
        total.into_inner()
    }

    #[test]
    fn what_is_no_number_of_threads_is_refused() {
        assert_eq!([read(""), read(" 2 "), read("1024")], [Ok(None), Ok(Some(2)), Ok(Some(1024))]);
        for text in ["0", "-1", "1025", "two", "1e3", "99999999999999999999"] {
            assert_eq!(read(text), Err(format!("KP_THREADS must be a number from 1 to 1024, got {text:?}")));
        }
    }

    #[test]
    fn every_index_runs_once() {
        let pool = Pool::new(3);
        for round in 0..2000 {
            let tasks = round % 40;
            assert_eq!(sum(&pool, tasks.max(1)), tasks.max(1) * (tasks.max(1) + 1) / 2);
        }
        // Long enough for the workers to park.
        thread::sleep(Duration::from_millis(5));
        assert_eq!(sum(&pool, 100), 5050);
    }

    #[test]
    fn every_task_is_dealt_once() {
        for (tasks, slots, work) in [(0, 1, 0), (1, 4, 0), (18, 4, 0), (18, 4, LONG), (3, 16, LONG)] {
            let deal = Deal::new(tasks, slots, work);
            let mut seen: Vec<usize> = (0..slots).flat_map(|slot| deal.of(slot)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..tasks).collect::<Vec<_>>(), "{slots} slots, {work}");
        }
    }

    #[test]
    fn every_task_of_shares_is_taken_once() {
        for (tasks, slots, shares) in [(0, 1, 1), (1, 4, 4), (18, 4, 4), (18, 4, 1), (3, 16, 16), (100, 64, 64)] {
            let all = Shares::new(tasks, slots, shares);
            let mut seen: Vec<usize> = (0..slots).rev().flat_map(|slot| all.of(slot)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..tasks).collect::<Vec<_>>(), "{slots} slots, {shares} shares");
        }
        let halves = Shares::new(7, 2, 2);
        assert_eq!([0, 2, 3, 6].map(|task| halves.after(task)), [Some(1), None, Some(4), None]);
        let (mut first, mut second) = (halves.of(0), halves.of(1));
        assert_eq!([first.next(), second.next(), first.next()], [Some(0), Some(3), Some(1)]);
        assert_eq!(second.chain(first).collect::<Vec<_>>(), [4, 5, 6, 2]);
    }

    #[test]
    fn threads_take_their_own_indices_first() {
        let indices = Indices::new(6, 4);
        let order = [2, 2, 2, 3, 3, 2, 1].map(|me| indices.take(me));
        assert_eq!(order, [Some(2), Some(4), Some(5), Some(3), Some(0), Some(1), None]);
        let indices = Indices::new(3, 8);
        assert_eq!([7, 1, 0, 0].map(|me| indices.take(me)), [Some(0), Some(1), Some(2), None]);
        let indices = Indices::new(3, 2);
        indices.stop();
        assert_eq!(indices.take(0), None);
    }

    #[test]
    fn nested_and_concurrent_loops_finish() {
        let pool = Pool::new(3);
        let total = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.run(8, &|_| {
                            total.fetch_add(sum(&pool, 3), SeqCst);
                        });
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 4 * 200 * 8 * 6);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.run(64, &|i| assert!(i != 17, "seventeen"));
        }));
        let message = caught.expect_err("a body panicked");
        assert_eq!(message.downcast_ref::<&str>(), Some(&"seventeen"));
        let threads = Mutex::new(std::collections::HashSet::new());
        pool.run(64, &|_| {
            thread::sleep(Duration::from_micros(200));
            threads.lock().expect("no panic").insert(thread::current().id());
        });
        assert!(threads.into_inner().expect("no panic").len() > 1, "later loops still run in parallel");
    }
}

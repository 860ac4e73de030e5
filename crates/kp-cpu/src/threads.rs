//! One pool of threads for the process: parallel loops that start in well under a microsecond.
//!
//! A loop is published by storing its number, which no loop had before; idle workers see it while they
//! still spin, or are woken. Workers enter by counting themselves in and then looking whether the loop
//! is still open; the caller closes it when its indices have run out and waits until all who
//! entered have left. So a worker that never woke costs nothing, and the closure outlives its users.

use std::{
    cell::UnsafeCell,
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex, OnceLock, TryLockError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
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
        let allowed = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let asked = std::env::var("KP_THREADS").ok().and_then(|s| s.trim().parse::<usize>().ok());
        asked.unwrap_or(allowed).clamp(1, 1024)
    })
}

/// Runs `body(i)` for every `i` in `0..tasks`, each once, on as many threads as help. Returns when all are done.
///
/// Which thread runs which index is not fixed, so determinism is for `body` to keep: one index, one output.
/// Inside another loop, or while another caller's loop runs, it runs on the calling thread alone.
///
/// # Panics
/// With the panic of a `body`, after the others have finished.
pub(crate) fn for_each(tasks: usize, body: impl Fn(usize) + Sync) {
    if tasks <= 1 || count() == 1 {
        return (0..tasks).for_each(body);
    }
    Pool::global().run(tasks, &body);
}

type Body<'a> = &'a (dyn Fn(usize) + Sync);

struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Thread>,
    /// Held by the caller whose loop runs.
    busy: Mutex<()>,
}

struct Shared {
    /// Number of the open loop, or 0.
    open: AtomicU64,
    /// The next index to hand out.
    next: AtomicUsize,
    tasks: AtomicUsize,
    /// Workers between entering and leaving.
    inside: AtomicUsize,
    body: UnsafeCell<Option<Body<'static>>>,
    /// The first panic of the loop.
    panic: Mutex<Option<Box<dyn std::any::Any + Send>>>,
    parked: Box<[AtomicBool]>,
}

// SAFETY: `body` is written only while no loop is open and no worker is inside, and read only by
// workers inside an open loop; the other fields are atomics and locks.
unsafe impl Sync for Shared {}
// SAFETY: the only field that is not `Send` is the reference to a `Sync` closure.
unsafe impl Send for Shared {}

impl Pool {
    fn global() -> &'static Self {
        static POOL: OnceLock<Pool> = OnceLock::new();
        POOL.get_or_init(|| Self::new(count() - 1))
    }

    fn new(workers: usize) -> Self {
        let shared = Arc::new(Shared {
            open: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            tasks: AtomicUsize::new(0),
            inside: AtomicUsize::new(0),
            body: UnsafeCell::new(None),
            panic: Mutex::new(None),
            parked: (0..workers).map(|_| AtomicBool::new(false)).collect(),
        });
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

    fn run(&self, tasks: usize, body: Body<'_>) {
        // Nested calls come from a thread that holds the lock or works for one who does.
        let _busy = match self.busy.try_lock() {
            Ok(busy) => busy,
            // An earlier loop panicked; it left nothing half done.
            Err(TryLockError::Poisoned(busy)) => busy.into_inner(),
            Err(TryLockError::WouldBlock) => return (0..tasks).for_each(body),
        };
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes, and `Close` below waits, also when unwinding, until no worker is inside.
        let body: Body<'static> = unsafe { std::mem::transmute::<Body<'_>, Body<'static>>(body) };
        // SAFETY: no loop is open and nobody is inside: `Close` of the loop before saw to both.
        unsafe { *shared.body.get() = Some(body) };
        shared.next.store(0, SeqCst);
        shared.tasks.store(tasks, SeqCst);
        shared.open.store(next_number(), SeqCst);
        let close = Close(shared);
        let helpers = self.workers.iter().zip(&shared.parked).take(tasks - 1);
        for (worker, parked) in helpers {
            if parked.swap(false, SeqCst) {
                worker.unpark();
            }
        }
        shared.take_part(body);
        drop(close);
        let panic = shared.panic.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

/// Closes the loop and waits until everyone has left.
struct Close<'s>(&'s Shared);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.open.store(0, SeqCst);
        let mut spins = 0_u32;
        while self.0.inside.load(SeqCst) != 0 {
            std::hint::spin_loop();
            spins += 1;
            // A worker may have lost its core.
            if spins.is_multiple_of(1024) {
                thread::yield_now();
            }
        }
    }
}

/// A number no other loop of the process has.
fn next_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, SeqCst) + 1
}

impl Shared {
    fn work(&self, me: usize) {
        let (mut done, mut idle_since, mut spins) = (0, Instant::now(), 0_u32);
        loop {
            let number = self.open.load(SeqCst);
            if number != 0 && number != done {
                self.inside.fetch_add(1, SeqCst);
                if self.open.load(SeqCst) == number {
                    // SAFETY: the loop is open and we are counted in, so its body stays until we leave.
                    let body = unsafe { *self.body.get() };
                    self.take_part(body.expect("an open loop has a body"));
                    done = number;
                }
                self.inside.fetch_sub(1, SeqCst);
                (idle_since, spins) = (Instant::now(), 0);
                continue;
            }
            std::hint::spin_loop();
            spins += 1;
            if spins.is_multiple_of(64) && idle_since.elapsed() > SPIN {
                self.parked[me].store(true, SeqCst);
                // A loop that was opened before the flag was seen would not wake us: look once more.
                let open = self.open.load(SeqCst);
                if open == 0 || open == done {
                    thread::park();
                }
                self.parked[me].store(false, SeqCst);
                (idle_since, spins) = (Instant::now(), 0);
            }
        }
    }

    /// Runs indices until there are no more.
    fn take_part(&self, body: Body<'_>) {
        let tasks = self.tasks.load(SeqCst);
        loop {
            let i = self.next.fetch_add(1, SeqCst);
            if i >= tasks {
                return;
            }
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(i))) {
                self.next.store(tasks, SeqCst);
                let mut first = self.panic.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                first.get_or_insert(panic);
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

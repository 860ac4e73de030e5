//! A value that one thread shows to others for a while, and takes back when none looks any more.
//!
//! Opening stores the value, then a number no opening had before. A visitor counts itself in and
//! *then* looks at the number; closing clears the number and *then* looks at the count, by an operation
//! that also writes it. So the two meet in the count's order of modification: either the closer comes
//! second and finds the visitor counted, or the visitor comes second, and has seen all the closer did.

#[cfg(loom)]
use loom::{
    cell::UnsafeCell,
    hint::spin_loop,
    sync::atomic::{
        AtomicU64, AtomicUsize,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
    thread::yield_now,
};
#[cfg(not(loom))]
use std::{
    hint::spin_loop,
    sync::atomic::{
        AtomicU64, AtomicUsize,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
    thread::yield_now,
};

/// See the module.
pub(super) struct Gate<T> {
    /// The number of the opening, 0 while closed.
    number: AtomicU64,
    /// The number of the last opening.
    last: AtomicU64,
    /// Visitors between counting themselves in and out.
    inside: AtomicUsize,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: `value` is written only while the gate is closed and empty, and read only by visitors who are
// counted in and saw it open; the rest are atomics. A value is copied out to several threads.
unsafe impl<T: Copy + Send> Sync for Gate<T> {}

impl<T: Copy> Gate<T> {
    pub(super) fn new() -> Self {
        Self {
            number: AtomicU64::new(0),
            last: AtomicU64::new(0),
            inside: AtomicUsize::new(0),
            value: UnsafeCell::new(None),
        }
    }

    /// Shows `value` until `close`.
    ///
    /// # Safety
    /// The gate is new or was closed, and no other thread opens or closes it.
    pub(super) unsafe fn open(&self, value: T) {
        // SAFETY: the gate is closed, and who came in while it was open has left: `close` saw to it.
        self.value.with_mut(|place| unsafe { *place = Some(value) });
        let number = self.last.load(Relaxed) + 1;
        self.last.store(number, Relaxed);
        self.number.store(number, Release);
    }

    /// Takes the value back: returns when no visitor is inside, and none can come in.
    pub(super) fn close(&self) {
        self.number.store(0, Release);
        let mut spins = 0_u32;
        while self.inside.fetch_or(0, AcqRel) != 0 {
            spin_loop();
            spins += 1;
            // A visitor may have lost its core.
            if spins.is_multiple_of(PATIENCE) {
                yield_now();
            }
        }
    }

    /// Whether the gate is open, and for another number than `seen`.
    pub(super) fn is_news(&self, seen: u64) -> bool {
        let number = self.number.load(Acquire);
        number != 0 && number != seen
    }

    /// Visits, if there is news: calls `visit` with the value, remembers the number and answers `true`.
    pub(super) fn enter(&self, seen: &mut u64, visit: impl FnOnce(T)) -> bool {
        if !self.is_news(*seen) {
            return false;
        }
        self.inside.fetch_add(1, AcqRel);
        let number = self.number.load(Acquire);
        let open = number != 0;
        if open {
            // SAFETY: we are counted in and the gate is open, so the value stays until we leave.
            let value = self.value.with(|place| unsafe { *place });
            visit(value.expect("an open gate has a value"));
            *seen = number;
        }
        self.inside.fetch_sub(1, AcqRel);
        open
    }
}

/// Spins before the closer gives its core away; at once in a model, where only other threads make progress.
const PATIENCE: u32 = if cfg!(loom) { 1 } else { 1024 };

/// `std`'s cell with the interface of loom's.
#[cfg(not(loom))]
struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// All interleavings, up to three preemptions, of two openings and a visitor who comes twice:
/// `RUSTFLAGS="--cfg loom" cargo test -p xtask-model`.
#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::{
        sync::{Arc, atomic::AtomicBool},
        thread,
    };

    #[test]
    fn nobody_is_inside_a_closed_gate() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let gate = Arc::new(Gate::<usize>::new());
            let alive: Arc<[AtomicBool; 2]> = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
            let visitor = {
                let (gate, alive) = (gate.clone(), alive.clone());
                thread::spawn(move || {
                    let mut seen = 0;
                    for _ in 0..2 {
                        gate.enter(&mut seen, |which| assert!(alive[which].load(Relaxed), "visited after the end"));
                    }
                })
            };
            for which in 0..2 {
                alive[which].store(true, Relaxed);
                // SAFETY: this thread alone opens and closes.
                unsafe { gate.open(which) };
                gate.close();
                alive[which].store(false, Relaxed);
            }
            visitor.join().expect("no assertion failed");
        });
    }
}

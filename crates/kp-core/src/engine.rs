//! One device, opened, with everything that chooses and keeps kernels for it.

mod builder;
mod learn;

pub use builder::EngineBuilder;

use crate::{
    candidates::{Candidates, candidates},
    dispatcher::Dispatcher,
    error::Result,
    explain::Explanation,
    plan_cache::{Failures, PlanCache},
    rank::rank,
    registry::{Listed, Registry, Unavailable},
    wisdom::{Machine, Warning, Wisdom, store::Store},
};
use kp_hal::{
    Backend, Buffer, Caps, Device, DeviceInfo, ErrorKind, Label, MemoryKind, Nanos, Op, OpSpec, Plan, Problem, Queue,
    Repro,
    device::capturing,
    op::{EachOp, each_op},
};
use std::{
    any::{Any, TypeId},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// One device and its kernels. Cheap to clone; clones are the same engine, usable from any thread.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use kp_core::{Engine, hal::op::{GemmArgs, GemmProblem}};
/// # let engine = Engine::builder().with(kp_null::BACKEND).device("null").memory_only().open()?;
/// # let doc = stringify!(
/// let engine = Engine::open()?;
/// # );
/// let problem: GemmProblem = "gemm 1x8x16x32 f32:f32:f32".parse()?;
/// let plan = engine.plan(&problem)?;
/// let (a, b, mut d) = (engine.alloc(8 * 32 * 4)?, engine.alloc(32 * 16 * 4)?, engine.alloc(8 * 16 * 4)?);
/// let mut queue = engine.queue()?;
/// plan.launch(&mut *queue, &GemmArgs::new(a.slice(), b.slice(), d.slice_mut()))?;
/// println!("{}", engine.how(&plan));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    backend: &'static dyn Backend,
    device: Arc<dyn Device>,
    machine: Machine,
    repro: Repro,
    registry: Registry,
    /// One plan cache per op, by the op's type.
    caches: Box<[(TypeId, Box<dyn Cache>)]>,
    /// Moves on when the ranking may have changed.
    generation: AtomicU64,
    store: Option<Store>,
    knowledge: RwLock<Knowledge>,
    /// Held while wisdom is saved: what one save has taken to write, another's result would not have.
    saving: Mutex<()>,
    queue: Mutex<Box<dyn Queue>>,
}

/// What was measured, now and before.
struct Knowledge {
    wisdom: Wisdom,
    /// The part of `wisdom` that is not on disk yet.
    fresh: Wisdom,
    warnings: Vec<Warning>,
}

/// A [`PlanCache`] of some op.
trait Cache: Any + Send + Sync {
    fn clear(&self);
}

impl<O: Op> Cache for PlanCache<O> {
    fn clear(&self) {
        PlanCache::clear(self);
    }
}

// A panic of a caller's while one of the locks is held leaves the data whole, so poison is ignored throughout: the
// wisdom changes by single insertions, and a queue is between two calls.
impl Engine {
    /// The best device here, or the one that `KP_DEVICE` names: a backend (`cpu`), one of its devices (`nvidia:1`),
    /// or part of a device's name.
    ///
    /// # Errors
    /// `NoDevice` if there is none or none of that name, `Hal` if the one asked for cannot be opened.
    pub fn open() -> Result<Self> {
        Self::builder().open()
    }

    /// Opens with other backends, another device, or other wisdom.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

    fn new(
        backend: &'static dyn Backend,
        device: Arc<dyn Device>,
        registry: Registry,
        store: Option<Store>,
        repro: Repro,
    ) -> kp_hal::Result<Self> {
        let queue = device.clone().queue()?;
        let (wisdom, warnings) = store.as_ref().map(Store::load_or_warn).unwrap_or_default();
        let knowledge = Knowledge { wisdom, fresh: Wisdom::default(), warnings: warnings.shown };
        let mut caches = EveryCache::default();
        each_op(&mut caches);
        Ok(Self(Arc::new(Inner {
            backend,
            machine: Machine::new(backend, device.info()),
            device,
            repro,
            registry,
            caches: caches.0.into(),
            generation: AtomicU64::new(0),
            store,
            knowledge: RwLock::new(knowledge),
            saving: Mutex::new(()),
            queue: Mutex::new(queue),
        })))
    }

    /// Whether both are clones of one engine.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The open device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.0.device
    }

    /// What the device is.
    pub fn info(&self) -> &DeviceInfo {
        self.0.device.info()
    }

    /// What the device can do.
    pub fn caps(&self) -> &Caps {
        self.0.device.caps()
    }

    /// The backend that drives the device.
    pub fn backend(&self) -> &'static dyn Backend {
        self.0.backend
    }

    /// What is promised about the bits of every [`Tensor`](crate::Tensor) operation.
    pub fn repro(&self) -> Repro {
        self.0.repro
    }

    /// Every device found when opening, best first.
    pub fn devices(&self) -> &[Listed] {
        &self.0.registry.devices
    }

    /// What was not found when opening, and what was looked for.
    pub fn unavailable(&self) -> &[Unavailable] {
        &self.0.registry.unavailable
    }

    /// Allocates `bytes` bytes of device memory with arbitrary contents.
    ///
    /// # Errors
    /// `OutOfMemory` with the numbers; the engine goes on working.
    pub fn alloc(&self, bytes: u64) -> kp_hal::Result<Buffer> {
        self.0.device.clone().alloc(bytes, MemoryKind::Device)
    }

    /// A new stream of work.
    ///
    /// # Errors
    /// What the device returned.
    pub fn queue(&self) -> kp_hal::Result<Box<dyn Queue>> {
        self.0.device.clone().queue()
    }

    /// The engine's own queue, locked until the guard is dropped. For convenience, not for speed: threads that
    /// should not wait for each other take a [`queue`](Self::queue) each.
    pub fn default_queue(&self) -> MutexGuard<'_, Box<dyn Queue>> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the engine's own queue, after a fault that it would return for ever.
    ///
    /// # Errors
    /// What the device returned; the old queue stays.
    pub fn renew_default_queue(&self) -> kp_hal::Result<()> {
        let queue = self.queue()?;
        *self.default_queue() = queue;
        Ok(())
    }

    /// Every kernel's answer to `problem`, the fastest first: as measured, else as estimated.
    pub fn candidates<S: OpSpec>(&self, problem: &Problem<S>) -> Candidates<S::Op> {
        let mut found = candidates(self.0.backend.kernels(), self.caps(), problem);
        let knowledge = self.0.knowledge.read().unwrap_or_else(PoisonError::into_inner);
        let facts = knowledge.wisdom.facts(&self.0.machine, problem);
        rank(&mut found, |candidate| {
            let fact = facts?.get(&(candidate.kernel.name().to_owned(), candidate.variant.0))?;
            // Measured with another source of the kernel, it says nothing.
            (fact.code == candidate.kernel.code()).then_some(fact.time)
        });
        found
    }

    /// The fastest kernel for `problem`, ready to launch; planned once and then remembered.
    ///
    /// If a kernel cannot be planned (no memory, a driver's refusal), the next best is: with a warning in the log,
    /// and a line in [`explain`](Self::explain).
    ///
    /// # Errors
    /// `Unsupported` with every kernel's reason if none accepts the problem; else the best kernel's error if none
    /// could be planned. `NotCapturable` if this thread is recording and the problem was not planned before.
    #[inline]
    pub fn plan<S: OpSpec>(&self, problem: &Problem<S>) -> kp_hal::Result<Arc<Plan<S::Op>>> {
        match self.cache::<S::Op>() {
            Some(cache) => cache.find_or(problem, || self.plan_cold(problem)),
            None => self.plan_cold(problem).map(Arc::new),
        }
    }

    #[cold]
    #[inline(never)]
    fn plan_cold<S: OpSpec>(&self, problem: &Problem<S>) -> kp_hal::Result<Plan<S::Op>> {
        not_while_recording("planning a new problem")?;
        let _span = planning(problem);
        let start = Instant::now();
        let found = self.candidates(problem);
        if found.accepted.is_empty() {
            return Err(ErrorKind::Unsupported(found.rejected).into());
        }
        let (mut failed, mut first) = (Failures::new(), None);
        let mut planned = None;
        for candidate in &found.accepted {
            let label = candidate.label();
            match candidate.kernel.plan(&self.0.device, problem, candidate.variant) {
                Ok(plan) => {
                    note_planned(label, candidate.time(), candidate.measured.is_some(), start.elapsed());
                    planned = Some(plan);
                    break;
                }
                Err(error) => {
                    failed.push(note_failed(label, &error));
                    first.get_or_insert(error);
                }
            }
        }
        if let (Some(cache), false) = (self.cache::<S::Op>(), failed.is_empty()) {
            cache.note_failures(problem, failed);
        }
        planned.ok_or_else(|| first.expect("some candidate was tried, and none succeeded"))
    }

    /// A dispatcher for one call site; see [`Dispatcher`].
    pub fn dispatcher<O: Op>(&self) -> Dispatcher<O> {
        Dispatcher::new(self)
    }

    /// Every candidate with its time, every rejection with its reason, beside what the device can reach: as measured
    /// if it ever was ([`measure_peaks`](Self::measure_peaks)), else as stated. Plans and measures nothing.
    pub fn explain<S: OpSpec>(&self, problem: &Problem<S>) -> Explanation {
        let failed = self.cache::<S::Op>().map(|cache| cache.failures(problem)).unwrap_or_default();
        Explanation::new(self.info(), self.peaks().as_ref(), problem, &self.candidates(problem), &failed)
    }

    /// A plan's full name: `nvidia/gemm/sm90_e4m3_1d2d#3`.
    pub fn how<O: Op>(&self, plan: &Plan<O>) -> String {
        format!("{}/{}/{}", self.0.backend.name(), O::NAME, plan.label())
    }

    /// What is known of this device and others, on disk and since.
    pub fn wisdom(&self) -> Wisdom {
        self.0.knowledge.read().unwrap_or_else(PoisonError::into_inner).wisdom.clone()
    }

    /// What was wrong with the wisdom file when it was read: the first 64 lines, or why all of it was ignored.
    pub fn wisdom_warnings(&self) -> Vec<Warning> {
        self.0.knowledge.read().unwrap_or_else(PoisonError::into_inner).warnings.clone()
    }

    /// This device, as wisdom names it.
    pub fn machine(&self) -> &Machine {
        &self.0.machine
    }

    /// Forgets every plan, so that the next call ranks again; plans in use live on.
    pub fn forget_plans(&self) {
        self.0.caches.iter().for_each(|(_, cache)| cache.clear());
        // After that, and Release with the Acquire of `generation`: who sees the new number finds no old plan.
        self.0.generation.fetch_add(1, Ordering::Release);
    }

    /// Changes when every plan is forgotten.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }

    /// The cache of `O`; `None` if the op is not one of kp-hal's, whose plans are not kept.
    #[inline]
    fn cache<O: Op>(&self) -> Option<&PlanCache<O>> {
        let of = TypeId::of::<O>();
        let (_, cache) = self.0.caches.iter().find(|(op, _)| *op == of)?;
        (&**cache as &dyn Any).downcast_ref()
    }
}

// Outside `plan_cold`, which is compiled for every op.
fn planning(problem: &dyn fmt::Display) -> tracing::span::EnteredSpan {
    tracing::debug_span!("plan", %problem).entered()
}

fn note_planned(kernel: Label, time: Nanos, measured: bool, took: Duration) {
    let how = if measured { "measured" } else { "estimated" };
    tracing::debug!(%kernel, %time, how, ?took, "planned");
}

fn note_failed(kernel: Label, error: &kp_hal::Error) -> (Label, String) {
    tracing::warn!(%kernel, %error, "cannot be planned; trying the next");
    (kernel, error.to_string())
}

/// Refuses what compiles, allocates or waits while this thread records: a driver would refuse some of it halfway and
/// spoil the recording.
pub(crate) fn not_while_recording(what: &'static str) -> kp_hal::Result<()> {
    if capturing() { Err(ErrorKind::NotCapturable { what }.into()) } else { Ok(()) }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({}:{} {:?})", self.0.backend.name(), self.info().index, self.info().name)
    }
}

#[derive(Default)]
struct EveryCache(Vec<(TypeId, Box<dyn Cache>)>);

impl EachOp for EveryCache {
    fn op<O: Op>(&mut self) {
        self.0.push((TypeId::of::<O>(), Box::new(PlanCache::<O>::default())));
    }
}

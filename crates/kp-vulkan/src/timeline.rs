//! How far each queue is: a timeline semaphore for each, whose value grows by one with every submission.

use crate::{
    commands::Commands,
    driver::{Logical, Status, checked},
};
use ash::vk;
use std::{
    fmt,
    sync::{
        Arc, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

/// Marks that a queue remembers.
pub(crate) const MARKS: u64 = 1024;

/// One queue's timeline. Its queue moves it on; others look at it.
pub(crate) struct Timeline {
    device: Arc<Logical>,
    number: u32,
    semaphore: vk::Semaphore,
    /// The value that everything the queue was told will have signalled.
    promised: AtomicU64,
    submitted: AtomicU64,
    /// The last value seen.
    reached: AtomicU64,
    /// Nothing more will be submitted.
    given_up: AtomicBool,
    marks: AtomicU64,
    /// The value of mark `seq`, at `seq % MARKS`.
    values: Box<[AtomicU64]>,
}

impl Timeline {
    fn new(device: Arc<Logical>, number: u32) -> Result<Self, Status> {
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: the device is alive; destroyed by `drop`.
        let semaphore = checked("vkCreateSemaphore", unsafe { device.create_semaphore(&info, None) })?;
        let values = (0..MARKS).map(|_| AtomicU64::new(0)).collect();
        let [promised, submitted, reached, marks] = [const { AtomicU64::new(0) }; 4];
        let given_up = AtomicBool::new(false);
        Ok(Self { device, number, semaphore, promised, submitted, reached, given_up, marks, values })
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn semaphore(&self) -> vk::Semaphore {
        self.semaphore
    }

    /// The value that comes after everything that the queue was told.
    pub(crate) fn promised(&self) -> u64 {
        self.promised.load(Ordering::Acquire)
    }

    /// Notes that there is work which the next submission will carry.
    pub(crate) fn promise(&self) {
        self.promised.store(self.submitted() + 1, Ordering::Release);
    }

    /// Notes a submission that will signal `value`.
    pub(crate) fn submit(&self, value: u64) {
        self.promised.store(value, Ordering::Release);
        self.submitted.store(value, Ordering::Release);
    }

    /// The value that the last submission signals.
    pub(crate) fn submitted(&self) -> u64 {
        self.submitted.load(Ordering::Acquire)
    }

    /// Notes that what was promised beyond the last submission will never be, and nothing after it.
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    /// `value`, or the last that will ever come.
    fn within(&self, value: u64) -> u64 {
        if self.given_up.load(Ordering::Acquire) { value.min(self.submitted()) } else { value }
    }

    /// Whether `value` comes without a further submission.
    pub(crate) fn is_submitted(&self, value: u64) -> bool {
        self.within(value) <= self.submitted()
    }

    /// Whether the device has come to `value`, or to the last that will ever come.
    ///
    /// # Errors
    /// What the driver says of a device that is lost.
    pub(crate) fn has_reached(&self, value: u64) -> Result<bool, Status> {
        let value = self.within(value);
        if self.reached.load(Ordering::Acquire) >= value {
            return Ok(true);
        }
        // SAFETY: the semaphore is alive.
        let now = unsafe { self.device.get_semaphore_counter_value(self.semaphore) };
        let now = checked("vkGetSemaphoreCounterValue", now)?;
        self.reached.fetch_max(now, Ordering::AcqRel);
        Ok(now >= value)
    }

    /// Blocks until the device has come to `value`, which [`is_submitted`](Self::is_submitted).
    ///
    /// # Errors
    /// What the driver says of a device that is lost.
    pub(crate) fn wait(&self, value: u64) -> Result<(), Status> {
        if self.has_reached(value)? {
            return Ok(());
        }
        let value = self.within(value);
        let (semaphores, values) = ([self.semaphore], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: the semaphore is alive.
        checked("vkWaitSemaphores", unsafe { self.device.wait_semaphores(&info, u64::MAX) })?;
        self.reached.fetch_max(value, Ordering::AcqRel);
        Ok(())
    }

    /// How many marks were made.
    pub(crate) fn marks(&self) -> u64 {
        self.marks.load(Ordering::Acquire)
    }

    /// Notes that the mark after the last stands at `value`.
    pub(crate) fn mark(&self, value: u64) {
        let seq = self.marks() + 1;
        self.values[(seq % MARKS) as usize].store(value, Ordering::Release);
        self.marks.store(seq, Ordering::Release);
    }

    /// The value of mark `seq`, or of the oldest mark that is remembered if that is later; `None` if there is no such mark
    /// yet.
    pub(crate) fn value_of(&self, seq: u64) -> Option<u64> {
        let marks = self.marks();
        let oldest = marks.saturating_sub(MARKS - 1);
        // The slot may be taken by a newer mark meanwhile, which comes later and is therefore right too.
        (seq <= marks).then(|| self.values[(seq.max(oldest) % MARKS) as usize].load(Ordering::Acquire))
    }

    /// Whether mark `seq` is among those remembered.
    pub(crate) fn remembers(&self, seq: u64) -> bool {
        let marks = self.marks();
        (1..=marks).contains(&seq) && marks - seq < MARKS
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        // SAFETY: whoever submitted work with it has waited for it, and is gone.
        unsafe { self.device.destroy_semaphore(self.semaphore, None) };
    }
}

impl fmt::Debug for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timeline({} at {} of {})", self.number, self.reached.load(Ordering::Relaxed), self.submitted())
    }
}

/// The timelines of a device's queues, and who moves them on.
#[derive(Default)]
pub(crate) struct Timelines {
    live: RwLock<Vec<Live>>,
    last: AtomicU32,
}

struct Live {
    timeline: Arc<Timeline>,
    commands: Weak<Commands>,
}

impl Timelines {
    /// One for a new queue, which none knows of before [`Self::add`].
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn make(&self, device: &Arc<Logical>) -> Result<Arc<Timeline>, Status> {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Arc::new(Timeline::new(device.clone(), number)?))
    }

    /// Adds the timeline of `commands`.
    pub(crate) fn add(&self, commands: &Arc<Commands>) {
        let (timeline, commands) = (commands.timeline().clone(), Arc::downgrade(commands));
        self.live.write().unwrap_or_else(PoisonError::into_inner).push(Live { timeline, commands });
    }

    /// Forgets the timeline of a queue that is gone and has no work left.
    pub(crate) fn end(&self, timeline: &Arc<Timeline>) {
        self.live.write().unwrap_or_else(PoisonError::into_inner).retain(|one| !Arc::ptr_eq(&one.timeline, timeline));
    }

    /// The timeline of queue `number`, if the queue is alive.
    pub(crate) fn find(&self, number: u32) -> Option<Arc<Timeline>> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        live.iter().map(|one| &one.timeline).find(|one| one.number == number).cloned()
    }

    /// What must be reached before everything that queues were told so far is done; empty if it is.
    pub(crate) fn fences(&self) -> Vec<(Arc<Timeline>, u64)> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        let fence = |one: &Live| {
            let promised = one.timeline.promised();
            // A device that is lost reaches nothing, and never gives memory out again.
            (!one.timeline.has_reached(promised).unwrap_or(false)).then(|| (one.timeline.clone(), promised))
        };
        live.iter().filter_map(fence).collect()
    }

    /// Submits what queues were told and keep back.
    pub(crate) fn submit_all(&self) {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        // Kept alive beyond the lock: the last to drop one takes it from the list.
        let all: Vec<_> = live.iter().filter_map(|one| one.commands.upgrade()).collect();
        drop(live);
        for commands in all {
            // A queue that cannot says so to its owner.
            let _ = commands.flush();
        }
    }
}

impl fmt::Debug for Timelines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        f.debug_list().entries(live.iter().map(|one| &one.timeline)).finish()
    }
}

//! What a device knows of its queues: their streams, their marks, and where they are.

use crate::driver::{Context, Event, NOT_READY, Status, Stream};
use kp_hal::{Point, Result, fault::Lost};
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

/// How many marks of a queue can be timed.
const REMEMBERED: u64 = 1024;

/// The part of a queue that other threads may see. It outlives the queue until its work is done.
#[derive(Debug)]
pub(crate) struct Timeline {
    number: u32,
    stream: Stream,
    foreign: bool,
    marks: AtomicU64,
    /// Mark `seq` is at `seq % REMEMBERED`, until a later one takes its place. Made when first needed: a queue that is never
    /// marked has none.
    ring: Box<[OnceLock<Event>]>,
    phase: Mutex<Phase>,
}

/// What may be asked of the stream. The lock keeps a recording from starting while another thread puts a fence there.
#[derive(Debug)]
enum Phase {
    Running,
    /// The event was put behind the work before the recording.
    Recording(Arc<Event>),
    /// The queue is gone, and this event is behind all of its work; without one, the work is done.
    Ended(Option<Arc<Event>>),
}

/// When the work submitted to a stream so far is done.
pub(crate) enum Fence {
    /// It is.
    Passed,
    /// When this event is reached.
    At(Arc<Event>),
    /// Cannot be told now: another library is recording the stream.
    Unknown,
}

impl Timeline {
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Marks made so far.
    pub(crate) fn marks(&self) -> u64 {
        self.marks.load(Ordering::Acquire)
    }

    /// Names the work submitted so far. Called by the queue alone.
    ///
    /// # Errors
    /// `Driver`, making the event; the status is that of recording it.
    pub(crate) fn mark(&self, context: &Arc<Context>) -> Result<(Point, Status)> {
        // Relaxed: nobody else writes it.
        let seq = self.marks.load(Ordering::Relaxed) + 1;
        let slot = &self.ring[index(seq)];
        let event = match slot.get() {
            Some(event) => event,
            None => {
                let event = Event::timed(context)?;
                slot.get_or_init(|| event)
            }
        };
        let status = self.stream.record(event);
        if status.is_ok() {
            // Whoever learns of the point finds the event recorded.
            self.marks.store(seq, Ordering::Release);
        }
        Ok((Point { queue: self.number, seq }, status))
    }

    /// The event of mark `seq`, or of a later one if that has taken its place; `None` if there is no such mark.
    pub(crate) fn at_or_after(&self, seq: u64) -> Option<&Event> {
        if (1..=self.marks()).contains(&seq) { self.ring[index(seq)].get() } else { None }
    }

    /// The event of mark `seq`; `None` if it is older than the last 1024, or was never made.
    pub(crate) fn at(&self, seq: u64) -> Option<&Event> {
        self.at_or_after(seq).filter(|_| is_remembered(seq, self.marks()))
    }

    /// Puts the timeline aside while its stream records: fences are where the stream was before.
    ///
    /// # Errors
    /// `Driver`, making the event; the status is that of the first call that failed, or of `begin`.
    pub(crate) fn begin_recording(&self, context: &Arc<Context>, begin: impl FnOnce() -> Status) -> Result<Status> {
        let before = Event::untimed(context)?;
        let mut phase = self.phase();
        let mut status = self.stream.record(&before);
        if status.is_ok() {
            status = begin();
        }
        if status.is_ok() {
            *phase = Phase::Recording(Arc::new(before));
        }
        Ok(status)
    }

    /// The stream runs what it is given again, once `end` has been called.
    pub(crate) fn end_recording(&self, end: impl FnOnce() -> Status) -> Status {
        let mut phase = self.phase();
        let status = end();
        *phase = Phase::Running;
        status
    }

    /// No more work will come.
    pub(crate) fn end(&self, context: &Arc<Context>) {
        let mut phase = self.phase();
        let last = Event::untimed(context).ok().filter(|last| self.stream.record(last).is_ok());
        if last.is_none() {
            // The context is dead, or the host has no memory: after this nothing is left to wait for.
            let _ = self.stream.synchronize();
        }
        *phase = Phase::Ended(last.map(Arc::new));
    }

    /// Where the stream is now. `spare` gives an event to put there.
    ///
    /// # Errors
    /// `Driver`, making the event.
    pub(crate) fn fence(&self, spare: impl FnOnce() -> Result<Event>) -> Result<Fence> {
        match &*self.phase() {
            Phase::Running => self.running_fence(spare),
            Phase::Recording(before) => Ok(Fence::At(before.clone())),
            Phase::Ended(Some(last)) if last.query().code == NOT_READY => Ok(Fence::At(last.clone())),
            Phase::Ended(_) => Ok(Fence::Passed),
        }
    }

    fn running_fence(&self, spare: impl FnOnce() -> Result<Event>) -> Result<Fence> {
        if self.foreign && self.stream.is_capturing() {
            return Ok(Fence::Unknown);
        }
        if self.stream.query().code != NOT_READY {
            return Ok(Fence::Passed);
        }
        let event = spare()?;
        // A stream that cannot be recorded belongs to a dead context, where nothing runs.
        Ok(if self.stream.record(&event).is_ok() { Fence::At(Arc::new(event)) } else { Fence::Passed })
    }

    fn has_ended(&self) -> bool {
        matches!(&*self.phase(), Phase::Ended(last) if last.as_ref().is_none_or(|last| last.query().code != NOT_READY))
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn index(seq: u64) -> usize {
    (seq % REMEMBERED) as usize
}

/// Whether mark `seq` of `marks` still has its place in the ring.
fn is_remembered(seq: u64, marks: u64) -> bool {
    (1..=marks).contains(&seq) && marks - seq < REMEMBERED
}

/// Every queue of a device.
#[derive(Debug, Default)]
pub(crate) struct Timelines {
    list: Mutex<Vec<Arc<Timeline>>>,
    visitors: Mutex<Vec<Arc<Event>>>,
    numbers: AtomicU32,
    lost: Lost,
}

impl Timelines {
    /// Adds a queue's stream.
    pub(crate) fn start(&self, stream: Stream, foreign: bool) -> Arc<Timeline> {
        // Relaxed: numbers only differ.
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let ring = (0..REMEMBERED).map(|_| OnceLock::new()).collect();
        let (marks, phase) = (AtomicU64::new(0), Mutex::new(Phase::Running));
        let timeline = Arc::new(Timeline { number, stream, foreign, marks, ring, phase });
        self.list().push(timeline.clone());
        timeline
    }

    /// Adds work of another device's queue that uses this device's memory, up to `last`.
    pub(crate) fn add_visitor(&self, last: Event) {
        self.visitors.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::new(last));
    }

    /// Work of other devices' queues that is not done.
    pub(crate) fn visitors(&self) -> Vec<Arc<Event>> {
        let mut visitors = self.visitors.lock().unwrap_or_else(PoisonError::into_inner);
        visitors.retain(|last| last.query().code == NOT_READY);
        visitors.clone()
    }

    /// The queue of that number, if it has work left.
    pub(crate) fn find(&self, number: u32) -> Option<Arc<Timeline>> {
        self.list().iter().find(|timeline| timeline.number == number).cloned()
    }

    /// All queues, after forgetting those that are gone and done.
    pub(crate) fn all(&self) -> Vec<Arc<Timeline>> {
        let mut list = self.list();
        list.retain(|timeline| !timeline.has_ended());
        list.clone()
    }

    /// Whether the context has ended.
    pub(crate) fn lost(&self) -> &Lost {
        &self.lost
    }

    fn list(&self) -> MutexGuard<'_, Vec<Arc<Timeline>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_holds_the_last_marks_each_in_its_own_place() {
        for marks in [0, 1, 1023, 1024, 1025, 5000] {
            let held: Vec<u64> = (0..=marks + 2).filter(|&seq| is_remembered(seq, marks)).collect();
            let first = marks.saturating_sub(REMEMBERED - 1).max(1);
            assert_eq!(held, (first..=marks).collect::<Vec<_>>(), "of {marks}");
            let mut places: Vec<usize> = held.iter().map(|&seq| index(seq)).collect();
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), held.len(), "of {marks}");
        }
    }

    #[test]
    fn an_event_stands_for_its_mark_or_a_later_one() {
        // What takes a mark's place is 1024 marks younger, never older: waiting for it is waiting for both.
        for seq in [1, 7, 1023, 1024, 4097] {
            let latest_in_place = |marks: u64| (1..=marks).rev().find(|&later| index(later) == index(seq));
            assert!((seq..seq + 3000).all(|marks| latest_in_place(marks).is_some_and(|found| found >= seq)));
        }
    }
}

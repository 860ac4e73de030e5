//! An event: a place in a stream that can be asked about, waited for and timed.

use super::{Context, Status};
use cudarc::driver::sys::CUevent;
use kp_hal::Result;
use std::{ptr, sync::Arc};

/// `CU_EVENT_DISABLE_TIMING`: cheaper to record.
const UNTIMED: u32 = 2;

/// An event, destroyed when dropped; one that is still pending lives on in the driver until it is reached.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    raw: CUevent,
}

// SAFETY: an event is a handle that the driver lets any thread use.
unsafe impl Send for Event {}
// SAFETY: as above; the driver locks inside.
unsafe impl Sync for Event {}

impl Event {
    /// An event whose time of completion can be compared with another's.
    ///
    /// # Errors
    /// `Driver`.
    pub(crate) fn timed(context: &Arc<Context>) -> Result<Self> {
        Self::new(context, 0)
    }

    /// An event that only says whether it was reached.
    ///
    /// # Errors
    /// `Driver`.
    pub(crate) fn untimed(context: &Arc<Context>) -> Result<Self> {
        Self::new(context, UNTIMED)
    }

    fn new(context: &Arc<Context>, flags: u32) -> Result<Self> {
        context.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the context is current; the result is destroyed once, by `drop`.
        unsafe { context.api().cuEventCreate(&mut raw, flags) }.ok()?;
        Ok(Self { context: context.clone(), raw })
    }

    #[inline]
    pub(crate) fn raw(&self) -> CUevent {
        self.raw
    }

    /// `NOT_READY` until the work before it is done; an event never recorded is done.
    #[inline]
    pub(crate) fn query(&self) -> Status {
        // SAFETY: the event is alive.
        self.context.retry(|| unsafe { self.context.api().cuEventQuery(self.raw) })
    }

    /// Blocks the host until the work before it is done.
    pub(crate) fn synchronize(&self) -> Status {
        // SAFETY: the event is alive.
        self.context.retry(|| unsafe { self.context.api().cuEventSynchronize(self.raw) })
    }

    /// Milliseconds from `self` to `later`, if the status is good: both were recorded and reached.
    pub(crate) fn milliseconds_to(&self, later: &Self) -> (f32, Status) {
        let mut time = 0.0;
        let elapsed = || {
            // SAFETY: both events are alive.
            unsafe { self.context.api().cuEventElapsedTime_v2(&mut time, self.raw, later.raw) }
        };
        let status = self.context.retry(elapsed);
        (time, status)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `new`, destroyed once. Fails only if the context is dead, which frees it too.
        let _ = unsafe { self.context.api().cuEventDestroy_v2(self.raw) };
    }
}

//! A stream, our own or another library's.

use super::{Context, Event, Status};
use cudarc::driver::sys::{CUstream, CUstreamCaptureStatus};
use kp_hal::{ErrorKind, Result};
use std::{ptr, sync::Arc};

/// `CU_STREAM_NON_BLOCKING`: does not wait for the legacy default stream, nor it for this.
const NON_BLOCKING: u32 = 1;

/// A stream; our own is destroyed when dropped, which lets its work finish.
#[derive(Debug)]
pub(crate) struct Stream {
    context: Arc<Context>,
    raw: CUstream,
    foreign: bool,
}

// SAFETY: a stream is a handle that the driver lets any thread use.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver locks inside.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new non-blocking stream.
    ///
    /// # Errors
    /// `Driver`.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        context.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the context is current; the result is destroyed once, by `drop`.
        unsafe { context.api().cuStreamCreate(&mut raw, NON_BLOCKING) }.ok()?;
        Ok(Self { context: context.clone(), raw, foreign: false })
    }

    /// Another library's stream, which is never destroyed here.
    ///
    /// # Errors
    /// `Unavailable` if it belongs to another context than the device's primary one; `Driver`.
    ///
    /// # Safety
    /// `raw` is a stream that outlives the result.
    pub(crate) unsafe fn adopt(context: &Arc<Context>, raw: CUstream) -> Result<Self> {
        context.enter()?;
        let mut of = ptr::null_mut();
        // SAFETY: the caller's promise.
        unsafe { context.api().cuStreamGetCtx(raw, &mut of) }.ok()?;
        if of != context.raw() {
            let why = "the stream is not of the device's primary context".into();
            return Err(ErrorKind::Unavailable { what: "foreign streams", why }.into());
        }
        Ok(Self { context: context.clone(), raw, foreign: true })
    }

    #[inline]
    pub(crate) fn raw(&self) -> CUstream {
        self.raw
    }

    /// Puts `event` behind the work submitted so far.
    #[inline]
    pub(crate) fn record(&self, event: &Event) -> Status {
        // SAFETY: both are alive and of one context.
        self.context.retry(|| unsafe { self.context.api().cuEventRecord(event.raw(), self.raw) })
    }

    /// Lets later work start after what `event` stands for now.
    #[inline]
    pub(crate) fn wait(&self, event: &Event) -> Status {
        // SAFETY: both are alive.
        self.context.retry(|| unsafe { self.context.api().cuStreamWaitEvent(self.raw, event.raw(), 0) })
    }

    /// `NOT_READY` while there is work.
    pub(crate) fn query(&self) -> Status {
        // SAFETY: the stream is alive.
        self.context.retry(|| unsafe { self.context.api().cuStreamQuery(self.raw) })
    }

    /// Whether somebody records it.
    pub(crate) fn is_capturing(&self) -> bool {
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is alive.
        let asked = self.context.retry(|| unsafe { self.context.api().cuStreamIsCapturing(self.raw, &mut status) });
        asked.is_ok() && status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE
    }

    /// Blocks the host until the stream is empty.
    pub(crate) fn synchronize(&self) -> Status {
        // SAFETY: the stream is alive.
        self.context.retry(|| unsafe { self.context.api().cuStreamSynchronize(self.raw) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.foreign {
            // SAFETY: created by `new`, destroyed once. Fails only if the context is dead, which frees it too.
            let _ = unsafe { self.context.api().cuStreamDestroy_v2(self.raw) };
        }
    }
}

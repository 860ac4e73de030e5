//! Recording a queue's work, and submitting it again.

use crate::{
    driver::{Api, Context, Status},
    memory::Held,
    queue::NvidiaQueue,
};
use cudarc::driver::sys::{CUgraph, CUgraphExec, CUstreamCaptureMode};
use kp_hal::{ArgError, DeviceId, ErrorKind, Graph, Queue, Result};
use std::{ptr, sync::Arc};

/// What a queue keeps in mind while it records.
pub(crate) struct Recording {
    /// The queue's own scratch. What is recorded gets scratch of its own, because it may run beside the queue's later work.
    set_aside: Option<Arc<Held>>,
    pub(crate) uses_scratch: bool,
    /// Names of the kernels seen.
    pub(crate) kernels: Vec<&'static str>,
}

impl NvidiaQueue {
    /// Starts recording.
    ///
    /// # Errors
    /// `NotCapturable` while recording; `OutOfMemory`, because a recording has as much scratch as its queue; `Driver`.
    pub(crate) fn begin_recording(&mut self) -> Result<()> {
        self.immediate("a capture within a capture")?;
        let own = match &self.scratch {
            Some(scratch) => {
                let own = self.new_scratch(Self::scratch_bytes(scratch))?;
                // A replay may be on another queue, which knows nothing of the clearing of flags on this one.
                let status = self.stream().synchronize();
                self.check(status)?;
                Some(own)
            }
            None => None,
        };
        let (context, stream) = (self.owner().context().clone(), self.stream().raw());
        context.enter()?;
        // Relaxed: kernels may be loaded and buffers allocated meanwhile. What cannot be recorded is refused above the driver.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is alive.
        let begin = || unsafe { context.api().cuStreamBeginCapture_v2(stream, mode) };
        let status = self.timeline().begin_recording(&context, begin)?;
        self.check(status)?;
        let set_aside = std::mem::replace(&mut self.scratch, own);
        self.recording = Some(Recording { set_aside, uses_scratch: false, kernels: Vec::new() });
        Ok(())
    }

    /// Ends recording, whatever became of it: the queue runs again.
    ///
    /// # Errors
    /// `NotCapturable` if nothing was being recorded; `Driver` if the recording is broken.
    pub(crate) fn end_recording(&mut self) -> Result<Box<dyn Graph>> {
        let Some(recording) = self.recording.take() else {
            return Err(ErrorKind::NotCapturable { what: "an end without a beginning" }.into());
        };
        let scratch = std::mem::replace(&mut self.scratch, recording.set_aside).filter(|_| recording.uses_scratch);
        let (context, stream) = (self.owner().context().clone(), self.stream().raw());
        context.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the stream is alive and recording.
        let status = self.timeline().end_recording(|| unsafe { context.api().cuStreamEndCapture(stream, &mut raw) });
        let recorded = Recorded { api: context.api(), raw };
        self.check(status)?;
        let mut exec = ptr::null_mut();
        // SAFETY: the graph is alive; the result is destroyed once, by `Replay::drop`.
        let status = unsafe { context.api().cuGraphInstantiateWithFlags(&mut exec, recorded.raw, 0) };
        self.check(status)?;
        Ok(Box::new(Replay { context, device: self.device(), exec, kernels: recording.kernels, _scratch: scratch }))
    }
}

/// A graph as recorded, of which an executable one is made.
struct Recorded {
    api: &'static Api,
    raw: CUgraph,
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the end of the recording gave it to us; destroyed once.
            let _ = unsafe { self.api.cuGraphDestroy(self.raw) };
        }
    }
}

/// Recorded work, ready to be submitted.
struct Replay {
    context: Arc<Context>,
    device: DeviceId,
    exec: CUgraphExec,
    kernels: Vec<&'static str>,
    /// Its kernels write there.
    _scratch: Option<Arc<Held>>,
}

// SAFETY: an executable graph is a handle that any thread may use, one at a time, and this is not `Sync`.
unsafe impl Send for Replay {}

impl Graph for Replay {
    unsafe fn replay(&self, queue: &mut dyn Queue) -> Result<()> {
        if queue.device() != self.device {
            return Err(ArgError::WrongDevice { operand: "queue", plan: self.device, got: queue.device() }.into());
        }
        let queue: &mut NvidiaQueue = queue.downcast_mut().expect("same device, so same backend");
        queue.immediate("a replay")?;
        let (context, stream) = (&self.context, queue.stream().raw());
        // SAFETY: graph and stream are alive; the buffers are, as the caller promises.
        let status: Status = context.retry(|| unsafe { context.api().cuGraphLaunch(self.exec, stream) });
        queue.check(status)?;
        self.kernels.iter().for_each(|kernel| queue.launched(kernel));
        Ok(())
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        // The thread that drops it may never have had the context.
        let _ = self.context.enter();
        // SAFETY: made by `end_recording`, destroyed once; a run under way lets it live on in the driver.
        let _ = unsafe { self.context.api().cuGraphExecDestroy(self.exec) };
    }
}

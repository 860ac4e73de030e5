//! A device's primary context: the one that other CUDA libraries of the process use too, so that pointers and
//! streams can be shared with them.

use super::{Api, Status};
use cudarc::driver::sys::{CUcontext, CUdevice};
use kp_hal::Result;
use std::{cell::Cell, ptr};

thread_local! {
    /// The context that kp last made current on this thread.
    static CURRENT: Cell<CUcontext> = const { Cell::new(ptr::null_mut()) };
}

/// A reference to the primary context, given back when dropped.
#[derive(Debug)]
pub(crate) struct Context {
    api: &'static Api,
    device: CUdevice,
    raw: CUcontext,
}

// SAFETY: a context is a handle that the driver lets any thread use.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks inside.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of `device`.
    ///
    /// # Errors
    /// `Driver`, for instance because another process has the device to itself.
    pub(crate) fn retain(api: &'static Api, device: CUdevice) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: `device` came from the driver; the result is released once, by `drop`.
        unsafe { api.cuDevicePrimaryCtxRetain(&mut raw, device) }.ok()?;
        Ok(Self { api, device, raw })
    }

    #[inline]
    pub(crate) fn api(&self) -> &'static Api {
        self.api
    }

    pub(crate) fn raw(&self) -> CUcontext {
        self.raw
    }

    pub(crate) fn device(&self) -> CUdevice {
        self.device
    }

    /// Makes this context current on the calling thread, whatever it was before.
    ///
    /// For calls that use the current context without naming one: creating, allocating, loading.
    #[inline]
    pub(crate) fn enter(&self) -> Result<()> {
        // SAFETY: the context is retained.
        unsafe { self.api.cuCtxSetCurrent(self.raw) }.ok()?;
        CURRENT.set(self.raw);
        Ok(())
    }

    /// Makes this context current unless kp did so already on this thread.
    ///
    /// For calls that name a stream or event and so fail, rather than go elsewhere, when another library has changed the
    /// current context meanwhile; see [`Context::retry`].
    #[inline]
    pub(crate) fn enter_once(&self) -> Result<()> {
        if CURRENT.get() == self.raw { Ok(()) } else { self.enter() }
    }

    /// Calls `call`, and if it was refused for the thread's context, enters and calls it again.
    #[inline]
    pub(crate) fn retry(&self, mut call: impl FnMut() -> Status) -> Status {
        let status = call();
        if !matches!(status.code, super::INVALID_CONTEXT | super::INVALID_HANDLE) {
            return status;
        }
        CURRENT.set(ptr::null_mut());
        match self.enter() {
            Ok(()) => call(),
            Err(_) => status,
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // A thread may keep the handle as its current one; the driver then refuses its calls, it does not crash.
        CURRENT.set(ptr::null_mut());
        // SAFETY: retained once by `retain`. Fails only if the driver is shutting down with the process.
        let _ = unsafe { self.api.cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

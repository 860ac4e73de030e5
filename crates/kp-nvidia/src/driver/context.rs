//! A device's primary context: the one that other CUDA libraries of the process use too, so that pointers and
//! streams can be shared with them.

use super::{Api, INVALID_CONTEXT, INVALID_HANDLE, Status};
use cudarc::driver::sys::{CUcontext, CUdevice};
use kp_hal::Result;
use std::ptr;

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
        unsafe { self.api.cuCtxSetCurrent(self.raw) }.ok()
    }

    /// Calls `call`, which names a stream or an event and so needs no current context; a driver that wants one anyway gets it,
    /// and is asked again.
    ///
    /// Nothing is done beforehand, because drivers since 580 do not want one, and another library may change it at any time.
    #[inline]
    pub(crate) fn retry(&self, mut call: impl FnMut() -> Status) -> Status {
        let status = call();
        if !matches!(status.code, INVALID_CONTEXT | INVALID_HANDLE) {
            return status;
        }
        match self.enter() {
            Ok(()) => call(),
            Err(_) => status,
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // A thread may keep the handle as its current one; the driver then refuses its calls, it does not crash.
        // SAFETY: retained once by `retain`. Fails only if the driver is shutting down with the process.
        let _ = unsafe { self.api.cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

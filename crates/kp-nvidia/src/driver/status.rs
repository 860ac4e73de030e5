//! What a call of the driver returned.

use super::table::symbol;
use kp_hal::{DriverError, Error, Result, fault::Lost};
use std::{
    borrow::Cow,
    ffi::{CStr, c_char},
};

/// A call and its `CUresult`, as a number: a newer driver may know results that the bindings do not.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct Status {
    pub(crate) call: &'static str,
    pub(crate) code: i32,
}

pub(crate) const OUT_OF_MEMORY: i32 = 2;
pub(crate) const INVALID_CONTEXT: i32 = 201;
pub(crate) const INVALID_HANDLE: i32 = 400;
pub(crate) const NOT_READY: i32 = 600;

/// Results after which nothing of the context works again. Sorted.
const LOST: &[i32] = &[
    4,   // deinitialized
    214, // uncorrectable memory error
    220, // uncorrectable NVLink error
    226, // memory error, contained to this process
    700, // illegal address
    702, // launch timeout
    709, // context destroyed
    710, // assertion in a kernel
    714, // error of the hardware's stack
    715, // illegal instruction
    716, // misaligned address
    717, // invalid address space
    718, // invalid program counter
    719, // launch failure
    721, // launch failure, contained to this process
    999, // unknown
];

impl Status {
    #[inline]
    pub(crate) fn ok(self) -> Result<()> {
        if self.code == 0 { Ok(()) } else { Err(self.error().into()) }
    }

    #[inline]
    pub(crate) fn is_ok(self) -> bool {
        self.code == 0
    }

    /// Whether the context died, by work submitted earlier, of which this call merely learned.
    pub(crate) fn is_lost(self) -> bool {
        LOST.binary_search(&self.code).is_ok()
    }

    /// With the driver's name for the result.
    #[cold]
    pub(crate) fn error(self) -> DriverError {
        DriverError { call: self.call, code: self.code.into(), text: super::words(self.code) }
    }

    /// The error for a call that belongs to no queue.
    pub(crate) fn refused(self, lost: &Lost) -> Error {
        if self.is_lost() { lost.tell(self.error()) } else { self.error().into() }
    }
}

/// The driver's functions that put a result into words. Not in the table: cudarc lets only known results be asked about.
#[derive(Clone, Copy)]
pub(super) struct Words {
    name: Say,
    sentence: Say,
}

type Say = unsafe extern "C" fn(i32, *mut *const c_char) -> i32;

impl Words {
    /// # Errors
    /// `Unavailable` for `what`, naming the function that is missing.
    pub(super) fn load(what: &'static str, library: &'static libloading::Library) -> Result<Self> {
        // SAFETY: cuda.h declares both so; a C enum is an i32.
        unsafe {
            let name = symbol(what, library, "cuGetErrorName")?;
            Ok(Self { name, sentence: symbol(what, library, "cuGetErrorString")? })
        }
    }

    /// The driver's name and sentence for a result: `CUDA_ERROR_OUT_OF_MEMORY, out of memory`.
    pub(super) fn of(&self, code: i32) -> Cow<'static, str> {
        let ask = |say: Say| {
            let mut text: *const c_char = std::ptr::null();
            // SAFETY: asks for a pointer to text that lives as long as the driver.
            if unsafe { say(code, &mut text) } != 0 || text.is_null() {
                return None;
            }
            // SAFETY: the driver said that this is its text.
            unsafe { CStr::from_ptr(text) }.to_str().ok()
        };
        match (ask(self.name), ask(self.sentence)) {
            (Some(name), Some(sentence)) => format!("{name}, {sentence}").into(),
            (Some(text), None) | (None, Some(text)) => text.into(),
            (None, None) => "a result the driver has no name for".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_that_end_a_context_are_told_from_refusals() {
        assert!(LOST.is_sorted());
        let lost = |code| Status { call: "x", code }.is_lost();
        assert!(lost(700) && lost(716) && lost(999));
        assert!(!lost(0) && !lost(OUT_OF_MEMORY) && !lost(INVALID_HANDLE) && !lost(NOT_READY) && !lost(1));
    }
}

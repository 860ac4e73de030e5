//! Results of the driver in words, and what they mean for what comes after.

use ash::vk;
use kp_hal::{DriverError, Error, fault::Lost};

/// What a call returned that did not succeed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Status {
    pub(crate) call: &'static str,
    pub(crate) code: vk::Result,
}

impl Status {
    /// Whether the device will do nothing any more.
    pub(crate) fn is_lost(self) -> bool {
        self.code == vk::Result::ERROR_DEVICE_LOST
    }

    /// Whether memory is what was lacking.
    pub(crate) fn is_out_of_memory(self) -> bool {
        matches!(
            self.code,
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY
                | vk::Result::ERROR_OUT_OF_HOST_MEMORY
                | vk::Result::ERROR_TOO_MANY_OBJECTS
        )
    }

    pub(crate) fn error(self) -> DriverError {
        DriverError { call: self.call, code: self.code.as_raw().into(), text: self.code.to_string().into() }
    }

    /// The error for a call that belongs to no queue.
    pub(crate) fn refused(self, lost: &Lost) -> Error {
        if self.is_lost() { lost.tell(self.error()) } else { self.error().into() }
    }
}

/// Names the call that a result came from.
pub(crate) fn checked<T>(call: &'static str, result: ash::prelude::VkResult<T>) -> Result<T, Status> {
    result.map_err(|code| Status { call, code })
}

//! The backends of this build, preferred first. The only file that names them.

use kp_hal::Backend;

/// Those whose features are on.
pub(crate) fn built_in() -> Vec<&'static dyn Backend> {
    vec![
        #[cfg(feature = "nvidia")]
        kp_nvidia::BACKEND,
        #[cfg(feature = "vulkan")]
        kp_vulkan::BACKEND,
        #[cfg(feature = "cpu")]
        kp_cpu::BACKEND,
        #[cfg(feature = "null")]
        kp_null::BACKEND,
    ]
}

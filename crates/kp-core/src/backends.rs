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

/// Those whose features are off, each of which is named as its backend is.
pub(crate) const LEFT_OUT: &[&str] = &[
    #[cfg(not(feature = "nvidia"))]
    "nvidia",
    #[cfg(not(feature = "vulkan"))]
    "vulkan",
    #[cfg(not(feature = "cpu"))]
    "cpu",
    #[cfg(not(feature = "null"))]
    "null",
];

//! What several tests of the engine share.

use kp_core::Engine;

/// An engine on the null device, without a wisdom file.
pub(crate) fn engine() -> Engine {
    Engine::builder().only(kp_null::BACKEND).device("null").memory_only().open().expect("the null device opens")
}

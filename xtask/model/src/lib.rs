//! The gate of kp-cpu's thread pool alone, so that checking its model builds nothing else:
//! `RUSTFLAGS="--cfg loom" cargo test -p xtask-model`.

#![cfg(all(test, loom))]

#[path = "../../../crates/kp-cpu/src/threads/gate.rs"]
mod gate;

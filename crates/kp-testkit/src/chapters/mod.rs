//! What every backend must do besides computing: devices, memory, queues, capture, threads.

mod capture;
mod devices;
mod memory;
mod queues;
mod threads;

use crate::{check::Failure, runner::Test};
use kp_hal::{Backend, Device, Error, ErrorKind};
use std::sync::Arc;

/// A test of a chapter.
type Check = fn(&'static dyn Backend, &Arc<dyn Device>) -> Result<(), Failure>;

/// Every chapter's tests for one device.
pub(crate) fn tests(backend: &'static dyn Backend, device: &Arc<dyn Device>) -> Vec<Test> {
    let chapters: [(&str, &[(&str, Check)]); 5] = [
        ("devices", devices::CHECKS),
        ("memory", memory::CHECKS),
        ("queues", queues::CHECKS),
        ("capture", capture::CHECKS),
        ("threads", threads::CHECKS),
    ];
    let mut tests = Vec::new();
    for (chapter, checks) in chapters {
        for &(name, check) in checks {
            let device = device.clone();
            tests.push(Test::new(format!("{}/{chapter}/{name}", backend.name()), move || check(backend, &device)));
        }
    }
    tests
}

/// Refuses what does not hold, saying what was expected.
fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(what().into()) }
}

/// The call must have failed in the way that `right` recognises.
fn fails<T>(result: Result<T, Error>, wanted: &str, right: impl Fn(&ErrorKind) -> bool) -> Result<(), Failure> {
    match result {
        Ok(_) => Err(format!("succeeded, wanted {wanted}").into()),
        Err(e) if right(e.kind()) => Ok(()),
        Err(e) => Err(format!("wanted {wanted}, got: {e}").into()),
    }
}

/// Bytes that differ from one another and from their neighbours' neighbours.
fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed)).collect()
}

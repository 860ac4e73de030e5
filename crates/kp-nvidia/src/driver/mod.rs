//! The CUDA driver, opened when the program runs.
//!
//! ```text
//! table.rs    libraries by name, functions by name: what is missing is said, never a panic
//! api.rs      the functions of libcuda that kp calls
//! status.rs   what a call returned, in the driver's words
//! facts.rs    what it says of a device
//! context.rs  the device's primary context
//! event.rs    events
//! stream.rs   streams
//! ```

mod api;
mod context;
mod event;
pub(crate) mod facts;
mod status;
mod stream;
pub(crate) mod table;

pub(crate) use api::Api;
pub(crate) use context::Context;
pub(crate) use event::Event;
use status::{INVALID_CONTEXT, INVALID_HANDLE};
pub(crate) use status::{NOT_READY, OUT_OF_MEMORY, Status};
pub(crate) use stream::Stream;

use kp_hal::{Error, ErrorKind, Result};
use status::Words;
use std::{borrow::Cow, sync::OnceLock};

struct Driver {
    api: Api,
    words: Words,
    /// 13000 for CUDA 13.0.
    version: i32,
}

/// Where the driver's installer puts it, the name with a version first: the other is for building programs.
#[cfg(not(windows))]
const NAMES: &[&str] = &["libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"];
#[cfg(windows)]
const NAMES: &[&str] = &["nvcuda.dll"];

/// The oldest driver that has every function of the table, as `cuDriverGetVersion` counts.
const OLDEST: i32 = 12_080;

fn driver() -> &'static Result<Driver> {
    static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let library = table::open(crate::NAME, NAMES)?;
        let driver =
            Driver { api: Api::load(crate::NAME, library)?, words: Words::load(crate::NAME, library)?, version: 0 };
        let unavailable = |why: String| Error::from(ErrorKind::Unavailable { what: crate::NAME, why: why.into() });
        // Not `Status::ok`, which asks for the driver that is being made here.
        let done = |status: Status| match status.code {
            0 => Ok(()),
            code => Err(unavailable(format!("{} returned {code}: {}", status.call, driver.words.of(code)))),
        };
        let mut version = 0;
        // SAFETY: the one call that is allowed before `cuInit`.
        done(unsafe { driver.api.cuDriverGetVersion(&mut version) })?;
        if version < OLDEST {
            let [got, need] = [version, OLDEST].map(cuda_version);
            return Err(unavailable(format!("the driver is for CUDA {got}, needs {need}")));
        }
        // SAFETY: no flags are defined.
        done(unsafe { driver.api.cuInit(0) })?;
        Ok(Driver { version, ..driver })
    })
}

/// The driver's functions, after `cuInit`.
///
/// # Errors
/// `Unavailable`, naming what was looked for.
pub(crate) fn api() -> Result<&'static Api> {
    driver().as_ref().map(|driver| &driver.api).map_err(Clone::clone)
}

/// The driver and its version, as `nvidia-smi` writes them: `580.159.03, CUDA 13.0`.
///
/// # Errors
/// As [`fn@api`].
pub(crate) fn version() -> Result<String> {
    let cuda = cuda_version(driver().as_ref().map_err(Clone::clone)?.version);
    let module = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    Ok(module_version(&module).map_or_else(|| format!("CUDA {cuda}"), |module| format!("{module}, CUDA {cuda}")))
}

/// The number in what the kernel's module says of itself: `NVRM version: NVIDIA UNIX … Kernel Module  580.159.03  …`.
fn module_version(text: &str) -> Option<&str> {
    let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.lines().find(|line| line.starts_with("NVRM version:"))?.split_whitespace().find(is_version)
}

/// `13.0` for 13000.
fn cuda_version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// The driver's words for one of its results.
fn words(code: i32) -> Cow<'static, str> {
    driver().as_ref().map_or_else(|e| e.to_string().into(), |driver| driver.words.of(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_nvidia_writes_them() {
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build  (x@y)  Tue\n\
                    GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n";
        assert_eq!(module_version(text), Some("580.159.03"));
        assert_eq!(module_version(""), None);
        assert_eq!((cuda_version(13000), cuda_version(12090)), ("13.0".into(), "12.9".into()));
    }

    #[test]
    fn a_library_that_is_missing_is_said_with_its_names() {
        let error = table::open("nvidia", &["libkp-no-such.so.1", "libkp-nor-this.so"]).expect_err("there is none");
        let text = error.to_string();
        assert!(error.is_unavailable(), "{text}");
        assert!(text.starts_with("nvidia unavailable: looked for libkp-no-such.so.1, libkp-nor-this.so: "), "{text}");
    }

    #[test]
    fn a_function_that_is_missing_is_said_by_its_name() {
        // Any library that is there will do: it has none of the driver's functions.
        let library =
            table::open("nvidia", &["libc.so.6", "libSystem.B.dylib", "kernel32.dll"]).expect("every process has one");
        let error = Api::load("nvidia", library).map(|_| ()).expect_err("not the driver");
        assert!(error.to_string().contains("has no cuInit: "), "{error}");
    }
}

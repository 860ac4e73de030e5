//! What several tests of the engine share.

#![allow(dead_code, reason = "each test uses its part")]

use kp_core::{
    Engine,
    hal::{
        Backend, Caps, DType, Device, DeviceInfo, ErrorKind, Kernel, Kernels, Launch, Nanos, Plan, Queue, Result,
        Support, Unsupported, Variant, Variants,
        op::{Gemm, GemmArgs, GemmProblem},
    },
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// An engine on the null device, without a wisdom file.
pub(crate) fn engine() -> Engine {
    Engine::builder().only(kp_null::BACKEND).device("null").memory_only().open().expect("the null device opens")
}

pub(crate) fn problem(text: &str) -> GemmProblem {
    text.parse().expect(text)
}

/// A backend over null devices whose gemm kernels misbehave on purpose.
pub(crate) static ODD: Odd = Odd;

/// What `slow` says its source's hash is, so that a test can change it.
pub(crate) static SLOW_CODE: AtomicU64 = AtomicU64::new(1);

pub(crate) struct Odd;

impl Backend for Odd {
    fn name(&self) -> &'static str {
        "odd"
    }
    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        kp_null::BACKEND.devices()
    }
    fn open(&self, index: u32) -> Result<Arc<dyn Device>> {
        kp_null::BACKEND.open(index)
    }
    fn kernels(&self) -> &'static Kernels {
        static KERNELS: Kernels = Kernels {
            gemm: &[
                &Mock { name: "unplannable", estimate: 1 },
                &Mock { name: "picky", estimate: 2 },
                &Mock { name: "slow", estimate: 3 },
            ],
            ..Kernels::NONE
        };
        &KERNELS
    }
}

/// Multiplies f32, says it is called `name`, and does what the name says.
struct Mock {
    name: &'static str,
    estimate: u64,
}

impl Kernel<Gemm> for Mock {
    fn name(&self) -> &'static str {
        self.name
    }
    fn code(&self) -> u64 {
        if self.name == "slow" { SLOW_CODE.load(Ordering::SeqCst) } else { 7 }
    }
    fn supports(&self, _: &Caps, p: &GemmProblem) -> Support {
        if p.a.dtype() != DType::F32 {
            return Err(Unsupported::DType { operand: "a", got: p.a.dtype() });
        }
        if self.name == "picky" && !p.k.is_multiple_of(1000) {
            return Err(Unsupported::Align { dim: "k", multiple: 1000, got: p.k.into() });
        }
        Ok(Variants::ONE)
    }
    fn estimate(&self, _: &Caps, _: &GemmProblem, _: Variant) -> Nanos {
        Nanos(self.estimate)
    }
    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        if self.name == "unplannable" {
            return Err(ErrorKind::OutOfMemory { wanted: 7, free: 3, total: 5 }.into());
        }
        // SAFETY: the launch touches no buffer.
        Ok(unsafe { Plan::new(self.name, variant, device.id(), p, 0, Box::new(Doze)) })
    }
}

struct Doze;

impl Launch<Gemm> for Doze {
    unsafe fn launch(&self, _: &mut dyn Queue, _: &GemmArgs<'_>) -> Result<()> {
        std::thread::sleep(std::time::Duration::from_micros(200));
        Ok(())
    }
}

/// A folder of its own for each call, emptied when dropped.
pub(crate) struct Folder(pub(crate) std::path::PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let unique = format!("kp-core-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        let path = std::env::temp_dir().join(unique);
        std::fs::create_dir_all(&path).expect("the temporary folder is writable");
        Self(path)
    }

    pub(crate) fn file(&self) -> std::path::PathBuf {
        self.0.join("wisdom")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

//! The one device: the processor this program runs on.

use crate::{BACKEND_NAME, KERNELS, caps, memory, peaks, queue::CpuQueue, threads};
use kp_hal::{
    Backend, Buffer, Caps, Device, DeviceId, DeviceInfo, ErrorKind, Kernels, MemoryInfo, MemoryKind, Queue, Result,
};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

/// The CPU backend.
#[derive(Debug)]
pub struct Cpu;

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        BACKEND_NAME
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        check_settings()?;
        Ok(vec![caps::info()])
    }

    fn open(&self, index: u32) -> Result<Arc<dyn Device>> {
        if index != 0 {
            let why = format!("there is one processor, number 0, and {index} was asked for").into();
            return Err(ErrorKind::Unavailable { what: BACKEND_NAME, why }.into());
        }
        check_settings()?;
        let device = CpuDevice {
            id: DeviceId::next(),
            info: caps::info(),
            queues: AtomicU32::new(0),
            allowance: AtomicU64::new(0),
        };
        OPENED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(device.id);
        Ok(Arc::new(device))
    }

    fn kernels(&self) -> &'static Kernels {
        &KERNELS
    }
}

/// Refuses variables that say nothing: a processor that runs otherwise than it was told to is not the one asked for.
fn check_settings() -> Result<()> {
    let settings = threads::asked().and_then(|_| caps::check_hidden());
    settings.map_err(|why| ErrorKind::Unavailable { what: BACKEND_NAME, why: why.into() }.into())
}

/// Every id this backend gave out: their addresses are pointers of this process.
static OPENED: Mutex<Vec<DeviceId>> = Mutex::new(Vec::new());

/// Whether `id` is a device of this backend.
pub(crate) fn is_cpu(id: DeviceId) -> bool {
    OPENED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).contains(&id)
}

/// An open processor.
pub(crate) struct CpuDevice {
    pub(crate) id: DeviceId,
    info: DeviceInfo,
    queues: AtomicU32,
    /// Bytes to be given out before the kernel is asked again how much there is.
    allowance: AtomicU64,
}

/// Bytes given out between two questions, which each cost as much as a small product.
const ALLOWANCE: u64 = 64 << 20;

impl CpuDevice {
    /// Takes `bytes` from the allowance, if it has as many.
    fn is_allowed(&self, bytes: u64) -> bool {
        self.allowance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    pub(crate) fn memory_now(&self) -> MemoryInfo {
        caps::memory_now(self.info.caps.memory_bytes)
    }
}

impl Device for CpuDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryInfo> {
        Ok(self.memory_now())
    }

    fn alloc(self: Arc<Self>, bytes: u64, _: MemoryKind) -> Result<Buffer> {
        let full = |MemoryInfo { free, total }| ErrorKind::OutOfMemory { wanted: bytes, free, total };
        if !self.is_allowed(bytes) {
            // The allocator would promise more than there is, and the process would be killed on first use.
            let memory = self.memory_now();
            let left = memory.free.checked_sub(bytes).ok_or_else(|| full(memory))?;
            self.allowance.store(ALLOWANCE.min(left / 2), Ordering::Relaxed);
        }
        Ok(memory::allocate(self.id, bytes).ok_or_else(|| full(self.memory_now()))?)
    }

    fn measure(self: Arc<Self>) -> Result<Caps> {
        Ok(peaks::measure(&self.info.caps))
    }

    fn queue(self: Arc<Self>) -> Result<Box<dyn Queue>> {
        let id = self.queues.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(CpuQueue::new(self, id)))
    }
}

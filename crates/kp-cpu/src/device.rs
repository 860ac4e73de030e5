//! The one device: the processor this program runs on.

use crate::{BACKEND_NAME, KERNELS, caps, memory, peaks, queue::CpuQueue};
use kp_hal::{
    Backend, Buffer, Caps, Device, DeviceId, DeviceInfo, ErrorKind, Kernels, MemoryInfo, MemoryKind, Queue, Result,
};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, Ordering},
};

/// The CPU backend.
#[derive(Debug)]
pub struct Cpu;

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        BACKEND_NAME
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        Ok(vec![caps::info()])
    }

    fn open(&self, index: u32) -> Result<Arc<dyn Device>> {
        if index != 0 {
            let why = format!("there is one processor, number 0, and {index} was asked for").into();
            return Err(ErrorKind::Unavailable { what: BACKEND_NAME, why }.into());
        }
        let device = CpuDevice { id: DeviceId::next(), info: caps::info(), queues: AtomicU32::new(0) };
        OPENED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(device.id);
        Ok(Arc::new(device))
    }

    fn kernels(&self) -> &'static Kernels {
        &KERNELS
    }
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
}

impl CpuDevice {
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
        let MemoryInfo { free, total } = self.memory_now();
        memory::allocate(self.id, bytes, free, total)
    }

    fn measure(self: Arc<Self>) -> Result<Caps> {
        Ok(peaks::measure(&self.info.caps))
    }

    fn queue(self: Arc<Self>) -> Result<Box<dyn Queue>> {
        let id = self.queues.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(CpuQueue::new(self, id)))
    }
}

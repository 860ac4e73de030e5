//! Listing, opening, allocating.

use crate::{
    KERNELS,
    caps::{MEMORY_BYTES, caps},
    memory::Host,
    queue::NullQueue,
};
use kp_hal::{
    Backend, Buffer, Device, DeviceId, DeviceInfo, Error, ErrorKind, Kernels, MemoryInfo, MemoryKind, Queue, Result,
};
use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

/// The driver API that is not there.
pub(crate) struct NullBackend;

impl Backend for NullBackend {
    fn name(&self) -> &'static str {
        "null"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        Ok(vec![info()])
    }

    fn open(&self, index: u32) -> Result<Arc<dyn Device>> {
        if index != 0 {
            let why = format!("there is one device, index 0, got {index}").into();
            return Err(ErrorKind::Unavailable { what: "null", why }.into());
        }
        Ok(Arc::new(NullDevice { id: DeviceId::next(), info: info(), used: Arc::default(), queues: AtomicU32::new(0) }))
    }

    fn kernels(&self) -> &'static Kernels {
        &KERNELS
    }
}

fn info() -> DeviceInfo {
    DeviceInfo {
        name: "Null Device".into(),
        index: 0,
        driver: concat!("kp-null ", env!("CARGO_PKG_VERSION")).into(),
        pci: None,
        uuid: None,
        caps: caps(),
    }
}

/// The device: a budget of host memory.
#[derive(Debug)]
pub struct NullDevice {
    id: DeviceId,
    info: DeviceInfo,
    used: Arc<AtomicU64>,
    queues: AtomicU32,
}

impl Device for NullDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryInfo> {
        // Relaxed, here and below: a count that guards nothing.
        let free = MEMORY_BYTES.saturating_sub(self.used.load(Ordering::Relaxed));
        Ok(MemoryInfo { free, total: MEMORY_BYTES })
    }

    fn alloc(self: Arc<Self>, bytes: u64, _: MemoryKind) -> Result<Buffer> {
        let take = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= MEMORY_BYTES);
        let full = |used| ErrorKind::OutOfMemory { wanted: bytes, free: MEMORY_BYTES - used, total: MEMORY_BYTES };
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).map_err(|used| Error::from(full(used)))?;
        let Some(host) = Host::new(bytes, self.used.clone()) else {
            let used = self.used.fetch_sub(bytes, Ordering::Relaxed) - bytes;
            return Err(full(used).into());
        };
        let addr = host.addr();
        // SAFETY: `host` owns those bytes while it lives, hands them to nobody else, and `host()` addresses them.
        Ok(unsafe { Buffer::from_raw(self.id, addr, bytes, Arc::new(host)) })
    }

    fn queue(self: Arc<Self>) -> Result<Box<dyn Queue>> {
        let number = self.queues.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(NullQueue::new(self, number)))
    }
}

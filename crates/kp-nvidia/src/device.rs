//! Listing, opening, allocating; kernels loaded once.

use crate::{
    KERNELS, NAME, caps,
    compile::{self, Build},
    driver::{self, Api, Context, Stream, facts},
    gemm,
    launch::Function,
    memory::Memory,
    modules::{Limits, Modules},
    peaks,
    queue::NvidiaQueue,
    staging::Staging,
    timeline::Timelines,
};
use kp_hal::{
    Backend, Buffer, Caps, Device, DeviceId, DeviceInfo, Error, ErrorKind, Kernels, MemoryInfo, MemoryKind, Queue,
    Result,
};
use std::{
    any::Any,
    ffi::c_void,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// The CUDA driver.
pub(crate) struct Nvidia;

impl Backend for Nvidia {
    fn name(&self) -> &'static str {
        NAME
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let api = driver::api()?;
        // In the driver's own order, which is the fastest first unless CUDA_DEVICE_ORDER says otherwise.
        (0..facts::count(api)?).map(|index| Ok(describe(api, index)?.0)).collect()
    }

    fn open(&self, index: u32) -> Result<Arc<dyn Device>> {
        let api = driver::api()?;
        let count = facts::count(api)?;
        let unavailable = |why: String| Error::from(ErrorKind::Unavailable { what: NAME, why: why.into() });
        if index >= count {
            return Err(unavailable(format!("there are {count} devices, number {index} was asked for")));
        }
        let (info, pools) = describe(api, index)?;
        if !pools {
            return Err(unavailable(format!("{} has no memory pools", info.name)));
        }
        Ok(NvidiaDevice::new(api, info)?)
    }

    fn kernels(&self) -> &'static Kernels {
        &KERNELS
    }
}

/// Device `index`, and whether it has memory pools.
fn describe(api: &'static Api, index: u32) -> Result<(DeviceInfo, bool)> {
    let device = facts::device(api, index)?;
    let facts = facts::facts(api, device)?;
    let mut caps = caps::of(&facts);
    if gemm::cublaslt::file().is_some() {
        let features = std::mem::take(&mut caps.features);
        caps.set_features(features.into_iter().chain(["cublaslt".into()]));
    }
    let info = DeviceInfo {
        index,
        driver: driver::version()?,
        pci: Some(facts::pci(api, device)?),
        uuid: Some(facts::uuid(api, device)?),
        caps,
        name: facts.name,
    };
    Ok((info, facts.pools))
}

/// An open NVIDIA GPU.
pub struct NvidiaDevice {
    id: DeviceId,
    info: DeviceInfo,
    kept: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
    modules: Modules,
    staging: Staging,
    memory: Arc<Memory>,
    timelines: Arc<Timelines>,
    context: Arc<Context>,
}

/// Every device that is open, for copies between two of them.
static OPEN: Mutex<Vec<Weak<NvidiaDevice>>> = Mutex::new(Vec::new());

fn open_devices() -> MutexGuard<'static, Vec<Weak<NvidiaDevice>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NvidiaDevice {
    fn new(api: &'static Api, info: DeviceInfo) -> Result<Arc<Self>> {
        let context = Arc::new(Context::retain(api, facts::device(api, info.index)?)?);
        let timelines = Arc::new(Timelines::default());
        let memory = Arc::new(Memory::new(context.clone(), timelines.clone(), info.caps.memory_bytes)?);
        let limits = Limits { shared_bytes: info.caps.shared_bytes, clusters: info.caps.has("clusters") };
        let modules = Modules::new(context.clone(), limits);
        let staging = Staging::new(context.clone(), memory.clone());
        let device = Arc::new(Self {
            id: DeviceId::next(),
            info,
            kept: Mutex::default(),
            modules,
            staging,
            memory,
            timelines,
            context,
        });
        let mut open = open_devices();
        open.retain(|device| device.strong_count() > 0);
        open.push(Arc::downgrade(&device));
        Ok(device)
    }

    /// The open device of that id.
    pub(crate) fn by_id(id: DeviceId) -> Option<Arc<Self>> {
        open_devices().iter().filter_map(Weak::upgrade).find(|device| device.id == id)
    }

    /// The kernel that `build` describes, compiled for this device and loaded when it is first asked for.
    ///
    /// Threads that ask for one kernel at once get one copy; different kernels are made at the same time.
    ///
    /// # Errors
    /// `Unavailable` without a compiler, `Driver` if the driver refuses the module.
    pub(crate) fn function(&self, build: &Build) -> Result<Function> {
        self.modules.function(build, || compile::cubin(build, &self.info.caps.arch))
    }

    /// Loads a kernel of the program's own, to be launched with [`NvidiaQueue::launch`] in order with kp's. The module stays
    /// for as long as the device is open.
    ///
    /// # Errors
    /// `Driver` if the driver refuses the module, or it has no function `entry`.
    ///
    /// # Safety
    /// `image` is a complete cubin or fat binary, or PTX that ends with NUL.
    pub unsafe fn load(&self, image: &[u8], entry: &str) -> Result<Function> {
        // SAFETY: the caller's promise.
        unsafe { self.modules.load(image, entry) }
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn timelines(&self) -> &Arc<Timelines> {
        &self.timelines
    }

    pub(crate) fn memory_pool(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The device's `T`, made when it is first asked for and kept for as long as the device is open.
    ///
    /// # Errors
    /// Those of `make`, which the next call tries again.
    pub(crate) fn keep<T: Any + Send + Sync>(&self, make: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = kept.iter().find_map(|one| one.clone().downcast().ok()) {
            return Ok(one);
        }
        let one = Arc::new(make()?);
        kept.push(one.clone());
        Ok(one)
    }

    pub(crate) fn staging(&self) -> &Staging {
        &self.staging
    }

    /// Lets `peer` read this device's memory directly where the hardware can; elsewhere the driver copies through the host.
    ///
    /// # Errors
    /// `Driver`.
    pub(crate) fn let_in(&self, peer: &Self) -> Result<()> {
        self.memory.let_in(peer.context.device())
    }
}

impl fmt::Debug for NvidiaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NvidiaDevice({}, {})", self.id, self.info.name)
    }
}

impl Device for NvidiaDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryInfo> {
        self.memory.info()
    }

    fn alloc(self: Arc<Self>, bytes: u64, kind: MemoryKind) -> Result<Buffer> {
        let held = self.memory.alloc(bytes, kind)?;
        // SAFETY: `held` owns at least that many bytes, valid for every stream since `alloc` returned, and gives them to
        // nobody else; `host()` addresses them.
        Ok(unsafe { Buffer::from_raw(self.id, held.addr(), bytes, Arc::new(held)) })
    }

    /// Measures the bandwidth of copies; rates of arithmetic stay as stated.
    fn measure(self: Arc<Self>) -> Result<Caps> {
        peaks::measure(&self)
    }

    fn queue(self: Arc<Self>) -> Result<Box<dyn Queue>> {
        let stream = Stream::new(&self.context)?;
        Ok(Box::new(NvidiaQueue::new(self, stream, false)))
    }

    unsafe fn adopt_queue(self: Arc<Self>, stream: u64) -> Result<Box<dyn Queue>> {
        let raw = std::ptr::with_exposed_provenance_mut::<c_void>(stream as usize).cast();
        // SAFETY: the caller's promise, in the words of kp-hal.
        let stream = unsafe { Stream::adopt(&self.context, raw) }?;
        Ok(Box::new(NvidiaQueue::new(self, stream, true)))
    }
}

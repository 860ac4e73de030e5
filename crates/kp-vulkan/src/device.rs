//! Listing, opening, allocating.

use crate::{
    KERNELS, NAME,
    caps::{self, WIDTHS},
    driver::{self, Logical, Seen, Status},
    memory::Memory,
    peaks,
    pipelines::{Build, Function, Pipelines},
    probe::Asked,
    queue::VulkanQueue,
    timeline::Timelines,
    transfer::Transfer,
};
use kp_hal::{
    Backend, Buffer, Caps, DType, Device, DeviceId, DeviceInfo, DeviceKind, Error, ErrorKind, Kernels, MemoryInfo,
    MemoryKind, Queue, Result, fault::Lost,
};
use std::{
    fmt,
    sync::{Arc, OnceLock},
};

/// The Vulkan loader and the drivers it finds.
pub(crate) struct Vulkan;

impl Backend for Vulkan {
    fn name(&self) -> &'static str {
        NAME
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        Ok(usable()?.iter().zip(0..).map(|(seen, index)| describe(seen, index)).collect())
    }

    fn open(&self, index: u32) -> Result<Arc<dyn Device>> {
        let mut devices = usable()?;
        let count = devices.len();
        let unavailable = || unavailable(format!("there are {count} devices, number {index} was asked for"));
        let at = usize::try_from(index).ok().filter(|&at| at < count).ok_or_else(unavailable)?;
        let seen = devices.swap_remove(at);
        let info = describe(&seen, index);
        let logical = Logical::open(driver::loader()?, seen).map_err(Status::error)?;
        Ok(Arc::new(VulkanDevice::new(Arc::new(logical), info).map_err(Status::error)?))
    }

    fn kernels(&self) -> &'static Kernels {
        &KERNELS
    }
}

fn unavailable(why: String) -> Error {
    ErrorKind::Unavailable { what: NAME, why: why.into() }.into()
}

/// The devices that have what kp needs, best first: as they rank by kind, then as the loader lists them.
///
/// # Errors
/// `Unavailable` if there is none, naming those that lack something.
fn usable() -> Result<Vec<Seen>> {
    let mut seen = driver::look(driver::loader()?).map_err(Status::error)?;
    let lacking: Vec<String> = seen
        .iter()
        .filter(|one| !one.facts.lacks.is_empty())
        .map(|one| format!("{} ({}) lacks {}", one.facts.name, one.facts.driver, one.facts.lacks.join(", ")))
        .collect();
    seen.retain(|one| one.facts.lacks.is_empty());
    if seen.is_empty() {
        let why =
            if lacking.is_empty() { "the loader finds no driver with a device".into() } else { lacking.join("; ") };
        return Err(unavailable(why));
    }
    seen.sort_by_key(|one| caps::of(&one.facts).kind);
    Ok(seen)
}

fn describe(seen: &Seen, index: u32) -> DeviceInfo {
    let facts = &seen.facts;
    // What software drivers call a UUID names their version.
    let is_card = caps::of(facts).kind != DeviceKind::SoftwareGpu;
    DeviceInfo {
        name: facts.name.clone(),
        index,
        driver: facts.driver.clone(),
        pci: facts.pci,
        uuid: is_card.then_some(facts.uuid),
        caps: caps::of(facts),
    }
}

/// An open Vulkan device.
pub struct VulkanDevice {
    id: DeviceId,
    info: DeviceInfo,
    transfer: Transfer,
    pipelines: Pipelines,
    /// Whether the device converts numbers as kp does, once it was asked.
    native: OnceLock<bool>,
    /// Whether its lanes have of matrices what kernels want, of f16 and of bf16, of either width, once it was asked.
    lanes: [OnceLock<bool>; 4],
    memory: Arc<Memory>,
    timelines: Arc<Timelines>,
    lost: Arc<Lost>,
    logical: Arc<Logical>,
}

impl VulkanDevice {
    fn new(logical: Arc<Logical>, info: DeviceInfo) -> std::result::Result<Self, Status> {
        let (timelines, lost) = (Arc::new(Timelines::default()), Arc::new(Lost::default()));
        let memory = Arc::new(Memory::new(logical.clone(), timelines.clone(), lost.clone()));
        let pipelines = Pipelines::new(&logical)?;
        let transfer = Transfer::new(&logical, &pipelines)?;
        Ok(Self {
            id: DeviceId::next(),
            info,
            transfer,
            pipelines,
            native: OnceLock::new(),
            lanes: Default::default(),
            memory,
            timelines,
            lost,
            logical,
        })
    }

    /// The kernel that `build` describes, made when it is first asked for.
    ///
    /// # Errors
    /// `Driver` if the driver refuses it.
    pub(crate) fn function(&self, build: &Build) -> Result<Function> {
        // Whatever keeps the device from answering, kernels do without.
        let native = self.native.get_or_init(|| self.asked().is_native().unwrap_or(false));
        self.pipelines.function(build, *native).map_err(|status| status.refused(&self.lost))
    }

    /// Whether lanes have of the matrices of 16×`n`×16 that the driver lists for `dtype`, f16 or bf16, what kernels that fill them from
    /// registers want. `n` is one of `caps::WIDTHS`.
    pub(crate) fn has_lanes(&self, dtype: DType, n: u32) -> bool {
        let bf16 = dtype == DType::Bf16;
        let ask = || self.info.caps.lanes == 32 && self.asked().has_lanes(bf16, n).unwrap_or(false);
        *self.lanes[2 * usize::from(bf16) + usize::from(n != WIDTHS[0])].get_or_init(ask)
    }

    fn asked(&self) -> Asked<'_> {
        let Self { logical: device, pipelines, memory, timelines, .. } = self;
        Asked { device, pipelines, memory, timelines }
    }

    pub(crate) fn logical(&self) -> &Arc<Logical> {
        &self.logical
    }

    pub(crate) fn timelines(&self) -> &Arc<Timelines> {
        &self.timelines
    }

    pub(crate) fn memory_pool(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub(crate) fn lost(&self) -> &Lost {
        &self.lost
    }

    pub(crate) fn transfer(&self) -> Transfer {
        self.transfer
    }

    /// Most workgroups of a launch.
    pub(crate) fn max_groups(&self) -> u32 {
        self.logical.seen.facts.max_groups
    }
}

impl fmt::Debug for VulkanDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VulkanDevice({}, {})", self.id, self.info.name)
    }
}

impl Device for VulkanDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryInfo> {
        self.memory.info(MemoryKind::Device)
    }

    fn alloc(self: Arc<Self>, bytes: u64, kind: MemoryKind) -> Result<Buffer> {
        let held = self.memory.alloc(bytes, kind)?;
        // SAFETY: `held` owns at least that many bytes, addressable by every queue, and gives them to nobody else; `host()`
        // addresses them.
        Ok(unsafe { Buffer::from_raw(self.id, held.addr(), bytes, Arc::new(held)) })
    }

    /// Measures the bandwidth of copies, and rates of multiplications in f32 and of matrices.
    fn measure(self: Arc<Self>) -> Result<Caps> {
        peaks::measure(&self)
    }

    fn queue(self: Arc<Self>) -> Result<Box<dyn Queue>> {
        Ok(Box::new(VulkanQueue::new(self)?))
    }
}

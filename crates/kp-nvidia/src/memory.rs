//! Device memory: a stream-ordered pool of our own, and pinned memory of the host.
//!
//! An allocation belongs to no queue and may be used by all, so it is valid, for any stream and any library, when `alloc`
//! returns: the pool's own stream never has work to wait for. Dropping a buffer only notes it. When enough is noted, a
//! *fence* is put into each queue that is busy, and what was dropped before is free when all of its fences are passed: kept
//! for an allocation of the same size, or given back to the pool. Queues never wait for one another because memory changes
//! hands, and a launch pays nothing.

mod dropped;
mod idle;

use crate::{
    driver::{Context, Event, NOT_READY, OUT_OF_MEMORY, Status, Stream},
    timeline::{Fence, Timelines},
};
use cudarc::driver::sys::{
    CUdevice, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation,
    CUmemLocationType, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool,
};
use dropped::{Dropped, Passing};
use idle::Idle;
use kp_hal::{Allocation, ErrorKind, MemoryInfo, MemoryKind, Result};
use std::{
    fmt,
    ptr::{self, NonNull},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What every address is a multiple of.
const ALIGN: u64 = 256;

/// The memory of one device.
pub(crate) struct Memory {
    context: Arc<Context>,
    timelines: Arc<Timelines>,
    /// Allocations and frees happen here; nothing else does, so it is always idle.
    stream: Stream,
    pool: CUmemoryPool,
    total: u64,
    host_total: u64,
    /// Most dropped bytes that may wait for their queues: how far the host may run ahead of the device.
    backlog: u64,
    unused: Mutex<Unused>,
    /// Devices that were asked whether they reach this memory.
    peers: Mutex<Vec<CUdevice>>,
}

/// Blocks that nobody holds.
struct Unused {
    dropped: Dropped<Arc<Event>>,
    device: Idle,
    pinned: Idle,
    /// Events to fence with again.
    spare: Vec<Event>,
}

/// A range of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Block {
    addr: u64,
    bytes: u64,
    kind: MemoryKind,
}

/// One allocation, as `Buffer` owns it.
pub(crate) struct Held {
    memory: Arc<Memory>,
    block: Block,
}

impl Passing for Arc<Event> {
    fn is_passed(&self) -> bool {
        self.query().code != NOT_READY
    }

    fn wait(&self) {
        // A failed wait means a dead context, where nothing uses anything.
        let _ = self.synchronize();
    }
}

// SAFETY: the pool is a handle that the driver lets any thread use; the rest is `Send` by itself.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// A pool on `context`'s device, which has `total` bytes.
    ///
    /// # Errors
    /// `Driver`.
    pub(crate) fn new(context: Arc<Context>, timelines: Arc<Timelines>, total: u64) -> Result<Self> {
        let stream = Stream::new(&context)?;
        let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: context.device() };
        let props = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location,
            win32SecurityAttributes: ptr::null_mut(),
            maxSize: 0,
            usage: 0,
            reserved: [0; 54],
        };
        let mut pool = ptr::null_mut();
        // SAFETY: `props` is complete; the pool is destroyed once, by `drop`.
        unsafe { context.api().cuMemPoolCreate(&mut pool, &props) }.ok()?;
        let host_total = host_memory().total;
        let unused = Unused {
            dropped: Dropped::new(),
            device: Idle::new(MemoryKind::Device, total / 16),
            pinned: Idle::new(MemoryKind::Pinned, host_total / 16),
            spare: Vec::new(),
        };
        let (backlog, unused, peers) = (total / 8, Mutex::new(unused), Mutex::default());
        let memory = Self { context, timelines, stream, pool, total, host_total, backlog, unused, peers };
        // Freed memory stays with the pool: giving pages back and mapping them again takes longer than most kernels.
        memory.set(CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX)?;
        Ok(memory)
    }

    /// Allocates; the contents are arbitrary.
    ///
    /// # Errors
    /// `OutOfMemory`; `Driver`.
    pub(crate) fn alloc(self: &Arc<Self>, bytes: u64, kind: MemoryKind) -> Result<Held> {
        let total = match kind {
            MemoryKind::Device => self.total,
            MemoryKind::Pinned => self.host_total,
        };
        let Some(size) = bytes.max(1).checked_next_multiple_of(ALIGN).filter(|&size| size <= total) else {
            return Err(self.full(bytes, kind)?.into());
        };
        if let Some(block) = self.reuse(size, kind)? {
            return Ok(Held { memory: self.clone(), block });
        }
        let make = || match kind {
            MemoryKind::Device => self.make(size),
            MemoryKind::Pinned => self.make_pinned(size),
        };
        let (mut status, mut addr) = make()?;
        if status.code == OUT_OF_MEMORY {
            self.collect(&mut self.unused(), true, 0)?;
            self.let_go();
            (status, addr) = make()?;
        }
        match status.code {
            0 => Ok(Held { memory: self.clone(), block: Block { addr, bytes: size, kind } }),
            OUT_OF_MEMORY => Err(self.full(bytes, kind)?.into()),
            _ => Err(status.refused(self.timelines.lost())),
        }
    }

    /// A block that was used before.
    fn reuse(&self, bytes: u64, kind: MemoryKind) -> Result<Option<Block>> {
        self.timelines.lost().check()?;
        let mut unused = self.unused();
        self.collect(&mut unused, false, self.backlog)?;
        Ok(unused.idle(kind).take(bytes))
    }

    /// Gives everything unused back to the system.
    fn let_go(&self) {
        let mut unused = self.unused();
        let blocks = [unused.device.drain(), unused.pinned.drain()].concat();
        blocks.into_iter().for_each(|block| self.free(block));
        // SAFETY: the pool is alive. A refusal leaves what there is.
        let _ = unsafe { self.context.api().cuMemPoolTrimTo(self.pool, 0) };
    }

    fn make(&self, bytes: u64) -> Result<(Status, u64)> {
        self.context.enter()?;
        let mut addr = 0;
        // SAFETY: pool and stream are alive and of one device.
        let status = unsafe {
            self.context.api().cuMemAllocFromPoolAsync(&mut addr, bytes as usize, self.pool, self.stream.raw())
        };
        if !status.is_ok() {
            return Ok((status, 0));
        }
        // Until the stream has passed the allocation only the stream may use it.
        Ok((self.stream.synchronize(), addr))
    }

    fn make_pinned(&self, bytes: u64) -> Result<(Status, u64)> {
        /// `CU_MEMHOSTALLOC_PORTABLE`: pinned for every context. `CU_MEMHOSTALLOC_DEVICEMAP`: addressed by the device.
        /// Not `WRITECOMBINED`, which the host reads at a hundredth of its speed.
        const PORTABLE_AND_MAPPED: u32 = 0x1 | 0x2;
        self.context.enter()?;
        let mut host = ptr::null_mut();
        // SAFETY: the context is current.
        let status = unsafe { self.context.api().cuMemHostAlloc(&mut host, bytes as usize, PORTABLE_AND_MAPPED) };
        // Under unified addressing, which every 64-bit system has, the device uses the host's own address.
        Ok((status, host.expose_provenance() as u64))
    }

    /// Bytes free and in all. What the pool keeps unused counts as free.
    ///
    /// # Errors
    /// `Driver` or `Fault`.
    pub(crate) fn info(&self) -> Result<MemoryInfo> {
        self.recycle()?;
        let idle = self.unused().device.bytes();
        self.context.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the context is current.
        self.check(unsafe { self.context.api().cuMemGetInfo_v2(&mut free, &mut total) })?;
        let reserved = self.ask(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let used = self.ask(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        let total = total as u64;
        Ok(MemoryInfo { free: (free as u64 + reserved.saturating_sub(used) + idle).min(total), total })
    }

    fn full(&self, wanted: u64, kind: MemoryKind) -> Result<ErrorKind> {
        let MemoryInfo { free, total } = match kind {
            MemoryKind::Device => self.info()?,
            MemoryKind::Pinned => host_memory(),
        };
        Ok(ErrorKind::OutOfMemory { wanted, free, total })
    }

    /// Frees what was dropped and the queues are past.
    ///
    /// # Errors
    /// `Driver`.
    pub(crate) fn recycle(&self) -> Result<()> {
        self.collect(&mut self.unused(), true, u64::MAX)
    }

    /// Fences what was dropped, if `all` of it or enough, and takes what is free, waiting until at most `backlog` bytes are
    /// not.
    fn collect(&self, unused: &mut Unused, all: bool, backlog: u64) -> Result<()> {
        if unused.dropped.wants_fence() || (all && !unused.dropped.is_fenced()) {
            self.fence(unused)?;
        }
        while let Some(batch) = unused.dropped.take(backlog) {
            unused.spare.extend(batch.fences.into_iter().filter_map(Arc::into_inner));
            for block in batch.blocks {
                let _ = unused.idle(block.kind).keep(block).map_err(|block| self.free(block));
            }
        }
        Ok(())
    }

    /// Puts a fence behind everything that may use the blocks noted so far.
    fn fence(&self, unused: &mut Unused) -> Result<()> {
        let mut fences = self.timelines.visitors();
        for timeline in self.timelines.all() {
            let spare = || unused.spare.pop().map_or_else(|| Event::untimed(&self.context), Ok);
            match timeline.fence(spare)? {
                Fence::Passed => {}
                Fence::At(event) => fences.push(event),
                // Try again later; the events go with the attempt.
                Fence::Unknown => return Ok(()),
            }
        }
        unused.dropped.fence(fences);
        Ok(())
    }

    fn free(&self, block: Block) {
        let api = self.context.api();
        // The thread that drops something last may never have had the context.
        let _ = self.context.enter();
        // A refusal means a dead context, whose memory is gone already.
        let _ = match block.kind {
            // SAFETY: allocated from the pool, freed once; every stream that may have used it is past its fence.
            MemoryKind::Device => unsafe { api.cuMemFreeAsync(block.addr, self.stream.raw()) },
            // SAFETY: allocated by `make_pinned`; the rest as above.
            MemoryKind::Pinned => unsafe { api.cuMemFreeHost(ptr::with_exposed_provenance_mut(block.addr as usize)) },
        };
    }

    /// Lets device `peer` address this memory, if the hardware can; if not, the driver copies through the host.
    ///
    /// # Errors
    /// `Driver`.
    pub(crate) fn let_in(&self, peer: CUdevice) -> Result<()> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.contains(&peer) {
            return Ok(());
        }
        let api = self.context.api();
        let mut can = 0;
        // SAFETY: both devices came from the driver.
        self.check(unsafe { api.cuDeviceCanAccessPeer(&mut can, peer, self.context.device()) })?;
        if can != 0 {
            let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: peer };
            let access = CUmemAccessDesc { location, flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
            // SAFETY: one description, as said.
            self.check(unsafe { api.cuMemPoolSetAccess(self.pool, &access, 1) })?;
        }
        peers.push(peer);
        Ok(())
    }

    fn note(&self, block: Block) {
        let mut unused = self.unused();
        unused.dropped.note(block);
        // A failure leaves the block noted, for the next call that can say so.
        let _ = self.collect(&mut unused, false, u64::MAX);
    }

    fn unused(&self) -> MutexGuard<'_, Unused> {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, status: Status) -> Result<()> {
        if status.is_ok() { Ok(()) } else { Err(status.refused(self.timelines.lost())) }
    }

    fn set(&self, attribute: CUmemPool_attribute, mut value: u64) -> Result<()> {
        // SAFETY: the attributes used here are 64-bit numbers.
        unsafe { self.context.api().cuMemPoolSetAttribute(self.pool, attribute, ptr::from_mut(&mut value).cast()) }.ok()
    }

    fn ask(&self, attribute: CUmemPool_attribute) -> Result<u64> {
        let mut value = 0_u64;
        // SAFETY: the attributes used here are 64-bit numbers.
        self.check(unsafe {
            self.context.api().cuMemPoolGetAttribute(self.pool, attribute, ptr::from_mut(&mut value).cast())
        })?;
        Ok(value)
    }
}

impl Unused {
    fn idle(&mut self, kind: MemoryKind) -> &mut Idle {
        match kind {
            MemoryKind::Device => &mut self.device,
            MemoryKind::Pinned => &mut self.pinned,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Nobody holds a buffer or a queue any more, but what queues were given last may still run.
        let _ = self.collect(&mut self.unused(), true, 0);
        self.let_go();
        let _ = self.stream.synchronize();
        // SAFETY: created by `new`, destroyed once.
        let _ = unsafe { self.context.api().cuMemPoolDestroy(self.pool) };
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("total", &self.total).finish_non_exhaustive()
    }
}

impl Held {
    /// The device's address of the first byte.
    pub(crate) fn addr(&self) -> u64 {
        self.block.addr
    }

    /// How long it is: what was asked for, rounded up.
    pub(crate) fn bytes(&self) -> u64 {
        self.block.bytes
    }
}

impl Allocation for Held {
    fn host(&self) -> Option<NonNull<u8>> {
        match self.block.kind {
            MemoryKind::Device => None,
            MemoryKind::Pinned => NonNull::new(ptr::with_exposed_provenance_mut(self.block.addr as usize)),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.note(self.block);
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Block { addr, bytes, kind } = self.block;
        write!(f, "{bytes} bytes of {kind:?} memory at {addr:#x}")
    }
}

/// The host's memory, where the system says; 0 of 0 elsewhere would refuse everything, so it is all there could be.
fn host_memory() -> MemoryInfo {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let kib: u64 =
            text.lines().find_map(|line| line.strip_prefix(name))?.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib << 10)
    };
    match (field("MemAvailable:"), field("MemTotal:")) {
        (Some(free), Some(total)) => MemoryInfo { free, total },
        _ => MemoryInfo { free: i64::MAX as u64, total: i64::MAX as u64 },
    }
}

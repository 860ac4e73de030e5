//! Device memory: large blocks of the driver's, given out in ranges.
//!
//! Kernels are told addresses, never `VkBuffer`s, so a block is one allocation with one buffer over all of it, and a range
//! costs nothing but a note. A range that is dropped is given out again when every queue is past what it had been told by
//! then: queues never wait because memory changes hands.

mod ranges;

use crate::{
    driver::{Logical, Status, checked},
    timeline::{Timeline, Timelines},
};
use ash::vk;
use kp_hal::{Allocation, ErrorKind, MemoryInfo, MemoryKind, Result, fault::Lost};
use ranges::Ranges;
use std::{
    collections::VecDeque,
    fmt,
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What every address, and every range's length, is a multiple of.
pub(crate) const ALIGN: u64 = 256;

/// Bytes of a block that is shared by ranges, at most; a larger range gets a block of its own.
const BLOCK: u64 = 64 << 20;

/// The memory of one device.
pub(crate) struct Memory {
    device: Arc<Logical>,
    timelines: Arc<Timelines>,
    lost: Arc<Lost>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    device: Pool,
    pinned: Pool,
    /// Ranges that queues may still use, oldest first.
    dropped: VecDeque<Dropped>,
}

/// The blocks of one kind. A block's place is its name, so places of freed blocks stay empty until they are taken again.
#[derive(Default)]
struct Pool(Vec<Option<Block>>);

/// One allocation of the driver's and the buffer over it.
struct Block {
    memory: vk::DeviceMemory,
    buffer: vk::Buffer,
    /// Of the first byte that is given out.
    addr: u64,
    host: Option<NonNull<u8>>,
    ranges: Ranges,
}

// SAFETY: handles that the driver lets any thread use one at a time, and the address of mapped memory.
unsafe impl Send for Block {}

/// What was given out.
#[derive(Clone, Copy, Debug)]
struct Range {
    kind: MemoryKind,
    block: usize,
    start: u64,
    bytes: u64,
}

struct Dropped {
    range: Range,
    /// What must be reached before it is free.
    fences: Vec<(Arc<Timeline>, u64)>,
}

/// One allocation, as `Buffer` owns it.
pub(crate) struct Held {
    memory: Arc<Memory>,
    range: Range,
    addr: u64,
    host: Option<NonNull<u8>>,
}

// SAFETY: `host` is where the host sees the range, which `memory` keeps mapped.
unsafe impl Send for Held {}
// SAFETY: as above; nothing is read or written through `&Held`.
unsafe impl Sync for Held {}

impl Memory {
    pub(crate) fn new(device: Arc<Logical>, timelines: Arc<Timelines>, lost: Arc<Lost>) -> Self {
        Self { device, timelines, lost, state: Mutex::default() }
    }

    /// Allocates; the contents are arbitrary.
    ///
    /// # Errors
    /// `OutOfMemory`; `Driver`; `Fault` on a device that is lost.
    pub(crate) fn alloc(self: &Arc<Self>, bytes: u64, kind: MemoryKind) -> Result<Held> {
        self.lost.check()?;
        let most = self.heap(kind).1.min(self.device.seen.facts.max_buffer_bytes);
        let Some(size) = bytes.max(1).checked_next_multiple_of(ALIGN).filter(|&size| size <= most) else {
            return Err(self.full(bytes, kind)?.into());
        };
        let mut state = self.state();
        self.collect(&mut state, false).map_err(|status| status.refused(&self.lost))?;
        if let Some(held) = self.take(&mut state, size, kind) {
            return Ok(held);
        }
        let mut made = self.make(size, kind);
        if made.as_ref().is_err_and(|status| status.is_out_of_memory()) {
            // What is merely waiting for its queues may be enough, or what blocks keep unused.
            self.timelines.submit_all();
            self.collect(&mut state, true).map_err(|status| status.refused(&self.lost))?;
            if let Some(held) = self.take(&mut state, size, kind) {
                return Ok(held);
            }
            self.let_go(&mut state);
            made = self.make(size, kind);
        }
        match made {
            Ok(block) => state.pool(kind).insert(block),
            Err(status) if status.is_out_of_memory() => {
                drop(state);
                return Err(self.full(bytes, kind)?.into());
            }
            Err(status) => return Err(status.refused(&self.lost)),
        }
        Ok(self.take(&mut state, size, kind).expect("a block was made that holds it"))
    }

    /// A range of a block that is there.
    fn take(self: &Arc<Self>, state: &mut State, bytes: u64, kind: MemoryKind) -> Option<Held> {
        let blocks = state.pool(kind).0.iter_mut().enumerate();
        let (block, start, addr, host) =
            blocks.filter_map(|(at, block)| Some((at, block.as_mut()?))).find_map(|(at, block)| {
                let start = block.ranges.take(bytes)?;
                // SAFETY: the range lies within the block, all of which is mapped.
                let host = block.host.map(|host| unsafe { host.add(start as usize) });
                Some((at, start, block.addr + start, host))
            })?;
        Some(Held { memory: self.clone(), range: Range { kind, block, start, bytes }, addr, host })
    }

    /// A block for `bytes` and, if that is little, for more like it.
    fn make(&self, bytes: u64, kind: MemoryKind) -> std::result::Result<Block, Status> {
        let largest = self.device.seen.facts.max_buffer_bytes;
        let shared = BLOCK.min(self.device.seen.facts.memory_bytes / 16).min(largest) / ALIGN * ALIGN;
        let size = bytes.max(if bytes <= shared / 2 { shared } else { 0 });
        let device = &self.device;
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS;
        // An address may start off kp's boundary by less than one.
        let info = vk::BufferCreateInfo::default().size(size + ALIGN).usage(usage);
        // SAFETY: the device is alive.
        let buffer = checked("vkCreateBuffer", unsafe { device.create_buffer(&info, None) })?;
        let unbound = |memory: vk::DeviceMemory| {
            // SAFETY: made just now, used by nobody; memory that is null is left alone.
            unsafe {
                device.destroy_buffer(buffer, None);
                device.free_memory(memory, None);
            }
        };
        // SAFETY: the buffer was just made.
        let needs = unsafe { device.get_buffer_memory_requirements(buffer) };
        let mut flags = vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let mut tried = Err(Status { call: "vkAllocateMemory", code: vk::Result::ERROR_OUT_OF_DEVICE_MEMORY });
        for index in kinds(&self.device.seen.memory, kind) {
            if needs.memory_type_bits >> index & 1 == 0 {
                continue;
            }
            let info = vk::MemoryAllocateInfo::default()
                .allocation_size(needs.size)
                .memory_type_index(index)
                .push_next(&mut flags);
            // SAFETY: the device has that type of memory.
            tried = checked("vkAllocateMemory", unsafe { device.allocate_memory(&info, None) });
            if !matches!(tried, Err(status) if status.is_out_of_memory()) {
                break;
            }
        }
        let memory = tried.inspect_err(|_| unbound(vk::DeviceMemory::null()))?;
        let bound = || -> std::result::Result<_, Status> {
            // SAFETY: the memory is of a type and size that the buffer asked for, and bound to nothing else.
            checked("vkBindBufferMemory", unsafe { device.bind_buffer_memory(buffer, memory, 0) })?;
            // SAFETY: the buffer is bound and was made to be addressed.
            let addr =
                unsafe { device.get_buffer_device_address(&vk::BufferDeviceAddressInfo::default().buffer(buffer)) };
            let skip = addr.next_multiple_of(ALIGN) - addr;
            let host = match kind {
                MemoryKind::Device => None,
                MemoryKind::Pinned => {
                    // SAFETY: the type is visible to the host, and nobody else maps it.
                    let all = unsafe { device.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()) };
                    let all: *mut u8 = checked("vkMapMemory", all)?.cast();
                    // SAFETY: the mapping is longer than that.
                    NonNull::new(unsafe { all.add(skip as usize) })
                }
            };
            Ok((addr + skip, host))
        };
        let (addr, host) = bound().inspect_err(|_| unbound(memory))?;
        Ok(Block { memory, buffer, addr, host, ranges: Ranges::new(size) })
    }

    /// Takes back what queues are past; waits for them if `all`, but not for what they were told since and have not submitted.
    fn collect(&self, state: &mut State, all: bool) -> std::result::Result<(), Status> {
        while let Some(oldest) = state.dropped.front() {
            for (timeline, value) in &oldest.fences {
                if !timeline.has_reached(*value)? {
                    if !all || !timeline.is_submitted(*value) {
                        return Ok(());
                    }
                    timeline.wait(*value)?;
                }
            }
            let Dropped { range, .. } = state.dropped.pop_front().expect("it was just there");
            state.pool(range.kind).give(range);
        }
        Ok(())
    }

    /// Gives unused blocks back to the driver.
    fn let_go(&self, state: &mut State) {
        for place in state.device.0.iter_mut().chain(&mut state.pinned.0) {
            if place.as_ref().is_some_and(|block| block.ranges.is_unused())
                && let Some(block) = place.take()
            {
                self.free(block);
            }
        }
    }

    fn free(&self, block: Block) {
        // SAFETY: nobody holds a range of it, and every queue is past those that were.
        unsafe {
            self.device.destroy_buffer(block.buffer, None);
            self.device.free_memory(block.memory, None);
        }
    }

    /// Bytes free and in all, of the heap that `kind` comes from. What blocks keep unused counts as free.
    ///
    /// # Errors
    /// `Driver` or `Fault`.
    pub(crate) fn info(&self, kind: MemoryKind) -> Result<MemoryInfo> {
        let Logical { seen, loader, .. } = &*self.device;
        let (heap, total) = self.heap(kind);
        let mut state = self.state();
        self.collect(&mut state, false).map_err(|status| status.refused(&self.lost))?;
        let blocks = || state.pool_of(kind).0.iter().flatten();
        let (held, used) =
            (blocks().map(|b| b.ranges.bytes()).sum::<u64>(), blocks().map(|b| b.ranges.used()).sum::<u64>());
        let taken = if seen.facts.can.memory_budget {
            let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
            let mut properties = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
            // SAFETY: the device has the extension.
            unsafe { loader.instance.get_physical_device_memory_properties2(seen.raw, &mut properties) };
            total.saturating_sub(budget.heap_budget[heap].saturating_sub(budget.heap_usage[heap])).saturating_sub(held)
        } else {
            0
        };
        Ok(MemoryInfo { free: total.saturating_sub(taken).saturating_sub(used), total })
    }

    /// The heap that `kind` comes from, and its bytes.
    fn heap(&self, kind: MemoryKind) -> (usize, u64) {
        let memory = &self.device.seen.memory;
        let best = kinds(memory, kind).next().map_or(0, |at| memory.memory_types[at as usize].heap_index as usize);
        (best, memory.memory_heaps[best].size)
    }

    fn full(&self, wanted: u64, kind: MemoryKind) -> Result<ErrorKind> {
        let MemoryInfo { free, total } = self.info(kind)?;
        Ok(ErrorKind::OutOfMemory { wanted, free, total })
    }

    fn note(&self, range: Range) {
        let fences = self.timelines.fences();
        let mut state = self.state();
        if fences.is_empty() {
            return state.pool(range.kind).give(range);
        }
        state.dropped.push_back(Dropped { range, fences });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Nobody holds a range or a queue any more, and a queue waits for its work before it goes.
        let state = std::mem::take(self.state.get_mut().unwrap_or_else(PoisonError::into_inner));
        state.device.0.into_iter().chain(state.pinned.0).flatten().for_each(|block| self.free(block));
    }
}

impl State {
    fn pool(&mut self, kind: MemoryKind) -> &mut Pool {
        match kind {
            MemoryKind::Device => &mut self.device,
            MemoryKind::Pinned => &mut self.pinned,
        }
    }

    fn pool_of(&self, kind: MemoryKind) -> &Pool {
        match kind {
            MemoryKind::Device => &self.device,
            MemoryKind::Pinned => &self.pinned,
        }
    }
}

impl Pool {
    fn insert(&mut self, block: Block) {
        match self.0.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(block),
            None => self.0.push(Some(block)),
        }
    }

    fn give(&mut self, range: Range) {
        let block = self.0[range.block].as_mut().expect("a block stays while a range of it is held");
        block.ranges.give(range.start, range.bytes);
    }
}

/// Types of memory for `kind`, best first.
fn kinds(memory: &vk::PhysicalDeviceMemoryProperties, kind: MemoryKind) -> impl Iterator<Item = u32> {
    use vk::MemoryPropertyFlags as Flag;
    let (must, likes, dislikes) = match kind {
        // What the host can see of the device's memory is often a small window of it.
        MemoryKind::Device => (Flag::DEVICE_LOCAL, Flag::empty(), Flag::HOST_VISIBLE),
        // Memory that is not cached is read by the host at a hundredth of its speed.
        MemoryKind::Pinned => (Flag::HOST_VISIBLE | Flag::HOST_COHERENT, Flag::HOST_CACHED, Flag::DEVICE_LOCAL),
    };
    let never = Flag::PROTECTED | Flag::LAZILY_ALLOCATED | Flag::DEVICE_COHERENT_AMD;
    let types = &memory.memory_types[..memory.memory_type_count as usize];
    let mut fit: Vec<(u32, vk::MemoryType)> = (0..).zip(types.iter().copied()).collect();
    fit.retain(|(_, one)| one.property_flags.contains(must) && !one.property_flags.intersects(never));
    fit.sort_by_key(|(_, one)| {
        let flags = one.property_flags;
        let heap = memory.memory_heaps[one.heap_index as usize].size;
        (!flags.contains(likes), flags.intersects(dislikes), std::cmp::Reverse(heap))
    });
    fit.into_iter().map(|(index, _)| index)
}

impl Held {
    /// The device's address of the first byte.
    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }

    /// How long it is: what was asked for, rounded up.
    pub(crate) fn bytes(&self) -> u64 {
        self.range.bytes
    }
}

impl Allocation for Held {
    fn host(&self) -> Option<NonNull<u8>> {
        self.host
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.note(self.range);
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { kind, bytes, .. } = self.range;
        write!(f, "{bytes} bytes of {kind:?} memory at {:#x}", self.addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vk::MemoryPropertyFlags as Flag;

    /// A card with a window into its memory, as drivers list them.
    fn card() -> vk::PhysicalDeviceMemoryProperties {
        let mut memory =
            vk::PhysicalDeviceMemoryProperties { memory_type_count: 5, memory_heap_count: 3, ..Default::default() };
        let types = [
            (Flag::HOST_VISIBLE | Flag::HOST_COHERENT, 1),
            (Flag::DEVICE_LOCAL | Flag::HOST_VISIBLE | Flag::HOST_COHERENT, 2),
            (Flag::HOST_VISIBLE | Flag::HOST_COHERENT | Flag::HOST_CACHED, 1),
            (Flag::DEVICE_LOCAL | Flag::PROTECTED, 0),
            (Flag::DEVICE_LOCAL, 0),
        ];
        for (at, (property_flags, heap_index)) in types.into_iter().enumerate() {
            memory.memory_types[at] = vk::MemoryType { property_flags, heap_index };
        }
        for (at, size) in [8 << 30, 32 << 30, 256 << 20].into_iter().enumerate() {
            memory.memory_heaps[at].size = size;
        }
        memory
    }

    #[test]
    fn types_are_chosen_by_what_they_are_for() {
        assert_eq!(kinds(&card(), MemoryKind::Device).collect::<Vec<_>>(), [4, 1]);
        assert_eq!(kinds(&card(), MemoryKind::Pinned).collect::<Vec<_>>(), [2, 0, 1]);
    }
}

//! Starting a kernel: the shortest way from a plan to a command buffer.

use crate::{
    commands,
    device::VulkanDevice,
    driver::{Logical, PUSH_BYTES},
    hazards::Hazards,
    pipelines::{Build, Function},
    queue::VulkanQueue,
};
use ash::vk;
use kp_hal::{
    Device, DeviceId, Launch, Plan, Queue, Result, Slice, Variant,
    op::{Args, Op, Problem},
};
use std::sync::Arc;

/// A kernel's arguments, as they are pushed: a `repr(C)` structure without padding, of at most 128 bytes. [`push!`] makes one.
///
/// # Safety
/// - Every byte of a value is initialised: no padding.
pub(crate) unsafe trait Push: Copy + Send + Sync + 'static {}

/// Declares a kernel's arguments, in the order in which its source does.
macro_rules! push {
    ($(#[$doc:meta])* struct $name:ident { $($(#[$of:meta])* $field:ident: $number:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        #[repr(C)]
        struct $name { $($(#[$of])* $field: $number,)* }

        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$number>())*, "arguments have no padding");

        // SAFETY: the fields are numbers, and fill the structure.
        unsafe impl $crate::launch::Push for $name {}
    };
}
pub(crate) use push;

/// Arguments of a kernel that solves a problem of `O` in one launch: made with the plan, all but what a launch brings.
pub(crate) trait Arguments<O: Op>: Push {
    /// These with the addresses and scalars of `args`.
    #[must_use]
    fn with(self, args: &O::Args<'_>) -> Self;
}

/// The address of an operand that a problem may do without; 0 then.
pub(crate) fn addr(slice: &Option<Slice<'_>>) -> u64 {
    slice.as_ref().map_or(0, Slice::addr)
}

/// [`Plan::new`], of launches that wait for those before them as they must.
///
/// # Safety
/// As there.
pub(crate) unsafe fn planned<O: Op>(
    kernel: &'static str,
    variant: Variant,
    device: DeviceId,
    p: &Problem<O::Spec>,
    scratch_bytes: u64,
    code: Box<dyn Launch<O>>,
) -> Plan<O> {
    // SAFETY: passed on.
    unsafe { Plan::new(kernel, variant, device, p, scratch_bytes, Box::new(Told(code))) }
}

/// Launches whose queue is told what they access: their operands, as every plan promises, and scratch, of which they ask for the address.
struct Told<O: Op>(Box<dyn Launch<O>>);

impl<O: Op> Launch<O> for Told<O> {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &O::Args<'_>) -> Result<()> {
        let queue: &mut VulkanQueue = queue.downcast_mut().expect("same device, so same backend");
        queue.told(
            |hazards| args.each_view(|addr, bytes, writes| hazards.access(addr, bytes, writes)),
            // SAFETY: passed on.
            |queue| unsafe { self.0.launch(queue, args) },
        )
    }
}

/// A plan's one launch.
#[derive(Debug)]
pub(crate) struct Once<A> {
    name: &'static str,
    function: Function,
    groups: u32,
    arguments: A,
}

impl<A> Once<A> {
    /// Of the kernel that `build` describes, for `items` pieces of work that its workgroups take in turn.
    ///
    /// # Errors
    /// `Driver` if the driver refuses the kernel.
    pub(crate) fn new(
        device: &Arc<dyn Device>,
        name: &'static str,
        build: &Build,
        items: u64,
        arguments: A,
    ) -> Result<Self> {
        let device: &VulkanDevice = device.downcast_ref().expect("a device of this backend");
        let function = device.function(build)?;
        Ok(Self { name, function, groups: groups(items, device.max_groups()), arguments })
    }
}

impl<O: Op, A: Arguments<O>> Launch<O> for Once<A> {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &O::Args<'_>) -> Result<()> {
        if self.groups == 0 {
            return Ok(());
        }
        let queue: &mut VulkanQueue = queue.downcast_mut().expect("same device, so same backend");
        // SAFETY: the function takes `A` and came from the plan's device; the rest is the caller's promise.
        unsafe { queue.launch(self.name, self.function, self.groups, &self.arguments.with(args)) }
    }
}

/// Workgroups that share `items` among them: as many as there are, up to `most`; each takes the next when it is done.
pub(crate) fn groups(items: u64, most: u32) -> u32 {
    items.min(most.into()) as u32
}

impl VulkanQueue {
    /// Lets `launch` enqueue commands that access nothing but what `tell` tells, and scratch.
    #[inline]
    pub(crate) fn told(
        &mut self,
        tell: impl FnOnce(&mut Hazards),
        launch: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.hazards().begin();
        tell(self.hazards());
        let launched = launch(self);
        self.hazards().end();
        launched
    }

    /// Enqueues `function` in `groups` workgroups along x, behind everything before it that it [must wait](crate::hazards) for: all of
    /// it, unless it is [told](Self::told) of. Does not allocate once the queue has been used, look up or wait; `name` is what a fault
    /// will call it.
    ///
    /// # Errors
    /// `Fault` if earlier work failed, `Driver` if the driver refuses.
    ///
    /// # Safety
    /// - `function` came from this queue's device and takes a `P`.
    /// - The memory that it reads and writes is alive until it has run, and nothing unordered with it writes what it
    ///   reads, or accesses what it writes.
    #[inline]
    pub(crate) unsafe fn launch<P: Push>(
        &mut self,
        name: &'static str,
        function: Function,
        groups: u32,
        push: &P,
    ) -> Result<()> {
        self.usable()?;
        let must_wait = self.hazards().must_wait();
        self.record(name, |device, buffer| {
            if must_wait {
                commands::barrier(device, buffer);
            }
            // SAFETY: the caller's promise.
            unsafe { record(device, buffer, function, groups, push) };
        })
    }
}

/// Records `function`.
///
/// # Safety
/// - `buffer` is being recorded to, and is of `device`, as `function` is, which takes a `P`.
/// - The memory that it reads and writes is as `VulkanQueue::launch` asks.
#[inline]
pub(crate) unsafe fn record<P: Push>(
    device: &Logical,
    buffer: vk::CommandBuffer,
    function: Function,
    groups: u32,
    push: &P,
) {
    const { assert!(size_of::<P>() <= PUSH_BYTES as usize, "arguments fit what every driver has room for") };
    // SAFETY: `P` promises that all its bytes are initialised.
    let bytes = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(push).cast::<u8>(), size_of::<P>()) };
    // SAFETY: the buffer is being recorded to; pipeline and layout are of its device and stay; the number of groups is within the
    // device's limits, by `groups`; open shaders run only where there is room for their numbers, which are bytes.
    unsafe {
        device.cmd_bind_pipeline(buffer, vk::PipelineBindPoint::COMPUTE, function.raw);
        device.cmd_push_constants(buffer, device.layout, vk::ShaderStageFlags::COMPUTE, 0, bytes);
        if function.numbers.0 != 0 {
            let numbers = &function.numbers.1[..usize::from(function.numbers.0)];
            let bytes: &[u8] = std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers));
            device.cmd_push_constants(buffer, device.layout, vk::ShaderStageFlags::COMPUTE, PUSH_BYTES, bytes);
        }
        device.cmd_dispatch(buffer, groups, 1, 1);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_grid_is_never_past_what_the_device_takes() {
        assert_eq!(
            [0, 7, 65_535, 65_536, u64::MAX].map(|items| super::groups(items, 65_535)),
            [0, 7, 65_535, 65_535, 65_535]
        );
    }
}

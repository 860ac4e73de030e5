//! Memory, queues, launches and failures on a real device. Without one each test prints why it did nothing;
//! `KP_REQUIRE=nvidia` makes that a failure.

mod copies;
mod faults;
mod foreign;
mod kernels;
mod large;
mod memory;
mod peers;
mod queues;
mod two;

use kp_hal::{Buffer, Device, MemoryKind, Queue};
use kp_nvidia::{BACKEND, Function, NvidiaDevice};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Taken alone by tests that want all of the memory, together by the rest.
static MEMORY: RwLock<()> = RwLock::new(());

/// The first device, and what keeps greedy tests away; `None` if there is none, which was printed.
fn device() -> Option<(Arc<dyn Device>, RwLockReadGuard<'static, ()>)> {
    Some((open()?, MEMORY.read().expect("no test failed while it had all memory")))
}

/// The first device, with no other test running.
fn whole_device() -> Option<(Arc<dyn Device>, RwLockWriteGuard<'static, ()>)> {
    let alone = MEMORY.write().expect("no test failed while it had all memory");
    Some((open()?, alone))
}

fn open() -> Option<Arc<dyn Device>> {
    let required = std::env::var("KP_REQUIRE").is_ok_and(|names| names.split(',').any(|name| name.trim() == "nvidia"));
    let opened = BACKEND.devices().and_then(|list| match list.first() {
        Some(info) => BACKEND.open(info.index).map(Some),
        None => Ok(None),
    });
    match opened {
        Ok(Some(device)) => Some(device),
        Ok(None) if !required => skip("the driver has no device"),
        Err(e) if !required => skip(&e.to_string()),
        Ok(None) => panic!("KP_REQUIRE asks for nvidia, and the driver has no device"),
        Err(e) => panic!("KP_REQUIRE asks for nvidia: {e}"),
    }
}

fn skip(why: &str) -> Option<Arc<dyn Device>> {
    println!("skipped: {why}");
    None
}

fn queue(device: &Arc<dyn Device>) -> Box<dyn Queue> {
    device.clone().queue().expect("a queue")
}

fn alloc(device: &Arc<dyn Device>, bytes: u64) -> Buffer {
    device.clone().alloc(bytes, MemoryKind::Device).expect("there is room")
}

/// Bytes that differ from their neighbours, and from those of another seed.
fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let word = |i: u64| (i + seed * 1_000_003).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    (0..bytes as u64).map(|i| word(i) as u8).collect()
}

fn contents(queue: &mut dyn Queue, buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.bytes() as usize];
    queue.download(&mut bytes, buffer.slice()).expect("as long as the buffer");
    bytes
}

/// The first 32-bit number of a buffer.
fn word_of(queue: &mut dyn Queue, buffer: &Buffer) -> u32 {
    u32::from_le_bytes(contents(queue, buffer)[..4].try_into().expect("four bytes"))
}

/// The bytes of a pinned buffer, as the host sees them.
#[expect(clippy::mut_from_ref, reason = "whose turn it is, host's or device's, is for the test to know")]
fn host_bytes(pinned: &Buffer) -> &mut [u8] {
    let host = pinned.host().expect("pinned memory is the host's");
    // SAFETY: that many bytes for as long as the buffer lives; no queue is at work on them when a test looks.
    unsafe { std::slice::from_raw_parts_mut(host.as_ptr(), pinned.bytes() as usize) }
}

/// A kernel of [`PTX`].
fn function(device: &Arc<dyn Device>, entry: &str) -> Function {
    let device: &NvidiaDevice = device.downcast_ref().expect("a device of this backend");
    // SAFETY: PTX that ends with NUL.
    unsafe { device.load(PTX.as_bytes(), entry) }.expect("the driver takes plain PTX")
}

/// `store(p, v)` writes the 32-bit v to p; `add(p, v)` adds it there; `spin(ns)` waits; `nothing()` does nothing.
/// Text for the driver's own compiler, so that these tests need no other.
const PTX: &str = "
.version 7.8
.target sm_70
.address_size 64
.visible .entry store(.param .u64 p, .param .u32 v)
{
    .reg .u64 %a;
    .reg .u32 %v;
    ld.param.u64 %a, [p];
    ld.param.u32 %v, [v];
    st.global.u32 [%a], %v;
    ret;
}
.visible .entry add(.param .u64 p, .param .u32 v)
{
    .reg .u64 %a;
    .reg .u32 %v, %o;
    ld.param.u64 %a, [p];
    ld.param.u32 %v, [v];
    atom.global.add.u32 %o, [%a], %v;
    ret;
}
.visible .entry spin(.param .u64 ns)
{
    .reg .u64 %n, %from, %to, %d;
    .reg .pred %more;
    ld.param.u64 %n, [ns];
    mov.u64 %from, %globaltimer;
again:
    mov.u64 %to, %globaltimer;
    sub.u64 %d, %to, %from;
    setp.lt.u64 %more, %d, %n;
    @%more bra again;
    ret;
}
.visible .entry nothing()
{
    ret;
}
\0";

//! Device memory is host memory: an address is a pointer. Blocks that are given back wait for the next request of their size.

use crate::caps::fetches_runs;
#[cfg(target_arch = "x86_64")]
use crate::simd;
use kp_hal::{Allocation, Buffer, DeviceId, Slice, SliceMut};
use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError},
};

/// Every buffer starts on a multiple of this, in bytes: a cache line pair, and twice the widest vector.
const ALIGN: usize = 256;

/// Bytes of a huge page, where there are such.
const HUGE_PAGE: usize = 2 << 20;

/// From this many bytes on, an allocation begins on a huge page: the room lost before it is at most half of it.
const LARGE: usize = 2 * HUGE_PAGE;

/// Asks for huge pages under `bytes` bytes from `first` on, which nothing has touched: a hundredth of the page faults, and
/// address translations that stay in the processor's tables. A system that has none to give says so, and nothing is lost.
fn take_huge_pages(first: NonNull<u8>, bytes: usize) {
    #[cfg(target_os = "linux")]
    // SAFETY: the bytes are allocated, and whatever pages lie under them, they hold the same.
    let _ = unsafe { rustix::mm::madvise(first.as_ptr().cast(), bytes, rustix::mm::Advice::LinuxHugepage) };
    #[cfg(not(target_os = "linux"))]
    let _ = (first, bytes);
}

/// Bytes of the host's heap.
#[derive(Debug)]
pub(crate) struct Host {
    /// There until it is dropped.
    block: Option<Block>,
}

impl Host {
    /// `bytes` bytes, or `None` if there is no room. They are zeros or what an earlier owner left, so that reading what
    /// nothing wrote is defined; large requests may get untouched pages, which cost nothing until used.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        let block = take_spare(bytes).or_else(|| Block::new(bytes))?;
        Some(Self { block: Some(block) })
    }

    fn block(&self) -> &Block {
        self.block.as_ref().expect("it is not dropped yet")
    }

    pub(crate) fn first(&self) -> NonNull<u8> {
        self.block().first
    }

    pub(crate) fn bytes(&self) -> usize {
        self.block().bytes
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: all of them are written, and whoever borrows them does so alone.
        unsafe { std::slice::from_raw_parts_mut(self.first().as_ptr(), self.bytes()) }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            keep_spare(block);
        }
    }
}

/// Blocks that were given back, for requests of just their size, the oldest first: a program asks for the same sizes again
/// and again, and fresh pages cost as much as writing them.
static SPARE: Mutex<Vec<Block>> = Mutex::new(Vec::new());

/// Most bytes that all spare blocks have.
const SPARE_BYTES: usize = 64 << 20;

/// Fewest bytes of one: the allocator is good at less.
const SPARE_LEAST: usize = 16 << 10;

fn take_spare(bytes: usize) -> Option<Block> {
    if bytes < SPARE_LEAST {
        return None;
    }
    let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
    let at = spare.iter().rposition(|block| block.bytes == bytes)?;
    Some(spare.remove(at))
}

fn keep_spare(block: Block) {
    if !(SPARE_LEAST..=SPARE_BYTES).contains(&block.bytes) {
        return;
    }
    let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
    spare.push(block);
    let mut left = SPARE_BYTES;
    let fit = spare.iter().rev().take_while(|block| left.checked_sub(block.bytes).map(|rest| left = rest).is_some());
    let too_old = spare.len() - fit.count();
    let old: Vec<Block> = spare.drain(..too_old).collect();
    // The allocator takes its time with large blocks, which others need not wait for.
    drop(spare);
    drop(old);
}

/// Zeroed bytes of the allocator's, and what it needs to take them back.
#[derive(Debug)]
struct Block {
    /// The first aligned byte of `whole`.
    first: NonNull<u8>,
    bytes: usize,
    whole: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the bytes have no owner but this value, and it only ever hands out their address.
unsafe impl Send for Block {}
// SAFETY: as above; a shared `Block` gives no access to the bytes.
unsafe impl Sync for Block {}

impl Block {
    fn new(bytes: usize) -> Option<Self> {
        let align = if bytes < LARGE { ALIGN } else { HUGE_PAGE };
        // Aligned by hand: asked for aligned zeros, the allocator writes them all; asked for zeros, it takes fresh pages.
        let layout = Layout::from_size_align(bytes.checked_add(align)?, 1).ok()?;
        // SAFETY: the layout's size is not zero.
        let whole = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        // SAFETY: less than `align` bytes further, and the block has that many more than `bytes`.
        let first = unsafe { whole.add(whole.as_ptr().align_offset(align)) };
        if align == HUGE_PAGE {
            take_huge_pages(first, bytes);
        }
        Some(Self { first, bytes, whole, layout })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: `whole` came from `alloc_zeroed` with this layout and is freed once, here.
        unsafe { dealloc(self.whole.as_ptr(), self.layout) }
    }
}

impl Allocation for Host {
    fn host(&self) -> Option<NonNull<u8>> {
        Some(self.first())
    }
}

/// Allocates `bytes` for `device`; `None` if there is no room.
pub(crate) fn allocate(device: DeviceId, bytes: u64) -> Option<Buffer> {
    let host = usize::try_from(bytes).ok().and_then(Host::new)?;
    let addr = host.first().as_ptr().expose_provenance() as u64;
    // SAFETY: the address names `bytes` bytes that live as long as `host`, which nothing else accesses.
    Some(unsafe { Buffer::from_raw(device, addr, bytes, Arc::new(host)) })
}

/// The bytes of a view.
///
/// # Safety
/// - The view's device is a CPU device, so its address is a pointer.
/// - Nothing writes the bytes for `'a`.
pub(crate) unsafe fn bytes<'a>(view: &Slice<'a>) -> &'a [u8] {
    // SAFETY: a `Slice` names that many initialised bytes; the rest is the caller's promise, in order.
    unsafe { std::slice::from_raw_parts(pointer(view.addr(), view.bytes()), view.bytes() as usize) }
}

/// The bytes of an exclusive view.
///
/// # Safety
/// - The view's device is a CPU device, so its address is a pointer.
/// - Nothing else accesses the bytes for as long as the result lives.
#[expect(clippy::mut_from_ref, reason = "the exclusiveness is the caller's promise")]
pub(crate) unsafe fn bytes_mut<'a>(view: &'a SliceMut<'_>) -> &'a mut [u8] {
    // SAFETY: a `SliceMut` names that many initialised bytes; the rest is the caller's promise, in order.
    unsafe { std::slice::from_raw_parts_mut(pointer(view.addr(), view.bytes()), view.bytes() as usize) }
}

/// A number that any bits are a value of.
///
/// # Safety
/// Every pattern of its bits is a value, and it has no padding.
pub(crate) unsafe trait Number: Copy + 'static {}
// SAFETY: any four bytes are an f32.
unsafe impl Number for f32 {}
// SAFETY: any eight bytes are an f64.
unsafe impl Number for f64 {}

/// Bytes as numbers, if they lie as the machine's own: aligned, and the lowest byte first.
pub(crate) fn as_numbers<T: Number>(bytes: &[u8]) -> Option<&[T]> {
    // SAFETY: any bytes are a `T`.
    let (before, numbers, after) = unsafe { bytes.align_to() };
    (cfg!(target_endian = "little") && before.is_empty() && after.is_empty()).then_some(numbers)
}

/// Bytes as numbers to write, where [`as_numbers`] would read them.
pub(crate) fn as_numbers_mut<T: Number>(bytes: &mut [u8]) -> Option<&mut [T]> {
    // SAFETY: any bytes are a `T`.
    let (before, numbers, after) = unsafe { bytes.align_to_mut() };
    (cfg!(target_endian = "little") && before.is_empty() && after.is_empty()).then_some(numbers)
}

/// Numbers as bytes, if they lie as codes of their own type do: the lowest byte first.
pub(crate) fn as_bytes<T: Number>(numbers: &[T]) -> Option<&[u8]> {
    // SAFETY: numbers have no padding, and the borrow is passed on.
    let bytes = unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) };
    cfg!(target_endian = "little").then_some(bytes)
}

/// Copies `src` to `dst` past the caches, for outputs that they could not hold: otherwise each line of `dst` is read
/// before it is written. `settle` before another thread looks.
///
/// # Panics
/// If the lengths differ.
#[cfg(target_arch = "x86_64")]
pub(crate) fn stream(src: &[u8], dst: &mut [u8]) {
    assert_eq!(src.len(), dst.len(), "a copy");
    // Whole lines only: a part of one, written so, is merged in main memory.
    let head = dst.as_ptr().align_offset(LINE).min(dst.len());
    let (first, lines) = dst.split_at_mut(head);
    first.copy_from_slice(&src[..head]);
    let (lines, last) = lines.as_chunks_mut::<LINE>();
    let (from, rest) = src[head..].as_chunks::<LINE>();
    if simd::has_avx512() {
        // SAFETY: it was just asked for.
        unsafe { stream_by_lines(from, lines) };
    } else {
        stream_by_quarters(from, lines);
    }
    last.copy_from_slice(rest);
}

/// The same of numbers.
///
/// # Panics
/// If the lengths differ.
pub(crate) fn stream_numbers<T: Number>(src: &[T], dst: &mut [T]) {
    let (from, to) = (src.as_ptr().cast(), dst.as_mut_ptr().cast());
    // SAFETY: numbers have no padding, and the borrows are passed on.
    unsafe {
        let from = std::slice::from_raw_parts(from, size_of_val(src));
        stream(from, std::slice::from_raw_parts_mut(to, size_of_val(dst)));
    }
}

/// The lines of it, which are aligned, in four stores each.
#[cfg(target_arch = "x86_64")]
fn stream_by_quarters(from: &[[u8; LINE]], lines: &mut [[u8; LINE]]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    for (to, from) in lines.iter_mut().zip(from) {
        let (to, from) = (to.as_mut_ptr().cast::<__m128i>(), from.as_ptr().cast::<__m128i>());
        for i in 0..LINE / size_of::<__m128i>() {
            // SAFETY: every x86-64 has SSE2; a line is four vectors, and `to` is aligned to one.
            unsafe { _mm_stream_si128(to.add(i), _mm_loadu_si128(from.add(i))) };
        }
    }
}

/// The same, a store for each.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn stream_by_lines(from: &[[u8; LINE]], lines: &mut [[u8; LINE]]) {
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_stream_si512};
    for (to, from) in lines.iter_mut().zip(from) {
        // SAFETY: a line each, and `to` is aligned to one.
        unsafe { _mm512_stream_si512(to.as_mut_ptr().cast(), _mm512_loadu_si512(from.as_ptr().cast())) };
    }
}

/// Copies `src` to `dst`: this architecture has no such stores in stable Rust.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn stream(src: &[u8], dst: &mut [u8]) {
    dst.copy_from_slice(src);
}

/// Asks for the line at `at`, wherever that points, to be brought to the cache of level `CACHE`: the first or the second.
#[inline(always)]
pub(crate) fn prefetch<const CACHE: usize>(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE, and a hint reads nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        if CACHE == 1 { _mm_prefetch::<_MM_HINT_T0>(at.cast()) } else { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// How often [`ask_again`] asks, and how many bytes are between.
const TIMES: usize = 3;
const BETWEEN: usize = 4096;

/// Asks the second cache for the line at `at`, and again for those that were asked for a while ago: Zen 4 drops what it is asked for while
/// as many lines are on their way as it has room for, which a loop that is faster than memory soon sees to, and each line that was dropped is
/// waited for. Of 256 kilobytes that were asked for as fast as that goes little had come, so that reading them took as long as without,
/// 36 GB/s after 31; all had when they were asked for at 19 GB/s, and were read at 110. Asking takes a cycle, which only loops have to spare
/// that are faster than memory.
#[inline(always)]
pub(crate) fn ask_again(at: *const u8) {
    (0..TIMES).for_each(|time| prefetch::<2>(at.wrapping_sub(time * BETWEEN)));
}

/// Asks for `bytes` to be brought near, to the second cache.
#[inline(always)]
pub(crate) fn fetch_ahead(bytes: &[u8]) {
    (0..bytes.len()).step_by(LINE).for_each(|at| prefetch::<2>(bytes.as_ptr().wrapping_add(at)));
}

/// What is read soon, and asked of the second cache in shares: lines of some pages in turn, where the processor then fetches on in each of them.
#[derive(Clone, Copy)]
pub(crate) struct Soon<'a> {
    bytes: &'a [u8],
    /// Parts that are asked for side by side, as a power of two, and lines of each.
    parts: u32,
    lines: usize,
    /// Lines of a share.
    share: usize,
}

impl<'a> Soon<'a> {
    /// `bytes` in so many shares.
    pub(crate) fn of(bytes: &'a [u8], shares: usize) -> Self {
        let pages = bytes.len() / PAGE;
        let parts = if pages > 1 && fetches_runs() { pages.ilog2().min(MOST_PARTS) } else { 0 };
        let lines = bytes.len().div_ceil(LINE).div_ceil(1 << parts);
        Self { bytes, parts, lines, share: (lines << parts).div_ceil(shares.max(1)) }
    }

    /// Asks for share `i`.
    #[inline(always)]
    pub(crate) fn ask(&self, i: usize) {
        self.places(i).for_each(|place| prefetch::<2>(self.bytes.as_ptr().wrapping_add(place)));
    }

    /// Where the lines of share `i` begin; some that fill up the last part are past the end.
    #[inline(always)]
    fn places(&self, i: usize) -> impl Iterator<Item = usize> + use<> {
        let Self { parts, lines, share, .. } = *self;
        let all = i * share..((i + 1) * share).min(lines << parts);
        all.map(move |line| ((line & ((1 << parts) - 1)) * lines + (line >> parts)) * LINE)
    }
}

/// Bytes that a processor fetches on in by itself.
pub(crate) const PAGE: usize = 4 << 10;

/// Most parts, as a power of two: a loop that only reads takes 0.84 of the time by four or eight.
const MOST_PARTS: u32 = 3;

/// Orders what this thread streamed before all it writes from here on.
pub(crate) fn settle() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// The next `len` numbers of scratch, which starts at a multiple of 64 bytes, as does what is left.
pub(crate) fn cut<'s, T: Number>(scratch: &mut &'s mut [u8], len: usize) -> &'s mut [T] {
    let bytes = (len * size_of::<T>()).next_multiple_of(64);
    let (head, tail) = std::mem::take(scratch).split_at_mut(bytes);
    *scratch = tail;
    &mut numbers_mut(head)[..len]
}

/// Scratch as numbers.
///
/// # Panics
/// If `bytes` start or end within a number.
pub(crate) fn numbers_mut<T: Number>(bytes: &mut [u8]) -> &mut [T] {
    // SAFETY: any bytes are a `T`.
    let (before, numbers, after) = unsafe { bytes.align_to_mut() };
    assert!(before.is_empty() && after.is_empty(), "scratch is cut at multiples of its numbers' size");
    numbers
}

/// Scratch as numbers to read.
///
/// # Panics
/// As [`numbers_mut`].
pub(crate) fn numbers_of<T: Number>(bytes: &[u8]) -> &[T] {
    // SAFETY: any bytes are a `T`.
    let (before, numbers, after) = unsafe { bytes.align_to() };
    assert!(before.is_empty() && after.is_empty(), "scratch is cut at multiples of its numbers' size");
    numbers
}

/// The pointer an address stands for; any aligned one for no bytes, whose address may be anything.
fn pointer(addr: u64, bytes: u64) -> *mut u8 {
    if bytes == 0 { NonNull::dangling().as_ptr() } else { std::ptr::with_exposed_provenance_mut(addr as usize) }
}

#[cfg(test)]
mod tests {
    use super::{LINE, Soon};

    /// Shares have every line once, however many pages take turns.
    #[test]
    fn shares_have_every_line() {
        for len in [0, 1, 64, 100, 4096, 8192, 16384, 20000, 44032, 70000] {
            let bytes = vec![0; len];
            for shares in [1, 3, 16, 200] {
                let soon = Soon::of(&bytes, shares);
                let mut times = vec![0; len.div_ceil(LINE)];
                for place in (0..shares).flat_map(|i| soon.places(i)).filter(|&place| place < len) {
                    times[place / LINE] += 1;
                }
                assert!(times.iter().all(|&times| times == 1), "{len} bytes in {shares}: {times:?}");
            }
        }
    }
}

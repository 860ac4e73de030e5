//! A backend in host memory, as small as can be, whose only kernel can be made wrong in many ways.

use kp_hal::{
    Allocation, Backend, Buffer, Caps, Device, DeviceId, DeviceInfo, DeviceKind, Error, ErrorKind, Kernel, Kernels,
    Launch, MemoryInfo, MemoryKind, Nanos, Plan, Point, Queue, Result, Slice, SliceMut, Support, Unsupported, Variant,
    Variants,
    device::same_length,
    op::{Addend, Epilogue, Gemm, GemmArgs, GemmProblem, Order, Scheme},
};
use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    time::Instant,
};

/// How the kernel is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Defect {
    Nothing,
    OneElement,
    LastElementLeftOut,
    WritesPastTheEnd,
    WritesBeforeTheStart,
    WritesPadding,
    WritesInput,
    ReadsPadding,
    Nondeterministic,
    DependsOnOtherRows,
    Panics,
    ImpureSupport,
    NoEstimate,
    ReadsScratch,
    SumsInBf16,
    /// No defect, unless another kernel sums forwards.
    SumsBackwards,
}

pub(crate) struct Fake(pub(crate) &'static Kernels);

impl Backend for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let caps = Caps::new(DeviceKind::Cpu, "fake");
        Ok(vec![DeviceInfo { name: "Fake".into(), index: 0, driver: "none".into(), pci: None, uuid: None, caps }])
    }

    fn open(&self, index: u32) -> Result<Arc<dyn Device>> {
        let info = self.devices()?.into_iter().find(|d| d.index == index);
        let absent = || Error::from(ErrorKind::Unavailable { what: "fake", why: "there is one device".into() });
        Ok(Arc::new(Host { id: DeviceId::next(), info: info.ok_or_else(absent)?, queues: AtomicU32::new(0) }))
    }

    fn kernels(&self) -> &'static Kernels {
        self.0
    }
}

struct Host {
    id: DeviceId,
    info: DeviceInfo,
    queues: AtomicU32,
}

/// Pages of 256 bytes, so that every buffer is aligned.
#[derive(Debug)]
struct Pages(Box<[Page]>);

/// Atomics, since the bytes change by address while this handle is shared.
#[derive(Debug)]
#[repr(align(256))]
struct Page(#[expect(dead_code, reason = "reached by address")] [AtomicU8; 256]);

impl Pages {
    fn new(bytes: u64) -> Self {
        let page = |_| Page(std::array::from_fn(|_| AtomicU8::new(0xcd)));
        Self((0..bytes / 256 + 1).map(page).collect())
    }

    fn start(&self) -> *mut u8 {
        self.0.as_ptr().cast::<u8>().cast_mut()
    }
}

impl Allocation for Pages {
    fn host(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.start())
    }
}

const TOTAL: u64 = 1 << 32;

fn room_for(bytes: u64) -> Result<()> {
    if bytes <= TOTAL {
        Ok(())
    } else {
        Err(ErrorKind::OutOfMemory { wanted: bytes, free: TOTAL, total: TOTAL }.into())
    }
}

impl Device for Host {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryInfo> {
        Ok(MemoryInfo { free: TOTAL, total: TOTAL })
    }

    fn alloc(self: Arc<Self>, bytes: u64, _: MemoryKind) -> Result<Buffer> {
        room_for(bytes)?;
        let pages = Pages::new(bytes);
        let addr = pages.start() as u64;
        // SAFETY: the pages live as long as the buffer, nothing else knows them, and `host` is their address.
        Ok(unsafe { Buffer::from_raw(self.id, addr, bytes, Arc::new(pages)) })
    }

    fn queue(self: Arc<Self>) -> Result<Box<dyn Queue>> {
        let number = self.queues.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(Line { device: self.id, number, marks: Vec::new(), scratch: Vec::new() }))
    }
}

/// Runs everything at once, so every point is reached when it is named.
pub(crate) struct Line {
    device: DeviceId,
    number: u32,
    marks: Vec<Instant>,
    scratch: Vec<f32>,
}

/// Host bytes behind an address.
///
/// # Safety
/// - The memory is alive and nothing else accesses it meanwhile.
unsafe fn bytes<'a>(addr: u64, len: u64) -> &'a mut [u8] {
    // SAFETY: the caller's promise; an empty range may have any address, but a slice may not.
    unsafe {
        let start = if len == 0 { NonNull::dangling().as_ptr() } else { addr as *mut u8 };
        std::slice::from_raw_parts_mut(start, len as usize)
    }
}

impl Queue for Line {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn upload(&mut self, dst: SliceMut<'_>, src: &[u8]) -> Result<()> {
        same_length(dst.bytes(), src.len() as u64)?;
        // SAFETY: an exclusive slice of a live buffer of this device.
        unsafe { bytes(dst.addr(), dst.bytes()) }.copy_from_slice(src);
        Ok(())
    }

    fn download(&mut self, dst: &mut [u8], src: Slice<'_>) -> Result<()> {
        same_length(dst.len() as u64, src.bytes())?;
        // SAFETY: a shared slice of a live buffer, read only.
        dst.copy_from_slice(unsafe { bytes(src.addr(), src.bytes()) });
        Ok(())
    }

    fn copy(&mut self, dst: SliceMut<'_>, src: Slice<'_>) -> Result<()> {
        same_length(dst.bytes(), src.bytes())?;
        // SAFETY: an exclusive and a shared slice do not overlap.
        unsafe { bytes(dst.addr(), dst.bytes()).copy_from_slice(bytes(src.addr(), src.bytes())) };
        Ok(())
    }

    fn fill(&mut self, dst: SliceMut<'_>, byte: u8) -> Result<()> {
        // SAFETY: an exclusive slice of a live buffer.
        unsafe { bytes(dst.addr(), dst.bytes()) }.fill(byte);
        Ok(())
    }

    fn mark(&mut self) -> Result<Point> {
        self.marks.push(Instant::now());
        Ok(Point { queue: self.number, seq: self.marks.len() as u64 })
    }

    fn wait(&mut self, _: Point) -> Result<()> {
        Ok(())
    }

    fn reached(&mut self, _: Point) -> Result<bool> {
        Ok(true)
    }

    fn elapsed(&mut self, from: Point, to: Point) -> Result<Option<Nanos>> {
        let recent = |p: Point| p.seq + 1024 > self.marks.len() as u64;
        let time = |p: Point| self.marks[p.seq as usize - 1];
        Ok((recent(from) && recent(to)).then(|| (time(to) - time(from)).into()))
    }

    fn sync(&mut self) -> Result<()> {
        Ok(())
    }

    fn reserve_scratch(&mut self, bytes: u64) -> Result<()> {
        room_for(bytes)?;
        let len = self.scratch.len().max(bytes as usize / 4);
        self.scratch.resize(len, 0.0);
        Ok(())
    }

    fn fill_scratch(&mut self, byte: u8) -> Result<()> {
        self.scratch.fill(f32::from_ne_bytes([byte; 4]));
        Ok(())
    }
}

/// Three loops over f32 matrices of any layout.
pub(crate) struct Loops(pub(crate) Defect);

static CALLS: AtomicU64 = AtomicU64::new(0);

impl Kernel<Gemm> for Loops {
    fn name(&self) -> &'static str {
        "loops"
    }

    fn code(&self) -> u64 {
        self.0 as u64
    }

    fn supports(&self, _: &Caps, p: &GemmProblem) -> Support {
        if self.0 == Defect::ImpureSupport && CALLS.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            return Err(Unsupported::Feature { need: "luck" });
        }
        for (operand, m) in [("a", &p.a), ("b", &p.b), ("d", &p.d)] {
            if m.dtype() != kp_hal::DType::F32 || m.format.scheme != Scheme::None {
                return Err(Unsupported::DType { operand, got: m.dtype() });
            }
            if matches!(m.order, Order::Panel { .. }) {
                return Err(Unsupported::Layout { operand, got: m.order.to_string() });
            }
        }
        let plain = p.epilogue == Epilogue::default() && p.c == Addend::None && p.acc == kp_hal::op::Acc::F32;
        if plain { Ok(Variants::ONE) } else { Err(Unsupported::Option { option: "epilogue", got: "some".into() }) }
    }

    fn estimate(&self, caps: &Caps, problem: &GemmProblem, _: Variant) -> Nanos {
        if self.0 == Defect::NoEstimate { Nanos(u64::MAX) } else { Nanos::roofline(caps, problem) }
    }

    fn plan(&self, device: &Arc<dyn Device>, problem: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let code = Box::new(Run { problem: *problem, defect: self.0 });
        let scratch = if self.0 == Defect::ReadsScratch { 4096 } else { 0 };
        // SAFETY: `Run` solves this problem; where it leaves its operands on purpose, guards lie around them.
        Ok(unsafe { Plan::new("loops", variant, device.id(), problem, scratch, code) })
    }
}

struct Run {
    problem: GemmProblem,
    defect: Defect,
}

impl Launch<Gemm> for Run {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GemmArgs<'_>) -> Result<()> {
        let p = &self.problem;
        let line = queue.downcast_mut::<Line>().expect("same device, so same backend");
        let floats = |addr: u64, bytes: u64| {
            let start = if bytes == 0 { NonNull::dangling().as_ptr() } else { addr as *mut f32 };
            // SAFETY: checked arguments; the tests align everything to 4 bytes at least.
            unsafe { std::slice::from_raw_parts_mut(start, bytes as usize / 4) }
        };
        let a = floats(args.a.addr(), args.a.bytes());
        let b = floats(args.b.addr(), args.b.bytes());
        let d = floats(args.d.addr(), args.d.bytes());
        assert!(self.defect != Defect::Panics, "this kernel panics");
        for batch in 0..p.batch {
            for row in 0..p.m {
                for col in 0..p.n {
                    let term = |k: u32| {
                        a[(u64::from(batch) * p.a.stride + p.a.index(row, k, p.m)) as usize]
                            * b[(u64::from(batch) * p.b.stride + p.b.index(k, col, p.k)) as usize]
                    };
                    let sum: f32 = match self.defect {
                        // The order of the sum depends on the number of rows.
                        Defect::DependsOnOtherRows if p.m > 20 => (0..p.k).rev().map(term).sum(),
                        Defect::SumsBackwards => (0..p.k).rev().map(term).sum(),
                        Defect::SumsInBf16 => {
                            (0..p.k).map(term).fold(0.0, |s, x| f32::from_bits((s + x).to_bits() & 0xffff_0000))
                        }
                        Defect::Nondeterministic if CALLS.fetch_add(1, Ordering::Relaxed) % 7 < 3 => {
                            (0..p.k).rev().map(term).sum()
                        }
                        _ => (0..p.k).map(term).sum(),
                    };
                    let at = (u64::from(batch) * p.d.stride + p.d.index(row, col, p.m)) as usize;
                    d[at] = sum * args.alpha;
                }
            }
        }
        self.spoil(line, a, d);
        Ok(())
    }
}

impl Run {
    fn spoil(&self, line: &mut Line, a: &mut [f32], d: &mut [f32]) {
        let p = &self.problem;
        let Some(last) = d.len().checked_sub(1) else { return };
        match self.defect {
            Defect::OneElement => d[last] = 12345.0,
            Defect::LastElementLeftOut => d[last] = f32::from_bits(0x7fc0_0000),
            // SAFETY: buffers are whole pages with guards of some hundred bytes on both sides.
            Defect::WritesPastTheEnd => unsafe { *d.as_mut_ptr().add(d.len() + 3) = 1.0 },
            // SAFETY: as above.
            Defect::WritesBeforeTheStart => unsafe { *d.as_mut_ptr().sub(1) = 1.0 },
            Defect::WritesPadding if p.d.order == Order::Row && p.d.ld > p.n && p.m > 1 => d[p.n as usize] = 0.0,
            Defect::WritesInput if !a.is_empty() => a[0] = 1.0,
            Defect::ReadsPadding if p.a.order == Order::Row && p.a.ld > p.k && p.m > 1 => d[0] += a[p.k as usize] * 0.0,
            Defect::ReadsScratch => {
                d[0] += line.scratch[5] * 0.0;
            }
            _ => {}
        }
    }
}

/// The kernels of a backend, each with its defect.
pub(crate) fn kernels(defects: &[Defect]) -> &'static Kernels {
    let kernel = |&defect| -> &'static dyn Kernel<Gemm> { Box::leak(Box::new(Loops(defect))) };
    let gemm: Vec<_> = defects.iter().map(kernel).collect();
    Box::leak(Box::new(Kernels { gemm: gemm.leak(), ..Kernels::NONE }))
}

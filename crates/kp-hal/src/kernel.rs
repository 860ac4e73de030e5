//! What can be run: kernels are constants, plans are kernels made ready.

use crate::{
    caps::Caps,
    device::{Device, DeviceId, Graph, Queue},
    error::Result,
    op::{self, ArgError, Args, Needs, Op, Problem},
    support::{Support, Variant},
};
use std::{borrow::Cow, fmt, marker::PhantomData, sync::Arc, time::Duration};

/// One implementation of one operation. A constant: no state, no device.
///
/// `supports` and `estimate` are pure functions of their arguments. They call no
/// driver, so dispatch for a GPU is tested on a machine that has none.
pub trait Kernel<O: Op>: Sync {
    /// The stem of its source file: `sm90_e4m3_1d2d`. Also its name in wisdom,
    /// benchmarks and logs; changing it forgets measurements.
    fn name(&self) -> &'static str;

    /// A hash of its source, usually `const { source_hash(include_bytes!(..)) }`: asked for at each ranking. A measurement
    /// made with another is forgotten.
    fn code(&self) -> u64;

    /// The variants (tile shapes) that can run this, or the first reason none can.
    ///
    /// Whatever is supported here must also plan and run: conformance tries each.
    ///
    /// # Errors
    /// The reason, with its numbers.
    fn supports(&self, caps: &Caps, problem: &Problem<O::Spec>) -> Support;

    /// Predicted time on an idle device. Only compared, so consistent beats exact.
    fn estimate(&self, caps: &Caps, problem: &Problem<O::Spec>, variant: Variant) -> Nanos {
        let _ = variant;
        Nanos::roofline(caps, problem)
    }

    /// What someone who reads the ranking should know of this choice, in a few words: `pads m from 1 to 64`,
    /// `splits k in 4`. `None` if there is nothing to tell.
    ///
    /// As pure as `estimate`, and asked for by explanations only.
    fn note(&self, caps: &Caps, problem: &Problem<O::Spec>, variant: Variant) -> Option<Cow<'static, str>> {
        let _ = (caps, problem, variant);
        None
    }

    /// Loads, compiles and lays out everything a launch needs. Slow; may allocate.
    ///
    /// Never called by a thread while it records (see [`capturing`](crate::device::capturing)); another thread may
    /// be recording at the time.
    ///
    /// # Errors
    /// `OutOfMemory`, `Driver`, `Unavailable`; never `Unsupported`, which is for `supports`.
    fn plan(&self, device: &Arc<dyn Device>, problem: &Problem<O::Spec>, variant: Variant) -> Result<Plan<O>>;
}

/// The part of a plan only its backend understands.
pub trait Launch<O: Op>: Send + Sync {
    /// Enqueues the kernel. Does not block, allocate or look anything up.
    ///
    /// # Errors
    /// What the driver refuses now; failures of the kernel itself appear later, as `Fault`.
    ///
    /// # Safety
    /// - `args` were checked against the problem planned for.
    /// - `queue` and every buffer belong to the device planned for.
    /// - `queue` has reserved the scratch planned for.
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &O::Args<'_>) -> Result<()>;
}

/// A kernel ready to launch: one problem, one device. Facts plus one pointer.
///
/// Immutable, because `launch` trusts that these fields describe `code`.
pub struct Plan<O: Op> {
    kernel: &'static str,
    variant: Variant,
    problem: Problem<O::Spec>,
    device: DeviceId,
    scratch_bytes: u64,
    needs: Needs,
    code: Box<dyn Launch<O>>,
}

impl<O: Op> Plan<O> {
    /// Makes a plan. For backends, at the end of `Kernel::plan`.
    ///
    /// # Safety
    /// - `code` launches `kernel` for `problem` on `device`.
    /// - It reads and writes only the bytes that the problem's needs name, and `scratch_bytes` of scratch.
    pub unsafe fn new(
        kernel: &'static str,
        variant: Variant,
        device: DeviceId,
        problem: &Problem<O::Spec>,
        scratch_bytes: u64,
        code: Box<dyn Launch<O>>,
    ) -> Self {
        Self { kernel, variant, problem: *problem, device, scratch_bytes, needs: op::needs::<O>(problem), code }
    }

    /// Checks the arguments, then enqueues the kernel.
    ///
    /// # Errors
    /// `BadArgs` if a buffer is short, misaligned, missing, unasked for or on another device; `Driver` if the
    /// driver refuses. Failures *of* the kernel appear later, as `Fault`.
    #[inline]
    pub fn launch(&self, queue: &mut dyn Queue, args: &O::Args<'_>) -> Result<()> {
        args.check(&self.needs, self.device)?;
        if queue.device() != self.device {
            return Err(ArgError::WrongDevice { operand: "queue", plan: self.device, got: queue.device() }.into());
        }
        if self.scratch_bytes > 0 {
            queue.reserve_scratch(self.scratch_bytes)?;
        }
        // SAFETY: the three conditions were just established, in order.
        unsafe { self.code.launch(queue, args) }
    }

    /// Records `times` launches with the same arguments, to be replayed as often as wanted. The arguments are borrowed for as long as
    /// the recording is there, and for it alone: it may be replayed on another thread.
    ///
    /// # Errors
    /// As `launch`; `NotCapturable` on backends without graphs.
    pub fn record<'a>(&self, queue: &mut dyn Queue, args: &'a mut O::Args<'_>, times: u32) -> Result<Recording<'a>> {
        if self.scratch_bytes > 0 {
            queue.reserve_scratch(self.scratch_bytes)?;
        }
        let graph = queue.capture(|queue| (0..times).try_for_each(|_| self.launch(queue, args)))?;
        Ok(Recording { graph, buffers: PhantomData })
    }

    /// What it solves.
    #[inline]
    pub fn problem(&self) -> &Problem<O::Spec> {
        &self.problem
    }

    /// The kernel's name: `sm90_e4m3_1d2d`.
    pub fn kernel(&self) -> &'static str {
        self.kernel
    }

    /// The kernel's variant.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// Kernel and variant as wisdom and logs write them: `sm90_e4m3_1d2d#3`.
    pub fn label(&self) -> Label {
        Label { kernel: self.kernel, variant: self.variant }
    }

    /// The device it was made for.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Scratch that a launch reserves on its queue, in bytes.
    pub fn scratch_bytes(&self) -> u64 {
        self.scratch_bytes
    }

    /// Bytes and alignment of each operand.
    pub fn needs(&self) -> &Needs {
        &self.needs
    }
}

impl<O: Op> fmt::Debug for Plan<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plan({} = {})", self.problem, self.label())
    }
}

/// Launches recorded by [`Plan::record`]. It borrows their buffers, so that replaying needs no promise.
pub struct Recording<'a> {
    graph: Box<dyn Graph>,
    buffers: PhantomData<&'a ()>,
}

impl Recording<'_> {
    /// Submits the launches again.
    ///
    /// # Errors
    /// `BadArgs` if `queue` is of another device; what the driver refuses.
    pub fn replay(&self, queue: &mut dyn Queue) -> Result<()> {
        // SAFETY: the arguments are borrowed, hence their buffers alive, and exclusive to this plan's launches where they
        // are written.
        unsafe { self.graph.replay(queue) }
    }
}

impl fmt::Debug for Recording<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recording")
    }
}

/// A kernel and one of its variants; prints as `sm90_e4m3_1d2d#3`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Label {
    /// `Kernel::name`.
    pub kernel: &'static str,
    /// Index into the kernel's table.
    pub variant: Variant,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.kernel, self.variant.0)
    }
}

/// The kernels of one op, best first.
pub type KernelList<O> = &'static [&'static dyn Kernel<O>];

macro_rules! kernels {
    ($($(#[$doc:meta])* $field:ident: $op:ident,)*) => {
        /// All kernels of one backend: one list per op, best first.
        ///
        /// Backends write `Kernels { gemm: &[..], ..Kernels::NONE }`, so a new op here
        /// breaks no backend.
        #[derive(Clone, Copy)]
        pub struct Kernels { $(#[doc = concat!("Kernels of `", stringify!($field), "`.")] pub $field: KernelList<op::$op>,)* }

        impl Kernels {
            /// No kernel at all.
            pub const NONE: Self = Self { $($field: &[],)* };
            /// How many ops have a list.
            pub(crate) const OPS: usize = [$(stringify!($field)),*].len();
        }
    };
}
kernels! {
    activation: Activation,
    attention: Attention,
    attention_backward: AttentionBackward,
    cast: Cast,
    dequantize: Dequantize,
    gather: Gather,
    gemm: Gemm,
    grouped_gemm: GroupedGemm,
    norm: Norm,
    norm_backward: NormBackward,
    quantize: Quantize,
    reduce: Reduce,
    rope: Rope,
    softmax: Softmax,
}

/// Nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The floor under any kernel: the larger of compute time and memory time at the device's peaks.
    pub fn roofline<S: op::Spec>(caps: &Caps, problem: &Problem<S>) -> Self {
        let (compute, memory) = Self::floors(caps, problem);
        compute.max(memory)
    }

    /// Time at peak arithmetic, and time at peak bandwidth.
    pub fn floors<S: op::Spec>(caps: &Caps, problem: &Problem<S>) -> (Self, Self) {
        let compute = problem.flops() / caps.rates.get(problem.rate_dtype());
        let memory = problem.bytes() as f64 / caps.bytes_per_s;
        (Self::from_secs(compute), Self::from_secs(memory))
    }

    /// Seconds, rounded to the nearest nanosecond; negative and NaN become 0, huge values saturate.
    pub fn from_secs(secs: f64) -> Self {
        Self((secs * 1e9).round() as u64)
    }

    /// As seconds.
    pub fn as_secs(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl From<Duration> for Nanos {
    fn from(time: Duration) -> Self {
        Self(time.as_nanos().try_into().unwrap_or(u64::MAX))
    }
}

/// Prints three digits and a unit: `41.2 µs`.
impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0 as f64;
        let (value, unit) = match self.0 {
            0..1_000 => return f.pad(&format!("{} ns", self.0)),
            1_000..1_000_000 => (ns / 1e3, "µs"),
            1_000_000..1_000_000_000 => (ns / 1e6, "ms"),
            _ => (ns / 1e9, "s"),
        };
        let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
        f.pad(&format!("{value:.digits$} {unit}"))
    }
}

/// What tells a kernel's source from others, computed while compiling.
///
/// Sixteen bytes at a time: the compiler interprets each step, and one a byte took it an eighth of all its time for kp-cpu. Each step
/// takes different bytes to different sums, whatever was before.
pub const fn source_hash(source: &[u8]) -> u64 {
    let (words, rest) = source.as_chunks::<16>();
    let (mut last, mut i) = ([0; 16], 0);
    while i < rest.len() {
        last[i] = rest[i];
        i += 1;
    }
    // Its length, since zeros that fill the last word are no part of it.
    let mut hash = mixed(u128::from_le_bytes(last) ^ (source.len() as u128) << 64);
    i = 0;
    while i < words.len() {
        hash = mixed(hash.rotate_left(59) ^ u128::from_le_bytes(words[i]));
        i += 1;
    }
    hash as u64
}

/// One of as many sums as there are, whose lower half depends on every bit.
const fn mixed(bits: u128) -> u128 {
    // An odd number without pattern: the fraction of the golden ratio.
    let bits = bits.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    bits ^ bits >> 64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanos_print_three_digits() {
        for (ns, text) in
            [(7, "7 ns"), (1_234, "1.23 µs"), (41_200, "41.2 µs"), (99_960, "100 µs"), (2_500_000_000, "2.50 s")]
        {
            assert_eq!(Nanos(ns).to_string(), text);
        }
        assert_eq!(Nanos::from_secs(f64::NAN), Nanos(0));
        assert_eq!(Nanos::from_secs(f64::INFINITY), Nanos(u64::MAX));
    }

    #[test]
    fn one_bit_and_the_length_of_a_source_tell() {
        let source: Vec<u8> = (0..100_u8).map(|i| i.wrapping_mul(37)).collect();
        let mut hashes = std::collections::HashSet::new();
        for len in 0..=source.len() {
            assert!(hashes.insert(source_hash(&source[..len])), "the first {len} bytes");
        }
        assert!(hashes.insert(source_hash(&[0; 16])) && hashes.insert(source_hash(&[0; 17])), "zeros");
        for bit in 0..8 * source.len() {
            let mut other = source.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(hashes.insert(source_hash(&other)), "bit {bit}");
        }
        // On every machine the same, since files of wisdom travel.
        assert_eq!(source_hash(b"foobar"), 0x904b_d976_b863_d701);
    }
}

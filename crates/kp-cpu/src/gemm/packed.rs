//! D = A·B for every form of the op: operands packed to panels of numbers, multiplied in register tiles.
//!
//! See [`super::blocks`] for the loops, [`super::turned`] for those of few rows by a large B in columns. Limits: none, but that
//! without fused multiply-adds `batch-invariant` is refused where the processor has them, since bits would depend on which variant
//! is best for a batch.

use super::{
    blocks::{Blocks, Room},
    cuts::GRAIN,
    finish::{codes_bytes, each_item, is_staged, stage_len},
    product::{self, Product, Summing},
    turned::Turned,
};
use crate::{
    act::Tail,
    kernel::{self, Output},
    memory::{Number, numbers_mut},
    numbers::Real,
    simd::{Avx2, Avx512, Baseline, Isa, vector::transpose::Transpose},
    threads,
};
use kp_hal::{
    Caps, DType, Device, Kernel, Launch, Nanos, Plan, Queue, Result, Support, Unsupported, Variant, Variants,
    op::{Gemm, GemmArgs, GemmProblem, GemmSpec, Matrix, Order, Repro, Scheme},
    source_hash,
};
use std::{borrow::Cow, marker::PhantomData, sync::Arc};

/// The kernel that runs everything.
pub(crate) struct Packed;

impl Kernel<Gemm> for Packed {
    fn name(&self) -> &'static str {
        "packed"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("packed.rs"))
                ^ source_hash(include_bytes!("blocks.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("tile.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("cuts.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("turned.rs")).rotate_left(4)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        supports(caps, p.repro())
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        let turned = with_blocks!(variant, p.spec(), |Form| Form::turned(p));
        estimate(caps, p, f64::from(p.batch) * f64::from(p.m), p.batch, variant, turned)
    }

    fn note(&self, _: &Caps, p: &GemmProblem, variant: Variant) -> Option<Cow<'static, str>> {
        let (m, n) = (p.m as usize, p.n as usize);
        kernel::pads([with_blocks!(variant, p.spec(), |Form| {
            Form::turned(p).map_or(("n", n, Form::PANEL), |turned| ("m", m, turned.width()))
        })])
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        with_blocks!(variant, p.spec(), |Form| {
            let code = Form::new(p);
            // SAFETY: the loops touch what the spec names, and the scratch that `scratch_bytes` counts.
            Ok(unsafe { kernel::plan(self, device, p, variant, code.scratch_bytes(), code) })
        })
    }
}

/// Variants: one for each instruction set, the widest first; append only, because wisdom names them by their place.
const VARIANTS: [Wants; 3] = [
    Wants { has: Avx512::is_in, fused: Avx512::FUSED, efficiency: 0.9 },
    Wants { has: Avx2::is_in, fused: Avx2::FUSED, efficiency: 0.45 },
    Wants { has: Baseline::is_in, fused: Baseline::FUSED, efficiency: 0.12 },
];

struct Wants {
    has: fn(&Caps) -> bool,
    fused: bool,
    /// Of the processor's peak, as measured on 1024³ in f32 where the peak is that of AVX-512.
    efficiency: f64,
}

/// The variants that `caps` run.
pub(crate) fn supports(caps: &Caps, repro: Repro) -> Support {
    let fused = VARIANTS.iter().any(|v| v.fused && (v.has)(caps));
    let otherwise = Unsupported::Repro { asked: repro };
    Variants::filter(VARIANTS.len() as u8, otherwise, |v| {
        let variant = &VARIANTS[usize::from(v.0)];
        (variant.has)(caps) && (repro != Repro::BatchInvariant || variant.fused == fused)
    })
}

/// Columns of the panels that the best variant reads where they lie, by type.
pub(crate) fn panels(caps: &Caps) -> [(DType, u16); 2] {
    let columns = |of: DType| {
        let spec = GemmSpec::new(1, 1, 1, [of.into(); 3]);
        let best = Variant(VARIANTS.iter().position(|v| (v.has)(caps)).unwrap_or(0) as u8);
        (of, with_blocks!(best, &spec, |Form| Form::PANEL) as u16)
    };
    [DType::F32, DType::F64].map(columns)
}

/// Multiplying at a measured fraction of the peak, and packing; `rows` and `items` of B in all, unless that is `turned`.
pub(crate) fn estimate(
    caps: &Caps,
    spec: &GemmSpec,
    rows: f64,
    items: u32,
    variant: Variant,
    turned: Option<Turned>,
) -> Nanos {
    let Wants { efficiency, .. } = VARIANTS[usize::from(variant.0)];
    let number = if spec.a.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    // Panels are computed whole; a few rows wait for their own sums.
    let panel = with_blocks!(variant, spec, |Form| Form::PANEL) as f64;
    let (n, k, units) = (f64::from(spec.n), f64::from(spec.k), f64::from(caps.units.max(1)));
    let items = f64::from(items.max(1));
    let in_panels = Order::Panel { width: panel as u16, depth: 1 };
    let pack_a = |lies: bool| rows * k * cycles(&spec.a, lies, number);
    let (elements, pack) = match turned {
        Some(turned) => (items * turned.height() as f64 * n, pack_a(false)),
        None => {
            let pack_b = items * n * k * cycles(&spec.b, spec.b.order == in_panels, number);
            (rows.max(2.0 * items) * (n / panel).ceil() * panel, pack_a(spec.a.order == Order::Row) + pack_b)
        }
    };
    let multiply = 2.0 * elements * k / (caps.rates.get(number) * efficiency);
    let pack = pack / (caps.clock_hz.max(1e9) * units);
    // Small items keep few threads busy, unless these have items of their own.
    let chunks = (2.0 * rows * n * k / (items * GRAIN)).floor();
    let busy = if items >= 2.0 * units { units } else { chunks.clamp(1.0, units) };
    let bits = f64::from(spec.b.dtype().bits());
    let read = items * n * k * bits / 8.0 / caps.bytes_per_s;
    // A few columns at a time are not as fast as memory; panels are.
    let memory = if spec.b.order == in_panels { read } else { 1.4 * read };
    // Items that are too small to divide go to threads of their own.
    let overhead = 3e-7 * items;
    Nanos::from_secs(((multiply + pack) * units / busy).max(memory) + overhead)
}

/// Cycles that an element takes to become a number in its place, as measured where AVX-512 is.
fn cycles(matrix: &Matrix, lies: bool, number: DType) -> f64 {
    match matrix.dtype() {
        _ if matrix.format.scheme != Scheme::None => 2.0,
        dtype if dtype == number && lies => 0.0,
        DType::F32 | DType::F64 => 2.0,
        _ => 1.0,
    }
}

/// A product cut for this machine.
pub(crate) struct Form<I, R, E, const NV: usize> {
    spec: GemmSpec,
    pub(crate) summing: Summing,
    pub(crate) room: Room,
    /// Whether each thread takes items of its own.
    across: bool,
    /// How columns of B meet rows of A instead, if that takes less time.
    turned: Option<Turned>,
    /// Rows that wait to be stored, of one D.
    stage: usize,
    kind: PhantomData<(I, R, E)>,
}

/// Below this many operations, an item is not worth dividing.
const SMALL: f64 = 5e7;

/// Whether each thread takes items of its own.
fn is_across(spec: &GemmSpec) -> bool {
    let work = 2.0 * f64::from(spec.m) * f64::from(spec.n) * f64::from(spec.k);
    !is_staged(spec) && spec.batch as usize >= 2 * threads::count() && work < SMALL
}

impl<I: Transpose<R>, R: Real + Number, E: Tail, const NV: usize> Form<I, R, E, NV> {
    /// Columns of a panel, which is computed whole.
    pub(crate) const PANEL: usize = Blocks::<I, R, E, NV>::NR;

    pub(crate) fn new(spec: &GemmSpec) -> Self {
        Self { turned: Self::turned(spec), ..Self::divided(spec, is_across(spec)) }
    }

    /// How columns of B meet rows of A, where that takes less time.
    fn turned(spec: &GemmSpec) -> Option<Turned> {
        Turned::of::<I, R, E, NV>(spec).filter(|_| !is_across(spec))
    }

    /// One item after the other, each by all threads.
    pub(crate) fn together(spec: &GemmSpec) -> Self {
        Self::divided(spec, false)
    }

    fn divided(spec: &GemmSpec, across: bool) -> Self {
        let threads = threads::count();
        let share = if across { 1 } else { threads };
        let panels = Blocks::<I, R, E, NV>::panels(spec);
        let room = Blocks::<I, R, E, NV>::room(&panels, spec.m as usize, spec.k as usize, share);
        let stage = stage_len(spec);
        Self { spec: *spec, summing: Summing::of(spec), room, across, turned: None, stage, kind: PhantomData }
    }

    pub(crate) fn scratch_bytes(&self) -> u64 {
        let stage = (self.stage * size_of::<E>()).next_multiple_of(64) + codes_bytes(&self.spec).next_multiple_of(64);
        (self.loop_bytes() + stage) as u64
    }

    fn loop_bytes(&self) -> usize {
        match self.turned {
            Some(turned) => turned.bytes::<R, E>(self.spec.k as usize, threads::count()),
            None => self.room.bytes() * if self.across { threads::count() } else { 1 },
        }
    }

    /// The scratch of the loops, the stage, and the codes to transpose.
    pub(crate) fn scratch<'s>(&self, scratch: &'s mut [u8]) -> (&'s mut [u8], &'s mut [E], &'s mut [u8]) {
        let (loops, rest) = scratch.split_at_mut(self.loop_bytes());
        let (stage, codes) = rest.split_at_mut((self.stage * size_of::<E>()).next_multiple_of(64));
        (loops, &mut numbers_mut(stage)[..self.stage], &mut codes[..codes_bytes(&self.spec)])
    }
}

impl<I: Transpose<R>, R: Real + Number, E: Tail, const NV: usize> Launch<Gemm> for Form<I, R, E, NV> {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GemmArgs<'_>) -> Result<()> {
        let (spec, summing, room) = (&self.spec, self.summing, &self.room);
        // SAFETY: the arguments were checked, says the caller.
        let product = unsafe { Product::of(spec, args) };
        let (loops, stage, codes) = self.scratch(kernel::own(queue).scratch());
        let items = spec.batch as usize;
        if self.across {
            let loops = Output::of(loops);
            let threads = threads::count();
            threads::for_each(threads, |t| {
                // SAFETY: each thread its own scratch and its own items.
                unsafe {
                    let scratch = loops.part(t * room.bytes()..(t + 1) * room.bytes());
                    for i in (t..items).step_by(threads) {
                        let item = product::item(spec, i);
                        Blocks::<I, R, E, NV>::item(&product, item, summing, room, scratch, None);
                    }
                }
            });
            return Ok(());
        }
        each_item(&product, stage, codes, |item, waiting| {
            // SAFETY: items have their own D.
            unsafe {
                match &self.turned {
                    Some(turned) => turned.item::<I, R, E, NV>(&product, item, summing, loops, waiting),
                    None => Blocks::<I, R, E, NV>::item(&product, item, summing, room, loops, waiting),
                }
            };
        });
        Ok(())
    }
}

/// Evaluates a body with the form of a variant: what numbers operands become, what follows, and the register tile.
macro_rules! with_blocks {
    ($variant:expr, $spec:expr, |$Form:ident| $body:expr) => {{
        use $crate::{
            gemm::packed,
            simd::{Avx2, Avx512, Baseline},
        };
        let spec: &kp_hal::op::GemmSpec = $spec;
        let is_f64 = spec.acc == kp_hal::op::Acc::F64;
        match ($variant.0, is_f64, $crate::gemm::product::finishes_in_f64(spec)) {
            (0, true, _) => packed::with_blocks!(@ Avx512, f64, f64, 4, $Form, $body),
            (0, false, true) => packed::with_blocks!(@ Avx512, f32, f64, 4, $Form, $body),
            (0, false, false) => packed::with_blocks!(@ Avx512, f32, f32, 4, $Form, $body),
            (1, true, _) => packed::with_blocks!(@ Avx2, f64, f64, 2, $Form, $body),
            (1, false, true) => packed::with_blocks!(@ Avx2, f32, f64, 2, $Form, $body),
            (1, false, false) => packed::with_blocks!(@ Avx2, f32, f32, 2, $Form, $body),
            (_, true, _) => packed::with_blocks!(@ Baseline, f64, f64, 2, $Form, $body),
            (_, false, true) => packed::with_blocks!(@ Baseline, f32, f64, 2, $Form, $body),
            (_, false, false) => packed::with_blocks!(@ Baseline, f32, f32, 2, $Form, $body),
        }
    }};
    (@ $isa:ty, $real:ty, $end:ty, $vectors:literal, $Form:ident, $body:expr) => {{
        type $Form = packed::Form<$isa, $real, $end, $vectors>;
        $body
    }};
}
pub(crate) use with_blocks;

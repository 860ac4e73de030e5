//! D = alpha · A·B of small matrices of f32, each read where it lies: nothing is packed, no scratch is touched.
//!
//! ```text
//!          b   a few vectors of a row, the last one masked
//!        ┌──────────────┐
//!      k │              │
//!        └──────────────┘
//!   a k        d
//!  ┌────┐┌──────────────┐
//!  │    ││ 8, 4, 2 or 1 │   rows of sums in registers over all of k
//!  └────┘└──────────────┘
//! ```
//! The sums are those of `packed`, bit for bit, as long as k is one of its blocks. Many items are divided over the threads.
//! Limits: f32, rows contiguous, no epilogue; B must stay in L1 between rows of A for this to be fast, which the estimate
//! says rather than a limit.

use super::side::LINE;
use crate::{
    kernel::{Output, input},
    memory,
    simd::{Avx512, Isa, Work, vector::Vectors},
    threads,
};
use kp_hal::{
    Caps, DType, Launch, Nanos, Queue, Unsupported,
    op::{Addend, Epilogue, Gemm, GemmArgs, GemmProblem, GemmSpec, Order, Scheme, Sparsity},
};
use std::{
    arch::x86_64::{_MM_HINT_T0, _mm_prefetch},
    marker::PhantomData,
    ops::Range,
};

/// Whether `p` suits tiles of `I`.
///
/// # Errors
/// The first part that does not.
pub(crate) fn suits<I: Tiles>(caps: &Caps, p: &GemmProblem) -> Result<(), Unsupported> {
    if let Some(need) = I::FEATURES.iter().find(|feature| !caps.has(feature)) {
        return Err(Unsupported::Feature { need });
    }
    for (operand, matrix) in [("a", p.a), ("b", p.b), ("d", p.d)] {
        if matrix.dtype() != DType::F32 || matrix.format.scheme != Scheme::None {
            return Err(Unsupported::DType { operand, got: matrix.format.dtype });
        }
        if matrix.order != Order::Row {
            return Err(Unsupported::Layout { operand, got: matrix.order.to_string() });
        }
    }
    let option = |option, got: &dyn ToString| Err(Unsupported::Option { option, got: got.to_string() });
    match **p {
        GemmSpec { c, .. } if c != Addend::None => return option("c", &c),
        GemmSpec { acc, .. } if !acc.is_f32() => return option("acc", &acc),
        GemmSpec { sparsity, .. } if sparsity != Sparsity::Dense => return option("sparse", &sparsity),
        GemmSpec { epilogue, .. } if epilogue != Epilogue::default() => return option("epilogue", &"any"),
        _ => {}
    }
    if p.k as usize > LINE {
        return Err(Unsupported::TooLarge { dim: "k", max: LINE as u64, got: p.k.into() });
    }
    Ok(())
}

/// The time of tiles of `I`.
pub(crate) fn estimate<I: Tiles>(caps: &Caps, p: &GemmProblem) -> Nanos {
    let threads = threads_for(p);
    // The processor's rate is that of its widest vectors.
    let widest = if Avx512::is_in(caps) { <Avx512 as Vectors<f32>>::N } else { I::N };
    let rate = caps.rates.get(DType::F32) / f64::from(caps.units.max(1)) * threads as f64 * I::N as f64 / widest as f64;
    // Whole vectors are computed; B is read once for every few rows of A, from wherever it then is.
    let (m, n, k) = (f64::from(p.m), f64::from(p.n.next_multiple_of(I::N as u32)), f64::from(p.k));
    let fits = f64::from(p.b.ld) * 4.0 * k <= caps.l1_bytes as f64;
    let efficiency = if fits { 0.8 } else { 0.4 };
    let items = f64::from(p.batch) / threads as f64;
    let hand_off = if threads > 1 { 1e-6 } else { 0.0 };
    Nanos::from_secs(2.0 * m * n * k * f64::from(p.batch) / (rate * efficiency) + items * 1e-8 + 2e-8 + hand_off)
}

/// What launches `spec` with tiles of `I`.
pub(crate) fn code<I: Tiles>(spec: &GemmSpec) -> impl Launch<Gemm> + use<I> {
    Plain { spec: *spec, threads: threads_for(spec), set: PhantomData::<fn() -> I> }
}

/// Seconds that are worth another thread.
const GRAIN: f64 = 3e-6;

/// Operations, bytes and items a second of one thread, of which the slowest counts.
const OPERATIONS: f64 = 1e11;
const BYTES: f64 = 1.5e10;
const ITEMS: f64 = 3e7;

fn threads_for(spec: &GemmSpec) -> usize {
    let [m, n, k] = [spec.m, spec.n, spec.k].map(f64::from);
    let (operations, bytes) = (2.0 * m * n * k, 4.0 * (m * k + k * n + m * n));
    let seconds = f64::from(spec.batch) * (operations / OPERATIONS).max(bytes / BYTES).max(1.0 / ITEMS);
    threads::count().min((seconds / GRAIN) as usize).min(spec.batch as usize).max(1)
}

struct Plain<I> {
    spec: GemmSpec,
    threads: usize,
    set: PhantomData<fn() -> I>,
}

impl<I: Tiles> Launch<Gemm> for Plain<I> {
    unsafe fn launch(&self, _: &mut dyn Queue, args: &GemmArgs<'_>) -> kp_hal::Result<()> {
        let Self { ref spec, threads, set } = *self;
        // SAFETY: the arguments were checked, says the caller.
        let (a, b, d) = unsafe { (input(&args.a), input(&args.b), Output::new(&args.d)) };
        let items = spec.batch as usize;
        if items == 0 || spec.m == 0 || spec.n == 0 {
            return Ok(());
        }
        let numbers = |bytes| memory::as_numbers(bytes).expect("operands are aligned to their numbers");
        let (a, b, alpha) = (numbers(a), numbers(b), args.alpha);
        threads::for_each(threads, |t| {
            let items = items * t / threads..items * (t + 1) / threads;
            I::run(Items { spec, a, b, d, items, alpha, set });
        });
        Ok(())
    }
}

/// Vectors whose last may have fewer lanes, and the tiles that registers hold.
pub(crate) trait Tiles: Vectors<f32> + Sized {
    /// Most vectors beside each other.
    const VECTORS: usize;

    /// Which lanes are there.
    type Mask: Copy;

    /// The first `lanes`.
    fn mask(lanes: usize) -> Self::Mask;

    /// Those lanes, zeros in the others.
    ///
    /// # Safety
    /// They can be read, on a processor that has the set.
    unsafe fn load_some(mask: Self::Mask, at: *const f32) -> Self::V;

    /// Writes the first `lanes`, which `mask` is of.
    ///
    /// # Safety
    /// They can be written, on a processor that has the set.
    unsafe fn store_some(v: Self::V, lanes: usize, mask: Self::Mask, at: *mut f32);

    /// All rows of a tile of so many vectors.
    ///
    /// # Safety
    /// As [`Tile::rows`].
    unsafe fn tile(vectors: usize, tile: &Tile<Self>);
}

/// Some items of a launch.
struct Items<'a, I> {
    spec: &'a GemmSpec,
    a: &'a [f32],
    b: &'a [f32],
    d: Output<'a>,
    items: Range<usize>,
    alpha: f32,
    set: PhantomData<fn() -> I>,
}

impl<I: Tiles> Work for Items<'_, I> {
    #[inline(always)]
    fn run(self) {
        let Self { spec, a, b, d, items, alpha, .. } = self;
        let (m, n, k) = (spec.m as usize, spec.n as usize, spec.k as usize);
        let [lda, ldb, ldd] = [spec.a, spec.b, spec.d].map(|matrix| matrix.ld as usize);
        let last = |stride: u64, ld: usize, rows: usize, columns: usize| {
            (items.end.max(1) - 1) * stride as usize + (rows.max(1) - 1) * ld + columns
        };
        assert!(k == 0 || last(spec.a.stride, lda, m, k) <= a.len(), "a is shorter than its span");
        assert!(k == 0 || last(spec.b.stride, ldb, k, n) <= b.len(), "b is shorter than its span");
        let d = d.pointer(0..last(spec.d.stride, ldd, m, n) * size_of::<f32>()).cast::<f32>();
        for item in items {
            let at = |stride: u64| item * stride as usize;
            let (a, b) = (a.as_ptr().wrapping_add(at(spec.a.stride)), b.as_ptr().wrapping_add(at(spec.b.stride)));
            let d = d.wrapping_add(at(spec.d.stride));
            for column in (0..n).step_by(I::VECTORS * I::N) {
                let width = (n - column).min(I::VECTORS * I::N);
                let (b, d) = (b.wrapping_add(column), d.wrapping_add(column));
                let (vectors, last) = (width.div_ceil(I::N), (width - 1) % I::N + 1);
                let [next_a, next_b] = [spec.a.stride, spec.b.stride].map(|stride| stride as usize);
                let tile = Tile { m, k, a, lda, next_a, b, ldb, next_b, d, ldd, last, mask: I::mask(last), alpha };
                // SAFETY: the asserts above: all that a tile names lies in its matrix; items are this thread's.
                unsafe { I::tile(vectors, &tile) };
            }
        }
    }
}

/// All rows of one item's panel of columns.
pub(crate) struct Tile<I: Tiles> {
    m: usize,
    k: usize,
    a: *const f32,
    lda: usize,
    /// How far away the next item's A and B are.
    next_a: usize,
    b: *const f32,
    ldb: usize,
    next_b: usize,
    d: *mut f32,
    ldd: usize,
    /// How many columns the last vector has, and which.
    last: usize,
    mask: I::Mask,
    alpha: f32,
}

impl<I: Tiles> Tile<I> {
    /// # Safety
    /// The pointers name `m` × `k`, `k` × a panel and `m` × a panel, none of which anything else writes.
    #[inline(always)]
    pub(crate) unsafe fn rows<const MR: usize, const NV: usize>(&self) {
        let mut row = 0;
        // SAFETY: the rows are there; all else is passed on.
        unsafe {
            while row + MR <= self.m {
                self.some::<MR, NV>(row);
                row += MR;
            }
            while row + 4 <= self.m {
                self.some::<4, NV>(row);
                row += 4;
            }
            while row + 2 <= self.m {
                self.some::<2, NV>(row);
                row += 2;
            }
            if row < self.m {
                self.some::<1, NV>(row);
            }
        }
    }

    /// Rows from `row` on.
    ///
    /// # Safety
    /// As [`Self::rows`], and there are `MR` more rows.
    #[inline(always)]
    unsafe fn some<const MR: usize, const NV: usize>(&self, row: usize) {
        let &Self { k, lda, ldb, ldd, alpha, .. } = self;
        let (a, d) = (self.a.wrapping_add(row * lda), self.d.wrapping_add(row * ldd));
        let mut sums = [[I::splat(0.0); NV]; MR];
        // Each tile asks for some of the next item's lines.
        let line = row / MR % NV * I::N;
        for i in 0..k {
            let b = self.b.wrapping_add(i * ldb);
            let mut of_b = [I::splat(0.0); NV];
            for (j, of_b) in of_b.iter_mut().enumerate() {
                let at = b.wrapping_add(j * I::N);
                // SAFETY: a row of the panel, as passed on.
                *of_b = unsafe {
                    if j + 1 == NV {
                        I::load_some(self.mask, at)
                    } else {
                        I::load(std::slice::from_raw_parts(at, I::N))
                    }
                };
            }
            ask(b.wrapping_add(self.next_b + line));
            ask(a.wrapping_add(self.next_a + i % MR * lda + i / MR * I::N));
            for (r, sums) in sums.iter_mut().enumerate() {
                // SAFETY: as passed on.
                let of_a = I::splat(unsafe { *a.wrapping_add(r * lda + i) });
                for (sum, &of_b) in sums.iter_mut().zip(&of_b) {
                    *sum = I::times_plus(of_a, of_b, *sum);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (j, &sum) in sums.iter().enumerate() {
                let (x, at) = (I::times(sum, I::splat(alpha)), d.wrapping_add(r * ldd + j * I::N));
                // SAFETY: as passed on.
                unsafe {
                    if j + 1 == NV {
                        I::store_some(x, self.last, self.mask, at);
                    } else {
                        I::store(x, std::slice::from_raw_parts_mut(at, I::N));
                    }
                }
            }
        }
    }
}

/// Asks for the line at `at`, wherever it points.
#[inline(always)]
fn ask(at: *const f32) {
    // SAFETY: every x86-64 processor has it, and it may name any address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
}

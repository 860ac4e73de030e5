//! D = alpha · A·B of small matrices of f32, each read where it lies: nothing is packed, no scratch is touched.
//!
//! ```text
//!          b   up to four vectors of a row, the last one masked
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
    kernel::{self, Output, input},
    memory,
    simd::{Avx512, Isa, Work, vector::Vectors},
    threads,
};
use kp_hal::{
    Caps, DType, Device, Kernel, Launch, Nanos, Plan, Queue, Result, Support, Unsupported, Variant, Variants,
    op::{Addend, Epilogue, Gemm, GemmArgs, GemmProblem, GemmSpec, Order, Scheme, Sparsity},
    source_hash,
};
use std::{
    arch::x86_64::{_MM_HINT_T0, _mm_prefetch, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps},
    ops::Range,
    sync::Arc,
};

/// The kernel for matrices of a few dozen rows and columns.
pub(crate) struct Avx512Small;

impl Kernel<Gemm> for Avx512Small {
    fn name(&self) -> &'static str {
        "avx512_small"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("avx512_small.rs")) }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        if !Avx512::is_in(caps) {
            return Err(Unsupported::Feature { need: "avx512f" });
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
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        let threads = threads_for(p);
        let rate = caps.rates.get(DType::F32) / f64::from(caps.units.max(1)) * threads as f64;
        // Whole vectors are computed; B is read once for every few rows of A, from wherever it then is.
        let (m, n, k) = (f64::from(p.m), (f64::from(p.n) / 16.0).ceil() * 16.0, f64::from(p.k));
        let fits = f64::from(p.b.ld) * 4.0 * k <= caps.l1_bytes as f64;
        let efficiency = if fits { 0.8 } else { 0.4 };
        let items = f64::from(p.batch) / threads as f64;
        let hand_off = if threads > 1 { 1e-6 } else { 0.0 };
        Nanos::from_secs(2.0 * m * n * k * f64::from(p.batch) / (rate * efficiency) + items * 1e-8 + 2e-8 + hand_off)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let code = Small { spec: *p.spec(), threads: threads_for(p) };
        // SAFETY: the loops touch what the spec names.
        Ok(unsafe { kernel::plan(self, device, p, variant, 0, code) })
    }
}

/// Operations that are worth another thread.
const GRAIN: f64 = 1e6;

fn threads_for(spec: &GemmSpec) -> usize {
    let operations = 2.0 * f64::from(spec.m) * f64::from(spec.n) * f64::from(spec.k) * f64::from(spec.batch);
    threads::count().min((operations / GRAIN) as usize).min(spec.batch as usize).max(1)
}

struct Small {
    spec: GemmSpec,
    threads: usize,
}

impl Launch<Gemm> for Small {
    unsafe fn launch(&self, _: &mut dyn Queue, args: &GemmArgs<'_>) -> Result<()> {
        let Self { ref spec, threads } = *self;
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
            Avx512::run(Items { spec, a, b, d, items, alpha });
        });
        Ok(())
    }
}

/// Some items of a launch.
struct Items<'a> {
    spec: &'a GemmSpec,
    a: &'a [f32],
    b: &'a [f32],
    d: Output<'a>,
    items: Range<usize>,
    alpha: f32,
}

impl Work for Items<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { spec, a, b, d, items, alpha } = self;
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
            for column in (0..n).step_by(4 * N) {
                let width = (n - column).min(4 * N);
                let (b, d) = (b.wrapping_add(column), d.wrapping_add(column));
                let last = u16::MAX >> (N - 1 - (width - 1) % N);
                let [next_a, next_b] = [spec.a.stride, spec.b.stride].map(|stride| stride as usize);
                let tile = Tile { m, k, a, lda, next_a, b, ldb, next_b, d, ldd, last, alpha };
                // SAFETY: the asserts above: all that a tile names lies in its matrix; items are this thread's.
                unsafe {
                    match width.div_ceil(N) {
                        1 => tile.rows::<8, 1>(),
                        2 => tile.rows::<8, 2>(),
                        3 => tile.rows::<8, 3>(),
                        _ => tile.rows::<6, 4>(),
                    }
                }
            }
        }
    }
}

/// Numbers of a vector.
const N: usize = <Avx512 as Vectors<f32>>::N;

/// All rows of one item's panel of columns.
#[derive(Clone, Copy)]
struct Tile {
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
    /// Which columns the last vector has.
    last: u16,
    alpha: f32,
}

impl Tile {
    /// # Safety
    /// The pointers name `m` × `k`, `k` × a panel and `m` × a panel, none of which anything else writes.
    #[inline(always)]
    unsafe fn rows<const MR: usize, const NV: usize>(self) {
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
    unsafe fn some<const MR: usize, const NV: usize>(self, row: usize) {
        let Self { k, lda, ldb, ldd, alpha, .. } = self;
        let (a, d) = (self.a.wrapping_add(row * lda), self.d.wrapping_add(row * ldd));
        let mut sums = [[Avx512::splat(0.0_f32); NV]; MR];
        let mask = |j: usize| if j + 1 == NV { self.last } else { u16::MAX };
        // Each tile asks for some of the next item's lines.
        let line = row / MR % NV * N;
        for i in 0..k {
            let b = self.b.wrapping_add(i * ldb);
            let mut of_b = [Avx512::splat(0.0_f32); NV];
            for (j, of_b) in of_b.iter_mut().enumerate() {
                // SAFETY: a row of the panel, as passed on, on a processor that has AVX-512.
                *of_b = unsafe { _mm512_maskz_loadu_ps(mask(j), b.wrapping_add(j * N)) };
            }
            ask(b.wrapping_add(self.next_b + line));
            ask(a.wrapping_add(self.next_a + i % MR * lda + i / MR * N));
            for (r, sums) in sums.iter_mut().enumerate() {
                // SAFETY: as passed on.
                let of_a = Avx512::splat(unsafe { *a.wrapping_add(r * lda + i) });
                for (sum, &of_b) in sums.iter_mut().zip(&of_b) {
                    *sum = <Avx512 as Vectors<f32>>::times_plus(of_a, of_b, *sum);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (j, &sum) in sums.iter().enumerate() {
                let x = <Avx512 as Vectors<f32>>::times(sum, Avx512::splat(alpha));
                // SAFETY: as passed on, on a processor that has AVX-512.
                unsafe { _mm512_mask_storeu_ps(d.wrapping_add(r * ldd + j * N), mask(j), x) };
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

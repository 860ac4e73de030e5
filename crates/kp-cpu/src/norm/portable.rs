//! Norms in two passes over a row that is in cache: its mean and mean square, then the result.

use crate::{
    kernel::{Output, input, optional},
    memory::numbers_mut,
    numbers::{self, Real},
    portable::Portable,
    rows::{
        Add, Out, bytes_of, each_row_by_parts, lying, map, read, scratch_bytes, squares, stretches, sum, vector,
        with_real,
    },
    simd::{
        run_widest,
        vector::{Vectors, Wide, WorkOn},
    },
    store::Store,
};
use kp_hal::{
    DType, Problem,
    op::{Norm, NormArgs, NormKind, NormProblem, NormSpec, Overflow},
    source_hash,
};

impl Portable for Norm {
    const CODE: u64 =
        source_hash(include_bytes!("portable.rs")) ^ source_hash(include_bytes!("bf16s.rs")).rotate_left(1);

    fn scratch_bytes(p: &NormProblem) -> u64 {
        let unit = p.y.format.block().0.min(p.rows.max(1));
        let unit = if matches!(p.y.format.scheme, kp_hal::op::Scheme::Block { .. }) { unit } else { 1 };
        vector_bytes(p) + scratch_bytes::<f64>(u64::from(unit) * u64::from(p.cols))
    }

    unsafe fn run(p: &Problem<NormSpec>, scratch: &mut [u8], args: &NormArgs<'_>) {
        // SAFETY: the caller's promise.
        with_real!(p.x.dtype() == DType::F64, R => unsafe { run::<R>(p, scratch, args) });
    }
}

/// # Safety
/// As `Portable::run`.
unsafe fn run<R: Wide>(p: &NormProblem, scratch: &mut [u8], args: &NormArgs<'_>) {
    let eps = R::from_f32(p.eps.get());
    // SAFETY: within a launch, whose arguments were checked.
    let (x, weight, bias, residual, global) = unsafe {
        (
            input(&args.x),
            optional(&args.weight),
            optional(&args.bias),
            optional(&args.residual),
            optional(&args.y_global),
        )
    };
    // SAFETY: as above.
    let (y, scales, sums) =
        unsafe { (Output::new(&args.y), Output::optional(&args.y_scale), Output::optional(&args.sum)) };
    let store = Store::fused(p.y.format, (p.rows, p.cols), p.y.ld, y, scales, global).of_launch(p.x.dtype());
    let cols = p.cols as usize;
    let (vectors, scratch) = scratch.split_at_mut(vector_bytes(p) as usize);
    let (weights, biases) = numbers_mut(vectors).split_at_mut(vector_bytes(p) as usize / 2 / size_of::<R>());
    let weight = vector(p.weight, weight, cols, R::ONE, weights);
    let bias = p.bias.map(|_| vector(p.bias, bias, cols, R::ZERO, biases));
    // What is in the caches comes as fast as it is asked for.
    let next_of = |row: u32| if store.streams { bytes_of(&p.x, x, row + 1, (p.rows, p.cols)) } else { &[] };
    #[cfg(target_arch = "x86_64")]
    if p.x.dtype() == DType::Bf16
        && !p.residual
        && numbers::bf16s::are_here()
        && store.format == DType::Bf16.into()
        && let Some(weight) = R::floats(weight)
    {
        let bias = bias.and_then(R::floats);
        let row = |row: u32, _: &mut [R]| {
            let next = next_of(row);
            let x = &x[2 * row as usize * p.x.ld as usize..][..2 * cols];
            // SAFETY: a row is one thread's; the processor has what `bf16s` asks for.
            unsafe {
                let y = numbers::bf16s::Row { codes: store.row(row), streams: store.streams };
                super::bf16s::normalize(p.kind, p.eps.get(), x, (weight, bias), next, y);
            }
        };
        // SAFETY: scratch and outputs are this launch's.
        return unsafe { crate::rows::each_unit(&store, scratch, row) };
    }
    let row = |row: u32, out: Out<'_, R>| {
        let next = next_of(row);
        let x = if p.residual {
            add_residual(p, x, residual, &sums, row, out.room);
            None
        } else {
            let there = lying(&p.x, x, row, 0, cols);
            if there.is_none() {
                read(&p.x, x, row, 0, out.room);
            }
            there
        };
        R::run_widest(cols, Normalize { kind: p.kind, eps, x, weight, bias, next, out });
    };
    // SAFETY: scratch and outputs are this launch's.
    unsafe { each_row_by_parts(&store, scratch, row) };
}

/// Weight and bias as numbers.
fn vector_bytes(p: &NormProblem) -> u64 {
    2 * (u64::from(p.cols) * size_of::<f64>() as u64).next_multiple_of(64)
}

/// One row: `x`, or what the room of `out` holds.
struct Normalize<'a, R> {
    kind: NormKind,
    eps: R,
    x: Option<&'a [R]>,
    weight: &'a [R],
    bias: Option<&'a [R]>,
    /// The next row's bytes.
    next: &'a [u8],
    out: Out<'a, R>,
}

impl<R: Real> WorkOn<R> for Normalize<'_, R> {
    #[inline(always)]
    fn run_on<I: Vectors<R>>(self) {
        let Self { kind, eps, x, weight, bias, next, out } = self;
        let s = x.unwrap_or(out.room);
        let n = R::from_f64(s.len() as f64);
        let (shift, factor) = match kind {
            NormKind::Layer => {
                let mean = sum::<I, R>(s) / n;
                let variance = squares::<I, R>(s, mean) / n;
                (mean, R::ONE / (variance + eps).sqrt())
            }
            NormKind::Rms => (R::ZERO, R::ONE / (squares::<I, R>(s, R::ZERO) / n + eps).sqrt()),
            NormKind::L2 => {
                let length = squares::<I, R>(s, R::ZERO).sqrt();
                // Not `max`, which would lose NaN.
                (R::ZERO, R::ONE / if length < eps { eps } else { length })
            }
        };
        // As long as the part, so that indices into them need no checks.
        match bias {
            Some(bias) => stretches(x, out, next, |at, x, out| {
                let (weight, bias) = (&weight[at.start..][..out.len()], &bias[at.start..][..out.len()]);
                map(x, out, |i, x| (x - shift) * factor * weight[i] + bias[i]);
            }),
            None => stretches(x, out, next, |at, x, out| {
                let weight = &weight[at.start..][..out.len()];
                map(x, out, |i, x| (x - shift) * factor * weight[i]);
            }),
        }
    }
}

/// Leaves x + residual in `out`, as it is stored.
fn add_residual<R: Real>(p: &NormProblem, x: &[u8], residual: &[u8], sums: &Output<'_>, row: u32, out: &mut [R]) {
    let dtype = p.x.dtype();
    let start = row as usize * p.x.ld as usize;
    let bytes = dtype.bits() as usize / 8;
    // SAFETY: rows do not overlap, and one thread has each.
    let stored = unsafe { sums.part(start * bytes..(start + out.len()) * bytes) };
    read(&p.x, x, row, 0, out);
    let mut tile = [R::ZERO; TILE];
    for (t, out) in out.chunks_mut(TILE).enumerate() {
        let first = t * TILE;
        let stored = &mut stored[first * bytes..(first + out.len()) * bytes];
        let tile = &mut tile[..out.len()];
        numbers::read(dtype, residual, start + first, tile);
        run_widest(out.len(), Add { x: tile, out });
        numbers::write(dtype, out, stored, 0, Overflow::Saturate);
        if dtype != R::DTYPE {
            numbers::read(dtype, stored, 0, out);
        }
    }
}

/// Numbers of a residual that are added at a time.
const TILE: usize = 1024;

//! Codes times scales, a row at a time: read as numbers in tiles, scaled block by block, stored.

use crate::{
    kernel::{Output, input, optional},
    numbers::{self, Real},
    portable::Portable,
    rows::{each_row, read, scratch_bytes, spread, with_real},
    simd::{Work, run_widest},
    store::Store,
};
use kp_hal::{
    DType, Problem,
    op::{Dequantize, DequantizeArgs, DequantizeProblem, DequantizeSpec, ScaleLayout, Scheme},
    source_hash,
};

impl Portable for Dequantize {
    const CODE: u64 = source_hash(include_bytes!("portable.rs"));

    fn scratch_bytes(p: &DequantizeProblem) -> u64 {
        scratch_bytes::<f64>(p.cols.into())
    }

    unsafe fn run(p: &Problem<DequantizeSpec>, scratch: &mut [u8], args: &DequantizeArgs<'_>) {
        // Codes have few bits and scales are f32 at most, but their product may need more than f32 has.
        // SAFETY: the caller's promise.
        with_real!(p.y.dtype() == DType::F64, R => unsafe { run::<R>(p, scratch, args) });
    }
}

/// # Safety
/// As `Portable::run`.
unsafe fn run<R: Real>(p: &DequantizeProblem, scratch: &mut [u8], args: &DequantizeArgs<'_>) {
    let (format, shape) = (p.q.format, (p.rows, p.cols));
    // SAFETY: within a launch, whose arguments were checked.
    let (q, scales, global, zeros) =
        unsafe { (input(&args.q), optional(&args.scale), optional(&args.global), optional(&args.zero)) };
    // SAFETY: as above.
    let y = unsafe { Output::new(&args.y) };
    let global = if format.has_global() { numbers::get(DType::F32, global, 0) } else { R::ONE };
    let store = Store::fused(p.y.format, shape, p.y.ld, y, Output::of(&mut []), &[]).of_launch(p.q.dtype());
    let (outer, inner) = format.block();
    let inner = inner.min(p.cols.max(1)) as usize;
    let span = (TILE / inner).clamp(1, BLOCKS);
    let row = |row: u32, out: &mut [R]| {
        let Some(dtype) = format.scale_dtype() else { return read(&p.q, q, row, 0, out) };
        for (t, out) in out.chunks_mut(span * inner).enumerate() {
            read(&p.q, q, row, (t * span * inner) as u32, out);
            let (mut scale, mut zero) = ([R::ONE; BLOCKS], [R::ZERO; BLOCKS]);
            let blocks = out.len().div_ceil(inner);
            let (scale, zero) = (&mut scale[..blocks], &mut zero[..blocks]);
            let at = |block: usize| match format.scheme {
                Scheme::Tensor => 0,
                _ => format.scale_index((row / outer, (t * span + block) as u32), shape) as usize,
            };
            if format.scales == ScaleLayout::Inner {
                numbers::read(dtype, scales, at(0), scale);
            } else {
                scale.iter_mut().enumerate().for_each(|(i, scale)| *scale = numbers::get(dtype, scales, at(i)));
            }
            if format.has_global() {
                scale.iter_mut().for_each(|scale| *scale *= global);
            }
            if format.has_zero() {
                zero.iter_mut().enumerate().for_each(|(i, zero)| *zero = R::from_f32(zeros[at(i)].into()));
            }
            run_widest(out.len(), Scale { inner, scale, zero: format.has_zero().then_some(&*zero), out });
        }
    };
    // SAFETY: scratch and output are this launch's.
    unsafe { each_row(&store, scratch, row) };
}

/// Numbers that are scaled while they are in the first cache, unless a block is longer.
const TILE: usize = 1024;

/// Blocks of them, at most.
const BLOCKS: usize = 64;

/// Numbers of a block from which on a loop of its own pays.
const LONG: usize = 128;

/// (code − zero) · scale, block by block of `inner`.
struct Scale<'a, R> {
    inner: usize,
    scale: &'a [R],
    zero: Option<&'a [R]>,
    out: &'a mut [R],
}

impl<R: Real> Work for Scale<'_, R> {
    #[inline(always)]
    fn run(self) {
        let Self { inner, scale, zero, out } = self;
        if inner >= LONG {
            for (i, (out, &scale)) in out.chunks_mut(inner).zip(scale).enumerate() {
                let zero = zero.as_ref().map_or(R::ZERO, |zero| zero[i]);
                out.iter_mut().for_each(|code| *code = (*code - zero) * scale);
            }
            return;
        }
        // Short blocks: each number beside its own scale makes one loop of them all.
        let n = out.len();
        let scale = spread::<R, TILE>(scale.iter().copied(), inner);
        if let Some(zero) = zero {
            let zero = spread::<R, TILE>(zero.iter().copied(), inner);
            out.iter_mut().zip(&zero[..n]).for_each(|(code, &zero)| *code = *code - zero);
        }
        out.iter_mut().zip(&scale[..n]).for_each(|(code, &scale)| *code *= scale);
    }
}

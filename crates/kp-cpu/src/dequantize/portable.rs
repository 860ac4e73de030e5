//! Codes times scales, a row at a time.

use crate::{
    kernel::{Output, input, optional},
    numbers::{self, Real},
    portable::Portable,
    rows::{each_row, read, scratch_bytes, with_real},
    store::Store,
};
use kp_hal::{
    DType, Problem,
    op::{Dequantize, DequantizeArgs, DequantizeProblem, DequantizeSpec, Scheme},
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
    let store = Store::fused(p.y.format, shape, p.y.ld, y, Output::of(&mut []), &[]);
    let (outer, inner) = format.block();
    let inner = inner.min(p.cols.max(1)) as usize;
    let row = |row: u32, out: &mut [R]| {
        read(&p.q, q, row, 0, out);
        let Some(dtype) = format.scale_dtype() else { return };
        for (block, out) in out.chunks_mut(inner).enumerate() {
            let at = match format.scheme {
                Scheme::Tensor => 0,
                _ => format.scale_index((row / outer, block as u32), shape) as usize,
            };
            let scale = numbers::get::<R>(dtype, scales, at) * global;
            let zero = if format.has_zero() { R::from_f32(zeros[at].into()) } else { R::ZERO };
            out.iter_mut().for_each(|x| *x = (*x - zero) * scale);
        }
    };
    // SAFETY: scratch and output are this launch's.
    unsafe { each_row(&store, scratch, row) };
}

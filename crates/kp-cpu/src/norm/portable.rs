//! Norms in two passes over a row that is in cache: its mean and mean square, then the result.

use crate::{
    kernel::{Output, input, optional},
    numbers::{self, Real},
    portable::Portable,
    rows::{each_row, read, scratch_bytes, sum, vector, with_real},
    store::Store,
};
use kp_hal::{
    DType, Problem,
    op::{Norm, NormArgs, NormKind, NormProblem, NormSpec, Overflow},
    source_hash,
};

impl Portable for Norm {
    const CODE: u64 = source_hash(include_bytes!("portable.rs"));

    fn scratch_bytes(p: &NormProblem) -> u64 {
        let unit = p.y.format.block().0.min(p.rows.max(1));
        let unit = if matches!(p.y.format.scheme, kp_hal::op::Scheme::Block { .. }) { unit } else { 1 };
        scratch_bytes::<f64>(u64::from(unit) * u64::from(p.cols))
    }

    unsafe fn run(p: &Problem<NormSpec>, scratch: &mut [u8], args: &NormArgs<'_>) {
        // SAFETY: the caller's promise.
        with_real!(p.x.dtype() == DType::F64, R => unsafe { run::<R>(p, scratch, args) });
    }
}

/// # Safety
/// As `Portable::run`.
unsafe fn run<R: Real>(p: &NormProblem, scratch: &mut [u8], args: &NormArgs<'_>) {
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
    let store = Store::fused(p.y.format, (p.rows, p.cols), p.y.ld, y, scales, global);
    let n = R::from_f64(p.cols.into());
    let row = |row: u32, out: &mut [R]| {
        read(&p.x, x, row, 0, out);
        if p.residual {
            add_residual(p, residual, &sums, row, out);
        }
        let (shift, factor) = match p.kind {
            NormKind::Layer => {
                let mean = sum(out, |x| x) / n;
                let variance = sum(out, |x| (x - mean) * (x - mean)) / n;
                (mean, R::ONE / (variance + eps).sqrt())
            }
            NormKind::Rms => (R::ZERO, R::ONE / (sum(out, |x| x * x) / n + eps).sqrt()),
            NormKind::L2 => {
                let length = sum(out, |x| x * x).sqrt();
                // Not `max`, which would lose NaN.
                (R::ZERO, R::ONE / if length < eps { eps } else { length })
            }
        };
        for (i, y) in out.iter_mut().enumerate() {
            let normal = (*y - shift) * factor;
            *y = normal * vector(p.weight, weight, i, R::ONE) + vector(p.bias, bias, i, R::ZERO);
        }
    };
    // SAFETY: scratch and outputs are this launch's.
    unsafe { each_row(&store, scratch, row) };
}

/// Adds the residual to a row and stores the sum; what is normalized is the sum as stored.
fn add_residual<R: Real>(p: &NormProblem, residual: &[u8], sums: &Output<'_>, row: u32, out: &mut [R]) {
    let dtype = p.x.dtype();
    let start = row as usize * p.x.ld as usize;
    let bytes = dtype.bits() as usize / 8;
    // SAFETY: rows do not overlap, and one thread has each.
    let stored = unsafe { sums.part(start * bytes..(start + out.len()) * bytes) };
    for (i, x) in out.iter_mut().enumerate() {
        *x += numbers::get::<R>(dtype, residual, start + i);
    }
    numbers::write(dtype, out, stored, 0, Overflow::Saturate);
    numbers::read(dtype, stored, 0, out);
}

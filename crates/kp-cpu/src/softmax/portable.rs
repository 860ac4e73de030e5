//! Softmax in three passes over a row that is in cache: maximum, sum, quotient.

use crate::{
    kernel::{Output, input},
    numbers::Real,
    portable::Portable,
    rows::{each_row, read, scratch_bytes, sum, with_real},
    store::Store,
};
use kp_hal::{
    DType, Problem,
    op::{Softmax, SoftmaxArgs, SoftmaxProblem, SoftmaxSpec},
    source_hash,
};

impl Portable for Softmax {
    const CODE: u64 = source_hash(include_bytes!("portable.rs"));

    fn scratch_bytes(p: &SoftmaxProblem) -> u64 {
        scratch_bytes::<f64>(p.cols.into())
    }

    unsafe fn run(p: &Problem<SoftmaxSpec>, scratch: &mut [u8], args: &SoftmaxArgs<'_>) {
        // SAFETY: the caller's promise.
        with_real!(p.x.dtype() == DType::F64, R => unsafe { run::<R>(p, scratch, args) });
    }
}

/// # Safety
/// As `Portable::run`.
unsafe fn run<R: Real>(p: &SoftmaxProblem, scratch: &mut [u8], args: &SoftmaxArgs<'_>) {
    let scale = R::from_f32(p.scale.get());
    // SAFETY: within a launch, whose arguments were checked.
    let (x, y) = unsafe { (input(&args.x), Output::new(&args.y)) };
    let store = Store::fused(p.y.format, (p.rows, p.cols), p.y.ld, y, Output::of(&mut []), &[]);
    let row = |row: u32, out: &mut [R]| {
        read(&p.x, x, row, 0, out);
        out.iter_mut().for_each(|x| *x *= scale);
        // Not `max`, which would lose NaN.
        let largest = out.iter().fold(-R::INFINITY, |m, &x| if x > m || x.is_nan() { x } else { m });
        out.iter_mut().for_each(|x| *x = *x - largest);
        let total = sum(out, R::exp);
        if p.log {
            let log = total.ln();
            out.iter_mut().for_each(|x| *x = *x - log);
        } else {
            out.iter_mut().for_each(|x| *x = x.exp() / total);
        }
    };
    // SAFETY: scratch and output are this launch's.
    unsafe { each_row(&store, scratch, row) };
}

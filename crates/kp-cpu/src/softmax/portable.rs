//! Softmax in three passes over a row that is in cache: maximum, sum, quotient.

use crate::{
    kernel::{Output, input},
    numbers::Real,
    portable::Portable,
    rows::{each_row, lying, map, read, scratch_bytes, sum, with_real},
    simd::{Baseline, Work, arith::Arith, run_widest},
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
unsafe fn run<R: Arith>(p: &SoftmaxProblem, scratch: &mut [u8], args: &SoftmaxArgs<'_>) {
    let scale = R::from_f32(p.scale.get());
    // SAFETY: within a launch, whose arguments were checked.
    let (bytes, y) = unsafe { (input(&args.x), Output::new(&args.y)) };
    let store = Store::fused(p.y.format, (p.rows, p.cols), p.y.ld, y, Output::of(&mut []), &[]).of_launch(p.x.dtype());
    let row = |row: u32, out: &mut [R]| {
        let x = lying(&p.x, bytes, row, out.len());
        if x.is_none() {
            read(&p.x, bytes, row, 0, out);
        }
        run_widest(out.len(), Share { scale, log: p.log, x, out });
    };
    // SAFETY: scratch and output are this launch's.
    unsafe { each_row(&store, scratch, row) };
}

/// One row: `x`, or what `out` holds.
struct Share<'a, R> {
    scale: R,
    log: bool,
    x: Option<&'a [R]>,
    out: &'a mut [R],
}

impl<R: Arith> Work for Share<'_, R> {
    #[inline(always)]
    fn run(self) {
        let Self { scale, log, x, out } = self;
        map(x, out, |_, x| x * scale);
        let largest = largest(out);
        if log {
            // The same arithmetic on every processor: fused steps would gain nothing, since memory is slower.
            let log = sum(out, |x| (x - largest).exp_of::<Baseline>()).ln();
            out.iter_mut().for_each(|x| *x = *x - largest - log);
        } else {
            out.iter_mut().for_each(|x| *x = (*x - largest).exp_of::<Baseline>());
            let share = R::ONE / sum(out, |x| x);
            out.iter_mut().for_each(|x| *x *= share);
        }
    }
}

/// The largest number, or NaN if there is one.
#[inline(always)]
fn largest<R: Real>(x: &[R]) -> R {
    // Not `max`, which would lose NaN.
    let larger = |m: R, x: R| if x > m || x.is_nan() { x } else { m };
    let mut most = [-R::INFINITY; 16];
    for x in x.chunks(16) {
        most.iter_mut().zip(x).for_each(|(m, &x)| *m = larger(*m, x));
    }
    most.into_iter().fold(-R::INFINITY, larger)
}

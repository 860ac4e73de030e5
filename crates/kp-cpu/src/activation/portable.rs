//! Element by element, in tiles of a row.

use crate::{
    act::{self, Tail},
    kernel::{Output, input, optional},
    numbers::{self, Real},
    portable::Portable,
    rows::{Add, Out, each_row_by_parts, read, scratch_bytes, with_real},
    simd::{Work, run_widest},
    store::Store,
};
use kp_hal::{
    DType, Problem,
    op::{Activation, ActivationArgs, ActivationProblem, ActivationSpec, Gate, Scheme},
    source_hash,
};

impl Portable for Activation {
    const CODE: u64 = source_hash(include_bytes!("portable.rs"));

    fn scratch_bytes(p: &ActivationProblem) -> u64 {
        let unit = match p.y.format.scheme {
            Scheme::Block { outer, .. } => u32::from(outer).min(p.rows.max(1)),
            _ => 1,
        };
        scratch_bytes::<f64>(u64::from(unit) * u64::from(p.cols))
    }

    unsafe fn run(p: &Problem<ActivationSpec>, scratch: &mut [u8], args: &ActivationArgs<'_>) {
        let wide = [Some(p.x.dtype()), p.factor, p.residual].contains(&Some(DType::F64));
        // SAFETY: the caller's promise.
        with_real!(wide, R => unsafe { run::<R>(p, scratch, args) });
    }
}

/// Columns taken at a time, so that everything about them stays in the first cache.
const TILE: usize = 1024;

/// # Safety
/// As `Portable::run`.
unsafe fn run<R: Tail>(p: &ActivationProblem, scratch: &mut [u8], args: &ActivationArgs<'_>) {
    // SAFETY: within a launch, whose arguments were checked.
    let (x, factor, residual, global) =
        unsafe { (input(&args.x), optional(&args.factor), optional(&args.residual), optional(&args.y_global)) };
    // SAFETY: as above.
    let (y, scales) = unsafe { (Output::new(&args.y), Output::optional(&args.y_scale)) };
    let store = Store::fused(p.y.format, (p.rows, p.cols), p.y.ld, y, scales, global).of_launch(p.x.dtype());
    let row = |row: u32, out: Out<'_, R>| {
        let mut other = [R::ZERO; 2 * TILE];
        out.fill::<TILE>(|first, out| {
            match p.gate {
                Gate::None => {
                    read(&p.x, x, row, first as u32, out);
                    act::each(p.act, out);
                }
                Gate::Halves => {
                    let ups = &mut other[..out.len()];
                    read(&p.x, x, row, first as u32, out);
                    read(&p.x, x, row, first as u32 + p.cols, ups);
                    act::each(p.act, out);
                    run_widest(out.len(), Times { x: ups, out });
                }
                Gate::Pairs => {
                    let pairs = &mut other[..2 * out.len()];
                    read(&p.x, x, row, 2 * first as u32, pairs);
                    run_widest(out.len(), Split { pairs, out });
                    act::each(p.act, out);
                    run_widest(out.len(), Times { x: &pairs[..out.len()], out });
                }
            }
            let start = row as usize * p.cols as usize + first;
            let other = &mut other[..out.len()];
            if let Some(dtype) = p.factor {
                numbers::read(dtype, factor, start, other);
                run_widest(out.len(), Times { x: other, out });
            }
            if let Some(dtype) = p.residual {
                numbers::read(dtype, residual, start, other);
                run_widest(out.len(), Add { x: other, out });
            }
        });
    };
    // SAFETY: scratch and outputs are this launch's.
    unsafe { each_row_by_parts(&store, scratch, row) };
}

/// Multiplies one row by another.
struct Times<'a, R> {
    x: &'a [R],
    out: &'a mut [R],
}

impl<R: Real> Work for Times<'_, R> {
    #[inline(always)]
    fn run(self) {
        self.out.iter_mut().zip(self.x).for_each(|(out, &x)| *out *= x);
    }
}

/// The first of each pair to `out`, the second to the front of `pairs`.
struct Split<'a, R> {
    pairs: &'a mut [R],
    out: &'a mut [R],
}

impl<R: Real> Work for Split<'_, R> {
    #[inline(always)]
    fn run(self) {
        let Self { pairs, out } = self;
        for (i, out) in out.iter_mut().enumerate() {
            (*out, pairs[i]) = (pairs[2 * i], pairs[2 * i + 1]);
        }
    }
}

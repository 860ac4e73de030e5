//! Element by element, a row at a time.

use crate::{
    act,
    kernel::{Output, input, optional},
    numbers::{self, Real},
    portable::Portable,
    rows::{each_row, read, scratch_bytes, with_real},
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

/// Columns taken at a time when gated, so that both halves wait on the stack.
const TILE: usize = 128;

/// # Safety
/// As `Portable::run`.
unsafe fn run<R: Real>(p: &ActivationProblem, scratch: &mut [u8], args: &ActivationArgs<'_>) {
    // SAFETY: within a launch, whose arguments were checked.
    let (x, factor, residual, global) =
        unsafe { (input(&args.x), optional(&args.factor), optional(&args.residual), optional(&args.y_global)) };
    // SAFETY: as above.
    let (y, scales) = unsafe { (Output::new(&args.y), Output::optional(&args.y_scale)) };
    let store = Store::fused(p.y.format, (p.rows, p.cols), p.y.ld, y, scales, global);
    let row = |row: u32, out: &mut [R]| {
        if p.gate == Gate::None {
            read(&p.x, x, row, 0, out);
            out.iter_mut().for_each(|x| *x = act::apply(p.act, *x));
        } else {
            for (tile, out) in out.chunks_mut(TILE).enumerate() {
                gated(p, x, row, (tile * TILE) as u32, out);
            }
        }
        let start = row as usize * p.cols as usize;
        if let Some(dtype) = p.factor {
            out.iter_mut().enumerate().for_each(|(i, y)| *y *= numbers::get(dtype, factor, start + i));
        }
        if let Some(dtype) = p.residual {
            out.iter_mut().enumerate().for_each(|(i, y)| *y += numbers::get(dtype, residual, start + i));
        }
    };
    // SAFETY: scratch and outputs are this launch's.
    unsafe { each_row(&store, scratch, row) };
}

/// Output columns `first ..` of a gated row, at most `TILE`.
fn gated<R: Real>(p: &ActivationProblem, x: &[u8], row: u32, first: u32, out: &mut [R]) {
    let mut pairs = [R::ZERO; 2 * TILE];
    let pairs = &mut pairs[..2 * out.len()];
    match p.gate {
        Gate::Pairs => {
            read(&p.x, x, row, 2 * first, pairs);
            for (y, pair) in out.iter_mut().zip(pairs.chunks_exact(2)) {
                *y = act::apply(p.act, pair[0]) * pair[1];
            }
        }
        Gate::None | Gate::Halves => {
            let (gates, ups) = pairs.split_at_mut(out.len());
            read(&p.x, x, row, first, gates);
            read(&p.x, x, row, first + p.cols, ups);
            for ((y, &gate), &up) in out.iter_mut().zip(&*gates).zip(&*ups) {
                *y = act::apply(p.act, gate) * up;
            }
        }
    }
}

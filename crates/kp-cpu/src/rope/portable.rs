//! Rotation, a token at a time.

use crate::{
    kernel::{Output, input},
    numbers::{self, Real},
    portable::Portable,
    rows::{each_row, read, scratch_bytes, with_real},
    store::Store,
};
use kp_hal::{
    DType, Problem,
    op::{Rope, RopeArgs, RopeProblem, RopeSpec},
    source_hash,
};

impl Portable for Rope {
    const CODE: u64 = source_hash(include_bytes!("portable.rs"));

    fn scratch_bytes(p: &RopeProblem) -> u64 {
        scratch_bytes::<f64>(p.cols().into())
    }

    unsafe fn run(p: &Problem<RopeSpec>, scratch: &mut [u8], args: &RopeArgs<'_>) {
        // SAFETY: the caller's promise.
        with_real!(p.x.dtype() == DType::F64, R => unsafe { run::<R>(p, scratch, args) });
    }
}

/// # Safety
/// As `Portable::run`.
unsafe fn run<R: Real>(p: &RopeProblem, scratch: &mut [u8], args: &RopeArgs<'_>) {
    // SAFETY: within a launch, whose arguments were checked.
    let (x, positions, cos, sin) =
        unsafe { (input(&args.x), input(&args.positions), input(&args.cos), input(&args.sin)) };
    // SAFETY: as above.
    let y = unsafe { Output::new(&args.y) };
    let store = Store::fused(p.y.format, (p.tokens, p.cols()), p.y.ld, y, Output::of(&mut []), &[]);
    let half = p.rotated / 2;
    let row = |token: u32, out: &mut [R]| {
        read(&p.x, x, token, 0, out);
        let position = numbers::index(positions, token as usize);
        let known = u32::try_from(position).ok().filter(|&at| at < p.positions);
        for head in out.chunks_exact_mut(p.dim as usize) {
            for j in 0..half {
                let (one, other) = p.pairs.places(j, p.rotated);
                let (one, other) = (one as usize, other as usize);
                let (c, s) = match known {
                    Some(at) => {
                        let at = at as usize * half as usize + j as usize;
                        (numbers::get::<R>(DType::F32, cos, at), numbers::get::<R>(DType::F32, sin, at))
                    }
                    None => (R::NAN, R::NAN),
                };
                let s = if p.inverse { -s } else { s };
                let (x1, x2) = (head[one], head[other]);
                head[one] = x1 * c - x2 * s;
                head[other] = x2 * c + x1 * s;
            }
        }
    };
    // SAFETY: scratch and output are this launch's.
    unsafe { each_row(&store, scratch, row) };
}

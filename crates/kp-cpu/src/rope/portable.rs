//! Rotation, a token at a time.

use crate::{
    kernel::{Output, input},
    numbers::{self, Real},
    portable::Portable,
    rows::{each_row, read, scratch_bytes, with_real},
    simd::{Work, run_widest},
    store::Store,
};
use kp_hal::{
    DType, Problem,
    op::{Rope, RopeArgs, RopePairs, RopeProblem, RopeSpec},
    source_hash,
};
use std::ops::Range;

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
    let store =
        Store::fused(p.y.format, (p.tokens, p.cols()), p.y.ld, y, Output::of(&mut []), &[]).of_launch(p.x.dtype());
    let half = p.rotated as usize / 2;
    let row = |token: u32, out: &mut [R]| {
        read(&p.x, x, token, 0, out);
        let position = numbers::index(positions, token as usize);
        let known = u32::try_from(position).ok().filter(|&at| at < p.positions);
        let (mut c, mut s) = ([R::NAN; TILE], [R::NAN; TILE]);
        for first in (0..half).step_by(TILE) {
            let pairs = first..(first + TILE).min(half);
            let (c, s) = (&mut c[..pairs.len()], &mut s[..pairs.len()]);
            if let Some(at) = known {
                numbers::read(DType::F32, cos, at as usize * half + first, c);
                numbers::read(DType::F32, sin, at as usize * half + first, s);
            }
            run_widest(out.len(), Turn { p, pairs, c, s, out });
        }
    };
    // SAFETY: scratch and output are this launch's.
    unsafe { each_row(&store, scratch, row) };
}

/// Pairs whose angles are looked up at a time.
const TILE: usize = 128;

/// Turns the pairs `pairs` of each head of a token by the angles whose cosines are `c` and whose sines are `s`.
struct Turn<'a, R> {
    p: &'a RopeProblem,
    pairs: Range<usize>,
    c: &'a [R],
    s: &'a [R],
    out: &'a mut [R],
}

impl<R: Real> Work for Turn<'_, R> {
    #[inline(always)]
    fn run(self) {
        let Self { p, pairs, c, s, out } = self;
        let turn = |one: &mut R, other: &mut R, c: R, s: R| {
            let s = if p.inverse { -s } else { s };
            (*one, *other) = (*one * c - *other * s, *other * c + *one * s);
        };
        for head in out.chunks_exact_mut(p.dim as usize) {
            let angles = c.iter().zip(s);
            match p.pairs {
                RopePairs::Halves => {
                    let (ones, others) = head.split_at_mut(p.rotated as usize / 2);
                    let pairs = ones[pairs.clone()].iter_mut().zip(&mut others[pairs.clone()]);
                    pairs.zip(angles).for_each(|((one, other), (&c, &s))| turn(one, other, c, s));
                }
                RopePairs::Adjacent => {
                    let pairs = head[2 * pairs.start..2 * pairs.end].as_chunks_mut::<2>().0;
                    pairs.iter_mut().zip(angles).for_each(|([one, other], (&c, &s))| turn(one, other, c, s));
                }
            }
        }
    }
}

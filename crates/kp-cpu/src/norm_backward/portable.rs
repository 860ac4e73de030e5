//! Gradients of a norm. With n = cols, s the row, w the weight, g = grad_y · w, r the reciprocal divisor, h = s · r
//! (layer: h = (s − mean) · r):
//!
//! ```text
//! layer: grad_x = r · (g − mean(g) − h · mean(g · h))
//! rms:   grad_x = r · (g − h · mean(g · h))
//! l2:    grad_x = r · (g − h · Σ g · h)      r · g where the length is below eps
//! grad_weight = Σ over rows of grad_y · h,   grad_bias = Σ over rows of grad_y
//! ```
//! Rows are summed in runs of fixed length, then run by run, so the bits do not depend on the number of threads.

use crate::{
    kernel::{Output, input, optional},
    memory::numbers_mut,
    numbers::{self, Real},
    portable::Portable,
    rows::{Add, products, read, squares, sum, vector, with_real},
    simd::{
        run_widest,
        vector::{Vectors, Wide, WorkOn},
    },
    threads,
};
use kp_hal::{
    DType, Problem,
    op::{NormBackward, NormBackwardArgs, NormBackwardProblem, NormBackwardSpec, NormKind, Overflow},
    source_hash,
};

impl Portable for NormBackward {
    const CODE: u64 = source_hash(include_bytes!("portable.rs"));

    fn scratch_bytes(p: &NormBackwardProblem) -> u64 {
        let numbers = u64::from(runs(p)).saturating_mul(RUN_ROWS.saturating_mul(p.cols.into()));
        vector_bytes(p).saturating_add(numbers.saturating_mul(size_of::<f64>() as u64))
    }

    unsafe fn run(p: &Problem<NormBackwardSpec>, scratch: &mut [u8], args: &NormBackwardArgs<'_>) {
        let wide = [p.x.dtype(), p.grad_y.dtype()].contains(&DType::F64);
        // SAFETY: the caller's promise.
        with_real!(wide, R => unsafe { run::<R>(p, scratch, args) });
    }
}

/// The weight as numbers.
fn vector_bytes(p: &NormBackwardProblem) -> u64 {
    (u64::from(p.cols) * size_of::<f64>() as u64).next_multiple_of(64)
}

/// Rows of numbers that a run keeps: its row, its gradient, and the two sums over its rows.
const RUN_ROWS: u64 = 4;

/// Rows whose gradients by weight and bias are summed by one thread, and how many such runs there are.
fn run_len(p: &NormBackwardProblem) -> u32 {
    // At most 64 runs, whatever the machine: the scratch stays small and the order of the sums fixed.
    p.rows.div_ceil(64).max(16)
}

fn runs(p: &NormBackwardProblem) -> u32 {
    p.rows.div_ceil(run_len(p)).max(1)
}

/// # Safety
/// As `Portable::run`.
unsafe fn run<R: Wide>(p: &NormBackwardProblem, scratch: &mut [u8], args: &NormBackwardArgs<'_>) {
    let cols = p.cols as usize;
    if cols == 0 {
        return;
    }
    // SAFETY: within a launch, whose arguments were checked.
    let (x, grad_y, weight) = unsafe { (input(&args.x), input(&args.grad_y), optional(&args.weight)) };
    // SAFETY: as above.
    let (grad_x, grad_weight, grad_bias) =
        unsafe { (Output::new(&args.grad_x), Output::optional(&args.grad_weight), Output::optional(&args.grad_bias)) };
    let (vector_scratch, scratch) = scratch.split_at_mut(vector_bytes(p) as usize);
    let weight = vector(p.weight, weight, cols, R::ONE, numbers_mut(vector_scratch));
    let run_bytes = RUN_ROWS as usize * cols * size_of::<f64>();
    let run_scratch = Output::of(scratch);
    let sums_of = |run: u32| {
        // SAFETY: a run has one thread, and later only this one looks.
        let bytes = unsafe { run_scratch.part(run as usize * run_bytes..(run as usize + 1) * run_bytes) };
        numbers_mut::<R>(bytes)[..RUN_ROWS as usize * cols].split_at_mut(2 * cols)
    };
    threads::for_each(runs(p) as usize, |run| {
        let (row_and_grad, sums) = sums_of(run as u32);
        let (s, g) = row_and_grad.split_at_mut(cols);
        sums.fill(R::ZERO);
        let (by_weight, by_bias) = sums.split_at_mut(cols);
        let first = run as u32 * run_len(p);
        for row in first..first.saturating_add(run_len(p)).min(p.rows) {
            read(&p.x, x, row, 0, s);
            read(&p.grad_y, grad_y, row, 0, g);
            R::run_widest(cols, Backward { p, s, g, weight, by_weight, by_bias });
            let dtype = p.x.dtype();
            let bytes = dtype.bits() as usize / 8;
            let start = row as usize * cols * bytes;
            // SAFETY: a row has one thread.
            let place = unsafe { grad_x.part(start..start + cols * bytes) };
            numbers::write(dtype, g, place, 0, Overflow::Saturate);
        }
    });
    for (wanted, output, at) in [(p.weight.is_some(), grad_weight, 0), (p.bias, grad_bias, cols)] {
        if wanted {
            let sum = &mut sums_of(0).1[at..at + cols];
            (1..runs(p)).for_each(|run| run_widest(cols, Add { x: &sums_of(run).1[at..at + cols], out: sum }));
            // SAFETY: the loop above is over: only this thread writes.
            let place = unsafe { output.part(0..4 * cols) };
            numbers::write(DType::F32, sum, place, 0, Overflow::Saturate);
        }
    }
}

/// One row: its gradients, and its share of those by weight and bias.
struct Backward<'a, R> {
    p: &'a NormBackwardProblem,
    /// The row; h afterwards.
    s: &'a mut [R],
    /// The gradient by y; by x afterwards.
    g: &'a mut [R],
    weight: &'a [R],
    by_weight: &'a mut [R],
    by_bias: &'a mut [R],
}

impl<R: Real> WorkOn<R> for Backward<'_, R> {
    #[inline(always)]
    fn run_on<I: Vectors<R>>(self) {
        let Self { p, s, g, weight, by_weight, by_bias } = self;
        let backward = Divisor::of::<I>(p, s);
        s.iter_mut().for_each(|s| *s = (*s - backward.mean) * backward.r);
        by_weight.iter_mut().zip(s.iter().zip(&*g)).for_each(|(sum, (&h, &g))| *sum += g * h);
        by_bias.iter_mut().zip(&*g).for_each(|(sum, &g)| *sum += g);
        g.iter_mut().zip(weight).for_each(|(g, &weight)| *g *= weight);
        backward.by_input::<I>(p.kind, s, g);
    }
}

/// What a row was divided by, and what of it takes part in the gradient.
struct Divisor<R> {
    mean: R,
    /// One over the divisor.
    r: R,
    /// 1 / n of a mean, 1 of a length, 0 where the divisor was eps alone.
    share: R,
}

impl<R: Real> Divisor<R> {
    #[inline(always)]
    fn of<I: Vectors<R>>(p: &NormBackwardProblem, s: &[R]) -> Self {
        let (n, eps) = (R::from_f64(p.cols.into()), R::from_f32(p.eps.get()));
        match p.kind {
            NormKind::Layer => {
                let mean = sum::<I, R>(s) / n;
                let variance = squares::<I, R>(s, mean) / n;
                Self { mean, r: R::ONE / (variance + eps).sqrt(), share: R::ONE / n }
            }
            NormKind::Rms => {
                let square = squares::<I, R>(s, R::ZERO) / n;
                Self { mean: R::ZERO, r: R::ONE / (square + eps).sqrt(), share: R::ONE / n }
            }
            NormKind::L2 => {
                let length = squares::<I, R>(s, R::ZERO).sqrt();
                if length < eps {
                    Self { mean: R::ZERO, r: R::ONE / eps, share: R::ZERO }
                } else {
                    Self { mean: R::ZERO, r: R::ONE / length, share: R::ONE }
                }
            }
        }
    }

    /// The gradient by the input, in place of g.
    #[inline(always)]
    fn by_input<I: Vectors<R>>(&self, kind: NormKind, h: &[R], g: &mut [R]) {
        let mean = if kind == NormKind::Layer { sum::<I, R>(g) * self.share } else { R::ZERO };
        // What is infinite takes no part where nothing is projected.
        let along = if self.share == R::ZERO { R::ZERO } else { products::<I, R>(h, g) * self.share };
        for (g, &h) in g.iter_mut().zip(h) {
            *g = self.r * (*g - mean - h * along);
        }
    }
}

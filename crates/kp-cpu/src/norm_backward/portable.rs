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
    numbers::{self, Real},
    portable::Portable,
    rows::{read, sum, vector, with_real},
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
        numbers.saturating_mul(size_of::<f64>() as u64)
    }

    unsafe fn run(p: &Problem<NormBackwardSpec>, scratch: &mut [u8], args: &NormBackwardArgs<'_>) {
        let wide = [p.x.dtype(), p.grad_y.dtype()].contains(&DType::F64);
        // SAFETY: the caller's promise.
        with_real!(wide, R => unsafe { run::<R>(p, scratch, args) });
    }
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
unsafe fn run<R: Real>(p: &NormBackwardProblem, scratch: &mut [u8], args: &NormBackwardArgs<'_>) {
    let cols = p.cols as usize;
    if cols == 0 {
        return;
    }
    // SAFETY: within a launch, whose arguments were checked.
    let (x, grad_y, weight) = unsafe { (input(&args.x), input(&args.grad_y), optional(&args.weight)) };
    // SAFETY: as above.
    let (grad_x, grad_weight, grad_bias) =
        unsafe { (Output::new(&args.grad_x), Output::optional(&args.grad_weight), Output::optional(&args.grad_bias)) };
    let run_bytes = RUN_ROWS as usize * cols * size_of::<f64>();
    let scratch = Output::of(scratch);
    let sums_of = |run: u32| {
        // SAFETY: a run has one thread, and later only this one looks.
        let bytes = unsafe { scratch.part(run as usize * run_bytes..(run as usize + 1) * run_bytes) };
        // SAFETY: any bits are a number.
        let (before, numbers, _) = unsafe { bytes.align_to_mut::<R>() };
        assert!(before.is_empty(), "scratch is aligned, and a run's share is a multiple of eight bytes");
        numbers[..RUN_ROWS as usize * cols].split_at_mut(2 * cols)
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
            let backward = Divisor::of(p, s);
            // From here on `s` holds h.
            s.iter_mut().for_each(|s| *s = (*s - backward.mean) * backward.r);
            for (i, (h, g)) in s.iter().zip(&mut *g).enumerate() {
                by_weight[i] += *g * *h;
                by_bias[i] += *g;
                *g *= vector(p.weight, weight, i, R::ONE);
            }
            backward.by_input(p.kind, s, g);
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
            // SAFETY: the loop above is over: only this thread writes.
            let place = unsafe { output.part(0..4 * cols) };
            for i in 0..cols {
                let total: R = (0..runs(p)).map(|run| sums_of(run).1[at + i]).sum();
                numbers::write(DType::F32, &[total], place, i, Overflow::Saturate);
            }
        }
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
    fn of(p: &NormBackwardProblem, s: &[R]) -> Self {
        let (n, eps) = (R::from_f64(p.cols.into()), R::from_f32(p.eps.get()));
        match p.kind {
            NormKind::Layer => {
                let mean = sum(s, |x| x) / n;
                let variance = sum(s, |x| (x - mean) * (x - mean)) / n;
                Self { mean, r: R::ONE / (variance + eps).sqrt(), share: R::ONE / n }
            }
            NormKind::Rms => {
                let square = sum(s, |x| x * x) / n;
                Self { mean: R::ZERO, r: R::ONE / (square + eps).sqrt(), share: R::ONE / n }
            }
            NormKind::L2 => {
                let length = sum(s, |x| x * x).sqrt();
                if length < eps {
                    Self { mean: R::ZERO, r: R::ONE / eps, share: R::ZERO }
                } else {
                    Self { mean: R::ZERO, r: R::ONE / length, share: R::ONE }
                }
            }
        }
    }

    /// The gradient by the input, in place of g.
    fn by_input(&self, kind: NormKind, h: &[R], g: &mut [R]) {
        let mean = if kind == NormKind::Layer { sum(g, |g| g) * self.share } else { R::ZERO };
        let mut sums = [R::ZERO; 16];
        for (h, g) in h.chunks(16).zip(g.chunks(16)) {
            sums.iter_mut().zip(h.iter().zip(g)).for_each(|(sum, (&h, &g))| *sum += g * h);
        }
        let along = sums.into_iter().sum::<R>() * self.share;
        for (g, &h) in g.iter_mut().zip(h) {
            *g = self.r * (*g - mean - h * along);
        }
    }
}

//! Weights rounded so that their products change least, which is not each number to the nearest.
//!
//! With W a weight, Ŵ the same from codes, x an input and C the covariance of inputs, the best bias leaves a row
//! e = W − Ŵ with the mean squared error e C eᵀ = ‖e L‖², where C = L Lᵀ and L is lower triangular. Codes are chosen
//! from the last column to the first, so that each makes its own entry of e L small given all that is behind it:
//!
//! ```text
//! ŵ[i] = the number nearest to  w[i] + Σ e[j] · L[j][i] / L[i][i]  over j > i
//! ```
//!
//! This is Babai's nearest plane (1986) on the lattice of L, and yields the codes of GPTQ (Frantar et al.,
//! arXiv:2210.17323), as QuIP (Chee et al., arXiv:2307.13304, theorem 6) shows; unlike GPTQ's own form it needs no
//! inverse. Taken from GPTQ: 1 % of the mean variance is added to every variance, so that C is positive definite
//! however few inputs there are, and columns of larger variance are rounded first, while most can still make up
//! for them. Scales and zero points are those of [`Tensor::quantize`], but for the scales of `@mx`, which are rounded
//! up: other columns could only make up for a number past the largest code by going far astray themselves.

use crate::{Tensor, tensor::Epilogue, tensor::Over};
use kp_hal::{
    BadOperands, DType, Result,
    op::{Format, ScaleRule, Scheme},
};
use std::{num::NonZeroUsize, thread};

/// A weight in codes, and what its products lack.
#[derive(Clone, Debug)]
pub struct Rounded {
    /// Codes and scales in the shape of what was rounded.
    pub weight: Tensor,
    /// What to add to the bias, `n` numbers in f32: the mean of what the products lose to rounding.
    pub shift: Tensor,
}

impl Tensor {
    /// This weight, `n`×`k`, in codes of `format` such that `inputs · weightᵀ + shift` is close to the product
    /// before, where [`Tensor::quantize`] looks at the weight alone. `inputs` are rows of `k` numbers like those
    /// that will be multiplied, some times `k` of them.
    ///
    /// The columns are rounded one after the other on the host, in about k³/3 + n·k²/2 multiplications. The same
    /// weight and inputs give the same codes.
    ///
    /// # Errors
    /// `BadOperands` if one of the two is no matrix, has scales or numbers that are not finite, if the columns differ
    /// or there is no input; `BadProblem` if there is no such format; `Unsupported`; `OutOfMemory`.
    pub fn quantize_for(&self, format: impl Into<Format>, inputs: &Tensor) -> Result<Rounded> {
        let format = format.into();
        let (&[n, k], &[rows, cols]) = (self.shape(), inputs.shape()) else {
            return Err(refuse(self, inputs, "both must be matrices"));
        };
        if k != cols || rows == 0 {
            return Err(refuse(self, inputs, "the input must have rows, and they must be as long as the weight's"));
        }
        let (weight, inputs_f32) = (self.cast(DType::F32)?, inputs.cast(DType::F32)?);
        let rule = if format.scheme == Scheme::Mx { ScaleRule::Up } else { ScaleRule::of(format) };
        let nearest = weight.quantize_by(format, rule)?;
        let mean = inputs_f32.mean(Over::Rows)?;
        let squares = inputs_f32.t().matmul(&inputs_f32)?.to_vec::<f32>()?;
        let covariance = Covariance { squares, mean: mean.to_vec()?, rows };
        let numbers = weight.to_vec::<f32>()?;
        if !covariance.trace().is_finite() || !numbers.iter().all(|w| w.is_finite()) {
            return Err(refuse(self, inputs, "every number must be finite"));
        }
        let feedback = Feedback::new(&covariance);
        let grid = Grid::of(&nearest)?;
        let mut parts = nearest.to_parts()?;
        parts.codes.fill(0);
        round(&mut parts.codes, &numbers, &grid, &feedback);
        let rounded = Self::from_parts(self.engine(), &[n, k], format, &parts)?;
        let mean = mean.reshape(&[1, k])?;
        let kept = mean.matmul(&weight.t())?;
        let shift =
            mean.matmul_with(&rounded.t(), Epilogue { alpha: -1.0, residual: Some(&kept), ..Epilogue::default() })?;
        Ok(Rounded { weight: rounded, shift: shift.reshape(&[n])? })
    }
}

/// How inputs vary together.
struct Covariance {
    /// The sums over all rows of the product of two columns, `k`×`k`.
    squares: Vec<f32>,
    mean: Vec<f32>,
    rows: usize,
}

impl Covariance {
    fn k(&self) -> usize {
        self.mean.len()
    }

    fn at(&self, i: usize, j: usize) -> f64 {
        let square = f64::from(self.squares[i * self.k() + j]) / self.rows as f64;
        square - f64::from(self.mean[i]) * f64::from(self.mean[j])
    }

    /// Never negative, as a difference of two large numbers may be.
    fn variance(&self, i: usize) -> f64 {
        self.at(i, i).max(0.0)
    }

    fn trace(&self) -> f64 {
        // Not through `max`, which would drop NaN.
        (0..self.k()).map(|i| self.at(i, i)).sum::<f64>()
    }
}

/// What an error in one column asks of those rounded after it.
struct Feedback {
    /// The columns; the last is rounded first.
    order: Vec<usize>,
    /// Row j holds `L[j][i] / L[i][i]` for i < j.
    factors: Vec<f32>,
}

impl Feedback {
    fn new(covariance: &Covariance) -> Self {
        let k = covariance.k();
        let mut order: Vec<usize> = (0..k).collect();
        order.sort_by(|&i, &j| covariance.variance(i).total_cmp(&covariance.variance(j)));
        let mean = (0..k).map(|i| covariance.variance(i)).sum::<f64>() / k as f64;
        // Inputs that never vary ask for nothing: any multiple of 1 rounds to the nearest.
        let damping = if mean > 0.0 { DAMPING * mean } else { 1.0 };
        let mut l: Vec<f64> = Vec::with_capacity(k * k);
        for (i, &row) in order.iter().enumerate() {
            l.extend(order.iter().map(|&col| covariance.at(row, col)));
            l[i * k + i] = covariance.variance(row) + damping;
        }
        cholesky(&mut l, k, damping);
        let diagonal: Vec<f64> = (0..k).map(|i| l[i * k + i]).collect();
        let factors = l.iter().enumerate().map(|(at, l)| (l / diagonal[at % k]) as f32).collect();
        Self { order, factors }
    }

    fn before(&self, j: usize) -> &[f32] {
        &self.factors[j * self.order.len()..][..j]
    }
}

/// Of the mean variance.
const DAMPING: f64 = 0.01;

/// L of L Lᵀ in place of the lower triangle of a symmetric matrix.
///
/// No pivot falls below `least`, the least eigenvalue there should be: sums in f32 may have moved it.
fn cholesky(a: &mut [f64], k: usize, least: f64) {
    // Rows of a block stay in the cache while the rows above pass by once.
    const BLOCK: usize = 16;
    for start in (0..k).step_by(BLOCK) {
        let end = k.min(start + BLOCK);
        for j in 0..end {
            for i in start.max(j)..end {
                let (above, row) = a.split_at_mut(i * k);
                if i == j {
                    row[j] = (row[j] - dot(&row[..j], &row[..j])).max(least).sqrt();
                } else {
                    let other = &above[j * k..][..=j];
                    row[j] = (row[j] - dot(&row[..j], &other[..j])) / other[j];
                }
            }
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    // As many sums as let the additions of one not wait for another's.
    const SUMS: usize = 8;
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<SUMS>(), b.as_chunks::<SUMS>());
    let mut sums = [0.0; SUMS];
    for (a, b) in a.iter().zip(b) {
        for i in 0..SUMS {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum::<f64>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f64>()
}

/// The numbers that can be stored, for each block that shares a scale.
struct Grid {
    format: Format,
    cols: usize,
    /// Elements of a row that share a scale, and how many such blocks a row has.
    inner: usize,
    blocks: usize,
    /// How many codes there are.
    codes: usize,
    /// The number of each code, for each block of each row.
    numbers: Vec<f32>,
}

impl Grid {
    /// Of a matrix with scales: asks what each code would be where it stands.
    fn of(tensor: &Tensor) -> Result<Self> {
        let (format, shape) = (tensor.format(), tensor.shape());
        let (rows, cols) = (shape[0], shape[1]);
        let inner = (format.block().1 as usize).min(cols).max(1);
        let (blocks, codes) = (cols.div_ceil(inner), 1 << format.dtype.bits());
        let mut numbers = vec![0.0; rows * blocks * codes];
        let mut parts = tensor.to_parts()?;
        for code in 0..codes {
            let byte = if format.dtype.per_byte() == 2 { code << 4 | code } else { code };
            parts.codes.fill(byte as u8);
            let all = Tensor::from_parts(tensor.engine(), shape, format, &parts)?.dequantize(DType::F32)?;
            let all = all.to_vec::<f32>()?;
            for (at, block) in numbers.chunks_mut(codes).enumerate() {
                block[code] = all[at / blocks * cols + at % blocks * inner];
            }
        }
        Ok(Self { format, cols, inner, blocks, codes, numbers })
    }

    fn row_bytes(&self) -> usize {
        self.cols.div_ceil(self.format.dtype.per_byte() as usize)
    }

    /// The code nearest to `x` and its number. NaN codes are nearest to nothing.
    fn nearest(&self, row: usize, col: usize, x: f32) -> (usize, f32) {
        let numbers = &self.numbers[(row * self.blocks + col / self.inner) * self.codes..][..self.codes];
        let mut best = (0, f32::INFINITY);
        for (code, number) in numbers.iter().enumerate() {
            let distance = (x - number).abs();
            if distance < best.1 {
                best = (code, distance);
            }
        }
        (best.0, numbers[best.0])
    }
}

/// Chooses the codes of all rows, which know nothing of one another.
fn round(codes: &mut [u8], weight: &[f32], grid: &Grid, feedback: &Feedback) {
    // Rows that share each row of feedback while it is in the cache.
    const TILE: usize = 8;
    let (k, row_bytes) = (grid.cols, grid.row_bytes());
    if codes.is_empty() {
        return;
    }
    let rows = codes.len() / row_bytes;
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let each = rows.div_ceil(threads).next_multiple_of(TILE);
    thread::scope(|scope| {
        for (part, codes) in codes.chunks_mut(each * row_bytes).enumerate() {
            scope.spawn(move || {
                for (tile, codes) in codes.chunks_mut(TILE * row_bytes).enumerate() {
                    let first = part * each + tile * TILE;
                    let weight = &weight[first * k..][..codes.len() / row_bytes * k];
                    round_tile(codes, first, weight, grid, feedback);
                }
            });
        }
    });
}

fn round_tile(codes: &mut [u8], first: usize, weight: &[f32], grid: &Grid, feedback: &Feedback) {
    let (k, per_byte) = (grid.cols, grid.format.dtype.per_byte() as usize);
    let bits = 8 / per_byte;
    // What is wanted of each column once the errors behind it are known, in the order of columns.
    let mut wanted: Vec<f32> = weight.chunks(k).flat_map(|row| feedback.order.iter().map(|&col| row[col])).collect();
    for (j, &col) in feedback.order.iter().enumerate().rev() {
        let factors = feedback.before(j);
        let rows = wanted.chunks_mut(k).zip(weight.chunks(k)).zip(codes.chunks_mut(grid.row_bytes()));
        for (i, ((wanted, weight), codes)) in rows.enumerate() {
            let (code, number) = grid.nearest(first + i, col, wanted[j]);
            codes[col / per_byte] |= (code << (col % per_byte * bits)) as u8;
            let error = weight[col] - number;
            for (wanted, factor) in wanted.iter_mut().zip(factors) {
                *wanted += error * factor;
            }
        }
    }
}

fn refuse(weight: &Tensor, inputs: &Tensor, rule: &'static str) -> kp_hal::Error {
    let describe = |tensor: &Tensor| {
        let sizes: Vec<String> = tensor.shape().iter().map(usize::to_string).collect();
        format!("{} {}", sizes.join("x"), tensor.format())
    };
    let operands = [("the weight", describe(weight)), ("the input", describe(inputs))];
    BadOperands { op: "quantize_for", operands: operands.into(), rule: rule.into() }.into()
}

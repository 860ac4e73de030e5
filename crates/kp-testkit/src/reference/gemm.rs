//! GEMM: D = store(act(alpha · A·B + beta · C + bias) + residual), every sum in f64.

use crate::{
    fill::{Fill, FillKind},
    formats::{decode, encode, max_value, smallest, unit_roundoff},
    judge::{Output, Plain, Want},
    operands::{Codes, Operands, Parts},
    scaled::{Part, Scaled},
    tensor::{Inner, Tensor, place},
    tolerance::{Arithmetic, act, operand_error, widening_error},
};
use kp_hal::{
    DType,
    op::{Acc, Addend, GemmProblem, GemmSpec, Matrix, Overflow, ScaleRule, Scheme, Sparsity},
};

pub(crate) const A: Parts = ["a", "a_scale", "a_global", "a_zero"];
pub(crate) const B: Parts = ["b", "b_scale", "b_global", "b_zero"];

pub(crate) fn reference(problem: &GemmProblem, operands: &Operands) -> Vec<Output> {
    let spec = problem.spec();
    let a = left(spec, operands);
    let b = Tensor::scaled(operands, B, &spec.b, (spec.k, spec.n, spec.batch), Inner::Rows);
    let mut values = Vec::with_capacity(spec.batch as usize * spec.m as usize * spec.d_cols() as usize);
    for batch in 0..spec.batch {
        for row in 0..spec.m {
            let sums = row_sums(spec, &a, &b, (batch as usize, row as usize), batch as usize);
            let bias = |col: u32| operands.maybe("bias").map(|bias| bias.value(col.into()));
            values.extend(finish(spec, operands, &sums, (batch, row), bias));
        }
    }
    vec![stored(spec, spec.batch, values)]
}

/// A as `batch` × `m` × `k` numbers: sparse rows spread out, scales applied.
pub(crate) fn left(spec: &GemmSpec, operands: &Operands) -> Tensor {
    let dense = Tensor::plain(operands.codes("a"), &spec.a, (spec.m, spec.a_cols(), spec.batch));
    let mut a = match spec.sparsity {
        Sparsity::Dense => dense,
        Sparsity::TwoOfFour => spread_out(spec, &dense, operands.codes("a_meta")),
    };
    // A zero that was left out has no code, so a zero point does not move it.
    let absent: Vec<usize> = match spec.sparsity {
        Sparsity::TwoOfFour => kept(spec, operands.codes("a_meta")),
        Sparsity::Dense => Vec::new(),
    };
    a.scale(operands, A, spec.a.format, Inner::Cols);
    if spec.sparsity == Sparsity::TwoOfFour {
        let mut is_kept = vec![false; a.values.len()];
        absent.into_iter().for_each(|i| is_kept[i] = true);
        a.values.iter_mut().zip(is_kept).filter(|(_, kept)| !kept).for_each(|(x, _)| *x = 0.0);
    }
    a
}

/// Where in `batch` × `m` × `k` the codes of a sparse A belong, in the order in which they are stored.
fn kept(spec: &GemmSpec, meta: Codes<'_>) -> Vec<usize> {
    let (rows, k) = (spec.batch as usize * spec.m as usize, spec.k as usize);
    let mut places = Vec::with_capacity(rows * k / 2);
    for row in 0..rows {
        for group in 0..k / 4 {
            let byte = meta.code((row * (k / 8) + group / 2) as u64);
            let positions = byte >> (group % 2 * 4);
            places.extend([0, 2].map(|shift| row * k + group * 4 + (positions >> shift & 3) as usize));
        }
    }
    places
}

fn spread_out(spec: &GemmSpec, dense: &Tensor, meta: Codes<'_>) -> Tensor {
    let mut values = vec![0.0; spec.batch as usize * spec.m as usize * spec.k as usize];
    for (place, value) in kept(spec, meta).into_iter().zip(&dense.values) {
        values[place] = *value;
    }
    Tensor { rows: spec.m as usize, cols: spec.k as usize, values }
}

/// A row of A·B with the sum of the magnitudes of its products, and what it may be off by where A may be rounded.
pub(crate) struct Sums {
    sum: Vec<f64>,
    magnitude: Vec<f64>,
    rounding: Vec<f64>,
}

/// How far each element of a row of A may be off once it is rounded, if it may be: NaN if it is not finite, or beside such a one.
///
/// Of a run whose largest magnitude is x the scale is s = x/127, the code that of a·(1/s): three roundings in f32, each of which
/// moves a code by at most 127·2⁻²⁴ besides the half that rounding it costs. So |a − code·s| ≤ (1/2 + 2⁻¹⁵)·s. An NF4 value that it
/// meets may be off by 2⁻¹² of itself, which is as if `a` were.
fn roundings(spec: &GemmSpec, row: &[f64]) -> Option<Vec<f64>> {
    let least = 2_f64.powi(-118);
    let half = |run: &[f64]| match run.iter().fold(0.0_f64, |most, x| most.max(x.abs())) {
        _ if run.iter().any(|x| !x.is_finite()) => f64::NAN,
        most if most < least => most,
        most => most / 127.0 * (0.5 + 2_f64.powi(-15)),
    };
    let of_values = if spec.b.dtype() == DType::Nf4 { 2_f64.powi(-12) } else { 0.0 };
    let off = |run: &[f64]| run.iter().map(|x| half(run) + of_values * x.abs()).collect::<Vec<_>>();
    (spec.acc == Acc::F32Q8).then(|| row.chunks(Acc::RUN as usize).flat_map(off).collect())
}

/// Row (`a_batch`, `row`) of A times matrix `b_batch` of B.
pub(crate) fn row_sums(
    spec: &GemmSpec,
    a: &Tensor,
    b: &Tensor,
    (a_batch, row): (usize, usize),
    b_batch: usize,
) -> Sums {
    let n = spec.n as usize;
    let (mut sum, mut magnitude, mut rounding) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
    let left = if spec.k == 0 { &[] } else { a.row(a_batch, row) };
    for (k, off) in roundings(spec, left).unwrap_or_default().into_iter().enumerate() {
        for (rounding, y) in rounding.iter_mut().zip(b.row(b_batch, k)) {
            *rounding += off * y.abs();
        }
    }
    for (k, &x) in left.iter().enumerate() {
        for ((sum, magnitude), &y) in sum.iter_mut().zip(&mut magnitude).zip(b.row(b_batch, k)) {
            let product = x * y;
            *sum += product;
            *magnitude += product.abs();
        }
    }
    if spec.acc == Acc::I32 && spec.a.format.scheme == Scheme::None && spec.b.format.scheme == Scheme::None {
        // Wraps, as the problem says; f64 holds every sum of fewer than 2^38 products of bytes.
        sum.iter_mut().for_each(|s| *s = (*s as i64 as i32).into());
    }
    Sums { sum, magnitude, rounding }
}

/// Roundings of one sum, besides those of its k additions: scales of A and of B, their product, global scales,
/// alpha, beta · C and its addition, the bias.
const FURTHER: f64 = 8.0;

/// How far the sum itself may be off.
fn sum_slack(spec: &GemmSpec, magnitude: f64) -> f64 {
    let (a, b) = (spec.a.format, spec.b.format);
    let scaled = a.scheme != Scheme::None || b.scheme != Scheme::None;
    let mut slack = Arithmetic::of_acc(spec.acc).slack(f64::from(spec.k), magnitude);
    // Sums of 8-bit floats may stay in a coarser matrix unit for up to 128 of k before they are promoted.
    if spec.acc == Acc::F32 && [a, b].iter().all(|f| f.dtype.is_float() && f.dtype.bits() == 8) {
        slack += Arithmetic::of_acc(Acc::F32Fast).slack(f64::from(spec.k.min(128)), magnitude);
    }
    // Block sums are rescaled and added in the accumulator's float type; i32 sums become f32.
    let blocks = |format: kp_hal::op::Format| f64::from(format.blocks(1, spec.k).1);
    let rescaled = if scaled { blocks(a).max(blocks(b)) } else { 0.0 };
    slack += finishing(spec.acc).slack(rescaled, magnitude);
    slack += (operand_error(a.dtype) + operand_error(b.dtype)) * magnitude;
    // Codes of one operand are widened to the type of the other, with their scale applied or not.
    let wider = if a.dtype.bits() >= b.dtype.bits() { a } else { b };
    if scaled && wider.dtype.bits() >= 16 && a.dtype != b.dtype {
        slack += widening_error(wider.dtype) * magnitude;
    }
    slack
}

/// What follows the sums is computed in f32 at least.
fn finishing(acc: Acc) -> Arithmetic {
    Arithmetic::of(if acc == Acc::F64 { DType::F64 } else { DType::F32 })
}

/// Largest whole number below which the accumulator adds without rounding.
pub(crate) fn exact_below(acc: Acc) -> f64 {
    match acc {
        Acc::F64 => 2_f64.powi(53),
        Acc::F32 | Acc::F32Q8 => 2_f64.powi(24),
        Acc::F32Fast => 2_f64.powi(13),
        Acc::F16 => 2_f64.powi(11),
        Acc::I32 => 2_f64.powi(31),
    }
}

/// The largest number the accumulator holds.
fn most(acc: Acc) -> f64 {
    match acc {
        Acc::F64 => f64::MAX,
        Acc::F32 | Acc::F32Fast | Acc::F32Q8 => max_value(DType::F32),
        Acc::F16 => max_value(DType::F16),
        Acc::I32 => f64::INFINITY,
    }
}

/// Whether a number is finite but not in the type that follows the sums.
fn is_past(x: f64, acc: Acc) -> bool {
    let most = if acc == Acc::F64 { f64::MAX } else { max_value(DType::F32) };
    x.is_finite() && x.abs() >= most
}

/// One row of D from one row of sums, before it is stored. `bias` answers for a column of A·B.
pub(crate) fn finish(
    spec: &GemmSpec,
    operands: &Operands,
    sums: &Sums,
    (batch, row): (u32, u32),
    bias: impl Fn(u32) -> Option<f64>,
) -> Vec<Want> {
    let later = finishing(spec.acc);
    let exact = exact_below(if spec.acc == Acc::F64 { Acc::F64 } else { Acc::F32 });
    let alpha = operands.scalar("alpha");
    let column = |col: u32| {
        let (sum, magnitude, rounding) =
            (sums.sum[col as usize], sums.magnitude[col as usize], sums.rounding[col as usize]);
        let c = addend(spec, operands, (batch, row, col)).unwrap_or(0.0);
        let bias = bias(col).unwrap_or(0.0);
        let value = alpha * sum + c + bias;
        let magnitude_of_all = alpha.abs() * magnitude + c.abs() + bias.abs();
        let whole = operands.kind() == FillKind::Exact && magnitude_of_all < exact_below(spec.acc).min(16_777_216.0);
        let plain_integers = spec.acc == Acc::I32 && alpha == 1.0 && c == 0.0 && bias == 0.0;
        let unscaled = spec.a.format.scheme == Scheme::None && spec.b.format.scheme == Scheme::None;
        // The sum alone may overflow before alpha makes it smaller.
        let overflows = magnitude.is_finite() && magnitude >= most(spec.acc);
        match whole || plain_integers && unscaled {
            true => (value, 0.0, overflows),
            false => {
                let slack =
                    alpha.abs() * (sum_slack(spec, magnitude) + rounding) + later.slack(FURTHER, magnitude_of_all);
                (value, slack, overflows || is_past(magnitude_of_all, spec.acc))
            }
        }
    };
    let cols = spec.d_cols();
    (0..cols)
        .map(|col| {
            let (g_col, u_col) = spec.epilogue.gate.sources(col, cols);
            if [g_col, u_col].iter().any(|&col| !sums.rounding[col as usize].is_finite()) {
                return Want::NotFinite;
            }
            let (x, x_slack, overflows) = column(g_col);
            // Where the order of operations decides whether one overflows on the way, nothing is said.
            if overflows {
                return Want::Any;
            }
            let activated = act(spec.epilogue.act, x, later);
            let (mut value, mut slack) = (activated.value, x_slack * activated.slope + activated.error);
            if u_col != g_col {
                let (u, u_slack, overflows) = column(u_col);
                if overflows {
                    return Want::Any;
                }
                // An infinity times what is 0 or of either sign within its slack is NaN or an infinity of either sign.
                let unsigned = |x: f64, slack: f64| slack > 0.0 && x.abs() <= slack;
                if value.is_infinite() && unsigned(u, u_slack) || u.is_infinite() && unsigned(value, slack) {
                    return Want::NotFinite;
                }
                slack = product_slack((value, slack), (u, u_slack), later, exact);
                value *= u;
            }
            if let Some(residual) = operands.maybe("residual") {
                let r = residual.value(place(&spec.d, (spec.m, batch), row, col));
                if slack > 0.0 || value.abs() + r.abs() >= exact {
                    slack += later.slack(1.0, value.abs() + r.abs());
                }
                value += r;
            }
            if is_past(value, spec.acc) {
                return Want::Any;
            }
            Want::Number { value, slack }
        })
        .collect()
}

/// Errors of a product: each factor's error times the other, and one rounding unless it is a whole number below `exact`.
fn product_slack((x, x_slack): (f64, f64), (y, y_slack): (f64, f64), later: Arithmetic, exact: f64) -> f64 {
    let whole = [x, y].iter().all(|factor| factor.fract() == 0.0) && (x * y).abs() < exact;
    if x_slack == 0.0 && y_slack == 0.0 && whole {
        return 0.0;
    }
    x_slack * y.abs() + y_slack * x.abs() + x_slack * y_slack + later.slack(1.0, (x * y).abs())
}

/// beta · C at (`batch`, `row`, `col`), if C is read.
fn addend(spec: &GemmSpec, operands: &Operands, (batch, row, col): (u32, u32, u32)) -> Option<f64> {
    if spec.c == Addend::None {
        return None;
    }
    let beta = operands.scalar("beta");
    if beta == 0.0 {
        return None;
    }
    let value = match spec.c {
        Addend::None => return None,
        Addend::Given(_) => {
            let (m, n) = (u64::from(spec.m), u64::from(spec.n));
            operands.codes("c").value((u64::from(batch) * m + u64::from(row)) * n + u64::from(col))
        }
        Addend::InPlace => operands.codes("d").value(place(&spec.d, (spec.m, batch), row, col)),
    };
    Some(beta * value)
}

/// D as the problem stores it: plain, or with the scales a fused quantization writes.
pub(crate) fn stored(spec: &GemmSpec, batch: u32, values: Vec<Want>) -> Output {
    stored_matrix("d", ["d_scale", "d_global"], &spec.d, (spec.m, spec.d_cols(), batch), values)
}

/// A matrix that a kernel stores as it computes it. The one scale of `@tensor` and the global of `@nv` are given.
pub(crate) fn stored_matrix(
    codes: &'static str,
    [scale, global]: [&'static str; 2],
    m: &Matrix,
    shape: (u32, u32, u32),
    values: Vec<Want>,
) -> Output {
    let format = m.format;
    let overflow = Overflow::Saturate;
    if format.scheme == Scheme::None {
        let (rows, cols) = (shape.0 as usize, shape.1 as usize);
        let plain = Plain::matrix(codes, m, shape, |b, row, col| {
            values[(b as usize * rows + row as usize) * cols + col as usize]
        });
        return plain.into();
    }
    let (scale, global) = match format.scheme {
        Scheme::Tensor => (Part::Given(global), Part::Absent),
        Scheme::Nv => (Part::Written(scale), Part::Given(global)),
        _ => (Part::Written(scale), Part::Absent),
    };
    let rule = ScaleRule::of(format);
    Scaled { codes, scale, global, zero: Part::Absent, matrix: *m, shape, rule, overflow, values }.into()
}

/// Freivalds: D·x = A·(B·x) for x of ±1, within the sum over a row of what each element of D may be off.
pub(crate) fn vector_law(spec: &GemmSpec, run: &Operands) -> Result<(), String> {
    let a = left(spec, run);
    let b = Tensor::scaled(run, B, &spec.b, (spec.k, spec.n, spec.batch), Inner::Rows);
    let d = Tensor::plain(run.codes("d"), &spec.d, (spec.m, spec.n, spec.batch));
    let mut signs = Fill::new(FillKind::Normal, 0xf2e1);
    let x: Vec<f64> = (0..spec.n).map(|_| if signs.below(2) == 0 { 1.0 } else { -1.0 }).collect();
    let dot = |row: &[f64], x: &[f64]| row.iter().zip(x).map(|(a, b)| a * b).sum::<f64>();
    let size = |row: &[f64], x: &[f64]| row.iter().zip(x).map(|(a, b)| (a * b).abs()).sum::<f64>();
    for batch in 0..spec.batch as usize {
        let rows_of_b = |k: usize| b.row(batch, k);
        let bx: Vec<f64> = (0..spec.k as usize).map(|k| dot(rows_of_b(k), &x)).collect();
        let sizes: Vec<f64> = (0..spec.k as usize).map(|k| size(rows_of_b(k), &x)).collect();
        for row in 0..spec.m as usize {
            let (stored, left) = (d.row(batch, row), a.row(batch, row));
            let roundings = roundings(spec, left).unwrap_or_default();
            let (got, want) = (dot(stored, &x), dot(left, &bx));
            // Storing rounds each element once, by at most u of it and the smallest step of its type.
            let storing =
                unit_roundoff(spec.d.dtype()) * size(stored, &x) * 2.0 + f64::from(spec.n) * smallest(spec.d.dtype());
            let bound = sum_slack(spec, size(left, &sizes)) + size(&roundings, &sizes) + storing;
            let off = (got - want).abs();
            // Of a row that its type does not hold, infinite or saturated, there is no sum.
            let held = stored.iter().all(|d| d.is_nan() || d.abs() < max_value(spec.d.dtype()));
            if held && (off.is_nan() || off > bound) {
                return Err(format!(
                    "row {row} of batch {batch}: d·x is {got:e}, a·(b·x) is {want:e}, off by {off:.2e}, bound {bound:.2e}"
                ));
            }
        }
    }
    Ok(())
}

/// Every element of D is its exact sum, rounded once; for plain operands whose sums the accumulator holds exactly.
pub(crate) fn exact_law(spec: &GemmSpec, run: &Operands) -> Result<(), String> {
    let a = left(spec, run);
    let b = Tensor::scaled(run, B, &spec.b, (spec.k, spec.n, spec.batch), Inner::Rows);
    let (stored, dtype) = (run.codes("d"), spec.d.dtype());
    for batch in 0..spec.batch {
        for row in 0..spec.m {
            let sums = row_sums(spec, &a, &b, (batch as usize, row as usize), batch as usize);
            for (col, want) in (0..spec.n).zip(sums.sum) {
                let got = stored.code(place(&spec.d, (spec.m, batch), row, col));
                if got != encode(dtype, want, Overflow::Saturate) {
                    let got = decode(dtype, got);
                    return Err(format!("row {row}, column {col} of batch {batch} is {got}, the sum is {want}"));
                }
            }
        }
    }
    Ok(())
}

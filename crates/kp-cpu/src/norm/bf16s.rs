//! Norms of rows of bf16 as rows of bf16, from registers to registers: numbers are widened each time they are read, and rounded
//! by the instruction for it as they are stored.

use crate::{
    memory::fetch_ahead,
    numbers::bf16s::{Codes, RUN, Row, filled, number, vectors, widened},
};
use kp_hal::op::NormKind;
use std::arch::x86_64::{
    __m512, _mm512_add_ps, _mm512_fmadd_ps, _mm512_mul_ps, _mm512_reduce_add_ps, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_sub_ps,
};

/// `y` = norm of `x`, times `weight`, plus `bias`. Meanwhile `next`, which is read after it, is brought near.
///
/// # Panics
/// If their lengths differ.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) fn normalize(
    kind: NormKind,
    eps: f32,
    x: &[u8],
    (weight, bias): (&[f32], Option<&[f32]>),
    next: &[u8],
    y: Row<'_>,
) {
    let n = weight.len() as f32;
    let (shift, factor) = match kind {
        NormKind::Layer => {
            let mean = sum::<false>(x, 0.0) / n;
            (mean, 1.0 / (sum::<true>(x, mean) / n + eps).sqrt())
        }
        NormKind::Rms => (0.0, 1.0 / (sum::<true>(x, 0.0) / n + eps).sqrt()),
        NormKind::L2 => {
            let length = sum::<true>(x, 0.0).sqrt();
            // Not `max`, which would lose NaN.
            (0.0, 1.0 / if length < eps { eps } else { length })
        }
    };
    let by = (_mm512_set1_ps(shift), _mm512_set1_ps(factor));
    let ((x, x_rest), (weights, weight_rest)) = (x.as_chunks(), weight.as_chunks());
    let (biases, bias_rest) = bias.unwrap_or(&[]).as_chunks();
    let whole = |i: usize| {
        // A line, as this is, if there is one.
        fetch_ahead(next.get(i * size_of::<Codes>()..(i + 1) * size_of::<Codes>()).unwrap_or_default());
        normalized(&x[i], by, &weights[i], biases.get(i))
    };
    let rest = || {
        let bias = bias.map(|_| filled(bias_rest, 0.0));
        normalized(&filled(x_rest, 0), by, &filled(weight_rest, 0.0), bias.as_ref())
    };
    y.write(whole, rest);
}

/// (x − shift) · factor · weight + bias.
#[inline]
#[target_feature(enable = "avx512f")]
fn normalized(
    x: &Codes,
    (shift, factor): (__m512, __m512),
    weight: &[f32; RUN],
    bias: Option<&[f32; RUN]>,
) -> [__m512; 2] {
    let (mut y, weights) = (widened(x), vectors(weight));
    for (y, weight) in y.iter_mut().zip(weights) {
        *y = _mm512_mul_ps(_mm512_mul_ps(_mm512_sub_ps(*y, shift), factor), weight);
    }
    if let Some(bias) = bias {
        for (y, bias) in y.iter_mut().zip(vectors(bias)) {
            *y = _mm512_add_ps(*y, bias);
        }
    }
    y
}

/// The sum of x − `shift`, or of its squares.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn sum<const SQUARED: bool>(x: &[u8], shift: f32) -> f32 {
    let from = _mm512_set1_ps(shift);
    let term = |sum: __m512, x: __m512| {
        let x = _mm512_sub_ps(x, from);
        if SQUARED { _mm512_fmadd_ps(x, x, sum) } else { _mm512_add_ps(sum, x) }
    };
    // Four chains of additions, so that none waits long for the one before.
    let zero = _mm512_setzero_ps();
    let (mut a, mut b, mut c, mut d) = (zero, zero, zero, zero);
    let (runs, rest) = x.as_chunks::<{ size_of::<Codes>() }>();
    let (pairs, last) = runs.as_chunks::<2>();
    for [first, second] in pairs {
        let ([x, y], [z, w]) = (widened(first), widened(second));
        (a, b, c, d) = (term(a, x), term(b, y), term(c, z), term(d, w));
    }
    for codes in last {
        let [x, y] = widened(codes);
        (a, b) = (term(a, x), term(b, y));
    }
    let whole = _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(a, c), _mm512_add_ps(b, d)));
    rest.as_chunks().0.iter().fold(whole, |sum, &code| {
        let x = number(code) - shift;
        sum + if SQUARED { x * x } else { x }
    })
}

//! Norms of rows of bf16 as rows of bf16, from registers to registers: numbers are widened each time they are read, and rounded
//! by the instruction for it as they are stored.

use crate::{memory::fetch_ahead, numbers::bf16s::store};
use kp_hal::op::NormKind;
use std::arch::x86_64::{
    __m512, _mm256_loadu_si256, _mm512_add_ps, _mm512_castsi512_ps, _mm512_cvtepu16_epi32, _mm512_fmadd_ps,
    _mm512_loadu_ps, _mm512_mul_ps, _mm512_reduce_add_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32,
    _mm512_sub_ps,
};

/// Numbers of two vectors, which are stored together.
const RUN: usize = 32;

/// A run as codes.
type Codes = [u8; 2 * RUN];

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
    y: &mut [u8],
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
    let ((x, x_rest), (y, y_rest)) = (x.as_chunks(), y.as_chunks_mut());
    let (weights, weight_rest) = weight.as_chunks();
    let (biases, bias_rest) = bias.unwrap_or(&[]).as_chunks();
    for (i, ((x, y), weight)) in x.iter().zip(y).zip(weights).enumerate() {
        // A line, as this is, if there is one.
        fetch_ahead(next.get(i * size_of::<Codes>()..(i + 1) * size_of::<Codes>()).unwrap_or_default());
        put(x, by, weight, biases.get(i), y);
    }
    if !x_rest.is_empty() {
        let mut last = [0; 2 * RUN];
        let bias = bias.map(|_| filled(bias_rest, 0.0));
        put(&filled(x_rest, 0), by, &filled(weight_rest, 0.0), bias.as_ref(), &mut last);
        y_rest.copy_from_slice(&last[..y_rest.len()]);
    }
}

/// `y` = (x − shift) · factor · weight + bias.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn put(x: &Codes, (shift, factor): (__m512, __m512), weight: &[f32; RUN], bias: Option<&[f32; RUN]>, y: &mut Codes) {
    let (mut out, weights) = (widened(x), vectors(weight));
    for (out, weight) in out.iter_mut().zip(weights) {
        *out = _mm512_mul_ps(_mm512_mul_ps(_mm512_sub_ps(*out, shift), factor), weight);
    }
    if let Some(bias) = bias {
        for (out, bias) in out.iter_mut().zip(vectors(bias)) {
            *out = _mm512_add_ps(*out, bias);
        }
    }
    store(out, y);
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
    let (runs, rest) = x.as_chunks::<{ 2 * RUN }>();
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
        let x = f32::from_bits(u32::from(u16::from_le_bytes(code)) << 16) - shift;
        sum + if SQUARED { x * x } else { x }
    })
}

/// Numbers that codes stand for.
#[inline]
#[target_feature(enable = "avx512f")]
fn widened(codes: &Codes) -> [__m512; 2] {
    let (low, high) = codes.split_at(RUN);
    [half(low), half(high)]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn half(codes: &[u8]) -> __m512 {
    assert_eq!(codes.len(), RUN);
    // SAFETY: sixteen codes.
    let codes = unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) };
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(codes)))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn vectors(x: &[f32; RUN]) -> [__m512; 2] {
    // SAFETY: sixteen numbers each.
    unsafe { [_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x[RUN / 2..].as_ptr())] }
}

/// What there is of a run, and `pad`.
fn filled<T: Copy, const N: usize>(there: &[T], pad: T) -> [T; N] {
    let mut all = [pad; N];
    all[..there.len()].copy_from_slice(there);
    all
}

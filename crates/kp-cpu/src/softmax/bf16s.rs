//! Softmax of rows of bf16 as rows of bf16: numbers are widened as they are read, exponentials wait as f32, and shares are rounded by
//! the instruction for it as they are stored.

use crate::{
    memory::fetch_ahead,
    numbers::bf16s::{Codes, RUN, Row, number, vectors, widened},
    simd::{Avx512, arith::Arith},
};
use std::arch::x86_64::{
    _mm512_add_ps, _mm512_max_ps, _mm512_mul_ps, _mm512_reduce_add_ps, _mm512_reduce_max_ps, _mm512_set1_ps,
    _mm512_setzero_ps,
};

/// `y` = softmax of `scale · x`. There is `room` for as many numbers. Meanwhile `next`, which is read after it, is brought near.
///
/// # Panics
/// If their lengths differ.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")]
pub(super) fn share(scale: f32, x: &[u8], next: &[u8], room: &mut [f32], y: Row<'_>) {
    let largest = largest(scale, x);
    let powers_of = |x: &Codes, powers: &mut [f32; RUN]| {
        for (power, &x) in powers.iter_mut().zip(x.as_chunks().0) {
            *power = (number(x) * scale - largest).exp_falling::<Avx512>();
        }
    };
    let mut sums = [_mm512_setzero_ps(); 2];
    let (runs, rest) = x.as_chunks();
    for (i, (x, powers)) in runs.iter().zip(room.as_chunks_mut().0).enumerate() {
        fetch_ahead(next.get(i * size_of::<Codes>()..(i + 1) * size_of::<Codes>()).unwrap_or_default());
        powers_of(x, powers);
        let [low, high] = vectors(powers);
        sums = [_mm512_add_ps(sums[0], low), _mm512_add_ps(sums[1], high)];
    }
    let mut last = [0.0; RUN];
    if !rest.is_empty() {
        powers_of(&padded(rest), &mut last);
        last[rest.len() / 2..].fill(0.0);
    }
    let [low, high] = vectors(&last);
    sums = [_mm512_add_ps(sums[0], low), _mm512_add_ps(sums[1], high)];
    let share = _mm512_set1_ps(1.0 / _mm512_reduce_add_ps(_mm512_add_ps(sums[0], sums[1])));
    let shares = |powers: &[f32; RUN]| {
        let [low, high] = vectors(powers);
        [_mm512_mul_ps(low, share), _mm512_mul_ps(high, share)]
    };
    let powers = room.as_chunks().0;
    y.write(|i| shares(&powers[i]), || shares(&last));
}

/// The largest of `scale · x`; it may ignore NaN, which makes the sum NaN.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn largest(scale: f32, x: &[u8]) -> f32 {
    let times = _mm512_set1_ps(scale);
    let (runs, rest) = x.as_chunks();
    let mut most = [_mm512_set1_ps(f32::NEG_INFINITY); 2];
    let mut meet = |x: &Codes| {
        let [low, high] = widened(x);
        most = [_mm512_max_ps(_mm512_mul_ps(low, times), most[0]), _mm512_max_ps(_mm512_mul_ps(high, times), most[1])];
    };
    runs.iter().for_each(&mut meet);
    if !rest.is_empty() {
        meet(&padded(rest));
    }
    _mm512_reduce_max_ps(_mm512_max_ps(most[0], most[1]))
}

/// What there is of a run, and its first number again and again.
fn padded(rest: &[u8]) -> Codes {
    let mut all = [[rest[0], rest[1]]; RUN];
    all.as_flattened_mut()[..rest.len()].copy_from_slice(rest);
    *all.as_flattened().as_array().expect("a run")
}

//! Tensors of numbers on the CPU, and plain loops to judge them by.

#![allow(dead_code, reason = "each test uses its part")]

use kp_core::{Engine, Tensor};
use kp_hal::{DType, Result};

pub(crate) fn engine() -> Engine {
    Engine::builder().device("cpu").memory_only().open().expect("the CPU is always there")
}

/// Small whole numbers, so that sums are exact in any order.
pub(crate) fn ints(e: &Engine, shape: &[usize], seed: u64) -> Result<Tensor> {
    let numbers: Vec<f32> = random(shape, seed).map(|x| (x * 9.0).round() - 4.0).collect();
    e.tensor(shape, &numbers)
}

/// Numbers from -1 up to 1.
pub(crate) fn reals(e: &Engine, shape: &[usize], seed: u64) -> Result<Tensor> {
    let numbers: Vec<f32> = random(shape, seed).map(|x| 2.0 * x - 1.0).collect();
    e.tensor(shape, &numbers)
}

/// From 0 up to 1, by a multiplicative generator.
fn random(shape: &[usize], seed: u64) -> impl Iterator<Item = f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..shape.iter().product()).map(move |_| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 40) as f32 / (1_u64 << 24) as f32
    })
}

pub(crate) fn host(t: &Tensor) -> Result<Vec<f64>> {
    match t.dtype() {
        DType::F32 => Ok(t.to_vec::<f32>()?.into_iter().map(f64::from).collect()),
        _ => t.cast(DType::F64)?.to_vec(),
    }
}

/// `m`×`k` by `k`×`n`.
pub(crate) fn product(a: &[f64], b: &[f64], (m, n, k): (usize, usize, usize)) -> Vec<f64> {
    let at = |i: usize| (0..k).map(|l| a[i / n * k + l] * b[l * n + i % n]).sum();
    (0..m * n).map(at).collect()
}

#[track_caller]
pub(crate) fn close(got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= tolerance * (1.0 + want.abs()), "{i}: got {got}, want {want}");
    }
}

//! Rounding with the inputs in view, judged by GPTQ as its paper states it.

#![cfg(feature = "cpu")]

#[path = "common/numbers.rs"]
mod numbers;

use kp_core::{Engine, Tensor, calibrate::Rounded, tensor::formats};
use kp_hal::{
    ErrorKind, Result,
    op::{Format, ScaleRule},
};
use numbers::{engine, host, product, reals};

/// Of the mean variance, as the library adds it.
const DAMPING: f64 = 0.01;

/// Inputs whose columns go together and differ in size, with means other than 0.
fn inputs(e: &Engine, rows: usize, k: usize) -> Result<Tensor> {
    let (free, mix) = (host(&reals(e, &[rows, k], 5)?)?, host(&reals(e, &[k, k], 6)?)?);
    let mixed = product(&free, &mix, (rows, k, k));
    let numbers: Vec<f32> =
        mixed.iter().enumerate().map(|(at, x)| (x / (1.0 + (at % k) as f64) + 0.3) as f32).collect();
    e.tensor(&[rows, k], &numbers)
}

/// The covariance of columns, one sum after the other.
fn covariance(x: &[f64], rows: usize, k: usize) -> Vec<f64> {
    let mean: Vec<f64> = (0..k).map(|i| (0..rows).map(|r| x[r * k + i]).sum::<f64>() / rows as f64).collect();
    let centred = |r: usize, i: usize| x[r * k + i] - mean[i];
    let at = |i: usize, j: usize| (0..rows).map(|r| centred(r, i) * centred(r, j)).sum::<f64>() / rows as f64;
    (0..k * k).map(|ij| at(ij / k, ij % k)).collect()
}

/// The inverse by Gauss and Jordan, without pivoting: the matrix is positive definite.
fn inverse(mut a: Vec<f64>, k: usize) -> Vec<f64> {
    let mut inverse: Vec<f64> = (0..k * k).map(|ij| f64::from(u8::from(ij / k == ij % k))).collect();
    for p in 0..k {
        let pivot = a[p * k + p];
        for j in 0..k {
            a[p * k + j] /= pivot;
            inverse[p * k + j] /= pivot;
        }
        for i in (0..k).filter(|&i| i != p) {
            let factor = a[i * k + p];
            for j in 0..k {
                a[i * k + j] -= factor * a[p * k + j];
                inverse[i * k + j] -= factor * inverse[p * k + j];
            }
        }
    }
    inverse
}

/// One row by GPTQ: round a column, spread its error over those left by the inverse, and take the column out of it.
fn gptq(mut row: Vec<f64>, covariance: &[f64], nearest: impl Fn(usize, f64) -> f64) -> Vec<f64> {
    let k = row.len();
    let mut order: Vec<usize> = (0..k).collect();
    order.sort_by(|&i, &j| covariance[j * k + j].total_cmp(&covariance[i * k + i]));
    let mean = (0..k).map(|i| covariance[i * k + i]).sum::<f64>() / k as f64;
    let mut damped = covariance.to_vec();
    (0..k).for_each(|i| damped[i * k + i] += DAMPING * mean);
    let mut inverse = inverse(damped, k);
    for (done, &q) in order.iter().enumerate() {
        let number = nearest(q, row[q]);
        let error = (row[q] - number) / inverse[q * k + q];
        for &j in &order[done + 1..] {
            row[j] -= error * inverse[q * k + j];
        }
        row[q] = number;
        let (pivot, taken): (f64, Vec<f64>) = (inverse[q * k + q], inverse[q * k..][..k].to_vec());
        for ij in 0..k * k {
            inverse[ij] -= taken[ij / k] * taken[ij % k] / pivot;
        }
    }
    row
}

/// What all codes of a 4-bit format with groups of 16 along rows stand for, by group.
fn numbers_of(weight: &Tensor, format: Format) -> Result<Vec<Vec<f64>>> {
    let (mut parts, shape) = (weight.quantize(format)?.to_parts()?, weight.shape());
    let mut groups = vec![Vec::new(); shape[0] * shape[1] / 16];
    for code in 0..16_u8 {
        parts.codes.fill(code << 4 | code);
        let all = host(&Tensor::from_parts(weight.engine(), shape, format, &parts)?.dequantize(kp_hal::DType::F32)?)?;
        groups.iter_mut().zip(all.chunks(16)).for_each(|(group, all)| group.push(all[0]));
    }
    Ok(groups)
}

/// Mean over rows of the squared error of a product, and the largest mean error of a column.
fn loss(x: &Tensor, weight: &Tensor, rounded: &Tensor, shift: &[f64]) -> Result<(f64, f64)> {
    let ((rows, k), n) = ((x.shape()[0], x.shape()[1]), weight.shape()[0]);
    let (x, w, q) = (host(x)?, host(weight)?, host(&rounded.dequantize(kp_hal::DType::F32)?)?);
    let lost =
        |r: usize, o: usize| (0..k).map(|i| x[r * k + i] * (w[o * k + i] - q[o * k + i])).sum::<f64>() - shift[o];
    let squares = (0..rows * n).map(|at| lost(at / n, at % n).powi(2)).sum::<f64>() / rows as f64;
    let mean = |o: usize| (0..rows).map(|r| lost(r, o)).sum::<f64>().abs() / rows as f64;
    Ok((squares, (0..n).map(mean).fold(0.0, f64::max)))
}

#[test]
fn codes_are_those_of_gptq() -> Result<()> {
    let e = engine();
    let (n, k, rows) = (19, 48, 200);
    let (weight, x) = (reals(&e, &[n, k], 1)?, inputs(&e, rows, k)?);
    let covariance = covariance(&host(&x)?, rows, k);
    for text in ["u4@g16/f16z", "nf4@g16/f16", "i4@g16/f32", "e2m1@nv"] {
        let format: Format = text.parse().expect(text);
        let groups = numbers_of(&weight, format)?;
        let want: Vec<f64> = host(&weight)?
            .chunks(k)
            .enumerate()
            .flat_map(|(o, row)| {
                gptq(row.to_vec(), &covariance, |i, x| {
                    let near = |a: &&f64, b: &&f64| (x - **a).abs().total_cmp(&(x - **b).abs());
                    *groups[o * k / 16 + i / 16].iter().min_by(near).expect("sixteen codes")
                })
            })
            .collect();
        let got = host(&weight.quantize_for(format, &x)?.weight.dequantize(kp_hal::DType::F32)?)?;
        assert_eq!(got, want, "{text}");
    }
    Ok(())
}

#[test]
fn products_lose_less_than_by_the_nearest_codes() -> Result<()> {
    let e = engine();
    let (n, k, rows) = (24, 96, 300);
    let (weight, x) = (reals(&e, &[n, k], 2)?, inputs(&e, rows, k)?);
    for text in [
        "u4@g16/f16z",
        "e2m1@nv",
        "e2m1@mx",
        "nf4@g32/f16",
        "i4@row",
        "i8@row",
        "e4m3@1x32",
        "e4m3@16x48",
        "e5m2@tensor",
    ] {
        let format: Format = text.parse().expect(text);
        let Rounded { weight: rounded, shift } = weight.quantize_for(format, &x)?;
        assert_eq!((rounded.shape(), rounded.format(), shift.shape()), (&[n, k][..], format, &[n][..]));
        let (squares, mean) = loss(&x, &weight, &rounded, &host(&shift)?)?;
        let (nearest, _) = loss(&x, &weight, &weight.quantize(format)?, &vec![0.0; n])?;
        assert!(squares < 0.5 * nearest, "{text}: {squares} is not much less than {nearest}");
        assert!(mean < 1e-5, "{text}: the mean error is {mean}");
    }
    Ok(())
}

#[test]
fn inputs_that_do_not_vary_leave_the_nearest_codes() -> Result<()> {
    let e = engine();
    // Odd, so that rows of codes end within a byte.
    let (n, k) = (5, 37);
    let weight = reals(&e, &[n, k], 3)?;
    let x = e.tensor(&[2, k], &vec![0.5_f32; 2 * k])?;
    let format = formats::NF4_G32;
    let rounded = weight.quantize_for(format, &x)?;
    assert_eq!(rounded.weight.to_parts()?, weight.quantize(format)?.to_parts()?);
    let (squares, _) = loss(&x, &weight, &rounded.weight, &host(&rounded.shift)?)?;
    assert!(squares < 1e-10, "{squares}");
    Ok(())
}

#[test]
fn few_inputs_are_enough_and_the_codes_are_the_same_twice() -> Result<()> {
    let e = engine();
    let (weight, x) = (reals(&e, &[9, 64], 4)?, inputs(&e, 3, 64)?);
    let [once, twice] = [(); 2].map(|()| weight.quantize_for(formats::NVFP4, &x));
    let once = once?;
    assert_eq!(once.weight.to_parts()?, twice?.weight.to_parts()?);
    let (squares, _) = loss(&x, &weight, &once.weight, &host(&once.shift)?)?;
    let (nearest, _) = loss(&x, &weight, &weight.quantize(formats::NVFP4)?, &[0.0; 9])?;
    assert!(squares < 0.1 * nearest, "{squares} is not much less than {nearest}");
    Ok(())
}

#[test]
fn no_number_saturates() -> Result<()> {
    let e = engine();
    // The usual scale of such a block is 1, and 6 the largest code.
    let numbers: Vec<f32> = (0..32).map(|i| if i == 0 { 7.9 } else { 0.1 * i as f32 }).collect();
    let (weight, x) = (e.tensor(&[1, 32], &numbers)?, inputs(&e, 100, 32)?);
    let first = |q: &Tensor| Ok::<_, kp_hal::Error>(host(&q.dequantize(kp_hal::DType::F32)?)?[0]);
    assert_eq!(first(&weight.quantize(formats::MXFP4)?)?, 6.0);
    assert_eq!(first(&weight.quantize_by(formats::MXFP4, ScaleRule::Up)?)?, 8.0);
    assert_eq!(first(&weight.quantize_for(formats::MXFP4, &x)?.weight)?, 8.0);
    Ok(())
}

#[test]
fn nothing_is_rounded() -> Result<()> {
    let e = engine();
    let rounded = e.zeros(&[0, 32], kp_hal::DType::F32)?.quantize_for(formats::MXFP4, &reals(&e, &[4, 32], 1)?)?;
    assert_eq!((rounded.weight.shape(), rounded.shift.shape()), (&[0, 32][..], &[0][..]));
    Ok(())
}

#[test]
fn what_cannot_be_is_refused() -> Result<()> {
    let e = engine();
    let (weight, x) = (reals(&e, &[8, 32], 1)?, reals(&e, &[4, 32], 2)?);
    let with = |shape: &[usize], x: f32| e.tensor(shape, &[vec![x], vec![1.0; shape[0] * shape[1] - 1]].concat());
    let refused = |weight: &Tensor, x: &Tensor| {
        let error = weight.quantize_for(formats::NVFP4, x).expect_err("refused");
        assert!(matches!(error.kind(), ErrorKind::BadOperands(_)), "{error}");
        error.to_string()
    };
    assert_eq!(
        refused(&weight, &reals(&e, &[4, 31], 2)?),
        "quantize_for: the weight is 8x32 f32, the input is 4x31 f32: the input must have rows, and they must be as long as the weight's"
    );
    assert!(refused(&weight, &e.zeros(&[0, 32], kp_hal::DType::F32)?).contains("must have rows"));
    assert!(refused(&weight.reshape(&[256])?, &x).contains("both must be matrices"));
    for bad in [f32::NAN, f32::INFINITY, 1e38] {
        assert!(refused(&weight, &with(&[4, 32], bad)?).contains("finite"), "{bad}");
    }
    assert!(refused(&with(&[8, 32], f32::NAN)?, &x).contains("finite"));
    assert!(refused(&weight.quantize(formats::NVFP4)?, &x).contains("dequantize"));
    Ok(())
}

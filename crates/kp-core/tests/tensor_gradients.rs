//! Gradients of norms, against differences of the norm itself, and rows that belong to no sequence.

#![cfg(feature = "cpu")]

#[path = "common/numbers.rs"]
mod numbers;

use kp_core::{
    Tensor,
    tensor::{Attend, Norm, Sequences},
};
use kp_hal::{DType, Result, op::NormKind};
use numbers::{close, engine, host, reals};

/// Σ grad_y · norm(x), whose gradients are asked for.
fn loss(x: &Tensor, grad_y: &[f64], norm: Norm<'_>) -> Result<f64> {
    Ok(host(&x.norm(norm)?)?.iter().zip(grad_y).map(|(y, g)| y * g).sum())
}

/// The loss by each number of `x`, by central differences.
fn by_differences(x: &Tensor, loss: impl Fn(&Tensor) -> Result<f64>) -> Result<Vec<f64>> {
    const H: f64 = 1e-5;
    let (numbers, shape) = (host(x)?, x.shape().to_vec());
    let moved = |i: usize, by: f64| {
        let mut numbers = numbers.clone();
        numbers[i] += by;
        loss(&x.engine().tensor(&shape, &numbers)?)
    };
    (0..numbers.len()).map(|i| Ok((moved(i, H)? - moved(i, -H)?) / (2.0 * H))).collect()
}

#[test]
fn gradients_of_norms_are_their_slopes() -> Result<()> {
    let e = engine();
    let shape = [2, 3, 5];
    let double = |shape: &[usize], seed| reals(&e, shape, seed)?.cast(DType::F64);
    let (x, grad_y) = (double(&shape, 1)?, double(&shape, 2)?);
    let (weight, bias) = (double(&[5], 3)?, double(&[5], 4)?);
    let g = host(&grad_y)?;
    for kind in [NormKind::Layer, NormKind::Rms, NormKind::L2] {
        let norm = Norm { kind, eps: 1e-3, weight: Some(&weight), bias: Some(&bias) };
        let got = x.norm_backward(&grad_y, norm)?;
        assert_eq!(got.x.shape(), shape);
        close(&host(&got.x)?, &by_differences(&x, |x| loss(x, &g, norm))?, 1e-8);
        let by_weight = by_differences(&weight, |w| loss(&x, &g, Norm { weight: Some(w), ..norm }))?;
        let by_bias = by_differences(&bias, |b| loss(&x, &g, Norm { bias: Some(b), ..norm }))?;
        // Kept in f32.
        close(&host(&got.weight.expect("there was one"))?, &by_weight, 1e-6);
        close(&host(&got.bias.expect("there was one"))?, &by_bias, 1e-6);
        let plain = Norm { weight: None, bias: None, ..norm };
        let got = x.norm_backward(&grad_y, plain)?;
        close(&host(&got.x)?, &by_differences(&x, |x| loss(x, &g, plain))?, 1e-8);
        assert!(got.weight.is_none() && got.bias.is_none());
    }
    // Rows that lie apart, of both.
    let norm = Norm { kind: NormKind::Rms, eps: 1e-3, weight: Some(&weight), bias: None };
    let apart = |t: &Tensor| -> Result<Tensor> {
        let rows = t.reshape(&[6, 5])?;
        Tensor::cat(&[&rows.t(), &double(&[2, 6], 5)?])?.t().contiguous()?.slice_cols(0..5)
    };
    let (got, want) = (apart(&x)?.norm_backward(&apart(&grad_y)?, norm)?, x.norm_backward(&grad_y, norm)?);
    assert_eq!(host(&got.x)?, host(&want.x)?);
    Ok(())
}

#[test]
fn gradients_that_do_not_fit_are_refused() -> Result<()> {
    let e = engine();
    let (x, grad_y) = (reals(&e, &[4, 6], 1)?, reals(&e, &[4, 5], 2)?);
    let norm = Norm { kind: NormKind::Rms, eps: 1e-5, weight: None, bias: None };
    let text = x.norm_backward(&grad_y, norm).expect_err("of another shape").to_string();
    assert_eq!(text, "norm_backward: x is 4x6 f32, the gradient is 4x5 f32: both must be 4x6");
    let weight = reals(&e, &[5], 3)?;
    let text = x.norm_backward(&x, Norm { weight: Some(&weight), ..norm }).expect_err("too short").to_string();
    assert_eq!(text, "norm_backward: the weight is 5: it must have 6 numbers");
    Ok(())
}

/// What no kernel writes is zeros all the same, whatever was there before.
#[test]
fn rows_of_no_sequence_are_zeros() -> Result<()> {
    let e = engine();
    // Large enough that the backend keeps the memory of one for the next.
    let (shape, rest) = ([100, 2, 64], 6 * 2 * 64);
    let (q, k, v) = (&reals(&e, &shape, 1)?, &reals(&e, &shape, 2)?, &reals(&e, &shape, 3)?);
    let sequences = Sequences::new(&e, &[2, 4])?;
    let options = Attend { queries: Some(&sequences), ..Attend::default() };
    // Left for the results to lie in.
    let soil = || -> Result<()> {
        let soiled = (0..8).map(|_| e.tensor(&shape, &[f32::NAN; 100 * 2 * 64])).collect::<Result<Vec<_>>>()?;
        drop(soiled);
        Ok(())
    };
    soil()?;
    let (o, lse) = q.attention_with_lse(k, v, &options)?;
    soil()?;
    let grads = q.attention_backward([k, v], [&o, &lse, &o], &options)?;
    for (t, name) in [(&o, "o"), (&grads.q, "by q"), (&grads.k, "by k"), (&grads.v, "by v")] {
        let (numbers, zeros) = (host(t)?, |numbers: &[f64]| numbers.iter().all(|&x| x == 0.0));
        assert!(zeros(&numbers[rest..]) && !zeros(&numbers[..rest]), "{name}");
    }
    assert!(host(&lse)?.chunks(100).all(|head| head[6..].iter().all(|&x| x == 0.0)));
    Ok(())
}

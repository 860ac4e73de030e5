//! Products of groups, and how exact products say they are.

#![cfg(feature = "cpu")]

#[path = "common/numbers.rs"]
mod numbers;

use kp_core::{
    Engine, Tensor,
    tensor::{Epilogue, formats},
};
use kp_hal::{
    DType, Repro, Result,
    op::{Acc, Act, Format, Gate},
};
use numbers::{close, engine, host, ints, product, reals};

/// Rows `rows` of `a` times matrix `g` of `b`.
fn group(a: &[f64], rows: std::ops::Range<usize>, b: &[f64], g: usize, (n, k): (usize, usize)) -> Vec<f64> {
    product(&a[rows.start * k..rows.end * k], &b[g * n * k..][..n * k], (rows.len(), n, k))
}

#[test]
fn groups_of_rows_one_after_the_other() -> Result<()> {
    let e = engine();
    let (count, m, n, k) = (4, 9, 6, 5);
    let (a, b, bias) = (ints(&e, &[m, k], 1)?, ints(&e, &[count, n, k], 2)?.t(), ints(&e, &[count, n], 3)?);
    // The second group is empty, the last two rows are nobody's.
    let bounds = [0_usize, 3, 3, 4, 7];
    let groups = e.tensor(&[count + 1], &bounds.map(|x| x as i32))?;
    let (ha, hb, hbias) = (host(&a)?, host(&b.contiguous()?)?, host(&bias)?);
    let mut want = vec![0.0; m * n];
    let mut with_bias = want.clone();
    for g in 0..count {
        let rows = bounds[g]..bounds[g + 1];
        let products = group(&ha, rows.clone(), &hb, g, (n, k));
        for (i, x) in products.into_iter().enumerate() {
            want[rows.start * n + i] = x;
            with_bias[rows.start * n + i] = (x + hbias[g * n + i % n]).max(0.0);
        }
    }
    let d = a.grouped_gemm(&b, &groups)?;
    assert_eq!((host(&d)?, d.shape()), (want, &[m, n][..]));
    assert!(d.how().to_string().starts_with("cpu/grouped_gemm/"), "{}", d.how());
    let epilogue = Epilogue { bias: Some(&bias), act: Act::Relu, ..Epilogue::default() };
    assert_eq!(host(&a.grouped_gemm_with(&b, &groups, epilogue)?)?, with_bias);
    // Rows that lie apart are read where they are.
    let wide = Tensor::cat(&[&a.t(), &ints(&e, &[2, m], 4)?])?.t();
    assert_eq!(host(&wide.contiguous()?.slice_cols(0..k)?.grouped_gemm_with(&b, &groups, epilogue)?)?, with_bias);
    Ok(())
}

#[test]
fn groups_with_room_for_more_rows() -> Result<()> {
    let e = engine();
    let (count, m, n, k) = (3, 4, 8, 32);
    let (a, b) = (ints(&e, &[count, m, k], 1)?, ints(&e, &[count, n, k], 2)?);
    let lens = [2_usize, 0, 4];
    let groups = e.tensor(&[count], &lens.map(|x| x as i32))?;
    let residual = ints(&e, &[count, m, n / 2], 3)?;
    // Weights in 4 bits with a scale per 32; their numbers as stored.
    let q = b.quantize(formats::MXFP4)?;
    let (ha, hb, hr) = (host(&a)?, host(&q.dequantize(DType::F32)?.t().contiguous()?)?, host(&residual)?);
    let mut want = vec![0.0; count * m * n / 2];
    for (g, &len) in lens.iter().enumerate() {
        let x = group(&ha, g * m..g * m + len, &hb, g, (n, k));
        for i in 0..len * n / 2 {
            let (row, col) = (i / (n / 2), i % (n / 2));
            let at = g * m * n / 2 + i;
            want[at] = x[row * n + col] * x[row * n + col + n / 2] + hr[at];
        }
    }
    let epilogue = Epilogue { gate: Gate::Halves, residual: Some(&residual), ..Epilogue::default() };
    let d = a.grouped_gemm_with(&q.t(), &groups, epilogue)?;
    assert_eq!((host(&d)?, d.shape()), (want, &[count, m, n / 2][..]));
    Ok(())
}

#[test]
fn groups_and_batches_have_blocks_of_scales_that_end_with_their_matrices() -> Result<()> {
    let e = engine();
    let (count, m, n, k) = (3, 5, 256, 128);
    let (a, b) = (reals(&e, &[m, k], 1)?.quantize(formats::FP8_1X128)?, reals(&e, &[count, n, k], 2)?);
    let q = b.quantize(formats::FP8_128X128)?;
    let (ha, hb) = (host(&a.dequantize(DType::F32)?)?, host(&q.dequantize(DType::F32)?.t().contiguous()?)?);
    let groups = e.tensor(&[count + 1], &[0_i32, 2, 4, 5])?;
    let got = host(&a.grouped_gemm(&q.t(), &groups)?)?;
    let want: Vec<f64> =
        [0..2, 2..4, 4..5].into_iter().enumerate().flat_map(|(g, rows)| group(&ha, rows, &hb, g, (n, k))).collect();
    close(&got, &want, 1e-4);
    let left = reals(&e, &[count, m, k], 3)?;
    let (batched, hl) = (host(&left.matmul(&q.t())?)?, host(&left)?);
    let want: Vec<f64> = (0..count).flat_map(|g| group(&hl, g * m..g * m + m, &hb, g, (n, k))).collect();
    close(&batched, &want, 1e-4);
    // A block would serve the end of one matrix and the beginning of the next.
    let across = reals(&e, &[count, 192, k], 4)?.quantize(formats::FP8_128X128)?;
    let text = a.grouped_gemm(&across.t(), &groups).expect_err("refused").to_string();
    let rule = "e4m3@128x128 scales 128 rows together, which must divide the 192 rows of each matrix";
    assert!(text.ends_with(rule), "{text}");
    assert!(left.matmul(&across.t()).expect_err("refused").to_string().ends_with(rule));
    Ok(())
}

#[test]
fn rows_of_an_invariant_engine_do_not_depend_on_their_batch() -> Result<()> {
    let builder = || Engine::builder().device("cpu").memory_only();
    let e = builder().repro(Repro::BatchInvariant).open().expect("the CPU is always there");
    assert_eq!((e.repro(), engine().repro()), (Repro::BatchInvariant, Repro::Deterministic));
    let (m, n, k) = (13, 40, 1500);
    let (x, w) = (reals(&e, &[m, k], 1)?, reals(&e, &[n, k], 2)?);
    let bits =
        |y: &Tensor| y.cast(DType::F32)?.to_vec::<f32>().map(|y| y.into_iter().map(f32::to_bits).collect::<Vec<_>>());
    for (left, weight) in [
        (DType::F32, w.clone()),
        (DType::Bf16, w.cast(DType::Bf16)?),
        (DType::Bf16, w.quantize(formats::MXFP4)?),
        (DType::F32, w.quantize(formats::INT8_ROW)?),
    ] {
        let x = x.cast(left)?;
        let all = x.matmul(&weight.t())?.rms_norm(&e.tensor(&[n], &vec![1.0_f32; n])?, 1e-6)?;
        for rows in [0..1, 3..4, 2..9, 0..m] {
            let some = x.slice_rows(rows.clone())?.matmul(&weight.t())?;
            let some = some.rms_norm(&e.tensor(&[n], &vec![1.0_f32; n])?, 1e-6)?;
            assert_eq!(bits(&some)?, bits(&all.slice_rows(rows.clone())?)?, "{left} {} {rows:?}", weight.format());
        }
    }
    Ok(())
}

#[test]
fn groups_that_do_not_fit_are_refused_with_their_shapes() -> Result<()> {
    let e = engine();
    let (a, b) = (ints(&e, &[4, 6], 1)?, ints(&e, &[2, 6, 8], 2)?);
    let groups = e.tensor(&[3], &[0, 1, 4_i32])?;
    let refused = |a: &Tensor, b: &Tensor, groups: &Tensor| a.grouped_gemm(b, groups).expect_err("refused").to_string();
    let text = refused(&a, &b, &e.tensor(&[2], &[1, 4_i32])?);
    assert_eq!(text, "grouped_gemm: groups is 2: it must have 3 numbers");
    let text = refused(&a, &b, &groups.cast(DType::F32)?);
    assert_eq!(text, "grouped_gemm: groups is 3 f32: it must be i32");
    let text = refused(&a.t(), &b, &groups);
    assert_eq!(text, "grouped_gemm: a is 6x4, b is 2x6x8: columns of a must equal rows of b");
    let text = refused(&ints(&e, &[3, 4, 6], 1)?, &b, &groups);
    assert!(text.ends_with("a is m x k, or groups x m x k with as many groups as b"), "{text}");
    Ok(())
}

/// Σ|a·b| for each element.
fn magnitudes(a: &[f64], b: &[f64], shape: (usize, usize, usize)) -> Vec<f64> {
    let size = |x: &[f64]| x.iter().map(|x| x.abs()).collect::<Vec<_>>();
    product(&size(a), &size(b), shape)
}

#[test]
fn no_product_is_further_off_than_it_says() -> Result<()> {
    let e = engine();
    let (m, n) = (7, 24);
    for k in [1, 32, 1000, 4096] {
        let (a, b) = (reals(&e, &[m, k], 1)?, reals(&e, &[n, k], 2)?);
        let bias = reals(&e, &[n], 3)?;
        let pairs: [(DType, Option<Format>); 6] = [
            (DType::F32, None),
            (DType::F64, None),
            (DType::Bf16, None),
            (DType::F16, None),
            (DType::Bf16, Some(formats::MXFP4)),
            (DType::F32, Some(formats::INT8_ROW)),
        ];
        for (dtype, weights) in pairs {
            let a = a.cast(dtype)?;
            let (b, stored) = match weights {
                Some(_) if k % 32 != 0 => continue,
                Some(format) => {
                    let q = b.quantize(format)?;
                    (q.t(), q.dequantize(DType::F32)?.t().contiguous()?)
                }
                None => (b.cast(dtype)?.t(), b.cast(dtype)?.t().contiguous()?),
            };
            let (ha, hb, hbias) = (host(&a)?, host(&stored)?, host(&bias)?);
            let (exact, sizes) = (product(&ha, &hb, (m, n, k)), magnitudes(&ha, &hb, (m, n, k)));
            let epilogue = Epilogue { bias: Some(&bias), alpha: 0.5, ..Epilogue::default() };
            let d = a.matmul_with(&b, epilogue)?;
            let bound = d.error_bound().expect("a plain product");
            let mut largest = 0.0_f64;
            for (i, got) in host(&d)?.into_iter().enumerate() {
                let (want, size) = (0.5 * exact[i] + hbias[i % n], 0.5 * sizes[i] + hbias[i % n].abs());
                largest = largest.max((got - want).abs() / size);
            }
            assert!(largest <= bound, "{dtype} {weights:?} k={k}: off by {largest:e} of a bound of {bound:e}");
            // Nor is the bound far too wide: short sums of 16 bits come near what storing may cost.
            let storing = match d.dtype() {
                DType::Bf16 => 2_f64.powi(-8),
                DType::F16 => 2_f64.powi(-11),
                _ => 0.0,
            };
            assert!(bound < 2.0 * storing + (k as f64 + 300.0) * 2_f64.powi(-23), "{bound:e}");
            assert!(k > 32 || largest >= storing / 16.0, "{dtype} k={k}: {largest:e}");
            assert_eq!(d.t().contiguous()?.error_bound(), Some(bound), "copies are as exact");
        }
    }
    Ok(())
}

#[test]
fn activations_may_be_rounded_on_the_way() -> Result<()> {
    let e = engine();
    for (m, format) in [(1, "i4@g32/f16"), (8, "u4@g64/f32z"), (40, "i8@row"), (3, "e2m1@mx")] {
        let (k, n) = (352, 48);
        let a = reals(&e, &[m, k], 3)?;
        let w = reals(&e, &[n, k], 4)?.quantize(format.parse::<kp_hal::op::Format>().expect("a format"))?;
        let epilogue = Epilogue { acc: Some(Acc::F32Q8), ..Epilogue::default() };
        let rounded = a.matmul_with(&w.t(), epilogue)?;
        assert_eq!(rounded.error_bound(), None, "it depends on the numbers");
        let (rounded, exact) = (rounded.to_vec::<f32>()?, a.matmul(&w.t())?.to_vec::<f32>()?);
        let (a, w) = (a.to_vec::<f32>()?, w.dequantize(DType::F32)?.to_vec::<f32>()?);
        for (i, (got, want)) in rounded.iter().zip(&exact).enumerate() {
            let (a, w) = (&a[i / n * k..][..k], &w[i % n * k..][..k]);
            let run = |(a, w): (&[f32], &[f32])| {
                let most = a.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
                most / 253.0 * w.iter().map(|w| w.abs()).sum::<f32>()
            };
            let bound: f32 = a.chunks(32).zip(w.chunks(32)).map(run).sum();
            assert!((got - want).abs() <= bound + 1e-4, "{format}: {got} for {want}, bound {bound:e}");
        }
    }
    Ok(())
}

#[test]
fn whole_numbers_are_exact_and_the_rest_says_nothing() -> Result<()> {
    let e = engine();
    let (a, b) = (ints(&e, &[4, 32], 1)?, ints(&e, &[8, 32], 2)?.t());
    let (i8_a, i8_b) = (a.cast(DType::I8)?, b.contiguous()?.cast(DType::I8)?);
    assert_eq!(i8_a.matmul(&i8_b)?.error_bound(), Some(0.0));
    let d = |epilogue| Ok::<_, kp_hal::Error>(a.matmul_with(&b, epilogue)?.error_bound());
    assert!(d(Epilogue { act: Act::Relu, ..Epilogue::default() })?.is_some());
    assert_eq!(d(Epilogue { act: Act::Gelu, ..Epilogue::default() })?, None);
    assert_eq!(d(Epilogue { gate: Gate::Halves, ..Epilogue::default() })?, None);
    assert_eq!(d(Epilogue { out: Some(DType::I8.into()), ..Epilogue::default() })?, None);
    // Sums of 8-bit floats may stay in a coarser unit for up to 128 of k.
    let narrow = [&a, &b.contiguous()?].map(|t| t.cast(DType::E4m3));
    let [narrow_a, narrow_b] = narrow;
    let bound = narrow_a?.matmul(&narrow_b?)?.error_bound().expect("a plain product");
    assert!((32.0 * 2_f64.powi(-13)..33.0 * 2_f64.powi(-13)).contains(&bound), "{bound:e}");
    let coarse = d(Epilogue { acc: Some(Acc::F32Fast), ..Epilogue::default() })?.expect("a plain product");
    assert!(coarse > 32.0 * 2_f64.powi(-13));
    let product = a.matmul(&b)?;
    assert_eq!((a.error_bound(), product.gelu()?.error_bound()), (None, None));
    assert_eq!(product.t().slice_rows(0..2)?.error_bound(), product.error_bound());
    Ok(())
}

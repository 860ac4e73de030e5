//! Numbers put in place of others, and buffers that tensors take over and give.

#![cfg(feature = "cpu")]

#[path = "common/numbers.rs"]
mod numbers;

use kp_core::{
    Tensor,
    tensor::{Attend, Pages, formats},
};
use kp_hal::{
    DType, Result,
    op::{Format, GemmArgs, GemmProblem, Mask, Scheme},
};
use numbers::{close, engine, host, ints, reals};

/// `x` with `part` from row-by-row place `start` on.
fn patched(x: &[f64], start: usize, part: &[f64]) -> Vec<f64> {
    [&x[..start], part, &x[start + part.len()..]].concat()
}

#[test]
fn a_part_lies_where_the_index_says() -> Result<()> {
    let e = engine();
    let x = ints(&e, &[3, 4, 5, 2], 1)?;
    for (at, shape, start) in [
        (&[1][..], &[2, 4, 5, 2][..], 40),
        (&[2, 1], &[3, 5, 2], 90),
        (&[0, 3, 4], &[1, 2], 38),
        (&[1, 2, 3, 1], &[1], 67),
        (&[3], &[0, 4, 5, 2], 0),
    ] {
        let (mut y, part) = (x.clone(), ints(&e, shape, 7)?);
        y.write(at, &part)?;
        assert_eq!(host(&y)?, patched(&host(&x)?, start, &host(&part)?), "{at:?}");
    }
    Ok(())
}

#[test]
fn views_and_clones_stay_as_they_are_and_nothing_is_copied_for_none() -> Result<()> {
    let e = engine();
    let mut x = ints(&e, &[4, 6], 1)?;
    let before = host(&x)?;
    let (clone, view, ones) = (x.clone(), x.slice_rows(1..3)?, e.tensor(&[1, 6], &[1.0_f32; 6])?);
    x.write(&[1], &ones)?;
    assert_eq!((host(&clone)?, host(&view)?), (before.clone(), before[6..18].to_vec()));
    assert_eq!(host(&x)?, patched(&before, 6, &[1.0; 6]));
    let place = x.codes().addr();
    x.write(&[0], &ones)?;
    assert_eq!(x.codes().addr(), place, "nobody else sees it, so it is written where it is");
    // Of itself, and into a view that has no regular rows.
    let own = x.slice_rows(1..2)?;
    x.write(&[3], &own)?;
    assert_eq!(host(&x)?[18..], [1.0; 6]);
    let mut turned = x.t();
    turned.write(&[5], &e.tensor(&[1, 4], &[9.0_f32; 4])?)?;
    assert_eq!((turned.shape(), &host(&turned)?[20..], host(&x)?[5]), (&[6, 4][..], &[9.0; 4][..], 1.0));
    Ok(())
}

#[test]
fn scales_of_rows_go_with_them() -> Result<()> {
    let e = engine();
    let (x, part) = (reals(&e, &[3, 4, 64], 1)?, reals(&e, &[2, 64], 2)?);
    let zero = Format::new(DType::U4, Scheme::Group { inner: 32, scale: DType::F16, zero: true });
    for format in [formats::FP8_ROW, formats::MXFP4, formats::INT4_G32, zero, DType::E4m3.into(), DType::E2m1.into()] {
        let [mut q, part] = [x.quantize(format)?, part.quantize(format)?];
        let want = patched(&host(&q.dequantize(DType::F32)?)?, (4 + 2) * 64, &host(&part.dequantize(DType::F32)?)?);
        q.write(&[1, 2], &part)?;
        assert_eq!(host(&q.dequantize(DType::F32)?)?, want, "{format}");
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() -> Result<()> {
    let e = engine();
    let mut x = ints(&e, &[3, 4], 1)?;
    let before = host(&x)?;
    for (at, shape, rule) in [
        (&[][..], &[1, 4][..], "at least one dimension"),
        (&[0], &[], "at least one dimension"),
        (&[0], &[1, 5], "that the index does not name"),
        (&[0], &[4], "that the index does not name"),
        (&[0, 0, 0], &[1], "that the index does not name"),
        (&[2], &[2, 4], "must end within x"),
        (&[3, 0], &[1], "must end within x"),
        (&[usize::MAX], &[1, 4], "must end within x"),
    ] {
        let error = x.write(at, &ints(&e, shape, 2)?).expect_err("refused").to_string();
        assert!(error.starts_with("write: x is 3x4 f32, ") && error.ends_with(rule), "{at:?}: {error}");
    }
    let wrong = x.write(&[0], &ints(&e, &[1, 4], 2)?.cast(DType::F16)?).expect_err("refused").to_string();
    assert!(wrong.contains("both must have one format"), "{wrong}");
    assert_eq!(host(&x)?, before);
    let numbers = reals(&e, &[2, 128], 3)?;
    for format in [formats::FP8_128X128, formats::NVFP4, Format::new(DType::E4m3, Scheme::Tensor)] {
        let mut q = numbers.quantize(format)?;
        let part = numbers.slice_rows(0..1)?.quantize(format)?;
        let error = q.write(&[0], &part).expect_err("refused").to_string();
        assert!(error.ends_with("whose scales belong to no other"), "{format}: {error}");
    }
    let mut odd = numbers.cast(DType::E2m1)?;
    let part = odd.reshape(&[256])?.slice(0, 0..2)?;
    assert!(odd.write(&[0, 1], &part).is_err() && odd.write(&[0, 2], &part).is_ok());
    Ok(())
}

#[test]
fn a_sequence_decoded_token_by_token_is_as_attended_at_once() -> Result<()> {
    let e = engine();
    let (len, page, [heads, kv_heads, dim]) = (11, 4, [4, 2, 32]);
    let [q, k, v] =
        [(heads, 1), (kv_heads, 2), (kv_heads, 3)].map(|(heads, seed)| reals(&e, &[1, len, heads, dim], seed));
    let (q, k, v) = (q?, k?, v?);
    let whole = q.attention(&k, &v, &Attend { mask: Mask::Causal, ..Attend::default() })?;
    let pool = || e.zeros(&[5, page, kv_heads, dim], DType::F32);
    let (mut keys, mut values) = (pool()?, pool()?);
    let pages = [3_i32, 0, 4];
    let table = e.tensor(&[1, 3], &pages)?;
    let place = keys.codes().addr();
    for at in 0..len {
        let token = |x: &Tensor| x.slice(1, at..at + 1);
        let slot = [pages[at / page] as usize, at % page];
        keys.write(&slot, &token(&k)?.reshape(&[1, kv_heads, dim])?)?;
        values.write(&slot, &token(&v)?.reshape(&[1, kv_heads, dim])?)?;
        let lens = e.tensor(&[1], &[at as i32 + 1])?;
        let pages = Pages { table: &table, lens: &lens, longest: page * 3 };
        let step = token(&q)?.attention(&keys, &values, &Attend { pages: Some(pages), ..Attend::default() })?;
        close(&host(&step)?, &host(&token(&whole)?)?, 1e-5);
    }
    assert_eq!(keys.codes().addr(), place, "the pool was never copied");
    let lens = e.tensor(&[1], &[1_i32])?;
    let pages = Pages { table: &table, lens: &lens, longest: page * 3 + 1 };
    let refused = q.slice(1, 0..1)?.attention(&keys, &values, &Attend { pages: Some(pages), ..Attend::default() });
    let text = "attention: the page table is 1x3 i32: 13 keys in pages of 4 take 1 rows of 4 pages";
    assert_eq!(refused.expect_err("refused").to_string(), text);
    Ok(())
}

#[test]
fn a_plan_launched_by_hand_reads_tensors_and_its_result_becomes_one() -> Result<()> {
    let e = engine();
    let (x, w) = (ints(&e, &[8, 32], 1)?, ints(&e, &[16, 32], 2)?);
    let problem: GemmProblem = "gemm 1x8x16x32 f32:f32:f32 b=col".parse()?;
    let (plan, mut y, mut queue) = (e.plan(&problem)?, e.alloc(8 * 16 * 4)?, e.queue()?);
    queue.wait(e.default_queue().mark()?)?;
    plan.launch(&mut *queue, &GemmArgs::new(x.codes(), w.codes(), y.slice_mut()))?;
    let done = queue.mark()?;
    e.default_queue().wait(done)?;
    let y = Tensor::from_buffer(&e, &[8, 16], DType::F32, y)?;
    assert_eq!(host(&y)?, host(&x.matmul(&w.t())?)?);
    let q = w.quantize(formats::MXFP4)?;
    assert_eq!((q.codes().bytes(), q.scale().map(|s| s.bytes())), (16 * 32 / 2, Some(16)));
    assert!(q.global().is_none() && q.zero().is_none());

    let refused = |engine, shape: &[usize], format: Format, buffer| {
        Tensor::from_buffer(engine, shape, format, buffer).expect_err("refused").to_string()
    };
    let short = refused(&e, &[8, 17], DType::F32.into(), e.alloc(543)?);
    assert!(short.contains("543 bytes on device ") && short.ends_with(": 544 bytes are needed"), "{short}");
    let scaled = refused(&e, &[32], formats::MXFP4, e.alloc(64)?);
    assert!(scaled.ends_with("it has scales, which are buffers of their own"), "{scaled}");
    let foreign = refused(&engine(), &[8], DType::F32.into(), e.alloc(64)?);
    assert!(foreign.contains("the engine's is device "), "{foreign}");
    Ok(())
}

//! Every op through `Tensor` on the CPU, against plain loops: that shapes, views, batches and options reach the
//! kernels as meant. How exact kernels are is kp-testkit's question.

#![cfg(feature = "cpu")]

#[path = "common/numbers.rs"]
mod numbers;

use kp_core::{
    Tensor,
    buckets::Buckets,
    tensor::{Attend, Epilogue, Norm, Over, Pages, RopeTable, Sequences, formats},
};
use kp_hal::{
    DType, Result,
    op::{Act, Format, Gate, Mask, NormKind, ReduceOp, RopePairs},
};
use numbers::{close, engine, host, ints, product, reals};

#[test]
fn products_of_any_two_views() -> Result<()> {
    let e = engine();
    let (m, n, k) = (5, 7, 6);
    let a = ints(&e, &[m, k], 1)?;
    let b = ints(&e, &[k, n], 2)?;
    let want = product(&host(&a)?, &host(&b)?, (m, n, k));
    // The same numbers, lying in four ways.
    let ways = |x: &Tensor| -> Result<Vec<Tensor>> {
        let (rows, cols) = (x.shape()[0], x.shape()[1]);
        let framed = Tensor::cat(&[&x.t(), &ints(&e, &[3, rows], 9)?])?.t();
        let lower = Tensor::cat(&[&ints(&e, &[2, cols], 8)?, x])?;
        Ok(vec![
            x.clone(),
            x.t().contiguous()?.t(),
            framed.contiguous()?.slice_cols(0..cols)?,
            lower.slice_rows(2..2 + rows)?,
        ])
    };
    for (i, a) in ways(&a)?.iter().enumerate() {
        for (j, b) in ways(&b)?.iter().enumerate() {
            let d = a.matmul(b)?;
            assert_eq!(host(&d)?, want, "a way {i}, b way {j}");
            assert!(d.how().to_string().starts_with("cpu/gemm/"), "{}", d.how());
        }
    }
    Ok(())
}

#[test]
fn products_in_batches() -> Result<()> {
    let e = engine();
    let (count, m, n, k) = (3, 4, 5, 6);
    let (a, b) = (ints(&e, &[count, m, k], 1)?, ints(&e, &[count, k, n], 2)?);
    let (ha, hb) = (host(&a)?, host(&b)?);
    let part = |i: usize, j: usize| product(&ha[i * m * k..][..m * k], &hb[j * k * n..][..k * n], (m, n, k));
    let all = |pairs: &[(usize, usize)]| pairs.iter().flat_map(|&(i, j)| part(i, j)).collect::<Vec<_>>();
    assert_eq!(host(&a.matmul(&b)?)?, all(&[(0, 0), (1, 1), (2, 2)]));
    assert_eq!(host(&a.matmul(&b.slice(0, 1..2)?)?)?, all(&[(0, 1), (1, 1), (2, 1)]));
    assert_eq!(host(&a.slice(0, 2..3)?.matmul(&b)?)?, all(&[(2, 0), (2, 1), (2, 2)]));
    let one = b.slice(0, 2..3)?.reshape(&[k, n])?;
    assert_eq!(host(&a.matmul(&one)?)?, all(&[(0, 2), (1, 2), (2, 2)]));
    // Views whose batches cannot be folded into rows.
    let turned = a.swap_dims(1, 2)?.contiguous()?.swap_dims(1, 2)?;
    assert_eq!(host(&turned.matmul(&one)?)?, all(&[(0, 2), (1, 2), (2, 2)]));
    assert_eq!(host(&turned.matmul(&b.swap_dims(1, 2)?.contiguous()?.t())?)?, all(&[(0, 0), (1, 1), (2, 2)]));
    let narrow = a.slice(2, 0..4)?;
    let narrow_b = b.slice(1, 0..4)?;
    let want: Vec<f64> = (0..count)
        .flat_map(|i| {
            let cut =
                |i: usize| ha[i * m * k..][..m * k].chunks(k).flat_map(|row| row[..4].to_vec()).collect::<Vec<_>>();
            product(&cut(i), &hb[i * k * n..][..4 * n], (m, n, 4))
        })
        .collect();
    assert_eq!(host(&narrow.matmul(&narrow_b)?)?, want);
    Ok(())
}

#[test]
fn epilogues_are_what_they_say() -> Result<()> {
    let e = engine();
    let (m, n, k) = (4, 6, 5);
    let (a, b, bias) = (ints(&e, &[m, k], 1)?, ints(&e, &[k, n], 2)?, ints(&e, &[n], 3)?);
    let (residual, half) = (ints(&e, &[m, n], 4)?, ints(&e, &[m, n / 2], 5)?);
    let x: Vec<f64> = product(&host(&a)?, &host(&b)?, (m, n, k));
    let hb = host(&bias)?;
    let sums: Vec<f64> = x.iter().enumerate().map(|(i, x)| 2.0 * x + hb[i % n]).collect();
    let all =
        Epilogue { bias: Some(&bias), act: Act::Relu, residual: Some(&residual), alpha: 2.0, ..Epilogue::default() };
    let want: Vec<f64> = sums.iter().zip(host(&residual)?).map(|(x, r)| x.max(0.0) + r).collect();
    assert_eq!(host(&a.matmul_with(&b, all)?)?, want);
    let gated = Epilogue { gate: Gate::Halves, residual: Some(&half), ..all };
    let h = host(&half)?;
    let want: Vec<f64> = (0..m * n / 2)
        .map(|i| {
            let (row, col) = (i / (n / 2), i % (n / 2));
            sums[row * n + col].max(0.0) * sums[row * n + col + n / 2] + h[i]
        })
        .collect();
    assert_eq!(host(&a.matmul_with(&b, gated)?)?, want);
    let out = Epilogue { out: Some(DType::Bf16.into()), ..Epilogue::default() };
    assert_eq!(a.matmul_with(&b, out)?.dtype(), DType::Bf16);
    Ok(())
}

#[test]
fn quantized_products_are_those_of_what_was_stored() -> Result<()> {
    let e = engine();
    let (x, w) = (reals(&e, &[5, 256], 1)?, reals(&e, &[130, 256], 2)?);
    let exact = host(&x.matmul(&w.t())?)?;
    for text in [
        "i8@row",
        "i8@tensor",
        "e4m3@row",
        "e4m3@1x128",
        "e4m3@128x128",
        "e4m3@mx",
        "e2m1@mx",
        "e2m1@nv",
        "i4@g32/f16",
        "u4@g64/f32z",
        "nf4@g64/f32",
    ] {
        let format: Format = text.parse().expect(text);
        let q = w.quantize(format)?;
        let back = q.dequantize(DType::F32)?;
        let got = host(&x.matmul(&q.t())?)?;
        close(&got, &host(&x.matmul(&back.t())?)?, 1e-4);
        // And it is the matrix that was meant: 4-bit codes are off by a tenth or so of each number.
        let error: f64 = got.iter().zip(&exact).map(|(g, e)| (g - e).powi(2)).sum::<f64>();
        let size: f64 = exact.iter().map(|e| e.powi(2)).sum();
        assert!((error / size).sqrt() < 0.2, "{text}: relative error {}", (error / size).sqrt());
        close(&host(&q.t().dequantize(DType::F32)?)?, &host(&back.t())?, 0.0);
    }
    // Both sides narrow, and batches with a row of scales per row.
    let (qx, qw) = (x.quantize(formats::FP8_ROW)?, w.quantize(formats::FP8_ROW)?);
    let want = host(&qx.dequantize(DType::F32)?.matmul(&qw.dequantize(DType::F32)?.t())?)?;
    close(&host(&qx.matmul(&qw.t())?)?, &want, 1e-4);
    let (x3, w3) = (reals(&e, &[2, 3, 64], 3)?, reals(&e, &[2, 4, 64], 4)?);
    let q3 = w3.quantize(formats::INT8_ROW)?;
    let want = host(&x3.matmul(&q3.dequantize(DType::F32)?.t())?)?;
    close(&host(&x3.matmul(&q3.t())?)?, &want, 1e-4);
    Ok(())
}

/// One head of one sequence, positions as in `Mask`.
fn attend(
    q: &[f64],
    k: &[f64],
    v: &[f64],
    dims: (usize, usize),
    see: impl Fn(i64, i64) -> Option<f64>,
) -> (Vec<f64>, Vec<f64>) {
    let (qk, vd) = dims;
    let (q_len, kv_len) = (q.len() / qk, k.len() / qk);
    let (mut o, mut lse) = (Vec::new(), Vec::new());
    for i in 0..q_len {
        let at = (i + kv_len) as i64 - q_len as i64;
        let score = |j: usize| {
            let dot: f64 = (0..qk).map(|d| q[i * qk + d] * k[j * qk + d]).sum();
            see(at, j as i64).map_or(f64::NEG_INFINITY, |bias| dot / (qk as f64).sqrt() + bias)
        };
        let weights: Vec<f64> = (0..kv_len).map(|j| score(j).exp()).collect();
        let sum: f64 = weights.iter().sum();
        lse.push(sum.ln());
        o.extend((0..vd).map(|d| {
            let x: f64 = weights.iter().enumerate().map(|(j, w)| w * v[j * vd + d]).sum();
            if sum == 0.0 { 0.0 } else { x / sum }
        }));
    }
    (o, lse)
}

/// Head `h` of `[len][heads][dim]`.
fn head(x: &[f64], h: usize, heads: usize, dim: usize) -> Vec<f64> {
    x.chunks(heads * dim).flat_map(|token| token[h * dim..][..dim].to_vec()).collect()
}

#[test]
fn attention_in_every_layout() -> Result<()> {
    let e = engine();
    let (batch, q_len, kv_len, q_heads, kv_heads, qk, vd) = (2, 5, 9, 4, 2, 8, 6);
    let q = reals(&e, &[batch, q_len, q_heads, qk], 1)?;
    let k = reals(&e, &[batch, kv_len, kv_heads, qk], 2)?;
    let v = reals(&e, &[batch, kv_len, kv_heads, vd], 3)?;
    let slopes = e.tensor(&[q_heads], &[0.5_f32, 0.25, 0.125, 0.0625])?;
    let options = Attend { mask: Mask::Causal, slopes: Some(&slopes), ..Attend::default() };
    let mut want = vec![0.0; batch * q_len * q_heads * vd];
    let mut want_lse = Vec::new();
    let (hq, hk, hv, hs) = (host(&q)?, host(&k)?, host(&v)?, host(&slopes)?);
    for b in 0..batch {
        for h in 0..q_heads {
            let q = head(&hq[b * q_len * q_heads * qk..][..q_len * q_heads * qk], h, q_heads, qk);
            let kv = |x: &[f64], dim: usize| {
                head(&x[b * kv_len * kv_heads * dim..][..kv_len * kv_heads * dim], h / 2, kv_heads, dim)
            };
            let see = |i: i64, j: i64| (j <= i).then(|| hs[h] * (j - i) as f64);
            let (o, lse) = attend(&q, &kv(&hk, qk), &kv(&hv, vd), (qk, vd), see);
            for (i, row) in o.chunks(vd).enumerate() {
                want[((b * q_len + i) * q_heads + h) * vd..][..vd].copy_from_slice(row);
            }
            want_lse.extend(lse);
        }
    }
    let (o, lse) = q.attention_with_lse(&k, &v, &options)?;
    close(&host(&o)?, &want, 1e-5);
    close(&host(&lse)?, &want_lse, 1e-5);
    // Heads outside tokens.
    let turned = |x: &Tensor| x.swap_dims(1, 2)?.contiguous()?.swap_dims(1, 2);
    let o = turned(&q)?.attention(&turned(&k)?, &turned(&v)?, &options)?;
    assert_eq!(o.strides()[3], 1);
    close(&host(&o)?, &want, 1e-5);
    // One of each, which no kernel takes as it is.
    close(&host(&turned(&q)?.attention(&k, &turned(&v)?, &options)?)?, &want, 1e-5);
    // Room for more keys than count.
    let room = |x: &Tensor| {
        let shape = [batch, 4, kv_heads, x.shape()[3]];
        let extra = e.tensor(&shape, &vec![f32::NAN; shape.iter().product()])?;
        Tensor::cat(&[&x.swap_dims(0, 1)?, &extra.swap_dims(0, 1)?])?.swap_dims(0, 1)?.contiguous()
    };
    let lens = e.tensor(&[batch], &[kv_len as i32; 2])?;
    let padded = Attend { kv_lens: Some(&lens), ..options };
    close(&host(&q.attention(&room(&k)?, &room(&v)?, &padded)?)?, &want, 1e-5);
    // Pages of 4 tokens, in reverse order.
    let page = |x: &Tensor| {
        let dim = x.shape()[3];
        let x = room(x)?.slice(1, 0..12)?.contiguous()?.reshape(&[batch * 3, 4, kv_heads, dim])?;
        let parts: Vec<Tensor> = (0..batch * 3).rev().map(|i| x.slice(0, i..i + 1)).collect::<Result<_>>()?;
        Tensor::cat(&parts.iter().collect::<Vec<_>>())
    };
    let table = e.tensor(&[batch, 3], &[5, 4, 3, 2, 1, 0])?;
    let pages = Attend { pages: Some(Pages { table: &table, lens: &lens, longest: kv_len }), ..options };
    close(&host(&q.attention(&page(&k)?, &page(&v)?, &pages)?)?, &want, 1e-5);
    Ok(())
}

#[test]
fn packed_attention_is_attention_of_each_sequence() -> Result<()> {
    let e = engine();
    let (heads, dim) = (3, 8);
    let lens = [4, 1, 7];
    let seqs = Sequences::new(&e, &lens)?;
    // Views of one fused projection, as models have it.
    let qkv = reals(&e, &[12, 3 * heads * dim], 1)?;
    let part = |i: usize| qkv.slice_cols(i * heads * dim..(i + 1) * heads * dim)?.reshape(&[12, heads, dim]);
    let (q, k, v) = (part(0)?, part(1)?, part(2)?);
    let options = Attend { queries: Some(&seqs), ..Attend::default() };
    let (o, lse) = q.attention_with_lse(&k, &v, &options)?;
    let mut start = 0;
    for len in lens {
        let cut = |x: &Tensor| x.slice(0, start..start + len);
        let alone = cut(&q)?.attention(&cut(&k)?, &cut(&v)?, &Attend::default())?;
        close(&host(&cut(&o)?)?, &host(&alone)?, 1e-6);
        start += len;
    }
    // Gradients against differences: the loss is the sum of o weighted by g.
    let g = reals(&e, &[12, heads, dim], 2)?;
    let grads = q.attention_backward([&k, &v], [&o, &lse, &g], &options)?;
    let loss = |q: &Tensor, k: &Tensor, v: &Tensor| -> Result<f64> {
        Ok(host(&q.attention(k, v, &options)?.mul(&g)?)?.iter().sum())
    };
    let moved = |x: &Tensor, i: usize, by: f32| -> Result<Tensor> {
        let mut numbers = x.to_vec::<f32>()?;
        numbers[i] += by;
        e.tensor(x.shape(), &numbers)
    };
    let step = 1e-2_f32;
    for i in [0, 50, 100, 150, 287] {
        for (name, grad, x) in [("q", &grads.q, &q), ("k", &grads.k, &k), ("v", &grads.v, &v)] {
            let at = |by: f32| -> Result<f64> {
                let y = moved(x, i, by)?;
                match name {
                    "q" => loss(&y, &k, &v),
                    "k" => loss(&q, &y, &v),
                    _ => loss(&q, &k, &y),
                }
            };
            let slope = (at(step)? - at(-step)?) / f64::from(2.0 * step);
            let got = host(grad)?[i];
            assert!((got - slope).abs() < 2e-3, "{name}[{i}]: gradient {got}, slope {slope}");
        }
    }
    Ok(())
}

#[test]
fn rowwise_ops_take_views() -> Result<()> {
    let e = engine();
    let wide = reals(&e, &[6, 20], 1)?;
    let (weight, bias) = (reals(&e, &[8], 2)?, reals(&e, &[8], 3)?);
    let views = [wide.slice_cols(5..13)?, wide.slice_cols(5..13)?.contiguous()?.t().contiguous()?.t()];
    for x in &views {
        let h = host(x)?;
        let (hw, hb) = (host(&weight)?, host(&bias)?);
        let rows = |f: &dyn Fn(&[f64]) -> Vec<f64>| h.chunks(8).flat_map(f).collect::<Vec<_>>();
        let layer = rows(&|row| {
            let mean = row.iter().sum::<f64>() / 8.0;
            let var = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 8.0;
            (0..8).map(|j| (row[j] - mean) / (var + 1e-5).sqrt() * hw[j] + hb[j]).collect()
        });
        close(&host(&x.layer_norm(&weight, &bias, 1e-5)?)?, &layer, 1e-5);
        let sums = rows(&|row| vec![row.iter().sum()]);
        close(&host(&x.sum(Over::Cols)?)?, &sums, 1e-5);
        let columns: Vec<f64> = (0..8).map(|j| h.chunks(8).map(|row| row[j]).sum::<f64>() / 6.0).collect();
        close(&host(&x.mean(Over::Rows)?)?, &columns, 1e-5);
        let softmax = rows(&|row| {
            let sum: f64 = row.iter().map(|x| x.exp()).sum();
            row.iter().map(|x| x.exp() / sum).collect()
        });
        close(&host(&x.softmax()?)?, &softmax, 1e-5);
        close(&host(&x.silu()?)?, &h.iter().map(|x| x / (1.0 + (-x).exp())).collect::<Vec<_>>(), 1e-5);
        close(&host(&x.add(x)?)?, &h.iter().map(|x| x + x).collect::<Vec<_>>(), 1e-6);
        close(&host(&x.mul(&views[0])?)?, &h.iter().map(|x| x * x).collect::<Vec<_>>(), 1e-6);
        let gated: Vec<f64> = rows(&|row| (0..4).map(|j| row[2 * j].max(0.0) * row[2 * j + 1]).collect());
        close(&host(&x.gated(Act::Relu, Gate::Pairs)?)?, &gated, 1e-6);
        let norm = Norm { kind: NormKind::L2, eps: 1e-12, weight: None, bias: None };
        let (y, sum) = x.add_norm(x, norm)?;
        close(&host(&sum)?, &h.iter().map(|x| x + x).collect::<Vec<_>>(), 1e-6);
        close(&host(&y)?, &host(&x.l2_normalize(1e-12)?)?, 1e-5);
        let magnitude = h.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
        close(&host(&x.reduce_all(ReduceOp::Amax)?)?, &[magnitude], 0.0);
        close(&host(&x.cast(DType::Bf16)?)?, &h, 4e-3);
        close(&host(&x.quantize(formats::INT8_ROW)?.dequantize(DType::F32)?)?, &h, 1e-2);
    }
    Ok(())
}

#[test]
fn segments_gather_and_rope() -> Result<()> {
    let e = engine();
    let x = ints(&e, &[6, 3], 1)?;
    let h = host(&x)?;
    let seqs = Sequences::new(&e, &[2, 0, 4])?;
    let want: Vec<f64> = [(0, 2), (2, 2), (2, 6)]
        .iter()
        .flat_map(|&(from, to)| (0..3).map(move |j| (from..to).map(move |i| (i, j))))
        .map(|cells| cells.map(|(i, j)| h[i * 3 + j]).sum())
        .collect();
    assert_eq!(host(&x.sum(Over::Segments(&seqs))?)?, want);
    let index = e.tensor(&[2, 2], &[5_i32, 0, 0, 3])?;
    let got = x.gather(&index)?;
    assert_eq!(got.shape(), [2, 2, 3]);
    assert_eq!(host(&got)?, [5, 0, 0, 3].iter().flat_map(|&i| h[i * 3..][..3].to_vec()).collect::<Vec<_>>());
    assert_eq!(host(&x.slice_cols(1..3)?.gather(&index)?)?.len(), 8);

    let (tokens, heads, dim, rotated) = (4, 2, 6, 4);
    let x = reals(&e, &[tokens, heads, dim], 2)?;
    let mut table = RopeTable::new(&e, 50, rotated, 10_000.0)?;
    let places = [0_i32, 7, 7, 49];
    let positions = e.tensor(&[tokens], &places)?;
    for pairs in [RopePairs::Halves, RopePairs::Adjacent] {
        table.pairs = pairs;
        let h = host(&x)?;
        let mut want = h.clone();
        for (i, head) in h.chunks(dim).enumerate() {
            for j in 0..rotated / 2 {
                let (one, two) = pairs.places(j as u32, rotated as u32);
                let (one, two) = (one as usize, two as usize);
                let angle = f64::from(places[i / heads]) * 10_000_f64.powf(-2.0 * j as f64 / rotated as f64);
                want[i * dim + one] = head[one] * angle.cos() - head[two] * angle.sin();
                want[i * dim + two] = head[two] * angle.cos() + head[one] * angle.sin();
            }
        }
        let turned = x.rope(&positions, &table)?;
        close(&host(&turned)?, &want, 1e-5);
        close(&host(&turned.rope_back(&positions, &table)?)?, &h, 1e-5);
    }
    for (rotated, base) in [(3, 10_000.0), (4, 0.0), (4, -1.0), (4, f64::NAN), (4, f64::INFINITY)] {
        let refused = RopeTable::new(&e, 50, rotated, base).expect_err("refused").to_string();
        assert!(refused.starts_with(&format!("rope: rotated is {rotated}, base is {base}: ")), "{refused}");
    }
    Ok(())
}

#[test]
fn copies_straighten_any_view() -> Result<()> {
    let e = engine();
    let x = ints(&e, &[3, 4, 5, 2], 1)?;
    let h = host(&x)?;
    let at = |i: usize, j: usize, k: usize, l: usize| h[((i * 4 + j) * 5 + k) * 2 + l];
    let y = x.swap_dims(0, 2)?.swap_dims(1, 3)?;
    let mut want = Vec::new();
    for (k, l) in (0..5).flat_map(|k| (0..2).map(move |l| (k, l))) {
        want.extend((0..3).flat_map(|i| (0..4).map(move |j| (i, j))).map(|(i, j)| at(i, j, k, l)));
    }
    assert_eq!(host(&y)?, want);
    assert_eq!(y.to_vec::<f32>()?.iter().map(|&x| f64::from(x)).collect::<Vec<_>>(), want);
    let flat = x.t().reshape(&[24, 5])?;
    let want: Vec<f64> = (0..12)
        .flat_map(|r| (0..2).flat_map(move |l| (0..5).map(move |k| (r, k, l))))
        .map(|(r, k, l)| h[(r * 5 + k) * 2 + l])
        .collect();
    assert_eq!(host(&flat)?, want);
    // Packed codes: a transpose moves half bytes.
    let q = Tensor::from_bytes(&e, &[2, 3], DType::I4, &[0x21, 0x03, 0x54, 0x06])?;
    assert_eq!(q.t().cast(DType::I32)?.to_vec::<i32>()?, [1, 4, 2, 5, 3, 6]);
    assert_eq!(q.t().contiguous()?.to_parts()?.codes, [0x41, 0x52, 0x63]);
    Ok(())
}

#[test]
fn buckets_change_no_number() -> Result<()> {
    let e = engine();
    let (w, buckets) = (ints(&e, &[6, 6], 1)?, Buckets::learn(1));
    buckets.observe(16);
    for rows in [1, 5, 16] {
        let x = ints(&e, &[rows, 6], rows as u64)?;
        let want = host(&x.matmul(&w)?.relu()?)?;
        assert_eq!(host(&x.in_bucket(&buckets, |x| x.matmul(&w)?.relu())?)?, want);
    }
    assert_eq!(buckets.waste().used, 22);
    Ok(())
}

#[test]
fn nothing_is_computed_from_nothing() -> Result<()> {
    let e = engine();
    let t = |shape: &[usize]| e.zeros(shape, DType::F32);
    assert_eq!(host(&t(&[2, 0])?.matmul(&t(&[0, 3])?)?)?, [0.0; 6]);
    assert_eq!(t(&[0, 4])?.matmul(&t(&[4, 3])?)?.shape(), [0, 3]);
    assert_eq!(t(&[0, 4])?.softmax()?.gelu()?.l2_normalize(1e-9)?.shape(), [0, 4]);
    assert_eq!(host(&t(&[3, 0])?.sum(Over::Cols)?)?, [0.0; 3]);
    assert_eq!(host(&t(&[0, 2])?.reduce(ReduceOp::Max, Over::Rows)?)?, [f64::NEG_INFINITY; 2]);
    assert_eq!(t(&[0, 64])?.quantize(formats::MXFP4)?.dequantize(DType::F32)?.shape(), [0, 64]);
    assert_eq!(t(&[0, 2, 8])?.attention(&t(&[4, 2, 8])?, &t(&[4, 2, 8])?, &Attend::default())?.shape(), [0, 2, 8]);
    assert_eq!(host(&t(&[1, 1, 2])?.attention(&t(&[0, 1, 2])?, &t(&[0, 1, 2])?, &Attend::default())?)?, [0.0; 2]);
    assert_eq!(t(&[5, 3])?.gather(&e.tensor::<i32>(&[0], &[])?)?.shape(), [0, 3]);
    assert_eq!(t(&[4, 0, 3])?.t().contiguous()?.shape(), [4, 3, 0]);
    let none = Sequences::new(&e, &[])?;
    assert_eq!(t(&[0, 3])?.mean(Over::Segments(&none))?.shape(), [0, 3]);
    Ok(())
}

#[test]
fn threads_share_an_engine() -> Result<()> {
    let e = engine();
    let (a, b) = (ints(&e, &[24, 16], 1)?, ints(&e, &[16, 8], 2)?);
    let want = host(&a.matmul(&b)?.relu()?)?;
    std::thread::scope(|s| {
        let workers: Vec<_> = (0..4)
            .map(|_| {
                s.spawn(|| {
                    (0..25).try_for_each(|_| {
                        assert_eq!(host(&a.matmul(&b)?.relu()?)?, want);
                        Ok(())
                    })
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no thread panics"))
    })
}

#[test]
fn a_packed_right_side_is_the_tensor() -> Result<()> {
    let e = engine();
    let a = ints(&e, &[5, 35], 1)?;
    for (name, w) in [("rows", ints(&e, &[35, 67], 2)?), ("columns", ints(&e, &[67, 35], 3)?.t())] {
        let (want, packed) = (host(&a.matmul(&w)?)?, w.pack(DType::F32)?);
        assert_eq!(packed.shape(), [35, 67]);
        assert!(packed.panels().is_some(), "every processor has panels for f32");
        assert_eq!(host(&a.matmul(&packed)?)?, want, "{name}");
        let bias = ints(&e, &[67], 4)?;
        let with = Epilogue { bias: Some(&bias), act: Act::Relu, ..Epilogue::default() };
        assert_eq!(host(&a.matmul_with(&packed, with)?)?, host(&a.matmul_with(&w, with)?)?, "{name}");
    }
    // A batch, and one with more dimensions than matrices have.
    let (a, b) = (ints(&e, &[2, 3, 5, 9], 5)?, ints(&e, &[2, 3, 9, 11], 6)?);
    assert_eq!(host(&a.matmul(&b.pack(DType::F32)?)?)?, host(&a.matmul(&b)?)?);
    // Codes and their scales, on either side of the same type and against floats.
    let w = reals(&e, &[67, 128], 7)?;
    for format in [formats::INT8_ROW, formats::FP8_ROW, formats::NF4_G32] {
        let q = w.quantize(format)?;
        for x in [reals(&e, &[20, 128], 8)?, reals(&e, &[20, 128], 9)?.quantize(formats::INT8_ROW)?] {
            let packed = q.t().pack(x.dtype())?;
            close(&host(&x.matmul(&packed)?)?, &host(&x.matmul(&q.t())?)?, 1e-5);
        }
    }
    let refused = w.slice(0, 0..1)?.reshape(&[128])?.pack(DType::F32).expect_err("a vector is no right side");
    assert_eq!(refused.to_string(), "pack: b is 128 f32: it needs at least two dimensions");
    Ok(())
}

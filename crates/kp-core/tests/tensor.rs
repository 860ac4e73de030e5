//! Tensors without arithmetic: what they hold, how they are seen, what is refused and in which words.
//! On kp-null, whose memory is real and whose kernels compute nothing.

use kp_core::{
    Engine, Tensor,
    buckets::Buckets,
    tensor::{Attend, Epilogue, How, Norm, Over, Parts, RopeTable, Sequences, formats},
};
use kp_hal::{
    DType, ErrorKind, Result,
    op::{Act, Format, Gate, Mask, NormKind, ReduceOp},
};

fn engine() -> Engine {
    Engine::builder().only(kp_null::BACKEND).device("null").memory_only().open().expect("it is always there")
}

fn f32s(engine: &Engine, shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let numbers: Vec<f32> = (0..count).map(|i| i as f32).collect();
    engine.tensor(shape, &numbers).expect("small")
}

/// What a call is refused with.
fn refusal<T>(result: Result<T>) -> String {
    result.err().expect("it must be refused").to_string()
}

#[test]
fn numbers_of_every_type_come_back() -> Result<()> {
    let e = engine();
    fn there_and_back<T: kp_core::tensor::Element + PartialEq + std::fmt::Debug>(e: &Engine, x: &[T]) -> Result<()> {
        let t = e.tensor(&[x.len()], x)?;
        assert_eq!((t.dtype(), t.how(), t.to_vec::<T>()?), (T::DTYPE, How::Host, x.to_vec()));
        Ok(())
    }
    there_and_back(&e, &[1.5_f64, -0.0, f64::MAX])?;
    there_and_back(&e, &[1.5_f32, f32::INFINITY])?;
    #[cfg(feature = "half")]
    {
        there_and_back(&e, &[1.5, -2.0].map(half::f16::from_f32))?;
        there_and_back(&e, &[1.5, -2.0].map(half::bf16::from_f32))?;
    }
    there_and_back(&e, &[-128_i8, 127])?;
    there_and_back(&e, &[0_u8, 255])?;
    there_and_back(&e, &[i32::MIN, 7])?;
    there_and_back(&e, &[i64::MAX, -7])?;
    assert_eq!(e.zeros(&[2, 3], DType::F32)?.to_vec::<f32>()?, [0.0; 6]);
    assert_eq!(f32s(&e, &[]).item::<f32>()?, 0.0);
    Ok(())
}

#[test]
fn views_share_the_buffer_and_name_the_right_numbers() -> Result<()> {
    let e = engine();
    let x = f32s(&e, &[4, 3]);
    assert_eq!(x.slice_rows(1..3)?.to_vec::<f32>()?, [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    assert_eq!(x.reshape(&[2, 6])?.slice_rows(1..2)?.to_vec::<f32>()?, [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
    assert_eq!((x.t().shape(), x.t().strides()), (&[3, 4][..], &[1, 3][..]));
    assert_eq!(x.t().t().to_vec::<f32>()?, x.to_vec::<f32>()?);
    assert_eq!(x.slice_cols(1..2)?.strides(), [3, 1]);
    assert_eq!(x.reshape(&[2, 2, 3])?.swap_dims(0, 1)?.shape(), [2, 2, 3]);
    assert_eq!(f32s(&e, &[5]).t().shape(), [5]);
    assert_eq!(x.device_bytes(), 48);
    Ok(())
}

#[test]
fn parts_come_back_and_are_counted() -> Result<()> {
    let e = engine();
    let format: Format = "e2m1@mx".parse().expect("a format");
    let parts = Parts { codes: vec![7; 2 * 32], scale: vec![127; 2 * 2], ..Parts::default() };
    let t = Tensor::from_parts(&e, &[2, 64], format, &parts)?;
    assert_eq!((t.to_parts()?, t.t().to_parts()?), (parts.clone(), parts.clone()));
    let short = Parts { scale: vec![127; 3], ..parts };
    assert_eq!(
        refusal(Tensor::from_parts(&e, &[2, 64], format, &short)),
        "tensor: the shape is 2x64 e2m1@mx, scale is 3 bytes: 4 bytes are needed"
    );
    // Rows of 4-bit codes start at whole bytes.
    let odd = Tensor::from_bytes(&e, &[2, 3], DType::I4, &[1, 2, 3, 4])?;
    assert_eq!((odd.len(), odd.strides()), (6, &[4, 1][..]));
    Ok(())
}

#[test]
fn shapes_that_do_not_fit_are_refused_in_words() {
    let e = engine();
    let (a, b) = (f32s(&e, &[4, 5]), f32s(&e, &[6, 7]));
    assert_eq!(refusal(a.matmul(&b)), "matmul: a is 4x5, b is 6x7: columns of a must equal rows of b");
    assert_eq!(
        refusal(f32s(&e, &[2, 4, 5]).matmul(&f32s(&e, &[3, 5, 6]))),
        "matmul: a is 2x4x5 f32, b is 3x5x6 f32: dimensions before the last two must be the same, or 1 on one side"
    );
    assert_eq!(
        refusal(a.matmul(&f32s(&e, &[5]))),
        "matmul: a is 4x5 f32, b is 5 f32: both need at least two dimensions"
    );
    let bias = f32s(&e, &[5]);
    assert_eq!(
        refusal(a.matmul_with(
            &b.t().slice_rows(0..5).expect("7 rows"),
            Epilogue { bias: Some(&bias), ..Epilogue::default() }
        )),
        "matmul: the bias is 5: it must have 6 numbers"
    );
    assert_eq!(
        refusal(e.tensor(&[2, 3], &[0.0_f32; 5])),
        "tensor: the shape is 2x3, the data is 5 numbers: the shape has 6 numbers"
    );
    assert_eq!(refusal(a.reshape(&[3, 7])), "reshape: x is 4x5 f32, the shape is 3x7: 20 numbers do not fit 21");
    assert_eq!(refusal(a.slice_rows(2..9)), "slice: x is 4x5 f32: dimension 0 has no 2..9");
    assert_eq!(refusal(bias.slice_rows(0..1)), "slice: x is 5 f32: it needs at least 2 dimensions");
    assert_eq!(refusal(a.swap_dims(0, 2)), "swap_dims: x is 4x5 f32: it has no dimension 2");
    assert_eq!(refusal(a.add(&b)), "add: the other is 6x7 f32: it must be 4x5");
    assert_eq!(
        refusal(a.gated(Act::Silu, Gate::Halves)),
        "gated: x is 4x5 f32: a gate needs an even number of columns"
    );
    assert_eq!(refusal(a.layer_norm(&bias, &f32s(&e, &[4]), 1e-5)), "norm: the bias is 4: it must have 5 numbers");
    assert_eq!(refusal(a.to_vec::<i32>()), "to_vec: x is 4x5 f32: i32 was asked for: cast it first");
    assert_eq!(refusal(a.item::<f32>()), "item: x is 4x5 f32: it must have exactly one number");
    assert_eq!(refusal(a.gather(&bias)), "gather: the index is 5 f32: it must be i32");
    assert_eq!(
        refusal(Tensor::cat(&[&a, &b])),
        "cat: the first is 4x5 f32, another is 6x7 f32: they may differ in the first dimension only"
    );
    let nibbles =
        |rows: usize| Tensor::from_bytes(&e, &[rows], DType::I4, &[0x21; 2][..rows.div_ceil(2)]).expect("codes");
    assert_eq!(
        refusal(Tensor::cat(&[&nibbles(3), &nibbles(3)])),
        "cat: a part is 3 i4, the last is 3 i4: 4-bit codes of all but the last must fill their bytes"
    );
    assert_eq!(Tensor::cat(&[&nibbles(2), &nibbles(3)]).expect("whole bytes").shape(), [5]);
    assert_eq!(refusal(Tensor::cat(&[])), "cat: the parts is none: there must be at least one");
    let norm = Norm { kind: NormKind::Rms, eps: f32::NAN, weight: None, bias: None };
    assert_eq!(refusal(a.norm(norm)), "norm: eps must be a finite number, got `NaN`");
    let far = Sequences::new(&e, &[3, 2]).expect("small");
    assert_eq!(
        refusal(a.mean(Over::Segments(&far))),
        "reduce: x is 4x5 f32, the sequences is 5 rows: x must have the rows of all sequences"
    );
}

/// Each engine has a queue of its own, and nothing would order one's work after the other's.
#[test]
fn tensors_of_two_engines_are_refused_in_words() {
    let (e, other) = (engine(), engine());
    let (mut a, b) = (f32s(&e, &[4, 4]), f32s(&other, &[4, 4]));
    let says = |op: &str, name: &str| format!("{op}: {name} is 4x4 f32 of another engine: all must be of one");
    assert_eq!(refusal(a.add(&b)), says("add", "an operand"));
    assert_eq!(refusal(a.mul(&b)), says("mul", "an operand"));
    assert_eq!(refusal(a.matmul(&b)), says("matmul", "an operand"));
    assert_eq!(refusal(a.matmul(&b.t())), says("matmul", "an operand"));
    assert_eq!(refusal(Tensor::cat(&[&a, &b])), says("cat", "a part"));
    assert_eq!(refusal(a.write(&[0], &b)), says("write", "the part"));
    assert!(a.add(&f32s(&e.clone(), &[4, 4])).is_ok(), "a clone is the same engine");
}

/// What the documentation of the named formats says a number takes.
#[test]
fn named_formats_take_the_bits_they_say() -> Result<()> {
    let x = f32s(&engine(), &[16, 256]);
    for (format, bits) in [
        (formats::MXFP8, 8.25),
        (formats::MXFP4, 4.25),
        (formats::INT4_G32, 4.5),
        (formats::INT4_G128, 4.125),
        (formats::UINT4_G128_ZERO, 4.1875),
        (formats::NF4_G32, 4.5),
        (formats::NF4_G64, 4.25),
    ] {
        let q = x.quantize(format)?;
        assert_eq!(q.device_bytes() as f64 * 8.0 / q.len() as f64, bits, "{format}");
    }
    assert!(refusal(x.quantize(DType::F32)).starts_with("quantize: q must be a type of at most 8 bits"));
    Ok(())
}

#[test]
fn quantized_tensors_refuse_what_would_lose_their_scales() -> Result<()> {
    let e = engine();
    let q = f32s(&e, &[8, 64]).quantize(formats::MXFP4)?;
    let x = f32s(&e, &[3, 64]);
    assert_eq!(q.how().to_string(), "null/quantize/null_any#0");
    assert_eq!(x.matmul(&q.t())?.shape(), [3, 8]);
    let rule = "scales must run along k: quantize a as m x k, b as n x k, and pass b's transpose";
    assert_eq!(refusal(f32s(&e, &[3, 8]).matmul(&q)), format!("matmul: a is 3x8 f32, b is 8x64 e2m1@mx: {rule}"));
    assert_eq!(q.dequantize(DType::F32)?.shape(), [8, 64]);
    assert_eq!(q.t().dequantize(DType::F32)?.shape(), [64, 8]);
    assert_eq!(q.reshape(&[2, 4, 64])?.shape(), [2, 4, 64]);
    assert_eq!(
        refusal(q.reshape(&[4, 128])),
        "reshape: x is 8x64 e2m1@mx, the shape is 4x128: rows with scales must stay as long as they were quantized"
    );
    let plain = "it must not be scaled: dequantize it first";
    assert_eq!(refusal(q.slice_rows(0..2)), format!("slice: x is 8x64 e2m1@mx: {plain}"));
    assert_eq!(refusal(q.gelu()), format!("activation: x is 8x64 e2m1@mx: {plain}"));
    assert_eq!(refusal(q.to_vec::<u8>()), format!("to_vec: x is 8x64 e2m1@mx: {plain}"));
    assert!(
        matches!(x.quantize("f32@row".parse::<Format>().expect("it parses")), Err(e) if matches!(e.kind(), ErrorKind::BadProblem(_)))
    );
    // A scale for everything is known only at the end.
    let out = Some("e4m3@tensor".parse().expect("a format"));
    assert_eq!(
        refusal(x.matmul_with(&x.t(), Epilogue { out, ..Epilogue::default() })),
        "matmul: the result is e4m3@tensor: the result's scale is known only when all of it is: quantize it afterwards"
    );
    assert_eq!(
        x.matmul_with(&q.t(), Epilogue { out: Some("e4m3@row".parse().expect("a format")), ..Epilogue::default() })?
            .format()
            .to_string(),
        "e4m3@row"
    );
    Ok(())
}

#[test]
fn products_have_the_shape_and_type_they_should() -> Result<()> {
    let e = engine();
    let shape = |a: &[usize], b: &[usize]| f32s(&e, a).matmul(&f32s(&e, b)).map(|d| d.shape().to_vec());
    assert_eq!(shape(&[2, 3], &[3, 5])?, [2, 5]);
    assert_eq!(shape(&[7, 2, 3], &[3, 5])?, [7, 2, 5]);
    assert_eq!(shape(&[2, 3], &[7, 3, 5])?, [7, 2, 5]);
    assert_eq!(shape(&[7, 2, 3], &[7, 3, 5])?, [7, 2, 5]);
    assert_eq!(shape(&[4, 7, 2, 3], &[1, 3, 5])?, [4, 7, 2, 5]);
    assert_eq!(shape(&[0, 3], &[3, 5])?, [0, 5]);
    assert_eq!(shape(&[2, 0], &[0, 5])?, [2, 5]);
    assert_eq!(shape(&[0, 2, 3], &[0, 3, 5])?, [0, 2, 5]);
    let bytes = |dtype, n: usize| Tensor::from_bytes(&e, &[n, 32], dtype, &vec![0; dtype_bytes(dtype) * n * 32]);
    for (a, b, d) in [
        (DType::F32, DType::F32, DType::F32),
        (DType::Bf16, DType::F32, DType::Bf16),
        (DType::F16, DType::I8, DType::F16),
        (DType::I8, DType::Bf16, DType::Bf16),
        (DType::I8, DType::I8, DType::I32),
        (DType::E4m3, DType::E4m3, DType::F32),
    ] {
        assert_eq!(bytes(a, 4)?.matmul(&bytes(b, 8)?.t())?.dtype(), d, "{a} x {b}");
    }
    let gated = Epilogue { act: Act::Silu, gate: Gate::Pairs, ..Epilogue::default() };
    assert_eq!(f32s(&e, &[2, 3]).matmul_with(&f32s(&e, &[3, 8]), gated)?.shape(), [2, 4]);
    Ok(())
}

fn dtype_bytes(dtype: DType) -> usize {
    dtype.bits() as usize / 8
}

#[test]
fn attention_checks_its_shapes() -> Result<()> {
    let e = engine();
    let t = |shape: &[usize]| f32s(&e, shape);
    let plain = Attend::default();
    let q = t(&[2, 5, 4, 8]);
    assert_eq!(q.attention(&t(&[2, 9, 2, 8]), &t(&[2, 9, 2, 6]), &plain)?.shape(), [2, 5, 4, 6]);
    let (o, lse) = q.attention_with_lse(&t(&[2, 9, 2, 8]), &t(&[2, 9, 2, 6]), &plain)?;
    assert_eq!((o.shape(), lse.shape()), (&[2, 5, 4, 6][..], &[2, 4, 5][..]));
    // Heads before tokens, seen as tokens before heads: the result lies as Q does.
    let swapped = |shape: &[usize]| t(shape).swap_dims(1, 2);
    let o = swapped(&[2, 4, 5, 8])?.attention(&swapped(&[2, 4, 9, 8])?, &swapped(&[2, 4, 9, 8])?, &plain)?;
    assert_eq!((o.shape(), o.strides()), (&[2, 5, 4, 8][..], &[160, 8, 40, 1][..]));

    let is = |q: &str, k: &str, v: &str| format!("attention: q is {q} f32, k is {k} f32, v is {v} f32: ");
    for (k, v, rule) in [
        (&[2, 9, 2, 7][..], &[2, 9, 2, 6][..], "heads of q and k must be equally long"),
        (&[2, 9, 3, 8], &[2, 9, 3, 8], "heads of q must be a multiple of heads of k"),
        (&[2, 9, 2, 8], &[2, 8, 2, 8], "k and v must have the same batch, length and heads"),
        (&[3, 9, 2, 8], &[3, 9, 2, 8], "q and k must have the same batch"),
    ] {
        let text = |s: &[usize]| s.iter().map(usize::to_string).collect::<Vec<_>>().join("x");
        assert_eq!(refusal(q.attention(&t(k), &t(v), &plain)), is("2x5x4x8", &text(k), &text(v)) + rule);
    }
    let (keys, capped) = (t(&[2, 9, 2, 8]), |cap| Attend { softcap: Some(cap), ..plain });
    assert_eq!(refusal(q.attention(&keys, &keys, &capped(-1.0))), "attention: softcap must be above 0, got `-1.0`");
    let inf = refusal(q.attention(&keys, &keys, &capped(f32::INFINITY)));
    assert_eq!(inf, "attention: softcap must be a finite number, got `inf`");
    let blocks = Attend { mask: Mask::Blocks { q: 4, k: 4 }, ..plain };
    assert!(refusal(q.attention(&keys, &keys, &blocks)).ends_with("needs blocks, and no other mask takes them"));
    let seqs = Sequences::new(&e, &[3, 4])?;
    let packed = Attend { queries: Some(&seqs), mask: Mask::Causal, ..plain };
    let tokens = t(&[7, 4, 8]);
    assert_eq!(tokens.attention(&tokens, &tokens, &packed)?.shape(), [7, 4, 8]);
    assert_eq!((seqs.count(), seqs.longest(), seqs.total()), (2, 4, 7));
    assert_eq!(seqs.offsets().to_vec::<i32>()?, [0, 3, 7]);
    let short = t(&[6, 4, 8]);
    assert!(
        refusal(short.attention(&short, &short, &packed))
            .ends_with("2 sequences of 7 queries and 2 of 7 keys must fit")
    );
    let (o, lse) = tokens.attention_with_lse(&tokens, &tokens, &packed)?;
    assert_eq!(lse.shape(), [4, 7]);
    let grads = tokens.attention_backward([&tokens, &tokens], [&o, &lse, &o], &packed)?;
    assert_eq!((grads.q.shape(), grads.k.shape(), grads.v.shape()), (&[7, 4, 8][..], &[7, 4, 8][..], &[7, 4, 8][..]));
    Ok(())
}

#[test]
fn other_ops_have_the_shapes_they_should() -> Result<()> {
    let e = engine();
    let x = f32s(&e, &[2, 3, 4]);
    let seqs = Sequences::new(&e, &[1, 0, 5])?;
    assert_eq!(x.sum(Over::Cols)?.shape(), [2, 3]);
    assert_eq!(x.max(Over::Rows)?.shape(), [4]);
    assert_eq!(x.mean(Over::Segments(&seqs))?.shape(), [3, 4]);
    assert_eq!(x.reduce_all(ReduceOp::Amax)?.shape(), [0; 0]);
    assert_eq!(x.softmax()?.shape(), [2, 3, 4]);
    assert_eq!(x.gated(Act::Silu, Gate::Halves)?.shape(), [2, 3, 2]);
    assert_eq!(x.cast(DType::Bf16)?.dtype(), DType::Bf16);
    assert_eq!(x.rms_norm(&f32s(&e, &[4]), 1e-6)?.shape(), [2, 3, 4]);
    let index = e.tensor(&[2, 2], &[0_i32, 1, 2, 3])?;
    assert_eq!(f32s(&e, &[5, 3]).gather(&index)?.shape(), [2, 2, 3]);
    let table = RopeTable::new(&e, 16, 4, 10_000.0)?;
    let positions = e.tensor(&[2], &[0_i32, 1])?;
    assert_eq!(x.rope(&positions, &table)?.shape(), [2, 3, 4]);
    assert!(refusal(f32s(&e, &[2, 3, 2]).rope(&positions, &table)).contains("for heads of 4"));
    Ok(())
}

#[test]
fn memory_that_there_is_not_leaves_the_engine_usable() -> Result<()> {
    let e = engine();
    let much = e.zeros(&[1 << 20, 1 << 20, 8], DType::F32);
    assert!(matches!(much.as_ref().map_err(|e| e.kind()), Err(ErrorKind::OutOfMemory { .. })), "{much:?}");
    assert_eq!(
        refusal(e.zeros(&[usize::MAX, 4], DType::F32)),
        "elements may be at most 9223372036854775807, got more than 2^64"
    );
    assert_eq!(refusal(e.zeros(&[1; 7], DType::F32)), "the rank may be at most 6, got 7");
    assert_eq!(
        refusal(e.zeros(&[1 << 33, 0], DType::F32).and_then(|x| x.gelu())),
        "rows may be at most 4294967295, got 8589934592"
    );
    let table = RopeTable::new(&e, 1 << 50, 4, 1e4);
    assert!(matches!(table.as_ref().map_err(|e| e.kind()), Err(ErrorKind::OutOfMemory { .. })), "{table:?}");
    assert!(refusal(RopeTable::new(&e, usize::MAX, 4, 1e4)).starts_with("elements may be at most "));
    assert_eq!(f32s(&e, &[2, 2]).to_vec::<f32>()?, [0.0, 1.0, 2.0, 3.0]);
    Ok(())
}

#[test]
fn a_bucket_pads_with_zeros_and_cuts_back() -> Result<()> {
    let e = engine();
    let buckets = Buckets::learn(2);
    let x = f32s(&e, &[5, 2]);
    let mut padded = None;
    let y = x.in_bucket(&buckets, |x| {
        padded = Some(x.clone());
        Ok(x.clone())
    })?;
    // One size seen so far, so that size is the bucket.
    assert_eq!((padded.expect("it ran").shape(), y.shape()), (&[5, 2][..], &[5, 2][..]));
    f32s(&e, &[8, 2]).in_bucket(&buckets, |x| Ok(x.clone()))?;
    (0..30).for_each(|_| buckets.observe(8));
    assert_eq!(buckets.sizes(), [5, 8]);
    let six = f32s(&e, &[6, 2]).in_bucket(&buckets, |x| {
        assert_eq!(x.shape(), [8, 2]);
        assert_eq!(x.to_vec::<f32>()?[10..], [10.0, 11.0, 0.0, 0.0, 0.0, 0.0]);
        Ok(x.clone())
    })?;
    assert_eq!((six.shape(), six.to_vec::<f32>()?.len()), (&[6, 2][..], 12));
    assert_eq!((buckets.waste().used, buckets.waste().padded), (19, 21));
    assert_eq!(
        refusal(x.in_bucket(&buckets, |x| x.reshape(&[2, 5]))),
        "in_bucket: x is 5x2 f32, the result is 2x5 f32: its first dimension must still be 5"
    );
    Ok(())
}

#[test]
fn padding_goes_behind_any_dimension() -> Result<()> {
    let e = engine();
    let x = f32s(&e, &[2, 2, 2]);
    assert_eq!(x.pad_to(0, 3)?.to_vec::<f32>()?, [0., 1., 2., 3., 4., 5., 6., 7., 0., 0., 0., 0.]);
    assert_eq!(x.pad_to(1, 3)?.to_vec::<f32>()?, [0., 1., 2., 3., 0., 0., 4., 5., 6., 7., 0., 0.]);
    assert_eq!(x.pad_to(2, 3)?.to_vec::<f32>()?, [0., 1., 0., 2., 3., 0., 4., 5., 0., 6., 7., 0.]);
    assert_eq!(f32s(&e, &[0, 2]).pad_to(1, 4)?.shape(), [0, 4]);
    assert_eq!(f32s(&e, &[2, 0]).pad_to(1, 2)?.to_vec::<f32>()?, [0.0; 4]);
    assert_eq!(refusal(x.pad_to(0, 1)), "pad_to: x is 2x2x2 f32: dimension 0 must exist and be at most 1");
    Ok(())
}

#[test]
fn zeros_are_zeros_of_every_type() -> Result<()> {
    let e = engine();
    assert_eq!(e.zeros(&[2, 4], DType::Nf4)?.to_parts()?.codes, [0x77; 4], "NF4's first code is -1");
    let x = Tensor::from_bytes(&e, &[1, 2], DType::Nf4, &[0xf0])?;
    assert_eq!(x.pad_to(0, 2)?.to_parts()?.codes, [0xf0, 0x77]);
    Ok(())
}

#[test]
fn rows_of_4_bits_begin_at_whole_bytes() -> Result<()> {
    let e = engine();
    let x = Tensor::from_bytes(&e, &[9], DType::I4, &[0x21, 0x43, 0x65, 0x07, 0x01])?;
    assert_eq!(
        refusal(x.reshape(&[3, 3])?.cast(DType::F32)),
        "cast: x is 3x3 i4: rows of 4-bit codes must begin at whole bytes"
    );
    let x = Tensor::from_bytes(&e, &[2, 3, 3], DType::I4, &[0; 12])?;
    assert!(refusal(x.swap_dims(0, 2)?.cast(DType::F32)).ends_with("must begin at whole bytes"));
    Ok(())
}

#[test]
fn tensors_cross_threads() -> Result<()> {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Tensor>();
    shared::<Sequences>();
    let e = engine();
    let x = f32s(&e, &[64, 64]);
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| (0..50).try_for_each(|_| x.matmul(&x.t())?.gelu().map(drop)).expect("null runs anything"));
        }
    });
    Ok(())
}

//! What holds of each row of a kernel whose tiles have many.

use super::{
    machine::VARIANTS,
    tests::{Naive, Operands, Random, fill, launch},
};
use crate::numbers;
use kp_hal::{
    DType, Kernel, Variant,
    op::{Attention, AttentionProblem, Overflow},
};

/// The bits of the first row of O.
fn first_row(kernel: &dyn Kernel<Attention>, variant: Variant, text: &str) -> Vec<u8> {
    let problem: AttentionProblem = text.parse().expect(text);
    let spec = *problem.spec();
    let mut operands = fill::<Attention>(&problem, &spec, 3);
    let bytes_of = |dtype: DType| dtype.bits() as usize / 8;
    // The same rows, however many others there are.
    for (name, seed, dtype) in [("q", 1, spec.q.dtype), ("k", 2, spec.kv.dtype), ("v", 3, spec.kv.dtype)] {
        let mut random = Random(seed);
        let bytes = operands.get_mut(name);
        let count = bytes.len() / bytes_of(dtype);
        let numbers: Vec<f64> = (0..count).map(|_| random.unit()).collect();
        numbers::write(dtype, &numbers, bytes, 0, Overflow::Saturate);
    }
    let got = launch::<Attention>(kernel, &problem, variant, &operands);
    got.get("o")[..spec.ld[3] as usize * bytes_of(spec.o)].to_vec()
}

/// The kernels whose tiles have many rows, as they are run for numbers of a type, and the fewest queries that they take.
fn by_rows() -> Vec<(&'static dyn Kernel<Attention>, Variant, &'static str, u32)> {
    let caps = crate::caps::with_tiles();
    let variants = (0..VARIANTS).map(Variant).filter(|&v| super::machine::is_in(&caps, v));
    let portable = |variant| (&super::portable::Portable as &dyn Kernel<Attention>, variant, "f32:f32:f32", 1);
    let list = variants.map(portable);
    #[cfg(target_arch = "x86_64")]
    let list = {
        let by_pairs: [(&dyn Kernel<Attention>, _, _); 3] = [
            (&super::amx_bf16::AmxBf16, "amx-bf16", "bf16:bf16:f32"),
            (&super::avx512_bf16::Avx512Bf16, "avx512bf16", "bf16:bf16:f32"),
            (&super::amx_f32::AmxF32, "amx-bf16", "f32:f32:f32"),
        ];
        let there = by_pairs.into_iter().filter(|(_, feature, _)| caps.has(feature));
        list.chain(there.map(|(kernel, _, types)| (kernel, Variant(0), types, 17)))
    };
    list.collect()
}

#[test]
fn a_row_has_the_same_bits_in_any_company() {
    for (kernel, variant, types, few) in by_rows() {
        let row = |sizes: &str| first_row(kernel, variant, &format!("attention {sizes}:1300x24 {types}"));
        let alone = row(&format!("1x2x{few}"));
        for sizes in ["1x2x40", &format!("9x2x{few}"), "3x2x300"] {
            assert!(row(sizes) == alone, "{sizes} {}#{}", kernel.name(), variant.0);
        }
    }
}

#[test]
fn hidden_keys_may_hold_anything() {
    let sizes = |few: u32| [(few.max(4), 70), (300, 600)];
    for (kernel, variant, types, (queries, keys)) in by_rows()
        .into_iter()
        .flat_map(|(kernel, variant, types, few)| sizes(few).map(|size| (kernel, variant, types, size)))
    {
        let problem: AttentionProblem =
            format!("attention 1x2x{queries}:{keys}x8 {types} mask=causal lse").parse().expect("a problem");
        let bytes_of = |dtype: DType| dtype.bits() as usize / 8;
        let mut operands = fill::<Attention>(&problem, problem.spec(), 5);
        let run = |operands: &Operands| launch::<Attention>(kernel, &problem, variant, operands);
        let want = run(&operands);
        // The last key is seen by the last query only.
        for name in ["k", "v"] {
            let (bytes, dtype) = (operands.get_mut(name), problem.kv.dtype);
            let last = bytes.len() - 2 * 8 * bytes_of(dtype);
            numbers::write(dtype, &[f64::NAN; 2 * 8], &mut bytes[last..], 0, Overflow::Saturate);
        }
        let got = run(&operands);
        let row = 2 * 8 * bytes_of(problem.o);
        let rows = (queries as usize - 1) * row;
        assert_eq!(got.get("o")[..rows], want.get("o")[..rows]);
        let is_nan = |i: usize| numbers::get::<f64>(problem.o, &got.get("o")[rows..], i).is_nan();
        assert!((0..2 * 8).all(is_nan), "{}#{}", kernel.name(), variant.0);
    }
}

/// A number that has no parts, or is not finite, in one row of an operand.
#[test]
fn special_numbers_follow_the_definition() {
    const DIM: usize = 40;
    const COLUMN: usize = 11;
    let specials =
        [("q", 3.397e38, 7), ("k", -3.397e38, 80), ("v", 3.397e38, 80), ("v", f64::INFINITY, 75), ("q", f64::NAN, 3)];
    for (kernel, variant, types, few) in by_rows() {
        let text = format!("attention 1x1x{}:90x{DIM} {types} mask=causal scale=0.00001", few.max(30));
        let problem: AttentionProblem = text.parse().expect("a problem");
        let p = *problem.spec();
        let dtype_of = |name| if name == "q" { p.q.dtype } else { p.kv.dtype };
        for (name, x, row) in specials {
            let mut operands = fill::<Attention>(&problem, &p, 5);
            let mut write = |name, row: usize, x: f64| {
                numbers::write(dtype_of(name), &[x], operands.get_mut(name), row * DIM + COLUMN, Overflow::Saturate);
            };
            // Products with it are finite, and weights near 1.
            (0..p.q_len as usize).for_each(|row| write("q", row, 0.5 - row as f64 / 64.0));
            (0..p.kv_len as usize).for_each(|row| write("k", row, 0.5 - row as f64 / 128.0));
            write(name, row, x);
            let naive = Naive { p: &p, operands: &operands };
            let got = launch::<Attention>(kernel, &problem, variant, &operands);
            for i in 0..p.q_len {
                let (weights, _) = naive.weights(0, 0, i);
                for c in 0..p.v_dim {
                    let terms = (0..p.kv_len).map(|k| (weights[k as usize].0, naive.number("v", (0, k), 0, c)));
                    let want: f64 = terms.filter(|(weight, _)| *weight != 0.0).map(|(weight, v)| weight * v).sum();
                    let got: f64 = numbers::get(p.o, got.get("o"), naive.at("o", (0, i), 0, c));
                    let is_near = (got - want).abs() <= 0.02 + 0.01 * want.abs();
                    assert!(
                        is_near || got == want || got.is_nan() && want.is_nan(),
                        "{name} of {x}, {}#{}: o[{i},{c}] is {got}, should be {want}",
                        kernel.name(),
                        variant.0
                    );
                }
            }
        }
    }
}

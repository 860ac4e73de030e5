//! Storing f32 against storing the same numbers in f64, which divides each by its scale.

use super::*;

/// Codes, scales and zero points of rows.
fn stored<R: Real>(format: Format, shape: (u32, u32), x: &[R], global: f64, streams: bool) -> [Vec<u8>; 3] {
    let codes = format.dtype.bytes(u64::from(shape.1)).div_ceil(64) * 64;
    let ld = (codes * 8 / u64::from(format.dtype.bits())) as u32;
    let blocks = format.scale_count(shape.0, shape.1) as usize;
    let mut out = [vec![0xee; codes as usize * shape.0 as usize], vec![0xee; 4 * blocks], vec![0xee; blocks]];
    let [codes, scales, zeros] = &mut out;
    let store = Store {
        global,
        streams,
        zeros: Output::of(zeros),
        ..Store::fused(format, shape, ld, Output::of(codes), Output::of(scales), &[])
    };
    for unit in 0..store.units() {
        let rows = store.rows_of(unit);
        let x = &x[(rows.start * shape.1) as usize..(rows.end * shape.1) as usize];
        // SAFETY: one thread.
        unsafe { store.unit_of(unit, x) };
    }
    out
}

/// Rows of any size, with ties between codes and the numbers beside them: what `numbers` are, times halves.
fn awkward(shape: (u32, u32), seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    let mut x = Vec::new();
    for _ in 0..shape.0 {
        let size = f32::from_bits((next() % 200 + 20) << 23) * (1.0 + next() as f32 / 16_777_216.0);
        for i in 0..shape.1 {
            let whole = (next() % 511) as f32 - 255.0;
            let near = size * (whole / 2.0) / [448.0, 127.0, 7.0, 6.0, 15.0, 255.0][i as usize % 6];
            let x_i = match next() % 12 {
                0..4 => near,
                4 => near.next_up(),
                5 => near.next_down(),
                6 => 0.0,
                7 if next() % 16 == 0 => f32::NAN,
                8 if next() % 64 == 0 => f32::NEG_INFINITY,
                9 => near * 1e-20,
                _ => size * (next() as f32 / 8_388_608.0 - 1.0),
            };
            x.push(x_i);
        }
    }
    x
}

#[test]
fn f32_is_divided_as_exactly_as_f64() {
    let shape = (12, 1111);
    for (text, global) in [
        ("e4m3@1x128", 1.0),
        ("e4m3@128x128", 1.0),
        ("e4m3@tensor", 0.037),
        ("e5m2@row", 1.0),
        ("e4m3fnuz@row", 1.0),
        ("e5m2fnuz@1x16", 1.0),
        ("e2m1@mx", 1.0),
        ("e4m3@mx", 1.0),
        ("i8@mx", 1.0),
        ("e2m1@nv", 1e-4),
        ("e2m1@nv^tiles", 0.3),
        ("i8@row", 1.0),
        ("i8@tensor", 0.05),
        ("i4@g32/f16", 1.0),
        ("i4@g3/f32", 1.0),
        ("e2m1@2x3", 1.0),
        ("u4@g32/f16z", 1.0),
        ("u8@g64/f32z", 1.0),
        ("u8@g32/bf16", 1.0),
        ("nf4@g64/f32", 1.0),
        ("nf4@g5/f16", 1.0),
        ("nf4@tensor", 0.7),
    ] {
        let format: Format = text.parse().expect(text);
        let global = f64::from(global as f32);
        for seed in 0..20 {
            let x = awkward(shape, seed);
            let wide: Vec<f64> = x.iter().map(|&x| x.into()).collect();
            let want = stored(format, shape, &wide, global, false);
            for streams in [false, true] {
                let got = stored(format, shape, &x, global, streams);
                let wrong = got[0].iter().zip(&want[0]).position(|(got, want)| got != want);
                assert_eq!(wrong, None, "{text}: byte of codes, seed {seed}, streams {streams}");
                assert!(got == want, "{text}: scales, seed {seed}");
            }
        }
    }
}

#[test]
fn odd_rows_of_packed_codes_stay_apart() {
    let (mut codes, mut scales) = ([0xff_u8; 4], [0_u8; 2]);
    let format = Format::new(DType::E2m1, Scheme::Mx);
    let store = Store::fused(format, (2, 3), 4, Output::of(&mut codes), Output::of(&mut scales), &[]);
    for unit in 0..store.units() {
        // SAFETY: one thread.
        unsafe { store.unit_of(unit, &[4.0_f32, -4.0, 1.0]) };
    }
    assert_eq!(scales, [127, 127]);
    assert_eq!(codes, [0xe6, 0x02, 0xe6, 0x02]);
}

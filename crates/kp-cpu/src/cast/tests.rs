//! Casts against element-by-element loops.

use crate::{numbers, numbers::Real, rows::streamed};
use kp_hal::{
    DType, Variant,
    op::{CastArgs, CastProblem, Matrix},
};

fn launch(problem: &CastProblem, x: &[u8], y_bytes: u64) -> Vec<u8> {
    streamed::launch([x], y_bytes as usize, |device, queue, [x], y| {
        let plan = crate::KERNELS.cast[0].plan(device, problem, Variant(0)).expect("a plan");
        plan.launch(queue, &CastArgs::new(x, y)).expect("launch");
    })
}

fn at(m: &Matrix, batch: u32, row: u32, col: u32, rows: u32) -> usize {
    (u64::from(batch) * m.stride + m.index(row, col, rows)) as usize
}

fn code(dtype: DType, bytes: &[u8], i: usize) -> Vec<u8> {
    match dtype.bits() {
        4 => vec![bytes[i / 2] >> (i % 2 * 4) & 15],
        bits => bytes[i * bits as usize / 8..][..bits as usize / 8].to_vec(),
    }
}

#[test]
fn every_element_arrives_and_padding_is_zero() {
    for text in [
        "cast 2x37x131 f32:f32 y=col",
        "cast 1x70x5000 bf16:bf16 x=row/5001 y=row/5003",
        "cast 1x5000x3 u8:u8 x=col y=col/5010",
        "cast 3x67x33 f16:f16 x=col/80 y=panel16x4",
        "cast 1x67x33 i4:i4 y=panel5x2",
        "cast 1x67x33 i4:i4 y=panel4x3",
        "cast 1x67x33 e2m1:e2m1 x=panel4x3 y=col",
        "cast 1x66x131 i4:i4 y=col",
        "cast 1x3x9000 f64:f64 y=panel5000x1",
        "cast 1x9000x3 i8:i8 y=panel2x4999",
        "cast 1x31x65 f32:f32 x=panel16x2 y=panel32x1",
    ] {
        let p: CastProblem = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        let dtype = p.x.dtype();
        let x: Vec<u8> = (0..dtype.bytes(p.x.span(p.rows, p.cols, p.batch))).map(|i| (i * 37 % 251) as u8).collect();
        let span = p.y.span(p.rows, p.cols, p.batch);
        let y = launch(&p, &x, dtype.bytes(span));
        let mut written = vec![false; span as usize];
        for batch in 0..p.batch {
            for row in 0..p.rows {
                for col in 0..p.cols {
                    let (from, to) = (at(&p.x, batch, row, col, p.rows), at(&p.y, batch, row, col, p.rows));
                    assert_eq!(code(dtype, &y, to), code(dtype, &x, from), "{text} at {batch},{row},{col}");
                    written[to] = true;
                }
            }
        }
        let gap = if text.contains("y=panel") { 0 } else { 0xaa };
        for i in (0..span as usize).filter(|&i| !written[i] && dtype.bits() > 4) {
            assert!(code(dtype, &y, i).iter().all(|&b| b == gap), "{text} gap {i}");
        }
    }
}

#[test]
fn numbers_are_rounded_once() {
    for (from, to, x, want) in [
        ("f64", "f32", 1.0 + 1e-9, 1.0),
        ("f64", "bf16", 1.0 + 2_f64.powi(-8) + 2_f64.powi(-40), 1.0 + 2_f64.powi(-7)),
        ("f32", "i8", 200.0, 127.0),
        ("f32", "u8", -1.0, 0.0),
        ("f32", "i32", 2.5, 2.0),
        ("i32", "f32", 16_777_217.0, 16_777_216.0),
        ("f32", "e4m3", 1000.0, 448.0),
        ("f32", "f16", 1e6, f64::INFINITY),
        ("e2m1", "i4", 1.5, 2.0),
    ] {
        for cols in [1_u32, 77] {
            let text = format!("cast 1x3x{cols} {from}:{to} y=panel3x1");
            let text = if to == "i4" { text.replace("3x1", "4x2") } else { text };
            let p: CastProblem = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            let elements = p.x.span(p.rows, p.cols, 1);
            let mut bytes = vec![0; p.x.dtype().bytes(elements) as usize];
            for row in 0..3 {
                let start = row as usize * p.x.ld as usize;
                let row = vec![x; p.cols as usize];
                numbers::write(p.x.dtype(), &row, &mut bytes, start, Default::default());
            }
            let y = launch(&p, &bytes, p.y.dtype().bytes(p.y.span(3, cols, 1)));
            let got: f64 = numbers::get(p.y.dtype(), &y, at(&p.y, 0, 2, cols - 1, 3));
            assert_eq!(got.to_f32(), want.to_f32(), "{text} {x}");
        }
    }
}

#[test]
fn runs_past_the_caches_are_those_that_stay_there() {
    for text in [
        "cast 1x301x1003 bf16:f32 x=row/1010 y=row/1007",
        "cast 2x1003x151 f16:f32 x=col y=col/1005",
        "cast 1x601x1003 e4m3:bf16",
        "cast 1x601x1002 i4:f32",
    ] {
        let p: CastProblem = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        let bytes = |m: &Matrix| m.dtype().bytes(m.span(p.rows, p.cols, p.batch)) as usize;
        let x: Vec<u8> = (0..bytes(&p.x)).map(|i| (i * 37 % 101) as u8).collect();
        let y = launch(&p, &x, bytes(&p.y) as u64);
        let mut want = vec![0xaa; y.len()];
        for batch in 0..p.batch {
            for row in 0..p.rows {
                for col in 0..p.cols {
                    let number: f32 = numbers::get(p.x.dtype(), &x, at(&p.x, batch, row, col, p.rows));
                    let size = p.y.dtype().bits() as usize / 8;
                    let start = size * at(&p.y, batch, row, col, p.rows);
                    numbers::write(p.y.dtype(), &[number], &mut want[start..start + size], 0, p.overflow);
                }
            }
        }
        let wrong = y.iter().zip(&want).position(|(got, want)| got != want);
        assert_eq!(wrong, None, "{text}: byte of Y");
    }
}

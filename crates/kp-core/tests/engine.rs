//! Opening, choosing, explaining, and staying usable when things fail.

mod common;

use common::engine;
use kp_core::hal::op::{Gemm, GemmProblem};

fn problem(text: &str) -> GemmProblem {
    text.parse().expect(text)
}

#[test]
fn the_winner_is_planned_once_and_named() {
    let engine = engine();
    let problem = problem("gemm 1x64x4096x4096 bf16:bf16:bf16");
    let plan = engine.plan(&problem).expect("the null device solves everything");
    assert_eq!(engine.how(&plan), "null/gemm/null_tiled#0");
    assert!(std::sync::Arc::ptr_eq(&plan, &engine.plan(&problem).expect("planned before")));
    let mut site = engine.dispatcher::<Gemm>();
    assert!(std::sync::Arc::ptr_eq(&plan, site.plan(&problem).expect("planned before")));
    engine.forget_plans();
    assert!(!std::sync::Arc::ptr_eq(&plan, site.plan(&problem).expect("planned again")));
}

#[test]
fn explain_prints_a_table() {
    let text = engine().explain(&problem("gemm 1x64x4096x4096 bf16:bf16:bf16")).to_string();
    let expected = "\
Null Device (null, 16 units, 100 GB/s)          floor 537 µs: compute, 2.15 Gflop
  1  null_tiled#0    538 µs  estimated   3.99 Tflop/s  100% of the floor
  2  null_tiled#1    538 µs  estimated   3.99 Tflop/s  100% of the floor
  3  null_tiled#2   1.07 ms  estimated   2.00 Tflop/s   50% of the floor
  4  null_any#0     2.15 ms  estimated   1.00 Tflop/s   25% of the floor
";
    assert_eq!(text, expected);
    let text = engine().explain(&problem("gemm 1x1x100x100 f32:f32:f32")).to_string();
    let expected = "\
Null Device (null, 16 units, 100 GB/s)          floor 408 ns: memory, 40.8 kB
  1  null_any#0   2.63 µs  estimated      15.5 GB/s   16% of the floor
  –  null_tiled  a cannot be f32
";
    assert_eq!(text, expected);
}

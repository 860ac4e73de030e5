//! Softmax of rows that no cache holds against the same rows, a few at a time.

use crate::rows::streamed::{launch, same_as_few};
use kp_hal::{
    Variant,
    op::{SoftmaxArgs, SoftmaxProblem},
};

#[test]
fn streamed_rows_are_those_of_the_caches() {
    for (rows, rest) in [
        (601, "x1003 bf16:bf16"),
        (601, "x1024 bf16:bf16 scale=-3 ldx=1040 ldy=1031"),
        (301, "x1003 f32:f32 scale=2"),
        (301, "x1024 f32:f32 ldy=1030"),
        (301, "x1001 f32:f32 log"),
        (601, "x1001 f32:bf16"),
        (601, "x1002 bf16:f32"),
    ] {
        same_as_few(rows, |rows| {
            let p: SoftmaxProblem = format!("softmax {rows}{rest}").parse().expect(rest);
            let run = move |x: &[u8], y_bytes: usize| {
                launch([x], y_bytes, |device, queue, [x], y| {
                    let plan = crate::KERNELS.softmax[0].plan(device, &p, Variant(0)).expect("a plan");
                    plan.launch(queue, &SoftmaxArgs::new(x, y)).expect("launch");
                })
            };
            (p.x, p.y, run)
        });
    }
}

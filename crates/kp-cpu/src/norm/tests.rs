//! Norms of rows that no cache holds against the same rows, a few at a time.

use crate::rows::streamed::{codes, launch, same_as_few};
use kp_hal::{
    Variant,
    op::{NormArgs, NormProblem},
};

#[test]
fn streamed_rows_are_those_of_the_caches() {
    for (rows, rest) in [
        (601, "x1003 bf16:bf16 kind=rms weight=bf16 bias=bf16"),
        (601, "x1024 bf16:bf16 kind=layer weight=bf16 bias=bf16 ldx=1040 ldy=1031"),
        (301, "x1003 f32:f32 kind=layer weight=f32 bias=f32"),
        (301, "x1024 f32:f32 kind=l2 weight=f32 bias=f32 ldy=1030"),
        (601, "x1001 f32:bf16 kind=rms weight=f32 bias=f32"),
        (601, "x1002 bf16:f32 kind=layer weight=bf16 bias=bf16"),
    ] {
        same_as_few(rows, |rows| {
            let p: NormProblem = format!("norm {rows}{rest}").parse().expect(rest);
            let by = [1, 2].map(|seed| codes(p.x.dtype(), p.cols as usize, seed));
            let run = move |x: &[u8], y_bytes: usize| {
                launch([x, &by[0], &by[1]], y_bytes, |device, queue, [x, weight, bias], y| {
                    let plan = crate::KERNELS.norm[0].plan(device, &p, Variant(0)).expect("a plan");
                    let args = NormArgs { weight: Some(weight), bias: Some(bias), ..NormArgs::new(x, y) };
                    plan.launch(queue, &args).expect("launch");
                })
            };
            (p.x, p.y, run)
        });
    }
}

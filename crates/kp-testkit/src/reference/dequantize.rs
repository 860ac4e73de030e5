//! Narrow codes with scales to numbers: code · scale (· global), or (code − zero) · scale.
//!
//! Bound: codes, scales and the difference of code and zero are exact in f32; each product costs one rounding, and two
//! are needed where there is a global: 2 u of the value, u being the roundoff of f32.

use super::want::{Get, TINY, Want, Wants, blank_rows, row, unit};
use kp_hal::{
    DType,
    op::{DequantizeSpec, Scheme},
};

/// What `y` may be.
pub fn dequantize(p: &DequantizeSpec, get: &Get<'_>) -> Wants {
    let format = p.q.format;
    let (block_rows, block_cols) = format.block();
    let global = if format.has_global() { get("global")[0] } else { 1.0 };
    let mut y = blank_rows(&p.y, p.rows, p.cols);
    for r in 0..p.rows {
        for (c, &code) in row(get("q"), &p.q, r, p.cols).iter().enumerate() {
            let block = (r / block_rows, c as u32 / block_cols);
            let at = match format.scheme {
                Scheme::None | Scheme::Tensor => 0,
                _ => format.scale_index(block, (p.rows, p.cols)) as usize,
            };
            let scale = if format.scheme == Scheme::None { 1.0 } else { get("scale")[at] };
            let zero = if format.has_zero() { get("zero")[at] } else { 0.0 };
            let value = (code - zero) * scale * global;
            let exact = format.scheme == Scheme::None || value == 0.0;
            let error = if exact { 0.0 } else { 2.0 * unit(DType::F32) * value.abs() + TINY };
            y[r as usize * p.y.ld as usize + c] = Want::near(value, error).stored(p.y.dtype());
        }
    }
    vec![("y", y)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(problem: &str, q: &'static [f64], scale: &'static [f64], zero: &'static [f64]) -> Vec<f64> {
        let p: kp_hal::op::DequantizeProblem = problem.parse().expect(problem);
        let get = move |name: &str| match name {
            "q" => q,
            "zero" => zero,
            "global" => &[10.0],
            _ => scale,
        };
        let wants = dequantize(&p, &get).remove(0).1;
        let value = |w: Want| if let Want::Between { value, .. } = w { value } else { f64::NAN };
        wants.into_iter().map(value).collect()
    }

    #[test]
    fn each_block_by_its_scale() {
        let q = &[1.0, 2.0, 3.0, 4.0];
        assert_eq!(values("dequantize 2x2 e4m3:f32", q, &[], &[]), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(values("dequantize 2x2 e4m3@tensor:f32", q, &[2.0], &[]), [2.0, 4.0, 6.0, 8.0]);
        assert_eq!(values("dequantize 2x2 e4m3@row:f32", q, &[2.0, 0.5], &[]), [2.0, 4.0, 1.5, 2.0]);
        assert_eq!(values("dequantize 2x2 e4m3@2x1:f32", q, &[2.0, 0.5], &[]), [2.0, 1.0, 6.0, 2.0]);
        assert_eq!(values("dequantize 2x2 u4@g2/f32z:f32", q, &[2.0, 0.5], &[1.0, 4.0]), [0.0, 2.0, -0.5, 0.0]);
        assert_eq!(values("dequantize 2x2 e2m1@nv:f32", q, &[2.0, 0.5], &[]), [20.0, 40.0, 15.0, 20.0]);
    }

    #[test]
    fn nan_scales_give_nan() {
        assert!(values("dequantize 1x1 e4m3@mx:f32", &[1.0], &[f64::NAN], &[])[0].is_nan());
    }
}

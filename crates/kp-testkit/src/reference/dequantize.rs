//! Narrow codes with scales to numbers: code · scale (· global), or (code − zero) · scale.
//!
//! Bound: codes, scales and the difference of code and zero are exact in f32; each product costs one rounding, and two
//! are needed where there is a global: 2 u of the value, u being the roundoff of f32.

use super::ball::{Ball, TINY, unit};
use crate::{
    fill::FillKind,
    judge::{Output, Plain},
    operands::Operands,
    tensor::Tensor,
};
use kp_hal::{
    DType,
    op::{DequantizeProblem, Scheme},
};

/// What `y` should hold.
pub(crate) fn dequantize(p: &DequantizeProblem, operands: &Operands) -> Vec<Output> {
    let q = Tensor::rows(operands.codes("q"), &p.q, p.rows, p.cols);
    let format = p.q.format;
    let (block_rows, block_cols) = format.block();
    let global = operands.maybe("global").map_or(1.0, |global| global.value(0));
    let exact = operands.kind() == FillKind::Exact || format.scheme == Scheme::None;
    let y = |r: u32, c: u32| {
        let at = match format.scheme {
            Scheme::None | Scheme::Tensor => 0,
            _ => format.scale_index((r / block_rows, c / block_cols), (p.rows, p.cols)),
        };
        let scale = operands.maybe("scale").map_or(1.0, |scale| scale.value(at));
        let zero = operands.maybe("zero").map_or(0.0, |zero| zero.value(at));
        let value = (q.at(0, r as usize, c as usize) - zero) * scale * global;
        let error = if exact || value == 0.0 { 0.0 } else { 2.0 * unit(DType::F32) * value.abs() + TINY };
        Ball { value, error }.into()
    };
    vec![Plain::rows("y", &p.y, (p.rows, p.cols), y).into()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::Want;
    use kp_hal::op::Dequantize;

    fn values(problem: &str, q: &[f64], scale: &[f64], zero: &[f64]) -> Vec<f64> {
        let p: DequantizeProblem = problem.parse().expect(problem);
        let mut operands = Operands::new::<Dequantize>(&p, FillKind::Normal);
        for (name, values) in [("q", q), ("scale", scale), ("zero", zero), ("global", &[10.0])] {
            if operands.has(name) {
                let mut codes = operands.codes_mut(name);
                values.iter().enumerate().for_each(|(i, &x)| codes.set_value(i as u64, x));
            }
        }
        let Output::Plain(y) = dequantize(&p, &operands).remove(0) else { panic!("y is plain") };
        let value = |w: &(u64, Want)| if let Want::Number { value, .. } = w.1 { value } else { f64::NAN };
        y.wants.iter().map(value).collect()
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

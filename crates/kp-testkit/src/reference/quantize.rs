//! Numbers to narrow codes with scales: what is to be quantized, and how. `scaled` judges the codes by the scales that
//! the kernel stored, because a scale that is off by its last bit moves many codes, and rightly so.

use crate::{
    judge::{Output, Plain, Want},
    operands::Operands,
    scaled::{Part, Scaled},
    tensor::Tensor,
};
use kp_hal::op::{QuantizeProblem, Scales, Scheme};

/// What codes, scales, global and zero points should be.
pub(crate) fn quantize(p: &QuantizeProblem, operands: &Operands) -> Vec<Output> {
    let x = Tensor::rows(operands.codes("x"), &p.x, p.rows, p.cols);
    let format = p.q.format;
    if format.scheme == Scheme::None {
        let code = |r: u32, c: u32| Want::exact(x.at(0, r as usize, c as usize));
        let plain = Plain::rows("q", &p.q, (p.rows, p.cols), code);
        return vec![Plain { overflow: p.overflow, ..plain }.into()];
    }
    let part = |there: bool, computed, given| match p.scales {
        _ if !there => Part::Absent,
        Scales::Computed => Part::Written(computed),
        Scales::Given => Part::Given(given),
    };
    vec![Output::Scaled(Scaled {
        codes: "q",
        scale: part(true, "scale", "given_scale"),
        global: part(format.has_global(), "global", "global"),
        zero: part(format.has_zero(), "zero", "given_zero"),
        matrix: p.q.as_matrix(p.rows),
        shape: (p.rows, p.cols, 1),
        rule: p.rule,
        overflow: p.overflow,
        values: x.values.iter().map(|&x| Want::exact(x)).collect(),
    })]
}

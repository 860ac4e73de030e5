//! How sources of matrix products spell what a problem says: the macros that most of them share.

use kp_hal::{
    DType,
    op::{Act, Epilogue, Gate},
};

/// A `Type` of `common/cuda/math.cuh`, if it is one.
pub(super) const fn float(t: DType) -> Option<&'static str> {
    Some(match t {
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::Bf16 => "BF16",
        DType::E4m3 => "E4M3",
        DType::E5m2 => "E5M2",
        _ => return None,
    })
}

/// A `Type` of at least 16 bits, which biases, residuals and C may have; `NONE` without one.
pub(super) const fn addend(t: Option<DType>) -> Option<&'static str> {
    match t {
        None => Some("NONE"),
        Some(t @ (DType::F32 | DType::F16 | DType::Bf16)) => float(t),
        Some(_) => None,
    }
}

pub(super) const fn act(act: Act) -> &'static str {
    match act {
        Act::Identity => "IDENTITY",
        Act::Relu => "RELU",
        Act::Gelu => "GELU",
        Act::GeluTanh => "GELU_TANH",
        Act::Silu => "SILU",
        Act::Sigmoid => "SIGMOID",
        Act::Tanh => "TANH",
    }
}

pub(super) const fn gate(gate: Gate) -> &'static str {
    match gate {
        Gate::None => "NONE",
        Gate::Halves => "HALVES",
        Gate::Pairs => "PAIRS",
    }
}

/// `KP_BIAS`, `KP_RESIDUAL`, `KP_ACT` and `KP_GATE`, of an epilogue whose types `addend` knows.
pub(super) fn epilogue(epilogue: &Epilogue) -> [(&'static str, String); 4] {
    let addend = |t| addend(t).expect("`supports` has looked at the type").to_owned();
    [
        ("KP_BIAS", addend(epilogue.bias)),
        ("KP_RESIDUAL", addend(epilogue.residual)),
        ("KP_ACT", act(epilogue.act).to_owned()),
        ("KP_GATE", gate(epilogue.gate).to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enumerators_are_those_of_the_headers() {
        let math = include_str!("../../../../kernels/common/cuda/math.cuh");
        let acts: Vec<&str> = Act::ALL.iter().map(|&a| act(a)).collect();
        assert!(math.contains(&format!("enum class Act {{ {} }};", acts.join(", "))));
        assert!(math.contains("enum class Type { NONE, F32, F16, BF16, E4M3, E5M2, I32 };"));
        let epilogue = include_str!("../../../../kernels/gemm/cuda/sm90_epilogue.cuh");
        let gates = [Gate::None, Gate::Halves, Gate::Pairs].map(gate);
        assert!(epilogue.contains(&format!("enum class Gate {{ {} }};", gates.join(", "))));
    }
}

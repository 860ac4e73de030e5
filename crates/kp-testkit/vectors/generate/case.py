"""What the op scripts share: drawing inputs, laying them out in memory, and writing a case."""

import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import torch

VECTORS = Path(__file__).resolve().parent.parent
TORCH = f"torch {torch.__version__.split('+')[0]}"
DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
    "e8m0": torch.float8_e8m0fnu,
    "ue4m3": torch.float8_e4m3fn,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i32": torch.int32,
    "i64": torch.int64,
}
# What PyTorch promises of an f64 result: a few hundred roundings of 2⁻⁵³ on numbers below a hundred.
F64 = {"absolute": 1e-12, "relative": 1e-12}
EXACT = {"absolute": 0.0, "relative": 0.0}

torch.set_num_threads(1)  # the order of sums, and so their last bits, must not depend on the machine


def rng(name):
    """A generator seeded by the case's own name, so that adding a case changes no other."""
    return torch.Generator().manual_seed(int.from_bytes(name.encode()[-7:], "little"))


def normal(generator, shape, dtype, scale=1.0):
    """Normal numbers rounded to `dtype`: what they are rounded to is the input, exactly."""
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(DTYPES[dtype])


def integers(generator, shape, low, high, dtype):
    return torch.randint(low, high, shape, generator=generator).to(DTYPES[dtype])


def lay(matrices, order="row", ld=None, stride=None, gap=math.nan):
    """Flattens [batch, rows, cols] as kp-hal's `Matrix` does, `gap` standing between rows and between matrices."""
    matrices = matrices if order == "row" else matrices.transpose(-1, -2)
    batch, outer, inner = matrices.shape
    ld = ld or inner
    stride = outer * ld if stride is None else stride
    out = torch.full(((batch - 1) * stride + (outer - 1) * ld + inner,), gap, dtype=torch.float64).to(matrices.dtype)
    for i in range(batch):
        for r in range(outer):
            out[i * stride + r * ld : i * stride + r * ld + inner] = matrices[i, r]
    return out


def pack(codes):
    """4-bit codes [.., cols] to bytes, the first of each pair in the low half; an odd row ends in half a byte of zeros."""
    codes = np.asarray(codes, np.uint8)
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros_like(codes[..., :1])], axis=-1)
    return torch.from_numpy(codes[..., 0::2] | codes[..., 1::2] << 4)


def e2m1_values(codes):
    values = np.asarray(codes, np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    return torch.from_numpy(values)


def hexed(data):
    """Little-endian bytes of a tensor."""
    data = data.detach().contiguous()
    return data.flatten().view(torch.uint8).numpy().tobytes().hex() if data.numel() else ""


def numbers(values):
    """f64 values as JSON: NaN says that nothing is known of an element, such as one between two rows.

    Fourteen digits, so that another processor's order of summation seldom shows.
    """
    words = {math.inf: "inf", -math.inf: "-inf"}
    flat = values.detach().flatten().tolist()
    return ["any" if math.isnan(v) else words.get(v) or float(f"{v:.14g}") for v in flat]


def write(name, problem, operands, expect, source, tolerance=F64, scalars=None):
    """Writes one case. `expect` holds f64 tensors (values) or tensors of any other type (exact bytes)."""
    op = problem.split()[0]
    wanted = {
        operand: {"f64": numbers(value)} if value.dtype == torch.float64 else {"hex": hexed(value)}
        for operand, value in expect.items()
    }
    case = {"source": source, "problem": problem, "scalars": scalars or {}, "operands": {}}
    case["operands"] = {operand: hexed(data) for operand, data in operands.items()}
    case |= {"expect": wanted, "tolerance": tolerance}
    folder = VECTORS / op
    folder.mkdir(exist_ok=True)
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in case.items()]
    path = folder / f"{name}.json"
    assert not path.exists(), f"{path} is written twice"
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")

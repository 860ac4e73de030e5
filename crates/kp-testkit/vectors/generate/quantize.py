"""Quantization: torchao and bitsandbytes make codes and scales; PyTorch's casts decode them.

Libraries differ in whether they divide by a scale or multiply by its reciprocal, so inputs are drawn again until every
code (and every narrow scale) stays the same when its input moves by a few parts in a million: then all of them agree,
and codes can be compared byte by byte. MX scales are powers of two, where both ways are exact: there ties are left in.
"""

import bitsandbytes
import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F
import torchao
from bitsandbytes.backends.default.ops import _get_4bit_quantize_bounds
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale
from torchao.quantization.quant_primitives import (
    MappingType,
    _choose_scale_float8,
    _quantize_affine_float8,
    choose_qparams_affine,
    quantize_affine,
)

from case import DTYPES, F64, TORCH, normal, pack, rng, write
from gemm import narrow

TORCHAO = f"torchao {torchao.__version__}"
MARGIN = 2.0**-18


def main():
    for args in [
        ("e4m3_tensor", 4, 40, "f32", "e4m3@tensor"),
        ("e4m3_tensor_bf16", 4, 40, "bf16", "e4m3@tensor"),
        ("e4m3_row", 5, 33, "f32", "e4m3@row"),
        ("e5m2_row", 5, 33, "f32", "e5m2@row"),
        ("e4m3_1x128", 2, 200, "bf16", "e4m3@1x128"),
        ("e4m3_128x128", 130, 140, "bf16", "e4m3@128x128"),
    ]:
        float8(*args)
    for args in [
        ("e4m3_mx", 4, 96, "f32", "e4m3@mx", ""),
        ("e5m2_mx", 4, 64, "f32", "e5m2@mx", ""),
        ("e2m1_mx", 4, 96, "f32", "e2m1@mx", ""),
        ("e2m1_mx_bf16", 4, 64, "bf16", "e2m1@mx", ""),
        ("e2m1_mx_up", 4, 96, "f32", "e2m1@mx", "rule=up"),
        ("e4m3_mx_up", 4, 96, "f32", "e4m3@mx", "rule=up"),
        ("e2m1_mx_tiles", 128, 128, "bf16", "e2m1@mx^tiles", ""),
    ]:
        mx(*args)
    nvfp4("e2m1_nv", 6, 64, "f32")
    nvfp4("e2m1_nv_bf16", 4, 48, "bf16")
    for args in [
        ("i8_row", 5, 33, "f32", "i8@row"),
        ("i8_tensor", 4, 24, "f32", "i8@tensor"),
        ("i4_g32", 3, 64, "f32", "i4@g32/f32"),
        # bf16, so that the largest less the smallest is exact and the scale is rounded once.
        ("u8_g32_zero", 3, 64, "bf16", "u8@g32/f32z"),
        ("u4_g16_zero", 4, 48, "bf16", "u4@g16/f32z"),
    ]:
        integer(*args)
    nf4("nf4_g64", 3, 128)
    given("e4m3_row_given", 4, 24, "e4m3@row")
    given("i8_tensor_given", 4, 24, "i8@tensor")
    dequantize()


def settle(x, codes_of, tries=200):
    """Moves the numbers whose code hangs on the last bits a little towards zero until none does."""
    x = x.clone()
    for _ in range(tries):
        loose = codes_of(x)
        if not loose.any():
            return x
        x[loose] = (x.double()[loose] * 0.97).to(x.dtype)
    raise AssertionError(f"{int(loose.sum())} numbers do not settle")


def loose(x, scale, encode):
    """Where the code of x / scale changes within the margin; scale is one per element, in f64."""
    q = x.double() / scale
    return encode(q * (1 - MARGIN)) != encode(q * (1 + MARGIN))


def code_of(dtype):
    """Nearest codes of f64 values in a narrow type, saturating."""
    if dtype == "e2m1":
        return lambda q: torch.from_numpy(q.numpy().astype(np.float32).astype(ml_dtypes.float4_e2m1fn).view(np.uint8))
    if dtype in DTYPES and dtype.startswith("e"):
        most = torch.finfo(DTYPES[dtype]).max
        return lambda q: q.clamp(-most, most).float().to(DTYPES[dtype]).view(torch.uint8)
    return torch.round


def blocks_of(scheme, rows, cols):
    if scheme.startswith("g"):
        return 1, int(scheme[1:].split("/")[0])
    return {"tensor": (rows, cols), "row": (1, cols)}.get(scheme) or tuple(map(int, scheme.split("x")))


def spread(scale, block, rows, cols):
    """One number per block to one per element, in f64."""
    return scale.double().repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[:rows, :cols]


def float8(name, rows, cols, tx, format):
    dtype, scheme = format.split("@")
    block = blocks_of(scheme, rows, cols)

    def padded(x):
        """To whole blocks, with zeros, as torchao wants; they change no largest magnitude."""
        return F.pad(x.float(), (0, -cols % block[1], 0, -rows % block[0]))

    choose = lambda x: _choose_scale_float8(padded(x), block, DTYPES[dtype])  # noqa: E731
    draw = normal(rng("q" + name), (rows, cols), tx, 3.0)
    x = settle(draw, lambda x: loose(x, spread(choose(x), block, rows, cols), code_of(dtype)))
    scale = choose(x)
    q = _quantize_affine_float8(padded(x), scale, DTYPES[dtype])[:rows, :cols]
    source = f"{TORCHAO} on {TORCH}, _choose_scale_float8 and _quantize_affine_float8"
    write(name, f"quantize {rows}x{cols} {tx}:{format}", {"x": x}, {"q": q, "scale": scale.float()}, source)


def mx(name, rows, cols, tx, format, rule):
    dtype = format.split("@")[0]
    tiles = format.endswith("^tiles")
    element = torch.float4_e2m1fn_x2 if dtype == "e2m1" else DTYPES[dtype]
    mode = ScaleCalculationMode.RCEIL if rule else ScaleCalculationMode.FLOOR
    g = rng("q" + name)
    x = normal(g, (rows, cols), tx)
    x *= torch.exp2(torch.randint(-6, 7, (rows, cols // 32, 1), generator=g).float()).expand(-1, -1, 32).reshape(rows, cols).to(x.dtype)
    if not tiles:
        x[0, :32] = 0
        # Every tie of E2M1 under a scale of 1, and a largest magnitude past the largest code.
        ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.9]).to(x.dtype)
        x[1, :32] = torch.cat([ties, -ties, ties / 2, -ties / 4])
    scale, q = to_mx(x, element, 32, mode, is_swizzled_scales=tiles)
    source = f"{TORCHAO} on {TORCH}, to_mx, {mode.name}"
    problem = f"quantize {rows}x{cols} {tx}:{format} {rule}".strip()
    write(name, problem, {"x": x}, {"q": q, "scale": scale.view(torch.uint8)}, source)


def nvfp4(name, rows, cols, tx):
    block = (1, 16)
    g = rng("q" + name)
    x = normal(g, (rows, cols), tx)
    x *= torch.exp2(torch.randint(-2, 2, (rows, cols // 16, 1), generator=g).float()).expand(-1, -1, 16).reshape(rows, cols).to(x.dtype)

    def unsettled(x):
        wide = x.double().reshape(rows, -1, 16)
        scale_all = wide.abs().max() / (448 * 6)
        exact = wide.abs().amax(-1) / 6 / scale_all
        scale = exact.float().to(torch.float8_e4m3fn).double()
        assert scale.min() >= 2.0**-6  # below it torchao clamps
        hanging = loose(exact, torch.ones_like(exact), code_of("e4m3"))
        return loose(x, spread(scale, block, rows, cols) * scale_all, code_of("e2m1")) | spread(hanging, block, rows, cols).bool()

    x = settle(x, unsettled)
    total = per_tensor_amax_to_scale(x.abs().max())
    scale, q = nvfp4_quantize(x, 16, total)
    source = f"{TORCHAO} on {TORCH}, per_tensor_amax_to_scale and nvfp4_quantize"
    expect = {"q": q, "scale": scale.view(torch.uint8), "global": total.reshape(1)}
    write(name, f"quantize {rows}x{cols} {tx}:e2m1@nv", {"x": x}, expect, source)


def integer(name, rows, cols, tx, format):
    dtype, scheme = format.split("@")
    block = blocks_of(scheme, rows, cols)
    zeros = scheme.endswith("z")
    low, high = {"i8": (-127, 127), "i4": (-7, 7), "u8": (0, 255), "u4": (0, 15)}[dtype]
    stored = torch.uint8 if dtype[0] == "u" else torch.int8
    mapping = MappingType.ASYMMETRIC if zeros else MappingType.SYMMETRIC

    def choose(x):
        return choose_qparams_affine(x.float(), mapping, block, stored, low, high, keepdim=True)

    def unsettled(x):
        scale = spread(choose(x)[0], block, rows, cols)
        hanging = loose(x, scale, code_of(dtype))
        if zeros:
            least = x.reshape(rows, -1, block[1]).amin(-1)
            hanging |= spread(loose(least, choose(x)[0].double(), torch.round), block, rows, cols).bool()
        return hanging

    x = normal(rng("q" + name), (rows, cols), tx, 2.0)
    if zeros:
        x = x + 1
    x = settle(x, unsettled)
    scale, zero = choose(x)
    q = quantize_affine(x.float(), block, scale, zero, stored, low, high)
    q = pack(q.numpy().view(np.uint8) & 15) if dtype in ("i4", "u4") else q
    expect = {"q": q, "scale": scale} | ({"zero": zero.to(torch.uint8)} if zeros else {})
    source = f"{TORCHAO} on {TORCH}, choose_qparams_affine and quantize_affine, {mapping.name}"
    write(name, f"quantize {rows}x{cols} {tx}:{format}", {"x": x}, expect, source)


def nf4(name, rows, cols):
    bounds, _ = _get_4bit_quantize_bounds("nf4", torch.device("cpu"))
    block = (1, 64)
    nearest = lambda q: torch.bucketize(q, bounds.double())  # noqa: E731

    def unsettled(x):
        return loose(x, spread(x.reshape(rows, -1, 64).abs().amax(-1), block, rows, cols), nearest)

    x = settle(normal(rng("q" + name), (rows, cols), "f32"), unsettled)
    packed, scale = torch.ops.bitsandbytes.quantize_4bit(x, 64, "nf4", torch.uint8)
    packed = packed.flatten()
    swapped = packed >> 4 | packed << 4  # bitsandbytes stores the first code of a pair in the high half
    expect = {"q": swapped, "scale": scale}
    source = f"bitsandbytes {bitsandbytes.__version__} on {TORCH}, quantize_4bit, halves of bytes swapped"
    write(name, f"quantize {rows}x{cols} f32:nf4@g64/f32", {"x": x}, expect, source)


def given(name, rows, cols, format):
    """Scales of an earlier tensor, powers of two so that a division is exact; some numbers are past the largest code."""
    dtype, scheme = format.split("@")
    block = blocks_of(scheme, rows, cols)
    g = rng("q" + name)
    x = normal(g, (rows, cols), "f32", 3.0)
    x[:, :2] = x[:, :2].abs() * 1000  # positive: whether I8 may saturate to -128 is not asked here
    shape = (rows // block[0], cols // block[1])
    scale = torch.exp2(torch.randint(-3, 2, shape, generator=g).float())
    if dtype == "i8":
        q = quantize_affine(x, block, scale, torch.zeros(shape, dtype=torch.int32), torch.int8, -127, 127)
        function = "quantize_affine"
    else:
        q, function = _quantize_affine_float8(x, scale, DTYPES[dtype]), "_quantize_affine_float8"
    source = f"{TORCHAO} on {TORCH}, {function}"
    write(name, f"quantize {rows}x{cols} f32:{format} scales=given", {"x": x, "given_scale": scale}, {"q": q}, source)


def dequantize():
    for name, rows, cols, format in [
        ("e4m3_tensor", 3, 24, "e4m3@tensor"),
        ("e5m2_row", 3, 24, "e5m2@row"),
        ("e4m3fnuz_row", 3, 24, "e4m3fnuz@row"),
        ("e4m3_1x128", 2, 200, "e4m3@1x128"),
        ("e4m3_2x16", 5, 40, "e4m3@2x16"),
        ("e2m1_mx", 3, 80, "e2m1@mx"),
        ("e4m3_mx", 3, 64, "e4m3@mx"),
        ("e2m1_nv", 3, 48, "e2m1@nv"),
        ("i8_row", 3, 24, "i8@row"),
        ("i4_g32_zero", 3, 64, "i4@g32/f16z"),
        ("u4_g16_zero", 3, 32, "u4@g16/bf16z"),
        ("nf4_g64", 2, 128, "nf4@g64/f32"),
    ]:
        values, operands = narrow(rng("dq" + name), "q", format, rows, cols)
        operands = {key.removeprefix("q_"): value for key, value in operands.items()}
        source = f"{TORCH}, codes and scales by its casts, products in f64"
        write(name, f"dequantize {rows}x{cols} {format}:f32", operands, {"y": values}, source, F64)


if __name__ == "__main__":
    main()

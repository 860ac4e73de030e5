"""Matrix products: PyTorch in f64 on the exact inputs, types and schemes decoded by PyTorch, ml_dtypes and bitsandbytes."""

import torch
import torch.nn.functional as F
import torchao
from bitsandbytes.backends.utils import _get_4bit_code
from torchao.prototype.mx_formats.mx_tensor import to_mx
from torchao.quantization.quant_primitives import _choose_scale_float8, _quantize_affine_float8

from case import TORCH, e2m1_values, integers, lay, normal, pack, rng, write

ACTS = {
    "relu": (F.relu, "relu"),
    "gelu": (F.gelu, "gelu"),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), "gelu(approximate='tanh')"),
    "silu": (F.silu, "silu"),
    "sigmoid": (torch.sigmoid, "sigmoid"),
    "tanh": (torch.tanh, "tanh"),
}


def main():
    plain()
    epilogues()
    integer()
    scaled()
    weight_only()
    sparse()
    quantized()
    grouped()


def plain():
    case("f32", (1, 7, 5, 11), "f32:f32:f32")
    case("f32_long", (1, 3, 4, 1000), "f32:f32:f32")
    case("f64", (1, 4, 6, 9), "f64:f64:f64")
    case("bf16_b_col", (1, 9, 8, 33), "bf16:bf16:bf16", b="col")
    case("bf16_a_col_b_col", (1, 8, 10, 16), "bf16:bf16:f32", a="col", b="col")
    case("f16_d_col", (1, 6, 9, 20), "f16:f16:f16", d="col")
    case("f16_all_col", (1, 5, 7, 13), "f16:f16:f32", a="col", b="col", d="col")
    case("f32_batch", (3, 4, 5, 6), "f32:f32:f32")
    case("bf16_batch_shared_b", (3, 4, 5, 6), "bf16:bf16:f32", b="row/5/0")
    case("f32_gaps", (2, 4, 5, 6), "f32:f32:f32", a="row/8/40", b="col/7/37", d="row/9/50")
    case("bf16_row", (1, 1, 17, 64), "bf16:bf16:bf16", b="col")
    case("f32_no_k", (1, 3, 4, 0), "f32:f32:f32", bias="f32")
    case("f32_alpha", (1, 4, 4, 8), "f32:f32:f32", scalars={"alpha": -0.75})
    case("f32_c", (2, 4, 6, 8), "f32:f32:f32", c="f32", scalars={"alpha": 0.5, "beta": 1.25})
    case("bf16_c_bf16", (1, 5, 6, 8), "bf16:bf16:f32", c="bf16", scalars={"beta": -2.0})


def epilogues():
    case("bf16_bias", (1, 6, 10, 16), "bf16:bf16:bf16", b="col", bias="bf16")
    case("f32_bias_gelu", (1, 6, 10, 16), "f32:f32:f32", bias="f32", act="gelu")
    case("bf16_bias_gelu_tanh", (1, 6, 10, 16), "bf16:bf16:bf16", bias="f32", act="gelu_tanh")
    case("f16_silu", (1, 6, 10, 16), "f16:f16:f16", act="silu")
    case("f32_bias_relu", (2, 5, 6, 8), "f32:f32:f32", bias="f32", act="relu")
    case("f32_sigmoid", (1, 5, 6, 8), "f32:f32:f32", act="sigmoid")
    case("f32_tanh", (1, 5, 6, 8), "f32:f32:f32", act="tanh")
    case("f32_residual", (2, 5, 6, 8), "f32:f32:f32", residual="f32")
    case("bf16_swiglu_halves", (1, 5, 12, 16), "bf16:bf16:bf16", b="col", act="silu", gate="halves")
    case("f32_geglu_pairs_bias", (1, 5, 12, 16), "f32:f32:f32", bias="f32", act="gelu", gate="pairs")
    case("bf16_gated_residual", (1, 5, 12, 16), "bf16:bf16:f32", act="silu", gate="halves", residual="bf16")


def integer():
    for name, types, orders in [("i8", "i8:i8:i32", {}), ("i8_b_col", "i8:i8:i32", {"b": "col"})]:
        batch, m, n, k = 1, 7, 9, 70
        g = rng(name)
        a, b = (integers(g, shape, -128, 128, "i8") for shape in [(batch, m, k), (batch, k, n)])
        d = a.to(torch.int32) @ b.to(torch.int32)
        problem = " ".join([f"gemm {batch}x{m}x{n}x{k} {types}", *(f"{o}={v}" for o, v in orders.items())])
        write(name, problem, {"a": lay(a), "b": lay(b, orders.get("b", "row"))}, {"d": d}, f"{TORCH}, matmul in int32")


def case(name, dims, types, a="row", b="row", d="row", c=None, bias=None, act=None, gate=None, residual=None, scalars=None):
    """A product of unscaled types: everything by PyTorch in f64."""
    batch, m, n, k = dims
    ta, tb, _ = types.split(":")
    columns = n // 2 if gate else n
    g = rng("gemm" + name)
    shared = b.endswith("/0")
    ma, mb = normal(g, (batch, m, k), ta), normal(g, (1 if shared else batch, k, n), tb)
    operands = {"a": lay(ma, *placed(a)), "b": lay(mb, *placed(b)[:2] if shared else placed(b))}
    words = [f"gemm {batch}x{m}x{n}x{k} {types}"]
    words += [f"{key}={text}" for key, text in (("a", a), ("b", b), ("d", d)) if text != "row"]
    words += [f"{key}={value}" for key, value in (("c", c), ("bias", bias), ("act", act), ("gate", gate), ("residual", residual)) if value]
    scalars = scalars or {}

    x = scalars.get("alpha", 1.0) * torch.matmul(ma.double(), mb.double())
    if c:
        operands["c"] = normal(g, (batch, m, n), c)
        x = x + scalars.get("beta", 1.0) * operands["c"].double()
    if bias:
        operands["bias"] = normal(g, (n,), bias)
        x = x + operands["bias"].double()
    used = ["matmul"]
    function, label = ACTS[act] if act else (lambda x: x, None)
    used += [label] if label else []
    if gate:
        gated, up = x.chunk(2, dim=-1) if gate == "halves" else (x[..., 0::2], x[..., 1::2])
        x = function(gated) * up
    else:
        x = function(x)
    if residual:
        plane = normal(g, (batch, m, columns), residual)
        operands["residual"] = lay(plane, *placed(d))
        x = x + plane.double()
    tolerance = bound(ma, mb, scalars.get("alpha", 1.0))
    write(name, " ".join(words), operands, {"d": lay(x, *placed(d))}, f"{TORCH}, {', '.join(used)} in f64", tolerance, scalars)


def bound(a, b, alpha=1.0):
    """What f64 sums of these products may be off by, at worst; `alpha` multiplies them."""
    terms = abs(alpha) * (a.double().abs() @ b.double().abs())
    worst = float(terms.max()) if terms.numel() else 0.0
    return {"absolute": max(1e-12, 2.0**-52 * (a.shape[-1] + 8) * worst), "relative": 1e-12}


def placed(text):
    """`order[/ld[/stride]]` as `lay` takes it."""
    order, *rest = text.split("/")
    return order, *map(int, rest)


def scaled():
    """Both operands narrow: codes and scales drawn, then decoded and multiplied in f64."""
    both("e4m3_tensor", (1, 6, 8, 48), "e4m3@tensor", "e4m3@tensor", "f32")
    both("e4m3_row", (1, 6, 8, 48), "e4m3@row", "e4m3@row", "bf16")
    both("e5m2_e4m3_row", (1, 5, 7, 40), "e5m2@row", "e4m3@row", "f32")
    both("e4m3fnuz_tensor", (1, 5, 7, 40), "e4m3fnuz@tensor", "e4m3fnuz@tensor", "f32")
    both("e4m3_1x128_128x128", (1, 4, 130, 200), "e4m3@1x128", "e4m3@128x128", "bf16")
    both("e4m3_mx", (1, 4, 6, 80), "e4m3@mx", "e4m3@mx", "f32")
    both("e2m1_mx", (1, 4, 6, 80), "e2m1@mx", "e2m1@mx", "f32")
    both("e2m1_nv", (1, 4, 6, 48), "e2m1@nv", "e2m1@nv", "bf16")
    both("e4m3_e2m1_mx", (1, 4, 6, 64), "e4m3@mx", "e2m1@mx", "f32")
    both("i8_row", (1, 5, 7, 40), "i8@row", "i8@row", "f32")
    both("e4m3_row_batch", (3, 4, 6, 32), "e4m3@row", "e4m3@row", "f32")
    both("e2m1_mx_batch", (2, 3, 5, 64), "e2m1@mx", "e2m1@mx", "f32")


def both(name, dims, ta, tb, td):
    batch, m, n, k = dims
    g = rng("gemm" + name)
    a, a_operands = several(g, "a", ta, batch, m, k)
    b, b_operands = several(g, "b", tb, batch, n, k)
    b = b.transpose(1, 2)
    problem = f"gemm {batch}x{m}x{n}x{k} {ta}:{tb}:{td} b=col"
    write(name, problem, a_operands | b_operands, {"d": a @ b}, f"{TORCH}, matmul in f64 of decoded operands", bound(a, b))


def weight_only():
    """A wide, B narrow."""
    for name, tb, k in [
        ("bf16_i4_g32_zero", "i4@g32/f16z", 64),
        ("bf16_u4_g16_zero", "u4@g16/bf16z", 40),
        ("bf16_i8_row", "i8@row", 48),
        ("bf16_nf4_g64", "nf4@g64/f32", 128),
        ("bf16_e4m3_g32", "e4m3@g32/f32", 64),
        ("bf16_e2m1_mx", "e2m1@mx", 64),
    ]:
        m, n = 3, 6
        g = rng("gemm" + name)
        a = normal(g, (m, k), "bf16")
        b, operands = narrow(g, "b", tb, n, k)
        problem = f"gemm 1x{m}x{n}x{k} bf16:{tb}:f32 b=col"
        source = f"{TORCH}, matmul in f64 of decoded operands"
        write(name, problem, {"a": a} | operands, {"d": a.double() @ b.T}, source, bound(a, b.T))


def several(g, operand, text, batch, rows, cols):
    """`narrow`, one matrix behind the other; what belongs to a whole tensor is drawn for one matrix only."""
    assert batch == 1 or not text.endswith(("@tensor", "@nv"))
    values, operands = zip(*(narrow(g, operand, text, rows, cols) for _ in range(batch)))
    return torch.stack(values), {key: torch.stack([o[key] for o in operands]) for key in operands[0]}


def narrow(g, operand, text, rows, cols):
    """Draws `rows` x `cols` codes and their scales; answers the f64 values and the operands."""
    dtype, scheme = text.split("@")
    values, codes = draw(g, dtype, rows, cols)
    operands = {operand: codes}
    outer, inner = {"tensor": (rows, cols), "row": (1, cols), "mx": (1, 32), "nv": (1, 16)}.get(scheme, (0, 0))
    zero = False
    if scheme.startswith("g"):
        size, kind = scheme[1:].split("/")
        outer, inner, zero = 1, int(size), kind.endswith("z")
        scale = normal(g, (rows, -(-cols // inner)), kind.rstrip("z")).abs()
    else:
        if not outer:
            outer, inner = map(int, scheme.split("x"))
        shape = (-(-rows // outer), -(-cols // inner))
        if scheme == "mx":
            scale = torch.exp2(integers(g, shape, -3, 4, "i32").double()).to(torch.float8_e8m0fnu)
        elif scheme == "nv":
            scale = normal(g, shape, "f32").abs().to(torch.float8_e4m3fn)
        else:
            scale = normal(g, shape, "f32").abs()
    operands[f"{operand}_scale"] = scale
    stretched = spread(scale.double(), outer, inner, rows, cols)
    if zero:
        low, high = (-8, 8) if dtype == "i4" else (0, 16)
        points = integers(g, scale.shape, max(low, 0), high, "u8")
        operands[f"{operand}_zero"] = points
        values = values - spread(points.double(), outer, inner, rows, cols)
    values = values * stretched
    if scheme == "nv":
        operands[f"{operand}_global"] = normal(g, (1,), "f32").abs()
        values = values * operands[f"{operand}_global"].double()
    return values, operands


def spread(scale, outer, inner, rows, cols):
    """One number per block to one per element."""
    return scale.repeat_interleave(outer, 0).repeat_interleave(inner, 1)[:rows, :cols]


def draw(g, dtype, rows, cols):
    """Values in f64 and stored codes of a narrow type."""
    if dtype in ("e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz"):
        codes = normal(g, (rows, cols), dtype, scale=4.0)
        return codes.double(), codes
    if dtype == "i8":
        codes = integers(g, (rows, cols), -128, 128, "i8")
        return codes.double(), codes
    codes = torch.randint(0, 16, (rows, cols), generator=g)
    if dtype == "e2m1":
        values = e2m1_values(codes.numpy())
    elif dtype == "nf4":
        values = _get_4bit_code("nf4", torch.device("cpu")).double()[codes]
    else:
        values = (codes - 16 * (codes > 7) if dtype == "i4" else codes).double()
    return values, pack(codes.numpy())


def sparse():
    """Two of four: the product of the dense matrix, which has its zeros written out."""
    m, n, k = 5, 6, 32
    g = rng("gemm_sparse")
    groups = torch.rand((m, k // 4, 4), generator=g).argsort(-1)[..., :2].sort(-1).values
    kept = normal(g, (m, k // 4, 2), "bf16")
    dense = torch.zeros((m, k // 4, 4), dtype=torch.bfloat16).scatter(-1, groups, kept).reshape(m, k)
    nibbles = groups[..., 0] | groups[..., 1] << 2
    b = normal(g, (k, n), "bf16")
    operands = {"a": kept.reshape(m, k // 2), "a_meta": pack(nibbles.numpy()), "b": b}
    problem = f"gemm 1x{m}x{n}x{k} bf16:bf16:f32 sparse=2:4"
    write("bf16_sparse", problem, operands, {"d": dense.double() @ b.double()}, f"{TORCH}, matmul in f64 of the dense matrix")


def quantized():
    """D narrow. Small integers make the sums exact, so the codes and scales that PyTorch and torchao find are the only ones."""
    m, n, k = 6, 64, 24
    for name, td in [("e4m3_tensor_out", "e4m3@tensor"), ("e4m3_row_out", "e4m3@row"), ("e2m1_mx_out", "e2m1@mx")]:
        g = rng(name)
        while True:
            a, b = (integers(g, shape, -4, 5, "bf16") for shape in [(m, k), (k, n)])
            sums = (a.double() @ b.double()).float()
            scale = _choose_scale_float8(sums, (1, n), torch.float8_e4m3fn)
            if td != "e4m3@row" or settled(sums.double() / scale.double()):
                break
        operands, expect = {"a": a, "b": b}, {}
        if td == "e4m3@tensor":
            operands["d_global"] = torch.tensor([0.25])
            expect["d"] = (sums / 0.25).clamp(-448, 448).to(torch.float8_e4m3fn)
            source = f"{TORCH}, matmul and a cast of the clamped result"
        elif td == "e4m3@row":
            expect = {"d_scale": scale, "d": _quantize_affine_float8(sums, scale, torch.float8_e4m3fn)}
            source = f"torchao {torchao.__version__} on {TORCH}, _quantize_affine_float8 of a matmul"
        else:
            expect["d_scale"], expect["d"] = to_mx(sums, torch.float4_e2m1fn_x2, 32)
            source = f"torchao {torchao.__version__} on {TORCH}, to_mx of a matmul"
        write(f"bf16_{name}", f"gemm 1x{m}x{n}x{k} bf16:bf16:{td}", operands, expect, source)


def settled(q):
    """Whether no E4M3 code of `q` hangs on the last bits of an f32."""
    low, high = ((q * (1 + e)).clamp(-448, 448).float().to(torch.float8_e4m3fn).float() for e in (-(2.0**-17), 2.0**-17))
    return torch.equal(low, high)


def grouped():
    """Experts: one product per group of rows; rows that belong to no group are not looked at."""
    groups, m, n, k = 3, 9, 5, 8
    g = rng("grouped")
    b = normal(g, (groups, k, n), "bf16")
    offsets = torch.tensor([0, 4, 4, 7], dtype=torch.int32)
    a = normal(g, (m, k), "bf16")
    d = torch.full((m, n), torch.nan, dtype=torch.float64)
    for i in range(groups):
        rows = slice(int(offsets[i]), int(offsets[i + 1]))
        d[rows] = a[rows].double() @ b[i].double()
    source = f"{TORCH}, one matmul per group in f64"
    write("contiguous", f"grouped_gemm {groups}x{m}x{n}x{k} bf16:bf16:f32", {"a": a, "b": b, "groups": offsets}, {"d": d}, source)

    m, counts = 4, torch.tensor([4, 0, 3], dtype=torch.int32)
    a, bias = normal(g, (groups, m, k), "f32"), normal(g, (groups, n), "f32")
    b = normal(g, (groups, k, n), "f32")
    d = torch.full((groups, m, n), torch.nan, dtype=torch.float64)
    for i, count in enumerate(counts.tolist()):
        d[i, :count] = F.relu(a[i, :count].double() @ b[i].double() + bias[i].double())
    problem = f"grouped_gemm {groups}x{m}x{n}x{k} f32:f32:f32 bias=f32 act=relu grouping=masked"
    write("masked_bias_relu", problem, {"a": a, "b": b, "groups": counts, "bias": bias}, {"d": d}, source + ", relu")

    groups, m, n, k = 2, 7, 130, 144
    offsets = torch.tensor([0, 3, 7], dtype=torch.int32)
    a, a_operands = narrow(g, "a", "e4m3@1x128", m, k)
    b, b_operands = several(g, "b", "e4m3@128x128", groups, n, k)
    d = torch.cat([a[:3] @ b[0].T, a[3:] @ b[1].T])
    problem = f"grouped_gemm {groups}x{m}x{n}x{k} e4m3@1x128:e4m3@128x128:bf16 b=col"
    write("e4m3_blocks", problem, a_operands | b_operands | {"groups": offsets}, {"d": d}, source, bound(a, b[0].T))

    m, n, k = 4, 10, 16
    counts = torch.tensor([1, 4], dtype=torch.int32)
    a, b = normal(g, (groups, m, k), "bf16"), normal(g, (groups, k, n), "bf16")
    d = torch.full((groups, m, n // 2), torch.nan, dtype=torch.float64)
    for i, count in enumerate(counts.tolist()):
        gated, up = (a[i, :count].double() @ b[i].double()).chunk(2, dim=-1)
        d[i, :count] = F.silu(gated) * up
    problem = f"grouped_gemm {groups}x{m}x{n}x{k} bf16:bf16:bf16 act=silu gate=halves grouping=masked"
    write("masked_swiglu", problem, {"a": a, "b": b, "groups": counts}, {"d": d}, source + ", silu")


if __name__ == "__main__":
    main()

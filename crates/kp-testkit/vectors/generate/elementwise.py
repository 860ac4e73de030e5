"""The ops that work row by row: norms, softmax, activations, rotary embeddings, reductions, casts, gathers."""

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F
import transformers
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama

from case import DTYPES, EXACT, F64, TORCH, integers, lay, normal, rng, write
from gemm import ACTS, settled


def main():
    norms()
    softmaxes()
    activations()
    ropes()
    reductions()
    casts()
    gathers()


def rows(x, ld=None):
    """A matrix in memory, NaN between its rows."""
    return lay(x.unsqueeze(0), "row", ld)


# kind, rows x cols, x:y, and options in the grammar's words
NORMS = {
    "layer_f32": ("layer", 5, 33, "f32:f32", "weight=f32 bias=f32"),
    "layer_plain_f64": ("layer", 3, 20, "f64:f64", ""),
    "layer_bf16": ("layer", 4, 64, "bf16:bf16", "weight=bf16 bias=bf16"),
    "layer_small_eps": ("layer", 4, 48, "f32:f32", "eps=1e-12 weight=f32 bias=f32"),
    "layer_residual": ("layer", 4, 40, "f32:f32", "weight=f32 bias=f32 residual"),
    "layer_far_from_zero": ("layer", 3, 64, "f32:f32", ""),
    "rms_f32": ("rms", 5, 33, "f32:f32", "weight=f32"),
    "rms_f16": ("rms", 4, 32, "f16:f16", "eps=1e-6 weight=f16"),
    "rms_bf16_residual": ("rms", 4, 64, "bf16:bf16", "eps=1e-6 weight=bf16 residual"),
    "rms_gaps": ("rms", 3, 17, "f32:f32", "ldx=20 ldy=19"),
    "rms_e4m3_row": ("rms", 4, 32, "f32:e4m3@row", "weight=f32"),
    "layer_e4m3_tensor": ("layer", 4, 32, "f32:e4m3@tensor", ""),
    "l2_f32": ("l2", 4, 24, "f32:f32", "eps=1e-12"),
    "l2_zero_row": ("l2", 3, 8, "f32:f32", "eps=0.001 weight=f32"),
}
NORM_GRADIENTS = {
    "layer_f32": ("layer", 5, 33, "f32:f32", "weight=f32 bias"),
    "layer_plain": ("layer", 4, 20, "f32:f32", ""),
    "layer_bf16": ("layer", 4, 64, "bf16:bf16", "weight=bf16 bias"),
    "rms_f32": ("rms", 5, 33, "f32:f32", "weight=f32"),
    "rms_f16": ("rms", 3, 32, "f16:f16", "eps=1e-6 weight=f32"),
    "l2_f32": ("l2", 4, 24, "f32:f32", "eps=1e-12"),
    "rms_gaps": ("rms", 3, 17, "f32:f32", "weight=f32 ldx=20 ldg=18"),
}


def norms():
    for name, (kind, count, cols, types, text) in NORMS.items():
        options, flags = read(text)
        tx = types.split(":")[0]
        g = rng("norm" + name)
        x = normal(g, (count, cols), tx)
        if name == "layer_far_from_zero":
            x = (x.double() + 300).to(x.dtype)
        if name == "l2_zero_row":
            x[1] = 0
        operands = {"x": rows(x, options.get("ldx"))}
        expect = {}
        s = x.double()
        if "residual" in flags:
            # Eighths below 16, so that the sum is a number of X's type and every order of rounding agrees.
            x, residual = (integers(g, (count, cols), -32, 33, "f64").div(8).to(DTYPES[tx]) for _ in range(2))
            operands |= {"x": x, "residual": residual}
            expect["sum"] = s = x.double() + residual.double()
        weight, bias = (vector(g, cols, options.get(key)) for key in ("weight", "bias"))
        operands |= {key: v for key, v in (("weight", weight), ("bias", bias)) if v is not None}
        y, source = normalized(kind, s, weight, bias, options)
        ty = types.split(":")[1]
        if "@" in ty:
            more, narrow = quantized(y, ty)
            operands, expect = operands | more, expect | narrow
            source = f"{source} in f64, then a cast"
        else:
            expect["y"] = rows(y, options.get("ldy"))
            source = f"{source} in f64"
        problem = f"norm {count}x{cols} {types} kind={kind} {text}".strip()
        write(name, problem, operands, expect, f"{TORCH}, {source}")

    for name, (kind, count, cols, types, text) in NORM_GRADIENTS.items():
        options, flags = read(text)
        tx, tg = types.split(":")
        g = rng("grad" + name)
        x, grad_y = normal(g, (count, cols), tx), normal(g, (count, cols), tg)
        weight = vector(g, cols, options.get("weight"))
        leaves = {"x": x.double().requires_grad_()}
        if weight is not None:
            leaves["weight"] = weight.double().requires_grad_()
        if "bias" in flags:
            leaves["bias"] = torch.zeros(cols, dtype=torch.float64, requires_grad=True)
        y, source = normalized(kind, leaves["x"], leaves.get("weight"), leaves.get("bias"), options)
        y.backward(grad_y.double())
        operands = {"x": rows(x, options.get("ldx")), "grad_y": rows(grad_y, options.get("ldg"))}
        operands |= {"weight": weight} if weight is not None else {}
        expect = {f"grad_{key}": leaf.grad for key, leaf in leaves.items()}
        problem = f"norm_backward {count}x{cols} {types} kind={kind} {text}".strip()
        write(name, problem, operands, expect, f"{TORCH}, autograd of {source} in f64")


def quantized(y, format):
    """Operands and expectations of a result that is quantized as it is stored; its codes must not hang on f32's last bits."""
    if format == "e4m3@tensor":
        scale = torch.tensor([0.02])
        operands, expect = {"y_global": scale}, {}
    else:
        scale = y.abs().amax(-1, keepdim=True) / 448
        operands, expect = {}, {"y_scale": scale}
    q = y / scale.double()
    assert settled(q), "a code hangs on the last bits"
    return operands, expect | {"y": q.clamp(-448, 448).float().to(torch.float8_e4m3fn)}


def normalized(kind, x, weight, bias, options):
    """The f64 norm of rows, and the function that made it."""
    eps = float(np.float32(options.get("eps", 1e-5)))
    shape = x.shape[-1:]
    weight, bias = (None if v is None else v.double() for v in (weight, bias))
    if kind == "layer":
        return F.layer_norm(x, shape, weight, bias, eps), "layer_norm"
    if kind == "rms":
        assert bias is None
        return F.rms_norm(x, shape, weight, eps), "rms_norm"
    y = F.normalize(x, p=2.0, dim=-1, eps=eps)
    return (y if weight is None else y * weight), "normalize"


def vector(g, cols, dtype):
    return None if dtype is None else (normal(g, (cols,), "f64", 0.5) + 1).to(DTYPES[dtype])


def read(text):
    """Options and flags of a problem line."""
    words = text.split()
    options = dict(w.split("=") for w in words if "=" in w)
    return {k: int(v) if k.startswith("ld") else v for k, v in options.items()}, {w for w in words if "=" not in w}


def softmaxes():
    for name, count, cols, types, text in [
        ("f32", 5, 33, "f32:f32", ""),
        ("f64", 3, 20, "f64:f64", ""),
        ("bf16", 4, 64, "bf16:bf16", ""),
        ("f16_log", 4, 40, "f16:f16", "log"),
        ("f32_log", 3, 50, "f32:f32", "log"),
        ("f32_scale", 4, 24, "f32:f32", "scale=0.25"),
        ("f32_large", 3, 16, "f32:f32", ""),
        ("f32_masked", 3, 16, "f32:f32", ""),
        ("f32_gaps", 3, 11, "f32:f32", "ldx=16 ldy=12"),
        ("f32_one_column", 4, 1, "f32:f32", ""),
    ]:
        options, flags = read(text)
        g = rng("softmax" + name)
        x = normal(g, (count, cols), types.split(":")[0], 1e4 if name == "f32_large" else 3.0)
        if name == "f32_masked":
            x[:, 5:9] = -torch.inf
        scaled = x.double() * float(options.get("scale", 1))
        function = torch.log_softmax if "log" in flags else torch.softmax
        problem = f"softmax {count}x{cols} {types} {text}".strip()
        expect = {"y": rows(function(scaled, -1), options.get("ldy"))}
        write(name, problem, {"x": rows(x, options.get("ldx"))}, expect, f"{TORCH}, {function.__name__} in f64")


def activations():
    for name, count, cols, types, text in [
        *((act, 4, 32, "f32:f32", f"act={act}") for act in ACTS),
        ("gelu_bf16", 3, 40, "bf16:bf16", "act=gelu"),
        ("gelu_tanh_f16", 3, 40, "f16:f16", "act=gelu_tanh"),
        ("silu_tails", 1, 16, "f32:f32", "act=silu"),
        ("gelu_tails", 1, 16, "f32:f32", "act=gelu"),
        ("swiglu_halves", 3, 20, "f32:f32", "act=silu gate=halves"),
        ("geglu_pairs_bf16", 3, 20, "bf16:bf16", "act=gelu gate=pairs"),
        ("relu_factor_residual", 3, 20, "f32:f32", "act=relu factor=f32 residual=f32"),
        ("multiply", 3, 20, "bf16:f32", "factor=bf16"),
        ("silu_e4m3_row", 3, 24, "f32:e4m3@row", "act=silu gate=halves"),
        ("add_gaps", 3, 9, "f32:f32", "residual=f32 ldx=12 ldy=10"),
    ]:
        options, _ = read(text)
        g = rng("act" + name)
        gate = options.get("gate")
        x = normal(g, (count, cols * (2 if gate else 1)), types.split(":")[0], 2.0)
        if name.endswith("tails"):
            x = torch.tensor([[-100, -40, -20, -12, -8, -5, -1e-3, -1e-30, 0, 1e-30, 1e-3, 5, 8, 20, 40, 100]])
        function, label = ACTS[options["act"]] if "act" in options else (lambda t: t, "no activation")
        if gate == "halves":
            gated, up = x.double().chunk(2, dim=-1)
        else:
            gated, up = (x.double()[:, 0::2], x.double()[:, 1::2]) if gate else (x.double(), None)
        y = function(gated) if up is None else function(gated) * up
        operands = {"x": rows(x, options.get("ldx"))}
        if "factor" in options:
            operands["factor"] = normal(g, (count, cols), options["factor"])
            y = y * operands["factor"].double()
        if "residual" in options:
            operands["residual"] = normal(g, (count, cols), options["residual"])
            y = y + operands["residual"].double()
        ty = types.split(":")[1]
        if "@" in ty:
            more, expect = quantized(y, ty)
            operands, label = operands | more, f"{label} in f64, then a cast"
        else:
            expect, label = {"y": rows(y, options.get("ldy"))}, f"{label} in f64"
        write(name, f"activation {count}x{cols} {types} {text}", operands, expect, f"{TORCH}, {label}")


def ropes():
    library = f"transformers {transformers.__version__}"
    for name, tokens, heads, dim, types, rotated, text in [
        ("halves_f32", 5, 2, 16, "f32:f32", 16, ""),
        ("halves_bf16", 4, 3, 32, "bf16:bf16", 32, ""),
        ("halves_partial", 5, 2, 16, "f32:f32", 8, "rotated=8"),
        ("halves_inverse", 5, 2, 16, "f32:f32", 16, "inverse"),
        ("adjacent_f32", 5, 2, 16, "f32:f32", 16, "pairs=adjacent"),
        ("adjacent_partial_f16", 4, 2, 24, "f16:f16", 16, "pairs=adjacent rotated=16"),
        ("adjacent_inverse_gaps", 3, 2, 8, "f32:f32", 8, "pairs=adjacent ldx=20 ldy=18 inverse"),
    ]:
        options, flags = read(text)
        g = rng("rope" + name)
        table = 20
        x = normal(g, (tokens, heads, dim), types.split(":")[0])
        positions = torch.randperm(table, generator=g)[:tokens].to(torch.int32)
        frequency = 10000.0 ** (-torch.arange(0, rotated, 2, dtype=torch.float64) / rotated)
        angle = torch.arange(table, dtype=torch.float64).unsqueeze(1) * frequency
        cos, sin = angle.cos().float(), angle.sin().float()
        c, s = cos[positions].double(), sin[positions].double()
        s = -s if "inverse" in flags else s
        turned, kept = x.double()[..., :rotated], x.double()[..., rotated:]
        if options.get("pairs") == "adjacent":
            source = f"{library}, gptj.apply_rotary_pos_emb in f64"
            turned = modeling_gptj.apply_rotary_pos_emb(turned.unsqueeze(0), s.unsqueeze(0), c.unsqueeze(0))[0]
        else:
            source = f"{library}, llama.apply_rotary_pos_emb in f64"
            both = [torch.cat([t, t], dim=-1).unsqueeze(0) for t in (c, s)]
            turned = modeling_llama.apply_rotary_pos_emb(turned.unsqueeze(0), turned.unsqueeze(0), *both, unsqueeze_dim=2)[0][0]
        y = torch.cat([turned, kept], dim=-1).flatten(1)
        operands = {"x": rows(x.flatten(1), options.get("ldx")), "positions": positions, "cos": cos, "sin": sin}
        problem = f"rope {tokens}x{heads}x{dim} {types} positions={table} {text}".strip()
        write(name, problem, operands, {"y": rows(y, options.get("ldy"))}, source)


def reductions():
    functions = {
        "sum": torch.sum,
        "mean": torch.mean,
        "max": torch.amax,
        "min": torch.amin,
        "amax": lambda x, dim: torch.linalg.vector_norm(x, ord=torch.inf, dim=dim),
    }
    for name, count, cols, types, text in [
        ("sum_cols", 5, 33, "f32:f32", "op=sum"),
        ("sum_rows", 33, 5, "f32:f32", "op=sum over=rows"),
        ("mean_cols_bf16", 4, 40, "bf16:f32", "op=mean"),
        ("mean_rows_gaps", 9, 6, "f32:f32", "op=mean over=rows ldx=8"),
        ("max_cols_f16", 4, 20, "f16:f16", "op=max"),
        ("min_rows", 8, 6, "f32:f32", "op=min over=rows"),
        ("amax_cols", 4, 20, "f32:f32", "op=amax"),
        ("amax_rows_bf16", 12, 5, "bf16:bf16", "op=amax over=rows"),
        ("sum_segments", 10, 4, "f32:f32", "op=sum over=segments/3"),
        ("mean_segments", 11, 4, "f32:f32", "op=mean over=segments/3"),
        ("max_segments", 9, 4, "f32:f32", "op=max over=segments/2"),
    ]:
        options, _ = read(text)
        g = rng("reduce" + name)
        x = normal(g, (count, cols), types.split(":")[0])
        over = options.get("over", "cols")
        operands = {"x": rows(x, options.get("ldx"))}
        source = f"{TORCH}, {options['op']} in f64"
        if over.startswith("segments"):
            segments = int(over.split("/")[1])
            cuts = torch.randperm(count - 1, generator=g)[: segments - 1].add(1).sort().values
            if options["op"] == "sum":
                cuts[1] = cuts[0]  # an empty segment sums to 0
            offsets = torch.tensor([0, *cuts.tolist(), count])
            operands["offsets"] = offsets.to(torch.int32)
            y = torch.segment_reduce(x.double(), options["op"], offsets=offsets, axis=0)
            source = f"{TORCH}, segment_reduce in f64"
        else:
            y = functions[options["op"]](x.double(), dim=1 if over == "cols" else 0)
        exact = options["op"] in ("max", "min", "amax")
        write(name, f"reduce {count}x{cols} {types} {text}", operands, {"y": y}, source, EXACT if exact else F64)


def casts():
    for name, tx, ty in [
        ("f32_f16", "f32", "f16"),
        ("f32_bf16", "f32", "bf16"),
        ("f64_f32", "f64", "f32"),
        ("f16_bf16", "f16", "bf16"),
        ("bf16_f16", "bf16", "f16"),
        ("f32_e4m3", "f32", "e4m3"),
        ("f32_e5m2", "f32", "e5m2"),
        ("bf16_e4m3", "bf16", "e4m3"),
        ("f16_f32", "f16", "f32"),
        ("bf16_f32", "bf16", "f32"),
        ("e4m3_f32", "e4m3", "f32"),
    ]:
        x = wide(name, tx)
        limit = torch.finfo(DTYPES[ty]).max
        narrow = x.double().clamp(-limit, limit).to(DTYPES[tx]) if ty in ("e4m3", "e5m2") else x
        label = "to, of a clamped input" if narrow is not x else "to"
        write(name, f"cast 1x{x.shape[0]}x{x.shape[1]} {tx}:{ty}", {"x": x}, {"y": narrow.to(DTYPES[ty])}, f"{TORCH}, {label}")

    x = wide("f32_e5m2_propagate", "f32")
    codes = torch.from_numpy(x.numpy().astype(ml_dtypes.float8_e5m2).view(np.uint8))
    source = f"ml_dtypes {ml_dtypes.__version__}, float8_e5m2"
    write("f32_e5m2_propagate", f"cast 1x{x.shape[0]}x{x.shape[1]} f32:e5m2 overflow=propagate", {"x": x}, {"y": codes}, source)

    g = rng("f32_i8")
    x = torch.cat([normal(g, (6, 16), "f32", 60.0), integers(g, (2, 16), -300, 300, "f32") / 2])
    x[0, :4] = torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0])
    y = x.nan_to_num(0.0, posinf=127.0, neginf=-128.0).round().clamp(-128, 127).to(torch.int8)
    write("f32_i8", "cast 1x8x16 f32:i8", {"x": x}, {"y": y}, f"{TORCH}, round, clamp, to")

    for name, tx, ty, text, shape in [
        ("transpose_bf16", "bf16", "bf16", "y=col", (2, 5, 7)),
        ("transpose_f32_f16", "f32", "f16", "x=col", (1, 6, 4)),
        ("gaps", "f32", "f32", "x=row/9/50 y=col/6/40", (2, 4, 5)),
    ]:
        options, _ = read(text)
        x = normal(rng("cast" + name), shape, tx)
        place = lambda key, t: lay(t, *(p if i == 0 else int(p) for i, p in enumerate(options.get(key, "row").split("/"))))  # noqa: E731
        problem = f"cast {'x'.join(map(str, shape))} {tx}:{ty} {text}"
        y = place("y", x.to(DTYPES[ty]).double())
        write(name, problem, {"x": place("x", x)}, {"y": y}, f"{TORCH}, to", EXACT)


def wide(name, dtype):
    """Numbers over the whole range of a type, few of them nice, no NaN."""
    g = rng(name)
    info = torch.finfo(DTYPES[dtype])
    low, high = np.log2(max(info.tiny, 1e-300)) - 4, np.log2(info.max)
    exponent = torch.rand((12, 16), generator=g, dtype=torch.float64) * (high - low) + low
    exponent[6:] = torch.randn((6, 16), generator=g, dtype=torch.float64) * 5  # and half of them near 1
    sign = torch.randint(0, 2, (12, 16), generator=g) * 2 - 1
    x = (torch.exp2(exponent) * sign).clamp(-info.max, info.max).to(DTYPES[dtype])
    if dtype in ("f64", "f32", "f16", "bf16"):
        x[0, :4] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf])
    return x


def gathers():
    for name, types, text in [("f32", "f32:f32", ""), ("bf16_f32", "bf16:f32", ""), ("f16_gaps", "f16:f16", "ldt=8 ldy=7")]:
        options, _ = read(text)
        g = rng("gather" + name)
        table = normal(g, (10, 6), types.split(":")[0])
        index = torch.randint(0, 10, (7,), generator=g).to(torch.int32)
        y = F.embedding(index, table.double())
        operands = {"table": rows(table, options.get("ldt")), "index": index}
        write(name, f"gather 7x6 {types} from=10 {text}".strip(), operands, {"y": rows(y, options.get("ldy"))}, f"{TORCH}, embedding", EXACT)


if __name__ == "__main__":
    main()

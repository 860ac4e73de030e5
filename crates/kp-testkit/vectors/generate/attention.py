"""Attention and its gradients.

Forward: PyTorch's own flex_attention in f64. Backward: PyTorch's autograd, in f64, through softmax and matmul; the same
expression forward agrees with flex_attention, and with scaled_dot_product_attention where that has the words for it.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from case import F64, TORCH, normal, rng, write

MASKS = {
    "full": lambda q, k: torch.ones_like(q - k, dtype=torch.bool),
    "causal": lambda q, k: k <= q,
}


def main():
    for name, text in FORWARD.items():
        forward(name, text)
    for name, text in BACKWARD.items():
        backward(name, text)


FORWARD = {
    "f32_full": "2x3x5x16 f32:f32:f32 lse",
    "f64_causal": "1x2x6x16 f64:f64:f64 mask=causal",
    "f32_causal": "1x2x6x16 f32:f32:f32 mask=causal lse",
    "f32_one_query": "2x4:1x1:17x64 f32:f32:f32 mask=causal lse",
    "f32_one_key": "1x2x3:1x16 f32:f32:f32 lse",
    "f32_gqa_aligned_right": "1x4:2x3:7x16 f32:f32:f32 mask=causal lse",
    "bf16_gqa": "2x8:2x5:9x32 bf16:bf16:bf16 lse",
    "f16_causal": "1x2x12x16 f16:f16:f16 mask=causal lse",
    "bf16_f32_out": "1x2x4:6x64 bf16:bf16:f32",
    "bf16_many_keys": "1x1x2:300x16 bf16:bf16:bf16 mask=causal lse",
    "f32_window": "1x2x9x16 f32:f32:f32 mask=window/3/0 lse",
    "f32_window_both": "1x2x7:9x16 f32:f32:f32 mask=window/2/1 lse",
    "bf16_window_gqa": "1x4:2x6:20x32 bf16:bf16:bf16 mask=window/5/0",
    "f32_prefix": "1x2x8x16 f32:f32:f32 mask=prefix/3 lse",
    "f32_blocks": "1x2x7:10x16 f32:f32:f32 mask=blocks/2/3 lse",
    "f32_expression": "2x2x8x16 f32:f32:f32 mask=(q>=k&&q-k<3||k<1+b) lse",
    "f32_softcap": "1x2x5:8x32 f32:f32:f32 mask=causal softcap=5.0 lse",
    "f32_alibi": "1x4x6x16 f32:f32:f32 mask=causal alibi lse",
    "f32_alibi_softcap": "1x2x3:6x16 f32:f32:f32 softcap=2.5 alibi lse",
    "f32_sinks": "2x4:2x5:6x16 f32:f32:f32 mask=causal sinks lse",
    "bf16_sinks_window": "1x4:2x6:12x32 bf16:bf16:bf16 mask=window/4/0 sinks lse",
    "f32_scale": "1x2x4:6x16 f32:f32:f32 scale=0.3 lse",
    "f32_v_dim": "1x2x4:6x32:16 f32:f32:f32 lse",
    "f32_no_key_seen": "1x2x5:3x16 f32:f32:f32 mask=causal lse",
    "f32_bhsd": "2x3x4:6x16 f32:f32:f32 layout=bhsd mask=causal lse",
    "f32_gaps": "2x2x4:5x16 f32:f32:f32 ldq=40 ldk=36 ldv=48 ldo=33",
    "f32_padded": "3x2x3:8x16 f32:f32:f32 lens=padded mask=causal lse",
    "f32_packed": "3x2x4:6x16 f32:f32:f32 lens=packed/9/13 mask=causal lse",
    "bf16_paged": "2x4:2x2:10x16 bf16:bf16:bf16 lens=padded page=4/7 mask=causal lse",
    "e4m3_tensor": "1x2x4:6x32 e4m3@tensor:e4m3@tensor:bf16 lse",
    "e4m3_row": "1x4:2x3:5x32 e4m3@row:e4m3@row:f32 mask=causal",
}

BACKWARD = {
    "f32_full": "2x2x4:5x16 f32:f32:f32",
    "f32_causal": "1x2x6x16 f32:f32:f32 mask=causal",
    "f32_gqa_aligned_right": "1x4:2x3:7x16 f32:f32:f32 mask=causal",
    "bf16_gqa_causal": "1x4:1x6x32 bf16:bf16:bf16 mask=causal",
    "f32_window": "1x2x7:9x16 f32:f32:f32 mask=window/3/1",
    "f32_prefix": "1x2x6x16 f32:f32:f32 mask=prefix/2",
    "f32_softcap": "1x2x4:6x32 f32:f32:f32 softcap=3.0",
    "f32_alibi": "1x4x5x16 f32:f32:f32 mask=causal alibi",
    "f32_sinks": "2x4:2x4:5x16 f32:f32:f32 mask=causal sinks",
    "f32_v_dim": "1x2x4:6x32:16 f32:f32:f32",
    "f32_no_key_seen": "1x2x5:3x16 f32:f32:f32 mask=causal",
    "f32_bhsd_scale": "2x3x4:6x16 f32:f32:f32 layout=bhsd mask=causal scale=0.3",
    "f32_packed": "3x2x4:6x16 f32:f32:f32 lens=packed/9/13 mask=causal",
}


class Case:
    """One problem's sizes, its drawn operands, and how they cut into sequences."""

    def __init__(self, op, name, text):
        self.text = f"{op} {text}"
        dims, types, *rest = text.split()
        self.batch, *pairs = [tuple(map(int, (p.split(":") * 2)[:2])) for p in dims.split("x")]
        self.batch = self.batch[0]
        (self.q_heads, self.kv_heads), (self.q_len, self.kv_len), (self.qk_dim, self.v_dim) = pairs
        self.options = dict(word.split("=", 1) for word in rest if "=" in word and not word.startswith("mask=("))
        self.options |= {"mask": word[5:] for word in rest if word.startswith("mask=(")}
        self.flags = {word for word in rest if "=" not in word}
        self.formats = types.split(":")
        self.g = rng(op + name)
        self.operands = {}
        scale = self.options.get("scale")
        self.scale = float(np.float32(scale) if scale else np.float32(1) / np.sqrt(np.float32(self.qk_dim)))
        self.softcap = float(np.float32(self.options["softcap"])) if "softcap" in self.options else None
        self.draw()

    def draw(self):
        self.q_lens, self.kv_lens = [self.q_len] * self.batch, [self.kv_len] * self.batch
        q_extent, kv_extent = (self.batch, self.q_len), (self.batch, self.kv_len)
        lens = self.options.get("lens", "fixed")
        if lens == "padded":
            self.kv_lens = [self.kv_len - 2 * i for i in range(self.batch)]
        elif lens.startswith("packed"):
            q_total, kv_total = map(int, lens.split("/")[1:])
            self.q_lens, self.kv_lens = cut(q_total, self.q_len, self.batch), cut(kv_total, self.kv_len, self.batch)
            q_extent, kv_extent = (1, q_total), (1, kv_total)
        pages = None
        if "page" in self.options:
            page, count = map(int, self.options["page"].split("/"))
            kv_extent, each = (count, page), -(-self.kv_len // page)
            pages = torch.randperm(count, generator=self.g)[: self.batch * each].reshape(self.batch, each)

        used = None
        if pages is not None:
            used = torch.zeros(kv_extent, dtype=torch.bool)
            for i, n in enumerate(self.kv_lens):
                for t in range(n):
                    used[pages[i, t // page], t % page] = True
        elif lens == "padded":
            used = torch.arange(self.kv_len) < torch.tensor(self.kv_lens).unsqueeze(1)

        q_format, kv_format, _ = self.formats
        q = self.tensor("q", q_format, q_extent, self.q_heads, self.qk_dim)
        k = self.tensor("k", kv_format, kv_extent, self.kv_heads, self.qk_dim, used)
        v = self.tensor("v", kv_format, kv_extent, self.kv_heads, self.v_dim, used)
        int32 = torch.int32
        if lens.startswith("packed"):
            self.operands["q_offsets"] = torch.tensor([0, *np.cumsum(self.q_lens)], dtype=int32)
            self.operands["kv_offsets"] = torch.tensor([0, *np.cumsum(self.kv_lens)], dtype=int32)
        if lens == "padded":
            self.operands["kv_lens"] = torch.tensor(self.kv_lens, dtype=int32)
        if pages is not None:
            self.operands["page_table"] = pages.to(int32)
            k, v = (t[pages].flatten(1, 2) for t in (k, v))
        self.q, self.k, self.v = self.sequences(q, self.q_lens), self.sequences(k, self.kv_lens), self.sequences(v, self.kv_lens)
        self.slopes = self.per_head("slopes", "alibi", lambda t: t.abs())
        self.sinks = self.per_head("sinks", "sinks", lambda t: t)
        self.blocks = None
        if self.options.get("mask", "").startswith("blocks"):
            rows, cols = map(int, self.options["mask"].split("/")[1:])
            shape = (-(-self.q_len // rows), -(-self.kv_len // cols))
            blocks = torch.randint(0, 2, shape, generator=self.g, dtype=torch.uint8)
            blocks[:, 0] |= blocks.sum(1) == 0
            self.operands["blocks"] = blocks
            self.blocks = blocks.repeat_interleave(rows, 0).repeat_interleave(cols, 1)[: self.q_len, : self.kv_len] != 0

    def tensor(self, name, text, extent, heads, dim, used=None):
        """Draws an operand, NaN where no token is `used`; answers its f64 values as [batch, len, heads, dim]."""
        dtype, _, scheme = text.partition("@")
        codes = normal(self.g, (*extent, heads, dim), dtype)
        if used is not None:
            codes[~used] = torch.nan
        self.operands[name] = self.store(codes, self.options.get(f"ld{name}"))
        values = codes.double()
        if scheme:
            scale = normal(self.g, (1,) if scheme == "tensor" else (*extent, heads), "f32").abs()
            self.operands[f"{name}_scale"] = scale
            values = values * (scale.double() if scheme == "tensor" else scale.double().unsqueeze(-1))
        return values

    def store(self, x, ld=None):
        """[batch, len, heads, dim] in the order of the layout, NaN between tokens."""
        if self.options.get("layout") == "bhsd":
            return x.transpose(1, 2)
        if ld is None:
            return x
        batch, length, heads, dim = x.shape
        padded = torch.full((batch, length, int(ld)), torch.nan, dtype=torch.float64).to(x.dtype)
        padded[..., : heads * dim] = x.flatten(2)
        flat = padded.flatten()
        return flat[: flat.numel() - (int(ld) - heads * dim)]

    def sequences(self, x, lens):
        """One [heads, len, dim] per sequence."""
        if x.shape[0] != len(lens):
            return [part.transpose(0, 1) for part in x[0].split(lens)]
        return [x[i, :n].transpose(0, 1) for i, n in enumerate(lens)]

    def together(self, parts):
        """The inverse of `sequences`, in memory order."""
        if self.options.get("lens", "").startswith("packed"):
            return torch.cat([p.transpose(0, 1) for p in parts]).unsqueeze(0)
        return torch.stack([p.transpose(0, 1) for p in parts])

    def per_head(self, name, flag, change):
        if flag not in self.flags:
            return None
        self.operands[name] = change(normal(self.g, (self.q_heads,), "f32"))
        return self.operands[name].double()

    def sees(self, i):
        """Which keys each query of sequence `i` sees, and the distance k - q."""
        q_len, kv_len = self.q_lens[i], self.kv_lens[i]
        q = torch.arange(q_len).unsqueeze(1) + kv_len - q_len
        k = torch.arange(kv_len).unsqueeze(0)
        mask = self.options.get("mask", "full")
        kind, *numbers = mask.split("/") if not mask.startswith("(") else [mask]
        if kind in MASKS:
            seen = MASKS[kind](q, k)
        elif kind == "window":
            left, right = map(int, numbers)
            seen = (q - left <= k) & (k <= q + right)
        elif kind == "prefix":
            seen = (k <= q) | (k < int(numbers[0]))
        elif kind == "blocks":
            seen = self.blocks
        else:
            # The one expression that a case uses, in Python's words.
            assert kind == "(q>=k&&q-k<3||k<1+b)", kind
            seen = ((q >= k) & (q - k < 3)) | (k < 1 + i)
        return seen, k - q


def cut(total, longest, parts):
    """`parts` different lengths up to `longest` that add up to `total`."""
    lens = [longest, 1]
    lens += [total - sum(lens)] if parts == 3 else []
    assert len(lens) == parts and 0 < lens[-1] <= longest
    return lens


def flex(case, i):
    """Output and log-sum-exp of sequence `i`."""
    q, k, v = (t[i].unsqueeze(0) for t in (case.q, case.k, case.v))
    seen, distance = case.sees(i)

    def score(s, b, h, qi, ki):
        if case.softcap:
            s = case.softcap * torch.tanh(s / case.softcap)
        return s + case.slopes[h] * distance[qi, ki] if case.slopes is not None else s

    torch.compiler.reset()  # flex_attention traces its arguments, and cases differ in more than it cares to guard
    mask = create_block_mask(lambda b, h, qi, ki: seen[qi, ki], 1, None, q.shape[2], k.shape[2], device="cpu")
    gqa = case.q_heads != case.kv_heads
    wanted = AuxRequest(lse=True)
    out, aux = flex_attention(q, k, v, score_mod=score, block_mask=mask, scale=case.scale, enable_gqa=gqa, return_aux=wanted)
    out, lse = out[0], aux.lse[0]
    if case.sinks is not None:
        sink = case.sinks.unsqueeze(1)
        out, lse = out * torch.sigmoid(lse - sink).unsqueeze(-1), torch.logaddexp(lse, sink)
    if not case.softcap and case.slopes is None and case.sinks is None:
        plain = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=case.scale, enable_gqa=gqa)[0]
        assert torch.allclose(out[:, seen.any(1)], plain[:, seen.any(1)], rtol=1e-12, atol=1e-12), case.text
    return out, lse


def expression(case, i, q, k, v, sinks):
    """The same by softmax, for autograd."""
    repeat = case.q_heads // case.kv_heads
    k, v = k.repeat_interleave(repeat, 0), v.repeat_interleave(repeat, 0)
    seen, distance = case.sees(i)
    s = q @ k.transpose(1, 2) * case.scale
    if case.softcap:
        s = case.softcap * torch.tanh(s / case.softcap)
    if case.slopes is not None:
        s = s + case.slopes.reshape(-1, 1, 1) * distance
    s = s.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        s = torch.cat([s, sinks.reshape(-1, 1, 1).expand(-1, s.shape[1], 1)], dim=-1)
    alive = (s > -torch.inf).any(-1, keepdim=True)
    p = torch.softmax(torch.where(alive, s, 0.0), dim=-1) * alive
    lse = torch.where(alive, torch.logsumexp(torch.where(alive, s, 0.0), -1, keepdim=True), -torch.inf)
    return p[..., : v.shape[1]] @ v, lse.squeeze(-1)


def stored_lse(case, parts):
    """[batch, heads, len], or [heads, total] if packed."""
    return torch.cat(parts, dim=1) if case.options.get("lens", "").startswith("packed") else torch.stack(parts)


def forward(name, text):
    case = Case("attention", name, text)
    outs, lses = zip(*(flex(case, i) for i in range(case.batch)))
    for i in range(case.batch):
        out, lse = expression(case, i, case.q[i], case.k[i], case.v[i], case.sinks)
        assert torch.allclose(out, outs[i], rtol=1e-11, atol=1e-12) and torch.allclose(lse, lses[i], rtol=1e-11), name
    expect = {"o": case.store(case.together(outs), case.options.get("ldo"))}
    if "lse" in case.flags:
        expect["lse"] = stored_lse(case, lses)
    write(name, case.text, case.operands, expect, f"{TORCH}, flex_attention in f64", F64)


def backward(name, text):
    case = Case("attention_backward", name, text)
    leaf = lambda t: t.clone().requires_grad_()  # noqa: E731
    q, k, v = ([leaf(t) for t in ts] for ts in (case.q, case.k, case.v))
    sinks = leaf(case.sinks) if case.sinks is not None else None
    outs, lses = zip(*(expression(case, i, q[i], k[i], v[i], sinks) for i in range(case.batch)))
    for i in range(case.batch):
        assert torch.allclose(flex(case, i)[0], outs[i], rtol=1e-11, atol=1e-12), name
    grad_o = normal(case.g, case.together(outs).shape, case.formats[2])
    (case.together(outs) * grad_o.double()).sum().backward()

    with torch.no_grad():
        o = case.together(outs).to(grad_o.dtype)
        lse = stored_lse(case, lses).float()
    grads = {n: case.together([t.grad for t in ts]) for n, ts in (("grad_q", q), ("grad_k", k), ("grad_v", v))}
    expect = {n: case.store(g) for n, g in grads.items()}
    if sinks is not None:
        grads["grad_sinks"] = expect["grad_sinks"] = sinks.grad
    case.operands |= {"o": case.store(o), "lse": lse, "grad_o": case.store(grad_o)}
    tolerance = {"absolute": 1e-12 + 2 * rounding_of_stored(case, o, lse, grad_o, grads), "relative": 1e-12}
    write(name, case.text, case.operands, expect, f"{TORCH}, autograd in f64 through softmax and matmul", tolerance)


def rounding_of_stored(case, o, lse, grad_o, grads):
    """How far gradients move when they are computed from O and the log-sum-exp as stored, rounded to their types."""
    packed = case.options.get("lens", "").startswith("packed")
    lses = lse.double().split(case.q_lens, dim=1) if packed else lse.double()
    outs, grad_outs = case.sequences(o.double(), case.q_lens), case.sequences(grad_o.double(), case.q_lens)
    repeat = case.q_heads // case.kv_heads
    moved = {"grad_q": [], "grad_k": [], "grad_v": []}
    sinks = torch.zeros(case.q_heads, dtype=torch.float64)
    for i in range(case.batch):
        k, v = (t[i].repeat_interleave(repeat, 0) for t in (case.k, case.v))
        seen, distance = case.sees(i)
        raw = case.q[i] @ k.transpose(1, 2) * case.scale
        s, slope = raw, 1.0
        if case.softcap:
            s = case.softcap * torch.tanh(raw / case.softcap)
            slope = 1 - (s / case.softcap) ** 2
        if case.slopes is not None:
            s = s + case.slopes.reshape(-1, 1, 1) * distance
        p = torch.where(seen, torch.exp(s - lses[i].unsqueeze(-1)), 0.0)
        inner = (outs[i] * grad_outs[i]).sum(-1, keepdim=True)
        ds = p * (grad_outs[i] @ v.transpose(1, 2) - inner) * slope * case.scale
        fold = lambda t: t.unflatten(0, (case.kv_heads, repeat)).sum(1)  # noqa: E731
        if case.sinks is not None:
            sinks -= (torch.exp(case.sinks.unsqueeze(1) - lses[i]) * inner.squeeze(-1)).sum(1)
        moved["grad_q"].append(ds @ k)
        moved["grad_k"].append(fold(ds.transpose(1, 2) @ case.q[i]))
        moved["grad_v"].append(fold(p.transpose(1, 2) @ grad_outs[i]))
    differences = [case.together(parts) - grads[n] for n, parts in moved.items()]
    differences += [sinks - grads["grad_sinks"]] if case.sinks is not None else []
    return max(float(d.abs().max()) for d in differences)


if __name__ == "__main__":
    main()

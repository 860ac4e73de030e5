"""Writes ../formats: every code of every number format, and hard inputs for the encoders.

Decoding comes from ml_dtypes (NF4: from bitsandbytes' table). Encoding comes from ml_dtypes and numpy
(NF4: from bitsandbytes), and each code is checked here against exact rational arithmetic, so that a
disagreement between the library and the definition of round-to-nearest-even stops the script.

    python formats.py
"""

from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
from bitsandbytes.backends.utils import _get_4bit_code

OUT = Path(__file__).resolve().parent.parent / "formats"

# name: (numpy type, how codes print, does the sign bit exist)
FLOATS = {
    "e4m3": (ml_dtypes.float8_e4m3fn, np.uint8, True),
    "e5m2": (ml_dtypes.float8_e5m2, np.uint8, True),
    "e4m3fnuz": (ml_dtypes.float8_e4m3fnuz, np.uint8, True),
    "e5m2fnuz": (ml_dtypes.float8_e5m2fnuz, np.uint8, True),
    "e2m1": (ml_dtypes.float4_e2m1fn, np.uint8, True),
    "ue4m3": (ml_dtypes.float8_e4m3fn, np.uint8, False),
    "e8m0": (ml_dtypes.float8_e8m0fnu, np.uint8, False),
    "f16": (np.float16, np.uint16, True),
    "bf16": (ml_dtypes.bfloat16, np.uint16, True),
}
CODES = {"e2m1": 16, "ue4m3": 128, "f16": 1 << 16, "bf16": 1 << 16}
# PyTorch has these too: a second opinion on every value.
TORCH = {
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}


def main():
    OUT.mkdir(exist_ok=True)
    for name in FLOATS:
        values = decode_all(name)
        if len(values) <= 256:
            write_decode(name, values, f"ml_dtypes {ml_dtypes.__version__}, {FLOATS[name][0].__name__}")
        write_encode(name, values)
    write_nf4()


def decode_all(name):
    """The f32 value of every code, in the order of the codes."""
    dtype, word, _ = FLOATS[name]
    values = np.arange(CODES.get(name, 256)).astype(word).view(dtype).astype(np.float32)
    if name in TORCH:
        codes = torch.arange(len(values)).to(torch.uint8 if word is np.uint8 else torch.uint16)
        other = codes.view(TORCH[name]).to(torch.float32).numpy()
        assert np.array_equal(values, other, equal_nan=True), name
    return values


def write_decode(name, values, source):
    width = 1 if len(values) == 16 else 2
    lines = [f"# {source}", "# code, f32 bits"]
    for code, value in enumerate(values):
        bits = "nan" if np.isnan(value) else f"{bits_of(value):08x}"
        lines.append(f"{code:0{width}x} {bits}")
    (OUT / f"{name}.txt").write_text("\n".join(lines) + "\n")


def write_encode(name, values):
    """Two columns of codes: with out-of-range inputs clamped to the largest value first, and as the library rounds them."""
    dtype, word, signed = FLOATS[name]
    inputs = hard_inputs(values, signed, name)
    largest = np.float32(np.max(values[np.isfinite(values)]))
    smallest = -largest if signed else np.float32(np.min(values[np.isfinite(values)]))
    clamped = np.clip(inputs, smallest, largest)  # NaN stays NaN
    with np.errstate(invalid="ignore", over="ignore"):
        saturating = clamped.astype(dtype).view(word)
        plain = inputs.astype(dtype).view(word)
    if name in TORCH and name not in ("f16", "bf16"):
        check_against_torch(name, inputs, plain)

    finite = np.flatnonzero(np.isfinite(values))
    order = finite[np.argsort(values[finite], kind="stable")]  # codes from the least value to the largest
    has_nan = bool(np.isnan(values).any())
    width = {16: 1, 1 << 16: 4}.get(len(values), 2)
    lines = [
        f"# {'numpy ' + np.__version__ if dtype is np.float16 else 'ml_dtypes ' + ml_dtypes.__version__}, f32 to {dtype.__name__}",
        "# f32 bits, code when clamped first, code as the library rounds (-- where the format cannot say it)",
    ]
    for x, sat, raw in zip(inputs, saturating, plain):
        if np.isnan(x):
            shown = ["nan" if has_nan else "--"] * 2
        else:
            check_nearest_even(name, x, values, order, int(sat), smallest, largest)
            # Where the library answers NaN the sign of that NaN carries no meaning.
            shown = [f"{int(sat):0{width}x}", "nan" if np.isnan(values[raw]) else f"{int(raw):0{width}x}"]
        lines.append(f"{bits_of(x):08x} {' '.join(shown)}")
    (OUT / f"encode_{name}.txt").write_text("\n".join(lines) + "\n")


def hard_inputs(values, signed, name):
    """Ties and their two neighbours between adjacent codes, every edge of the range, NaN of several kinds."""
    finite = np.unique(np.abs(values[np.isfinite(values)]))
    gaps = list(zip(finite[:-1], finite[1:]))
    if len(gaps) > 300:
        gaps = sample_gaps(gaps, name)
    inputs = []
    for index, (low, high) in enumerate(gaps):
        tie = np.float32((np.float64(low) + np.float64(high)) / 2)
        sign = -1 if signed and index % 2 else 1
        inputs += [sign * v for v in (np.nextafter(tie, np.float32(0)), tie, np.nextafter(tie, np.float32(np.inf)))]
        if index % 8 == 0:
            inputs += [sign * low, np.nextafter(sign * high, np.float32(0))]

    least, most = finite[finite > 0][0], finite[-1]
    step = np.float64(most) - np.float64(finite[-2])
    with np.errstate(over="ignore"):
        beyond = np.float32(np.float64(most) + step / 2)
        edges = [
            np.float32(0), np.float32(1e-45), np.float32(1.1754944e-38), np.float32(5.877472e-39),
            least / 2, np.nextafter(least / 2, np.float32(0)), np.nextafter(least / 2, np.float32(1)), least / 4, least, least * np.float32(1.5),
            most, np.nextafter(most, np.float32(0)), np.nextafter(most, np.float32(np.inf)),
            np.nextafter(beyond, np.float32(0)), beyond, np.nextafter(beyond, np.float32(np.inf)),
            most * np.float32(2), np.float32(1e30), np.finfo(np.float32).max, np.float32(np.inf),
        ]  # fmt: skip
    for edge in edges:
        inputs += [edge, -edge] if signed else [edge]
    if len(gaps) < 200:
        rng = np.random.default_rng(list(name.encode()))
        drawn = np.float32(2.0) ** rng.uniform(np.log2(least) - 3, min(np.log2(most) + 2, 127.9), 160).astype(np.float32)
        inputs += [-x if signed and i % 2 else x for i, x in enumerate(drawn)]
    if name == "e8m0":
        # Zero has no code. Just above the least value, in f32's subnormals, both libraries round every input up; the
        # definition rounds the lower half down, so these say nothing.
        inputs = [x for x in inputs if x > 0 and not 2.0**-127 < x < 1.5 * 2.0**-127]
    bits = [bits_of(np.float32(x)) for x in inputs] + [0x7FC00000, 0x7F800001, 0x7FFFFFFF]
    bits += [0xFFC00000, 0xFF800001] if signed else []
    return np.array(list(dict.fromkeys(bits)), np.uint32).view(np.float32)


def sample_gaps(gaps, name):
    """All around each power of two's first gap and last gap, and some drawn by a fixed seed."""
    rng = np.random.default_rng(list(name.encode()))
    picked = set(range(4)) | {len(gaps) - 1 - i for i in range(4)} | set(rng.integers(0, len(gaps), 60).tolist())
    mantissas = 1 << (10 if name == "f16" else 7)
    starts = range(mantissas, len(gaps), mantissas * (1 if name == "f16" else 8))
    picked |= {i for start in starts for i in (start - 1, start)}
    return [gaps[i] for i in sorted(picked)]


def check_nearest_even(name, x, values, order, code, smallest, largest):
    """The saturating code is a nearest value, and of two equally near ones the even code."""
    x = min(max(x, smallest), largest)
    exact = Fraction(float(x))
    at = int(np.searchsorted(values[order], x))
    signs = {np.signbit(x)} if name in ("e4m3", "e5m2", "e2m1", "f16", "bf16") else {False, True}
    near = [c for c in order[max(0, at - 3) : at + 4].tolist() if np.signbit(values[c]) in signs]
    distance = {c: abs(Fraction(float(values[c])) - exact) for c in near}
    best = min(distance.values())
    ties = [c for c in near if distance[c] == best]
    # E8M0 has no mantissa bit to be even: ml_dtypes and PyTorch send every tie up, to the larger power of two.
    want = ties if len(ties) == 1 else [max(ties)] if name == "e8m0" else [c for c in ties if c % 2 == 0]
    assert code in want, f"{name}: {x!r} became {code:x}, nearest even is {want}"


def check_against_torch(name, inputs, plain):
    """PyTorch's cast agrees wherever the input is in range or NaN; beyond it PyTorch's own rules differ by version."""
    values = decode_all(name)
    with np.errstate(invalid="ignore"):
        inside = np.isnan(inputs) | (np.abs(inputs) <= np.max(values[np.isfinite(values)]))
    torch_codes = torch.from_numpy(inputs.copy()).to(TORCH[name]).view(torch.uint8).numpy()
    same = (torch_codes == plain) | (np.isnan(values[torch_codes]) & np.isnan(values[plain]))
    assert same[inside].all(), name


def write_nf4():
    """NF4: the sixteen quantiles of the normal distribution that bitsandbytes ships, and its own nearest-value choice."""
    import bitsandbytes
    import bitsandbytes.backends.default.ops  # registers the reference kernels
    from bitsandbytes.backends.default.ops import _get_4bit_quantize_bounds

    table = _get_4bit_code("nf4", torch.device("cpu")).float()
    check_nf4_definition(table.numpy())
    write_decode("nf4", table.numpy(), f"bitsandbytes {bitsandbytes.__version__}, get_4bit_type('nf4')")

    bounds, _ = _get_4bit_quantize_bounds("nf4", torch.device("cpu"))
    inputs = []
    for low, high in zip(table[:-1].numpy(), table[1:].numpy()):
        middle = np.float32((np.float64(low) + np.float64(high)) / 2)
        # Two f32 steps away from the middle: the middle itself is not an f32, so what it rounds to is left unsaid.
        for direction in (np.float32(-4), np.float32(4)):
            x = np.nextafter(np.nextafter(middle, direction), direction)
            inputs += [x, np.float32(low + (high - low) * (0.25 if direction < 0 else 0.75))]
        inputs += [low, high]
    inputs += [np.float32(v) for v in (0.0, -0.0, 1e-45, -1e-45, 1e-3, -1e-3, 1.0, -1.0)]
    rng = np.random.default_rng(4)
    inputs += list(rng.uniform(-1, 1, 128).astype(np.float32))
    x = np.array(list(dict.fromkeys(inputs)), np.float32)
    codes = torch.bucketize(torch.from_numpy(x), bounds).numpy()
    exact = [Fraction(float(v)) for v in table.numpy()]
    lines = [
        f"# bitsandbytes {bitsandbytes.__version__}, the bucketize step of quantize_4bit on inputs already divided by absmax",
        "# f32 bits, code, code",
    ]
    for value, code in zip(x, codes):
        distance = [abs(e - Fraction(float(value))) for e in exact]
        assert distance[code] == min(distance), f"nf4: {value!r}"
        lines.append(f"{bits_of(value):08x} {code:x} {code:x}")
    (OUT / "encode_nf4.txt").write_text("\n".join(lines) + "\n")


def check_nf4_definition(table):
    """QLoRA (arXiv 2305.14314, section 3 and appendix E): normal quantiles, 8 above zero, 7 below, zero, over the largest."""
    from statistics import NormalDist

    quantile = NormalDist().inv_cdf
    offset = 0.9677083  # 1 - (1/32 + 1/30) / 2, as bitsandbytes' create_normal_map has it
    above = [quantile(p) for p in np.linspace(offset, 0.5, 9)[:-1]]
    below = [-quantile(p) for p in np.linspace(offset, 0.5, 8)[:-1]]
    derived = np.array(sorted([*above, 0.0, *below])) / max(above)
    assert np.abs(derived - table).max() < 2e-6, derived - table


def bits_of(value):
    return int(np.float32(value).view(np.uint32))


if __name__ == "__main__":
    main()

"""kp beside PyTorch and ONNX Runtime on this machine's processor, as records.

    python3 cpu.py KP OUT [--threads 1,2] [--only PART] [--method repeat] [FAMILY ...]

KP is the program `kp`, OUT the folder that the records go into, FAMILY one of those below; all if none is named. Needs PyTorch;
ONNX Runtime and AMD's zentorch, with its attention and RMS norm, take part if they are installed.

kp and every rival of a row take turns, on numbers of the same distribution. A rival's time of a turn of kp's is the mean of its medians right
before and right after it, a ratio is the median of the turns' ratios, and the row's rival is the one with the least. So what other programs of a shared
machine do, which changes twofold from one second to the next, meets both sides. One thread is pinned to one core. Products of more than 8 rows repeat on the same operands, everything else that reads
much goes through copies that together exceed the last-level cache, kp and its rivals alike. Rivals that arrange a constant B
beforehand stand beside kp's products of panels, which `cast` arranges; both sides pay for that before they are timed.

With `KP_CPU_WITHOUT=avx512,amx` kp does without these instructions, and so does PyTorch, as on a processor of AVX2 alone; ONNX Runtime and
zentorch cannot be told and are left out. The records' names say so.
"""

import argparse, json, math, os, pathlib, statistics, sys, tempfile, time, traceback

WITHOUT = os.environ.get("KP_CPU_WITHOUT")
if WITHOUT:
    if WITHOUT != "avx512,amx":
        sys.exit(f"KP_CPU_WITHOUT must be unset or avx512,amx, got {WITHOUT}: PyTorch has no word for other processors")
    os.environ |= {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}

import torch, torch.nn.functional as F
import beside

onnxruntime = zentorch = None
if not WITHOUT:
    try:
        import onnx, onnxruntime
    except ImportError:
        pass
    try:
        import zentorch
    except ImportError:
        pass

torch.set_grad_enabled(False)
F32, BF16 = torch.float32, torch.bfloat16
NAMES = {F32: "f32", BF16: "bf16"}


def last_cache():
    """Bytes of the largest cache that the first core sees; 64 MB where the system does not tell."""
    sizes = pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((int(size.read_text().strip().removesuffix("K")) << 10 for size in sizes), default=64 << 20)


# What copies of operands together exceed.
BEYOND_CACHE = max(128 << 20, 2 * last_cache())


def numbers(*shape, dtype=F32):
    """What `kp bench` fills operands with: any sign and mantissa, powers of two from 1/16 to 1/2."""
    power = torch.randint(-4, 0, shape)
    sign = torch.randint(0, 2, shape) * 2 - 1
    return (torch.ldexp(1 + torch.rand(shape), power) * sign).to(dtype)


def copies(first, cold):
    """`first`, and if it is to be read from memory as many copies of it as the cache does not hold."""
    nbytes = first.numel() * first.element_size()
    return [first] + [first.clone() for _ in range(max(1, -(-BEYOND_CACHE // nbytes)) if cold else 0)]


class Row:
    """A problem of kp, and rivals by name: functions of the number of threads that answer one which runs the i-th copy."""

    def __init__(self, problem, cold, **rivals):
        self.problem, self.cold, self.rivals = problem, cold, rivals


# Products


def linear(m, n, k, dtype, cold):
    def rival(threads):
        x = numbers(m, k, dtype=dtype)
        w = copies(numbers(n, k, dtype=dtype), cold)
        return lambda i: F.linear(x, w[i % len(w)])

    return rival


def by_rows(m, n, k, dtype):
    def rival(threads):
        x, d = numbers(m, k, dtype=dtype), torch.empty(m, n, dtype=dtype)
        w = copies(numbers(k, n, dtype=dtype), True)
        return lambda i: torch.mm(x, w[i % len(w)], out=d)

    return rival


def matmul(n, dtype):
    def rival(threads):
        a, b, d = numbers(n, n, dtype=dtype), numbers(n, n, dtype=dtype), torch.empty(n, n, dtype=dtype)
        return lambda i: torch.mm(a, b, out=d)

    return rival


def batched(count, n):
    def rival(threads):
        a, b, d = numbers(count, n, n), numbers(count, n, n), torch.empty(count, n, n)
        return lambda i: torch.bmm(a, b, out=d)

    return rival


def packed(m, n, k, dtype, cold):
    def rival(threads):
        x = numbers(m, k, dtype=dtype)
        w = [torch.ops.mkldnn._reorder_linear_weight(w, m) for w in copies(numbers(n, k, dtype=dtype), cold)]
        return lambda i: torch.ops.mkldnn._linear_pointwise(x, w[i % len(w)], None, "none", [], "")

    return rival


def session(model, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def bound(run, **inputs):
    """A call of a session that neither copies its inputs nor makes new outputs."""
    binding = run.io_binding()
    for name, x in inputs.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(x))
    for y in run.get_outputs():
        binding.bind_output(y.name, "cpu")
    return lambda: run.run_with_iobinding(binding)


def onnx_model(nodes, inputs, outputs, constants=(), types=None):
    helper, types = onnx.helper, types or {}
    value = lambda name, x: helper.make_tensor_value_info(name, types.get(name, onnx.TensorProto.FLOAT), x)
    graph = helper.make_graph(
        nodes,
        "rival",
        [value(name, shape) for name, shape in inputs.items()],
        [value(name, shape) for name, shape in outputs.items()],
        [onnx.numpy_helper.from_array(x, name) for name, x in dict(constants).items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def each(runs):
    return lambda i: runs[i % len(runs)]()


def onnx_linear(m, n, k, cold):
    """B is a constant of the model, so its kernels may arrange it beforehand."""

    def rival(threads):
        node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
        x = numbers(m, k).numpy()
        models = (onnx_model([node], {"x": [m, k]}, {"y": [m, n]}, {"w": w.numpy()}) for w in copies(numbers(k, n), cold))
        return each([bound(session(model, threads), x=x) for model in models])

    return rival


def onnx_four_bit(m, n, k, level):
    def rival(threads):
        node = onnx.helper.make_node(
            "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=k, N=n, bits=4, block_size=32, accuracy_level=level
        )
        x, scales = numbers(m, k).numpy(), (torch.rand(n * k // 32) + 0.5).numpy()
        codes = copies(torch.randint(0, 256, (n, k // 32, 16), dtype=torch.uint8), m <= 8)
        models = (onnx_model([node], {"x": [m, k]}, {"y": [m, n]}, {"w": w.numpy(), "s": scales}) for w in codes)
        return each([bound(session(model, threads), x=x) for model in models])

    return rival


def int8_static(m, n, k, cold):
    def rival(threads):
        x = torch.randint(0, 255, (m, k), dtype=torch.uint8)
        scale, zero = torch.full((n,), 0.01), torch.zeros(n, dtype=torch.int64)
        w = copies(torch.randint(-127, 128, (k, n), dtype=torch.int8), cold)
        w = [torch.ops.onednn.qlinear_prepack(w, [m, k]) for w in w]
        run = torch.ops.onednn.qlinear_pointwise
        return lambda i: run(x, 0.01, 0, w[i % len(w)], scale, zero, None, 1.0, 0, F32, "none", [], "")

    return rival


def int8_dynamic(m, n, k, cold):
    def rival(threads):
        torch.backends.quantized.engine = "onednn"
        x, scale, zero = numbers(m, k), torch.full((n,), 0.01).double(), torch.zeros(n).long()
        w = copies(torch.quantize_per_channel(numbers(n, k), scale, zero, 0, torch.qint8), cold)
        w = [torch.ops.quantized.linear_prepack(w, None) for w in w]
        return lambda i: torch.ops.quantized.linear_dynamic(x, w[i % len(w)], True)

    return rival


def int8_by_rows(m, n, k, cold):
    def rival(threads):
        x = torch.randint(-127, 128, (m, k), dtype=torch.int8)
        w = copies(torch.randint(-127, 128, (k, n), dtype=torch.int8), cold)
        return lambda i: torch._int_mm(x, w[i % len(w)])

    return rival


def onnx_int8(m, n, k, cold, constant):
    """A constant B is packed when the model is loaded."""

    def rival(threads):
        node = onnx.helper.make_node("MatMulInteger", ["x", "w"], ["y"])
        types = {"x": onnx.TensorProto.UINT8, "w": onnx.TensorProto.INT8, "y": onnx.TensorProto.INT32}
        x = torch.randint(0, 255, (m, k), dtype=torch.uint8).numpy()
        codes = [w.numpy() for w in copies(torch.randint(-127, 128, (k, n), dtype=torch.int8), cold)]
        if constant:
            models = (onnx_model([node], {"x": [m, k]}, {"y": [m, n]}, {"w": w}, types) for w in codes)
            return each([bound(session(model, threads), x=x) for model in models])
        model = onnx_model([node], {"x": [m, k], "w": [k, n]}, {"y": [m, n]}, {}, types)
        return each([bound(session(model, threads), x=x, w=w) for w in codes])

    return rival


def int8_weights(m, n, k, cold):
    def rival(threads):
        x, scale = numbers(m, k, dtype=BF16), torch.full((n,), 0.01, dtype=BF16)
        w = copies(torch.randint(-127, 128, (n, k), dtype=torch.int8), cold)
        return lambda i: torch._weight_int8pack_mm(x, w[i % len(w)], scale)

    return rival


def int4_weights(m, n, k):
    def rival(threads):
        x, group = numbers(m, k, dtype=BF16), 32
        first = torch.ops.aten._convert_weight_to_int4pack_for_cpu(torch.randint(0, 16, (n, k), dtype=torch.int32), 2)
        w = copies(first, m <= 8)
        scales = torch.stack([torch.full((k // group, n), 0.01), torch.zeros(k // group, n)], -1).to(BF16)
        scales = [scales.clone() for _ in w]
        run = torch.ops.aten._weight_int4pack_mm_for_cpu
        return lambda i: run(x, w[i % len(w)], group, scales[i % len(w)])

    return rival


SQUARES = (256, 512, 1024, 2048)
WEIGHTS = [(m, n, 4096) for n in (4096, 11008) for m in (1, 8, 128, 512)]
# How a constant B is best arranged for kp: by pairs of k where tiles or fast dot products take them, by two vectors with AVX2, which reads
# bytes as they lie.
CPU = pathlib.Path("/proc/cpuinfo").read_text()
HAS_PAIRS = "amx_bf16" in CPU or "avx512_bf16" in CPU and "AuthenticAMD" in CPU
PANEL = {"f32": "panel64x1", "bf16": "panel32x2" if HAS_PAIRS else "panel64x1", "i8": "panel64x4"}
if WITHOUT or "avx512f" not in CPU:
    PANEL |= {"f32": "panel16x1", "bf16": "panel16x1", "i8": None}


def products(dtype):
    t = NAMES[dtype]
    formats = f"{t}:{t}:{t}"
    rows = [Row(f"gemm 1x{n}x{n}x{n} {formats}", False, torch=matmul(n, dtype)) for n in SQUARES]
    for n in SQUARES:
        rivals = {"torch packed": packed(n, n, n, dtype, False)}
        if dtype == F32:
            rivals["onnxruntime"] = onnx_linear(n, n, n, False)
        rows.append(Row(f"gemm 1x{n}x{n}x{n} {formats} b={PANEL[t]}", False, **rivals))
    for m, n, k in WEIGHTS:
        cold = m <= 8
        rows.append(Row(f"gemm 1x{m}x{n}x{k} {formats} b=col", cold, torch=linear(m, n, k, dtype, cold)))
        rivals = {"torch packed": packed(m, n, k, dtype, cold)}
        if dtype == F32:
            rivals["onnxruntime"] = onnx_linear(m, n, k, cold)
        rows.append(Row(f"gemm 1x{m}x{n}x{k} {formats} b={PANEL[t]}", cold, **rivals))
        if cold:
            rows.append(Row(f"gemm 1x{m}x{n}x{k} {formats}", True, torch=by_rows(m, n, k, dtype)))
    return rows


def small_products():
    sizes = (8, 16, 32, 64)
    rows = [Row(f"gemm 1x{n}x{n}x{n} f32:f32:f32", False, torch=matmul(n, F32)) for n in sizes]
    return rows + [Row(f"gemm 1024x{n}x{n}x{n} f32:f32:f32", False, torch=batched(1024, n)) for n in sizes]


def eight_bit_products():
    rows = []
    for m, n, k in WEIGHTS:
        cold = m <= 8
        rivals = {"torch u8s8": int8_static(m, n, k, cold), "torch dynamic": int8_dynamic(m, n, k, cold)}
        for order in filter(None, ("col", PANEL["i8"])):
            rows.append(Row(f"gemm 1x{m}x{n}x{k} i8@row:i8@row:f32 b={order}", cold, **rivals))
        rows.append(Row(f"gemm 1x{m}x{n}x{k} i8:i8:i32", cold, torch=int8_by_rows(m, n, k, cold)))
        rivals = {"onnxruntime": onnx_int8(m, n, k, cold, False)}
        packed_rivals = {"onnxruntime packed": onnx_int8(m, n, k, cold, True)}
        if PANEL["i8"]:
            rows.append(Row(f"gemm 1x{m}x{n}x{k} u8:i8:i32 b={PANEL['i8']}", cold, **packed_rivals))
        else:
            rivals |= packed_rivals
        rows.append(Row(f"gemm 1x{m}x{n}x{k} u8:i8:i32", cold, **rivals))
        rows.append(Row(f"gemm 1x{m}x{n}x{k} bf16:i8@row:bf16 b=col", cold, **{"torch int8pack": int8_weights(m, n, k, cold)}))
    return rows


def four_bit_products():
    rows = []
    for m, n, k in WEIGHTS:
        rivals = {f"onnxruntime {level}": onnx_four_bit(m, n, k, level) for level in (1, 4)}
        rivals["torch int4pack"] = int4_weights(m, n, k)
        for b in ("u4@g32/f16z", "i4@g32/f16", "nf4@g32/f16", "e2m1@mx", "e2m1@nv"):
            rows.append(Row(f"gemm 1x{m}x{n}x{k} f32:{b}:f32 b=col", m <= 8, **rivals))
        # onnxruntime's level 4 rounds activations to 8 bits: beside it, what may do so too, and above what may not.
        for b in ("u4@g32/f16z", "i4@g32/f16", "nf4@g32/f16", "e2m1@mx", "e2m1@nv"):
            rows.append(Row(f"gemm 1x{m}x{n}x{k} f32:{b}:f32 b=col acc=f32q8", m <= 8, **rivals))
        rows.append(Row(f"gemm 1x{m}x{n}x{k} bf16:i4@g32/bf16:bf16 b=col acc=f32q8", m <= 8, **rivals))
        rows.append(Row(f"gemm 1x{m}x{n}x{k} i8@row:i4@g32/f16:f32 b=col", m <= 8, **rivals))
        if m > 8:
            rows.append(Row(f"gemm 1x{m}x{n}x{k} bf16:i4@g32/bf16:bf16 b=col", False, **{"torch int4pack": int4_weights(m, n, k)}))
    return rows


# Attention


def sdpa(heads, kv_heads, queries, keys, dim, dtype, causal):
    def rival(threads):
        q = numbers(1, heads, queries, dim, dtype=dtype)
        kv = copies(numbers(2, 1, kv_heads, keys, dim, dtype=dtype), queries == 1)
        run = F.scaled_dot_product_attention
        return lambda i: run(q, *kv[i % len(kv)], is_causal=causal, enable_gqa=heads != kv_heads)

    return rival


def zentorch_sdpa(heads, kv_heads, queries, keys, dim, dtype, causal):
    def rival(threads):
        q = numbers(1, heads, queries, dim, dtype=dtype)
        kv = copies(numbers(2, 1, kv_heads, keys, dim, dtype=dtype), queries == 1)
        run = torch.ops.zentorch.zentorch_sdpa
        return lambda i: run(q, *kv[i % len(kv)], 0.0, causal)

    return rival


def onnx_attention(heads, keys, dim):
    def rival(threads):
        shape = [1, keys, heads * dim]
        node = onnx.helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft", num_heads=heads)
        model = onnx_model([node], dict.fromkeys("qkv", shape), {"y": shape})
        return each([bound(session(model, threads), **{name: numbers(*shape).numpy() for name in "qkv"})])

    return rival


def attention(dtype):
    t, rows = NAMES[dtype], []
    for keys in (1024, 4096):
        for dim in (64, 128):
            for causal in (True, False):
                form = (16, 16, keys, keys, dim, dtype, causal)
                rivals = {"torch": sdpa(*form), "zentorch": zentorch_sdpa(*form)}
                if dtype == F32 and not causal:
                    rivals["onnxruntime"] = onnx_attention(16, keys, dim)
                mask = " mask=causal" if causal else ""
                rows.append(Row(f"attention 1x16x{keys}x{dim} {t}:{t}:{t}{mask}", False, **rivals))
    return rows


def decoding(dtype):
    t, rows = NAMES[dtype], []
    for heads, kv_heads in ((16, 16), (32, 8)):
        for dim in (64, 128):
            shared = "" if heads == kv_heads else f":{kv_heads}"
            problem = f"attention 1x{heads}{shared}x1:4096x{dim} {t}:{t}:{t}"
            form = (heads, kv_heads, 1, 4096, dim, dtype, False)
            rows.append(Row(problem, True, torch=sdpa(*form), zentorch=zentorch_sdpa(*form)))
    return rows


def decoding_8_bits():
    """No rival reads keys and values of 8 bits: theirs are of bf16, twice the bytes."""
    rows = []
    for heads, kv_heads in ((16, 16), (32, 8)):
        for dim in (64, 128):
            shared = "" if heads == kv_heads else f":{kv_heads}"
            form = (heads, kv_heads, 1, 16384, dim, BF16, False)
            rivals = {"torch bf16": sdpa(*form), "zentorch bf16": zentorch_sdpa(*form)}
            for kv in ("e4m3@row", "e5m2"):
                rows.append(Row(f"attention 1x{heads}{shared}x1:16384x{dim} bf16:{kv}:bf16", True, **rivals))
    return rows


# Rows


def over_rows(rows, dtype, run):
    def rival(threads):
        x = copies(numbers(rows, 4096, dtype=dtype), rows > 1024)
        return lambda i: run(x[i % len(x)])

    return rival


def onnx_rows(rows, op, **weights):
    def rival(threads):
        node = onnx.helper.make_node(op, ["x", *weights], ["y"], axis=-1)
        constants = {name: numbers(4096).numpy() for name in weights}
        model = onnx_model([node], {"x": [rows, 4096]}, {"y": [rows, 4096]}, constants)
        return each([bound(session(model, threads), x=x.numpy()) for x in copies(numbers(rows, 4096), rows > 1024)])

    return rival


def normalizing():
    rows = []
    for dtype in (F32, BF16):
        t = NAMES[dtype]
        w, b = numbers(4096, dtype=dtype), numbers(4096, dtype=dtype)
        for count in (512, 8192):
            cold = count > 1024
            layer = {"torch": over_rows(count, dtype, lambda x, w=w, b=b: F.layer_norm(x, (4096,), w, b))}
            softmax = {"torch": over_rows(count, dtype, lambda x: F.softmax(x, -1))}
            if dtype == F32:
                layer["onnxruntime"] = onnx_rows(count, "LayerNormalization", w=True, b=True)
                softmax["onnxruntime"] = onnx_rows(count, "Softmax")
            rms = {
                "torch": over_rows(count, dtype, lambda x, w=w: F.rms_norm(x, (4096,), w)),
                "zentorch": over_rows(count, dtype, lambda x, w=w: torch.ops.zentorch.zentorch_rms_norm(x, w, 1e-5)),
            }
            rows.append(Row(f"norm {count}x4096 {t}:{t} kind=layer weight={t} bias={t}", cold, **layer))
            rows.append(Row(f"norm {count}x4096 {t}:{t} kind=rms weight={t}", cold, **rms))
            rows.append(Row(f"softmax {count}x4096 {t}:{t}", cold, **softmax))
    return rows


def converting():
    rows = []
    for count in (128, 8192):
        cold = count > 1024
        for dtype in (F32, BF16):
            for name, target in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
                t = NAMES[dtype]
                to = {"torch": over_rows(count, dtype, lambda x, target=target: x.to(target))}
                rows.append(Row(f"cast 1x{count}x4096 {t}:{name}", cold, **to))
    return rows


def quantizing():
    """PyTorch has no such op: a largest magnitude, a quotient and a cast, one after the other."""

    def scaled(x, block):
        parts = x.view(len(x), -1, block)
        scales = parts.abs().amax(-1, keepdim=True).float().clamp_min(1e-30) / 448
        return (parts / scales).to(torch.float8_e4m3fn), scales

    rows = []
    for count in (512, 8192):
        for dtype in (F32, BF16):
            for scheme, block in (("row", 4096), ("1x128", 128)):
                to = {"torch": over_rows(count, dtype, lambda x, block=block: scaled(x, block))}
                rows.append(Row(f"quantize {count}x4096 {NAMES[dtype]}:e4m3@{scheme}", count > 1024, **to))
    return rows


FAMILIES = {
    "f32": lambda: products(F32),
    "bf16": lambda: products(BF16),
    "small": small_products,
    "int8": eight_bit_products,
    "int4": four_bit_products,
    "attention-f32": lambda: attention(F32),
    "attention-bf16": lambda: attention(BF16),
    "decode-f32": lambda: decoding(F32),
    "decode-bf16": lambda: decoding(BF16),
    "decode-8bit": decoding_8_bits,
    "rows": normalizing,
    "casts": converting,
    "quantize": quantizing,
}


# As many of kp's; of its rivals one more.
TURNS = 9


class Turns:
    """A rival's turns, of samples as kp takes them: of at least 20 µs, seven of them over 33 ms, one of what is slow."""

    def __init__(self, run, threads, seconds):
        self.run, self.rest, self.seconds, self.next = run, 0.2 if threads > 1 else 0, seconds, 0

    def launch(self):
        self.run(self.next)
        self.next += 1

    def median_ns(self):
        launch, now = self.launch, time.perf_counter
        one, start = math.inf, now()
        while one == math.inf or now() - start < 0.007:
            before = now()
            launch()
            one = min(one, now() - before)
        repeat, samples, start = max(1, math.ceil(20e-6 / one)), [], now()
        while not samples or (len(samples) < 7 or now() - start < 0.033) and now() - start < self.seconds:
            before = now()
            for _ in range(repeat):
                launch()
            samples.append((now() - before) / repeat)
        # A library's threads look for work for a while after it is done, where those of whose turn is next are to run.
        time.sleep(self.rest)
        return statistics.median(samples) * 1e9


def ready(row, threads, seconds):
    """The row's rivals that this machine has, by name, ready to take turns."""
    turns = {}
    for peer, rival in row.rivals.items():
        if peer.startswith("onnxruntime") and onnxruntime is None or peer.startswith("zentorch") and zentorch is None:
            continue
        try:
            turns[peer] = Turns(rival(threads), threads, seconds)
            turns[peer].launch()
        except Exception as error:  # a library may lack a form; the row then has one rival fewer
            print(f"{peer}: {row.problem}: {str(error).splitlines()[0][:150]}", file=sys.stderr)
            turns.pop(peer, None)
    return turns


def taken_in_turns(kp, rivals):
    """Of each kernel of kp: the rival that comes out best beside it, the median of its times, and that of the ratios."""
    theirs, ours = [], []
    for said in kp:
        ours.append(said)
        theirs.append({peer: turns.median_ns() for peer, turns in rivals.items()})
    between = [{peer: (ns + after[peer]) / 2 for peer, ns in before.items()} for before, after in zip(theirs, theirs[1:])]
    best = {}
    for kernel in ours[-1] if ours else ():
        ratios = {peer: statistics.median(r[peer] / o[kernel] for r, o in zip(between, ours[1:])) for peer in rivals}
        peer = min(ratios, key=ratios.get)
        best[kernel] = peer, statistics.median(r[peer] for r in between), ratios[peer]
    return best


def measure(args, name, rows, method, threads):
    """One row after the other. A record's first line, which says on what, is that of its first row."""
    suite = f"peers-{name}-{method}-{threads}t" + ("-avx2" if WITHOUT else "")
    environment = os.environ | {"KP_DEVICE": "cpu", "KP_THREADS": str(threads)}
    options = ["--method", method, "--best", str(args.best), "--turns", str(TURNS), "--budget", f"{args.seconds * TURNS}s"]
    path, lines, done = None, [], {}
    for row in rows:
        rivals = ready(row, threads, args.seconds)
        if not rivals:
            print(f"nobody to set beside kp: {row.problem}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            with beside.KpInTurns(args.kp, folder, suite, row.problem, options, environment) as kp:
                ratios = taken_in_turns(kp, rivals)
            record = beside.set_ratios(folder, suite, ratios)
            header, *rows_of_it = record.read_text().splitlines()
            done[row.problem] = [json.loads(line) for line in rows_of_it]
            if path is None:
                path, lines = args.out / record.relative_to(folder), [header]
            lines += rows_of_it
        # After each row, so that a run that is cut off has done something.
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(line + "\n" for line in lines))
    return done


def run(args, threads):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    torch.set_num_threads(threads)
    count = 0
    for name in args.families or FAMILIES:
        rows, done = [row for row in FAMILIES[name]() if args.only in row.problem], {}
        for method in (args.method,) if args.method else ("repeat", "rotate"):
            some = [row for row in rows if row.cold == (method == "rotate")]
            if some:
                done |= measure(args, name, some, method, threads)
        if done:
            beside.print_rows(f"{name}, {threads} threads", done)
        count += len(done)
    if not count:
        raise ValueError(f"no row of these families contains {args.only!r} and is timed by {args.method or 'either method'}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kp")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, a run for each")
    parser.add_argument("--only", default="", help="problems that contain this")
    parser.add_argument("--method", choices=("repeat", "rotate"), help="rows that are timed so; all if none is named")
    parser.add_argument("--best", type=int, default=3, help="candidates of kp to time, of those that rank first")
    parser.add_argument("--seconds", type=float, default=0.1, help="of a turn at most, of one launch at least")
    args = parser.parse_intermixed_args()
    if unknown := set(args.families) - set(FAMILIES):
        parser.error(f"no family is called {', '.join(sorted(unknown))}; there are {', '.join(FAMILIES)}")
    args.out.mkdir(parents=True, exist_ok=True)
    for threads in map(int, args.threads.split(",")):
        # Each run in a process of its own, whose threads inherit the cores it may use. It ends without a word to PyTorch's threads,
        # which were not forked with it and would be waited for.
        if (child := os.fork()) == 0:
            try:
                run(args, threads)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            sys.exit(f"the run with {threads} threads failed")


if __name__ == "__main__":
    main()

"""kp through Vulkan beside PyTorch on one NVIDIA GPU, as records.

    python3 vulkan.py KP OUT [--seconds N] [--only PART] [FAMILY ...]

KP is the program `kp` built with the feature `vulkan`, OUT the folder that the records go into. Families: gemm, attention, few_rows,
decode, rows, quantize, elements; all if none is named. Needs PyTorch, Triton, the GPU and a Vulkan loader that finds its driver.

Products and prefill have PyTorch's own as a rival (cuBLAS, and cuDNN's attention), one launch at a time after the L2 cache was
overwritten, as `nvidia_gemm.py` does. What moves more than it computes has a copy of as many bytes by PyTorch, read and written, so that
`ratio` is the share of the bandwidth; its operands exceed every cache, and launches follow each other in recordings. A rival is timed before and after
kp, and its time is the mean of the two medians; a copy after kp. `--seconds` ends the run early: what is left out is named.
"""

import argparse, json, os, pathlib, time
import torch, torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
import beside
from nvidia_gemm import median_ns, numbers

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


def product(dtype, n, order):
    a, b = numbers(n, n, dtype=DTYPES[dtype]), numbers(n, n, dtype=DTYPES[dtype])
    return (lambda: F.linear(a, b)) if order == "col" else (lambda: a @ b)


def attention(dtype, causal):
    q, k, v = (numbers(1, 16, 4096, 128, dtype=DTYPES[dtype]) for _ in range(3))

    def run():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return run


def order_of(order):
    return " b=col" if order == "col" else ""


def mask_of(causal):
    return " mask=causal" if causal else ""


# Families with rivals of their own: problem → peer, and what makes its function.
RIVALS = {
    "gemm": {
        f"gemm 1x{n}x{n}x{n} {t}:{t}:{t}{order_of(order)}": ("torch linear", lambda t=t, n=n, order=order: product(t, n, order))
        for t in DTYPES
        for n in (4096, 8192)
        for order in ("col", "row")
    },
    "attention": {
        f"attention 1x16x4096x128 {t}:{t}:{t}{mask_of(causal)}": ("torch cudnn", lambda t=t, causal=causal: attention(t, causal))
        for t in DTYPES
        for causal in (False, True)
    },
}

# Those whose bar is a copy.
COPIES = {
    "few_rows": [
        f"gemm 1x{m}x{n}x8192 {formats}:f16 b=col"
        for n, formats in [(16384, "f16:f16")] + [(32768, f"f16:{b}") for b in ("i4@g128/f16", "nf4@g64/f32", "e2m1@mx", "e2m1@nv")]
        for m in (1, 8)
    ],
    "decode": [
        "attention 1x32:8x1:65536x128 f16:f16:f16",
        "attention 1x32:8x1:65536x128 bf16:bf16:bf16",
        "attention 4x32x1:65536x128 f16:f16:f16",
    ],
    "rows": [
        "norm 16384x8192 bf16:bf16 kind=rms weight=bf16",
        "norm 16384x8192 bf16:bf16 kind=rms weight=bf16 residual",
        "norm 65536x4096 f16:f16 kind=layer weight=f16 bias=f16",
        "softmax 16384x8192 bf16:bf16",
        "reduce 16384x8192 bf16:f32 op=sum",
        "reduce 16384x8192 bf16:f32 op=sum over=rows",
    ],
    "quantize": [f"quantize 16384x8192 bf16:{q}" for q in ("e4m3@row", "e4m3@1x128", "e4m3@tensor", "i8@row", "e2m1@mx", "e2m1@nv")]
    + ["quantize 16384x8192 f16:i4@g128/f16"],
    "elements": [
        "activation 16384x8192 bf16:bf16 act=silu gate=halves",
        "activation 16384x8192 f16:f16 act=gelu",
        "cast 1x16384x8192 f32:bf16",
        "cast 1x16384x8192 bf16:f32",
        "cast 1x16384x8192 f16:e4m3",
        "dequantize 16384x8192 e4m3@1x128:bf16",
        "dequantize 32768x8192 i4@g128/f16:f16",
        "dequantize 32768x8192 e2m1@mx:bf16",
        "gather 16384x8192 bf16:bf16 from=16384",
        "rope 16384x32x128 bf16:bf16 positions=16384",
    ],
}


def copy_ns(nbytes, args):
    """Of a copy that reads and writes so many bytes together."""
    source = torch.empty(max(1, nbytes // 2), dtype=torch.uint8, device="cuda").random_(0, 256)
    target = torch.empty_like(source)
    return median_ns(lambda: target.copy_(source), "graph", args)


def run_kp(args, suite, problems, method):
    options = ["--method", method, "--best", str(args.best), "--budget", f"{args.budget}ms", "--warm", f"{args.warm}ms"]
    # Of several cards, KP_DEVICE=vulkan:1 and CUDA_VISIBLE_DEVICES=1 name the same one.
    environment = {"KP_DEVICE": "vulkan"} | os.environ
    beside.run_kp(args.kp, args.out, suite, problems, options, environment)


def beside_rivals(args, name):
    suite, made = f"peers-vulkan-{name}", {problem: how for problem, how in RIVALS[name].items() if args.only in problem}

    def times():
        taken = {}
        for problem, (peer, make) in made.items():
            taken[problem] = (peer, median_ns(make(), "flush", args))
            torch.cuda.empty_cache()
        return taken

    before = times()
    run_kp(args, suite, before, "flush")
    mean = {problem: (peer, (ns + before[problem][1]) / 2) for problem, (peer, ns) in times().items()}
    return beside.merge(args.out, suite, mean)


def beside_copies(args, name):
    suite, problems = f"peers-vulkan-{name}", [problem for problem in COPIES[name] if args.only in problem]
    run_kp(args, suite, dict.fromkeys(problems), "graph")
    path = max(args.out.glob(f"*/*-{suite}.jsonl"))
    rows = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    moved = {row["problem"]: round(row["gbs"] * row["median_ns"]) for row in rows}
    taken = {}
    for problem, nbytes in moved.items():
        taken[problem] = ("torch copy", copy_ns(nbytes, args))
        torch.cuda.empty_cache()
    return beside.merge(args.out, suite, taken)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kp")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--best", type=int, default=2, help="candidates of kp to time, of those that rank first")
    parser.add_argument("--budget", type=int, default=60, help="milliseconds for the samples of each")
    parser.add_argument("--warm", type=int, default=600, help="milliseconds of the problem before each time: a card that waited for operands is slow for half of it")
    parser.add_argument("--only", default="", metavar="PART", help="problems whose text contains this")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    args = parser.parse_intermixed_args()
    end = time.monotonic() + args.seconds
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.families or [*RIVALS, *COPIES]:
        if time.monotonic() < end:
            beside.print_rows(name, beside_rivals(args, name) if name in RIVALS else beside_copies(args, name))
        else:
            print(f"{name}: left out, the time is over")


if __name__ == "__main__":
    main()

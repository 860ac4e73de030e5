"""Matrix products of kp beside PyTorch's on one NVIDIA GPU, as records.

    python3 nvidia_gemm.py KP OUT [--seconds N] [FAMILY ...]

KP is the program `kp`, OUT the folder that the records go into. Families: bf16, f16, tensor, row, block, grouped; all but f16
if none is named. Needs PyTorch, Triton and the GPU.

Short problems are timed by replays of a graph, the others one launch at a time after the L2 cache was overwritten; kp and its
rival the same way, on numbers of the same distribution. Before each time either repeats the problem for `--warm` milliseconds, and
neither rests between samples, so that both meet the card at the clocks that its power limit leaves. The rival is timed before and
after kp, and its time is the mean of the two medians. kp's candidate that calls cuBLASLt is timed too, however it ranks: it tells
what the two ways of timing differ by. `--seconds` ends the run early: what is left out is named.
"""

import argparse, pathlib, sys, time
import torch, torch.nn.functional as F
from triton.testing import do_bench, do_bench_cudagraph
import beside

E4M3, BF16, F16 = torch.float8_e4m3fn, torch.bfloat16, torch.float16

SQUARES = [(n, n, n) for n in (512, 1024, 2048, 4096, 8192, 16384)]
DEEPSEEK = [(2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)]
LLAMA = [(6144, 4096), (28672, 4096), (4096, 14336), (10240, 8192), (57344, 8192), (8192, 28672)]
ROWS = SQUARES + [(m, n, k) for m in (64, 128, 4096) for n, k in DEEPSEEK]
ROWS += [(m, n, k) for m in (1, 16, 128, 2048, 8192) for n, k in LLAMA]
# Groups, rows in all, n, k.
GROUPED = [(8, m, 4096, 7168) for m in (2048, 16384)]

# As many operations are timed one launch at a time, fewer in a graph.
SHORT = 4e10


def numbers(*shape, dtype):
    """What `kp bench` fills operands with: any sign and mantissa, powers of two from 1/16 to 1/2."""
    power = torch.randint(-4, 0, shape, device="cuda", dtype=torch.int8)
    # Built in slices, since f32 intermediates of the largest operands would not fit beside them.
    out = torch.empty(shape, device="cuda", dtype=dtype)
    rows = max(1, (1 << 27) // max(1, out[0].numel()))
    for i in range(0, shape[0], rows):
        part = power[i : i + rows].float()
        sign = torch.randint(0, 2, part.shape, device="cuda", dtype=torch.int8).float() * 2 - 1
        out[i : i + rows] = (torch.ldexp(1 + torch.rand_like(part), part) * sign).to(dtype)
    return out


def dense(dtype):
    def rival(m, n, k):
        a, b = numbers(m, k, dtype=dtype), numbers(n, k, dtype=dtype)
        return lambda: F.linear(a, b)

    return rival


def scaled(scales, fast):
    def rival(m, n, k):
        a, b = numbers(m, k, dtype=E4M3), numbers(n, k, dtype=E4M3)
        sa, sb = scales(m, n, k)
        return lambda: torch._scaled_mm(a, b.t(), sa, sb, out_dtype=BF16, use_fast_accum=fast)

    return rival


def positive(*shape):
    return torch.rand(*shape, device="cuda") + 0.5


def grouped(groups, m, n, k):
    a, b = numbers(m, k, dtype=BF16), numbers(groups, n, k, dtype=BF16)
    ends = torch.arange(1, groups + 1, device="cuda", dtype=torch.int32) * (m // groups)
    return lambda: torch._grouped_mm(a, b.transpose(-2, -1), offs=ends)


class Family:
    def __init__(self, peer, rival, problem, rows):
        self.peer, self.rival, self.problem, self.rows = peer, rival, problem, rows


def gemm(formats):
    return lambda m, n, k: f"gemm 1x{m}x{n}x{k} {formats} b=col"


SCALED = [row for row in ROWS if row[0] >= 16]
BLOCKS = [row for row in SCALED if row[1] % 128 == 0 and row[2] % 128 == 0]
FAMILIES = {
    "bf16": Family("torch linear", dense(BF16), gemm("bf16:bf16:bf16"), ROWS),
    "f16": Family("torch linear", dense(F16), gemm("f16:f16:f16"), SQUARES),
    "block": Family(
        "torch _scaled_mm",
        scaled(lambda m, n, k: (positive(k // 128, m).t(), positive(n // 128, k // 128).t()), False),
        gemm("e4m3@1x128^outer:e4m3@128x128:bf16"),
        BLOCKS,
    ),
    "tensor": Family(
        "torch _scaled_mm",
        scaled(lambda m, n, k: (positive(()), positive(())), True),
        lambda m, n, k: gemm("e4m3@tensor:e4m3@tensor:bf16")(m, n, k) + " acc=f32fast",
        SCALED,
    ),
    "row": Family(
        "torch _scaled_mm",
        scaled(lambda m, n, k: (positive(m, 1), positive(1, n)), True),
        lambda m, n, k: gemm("e4m3@row:e4m3@row:bf16")(m, n, k) + " acc=f32fast",
        SCALED,
    ),
    "grouped": Family(
        "torch _grouped_mm", grouped, lambda g, m, n, k: f"grouped_gemm {g}x{m}x{n}x{k} bf16:bf16:bf16 b=col", GROUPED
    ),
}


def operations(row):
    m, n, k = row[-3:]
    return 2 * m * n * k


def median_ns(run, method, warm):
    run()
    torch.cuda.synchronize()
    start = time.monotonic()
    while time.monotonic() - start < warm / 1e3:
        for _ in range(8):
            run()
        torch.cuda.synchronize()
    if method == "graph":
        return do_bench_cudagraph(run, rep=10, return_mode="median") * 1e6
    return do_bench(run, warmup=5, rep=30, return_mode="median") * 1e6


def rivals(family, rows, method, warm):
    times = {}
    for row in rows:
        try:
            times[row] = median_ns(family.rival(*row), method, warm)
        except Exception as error:  # a library may refuse a shape; the row then has no rival
            print(f"{family.peer} {row}: {str(error).splitlines()[0][:150]}", file=sys.stderr)
        torch.cuda.empty_cache()
    return times


def measure(args, name, family, method, rows, folder):
    suite = f"peers-{name}-{method}"
    peer = lambda times: {family.problem(*row): (family.peer, ns) for row, ns in times.items()}
    before = rivals(family, rows, method, args.warm)
    options = ["--method", method, "--best", str(args.best), "--beside", "cublaslt#0"]
    options += ["--budget", args.budget, "--warm", f"{args.warm}ms"]
    beside.run_kp(args.kp, folder, suite, peer(before), options)
    after = rivals(family, rows, method, args.warm)
    return beside.merge(folder, suite, peer({row: (ns + after[row]) / 2 for row, ns in before.items() if row in after}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kp")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--best", type=int, default=6, help="candidates of kp to time, of those that rank first")
    parser.add_argument("--budget", default="60ms", help="time for the samples of each")
    parser.add_argument("--warm", type=int, default=60, help="milliseconds of the problem before each time")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    args = parser.parse_intermixed_args()
    end = time.monotonic() + args.seconds
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.families or [name for name in FAMILIES if name != "f16"]:
        family, done = FAMILIES[name], {}
        for method in ("graph", "flush"):
            rows = [row for row in family.rows if (operations(row) < SHORT) == (method == "graph")]
            if rows and time.monotonic() < end:
                done |= measure(args, name, family, method, rows, args.out)
            elif rows:
                print(f"{name}: {len(rows)} rows left out, the time is over")
        beside.print_rows(name, done)


if __name__ == "__main__":
    main()

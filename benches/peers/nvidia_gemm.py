"""Matrix products of kp beside PyTorch's on one NVIDIA GPU, as records.

    python3 nvidia_gemm.py KP OUT [--method graph|flush] [--seconds N] [FAMILY ...]

KP is the program `kp`, OUT the folder that the records go into. Families: bf16, f16, tensor, row, block, grouped; tensor_promoted and
row_promoted, whose sums of 8-bit floats are kept in full f32; gelu, with bias and activation, against what torch.compile tunes. If none
is named, those of which there are records of all rows: bf16, tensor, row, block, grouped. Needs PyTorch, Triton and the GPU.

Short problems are timed by replays of a graph, the others one launch at a time after the L2 cache was overwritten; kp and its
rival the same way, on numbers of the same distribution. A card at its power limit is faster after a rest of a few milliseconds than at work,
by up to 16%, and takes a second to settle. So neither rests between samples, and the rival is at work for as long as all of kp's
candidates together, in as many turns. It is timed before and after kp, and its time is the mean of the two medians. kp's candidate that
calls cuBLASLt is timed too, however it ranks: it tells what the two ways of timing differ by. `--seconds` ends the run early: what is
left out is named.
"""

import argparse, functools, pathlib, statistics, sys, time
import torch, torch.nn.functional as F
import beside

E4M3, BF16, F16 = torch.float8_e4m3fn, torch.bfloat16, torch.float16

SQUARES = [(n, n, n) for n in (512, 1024, 2048, 4096, 8192, 16384)]
DEEPSEEK = [(2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)]
LLAMA = [(6144, 4096), (28672, 4096), (4096, 14336), (10240, 8192), (57344, 8192), (8192, 28672)]
ROWS = SQUARES + [(m, n, k) for m in (64, 128, 4096) for n, k in DEEPSEEK]
ROWS += [(m, n, k) for m in (1, 16, 128, 2048, 8192) for n, k in LLAMA]
# Groups, rows in all, n, k.
GROUPED = [(8, m, 4096, 7168) for m in (2048, 16384)]

DEFAULT = ["bf16", "block", "tensor", "row", "grouped"]

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


@functools.cache
def tuned_linear_gelu():
    linear_gelu = lambda a, b, bias: F.gelu(F.linear(a, b, bias), approximate="tanh")
    return torch.compile(linear_gelu, mode="max-autotune-no-cudagraphs", dynamic=False)


def linear_gelu(m, n, k):
    a, b, bias = numbers(m, k, dtype=BF16), numbers(n, k, dtype=BF16), numbers(n, dtype=BF16)
    return lambda: tuned_linear_gelu()(a, b, bias)


def scaled(scales, fast):
    def rival(m, n, k):
        a, b = numbers(m, k, dtype=E4M3), numbers(n, k, dtype=E4M3)
        sa, sb = scales(m, n, k)
        return lambda: torch._scaled_mm(a, b.t(), sa, sb, out_dtype=BF16, use_fast_accum=fast)

    return rival


def by_tensor(m, n, k):
    return positive(()), positive(())


def by_row(m, n, k):
    return positive(m, 1), positive(1, n)


def positive(*shape):
    return torch.rand(*shape, device="cuda") + 0.5


def grouped(groups, m, n, k):
    a, b = numbers(m, k, dtype=BF16), numbers(groups, n, k, dtype=BF16)
    ends = torch.arange(1, groups + 1, device="cuda", dtype=torch.int32) * (m // groups)
    return lambda: torch._grouped_mm(a, b.transpose(-2, -1), offs=ends)


class Family:
    def __init__(self, peer, rival, problem, rows):
        self.peer, self.rival, self.problem, self.rows = peer, rival, problem, rows


def gemm(formats, more=""):
    return lambda m, n, k: f"gemm 1x{m}x{n}x{k} {formats} b=col{more}"


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
        scaled(by_tensor, True),
        gemm("e4m3@tensor:e4m3@tensor:bf16", " acc=f32fast"),
        SCALED,
    ),
    "row": Family(
        "torch _scaled_mm",
        scaled(by_row, True),
        gemm("e4m3@row:e4m3@row:bf16", " acc=f32fast"),
        SCALED,
    ),
    "tensor_promoted": Family("torch _scaled_mm", scaled(by_tensor, False), gemm("e4m3@tensor:e4m3@tensor:bf16"), SCALED),
    "row_promoted": Family("torch _scaled_mm", scaled(by_row, False), gemm("e4m3@row:e4m3@row:bf16"), SCALED),
    "gelu": Family(
        "torch.compile", linear_gelu, gemm("bf16:bf16:bf16", " bias=bf16 act=gelu_tanh"),
        [(4096, 4096, 4096), (8192, 8192, 8192), (128, 28672, 4096)],
    ),
    "grouped": Family(
        "torch _grouped_mm", grouped, lambda g, m, n, k: f"grouped_gemm {g}x{m}x{n}x{k} bf16:bf16:bf16 b=col", GROUPED
    ),
}


def operations(row):
    m, n, k = row[-3:]
    return 2 * m * n * k


# Kernels take turns, so many.
TURNS = 3
# Bytes that are written over the cache.
FLUSHED = 256 << 20


@functools.cache
def side_stream():
    return torch.cuda.Stream()


class Replays:
    """Milliseconds of one of the launches of a recording, which takes 2 ms at least."""

    def __init__(self, run):
        # Of a short launch by itself the host would set the time.
        few = self.recorded(run, 10)
        one = min(self.timed(few.replay) for _ in range(3)) / 10
        self.launches = max(10, int(2 / one) + 1)
        self.graph = self.recorded(run, self.launches)

    @staticmethod
    def recorded(run, launches):
        graph, stream = torch.cuda.CUDAGraph(), side_stream()
        stream.wait_stream(torch.cuda.current_stream())
        # What a library allocates for a stream, it allocates at its first call there.
        with torch.cuda.stream(stream):
            run()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(launches):
                run()
        return graph

    @staticmethod
    def timed(run):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end)

    def warm(self):
        self.graph.replay()
        torch.cuda.synchronize()

    def sample(self):
        return [self.timed(self.graph.replay) / self.launches]


class Launches:
    """Milliseconds of launches, each after the cache was overwritten; the device does not wait for the host between them."""

    def __init__(self, run):
        self.run, self.over = run, torch.empty(FLUSHED, device="cuda", dtype=torch.uint8)
        self.burst = min(16, max(1, int(10 / min(Replays.timed(run) for _ in range(3)))))

    def warm(self):
        for _ in range(self.burst):
            self.run()
        torch.cuda.synchronize()

    def sample(self):
        marks = []
        for _ in range(self.burst):
            self.over.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            self.run()
            end.record()
            marks.append((begin, end))
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in marks]


def median_ns(run, method, args):
    """The rival takes the turns of all of kp's candidates, one after the other as they do."""
    run()
    torch.cuda.synchronize()
    clock, samples = (Replays if method == "graph" else Launches)(run), []
    for _ in range(TURNS * (args.best + 1)):
        start = time.monotonic()
        while time.monotonic() - start < args.warm / TURNS / 1e3:
            clock.warm()
        start = time.monotonic()
        while not samples or time.monotonic() - start < args.budget / TURNS / 1e3:
            samples += clock.sample()
    return statistics.median(samples) * 1e6


def rivals(family, rows, method, args):
    times = {}
    for row in rows:
        try:
            times[row] = median_ns(family.rival(*row), method, args)
        except Exception as error:  # a library may refuse a shape; the row then has no rival
            print(f"{family.peer} {row}: {str(error).splitlines()[0][:150]}", file=sys.stderr)
        torch.cuda.empty_cache()
    return times


def measure(args, name, family, method, rows, folder):
    suite = f"peers-{name}-{method}"
    peer = lambda times: {family.problem(*row): (family.peer, ns) for row, ns in times.items()}
    before = rivals(family, rows, method, args)
    options = ["--method", method, "--best", str(args.best), "--beside", "cublaslt#0"]
    options += ["--budget", f"{args.budget}ms", "--warm", f"{args.warm}ms"]
    beside.run_kp(args.kp, folder, suite, peer(before), options)
    after = rivals(family, rows, method, args)
    return beside.merge(folder, suite, peer({row: (ns + after[row]) / 2 for row, ns in before.items() if row in after}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kp")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--best", type=int, default=6, help="candidates of kp to time, of those that rank first")
    parser.add_argument("--budget", type=int, default=60, help="milliseconds for the samples of each")
    parser.add_argument("--warm", type=int, default=60, help="milliseconds of the problem before each time")
    parser.add_argument("--method", choices=["graph", "flush"], help="only the short problems, or only the others")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    args = parser.parse_intermixed_args()
    end = time.monotonic() + args.seconds
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.families or DEFAULT:
        family, done = FAMILIES[name], {}
        for method in [args.method] if args.method else ["graph", "flush"]:
            rows = [row for row in family.rows if (operations(row) < SHORT) == (method == "graph")]
            if rows and time.monotonic() < end:
                done |= measure(args, name, family, method, rows, args.out)
            elif rows:
                print(f"{name}: {len(rows)} rows left out, the time is over")
        beside.print_rows(name, done)


if __name__ == "__main__":
    main()

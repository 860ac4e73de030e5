"""kp beside a rival: what the scripts of this folder share. A row is one problem and the rival's time on it."""

import json, math, pathlib, subprocess, sys

# A record names the commit of the folder that kp runs in.
HOME = pathlib.Path(__file__).resolve().parents[2]


def run_kp(kp, folder, suite, times, options, environment=None):
    """Times kp with `options` on the problems of `times` (problem → peer, nanoseconds, or None if they come later) and keeps the record
    below `folder`."""
    kp, folder = str(pathlib.Path(kp).resolve()), folder.resolve()
    file = folder / f"{suite}.txt"
    file.write_text("".join(problem + "\n" for problem in times))
    peers = folder / "peers.jsonl"
    known = ((problem, *time) for problem, time in times.items() if time)
    lines = ({"problem": problem, "peer": peer, "peer_ns": ns} for problem, peer, ns in known)
    peers.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [kp, "bench", str(file), *options, "--peers", str(peers), "--record", str(folder), "--quiet", "--no-check", "--json"]
    # The record has what is printed.
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment, cwd=HOME)


def merge(folder, suite, times):
    """Puts the rivals' times (problem → peer, nanoseconds), which are final now, into the record; answers its rows by problem."""
    path = max(folder.glob(f"*/*-{suite}.jsonl"))
    header, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    by_problem = {}
    for row in rows:
        if row["problem"] in times:
            peer, ns = times[row["problem"]]
            row["peer"], row["peer_ns"], row["ratio"] = peer, round(ns), float(f"{ns / row['median_ns']:.4g}")
            by_problem.setdefault(row["problem"], []).append(row)
    for problem in times.keys() - by_problem:
        print(f"kp timed nothing of {problem}: `kp bench` says why", file=sys.stderr)
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *rows]))
    return by_problem


class KpInTurns:
    """kp with `options` on one problem, which yields to what this program does before each of its turns and after the last: iterate over
    the medians of its turns, by kernel with variant, of which the first are of no turn."""

    def __init__(self, kp, folder, suite, problem, options, environment):
        file = folder.resolve() / f"{suite}.txt"
        file.write_text(problem + "\n")
        kp = str(pathlib.Path(kp).resolve())
        command = [kp, "bench", str(file), *options, "--yield", "--record", str(folder.resolve()), "--quiet", "--no-check"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=HOME)

    def __enter__(self):
        return self

    def __iter__(self):
        for line in self.process.stdout:
            # Between them and after them stands what a person would read.
            if line.startswith("{"):
                yield json.loads(line)
                self.process.stdin.write("\n")
                self.process.stdin.flush()

    def __exit__(self, *error):
        self.process.stdin.close()
        self.process.stdout.close()
        if self.process.wait() != 0 and error[0] is None:
            raise subprocess.CalledProcessError(self.process.returncode, self.process.args)


def set_ratios(folder, suite, ratios):
    """Puts rivals (kernel with variant → peer, nanoseconds, ratio) into the record of one problem, and answers its path."""
    path = max(folder.glob(f"*/*-{suite}.jsonl"))
    header, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        peer, ns, ratio = ratios[f"{row['kernel']}#{row['variant']}"]
        row["peer"], row["peer_ns"], row["ratio"] = peer, round(ns), float(f"{ratio:.4g}")
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *rows]))
    return path


# Candidates of kp that are somebody else's code.
LIBRARIES = {"cublaslt"}


def print_rows(name, by_problem):
    """kp's fastest of each problem, then the family's mean and least; and those of kp's own code where a library's was faster."""
    ratio = lambda row: row["ratio"]
    fastest = [max(rows, key=ratio) for rows in by_problem.values()]
    for row in fastest:
        kernel = f"{row['kernel']}#{row['variant']}"
        rates = f"{row['tflops'] or 0:9.3f} TFLOP/s {row['gbs'] or 0:7.1f} GB/s"
        print(f"{row['problem']:75} {kernel:24} {rates}  {row['ratio']:6.3f}  {row['peer']}")
    own = [[row for row in rows if row["kernel"] not in LIBRARIES] for rows in by_problem.values()]
    own = [max(rows, key=ratio) for rows in own if rows]
    for whose, rows in [("", fastest)] + ([("own kernels, ", own)] if own != fastest else []):
        if rows:
            mean = math.prod(map(ratio, rows)) ** (1 / len(rows))
            least = min(rows, key=ratio)
            print(f"{name}: {whose}{len(rows)} rows, mean {mean:.3f}, least {least['ratio']:.3f} ({least['problem']})")
    sys.stdout.flush()

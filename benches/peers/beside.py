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

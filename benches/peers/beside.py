"""kp beside a rival: what the scripts of this folder share. A row is one problem and the rival's time on it."""

import json, subprocess, sys


def run_kp(kp, folder, suite, times, method, best, budget, environment=None):
    """Times kp on the problems of `times` (problem → peer, nanoseconds) and keeps the record below `folder`."""
    file = folder / f"{suite}.txt"
    file.write_text("".join(problem + "\n" for problem in times))
    peers = folder / "peers.jsonl"
    lines = ({"problem": problem, "peer": peer, "peer_ns": ns} for problem, (peer, ns) in times.items())
    peers.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [kp, "bench", str(file), "--method", method, "--best", str(best), "--budget", budget]
    command += ["--peers", str(peers), "--record", str(folder), "--quiet", "--no-check", "--json"]
    # The record has what is printed.
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)


def merge(folder, suite, times):
    """Puts the rivals' times (problem → peer, nanoseconds), which are final now, into the record; answers kp's fastest of each row."""
    path = max(folder.glob(f"*/*-{suite}.jsonl"))
    header, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    fastest = {}
    for row in rows:
        problem = row["problem"]
        if problem not in times:
            continue
        peer, ns = times[problem]
        row["peer"], row["peer_ns"], row["ratio"] = peer, round(ns), float(f"{ns / row['median_ns']:.4g}")
        if problem not in fastest or row["ratio"] > fastest[problem]["ratio"]:
            fastest[problem] = row
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *rows]))
    return fastest


def print_rows(name, fastest):
    """One line a row, then the family's mean and least."""
    for problem, row in fastest.items():
        kernel = f"{row['kernel']}#{row['variant']}"
        rates = f"{row['tflops'] or 0:9.3f} TFLOP/s {row['gbs'] or 0:7.1f} GB/s"
        print(f"{problem:75} {kernel:22} {rates}  {row['ratio']:6.3f}  {row['peer']}")
    if fastest:
        product = 1.0
        for row in fastest.values():
            product *= row["ratio"]
        least = min(fastest.values(), key=lambda row: row["ratio"])
        mean = product ** (1 / len(fastest))
        print(f"{name}: {len(fastest)} rows, mean {mean:.3f}, least {least['ratio']:.3f} ({least['problem']})")
    sys.stdout.flush()

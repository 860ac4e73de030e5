"""What records say of kp beside its rivals, a line a record.

    python3 summary.py [--roofline] RECORD...

The mean is geometric, over each problem's fastest kernel; `own` leaves out candidates that are somebody else's code. `untuned` is how
many times as long as the fastest takes what ranked first: mean and worst. With `--roofline` a line follows for each problem: its fastest
kernel, the ratio, and the part of the roofline that it reaches.
"""

import argparse, json, math, pathlib
from beside import LIBRARIES


def mean(numbers):
    numbers = list(numbers)
    return math.prod(numbers) ** (1 / len(numbers))


def read(path):
    """The header, all rows, and these by problem."""
    header, *rows = map(json.loads, path.read_text().splitlines())
    problems = {}
    for row in rows:
        problems.setdefault(row["problem"], []).append(row)
    return header, rows, problems


def fastest(rows):
    return min(rows, key=lambda row: row["median_ns"])


def parts_of_roofline(path):
    for row in map(fastest, read(path)[2].values()):
        kernel = f"{row['kernel']}#{row['variant']}"
        print(f"    {row['problem']:80} {kernel:24} {row['ratio'] or math.nan:6.3f} {row['roofline']:6.1%}")


def summary(path):
    header, rows, problems = read(path)
    ratios = lambda rows: [row for row in rows if row["ratio"] is not None]
    parts = [f"{header['suite']} of {header['commit']}"]
    own = [[row for row in rows if row["kernel"] not in LIBRARIES] for rows in problems.values()]
    for whose, candidates in ("", list(problems.values())), ("own ", [rows for rows in own if rows]):
        best = ratios(map(fastest, candidates))
        if best:
            least = min(best, key=lambda row: row["ratio"])
            of = f"{len(best)} rows, mean" if not whose else f"{whose}mean"
            parts.append(f"{of} {mean(row['ratio'] for row in best):.3f}, least {least['ratio']:.3f} ({least['problem'].split()[1]})")
    first = [(row, problems[row["problem"]]) for row in rows if row.get("rank") == 1]
    over = {row["problem"]: row["median_ns"] / fastest(others)["median_ns"] for row, others in first}
    if over:
        worst = max(over, key=over.get)
        parts.append(f"untuned {mean(over.values()):.3f}, worst {over[worst]:.3f} ({worst.split()[1]})")
    return "; ".join(parts)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--roofline", action="store_true")
    parser.add_argument("records", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    for path in args.records:
        print(summary(path))
        if args.roofline:
            parts_of_roofline(path)


if __name__ == "__main__":
    main()

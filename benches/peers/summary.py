"""What records say of kp beside its rivals, a line a record.

    python3 summary.py RECORD...

The mean is geometric, over each problem's fastest kernel; `own` leaves out candidates that are somebody else's code. `untuned` is how
many times as long as the fastest takes what ranked first: mean and worst.
"""

import argparse, json, math, pathlib
from beside import LIBRARIES


def mean(numbers):
    numbers = list(numbers)
    return math.prod(numbers) ** (1 / len(numbers))


def summary(path):
    header, *rows = map(json.loads, path.read_text().splitlines())
    problems = {}
    for row in rows:
        problems.setdefault(row["problem"], []).append(row)
    fastest = lambda rows: min(rows, key=lambda row: row["median_ns"])
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
    parser.add_argument("records", nargs="+", type=pathlib.Path)
    for path in parser.parse_args().records:
        print(summary(path))


if __name__ == "__main__":
    main()

#!/bin/sh
# Verifies and measures this machine. Needs no Rust.
#
#   ./run.sh                          conformance of every backend, then the suites smoke and dispatch
#   SUITES="attention x.txt" ./run.sh other suites, or files of problems
#   SUITES= ./run.sh                  conformance only
#   FILTER=gemm ./run.sh              tests whose names contain it
#   KP_DEVICE=cpu ./run.sh            benches on another device than the best
#   OUT=/somewhere ./run.sh           where results go; ./out otherwise
#
# Ends with 1 if a test fails or a bench finds a wrong result.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-out}
mkdir -p "$out" || exit 1
KP_COMMIT=$(cat "$here/commit")
export KP_COMMIT
failed=0

"$here/kp" info >"$out/info.txt" 2>&1 || failed=1
"$here/kp" info --json >"$out/info.json" || failed=1
cat "$out/info.txt"

for program in "$here"/conformance-*; do
    [ -x "$program" ] || continue
    name=$(basename "$program")
    # shellcheck disable=SC2086 # a filter may be several words
    if "$program" ${FILTER:-} >"$out/$name.txt" 2>&1; then verdict=ok; else verdict=FAILED failed=1; fi
    echo "$name: $verdict: $(grep -e '^test result' -e '^skipped' "$out/$name.txt" | tr '\n' ' ')"
done

for suite in ${SUITES-smoke dispatch}; do
    name=$(basename "$suite" .txt)
    if "$here/kp" bench "$suite" --quiet --record "$out/record" --report "$out/$name.html" >"$out/bench-$name.txt" 2>&1; then
        verdict=ok
    else
        verdict=FAILED failed=1
    fi
    echo "bench $name: $verdict, $(grep -c '#' "$out/bench-$name.txt") rows"
done
echo "results in $out"
exit "$failed"

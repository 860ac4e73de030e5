#!/bin/sh
# Verifies and measures this machine. Needs no Rust.
#
#   ./run.sh                          tests of every backend, their benches, then the suites smoke and dispatch
#   SUITES="attention x.txt" ./run.sh other suites, or files of problems
#   SUITES= BENCHES= ./run.sh         tests only
#   TESTS="conformance-kp-nvidia" ./run.sh   these tests instead of all; TESTS= for none
#   FILTER="gemm --test-threads 8" ./run.sh  arguments of test programs: of each, the tests whose names contain the word
#   KP_REQUIRE=nvidia ./run.sh        a missing device is a failure, not a skip
#   KP_DEVICE=cpu ./run.sh            suites on another device than the best
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

# The names of the programs that start with $1 and "-", without that.
programs() {
    for program in "$here/$1"-*; do
        [ -x "$program" ] && basename "$program" | cut -c $((${#1} + 2))-
    done
}

"$here/kp" info >"$out/info.txt" 2>&1 || failed=1
"$here/kp" info --json >"$out/info.json" || failed=1
cat "$out/info.txt"

for name in ${TESTS-$(programs test)}; do
    # shellcheck disable=SC2086 # several arguments
    if "$here/test-$name" ${FILTER:-} >"$out/$name.txt" 2>&1; then verdict=ok; else verdict=FAILED failed=1; fi
    echo "$name: $verdict: $(grep -e '^test result' -e '^skipped' "$out/$name.txt" | sort | uniq -c | tr -s '\n ' ' ')"
done

for name in ${BENCHES-$(programs bench)}; do
    if "$here/bench-$name" --bench >"$out/bench-$name.txt" 2>&1; then verdict=ok; else verdict=FAILED failed=1; fi
    echo "$name: $verdict"
    cat "$out/bench-$name.txt"
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

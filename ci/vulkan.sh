#!/usr/bin/env bash
# kp-vulkan on a machine without a GPU: the SPIR-V validator on every committed shader, then conformance on lavapipe, where every
# kernel runs but those of matrices that it does not list (of bf16, of 16x8x16), and a part of it under the
# validation layer. With arguments, those tests alone.
#
# The packages are Debian's, for x86-64: on another system this says so and succeeds, unless KP_REQUIRE names vulkan. Where
# they could be had and do not come, it fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. ci/lavapipe.sh
if ! why=$(suits_lavapipe); then
    echo "skipped: Vulkan on lavapipe, because $why"
    [[ ,${KP_REQUIRE:-}, != *,vulkan,* ]] || { echo "KP_REQUIRE asks for it"; exit 1; }
    exit 0
fi
mkdir -p target
bring_lavapipe
for shader in crates/kp-vulkan/src/spirv/*.spv; do
    $SPIRV_VAL --target-env vulkan1.3 "$shader" || { echo "$shader is not valid"; exit 1; }
done
# A driver that does not start must not look like a machine without one.
export KP_CACHE_DIR='' KP_REQUIRE=vulkan
# binary NAME: kp-vulkan's test of that name. Asked for beside all others it is the one that the tests made before; alone it would be
# built anew, with what it depends on, whose features are others then.
packages=(--workspace)
[ $# -eq 0 ] || packages=(-p kp-vulkan)
binary() {
    cargo test "${packages[@]}" --no-run --message-format=json 2>/dev/null |
        sed -n "s|.*kp-vulkan[#@].*\"name\":\"$1\".*\"executable\":\"\([^\"]*\)\".*|\1|p"
}
cargo test "${packages[@]}" --no-run
conformance=$(binary conformance)
random=$(binary random)
[ -x "$conformance" ] && [ -x "$random" ] || { echo "the tests of kp-vulkan were not built"; exit 1; }
conform() {
    $KP_LAVAPIPE "$conformance" --quiet "$@"
}
if [ $# -gt 0 ]; then
    conform --test-threads "$(nproc)" "$@"
    exit
fi
# Whether variants of products agree to the bit is left to a card: each problem compiles all of them again, 450 s of processor time.
echo "left out here: vulkan/gemm/agreed, vulkan/grouped_gemm/agreed"
# The kernels and chapters, the longest first, small ones together. Each has a process of its own, as many at a time as there are cores:
# in one process most of the driver's work waits for itself, whatever the number of threads. Most of it is compiling, so the driver
# optimizes only what is run for longer, or becomes smaller by it.
chapter() {
    GALLIVM_PERF=$1 $KP_LAVAPIPE "$conformance" --quiet --test-threads 1 "${@:2}"
}
export -f chapter
export conformance KP_LAVAPIPE
conform --list | sed -n 's/: test$//p' | sed 's|#.*|#|; s|^\([^/]*/[^/]*/[^/ #]*/\).*|\1|; s|^\([^/]*/[^/]*/\)[^/]* .*|\1|' |
    grep -Ev '^vulkan/(grouped_)?gemm/agreed/$' | sort | uniq -c | awk '
        # Hundredths of a second that a case takes.
        function cost(name) {
            return name ~ /weights/ ? 260 : name ~ /(attention|grouped_gemm).coopmat#/ ? 200 : name ~ /coopmat/ ? 50 : \
                name ~ /few_rows|norm|softmax|agreed|reduce/ ? 32 : name ~ /decode|backward|activation/ ? 24 : \
                name ~ /quantize|grouped/ ? 14 : 7
        }
        # What the driver is told.
        function told(name) {
            return name ~ /simt#|weights|attention.coopmat#/ ? "none" : "nopt"
        }
        $1 < 13 && $2 !~ /coopmat/ { few = few " " $2; next }
        { print $1 * cost($2), told($2), $2 }
        END { print 5000, "nopt", few }' |
    sort -rn | cut -d ' ' -f 2- | xargs -P "$(nproc)" -L 1 bash -c 'chapter "$@"' chapter
$KP_LAVAPIPE "$random" --list | sed -n 's/: test$//p' |
    GALLIVM_PERF=nopt xargs -P "$(nproc)" -n 1 $KP_LAVAPIPE "$random" --quiet --exact
GALLIVM_PERF=nopt KP_VULKAN_VALIDATION=1 conform --test-threads "$(nproc)" vulkan/memory vulkan/queues vulkan/capture vulkan/threads

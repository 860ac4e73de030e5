#!/usr/bin/env bash
# kp-vulkan on a machine without a GPU: the SPIR-V validator on every committed shader, then conformance on lavapipe, where every
# kernel runs but those of bf16 matrices. Where the packages do not come, it says why and succeeds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. ci/lavapipe.sh
mkdir -p target
if ! bring_lavapipe >target/ci-lavapipe.log 2>&1; then
    echo "skipped: Vulkan on lavapipe, because $(tail -n 1 target/ci-lavapipe.log)"
    exit 0
fi
for shader in crates/kp-vulkan/src/spirv/*.spv; do
    $SPIRV_VAL --target-env vulkan1.3 "$shader" || { echo "$shader is not valid"; exit 1; }
done
# Two at a time: most of it is one thread of the driver's, compiling.
KP_CACHE_DIR='' KP_REQUIRE=vulkan CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$KP_LAVAPIPE \
    cargo test -p kp-vulkan --test conformance -- --test-threads 2 "$@"

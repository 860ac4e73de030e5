#version 460

// y = act(x) · factor + residual, or act(g) · u · factor + residual, run of eight by run of eight.

#include "common/glsl/numbers.glsl"
#include "common/glsl/math.glsl"
#include "common/glsl/runs.glsl"

layout(constant_id = 0) const uint X_TYPE = 1u;
layout(constant_id = 1) const uint Y_TYPE = 1u;
layout(constant_id = 2) const uint FACTOR_TYPE = 1u;
layout(constant_id = 3) const uint RESIDUAL_TYPE = 1u;
layout(constant_id = 4) const uint ACT = 0u;
layout(constant_id = 5) const uint GATE = 0u;
// Bits: factor, residual.
layout(constant_id = 6) const uint FLAGS = 0u;
layout(constant_id = 7) const uint ACROSS = 32u;
layout(constant_id = 8) const uint DEEP = 1u;
// Whether rows of every operand are whole runs, loaded and stored at once.
layout(constant_id = 9) const uint AT_ONCE = 0u;
layout(local_size_x = 256) in;

const uint HAS_FACTOR = 1u, HAS_RESIDUAL = 2u;
const uint GATE_NONE = 0u, GATE_HALVES = 1u, GATE_PAIRS = 2u;

layout(push_constant, std430) uniform Push {
    uint64_t x;
    uint64_t y;
    uint64_t factor;
    uint64_t residual;
    uint rows;
    uint cols;
    uint x_ld;
    uint y_ld;
    uint tiles_across;
};

#include "common/glsl/tiles.glsl"

const uint PARTS = GATE == GATE_NONE ? 1u : 2u;

void main() {
    const bool at_once = AT_ONCE != 0u;
    for (uint tile = gl_WorkGroupID.x; tile < tiles(); tile += gl_NumWorkGroups.x) {
        const uvec2 first = place_in(tile);
        if (first.y >= cols) {
            continue;
        }
        const uint count = at_once ? 8u : cols - first.y;
        // What is activated and what it gates, or what lies together of both.
        Run loaded[DEEP * PARTS];
        Run factors[DEEP];
        Run addends[DEEP];
        [[unroll]] for (uint i = 0u; i < DEEP; i++) {
            const uint row = first.x + i * APART;
            if (row < rows) {
                const uint64_t from = uint64_t(row) * x_ld;
                const uint64_t tight = uint64_t(row) * cols + first.y;
                if (GATE == GATE_PAIRS) {
                    loaded[i * PARTS] = run_at(x, from + 2ul * first.y, 2u * count, X_TYPE, at_once);
                    loaded[i * PARTS + PARTS - 1u] = run_at(x, from + 2ul * first.y + 8ul, at_once ? 8u : 2u * count - min(8u, 2u * count), X_TYPE, at_once);
                } else {
                    loaded[i * PARTS] = run_at(x, from + first.y, count, X_TYPE, at_once);
                }
                if (GATE == GATE_HALVES) {
                    loaded[i * PARTS + PARTS - 1u] = run_at(x, from + cols + first.y, count, X_TYPE, at_once);
                }
                if ((FLAGS & HAS_FACTOR) != 0u) {
                    factors[i] = run_at(factor, tight, count, FACTOR_TYPE, at_once);
                }
                if ((FLAGS & HAS_RESIDUAL) != 0u) {
                    addends[i] = run_at(residual, tight, count, RESIDUAL_TYPE, at_once);
                }
            }
        }
        [[unroll]] for (uint i = 0u; i < DEEP; i++) {
            const uint row = first.x + i * APART;
            if (row < rows) {
                float numbers[8];
                float more[8];
                numbers_of(loaded[i * PARTS], X_TYPE, numbers);
                if (GATE != GATE_NONE) {
                    numbers_of(loaded[i * PARTS + PARTS - 1u], X_TYPE, more);
                }
                if (GATE == GATE_PAIRS) {
                    const float together[16] = float[](numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], numbers[6],
                        numbers[7], more[0], more[1], more[2], more[3], more[4], more[5], more[6], more[7]);
                    [[unroll]] for (uint j = 0u; j < 8u; j++) {
                        numbers[j] = together[2u * j];
                        more[j] = together[2u * j + 1u];
                    }
                }
                [[unroll]] for (uint j = 0u; j < 8u; j++) {
                    numbers[j] = activated(numbers[j], ACT) * (GATE == GATE_NONE ? 1.0 : more[j]);
                }
                if ((FLAGS & HAS_FACTOR) != 0u) {
                    numbers_of(factors[i], FACTOR_TYPE, more);
                    [[unroll]] for (uint j = 0u; j < 8u; j++) {
                        numbers[j] *= more[j];
                    }
                }
                if ((FLAGS & HAS_RESIDUAL) != 0u) {
                    numbers_of(addends[i], RESIDUAL_TYPE, more);
                    [[unroll]] for (uint j = 0u; j < 8u; j++) {
                        numbers[j] += more[j];
                    }
                }
                store_run(y, uint64_t(row) * y_ld + first.y, count, Y_TYPE, at_once, numbers);
            }
        }
    }
}

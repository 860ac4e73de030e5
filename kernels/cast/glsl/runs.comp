#version 460

// Y = X in another type, both with rows contiguous (or both with columns, which the host calls rows), run of eight by run of eight.
// Rows of all matrices of a batch are one behind the other.

#include "common/glsl/numbers.glsl"
#include "common/glsl/runs.glsl"

layout(constant_id = 0) const uint X_TYPE = 1u;
layout(constant_id = 1) const uint Y_TYPE = 1u;
layout(constant_id = 2) const uint PROPAGATE = 0u;
layout(constant_id = 3) const uint ACROSS = 32u;
layout(constant_id = 4) const uint DEEP = 1u;
// Whether rows are whole runs, loaded and stored at once.
layout(constant_id = 5) const uint AT_ONCE = 0u;
layout(local_size_x = 256) in;

layout(push_constant, std430) uniform Push {
    uint64_t x;
    uint64_t y;
    uint rows;
    uint cols;
    uint x_ld;
    uint y_ld;
    uint tiles_across;
};

#include "common/glsl/tiles.glsl"

void main() {
    const bool at_once = AT_ONCE != 0u;
    for (uint tile = gl_WorkGroupID.x; tile < tiles(); tile += gl_NumWorkGroups.x) {
        const uvec2 first = place_in(tile);
        if (first.y >= cols) {
            continue;
        }
        const uint count = at_once ? 8u : cols - first.y;
        Run loaded[DEEP];
        [[unroll]] for (uint i = 0u; i < DEEP; i++) {
            const uint row = first.x + i * APART;
            if (row < rows) {
                loaded[i] = run_at(x, uint64_t(row) * x_ld + first.y, count, X_TYPE, at_once);
            }
        }
        [[unroll]] for (uint i = 0u; i < DEEP; i++) {
            const uint row = first.x + i * APART;
            if (row < rows) {
                Run codes = loaded[i];
                if (X_TYPE != Y_TYPE) {
                    float numbers[8];
                    numbers_of(loaded[i], X_TYPE, numbers);
                    codes = run_of(numbers, Y_TYPE, PROPAGATE != 0u);
                }
                store_codes(y, uint64_t(row) * y_ld + first.y, count, Y_TYPE, at_once, codes);
            }
        }
    }
}

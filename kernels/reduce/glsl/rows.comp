#version 460

// Each row to one number, a group for a row at a time; threads take runs of eight columns in turn
// and add in order, then a group does.

#include "common/glsl/numbers.glsl"
#include "common/glsl/runs.glsl"

layout(constant_id = 0) const uint THREADS = 256u;
layout(constant_id = 1) const uint X_TYPE = 1u;
layout(constant_id = 2) const uint Y_TYPE = 1u;
layout(constant_id = 3) const uint OP = 0u;
// Whether rows are whole runs, loaded at once.
layout(constant_id = 4) const uint AT_ONCE = 0u;
layout(local_size_x_id = 0) in;

#include "common/glsl/group.glsl"
#include "reduce/glsl/fold.glsl"

// Runs of a thread that are under way together.
const uint DEEP = 4u;

const bool WHOLE = AT_ONCE != 0u;

void main() {
    const uint thread = gl_LocalInvocationIndex;
    for (uint row = gl_WorkGroupID.x; row < rows; row += gl_NumWorkGroups.x) {
        const uint64_t x_row = uint64_t(row) * x_ld;
        float part = neutral();
        for (uint col_0 = 8u * thread; col_0 < cols; col_0 += DEEP * 8u * THREADS) {
            Run loaded[DEEP];
            [[unroll]] for (uint t = 0u; t < DEEP; t++) {
                const uint col = col_0 + t * 8u * THREADS;
                if (col < cols) {
                    loaded[t] = run_at(x, x_row + col, WHOLE ? 8u : cols - col, X_TYPE, WHOLE);
                }
            }
            [[unroll]] for (uint t = 0u; t < DEEP; t++) {
                const uint col = col_0 + t * 8u * THREADS;
                if (col < cols) {
                    float numbers[8];
                    numbers_of(loaded[t], X_TYPE, numbers);
                    [[unroll]] for (uint i = 0u; i < 8u; i++) {
                        part = WHOLE || col + i < cols ? folded(part, numbers[i]) : part;
                    }
                }
            }
        }
        const float all = is_extreme() ? group_max(part) : group_sum(part);
        if (thread == 0u) {
            store_number(y, row, Y_TYPE, result_of(all, cols));
        }
    }
}

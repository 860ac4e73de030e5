#version 460

// Each row to one number, a group for a row at a time; threads add in order, then a tree does.

#include "common/glsl/numbers.glsl"

layout(constant_id = 0) const uint THREADS = 256u;
layout(constant_id = 1) const uint X_TYPE = 1u;
layout(constant_id = 2) const uint Y_TYPE = 1u;
layout(constant_id = 3) const uint OP = 0u;
layout(local_size_x_id = 0) in;

#include "common/glsl/group.glsl"
#include "reduce/glsl/fold.glsl"

void main() {
    const uint thread = gl_LocalInvocationIndex;
    for (uint row = gl_WorkGroupID.x; row < rows; row += gl_NumWorkGroups.x) {
        float part = neutral();
        for (uint col = thread; col < cols; col += THREADS) {
            part = folded(part, number_at(x, uint64_t(row) * x_ld + col, X_TYPE));
        }
        const float all = is_extreme() ? group_max(part) : group_sum(part);
        if (thread == 0u) {
            store_number(y, row, Y_TYPE, result_of(all, cols));
        }
    }
}

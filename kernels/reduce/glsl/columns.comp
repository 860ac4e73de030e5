#version 460

// Each column to one number, or each segment of its rows: a thread for one at a time, which adds in order of rows. Neighbouring
// threads read neighbouring columns.

#include "common/glsl/numbers.glsl"

layout(constant_id = 0) const uint SEGMENTED = 0u;
layout(constant_id = 1) const uint X_TYPE = 1u;
layout(constant_id = 2) const uint Y_TYPE = 1u;
layout(constant_id = 3) const uint OP = 0u;
layout(local_size_x = 256) in;

float larger(float x, float y) {
    return is_nan(x) ? x : is_nan(y) ? y : x > y ? x : y;
}

#include "reduce/glsl/fold.glsl"

void main() {
    const uint64_t results = uint64_t(segments) * cols;
    const uint64_t step = uint64_t(gl_NumWorkGroups.x) * 256ul;
    for (uint64_t i = uint64_t(gl_WorkGroupID.x) * 256ul + gl_LocalInvocationIndex; i < results; i += step) {
        const uint segment = uint(i / cols);
        const uint col = uint(i - uint64_t(segment) * cols);
        const uint from = SEGMENTED != 0u ? Word(offsets + 4ul * segment).v : 0u;
        const uint to = SEGMENTED != 0u ? min(Word(offsets + 4ul * segment + 4ul).v, rows) : rows;
        float all = neutral();
        for (uint row = from; row < to; row++) {
            all = folded(all, number_at(x, uint64_t(row) * x_ld + col, X_TYPE));
        }
        store_number(y, i, Y_TYPE, result_of(all, to > from ? to - from : 0u));
    }
}

#version 460

// Gradients of a norm by its weight and its bias: sums over rows of grad_y · h and of grad_y. Rows are cut into runs; a thread sums a
// column of a run, and in a second launch, LAST, what the runs have, in their order.

#include "common/glsl/numbers.glsl"

layout(constant_id = 0) const uint X_TYPE = 1u;
layout(constant_id = 1) const uint GRAD_TYPE = 1u;
// Bits: gradients by the weight and by the bias are wanted.
layout(constant_id = 2) const uint FLAGS = 0u;
layout(constant_id = 3) const uint LAST = 0u;
layout(local_size_x = 64) in;

const uint BY_WEIGHT = 1u, BY_BIAS = 2u;

layout(push_constant, std430) uniform Push {
    uint64_t x;
    uint64_t grad_y;
    uint64_t grad_weight;
    uint64_t grad_bias;
    // Of each row its mean and its reciprocal: see `rows.comp`.
    uint64_t kept;
    // Of each run and column both sums.
    uint64_t parts;
    uint rows;
    uint cols;
    uint x_ld;
    uint grad_ld;
    uint runs;
    uint run_rows;
};

float real_at(uint64_t base, uint64_t at) {
    return uintBitsToFloat(Word(base + 4ul * at).v);
}

void main() {
    const uint pieces = (cols + 63u) / 64u;
    const uint items = LAST != 0u ? pieces : pieces * runs;
    for (uint item = gl_WorkGroupID.x; item < items; item += gl_NumWorkGroups.x) {
        const uint col = item % pieces * 64u + gl_LocalInvocationIndex;
        if (col >= cols) {
            continue;
        }
        const uint run = item / pieces;
        vec2 sums = vec2(0.0);
        if (LAST == 0u) {
            for (uint row = run * run_rows; row < min((run + 1u) * run_rows, rows); row++) {
                const float s = number_at(x, uint64_t(row) * x_ld + col, X_TYPE);
                const float g = number_at(grad_y, uint64_t(row) * grad_ld + col, GRAD_TYPE);
                const float h = (s - real_at(kept, 2ul * row)) * real_at(kept, 2ul * row + 1ul);
                sums += vec2(g * h, g);
            }
            const uint64_t at = 2ul * (uint64_t(run) * cols + col);
            Word(parts + 4ul * at).v = floatBitsToUint(sums.x);
            Word(parts + 4ul * at + 4ul).v = floatBitsToUint(sums.y);
            continue;
        }
        for (uint each = 0u; each < runs; each++) {
            const uint64_t at = 2ul * (uint64_t(each) * cols + col);
            sums += vec2(real_at(parts, at), real_at(parts, at + 1ul));
        }
        if ((FLAGS & BY_WEIGHT) != 0u) {
            Word(grad_weight + 4ul * col).v = floatBitsToUint(sums.x);
        }
        if ((FLAGS & BY_BIAS) != 0u) {
            Word(grad_bias + 4ul * col).v = floatBitsToUint(sums.y);
        }
    }
}

#version 460

// y = act(x) · factor + residual, or act(g) · u · factor + residual; a thread makes an element at a time.

#include "common/glsl/numbers.glsl"
#include "common/glsl/math.glsl"

layout(constant_id = 0) const uint X_TYPE = 1u;
layout(constant_id = 1) const uint Y_TYPE = 1u;
layout(constant_id = 2) const uint FACTOR_TYPE = 1u;
layout(constant_id = 3) const uint RESIDUAL_TYPE = 1u;
layout(constant_id = 4) const uint ACT = 0u;
layout(constant_id = 5) const uint GATE = 0u;
// Bits: factor, residual.
layout(constant_id = 6) const uint FLAGS = 0u;
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
};

void main() {
    const uint64_t elements = uint64_t(rows) * cols;
    const uint64_t step = uint64_t(gl_NumWorkGroups.x) * 256ul;
    for (uint64_t i = uint64_t(gl_WorkGroupID.x) * 256ul + gl_LocalInvocationIndex; i < elements; i += step) {
        const uint row = uint(i / cols);
        const uint col = uint(i - uint64_t(row) * cols);
        const uint64_t x_row = uint64_t(row) * x_ld;
        const uint64_t first = x_row + (GATE == GATE_PAIRS ? 2ul * col : uint64_t(col));
        float result = activated(number_at(x, first, X_TYPE), ACT);
        if (GATE != GATE_NONE) {
            result *= number_at(x, GATE == GATE_PAIRS ? first + 1ul : first + cols, X_TYPE);
        }
        if ((FLAGS & HAS_FACTOR) != 0u) {
            result *= number_at(factor, i, FACTOR_TYPE);
        }
        if ((FLAGS & HAS_RESIDUAL) != 0u) {
            result += number_at(residual, i, RESIDUAL_TYPE);
        }
        store_number(y, uint64_t(row) * y_ld + col, Y_TYPE, result);
    }
}

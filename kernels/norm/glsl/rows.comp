#version 460

// Layer, RMS and L2 normalization of each row, a residual added first; a group takes a row at a time. See kp_hal::op::NormSpec.
//
// Variances are of what is left when the mean is taken away, so a row is read once more for layer norms. Rows come from memory
// once and from a cache after that, unless they are long.

#include "common/glsl/numbers.glsl"

layout(constant_id = 0) const uint THREADS = 256u;
layout(constant_id = 1) const uint X_TYPE = 1u;
layout(constant_id = 2) const uint Y_TYPE = 1u;
layout(constant_id = 3) const uint WEIGHT_TYPE = 1u;
layout(constant_id = 4) const uint BIAS_TYPE = 1u;
layout(constant_id = 5) const uint KIND = 0u;
// Bits: weight, bias, residual.
layout(constant_id = 6) const uint FLAGS = 0u;
layout(local_size_x_id = 0) in;

const uint LAYER = 0u, RMS = 1u, L2 = 2u;
const uint HAS_WEIGHT = 1u, HAS_BIAS = 2u, HAS_RESIDUAL = 4u;

#include "common/glsl/group.glsl"

layout(push_constant, std430) uniform Push {
    uint64_t x;
    uint64_t y;
    uint64_t weight;
    uint64_t bias;
    uint64_t residual;
    uint64_t sum;
    uint rows;
    uint cols;
    uint x_ld;
    uint y_ld;
    float eps;
};

float element(uint64_t at) {
    const float own = number_at(x, at, X_TYPE);
    return (FLAGS & HAS_RESIDUAL) != 0u ? own + number_at(residual, at, X_TYPE) : own;
}

void main() {
    const uint thread = gl_LocalInvocationIndex;
    for (uint row = gl_WorkGroupID.x; row < rows; row += gl_NumWorkGroups.x) {
        const uint64_t x_row = uint64_t(row) * x_ld;
        float mean = 0.0;
        if (KIND == LAYER) {
            float part = 0.0;
            for (uint col = thread; col < cols; col += THREADS) {
                part += element(x_row + col);
            }
            mean = group_sum(part) / float(cols);
        }
        float part = 0.0;
        for (uint col = thread; col < cols; col += THREADS) {
            const float off = element(x_row + col) - mean;
            part += off * off;
        }
        const float squares = group_sum(part);
        const float divisor = KIND == L2 ? larger(sqrt(squares), eps) : sqrt(squares / float(cols) + eps);
        for (uint col = thread; col < cols; col += THREADS) {
            const float s = element(x_row + col);
            if ((FLAGS & HAS_RESIDUAL) != 0u) {
                store_number(sum, x_row + col, X_TYPE, s);
            }
            float result = (s - mean) / divisor;
            if ((FLAGS & HAS_WEIGHT) != 0u) {
                result *= number_at(weight, col, WEIGHT_TYPE);
            }
            if ((FLAGS & HAS_BIAS) != 0u) {
                result += number_at(bias, col, BIAS_TYPE);
            }
            store_number(y, uint64_t(row) * y_ld + col, Y_TYPE, result);
        }
    }
}

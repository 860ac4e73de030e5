#version 460

// y = exp(scale · x − max) / Σ exp(scale · x − max) over each row, or its logarithm; a group takes a row at a time.
//
// The row is read twice: once for its largest number and the sum, kept together and rescaled when a larger one comes, once for
// the results. Threads add in order, then a tree does.

#include "common/glsl/numbers.glsl"
#include "common/glsl/math.glsl"

layout(constant_id = 0) const uint THREADS = 256u;
layout(constant_id = 1) const uint X_TYPE = 1u;
layout(constant_id = 2) const uint Y_TYPE = 1u;
layout(constant_id = 3) const uint LOG = 0u;
layout(local_size_x_id = 0) in;

#include "common/glsl/group.glsl"

layout(push_constant, std430) uniform Push {
    uint64_t x;
    uint64_t y;
    uint rows;
    uint cols;
    uint x_ld;
    uint y_ld;
    float scale;
};

void main() {
    const uint thread = gl_LocalInvocationIndex;
    const float nothing = -uintBitsToFloat(INFINITE);
    for (uint row = gl_WorkGroupID.x; row < rows; row += gl_NumWorkGroups.x) {
        const uint64_t x_row = uint64_t(row) * x_ld;
        float most = nothing;
        float sum = 0.0;
        for (uint col = thread; col < cols; col += THREADS) {
            const float t = scale * number_at(x, x_row + col, X_TYPE);
            // e^(-infinity) adds nothing, but -infinity less itself would be NaN.
            if (t == nothing) {
                continue;
            }
            if (t > most) {
                sum *= exp_of(most - t);
                most = t;
            }
            sum += exp_of(t - most);
        }
        const float of_row = group_max(most);
        sum = group_sum(most == nothing && !is_nan(sum) ? 0.0 : sum * exp_of(most - of_row));
        const float logarithm = log_of(sum);
        // A row of -infinity alone has no largest number.
        const bool defined = of_row != nothing;
        for (uint col = thread; col < cols; col += THREADS) {
            const float t = scale * number_at(x, x_row + col, X_TYPE);
            const float result = LOG != 0u ? (t - of_row) - logarithm : exp_of(t - of_row) / sum;
            store_number(y, uint64_t(row) * y_ld + col, Y_TYPE, defined ? result : uintBitsToFloat(QUIET_NAN));
        }
    }
}

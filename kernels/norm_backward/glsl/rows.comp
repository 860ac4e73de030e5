#version 460
// also open: OPEN=1

// Gradients of layer, RMS and L2 norms by their input; a group takes a row at a time. See kp_hal::op::NormBackwardSpec.
//
// With s the row, r one over what it was divided by, h = (s − mean) · r and g = grad_y · weight:
//
//     grad_x = r · (g − mean(g) − h · share · Σ g · h)      mean(g) for layer norms alone
//
// where share is 1 over the number of columns, or 1 for L2, or 0 where eps was the divisor. Threads take runs of eight columns in
// turn, and read the row again for each pass. Means and reciprocals are kept for `columns.comp` where that follows.

#include "common/glsl/numbers.glsl"
#include "common/glsl/runs.glsl"

#ifdef OPEN
// As numbers behind the arguments, all but a group's threads: see kp_vulkan::shaders::Open.
layout(constant_id = 0) const uint THREADS = 256u;
#define X_TYPE told[1]
#define GRAD_TYPE told[2]
#define WEIGHT_TYPE told[3]
#define KIND told[4]
#define FLAGS told[5]
#else
layout(constant_id = 0) const uint THREADS = 256u;
layout(constant_id = 1) const uint X_TYPE = 1u;
layout(constant_id = 2) const uint GRAD_TYPE = 1u;
layout(constant_id = 3) const uint WEIGHT_TYPE = 1u;
// kp_hal::op::NormKind, in its order.
layout(constant_id = 4) const uint KIND = 0u;
// Bits: weight, means and reciprocals kept, eight numbers of every operand at once.
layout(constant_id = 5) const uint FLAGS = 0u;
#endif
layout(local_size_x_id = 0) in;

const uint LAYER = 0u, RMS = 1u, L2 = 2u;
const uint HAS_WEIGHT = 1u, KEEPS = 2u, AT_ONCE = 4u;

#include "common/glsl/group.glsl"

layout(push_constant, std430) uniform Push {
    uint64_t x;
    uint64_t grad_y;
    uint64_t grad_x;
    uint64_t weight;
    // Of each row its mean and its reciprocal.
    uint64_t kept;
    uint rows;
    uint cols;
    uint x_ld;
    uint grad_ld;
    float eps;
#ifdef OPEN
    layout(offset = 128) uint told[6];
#endif
};

#define WIDE ((FLAGS & AT_ONCE) != 0u)

// A run of g from `col`.
void gradients(uint row, uint col, out float g[8]) {
    load_run(grad_y, uint64_t(row) * grad_ld + col, cols - col, GRAD_TYPE, WIDE, g);
    if ((FLAGS & HAS_WEIGHT) != 0u) {
        float factors[8];
        load_run(weight, col, cols - col, WEIGHT_TYPE, WIDE, factors);
        [[unroll]] for (uint i = 0u; i < 8u; i++) {
            g[i] *= factors[i];
        }
    }
}

void main() {
    const uint first = 8u * gl_LocalInvocationIndex;
    const uint step = 8u * THREADS;
    for (uint row = gl_WorkGroupID.x; row < rows; row += gl_NumWorkGroups.x) {
        const uint64_t x_row = uint64_t(row) * x_ld;
        float s[8];
        float g[8];
        float mean = 0.0;
        float squares = 0.0;
        // The mean, then the squares of what is left without it.
        for (uint pass = KIND == LAYER ? 0u : 1u; pass < 2u; pass++) {
            float part = 0.0;
            for (uint col = first; col < cols; col += step) {
                load_run(x, x_row + col, cols - col, X_TYPE, WIDE, s);
                [[unroll]] for (uint i = 0u; i < 8u; i++) {
                    const float off = s[i] - mean;
                    part += col + i < cols ? (pass == 1u ? off * off : off) : 0.0;
                }
            }
            const float all = group_sum(part);
            if (pass == 0u) {
                mean = all / float(cols);
            } else {
                squares = all;
            }
        }
        const float size = sqrt(KIND == L2 ? squares : squares / float(cols) + eps);
        const bool short_row = KIND == L2 && size < eps;
        // Not by that comparison: of it and a choice some compilers make a maximum that drops NaN.
        const float r = 1.0 / (KIND == L2 ? larger(size, eps) : size);
        float plain = 0.0;
        float along = 0.0;
        for (uint col = first; col < cols; col += step) {
            load_run(x, x_row + col, cols - col, X_TYPE, WIDE, s);
            gradients(row, col, g);
            [[unroll]] for (uint i = 0u; i < 8u; i++) {
                if (col + i < cols) {
                    plain += g[i];
                    along += g[i] * ((s[i] - mean) * r);
                }
            }
        }
        plain = KIND == LAYER ? group_sum(plain) / float(cols) : 0.0;
        along = group_sum(along);
        along = KIND == L2 ? (short_row ? 0.0 : along) : along / float(cols);
        for (uint col = first; col < cols; col += step) {
            load_run(x, x_row + col, cols - col, X_TYPE, WIDE, s);
            gradients(row, col, g);
            [[unroll]] for (uint i = 0u; i < 8u; i++) {
                // What is infinite takes no part where nothing is projected.
                const float projected = short_row ? 0.0 : (s[i] - mean) * r * along;
                g[i] = r * (g[i] - plain - projected);
            }
            store_run(grad_x, uint64_t(row) * cols + col, cols - col, X_TYPE, WIDE, g);
        }
        if ((FLAGS & KEEPS) != 0u && gl_LocalInvocationIndex == 0u) {
            Word(kept + 8ul * row).v = floatBitsToUint(mean);
            Word(kept + 8ul * row + 4ul).v = floatBitsToUint(r);
        }
    }
}

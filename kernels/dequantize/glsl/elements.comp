#version 460

// y = code · scale (· global), or (code − zero) · scale; a thread makes an element at a time.

#include "common/glsl/numbers.glsl"
#include "common/glsl/scales.glsl"

layout(constant_id = 0) const uint Q_TYPE = 5u;
layout(constant_id = 1) const uint Y_TYPE = 1u;
layout(constant_id = 2) const uint SCALE_TYPE = 1u;
layout(constant_id = 3) const uint SCALE_LAYOUT = 0u;
// Bits: scales, global, zero points.
layout(constant_id = 4) const uint FLAGS = 0u;
layout(local_size_x = 256) in;

const uint HAS_SCALES = 1u, HAS_GLOBAL = 2u, HAS_ZEROS = 4u;

layout(push_constant, std430) uniform Push {
    uint64_t q;
    uint64_t y;
    uint64_t scales;
    uint64_t global;
    uint64_t zeros;
    uint rows;
    uint cols;
    uint q_ld;
    uint y_ld;
    uint block_rows;
    uint block_cols;
    uint blocks_down;
    uint blocks_across;
};

void main() {
    const uint64_t elements = uint64_t(rows) * cols;
    const uint64_t step = uint64_t(gl_NumWorkGroups.x) * 256ul;
    for (uint64_t at = uint64_t(gl_WorkGroupID.x) * 256ul + gl_LocalInvocationIndex; at < elements; at += step) {
        const uint row = uint(at / cols);
        const uint col = uint(at - uint64_t(row) * cols);
        float x = number_at(q, uint64_t(row) * q_ld + col, Q_TYPE);
        const uint64_t place = scale_place(SCALE_LAYOUT, row / block_rows, col / block_cols, uvec2(blocks_down, blocks_across));
        if ((FLAGS & HAS_ZEROS) != 0u) {
            x -= number_at(zeros, place, U8);
        }
        if ((FLAGS & HAS_SCALES) != 0u) {
            x *= number_at(scales, place, SCALE_TYPE);
        }
        if ((FLAGS & HAS_GLOBAL) != 0u) {
            x *= number_at(global, 0ul, F32);
        }
        store_number(y, uint64_t(row) * y_ld + col, Y_TYPE, x);
    }
}

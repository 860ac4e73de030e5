#version 460
#extension GL_GOOGLE_include_directive : require

// D's codes and scales from the numbers that wait in scratch, rows tight: where D is scaled, or two codes share a byte. LANES threads
// have a block, and take pairs of its columns in turn, first for the largest magnitude and then for the codes.
//
// What serves all of D is given. Rows that belong to no group are left alone.
// Limits: where two codes share a byte, D by rows and blocks of an even number of columns.

#include "common/glsl/numbers.glsl"
#include "common/glsl/scales.glsl"

layout(constant_id = 0) const uint Q_TYPE = 5u;
layout(constant_id = 1) const uint SCALE_TYPE = 1u;
layout(constant_id = 2) const uint SCALE_LAYOUT = 0u;
layout(constant_id = 3) const uint FLAGS = 0u;
layout(constant_id = 4) const uint RULE = 0u;
layout(constant_id = 5) const uint LANES = 8u;
layout(local_size_x = 128) in;

// Beside those of codes.glsl.
const uint BY_COLUMNS = 64u, CONTIGUOUS = 128u, MASKED = 256u;

layout(push_constant, std430) uniform Push {
    uint64_t x;
    uint64_t q;
    uint64_t scales;
    uint64_t global;
    uint64_t groups;
    uint64_t q_stride;
    uint batch;
    uint rows;
    uint cols;
    uint q_ld;
    uint block_rows;
    uint block_cols;
    uint group_count;
};

shared float of_lanes[128];

#include "quantize/glsl/codes.glsl"

// Rows of matrix `which` that there are.
uint rows_of(uint which) {
    if ((FLAGS & (CONTIGUOUS | MASKED)) == 0u) {
        return rows;
    }
    const uint at = (FLAGS & MASKED) != 0u ? which : group_count;
    return uint(clamp(int(Word(groups + 4ul * at).v), 0, int(rows)));
}

float number(uint which, uint row, uint col) {
    return uintBitsToFloat(Word(x + 4ul * ((uint64_t(which) * rows + row) * cols + col)).v);
}

void main() {
    const uint lane = gl_LocalInvocationIndex % LANES;
    const uint per_group = 128u / LANES;
    const uvec2 blocks = uvec2((rows - 1u) / block_rows + 1u, (cols - 1u) / block_cols + 1u);
    const uint64_t per_matrix = uint64_t(blocks.x) * blocks.y;
    const uint64_t all = per_matrix * batch;
    for (uint64_t item = gl_WorkGroupID.x; item * per_group < all; item += gl_NumWorkGroups.x) {
        const uint64_t block = item * per_group + gl_LocalInvocationIndex / LANES;
        const uint which = uint(block / per_matrix);
        const uint64_t place = block - which * per_matrix;
        const uint o = uint(place / blocks.y);
        const uint i = uint(place - uint64_t(o) * blocks.y);
        const uint row_0 = o * block_rows;
        const uint col_0 = i * block_cols;
        const uint row_end = block < all ? min(rows_of(which), block_rows < rows - row_0 ? row_0 + block_rows : rows) : 0u;
        const uint col_end = block_cols < cols - col_0 ? col_0 + block_cols : cols;
        const uint pairs = (col_end - col_0 + 1u) / 2u;
        const uint count = max(row_end, row_0) - row_0;
        float divisor = 1.0;
        if ((FLAGS & GIVEN) != 0u) {
            divisor = number_at(global, 0ul, F32);
        } else if ((FLAGS & HAS_SCALES) != 0u) {
            float most = 0.0;
            for (uint e = lane; e < count * pairs; e += LANES) {
                const uint row = row_0 + e / pairs;
                const uint col = col_0 + e % pairs * 2u;
                for (uint j = col; j < min(col + 2u, col_end); j++) {
                    const float magnitude = abs(number(which, row, j));
                    most = floatBitsToUint(magnitude) < INFINITE ? max(most, magnitude) : most;
                }
            }
            of_lanes[gl_LocalInvocationIndex] = most;
            barrier();
            for (uint apart = LANES / 2u; apart > 0u; apart /= 2u) {
                if (lane < apart) {
                    of_lanes[gl_LocalInvocationIndex] = max(of_lanes[gl_LocalInvocationIndex], of_lanes[gl_LocalInvocationIndex + apart]);
                }
                barrier();
            }
            most = of_lanes[gl_LocalInvocationIndex - lane];
            // Nobody writes the next ones before everybody has read these.
            barrier();
            const float by = (FLAGS & HAS_GLOBAL) != 0u ? number_at(global, 0ul, F32) : 1.0;
            const uint code = scale_code(most, by);
            if (lane == 0u && count > 0u) {
                store_code(scales, which * scale_count(SCALE_LAYOUT, blocks) + scale_place(SCALE_LAYOUT, o, i, blocks), SCALE_TYPE, code);
            }
            divisor = of_code(code, SCALE_TYPE) * by;
        }
        for (uint e = lane; e < count * pairs; e += LANES) {
            const uint row = row_0 + e / pairs;
            const uint col = col_0 + e % pairs * 2u;
            const bool both = col + 1u < col_end;
            const uint first = code_of(number(which, row, col), divisor, 0.0);
            const uint second = both ? code_of(number(which, row, col + 1u), divisor, 0.0) : 0u;
            const uint64_t at = which * q_stride;
            if (bits_of(Q_TYPE) == 4u) {
                const uint64_t byte = q + (at + uint64_t(row) * q_ld + col) / 2ul;
                // The other half of the last byte is nobody's.
                Byte(byte).v = uint8_t(first | (both ? second << 4 : uint(Byte(byte).v) & 0xf0u));
            } else {
                const bool columns = (FLAGS & BY_COLUMNS) != 0u;
                store_code(q, at + (columns ? uint64_t(col) * q_ld + row : uint64_t(row) * q_ld + col), Q_TYPE, first);
                if (both) {
                    store_code(q, at + (columns ? uint64_t(col + 1u) * q_ld + row : uint64_t(row) * q_ld + col + 1u), Q_TYPE, second);
                }
            }
        }
    }
}

#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
// also open: OPEN=1

// D = A·B of whole numbers of 8 bits for up to eight rows by the device's own dot product, B's columns contiguous as weights are: as
// fast as B comes from memory.
//
// A group makes COLS columns for all ROWS rows. Its threads take 16 elements of each column in turn, with those of A's rows that belong
// to them; subgroups add what their threads have, then the group what they have. Every element of B is read once, by one thread.
//
// Sums are exact, modulo 2^32, in any order; scales of rows of A and of columns of B multiply them when they are done.
// Limits: A and B of I8 or U8, their lines whole pieces of 16 bytes that start on as many; m at most 8; scales that serve all of k; no
// zero points; sizes below 2^31.

#include "gemm/glsl/product.glsl"
#include "gemm/glsl/dots.glsl"

layout(constant_id = 21) const uint ROWS = 1u;
layout(constant_id = 22) const uint COLS = 4u;
layout(local_size_x_id = 23) in;
layout(constant_id = 23) const uint THREADS = 128u;

// Elements of a piece.
const uint PIECE = 16u;
const uint SUMS = ROWS * COLS;

// Subgroups have four threads at least.
shared int of_subgroups[SUMS * ((THREADS + 3u) / 4u)];

// As Quad, of what nobody writes meanwhile.
layout(buffer_reference, std430, buffer_reference_align = 16) readonly restrict buffer Fixed { uvec4 v; };

void main() {
    const uint thread = gl_LocalInvocationIndex;
    // Rows of no elements have no scales.
    const bool scaled = k > 0u && (has(A_SCALE) || has(B_SCALE));
    const uint tiles = (n + COLS - 1u) / COLS;
    row_end = m;
    for (uint64_t tile = gl_WorkGroupID.x; tile < uint64_t(tiles) * batch; tile += gl_NumWorkGroups.x) {
        const uint which = uint(tile / tiles);
        const uint col_0 = uint(tile - uint64_t(which) * tiles) * COLS;
        group_at_work = which;
        uint64_t columns[COLS];
        uint64_t rows[ROWS];
        [[unroll]] for (uint j = 0u; j < COLS; j++) {
            // A column that is not there is a copy of the last one, which nobody stores; so is such a row.
            columns[j] = b + b_place(which * uint64_t(b_stride), 0u, column(min(col_0 + j, n - 1u)));
        }
        [[unroll]] for (uint i = 0u; i < ROWS; i++) {
            rows[i] = a + a_place(which * uint64_t(a_stride), min(i, m - 1u), 0u);
        }
        int sums[SUMS];
        [[unroll]] for (uint i = 0u; i < SUMS; i++) {
            sums[i] = 0;
        }
        for (uint k_0 = thread * PIECE; k_0 < k; k_0 += THREADS * PIECE) {
            uvec4 pieces[COLS];
            [[unroll]] for (uint j = 0u; j < COLS; j++) {
                pieces[j] = Fixed(columns[j] + k_0).v;
            }
            [[unroll]] for (uint i = 0u; i < ROWS; i++) {
                const uvec4 row = Fixed(rows[i] + k_0).v;
                [[unroll]] for (uint j = 0u; j < COLS; j++) {
                    [[unroll]] for (uint w = 0u; w < 4u; w++) {
                        sums[i * COLS + j] += dotted(row[w], pieces[j][w]);
                    }
                }
            }
        }
        [[unroll]] for (uint i = 0u; i < SUMS; i++) {
            sums[i] = subgroupAdd(sums[i]);
        }
        if (subgroupElect()) {
            [[unroll]] for (uint i = 0u; i < SUMS; i++) {
                of_subgroups[i * gl_NumSubgroups + gl_SubgroupID] = sums[i];
            }
        }
        barrier();
        for (uint e = thread; e < SUMS / 2u; e += THREADS) {
            ivec2 both = ivec2(0);
            for (uint g = 0u; g < gl_NumSubgroups; g++) {
                both += ivec2(of_subgroups[2u * e * gl_NumSubgroups + g], of_subgroups[(2u * e + 1u) * gl_NumSubgroups + g]);
            }
            const uint row = 2u * e / COLS;
            const uint col = col_0 + 2u * e % COLS;
            if (is_sums()) {
                store_sums(both, which, row, col);
            } else {
                vec2 real = vec2(odd(both.x), odd(both.y));
                if (scaled) {
                    const float of_row = a_factor(which, min(row, m - 1u), 0u);
                    real.x *= of_row * b_factor(which, 0u, column(min(col, n - 1u)));
                    real.y *= of_row * b_factor(which, 0u, column(min(col + 1u, n - 1u)));
                }
                finished(real.x, real.y, which, row, col);
            }
        }
        // Nobody writes the next ones before everybody has read these.
        barrier();
    }
}

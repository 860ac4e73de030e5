#version 460

// D = A·B for up to eight rows, B's columns contiguous as weights are: as fast as B comes from memory.
//
// A group makes COLS columns for all ROWS rows. Its threads take runs of 16 bytes of each column in turn, with the elements of A
// that belong to them, and a tree adds what they have. Every element of B is read once, by one thread.
//
// The tree is the same for every m, but what other kernels make of more rows is not: no promise across m.
// Limits: m at most 8; sizes below 2^31.

#include "gemm/glsl/finish.glsl"
#include "gemm/glsl/operands.glsl"

layout(constant_id = 12) const uint ROWS = 1u;
layout(constant_id = 13) const uint COLS = 4u;
layout(constant_id = 14) const uint THREADS = 128u;
layout(local_size_x_id = 14) in;
// Bits: runs of A, of B at once.
layout(constant_id = 15) const uint RUNS = 0u;

// Elements of a run: 16 bytes of B.
const uint RUN = 128u / (B_TYPE == F16 || B_TYPE == BF16 ? 16u : B_TYPE == F32 || B_TYPE == TF32 ? 32u
                         : B_TYPE == E2M1 || B_TYPE == NF4 || B_TYPE == I4 || B_TYPE == U4 ? 4u : 8u);
const uint SUMS = ROWS * COLS;

shared float of_threads[THREADS * SUMS];

// Element `e` of those that begin in `words`.
float in_words(uvec4 words, uint e, uint dtype) {
    const uint bits = bits_of(dtype);
    const uint word = words[e * bits / 32u];
    return of_code(bits == 32u ? word : word >> e * bits % 32u & ((1u << bits) - 1u), dtype);
}

void main() {
    const uint thread = gl_LocalInvocationIndex;
    const uint tiles = (n + COLS - 1u) / COLS;
    for (uint64_t tile = gl_WorkGroupID.x; tile < uint64_t(tiles) * batch; tile += gl_NumWorkGroups.x) {
        const uint which = uint(tile / tiles);
        const uint col_0 = uint(tile - uint64_t(which) * tiles) * COLS;
        const uint64_t a_origin = which * a_stride;
        const uint64_t b_origin = which * b_stride;
        float sums[SUMS];
        [[unroll]] for (uint i = 0u; i < SUMS; i++) {
            sums[i] = 0.0;
        }
        for (uint k_0 = thread * RUN; k_0 < k; k_0 += THREADS * RUN) {
            const bool whole = k_0 + RUN <= k;
            if (whole && (RUNS & 2u) != 0u) {
                uvec4 words[COLS];
                [[unroll]] for (uint j = 0u; j < COLS; j++) {
                    // A column that is not there is a copy of the last one, which nobody stores.
                    const uint64_t at = b_place(b_origin, k_0, column(min(col_0 + j, n - 1u)));
                    words[j] = Quad(b + at * bits_of(B_TYPE) / 8ul).v;
                }
                const uint per_quad = 128u / bits_of(A_TYPE);
                uvec4 a_words[ROWS];
                [[unroll]] for (uint e = 0u; e < RUN; e++) {
                    float y[COLS];
                    [[unroll]] for (uint j = 0u; j < COLS; j++) {
                        y[j] = in_words(words[j], e, B_TYPE);
                    }
                    [[unroll]] for (uint i = 0u; i < ROWS; i++) {
                        const uint64_t at = a_place(a_origin, i, k_0 + e);
                        if ((RUNS & 1u) != 0u && e % per_quad == 0u) {
                            a_words[i] = Quad(a + at * bits_of(A_TYPE) / 8ul).v;
                        }
                        const float x = (RUNS & 1u) != 0u ? in_words(a_words[i], e % per_quad, A_TYPE) : number_at(a, at, A_TYPE);
                        [[unroll]] for (uint j = 0u; j < COLS; j++) {
                            sums[i * COLS + j] += x * y[j];
                        }
                    }
                }
            } else {
                for (uint s = k_0; s < min(k_0 + RUN, k); s++) {
                    [[unroll]] for (uint j = 0u; j < COLS; j++) {
                        const float y = number_at(b, b_place(b_origin, s, column(min(col_0 + j, n - 1u))), B_TYPE);
                        [[unroll]] for (uint i = 0u; i < ROWS; i++) {
                            sums[i * COLS + j] += number_at(a, a_place(a_origin, i, s), A_TYPE) * y;
                        }
                    }
                }
            }
        }
        [[unroll]] for (uint i = 0u; i < SUMS; i++) {
            of_threads[i * THREADS + thread] = sums[i];
        }
        barrier();
        for (uint apart = THREADS / 2u; apart > 0u; apart /= 2u) {
            for (uint e = thread; e < SUMS * apart; e += THREADS) {
                const uint at = e / apart * THREADS + e % apart;
                of_threads[at] += of_threads[at + apart];
            }
            barrier();
        }
        for (uint e = thread; e < SUMS / 2u; e += THREADS) {
            finished(of_threads[2u * e * THREADS], of_threads[(2u * e + 1u) * THREADS], which, 2u * e / COLS,
                     col_0 + 2u * e % COLS);
        }
        barrier();
    }
}

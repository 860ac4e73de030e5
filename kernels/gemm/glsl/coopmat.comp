#version 460
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#ifdef OF_BF16
#extension GL_EXT_bfloat16 : require
#define ELEMENT bfloat16_t
#else
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define ELEMENT float16_t
#endif
// also bf16: OF_BF16=1

// D = A·B of 16-bit floats on the matrix unit, sums in f32, through VK_KHR_cooperative_matrix.
//
//        BN                  A group makes tiles of BM × BN. A step brings BK columns of A and BK rows of B to shared memory
//      ┌─────┬─────┐ BK      as they lie in memory, two elements to a word; ACROSS × DOWN subgroups each take a part of the
//   BM │  0  │  1  │         tile, whose sums they hold as matrices of M × N. What follows the sums goes through shared
//      ├─────┼─────┤         memory, one such matrix of each subgroup at a time, since nobody else knows which lane has what.
//      │  2  │  3  │
//      └─────┴─────┘         Eight elements are loaded at once where all rows start on 16 bytes.
//
// Sums are made in order of k, M, N and K being the same for every problem, so a row's bits depend on nothing but the row.
// Limits: A and B both of the type that ELEMENT is; sizes below 2^31; shapes that the driver lists.

#include "gemm/glsl/finish.glsl"
#include "gemm/glsl/operands.glsl"

layout(constant_id = 12) const uint BM = 64u;
layout(constant_id = 13) const uint BN = 64u;
layout(constant_id = 14) const uint BK = 32u;
layout(constant_id = 15) const uint DOWN = 2u;
layout(constant_id = 16) const uint ACROSS = 2u;
layout(local_size_x_id = 17) in;
layout(constant_id = 17) const uint THREADS = 128u;
layout(constant_id = 18) const uint M = 16u;
layout(constant_id = 19) const uint N = 16u;
layout(constant_id = 20) const uint K = 16u;
// Bits: eight elements of A, of B at once.
layout(constant_id = 21) const uint RUNS = 0u;

// A tile's lines: along k, or across it where that is how the operand lies. Lines are longer by 16 bytes than what they hold,
// so that neighbouring ones start in other banks.
const bool A_ALONG_K = A_FORM == 0u;
const bool B_ALONG_K = B_FORM != 0u;
const uint A_LINES = A_ALONG_K ? BM : BK;
const uint A_LENGTH = A_ALONG_K ? BK : BM;
const uint B_LINES = B_ALONG_K ? BN : BK;
const uint B_LENGTH = B_ALONG_K ? BK : BN;
const uint A_WORDS = A_LENGTH / 2u + 4u;
const uint B_WORDS = B_LENGTH / 2u + 4u;

// Matrices of a subgroup's part.
const uint ROWS = BM / DOWN / M;
const uint COLS = BN / ACROSS / N;
const uint SUBGROUPS = DOWN * ACROSS;

shared uint a_tile[A_LINES * A_WORDS];
shared uint b_tile[B_LINES * B_WORDS];
shared float out_tile[SUBGROUPS * M * N];

// A's code at (`row`, `col`), 0 outside.
uint a_code(uint64_t origin, uint row, uint col) {
    return row < m && col < k ? code_at(a, a_place(origin, row, col), A_TYPE) : 0u;
}

// B's code at row `row` and place `at`, 0 outside.
uint b_code(uint64_t origin, uint row, uint at) {
    return row < k && at < n ? code_at(b, b_place(origin, row, column(at)), B_TYPE) : 0u;
}

void load_a(uint64_t origin, uint row_0, uint k_0) {
    const bool runs = (RUNS & 1u) != 0u;
    const uint step = runs ? 4u : 1u;
    const uint per_line = A_LENGTH / 2u / step;
    for (uint e = gl_LocalInvocationIndex; e < A_LINES * per_line; e += THREADS) {
        const uint line = e / per_line;
        const uint word = e % per_line * step;
        const uint row = row_0 + (A_ALONG_K ? line : 2u * word);
        const uint col = k_0 + (A_ALONG_K ? 2u * word : line);
        const uint to = line * A_WORDS + word;
        if (runs && row + (A_ALONG_K ? 0u : 7u) < m && col + (A_ALONG_K ? 7u : 0u) < k) {
            const uvec4 eight = Quad(a + 2ul * a_place(origin, row, col)).v;
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                a_tile[to + i] = eight[i];
            }
            continue;
        }
        for (uint i = 0u; i < step; i++) {
            const uint r = row + (A_ALONG_K ? 0u : 2u * i);
            const uint c = col + (A_ALONG_K ? 2u * i : 0u);
            a_tile[to + i] = a_code(origin, r, c) | a_code(origin, r + (A_ALONG_K ? 0u : 1u), c + (A_ALONG_K ? 1u : 0u)) << 16;
        }
    }
}

void load_b(uint64_t origin, uint k_0, uint col_0) {
    const bool runs = (RUNS & 2u) != 0u;
    const uint step = runs ? 4u : 1u;
    const uint per_line = B_LENGTH / 2u / step;
    for (uint e = gl_LocalInvocationIndex; e < B_LINES * per_line; e += THREADS) {
        const uint line = e / per_line;
        const uint word = e % per_line * step;
        const uint row = k_0 + (B_ALONG_K ? 2u * word : line);
        const uint at = col_0 + (B_ALONG_K ? line : 2u * word);
        const uint to = line * B_WORDS + word;
        if (runs && row + (B_ALONG_K ? 7u : 0u) < k && at + (B_ALONG_K ? 0u : 7u) < n) {
            const uvec4 eight = Quad(b + 2ul * b_place(origin, row, column(at))).v;
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                b_tile[to + i] = eight[i];
            }
            continue;
        }
        for (uint i = 0u; i < step; i++) {
            const uint r = row + (B_ALONG_K ? 2u * i : 0u);
            const uint c = at + (B_ALONG_K ? 0u : 2u * i);
            b_tile[to + i] = b_code(origin, r, c) | b_code(origin, r + (B_ALONG_K ? 1u : 0u), c + (B_ALONG_K ? 0u : 1u)) << 16;
        }
    }
}

void main() {
    const uint tiles_n = (n + BN - 1u) / BN;
    const uint64_t per_matrix = uint64_t((m + BM - 1u) / BM) * tiles_n;
    // This subgroup's part of the tile.
    const uint part_row = gl_SubgroupID / ACROSS * (BM / DOWN);
    const uint part_col = gl_SubgroupID % ACROSS * (BN / ACROSS);
    for (uint64_t tile = gl_WorkGroupID.x; tile < per_matrix * batch; tile += gl_NumWorkGroups.x) {
        const uint which = uint(tile / per_matrix);
        const uint64_t place = tile - which * per_matrix;
        const uint row_0 = uint(place / tiles_n) * BM;
        const uint col_0 = uint(place % tiles_n) * BN;
        coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> sums[ROWS * COLS];
        [[unroll]] for (uint i = 0u; i < ROWS * COLS; i++) {
            sums[i] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0.0);
        }
        for (uint k_0 = 0u; k_0 < k; k_0 += BK) {
            load_a(which * a_stride, row_0, k_0);
            load_b(which * b_stride, k_0, col_0);
            barrier();
            for (uint s = 0u; s < BK; s += K) {
                coopmat<ELEMENT, gl_ScopeSubgroup, M, K, gl_MatrixUseA> rows[ROWS];
                [[unroll]] for (uint i = 0u; i < ROWS; i++) {
                    const uint row = part_row + i * M;
                    if (A_ALONG_K) {
                        coopMatLoad(rows[i], a_tile, row * A_WORDS + s / 2u, A_WORDS, gl_CooperativeMatrixLayoutRowMajor);
                    } else {
                        coopMatLoad(rows[i], a_tile, s * A_WORDS + row / 2u, A_WORDS, gl_CooperativeMatrixLayoutColumnMajor);
                    }
                }
                [[unroll]] for (uint j = 0u; j < COLS; j++) {
                    const uint col = part_col + j * N;
                    coopmat<ELEMENT, gl_ScopeSubgroup, K, N, gl_MatrixUseB> cols;
                    if (B_ALONG_K) {
                        coopMatLoad(cols, b_tile, col * B_WORDS + s / 2u, B_WORDS, gl_CooperativeMatrixLayoutColumnMajor);
                    } else {
                        coopMatLoad(cols, b_tile, s * B_WORDS + col / 2u, B_WORDS, gl_CooperativeMatrixLayoutRowMajor);
                    }
                    [[unroll]] for (uint i = 0u; i < ROWS; i++) {
                        sums[i * COLS + j] = coopMatMulAdd(rows[i], cols, sums[i * COLS + j]);
                    }
                }
            }
            barrier();
        }
        const uint lanes = THREADS / SUBGROUPS;
        const uint own = gl_SubgroupID * M * N;
        // What follows the sums is long, and stands here once.
        [[dont_unroll]] for (uint i = 0u; i < ROWS * COLS; i++) {
            [[unroll]] for (uint each = 0u; each < ROWS * COLS; each++) {
                if (each == i) {
                    coopMatStore(sums[each], out_tile, own, N, gl_CooperativeMatrixLayoutRowMajor);
                }
            }
            barrier();
            for (uint e = gl_SubgroupInvocationID; e < M * N / 2u; e += lanes) {
                const uint row = i / COLS * M + 2u * e / N;
                const uint col = i % COLS * N + 2u * e % N;
                finished(out_tile[own + 2u * e], out_tile[own + 2u * e + 1u], which, row_0 + part_row + row,
                         col_0 + part_col + col);
            }
            barrier();
        }
    }
}

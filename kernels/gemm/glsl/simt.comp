#version 460
#extension GL_GOOGLE_include_directive : require
// also open: OPEN=1 OPEN_OPERANDS=1

// D = A·B on the ordinary arithmetic units, for floats of 32 bits and fewer in every order.
//
//        BN                  A group makes tiles of BM × BN, one after the other. A step brings BK columns of A and BK rows
//      ┌─────┐ BK            of B to shared memory as f32; each thread adds TM × TN products to as many sums, those of rows
//   BM │ . . │               BM/TM apart and of pairs of columns 2·BN/TN apart, so that neighbours read neighbouring words.
//      └─────┘
//
// Products of a sum are added one after the other in order of k, so a row's bits depend on nothing but the row.
// Limits: sizes below 2^31. Threads of a group: BM/TM · BN/TN.

#include "gemm/glsl/finish.glsl"
#include "gemm/glsl/operands.glsl"

layout(constant_id = 12) const uint BM = 64u;
layout(constant_id = 13) const uint BN = 64u;
layout(constant_id = 14) const uint BK = 16u;
layout(constant_id = 15) const uint TM = 4u;
layout(constant_id = 16) const uint TN = 4u;
layout(local_size_x_id = 17) in;

const uint THREADS = BM / TM * (BN / TN);
// A word more than a row has: a column's words lie in different banks.
const uint A_ROW = BM + 1u;
const uint B_ROW = BN + 1u;

// Where B's part begins, behind A's.
const uint B_PART = BK * A_ROW;
// A row of every thread's sums, when they are finished.
const uint DONE = BM / TM * BN;
const uint PARTS = B_PART + BK * B_ROW;

shared float parts[PARTS > DONE ? PARTS : DONE];

void main() {
    const uint thread = gl_LocalInvocationIndex;
    const uint across = thread % (BN / TN);
    const uint down = thread / (BN / TN);
    const uint tiles_n = (n + BN - 1u) / BN;
    const uint64_t per_matrix = uint64_t((m + BM - 1u) / BM) * tiles_n;
    for (uint64_t tile = gl_WorkGroupID.x; tile < per_matrix * batch; tile += gl_NumWorkGroups.x) {
        const uint which = uint(tile / per_matrix);
        const uint64_t place = tile - which * per_matrix;
        const uint row_0 = uint(place / tiles_n) * BM;
        const uint col_0 = uint(place % tiles_n) * BN;
        const uint64_t a_origin = which * a_stride;
        const uint64_t b_origin = which * b_stride;
        float sums[TM * TN];
        [[unroll]] for (uint i = 0u; i < TM * TN; i++) {
            sums[i] = 0.0;
        }
        for (uint k_0 = 0u; k_0 < k; k_0 += BK) {
            // Neighbouring threads read neighbouring elements, whichever index is contiguous.
            for (uint e = thread; e < BM * BK; e += THREADS) {
                const uint r = A_FORM == 0u ? e / BK : e % BM;
                const uint s = A_FORM == 0u ? e % BK : e / BM;
                const bool inside = row_0 + r < m && k_0 + s < k;
                parts[s * A_ROW + r] = inside ? number_at(a, a_place(a_origin, row_0 + r, k_0 + s), A_TYPE) : 0.0;
            }
            for (uint e = thread; e < BN * BK; e += THREADS) {
                const uint r = B_FORM == 0u ? e % BN : e / BK;
                const uint s = B_FORM == 0u ? e / BN : e % BK;
                const bool inside = col_0 + r < n && k_0 + s < k;
                parts[B_PART + s * B_ROW + r] = inside ? number_at(b, b_place(b_origin, k_0 + s, column(col_0 + r)), B_TYPE) : 0.0;
            }
            barrier();
            [[dont_unroll]] for (uint s = 0u; s < BK; s++) {
                float rows[TM];
                float cols[TN];
                [[unroll]] for (uint i = 0u; i < TM; i++) {
                    rows[i] = parts[s * A_ROW + down + i * (BM / TM)];
                }
                [[unroll]] for (uint j = 0u; j < TN; j++) {
                    cols[j] = parts[B_PART + s * B_ROW + 2u * across + j / 2u * (2u * BN / TN) + j % 2u];
                }
                [[unroll]] for (uint i = 0u; i < TM; i++) {
                    [[unroll]] for (uint j = 0u; j < TN; j++) {
                        sums[i * TN + j] += rows[i] * cols[j];
                    }
                }
            }
            barrier();
        }
        // A row of every thread's at a time through shared memory: what follows the sums is long, and stands here once.
        [[dont_unroll]] for (uint i = 0u; i < TM; i++) {
            [[unroll]] for (uint each = 0u; each < TM; each++) {
                if (each == i) {
                    [[unroll]] for (uint j = 0u; j < TN; j++) {
                        parts[down * BN + 2u * across + j / 2u * (2u * BN / TN) + j % 2u] = sums[each * TN + j];
                    }
                }
            }
            barrier();
            for (uint e = thread; e < DONE / 2u; e += THREADS) {
                const uint row = 2u * e / BN;
                const uint col = 2u * e % BN;
                finished(parts[2u * e], parts[2u * e + 1u], which, row_0 + row + i * (BM / TM), col_0 + col);
            }
            barrier();
        }
    }
}

#version 460
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
// also open: OPEN=1 OPEN_OPERANDS=1

// D = A·B for up to eight rows, B's columns contiguous as weights are, scaled or not: as fast as B comes from memory.
//
// A group makes COLS columns for all ROWS rows. Its threads take pieces of WIDTH elements of each column in turn, STEPS of them under
// way at once, with the elements of A that belong to them; subgroups add what their threads have, then the group what they have.
// Every element of B is read once, by one thread.
//
// Sums are made in the same order for every m, but what other kernels make of more rows is not: no promise across m.
// Limits: m at most 8; sizes below 2^31; blocks of WIDTH elements of a column that share a scale, or of whole columns.

#define NF4_TABLE
#include "gemm/glsl/finish.glsl"
#include "gemm/glsl/operands.glsl"
#include "gemm/glsl/weights.glsl"
#include "common/glsl/runs.glsl"

#ifdef OPEN
#define ROWS numbers[12]
const uint MOST_ROWS = 8u;
#else
layout(constant_id = 12) const uint ROWS = 1u;
const uint MOST_ROWS = ROWS;
#endif
layout(constant_id = 13) const uint COLS = 4u;
layout(constant_id = 14) const uint THREADS = 128u;
layout(local_size_x_id = 14) in;
// Bits: runs of A, of B at once, pieces of B at once.
#ifdef OPEN
#define RUNS numbers[13]
#else
layout(constant_id = 15) const uint RUNS = 0u;
#endif
layout(constant_id = 16) const uint STEPS = 1u;
// Runs of a piece.
layout(constant_id = 17) const uint PER = 1u;

const uint WIDTH = 8u * PER;
#define SUMS (ROWS * COLS)
const uint MOST_SUMS = MOST_ROWS * COLS;
// Whether scales change along a column.
#define BY_BLOCK (B_BLOCK_DEPTH < 0x80000000u)

// Subgroups have four threads at least.
shared float of_subgroups[MOST_SUMS * ((THREADS + 3u) / 4u)];

// Eight elements `at` and behind it of row `i` of A; 0 behind its end, where codes of B are 0 too.
Eight of_a(uint64_t origin, uint i, uint at) {
    if (A_FORM == 0u) {
        return eight_of(run_at(a, a_place(origin, i, at), k - at, A_TYPE, (RUNS & 1u) != 0u), A_TYPE);
    }
    float x[8];
    [[unroll]] for (uint e = 0u; e < 8u; e++) {
        x[e] = at + e < k ? number_at(a, a_place(origin, i, at + e), A_TYPE) : 0.0;
    }
    return Eight(vec4(x[0], x[1], x[2], x[3]), vec4(x[4], x[5], x[6], x[7]));
}

// A thread's piece of a column: PER runs, one behind the other.
Run piece_at(uint64_t line, uint at) {
    if (PER == 1u) {
        return run_at(b, line + at, k - at, B_TYPE, (RUNS & 2u) != 0u);
    }
    Run piece = Run(uvec4(0u), uvec4(0u));
    if ((RUNS & 4u) != 0u && at + WIDTH <= k) {
        const uint64_t from = b + (line + at) * bits_of(B_TYPE) / 8ul;
        if (PER * bits_of(B_TYPE) == 16u) {
            piece.low = Quad(from).v;
        } else {
            piece.low.xy = Pair(from).v;
        }
        return piece;
    }
    [[unroll]] for (uint r = 0u; r < PER; r++) {
        const uint from = min(at + 8u * r, k);
        const uvec4 words = run_at(b, line + from, k - from, B_TYPE, (RUNS & 2u) != 0u).low;
        if (bits_of(B_TYPE) == 4u) {
            piece.low[r % 4u] = words.x;
        } else if (r == 0u) {
            piece.low.xy = words.xy;
        } else {
            piece.low.zw = words.xy;
        }
    }
    return piece;
}

Run run_in(Run piece, uint r) {
    if (PER == 1u) {
        return piece;
    }
    return Run(bits_of(B_TYPE) == 4u ? uvec4(piece.low[r % 4u], 0u, 0u, 0u) : r == 0u ? piece.low : piece.low.zwxy, uvec4(0u));
}

// `sum` and the products of eight numbers with eight others, one after the other.
float added(float sum, Eight x, Eight y) {
    sum += x.low.x * y.low.x;
    sum += x.low.y * y.low.y;
    sum += x.low.z * y.low.z;
    sum += x.low.w * y.low.w;
    sum += x.high.x * y.high.x;
    sum += x.high.y * y.high.y;
    sum += x.high.z * y.high.z;
    return sum + x.high.w * y.high.w;
}

void main() {
    if (A_TYPE == NF4 || B_TYPE == NF4) {
        bring_nf4_table();
    }
    const uint thread = gl_LocalInvocationIndex;
    const bool scaled = (FLAGS & B_SCALED) != 0u;
    const uint tiles = (n + COLS - 1u) / COLS;
    for (uint64_t tile = gl_WorkGroupID.x; tile < uint64_t(tiles) * batch; tile += gl_NumWorkGroups.x) {
        const uint which = uint(tile / tiles);
        const uint col_0 = uint(tile - uint64_t(which) * tiles) * COLS;
        const uint64_t a_origin = which * a_stride;
        const uint64_t b_origin = which * b_stride;
        uint64_t columns[COLS];
        UNROLL for (uint j = 0u; j < COLS; j++) {
            // A column that is not there is a copy of the last one, which nobody stores.
            columns[j] = b_place(b_origin, 0u, column(min(col_0 + j, n - 1u)));
        }
        float sums[MOST_SUMS];
        UNROLL for (uint i = 0u; i < SUMS; i++) {
            sums[i] = 0.0;
        }
        for (uint k_0 = thread * WIDTH; k_0 < k; k_0 += STEPS * THREADS * WIDTH) {
            Run pieces[STEPS * COLS];
            // Scale and zero point.
            vec2 scales[STEPS * COLS];
            UNROLL for (uint s = 0u; s < STEPS; s++) {
                const uint at = k_0 + s * THREADS * WIDTH;
                UNROLL for (uint j = 0u; j < COLS; j++) {
                    if (at < k) {
                        pieces[s * COLS + j] = piece_at(columns[j], at);
                        if (scaled && BY_BLOCK) {
                            const uint64_t place = b_scale_place(which, at, column(min(col_0 + j, n - 1u)));
                            scales[s * COLS + j] = vec2(b_scale(place), (FLAGS & B_ZEROS) != 0u ? b_zero(place) : 0.0);
                        }
                    }
                }
            }
            UNROLL for (uint s = 0u; s < STEPS; s++) {
                const uint at = k_0 + s * THREADS * WIDTH;
                if (at < k) {
                    float parts[MOST_SUMS];
                    UNROLL for (uint i = 0u; i < SUMS; i++) {
                        parts[i] = scaled && BY_BLOCK ? 0.0 : sums[i];
                    }
                    UNROLL for (uint r = 0u; r < PER; r++) {
                        const uint from = min(at + 8u * r, k);
                        Eight y[COLS];
                        UNROLL for (uint j = 0u; j < COLS; j++) {
                            y[j] = eight_of(run_in(pieces[s * COLS + j], r), B_TYPE);
                            if ((FLAGS & B_ZEROS) != 0u) {
                                y[j].low -= scales[s * COLS + j].y;
                                y[j].high -= scales[s * COLS + j].y;
                            }
                        }
                        UNROLL for (uint i = 0u; i < ROWS; i++) {
                            const Eight x = of_a(a_origin, i, from);
                            UNROLL for (uint j = 0u; j < COLS; j++) {
                                parts[i * COLS + j] = added(parts[i * COLS + j], x, y[j]);
                            }
                        }
                    }
                    UNROLL for (uint i = 0u; i < SUMS; i++) {
                        sums[i] = scaled && BY_BLOCK ? sums[i] + scales[s * COLS + i % COLS].x * parts[i] : parts[i];
                    }
                }
            }
        }
        UNROLL for (uint i = 0u; i < SUMS; i++) {
            sums[i] = subgroupAdd(sums[i]);
        }
        if (subgroupElect()) {
            UNROLL for (uint i = 0u; i < SUMS; i++) {
                of_subgroups[i * gl_NumSubgroups + gl_SubgroupID] = sums[i];
            }
        }
        barrier();
        for (uint e = thread; e < SUMS / 2u; e += THREADS) {
            vec2 both = vec2(0.0);
            for (uint g = 0u; g < gl_NumSubgroups; g++) {
                both += vec2(of_subgroups[2u * e * gl_NumSubgroups + g], of_subgroups[(2u * e + 1u) * gl_NumSubgroups + g]);
            }
            const uint col = col_0 + 2u * e % COLS;
            if (scaled) {
                both *= b_global();
                if (!BY_BLOCK) {
                    both.x *= b_scale(b_scale_place(which, 0u, column(min(col, n - 1u))));
                    both.y *= b_scale(b_scale_place(which, 0u, column(min(col + 1u, n - 1u))));
                }
            }
            finished(both.x, both.y, which, 2u * e / COLS, col);
        }
        // Nobody writes the next ones before everybody has read these.
        barrier();
    }
}

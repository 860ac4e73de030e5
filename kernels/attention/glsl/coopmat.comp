#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_NV_cooperative_matrix2 : require
#ifdef OF_BF16
#extension GL_EXT_bfloat16 : require
#define ELEMENT bfloat16_t
#else
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define ELEMENT float16_t
#endif
// also bf16: OF_BF16=1

// O = softmax(scale · Q·Kᵀ + mask) · V of 16-bit floats on the matrix unit, block of keys by block.
//
//          BK keys          A group has SUBGROUPS · DEEP · M rows, each subgroup DEEP · M of them, with its queries and its part of
//         ┌──────┐          O in registers. All of them read a block of keys from shared memory while its values are on their way,
//  DEEP·M │  0   │          then these while the next block's keys are. Scores stay in registers too: what
//         ├──────┤          VK_NV_cooperative_matrix2 adds to matrices of subgroups finds the greatest of a row, says which
//         │  1   │          element is where, and makes of what a product was summed in what the next one reads.
//         └──────┘
//
// Where there is room for two blocks, lanes are known and heads have more than 64 numbers, `coopmat_ahead.comp` is faster.
//
// Where lanes have what `lanes.comp` asks for, a lane knows whose its elements are: it keeps two numbers for its two rows, where the
// device's own reductions give one to each element, and four lanes that share a row compare theirs.
//
// Weights are rounded to Q's type before they multiply V; their sum is of what they were. A row's bits depend on nothing but the
// row, unless its keys are split among groups.
// Limits: Q, K and V of the type that ELEMENT is, without scales; dimensions that are multiples of N; shapes that the driver lists,
// N being K.

#define PLACES 1u
#include "attention/glsl/coopmat.glsl"

// Whether lanes have those parts of matrices.
layout(constant_id = 39) const uint KNOWN = 0u;

// What is on its way to shared memory: of keys or of values.
uvec4 next[K_TURNS > V_TURNS ? K_TURNS : V_TURNS];

float most_of(const in float x, const in float y) {
    return max(x, y);
}

float sum_of(const in float x, const in float y) {
    return x + y;
}

// Whether a thread's pieces are the same of every so many tokens, which lie one behind the other.
const bool EVEN = THREADS % K_PIECES + THREADS % V_PIECES + BK * K_PIECES % THREADS + BK * V_PIECES % THREADS + PAGE == 0u;

// Whether a block's pieces can be sent for without a look at each.
bool is_whole(Sequence s, uint block) {
    if ((RUNS & 1u) == 0u) {
        return false;
    }
    return EVEN && block + BK <= s.keys;
}

// Sends for the keys of a block.
void send_keys(Sequence s, uint kv_head, uint block) {
    if (is_whole(s, block)) {
        const uvec3 token = key_token(s, block + gl_LocalInvocationIndex / K_PIECES);
        const uint64_t place = token_place(token, kv_head, KV_HEADS, QK_DIM, K_LD);
        const uint64_t from = k + 2ul * place + 16u * (gl_LocalInvocationIndex % K_PIECES);
        [[unroll]] for (uint i = 0u; i < K_TURNS; i++) {
            next[i] = Fixed(from + i * (THREADS / K_PIECES * K_LD * 2u)).v;
        }
        return;
    }
    [[unroll]] for (uint i = 0u; i < K_TURNS; i++) {
        const uint e = gl_LocalInvocationIndex + i * THREADS;
        next[i] = uvec4(0u);
        if (block + e / K_PIECES < s.keys) {
            const uvec3 token = key_token(s, block + e / K_PIECES);
            next[i] = eight(k, token_place(token, kv_head, KV_HEADS, QK_DIM, K_LD) + e % K_PIECES * 8u);
        }
    }
}

// Sends for the values of a block.
void send_values(Sequence s, uint kv_head, uint block) {
    if (is_whole(s, block)) {
        const uvec3 token = key_token(s, block + gl_LocalInvocationIndex / V_PIECES);
        const uint64_t place = token_place(token, kv_head, KV_HEADS, V_DIM, V_LD);
        const uint64_t from = v + 2ul * place + 16u * (gl_LocalInvocationIndex % V_PIECES);
        [[unroll]] for (uint i = 0u; i < V_TURNS; i++) {
            next[i] = Fixed(from + i * (THREADS / V_PIECES * V_LD * 2u)).v;
        }
        return;
    }
    [[unroll]] for (uint i = 0u; i < V_TURNS; i++) {
        const uint e = gl_LocalInvocationIndex + i * THREADS;
        next[i] = uvec4(0u);
        if (block + e / V_PIECES < s.keys) {
            const uvec3 token = key_token(s, block + e / V_PIECES);
            next[i] = eight(v, token_place(token, kv_head, KV_HEADS, V_DIM, V_LD) + e % V_PIECES * 8u);
        }
    }
}

// Puts what was sent for into shared memory.
void put_keys() {
    [[unroll]] for (uint i = 0u; i < K_TURNS; i++) {
        const uint e = gl_LocalInvocationIndex + i * THREADS;
        if (BK * K_PIECES % THREADS == 0u || e < BK * K_PIECES) {
            tile[e / K_PIECES * K_LINE + e % K_PIECES] = next[i];
        }
    }
}

void put_values() {
    [[unroll]] for (uint i = 0u; i < V_TURNS; i++) {
        const uint e = gl_LocalInvocationIndex + i * THREADS;
        if (BK * V_PIECES % THREADS == 0u || e < BK * V_PIECES) {
            tile[V_PART + e / V_PIECES * V_LINE + e % V_PIECES] = next[i];
        }
    }
}

void main() {
    const uint thread = gl_LocalInvocationIndex;
    const uint lanes = THREADS / SUBGROUPS;
    const float nothing = -uintBitsToFloat(INFINITE);
    const float factor = unit() * LOG2_E;
    const uint own_row = gl_SubgroupID * DEEP * M;
    const uint tiles = (q_len * GROUP + BQ - 1u) / BQ;
    const uint items = batch * KV_HEADS * tiles * splits;
    for (uint item = gl_WorkGroupID.x; item < items; item += gl_NumWorkGroups.x) {
        const uint split = item % splits;
        const uint first_head = item / splits / (TOGETHER * tiles) * TOGETHER;
        const uint together = min(batch * KV_HEADS - first_head, TOGETHER);
        const uint within = item / splits - first_head * tiles;
        const uint row_0 = (tiles - 1u - within / together) * BQ;
        const uint kv_head = (first_head + within % together) % KV_HEADS;
        const Sequence s = sequence((first_head + within % together) / KV_HEADS);
        if (row_0 >= s.queries * GROUP) {
            continue;
        }
        at_work = s;
        head_at_work = kv_head;
        const uint row_1 = min(row_0 + BQ, s.queries * GROUP) - 1u;
        const uvec2 sight = in_sight(s, row_0 / GROUP, row_1 / GROUP);
        const uint per_split = ((s.keys + BK - 1u) / BK + splits - 1u) / splits * BK;
        const uint first = max(sight.x / BK * BK, split * per_split);
        const uint last = min(sight.y, split * per_split + per_split);

        for (uint e = thread; e < BQ * K_PIECES; e += THREADS) {
            const uint row = row_0 + e / K_PIECES;
            uvec4 piece = uvec4(0u);
            if (row <= row_1) {
                const uint64_t place = token_place(query_token(s, row / GROUP), kv_head * GROUP + row % GROUP, Q_HEADS, QK_DIM, Q_LD);
                piece = eight(q, place + e % K_PIECES * 8u);
            }
            tile[e / K_PIECES * K_LINE + e % K_PIECES] = piece;
        }
        barrier();
        coopmat<ELEMENT, gl_ScopeSubgroup, M, N, gl_MatrixUseA> queries[DEEP * QK_STEPS];
        [[unroll]] for (uint i = 0u; i < DEEP * QK_STEPS; i++) {
            const uint row = own_row + i / QK_STEPS * M;
            coopMatLoad(queries[i], tile, row * K_LINE + i % QK_STEPS * (N / 8u), K_LINE, gl_CooperativeMatrixLayoutRowMajor);
        }
        SUMS results[DEEP * COLS];
        SUMS greatest[DEEP];
        SUMS totals[DEEP];
        // The same of a lane's rows, where they are known; the greatest times what it is multiplied by in advance.
        vec2 greatest_of[DEEP];
        vec2 totals_of[DEEP];
        [[unroll]] for (uint i = 0u; i < DEEP * COLS; i++) {
            results[i] = SUMS(0.0);
        }
        [[unroll]] for (uint i = 0u; i < DEEP; i++) {
            greatest[i] = SUMS(nothing);
            totals[i] = SUMS(0.0);
            greatest_of[i] = vec2(nothing);
            totals_of[i] = vec2(0.0);
        }
        // Nobody writes keys before everybody has the queries that stand in their place.
        barrier();
        if (first < last) {
            send_keys(s, kv_head, first);
        }
        for (uint block = first; block < last; block += BK) {
            put_keys();
            barrier();
            send_values(s, kv_head, block);
            SUMS scores[DEEP * KEYS];
            [[unroll]] for (uint j = 0u; j < KEYS; j++) {
                [[unroll]] for (uint i = 0u; i < DEEP; i++) {
                    scores[i * KEYS + j] = SUMS(0.0);
                }
                [[unroll]] for (uint d = 0u; d < QK_STEPS; d++) {
                    coopmat<ELEMENT, gl_ScopeSubgroup, N, N, gl_MatrixUseB> keys;
                    coopMatLoad(keys, tile, j * N * K_LINE + d * (N / 8u), K_LINE, gl_CooperativeMatrixLayoutColumnMajor);
                    [[unroll]] for (uint i = 0u; i < DEEP; i++) {
                        scores[i * KEYS + j] = coopMatMulAdd(queries[i * QK_STEPS + d], keys, scores[i * KEYS + j]);
                    }
                }
            }
            put_values();
            if (block + BK < last) {
                send_keys(s, kv_head, block + BK);
            }
            if (!is_plain(s, row_0, row_1, block)) {
                [[unroll]] for (uint i = 0u; i < DEEP; i++) {
                    [[unroll]] for (uint j = 0u; j < KEYS; j++) {
                        const uint n = i * KEYS + j;
                        coopMatPerElementNV(scores[n], scores[n], element_score, row_0 + own_row + i * M, block + j * N);
                    }
                }
            }
            coopmat<ELEMENT, gl_ScopeSubgroup, M, N, gl_MatrixUseA> weights[DEEP * KEYS];
            [[unroll]] for (uint i = 0u; i < DEEP; i++) {
                // Where nothing is seen yet, -infinity less itself would be NaN.
                if (KNOWN != 0u) {
                    vec2 most = vec2(nothing);
                    [[unroll]] for (uint j = 0u; j < KEYS; j++) {
                        [[unroll]] for (uint e = 0u; e < scores[0].length(); e++) {
                            most[row_of(e)] = max(most[row_of(e)], scores[i * KEYS + j][e]);
                        }
                    }
                    most = max(most, subgroupShuffleXor(most, 1u));
                    most = max(most, subgroupShuffleXor(most, 2u));
                    most = max(most * IN_ADVANCE(factor), greatest_of[i]);
                    const vec2 against = vec2(most.x == nothing ? 0.0 : most.x, most.y == nothing ? 0.0 : most.y);
                    const vec2 kept = exp2((greatest_of[i] - against) * AFTERWARDS(factor));
                    vec2 total = totals_of[i] * kept;
                    [[unroll]] for (uint j = 0u; j < KEYS; j++) {
                        [[unroll]] for (uint e = 0u; e < scores[0].length(); e++) {
                            const float difference = fma(scores[i * KEYS + j][e], IN_ADVANCE(factor), -against[row_of(e)]);
                            const float weight = exp2(difference * AFTERWARDS(factor));
                            total[row_of(e)] += weight;
                            scores[i * KEYS + j][e] = weight;
                        }
                    }
                    greatest_of[i] = most;
                    totals_of[i] = total;
                    [[unroll]] for (uint c = 0u; c < COLS; c++) {
                        [[unroll]] for (uint e = 0u; e < results[0].length(); e++) {
                            results[i * COLS + c][e] *= kept[row_of(e)];
                        }
                    }
                } else {
                    SUMS most = greatest[i];
                    [[unroll]] for (uint j = 0u; j < KEYS; j++) {
                        [[unroll]] for (uint e = 0u; e < most.length(); e++) {
                            most[e] = max(most[e], scores[i * KEYS + j][e]);
                        }
                    }
                    coopMatReduceNV(most, most, gl_CooperativeMatrixReduceRowNV, most_of);
                    SUMS kept;
                    [[unroll]] for (uint e = 0u; e < most.length(); e++) {
                        const float against = most[e] == nothing ? 0.0 : most[e];
                        // The difference is made first: a product less the rounded product of the greatest would be as far from 0 as
                        // that was rounded.
                        kept[e] = exp2((greatest[i][e] - against) * factor);
                        float total = totals[i][e] * kept[e];
                        [[unroll]] for (uint j = 0u; j < KEYS; j++) {
                            const float weight = exp2((scores[i * KEYS + j][e] - against) * factor);
                            total += weight;
                            scores[i * KEYS + j][e] = weight;
                        }
                        totals[i][e] = total;
                    }
                    greatest[i] = most;
                    [[unroll]] for (uint c = 0u; c < COLS; c++) {
                        results[i * COLS + c] *= kept;
                    }
                }
                [[unroll]] for (uint j = 0u; j < KEYS; j++) {
                    weights[i * KEYS + j] = coopmat<ELEMENT, gl_ScopeSubgroup, M, N, gl_MatrixUseA>(narrowed(scores[i * KEYS + j]));
                }
            }
            barrier();
            [[unroll]] for (uint c = 0u; c < COLS; c++) {
                [[unroll]] for (uint j = 0u; j < KEYS; j++) {
                    coopmat<ELEMENT, gl_ScopeSubgroup, N, N, gl_MatrixUseB> values;
                    coopMatLoad(values, tile, V_PART + j * N * V_LINE + c * (N / 8u), V_LINE, gl_CooperativeMatrixLayoutRowMajor);
                    [[unroll]] for (uint i = 0u; i < DEEP; i++) {
                        results[i * COLS + c] = coopMatMulAdd(weights[i * KEYS + j], values, results[i * COLS + c]);
                    }
                }
            }
        }

        const uint own = gl_SubgroupID * M * N;
        [[unroll]] for (uint i = 0u; i < DEEP; i++) {
            if (KNOWN != 0u) {
                totals_of[i] += subgroupShuffleXor(totals_of[i], 1u);
                totals_of[i] += subgroupShuffleXor(totals_of[i], 2u);
                if (gl_SubgroupInvocationID % 4u == 0u) {
                    [[unroll]] for (uint h = 0u; h < 2u; h++) {
                        const uint row = own_row + i * M + gl_SubgroupInvocationID / 4u + 8u * h;
                        of_rows[row] = greatest_of[i][h] / IN_ADVANCE(factor);
                        of_rows[BQ + row] = totals_of[i][h];
                    }
                }
                continue;
            }
            coopMatReduceNV(totals[i], totals[i], gl_CooperativeMatrixReduceRowNV, sum_of);
            [[unroll]] for (uint which = 0u; which < 2u; which++) {
                // Nobody stores before everybody is done with what stands there.
                barrier();
                coopMatStore(which == 0u ? greatest[i] : totals[i], tile, own / 4u, N / 4u, gl_CooperativeMatrixLayoutRowMajor);
                barrier();
                if (gl_SubgroupInvocationID < M) {
                    of_rows[which * BQ + own_row + i * M + gl_SubgroupInvocationID] = stored(own + gl_SubgroupInvocationID * N);
                }
            }
        }
        barrier();
        for (uint row = thread; row < BQ; row += THREADS) {
            of_rows[row] = finish_row(s, kv_head, row_0 + row, split, unit() * of_rows[row], of_rows[BQ + row]);
        }
        barrier();
        [[dont_unroll]] for (uint i = 0u; i < DEEP * COLS; i++) {
            [[unroll]] for (uint each = 0u; each < DEEP * COLS; each++) {
                if (each == i) {
                    coopMatStore(results[each], tile, own / 4u, N / 4u, gl_CooperativeMatrixLayoutRowMajor);
                }
            }
            barrier();
            for (uint e = gl_SubgroupInvocationID; e < M * N; e += lanes) {
                const uint row = own_row + i / COLS * M + e / N;
                store_result(s, kv_head, row_0 + row, split, i % COLS * N + e % N, of_rows[row] * stored(own + e));
            }
            barrier();
        }
    }
}

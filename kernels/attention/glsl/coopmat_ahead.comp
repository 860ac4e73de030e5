#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_NV_cooperative_matrix2 : require
#ifdef OF_BF16
#extension GL_EXT_bfloat16 : require
#extension GL_EXT_spirv_intrinsics : require
#define ELEMENT bfloat16_t
#else
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define ELEMENT float16_t
#endif
// also bf16: OF_BF16=1

// As coopmat.comp, with scores made a block ahead.
//
//   step t    O += weights t · V t         needs the matrix unit alone
//             scores t + 1 = Q · K t + 1
//             K t + 2, V t + 1             which came meanwhile, take the places of what nobody reads any more; the next are sent for
//             greatest of scores t + 1     needs other units, as the weights do that follow
//
// So a step has one barrier, behind which a subgroup has products to make whatever the others do, and shared memory two blocks of keys and of
// values. Steps are made two at a time, so that what is next comes where it is to be: the compiler moved 46 registers at the end of each. Those
// of plain blocks have no branch in them: one that is never taken costs 4 % of the time, since the compiler orders what stands before it and
// what stands behind it apart, and moves scores to where a masked block would leave them.
//
// Limits: those of coopmat.comp; DEEP is 1; lanes have what `lanes.comp` asks for.

#define PLACES 2u
#include "attention/glsl/coopmat.glsl"

// What is on its way to shared memory.
uvec4 next_keys[K_TURNS];
uvec4 next_values[V_TURNS];

// Piece `at` of the token `key` of keys or values, whose first token of the sequence starts at `from`. Past the last token it comes again:
// nobody sees it, and a load behind a condition would be waited for where that ends.
uvec4 piece(Sequence s, uint64_t base, uint64_t from, uint kv_head, uint key, uint dim, uint ld, uint at) {
    const uint there = min(key, s.keys - 1u);
    if ((RUNS & 1u) != 0u && PAGE == 0u) {
        return Fixed(from + uint64_t(there) * (2u * ld) + 16u * at).v;
    }
    return eight(base, token_place(key_token(s, there), kv_head, KV_HEADS, dim, ld) + 8u * at);
}

// Where a sequence's keys and values start, if they lie one behind the other.
uint64_t keys_from;
uint64_t values_from;

// Sends for the keys of a block.
void send_keys(Sequence s, uint kv_head, uint block) {
    [[unroll]] for (uint i = 0u; i < K_TURNS; i++) {
        const uint e = gl_LocalInvocationIndex + i * THREADS;
        next_keys[i] = piece(s, k, keys_from, kv_head, block + e / K_PIECES, QK_DIM, K_LD, e % K_PIECES);
    }
}

// Sends for the values of a block.
void send_values(Sequence s, uint kv_head, uint block) {
    [[unroll]] for (uint i = 0u; i < V_TURNS; i++) {
        const uint e = gl_LocalInvocationIndex + i * THREADS;
        next_values[i] = piece(s, v, values_from, kv_head, block + e / V_PIECES, V_DIM, V_LD, e % V_PIECES);
    }
}

// Puts what was sent for into shared memory, in the place that block number `turn` has.
void put_keys(uint turn) {
    [[unroll]] for (uint i = 0u; i < K_TURNS; i++) {
        const uint e = gl_LocalInvocationIndex + i * THREADS;
        if (BK * K_PIECES % THREADS == 0u || e < BK * K_PIECES) {
            tile[turn % PLACES * K_BLOCK + e / K_PIECES * K_LINE + e % K_PIECES] = next_keys[i];
        }
    }
}

void put_values(uint turn) {
    [[unroll]] for (uint i = 0u; i < V_TURNS; i++) {
        const uint e = gl_LocalInvocationIndex + i * THREADS;
        if (BK * V_PIECES % THREADS == 0u || e < BK * V_PIECES) {
            tile[V_PART + turn % PLACES * V_BLOCK + e / V_PIECES * V_LINE + e % V_PIECES] = next_values[i];
        }
    }
}

coopmat<ELEMENT, gl_ScopeSubgroup, M, N, gl_MatrixUseA> queries[QK_STEPS];
SUMS scores[KEYS];
coopmat<ELEMENT, gl_ScopeSubgroup, M, N, gl_MatrixUseA> weights[KEYS];
SUMS results[COLS];
// Of a lane's two rows: the greatest score, times what it is multiplied by in advance, and the sum of the weights against it.
vec2 greatest;
vec2 totals;
// What weights are against, and what is kept of sums that were against less.
vec2 against;
vec2 kept;

const float NOTHING = -uintBitsToFloat(INFINITE);

// Makes scores of block number `turn`.
void make_scores(uint turn) {
    [[unroll]] for (uint j = 0u; j < KEYS; j++) {
        scores[j] = SUMS(0.0);
    }
    [[unroll]] for (uint d = 0u; d < QK_STEPS; d++) {
        [[unroll]] for (uint j = 0u; j < KEYS; j++) {
            const uint from = turn % PLACES * K_BLOCK + j * N * K_LINE + d * (N / 8u);
            coopmat<ELEMENT, gl_ScopeSubgroup, N, N, gl_MatrixUseB> keys;
            coopMatLoad(keys, tile, from, K_LINE, gl_CooperativeMatrixLayoutColumnMajor);
            scores[j] = coopMatMulAdd(queries[d], keys, scores[j]);
        }
    }
}

// Finds what the weights of scores of the block from `block` are against, of which it may be known that they are plain; of the first block
// there is nothing to keep.
void find_greatest(Sequence s, uint row_0, uint row_1, uint block, bool is_first, bool are_plain) {
    if (!are_plain && !is_plain(s, row_0, row_1, block)) {
        [[unroll]] for (uint j = 0u; j < KEYS; j++) {
            coopMatPerElementNV(scores[j], scores[j], element_score, row_0 + gl_SubgroupID * M, block + j * N);
        }
    }
    const float factor = unit() * LOG2_E;
    vec2 most = vec2(scores[0][0], scores[0][N / 4u]);
    [[unroll]] for (uint j = 0u; j < KEYS; j++) {
        [[unroll]] for (uint e = 0u; e < scores[0].length(); e++) {
            most[row_of(e)] = max(most[row_of(e)], scores[j][e]);
        }
    }
    most = max(most, subgroupShuffleXor(most, 1u));
    most = max(most, subgroupShuffleXor(most, 2u));
    most = max(most * IN_ADVANCE(factor), greatest);
    // Where nothing is seen yet, -infinity less itself would be NaN.
    against = vec2(most.x == NOTHING ? 0.0 : most.x, most.y == NOTHING ? 0.0 : most.y);
    // What NVIDIA's compiler can tell to be made of an infinite number, as of the first greatest, it makes anything.
    kept = is_first ? vec2(0.0) : exp2((greatest - against) * AFTERWARDS(factor));
    greatest = most;
}

#ifdef OF_BF16
// The bits of a word.
spirv_instruction(id = 124) bf16vec2 two_of(uint word);

// As there, but two neighbours at a time: two steps put both into a word, where compilers take three for two that were made alone.
coopmat<ELEMENT, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> narrowed_by_twos(SUMS matrix) {
    coopmat<ELEMENT, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> halves;
    [[unroll]] for (uint e = 0u; e < matrix.length(); e += 2u) {
        const uint low = floatBitsToUint(matrix[e]) + 0x8000u;
        const uint high = floatBitsToUint(matrix[e + 1u]) + 0x8000u;
        const bf16vec2 two = two_of(low >> 16 | (high & 0xffff0000u));
        halves[e] = two.x;
        halves[e + 1u] = two.y;
    }
    return halves;
}
#else
#define narrowed_by_twos narrowed
#endif

// Makes weights of scores, and takes from what was summed before what it has too much.
void weigh() {
    const float factor = unit() * LOG2_E;
    totals *= kept;
    [[unroll]] for (uint j = 0u; j < KEYS; j++) {
        [[unroll]] for (uint e = 0u; e < scores[0].length(); e++) {
            const float difference = fma(scores[j][e], IN_ADVANCE(factor), -against[row_of(e)]);
            const float weight = exp2(difference * AFTERWARDS(factor));
            totals[row_of(e)] += weight;
            scores[j][e] = weight;
        }
        weights[j] = coopmat<ELEMENT, gl_ScopeSubgroup, M, N, gl_MatrixUseA>(narrowed_by_twos(scores[j]));
    }
    [[unroll]] for (uint c = 0u; c < COLS; c++) {
        [[unroll]] for (uint e = 0u; e < results[0].length(); e++) {
            results[c][e] *= kept[row_of(e)];
        }
    }
}

// Adds the values of block number `turn` times weights to the results.
void add_values(uint turn) {
    [[unroll]] for (uint c = 0u; c < COLS; c++) {
        [[unroll]] for (uint j = 0u; j < KEYS; j++) {
            const uint from = V_PART + turn % PLACES * V_BLOCK + j * N * V_LINE + c * (N / 8u);
            coopmat<ELEMENT, gl_ScopeSubgroup, N, N, gl_MatrixUseB> values;
            coopMatLoad(values, tile, from, V_LINE, gl_CooperativeMatrixLayoutRowMajor);
            results[c] = coopMatMulAdd(weights[j], values, results[c]);
        }
    }
}

// The step of block number `turn`, whose scores are there, when there is one behind it, from `next`, of whose scores it may be known that they
// are plain. What stands behind the last block is not used, but comes all the same: see `piece`.
void go_ahead(Sequence s, uint kv_head, uint row_0, uint row_1, uint next, uint turn, bool are_plain) {
    weigh();
    add_values(turn);
    make_scores(turn + 1u);
    // Anywhere else in a step this takes 7 to 19 % more.
    put_keys(turn);
    put_values(turn + 1u);
    send_keys(s, kv_head, next + 2u * BK);
    send_values(s, kv_head, next + BK);
    find_greatest(s, row_0, row_1, next, false, are_plain);
    barrier();
}

// Whether plain blocks come before all others, if there are any, and it takes few steps to find out which they are.
bool begin_plain() {
    return is_bare() && (MASK == MASK_FULL || MASK == MASK_CAUSAL);
}

// Stores eight numbers of a row, of two bytes each.
void store_eight(Sequence s, uint kv_head, uint row, uint col, vec4 low, vec4 high) {
    if (row >= s.queries * GROUP) {
        return;
    }
    uvec4 piece;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        const float x = i < 2u ? low[2u * i] : high[2u * i - 4u];
        const float y = i < 2u ? low[2u * i + 1u] : high[2u * i - 3u];
        piece[i] = O_TYPE == F16 ? to_f16(x) | to_f16(y) << 16 : to_bf16(x) | to_bf16(y) << 16;
    }
    const uint head = kv_head * GROUP + row % GROUP;
    Quad(o + 2ul * (token_place(query_token(s, row / GROUP), head, Q_HEADS, V_DIM, O_LD) + col)).v = piece;
}

void main() {
    const float factor = unit() * LOG2_E;
    const uint own_row = gl_SubgroupID * M;
    const uint lanes = THREADS / SUBGROUPS;
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
        if (PAGE == 0u) {
            keys_from = k + 2ul * token_place(key_token(s, 0u), kv_head, KV_HEADS, QK_DIM, K_LD);
            values_from = v + 2ul * token_place(key_token(s, 0u), kv_head, KV_HEADS, V_DIM, V_LD);
        }
        const uint row_1 = min(row_0 + BQ, s.queries * GROUP) - 1u;
        const uvec2 sight = in_sight(s, row_0 / GROUP, row_1 / GROUP);
        const uint per_split = ((s.keys + BK - 1u) / BK + splits - 1u) / splits * BK;
        const uint first = max(sight.x / BK * BK, split * per_split);
        const uint last = min(sight.y, split * per_split + per_split);

        for (uint e = gl_LocalInvocationIndex; e < BQ * K_PIECES; e += THREADS) {
            const uint row = row_0 + e / K_PIECES;
            uvec4 piece = uvec4(0u);
            if (row <= row_1) {
                const uint64_t place = token_place(query_token(s, row / GROUP), kv_head * GROUP + row % GROUP, Q_HEADS, QK_DIM, Q_LD);
                piece = eight(q, place + e % K_PIECES * 8u);
            }
            tile[e / K_PIECES * K_LINE + e % K_PIECES] = piece;
        }
        barrier();
        [[unroll]] for (uint d = 0u; d < QK_STEPS; d++) {
            coopMatLoad(queries[d], tile, own_row * K_LINE + d * (N / 8u), K_LINE, gl_CooperativeMatrixLayoutRowMajor);
        }
        [[unroll]] for (uint c = 0u; c < COLS; c++) {
            results[c] = SUMS(0.0);
        }
        greatest = vec2(NOTHING);
        totals = vec2(0.0);
        // Nobody writes keys before everybody has the queries that stand in their place.
        barrier();
        if (first < last) {
            send_keys(s, kv_head, first);
            send_values(s, kv_head, first);
            put_keys(0u);
            send_keys(s, kv_head, first + BK);
            barrier();
            make_scores(0u);
            put_keys(1u);
            put_values(0u);
            send_keys(s, kv_head, first + 2u * BK);
            send_values(s, kv_head, first + BK);
            find_greatest(s, row_0, row_1, first, true, false);
            barrier();
            uint next = first + BK;
            uint turn = 0u;
            if (!begin_plain()) {
                for (; next + BK < last; next += 2u * BK) {
                    go_ahead(s, kv_head, row_0, row_1, next, 0u, false);
                    go_ahead(s, kv_head, row_0, row_1, next + BK, 1u, false);
                }
            }
            for (; next + BK < last && is_plain(s, row_0, row_1, next) && is_plain(s, row_0, row_1, next + BK); next += 2u * BK) {
                go_ahead(s, kv_head, row_0, row_1, next, 0u, true);
                go_ahead(s, kv_head, row_0, row_1, next + BK, 1u, true);
            }
            [[dont_unroll]] for (; next < last; next += BK) {
                go_ahead(s, kv_head, row_0, row_1, next, turn, false);
                turn ^= 1u;
            }
            weigh();
            add_values(turn);
        }

        totals += subgroupShuffleXor(totals, 1u);
        totals += subgroupShuffleXor(totals, 2u);
        if (gl_SubgroupInvocationID % 4u == 0u) {
            [[unroll]] for (uint h = 0u; h < 2u; h++) {
                const uint row = own_row + gl_SubgroupInvocationID / 4u + 8u * h;
                of_rows[row] = greatest[h] / IN_ADVANCE(factor);
                of_rows[BQ + row] = totals[h];
            }
        }
        barrier();
        for (uint row = gl_LocalInvocationIndex; row < BQ; row += THREADS) {
            of_rows[row] = finish_row(s, kv_head, row_0 + row, split, unit() * of_rows[row], of_rows[BQ + row]);
        }
        barrier();
        const uint own = gl_SubgroupID * M * N;
        [[dont_unroll]] for (uint i = 0u; i < COLS; i++) {
            [[unroll]] for (uint each = 0u; each < COLS; each++) {
                if (each == i) {
                    coopMatStore(results[each], tile, own / 4u, N / 4u, gl_CooperativeMatrixLayoutRowMajor);
                }
            }
            subgroupBarrier();
            if ((RUNS & 2u) != 0u && splits == 1u) {
                for (uint e = 8u * gl_SubgroupInvocationID; e < M * N; e += 8u * lanes) {
                    const uint row = own_row + e / N;
                    const vec4 low = of_rows[row] * uintBitsToFloat(tile[(own + e) / 4u]);
                    const vec4 high = of_rows[row] * uintBitsToFloat(tile[(own + e) / 4u + 1u]);
                    store_eight(s, kv_head, row_0 + row, i * N + e % N, low, high);
                }
            } else {
                for (uint e = gl_SubgroupInvocationID; e < M * N; e += lanes) {
                    const uint row = own_row + e / N;
                    store_result(s, kv_head, row_0 + row, split, i * N + e % N, of_rows[row] * stored(own + e));
                }
            }
            subgroupBarrier();
        }
        // Nobody brings the next queries before everybody has stored these results.
        barrier();
    }
}

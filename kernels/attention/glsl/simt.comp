#version 460
#extension GL_GOOGLE_include_directive : require
// also open: OPEN=1

// O = softmax(scale · Q·Kᵀ + mask) · V on the ordinary units, for every type, layout and mask, block of keys by block.
//
//          BK keys              A group of 16 × LANES threads has BQ = 16 · DEEP rows. Thread (i, l) has rows i, i + 16, …, of each
//         ┌──────┐              the keys l, l + LANES, … of a block and the columns l, l + LANES, … of O. A block's scores are
//   BQ    │  S   │              made CHUNK numbers of a head at a time, then its weights stand in shared memory, and V follows
//   rows  └──────┘              CHUNK columns at a time.
//
// A row's greatest score is the same for its threads; each sums the weights of its own keys, and the sums meet at the end.
// What a block adds depends on the row and the block alone, and one that a row does not see adds nothing: a row's bits depend
// on nothing but the row, unless its keys are split among groups.
// Limits: 16 · LANES threads; sums of f32.

#include "attention/glsl/problem.glsl"
#include "attention/glsl/mask.glsl"
#include "attention/glsl/finish.glsl"

// Rows of a thread.
layout(constant_id = 32) const uint DEEP = 1u;

const uint LANES = 8u, BK = 32u, CHUNK = 32u;
const uint THREADS = 16u * LANES;
const uint BQ = 16u * DEEP;
const uint KEYS = BK / LANES;
// Columns of a thread in a chunk of V, and chunks.
const uint COLS = CHUNK / LANES;
const uint CHUNKS = (V_DIM + CHUNK - 1u) / CHUNK;
// A word more than a row has: a column's words lie in different banks.
const uint LINE = CHUNK + 1u;
const uint P_LINE = BK + 1u;
layout(local_size_x = 128) in;

shared float rows_part[BQ * LINE];
shared float keys_part[BK * LINE];
// Products of queries and keys, then scores, then weights.
shared float weights[BQ * P_LINE];
// Each lane's greatest score of a row, then its sum of weights.
shared float of_lanes[BQ * LANES];
// What each thread knows of its rows: the greatest score, its own sum, what the last block left of both. Shared because they are
// numbered at run time: loops over rows and columns stand here once, not once for each.
shared float greatest[DEEP * THREADS];
shared float sums[DEEP * THREADS];
shared float kept[DEEP * THREADS];

// Brings numbers `d_0` to `d_0` + CHUNK of the tile's queries.
void load_q(Sequence s, uint kv_head, uint row_0, uint d_0) {
    for (uint e = gl_LocalInvocationIndex; e < BQ * CHUNK; e += THREADS) {
        const uint row = row_0 + e / CHUNK;
        const uint d = d_0 + e % CHUNK;
        float x = 0.0;
        if (row / GROUP < s.queries && d < QK_DIM) {
            const uint head = kv_head * GROUP + row % GROUP;
            const uvec3 token = query_token(s, row / GROUP);
            x = q_scale(token, head) * number_at(q, token_place(token, head, Q_HEADS, QK_DIM, Q_LD) + d, Q_TYPE);
        }
        rows_part[e / CHUNK * LINE + e % CHUNK] = x;
    }
}

// Brings numbers `d_0` to `d_0` + CHUNK of a block of keys, or of their values.
void load_kv(Sequence s, uint kv_head, uint key_0, uint d_0, bool values) {
    const uint dim = values ? V_DIM : QK_DIM;
    for (uint e = gl_LocalInvocationIndex; e < BK * CHUNK; e += THREADS) {
        const uint key = key_0 + e / CHUNK;
        const uint d = d_0 + e % CHUNK;
        float x = 0.0;
        if (key < s.keys && d < dim) {
            const uvec3 token = key_token(s, key);
            const uint64_t place = token_place(token, kv_head, KV_HEADS, dim, values ? V_LD : K_LD) + d;
            x = kv_scale(values ? AT_V_SCALE : AT_K_SCALE, token, kv_head) * number_at(values ? v : k, place, KV_TYPE);
        }
        keys_part[e / CHUNK * LINE + e % CHUNK] = x;
    }
}

// Stores a thread's columns of a row from `col_0`, which lie at `from`; `of_row` is the row's greatest score and its sum.
void finished(Sequence s, uint kv_head, uint row, uint split, uint col_0, uint from, vec2 of_row) {
    const uint lane = gl_LocalInvocationIndex % LANES;
    const uint head = kv_head * GROUP + row % GROUP;
    const uvec3 token = query_token(s, row / GROUP);
    const bool first = lane == 0u && col_0 == 0u;
    const uint64_t part = part_place(s.number, kv_head, row, split);
    float factor = 1.0;
    if (splits > 1u && first) {
        store_part(part, V_DIM, of_row.x);
        store_part(part, V_DIM + 1u, of_row.y);
    } else if (splits == 1u) {
        float most = of_row.x;
        const float total = with_sink(head, most, of_row.y);
        factor = total == 0.0 ? 0.0 : (most == of_row.x ? 1.0 : exp_of(of_row.x - most)) / total;
        if (first) {
            store_lse(token, head, most, total);
        }
    }
    const uint64_t place = token_place(token, head, Q_HEADS, V_DIM, O_LD);
    for (uint col = lane; col < min(CHUNK, V_DIM - col_0); col += LANES) {
        const float x = rows_part[from + col];
        if (splits > 1u) {
            store_part(part, col_0 + col, x);
        } else {
            store_number(o, place + col_0 + col, O_TYPE, factor * x);
        }
    }
}

void main() {
    const uint thread = gl_LocalInvocationIndex;
    const uint lane = gl_LocalInvocationIndex % LANES;
    const uint line = gl_LocalInvocationIndex / LANES;
    const float nothing = -uintBitsToFloat(INFINITE);
    const uint tiles = (q_len * GROUP + BQ - 1u) / BQ;
    const uint items = batch * KV_HEADS * tiles * splits;
    for (uint item = gl_WorkGroupID.x; item < items; item += gl_NumWorkGroups.x) {
        const uint split = item % splits;
        const uint row_0 = item / splits % tiles * BQ;
        const uint kv_head = item / splits / tiles % KV_HEADS;
        const Sequence s = sequence(item / splits / tiles / KV_HEADS);
        if (row_0 >= s.queries * GROUP) {
            continue;
        }
        const uvec2 sight = in_sight(s, row_0 / GROUP, min((row_0 + BQ - 1u) / GROUP, s.queries - 1u));
        // Parts are whole blocks of all keys, seen or not.
        const uint per_split = ((s.keys + BK - 1u) / BK + splits - 1u) / splits * BK;
        const uint first = max(sight.x / BK * BK, split * per_split);
        const uint last = min(sight.y, split * per_split + per_split);
        float results[DEEP * CHUNKS * COLS];
        [[unroll]] for (uint i = 0u; i < DEEP * CHUNKS * COLS; i++) {
            results[i] = 0.0;
        }
        [[dont_unroll]] for (uint i = 0u; i < DEEP; i++) {
            greatest[i * THREADS + thread] = nothing;
            sums[i * THREADS + thread] = 0.0;
        }
        for (uint key_0 = first; key_0 < last; key_0 += BK) {
            float products[DEEP * KEYS];
            [[unroll]] for (uint i = 0u; i < DEEP * KEYS; i++) {
                products[i] = 0.0;
            }
            for (uint d_0 = 0u; d_0 < QK_DIM; d_0 += CHUNK) {
                load_q(s, kv_head, row_0, d_0);
                load_kv(s, kv_head, key_0, d_0, false);
                barrier();
                [[dont_unroll]] for (uint d = 0u; d < CHUNK; d++) {
                    float keys[KEYS];
                    [[unroll]] for (uint j = 0u; j < KEYS; j++) {
                        keys[j] = keys_part[(lane + j * LANES) * LINE + d];
                    }
                    [[unroll]] for (uint i = 0u; i < DEEP; i++) {
                        const float x = rows_part[(line + 16u * i) * LINE + d];
                        [[unroll]] for (uint j = 0u; j < KEYS; j++) {
                            products[i * KEYS + j] += x * keys[j];
                        }
                    }
                }
                barrier();
            }
            [[unroll]] for (uint i = 0u; i < DEEP * KEYS; i++) {
                weights[(line + i / KEYS * 16u) * P_LINE + lane + i % KEYS * LANES] = products[i];
            }
            [[dont_unroll]] for (uint i = 0u; i < DEEP; i++) {
                const uint row = line + 16u * i;
                float own = nothing;
                [[dont_unroll]] for (uint j = lane; j < BK; j += LANES) {
                    const uint head = kv_head * GROUP + (row_0 + row) % GROUP;
                    const float x = score(weights[row * P_LINE + j], s, row_0 + row, key_0 + j, head);
                    weights[row * P_LINE + j] = x;
                    own = max(own, x);
                }
                of_lanes[row * LANES + lane] = own;
            }
            barrier();
            [[dont_unroll]] for (uint i = 0u; i < DEEP; i++) {
                const uint row = line + 16u * i;
                const float before = greatest[i * THREADS + thread];
                float most = before;
                [[unroll]] for (uint j = 0u; j < LANES; j++) {
                    most = max(most, of_lanes[row * LANES + j]);
                }
                // Where nothing is seen yet, -infinity less itself would be NaN.
                const float left = before == most ? 1.0 : exp_of(before - most);
                float sum = sums[i * THREADS + thread] * left;
                [[dont_unroll]] for (uint j = lane; j < BK; j += LANES) {
                    const float x = weights[row * P_LINE + j];
                    const float weight = x == nothing ? 0.0 : exp_of(x - most);
                    sum += weight;
                    weights[row * P_LINE + j] = weight;
                }
                greatest[i * THREADS + thread] = most;
                sums[i * THREADS + thread] = sum;
                kept[i * THREADS + thread] = left;
            }
            [[unroll]] for (uint i = 0u; i < DEEP * CHUNKS * COLS; i++) {
                results[i] *= kept[i % (DEEP * COLS) / COLS * THREADS + thread];
            }
            [[dont_unroll]] for (uint c = 0u; c < CHUNKS; c++) {
                load_kv(s, kv_head, key_0, c * CHUNK, true);
                barrier();
                float part[DEEP * COLS];
                [[unroll]] for (uint i = 0u; i < DEEP * COLS; i++) {
                    part[i] = 0.0;
                }
                [[dont_unroll]] for (uint j = 0u; j < BK; j++) {
                    [[unroll]] for (uint i = 0u; i < DEEP * COLS; i++) {
                        part[i] += weights[(line + i / COLS * 16u) * P_LINE + j] * keys_part[j * LINE + lane + i % COLS * LANES];
                    }
                }
                [[unroll]] for (uint each = 0u; each < CHUNKS; each++) {
                    if (each == c) {
                        [[unroll]] for (uint i = 0u; i < DEEP * COLS; i++) {
                            results[each * DEEP * COLS + i] += part[i];
                        }
                    }
                }
                barrier();
            }
        }
        [[dont_unroll]] for (uint i = 0u; i < DEEP; i++) {
            of_lanes[(line + 16u * i) * LANES + lane] = sums[i * THREADS + thread];
        }
        barrier();
        [[dont_unroll]] for (uint i = 0u; i < DEEP; i++) {
            float total = 0.0;
            [[unroll]] for (uint j = 0u; j < LANES; j++) {
                total += of_lanes[(line + 16u * i) * LANES + j];
            }
            sums[i * THREADS + thread] = total;
        }
        [[dont_unroll]] for (uint c = 0u; c < CHUNKS; c++) {
            // A thread's own places, which nobody else reads.
            [[unroll]] for (uint each = 0u; each < CHUNKS; each++) {
                if (each == c) {
                    [[unroll]] for (uint i = 0u; i < DEEP * COLS; i++) {
                        rows_part[(line + i / COLS * 16u) * LINE + lane + i % COLS * LANES] = results[each * DEEP * COLS + i];
                    }
                }
            }
            [[dont_unroll]] for (uint i = 0u; i < DEEP; i++) {
                const uint row = line + 16u * i;
                if (row_0 + row < s.queries * GROUP) {
                    const float most = greatest[i * THREADS + thread];
                    const float total = sums[i * THREADS + thread];
                    finished(s, kv_head, row_0 + row, split, c * CHUNK, row * LINE, vec2(most, total));
                }
            }
        }
        // Nobody writes the next ones before everybody has read these.
        barrier();
    }
}

#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#ifdef OF_BF16
#extension GL_EXT_bfloat16 : require
#define ELEMENT bfloat16_t
#else
#define ELEMENT float16_t
#endif
// also bf16: OF_BF16=1

// O = softmax(scale · Q·Kᵀ + mask) · V for few rows on the matrix unit, as fast as K and V come from memory.
//
//   S = Q·Kᵀ     M rows of Q, of which ROWS are there, by sixteen keys. Four lanes share a key, each with 16 bytes of every 64.
//   Oᵀ = Vᵀ·Sᵀ   Sixteen columns of V by ROWS rows. A lane has eight columns of each of four keys, and puts two keys' side by side.
//
// K and V go from memory to the matrix unit by way of registers alone, and weights never leave the lane that computed them: what it has
// of S, which is M × K, is what it needs of Sᵀ, which is K × N. That depends on which lane has what of a matrix, of which Vulkan says
// nothing: `lanes.comp` asks the device.
//
// A group has a part of the keys of ROWS rows; its subgroups take sixteen in turn. Scores are weighed against the row's reference, which is
// no less than e^8 below the greatest, so that O is seldom rescaled. Subgroups meet at the end, in shared memory.
//
// Weights are rounded to Q's type before they multiply V; their sum is of what they were. A row's bits depend on how keys are split,
// so on how many rows there are: no promise across batches.
// Limits: Q, K and V of the type that ELEMENT is, without scales; heads of a multiple of 8 numbers that start on 16 bytes.

#include "attention/glsl/problem.glsl"
#include "attention/glsl/mask.glsl"
#include "attention/glsl/finish.glsl"

layout(constant_id = 32) const uint N = 8u;
layout(constant_id = 33) const uint SUBGROUPS = 4u;
layout(local_size_x_id = 34) in;
layout(constant_id = 34) const uint THREADS = 128u;
// Rows of a group: N, or the first eight of sixteen, so that the compiler drops what becomes of the others.
layout(constant_id = 35) const uint ROWS = 8u;

const uint M = 16u, K = 16u;
// Rows of a lane, of S.
const uint HALVES = ROWS / 8u;
// Numbers of a lane in a row of sums, and how many of them count.
const uint PER_ROW = N / 4u, COUNTED = 2u * HALVES;
// Products along a head of keys, in pairs, and columns of V in blocks of 64, each of four products.
const uint PAIRS = (QK_DIM + 31u) / 32u;
const uint BLOCKS = (V_DIM + 63u) / 64u;
// Keys of all subgroups together.
const uint TURN = SUBGROUPS * K;
// Scores may pass the reference by as much.
const float SLACK = 8.0;

shared float of_subgroups[SUBGROUPS * M * ROWS];
// Reference and sum of each row.
shared vec2 of_rows[SUBGROUPS * ROWS];

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Four { uvec4 v; };

#define LEFT coopmat<ELEMENT, gl_ScopeSubgroup, M, K, gl_MatrixUseA>
#define RIGHT coopmat<ELEMENT, gl_ScopeSubgroup, K, N, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>

// Two numbers as they lie in a word.
#ifdef OF_BF16
#define SET(matrix, at, word) { \
    matrix[at] = bfloat16_t(uintBitsToFloat((word) << 16)); matrix[(at) + 1u] = bfloat16_t(uintBitsToFloat((word) & 0xffff0000u)); }
#else
#define SET(matrix, at, word) { \
    f16vec2 two = unpackFloat2x16(word); matrix[at] = two.x; matrix[(at) + 1u] = two.y; }
#endif

// A weight, rounded to Q's type. To f16 drivers round, but NVIDIA's cuts off what bf16 has no place for: so nothing is left to cut off.
ELEMENT rounded(float x) {
#ifdef OF_BF16
    return ELEMENT(uintBitsToFloat(to_bf16(x) << 16));
#else
    return ELEMENT(x);
#endif
}

// The first halves of two words, and the second ones.
uint firsts(uint x, uint y) {
    return packFloat2x16(f16vec2(unpackFloat2x16(x).x, unpackFloat2x16(y).x));
}

uint seconds(uint x, uint y) {
    return packFloat2x16(f16vec2(unpackFloat2x16(x).y, unpackFloat2x16(y).y));
}

float rescaled(float from, float to) {
    return from == to ? 1.0 : exp_of(from - to);
}

// The column of V that row `r` of the product `w` of block `u` is.
uint v_column(uint u, uint w, uint r) {
    return 64u * u + 8u * (r % 8u) + 2u * w + r / 8u;
}

void main() {
    const uint lane = gl_SubgroupInvocationID;
    const uint own = lane / 4u;
    const uint part = lane % 4u;
    const float nothing = -uintBitsToFloat(INFINITE);
    const uint tiles = (q_len * GROUP + ROWS - 1u) / ROWS;
    const uint items = batch * KV_HEADS * tiles * splits;
    for (uint item = gl_WorkGroupID.x; item < items; item += gl_NumWorkGroups.x) {
        const uint split = item % splits;
        const uint row_0 = item / splits % tiles * ROWS;
        const uint kv_head = item / splits / tiles % KV_HEADS;
        const Sequence s = sequence(item / splits / tiles / KV_HEADS);
        if (row_0 >= s.queries * GROUP) {
            continue;
        }
        const uint rows = min(s.queries * GROUP - row_0, ROWS);
        const uvec2 sight = in_sight(s, row_0 / GROUP, (row_0 + rows - 1u) / GROUP);
        const uint per_split = ((s.keys + TURN - 1u) / TURN + splits - 1u) / splits * TURN;
        const uint first = max(sight.x, split * per_split);
        const uint last = min(sight.y, split * per_split + per_split);
        LEFT query[2u * PAIRS];
        [[unroll]] for (uint i = 0u; i < PAIRS; i++) {
            uvec4 words[2];
            [[unroll]] for (uint h = 0u; h < 2u; h++) {
                words[h] = uvec4(0u);
                const uint row = own + 8u * h;
                if (h < HALVES && row < rows && 32u * i + 8u * part < QK_DIM) {
                    const uint head = kv_head * GROUP + (row_0 + row) % GROUP;
                    const uvec3 token = query_token(s, (row_0 + row) / GROUP);
                    words[h] = Four(q + 2ul * (token_place(token, head, Q_HEADS, QK_DIM, Q_LD) + 32u * i + 8u * part)).v;
                }
            }
            [[unroll]] for (uint t = 0u; t < 2u; t++) {
                [[unroll]] for (uint h = 0u; h < 2u; h++) {
                    SET(query[2u * i + t], 4u * h, words[h][2u * t])
                    SET(query[2u * i + t], 4u * h + 2u, words[h][2u * t + 1u])
                }
            }
        }
        SUMS result[4u * BLOCKS];
        [[unroll]] for (uint i = 0u; i < 4u * BLOCKS; i++) {
            result[i] = SUMS(0.0);
        }
        float reference[HALVES];
        float sum[HALVES];
        [[unroll]] for (uint h = 0u; h < HALVES; h++) {
            reference[h] = nothing;
            sum[h] = 0.0;
        }
        for (uint key_0 = first + gl_SubgroupID * K; key_0 < last; key_0 += TURN) {
            // A key that is not there is the last one, whose weight is 0.
            uvec4 keys[2u * PAIRS];
            [[unroll]] for (uint h = 0u; h < 2u; h++) {
                const uvec3 token = key_token(s, min(key_0 + own + 8u * h, last - 1u));
                const uint64_t from = k + 2ul * (token_place(token, kv_head, KV_HEADS, QK_DIM, K_LD) + 8u * part);
                [[unroll]] for (uint i = 0u; i < PAIRS; i++) {
                    keys[h * PAIRS + i] = QK_DIM % 32u == 0u || 32u * i + 8u * part < QK_DIM ? Four(from + 64u * i).v : uvec4(0u);
                }
            }
            uvec4 values[4u * BLOCKS];
            [[unroll]] for (uint j = 0u; j < 4u; j++) {
                const uint key = key_0 + 2u * part + j % 2u + 8u * (j / 2u);
                const uvec3 token = key_token(s, min(key, last - 1u));
                const uint64_t from = v + 2ul * token_place(token, kv_head, KV_HEADS, V_DIM, V_LD);
                [[unroll]] for (uint u = 0u; u < BLOCKS; u++) {
                    const uint col = 64u * u + 8u * own;
                    values[j * BLOCKS + u] = Four(from + 2u * (V_DIM % 64u == 0u || col < V_DIM ? col : 0u)).v;
                }
            }
            if (key_0 + K > last) {
                [[unroll]] for (uint j = 0u; j < 4u; j++) {
                    const bool there = key_0 + 2u * part + j % 2u + 8u * (j / 2u) < last;
                    [[unroll]] for (uint u = 0u; u < BLOCKS; u++) {
                        values[j * BLOCKS + u] = there ? values[j * BLOCKS + u] : uvec4(0u);
                    }
                }
            }
            // Of each row of the lane, keys 2 · part and the next, and those eight further.
            float scores[4u * HALVES];
            [[unroll]] for (uint j = 0u; j < K / N; j++) {
                SUMS products = SUMS(0.0);
                [[unroll]] for (uint i = 0u; i < 2u * PAIRS; i++) {
                    RIGHT key;
                    [[unroll]] for (uint h = 0u; h < N / 8u; h++) {
                        const uvec4 words = keys[(N == K ? h : j) * PAIRS + i / 2u];
                        SET(key, 4u * h, words[2u * (i % 2u)])
                        SET(key, 4u * h + 2u, words[2u * (i % 2u) + 1u])
                    }
                    products = coopMatMulAdd(query[i], key, products);
                }
                [[unroll]] for (uint e = 0u; e < 4u * HALVES; e++) {
                    if (N == K) {
                        scores[e] = products[e];
                    } else if (e < 2u) {
                        scores[2u * j + e] = products[e];
                    }
                }
            }
            float most[HALVES];
            bool passes = false;
            [[unroll]] for (uint h = 0u; h < HALVES; h++) {
                most[h] = nothing;
                const uint row = row_0 + own + 8u * h;
                const uint head = kv_head * GROUP + row % GROUP;
                [[unroll]] for (uint e = 0u; e < 4u; e++) {
                    const uint key = key_0 + 2u * part + e % 2u + 8u * (e / 2u);
                    const float x = own + 8u * h < rows && key < last ? score(scores[4u * h + e], s, row, key, head) : nothing;
                    scores[4u * h + e] = x;
                    most[h] = max(most[h], x);
                }
                passes = passes || most[h] > reference[h] + SLACK;
            }
            if (subgroupAny(passes)) {
                float factors[HALVES];
                [[unroll]] for (uint h = 0u; h < HALVES; h++) {
                    most[h] = max(most[h], subgroupShuffleXor(most[h], 1u));
                    most[h] = max(most[h], subgroupShuffleXor(most[h], 2u));
                    const float before = reference[h];
                    reference[h] = max(before, most[h]);
                    factors[h] = rescaled(before, reference[h]);
                    sum[h] *= factors[h];
                }
                // Of the lane's columns of Oᵀ.
                float of_columns[COUNTED];
                [[unroll]] for (uint e = 0u; e < COUNTED; e++) {
                    of_columns[e] = subgroupShuffle(factors[e / 2u], 4u * (2u * part + e % 2u));
                }
                [[unroll]] for (uint i = 0u; i < 4u * BLOCKS; i++) {
                    [[unroll]] for (uint e = 0u; e < 2u * COUNTED; e++) {
                        result[i][e / COUNTED * PER_ROW + e % COUNTED] *= of_columns[e % COUNTED];
                    }
                }
            }
            RIGHT weights = RIGHT(0.0);
            [[unroll]] for (uint h = 0u; h < HALVES; h++) {
                [[unroll]] for (uint e = 0u; e < 4u; e++) {
                    const float x = scores[4u * h + e];
                    const float weight = x == nothing ? 0.0 : exp_of(x - reference[h]);
                    sum[h] += weight;
                    weights[4u * h + e] = rounded(weight);
                }
            }
            [[unroll]] for (uint u = 0u; u < BLOCKS; u++) {
                [[unroll]] for (uint w = 0u; w < 4u; w++) {
                    LEFT columns;
                    [[unroll]] for (uint j = 0u; j < 2u; j++) {
                        const uint one = values[2u * j * BLOCKS + u][w];
                        const uint two = values[(2u * j + 1u) * BLOCKS + u][w];
                        SET(columns, 2u * j, firsts(one, two))
                        SET(columns, 4u + 2u * j, seconds(one, two))
                    }
                    result[4u * u + w] = coopMatMulAdd(columns, weights, result[4u * u + w]);
                }
            }
        }
        [[unroll]] for (uint h = 0u; h < HALVES; h++) {
            sum[h] += subgroupShuffleXor(sum[h], 1u);
            sum[h] += subgroupShuffleXor(sum[h], 2u);
            if (part == 0u) {
                of_rows[gl_SubgroupID * ROWS + own + 8u * h] = vec2(reference[h], sum[h]);
            }
        }
        barrier();
        for (uint i = 0u; i < 4u * BLOCKS; i++) {
            [[unroll]] for (uint each = 0u; each < 4u * BLOCKS; each++) {
                if (each == i) {
                    [[unroll]] for (uint e = 0u; e < 2u * COUNTED; e++) {
                        const uint at = e % COUNTED;
                        const uint row = gl_SubgroupID * M + own + 8u * (e / COUNTED);
                        of_subgroups[row * ROWS + 2u * part + at % 2u + 8u * (at / 2u)] = result[each][e / COUNTED * PER_ROW + at];
                    }
                }
            }
            barrier();
            for (uint e = gl_LocalInvocationIndex; e < M * rows; e += THREADS) {
                const uint of_tile = e / M;
                const uint row = row_0 + of_tile;
                const uint col = v_column(i / 4u, i % 4u, e % M);
                if (col >= V_DIM) {
                    continue;
                }
                float most = nothing;
                [[unroll]] for (uint g = 0u; g < SUBGROUPS; g++) {
                    most = max(most, of_rows[g * ROWS + of_tile].x);
                }
                float total = 0.0;
                float x = 0.0;
                [[unroll]] for (uint g = 0u; g < SUBGROUPS; g++) {
                    const vec2 of_row = of_rows[g * ROWS + of_tile];
                    const float factor = rescaled(of_row.x, most);
                    total += factor * of_row.y;
                    x += factor * of_subgroups[(g * M + e % M) * ROWS + of_tile];
                }
                const uint row_head = kv_head * GROUP + row % GROUP;
                const uvec3 token = query_token(s, row / GROUP);
                if (splits > 1u) {
                    const uint64_t place = part_place(s.number, kv_head, row, split);
                    store_part(place, col, x);
                    if (col == 0u) {
                        store_part(place, V_DIM, most);
                        store_part(place, V_DIM + 1u, total);
                    }
                    continue;
                }
                const float seen = most;
                total = with_sink(row_head, most, total);
                store_number(o, token_place(token, row_head, Q_HEADS, V_DIM, O_LD) + col, O_TYPE,
                             total == 0.0 ? 0.0 : rescaled(seen, most) * x / total);
                if (col == 0u) {
                    store_lse(token, row_head, most, total);
                }
            }
            // Nobody writes the next ones before everybody has read these.
            barrier();
        }
    }
}

#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_vote : require
// also open: OPEN=1

// O = softmax(scale · Q·Kᵀ + mask) · V for few rows, as fast as K and V come from memory.
//
// A group has ROWS rows and a part of their keys. LANES neighbouring threads are a worker: each has eight numbers of a head, of every
// row of Q and of O, and a worker takes KEYS keys at a time, whose K and V are under way together. Its products are then summed so
// that every thread ends with scores of its own, of one row (KEYS · ROWS scores, a halving of them at each step instead of a sum of
// each), and weighs them against the row's reference: a score no less than e^8 below the greatest, so that O is seldom rescaled.
// Workers meet at the end: those of a subgroup by shuffles, subgroups in shared memory.
//
// A row's bits depend on how keys are split, so on how many rows there are: no promise across batches.
// Limits: heads of a multiple of 8 numbers, at most 8 · LANES; 8 subgroups; sums of f32.

#include "attention/glsl/problem.glsl"
#include "attention/glsl/mask.glsl"
#include "attention/glsl/finish.glsl"
#include "common/glsl/runs.glsl"

layout(constant_id = 32) const uint THREADS = 256u;
layout(local_size_x_id = 32) in;
layout(constant_id = 33) const uint LANES = 16u;
layout(constant_id = 34) const uint ROWS = 1u;
// Bits: runs of Q, of K and V at once.
#define RUNS (FLAGS >> RUNS_FROM)

const uint KEYS = 4u, SUBGROUPS = 8u;
const uint SCORES = ROWS * KEYS;
// Scores of a thread, and threads that have the same one.
const uint OWN = SCORES > LANES ? SCORES / LANES : 1u;
const uint ALIKE = SCORES < LANES ? LANES / SCORES : 1u;
// Threads of a worker that have a row's scores.
const uint PER_ROW = LANES / ROWS;
// Workers' keys together.
const uint BLOCK = THREADS / LANES * KEYS;
// Scores may pass the reference by as much.
const float SLACK = 8.0;

const uint LINE = V_DIM + 2u;
shared float of_subgroups[SUBGROUPS * ROWS * LINE];

// The factor by which what was weighed against `from` is weighed against `to`.
float rescaled(float from, float to) {
    return from == to ? 1.0 : exp_of(from - to);
}

void main() {
    const uint lane = gl_SubgroupInvocationID % LANES;
    const uint worker = gl_SubgroupID * (gl_SubgroupSize / LANES) + gl_SubgroupInvocationID / LANES;
    const uint home = gl_SubgroupInvocationID - lane;
    const float nothing = -uintBitsToFloat(INFINITE);
    const uint own_row = lane / PER_ROW;
    const uint own_score = OWN > 1u ? lane * OWN : lane / ALIKE;
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
        const uvec2 sight = in_sight(s, row_0 / GROUP, min((row_0 + ROWS - 1u) / GROUP, s.queries - 1u));
        const uint per_split = ((s.keys + BLOCK - 1u) / BLOCK + splits - 1u) / splits * BLOCK;
        const uint first = max(sight.x, split * per_split);
        const uint last = min(sight.y, split * per_split + per_split);
        Eight query[ROWS];
        Eight result[ROWS];
        UNROLL for (uint r = 0u; r < ROWS; r++) {
            query[r] = Eight(vec4(0.0), vec4(0.0));
            result[r] = query[r];
            if (row_0 + r < s.queries * GROUP && 8u * lane < QK_DIM) {
                const uint head = kv_head * GROUP + (row_0 + r) % GROUP;
                const uvec3 token = query_token(s, (row_0 + r) / GROUP);
                const uint64_t place = token_place(token, head, Q_HEADS, QK_DIM, Q_LD) + 8u * lane;
                query[r] = eight_of(run_at(q, place, 8u, Q_TYPE, (RUNS & 1u) != 0u), Q_TYPE);
                const float by = q_scale(token, head);
                query[r].low *= by;
                query[r].high *= by;
            }
        }
        const uint head = kv_head * GROUP + (row_0 + own_row) % GROUP;
        float reference = nothing;
        float sum = 0.0;
        for (uint key_0 = first; key_0 < last; key_0 += BLOCK) {
            // The same keys for all threads of a worker.
            const uint key_1 = key_0 + worker * KEYS;
            Run k_runs[KEYS];
            Run v_runs[KEYS];
            UNROLL for (uint j = 0u; j < KEYS; j++) {
                k_runs[j] = Run(uvec4(0u), uvec4(0u));
                v_runs[j] = k_runs[j];
                if (key_1 + j < last) {
                    const uvec3 token = key_token(s, key_1 + j);
                    if (8u * lane < QK_DIM) {
                        k_runs[j] = run_at(k, token_place(token, kv_head, KV_HEADS, QK_DIM, K_LD) + 8u * lane, 8u, KV_TYPE, (RUNS & 2u) != 0u);
                    }
                    if (8u * lane < V_DIM) {
                        v_runs[j] = run_at(v, token_place(token, kv_head, KV_HEADS, V_DIM, V_LD) + 8u * lane, 8u, KV_TYPE, (RUNS & 2u) != 0u);
                    }
                }
            }
            float scores[SCORES];
            UNROLL for (uint j = 0u; j < KEYS; j++) {
                const Eight x = eight_of(k_runs[j], KV_TYPE);
                UNROLL for (uint r = 0u; r < ROWS; r++) {
                    scores[r * KEYS + j] = dot(query[r].low, x.low) + dot(query[r].high, x.high);
                }
            }
            // Half of the scores go to one half of the threads, half to the other, until each has its own.
            uint many = SCORES;
            UNROLL for (uint apart = LANES / 2u; apart > 0u; apart /= 2u) {
                if (many > OWN) {
                    many /= 2u;
                    const bool upper = (lane & apart) != 0u;
                    UNROLL for (uint i = 0u; i < SCORES / 2u; i++) {
                        if (i < many) {
                            const float sent = upper ? scores[i] : scores[i + many];
                            scores[i] = (upper ? scores[i + many] : scores[i]) + subgroupShuffleXor(sent, apart);
                        }
                    }
                } else {
                    UNROLL for (uint i = 0u; i < OWN; i++) {
                        scores[i] += subgroupShuffleXor(scores[i], apart);
                    }
                }
            }
            float most = nothing;
            UNROLL for (uint i = 0u; i < OWN; i++) {
                const uint key = key_1 + (own_score + i) % KEYS;
                float x = nothing;
                if (key < last) {
                    x = score(kv_scale(AT_K_SCALE, key_token(s, key), kv_head) * scores[i], s, row_0 + own_row, key, head);
                }
                scores[i] = x;
                most = max(most, x);
            }
            if (subgroupAny(most > reference + SLACK)) {
                UNROLL for (uint apart = 1u; apart < PER_ROW; apart *= 2u) {
                    most = max(most, subgroupShuffleXor(most, apart));
                }
                const float before = reference;
                reference = max(reference, most);
                const float factor = rescaled(before, reference);
                sum *= factor;
                UNROLL for (uint r = 0u; r < ROWS; r++) {
                    const float of_row = subgroupShuffle(factor, home + r * PER_ROW);
                    result[r].low *= of_row;
                    result[r].high *= of_row;
                }
            }
            float weights[OWN];
            UNROLL for (uint i = 0u; i < OWN; i++) {
                const uint key = key_1 + (own_score + i) % KEYS;
                weights[i] = scores[i] == nothing ? 0.0 : exp_of(scores[i] - reference);
                sum += weights[i];
                if ((FLAGS & KV_SCALED) != 0u && key < last) {
                    weights[i] *= kv_scale(AT_V_SCALE, key_token(s, key), kv_head);
                }
            }
            UNROLL for (uint j = 0u; j < KEYS; j++) {
                const Eight x = eight_of(v_runs[j], KV_TYPE);
                UNROLL for (uint r = 0u; r < ROWS; r++) {
                    const uint at = r * KEYS + j;
                    const float weight = subgroupShuffle(weights[at % OWN], home + at / OWN * ALIKE);
                    result[r].low += weight * x.low;
                    result[r].high += weight * x.high;
                }
            }
        }
        // Threads that have the same scores have the same sums.
        UNROLL for (uint apart = ALIKE; apart < PER_ROW; apart *= 2u) {
            sum += subgroupShuffleXor(sum, apart);
        }
        for (uint apart = LANES; apart < gl_SubgroupSize; apart *= 2u) {
            const float other = max(reference, subgroupShuffleXor(reference, apart));
            const float factor = rescaled(reference, other);
            reference = other;
            sum *= factor;
            sum += subgroupShuffleXor(sum, apart);
            UNROLL for (uint r = 0u; r < ROWS; r++) {
                const float of_row = subgroupShuffle(factor, home + r * PER_ROW);
                result[r].low *= of_row;
                result[r].high *= of_row;
                UNROLL for (uint i = 0u; i < 4u; i++) {
                    result[r].low[i] += subgroupShuffleXor(result[r].low[i], apart);
                    result[r].high[i] += subgroupShuffleXor(result[r].high[i], apart);
                }
            }
        }
        if (gl_SubgroupInvocationID < LANES) {
            if (lane % PER_ROW == 0u) {
                of_subgroups[(gl_SubgroupID * ROWS + own_row) * LINE + V_DIM] = reference;
                of_subgroups[(gl_SubgroupID * ROWS + own_row) * LINE + V_DIM + 1u] = sum;
            }
            UNROLL for (uint r = 0u; r < ROWS; r++) {
                UNROLL for (uint i = 0u; i < 4u; i++) {
                    if (8u * lane < V_DIM) {
                        of_subgroups[(gl_SubgroupID * ROWS + r) * LINE + 8u * lane + i] = result[r].low[i];
                        of_subgroups[(gl_SubgroupID * ROWS + r) * LINE + 8u * lane + 4u + i] = result[r].high[i];
                    }
                }
            }
        }
        barrier();
        for (uint e = gl_LocalInvocationIndex; e < ROWS * V_DIM; e += THREADS) {
            const uint row = row_0 + e / V_DIM;
            const uint col = e % V_DIM;
            if (row >= s.queries * GROUP) {
                continue;
            }
            float most = nothing;
            UNROLL for (uint g = 0u; g < SUBGROUPS; g++) {
                most = max(most, of_subgroups[(g * ROWS + e / V_DIM) * LINE + V_DIM]);
            }
            float total = 0.0;
            float x = 0.0;
            UNROLL for (uint g = 0u; g < SUBGROUPS; g++) {
                const uint at = (g * ROWS + e / V_DIM) * LINE;
                const float factor = rescaled(of_subgroups[at + V_DIM], most);
                total += factor * of_subgroups[at + V_DIM + 1u];
                x += factor * of_subgroups[at + col];
            }
            const uint row_head = kv_head * GROUP + row % GROUP;
            const uvec3 token = query_token(s, row / GROUP);
            if (splits > 1u) {
                const uint64_t part = part_place(s.number, kv_head, row, split);
                store_part(part, col, x);
                if (col == 0u) {
                    store_part(part, V_DIM, most);
                    store_part(part, V_DIM + 1u, total);
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

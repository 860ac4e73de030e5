#version 460
#extension GL_GOOGLE_include_directive : require
// also open: OPEN=1

// Gradients of queries, or with OF_KEYS of keys and values: P is computed again from the log-sum-exp.
//
//     S = scale · Q·Kᵀ, capped, masked     P = e^(S − lse)     dP = dO·Vᵀ     dS = P · (dP − D) · (1 − tanh² if capped)
//     dQ = scale · dS·K     dK = scale · dSᵀ·Q     dV = Pᵀ·dO
//
//           BLOCK lines           A group of 16 × LANES threads has TILE lines of its own, queries of all the heads that share a head
//          ┌──────────┐           of keys, or keys, and goes through the others a block at a time. Thread (i, l) has line i, of each
//   TILE   │  P, dS   │           block the lines l, l + LANES, …, and of the sums the columns l, l + LANES, …. Operands come to
//   lines  └──────────┘           shared memory CHUNK numbers of a head at a time.
//
// Sums are made in order of the other lines, so the bits of a line's gradients depend on nothing but the problem.
// Limits: results of 8 bits and more.

#include "attention_backward/glsl/given.glsl"
#include "attention/glsl/mask.glsl"

layout(constant_id = 32) const uint OF_KEYS = 0u;
// Chunks of the longer of a head's two dimensions.
layout(constant_id = 33) const uint CHUNKS = 1u;

const uint LANES = 8u, TILE = 16u, BLOCK = 32u, CHUNK = 32u;
const uint THREADS = TILE * LANES;
const uint PER_LANE = BLOCK / LANES;
const uint COLS = CHUNK / LANES;
// A word more than a line has: a column's words lie in different banks.
const uint LINE = CHUNK + 1u;
const uint PAIR_LINE = BLOCK + 1u;
layout(local_size_x = 128) in;

shared float own_part[TILE * LINE];
shared float other_part[BLOCK * LINE];
shared float weights[TILE * PAIR_LINE];
shared float slopes_of[TILE * PAIR_LINE];

// Number `c` of a row's query, or of its gradient of O.
float of_row(Sequence s, uint kv_head, uint row, uint c, bool outer) {
    const uint head = kv_head * GROUP + row % GROUP;
    if (row / GROUP >= s.queries || c >= (outer ? V_DIM : QK_DIM)) {
        return 0.0;
    }
    const uvec3 token = query_token(s, row / GROUP);
    if (outer) {
        return number_at(given[AT_GRAD_O], token_place(token, head, Q_HEADS, V_DIM, O_LD) + c, O_TYPE);
    }
    return number_at(q, token_place(token, head, Q_HEADS, QK_DIM, Q_LD) + c, Q_TYPE);
}

// Number `c` of a key, or of its value.
float of_key(Sequence s, uint kv_head, uint key, uint c, bool outer) {
    if (key >= s.keys || c >= (outer ? V_DIM : QK_DIM)) {
        return 0.0;
    }
    const uvec3 token = key_token(s, key);
    if (outer) {
        return number_at(v, token_place(token, kv_head, KV_HEADS, V_DIM, V_LD) + c, KV_TYPE);
    }
    return number_at(k, token_place(token, kv_head, KV_HEADS, QK_DIM, K_LD) + c, KV_TYPE);
}

void load_own(Sequence s, uint kv_head, uint line_0, uint c_0, bool outer) {
    for (uint e = gl_LocalInvocationIndex; e < TILE * CHUNK; e += THREADS) {
        const uint line = line_0 + e / CHUNK;
        const uint c = c_0 + e % CHUNK;
        own_part[e / CHUNK * LINE + e % CHUNK] =
            OF_KEYS != 0u ? of_key(s, kv_head, line, c, outer) : of_row(s, kv_head, line, c, outer);
    }
}

void load_other(Sequence s, uint kv_head, uint line_0, uint c_0, bool outer) {
    for (uint e = gl_LocalInvocationIndex; e < BLOCK * CHUNK; e += THREADS) {
        const uint line = line_0 + e / CHUNK;
        const uint c = c_0 + e % CHUNK;
        other_part[e / CHUNK * LINE + e % CHUNK] =
            OF_KEYS != 0u ? of_row(s, kv_head, line, c, outer) : of_key(s, kv_head, line, c, outer);
    }
}

// What P and dS are raised by while they are summed: P may be no more than a subnormal number, which drivers may take for 0, and what
// multiplies it large.
const float RAISE = 16777216.0;

// RAISE · e^x for x of 0 and less, or little more.
float raised_exp(float x) {
    // Far below 0 the power itself is raised, by the logarithm of RAISE.
    return x < -64.0 ? exp_of(x + 16.6355323) : RAISE * exp_of(x);
}

// P and dS of a pair, raised, from the products of query and key and of gradient and value.
vec2 pair(Sequence s, uint kv_head, uint row, uint key, float inner, float outer) {
    const float nothing = -uintBitsToFloat(INFINITE);
    const uint head = kv_head * GROUP + row % GROUP;
    const float x = score(inner, s, row, key, head);
    if (x == nothing) {
        return vec2(0.0);
    }
    const uint64_t place = lse_place(query_token(s, row / GROUP), head);
    const float weight = raised_exp(x - real_at(AT_LSE, place));
    float slope = weight * (outer - real_at(AT_PRODUCTS, place));
    if (SOFTCAP != 0.0) {
        const float t = tanh_of(SCALE * inner / SOFTCAP);
        slope *= 1.0 - t * t;
    }
    return vec2(weight, slope);
}

void main() {
    const uint thread = gl_LocalInvocationIndex;
    const uint lane = thread % LANES;
    const uint line = thread / LANES;
    const uint lines = OF_KEYS != 0u ? kv_len : q_len * GROUP;
    const uint tiles = (lines + TILE - 1u) / TILE;
    const uint items = batch * KV_HEADS * tiles;
    for (uint item = gl_WorkGroupID.x; item < items; item += gl_NumWorkGroups.x) {
        const uint line_0 = item % tiles * TILE;
        const uint kv_head = item / tiles % KV_HEADS;
        const Sequence s = sequence(item / tiles / KV_HEADS);
        // Keys that are padding have gradients too: zeros. What lies between packed sequences belongs to nobody.
        const uint own = OF_KEYS == 0u ? s.queries * GROUP : LENS == LENS_PADDED ? kv_len : s.keys;
        if (line_0 >= own) {
            continue;
        }
        uvec2 others = uvec2(0u, s.queries * GROUP);
        if (OF_KEYS == 0u) {
            others = in_sight(s, line_0 / GROUP, min((line_0 + TILE - 1u) / GROUP, s.queries - 1u));
        } else if (line_0 >= s.keys) {
            others = uvec2(0u);
        }
        float of_inner[CHUNKS * COLS];
        float of_outer[CHUNKS * COLS];
        [[unroll]] for (uint i = 0u; i < CHUNKS * COLS; i++) {
            of_inner[i] = 0.0;
            of_outer[i] = 0.0;
        }
        for (uint other_0 = others.x / BLOCK * BLOCK; other_0 < others.y; other_0 += BLOCK) {
            // Products along a head's numbers: queries with keys, then gradients with values.
            float products[2u * PER_LANE];
            [[unroll]] for (uint i = 0u; i < 2u * PER_LANE; i++) {
                products[i] = 0.0;
            }
            [[unroll]] for (uint outer = 0u; outer < 2u; outer++) {
                for (uint c_0 = 0u; c_0 < (outer != 0u ? V_DIM : QK_DIM); c_0 += CHUNK) {
                    load_own(s, kv_head, line_0, c_0, outer != 0u);
                    load_other(s, kv_head, other_0, c_0, outer != 0u);
                    barrier();
                    [[dont_unroll]] for (uint c = 0u; c < CHUNK; c++) {
                        const float x = own_part[line * LINE + c];
                        [[unroll]] for (uint j = 0u; j < PER_LANE; j++) {
                            products[outer * PER_LANE + j] += x * other_part[(lane + j * LANES) * LINE + c];
                        }
                    }
                    barrier();
                }
            }
            [[unroll]] for (uint j = 0u; j < PER_LANE; j++) {
                weights[line * PAIR_LINE + lane + j * LANES] = products[j];
                slopes_of[line * PAIR_LINE + lane + j * LANES] = products[PER_LANE + j];
            }
            [[dont_unroll]] for (uint j = lane; j < BLOCK; j += LANES) {
                const uint at = line * PAIR_LINE + j;
                const uint row = OF_KEYS != 0u ? other_0 + j : line_0 + line;
                const uint key = OF_KEYS != 0u ? line_0 + line : other_0 + j;
                const vec2 both = pair(s, kv_head, row, key, weights[at], slopes_of[at]);
                weights[at] = both.x;
                slopes_of[at] = both.y;
            }
            barrier();
            [[unroll]] for (uint outer = 0u; outer <= OF_KEYS; outer++) {
                [[unroll]] for (uint t = 0u; t < CHUNKS; t++) {
                    if (t * CHUNK < (outer != 0u ? V_DIM : QK_DIM)) {
                        load_other(s, kv_head, other_0, t * CHUNK, outer != 0u);
                        barrier();
                        [[dont_unroll]] for (uint j = 0u; j < BLOCK; j++) {
                            const float weight = outer != 0u ? weights[line * PAIR_LINE + j] : slopes_of[line * PAIR_LINE + j];
                            [[unroll]] for (uint i = 0u; i < COLS; i++) {
                                const float product = weight * other_part[j * LINE + lane + i * LANES];
                                if (outer != 0u) {
                                    of_outer[t * COLS + i] += product;
                                } else {
                                    of_inner[t * COLS + i] += product;
                                }
                            }
                        }
                        barrier();
                    }
                }
            }
        }
        if (line_0 + line >= own) {
            continue;
        }
        const uint head = kv_head * GROUP + (line_0 + line) % GROUP;
        const uvec3 token = OF_KEYS != 0u ? key_token(s, line_0 + line) : query_token(s, (line_0 + line) / GROUP);
        const uint64_t inner_place = OF_KEYS != 0u ? token_place(token, kv_head, KV_HEADS, QK_DIM, K_LD)
                                                   : token_place(token, head, Q_HEADS, QK_DIM, Q_LD);
        const uint64_t outer_place = token_place(token, kv_head, KV_HEADS, V_DIM, V_LD);
        [[unroll]] for (uint i = 0u; i < CHUNKS * COLS; i++) {
            const uint c = i / COLS * CHUNK + lane + i % COLS * LANES;
            if (c < QK_DIM) {
                store_number(o, inner_place + c, OF_KEYS != 0u ? KV_TYPE : Q_TYPE, SCALE * (of_inner[i] / RAISE));
            }
            if (OF_KEYS != 0u && c < V_DIM) {
                store_number(given[AT_RESULT], outer_place + c, KV_TYPE, of_outer[i] / RAISE);
            }
        }
    }
}

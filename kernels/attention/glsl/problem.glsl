// What every kernel of attention is told, and where its operands lie. See kp_hal::op::AttentionSpec.
//
// Rows are queries of all the heads that share a head of keys: row r is query r / GROUP of head kv_head · GROUP + r % GROUP, so that
// few queries of many heads still fill a tile, and keys are read once for all of them.

#include "common/glsl/numbers.glsl"
#include "common/glsl/math.glsl"

#ifdef OPEN
// As numbers behind the arguments, all but V_DIM, by which sums are laid out: see kp_vulkan::shaders::Open.
#define Q_TYPE numbers[0]
#define KV_TYPE numbers[1]
#define O_TYPE numbers[2]
#define QK_DIM numbers[3]
layout(constant_id = 4) const uint V_DIM = 64u;
#define Q_HEADS numbers[5]
#define KV_HEADS numbers[6]
#define LAYOUT numbers[7]
#define Q_LD numbers[8]
#define K_LD numbers[9]
#define V_LD numbers[10]
#define O_LD numbers[11]
#define LENS numbers[12]
#define PAGE numbers[13]
#define MASK numbers[14]
#define MASK_A numbers[15]
#define MASK_B numbers[16]
#define SCALE uintBitsToFloat(numbers[17])
#define SOFTCAP uintBitsToFloat(numbers[18])
#define FLAGS numbers[19]
#define CODE_0 numbers[20]
#define CODE_1 numbers[21]
#define CODE_2 numbers[22]
#define CODE_3 numbers[23]
#define CODE_4 numbers[24]
#define CODE_5 numbers[25]
#define CODE_6 numbers[26]
#define CODE_7 numbers[27]
#define CODE_8 numbers[28]
#define CODE_9 numbers[29]
#define CODE_10 numbers[30]
#define CODE_11 numbers[31]
#else
layout(constant_id = 0) const uint Q_TYPE = 1u;
layout(constant_id = 1) const uint KV_TYPE = 1u;
layout(constant_id = 2) const uint O_TYPE = 1u;
layout(constant_id = 3) const uint QK_DIM = 64u;
layout(constant_id = 4) const uint V_DIM = 64u;
layout(constant_id = 5) const uint Q_HEADS = 1u;
layout(constant_id = 6) const uint KV_HEADS = 1u;
// kp_hal::op::HeadLayout, in its order.
layout(constant_id = 7) const uint LAYOUT = 0u;
layout(constant_id = 8) const uint Q_LD = 64u;
layout(constant_id = 9) const uint K_LD = 64u;
layout(constant_id = 10) const uint V_LD = 64u;
layout(constant_id = 11) const uint O_LD = 64u;
// 0 fixed, 1 padded, 2 packed.
layout(constant_id = 12) const uint LENS = 0u;
// Tokens of a page; 0 if there are none.
layout(constant_id = 13) const uint PAGE = 0u;
// kp_hal::op::Mask, in its order, with its two numbers.
layout(constant_id = 14) const uint MASK = 0u;
layout(constant_id = 15) const uint MASK_A = 0u;
layout(constant_id = 16) const uint MASK_B = 0u;
layout(constant_id = 17) const float SCALE = 1.0;
// 0 if scores have none.
layout(constant_id = 18) const float SOFTCAP = 0.0;
layout(constant_id = 19) const uint FLAGS = 0u;
// The mask's expression, four bytes of its code in each, low first.
layout(constant_id = 20) const uint CODE_0 = 0u;
layout(constant_id = 21) const uint CODE_1 = 0u;
layout(constant_id = 22) const uint CODE_2 = 0u;
layout(constant_id = 23) const uint CODE_3 = 0u;
layout(constant_id = 24) const uint CODE_4 = 0u;
layout(constant_id = 25) const uint CODE_5 = 0u;
layout(constant_id = 26) const uint CODE_6 = 0u;
layout(constant_id = 27) const uint CODE_7 = 0u;
layout(constant_id = 28) const uint CODE_8 = 0u;
layout(constant_id = 29) const uint CODE_9 = 0u;
layout(constant_id = 30) const uint CODE_10 = 0u;
layout(constant_id = 31) const uint CODE_11 = 0u;
#endif

const uint HAS_SLOPES = 1u, HAS_SINKS = 2u, HAS_LSE = 4u, Q_SCALED = 8u, Q_BY_ROW = 16u, KV_SCALED = 32u, KV_BY_ROW = 64u;
// Flags from this bit on: which operands have runs of eight numbers that are loaded at once, where a kernel asks.
const uint RUNS_FROM = 8u;
const uint LAYOUT_BSHD = 0u;
const uint LENS_PADDED = 1u, LENS_PACKED = 2u;
const uint MASK_FULL = 0u, MASK_CAUSAL = 1u, MASK_WINDOW = 2u, MASK_PREFIX = 3u, MASK_BLOCKS = 4u, MASK_EXPR = 5u;

// Query heads that share a head of keys.
#define GROUP (Q_HEADS / KV_HEADS)

layout(push_constant, std430) uniform Push {
    uint64_t q;
    uint64_t k;
    uint64_t v;
    uint64_t o;
    // Operands that not every problem has, those that this one has, in the order of the places below.
    uint64_t given[9];
    uint batch;
    // Of the longest sequence.
    uint q_len;
    uint kv_len;
    // Tokens of all sequences, if packed; pages, if paged.
    uint q_total;
    uint kv_total;
    // Parts that each sequence's keys are cut into.
    uint splits;
#ifdef OPEN
    layout(offset = 128) uint numbers[32];
#endif
};

#define AT_Q_SCALE 0u
#define AT_K_SCALE (AT_Q_SCALE + ((FLAGS & Q_SCALED) != 0u ? 1u : 0u))
#define AT_V_SCALE (AT_K_SCALE + ((FLAGS & KV_SCALED) != 0u ? 1u : 0u))
#define AT_Q_OFFSETS (AT_V_SCALE + ((FLAGS & KV_SCALED) != 0u ? 1u : 0u))
#define AT_KV_OFFSETS (AT_Q_OFFSETS + (LENS == LENS_PACKED ? 1u : 0u))
#define AT_KV_LENS (AT_KV_OFFSETS + (LENS == LENS_PACKED && PAGE == 0u ? 1u : 0u))
#define AT_PAGES (AT_KV_LENS + (LENS == LENS_PADDED || PAGE != 0u ? 1u : 0u))
#define AT_SLOPES (AT_PAGES + (PAGE != 0u ? 1u : 0u))
#define AT_SINKS (AT_SLOPES + ((FLAGS & HAS_SLOPES) != 0u ? 1u : 0u))
#define AT_BLOCKS (AT_SINKS + ((FLAGS & HAS_SINKS) != 0u ? 1u : 0u))
#define AT_LSE (AT_BLOCKS + (MASK == MASK_BLOCKS ? 1u : 0u))
#define AT_SCRATCH (AT_LSE + ((FLAGS & HAS_LSE) != 0u ? 1u : 0u))

uint word_at(uint which, uint64_t index) {
    return Word(given[which] + 4ul * index).v;
}

float real_at(uint which, uint64_t index) {
    return uintBitsToFloat(word_at(which, index));
}

// One sequence of the batch.
struct Sequence {
    uint number;
    uint queries;
    uint keys;
    // Its first tokens among those that are stored one behind the other.
    uint first_query;
    uint first_key;
};

// Number `i` of those that say where tokens are: none is past `most`, whatever they are.
uint number_at(uint which, uint64_t i, uint most) {
    const int x = int(word_at(which, i));
    return x < 0 ? 0u : min(uint(x), most);
}

// The first of a packed sequence's tokens and how many there are, of `total` in all, of which `most` in one sequence.
uvec2 span(uint which, uint sequence, uint total, uint most) {
    const uint first = number_at(which, sequence, total);
    return uvec2(first, min(max(number_at(which, sequence + 1u, total), first) - first, most));
}

Sequence sequence(uint number) {
    Sequence s = Sequence(number, q_len, kv_len, 0u, 0u);
    if (LENS == LENS_PACKED) {
        const uvec2 queries = span(AT_Q_OFFSETS, number, q_total, q_len);
        s.first_query = queries.x;
        s.queries = queries.y;
        if (PAGE == 0u) {
            const uvec2 keys = span(AT_KV_OFFSETS, number, kv_total, kv_len);
            s.first_key = keys.x;
            s.keys = keys.y;
        }
    }
    if (LENS == LENS_PADDED || PAGE != 0u) {
        s.keys = PAGE != 0u && kv_total == 0u ? 0u : number_at(AT_KV_LENS, number, kv_len);
    }
    return s;
}

// A token where it is stored: x is its sequence or page, y its number in there, z how many there are.
uvec3 query_token(Sequence s, uint query) {
    return LENS == LENS_PACKED ? uvec3(0u, s.first_query + query, q_total) : uvec3(s.number, query, q_len);
}

uvec3 key_token(Sequence s, uint key) {
    if (PAGE != 0u) {
        const uint64_t row = uint64_t(s.number) * ((kv_len + PAGE - 1u) / PAGE);
        return uvec3(number_at(AT_PAGES, row + key / PAGE, kv_total - 1u), key % PAGE, PAGE);
    }
    return LENS == LENS_PACKED ? uvec3(0u, s.first_key + key, kv_total) : uvec3(s.number, key, kv_len);
}

// The index of a token's first number.
uint64_t token_place(uvec3 token, uint head, uint heads, uint dim, uint ld) {
    if (LAYOUT == LAYOUT_BSHD) {
        return (uint64_t(token.x) * token.z + token.y) * ld + head * dim;
    }
    return ((uint64_t(token.x) * heads + head) * token.z + token.y) * ld;
}

// The index of a token's scale.
uint64_t scale_index(uvec3 token, uint head, uint heads) {
    return (uint64_t(token.x) * token.z + token.y) * heads + head;
}

float q_scale(uvec3 token, uint head) {
    if ((FLAGS & Q_SCALED) == 0u) {
        return 1.0;
    }
    return real_at(AT_Q_SCALE, (FLAGS & Q_BY_ROW) != 0u ? scale_index(token, head, Q_HEADS) : 0ul);
}

// Of K or of V, whichever's scales stand at `which`.
float kv_scale(uint which, uvec3 token, uint head) {
    if ((FLAGS & KV_SCALED) == 0u) {
        return 1.0;
    }
    return real_at(which, (FLAGS & KV_BY_ROW) != 0u ? scale_index(token, head, KV_HEADS) : 0ul);
}

// Where query head `head`'s log-sum-exp goes.
uint64_t lse_place(uvec3 token, uint head) {
    return (uint64_t(token.x) * Q_HEADS + head) * token.z + token.y;
}

// The sum of a row's weights with that of its head's sink, when `total` is without it and against the greatest score, `most`,
// which becomes the sink's if that is greater.
float with_sink(uint head, inout float most, float total) {
    if ((FLAGS & HAS_SINKS) == 0u) {
        return total;
    }
    const float sink = real_at(AT_SINKS, head);
    const float before = most;
    most = max(most, sink);
    return total * exp_of(before - most) + exp_of(sink - most);
}

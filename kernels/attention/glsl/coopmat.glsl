// What coopmat.comp and coopmat_ahead.comp have in common: how a group makes a tile of rows, and what becomes of scores and rows. They say as
// macros ELEMENT, and PLACES, for how many blocks of keys and of values shared memory has room.

#include "attention/glsl/problem.glsl"
#include "attention/glsl/mask.glsl"
#include "attention/glsl/finish.glsl"

layout(constant_id = 32) const uint SUBGROUPS = 4u;
layout(constant_id = 33) const uint DEEP = 1u;
layout(constant_id = 34) const uint BK = 64u;
layout(constant_id = 35) const uint M = 16u;
layout(constant_id = 36) const uint N = 16u;
layout(local_size_x_id = 37) in;
layout(constant_id = 37) const uint THREADS = 128u;
// Bits: every head of a token starts on 16 bytes, in Q, K and V; in O, whose numbers have two.
layout(constant_id = 38) const uint RUNS = 0u;

// Heads of keys whose tiles are done together, the last rows first: under these masks they have most to do, and the last groups at work
// are to have little. Of other masks one head after the other, whose keys and values a cache so has room for.
const uint TOGETHER = MASK == MASK_CAUSAL || MASK == MASK_PREFIX ? 16u : 1u;

const uint BQ = SUBGROUPS * DEEP * M;
// Matrices of a row of them.
const uint QK_STEPS = QK_DIM / N;
const uint KEYS = BK / N;
const uint COLS = V_DIM / N;
// Lines of shared memory in pieces of 16 bytes, one more than they hold, so that neighbouring ones start in other banks.
const uint K_PIECES = QK_DIM / 8u;
const uint V_PIECES = V_DIM / 8u;
const uint K_LINE = K_PIECES + 1u;
const uint V_LINE = V_PIECES + 1u;
const uint K_BLOCK = BK * K_LINE;
const uint V_BLOCK = BK * V_LINE;
const uint V_PART = PLACES * K_BLOCK;
// The queries stand there before the first block, and a matrix of each subgroup behind the last.
const uint BLOCKS = V_PART + PLACES * V_BLOCK;
const uint QUERIES = BQ * K_LINE;
const uint MATRICES = SUBGROUPS * M * N / 4u;
const uint MOST = BLOCKS > QUERIES ? BLOCKS : QUERIES;
const uint TILE = MOST > MATRICES ? MOST : MATRICES;
// Pieces that a thread brings of a block.
const uint K_TURNS = (BK * K_PIECES + THREADS - 1u) / THREADS;
const uint V_TURNS = (BK * V_PIECES + THREADS - 1u) / THREADS;

shared uvec4 tile[TILE];
// The greatest score of each row and its sum.
shared float of_rows[2u * BQ];

// As Quad, of what nobody writes meanwhile.
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Fixed { uvec4 v; };

#define SUMS coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>

// A weight, rounded to Q's type. To f16 drivers round, but NVIDIA's cuts off what bf16 has no place for: so half a place is added to the
// bits, and nothing is left to cut off.
ELEMENT rounded(float x) {
#ifdef OF_BF16
    return ELEMENT(uintBitsToFloat(floatBitsToUint(x) + 0x8000u & 0xffff0000u));
#else
    return ELEMENT(x);
#endif
}

// Number by number: what a driver does to whole matrices is not always to round them.
coopmat<ELEMENT, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> narrowed(SUMS matrix) {
    coopmat<ELEMENT, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> halves;
    [[unroll]] for (uint e = 0u; e < matrix.length(); e++) {
        halves[e] = rounded(matrix[e]);
    }
    return halves;
}

const float LOG2_E = 1.44269504;

// Where lanes are known, the greatest score times the factor, rounded, is what all weights are against, so that one instruction makes
// what is left of a score. Scores of bf16 may be too large for that: of them differences are multiplied.
#ifdef OF_BF16
#define IN_ADVANCE(factor) 1.0
#define AFTERWARDS(factor) factor
#else
#define IN_ADVANCE(factor) factor
#define AFTERWARDS(factor) 1.0
#endif

// Whether a score that is seen is its product and a positive factor, and products can be compared in its place.
bool is_bare() {
    return SCALE > 0.0 && SOFTCAP == 0.0 && (FLAGS & HAS_SLOPES) == 0u;
}

// What makes scores of what stands for them.
float unit() {
    return is_bare() ? SCALE : 1.0;
}

// The sequence and head at work, for the function that sees one element.
Sequence at_work;
uint head_at_work;

// What stands for the score of element (`row`, `col`) of a matrix whose first is row `row_0` and key `key_0`.
float element_score(const in uint row, const in uint col, const in float x, const in uint row_0, const in uint key_0) {
    const uint head = head_at_work * GROUP + (row_0 + row) % GROUP;
    if (is_bare()) {
        return is_seen(at_work, row_0 + row, key_0 + col, head) ? x : -uintBitsToFloat(INFINITE);
    }
    return score(x, at_work, row_0 + row, key_0 + col, head);
}

// Eight numbers from `place`.
uvec4 eight(uint64_t base, uint64_t place) {
    if ((RUNS & 1u) != 0u) {
        return Fixed(base + 2ul * place).v;
    }
    uvec4 piece = uvec4(0u);
    [[dont_unroll]] for (uint i = 0u; i < 8u; i++) {
        piece[i / 2u] |= uint(Half(base + 2ul * (place + i)).v) << 16u * (i % 2u);
    }
    return piece;
}

// Whether products stand for scores throughout a block, all of whose keys all rows of the tile see.
bool is_plain(Sequence s, uint row_0, uint row_1, uint key_0) {
    if (!is_bare() || key_0 + BK > s.keys) {
        return false;
    }
    const int ahead = int(s.keys) - int(s.queries);
    const int first = int(row_0 / GROUP) + ahead;
    const int last = int(row_1 / GROUP) + ahead;
    const int end = int(key_0 + BK) - 1;
    switch (MASK) {
        case MASK_FULL: return true;
        case MASK_CAUSAL: return end <= first;
        case MASK_WINDOW: return int64_t(last) - int64_t(MASK_A) <= int64_t(key_0) && int64_t(end) <= int64_t(first) + int64_t(MASK_B);
        case MASK_PREFIX: return end <= first || uint(end) < MASK_A;
        default: return false;
    }
}

// Stores a number of a row.
void store_result(Sequence s, uint kv_head, uint row, uint split, uint col, float x) {
    if (row >= s.queries * GROUP) {
        return;
    }
    if (splits > 1u) {
        store_part(part_place(s.number, kv_head, row, split), col, x);
        return;
    }
    const uint head = kv_head * GROUP + row % GROUP;
    const uvec3 token = query_token(s, row / GROUP);
    store_number(o, token_place(token, head, Q_HEADS, V_DIM, O_LD) + col, O_TYPE, x);
}

// Finishes a row's sum: what multiplies its numbers.
float finish_row(Sequence s, uint kv_head, uint row, uint split, float most, float total) {
    if (row >= s.queries * GROUP) {
        return 0.0;
    }
    if (splits > 1u) {
        const uint64_t part = part_place(s.number, kv_head, row, split);
        store_part(part, V_DIM, most);
        store_part(part, V_DIM + 1u, total);
        return 1.0;
    }
    const uint head = kv_head * GROUP + row % GROUP;
    float greatest = most;
    const float all = with_sink(head, greatest, total);
    store_lse(query_token(s, row / GROUP), head, greatest, all);
    return all == 0.0 ? 0.0 : (most == greatest ? 1.0 : exp_of(most - greatest)) / all;
}

// Number `at` of the matrices behind the last block.
float stored(uint at) {
    return uintBitsToFloat(tile[at / 4u][at % 4u]);
}

// Of a lane's two rows, that of its element `e`, where that is known.
uint row_of(uint e) {
    return e / (N / 4u) % 2u;
}

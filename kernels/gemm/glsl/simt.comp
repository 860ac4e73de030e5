#version 460
#extension GL_GOOGLE_include_directive : require
// also open: OPEN=1
// also wide: WIDE=1
// also wide_open: WIDE=1 OPEN=1
// also whole: WHOLE=1
// also whole_open: WHOLE=1 OPEN=1
// also dot: WHOLE=1 DOT=1
// also dot_open: WHOLE=1 DOT=1 OPEN=1

// D = A·B on the ordinary arithmetic units, in every form: every type in every order, scaled or not, sparse or not,
// rows in groups or not.
//
//        BN                  A group makes tiles of BM × BN, one after the other. A step brings BK columns of A and BK rows
//      ┌─────┐ BK            of B to shared memory, floats with their scales; each thread adds TM × TN products to as many sums,
//   BM │ . . │               those of rows BM/TM apart and of pairs of columns 2·BN/TN apart, so that neighbours read
//      └─────┘               neighbouring words.
//
// WIDE: numbers and sums of f64, and of what is added to them.
//
// WHOLE: codes are whole numbers, and so are their sums, exactly; steps end where scales change, and each such block's sum is scaled
// and added to totals of f32.
//
// DOT: of 8 bits, four along k in each word, which the device's own dot product multiplies at once; no zero points, dense, and blocks of
// whole words.
//
// Products of a sum are added one after the other in order of k, so a row's bits depend on nothing but the row.
// Limits: sizes below 2^31. Threads of a group: BM/TM · BN/TN.

#include "gemm/glsl/product.glsl"
#ifdef DOT
#include "gemm/glsl/dots.glsl"
#endif

layout(constant_id = 21) const uint BM = 64u;
layout(constant_id = 22) const uint BN = 64u;
layout(constant_id = 23) const uint BK = 16u;
layout(constant_id = 24) const uint TM = 4u;
layout(constant_id = 25) const uint TN = 4u;
layout(local_size_x_id = 26) in;

#ifdef DOT
// Codes of a word, and words of a step.
const uint CODES = 4u;
#else
const uint CODES = 1u;
#endif
const uint WORDS = BK / CODES;
const uint THREADS = BM / TM * (BN / TN);
// A word more than a row has: a column's words lie in different banks.
const uint A_ROW = BM + 1u;
const uint B_ROW = BN + 1u;

// Where B's part begins, behind A's.
const uint B_PART = WORDS * A_ROW;
// A row of every thread's sums, when they are finished.
const uint DONE = BM / TM * BN;
const uint PARTS = B_PART + WORDS * B_ROW;

#ifdef WHOLE
#define NUMBER int
#else
#define NUMBER REAL
#endif

shared NUMBER parts[PARTS > DONE ? PARTS : DONE];

// Where a tile is.
struct Tile {
    uint group;
    // Which matrix of A and D.
    uint which;
    uint row_0;
    uint col_0;
    // The row behind the last that is this tile's to store.
    uint end;
};

// The tile number `at`; false if there is none. Groups have as many rows of tiles as they need.
bool tile_at(uint64_t at, out Tile tile) {
    const uint tiles_n = (n + BN - 1u) / BN;
    const uint64_t down = at / tiles_n;
    tile.col_0 = uint(at - down * tiles_n) * BN;
    if ((FLAGS & (CONTIGUOUS | MASKED)) == 0u) {
        const uint per_matrix = (m + BM - 1u) / BM;
        tile.group = uint(down / per_matrix);
        tile.which = tile.group;
        tile.row_0 = uint(down - uint64_t(tile.group) * per_matrix) * BM;
        tile.end = m;
        return tile.group < batch;
    }
    uint left = uint(down);
    for (uint g = 0u; g < batch; g++) {
        const uvec2 rows = group_rows(g);
        const uint tiles = (max(rows.y, rows.x) - rows.x + BM - 1u) / BM;
        if (left < tiles) {
            tile.group = g;
            tile.which = (FLAGS & MASKED) != 0u ? g : 0u;
            tile.row_0 = rows.x + left * BM;
            tile.end = rows.y;
            return true;
        }
        left -= tiles;
    }
    return false;
}

#ifdef DOT
// Four codes of A along k, 0 from `end` on.
int a_word(uint which, uint row, uint from, uint end) {
    const uint64_t origin = which * uint64_t(a_stride);
    const uint64_t place = a + a_place(origin, row, from);
    if (A_FORM == 0u && from + CODES <= end && (uint(place) & 3u) == 0u) {
        return int(Word(place).v);
    }
    uint word = 0u;
    [[dont_unroll]] for (uint i = 0u; i < min(end - from, CODES); i++) {
        word |= uint(Byte(a + a_place(origin, row, from + i)).v) << 8u * i;
    }
    return int(word);
}

int b_word(uint which, uint from, uint col, uint end) {
    const uint64_t origin = which * uint64_t(b_stride);
    const uint64_t place = b + b_place(origin, from, col);
    if (B_FORM == 1u && from + CODES <= end && (uint(place) & 3u) == 0u) {
        return int(Word(place).v);
    }
    uint word = 0u;
    [[dont_unroll]] for (uint i = 0u; i < min(end - from, CODES); i++) {
        word |= uint(Byte(b + b_place(origin, from + i, col)).v) << 8u * i;
    }
    return int(word);
}
#endif

void main() {
    const uint thread = gl_LocalInvocationIndex;
    const uint across = thread % (BN / TN);
    const uint down = thread / (BN / TN);
    Tile tile;
    for (uint64_t at = gl_WorkGroupID.x; tile_at(at, tile); at += gl_NumWorkGroups.x) {
        group_at_work = tile.group;
        row_end = tile.end;
        NUMBER sums[TM * TN];
        [[unroll]] for (uint i = 0u; i < TM * TN; i++) {
            sums[i] = NUMBER(0);
        }
#ifdef WHOLE
        const bool scaled = has(A_SCALE) || has(B_SCALE);
        float totals[TM * TN];
        [[unroll]] for (uint i = 0u; i < TM * TN; i++) {
            totals[i] = 0.0;
        }
#endif
        for (uint k_0 = 0u, k_end; k_0 < k; k_0 = k_end) {
            k_end = min(k_0 + BK, k);
#ifdef WHOLE
            // Blocks may have more elements than there are.
            k_end = min(k_end, min(A_INNER < k ? (k_0 / A_INNER + 1u) * A_INNER : k, B_INNER < k ? (k_0 / B_INNER + 1u) * B_INNER : k));
#endif
            // Neighbouring threads read neighbouring elements, whichever index is contiguous.
            for (uint e = thread; e < BM * WORDS; e += THREADS) {
                const uint r = A_FORM == 0u ? e / WORDS : e % BM;
                const uint s = A_FORM == 0u ? e % WORDS : e / BM;
                const uint row = tile.row_0 + r;
                NUMBER x = NUMBER(0);
                if (row < tile.end && k_0 + CODES * s < k_end) {
#if defined(DOT)
                    x = a_word(tile.which, row, k_0 + CODES * s, k_end);
#elif defined(WHOLE)
                    x = int(a_code(tile.which, row, k_0 + s));
#else
                    x = a_code(tile.which, row, k_0 + s) * a_factor(tile.which, row, k_0 + s);
#endif
                }
                parts[s * A_ROW + r] = x;
            }
            for (uint e = thread; e < BN * WORDS; e += THREADS) {
                const uint r = B_FORM == 0u ? e % BN : e / WORDS;
                const uint s = B_FORM == 0u ? e / BN : e % WORDS;
                const uint col = column(tile.col_0 + r);
                NUMBER y = NUMBER(0);
                if (tile.col_0 + r < n && k_0 + CODES * s < k_end) {
#if defined(DOT)
                    y = b_word(tile.group, k_0 + CODES * s, col, k_end);
#elif defined(WHOLE)
                    y = int(b_code(tile.group, k_0 + s, col));
#else
                    y = b_code(tile.group, k_0 + s, col) * b_factor(tile.group, k_0 + s, col);
#endif
                }
                parts[B_PART + s * B_ROW + r] = y;
            }
            barrier();
            [[dont_unroll]] for (uint s = 0u; s < WORDS; s++) {
                NUMBER rows[TM];
                NUMBER cols[TN];
                [[unroll]] for (uint i = 0u; i < TM; i++) {
                    rows[i] = parts[s * A_ROW + down + i * (BM / TM)];
                }
                [[unroll]] for (uint j = 0u; j < TN; j++) {
                    cols[j] = parts[B_PART + s * B_ROW + 2u * across + j / 2u * (2u * BN / TN) + j % 2u];
                }
                [[unroll]] for (uint i = 0u; i < TM; i++) {
                    [[unroll]] for (uint j = 0u; j < TN; j++) {
#ifdef DOT
                        sums[i * TN + j] += dotted(uint(rows[i]), uint(cols[j]));
#else
                        sums[i * TN + j] += rows[i] * cols[j];
#endif
                    }
                }
            }
            barrier();
#ifdef WHOLE
            if (scaled && (k_end == k || k_end % A_INNER == 0u || k_end % B_INNER == 0u)) {
                [[dont_unroll]] for (uint i = 0u; i < TM; i++) {
                    const uint row = min(tile.row_0 + down + i * (BM / TM), m - 1u);
                    const float of_row = a_factor(tile.which, row, k_0);
                    [[dont_unroll]] for (uint j = 0u; j < TN; j++) {
                        const uint col = min(tile.col_0 + 2u * across + j / 2u * (2u * BN / TN) + j % 2u, n - 1u);
                        const float scale = of_row * b_factor(tile.group, k_0, column(col));
                        totals[i * TN + j] += odd(sums[i * TN + j]) * scale;
                        sums[i * TN + j] = 0;
                    }
                }
            }
#endif
        }
        // A row of every thread's at a time through shared memory: what follows the sums is long, and stands here once.
        [[dont_unroll]] for (uint i = 0u; i < TM; i++) {
            [[unroll]] for (uint each = 0u; each < TM; each++) {
                if (each == i) {
                    [[unroll]] for (uint j = 0u; j < TN; j++) {
                        const uint place = down * BN + 2u * across + j / 2u * (2u * BN / TN) + j % 2u;
#ifdef WHOLE
                        parts[place] = scaled ? floatBitsToInt(totals[each * TN + j]) : sums[each * TN + j];
#else
                        parts[place] = sums[each * TN + j];
#endif
                    }
                }
            }
            barrier();
            for (uint e = thread; e < DONE / 2u; e += THREADS) {
                const uint row = tile.row_0 + 2u * e / BN + i * (BM / TM);
                const uint col = tile.col_0 + 2u * e % BN;
#ifdef WHOLE
                const ivec2 both = ivec2(parts[2u * e], parts[2u * e + 1u]);
                if (is_sums()) {
                    store_sums(both, tile.which, row, col);
                } else {
                    const vec2 real = scaled ? intBitsToFloat(both) : vec2(odd(both.x), odd(both.y));
                    finished(real.x, real.y, tile.which, row, col);
                }
#else
                finished(parts[2u * e], parts[2u * e + 1u], tile.which, row, col);
#endif
            }
            barrier();
        }
    }
}

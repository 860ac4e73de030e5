// The tiles of coopmat.comp and coopmat_whole.comp, which say as macros ELEMENT, its BYTES and BITS, what is SUMMED, FIRST, the number of
// the first of ten constants, of eleven with OF_I8, SPLITS, how many parts k has, and maybe SMALL_PIECES; and have the operands and sizes
// that are named here.

#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require

#define PER_WORD (32u / BITS)
// Steps are brought in pieces of PER elements. Matrices start with one, so where they are small it is, too.
#ifdef SMALL_PIECES
#define PIECE uvec2
#define WORDS 2u
#else
#define PIECE uvec4
#define WORDS 4u
#endif
#define PER (WORDS * PER_WORD)

layout(constant_id = FIRST) const uint BM = 64u;
layout(constant_id = FIRST + 1) const uint BN = 64u;
layout(constant_id = FIRST + 2) const uint BK = 32u;
layout(constant_id = FIRST + 3) const uint DOWN = 2u;
layout(constant_id = FIRST + 4) const uint ACROSS = 2u;
layout(local_size_x_id = FIRST + 5) in;
layout(constant_id = FIRST + 5) const uint THREADS = 128u;
layout(constant_id = FIRST + 6) const uint M = 16u;
layout(constant_id = FIRST + 7) const uint N = 16u;
layout(constant_id = FIRST + 8) const uint K = 16u;
// Bits: pieces of A, of B at once; all steps are made of them; D has nothing but alpha to it, and is stored eight elements at once.
#ifdef OPEN
#define RUNS numbers[FIRST]
#else
layout(constant_id = FIRST + 9) const uint RUNS = 0u;
#endif

// A step's lines: along k, or across it where that is how the operand lies. In pieces of 16 bytes, one more than what they hold, so
// that neighbouring ones start in other banks; and of 16 bytes so that the driver knows how a matrix is aligned.
#ifdef OF_I8
// Bits: A, B lie across k.
layout(constant_id = FIRST + 10) const uint SIDES = 0u;
const bool A_ALONG_K = (SIDES & 1u) == 0u;
const bool B_ALONG_K = (SIDES & 2u) == 0u;
#else
const bool A_ALONG_K = A_FORM == 0u;
const bool B_ALONG_K = B_FORM != 0u;
#endif
const uint A_LINES = A_ALONG_K ? BM : BK;
const uint B_LINES = B_ALONG_K ? BN : BK;
const uint A_PIECES = (A_ALONG_K ? BK : BM) / PER;
const uint B_PIECES = (B_ALONG_K ? BK : BN) / PER;
const uint A_LINE = A_PIECES + 1u;
const uint B_LINE = B_PIECES + 1u;
// Pieces of a step, and those that a thread brings.
const uint A_ALL = A_LINES * A_PIECES;
const uint B_ALL = B_LINES * B_PIECES;
const uint A_TURNS = (A_ALL + THREADS - 1u) / THREADS;
const uint B_TURNS = (B_ALL + THREADS - 1u) / THREADS;

// Whether there are no steps but those of `make_steps`.
#define WHOLE ((~RUNS & 7u) == 0u)

// Matrices of a subgroup's part.
const uint ROWS = BM / DOWN / M;
const uint COLS = BN / ACROSS / N;
const uint SUBGROUPS = DOWN * ACROSS;

// A's part of a step, and B's behind it; in their place, when they are done with, a matrix of sums of each subgroup.
const uint B_PART = A_LINES * A_LINE;
const uint BOTH = B_PART + B_LINES * B_LINE;
const uint SUMS = SUBGROUPS * M * N / WORDS;
shared PIECE parts[BOTH > SUMS ? BOTH : SUMS];

// As Quad, of what nobody writes meanwhile.
layout(buffer_reference, std430, buffer_reference_align = 4 * WORDS) readonly restrict buffer Fixed { PIECE v; };

// What is on its way to shared memory.
PIECE next_a[A_TURNS];

// A's code at (`row`, `col`), 0 outside.
uint a_code(uint64_t origin, uint row, uint col) {
    return row < m && col < k ? code_at(a, a_place(origin, row, col), A_TYPE) : 0u;
}

// Eight elements of A along its line from (`row`, `col`).
PIECE a_piece(uint64_t origin, uint row, uint col) {
    if ((RUNS & 1u) != 0u && row + (A_ALONG_K ? 0u : PER - 1u) < m && col + (A_ALONG_K ? PER - 1u : 0u) < k) {
        return Fixed(a + BYTES * a_place(origin, row, col)).v;
    }
    PIECE piece = PIECE(0u);
    [[dont_unroll]] for (uint i = 0u; i < PER; i++) {
        piece[i / PER_WORD] |= a_code(origin, row + (A_ALONG_K ? 0u : i), col + (A_ALONG_K ? i : 0u)) << BITS * (i % PER_WORD);
    }
    return piece;
}

// Line and piece of the piece numbered `e` of a step. Eight threads store at a time: where these are pieces of several lines, the
// lines are so far apart that all eight lie in different banks.
uvec2 spot(uint e, uint pieces) {
    if (pieces < 8u) {
        const uint among = e % 8u;
        return uvec2(e / (8u * pieces) * 8u + e / 8u % pieces + pieces * (among / pieces), among % pieces);
    }
    return uvec2(e / pieces, e % pieces);
}

// Where a thread's pieces of the first step lie, or of the last rows that there are.
uint64_t from_a[A_TURNS];

void aim_a(uint64_t origin, uint row_0) {
    [[unroll]] for (uint i = 0u; i < A_TURNS; i++) {
        const uvec2 at = spot(gl_LocalInvocationIndex + i * THREADS, A_PIECES);
        const uint row = A_ALONG_K ? min(row_0 + at.x, m - 1u) : min(row_0 + PER * at.y, m - PER);
        from_a[i] = a + BYTES * a_place(origin, row, A_ALONG_K ? PER * at.y : at.x);
    }
}

// Sends for A's part of the step at `k_0`.
void send_for_a(uint k_0) {
    const uint64_t on = BYTES * k_0 * (A_ALONG_K ? 1u : a_ld);
    [[unroll]] for (uint i = 0u; i < A_TURNS; i++) {
        if (A_ALL % THREADS == 0u || gl_LocalInvocationIndex + i * THREADS < A_ALL) {
            next_a[i] = Fixed(from_a[i] + on).v;
        }
    }
}

// Puts what was sent for into shared memory.
void put_a() {
    [[unroll]] for (uint i = 0u; i < A_TURNS; i++) {
        const uvec2 at = spot(gl_LocalInvocationIndex + i * THREADS, A_PIECES);
        if (A_ALL % THREADS == 0u || gl_LocalInvocationIndex + i * THREADS < A_ALL) {
            parts[at.x * A_LINE + at.y] = next_a[i];
        }
    }
}

#ifdef WEIGHTS
#include "gemm/glsl/coopmat_weights.glsl"
#else
PIECE next_b[B_TURNS];

// B's code at row `row` and place `at`, 0 outside.
uint b_code(uint64_t origin, uint row, uint at) {
    return row < k && at < n ? code_at(b, b_place(origin, row, column(at)), B_TYPE) : 0u;
}

// Eight elements of B along its line from row `row` and place `at`.
PIECE b_piece(uint which, uint64_t origin, uint row, uint at) {
    if ((RUNS & 2u) != 0u && row + (B_ALONG_K ? PER - 1u : 0u) < k && at + (B_ALONG_K ? 0u : PER - 1u) < n) {
        return Fixed(b + BYTES * b_place(origin, row, column(at))).v;
    }
    PIECE piece = PIECE(0u);
    [[dont_unroll]] for (uint i = 0u; i < PER; i++) {
        piece[i / PER_WORD] |= b_code(origin, row + (B_ALONG_K ? i : 0u), at + (B_ALONG_K ? 0u : i)) << BITS * (i % PER_WORD);
    }
    return piece;
}

uint64_t from_b[B_TURNS];

void aim_b(uint which, uint64_t origin, uint col_0) {
    [[unroll]] for (uint i = 0u; i < B_TURNS; i++) {
        const uvec2 at = spot(gl_LocalInvocationIndex + i * THREADS, B_PIECES);
        const uint col = B_ALONG_K ? min(col_0 + at.x, n - 1u) : min(col_0 + PER * at.y, n - PER);
        from_b[i] = b + BYTES * b_place(origin, B_ALONG_K ? PER * at.y : at.x, column(col));
    }
}

void send_for_b(uint k_0) {
    const uint64_t on = BYTES * k_0 * (B_ALONG_K ? 1u : b_ld);
    [[unroll]] for (uint i = 0u; i < B_TURNS; i++) {
        if (B_ALL % THREADS == 0u || gl_LocalInvocationIndex + i * THREADS < B_ALL) {
            next_b[i] = Fixed(from_b[i] + on).v;
        }
    }
}

void put_b() {
    [[unroll]] for (uint i = 0u; i < B_TURNS; i++) {
        const uvec2 at = spot(gl_LocalInvocationIndex + i * THREADS, B_PIECES);
        if (B_ALL % THREADS == 0u || gl_LocalInvocationIndex + i * THREADS < B_ALL) {
            parts[B_PART + at.x * B_LINE + at.y] = next_b[i];
        }
    }
}

void weigh(uint which, uint col_0) {}

// What the sums of the column at place `at` of the tile are multiplied by.
float factor(uint at) {
    return 1.0;
}
#endif

void send_for(uint k_0) {
    send_for_a(k_0);
    send_for_b(k_0);
}

void put() {
    put_a();
    put_b();
}

// Brings a step of which not everything is there, or not eight elements at once, to shared memory.
void bring(uint which, uint64_t a_origin, uint64_t b_origin, uint row_0, uint col_0, uint k_0) {
    [[dont_unroll]] for (uint e = gl_LocalInvocationIndex; e < A_ALL; e += THREADS) {
        const uint line = e / A_PIECES;
        const uint at = e % A_PIECES * PER;
        parts[line * A_LINE + at / PER] = a_piece(a_origin, row_0 + (A_ALONG_K ? line : at), k_0 + (A_ALONG_K ? at : line));
    }
    [[dont_unroll]] for (uint e = gl_LocalInvocationIndex; e < B_ALL; e += THREADS) {
        const uint line = e / B_PIECES;
        const uint at = e % B_PIECES * PER;
        parts[B_PART + line * B_LINE + at / PER] = b_piece(which, b_origin, k_0 + (B_ALONG_K ? at : line), col_0 + (B_ALONG_K ? line : at));
    }
}

// Matrices of the K columns of A, rows of B that are multiplied, and of those that are next, by turns.
coopmat<ELEMENT, gl_ScopeSubgroup, M, K, gl_MatrixUseA> rows[2u * ROWS];
coopmat<ELEMENT, gl_ScopeSubgroup, K, N, gl_MatrixUseB> cols[2u * COLS];
coopmat<SUMMED, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> sums[ROWS * COLS];

// Where this subgroup's part of the tile starts.
uvec2 part() {
    return uvec2(gl_SubgroupID / ACROSS * (BM / DOWN), gl_SubgroupID % ACROSS * (BN / ACROSS));
}

// Loads matrices of the step, from its column of A, row of B `s`.
void load(uint turn, uint s) {
    [[unroll]] for (uint i = 0u; i < ROWS; i++) {
        const uint row = part().x + i * M;
        if (A_ALONG_K) {
            coopMatLoad(rows[turn * ROWS + i], parts, row * A_LINE + s / PER, A_LINE, gl_CooperativeMatrixLayoutRowMajor);
        } else {
            coopMatLoad(rows[turn * ROWS + i], parts, s * A_LINE + row / PER, A_LINE, gl_CooperativeMatrixLayoutColumnMajor);
        }
    }
    [[unroll]] for (uint j = 0u; j < COLS; j++) {
        const uint col = part().y + j * N;
        if (B_ALONG_K) {
            coopMatLoad(cols[turn * COLS + j], parts, B_PART + col * B_LINE + s / PER, B_LINE, gl_CooperativeMatrixLayoutColumnMajor);
        } else {
            coopMatLoad(cols[turn * COLS + j], parts, B_PART + s * B_LINE + col / PER, B_LINE, gl_CooperativeMatrixLayoutRowMajor);
        }
    }
}

void multiply(uint turn) {
    [[unroll]] for (uint j = 0u; j < COLS; j++) {
        [[unroll]] for (uint i = 0u; i < ROWS; i++) {
            sums[i * COLS + j] = coopMatMulAdd(rows[turn * ROWS + i], cols[turn * COLS + j], sums[i * COLS + j]);
        }
    }
}

// Where the steps end that are made of eight elements at once.
uint steps_end(uint row_0, uint col_0) {
    if (WHOLE) {
        return k;
    }
    const bool of_a = (RUNS & 1u) != 0u && (A_ALONG_K || m % PER == 0u || row_0 + BM <= m);
    const bool of_b = (RUNS & 2u) != 0u && (B_ALONG_K || n % PER == 0u || col_0 + BN <= n);
    return of_a && of_b ? k / BK * BK : 0u;
}

// Adds the products of the steps from `begin` to `end`, of which there are some.
void make_steps(uint begin, uint end) {
    send_for(begin);
    put();
    send_for(min(begin + BK, end - BK));
    barrier();
    for (uint k_0 = begin; k_0 < end; k_0 += BK) {
        load(0u, 0u);
        // What follows the last matrices of a step stands behind the loop: with it inside, drivers find the loop too long to unroll, and
        // matrices that take turns go to memory.
        [[unroll]] for (uint s = 0u; s + K < BK; s += K) {
            const uint turn = s / K % 2u;
            load(1u - turn, s + K);
            multiply(turn);
        }
        barrier();
        // Past the last step there is nothing to put or to send for, but nobody reads it either. A condition would cost more: what is
        // loaded behind one is waited for where it ends.
        put();
        send_for(min(k_0 + 2u * BK, end - BK));
        multiply((BK / K - 1u) % 2u);
        barrier();
    }
}

#ifndef OF_I8
// What four sums from place `at` of the tile are multiplied by.
vec4 four_factors(uint at) {
    return vec4(factor(at), factor(at + 1u), factor(at + 2u), factor(at + 3u));
}

// Stores alpha times the eight sums from piece `from` of shared memory, of a tile from `col_0`.
void store_eight(uint from, uint of_d, uint row, uint col_0, uint col) {
    const uint64_t at = of_d * d_stride + uint64_t(row) * d_ld + col;
    const vec4 low = alpha * uintBitsToFloat(parts[from]) * four_factors(col - col_0);
    const vec4 high = alpha * uintBitsToFloat(parts[from + 1u]) * four_factors(col - col_0 + 4u);
    if (D_TYPE == F32) {
        Quad(d + 4ul * at).v = floatBitsToUint(low);
        Quad(d + 4ul * at + 16ul).v = floatBitsToUint(high);
        return;
    }
    uvec4 piece;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        const float x = i < 2u ? low[2u * i] : high[2u * i - 4u];
        const float y = i < 2u ? low[2u * i + 1u] : high[2u * i - 3u];
        piece[i] = D_TYPE == F16 ? to_f16(x) | to_f16(y) << 16 : to_bf16(x) | to_bf16(y) << 16;
    }
    Quad(d + 2ul * at).v = piece;
}

// The same of a subgroup's matrix from piece `own`.
void store_matrix(uint own, uint of_d, uint row, uint col_0, uint col) {
    for (uint e = 8u * gl_SubgroupInvocationID; e < M * N; e += 8u * THREADS / SUBGROUPS) {
        if (row + e / N < row_end && col + e % N < n) {
            store_eight(own + e / 4u, of_d, row + e / N, col_0, col + e % N);
        }
    }
}
#endif

const uint BAND = 8u;

// A tile: its first row and column, which part of k it adds, and which matrices of A and of D have its rows. Of B it is `group_at_work`.
struct Tile {
    uint row_0;
    uint col_0;
    uint split;
    uint of_a;
    uint of_d;
};

// Finds the rows of the group that has row of tiles `down`, which becomes that within the group: false if there is none. Lanes look at
// a group each.
bool group_at(inout uint down, out uvec2 rows) {
    uint before = 0u;
    for (uint first = 0u; first < batch; first += gl_SubgroupSize) {
        const uint g = first + gl_SubgroupInvocationID;
        const uvec2 own = g < batch ? group_rows(g) : uvec2(0u);
        const uint tiles = (max(own.y, own.x) - own.x + BM - 1u) / BM;
        const uint upto = before + subgroupInclusiveAdd(tiles);
        const uint lane = subgroupMin(upto > down ? gl_SubgroupInvocationID : gl_SubgroupSize);
        if (lane < gl_SubgroupSize) {
            group_at_work = first + lane;
            down -= subgroupShuffle(upto - tiles, lane);
            rows = subgroupShuffle(own, lane);
            return true;
        }
        before = subgroupMax(upto);
    }
    return false;
}

// The tile number `at`; false if there is none. Bands of BAND rows of tiles, column by column: what runs at once shares rows and
// columns, and finds them in a cache.
bool tile_at(uint at, out Tile tile) {
    const uint tiles_n = (n + BN - 1u) / BN;
    uvec2 rows = uvec2(0u, m);
    uint down = at / tiles_n;
    const uint across = at - down * tiles_n;
    if ((FLAGS & (CONTIGUOUS | MASKED)) != 0u) {
        if (!group_at(down, rows)) {
            return false;
        }
        tile.split = 0u;
        tile.of_a = (FLAGS & MASKED) != 0u ? group_at_work : 0u;
        tile.of_d = tile.of_a;
    } else {
        const uint per_matrix = (m + BM - 1u) / BM;
        tile.of_d = down / per_matrix;
        down -= tile.of_d * per_matrix;
        tile.of_a = tile.of_d / SPLITS;
        tile.split = tile.of_d % SPLITS;
        group_at_work = tile.of_a;
    }
    row_end = rows.y;
    const uint place = down * tiles_n + across;
    const uint band = place / (BAND * tiles_n);
    const uint high = min((rows.y - rows.x + BM - 1u) / BM - band * BAND, BAND);
    const uint within = place % (BAND * tiles_n);
    tile.row_0 = rows.x + (band * BAND + within % high) * BM;
    tile.col_0 = within / high * BN;
    return tile.of_a < batch;
}

void main() {
    Tile tile;
    for (uint at = gl_WorkGroupID.x; tile_at(at, tile); at += gl_NumWorkGroups.x) {
        [[unroll]] for (uint i = 0u; i < ROWS * COLS; i++) {
            sums[i] = coopmat<SUMMED, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(SUMMED(0));
        }
        const uint64_t a_origin = tile.of_a * uint64_t(a_stride);
        const uint64_t b_origin = group_at_work * uint64_t(b_stride);
        const uint row_0 = tile.row_0;
        const uint col_0 = tile.col_0;
        weigh(group_at_work, col_0);
        // Parts are of whole steps, but for the last.
        const uint share = (k / BK + SPLITS - 1u) / SPLITS * BK;
        const uint begin = min(tile.split * share, k);
        const uint last = tile.split + 1u < SPLITS ? min(begin + share, k) : k;
        const uint end = min(steps_end(row_0, col_0), last);
        if (end > begin) {
            aim_a(a_origin, row_0);
            aim_b(group_at_work, b_origin, col_0);
            make_steps(begin, end);
        }
        if (!WHOLE) {
            for (uint k_0 = max(begin, end); k_0 < last; k_0 += BK) {
                bring(group_at_work, a_origin, b_origin, row_0, col_0, k_0);
                barrier();
                [[unroll]] for (uint s = 0u; s < BK; s += K) {
                    load(0u, s);
                    multiply(0u);
                }
                barrier();
            }
        }
        const uint lanes = THREADS / SUBGROUPS;
        const uint own = gl_SubgroupID * M * N / WORDS;
#if !defined(OF_I8) && !defined(WEIGHTS) && !defined(OPEN)
        // Where that is short, it stands here for each matrix: what looks for the one whose turn it is takes as long as 80 elements along k.
        // Not two matrices side by side: the compiler of NVIDIA's driver 580 breaks down.
        if ((RUNS & 8u) != 0u) {
            [[unroll]] for (uint i = 0u; i < ROWS * COLS; i++) {
                coopMatStore(sums[i], parts, own, N / WORDS, gl_CooperativeMatrixLayoutRowMajor);
                subgroupBarrier();
                store_matrix(own, tile.of_d, row_0 + part().x + i / COLS * M, col_0, col_0 + part().y + i % COLS * N);
                subgroupBarrier();
            }
            barrier();
            continue;
        }
#endif
        // What follows the sums is long, and stands here once.
        [[dont_unroll]] for (uint i = 0u; i < ROWS * COLS; i++) {
            [[unroll]] for (uint each = 0u; each < ROWS * COLS; each++) {
                if (each == i) {
                    coopMatStore(sums[each], parts, own, N / WORDS, gl_CooperativeMatrixLayoutRowMajor);
                }
            }
            subgroupBarrier();
            const uint row = row_0 + part().x + i / COLS * M;
            const uint col = col_0 + part().y + i % COLS * N;
#ifdef OF_I8
            for (uint e = 2u * gl_SubgroupInvocationID; e < M * N; e += 2u * lanes) {
                const PIECE sums_at = parts[own + e / WORDS];
                const ivec2 two = ivec2(sums_at[e % WORDS], sums_at[e % WORDS + 1u]);
                if (is_sums()) {
                    store_sums(two, tile.of_d, row + e / N, col + e % N);
                } else if (row + e / N < row_end && col + e % N < n) {
                    const uint at = col + e % N;
                    vec2 by = vec2(1.0);
                    if (k > 0u) { // rows of no elements have no scales
                        by = a_factor(tile.of_a, row + e / N, 0u)
                            * vec2(b_factor(group_at_work, 0u, column(at)), b_factor(group_at_work, 0u, column(min(at + 1u, n - 1u))));
                    }
                    finished(by.x * odd(two.x), by.y * odd(two.y), tile.of_d, row + e / N, at);
                }
            }
#else
            if ((RUNS & 8u) != 0u) {
                store_matrix(own, tile.of_d, row, col_0, col);
            } else {
                for (uint e = 2u * gl_SubgroupInvocationID; e < M * N; e += 2u * lanes) {
                    const vec4 four = uintBitsToFloat(parts[own + e / 4u]);
                    const vec2 two = e % 4u == 0u ? four.xy : four.zw;
                    const uint at = col + e % N - col_0;
                    finished(two.x * factor(at), two.y * factor(at + 1u), tile.of_d, row + e / N, col + e % N);
                }
            }
#endif
            subgroupBarrier();
        }
        // Nobody brings the next tile's operands before everybody has stored these sums.
        barrier();
    }
}

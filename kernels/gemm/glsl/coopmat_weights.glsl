// B's part of a step where B has codes of 8 or 4 bits: eight of a column are sent for at once, with their scale, and become elements
// when they are put into shared memory.
//
// Scales of whole columns multiply sums, so that codes are elements as they are. Scales along k multiply codes. f16 has a narrower range
// than some of them: there a column's scales are brought to that of its largest one, which becomes 1, and sums are multiplied by it, to
// a power of two. What is 2^-24 of the column's largest number is lost.

#define NF4_TABLE
#include "common/glsl/runs.glsl"
#include "gemm/glsl/weights.glsl"

#define BY_BLOCK ((FLAGS & B_SCALED) != 0u && B_BLOCK_DEPTH < 0x80000000u)
// Products of E2M1 and E4M3 are all numbers of f16.
#define RANGED (A_TYPE == F16 && BY_BLOCK && !(B_TYPE == E2M1 && B_SCALE_TYPE == UE4M3))

// What sums of each column are multiplied by, and scales of it before; of the largest ones the bits meanwhile.
shared float factors[BN];
shared float by_column[BN];
shared uint largest[BN];

// The tile's first column.
uint first_col;

float factor(uint at) {
    return factors[at];
}

// Finds what the columns of a tile from `col_0` are multiplied by.
void weigh(uint which, uint col_0) {
    const uint thread = gl_LocalInvocationIndex;
    first_col = col_0;
    bring_nf4_table();
    for (uint at = thread; at < BN; at += THREADS) {
        largest[at] = 0u;
    }
    barrier();
    if (RANGED) {
        const uint blocks = parts_of(k, B_BLOCK_DEPTH);
        // Threads that share a column, each with some of its blocks.
        const uint among = max(THREADS / BN, 1u);
        for (uint at = thread / among; at < BN; at += THREADS / among) {
            const uint64_t first = b_scale_place(which, 0u, column(min(col_0 + at, n - 1u)));
            uint most = 0u;
            for (uint i = thread % among; i < blocks; i += among) {
                const uint magnitude = floatBitsToUint(b_scale(first + b_scale_step(i * B_BLOCK_DEPTH))) & 0x7fffffffu;
                most = magnitude < INFINITE ? max(most, magnitude) : most;
            }
            atomicMax(largest[at], most);
        }
    }
    barrier();
    for (uint at = thread; at < BN; at += THREADS) {
        const bool of_column = (FLAGS & B_SCALED) != 0u && !BY_BLOCK;
        // So that both powers are normal numbers.
        const int exponent = RANGED ? clamp(int(largest[at] >> 23) - 127, -100, 126) : 0;
        by_column[at] = power_of_two(-exponent);
        const float scale = of_column ? b_scale(b_scale_place(which, 0u, column(min(col_0 + at, n - 1u)))) : power_of_two(exponent);
        factors[at] = scale * b_global();
    }
    barrier();
}

uint joined(float x, float y) {
#ifdef OF_BF16
    return to_bf16(x) | to_bf16(y) << 16;
#else
    return NATIVE != 0u ? packHalf2x16(vec2(x, y)) : to_f16(x) | to_f16(y) << 16;
#endif
}

// Eight numbers as elements.
uvec4 elements(Run run, float zero, float scale) {
    const Eight numbers = eight_of(run, B_TYPE);
    const vec4 low = (numbers.low - zero) * scale;
    const vec4 high = (numbers.high - zero) * scale;
    return uvec4(joined(low.x, low.y), joined(low.z, low.w), joined(high.x, high.y), joined(high.z, high.w));
}

// Codes, scales and zero points that are on their way, where those of the first step lie, and what scales are multiplied by.
Run next_b[B_TURNS];
uint next_scale[B_TURNS];
uint next_zero[B_TURNS];
uint64_t from_b[B_TURNS];
uint64_t from_scale[B_TURNS];
float by[B_TURNS];

void aim_b(uint which, uint64_t origin, uint col_0) {
    [[unroll]] for (uint i = 0u; i < B_TURNS; i++) {
        const uvec2 at = spot(gl_LocalInvocationIndex + i * THREADS, B_PIECES);
        const uint col = column(min(col_0 + at.x, n - 1u));
        from_b[i] = b_place(origin, 8u * at.y, col);
        from_scale[i] = BY_BLOCK ? b_scale_place(which, 0u, col) : 0ul;
        by[i] = by_column[at.x];
    }
}

void send_for_b(uint k_0) {
    [[unroll]] for (uint i = 0u; i < B_TURNS; i++) {
        if (B_ALL % THREADS == 0u || gl_LocalInvocationIndex + i * THREADS < B_ALL) {
            next_b[i] = run_at(b, from_b[i] + k_0, 8u, B_TYPE, true);
            if (BY_BLOCK) {
                const uint piece = spot(gl_LocalInvocationIndex + i * THREADS, B_PIECES).y;
                const uint64_t place = from_scale[i] + b_scale_step(k_0 + 8u * piece);
                next_scale[i] = b_scale_code(place);
                next_zero[i] = (FLAGS & B_ZEROS) != 0u ? b_zero_code(place) : 0u;
            }
        }
    }
}

void put_b() {
    [[unroll]] for (uint i = 0u; i < B_TURNS; i++) {
        const uvec2 at = spot(gl_LocalInvocationIndex + i * THREADS, B_PIECES);
        if (B_ALL % THREADS == 0u || gl_LocalInvocationIndex + i * THREADS < B_ALL) {
            const float zero = BY_BLOCK && (FLAGS & B_ZEROS) != 0u ? of_code(next_zero[i], U8) : 0.0;
            const float scale = BY_BLOCK ? of_code(next_scale[i], B_SCALE_TYPE) * by[i] : 1.0;
            parts[B_PART + at.x * B_LINE + at.y] = elements(next_b[i], zero, scale);
        }
    }
}

// Eight elements of the column at place `at` from row `row`, 0 outside.
uvec4 b_piece(uint which, uint64_t origin, uint row, uint at) {
    if (row >= k || at >= n) {
        return uvec4(0u);
    }
    const uint count = min(k - row, 8u);
    const uint col = column(at);
    const uint64_t place = BY_BLOCK ? b_scale_place(which, row, col) : 0ul;
    const float zero = BY_BLOCK && (FLAGS & B_ZEROS) != 0u ? b_zero(place) : 0.0;
    uvec4 piece = elements(run_at(b, b_place(origin, row, col), count, B_TYPE, (RUNS & 2u) != 0u), zero,
                           BY_BLOCK ? b_scale(place) * by_column[at - first_col] : 1.0);
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        piece[i] &= 2u * i + 1u < count ? 0xffffffffu : 2u * i < count ? 0xffffu : 0u;
    }
    return piece;
}

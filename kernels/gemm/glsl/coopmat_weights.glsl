// B's part of a step where B has codes of 8 or 4 bits: eight of a column are sent for at once, with their scale, and become elements
// when they are put into shared memory.
//
// Scales of whole columns multiply sums, so that codes are elements as they are. Scales along k multiply codes. f16 has a narrower range
// than some of them: there a column's scales are brought to that of its largest one, which becomes 1, and sums are multiplied by it, to
// a power of two. What is 2^-24 of the column's largest number is lost.

#define NF4_TABLE
#include "common/glsl/runs.glsl"
#include "gemm/glsl/weights.glsl"

// Of what nobody writes meanwhile. Unless the driver is told, it waits for a load before it stores to shared memory, which makes all of
// the product take half as long again.
layout(buffer_reference, std430, buffer_reference_align = 8) readonly restrict buffer FixedPair { uvec2 v; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly restrict buffer FixedWord { uint v; };
layout(buffer_reference, std430, buffer_reference_align = 2) readonly restrict buffer FixedHalf { uint16_t v; };
layout(buffer_reference, std430, buffer_reference_align = 1) readonly restrict buffer FixedByte { uint8_t v; };

// As code_at, of 8 bits and more.
uint fixed_code(uint64_t base, uint64_t index, uint dtype) {
    switch (bits_of(dtype)) {
        case 32u: return FixedWord(base + 4ul * index).v;
        case 16u: return uint(FixedHalf(base + 2ul * index).v);
        default: return uint(FixedByte(base + index).v);
    }
}

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
                const uint code = fixed_code(given[AT_B_SCALE], first + b_scale_step(i * B_BLOCK_DEPTH), B_SCALE_TYPE);
                const uint magnitude = floatBitsToUint(of_code(code, B_SCALE_TYPE)) & 0x7fffffffu;
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

// Where numbers of f16 can be computed with as they are, all codes but NF4's become them by their bits, two in a word. Scales that
// f16 knows multiply them there; others take f32, as does bf16.
#define BY_BITS (NATIVE != 0u && B_TYPE != NF4)
#define IN_F16 (A_TYPE == F16 && (B_SCALE_TYPE == F16 || B_SCALE_TYPE == E8M0 || B_SCALE_TYPE == UE4M3 || !BY_BLOCK))

uint times(uint word, float factor) {
    return packFloat2x16(unpackFloat2x16(word) * unpackFloat2x16(packHalf2x16(vec2(factor))));
}

uvec4 times(uvec4 words, float factor) {
    return uvec4(times(words.x, factor), times(words.y, factor), times(words.z, factor), times(words.w, factor));
}

// Whole numbers of 8 bits behind 1024, less that and `less`.
uvec4 wholes(uvec4 digits, float less) {
    const f16vec2 base = unpackFloat2x16(packHalf2x16(vec2(1024.0 + less)));
    return uvec4(packFloat2x16(unpackFloat2x16(digits.x) - base), packFloat2x16(unpackFloat2x16(digits.y) - base),
                 packFloat2x16(unpackFloat2x16(digits.z) - base), packFloat2x16(unpackFloat2x16(digits.w) - base));
}

// Eight codes less `zero`, of 4 bits in the order 0 4, 1 5, 2 6, 3 7, of 8 bits 0 2, 1 3, 4 6, 5 7. NaN of E4M3 becomes 480.
uvec4 halves(Run run, float zero) {
    const uvec4 low = run.low;
    const uvec4 nibbles = uvec4(low.x, low.x >> 4, low.x >> 8, low.x >> 12);
    const uvec4 bytes = uvec4(low.x, low.x >> 8, low.y, low.y >> 8);
    switch (B_TYPE) {
        // A sign, and what f16 has as the last digits of its exponent and the first of its mantissa.
        case E2M1: return times((nibbles << 12 & 0x80008000u) | (nibbles << 9 & 0x0e000e00u), 16384.0);
        case I4: return wholes((nibbles & 0x000f000fu) ^ 0x64086408u, 8.0 + zero);
        case U4: return wholes(nibbles & 0x000f000fu | 0x64006400u, zero);
        case I8: return wholes((bytes & 0x00ff00ffu) ^ 0x64806480u, 128.0 + zero);
        case U8: return wholes(bytes & 0x00ff00ffu | 0x64006400u, zero);
        case E5M2: return bytes << 8 & 0xff00ff00u;
        default: return times((bytes << 8 & 0x80008000u) | (bytes << 7 & 0x3f803f80u), 256.0);
    }
}

// Whether one of the codes is E4M3's NaN.
bool is_one_nan(Run run) {
    const uvec2 next = (run.low.xy & 0x7f7f7f7fu) + 0x01010101u;
    return B_TYPE == E4M3 && ((next.x | next.y) & 0x80808080u) != 0u;
}

// The first halves of two words, and the second ones.
uint firsts(uint x, uint y) {
    return (x & 0xffffu) | y << 16;
}

uint seconds(uint x, uint y) {
    return x >> 16 | (y & 0xffff0000u);
}

// Words of `halves`' order in that of the codes.
uvec4 in_order(uvec4 words) {
    if (bits_of(B_TYPE) == 4u) {
        return uvec4(firsts(words.x, words.y), firsts(words.z, words.w), seconds(words.x, words.y), seconds(words.z, words.w));
    }
    return uvec4(firsts(words.x, words.y), seconds(words.x, words.y), firsts(words.z, words.w), seconds(words.z, words.w));
}

// Two numbers of f16 times `scale`, which is finite, as elements. Of two bf16 as near it takes the larger: to find the even one takes longer.
uint scaled(uint word, float scale) {
    const vec2 two = unpackHalf2x16(word) * scale;
#ifdef OF_BF16
    const uvec2 u = floatBitsToUint(two) + 0x8000u;
    return u.x >> 16 | (u.y & 0xffff0000u);
#else
    return packHalf2x16(two);
#endif
}

// Eight numbers as elements.
uvec4 elements(Run run, float zero, float scale) {
    // Rounding to bf16 would carry NaN's digits into its sign.
    const bool is_number = A_TYPE != BF16 || (B_TYPE != E5M2 && (floatBitsToUint(scale) & INFINITE) != INFINITE);
    if (BY_BITS && is_number && !is_one_nan(run)) {
        const uvec4 words = halves(run, zero);
        if (IN_F16) {
            return in_order(BY_BLOCK ? times(words, scale) : words);
        }
        return in_order(uvec4(scaled(words.x, scale), scaled(words.y, scale), scaled(words.z, scale), scaled(words.w, scale)));
    }
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
            const uint64_t from = b + (from_b[i] + k_0) * bits_of(B_TYPE) / 8ul;
            next_b[i].low = bits_of(B_TYPE) == 4u ? uvec4(FixedWord(from).v, 0u, 0u, 0u) : uvec4(FixedPair(from).v, 0u, 0u);
            if (BY_BLOCK) {
                const uint piece = spot(gl_LocalInvocationIndex + i * THREADS, B_PIECES).y;
                const uint64_t place = from_scale[i] + b_scale_step(k_0 + 8u * piece);
                next_scale[i] = fixed_code(given[AT_B_SCALE], place, B_SCALE_TYPE);
                next_zero[i] = (FLAGS & B_ZEROS) != 0u ? fixed_code(given[AT_B_SCALE + 1u], place, U8) : 0u;
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

// B's part of a step where B has codes of 8 or 4 bits: sixteen of a column are sent for at once, with their scale, and become two
// pieces of elements when they are put into shared memory.
//
// Scales of whole columns multiply sums, so that codes are elements as they are. Scales along k multiply codes. f16 has a narrower range
// than some of them: there `scales.comp` has brought a column's scales to that of its largest one, which is near 1, and sums are multiplied
// by it, to a power of two. What is 2^-24 of the column's largest number is lost.

#define NF4_TABLE
#include "common/glsl/runs.glsl"
#include "gemm/glsl/weights.glsl"

// As Fixed, of less. Unless the driver is told that nobody writes what is loaded, it waits for a load before it stores to shared memory, which makes all of
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

// Codes that are sent for at once.
#define SIXTEEN 16u
#define BY_BLOCK ((FLAGS & B_SCALED) != 0u && B_BLOCK_DEPTH < 0x80000000u)
// Products of E2M1 and UE4M3 are all numbers of f16, 2^-8 of them too, and then scales have room for the unit of E2M1.
#define IS_NV (B_TYPE == E2M1 && B_SCALE_TYPE == UE4M3)
#define RANGED (A_TYPE == F16 && BY_BLOCK && !IS_NV)

// What scales are multiplied by before they multiply codes, and sums are divided by.
float before() {
    if (A_TYPE == F16 && IS_NV) {
        return 1.0 / 256.0;
    }
    return 1.0;
}

// What sums of each column are multiplied by.
shared float factors[BN];

float factor(uint at) {
    return factors[at];
}

// Finds what the columns of a tile from `col_0` are multiplied by.
void weigh(uint which, uint col_0) {
    if (B_TYPE == NF4) {
        bring_nf4_table();
    }
    for (uint at = gl_LocalInvocationIndex; at < BN; at += THREADS) {
        const uint col = column(min(col_0 + at, n - 1u));
        if (RANGED) {
            // They end where scales start.
            factors[at] = uintBitsToFloat(Word(given[AT_B_SCALE] - 4ul * (uint64_t(batch - which) * n - col)).v);
        } else {
            const bool of_column = (FLAGS & B_SCALED) != 0u && !BY_BLOCK;
            factors[at] = (of_column ? b_scale(b_scale_place(which, 0u, col)) : 1.0 / before()) * b_global();
        }
    }
    barrier();
}

// Where numbers of f16 can be computed with as they are, all codes but NF4's become them by their bits, two in a word.
#define BY_BITS (NATIVE != 0u && B_TYPE != NF4)
// Scales that f16 knows multiply codes there; others take f32, as does bf16.
#define IN_F16 (A_TYPE == F16 && (B_SCALE_TYPE == F16 || B_SCALE_TYPE == E8M0 || B_SCALE_TYPE == UE4M3 || !BY_BLOCK))
// What multiplies `halves` to make numbers of them; where `scales.comp` made scales, it is in them.
float unit() {
    if (RANGED) {
        return 1.0;
    }
    return B_TYPE == E2M1 ? 16384.0 : B_TYPE == E4M3 ? 256.0 : 1.0;
}

// Whether products are numbers of bf16, so that their last digits are zeros.
#define OF_FLOATS (B_TYPE == E2M1 || B_TYPE == E4M3 || B_TYPE == E5M2)
#define EXACT (B_TYPE != NF4 && (!BY_BLOCK || B_SCALE_TYPE == E8M0 || (B_SCALE_TYPE == UE4M3 && OF_FLOATS)))

uint times(uint word, float factor) {
    return packFloat2x16(unpackFloat2x16(word) * unpackFloat2x16(packHalf2x16(vec2(factor))));
}

uint less(uint word, float by) {
    return packFloat2x16(unpackFloat2x16(word) - unpackFloat2x16(packHalf2x16(vec2(by))));
}

// Whole numbers of 8 bits behind 1024, less that and `by`.
uvec4 wholes(uvec4 digits, float by) {
    return uvec4(less(digits.x, 1024.0 + by), less(digits.y, 1024.0 + by), less(digits.z, 1024.0 + by), less(digits.w, 1024.0 + by));
}

// Eight codes less `zero` as halves, of 4 bits in the order 0 4, 1 5, 2 6, 3 7, of 8 bits 0 2, 1 3, 4 6, 5 7.
uvec4 halves(uvec2 codes, float zero) {
    const uvec4 nibbles = uvec4(codes.x, codes.x >> 4, codes.x >> 8, codes.x >> 12);
    const uvec4 bytes = uvec4(codes.x, codes.x >> 8, codes.y, codes.y >> 8);
    switch (B_TYPE) {
        // A sign, and what f16 has as the last digits of its exponent and the first of its mantissa.
        case E2M1: return (nibbles << 12 & 0x80008000u) | (nibbles << 9 & 0x0e000e00u);
        case I4: return wholes((nibbles & 0x000f000fu) ^ 0x64086408u, 8.0 + zero);
        case U4: return wholes(nibbles & 0x000f000fu | 0x64006400u, zero);
        case I8: return wholes((bytes & 0x00ff00ffu) ^ 0x64806480u, 128.0 + zero);
        case U8: return wholes(bytes & 0x00ff00ffu | 0x64006400u, zero);
        case E5M2: return bytes << 8 & 0xff00ff00u;
        default: {
            const uvec4 magnitudes = bytes << 7 & 0x3f803f80u;
            // All ones are NaN, to which f16 has another digit in front.
            return (bytes << 8 & 0x80008000u) | magnitudes | (magnitudes + 0x00800080u & 0x40004000u);
        }
    }
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

// Two products with `scale` as elements. Of two bf16 as near it takes the larger: to find the even one takes longer.
uint joined(vec2 two, float scale) {
#ifdef OF_BF16
    uint round = 0x8000u;
    if (EXACT) {
        round = 0u;
    }
    const uvec2 u = floatBitsToUint(two);
    // What is NaN stays it.
    const bool finite = (floatBitsToUint(scale) & INFINITE) != INFINITE;
    const bvec2 of_numbers = B_TYPE == E4M3 || B_TYPE == E5M2 ? bvec2(!is_nan(two.x), !is_nan(two.y)) : bvec2(finite);
    const uvec2 rounded = u + uvec2(of_numbers) * round;
    return rounded.x >> 16 | (rounded.y & 0xffff0000u);
#else
    return NATIVE != 0u ? packHalf2x16(two) : to_f16(two.x) | to_f16(two.y) << 16;
#endif
}

// Two halves of f16 times `scale` as elements.
uint scaled(uint word, float scale) {
    if (IN_F16) {
        return unit() == 1.0 && !BY_BLOCK ? word : times(word, scale * unit());
    }
    return joined(unpackHalf2x16(word) * (scale * unit()), scale);
}

// Codes `i` and `i` + 1 of eight, by f32.
uint two_by_f32(uvec2 codes, uint i, float zero, float scale) {
    const uint bits = bits_of(B_TYPE);
    const uint word = (bits == 4u || i < 4u ? codes.x : codes.y) >> i % (32u / bits) * bits;
    const uvec2 two = uvec2(word, word >> bits) & (1u << bits) - 1u;
    if (B_TYPE == NF4) {
        return joined(vec2(nf4_table[two.x], nf4_table[two.y]) * scale, scale);
    }
    return joined((vec2(of_code(two.x, B_TYPE), of_code(two.y, B_TYPE)) - zero) * scale, scale);
}

// Eight codes as elements.
uvec4 elements(uvec2 codes, float zero, float scale) {
    if (BY_BITS) {
        const uvec4 words = halves(codes, zero);
        return in_order(uvec4(scaled(words.x, scale), scaled(words.y, scale), scaled(words.z, scale), scaled(words.w, scale)));
    }
    return uvec4(two_by_f32(codes, 0u, zero, scale), two_by_f32(codes, 2u, zero, scale),
                 two_by_f32(codes, 4u, zero, scale), two_by_f32(codes, 6u, zero, scale));
}

// Those that a thread sends for at a time, and how often.
const uint B_SIXTEENS = B_PIECES / 2u;
const uint B_TURNS_OF_SIXTEEN = (B_LINES * B_SIXTEENS + THREADS - 1u) / THREADS;

// Codes, scales and zero points that are on their way, and where those of the first step lie.
uvec4 next_b[B_TURNS_OF_SIXTEEN];
uint next_scale[B_TURNS_OF_SIXTEEN];
uint next_zero[B_TURNS_OF_SIXTEEN];
uint64_t from_b[B_TURNS_OF_SIXTEEN];
uint64_t from_scale[B_TURNS_OF_SIXTEEN];

// Line and number of a thread's sixteen at turn `i`: eight threads that store at a time have lines of their own, and so other banks.
uvec2 sixteen(uint i) {
    const uint e = gl_LocalInvocationIndex + i * THREADS;
    return uvec2(e / (8u * B_SIXTEENS) * 8u + e % 8u, e / 8u % B_SIXTEENS);
}

void aim_b(uint which, uint64_t origin, uint col_0) {
    [[unroll]] for (uint i = 0u; i < B_TURNS_OF_SIXTEEN; i++) {
        const uvec2 at = sixteen(i);
        // Past the last line the last one, which is loaded for nothing.
        const uint line = min(at.x, BN - 1u);
        const uint col = column(min(col_0 + line, n - 1u));
        from_b[i] = b + b_place(origin, SIXTEEN * at.y, col) * bits_of(B_TYPE) / 8ul;
        from_scale[i] = BY_BLOCK ? b_scale_place(which, 0u, col) : 0ul;
    }
}

void send_for_b(uint k_0) {
    [[unroll]] for (uint i = 0u; i < B_TURNS_OF_SIXTEEN; i++) {
        const uint64_t from = from_b[i] + uint64_t(k_0) * bits_of(B_TYPE) / 8ul;
        next_b[i] = bits_of(B_TYPE) == 4u ? uvec4(FixedPair(from).v, 0u, 0u) : Fixed(from).v;
        if (BY_BLOCK) {
            const uint64_t place = from_scale[i] + b_scale_step(k_0 + SIXTEEN * sixteen(i).y);
            next_scale[i] = fixed_code(given[AT_B_SCALE], place, B_SCALE_TYPE);
            next_zero[i] = (FLAGS & B_ZEROS) != 0u ? fixed_code(given[AT_B_SCALE + 1u], place, U8) : 0u;
        }
    }
}

void put_b() {
    [[unroll]] for (uint i = 0u; i < B_TURNS_OF_SIXTEEN; i++) {
        const uvec2 at = sixteen(i);
        if (B_LINES * B_SIXTEENS % THREADS == 0u || at.x < BN) {
            const float zero = BY_BLOCK && (FLAGS & B_ZEROS) != 0u ? of_code(next_zero[i], U8) : 0.0;
            const float scale = BY_BLOCK ? of_code(next_scale[i], B_SCALE_TYPE) * before() : 1.0;
            const uvec4 codes = next_b[i];
            const uint to = B_PART + at.x * B_LINE + 2u * at.y;
            parts[to] = elements(codes.xy, zero, scale);
            parts[to + 1u] = elements(bits_of(B_TYPE) == 4u ? codes.yx : codes.zw, zero, scale);
        }
    }
}

// Eight elements of the column at place `at` from row `row`, 0 outside.
uvec4 b_piece(uint which, uint64_t origin, uint row, uint at) {
    if (row >= k || at >= n) {
        return uvec4(0u);
    }
    const uint col = column(at);
    const uint count = min(k - row, 8u);
    const uint64_t place = b_place(origin, row, col);
    uvec2 codes = uvec2(0u);
    [[dont_unroll]] for (uint i = 0u; i < count; i++) {
        const uint from = bits_of(B_TYPE) * i;
        const uint code = code_at(b, place + i, B_TYPE) << from % 32u;
        codes |= from < 32u ? uvec2(code, 0u) : uvec2(0u, code);
    }
    const uint64_t scale_at = BY_BLOCK ? b_scale_place(which, row, col) : 0ul;
    const float zero = BY_BLOCK && (FLAGS & B_ZEROS) != 0u ? b_zero(scale_at) : 0.0;
    uvec4 piece = elements(codes, zero, BY_BLOCK ? b_scale(scale_at) * before() : 1.0);
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        piece[i] &= 2u * i + 1u < count ? 0xffffffffu : 2u * i < count ? 0xffffu : 0u;
    }
    return piece;
}

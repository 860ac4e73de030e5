// Weights and their scales on the way from registers to matrices: see coopmat_few_rows.comp, whose constants and types these are.

// Two numbers of ELEMENT's bits, and of f16 if they are not `as_is`.
#ifdef OF_BF16
#define SET(matrix, at, word, as_is) { \
    const vec2 two = as_is ? vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000u)) : unpackHalf2x16(word); \
    matrix[at] = bfloat16_t(two.x); matrix[at + 1u] = bfloat16_t(two.y); }
#else
#define SET(matrix, at, word, as_is) { \
    f16vec2 two = unpackFloat2x16(word); \
    matrix[at] = two.x; matrix[at + 1u] = two.y; }
#endif

uint joined(float x, float y) {
#ifdef OF_BF16
    return to_bf16(x) | to_bf16(y) << 16;
#else
    return to_f16(x) | to_f16(y) << 16;
#endif
}

// `bits` where `mask` has them and the other bits of `base`, in one step: as long as the compiler does not know that `unknown` is 0, it
// has no two constants to make two steps of.
uint unknown = 0u;

uint masked(uint bits, uint mask, uint base) {
    return (bits & mask) ^ (base + unknown);
}

// The first halves of two words, and the second ones.
uint firsts(uint x, uint y) {
    return packFloat2x16(f16vec2(unpackFloat2x16(x).x, unpackFloat2x16(y).x));
}

uint seconds(uint x, uint y) {
    return packFloat2x16(f16vec2(unpackFloat2x16(x).y, unpackFloat2x16(y).y));
}

// Four numbers of 8 bits, in the order 0 2 1 3.
uvec2 four_of(uint word, float less) {
    if (B_TYPE == E5M2) {
        return uvec2(word << 8, word) & 0xff00ff00u;
    }
    if (B_TYPE == E4M3) {
        const uvec2 codes = uvec2(word << 8, word);
        return (codes & 0x80008000u) | (codes >> 1 & 0x3f803f80u);
    }
    // Behind 1024, digits of a whole number are those of f16.
    const uint start = B_TYPE == I8 ? 0x64806480u : 0x64006400u;
    const uvec2 codes = uvec2(masked(word, 0x00ff00ffu, start), masked(word >> 8, 0x00ff00ffu, start));
    float16_t base = float16_t(1024.0 + less);
    return uvec2(packFloat2x16(unpackFloat2x16(codes.x) - base), packFloat2x16(unpackFloat2x16(codes.y) - base));
}

// Eight numbers of a piece, those of two products: of 4 bits in the order 0 4 1 5 2 6 3 7, of 8 bits as above; whole numbers `less` so much.
uvec4 eight_weights(uvec4 piece, uint v, float less) {
    if (BITS == 16u) {
        return piece;
    }
    if (BITS == 8u) {
        return uvec4(four_of(piece[2u * v], less), four_of(piece[2u * v + 1u], less));
    }
    const uint word = piece[v];
    if (B_TYPE == NF4) {
        const uint own = gl_SubgroupInvocationID % LANES;
        return uvec4(pairs[(word << 5 & 0x1fe0u) | own], pairs[(word >> 3 & 0x1fe0u) | own], pairs[(word >> 11 & 0x1fe0u) | own],
                     pairs[(word >> 19 & 0x1fe0u) | own]);
    }
    if (B_TYPE == E2M1) {
        // A sign, and what f16 has as the last digits of its exponent and the first of its mantissa: as far apart as that in every byte
        // first, of the even codes and of the odd ones, one step each by a mask that the compiler does not see through.
        const uint signs = 0x80808080u + unknown;
        const uint even = word << 1 ^ ((word << 4 ^ word << 1) & signs);
        const uint odd = word >> 3 ^ ((word ^ word >> 3) & signs);
        return uvec4(even << 8, odd << 8, even, odd) & 0x8e008e00u;
    }
    const uint flip = B_TYPE == I4 ? 8u : 0u;
    const uint first = 0x64006400u | flip * 0x00010001u;
    const uint second = 0x64006400u | flip * 0x00100010u;
    const uint high = word >> 8;
    float16_t base = float16_t(1024.0 + less);
    float16_t base_16 = float16_t(64.0 + less);
    float16_t by = float16_t(0.0625);
    return uvec4(packFloat2x16(unpackFloat2x16(masked(word, 0x000f000fu, first)) - base),
                 packFloat2x16(unpackFloat2x16(masked(word, 0x00f000f0u, second)) * by - base_16),
                 packFloat2x16(unpackFloat2x16(masked(high, 0x000f000fu, first)) - base),
                 packFloat2x16(unpackFloat2x16(masked(high, 0x00f000f0u, second)) * by - base_16));
}

// Eight numbers of A in the order of those of B.
uvec4 in_order(uvec4 eight) {
    if (BITS == 8u) {
        return uvec4(firsts(eight.x, eight.y), seconds(eight.x, eight.y), firsts(eight.z, eight.w), seconds(eight.z, eight.w));
    }
    if (BITS == 4u && B_TYPE != NF4) {
        return uvec4(firsts(eight.x, eight.z), seconds(eight.x, eight.z), firsts(eight.y, eight.w), seconds(eight.y, eight.w));
    }
    return eight;
}

uvec4 scaled(uvec4 words, uint factor) {
    const f16vec2 by = unpackFloat2x16(factor);
    return uvec4(packFloat2x16(unpackFloat2x16(words.x) * by), packFloat2x16(unpackFloat2x16(words.y) * by),
                 packFloat2x16(unpackFloat2x16(words.z) * by), packFloat2x16(unpackFloat2x16(words.w) * by));
}

// A lane's piece of a line.
uvec4 whole_piece(uint64_t from) {
    if (WORDS == 4u) {
        return (AHEAD & 2u) != 0u ? Fresh(from).v : Four(from).v;
    }
    return WORDS == 2u ? uvec4(Two(from).v, 0u, 0u) : uvec4(One(from).v, 0u, 0u, 0u);
}

// A's numbers of a step, in the order of B's codes.
uvec4 inputs[EIGHTS * HALVES];

// The products of two lines' pieces with A's numbers, added to `sums`.
SUMS products(uvec4 one, uvec4 two, vec2 less, uvec2 factors[2], SUMS sums) {
    [[unroll]] for (uint v = 0u; v < EIGHTS; v++) {
        uvec4 weights[2];
        weights[0] = eight_weights(one, v, less.x);
        weights[1] = eight_weights(two, v, less.y);
        if (OWN_SCALES != 0u) {
            weights[0] = scaled(weights[0], factors[0][v / 2u]);
            weights[1] = scaled(weights[1], factors[1][v / 2u]);
        }
        [[unroll]] for (uint t = 0u; t < 2u; t++) {
            INPUTS input_matrix;
            WEIGHTS weight_matrix;
            [[unroll]] for (uint h = 0u; h < HALVES; h++) {
                SET(input_matrix, 4u * h, inputs[v * HALVES + h][2u * t], true)
                SET(input_matrix, 4u * h + 2u, inputs[v * HALVES + h][2u * t + 1u], true)
            }
            [[unroll]] for (uint h = 0u; h < 2u; h++) {
                SET(weight_matrix, 4u * h, weights[h][2u * t], AS_IS)
                SET(weight_matrix, 4u * h + 2u, weights[h][2u * t + 1u], AS_IS)
            }
            sums = coopMatMulAdd(weight_matrix, input_matrix, sums);
        }
    }
    return sums;
}

// `sums` and, times what their rows are multiplied by, the sums of a block.
SUMS with_block(SUMS sums, SUMS of_block, vec2 by) {
    [[unroll]] for (uint e = 0u; e < N / 2u; e++) {
        sums[e] += by[e / (N / 4u)] * of_block[e];
    }
    return sums;
}

const uint SCALE_BYTES = B_SCALE_TYPE == F32 ? 4u : B_SCALE_TYPE == F16 ? 2u : B_SCALE_TYPE == BF16 ? 2u : 1u;

uint scale_at(uint64_t from) {
    switch (SCALE_BYTES) {
        case 4u: return One(from).v;
        case 2u: return uint(OneHalf(from).v);
        default: return uint(OneByte(from).v);
    }
}

// Where a line of B has its pieces, its scales and its zero points.
struct Line {
    uint64_t pieces;
    uint64_t scales;
    uint64_t zeros;
};

Line line_of(uint which, uint col, uint part) {
    const uint64_t scale = BY_BLOCK ? b_scale_place(which, 0u, col) : 0ul;
    return Line(b + (b_place(which * b_stride, 0u, col) + part) * BITS / 8ul, BY_BLOCK ? given[AT_B_SCALE] + SCALE_BYTES * scale : 0ul,
                (FLAGS & B_ZEROS) != 0u ? given[AT_B_SCALE + 1u] + scale : 0ul);
}

// The codes of a piece's scale from row `row` and of its zero point, or of both scales in one word, loaded at once where they are neighbours.
uvec2 scale_codes(Line line, uint row) {
    if (!BY_BLOCK) {
        return uvec2(0u);
    }
    if (OWN_SCALES == 2u) {
        if (B_SCALE_LAYOUT == SCALES_OUTER) {
            return uvec2(scale_at(line.scales + b_scale_step(row)) | scale_at(line.scales + b_scale_step(row + 16u)) << 8, 0u);
        }
        return uvec2(uint(OneHalf(line.scales + b_scale_step(row)).v), 0u);
    }
    uvec2 codes = uvec2(scale_at(line.scales + SCALE_BYTES * b_scale_step(row)), 0u);
    if ((FLAGS & B_ZEROS) != 0u) {
        codes.y = uint(OneByte(line.zeros + b_scale_step(row)).v);
    }
    return codes;
}

// A scale of E8M0 may be less than its reference by so many powers of two: more, and f16 has no room for what it multiplies.
const uint FAR = 24u;

bool is_far(uvec2 codes, uvec2 reference) {
    return any(greaterThan(reference - codes, uvec2(FAR)));
}

// References of two lines for some time: above the greatest of the four lanes that share a line.
uvec2 above(uvec2 codes) {
    uvec2 greatest = max(codes, subgroupShuffleXor(codes, 1u));
    greatest = max(greatest, subgroupShuffleXor(greatest, 2u));
    return min(greatest + FAR / 3u, uvec2(254u));
}

// What numbers of E2M1 are multiplied by for two scales, each in both halves: 2^15 where it is the reference.
uvec2 powers_of(uvec2 codes, uvec2 reference) {
    return (30u - (reference - codes)) * 0x04000400u;
}

// What those products are to be multiplied by.
vec2 unit_of(uvec2 reference) {
    return 0.5 * vec2(of_code(reference.x, E8M0), of_code(reference.y, E8M0));
}

// What two scales of E4M3 are to f16 times 2^7, each in both halves: f16 has their digits, and what they multiply is as much for 2^-14.
uvec2 factors_of(uint codes) {
    const f16vec2 two = unpackFloat2x16((codes << 7 & 0x3f80u) | (codes << 15 & 0x3f800000u)) * float16_t(32768.0);
    return uvec2(packFloat2x16(two.xx), packFloat2x16(two.yy));
}

// What is set in a byte's highest bit where one of four codes, or of two scales, is NaN in E4M3.
uint not_numbers(uint codes) {
    return (codes & 0x7f7f7f7fu) + 0x01010101u;
}

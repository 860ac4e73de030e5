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

// Where a lane's own pairs of NF4 begin, in bytes.
uint own_pairs = 0u;

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

// The lane's own pair of numbers for a byte of NF4, in bits 7 to 14: its place in bytes, so that a mask and the lane's part are one step.
uint pair_at(uint place) {
    return floatBitsToUint(of_subgroups[((place & 0x7f80u) | own_pairs) / 4u]);
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
        return uvec4(pair_at(word << 7), pair_at(word >> 1), pair_at(word >> 9), pair_at(word >> 17));
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

// Which half of the four lanes that share a line a lane is of.
uint own_half() {
    return gl_SubgroupInvocationID % 4u / 2u;
}

// Which of a step's blocks a lane's piece is of.
uint own_block() {
    return BLOCKS == 1u ? 0u : own_half();
}

// A piece as products take it. Of two blocks, lanes of the first give half of theirs for as much of the second, so that a product is of
// one block. Otherwise half of the lanes takes each two words the other way round: the numbers of A that four lanes load at once are
// 64 bytes apart, and so two each of them in the same banks of the cache.
uvec4 as_taken(uvec4 piece) {
    const bool first = own_half() == 0u;
    if (EXCHANGED) {
        const uvec2 got = subgroupShuffleXor(first ? piece.zw : piece.xy, 2u);
        return first ? uvec4(piece.xy, got) : uvec4(got, piece.zw);
    }
    return first || !TURNED ? piece : piece.yxwz;
}

// Where A's eight `v` for a piece is behind the lane's first: of two blocks that lanes exchange, the second is half a step further.
uint eight_at(uint v) {
    return 8u * v + (EXCHANGED && v >= EIGHTS / 2u ? 2u * DEEP - DEEP / 2u : 0u);
}

// A's numbers of a step, in the order of B's codes.
uvec4 inputs[EIGHTS * HALVES];

// The products of two lines' pieces with A's numbers, those of block `block`, added to `sums`.
SUMS products(uvec4 one, uvec4 two, vec2 less, uvec2 factors[2], uint block, SUMS sums) {
    // Where lanes of both blocks share products, it is those of one that count. A product goes to another unit than a choice.
    const uint kept = BLOCKS == 1u || EXCHANGED || own_block() == block ? 1u : 0u;
    const uint first = EXCHANGED ? EIGHTS / 2u * block : 0u;
    const uint count = EXCHANGED ? EIGHTS / 2u : EIGHTS;
    [[unroll]] for (uint v = first; v < first + count; v++) {
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
                SET(input_matrix, 4u * h, (inputs[v * HALVES + h][2u * t] * kept), true)
                SET(input_matrix, 4u * h + 2u, (inputs[v * HALVES + h][2u * t + 1u] * kept), true)
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

// The codes of a step's scales from row `row`, of those that begin at `scales`, and of its zero points, of those that begin at `zeros`, in
// one word; of two scales of a lane's own in one word.
uvec3 scale_codes(uint64_t scales, uint64_t zeros, uint row) {
    if (!BY_BLOCK) {
        return uvec3(0u);
    }
    const uint64_t from = scales + SCALE_BYTES * b_scale_step(row);
    if (OWN_SCALES == 2u) {
        if (B_SCALE_LAYOUT == SCALES_OUTER) {
            return uvec3(scale_at(from) | scale_at(scales + b_scale_step(row + 16u)) << 8, 0u, 0u);
        }
        return uvec3(uint(OneHalf(from).v), 0u, 0u);
    }
    const uint next = row + B_BLOCK_DEPTH;
    uvec3 codes = uvec3(0u);
    if (BLOCKS == 2u && SCALE_BYTES == 4u && B_SCALE_LAYOUT == SCALES_INNER) {
        codes.xy = Two(from).v;
    } else {
        codes.x = scale_at(from);
        codes.y = BLOCKS == 2u ? scale_at(scales + SCALE_BYTES * b_scale_step(next)) : 0u;
    }
    if ((FLAGS & B_ZEROS) != 0u) {
        codes.z = uint(OneByte(zeros + b_scale_step(row)).v);
        if (BLOCKS == 2u) {
            codes.z |= uint(OneByte(zeros + b_scale_step(next)).v) << 8;
        }
    }
    return codes;
}

// The scales of a line's pieces under way, as they lie in memory: of pieces from row `row`, of those that begin at `scales`.
uvec4 line_scales(uint64_t scales, uint row) {
    const uint64_t from = scales + SCALE_BYTES * b_scale_step(row);
    switch (TOGETHER) {
        case 4u: return uvec4(One(from).v, 0u, 0u, 0u);
        case 8u: return uvec4(Two(from).v, 0u, 0u);
        default: return Four(from).v;
    }
}

// Those of the lane's piece of step `s` among them, in the order of `scale_codes`.
uvec3 piece_scales(uvec4 line, uint s) {
    const uint bytes = TOGETHER / STEPS;
    if (bytes == 2u) {
        return uvec3(line[s / 2u] >> 16u * (s % 2u) & 0xffffu, 0u, 0u);
    }
    const uvec2 words = bytes == 4u ? uvec2(line[s], 0u) : uvec2(line[2u * s], line[2u * s + 1u]);
    if (OWN_SCALES == 1u) {
        return uvec3(words.x >> 8u * (gl_SubgroupInvocationID % 4u) & 0xffu, 0u, 0u);
    }
    if (OWN_SCALES == 2u) {
        return uvec3((own_half() == 0u ? words.x : words.y) >> 16u * (gl_SubgroupInvocationID % 2u) & 0xffffu, 0u, 0u);
    }
    return SCALE_BYTES == 2u ? uvec3(words.x & 0xffffu, words.x >> 16, 0u) : uvec3(words, 0u);
}

// Powers of two that a window of scales has: f16 holds each times a code.
const uint WINDOW = 24u;

// The last window ends below NaN.
const int LAST_LOW = 231;

// What numbers of E2M1 are multiplied by for a scale so far above a window's first, in both halves: 0 where it is in another.
uint power_of(uint above) {
    return above < WINDOW ? (above + 7u) * 0x04000400u : 0u;
}

// What sums of a window are to be multiplied by.
float unit_of(int low) {
    return uintBitsToFloat(uint(low + 22) << 23);
}

// The group of eight scales that a piece's is of, one bit; none if the piece is nothing but zeros. Three groups are a window.
uint group_of(uint code, uvec4 piece) {
    const uint any = (piece.x | piece.y | piece.z | piece.w) & 0x77777777u;
    return any != 0u && code != 255u ? 1u << (code + 1u) / 8u : 0u;
}

// Where the window ends whose last group is `top`.
int low_of(int top) {
    return 8 * top - 17;
}

// What two scales of E4M3 are to f16 times 2^7: f16 has their digits, and what they multiply is as much for 2^-14. One product puts both
// where they belong, and their sum between them.
f16vec2 factors_of(uint codes) {
    return unpackFloat2x16((codes & 0x7f7fu) * 0x8080u & 0x3f803f80u) * float16_t(32768.0);
}

// NaN becomes 480 times as much; the greatest number is 448.
const float16_t BEYOND = 60000.0hf;

// What is set in a byte's highest bit where one of four codes is NaN in E4M3.
uint not_numbers(uint codes) {
    return (codes & 0x7f7f7f7fu) + 0x01010101u;
}

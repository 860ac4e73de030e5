#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#ifdef OF_BF16
#extension GL_EXT_bfloat16 : require
#define ELEMENT bfloat16_t
#else
#define ELEMENT float16_t
#endif
// also bf16: OF_BF16=1

// D = A·B for up to N rows on the matrix unit, B's columns contiguous as weights are, scaled or not: as fast as B comes from memory.
//
//          k: 16 · 4 bytes       Dᵀ = Bᵀ·Aᵀ: sixteen columns of B are a matrix's rows, the rows of A its columns. Four lanes share a
//         ┌──┬──┬──┬──┐          line of B, each with 16 bytes of it, and these bytes are what the lane has of the matrices: which k
//  column │ 0│ 1│ 2│ 3│          is where in a product does not matter as long as A's numbers follow. So B goes from memory to the
//         ├──┼──┼──┼──┤          matrix unit by way of registers alone, and codes of 8 and 4 bits become f16 there, two at once.
//         │ 4│ 5│ 6│ 7│          A group makes COLS · 16 columns; its subgroups take pieces of SPAN elements of k in turn, STEPS of them
//                                under way at once, and add their sums in shared memory.
//
// Which lane has what of a matrix Vulkan does not say: `lanes.comp` asks the device. Where it is something else, matrices are filled
// number by number, wherever each belongs.
//
// Scales multiply the sums of their blocks, in f32. Sums are made in the same order for every m, but what other kernels make of more
// rows is not: no promise across m.
// Limits: m at most N; A of the type that ELEMENT is; matrices of 16×N×16; blocks of SPAN elements of a column that share a scale, or
// of whole columns; sizes below 2^31.

#define NF4_TABLE
#include "gemm/glsl/finish.glsl"
#include "gemm/glsl/operands.glsl"
#include "gemm/glsl/weights.glsl"
#include "common/glsl/runs.glsl"

layout(constant_id = 12) const uint N = 8u;
layout(constant_id = 13) const uint COLS = 1u;
layout(constant_id = 14) const uint SUBGROUPS = 4u;
layout(local_size_x_id = 15) in;
layout(constant_id = 15) const uint THREADS = 128u;
// Bits: eight elements of A, pieces of B at once; k is a multiple of STRIDE.
layout(constant_id = 16) const uint RUNS = 0u;
// Words of a lane's piece of a line, and pieces under way.
layout(constant_id = 17) const uint WORDS = 4u;
layout(constant_id = 18) const uint STEPS = 1u;

// Whether lanes that share a line have scales of their own, with which their numbers of f16 are multiplied: 1 powers of two, 2 E4M3.
layout(constant_id = 19) const uint OWN_SCALES = 0u;
// Bits: A's numbers are under way with B's, rather than found in a cache when they are needed; B passes by the cache that they are in.
layout(constant_id = 21) const uint AHEAD = 0u;
// Whether lanes have of matrices what is told above.
layout(constant_id = 20) const bool KNOWN = false;

const uint M = 16u, K = 16u;
const uint BITS = B_TYPE == F16 ? 16u : B_TYPE == BF16 ? 16u : B_TYPE == E2M1 ? 4u : B_TYPE == NF4 ? 4u : B_TYPE == I4 ? 4u : B_TYPE == U4 ? 4u : 8u;
// Elements of a piece, and of the pieces of four lanes; each eight of them are two products.
const uint DEEP = WORDS * 32u / BITS;
const uint SPAN = 4u * DEEP;
const uint EIGHTS = DEEP / 8u;
const uint STRIDE = STEPS * SPAN;
const uint PIECES = STEPS * COLS * 2u;
const uint HALVES = N / 8u;
#define BY_BLOCK ((FLAGS & B_SCALED) != 0u && B_BLOCK_DEPTH < 0x80000000u)
// What codes stand for is as many times what they become.
#define UNIT (OWN_SCALES != 0u ? 1.0 : B_TYPE == E2M1 ? 16384.0 : B_TYPE == E4M3 ? 256.0 : 1.0)
// Whether words of codes become words of ELEMENT, or of f16.
#define AS_IS (B_TYPE == BF16 || B_TYPE == NF4)

shared float of_subgroups[SUBGROUPS * COLS * M * N];
// A matrix that says what is where.
shared uvec4 numbered[KNOWN ? 1u : M * K / 8u];
// Pairs of numbers for each byte of NF4.
const uint PAIRS = B_TYPE == NF4 ? 256u : 1u;
shared uint pairs[PAIRS];

// As others, of what nobody writes meanwhile.
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Four { uvec4 v; };
layout(buffer_reference, std430, buffer_reference_align = 16) coherent readonly buffer Fresh { uvec4 v; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Two { uvec2 v; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer One { uint v; };

#define WEIGHTS coopmat<ELEMENT, gl_ScopeSubgroup, M, K, gl_MatrixUseA>
#define INPUTS coopmat<ELEMENT, gl_ScopeSubgroup, K, N, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>

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
        const uvec4 codes = uvec4(word, word >> 8, word >> 16, word >> 24) & 0xffu;
        return uvec4(pairs[codes.x], pairs[codes.y], pairs[codes.z], pairs[codes.w]);
    }
    if (B_TYPE == E2M1) {
        // A sign, and what f16 has as the last digits of its exponent and the first of its mantissa.
        return (uvec4(word << 12, word << 8, word << 4, word) & 0x80008000u) | (uvec4(word << 9, word << 5, word << 1, word >> 3) & 0x0e000e00u);
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

// A scale of E4M3, of which f16 has the digits, times 2^7, so that what it multiplies becomes as much for 2^-7.
uint of_scale(uint code) {
    const float16_t number = unpackFloat2x16(code << 7).x * float16_t(32768.0);
    return code == 0x7fu ? 0x7e007e00u : packFloat2x16(f16vec2(number, number));
}

// Two times the same half.
uint twice(uint code) {
    return code << 16 | code;
}

uvec4 scaled(uvec4 words, uint factor) {
    const f16vec2 by = unpackFloat2x16(factor);
    return uvec4(packFloat2x16(unpackFloat2x16(words.x) * by), packFloat2x16(unpackFloat2x16(words.y) * by),
                 packFloat2x16(unpackFloat2x16(words.z) * by), packFloat2x16(unpackFloat2x16(words.w) * by));
}

// Eight neighbours of A from column `at`, 0 behind its end.
uvec4 eight_inputs(uint64_t origin, uint row, uint at) {
    uvec4 eight = uvec4(0u);
    [[dont_unroll]] for (uint i = 0u; i < 8u; i++) {
        if (at + i < k) {
            eight[i / 2u] |= code_at(a, a_place(origin, row, at + i), A_TYPE) << 16u * (i % 2u);
        }
    }
    return eight;
}

// A piece of a line of B, codes of 0 behind its end.
uvec4 piece_of(uint64_t line, uint at) {
    uvec4 piece = uvec4(0u);
    [[dont_unroll]] for (uint i = 0u; i < DEEP; i++) {
        if (at + i < k) {
            piece[i * BITS / 32u] |= code_at(b, line + at + i, B_TYPE) << i * BITS % 32u;
        }
    }
    return piece;
}

// The same of one that is all there and may be loaded at once.
uvec4 whole_piece(uint64_t from) {
    if (WORDS == 4u) {
        return (AHEAD & 2u) != 0u ? Fresh(from).v : Four(from).v;
    }
    return WORDS == 2u ? uvec4(Two(from).v, 0u, 0u) : uvec4(One(from).v, 0u, 0u, 0u);
}

// Whether STRIDE columns of A and elements of lines of B from `at` are all there and may be loaded at once.
bool is_whole(uint at) {
    return RUNS == 7u || ((RUNS & 3u) == 3u && at + STRIDE <= k);
}

void main() {
    const uint thread = gl_LocalInvocationIndex;
    const uint lane = gl_SubgroupInvocationID;
    // Sizes are less than 2^31.
    unknown = k >> 31;
    if (B_TYPE == NF4) {
        for (uint e = thread; e < PAIRS; e += THREADS) {
            pairs[e] = joined(NF4_VALUES[e & 15u], NF4_VALUES[e >> 4]);
        }
        barrier();
    }
    // What stands at each place of a matrix, by its number; all numbers are exact.
    WEIGHTS weight_at;
    INPUTS input_at;
    SUMS sum_at;
    if (!KNOWN) {
        for (uint e = thread; e < M * K / 8u; e += THREADS) {
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                numbered[e][i] = joined(float(8u * e + 2u * i), float(8u * e + 2u * i + 1u));
            }
        }
        for (uint e = thread; e < M * N; e += THREADS) {
            of_subgroups[e] = float(e);
        }
        barrier();
        coopMatLoad(weight_at, numbered, 0u, K / 8u, gl_CooperativeMatrixLayoutRowMajor);
        coopMatLoad(input_at, numbered, 0u, K / 8u, gl_CooperativeMatrixLayoutColumnMajor);
        coopMatLoad(sum_at, of_subgroups, 0u, N, gl_CooperativeMatrixLayoutRowMajor);
        barrier();
    }
    const uint tiles = (n + COLS * M - 1u) / (COLS * M);
    for (uint64_t tile = gl_WorkGroupID.x; tile < uint64_t(tiles) * batch; tile += gl_NumWorkGroups.x) {
        const uint which = uint(tile / tiles);
        const uint col_0 = uint(tile - uint64_t(which) * tiles) * COLS * M;
        const uint64_t a_origin = which * a_stride;
        const uint64_t b_origin = which * b_stride;
        SUMS sums[COLS];
        [[unroll]] for (uint j = 0u; j < COLS; j++) {
            sums[j] = SUMS(0.0);
        }
        if (KNOWN) {
            uint64_t lines[2u * COLS];
            uint64_t scale_lines[2u * COLS];
            [[unroll]] for (uint j = 0u; j < 2u * COLS; j++) {
                // A column that is not there is a copy of the last one, which nobody stores.
                const uint col = column(min(col_0 + lane / 4u + 8u * j, n - 1u));
                lines[j] = b_place(b_origin, 0u, col);
                scale_lines[j] = BY_BLOCK ? b_scale_place(which, 0u, col) : 0ul;
            }
            uint wrong[2u * COLS];
            [[unroll]] for (uint j = 0u; j < 2u * COLS; j++) {
                wrong[j] = 0u;
            }
            const uint part = lane % 4u * DEEP;
            // Rows that are not there are copies of the last one, which nobody stores either.
            uint rows[HALVES];
            uint64_t inputs_from[HALVES];
            [[unroll]] for (uint h = 0u; h < HALVES; h++) {
                rows[h] = min(lane / 4u + 8u * h, m - 1u);
                inputs_from[h] = a + 2ul * (a_place(a_origin, rows[h], 0u) + part);
            }
            uint64_t pieces_from[2u * COLS];
            [[unroll]] for (uint j = 0u; j < 2u * COLS; j++) {
                pieces_from[j] = b + (lines[j] + part) * BITS / 8ul;
            }
            uvec4 next[PIECES];
            uvec2 next_scales[PIECES];
            uvec4 next_inputs[STEPS * EIGHTS * HALVES];
            [[unroll]] for (uint i = 0u; i < PIECES; i++) {
                next_scales[i] = uvec2(0u);
            }
            // From the step before the first one, of which there is nothing.
            for (uint k_1 = gl_SubgroupID * STRIDE; k_1 < k + SUBGROUPS * STRIDE; k_1 += SUBGROUPS * STRIDE) {
                uvec4 now[PIECES];
                uvec2 now_scales[PIECES];
                uvec4 now_inputs[STEPS * EIGHTS * HALVES];
                [[unroll]] for (uint i = 0u; i < STEPS * EIGHTS * HALVES; i++) {
                    now_inputs[i] = next_inputs[i];
                }
                [[unroll]] for (uint i = 0u; i < PIECES; i++) {
                    now[i] = next[i];
                    now_scales[i] = next_scales[i];
                }
                if (k_1 < k && is_whole(k_1)) {
                    [[unroll]] for (uint i = 0u; i < PIECES; i++) {
                        next[i] = whole_piece(pieces_from[i % (2u * COLS)] + (k_1 + i / (2u * COLS) * SPAN) * BITS / 8u);
                    }
                    if ((AHEAD & 1u) != 0u) {
                        [[unroll]] for (uint i = 0u; i < STEPS * EIGHTS * HALVES; i++) {
                            const uint at = k_1 + i / HALVES / EIGHTS * SPAN + 8u * (i / HALVES % EIGHTS);
                            next_inputs[i] = Four(inputs_from[i % HALVES] + 2u * at).v;
                        }
                    }
                } else if (RUNS != 7u && k_1 < k) {
                    if ((AHEAD & 1u) != 0u) {
                        [[unroll]] for (uint i = 0u; i < STEPS * EIGHTS * HALVES; i++) {
                            const uint at = k_1 + i / HALVES / EIGHTS * SPAN + 8u * (i / HALVES % EIGHTS);
                            next_inputs[i] = eight_inputs(a_origin, rows[i % HALVES], at + part);
                        }
                    }
                    [[unroll]] for (uint i = 0u; i < PIECES; i++) {
                        next[i] = piece_of(lines[i % (2u * COLS)], k_1 + i / (2u * COLS) * SPAN + part);
                    }
                }
                if (BY_BLOCK && k_1 < k) {
                    [[unroll]] for (uint i = 0u; i < PIECES; i++) {
                        const uint row = min(k_1 + i / (2u * COLS) * SPAN + (OWN_SCALES != 0u ? part : 0u), k - 1u);
                        const uint64_t place = scale_lines[i % (2u * COLS)] + b_scale_step(row);
                        next_scales[i] = uvec2(b_scale_code(place), 0u);
                        if ((FLAGS & B_ZEROS) != 0u) {
                            next_scales[i].y = b_zero_code(place);
                        }
                        if (OWN_SCALES == 2u) {
                            next_scales[i].y = b_scale_code(scale_lines[i % (2u * COLS)] + b_scale_step(min(row + 16u, k - 1u)));
                        }
                    }
                }
                if (k_1 < SUBGROUPS * STRIDE) {
                    continue;
                }
                const uint k_0 = k_1 - SUBGROUPS * STRIDE;
                const bool whole = is_whole(k_0);
                [[unroll]] for (uint s = 0u; s < STEPS; s++) {
                    const uint from = k_0 + s * SPAN;
                    if (RUNS != 7u && from >= k) {
                        break;
                    }
                    uvec4 inputs[EIGHTS * HALVES];
                    if ((AHEAD & 1u) != 0u) {
                        [[unroll]] for (uint i = 0u; i < EIGHTS * HALVES; i++) {
                            inputs[i] = now_inputs[s * EIGHTS * HALVES + i];
                        }
                    } else if (whole) {
                        [[unroll]] for (uint i = 0u; i < EIGHTS * HALVES; i++) {
                            inputs[i] = Four(inputs_from[i % HALVES] + 2u * (from + 8u * (i / HALVES))).v;
                        }
                    } else {
                        [[unroll]] for (uint i = 0u; i < EIGHTS * HALVES; i++) {
                            inputs[i] = eight_inputs(a_origin, rows[i % HALVES], from + part + 8u * (i / HALVES));
                        }
                    }
                    // Scales of lanes that share a line are powers of two against the greatest of them, as far as f16 holds what is then
                    // multiplied; where they are farther apart, lanes take turns.
                    uint turns = 1u;
                    uint greatest[2u * COLS];
                    if (OWN_SCALES == 1u) {
                        bool far = false;
                        [[unroll]] for (uint j = 0u; j < 2u * COLS; j++) {
                            const uint one = now_scales[s * 2u * COLS + j].x;
                            greatest[j] = max(one, subgroupShuffleXor(one, 1u));
                            greatest[j] = max(greatest[j], subgroupShuffleXor(greatest[j], 2u));
                            far = far || greatest[j] > one + 24u;
                        }
                        turns = subgroupAny(far) ? 4u : 1u;
                    }
                    [[dont_unroll]] for (uint turn = 0u; turn < turns; turn++) {
                        SUMS of_block[COLS];
                        float less[2u * COLS];
                        float scales[2u * COLS];
                        uvec2 factors[2u * COLS];
                        [[unroll]] for (uint j = 0u; j < 2u * COLS; j++) {
                            less[j] = B_TYPE == I4 ? 8.0 : B_TYPE == I8 ? 128.0 : 0.0;
                            if (BY_BLOCK) {
                                const uvec2 codes = now_scales[s * 2u * COLS + j];
                                if (OWN_SCALES == 1u) {
                                    const uint from_one = subgroupShuffle(codes.x, lane / 4u * 4u + turn);
                                    const uint unit = turns == 1u ? greatest[j] : from_one;
                                    scales[j] = 0.5 * of_code(unit, E8M0);
                                    factors[j] = uvec2(twice(codes.x + 30u > unit && (turns == 1u || part == turn * DEEP) ? codes.x + 30u - unit << 10 : 0u));
                                } else if (OWN_SCALES != 0u) {
                                    scales[j] = 128.0;
                                    factors[j] = uvec2(of_scale(codes.x), of_scale(codes.y));
                                } else {
                                    scales[j] = of_code(codes.x, B_SCALE_TYPE);
                                }
                                if ((FLAGS & B_ZEROS) != 0u) {
                                    less[j] += of_code(codes.y, U8);
                                }
                            }
                        }
                        [[unroll]] for (uint j = 0u; j < COLS; j++) {
                            of_block[j] = BY_BLOCK ? SUMS(0.0) : sums[j];
                        }
                        [[unroll]] for (uint v = 0u; v < EIGHTS; v++) {
                            uvec4 ordered[HALVES];
                            [[unroll]] for (uint h = 0u; h < HALVES; h++) {
                                ordered[h] = in_order(inputs[v * HALVES + h]);
                            }
                            uvec4 weights[2u * COLS];
                            [[unroll]] for (uint j = 0u; j < 2u * COLS; j++) {
                                weights[j] = eight_weights(now[s * 2u * COLS + j], v, less[j]);
                                if (OWN_SCALES != 0u) {
                                    weights[j] = scaled(weights[j], factors[j][v / 2u]);
                                }
                            }
                            [[unroll]] for (uint t = 0u; t < 2u; t++) {
                                INPUTS input_matrix;
                                [[unroll]] for (uint h = 0u; h < HALVES; h++) {
                                    SET(input_matrix, 4u * h, ordered[h][2u * t], true)
                                    SET(input_matrix, 4u * h + 2u, ordered[h][2u * t + 1u], true)
                                }
                                [[unroll]] for (uint j = 0u; j < COLS; j++) {
                                    WEIGHTS matrix;
                                    [[unroll]] for (uint h = 0u; h < 2u; h++) {
                                        SET(matrix, 4u * h, weights[2u * j + h][2u * t], AS_IS)
                                        SET(matrix, 4u * h + 2u, weights[2u * j + h][2u * t + 1u], AS_IS)
                                    }
                                    of_block[j] = coopMatMulAdd(matrix, input_matrix, of_block[j]);
                                }
                            }
                        }
                        [[unroll]] for (uint j = 0u; j < COLS; j++) {
                            if (BY_BLOCK) {
                                [[unroll]] for (uint e = 0u; e < N / 2u; e++) {
                                    sums[j][e] += scales[2u * j + e / (N / 4u)] * of_block[j][e];
                                }
                            } else {
                                sums[j] = of_block[j];
                            }
                        }
                    }
                    if (B_TYPE == E4M3) {
                        [[unroll]] for (uint j = 0u; j < 2u * COLS; j++) {
                            const uvec4 piece = now[s * 2u * COLS + j];
                            const uvec4 past = (piece & 0x7f7f7f7fu) + 0x01010101u;
                            wrong[j] |= past.x | past.y | past.z | past.w;
                        }
                    }
                }
            }
            if (B_TYPE == E4M3) {
                [[unroll]] for (uint j = 0u; j < 2u * COLS; j++) {
                    wrong[j] |= subgroupShuffleXor(wrong[j], 1u);
                    wrong[j] |= subgroupShuffleXor(wrong[j], 2u);
                    if ((wrong[j] & 0x80808080u) != 0u) {
                        [[unroll]] for (uint e = 0u; e < N / 2u; e++) {
                            if (e / (N / 4u) == j % 2u) {
                                sums[j / 2u][e] = uintBitsToFloat(QUIET_NAN);
                            }
                        }
                    }
                }
            }
        } else {
            [[dont_unroll]] for (uint k_0 = gl_SubgroupID * K; k_0 < k; k_0 += SUBGROUPS * K) {
                INPUTS inputs;
                [[dont_unroll]] for (uint e = 0u; e < inputs.length(); e++) {
                    const uint spot = uint(float(input_at[e]));
                    const uint at = k_0 + spot % K;
                    inputs[e] = ELEMENT(spot / K < m && at < k ? number_at(a, a_place(a_origin, spot / K, at), A_TYPE) : 0.0);
                }
                [[unroll]] for (uint j = 0u; j < COLS; j++) {
                    WEIGHTS weights;
                    [[dont_unroll]] for (uint e = 0u; e < weights.length(); e++) {
                        const uint spot = uint(float(weight_at[e]));
                        const uint at = k_0 + spot % K;
                        const uint col = column(min(col_0 + j * M + spot / K, n - 1u));
                        float code = 0.0;
                        if (at < k) {
                            code = number_at(b, b_place(b_origin, at, col), B_TYPE);
                            if ((FLAGS & B_ZEROS) != 0u) {
                                code -= b_zero(b_scale_place(which, at, col));
                            }
                        }
                        weights[e] = ELEMENT(code / UNIT);
                    }
                    SUMS of_block = coopMatMulAdd(weights, inputs, SUMS(0.0));
                    [[dont_unroll]] for (uint e = 0u; e < of_block.length(); e++) {
                        const uint col = column(min(col_0 + j * M + uint(sum_at[e]) / N, n - 1u));
                        sums[j][e] += (BY_BLOCK ? b_scale(b_scale_place(which, k_0, col)) : 1.0) * of_block[e];
                    }
                }
            }
        }
        [[unroll]] for (uint j = 0u; j < COLS; j++) {
            coopMatStore(sums[j], of_subgroups, (gl_SubgroupID * COLS + j) * M * N, N, gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier();
        for (uint e = thread; e < COLS * M / 2u * m; e += THREADS) {
            const uint row = e / (COLS * M / 2u);
            const uint at = e % (COLS * M / 2u) * 2u;
            vec2 both = vec2(0.0);
            for (uint g = 0u; g < SUBGROUPS; g++) {
                both += vec2(of_subgroups[(g * COLS * M + at) * N + row], of_subgroups[(g * COLS * M + at + 1u) * N + row]);
            }
            both *= UNIT;
            const uint col = col_0 + at;
            if ((FLAGS & B_SCALED) != 0u) {
                both *= b_global();
                if (!BY_BLOCK) {
                    both.x *= b_scale(b_scale_place(which, 0u, column(min(col, n - 1u))));
                    both.y *= b_scale(b_scale_place(which, 0u, column(min(col + 1u, n - 1u))));
                }
            }
            finished(both.x, both.y, which, row, col);
        }
        // Nobody stores the next ones before everybody has read these.
        barrier();
    }
}

#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_arithmetic : require
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
// Which lane has what of a matrix Vulkan does not say: `lanes.comp` asks the device. Where it is something else, and behind the last
// whole step along k, matrices are filled number by number, wherever each belongs.
//
// A group makes TEAMS such tiles at once, each by SUBGROUPS subgroups.
//
// Scales multiply the sums of their blocks, in f32. Sums are made in the same order for every m, but what other kernels make of more
// rows is not: no promise across m.
// Limits: m at most N; A of the type that ELEMENT is; matrices of 16×N×16; blocks of SPAN elements of a column that share a scale, of
// half as many, or of whole columns; sizes below 2^31. Whole steps are loaded where B has as many columns as a tile.

#include "gemm/glsl/finish.glsl"
#include "gemm/glsl/operands.glsl"
#include "gemm/glsl/weights.glsl"

layout(constant_id = 12) const uint N = 8u;
layout(constant_id = 13) const uint COLS = 1u;
layout(constant_id = 14) const uint SUBGROUPS = 4u;
layout(local_size_x_id = 15) in;
layout(constant_id = 15) const uint THREADS = 128u;
// Bits: whole steps are loaded as they are; what is left, or everything, is filled number by number.
layout(constant_id = 16) const uint WAYS = 0u;
// Words of a lane's piece of a line, and pieces under way.
layout(constant_id = 17) const uint WORDS = 4u;
layout(constant_id = 18) const uint STEPS = 1u;
// Whether lanes that share a line have scales of their own, with which their numbers of f16 are multiplied: 1 powers of two, 2 E4M3.
layout(constant_id = 19) const uint OWN_SCALES = 0u;
layout(constant_id = 20) const uint TEAMS = 1u;
// Bits: A's numbers are under way with B's, or a step ahead where B's are loaded last, rather than found in a cache when they are needed;
// B passes by the cache that they are in; what comes next is loaded tile by tile, as places become free, rather than all of it at first;
// only when a tile is done with.
layout(constant_id = 21) const uint AHEAD = 0u;
// Blocks that the pieces of four lanes are of, whose scales multiply their sums: of two, each has half of the lanes.
layout(constant_id = 22) const uint BLOCKS = 1u;
// Bytes of the scales that a line's pieces under way have, where these are loaded at once; 0: each piece's with it.
layout(constant_id = 23) const uint TOGETHER = 0u;

const uint BY_STEPS = 1u, BY_NUMBERS = 2u;
#define EARLY ((AHEAD & 12u) == 0u)
#define LATE ((AHEAD & 8u) != 0u)
const uint M = 16u, K = 16u;
// Of a subgroup, wherever whole steps are loaded.
const uint LANES = 32u;
const uint BITS = B_TYPE == F16 ? 16u : B_TYPE == BF16 ? 16u : B_TYPE == E2M1 ? 4u : B_TYPE == NF4 ? 4u : B_TYPE == I4 ? 4u : B_TYPE == U4 ? 4u : 8u;
// Elements of a piece, and of the pieces of four lanes; each eight of them are two products.
const uint DEEP = WORDS * 32u / BITS;
const uint SPAN = 4u * DEEP;
const uint EIGHTS = DEEP / 8u;
const uint STRIDE = STEPS * SPAN;
const uint TURN = SUBGROUPS * STRIDE;
const uint PIECES = STEPS * COLS * 2u;
const uint HALVES = N / 8u;
#define BY_BLOCK ((FLAGS & B_SCALED) != 0u && B_BLOCK_DEPTH < 0x80000000u)
// Whether scales of columns as far apart are as far apart.
#define EVEN (B_SCALE_LAYOUT != SCALES_TILES && B_BLOCK_COLS == 1u)
// What codes stand for is as many times what they become, a scale of E4M3 included.
#define UNIT (OWN_SCALES == 2u ? 128.0 : OWN_SCALES == 1u ? 1.0 : B_TYPE == E2M1 ? 16384.0 : B_TYPE == E4M3 ? 256.0 : 1.0)
// Whether words of codes become words of ELEMENT, or of f16.
#define AS_IS (B_TYPE == BF16 || B_TYPE == NF4)
// Whether lanes exchange halves of their pieces; whether half of them takes each two words the other way round: see `as_taken`.
#define EXCHANGED (BLOCKS == 2u && WORDS == 4u)
#define TURNED (BITS == 4u && BLOCKS == 1u && WORDS == 4u)

// Pairs of numbers for each byte of NF4, for each lane in a place of its own, so that none waits for another; and behind the last step
// of a tile the sums of its subgroups, in the same place.
const uint PAIRS = B_TYPE == NF4 ? 256u * LANES : 1u;
const uint ALL_SUMS = TEAMS * SUBGROUPS * COLS * M * N;
shared float of_subgroups[PAIRS > ALL_SUMS ? PAIRS : ALL_SUMS];
// A matrix that says what is where.
shared uvec4 numbered[(WAYS & BY_NUMBERS) != 0u ? M * K / 8u : 1u];

// As others, of what nobody writes meanwhile.
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Four { uvec4 v; };
layout(buffer_reference, std430, buffer_reference_align = 16) coherent readonly buffer Fresh { uvec4 v; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Two { uvec2 v; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer One { uint v; };
layout(buffer_reference, std430, buffer_reference_align = 2) readonly buffer OneHalf { uint16_t v; };
layout(buffer_reference, std430, buffer_reference_align = 1) readonly buffer OneByte { uint8_t v; };

#define WEIGHTS coopmat<ELEMENT, gl_ScopeSubgroup, M, K, gl_MatrixUseA>
#define INPUTS coopmat<ELEMENT, gl_ScopeSubgroup, K, N, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>

#include "gemm/glsl/coopmat_few_rows.glsl"

// A lane's piece `i` of the step from row `from`, and its scales; those of a line with its last piece, when the ones before are done with.
#define LOAD_PIECE(i, from) { \
    const uint row = from + (i) / (2u * COLS) * SPAN; \
    next[i] = whole_piece(lines + (i) % (2u * COLS) * to_line + row * BITS / 8u); \
    if (TOGETHER == 0u) { \
        next_codes[i] = scale_codes(SCALES(i), ZEROS(i), row + own); \
    } else if ((i) / (2u * COLS) == STEPS - 1u) { \
        next_scales[(i) % (2u * COLS)] = line_scales(SCALES(i), from); \
    } }

// A piece's scales, of those that came with it or with its line.
#define CODES(i, pieces, lines) (TOGETHER == 0u ? pieces[i] : piece_scales(lines[(i) % (2u * COLS)], (i) / (2u * COLS)))

// Where the scales of a piece's line begin, and its zero points.
#define SCALES(i) (scales[EVEN ? 0u : (i) % (2u * COLS)] + (EVEN ? (i) % (2u * COLS) * to_scales * SCALE_BYTES : 0ul))
#define ZEROS(i) ((FLAGS & B_ZEROS) != 0u ? zeros[EVEN ? 0u : (i) % (2u * COLS)] + (EVEN ? (i) % (2u * COLS) * to_scales : 0ul) : 0ul)

// Eight of A's numbers that belong to it, at place `i` behind row `from`.
#define INPUT(i, from) Four(inputs_from[(i) % (2u * HALVES)] + 2u * ((from) + (i) / HALVES / EIGHTS * SPAN + eight_at((i) / HALVES % EIGHTS))).v

// The same, if they are not left to a cache.
#define LOAD_INPUT(i, from) \
    if ((AHEAD & 1u) != 0u) { \
        next_inputs[i] = INPUT(i, from); }

// Where a subgroup's sums of matrix `j` are.
#define PLACE(j) ((gl_SubgroupID * COLS + (j)) * M * N)

void main() {
    const uint thread = gl_LocalInvocationIndex;
    const uint lane = gl_SubgroupInvocationID;
    const uint team = gl_SubgroupID / SUBGROUPS;
    const uint member = gl_SubgroupID % SUBGROUPS;
    // Sizes are less than 2^31.
    unknown = k >> 31;
    own_pairs = 4u * (lane + unknown);
    // What stands at each place of a matrix, by its number; all numbers are exact.
    WEIGHTS weight_at;
    INPUTS input_at;
    SUMS sum_at;
    if ((WAYS & BY_NUMBERS) != 0u) {
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
    const uint64_t tiles = (n + COLS * M - 1u) / (COLS * M);
    const uint whole = (WAYS & BY_STEPS) != 0u ? k / STRIDE * STRIDE : 0u;
    for (uint64_t first = gl_WorkGroupID.x * TEAMS; first < tiles * batch; first += gl_NumWorkGroups.x * TEAMS) {
        if (B_TYPE == NF4) {
            for (uint e = thread; e < 256u; e += THREADS) {
                const uint pair = joined(NF4_VALUES[e & 15u], NF4_VALUES[e >> 4]);
                [[unroll]] for (uint i = 0u; i < LANES; i++) {
                    // Neighbours begin in different banks.
                    of_subgroups[e * LANES + (lane + i) % LANES] = uintBitsToFloat(pair);
                }
            }
            barrier();
        }
        // A tile that is not there is the last one once more, which is not stored.
        const uint64_t tile = min(first + team, tiles * batch - 1ul);
        const uint which = batch == 1u ? 0u : uint(tile / tiles);
        const uint col_0 = uint(tile - which * tiles) * COLS * M;
        // Where whole steps are loaded, the last tile begins with columns of the one before if it has too few of its own.
        const uint from_0 = (WAYS & BY_STEPS) != 0u ? min(col_0, n - COLS * M) : col_0;
        const uint64_t a_origin = which * a_stride;
        const uint64_t b_origin = which * b_stride;
        SUMS sums[COLS];
        [[unroll]] for (uint j = 0u; j < COLS; j++) {
            sums[j] = SUMS(0.0);
        }
        if (whole != 0u) {
            const uint part = lane % 4u * DEEP;
            // Eight columns lie between a lane's lines.
            const uint col = column(from_0 + lane / 4u);
            const uint64_t lines = b + (b_place(b_origin, 0u, col) + part) * BITS / 8ul;
            const uint64_t to_line = b_place(0ul, 0u, column(8u)) * BITS / 8ul;
            uint64_t scales[EVEN ? 1u : 2u * COLS], zeros[EVEN ? 1u : 2u * COLS];
            [[unroll]] for (uint i = 0u; i < scales.length(); i++) {
                const uint64_t place = BY_BLOCK ? b_scale_place(which, 0u, column(from_0 + lane / 4u + 8u * i)) : 0ul;
                scales[i] = BY_BLOCK ? given[AT_B_SCALE] + SCALE_BYTES * place : 0ul;
                zeros[i] = (FLAGS & B_ZEROS) != 0u ? given[AT_B_SCALE + 1u] + place : 0ul;
            }
            const uint64_t to_scales = BY_BLOCK ? b_scale_place(0u, 0u, column(8u)) : 0ul;
            uint wrong[2u * COLS];
            f16vec2 greatest[2u * COLS];
            [[unroll]] for (uint i = 0u; i < 2u * COLS; i++) {
                wrong[i] = 0u;
                greatest[i] = f16vec2(0.0);
            }
            // Of A's even eights and of its odd ones.
            uint64_t inputs_from[2u * HALVES];
            [[unroll]] for (uint h = 0u; h < HALVES; h++) {
                // Rows that are not there are copies of the last one, which nobody stores either.
                const uint64_t line = a + 2ul * a_place(a_origin, min(lane / 4u + 8u * h, m - 1u), 0u);
                const uint64_t own_part = EXCHANGED ? lane % 2u * DEEP + own_half() * (DEEP / 2u) : part;
                const uint64_t turned = TURNED ? 8u * own_half() : 0u;
                inputs_from[h] = line + 2ul * (own_part + turned);
                inputs_from[HALVES + h] = line + 2ul * (own_part - turned);
            }
            const uint own = OWN_SCALES != 0u ? part : 0u;
            const uint start = min(member * STRIDE, whole - STRIDE);
            // Scales that are powers of two: sums are of a window of them at a time. The first is around the scales that come first, and
            // nearly always has all of them; otherwise each that has any takes its turn.
            int low = 0;
            uint left = 0u, nans = 0u;
            bool turns = false, more;
            do {
                uvec4 next[PIECES];
                uvec3 next_codes[PIECES];
                uvec4 next_scales[2u * COLS];
                uvec4 next_inputs[STEPS * EIGHTS * HALVES];
                [[unroll]] for (uint i = 0u; i < PIECES; i++) {
                    LOAD_PIECE(i, start)
                }
                [[unroll]] for (uint i = 0u; i < STEPS * EIGHTS * HALVES; i++) {
                    LOAD_INPUT(i, start)
                }
                if (OWN_SCALES == 1u && !turns) {
                    uint highest = 0u;
                    [[unroll]] for (uint i = 0u; i < 2u * COLS; i++) {
                        highest = max(highest, CODES(i, next_codes, next_scales).x);
                    }
                    low = min(int(subgroupMax(highest)) - 15, LAST_LOW);
                }
                uint furthest = 0u;
                for (uint k_0 = member * STRIDE; k_0 < whole; k_0 += TURN) {
                    // Behind the end, what is there is loaded once more: a load behind a condition would be waited for.
                    const uint after = min(k_0 + TURN, whole - STRIDE);
                    uvec4 pieces[PIECES];
                    uvec3 codes[PIECES];
                    uvec4 line_codes[2u * COLS];
                    [[unroll]] for (uint i = 0u; i < 2u * COLS; i++) {
                        line_codes[i] = next_scales[i];
                    }
                    uvec4 now_inputs[STEPS * EIGHTS * HALVES];
                    [[unroll]] for (uint i = 0u; i < PIECES; i++) {
                        pieces[i] = next[i];
                        codes[i] = next_codes[i];
                        if (EARLY) {
                            LOAD_PIECE(i, after)
                        }
                    }
                    [[unroll]] for (uint i = 0u; i < STEPS * EIGHTS * HALVES; i++) {
                        now_inputs[i] = next_inputs[i];
                        if (EARLY) {
                            LOAD_INPUT(i, after)
                        }
                    }
                    if (EARLY) {
                        // Without it, drivers load each number just before it is needed.
                        subgroupBarrier();
                    }
                    [[unroll]] for (uint s = 0u; s < STEPS; s++) {
                        [[unroll]] for (uint i = 0u; i < EIGHTS * HALVES; i++) {
                            const uint place = s * EIGHTS * HALVES + i;
                            const uvec4 early = EARLY ? now_inputs[place] : next_inputs[place];
                            inputs[i] = in_order((AHEAD & 1u) != 0u ? early : INPUT(place, k_0));
                        }
                        if (!EARLY && (AHEAD & 1u) != 0u) {
                            [[unroll]] for (uint i = 0u; i < EIGHTS * HALVES; i++) {
                                LOAD_INPUT((s + 1u) % STEPS * EIGHTS * HALVES + i, (s + 1u < STEPS ? k_0 : after))
                            }
                        }
                        [[unroll]] for (uint j = 0u; j < COLS; j++) {
                            const uint at = 2u * (s * COLS + j);
                            const uvec4 one = as_taken(pieces[at]);
                            const uvec4 two = as_taken(pieces[at + 1u]);
                            const uvec3 of_one = CODES(at, codes, line_codes);
                            const uvec3 of_two = CODES(at + 1u, codes, line_codes);
                            if (!EARLY && !LATE) {
                                LOAD_PIECE(at, after)
                                LOAD_PIECE(at + 1u, after)
                            }
                            const vec2 middle = vec2(B_TYPE == I4 ? 8.0 : B_TYPE == I8 ? 128.0 : 0.0);
                            uvec2 factors[2];
                            if (BY_BLOCK && OWN_SCALES == 0u) {
                                [[unroll]] for (uint block = 0u; block < BLOCKS; block++) {
                                    vec2 less = middle;
                                    if ((FLAGS & B_ZEROS) != 0u) {
                                        const uint zero = 8u * (EXCHANGED ? block : own_block());
                                        less += vec2(of_code(of_one.z >> zero & 255u, U8), of_code(of_two.z >> zero & 255u, U8));
                                    }
                                    const SUMS of_block = products(one, two, less, factors, block, SUMS(0.0));
                                    sums[j] = with_block(sums[j], of_block, vec2(of_code(of_one[block], B_SCALE_TYPE), of_code(of_two[block], B_SCALE_TYPE)));
                                }
                            } else {
                                if (OWN_SCALES == 1u) {
                                    const uvec2 above = uvec2(of_one.x, of_two.x) - uint(low);
                                    furthest = max(furthest, max(above.x, above.y));
                                    factors = uvec2[](uvec2(power_of(above.x)), uvec2(power_of(above.y)));
                                }
                                if (OWN_SCALES == 2u) {
                                    const f16vec2 by_one = factors_of(of_one.x);
                                    const f16vec2 by_two = factors_of(of_two.x);
                                    greatest[2u * j] = max(greatest[2u * j], by_one);
                                    greatest[2u * j + 1u] = max(greatest[2u * j + 1u], by_two);
                                    factors = uvec2[](uvec2(packFloat2x16(by_one.xx), packFloat2x16(by_one.yy)),
                                                      uvec2(packFloat2x16(by_two.xx), packFloat2x16(by_two.yy)));
                                }
                                sums[j] = products(one, two, middle, factors, 0u, sums[j]);
                            }
                            if (LATE) {
                                LOAD_PIECE(at, after)
                                LOAD_PIECE(at + 1u, after)
                            }
                            if (B_TYPE == E4M3) {
                                [[unroll]] for (uint i = 0u; i < WORDS; i++) {
                                    wrong[2u * j] |= not_numbers(one[i]);
                                    wrong[2u * j + 1u] |= not_numbers(two[i]);
                                }
                            }
                        }
                    }
                }
                more = false;
                if (OWN_SCALES == 1u) {
                    const bool survey = !turns && subgroupAny(furthest >= WINDOW);
                    const float unit = survey ? 0.0 : unit_of(low);
                    [[unroll]] for (uint j = 0u; j < COLS; j++) {
                        SUMS of_all = SUMS(0.0);
                        if (turns) {
                            coopMatLoad(of_all, of_subgroups, PLACE(j), N, gl_CooperativeMatrixLayoutRowMajor);
                        }
                        [[unroll]] for (uint e = 0u; e < N / 2u; e++) {
                            of_all[e] = survey ? 0.0 : of_all[e] + unit * sums[j][e];
                        }
                        sums[j] = of_all;
                    }
                    if (survey) {
                        for (uint k_0 = member * STRIDE; k_0 < whole; k_0 += TURN) {
                            [[dont_unroll]] for (uint i = 0u; i < PIECES; i++) {
                                const uint row = k_0 + i / (2u * COLS) * SPAN;
                                const uint line = i % (2u * COLS);
                                const uvec4 piece = whole_piece(lines + line * to_line + row * BITS / 8u);
                                const uint64_t place = b_scale_place(which, 0u, column(from_0 + lane / 4u + 8u * line));
                                const uint code = scale_codes(given[AT_B_SCALE] + place, 0ul, row + own).x;
                                left |= group_of(code, piece);
                                nans |= code == 255u ? 1u << line : 0u;
                            }
                        }
                        left = subgroupOr(left);
                        turns = true;
                    }
                    more = left != 0u;
                    if (more) {
                        [[unroll]] for (uint j = 0u; j < COLS; j++) {
                            coopMatStore(sums[j], of_subgroups, PLACE(j), N, gl_CooperativeMatrixLayoutRowMajor);
                            sums[j] = SUMS(0.0);
                        }
                        subgroupBarrier();
                        const int top = findMSB(left);
                        low = low_of(top);
                        left &= (1u << max(top - 2, 0)) - 1u;
                    }
                }
            } while (more);
            if (B_TYPE == E4M3 || OWN_SCALES != 0u) {
                [[unroll]] for (uint j = 0u; j < 2u * COLS; j++) {
                    if (OWN_SCALES == 1u) {
                        wrong[j] = (nans >> j & 1u) << 7;
                    } else if (OWN_SCALES == 2u) {
                        wrong[j] = any(greaterThan(greatest[j], f16vec2(BEYOND))) ? 128u : 0u;
                    }
                    wrong[j] |= subgroupShuffleXor(wrong[j], 1u);
                    wrong[j] |= subgroupShuffleXor(wrong[j], 2u);
                    if ((wrong[j] & 0x80808080u) != 0u) {
                        [[unroll]] for (uint e = 0u; e < N / 4u; e++) {
                            sums[j / 2u][j % 2u * (N / 4u) + e] = uintBitsToFloat(QUIET_NAN);
                        }
                    }
                }
            }
        }
        if ((WAYS & BY_NUMBERS) != 0u) {
            [[dont_unroll]] for (uint k_0 = whole + member * K; k_0 < k; k_0 += SUBGROUPS * K) {
                INPUTS numbers;
                [[dont_unroll]] for (uint e = 0u; e < numbers.length(); e++) {
                    const uint spot = uint(float(input_at[e]));
                    const uint at = k_0 + spot % K;
                    numbers[e] = ELEMENT(spot / K < m && at < k ? number_at(a, a_place(a_origin, spot / K, at), A_TYPE) : 0.0);
                }
                [[unroll]] for (uint j = 0u; j < COLS; j++) {
                    WEIGHTS weights;
                    [[dont_unroll]] for (uint e = 0u; e < weights.length(); e++) {
                        const uint spot = uint(float(weight_at[e]));
                        const uint at = k_0 + spot % K;
                        const uint col = column(min(from_0 + j * M + spot / K, n - 1u));
                        float code = 0.0;
                        if (at < k) {
                            code = number_at(b, b_place(b_origin, at, col), B_TYPE);
                            if ((FLAGS & B_ZEROS) != 0u) {
                                code -= b_zero(b_scale_place(which, at, col));
                            }
                        }
                        weights[e] = ELEMENT(code / UNIT);
                    }
                    SUMS of_block = coopMatMulAdd(weights, numbers, SUMS(0.0));
                    [[dont_unroll]] for (uint e = 0u; e < of_block.length(); e++) {
                        const uint col = column(min(from_0 + j * M + uint(sum_at[e]) / N, n - 1u));
                        sums[j][e] += (BY_BLOCK ? b_scale(b_scale_place(which, k_0, col)) : 1.0) * of_block[e];
                    }
                }
            }
        }
        if (B_TYPE == NF4) {
            // Sums go where pairs are, with which everybody is done now.
            barrier();
        }
        [[unroll]] for (uint j = 0u; j < COLS; j++) {
            coopMatStore(sums[j], of_subgroups, PLACE(j), N, gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier();
        const uint at_team = team * SUBGROUPS * COLS * M * N;
        const uint stored = first + team < tiles * batch ? COLS * M / 2u * m : 0u;
        for (uint e = member * gl_SubgroupSize + lane; e < stored; e += SUBGROUPS * gl_SubgroupSize) {
            const uint row = e / (COLS * M / 2u);
            const uint col = col_0 + e % (COLS * M / 2u) * 2u;
            if (col >= n) {
                continue;
            }
            // Behind an odd last column there is none.
            const uvec2 at = min(uvec2(col, col + 1u), uvec2(n - 1u)) - from_0;
            vec2 both = vec2(0.0);
            for (uint g = 0u; g < SUBGROUPS; g++) {
                const uint from = at_team + g * COLS * M * N + row;
                both += vec2(of_subgroups[from + at.x * N], of_subgroups[from + at.y * N]);
            }
            both *= UNIT;
            if ((FLAGS & B_SCALED) != 0u) {
                both *= b_global();
                if (!BY_BLOCK) {
                    both.x *= b_scale(b_scale_place(which, 0u, column(col)));
                    both.y *= b_scale(b_scale_place(which, 0u, column(min(col + 1u, n - 1u))));
                }
            }
            finished(both.x, both.y, which, row, col);
        }
        // Nobody stores the next ones before everybody has read these.
        barrier();
    }
}

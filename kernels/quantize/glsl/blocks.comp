#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
// also open: OPEN=1

// Codes and scales of blocks: see kp_hal::op::QuantizeSpec. LANES threads have a block, and take runs of eight of its columns in turn;
// where a lane has few of them, it keeps them between looking for the largest number and storing the codes.
//
// A scale that serves everything takes two launches of this shader: the first, LOOK, leaves the largest magnitude of all in
// scratch, where 0 was.
// Limits: fewer than 2^31 blocks; blocks of an even number of columns where two codes share a byte.

#include "common/glsl/numbers.glsl"
#include "common/glsl/runs.glsl"
#include "common/glsl/scales.glsl"

#ifdef OPEN
// As numbers behind the arguments, all but KEPT, by which a lane's runs are laid out: see kp_vulkan::shaders::Open.
layout(constant_id = 7) const uint KEPT = 1u;
#define X_TYPE told[0]
#define Q_TYPE told[1]
#define SCALE_TYPE told[2]
#define SCALE_LAYOUT told[3]
#define FLAGS told[4]
#define RULE told[5]
#define LANES told[6]
#define RUNS told[8]
#define LOOK told[9]
#define FLAT told[10]
#else
layout(constant_id = 0) const uint X_TYPE = 1u;
layout(constant_id = 1) const uint Q_TYPE = 5u;
layout(constant_id = 2) const uint SCALE_TYPE = 1u;
layout(constant_id = 3) const uint SCALE_LAYOUT = 0u;
layout(constant_id = 4) const uint FLAGS = 0u;
// kp_hal::op::ScaleRule, in its order.
layout(constant_id = 5) const uint RULE = 0u;
layout(constant_id = 6) const uint LANES = 4u;
// Runs that a lane keeps; 0 if it has too many.
layout(constant_id = 7) const uint KEPT = 1u;
// Bits: blocks are whole runs of X, loaded at once; their codes are stored at once; every block has as many runs as its lanes keep;
// blocks of one row follow one another in memory, as their scales do.
layout(constant_id = 8) const uint RUNS = 0u;
layout(constant_id = 9) const uint LOOK = 0u;
// Whether blocks have one row.
layout(constant_id = 10) const uint FLAT = 0u;
#endif
layout(local_size_x = 256) in;

layout(push_constant, std430) uniform Push {
    uint64_t x;
    uint64_t q;
    uint64_t scales;
    uint64_t global;
    uint64_t zeros;
    // The largest magnitude of all, as its bits, which order as it does.
    uint64_t whole;
    uint rows;
    uint cols;
    uint x_ld;
    uint q_ld;
    uint block_rows;
    uint block_cols;
    uint blocks_down;
    uint blocks_across;
    // What the number of a block is multiplied by and shifted, in place of a division by `blocks_across`.
    uint across_inverse;
    uint across_shift;
#ifdef OPEN
    layout(offset = 128) uint told[11];
#endif
};

const uint KEEP = KEPT == 0u ? 1u : KEPT;
shared vec2 of_subgroups[256];

// The largest of what a block's lanes have. All threads call.
vec2 largest_of_lanes(vec2 x) {
    [[unroll]] for (uint apart = 1u; apart < LANES; apart *= 2u) {
        if (apart < gl_SubgroupSize) {
            x = max(x, subgroupShuffleXor(x, apart));
        }
    }
    if (LANES > gl_SubgroupSize) {
        if (subgroupElect()) {
            of_subgroups[gl_SubgroupID] = x;
        }
        barrier();
        const uint many = LANES / gl_SubgroupSize;
        for (uint i = 0u; i < many; i++) {
            x = max(x, of_subgroups[gl_SubgroupID / many * many + i]);
        }
        // Nobody writes the next ones before everybody has read these.
        barrier();
    }
    return x;
}

#include "quantize/glsl/codes.glsl"

// Whether codes have a short way: see `eight_codes` and `eight_e2m1` of runs.glsl, and `eight_whole`.
bool has_short_way() {
    if (NATIVE == 0u) {
        return false;
    }
    switch (Q_TYPE) {
        case E4M3: case E5M2: return (FLAGS & PROPAGATE) == 0u;
        case E2M1: case I4: case U4: case I8: case U8: return true;
        default: return false;
    }
}

// Whether blocks are searched for their largest number: not where scales are given, and not where one that is known serves all.
bool is_searched() {
    if (LOOK != 0u) {
        return true;
    }
    if ((FLAGS & HAS_SCALES) == 0u) {
        return false;
    }
    return (FLAGS & GIVEN) == 0u && (FLAGS & (HAS_WHOLE | HAS_GLOBAL)) != HAS_WHOLE;
}

// Whether the search tells of each lane if all its numbers are finite.
bool is_known() {
    return (FLAGS & HAS_ZEROS) == 0u && is_searched();
}

// What numbers are divided by. `factor` is what the short way multiplies by, if that is neither too large nor too small, and numbers
// are not known to be other than finite.
struct Divisor {
    float value;
    float factor;
    bool has_factor;
};

Divisor divisor_of(float value, bool finite) {
    const float near = 1.0 / value;
    const float inverse = fma(near, fma(-value, near, 1.0), near);
    const bool biased = Q_TYPE == E4M3 || Q_TYPE == E5M2;
    return Divisor(value, biased ? inverse * power_of_two(bias_of_narrow(Q_TYPE)) : inverse, finite && value > 1e-30 && value < 1e30);
}

// The codes of eight numbers, none of them NaN, rounded to nearest even: next to 2^23 and a half they are the last digits.
uvec2 eight_whole(float x[8]) {
    const float least = Q_TYPE == I4 ? -8.0 : Q_TYPE == I8 ? -128.0 : 0.0;
    // Less the smallest, so that none is negative.
    uint codes[8];
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        codes[i] = floatBitsToUint(clamp(x[i], least, largest_code()) + 12582912.0) - (0x4b400000u + uint(int(least)));
    }
    if (bits_of(Q_TYPE) == 4u) {
        uint all = codes[7];
        [[unroll]] for (uint i = 7u; i > 0u; i--) {
            all = (all << 4) + codes[i - 1u];
        }
        return uvec2(Q_TYPE == I4 ? all ^ 0x88888888u : all, 0u);
    }
    uvec2 all = uvec2(codes[3], codes[7]);
    [[unroll]] for (uint i = 3u; i > 0u; i--) {
        all = (all << 8) + uvec2(codes[i - 1u], codes[i + 3u]);
    }
    return Q_TYPE == I8 ? all ^ 0x80808080u : all;
}

// Whether numbers of bf16 are divided by powers of two, so that nothing is lost before codes are rounded.
bool is_exact() {
    if (NATIVE == 0u || X_TYPE != BF16) {
        return false;
    }
    return Q_TYPE == E2M1 && SCALE_TYPE == E8M0;
}

// The codes in E2M1 of eight numbers of bf16 times `by`, a power of two that leaves them below 10: as f16 times 2^-14, which has what
// counts of them, they are codes with nine bits to be rounded off.
uint eight_exact(uvec4 words, float by) {
    const vec4 even = uintBitsToFloat(words << 16) * (by * power_of_two(-14));
    const vec4 odd = uintBitsToFloat(words & 0xffff0000u) * (by * power_of_two(-14));
    // Numbers that are four apart share a word.
    const uvec4 halves = uvec4(packHalf2x16(even.xz), packHalf2x16(odd.xz), packHalf2x16(even.yw), packHalf2x16(odd.yw));
    const uvec4 rounded = halves + 0x00ff00ffu + (halves >> 9 & 0x00010001u);
    uint codes = rounded.x >> 9 & 0x000f000fu;
    codes |= rounded.y >> 5 & 0x00f000f0u;
    codes |= rounded.z >> 1 & 0x0f000f00u;
    codes |= rounded.w << 3 & 0xf000f000u;
    // What would be rounded to 8 is 6.
    codes -= codes >> 3 & 0x11111111u;
    codes |= halves.x >> 12 & 0x00080008u;
    codes |= halves.y >> 8 & 0x00800080u;
    codes |= halves.z >> 4 & 0x08000800u;
    return codes | halves.w & 0x80008000u;
}

// The codes of a run, one behind the other.
uvec2 codes_of(Run run, Divisor by, float zero) {
    if (is_exact() && is_known() && by.has_factor) {
        return uvec2(eight_exact(run.low, by.factor), 0u);
    }
    const bool narrow = bits_of(Q_TYPE) == 4u;
    float numbers[8];
    numbers_of(run, X_TYPE, numbers);
    float x[8];
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        x[i] = (FLAGS & HAS_ZEROS) != 0u ? numbers[i] * by.factor + zero : numbers[i] * by.factor;
    }
    if (has_short_way() && by.has_factor && (is_known() || !has_nan(x))) {
        if (Q_TYPE == E4M3 || Q_TYPE == E5M2) {
            return eight_codes(vec4(x[0], x[1], x[2], x[3]), vec4(x[4], x[5], x[6], x[7]), Q_TYPE);
        }
        return Q_TYPE == E2M1 ? uvec2(eight_e2m1(vec4(x[0], x[2], x[4], x[6]), vec4(x[1], x[3], x[5], x[7])), 0u) : eight_whole(x);
    }
    uvec2 codes = uvec2(0u);
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        const uint code = code_of(numbers[i], by.value, zero);
        codes[narrow ? 0u : i / 4u] |= code << (narrow ? 4u * i : 8u * (i % 4u));
    }
    return codes;
}

// Stores the codes of the first `count` numbers of a run.
void store(uint64_t place, uint count, uvec2 codes) {
    const bool narrow = bits_of(Q_TYPE) == 4u;
    if ((RUNS & 2u) != 0u) {
        if (narrow) {
            Word(q + place / 2ul).v = codes.x;
        } else {
            Pair(q + place).v = codes;
        }
        return;
    }
    for (uint i = 0u; i < (narrow ? (count + 1u) / 2u : count); i++) {
        uint code = codes[i / 4u] >> 8u * (i % 4u) & 0xffu;
        const uint64_t at = q + (narrow ? place / 2ul : place) + i;
        if (narrow && 2u * i + 1u == count) {
            // The other half is nobody's.
            code = code & 0xfu | uint(Byte(at).v) & 0xf0u;
        }
        Byte(at).v = uint8_t(code);
    }
}

// What a run adds to its block's extremes: the largest magnitude, or, negated, the least and then the greatest number.
vec2 widened(vec2 before, Run run) {
    float numbers[8];
    numbers_of(run, X_TYPE, numbers);
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        const bool finite = (floatBitsToUint(numbers[i]) & 0x7fffffffu) < INFINITE;
        const float number = finite ? numbers[i] : 0.0;
        before = (FLAGS & HAS_ZEROS) != 0u ? max(before, vec2(-number, number)) : vec2(max(before.x, abs(number)), 0.0);
    }
    return before;
}

// The largest code without sign among those of a run and before, from the highest bit on.
uint most_of(uint before, Run run) {
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        if (bits_of(X_TYPE) == 16u) {
            before = max(before, max(run.low[i] << 17, run.low[i] << 1));
        } else {
            before = max(before, max(run.low[i] << 1, run.high[i] << 1));
        }
    }
    return before;
}

// The number of such a code.
float number_of_most(uint most) {
    return bits_of(X_TYPE) == 16u ? of_code(most >> 17, X_TYPE) : uintBitsToFloat(most >> 1);
}

// A block: where it starts, and its runs, `across` of them in a row.
struct Block {
    uint row;
    uint col;
    uint across;
    uint runs;
    uint64_t x_place;
    uint64_t q_place;
};

// The first row and column of a run, from those of its block.
uvec2 place_of(Block block, uint run) {
    const uint down = FLAT != 0u ? 0u : run / block.across;
    return uvec2(down, FLAT != 0u ? 8u * run : 8u * (run - down * block.across));
}

// Numbers of a run, eight at most; `end` is that of the block's rows.
uint count_of(Block block, uvec2 place) {
    return (RUNS & 3u) == 3u ? 8u : min(8u, min(block.col + block_cols, cols) - block.col - place.y);
}

Run load(Block block, uint run) {
    const uvec2 place = place_of(block, run);
    const bool at_once = (RUNS & 1u) != 0u;
    const uint count = at_once ? 8u : count_of(block, place);
    return run_at(x, block.x_place + uint64_t(place.x) * x_ld + place.y, count, X_TYPE, at_once);
}

void finish(Block block, uint run, Run loaded, Divisor by, float zero) {
    const uvec2 place = place_of(block, run);
    store(block.q_place + uint64_t(place.x) * q_ld + place.y, count_of(block, place), codes_of(loaded, by, zero));
}

void main() {
    // Numbered so that a block's lanes are neighbours in their subgroup.
    const uint thread = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    const uint lane = thread % LANES;
    const uint per_group = 256u / LANES;
    const uint blocks = blocks_down * blocks_across;
    const uint items = (blocks + per_group - 1u) / per_group;
    for (uint item = gl_WorkGroupID.x; item < items; item += gl_NumWorkGroups.x) {
        const uint turn = item * per_group + thread / LANES;
        // Backwards after a search of everything: what that read last is still in the cache.
        const uint which = LOOK == 0u && (FLAGS & HAS_WHOLE) != 0u ? blocks - 1u - turn : turn;
        const bool tight = (RUNS & 8u) != 0u;
        const uint o = tight ? 0u : uint(uint64_t(which) * across_inverse >> across_shift);
        const uint i = which - o * blocks_across;
        Block block;
        block.row = o * block_rows;
        block.col = i * block_cols;
        // The last block of a row may be cut off.
        const uint end = min(block.col + block_cols, cols);
        block.across = (end - min(block.col, end) + 7u) / 8u;
        const uint down = FLAT != 0u ? min(rows - block.row, 1u) : min(block_rows, rows - block.row);
        block.runs = turn >= blocks ? 0u : (RUNS & 4u) != 0u ? KEPT * LANES : down * block.across;
        block.x_place = tight ? uint64_t(which) * block_cols : uint64_t(block.row) * x_ld + block.col;
        block.q_place = tight ? block.x_place : uint64_t(block.row) * q_ld + block.col;
        Run kept[KEEP];
        [[unroll]] for (uint t = 0u; t < KEPT; t++) {
            if (lane + t * LANES < block.runs) {
                kept[t] = load(block, lane + t * LANES);
            }
        }
        uint most = 0u;
        vec2 extremes = vec2(0.0);
        bool finite = true;
        // If some are not finite, which codes tell only afterwards, once more without those.
        bool look = is_searched();
        for (bool filtered = (FLAGS & HAS_ZEROS) != 0u; look; filtered = true) {
            [[unroll]] for (uint t = 0u; t < KEPT; t++) {
                if (lane + t * LANES < block.runs) {
                    if (filtered) {
                        extremes = widened(extremes, kept[t]);
                    } else {
                        most = most_of(most, kept[t]);
                    }
                }
            }
            for (uint run = lane; KEPT == 0u && run < block.runs; run += LANES) {
                const Run some = load(block, run);
                if (filtered) {
                    extremes = widened(extremes, some);
                } else {
                    most = most_of(most, some);
                }
            }
            if (!filtered) {
                extremes.x = number_of_most(most);
                finite = extremes.x < uintBitsToFloat(INFINITE);
                extremes.x = finite ? extremes.x : 0.0;
            }
            look = !filtered && !finite;
        }
        if (is_searched()) {
            extremes = largest_of_lanes(extremes);
        } else {
            // Nothing else keeps a driver from loading each run where it is needed, one after the other.
            barrier();
        }
        float divisor = 1.0;
        float zero = 0.0;
        if ((FLAGS & HAS_SCALES) != 0u) {
            if (LOOK != 0u) {
                if (lane == 0u && block.runs > 0u) {
                    atomicMax(Word(whole).v, floatBitsToUint(extremes.x));
                }
                continue;
            }
            const uint64_t place = scale_place(SCALE_LAYOUT, o, i, uvec2(blocks_down, blocks_across));
            const bool first = lane == 0u && block.runs > 0u;
            const bool of_all = lane == 0u && turn == 0u;
            float by = 1.0;
            if ((FLAGS & HAS_WHOLE) != 0u) {
                const float most = uintBitsToFloat(Word(whole).v);
                if ((FLAGS & HAS_GLOBAL) != 0u) {
                    by = most == 0.0 ? 1.0 : uintBitsToFloat(max(floatBitsToUint(divided(most, 2688.0)), 1u));
                    if (of_all) {
                        Word(global).v = floatBitsToUint(by);
                    }
                } else {
                    extremes.x = most;
                }
            }
            uint code = 0u;
            if ((FLAGS & GIVEN) != 0u) {
                code = code_at(scales, place, SCALE_TYPE);
                zero = (FLAGS & HAS_ZEROS) != 0u ? number_at(zeros, place, U8) : 0.0;
            } else {
                code = scale_code((FLAGS & HAS_ZEROS) != 0u ? extremes.x + extremes.y : extremes.x, by);
                if ((FLAGS & HAS_ZEROS) != 0u) {
                    zero = clamp(roundEven(extremes.x / of_code(code, SCALE_TYPE)), 0.0, largest_code());
                    if (first) {
                        store_code(zeros, place, U8, uint(zero));
                    }
                }
                if (SCALE_LAYOUT == SCALES_ONE ? of_all : first) {
                    store_code(scales, place, SCALE_TYPE, code);
                }
            }
            divisor = of_code(code, SCALE_TYPE) * by;
        }
        const Divisor by_scale = divisor_of(divisor, finite);
        [[unroll]] for (uint t = 0u; t < KEPT; t++) {
            if (lane + t * LANES < block.runs) {
                finish(block, lane + t * LANES, kept[t], by_scale, zero);
            }
        }
        for (uint run = lane; KEPT == 0u && run < block.runs; run += LANES) {
            finish(block, run, load(block, run), by_scale, zero);
        }
    }
}

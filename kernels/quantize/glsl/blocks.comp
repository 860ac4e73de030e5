#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
// also open: OPEN=1

// Codes and scales of blocks: see kp_hal::op::QuantizeSpec. LANES threads have a block, and take runs of eight of its columns in turn;
// where a lane has few of them, it keeps their numbers between looking for the largest and storing the codes.
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
// Bits: eight numbers of X loaded at once, eight codes stored at once.
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

// Stores the codes of eight numbers of a row from `col`, as far as `end`.
void store(uint row, uint col, uint end, float numbers[8], float divisor, float zero) {
    const bool narrow = bits_of(Q_TYPE) == 4u;
    uvec2 packed = uvec2(0u);
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        const uint code = code_of(numbers[i], divisor, zero);
        packed[narrow ? 0u : i / 4u] |= code << (narrow ? 4u * i : 8u * (i % 4u));
    }
    const uint64_t place = uint64_t(row) * q_ld + col;
    if ((RUNS & 2u) != 0u && col + 8u <= end) {
        if (narrow) {
            Word(q + place / 2ul).v = packed.x;
        } else {
            Pair(q + place).v = packed;
        }
        return;
    }
    const uint count = min(8u, end - col);
    for (uint i = 0u; i < (narrow ? (count + 1u) / 2u : count); i++) {
        uint code = packed[i / 4u] >> 8u * (i % 4u) & 0xffu;
        const uint64_t at = q + (narrow ? place / 2ul : place) + i;
        if (narrow && 2u * i + 1u == count) {
            // The other half is nobody's.
            code = code & 0xfu | uint(Byte(at).v) & 0xf0u;
        }
        Byte(at).v = uint8_t(code);
    }
}

// Eight numbers of a row of X from `col`; 0 past `end`.
void load(uint row, uint col, uint end, out float numbers[8]) {
    load_run(x, uint64_t(row) * x_ld + col, end - col, X_TYPE, (RUNS & 1u) != 0u, numbers);
}

// What a run adds to its block's extremes: the largest magnitude, or, negated, the least and then the greatest number.
vec2 widened(vec2 before, float numbers[8]) {
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        const bool finite = (floatBitsToUint(numbers[i]) & 0x7fffffffu) < INFINITE;
        const float number = finite ? numbers[i] : 0.0;
        before = (FLAGS & HAS_ZEROS) != 0u ? max(before, vec2(-number, number)) : vec2(max(before.x, abs(number)), 0.0);
    }
    return before;
}

// The row of a block that `run` is in.
uint down(uint run, uint across) {
    return FLAT != 0u ? 0u : run / across;
}

void main() {
    // Numbered so that a block's lanes are neighbours in their subgroup.
    const uint thread = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    const uint lane = thread % LANES;
    const uint per_group = 256u / LANES;
    const uint blocks = blocks_down * blocks_across;
    const uint items = (blocks + per_group - 1u) / per_group;
    for (uint item = gl_WorkGroupID.x; item < items; item += gl_NumWorkGroups.x) {
        const uint block = item * per_group + thread / LANES;
        const uint o = block / blocks_across;
        const uint i = block - o * blocks_across;
        const uint row_0 = o * block_rows;
        const uint col_0 = i * block_cols;
        const uint end = min(col_0 + block_cols, cols);
        // The last block of a row may be cut off.
        const uint across = (end - min(col_0, end) + 7u) / 8u;
        const uint runs = block < blocks ? (FLAT != 0u ? min(rows - row_0, 1u) : min(block_rows, rows - row_0)) * across : 0u;
        float numbers[KEEP][8];
        vec2 extremes = vec2(0.0);
        if ((FLAGS & GIVEN) == 0u || KEPT != 0u) {
            [[unroll]] for (uint t = 0u; t < KEPT; t++) {
                const uint run = lane + t * LANES;
                if (run < runs) {
                    load(row_0 + down(run, across), col_0 + (run - down(run, across) * across) * 8u, end, numbers[t]);
                    extremes = widened(extremes, numbers[t]);
                }
            }
            for (uint run = lane + KEPT * LANES; KEPT == 0u && run < runs; run += LANES) {
                load(row_0 + down(run, across), col_0 + (run - down(run, across) * across) * 8u, end, numbers[0]);
                extremes = widened(extremes, numbers[0]);
            }
        }
        float divisor = 1.0;
        float zero = 0.0;
        if ((FLAGS & HAS_SCALES) != 0u) {
            extremes = largest_of_lanes(extremes);
            if (LOOK != 0u) {
                if (lane == 0u && runs > 0u) {
                    atomicMax(Word(whole).v, floatBitsToUint(extremes.x));
                }
                continue;
            }
            const uint64_t place = scale_place(SCALE_LAYOUT, o, i, uvec2(blocks_down, blocks_across));
            const bool first = lane == 0u && runs > 0u;
            const bool of_all = lane == 0u && block == 0u;
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
        [[unroll]] for (uint t = 0u; t < KEPT; t++) {
            const uint run = lane + t * LANES;
            if (run < runs) {
                store(row_0 + down(run, across), col_0 + (run - down(run, across) * across) * 8u, end, numbers[t], divisor, zero);
            }
        }
        for (uint run = lane + KEPT * LANES; KEPT == 0u && run < runs; run += LANES) {
            load(row_0 + down(run, across), col_0 + (run - down(run, across) * across) * 8u, end, numbers[0]);
            store(row_0 + down(run, across), col_0 + (run - down(run, across) * across) * 8u, end, numbers[0], divisor, zero);
        }
    }
}

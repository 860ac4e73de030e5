#version 460

// y = code · scale (· global), or (code − zero) · scale, run of eight by run of eight.

#define NF4_TABLE
#include "common/glsl/numbers.glsl"
#include "common/glsl/runs.glsl"
#include "common/glsl/scales.glsl"

layout(constant_id = 0) const uint Q_TYPE = 5u;
layout(constant_id = 1) const uint Y_TYPE = 1u;
layout(constant_id = 2) const uint SCALE_TYPE = 1u;
layout(constant_id = 3) const uint SCALE_LAYOUT = 0u;
// Bits: scales, global, zero points.
layout(constant_id = 4) const uint FLAGS = 0u;
layout(constant_id = 5) const uint ACROSS = 32u;
layout(constant_id = 6) const uint DEEP = 1u;
// Whether rows are whole runs, loaded and stored at once.
layout(constant_id = 7) const uint AT_ONCE = 0u;
// Columns of a block, where a run has one scale: a multiple of 8. Else 0.
layout(constant_id = 8) const uint BLOCK = 0u;
layout(constant_id = 9) const uint BLOCK_ROWS = 1u;
layout(local_size_x = 256) in;

const uint HAS_SCALES = 1u, HAS_GLOBAL = 2u, HAS_ZEROS = 4u;

layout(push_constant, std430) uniform Push {
    uint64_t q;
    uint64_t y;
    uint64_t scales;
    uint64_t global;
    uint64_t zeros;
    uint rows;
    uint cols;
    uint q_ld;
    uint y_ld;
    uint block_rows;
    uint block_cols;
    uint blocks_down;
    uint blocks_across;
    uint tiles_across;
};

#include "common/glsl/tiles.glsl"

// What codes of a block stand for: (code − y) · x.
vec2 of_block(uint row, uint col) {
    const uint o = BLOCK == 0u ? row / block_rows : row / BLOCK_ROWS;
    const uint i = BLOCK == 0u ? col / block_cols : col / BLOCK;
    const uint64_t place = scale_place(SCALE_LAYOUT, o, i, uvec2(blocks_down, blocks_across));
    const float zero = (FLAGS & HAS_ZEROS) != 0u ? number_at(zeros, place, U8) : 0.0;
    return vec2((FLAGS & HAS_SCALES) != 0u ? number_at(scales, place, SCALE_TYPE) : 1.0, zero);
}

// Whether bf16 has all digits of a code times its scale.
bool is_exact() {
    if (Y_TYPE != BF16 || NATIVE == 0u) {
        return false;
    }
    if (BLOCK == 0u || AT_ONCE == 0u) {
        return false;
    }
    return Q_TYPE == E2M1 && SCALE_TYPE == E8M0 && FLAGS == HAS_SCALES;
}

// The codes of eight numbers of E2M1 times `scale` in bf16, which are the first halves of their codes in f32.
uvec4 eight_exact(uint word, float scale) {
    const uvec4 signs = uvec4(word << 12, word << 8, word << 4, word) & 0x80008000u;
    const uvec4 halves = signs | uvec4(word << 9, word << 5, word << 1, word >> 3) & 0x0e000e00u;
    // Numbers that are four apart.
    const vec2 a = unpackHalf2x16(halves.x) * 16384.0 * scale;
    const vec2 b = unpackHalf2x16(halves.y) * 16384.0 * scale;
    const vec2 c = unpackHalf2x16(halves.z) * 16384.0 * scale;
    const vec2 d = unpackHalf2x16(halves.w) * 16384.0 * scale;
    return floatBitsToUint(vec4(a.x, c.x, a.y, c.y)) >> 16 | floatBitsToUint(vec4(b.x, d.x, b.y, d.y)) & 0xffff0000u;
}

void main() {
    if (Q_TYPE == NF4) {
        bring_nf4_table();
    }
    const bool at_once = AT_ONCE != 0u;
    const float of_all = (FLAGS & HAS_GLOBAL) != 0u ? number_at(global, 0ul, F32) : 1.0;
    for (uint tile = gl_WorkGroupID.x; tile < tiles(); tile += gl_NumWorkGroups.x) {
        const uvec2 first = place_in(tile);
        if (first.y >= cols) {
            continue;
        }
        const uint count = at_once ? 8u : cols - first.y;
        Run loaded[DEEP];
        vec2 blocks[DEEP];
        [[unroll]] for (uint i = 0u; i < DEEP; i++) {
            const uint row = first.x + i * APART;
            if (row < rows) {
                loaded[i] = run_at(q, uint64_t(row) * q_ld + first.y, count, Q_TYPE, at_once);
                blocks[i] = of_block(row, first.y);
            }
        }
        [[unroll]] for (uint i = 0u; i < DEEP; i++) {
            const uint row = first.x + i * APART;
            if (row < rows) {
                if (is_exact()) {
                    Quad(y + 2ul * (uint64_t(row) * y_ld + first.y)).v = eight_exact(loaded[i].low.x, blocks[i].x);
                    continue;
                }
                float numbers[8];
                numbers_of(loaded[i], Q_TYPE, numbers);
                [[unroll]] for (uint j = 0u; j < 8u; j++) {
                    const vec2 block = BLOCK != 0u || j == 0u ? blocks[i] : of_block(row, min(first.y + j, cols - 1u));
                    float number = numbers[j];
                    if ((FLAGS & HAS_ZEROS) != 0u) {
                        number -= block.y;
                    }
                    if ((FLAGS & HAS_SCALES) != 0u) {
                        number *= block.x;
                    }
                    numbers[j] = number * of_all;
                }
                store_run(y, uint64_t(row) * y_ld + first.y, count, Y_TYPE, at_once, numbers);
            }
        }
    }
}

// Scales and zero points of B: a weight is code · scale (· one for all), or (code − zero) · scale. See kp_hal::op::Format, of which
// B's columns are the outer rows.

#include "common/glsl/scales.glsl"

#ifdef OPEN_OPERANDS
#define B_SCALE_TYPE numbers[14]
#define B_SCALE_LAYOUT numbers[15]
#define B_BLOCK_COLS numbers[16]
#define B_BLOCK_DEPTH numbers[17]
#else
layout(constant_id = 32) const uint B_SCALE_TYPE = 1u;
layout(constant_id = 33) const uint B_SCALE_LAYOUT = 3u;
// Columns, and elements of a column, that share a scale.
layout(constant_id = 34) const uint B_BLOCK_COLS = 1u;
layout(constant_id = 35) const uint B_BLOCK_DEPTH = 32u;
#endif

uint parts_of(uint size, uint part) {
    return size / part + (size % part != 0u ? 1u : 0u);
}

// The place of the scale of B's element (`row`, `col`) of matrix `which`, and of its zero point.
uint64_t b_scale_place(uint which, uint row, uint col) {
    const uvec2 blocks = uvec2(parts_of(n, B_BLOCK_COLS), parts_of(k, B_BLOCK_DEPTH));
    return which * scale_count(B_SCALE_LAYOUT, blocks) + scale_place(B_SCALE_LAYOUT, col / B_BLOCK_COLS, row / B_BLOCK_DEPTH, blocks);
}

// How far the place of row `row`'s scale is from that of row 0's in the same column.
uint64_t b_scale_step(uint row) {
    const uint block = row / B_BLOCK_DEPTH;
    switch (B_SCALE_LAYOUT) {
        case SCALES_INNER: return block;
        case SCALES_OUTER: return uint64_t(block) * ((parts_of(n, B_BLOCK_COLS) + 3u) / 4u * 4u);
        case SCALES_TILES: return uint64_t(block / 4u) * 512ul + block % 4u;
        default: return 0ul;
    }
}

uint b_scale_code(uint64_t place) {
    return code_at(given[AT_B_SCALE], place, B_SCALE_TYPE);
}

float b_scale(uint64_t place) {
    return of_code(b_scale_code(place), B_SCALE_TYPE);
}

// What multiplies all scales.
float b_global() {
    return (FLAGS & B_GLOBAL) != 0u ? number_at(given[AT_B_SCALE + 1u], 0ul, F32) : 1.0;
}

uint b_zero_code(uint64_t place) {
    return code_at(given[AT_B_SCALE + 1u], place, U8);
}

float b_zero(uint64_t place) {
    return of_code(b_zero_code(place), U8);
}

#version 460

// Row i of Y is row index[i] of a table, NaN or zeros if there is none, run of eight by run of eight.

#include "common/glsl/numbers.glsl"
#include "common/glsl/runs.glsl"

layout(constant_id = 0) const uint TABLE_TYPE = 1u;
layout(constant_id = 1) const uint Y_TYPE = 1u;
layout(constant_id = 2) const uint ACROSS = 32u;
layout(constant_id = 3) const uint DEEP = 1u;
// Whether rows are whole runs, loaded and stored at once.
layout(constant_id = 4) const uint AT_ONCE = 0u;
layout(local_size_x = 256) in;

layout(push_constant, std430) uniform Push {
    uint64_t table;
    uint64_t index;
    uint64_t y;
    uint rows;
    uint cols;
    uint table_rows;
    uint table_ld;
    uint y_ld;
    uint tiles_across;
};

#include "common/glsl/tiles.glsl"

void main() {
    const bool at_once = AT_ONCE != 0u;
    const uint none = to_code(uintBitsToFloat(QUIET_NAN), Y_TYPE, false);
    for (uint tile = gl_WorkGroupID.x; tile < tiles(); tile += gl_NumWorkGroups.x) {
        const uvec2 first = place_in(tile);
        if (first.y >= cols) {
            continue;
        }
        const uint count = at_once ? 8u : cols - first.y;
        uint from[DEEP];
        Run loaded[DEEP];
        [[unroll]] for (uint i = 0u; i < DEEP; i++) {
            // As unsigned, what is negative is past every table.
            from[i] = Word(index + 4ul * min(first.x + i * APART, rows - 1u)).v;
        }
        [[unroll]] for (uint i = 0u; i < DEEP; i++) {
            if (from[i] < table_rows) {
                loaded[i] = run_at(table, uint64_t(from[i]) * table_ld + first.y, count, TABLE_TYPE, at_once);
            }
        }
        [[unroll]] for (uint i = 0u; i < DEEP; i++) {
            const uint row = first.x + i * APART;
            if (row < rows) {
                Run codes = loaded[i];
                if (TABLE_TYPE != Y_TYPE) {
                    float numbers[8];
                    numbers_of(loaded[i], TABLE_TYPE, numbers);
                    codes = run_of(numbers, Y_TYPE, false);
                }
                if (from[i] >= table_rows) {
                    const uint bits = bits_of(Y_TYPE);
                    const uint word = bits == 32u ? none : bits == 16u ? none * 0x10001u : none * 0x1010101u;
                    codes = Run(uvec4(word), uvec4(word));
                }
                store_codes(y, uint64_t(row) * y_ld + first.y, count, Y_TYPE, at_once, codes);
            }
        }
    }
}

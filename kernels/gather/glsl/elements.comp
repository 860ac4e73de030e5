#version 460

// Row i of Y is row index[i] of a table, NaN or zeros if there is none; a thread makes an element at a time.

#include "common/glsl/numbers.glsl"

layout(constant_id = 0) const uint TABLE_TYPE = 1u;
layout(constant_id = 1) const uint Y_TYPE = 1u;
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
};

void main() {
    const uint64_t elements = uint64_t(rows) * cols;
    const uint64_t step = uint64_t(gl_NumWorkGroups.x) * 256ul;
    for (uint64_t at = uint64_t(gl_WorkGroupID.x) * 256ul + gl_LocalInvocationIndex; at < elements; at += step) {
        const uint row = uint(at / cols);
        const uint col = uint(at - uint64_t(row) * cols);
        // As unsigned, what is negative is past every table.
        const uint from = Word(index + 4ul * row).v;
        uint code = to_code(uintBitsToFloat(QUIET_NAN), Y_TYPE, false);
        if (from < table_rows) {
            code = code_at(table, uint64_t(from) * table_ld + col, TABLE_TYPE);
            if (TABLE_TYPE != Y_TYPE) {
                code = to_code(of_code(code, TABLE_TYPE), Y_TYPE, false);
            }
        }
        store_code(y, uint64_t(row) * y_ld + col, Y_TYPE, code);
    }
}

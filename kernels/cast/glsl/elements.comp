#version 460

// Y = X in another type and layout; a thread makes an element of Y at a time, padding of panels included, in the order in which
// they lie there.

#include "common/glsl/numbers.glsl"

layout(constant_id = 0) const uint X_TYPE = 1u;
layout(constant_id = 1) const uint Y_TYPE = 1u;
// 0 rows contiguous, 1 columns, 2 panels.
layout(constant_id = 2) const uint X_FORM = 0u;
layout(constant_id = 3) const uint Y_FORM = 0u;
layout(constant_id = 4) const uint PROPAGATE = 0u;
layout(local_size_x = 256) in;

const uint PANELS = 2u;

layout(push_constant, std430) uniform Push {
    uint64_t x;
    uint64_t y;
    uint64_t x_stride;
    uint64_t y_stride;
    uint batch;
    uint rows;
    uint cols;
    // Of panels: width and depth, 16 bits each.
    uint x_ld;
    uint y_ld;
};

uint padded(uint size, uint to) {
    return (size + to - 1u) / to * to;
}

uint64_t place(uint form, uint ld, uint row, uint col) {
    if (form == PANELS) {
        const uint width = ld & 0xffffu;
        const uint depth = ld >> 16;
        return col / width * (uint64_t(padded(rows, depth)) * width) + uint64_t(row / depth * depth) * width
            + col % width * depth + row % depth;
    }
    return form == 0u ? uint64_t(row) * ld + col : uint64_t(col) * ld + row;
}

void main() {
    const uint width = y_ld & 0xffffu;
    const uint depth = y_ld >> 16;
    const uint all_rows = Y_FORM == PANELS ? padded(rows, depth) : rows;
    const uint all_cols = Y_FORM == PANELS ? padded(cols, width) : cols;
    const uint64_t one = uint64_t(all_rows) * all_cols;
    const uint64_t step = uint64_t(gl_NumWorkGroups.x) * 256ul;
    for (uint64_t i = uint64_t(gl_WorkGroupID.x) * 256ul + gl_LocalInvocationIndex; i < one * batch; i += step) {
        const uint which = uint(i / one);
        const uint64_t at = i - which * one;
        uint row, col;
        if (Y_FORM == PANELS) {
            const uint64_t panel = uint64_t(all_rows) * width;
            const uint within = uint(at % panel) % (width * depth);
            row = uint(at % panel / (width * depth)) * depth + within % depth;
            col = uint(at / panel) * width + within / depth;
        } else {
            const uint run = Y_FORM == 0u ? cols : rows;
            const uint outer = uint(at / run);
            const uint inner = uint(at - uint64_t(outer) * run);
            row = Y_FORM == 0u ? outer : inner;
            col = Y_FORM == 0u ? inner : outer;
        }
        uint code = 0u;
        if (row < rows && col < cols) {
            code = code_at(x, which * x_stride + place(X_FORM, x_ld, row, col), X_TYPE);
            if (X_TYPE != Y_TYPE) {
                code = to_code(of_code(code, X_TYPE), Y_TYPE, PROPAGATE != 0u);
            }
        }
        store_code(y, which * y_stride + place(Y_FORM, y_ld, row, col), Y_TYPE, code);
    }
}

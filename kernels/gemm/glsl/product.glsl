// Products of every form: what they are told, A's and B's numbers with their scales, and whose rows are whose.

#include "common/glsl/numbers.glsl"
#include "common/glsl/math.glsl"
#include "common/glsl/scales.glsl"

#ifdef OPEN
// As numbers behind the arguments: see kp_vulkan::shaders::Open.
#define A_TYPE numbers[0]
#define B_TYPE numbers[1]
#define D_TYPE numbers[2]
#define C_TYPE numbers[3]
#define BIAS_TYPE numbers[4]
#define RESIDUAL_TYPE numbers[5]
#define ACT numbers[6]
#define GATE numbers[7]
#define ADDEND numbers[8]
#define FLAGS numbers[9]
#define A_FORM numbers[10]
#define B_FORM numbers[11]
#define A_SCALE_TYPE numbers[12]
#define A_SCALE_LAYOUT numbers[13]
#define A_OUTER numbers[14]
#define A_INNER numbers[15]
#define B_SCALE_TYPE numbers[16]
#define B_SCALE_LAYOUT numbers[17]
#define B_OUTER numbers[18]
#define B_INNER numbers[19]
#define PRESENT numbers[20]
#else
layout(constant_id = 0) const uint A_TYPE = 1u;
layout(constant_id = 1) const uint B_TYPE = 1u;
layout(constant_id = 2) const uint D_TYPE = 1u;
layout(constant_id = 3) const uint C_TYPE = 1u;
layout(constant_id = 4) const uint BIAS_TYPE = 1u;
layout(constant_id = 5) const uint RESIDUAL_TYPE = 1u;
layout(constant_id = 6) const uint ACT = 0u;
layout(constant_id = 7) const uint GATE = 0u;
layout(constant_id = 8) const uint ADDEND = 0u;
// Bits: bias, residual, D by columns, sums of f16, D waits to be scaled; rows in groups, one behind the other or each group's first.
layout(constant_id = 9) const uint FLAGS = 0u;
// How A lies: 0 rows contiguous, 1 columns. B has 2 besides: panels.
layout(constant_id = 10) const uint A_FORM = 0u;
layout(constant_id = 11) const uint B_FORM = 0u;
// Type and order of scales; rows (columns of B) and elements along k that share one.
layout(constant_id = 12) const uint A_SCALE_TYPE = 1u;
layout(constant_id = 13) const uint A_SCALE_LAYOUT = 0u;
layout(constant_id = 14) const uint A_OUTER = 1u;
layout(constant_id = 15) const uint A_INNER = 1u;
layout(constant_id = 16) const uint B_SCALE_TYPE = 1u;
layout(constant_id = 17) const uint B_SCALE_LAYOUT = 0u;
layout(constant_id = 18) const uint B_OUTER = 1u;
layout(constant_id = 19) const uint B_INNER = 1u;
// Which of the operands below there are.
layout(constant_id = 20) const uint PRESENT = 0u;
#endif

layout(push_constant, std430) uniform Push {
    uint64_t a;
    uint64_t b;
    uint64_t d;
    // Operands that not every problem has, those that this one has, in the order below.
    uint64_t given[7];
    uint batch;
    uint m;
    uint n;
    uint k;
    // Elements from one row to the next, or from one column.
    uint a_ld;
    // Of panels: width and depth, 16 bits each.
    uint b_ld;
    uint d_ld;
    // Elements from one matrix of a batch to the next.
    uint a_stride;
    uint b_stride;
    uint d_stride;
    float alpha;
    float beta;
#ifdef OPEN
    layout(offset = 128) uint numbers[22];
#endif
};

const uint ADDED = 0u, BIAS = 1u, RESIDUAL = 2u, A_SCALE = 3u, A_GLOBAL = 4u, A_ZERO = 5u, A_META = 6u, B_SCALE = 7u, B_GLOBAL = 8u,
           B_ZERO = 9u, GROUPS = 10u, SCRATCH = 11u;

bool has(uint which) {
    return (PRESENT >> which & 1u) != 0u;
}

uint64_t base(uint which) {
    return given[bitCount(PRESENT & ((1u << which) - 1u))];
}

#define C_BASE base(ADDED)
#define BIAS_BASE base(BIAS)
#define RESIDUAL_BASE base(RESIDUAL)
#define STAGE_BASE base(SCRATCH)
#define GROUPS_BASE base(GROUPS)

#include "gemm/glsl/groups.glsl"
#include "gemm/glsl/epilogue.glsl"
#include "gemm/glsl/operands.glsl"

// The place of the scale of element `i` of row `o`, in matrix `which` of those of `size` rows and elements.
uint64_t factor_place(uint layout_of, uvec2 block, uvec2 size, uint which, uint o, uint i) {
    const uvec2 blocks = (size - 1u) / block + 1u;
    return which * scale_count(layout_of, blocks) + scale_place(layout_of, o / block.x, i / block.y, blocks);
}

// What multiplies A's codes of `row` around column `col`, in matrix `which`.
REAL a_factor(uint which, uint row, uint col) {
    if (!has(A_SCALE)) {
        return REAL(1.0);
    }
    const uint64_t place = factor_place(A_SCALE_LAYOUT, uvec2(A_OUTER, A_INNER), uvec2(m, k), which, row, col);
    const REAL scale = real_at(base(A_SCALE), place, A_SCALE_TYPE);
    return has(A_GLOBAL) ? scale * number_at(base(A_GLOBAL), 0ul, F32) : scale;
}

REAL b_factor(uint which, uint row, uint col) {
    if (!has(B_SCALE)) {
        return REAL(1.0);
    }
    const uint64_t place = factor_place(B_SCALE_LAYOUT, uvec2(B_OUTER, B_INNER), uvec2(n, k), which, col, row);
    const REAL scale = real_at(base(B_SCALE), place, B_SCALE_TYPE);
    return has(B_GLOBAL) ? scale * number_at(base(B_GLOBAL), 0ul, F32) : scale;
}

// A's element without its scale.
REAL a_code(uint which, uint row, uint col) {
    uint at = col;
    if (has(A_META)) {
        // Of four elements two are kept: see kp_hal::op::Sparsity.
        const uint64_t byte = (uint64_t(which) * m + row) * (k / 8u) + col / 8u;
        const uint kept = uint(Byte(base(A_META) + byte).v) >> 4u * (col / 4u % 2u);
        const bool first = (kept & 3u) == col % 4u;
        if (!first && (kept >> 2u & 3u) != col % 4u) {
            return REAL(0.0);
        }
        at = col / 4u * 2u + (first ? 0u : 1u);
    }
    const REAL x = real_at(a, a_place(which * uint64_t(a_stride), row, at), A_TYPE);
    if (!has(A_ZERO)) {
        return x;
    }
    const uint64_t place = factor_place(A_SCALE_LAYOUT, uvec2(A_OUTER, A_INNER), uvec2(m, k), which, row, col);
    return x - number_at(base(A_ZERO), place, U8);
}

REAL b_code(uint which, uint row, uint col) {
    const REAL y = real_at(b, b_place(which * uint64_t(b_stride), row, col), B_TYPE);
    if (!has(B_ZERO)) {
        return y;
    }
    const uint64_t place = factor_place(B_SCALE_LAYOUT, uvec2(B_OUTER, B_INNER), uvec2(n, k), which, col, row);
    return y - number_at(base(B_ZERO), place, U8);
}

// A whole number as f32, its last bit set where it is cut off: rounded again to fewer bits, it is as if it were rounded once.
float odd(int sum) {
    const bool fits = sum > -(1 << 24) && sum < 1 << 24;
    return fits ? float(sum) : float((sum >> 8 | ((sum & 255) != 0 ? 1 : 0)) << 8);
}

// Whether D is the sums of whole numbers as they are, more digits than a float has.
bool is_sums() {
    const bool alone = ACT == IDENTITY && GATE == GATE_NONE && (FLAGS & ~(BY_COLUMNS | CONTIGUOUS | MASKED)) == 0u
        && alpha == 1.0 && (ADDEND == ADDEND_NONE || beta == 0.0);
    return alone && D_TYPE == I32 && !has(A_SCALE) && !has(B_SCALE);
}

// Stores the sums of `row` at `at` and its neighbour, if they are there.
void store_sums(ivec2 sums, uint which, uint row, uint at) {
    [[unroll]] for (uint j = 0u; j < 2u; j++) {
        if (row < row_end && at + j < n) {
            store_code(d, d_place(which, row, at + j), I32, uint(sums[j]));
        }
    }
}

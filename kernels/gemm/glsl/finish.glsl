// What becomes of a sum: D = store(act(alpha · sum + beta · C + bias) [· gate] + residual). See kp_hal::op::GemmSpec.
//
// Products see B's columns in an order of their own, in which the two that a gate combines are neighbours: `column` says
// which column of B stands at place `at`.

#include "common/glsl/numbers.glsl"
#include "common/glsl/math.glsl"

#ifdef OPEN
// As numbers behind the arguments, all but those that say how tiles are laid out: see kp_vulkan::shaders::Open.
#ifdef OPEN_OPERANDS
#define A_TYPE numbers[0]
#define B_TYPE numbers[1]
#define A_FORM numbers[10]
#define B_FORM numbers[11]
#else
layout(constant_id = 0) const uint A_TYPE = 1u;
layout(constant_id = 1) const uint B_TYPE = 1u;
layout(constant_id = 10) const uint A_FORM = 0u;
layout(constant_id = 11) const uint B_FORM = 0u;
#endif
#define D_TYPE numbers[2]
#define C_TYPE numbers[3]
#define BIAS_TYPE numbers[4]
#define RESIDUAL_TYPE numbers[5]
#define ACT numbers[6]
#define GATE numbers[7]
#define ADDEND numbers[8]
#define FLAGS numbers[9]
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
// Bits: bias, residual, D by columns, sums of f16; scales of B, one more for all, zero points.
layout(constant_id = 9) const uint FLAGS = 0u;
// How A lies: 0 rows contiguous, 1 columns. B has 2 besides: panels.
layout(constant_id = 10) const uint A_FORM = 0u;
layout(constant_id = 11) const uint B_FORM = 0u;
#endif

const uint HAS_BIAS = 1u, HAS_RESIDUAL = 2u, BY_COLUMNS = 4u, HALF_SUMS = 8u, B_SCALED = 16u, B_GLOBAL = 32u, B_ZEROS = 64u;
const uint GATE_NONE = 0u, GATE_HALVES = 1u, GATE_PAIRS = 2u;
const uint ADDEND_NONE = 0u, ADDEND_GIVEN = 1u, ADDEND_IN_PLACE = 2u;

layout(push_constant, std430) uniform Push {
    uint64_t a;
    uint64_t b;
    uint64_t d;
    // Operands that not every problem has, those that this one has: see below.
    uint64_t given[5];
    // Elements from one matrix of a batch to the next.
    uint64_t a_stride;
    uint64_t b_stride;
    uint64_t d_stride;
    uint batch;
    uint m;
    uint n;
    uint k;
    // Elements from one row to the next, or from one column.
    uint a_ld;
    // Of panels: width and depth, 16 bits each.
    uint b_ld;
    uint d_ld;
    float alpha;
    float beta;
#ifdef OPEN
    layout(offset = 128) uint numbers[12];
#endif
};

// Where each of those stands: C, bias, residual, B's scales, the one for all of them, zero points.
uint at_bias() {
    return ADDEND == ADDEND_GIVEN ? 1u : 0u;
}

uint at_residual() {
    return at_bias() + ((FLAGS & HAS_BIAS) != 0u ? 1u : 0u);
}

uint at_b_scale() {
    return at_residual() + ((FLAGS & HAS_RESIDUAL) != 0u ? 1u : 0u);
}

// The column of B at place `at`.
uint column(uint at) {
    return GATE == GATE_HALVES ? (at & 1u) * (n / 2u) + at / 2u : at;
}

// alpha · sum + beta · C + bias for B's column at place `at`.
float summed(float sum, uint which, uint row, uint at) {
    const float kept = (FLAGS & HALF_SUMS) != 0u ? of_f16(to_f16(sum)) : sum;
    float x = alpha * kept;
    const uint col = column(at);
    if (ADDEND != ADDEND_NONE && beta != 0.0) {
        const bool in_place = ADDEND == ADDEND_IN_PLACE;
        const uint64_t tight = (uint64_t(which) * m + row) * n + col;
        const uint64_t placed = which * d_stride
            + ((FLAGS & BY_COLUMNS) != 0u ? uint64_t(col) * d_ld + row : uint64_t(row) * d_ld + col);
        x += beta * number_at(in_place ? d : given[0], in_place ? placed : tight, in_place ? D_TYPE : C_TYPE);
    }
    if ((FLAGS & HAS_BIAS) != 0u) {
        x += number_at(given[at_bias()], col, BIAS_TYPE);
    }
    return x;
}

// Stores D's element of `row` and D's own column `col`.
void stored(float x, uint which, uint row, uint col) {
    const uint64_t at = which * d_stride
        + ((FLAGS & BY_COLUMNS) != 0u ? uint64_t(col) * d_ld + row : uint64_t(row) * d_ld + col);
    if ((FLAGS & HAS_RESIDUAL) != 0u) {
        x += number_at(given[at_residual()], at, RESIDUAL_TYPE);
    }
    store_number(d, at, D_TYPE, x);
}

// Finishes the sums at places `at` and `at + 1`, `at` being even.
void finished(float first, float second, uint which, uint row, uint at) {
    if (row >= m || at >= n) {
        return;
    }
    const float x = activated(summed(first, which, row, at), ACT);
    if (GATE != GATE_NONE) {
        stored(x * summed(second, which, row, at + 1u), which, row, at / 2u);
        return;
    }
    stored(x, which, row, at);
    if (at + 1u < n) {
        stored(activated(summed(second, which, row, at + 1u), ACT), which, row, at + 1u);
    }
}

// What becomes of a sum: D = store(act(alpha · sum + beta · C + bias) [· gate] + residual). See kp_hal::op::GemmSpec.
//
// Products see B's columns in an order of their own, in which the two that a gate combines are neighbours: `column` says
// which column of B stands at place `at`.
//
// Whoever includes this has the constants and sizes that it names, and says as macros: C_BASE, BIAS_BASE, RESIDUAL_BASE and
// STAGE_BASE, addresses; FIRST_BIAS, the bias of column 0; ROW_END, the row at which there is nothing more to store.

#include "gemm/glsl/real.glsl"

const uint HAS_BIAS = 1u, HAS_RESIDUAL = 2u, BY_COLUMNS = 4u, HALF_SUMS = 8u, STAGED = 128u;
const uint GATE_NONE = 0u, GATE_HALVES = 1u, GATE_PAIRS = 2u;
const uint ADDEND_NONE = 0u, ADDEND_GIVEN = 1u, ADDEND_IN_PLACE = 2u;

// The column of B at place `at`.
uint column(uint at) {
    return GATE == GATE_HALVES ? (at & 1u) * (n / 2u) + at / 2u : at;
}

// Where D has an element.
uint64_t d_place(uint which, uint row, uint col) {
    return which * uint64_t(d_stride) + ((FLAGS & BY_COLUMNS) != 0u ? uint64_t(col) * d_ld + row : uint64_t(row) * d_ld + col);
}

// alpha · sum + beta · C + bias for B's column at place `at`.
REAL summed(REAL sum, uint which, uint row, uint at) {
    const REAL kept = (FLAGS & HALF_SUMS) != 0u ? REAL(of_f16(to_f16(float(sum)))) : sum;
    REAL x = alpha * kept;
    const uint col = column(at);
    if (ADDEND != ADDEND_NONE && beta != 0.0) {
        const bool in_place = ADDEND == ADDEND_IN_PLACE;
        const uint64_t tight = (uint64_t(which) * m + row) * n + col;
        x += beta * real_at(in_place ? d : C_BASE, in_place ? d_place(which, row, col) : tight, in_place ? D_TYPE : C_TYPE);
    }
    if ((FLAGS & HAS_BIAS) != 0u) {
        x += real_at(BIAS_BASE, FIRST_BIAS + col, BIAS_TYPE);
    }
    return x;
}

// Stores D's element of `row` and D's own column `col`; where it waits to be scaled, as f32, rows tight.
void stored(REAL x, uint which, uint row, uint col) {
    const uint64_t at = d_place(which, row, col);
    if ((FLAGS & HAS_RESIDUAL) != 0u) {
        x += real_at(RESIDUAL_BASE, at, RESIDUAL_TYPE);
    }
    if ((FLAGS & STAGED) != 0u) {
        const uint d_cols = GATE == GATE_NONE ? n : n / 2u;
        Word(STAGE_BASE + 4ul * ((uint64_t(which) * m + row) * d_cols + col)).v = floatBitsToUint(float(x));
    } else {
        store_real(d, at, D_TYPE, x);
    }
}

// Finishes the sums at places `at` and `at + 1`, `at` being even.
void finished(REAL first, REAL second, uint which, uint row, uint at) {
    if (row >= ROW_END || at >= n) {
        return;
    }
    const REAL x = activated_real(summed(first, which, row, at), ACT);
    if (GATE != GATE_NONE) {
        stored(x * summed(second, which, row, at + 1u), which, row, at / 2u);
        return;
    }
    stored(x, which, row, at);
    if (at + 1u < n) {
        stored(activated_real(summed(second, which, row, at + 1u), ACT), which, row, at + 1u);
    }
}

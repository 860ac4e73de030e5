#version 460

// Layer, RMS and L2 normalization of each row, a residual added first; a group takes a row at a time. See kp_hal::op::NormSpec.
//
// Threads take runs of eight columns in turn, and keep their numbers from one pass over the row to the next where a row is no longer
// than KEPT runs of each. Variances are of what is left when the mean is taken away: one more pass for layer norms.

#include "common/glsl/numbers.glsl"
#include "common/glsl/runs.glsl"

layout(constant_id = 0) const uint THREADS = 256u;
layout(constant_id = 1) const uint X_TYPE = 1u;
layout(constant_id = 2) const uint Y_TYPE = 1u;
layout(constant_id = 3) const uint WEIGHT_TYPE = 1u;
layout(constant_id = 4) const uint BIAS_TYPE = 1u;
layout(constant_id = 5) const uint KIND = 0u;
// Bits: weight, bias, residual.
layout(constant_id = 6) const uint FLAGS = 0u;
// Runs that a thread keeps; 0 if a row has more.
layout(constant_id = 7) const uint KEPT = 0u;
// Whether eight numbers of every operand are loaded and stored at once.
layout(constant_id = 8) const uint AT_ONCE = 0u;
layout(local_size_x_id = 0) in;

const uint LAYER = 0u, RMS = 1u, L2 = 2u;
const uint HAS_WEIGHT = 1u, HAS_BIAS = 2u, HAS_RESIDUAL = 4u;

#include "common/glsl/group.glsl"

layout(push_constant, std430) uniform Push {
    uint64_t x;
    uint64_t y;
    uint64_t weight;
    uint64_t bias;
    uint64_t residual;
    uint64_t sum;
    uint rows;
    uint cols;
    uint x_ld;
    uint y_ld;
    float eps;
};

const uint KEEP = KEPT == 0u ? 1u : KEPT;

// The numbers that are normalized: a run of a row from `col`, with the residual.
void summed(uint64_t row, uint col, out float numbers[8]) {
    const bool at_once = AT_ONCE != 0u;
    load_run(x, row + col, cols - col, X_TYPE, at_once, numbers);
    if ((FLAGS & HAS_RESIDUAL) != 0u) {
        float more[8];
        load_run(residual, row + col, cols - col, X_TYPE, at_once, more);
        [[unroll]] for (uint i = 0u; i < 8u; i++) {
            numbers[i] += more[i];
        }
    }
}

// The sum of a run, or of its squares, `mean` taken away; of numbers from `col` that a row has.
float of_run(float numbers[8], uint col, float mean, bool squares) {
    float sum = 0.0;
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        const float off = numbers[i] - mean;
        sum += col + i < cols ? (squares ? off * off : off) : 0.0;
    }
    return sum;
}

void finish(uint row, uint col, float numbers[8], float mean, float factor) {
    const bool at_once = AT_ONCE != 0u;
    const uint count = cols - col;
    if ((FLAGS & HAS_RESIDUAL) != 0u) {
        store_run(sum, uint64_t(row) * x_ld + col, count, X_TYPE, at_once, numbers);
    }
    float factors[8];
    float addends[8];
    if ((FLAGS & HAS_WEIGHT) != 0u) {
        load_run(weight, col, count, WEIGHT_TYPE, at_once, factors);
    }
    if ((FLAGS & HAS_BIAS) != 0u) {
        load_run(bias, col, count, BIAS_TYPE, at_once, addends);
    }
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        float result = (numbers[i] - mean) * factor;
        if ((FLAGS & HAS_WEIGHT) != 0u) {
            result *= factors[i];
        }
        if ((FLAGS & HAS_BIAS) != 0u) {
            result += addends[i];
        }
        numbers[i] = result;
    }
    store_run(y, uint64_t(row) * y_ld + col, count, Y_TYPE, at_once, numbers);
}

void main() {
    const uint first = 8u * gl_LocalInvocationIndex;
    const uint step = 8u * THREADS;
    for (uint row = gl_WorkGroupID.x; row < rows; row += gl_NumWorkGroups.x) {
        const uint64_t x_row = uint64_t(row) * x_ld;
        float numbers[KEEP][8];
        [[unroll]] for (uint t = 0u; t < KEPT; t++) {
            if (first + t * step < cols) {
                summed(x_row, first + t * step, numbers[t]);
            }
        }
        float mean = 0.0;
        float squares = 0.0;
        // The mean, then the squares of what is left without it.
        for (uint pass = KIND == LAYER ? 0u : 1u; pass < 2u; pass++) {
            float part = 0.0;
            [[unroll]] for (uint t = 0u; t < KEPT; t++) {
                if (first + t * step < cols) {
                    part += of_run(numbers[t], first + t * step, mean, pass == 1u);
                }
            }
            for (uint col = first; KEPT == 0u && col < cols; col += step) {
                summed(x_row, col, numbers[0]);
                part += of_run(numbers[0], col, mean, pass == 1u);
            }
            const float all = group_sum(part);
            if (pass == 0u) {
                mean = all / float(cols);
            } else {
                squares = all;
            }
        }
        const float factor = 1.0 / (KIND == L2 ? larger(sqrt(squares), eps) : sqrt(squares / float(cols) + eps));
        [[unroll]] for (uint t = 0u; t < KEPT; t++) {
            if (first + t * step < cols) {
                finish(row, first + t * step, numbers[t], mean, factor);
            }
        }
        for (uint col = first; KEPT == 0u && col < cols; col += step) {
            summed(x_row, col, numbers[0]);
            finish(row, col, numbers[0], mean, factor);
        }
    }
}

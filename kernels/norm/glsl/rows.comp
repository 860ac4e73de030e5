#version 460
// also open: OPEN=1

// Layer, RMS and L2 normalization of each row, a residual added first; a group takes a row at a time. See kp_hal::op::NormSpec.
//
// Threads take runs of eight columns in turn, and keep them from one pass over the row to the next, as they lie in memory or as sums
// with the residual, where a row is no longer than KEPT runs of each. Variances are of what is left when the mean is taken away: one
// more pass for layer norms.

#include "common/glsl/numbers.glsl"
#include "common/glsl/runs.glsl"

#ifdef OPEN
// As numbers behind the arguments, all but those by which a row is laid out: see kp_vulkan::shaders::Open.
layout(constant_id = 0) const uint THREADS = 256u;
layout(constant_id = 7) const uint KEPT = 0u;
#define X_TYPE told[1]
#define Y_TYPE told[2]
#define WEIGHT_TYPE told[3]
#define BIAS_TYPE told[4]
#define KIND told[5]
#define FLAGS told[6]
#define AT_ONCE told[8]
#else
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
// Whether rows are whole runs, loaded and stored at once.
layout(constant_id = 8) const uint AT_ONCE = 0u;
#endif
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
#ifdef OPEN
    layout(offset = 128) uint told[9];
#endif
};

const uint KEEP = KEPT == 0u ? 1u : KEPT;

// What is kept of a run.
#define KEPT_TYPE ((FLAGS & HAS_RESIDUAL) != 0u ? F32 : X_TYPE)

#define WHOLE (AT_ONCE != 0u)

// Numbers of a row from `col`, eight at most.
uint count_from(uint col) {
    return WHOLE ? 8u : cols - col;
}

Run row_at(uint64_t base, uint64_t row, uint col) {
    return run_at(base, row + col, count_from(col), X_TYPE, WHOLE);
}

// The run that is normalized, of X and the residual.
Run summed(Run of_x, Run of_residual) {
    if ((FLAGS & HAS_RESIDUAL) == 0u) {
        return of_x;
    }
    float numbers[8];
    float more[8];
    numbers_of(of_x, X_TYPE, numbers);
    numbers_of(of_residual, X_TYPE, more);
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        numbers[i] += more[i];
    }
    return run_of(numbers, F32, false);
}

Run summed_at(uint64_t row, uint col) {
    Run more;
    if ((FLAGS & HAS_RESIDUAL) != 0u) {
        more = row_at(residual, row, col);
    }
    return summed(row_at(x, row, col), more);
}

// The sum of a run's numbers less `mean`, or of their squares.
float of_run(Run run, uint count, float mean, bool squares) {
    float numbers[8];
    numbers_of(run, KEPT_TYPE, numbers);
    float sum = 0.0;
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        const float off = KIND == LAYER ? numbers[i] - mean : numbers[i];
        sum += WHOLE || i < count ? (squares ? off * off : off) : 0.0;
    }
    return sum;
}

Run weights_at(uint col) {
    return run_at(weight, col, count_from(col), WEIGHT_TYPE, WHOLE);
}

Run biases_at(uint col) {
    return run_at(bias, col, count_from(col), BIAS_TYPE, WHOLE);
}

void finish(uint row, uint col, Run run, Run weights, Run biases, float mean, float factor) {
    const uint count = count_from(col);
    float numbers[8];
    numbers_of(run, KEPT_TYPE, numbers);
    if ((FLAGS & HAS_RESIDUAL) != 0u) {
        store_run(sum, uint64_t(row) * x_ld + col, count, X_TYPE, WHOLE, numbers);
    }
    float factors[8];
    float addends[8];
    if ((FLAGS & HAS_WEIGHT) != 0u) {
        numbers_of(weights, WEIGHT_TYPE, factors);
    }
    if ((FLAGS & HAS_BIAS) != 0u) {
        numbers_of(biases, BIAS_TYPE, addends);
    }
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        float result = (KIND == LAYER ? numbers[i] - mean : numbers[i]) * factor;
        if ((FLAGS & HAS_WEIGHT) != 0u) {
            result *= factors[i];
        }
        if ((FLAGS & HAS_BIAS) != 0u) {
            result += addends[i];
        }
        numbers[i] = result;
    }
    store_run(y, uint64_t(row) * y_ld + col, count, Y_TYPE, WHOLE, numbers);
}

void main() {
    const uint first = 8u * gl_LocalInvocationIndex;
    const uint step = 8u * THREADS;
    for (uint row = gl_WorkGroupID.x; row < rows; row += gl_NumWorkGroups.x) {
        const uint64_t x_row = uint64_t(row) * x_ld;
        Run kept[KEEP];
        Run more[KEEP];
        UNROLL for (uint t = 0u; t < KEPT; t++) {
            if (first + t * step < cols) {
                kept[t] = row_at(x, x_row, first + t * step);
                if ((FLAGS & HAS_RESIDUAL) != 0u) {
                    more[t] = row_at(residual, x_row, first + t * step);
                }
            }
        }
        UNROLL for (uint t = 0u; t < KEPT; t++) {
            kept[t] = summed(kept[t], more[t]);
        }
        float mean = 0.0;
        float squares = 0.0;
        // The mean, then the squares of what is left without it.
        for (uint pass = KIND == LAYER ? 0u : 1u; pass < 2u; pass++) {
            float part = 0.0;
            UNROLL for (uint t = 0u; t < KEPT; t++) {
                if (first + t * step < cols) {
                    part += of_run(kept[t], count_from(first + t * step), mean, pass == 1u);
                }
            }
            for (uint col = first; KEPT == 0u && col < cols; col += step) {
                part += of_run(summed_at(x_row, col), count_from(col), mean, pass == 1u);
            }
            const float all = group_sum(part);
            if (pass == 0u) {
                mean = all / float(cols);
            } else {
                squares = all;
            }
        }
        const float factor = 1.0 / (KIND == L2 ? larger(sqrt(squares), eps) : sqrt(squares / float(cols) + eps));
        // All of them before the first result is stored: no load is moved before a store.
        Run weights[KEEP];
        Run biases[KEEP];
        UNROLL for (uint t = 0u; t < KEPT; t++) {
            if (first + t * step < cols) {
                if ((FLAGS & HAS_WEIGHT) != 0u) {
                    weights[t] = weights_at(first + t * step);
                }
                if ((FLAGS & HAS_BIAS) != 0u) {
                    biases[t] = biases_at(first + t * step);
                }
            }
        }
        UNROLL for (uint t = 0u; t < KEPT; t++) {
            if (first + t * step < cols) {
                finish(row, first + t * step, kept[t], weights[t], biases[t], mean, factor);
            }
        }
        for (uint col = first; KEPT == 0u && col < cols; col += step) {
            if ((FLAGS & HAS_WEIGHT) != 0u) {
                weights[0] = weights_at(col);
            }
            if ((FLAGS & HAS_BIAS) != 0u) {
                biases[0] = biases_at(col);
            }
            finish(row, col, summed_at(x_row, col), weights[0], biases[0], mean, factor);
        }
    }
}

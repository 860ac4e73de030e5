#version 460

// y = exp(scale · x − max) / Σ exp(scale · x − max) over each row, or its logarithm; a group takes a row at a time.
//
// Threads take runs of eight columns in turn, and keep their numbers where a row is no longer than KEPT runs of each. A longer row is
// read twice: once for its largest number and the sum, kept together and rescaled when a larger one comes, once for the results.
// Threads add in order, then a group does.

#include "common/glsl/numbers.glsl"
#include "common/glsl/math.glsl"
#include "common/glsl/runs.glsl"

layout(constant_id = 0) const uint THREADS = 256u;
layout(constant_id = 1) const uint X_TYPE = 1u;
layout(constant_id = 2) const uint Y_TYPE = 1u;
layout(constant_id = 3) const uint LOG = 0u;
// Runs that a thread keeps; 0 if a row has more.
layout(constant_id = 4) const uint KEPT = 0u;
// Whether runs are loaded and stored at once.
layout(constant_id = 5) const uint AT_ONCE = 0u;
layout(local_size_x_id = 0) in;

#include "common/glsl/group.glsl"

layout(push_constant, std430) uniform Push {
    uint64_t x;
    uint64_t y;
    uint rows;
    uint cols;
    uint x_ld;
    uint y_ld;
    float scale;
};

const uint KEEP = KEPT == 0u ? 1u : KEPT;

// A run of a row from `col`, scaled; -infinity behind the row's end, which adds nothing.
void scaled(uint64_t x_row, uint col, out float numbers[8]) {
    load_run(x, x_row + col, cols - col, X_TYPE, AT_ONCE != 0u, numbers);
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        numbers[i] = col + i < cols ? scale * numbers[i] : -uintBitsToFloat(INFINITE);
    }
}

// Stores a run of differences or powers, less the logarithm of their sum or times its inverse.
void finish(uint64_t y_row, uint col, float numbers[8], float last) {
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        numbers[i] = LOG != 0u ? numbers[i] - last : numbers[i] * last;
    }
    store_run(y, y_row + col, cols - col, Y_TYPE, AT_ONCE != 0u, numbers);
}

void main() {
    const uint first = 8u * gl_LocalInvocationIndex;
    const uint step = 8u * THREADS;
    const float nothing = -uintBitsToFloat(INFINITE);
    for (uint row = gl_WorkGroupID.x; row < rows; row += gl_NumWorkGroups.x) {
        const uint64_t x_row = uint64_t(row) * x_ld;
        const uint64_t y_row = uint64_t(row) * y_ld;
        float numbers[KEEP][8];
        float most = nothing;
        float sum = 0.0;
        [[unroll]] for (uint t = 0u; t < KEPT; t++) {
            if (first + t * step < cols) {
                scaled(x_row, first + t * step, numbers[t]);
                [[unroll]] for (uint i = 0u; i < 8u; i++) {
                    most = larger(most, numbers[t][i]);
                }
            }
        }
        for (uint col = first; KEPT == 0u && col < cols; col += step) {
            scaled(x_row, col, numbers[0]);
            float of_run = numbers[0][0];
            [[unroll]] for (uint i = 1u; i < 8u; i++) {
                of_run = larger(of_run, numbers[0][i]);
            }
            // Where all is -infinity, less itself it would be NaN.
            if (of_run == nothing) {
                continue;
            }
            const float before = most;
            most = larger(most, of_run);
            sum = sum == 0.0 ? 0.0 : sum * exp_of(before - most);
            [[unroll]] for (uint i = 0u; i < 8u; i++) {
                sum += exp_of(numbers[0][i] - most);
            }
        }
        const float of_row = group_max(most);
        // A row of -infinity alone has no largest number.
        const float by = of_row == nothing ? uintBitsToFloat(QUIET_NAN) : of_row;
        if (KEPT == 0u) {
            sum = sum == 0.0 ? 0.0 : sum * exp_of(most - of_row);
        }
        [[unroll]] for (uint t = 0u; t < KEPT; t++) {
            if (first + t * step < cols) {
                [[unroll]] for (uint i = 0u; i < 8u; i++) {
                    const float less = numbers[t][i] - by;
                    const float power = exp_of(less);
                    sum += power;
                    numbers[t][i] = LOG != 0u ? less : power;
                }
            }
        }
        sum = group_sum(sum);
        const float last = LOG != 0u ? log_of(sum) : 1.0 / sum;
        [[unroll]] for (uint t = 0u; t < KEPT; t++) {
            if (first + t * step < cols) {
                finish(y_row, first + t * step, numbers[t], last);
            }
        }
        for (uint col = first; KEPT == 0u && col < cols; col += step) {
            scaled(x_row, col, numbers[0]);
            [[unroll]] for (uint i = 0u; i < 8u; i++) {
                numbers[0][i] = LOG != 0u ? numbers[0][i] - by : exp_of(numbers[0][i] - by);
            }
            finish(y_row, col, numbers[0], last);
        }
    }
}

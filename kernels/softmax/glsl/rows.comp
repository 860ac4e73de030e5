#version 460
// also open: OPEN=1

// y = exp(scale · x − max) / Σ exp(scale · x − max) over each row, or its logarithm; a group takes a row at a time.
//
// Threads take runs of eight columns in turn, and keep them where a row is no longer than KEPT runs of each. A longer row is read
// twice: once for its largest number and the sum, kept together and rescaled when a larger one comes, once for the results.
// Threads add in order, then a group does.

#include "common/glsl/numbers.glsl"
#include "common/glsl/math.glsl"
#include "common/glsl/runs.glsl"

#ifdef OPEN
// As numbers behind the arguments, all but those by which a row is laid out: see kp_vulkan::shaders::Open.
layout(constant_id = 0) const uint THREADS = 256u;
layout(constant_id = 4) const uint KEPT = 0u;
#define X_TYPE told[1]
#define Y_TYPE told[2]
#define LOG told[3]
#define AT_ONCE told[5]
#else
layout(constant_id = 0) const uint THREADS = 256u;
layout(constant_id = 1) const uint X_TYPE = 1u;
layout(constant_id = 2) const uint Y_TYPE = 1u;
layout(constant_id = 3) const uint LOG = 0u;
// Runs that a thread keeps; 0 if a row has more.
layout(constant_id = 4) const uint KEPT = 0u;
// Whether rows are whole runs, loaded and stored at once.
layout(constant_id = 5) const uint AT_ONCE = 0u;
#endif
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
#ifdef OPEN
    layout(offset = 128) uint told[6];
#endif
};

const uint KEEP = KEPT == 0u ? 1u : KEPT;

#define WHOLE (AT_ONCE != 0u)

Run row_at(uint64_t x_row, uint col) {
    return run_at(x, x_row + col, WHOLE ? 8u : cols - col, X_TYPE, WHOLE);
}

// The numbers of a run from `col`, scaled; -infinity behind the row's end, which adds nothing.
void scaled(Run run, uint col, out float numbers[8]) {
    numbers_of(run, X_TYPE, numbers);
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        numbers[i] = WHOLE || col + i < cols ? scale * numbers[i] : -uintBitsToFloat(INFINITE);
    }
}

// The largest of eight numbers and one more. NaN may get lost: it makes the sum NaN, and with it all results.
float most_of(float most, float numbers[8]) {
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        most = max(most, numbers[i]);
    }
    return most;
}

// Adds the powers e^(x - most) to `sum`.
void powers(float numbers[8], float most, inout float sum) {
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        sum += power_below(numbers[i] - most);
    }
}

// Stores the results of a run: powers times the inverse of their sum, or differences less its logarithm.
void finish(uint64_t y_row, uint col, Run run, float most, float last) {
    float numbers[8];
    scaled(run, col, numbers);
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        const float less = numbers[i] - most;
        numbers[i] = LOG != 0u ? less - last : power_below(less) * last;
    }
    store_run(y, y_row + col, WHOLE ? 8u : cols - col, Y_TYPE, WHOLE, numbers);
}

void main() {
    const uint first = 8u * gl_LocalInvocationIndex;
    const uint step = 8u * THREADS;
    const float nothing = -uintBitsToFloat(INFINITE);
    for (uint row = gl_WorkGroupID.x; row < rows; row += gl_NumWorkGroups.x) {
        const uint64_t x_row = uint64_t(row) * x_ld;
        const uint64_t y_row = uint64_t(row) * y_ld;
        Run kept[KEEP];
        float numbers[8];
        float most = nothing;
        float sum = 0.0;
        UNROLL for (uint t = 0u; t < KEPT; t++) {
            if (first + t * step < cols) {
                kept[t] = row_at(x_row, first + t * step);
            }
        }
        UNROLL for (uint t = 0u; t < KEPT; t++) {
            if (first + t * step < cols) {
                scaled(kept[t], first + t * step, numbers);
                most = most_of(most, numbers);
            }
        }
        for (uint col = first; KEPT == 0u && col < cols; col += step) {
            scaled(row_at(x_row, col), col, numbers);
            const float before = most;
            most = most_of(most, numbers);
            // Where all is -infinity, less itself it would be NaN.
            if (most != nothing) {
                sum = sum == 0.0 ? 0.0 : sum * power_below(before - most);
                powers(numbers, most, sum);
            }
        }
        const float of_row = group_max(most);
        // A row of -infinity alone has no largest number.
        const float by = of_row == nothing ? uintBitsToFloat(QUIET_NAN) : of_row;
        if (KEPT == 0u) {
            sum = sum == 0.0 ? 0.0 : sum * power_below(most - of_row);
        }
        // Powers are computed again for the results: registers for them would cost more, since fewer groups had room.
        UNROLL for (uint t = 0u; t < KEPT; t++) {
            if (first + t * step < cols) {
                scaled(kept[t], first + t * step, numbers);
                powers(numbers, by, sum);
            }
        }
        sum = group_sum(sum);
        const float last = LOG != 0u ? log_of(sum) : 1.0 / sum;
        UNROLL for (uint t = 0u; t < KEPT; t++) {
            if (first + t * step < cols) {
                finish(y_row, first + t * step, kept[t], by, last);
            }
        }
        for (uint col = first; KEPT == 0u && col < cols; col += step) {
            finish(y_row, col, row_at(x_row, col), by, last);
        }
    }
}

#version 460

// Each column to one number, or each segment of its rows.
//
//        8 · ACROSS columns     A group takes a tile of columns. Its threads take runs of eight columns, every DOWN-th row, DEEP of
//        ┌───────────┐          them under way together, and add in order of rows; then the sums of a column's threads are added in
//   DOWN │ . . . . . │          theirs. Tiles are narrow where columns are few, so that all of the device has work.
//        └───────────┘

#include "common/glsl/numbers.glsl"
#include "common/glsl/runs.glsl"

layout(constant_id = 0) const uint SEGMENTED = 0u;
layout(constant_id = 1) const uint X_TYPE = 1u;
layout(constant_id = 2) const uint Y_TYPE = 1u;
layout(constant_id = 3) const uint OP = 0u;
layout(constant_id = 4) const uint ACROSS = 32u;
// Whether rows are whole runs, loaded at once.
layout(constant_id = 5) const uint AT_ONCE = 0u;
layout(local_size_x = 256) in;

const uint DEEP = 4u;
const uint DOWN = 256u / ACROSS;
const uint WIDTH = 8u * ACROSS;

shared float of_threads[256u * 8u];

float larger(float x, float y) {
    return is_nan(x) ? x : is_nan(y) ? y : x > y ? x : y;
}

#include "reduce/glsl/fold.glsl"

void main() {
    const uint thread = gl_LocalInvocationIndex;
    const uint tiles_across = (cols + WIDTH - 1u) / WIDTH;
    const uint64_t items = uint64_t(segments) * tiles_across;
    for (uint64_t item = gl_WorkGroupID.x; item < items; item += gl_NumWorkGroups.x) {
        const uint segment = uint(item / tiles_across);
        const uint col_0 = uint(item - uint64_t(segment) * tiles_across) * WIDTH;
        const uint from = SEGMENTED != 0u ? Word(offsets + 4ul * segment).v : 0u;
        const uint to = SEGMENTED != 0u ? min(Word(offsets + 4ul * segment + 4ul).v, rows) : rows;
        const uint col = col_0 + thread % ACROSS * 8u;
        float parts[8];
        [[unroll]] for (uint i = 0u; i < 8u; i++) {
            parts[i] = neutral();
        }
        for (uint row_0 = from + thread / ACROSS; row_0 < to && col < cols; row_0 += DEEP * DOWN) {
            Run loaded[DEEP];
            [[unroll]] for (uint t = 0u; t < DEEP; t++) {
                if (row_0 + t * DOWN < to) {
                    loaded[t] = run_at(x, uint64_t(row_0 + t * DOWN) * x_ld + col, AT_ONCE != 0u ? 8u : cols - col, X_TYPE, AT_ONCE != 0u);
                }
            }
            [[unroll]] for (uint t = 0u; t < DEEP; t++) {
                if (row_0 + t * DOWN < to) {
                    float numbers[8];
                    numbers_of(loaded[t], X_TYPE, numbers);
                    [[unroll]] for (uint i = 0u; i < 8u; i++) {
                        parts[i] = folded(parts[i], numbers[i]);
                    }
                }
            }
        }
        [[unroll]] for (uint i = 0u; i < 8u; i++) {
            of_threads[thread / ACROSS * WIDTH + thread % ACROSS * 8u + i] = parts[i];
        }
        barrier();
        for (uint c = thread; c < min(WIDTH, cols - col_0); c += 256u) {
            float all = of_threads[c];
            for (uint d = 1u; d < DOWN; d++) {
                const float more = of_threads[d * WIDTH + c];
                all = is_extreme() ? larger(all, more) : all + more;
            }
            store_number(y, uint64_t(segment) * cols + col_0 + c, Y_TYPE, result_of(all, to > from ? to - from : 0u));
        }
        // Nobody writes the next ones before everybody has read these.
        barrier();
    }
}

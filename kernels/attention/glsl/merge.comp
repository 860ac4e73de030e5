#version 460
#extension GL_GOOGLE_include_directive : require
// also open: OPEN=1

// Rows whose keys were split among groups: O = Σ e^(mᵢ − m) oᵢ / (Σ e^(mᵢ − m) lᵢ + e^(sink − m)), parts added in their order.
// A group takes a row at a time: first its threads find the parts' weights, a part each, then the columns, a column each.

#include "attention/glsl/problem.glsl"
#include "attention/glsl/finish.glsl"

layout(local_size_x = 128) in;

const uint THREADS = 128u;
// Parts of a row, at most: kp_vulkan's `MOST_SPLITS`.
const uint MOST = 256u;

// Each part's greatest score, then what its numbers count for.
shared float factors[MOST];
shared float sums[MOST];

void main() {
    const uint thread = gl_LocalInvocationIndex;
    const uint rows = q_len * GROUP;
    const uint items = batch * KV_HEADS * rows;
    for (uint item = gl_WorkGroupID.x; item < items; item += gl_NumWorkGroups.x) {
        const uint row = item % rows;
        const uint kv_head = item / rows % KV_HEADS;
        const Sequence s = sequence(item / rows / KV_HEADS);
        if (row >= s.queries * GROUP) {
            continue;
        }
        const uint64_t first = part_place(s.number, kv_head, row, 0u);
        for (uint i = thread; i < splits; i += THREADS) {
            factors[i] = part_at(first + i * PART, V_DIM);
            sums[i] = part_at(first + i * PART, V_DIM + 1u);
        }
        barrier();
        float most = -uintBitsToFloat(INFINITE);
        for (uint i = 0u; i < splits; i++) {
            most = max(most, factors[i]);
        }
        barrier();
        for (uint i = thread; i < splits; i += THREADS) {
            // A part without keys has nothing to say.
            factors[i] = sums[i] == 0.0 ? 0.0 : exp_of(factors[i] - most);
        }
        barrier();
        float total = 0.0;
        for (uint i = 0u; i < splits; i++) {
            total += factors[i] * sums[i];
        }
        const uint head = kv_head * GROUP + row % GROUP;
        const uvec3 token = query_token(s, row / GROUP);
        const float seen = most;
        total = with_sink(head, most, total);
        const float by = total == 0.0 ? 0.0 : (seen == most ? 1.0 : exp_of(seen - most)) / total;
        if (thread == 0u) {
            store_lse(token, head, most, total);
        }
        for (uint col = thread; col < V_DIM; col += THREADS) {
            float x = 0.0;
            // Several parts under way together, added in their order.
            uint i = 0u;
            for (; i + 8u <= splits; i += 8u) {
                float parts[8];
                [[unroll]] for (uint j = 0u; j < 8u; j++) {
                    parts[j] = part_at(first + (i + j) * PART, col);
                }
                [[unroll]] for (uint j = 0u; j < 8u; j++) {
                    x += factors[i + j] == 0.0 ? 0.0 : factors[i + j] * parts[j];
                }
            }
            for (; i < splits; i++) {
                x += factors[i] == 0.0 ? 0.0 : factors[i] * part_at(first + i * PART, col);
            }
            store_number(o, token_place(token, head, Q_HEADS, V_DIM, O_LD) + col, O_TYPE, by * x);
        }
        // Nobody writes the next ones before everybody has read these.
        barrier();
    }
}

#version 460
#extension GL_GOOGLE_include_directive : require

// Rows whose keys were split among groups: O = Σ e^(mᵢ − m) oᵢ / (Σ e^(mᵢ − m) lᵢ + e^(sink − m)), parts added in their order.
// A group takes a row at a time, a thread its columns.

#include "attention/glsl/problem.glsl"
#include "attention/glsl/finish.glsl"

layout(local_size_x = 64) in;

void main() {
    const uint rows = q_len * GROUP;
    const uint items = batch * KV_HEADS * rows;
    for (uint item = gl_WorkGroupID.x; item < items; item += gl_NumWorkGroups.x) {
        const uint row = item % rows;
        const uint kv_head = item / rows % KV_HEADS;
        const Sequence s = sequence(item / rows / KV_HEADS);
        if (row >= s.queries * GROUP) {
            continue;
        }
        float most = -uintBitsToFloat(INFINITE);
        for (uint i = 0u; i < splits; i++) {
            most = max(most, part_at(part_place(s.number, kv_head, row, i), V_DIM));
        }
        const float seen = most;
        float total = 0.0;
        for (uint i = 0u; i < splits; i++) {
            const uint64_t part = part_place(s.number, kv_head, row, i);
            const float weight = part_at(part, V_DIM + 1u);
            total += weight == 0.0 ? 0.0 : weight * exp_of(part_at(part, V_DIM) - seen);
        }
        const uint head = kv_head * GROUP + row % GROUP;
        const uvec3 token = query_token(s, row / GROUP);
        total = with_sink(head, most, total);
        if (gl_LocalInvocationIndex == 0u) {
            store_lse(token, head, most, total);
        }
        for (uint col = gl_LocalInvocationIndex; col < V_DIM; col += 64u) {
            float x = 0.0;
            for (uint i = 0u; i < splits; i++) {
                const uint64_t part = part_place(s.number, kv_head, row, i);
                const float of_part = part_at(part, V_DIM);
                // A part without keys has nothing to say.
                if (part_at(part, V_DIM + 1u) != 0.0) {
                    x += part_at(part, col) * exp_of(of_part - most);
                }
            }
            store_number(o, token_place(token, head, Q_HEADS, V_DIM, O_LD) + col, O_TYPE, total == 0.0 ? 0.0 : x / total);
        }
    }
}

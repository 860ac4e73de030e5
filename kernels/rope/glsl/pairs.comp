#version 460

// Rotates pairs of numbers by the token's position; a thread turns a pair or copies a number at a time. See kp_hal::op::RopeSpec.

#include "common/glsl/numbers.glsl"

layout(constant_id = 0) const uint X_TYPE = 1u;
layout(constant_id = 1) const uint Y_TYPE = 1u;
layout(constant_id = 2) const uint ADJACENT = 0u;
layout(constant_id = 3) const uint INVERSE = 0u;
layout(local_size_x = 256) in;

layout(push_constant, std430) uniform Push {
    uint64_t x;
    uint64_t y;
    uint64_t turns;
    uint64_t cosines;
    uint64_t sines;
    uint tokens;
    uint heads;
    uint dim;
    uint rotated;
    uint positions;
    uint x_ld;
    uint y_ld;
};

void main() {
    // Pairs that are turned, then numbers that are copied.
    const uint pairs = rotated / 2u;
    const uint per_head = pairs + (dim - rotated);
    const uint64_t items = uint64_t(tokens) * heads * per_head;
    const uint64_t step = uint64_t(gl_NumWorkGroups.x) * 256ul;
    for (uint64_t i = uint64_t(gl_WorkGroupID.x) * 256ul + gl_LocalInvocationIndex; i < items; i += step) {
        const uint64_t head_of_all = i / per_head;
        const uint item = uint(i - head_of_all * per_head);
        const uint token = uint(head_of_all / heads);
        const uint head = uint(head_of_all - uint64_t(token) * heads);
        const uint64_t from = uint64_t(token) * x_ld + head * dim;
        const uint64_t to = uint64_t(token) * y_ld + head * dim;
        if (item >= pairs) {
            const uint place = rotated + (item - pairs);
            store_number(y, to + place, Y_TYPE, number_at(x, from + place, X_TYPE));
            continue;
        }
        const uint first = ADJACENT != 0u ? 2u * item : item;
        const uint second = ADJACENT != 0u ? first + 1u : item + pairs;
        float cosine = uintBitsToFloat(QUIET_NAN);
        float sine = cosine;
        // As unsigned, what is negative is past every table.
        const uint position = Word(turns + 4ul * token).v;
        if (position < positions) {
            const uint64_t entry = uint64_t(position) * pairs + item;
            cosine = number_at(cosines, entry, F32);
            sine = number_at(sines, entry, F32);
        }
        if (INVERSE != 0u) {
            sine = -sine;
        }
        const float a = number_at(x, from + first, X_TYPE);
        const float b = number_at(x, from + second, X_TYPE);
        store_number(y, to + first, Y_TYPE, a * cosine - b * sine);
        store_number(y, to + second, Y_TYPE, b * cosine + a * sine);
    }
}

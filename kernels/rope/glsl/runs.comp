#version 460

// Rotates pairs of numbers by the token's position, run of eight by run of eight; what is not rotated is copied. See
// kp_hal::op::RopeSpec.
//
// An item is eight pairs, or eight numbers that are copied. Each head of a token is a row of them. A thread has DEEP heads of a token,
// which turn by the same angles.
// Limits: pairs that are rotated and numbers that are not come in eights; tokens of a multiple of DEEP heads.

#include "common/glsl/numbers.glsl"
#include "common/glsl/runs.glsl"

layout(constant_id = 0) const uint X_TYPE = 1u;
layout(constant_id = 1) const uint Y_TYPE = 1u;
layout(constant_id = 2) const uint ADJACENT = 0u;
layout(constant_id = 3) const uint INVERSE = 0u;
layout(constant_id = 4) const uint ACROSS = 8u;
layout(constant_id = 5) const uint DEEP = 1u;
layout(constant_id = 6) const uint HEADS = 1u;
layout(constant_id = 7) const uint DIM = 64u;
layout(constant_id = 8) const uint ROTATED = 64u;
layout(local_size_x = 256) in;

layout(push_constant, std430) uniform Push {
    uint64_t x;
    uint64_t y;
    uint64_t turns;
    uint64_t cosines;
    uint64_t sines;
    // Heads of all tokens.
    uint rows;
    // Items of a head, times eight.
    uint cols;
    uint positions;
    uint x_ld;
    uint y_ld;
    uint tiles_across;
};

#include "common/glsl/tiles.glsl"

const uint PAIRS = ROTATED / 2u;

void main() {
    for (uint tile = gl_WorkGroupID.x; tile < tiles(); tile += gl_NumWorkGroups.x) {
        // Of the rows that `place_in` gives to threads in turn, each has neighbours instead.
        const uvec2 place = place_in(tile);
        const uint down = tile / tiles_across * DOWN;
        const uvec2 first = uvec2(down + (place.x - down) * DEEP, place.y);
        if (first.y >= cols || first.x >= rows) {
            continue;
        }
        const bool turned = first.y < PAIRS;
        // Where the two runs of an item start in their head: eight pairs' first and second numbers, or one behind the other.
        const uint low = ADJACENT != 0u ? 2u * first.y : first.y;
        const uint high = ADJACENT != 0u ? low + 8u : low + PAIRS;
        const uint token = first.x / HEADS;
        const uint head = first.x - token * HEADS;
        Run loaded[DEEP * 2u];
        Run angles[2];
        const uint64_t from = uint64_t(token) * x_ld + head * DIM;
        // As unsigned, what is negative is past every table.
        const uint position = Word(turns + 4ul * token).v;
        [[unroll]] for (uint i = 0u; i < DEEP; i++) {
            loaded[2u * i] = run_at(x, from + i * DIM + (turned ? low : first.y + PAIRS), 8u, X_TYPE, true);
            if (turned) {
                loaded[2u * i + 1u] = run_at(x, from + i * DIM + high, 8u, X_TYPE, true);
            }
        }
        angles[0] = Run(uvec4(QUIET_NAN), uvec4(QUIET_NAN));
        angles[1] = angles[0];
        if (turned && position < positions) {
            const uint64_t entry = uint64_t(position) * PAIRS + first.y;
            angles[0] = run_at(cosines, entry, 8u, F32, true);
            angles[1] = run_at(sines, entry, 8u, F32, true);
        }
        float cosine[8];
        float sine[8];
        numbers_of(angles[0], F32, cosine);
        numbers_of(angles[1], F32, sine);
        [[unroll]] for (uint i = 0u; i < DEEP; i++) {
            const uint64_t to = uint64_t(token) * y_ld + (head + i) * DIM;
            float a[8];
            numbers_of(loaded[2u * i], X_TYPE, a);
            if (!turned) {
                store_run(y, to + first.y + PAIRS, 8u, Y_TYPE, true, a);
                continue;
            }
            float b[8];
            numbers_of(loaded[2u * i + 1u], X_TYPE, b);
            float together[16];
            [[unroll]] for (uint j = 0u; j < 8u; j++) {
                together[j] = a[j];
                together[8u + j] = b[j];
            }
            [[unroll]] for (uint j = 0u; j < 8u; j++) {
                const uint at = ADJACENT != 0u ? 2u * j : j;
                const uint other = ADJACENT != 0u ? at + 1u : j + 8u;
                const float s = INVERSE != 0u ? -sine[j] : sine[j];
                const float turned_a = together[at] * cosine[j] - together[other] * s;
                together[other] = together[other] * cosine[j] + together[at] * s;
                together[at] = turned_a;
            }
            [[unroll]] for (uint j = 0u; j < 8u; j++) {
                a[j] = together[j];
                b[j] = together[8u + j];
            }
            store_run(y, to + low, 8u, Y_TYPE, true, a);
            store_run(y, to + high, 8u, Y_TYPE, true, b);
        }
    }
}

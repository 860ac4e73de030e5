#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require

// B's scales as `coopmat_weights` takes them where A is f16, of which the range is narrower: those of a column over the power of two that
// is next to the largest, times what multiplies codes that are f16 by their bits; and for each column that power times the scale of all,
// which multiplies its sums.
//
// A subgroup makes those of the columns that share scales, looks for the largest first, and then at all of them again.
//
// Limits: scales of blocks along k, results of f16 or f32.

#include "common/glsl/numbers.glsl"
#include "common/glsl/scales.glsl"

layout(constant_id = 0) const uint HAS_GLOBAL = 0u;
layout(local_size_x = 256) in;

layout(push_constant, std430) uniform Push {
    uint64_t from;
    // One scale for all, if there is one.
    uint64_t global;
    uint64_t to;
    uint64_t factors;
    // Columns of blocks of all matrices.
    uint64_t all;
    uint n;
    // Columns that share scales, and how many blocks there are along them and along k.
    uint cols;
    uint blocks_across;
    uint blocks_down;
    uint from_type;
    uint to_type;
    uint order;
    float unit;
};

void main() {
    const uint per_group = 256u / gl_SubgroupSize;
    const uvec2 blocks = uvec2(blocks_across, blocks_down);
    for (uint64_t item = uint64_t(gl_WorkGroupID.x) * per_group + gl_SubgroupID; item < all; item += uint64_t(gl_NumWorkGroups.x) * per_group) {
        const uint which = uint(item / blocks_across);
        const uint o = uint(item - uint64_t(which) * blocks_across);
        const uint64_t first = which * scale_count(order, blocks);
        uint most = 0u;
        for (uint i = gl_SubgroupInvocationID; i < blocks_down; i += gl_SubgroupSize) {
            const float scale = number_at(from, first + scale_place(order, o, i, blocks), from_type);
            const uint magnitude = floatBitsToUint(scale) & 0x7fffffffu;
            most = magnitude < INFINITE ? max(most, magnitude) : most;
        }
        // So that both powers are normal numbers.
        const int exponent = clamp(int(subgroupMax(most) >> 23) - 127, -100, 126);
        const float by = power_of_two(-exponent) * (NATIVE != 0u ? unit : 1.0);
        for (uint i = gl_SubgroupInvocationID; i < blocks_down; i += gl_SubgroupSize) {
            const uint64_t place = first + scale_place(order, o, i, blocks);
            store_number(to, place, to_type, number_at(from, place, from_type) * by);
        }
        float factor = power_of_two(exponent);
        if (HAS_GLOBAL != 0u) {
            factor *= number_at(global, 0ul, F32);
        }
        for (uint col = o * cols + gl_SubgroupInvocationID; col < min(n, o * cols + cols); col += gl_SubgroupSize) {
            store_number(factors, uint64_t(which) * n + col, F32, factor);
        }
    }
}

#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#ifdef OF_BF16
#extension GL_EXT_bfloat16 : require
#define ELEMENT bfloat16_t
#else
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define ELEMENT float16_t
#endif
// also bf16: OF_BF16=1

// Asks which lane of a subgroup has what of matrices of 16×N×16, of which Vulkan says nothing. Kernels that fill matrices from
// registers want lane 4 · i + j to have, of what a product multiplies, numbers 2j, 2j + 1, 2j + 8 and 2j + 9 along k of line i, then
// of line i + 8 if there is one; of sums, as many columns of rows i and i + 8.
//
// The numbers are those of the places in the matrix, row by row or, of the right one, column by column: all are exact in both types. A
// bit of `wrong` is set for each matrix in which somebody found another.

#include "common/glsl/numbers.glsl"

layout(local_size_x = 32) in;
layout(constant_id = 0) const uint N = 8u;

layout(push_constant, std430) uniform Push {
    uint64_t wrong;
};

const uint LEFT = 1u, RIGHT = 2u, SUMS = 4u, SUBGROUP = 8u;

shared uvec4 halves[32];
shared float floats[256];

// Place of element `e`, in lines of `width` numbers of which a lane has four, or two where they are but eight.
uint place(uint e, uint width) {
    const uint of_line = width / 4u;
    const uint at = e % of_line;
    return (gl_SubgroupInvocationID / 4u + 8u * (e / of_line)) * width + gl_SubgroupInvocationID % 4u * 2u + at % 2u + 8u * (at / 2u);
}

uint code(uint number) {
#ifdef OF_BF16
    return floatBitsToUint(float(number)) >> 16;
#else
    return to_f16(float(number));
#endif
}

void main() {
    const uint thread = gl_LocalInvocationIndex;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        halves[thread][i] = code(8u * thread + 2u * i) | code(8u * thread + 2u * i + 1u) << 16;
    }
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        floats[8u * thread + i] = float(8u * thread + i);
    }
    barrier();
    coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> left;
    coopmat<ELEMENT, gl_ScopeSubgroup, 16, N, gl_MatrixUseB> right;
    coopmat<float, gl_ScopeSubgroup, 16, N, gl_MatrixUseAccumulator> sums;
    coopMatLoad(left, halves, 0u, 2u, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(right, halves, 0u, 2u, gl_CooperativeMatrixLayoutColumnMajor);
    coopMatLoad(sums, floats, 0u, N, gl_CooperativeMatrixLayoutRowMajor);
    uint found = gl_SubgroupSize == 32u ? 0u : SUBGROUP;
    found |= left.length() == 8u ? 0u : LEFT;
    found |= right.length() == N / 2u ? 0u : RIGHT;
    found |= sums.length() == N / 2u ? 0u : SUMS;
    if (found == 0u) {
        [[unroll]] for (uint e = 0u; e < 8u; e++) {
            found |= uint(float(left[e])) == place(e, 16u) ? 0u : LEFT;
        }
        [[unroll]] for (uint e = 0u; e < N / 2u; e++) {
            found |= uint(float(right[e])) == place(e, 16u) ? 0u : RIGHT;
            found |= uint(sums[e]) == place(e, N) ? 0u : SUMS;
        }
    }
    if (found != 0u) {
        atomicOr(Word(wrong).v, found);
    }
}

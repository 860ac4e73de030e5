#version 460
#extension GL_GOOGLE_include_directive : require
#ifdef OF_MATRICES
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#ifdef OF_BF16
#extension GL_EXT_bfloat16 : require
#define ELEMENT bfloat16_t
#else
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define ELEMENT float16_t
#endif
#endif
// also coopmat: OF_MATRICES=1
// also coopmat_bf16: OF_MATRICES=1 OF_BF16=1

// How fast a device multiplies and adds what its registers hold: each thread makes CHAINS sums of products of f32, each subgroup as many
// of matrices, and none of them waits for another. A round adds STEPS products to each.

#include "common/glsl/memory.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256u;
layout(constant_id = 1) const uint M = 16u;
layout(constant_id = 2) const uint N = 16u;
layout(constant_id = 3) const uint K = 16u;

layout(push_constant, std430) uniform Push {
    uint64_t result;
    uint rounds;
    // What is multiplied, unknown to the compiler; sums stay small.
    float x;
    float y;
};

const uint CHAINS = 8u, STEPS = 8u;

void main() {
    float total = 0.0;
#ifdef OF_MATRICES
    // Different everywhere: of two equal halves of a matrix a compiler would multiply one.
    coopmat<ELEMENT, gl_ScopeSubgroup, M, K, gl_MatrixUseA> left;
    coopmat<ELEMENT, gl_ScopeSubgroup, K, N, gl_MatrixUseB> right;
    coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> sums[CHAINS];
    const float own = float(gl_LocalInvocationIndex + 1u);
    [[dont_unroll]] for (uint e = 0u; e < left.length(); e++) {
        left[e] = ELEMENT(x / (own + float(e)));
    }
    [[dont_unroll]] for (uint e = 0u; e < right.length(); e++) {
        right[e] = ELEMENT(y / (own + float(e)));
    }
    [[unroll]] for (uint i = 0u; i < CHAINS; i++) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(x * float(i));
        [[dont_unroll]] for (uint e = 0u; e < sums[i].length(); e++) {
            sums[i][e] += own * float(e);
        }
    }
    [[dont_unroll]] for (uint round = 0u; round < rounds; round++) {
        [[unroll]] for (uint step = 0u; step < STEPS * CHAINS; step++) {
            sums[step % CHAINS] = coopMatMulAdd(left, right, sums[step % CHAINS]);
        }
    }
    [[unroll]] for (uint i = 0u; i < CHAINS; i++) {
        [[dont_unroll]] for (uint e = 0u; e < sums[i].length(); e++) {
            total += sums[i][e];
        }
    }
#else
    float sums[CHAINS];
    [[unroll]] for (uint i = 0u; i < CHAINS; i++) {
        sums[i] = x * float(i + gl_LocalInvocationIndex);
    }
    [[dont_unroll]] for (uint round = 0u; round < rounds; round++) {
        [[unroll]] for (uint step = 0u; step < STEPS * CHAINS; step++) {
            sums[step % CHAINS] = fma(sums[step % CHAINS], x, y);
        }
    }
    [[unroll]] for (uint i = 0u; i < CHAINS; i++) {
        total += sums[i];
    }
#endif
    // Never, which the compiler does not know either.
    if (total == 1e30) {
        Word(result).v = THREADS;
    }
}

#version 460
#extension GL_GOOGLE_include_directive : require
// also open: OPEN=1

// D from sums over parts of k, at `a`: for each matrix as many of m × n numbers of f32, rows tight. They are added in their order.
//
// A thread makes two columns of a row, those that a gate combines.

#include "gemm/glsl/finish.glsl"

layout(local_size_x = 256) in;

float sum_of(uint which, uint row, uint at) {
    const uint col = column(min(at, n - 1u));
    float sum = 0.0;
    for (uint i = 0u; i < splits; i++) {
        sum += uintBitsToFloat(Word(a + 4ul * ((uint64_t(which * splits + i) * m + row) * n + col)).v);
    }
    return sum;
}

void main() {
    const uint pairs = (n + 1u) / 2u;
    const uint64_t all = uint64_t(batch) * m * pairs;
    const uint64_t apart = 256ul * gl_NumWorkGroups.x;
    for (uint64_t e = 256ul * gl_WorkGroupID.x + gl_LocalInvocationIndex; e < all; e += apart) {
        const uint64_t line = e / pairs;
        const uint at = 2u * uint(e - line * pairs);
        const uint which = uint(line / m);
        const uint row = uint(line - uint64_t(which) * m);
        finished(sum_of(which, row, at), sum_of(which, row, at + 1u), which, row, at);
    }
}

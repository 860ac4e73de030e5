#version 460
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#ifdef OF_BF16
#extension GL_EXT_bfloat16 : require
#define ELEMENT bfloat16_t
#else
#define ELEMENT float16_t
#endif
// also bf16: OF_BF16=1
// also open: OPEN=1
// also weights: WEIGHTS=1
// also weights_bf16: WEIGHTS=1 OF_BF16=1
// also weights_open: WEIGHTS=1 OPEN=1

// D = A·B of 16-bit floats on the matrix unit, sums in f32, through VK_KHR_cooperative_matrix.
//
//        BN                  A group makes tiles of BM × BN; ACROSS × DOWN subgroups each take a part of it, whose sums they hold as
//      ┌─────┬─────┐ BK      matrices of M × N. A step's BK columns of A and BK rows of B stand in shared memory as they lie in
//   BM │  0  │  1  │         memory. Once a subgroup has its last matrices of a step, and while it still multiplies them, it stores the
//      ├─────┼─────┤         next step's, which came meanwhile, and sends for those of the step after. What follows the sums goes
//      │  2  │  3  │         through shared memory, one matrix of each subgroup at a time, since nobody else knows which lane has
//      └─────┴─────┘         what.
//
// Steps are so made of pieces of 16 bytes, without a look at any: for rows and columns that are not there the last one is
// loaded, and its sums are not stored. What is left of k, and operands that do not lie that way, are brought element by element.
//
// With WEIGHTS, B has codes of 8 or 4 bits, scaled or not, its columns contiguous: they become ELEMENT on the way to shared memory.
//
// Sums are made in order of k, M, N and K being the same for every problem, so a row's bits depend on nothing but the row; unless k is
// in parts, of each of which D has a matrix of its own: `splits.comp` adds them. Groups of rows have tiles of their own.
// Limits: A, and B but for WEIGHTS, of the type that ELEMENT is; sizes below 2^31; shapes that the driver lists.

#define GROUPED
#include "gemm/glsl/finish.glsl"
#include "gemm/glsl/operands.glsl"

#define SUMMED float
#define BYTES 2ul
#define BITS 16u
#define FIRST 12
// One where that is all there is, which folds away whatever depends on it: that costs large tiles 7 %.
#define SPLITS ((FLAGS & IN_PARTS) != 0u ? splits : 1u)
#include "gemm/glsl/coopmat.glsl"

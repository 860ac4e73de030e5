#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
// also open: OPEN=1 SMALL_PIECES=1

// D = A·B of whole numbers of 8 bits on the matrix unit, through VK_KHR_cooperative_matrix.
//
// See coopmat.comp for the tiling. Sums are exact, modulo 2^32, in any order; scales of rows of A and of columns of B multiply them when
// they are done.
// Limits: A and B of I8; scales that serve all of k; no zero points; sizes below 2^31; shapes that the driver lists.

#include "gemm/glsl/product.glsl"

#define OF_I8
#define ELEMENT int8_t
#define SUMMED int
#define BYTES 1ul
#define BITS 8u
#define FIRST 21
#define SPLITS 1u
#include "gemm/glsl/coopmat.glsl"

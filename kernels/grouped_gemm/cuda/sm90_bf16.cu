// Of each group of rows, D = alpha · A · B[group]ᵀ of bf16. GROUPING: 1, 2.
#define A_SCALE 0
#define B_SCALE 0
#define TYPE WgmmaType::BF16
#include "gemm/cuda/sm90_blocks.cuh"

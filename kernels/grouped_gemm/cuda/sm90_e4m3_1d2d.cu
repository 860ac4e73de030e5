// Of each group of rows, D = alpha · A · B[group]ᵀ of e4m3: A scaled per row and 128 k, B per 128 rows and 128 k. GROUPING: 1, 2.
#define A_SCALE 1
#define B_SCALE 128
#define TYPE WgmmaType::E4M3
#include "gemm/cuda/sm90_blocks.cuh"

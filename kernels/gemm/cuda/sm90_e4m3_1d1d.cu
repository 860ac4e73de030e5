// D = alpha · A · Bᵀ of e4m3: A scaled per row and 128 k, B too.
#define A_SCALE 1
#define B_SCALE 1
#define TYPE WgmmaType::E4M3
#include "gemm/cuda/sm90_blocks.cuh"

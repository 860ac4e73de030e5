// D = epilogue(alpha · A·B + beta · C) for m up to 128 and weights of few tiles: clusters part k.
//
//      B, n×k: ROWS rows a tile                         A, m×k: TOKENS rows a tile
//      ┌────────┬────────┬────────┬────────┐            ┌────────┬──── … ┬────────┐
//      │ rank 0 │ rank 1 │ rank 2 │ rank 3 │            │ rank 0 │       │ rank 3 │      each a block of its own
//      └────────┴────────┴────────┴────────┘            └────────┴──── … ┴────────┘
//
// Each of a tile's KP_SPLIT blocks sums its part of k, then finishes its share of the tile, adding the ranks' sums in rank
// order out of their shared memory. The order of summation depends on k, KP_SPLIT and the type alone. Blocks live for one
// tile; two or three share a multiprocessor, so that one's beginning and end hide behind another's copies.
// Tiles, maps and the other macros: sm90_swap.cuh.
//
// Entry    gemm(const __grid_constant__ TensorMap a, b, const __grid_constant__ swap::Problem)
// Grid     x: SPLIT · ceil(n / ROWS), y: ceil(m / TOKENS), z: batch; cluster (SPLIT, 1, 1); block 128·GROUPS + 32
// Shared   dynamic: 1024 + max(STAGES · STAGE, GROUPS · GROUP_SUMS). No scratch. May be launched with programmatic serialization
// Macros   KP_SPLIT   1 … 8
#include "gemm/cuda/sm90_swap.cuh"

constexpr u32 SPLIT = KP_SPLIT;

extern "C" __global__ void __launch_bounds__(swap::THREADS, KP_BLOCKS_PER_SM)
    gemm(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ swap::Problem p) {
    extern __shared__ u8 raw[];
    __shared__ alignas(8) u64 barriers[2 * swap::STAGES];
    swap::Ring ring = {(ptx::smem_address(raw) + 1023) & ~1023u, ptx::smem_address(barriers)};
    const u32 group = ptx::warp() / 4, rank = SPLIT == 1 ? 0 : ptx::cluster_rank();
    const u32 tile = blockIdx.x / SPLIT, row0 = blockIdx.y * swap::TOKENS, batch = blockIdx.z;
    const u32 begin = (u64)p.stages_k * rank / SPLIT, end = (u64)p.stages_k * (rank + 1) / SPLIT;

    if constexpr (SPLIT > 1) ptx::cluster_arrive(); // waited for before the first access of another block's memory
    const swap::Loader loader = {&a, &b, p};
    const bool loads = group == swap::GROUPS && ptx::elect();
    const u32 first = min(end, begin + swap::STAGES);
    if (loads) {
        loader.fetch_maps();
        ring.init();
        if constexpr (KP_PREFETCH) loader.prefetch(tile, batch, begin, end);
        ptx::wait_for_previous_kernel();
        if constexpr (KP_EARLY) ptx::allow_next_kernel();
        loader.load(ring, tile, row0, batch, begin, first);
    }
    __syncthreads();

    if (group == swap::GROUPS) {
        if (loads) {
            loader.load(ring, tile, row0, batch, first, end);
            if constexpr (!KP_EARLY) ptx::allow_next_kernel();
        }
        __syncwarp();
        if constexpr (SPLIT > 1) {
            ptx::cluster_wait();
            ptx::cluster_sync();
            ptx::cluster_arrive();
        }
    } else {
        ptx::wait_for_previous_kernel();
        const float scale = swap::tensor_scale(p.epilogue);
        const u32 at = ring.base + group * swap::GROUP_SUMS;
        swap::Sums sums;
        swap::multiply(sums, ring, group, begin, end);
        // Sums take the place of boxes once every group has read them.
        ptx::sync_threads(1, 128 * swap::GROUPS);
        swap::transpose(sums, at);
        if constexpr (SPLIT > 1) {
            ptx::cluster_wait();
            ptx::cluster_sync();
        } else {
            ptx::sync_threads(2 + group, 128);
        }
        swap::finish<SPLIT>(p, scale, at, tile * swap::GROUPS + group, row0, batch, rank);
    }
    if constexpr (SPLIT > 1) ptx::cluster_wait(); // sums stay until all ranks have read them
}

// D = epilogue(alpha · A·B + beta · C) for m up to 128 and weights of few tiles: clusters part k.
//
//      B, n×k: ROWS rows a tile                         A, m×k: TOKENS rows a tile
//      ┌────────┬────────┬────────┬────────┐            ┌────────┬──── … ┬────────┐
//      │ rank 0 │ rank 1 │ rank 2 │ rank 3 │            │ rank 0 │       │ rank 3 │      each a block of its own
//      └────────┴────────┴────────┴────────┘            └────────┴──── … ┴────────┘
//
// Each of a tile's KP_SPLIT blocks sums its part of k, then sends the others what they finish of the tile and finishes the
// rest, adding all ranks' sums in rank order. The order of summation depends on k, KP_SPLIT and the type alone. Blocks live
// for one tile; where two or three share a multiprocessor, one's beginning and end hide behind another's copies.
// Tiles, maps and the other macros: sm90_swap.cuh.
//
// Entry    gemm(const __grid_constant__ TensorMap a, b, const __grid_constant__ swap::Problem)
// Grid     x: SPLIT · ceil(n / ROWS), y: ceil(m / TOKENS), z: batch; cluster (SPLIT, 1, 1); block 128·GROUPS + 32
// Shared   dynamic: 1024 + max(STAGES · STAGE + GROUPS · GROUP_INBOX, GROUPS · GROUP_SUMS). No scratch
//          May be launched with programmatic serialization
#include "gemm/cuda/sm90_swap.cuh"

using swap::SPLIT;

extern "C" __global__ void __launch_bounds__(swap::THREADS, KP_BLOCKS_PER_SM)
    gemm(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ swap::Problem p) {
    extern __shared__ u8 raw[];
    __shared__ alignas(8) u64 barriers[2 * swap::STAGES], inbox_full[swap::GROUPS];
    __shared__ alignas(8) float scales[swap::STAGES * swap::STEPS * swap::SCALES + 1];
    swap::Ring ring = {(ptx::smem_address(raw) + 1023) & ~1023u, ptx::smem_address(barriers), ptx::smem_address(scales)};
    const u32 group = ptx::warp() / 4, rank = SPLIT == 1 ? 0 : ptx::cluster_rank();
    const u32 tile = blockIdx.x / SPLIT, row0 = blockIdx.y * swap::TOKENS, batch = blockIdx.z;
    const u32 begin = (u64)p.stages_k * rank / SPLIT, end = (u64)p.stages_k * (rank + 1) / SPLIT;

    const swap::Loader loader = {&a, &b, p};
    const bool loads = ptx::warp() == 4 * swap::GROUPS && ptx::elect();
    const u32 first = min(end, begin + swap::STAGES);
    if (loads) {
        if constexpr (SPLIT > 1) {
            const u32 eights = rank < swap::EIGHTS ? (swap::EIGHTS - rank + SPLIT - 1) / SPLIT : 0;
            for (u32 g = 0; g < swap::GROUPS; ++g) {
                ptx::mbarrier_init(ptx::smem_address(inbox_full + g), 1);
                ptx::mbarrier_expect(ptx::smem_address(inbox_full + g), eights * (SPLIT - 1) * swap::EIGHT);
            }
        }
        ring.init();
        if constexpr (KP_PREFETCH) loader.prefetch(tile, batch, begin, end);
        ptx::wait_for_previous_kernel();
        if constexpr (KP_EARLY) ptx::allow_next_kernel();
        loader.load(ring, tile, row0, batch, begin, first);
    }
    __syncthreads();
    // Inboxes are ready; waited for before the first is sent to. `init` has ordered them, so this need not.
    if constexpr (SPLIT > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");

    if (group == swap::GROUPS) {
        if (loads) {
            loader.load(ring, tile, row0, batch, first, end);
            if constexpr (!KP_EARLY) ptx::allow_next_kernel();
        }
        if constexpr (swap::BLOCKS) {
            if (ptx::warp() > 4 * swap::GROUPS) {
                const swap::ScaleLoader scale_loader(p, tile, row0, batch);
                ptx::wait_for_previous_kernel();
                scale_loader.load(ring, begin, end);
            }
        }
        __syncwarp();
        if constexpr (SPLIT > 1) ptx::cluster_wait();
        return;
    }
    ptx::wait_for_previous_kernel();
    const float scale = swap::tensor_scale(p.epilogue);
    const u32 at = ring.base + group * swap::GROUP_SUMS;
    swap::Sums sums;
    swap::multiply(sums, ring, group, begin, end);
    if constexpr (SPLIT > 1) {
        ptx::cluster_wait();
        const u32 inbox = ring.base + swap::STAGES * swap::STAGE + group * swap::GROUP_INBOX;
        swap::exchange(sums, inbox, ptx::smem_address(inbox_full + group), rank);
    }
    // Sums take the place of boxes once every group has read them.
    ptx::sync_threads(1, 128 * swap::GROUPS);
    swap::transpose(sums, at, rank);
    ptx::sync_threads(2 + group, 128);
    swap::finish(p, scale, at, tile * swap::GROUPS + group, row0, batch, rank);
}

// D = epilogue(alpha · A·B + beta · C) for m up to 128 and weights of many tiles: persistent blocks, equal parts of all of k.
//
//      tiles    |.......|.......|.......|.......|     `Schedule`: each 0 to stages_k
//      parts    0....|1....|2....|3....|4.......|     each of one block, the first of the last
//
// The copying warp runs ahead across tiles, so memory is never idle between them. A block leaves the sums of the tile it
// finds begun in scratch, in fragment order, before all else it does; who begins a tile finishes it, and adds what the parts
// after its own left in the order of k. So the order of summation depends on the shape and the grid, and is the same in every run.
// If no tile is streamed, it is that of k. Tiles, maps and the other macros: sm90_swap.cuh.
//
// Entry    gemm(const __grid_constant__ TensorMap a, b, const __grid_constant__ swap::Problem, const __grid_constant__ Tiles,
//               float *partials, u32 *flags)
// Tiles    m: ceil(m / TOKENS), n: ceil(n / ROWS), k: stages_k (at least 1)
// Grid     at most what fits the device at once; block 128·GROUPS + 32
// Shared   dynamic: 1024 + STAGES · STAGE + GROUPS · GROUP_SUMS. May be launched with programmatic serialization
// Macros   KP_SPLIT is 1
// Scratch  if tiles are streamed: `partials`, of each part ROWS · TOKENS floats; `flags`, of each part GROUPS numbers that are
//          0 before the launch and again after it
#include "gemm/cuda/sm90_swap.cuh"

static_assert(swap::SPLIT == 1, "blocks part k by streaming");

struct Scratch {
    float4 *partials;
    u32 *flags;
    u32 group;

    KP_FN float4 *sums(u32 part) const {
        return partials + (part * swap::GROUPS + group) * (swap::GROUP_ROWS * swap::TOKENS / 4) + threadIdx.x % 128;
    }
    KP_FN u32 *flag(u32 part) const { return flags + part * swap::GROUPS + group; }

    // Leaves what this block, whose part is `part`, summed of a tile that another began.
    KP_FN void leave(const swap::Sums &sums_, u32 part) const {
        float4 *to = sums(part);
#pragma unroll
        for (u32 s = 0; s < swap::SLABS; ++s)
#pragma unroll
            for (u32 j = 0; j < swap::TOKENS / 8; ++j) {
                const float *x = sums_.d[s] + 4 * j;
                __stcg(to + (s * (swap::TOKENS / 8) + j) * 128, float4{x[0], x[1], x[2], x[3]});
            }
        // The barrier and the release make all 128 threads' sums visible before the flag.
        ptx::sync_threads(2 + group, 128);
        if (threadIdx.x % 128 == 0) ptx::store_release(flag(part), 1);
    }

    // Adds what the parts after this one left of the tile that this one began, of which it summed stages up to `end`.
    KP_FN void gather(swap::Sums &sums_, const Schedule &schedule, u32 end) const {
        const u32 tile_end = schedule.bound(schedule.cluster + 1) + schedule.tiles.k - end;
        for (u32 part = schedule.cluster + 1; schedule.bound(part) < tile_end; ++part) {
            if (schedule.bound(part) == schedule.bound(part + 1)) continue;
            if (threadIdx.x % 128 == 0) {
                while (ptx::load_acquire(flag(part)) == 0) {}
                ptx::store_relaxed(flag(part), 0);
            }
            ptx::sync_threads(2 + group, 128);
            const float4 *from = sums(part);
#pragma unroll
            for (u32 s = 0; s < swap::SLABS; ++s)
#pragma unroll
                for (u32 j = 0; j < swap::TOKENS / 8; ++j) {
                    float4 x = __ldcg(from + (s * (swap::TOKENS / 8) + j) * 128);
                    float *y = sums_.d[s] + 4 * j;
                    y[0] += x.x, y[1] += x.y, y[2] += x.z, y[3] += x.w;
                }
        }
    }
};

extern "C" __global__ void __launch_bounds__(swap::THREADS, KP_BLOCKS_PER_SM)
    gemm(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ swap::Problem p,
         const __grid_constant__ Tiles tiles, float *partials, u32 *flags) {
    extern __shared__ u8 raw[];
    __shared__ alignas(8) u64 barriers[2 * swap::STAGES];
    __shared__ alignas(8) float scales[swap::STAGES * swap::STEPS * swap::SCALES + 1];
    swap::Ring ring = {(ptx::smem_address(raw) + 1023) & ~1023u, ptx::smem_address(barriers), ptx::smem_address(scales)};
    const u32 group = ptx::warp() / 4;
    Schedule schedule(tiles, blockIdx.x, gridDim.x);
    Item item;

    const swap::Loader loader = {&a, &b, p};
    const bool loads = ptx::warp() == 4 * swap::GROUPS && ptx::elect();
    u32 first = 0;
    if (loads) {
        ring.init();
        if (schedule.next(item)) {
            first = min(item.end, item.begin + swap::STAGES);
            if constexpr (KP_PREFETCH) loader.prefetch(item.n, item.batch, item.begin, item.end);
            ptx::wait_for_previous_kernel();
            if constexpr (KP_EARLY) ptx::allow_next_kernel();
            loader.load(ring, item.n, item.m * swap::TOKENS, item.batch, item.begin, first);
        }
    }
    __syncthreads();

    if (loads && first > 0) {
        loader.load(ring, item.n, item.m * swap::TOKENS, item.batch, first, item.end);
        while (schedule.next(item)) loader.load(ring, item.n, item.m * swap::TOKENS, item.batch, item.begin, item.end);
        if constexpr (!KP_EARLY) ptx::allow_next_kernel();
    }
    if constexpr (swap::BLOCKS) {
        if (ptx::warp() > 4 * swap::GROUPS) {
            ptx::wait_for_previous_kernel();
            while (schedule.next(item))
                swap::ScaleLoader(p, item.n, item.m * swap::TOKENS, item.batch).load(ring, item.begin, item.end);
        }
    }
    if (group < swap::GROUPS) {
        const u32 at = ring.base + swap::STAGES * swap::STAGE + group * swap::GROUP_SUMS;
        const Scratch scratch = {(float4 *)partials, flags, group};
        ptx::wait_for_previous_kernel(); // which may use the same scratch
        const float scale = swap::tensor_scale(p.epilogue);
        while (schedule.next(item)) {
            swap::Sums sums;
            swap::multiply(sums, ring, group, item.begin, item.end);
            if (item.begin > 0) {
                scratch.leave(sums, schedule.cluster);
                continue;
            }
            if (item.end < tiles.k) scratch.gather(sums, schedule, item.end);
            ptx::sync_threads(2 + group, 128); // the sums before are stored
            swap::transpose(sums, at, 0);
            ptx::sync_threads(2 + group, 128);
            swap::finish(p, scale, at, item.n * swap::GROUPS + group, item.m * swap::TOKENS, item.batch, 0);
        }
    }
}

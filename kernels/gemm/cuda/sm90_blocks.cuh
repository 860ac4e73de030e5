// D = alpha · Σ over blocks of 128 k of  a_scale · b_scale · (A · Bᵀ of the block)          A m×k, B n×k, D m×n
//
// Each block of k is one wgmma group with a fresh accumulator, which is then scaled and added to f32 totals: the sums are as exact as
// f32's, whatever the matrix unit keeps. The same skeleton without scales multiplies 16-bit groups. It serves plain, batched and
// grouped products; the sources that include it say which by defines.
//
//     block of threads      warpgroup 0: warp 0 copies tiles of A and B (TMA) and tells which, warps 1 and 2 copy scales
//                           warpgroups 1 to CONSUMERS: each computes slabs of 64 rows: slab w · CONSUMERS + its number, w < WAVES
//     one scales its block while the other's wgmma runs, so there are two as soon as BM is 128
//
//              BN                       A, B stages of 128 bytes of k, 128-byte swizzle    D leaves through shared memory in
//         ┌──────────┐                  scales of the stage beside them                   boxes of 64 rows × STORE columns,
//         │ 1st   w0 │ 64                                                                 each warpgroup its own
//         │ 2nd   w0 │ 64               CLUSTER_N blocks of a cluster take neighbouring columns and share A: each copies
//     BM  │ 1st   w1 │ 64               a part of its rows to all. CLUSTER_M likewise with rows, sharing B.
//         │ 2nd   w1 │ 64
//         └──────────┘                  CLUSTER_K blocks each sum a part of a tile's k, and finish a part of its columns.
//
// Defines (one line of the variants table each):
//     BM            64 (one consumer), 128, 192 (three consumers), 256 (two waves)
//     BN            a multiple of 8, at most 256; with scales BN/2 · (1 + BM/128) + ~60 registers must fit 232: 128×192, 256×128
//     STAGES        tiles in flight
//     CLUSTER_M, CLUSTER_N, CLUSTER_K   at most one of them more than 1; BN / CLUSTER_M, BM / CLUSTER_N and BN / CLUSTER_K multiples of 8;
//                   along k without groups, BM 64 or 128, and k of as many blocks at least
//     BOXES         boxes of D that each warpgroup has shared memory for
//     AHEAD         1: the next block's products are issued before this one's are scaled; BM 64 or 128, BN at most 128
//     OUT           0 bf16, 1 f16, 2 f32
// and by the including source:
//     TYPE          WgmmaType of A and B        A_SCALE, B_SCALE   rows that share a scale: 1, 128, or 0 for none
//     GROUPING      0 batches, 1 contiguous groups of rows, 2 masked groups
//
// Launch: THREADS = 128 (1 + CONSUMERS); SHARED bytes as below; a grid of clusters, at most as many as run at once: they are persistent. Those
// that part k are not, and there is one for each tile.
//     a_map   3-D {k, rows, batch}: box {128 bytes, BM / CLUSTER_N, 1}, 128-byte swizzle
//     b_map   3-D {k, n, batch or groups}: box {128 bytes, BN / CLUSTER_M, 1}, 128-byte swizzle
//     d_map   3-D {n, rows, batch}: box {STORE, 64, 1}, swizzle of STORE elements' bytes (128, 64, 32, none);
//             STORE the largest of 64, 32, 16, 8 elements (f32: 32, 16, 8) that divides BN / CLUSTER_K. Not read unless args.d_copies.
// Rows of A and B must be a multiple of 16 bytes apart and 16-byte aligned, as the copy engine wants; D need not be.
#pragma once
#include "gemm/cuda/sm90_blocks_load.cuh"
#include "gemm/cuda/sm90_blocks_store.cuh"

namespace {

KP_FN void consume(const TensorMap &d_map, const Args &args, Stages s, u32 number) {
    const Consumer me = {number, ptx::warp() % 4, ptx::lane()};
    const i32 blocks = Part(args).blocks;
    for (;;) {
        s.wait_full();
        Tile t = s.told();
        if (t.none()) break;
        if ((i32)me.slab(0) * 64 >= t.rows || t.col >= args.n) {
            for (i32 kb = 0; kb < blocks; kb++, s.advance()) s.wait_full(), release(s, me);
            continue;
        }
        float total[WAVES][BN / 2];
        // Not while the first products run: the compiler would do it in every block, by selection. AHEAD peels the first.
        if (!AHEAD && SCALED) clear(total);
        Scaling scaling = {4 * (me.row(0) + (in_bulk(args) ? (u32)t.row % 4 : 0)), args.alpha};
        // Or it would be worked out again for every block.
        asm volatile("" : "+r"(scaling.row));
        compute(total, blocks, s, scaling, me);
#if CLUSTER_K > 1
        float mine[1][COLUMNS / 2];
        exchange(total[0], mine[0], s.base, me);
        t.col += ptx::cluster_rank() * COLUMNS;
        store(mine, s.base, d_map, args, t, me);
#else
        store(total, s.base, d_map, args, t, me);
#endif
    }
    if (me.lane == 0) ptx::store_wait_read<0>();
}

// Until the barriers of the cluster are ready, and what this kernel reads.
KP_FN void start() {
    __syncwarp();
    // The next kernel waits for this one before it touches memory, however early it starts.
    ptx::allow_next_kernel();
    if (BLOCKS > 1) ptx::cluster_sync_relaxed();
    else __syncthreads();
    ptx::wait_for_previous_kernel();
}

} // namespace

// --- Entry

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, const __grid_constant__ TensorMap d_map,
     const __grid_constant__ Args args) {
    extern __shared__ __align__(1024) char shared[];
    Stages s = {ptx::smem_address(shared)};
    const u32 warp = ptx::warp();
    // A warp that has nothing else to do.
    if (warp == 3 && ptx::elect()) {
        for (Stages i = s; i.parity == 0; i.advance()) {
            ptx::mbarrier_init(i.full(), 1 + scale_lanes(args));
            ptx::mbarrier_init(i.empty(), CONSUMERS * 4 * CLUSTER);
        }
        const u32 inboxes = s.base + INBOX_BARRIER_AT;
        for (u32 i = 0; CLUSTER_K > 1 && i < CONSUMERS; i++) ptx::mbarrier_init(inboxes + 8 * i, 1);
        ptx::mbarrier_init_fence();
        for (u32 i = 0; CLUSTER_K > 1 && i < CONSUMERS; i++) ptx::mbarrier_expect(inboxes + 8 * i, INBOX_BYTES);
    }
    if (warp < 4) {
        if (warp == 0 && ptx::elect()) ptx::prefetch_map(&a_map), ptx::prefetch_map(&b_map), ptx::prefetch_map(&d_map);
        Walk walk(args);
        start();
        walk.begin();
        ptx::give_registers<56>();
        if (warp == 0) load_tiles(a_map, b_map, args, s, walk);
#if A_SCALE
        if (warp - 1 < COPYING && !in_bulk(args)) load_scales(args, s, walk, warp - 1);
        if (warp == 2 && in_bulk(args)) load_scales_in_bulk(args, s, walk);
#endif
    } else {
        start();
        ptx::take_registers<CONSUMERS == 3 ? 152 : CONSUMERS == 2 ? 224 : 232>();
        consume(d_map, args, s, warp / 4 - 1);
    }
    // A block's shared memory must outlive what its neighbours send to it.
    if (CLUSTER > 1) ptx::cluster_sync();
}

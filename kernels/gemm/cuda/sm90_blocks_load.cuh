// The warps that bring tiles of A and B, and their scales, to the stages.
#pragma once
#include "gemm/cuda/sm90_blocks_schedule.cuh"

namespace {

KP_FN void load_tiles(const TensorMap &a_map, const TensorMap &b_map, const Args &args, Stages s, Walk walk) {
    constexpr int A_ROWS = BM / CLUSTER_N, B_ROWS = BN / CLUSTER_M;
    constexpr u16 ALL = (1 << CLUSTER) - 1; // blocks of the cluster
    const u32 rank = CLUSTER > 1 ? ptx::cluster_rank() : 0;
    const u64 b_keep = args.b_streams ? ptx::KEEP_FIRST_OUT : ptx::KEEP_NORMAL;
    const Part part(args);
    for (; walk.more; walk.step()) {
        const Tile &t = walk.tile;
        if (ptx::elect()) {
            const i32 a_batch = t.batch * args.a_step, b_batch = walk.schedule.group * args.b_step;
            for (i32 kb = part.first, end = kb + part.blocks; kb < end; kb++, s.advance()) {
                s.wait_empty();
                if (kb == part.first) s.tell(t);
                ptx::mbarrier_expect(s.full(), A_BYTES + B_BYTES);
                if (CLUSTER_N > 1) {
                    u32 row = rank * A_ROWS;
                    ptx::load_box_multicast(s.a() + row * 128, &a_map, s.full(), kb * BK, t.row + row, a_batch, ALL, ptx::KEEP_NORMAL);
                } else {
                    ptx::load_box(s.a(), &a_map, s.full(), kb * BK, t.row, a_batch, ptx::KEEP_NORMAL);
                }
                if (CLUSTER_M > 1) {
                    u32 row = rank * B_ROWS;
                    ptx::load_box_multicast(s.b() + row * 128, &b_map, s.full(), kb * BK, t.col + row, b_batch, ALL, b_keep);
                } else {
                    ptx::load_box(s.b(), &b_map, s.full(), kb * BK, t.col, b_batch, b_keep);
                }
            }
        }
        __syncwarp();
        // The elected lane alone advanced; the others only need to be elected again as it was.
    }
    // One stage more, which says that there is no tile; the scales' lanes arrive there too.
    if (ptx::elect()) s.wait_empty(), s.tell({0, 0, -1, 0}), ptx::mbarrier_arrive(s.full());
    __syncwarp();
}

#if A_SCALE
// Whether an operand's scales of one block of k lie one after the other, from a multiple of 16 bytes on.
KP_FN bool in_bulk(const float *scales, u32 row, u32 k, i64 batch) {
    return row == 1 && (u64)scales % 16 == 0 && k % 4 == 0 && batch % 4 == 0;
}
// Small tiles wait for their operands, not for shared memory: they are no faster with bulk copies.
KP_FN bool in_bulk(const Args &args) {
    return BM > 64 && in_bulk(args.a_scale, args.a_scale_row, args.a_scale_k, args.a_scale_batch) &&
           (B_SCALE != 1 || in_bulk(args.b_scale, args.b_scale_row, args.b_scale_k, args.b_scale_batch));
}
constexpr u32 COPYING = BM == 64 ? 2 : 1; // warps that copy scales one by one; code for it in the one that copies in bulk costs 1 to 3 %
// Lanes that copy scales, each of which arrives at a stage's barrier.
constexpr u32 BULK_LANES = B_SCALE == 1 ? 1 : BN / ZONE;
KP_FN u32 scale_lanes(const Args &args) { return in_bulk(args) ? BULK_LANES : 32; }

// Scales of rows in one copy each for A and B. Scales of zones one by one, a lane for each.
KP_FN void load_scales_in_bulk(const Args &args, Stages s, Walk walk) {
    const Part part(args);
    for (; walk.more; walk.step()) {
        const Tile &t = walk.tile;
        if (ptx::lane() < BULK_LANES) {
            // From a multiple of 4 rows on, and no further than the scales of this block of k go.
            const i32 row = t.row & ~3, col = t.col + ptx::lane() * ZONE;
            const u32 a_bytes = ptx::lane() == 0 && t.rows > 0 ? 4 * min(BM + 4, (i32)args.a_scale_k - row) : 0;
            const u32 b_bytes = B_SCALE == 1 && col < args.n ? 4 * min(BN, (i32)args.b_scale_k - col) : 0;
            const bool there = col < args.n;
            const float *a = args.a_scale + t.batch * args.a_scale_batch + row + (u64)part.first * args.a_scale_k;
            const float *b = args.b_scale + walk.schedule.group * args.b_scale_batch + (u64)part.first * args.b_scale_k;
            b += there ? (u64)(u32)(col / B_SCALE) * args.b_scale_row : 0;
            for (i32 kb = 0; kb < part.blocks; kb++, s.advance(), a += args.a_scale_k, b += args.b_scale_k) {
                s.wait_empty();
                const u32 full = s.full(), smem = s.scales();
                if (a_bytes + b_bytes) ptx::mbarrier_expect_more(full, a_bytes + b_bytes);
                if (a_bytes) ptx::load_bulk(smem, a, a_bytes, full);
                if (b_bytes) ptx::load_bulk(smem + A_SCALES * 4, b, b_bytes, full);
                if (B_SCALE != 1) ptx::copy_word(smem + (A_SCALES + ptx::lane()) * 4, (u64)b, there);
                ptx::arrive_with_copies(full);
            }
        }
        __syncwarp();
    }
    if (ptx::lane() < BULK_LANES) s.wait_empty(), ptx::mbarrier_arrive(s.full());
    __syncwarp();
}

// `COUNT` scales of one operand, one every `EVERY` of its rows, from row `row` on, of which `rows` exist.
template <int COUNT, int EVERY, int SHARED_BY> KP_FN void copy_scales(u32 smem, const float *block, u32 stride, i32 row, i32 rows) {
#pragma unroll 2
    for (int i = ptx::lane(); i < COUNT; i += 32) {
        const i32 at = i * EVERY;
        const bool there = at < rows;
        ptx::copy_word(smem + i * 4, (u64)(block + (u64)(u32)(there ? (row + at) / SHARED_BY : 0) * stride), there);
    }
}

// Scales in any layout, one by one: 330 cycles a stage, more than tiles of 64 rows multiply, so that COPYING warps take turns; this is `which`.
KP_FN void load_scales(const Args &args, Stages s, Walk walk, u32 which) {
    const Part part(args);
    u32 turn = 0;
    for (; walk.more; walk.step()) {
        const Tile &t = walk.tile;
        const float *a = args.a_scale + t.batch * args.a_scale_batch + (u64)part.first * args.a_scale_k;
        const float *b = args.b_scale + walk.schedule.group * args.b_scale_batch + (u64)part.first * args.b_scale_k;
        for (i32 kb = 0; kb < part.blocks; kb++, s.advance(), a += args.a_scale_k, b += args.b_scale_k) {
            if (turn++ % COPYING != which) continue;
            // Or the compiler makes a loop over lanes with different barriers: 40 of the 330 cycles between two stages.
            const u32 full = ptx::uniform(s.full());
            s.wait_empty();
            copy_scales<BM, 1, 1>(s.scales(), a, args.a_scale_row, t.row, t.rows);
            copy_scales<B_SCALE == 1 ? BN : BN / ZONE, B_SCALE == 1 ? 1 : ZONE, B_SCALE>(s.scales() + A_SCALES * 4, b, args.b_scale_row, t.col,
                                                                                        args.n - t.col);
            ptx::arrive_with_copies(full);
        }
    }
    if (turn % COPYING == which) s.wait_empty(), ptx::mbarrier_arrive(s.full());
}
#else
KP_FN bool in_bulk(const Args &) { return false; }
KP_FN u32 scale_lanes(const Args &) { return 0; }
#endif

} // namespace

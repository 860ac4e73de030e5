// A tile's totals to D, through shared memory.
#pragma once
#include "gemm/cuda/sm90_blocks_compute.cuh"

namespace {

// Where 16-byte chunk `chunk` of row `row` of a box lies: boxes have STORE columns and the swizzle of their width.
KP_FN u32 chunk_at(u32 row, u32 chunk) {
    constexpr u32 CHUNKS = STORE * OUT_BYTES / 16; // 8, 4, 2 or 1 in a row
    u32 swizzle = CHUNKS == 8 ? row % 8 : CHUNKS == 4 ? row / 2 % 4 : CHUNKS == 2 ? row / 4 % 2 : 0;
    return row * CHUNKS * 16 + (chunk ^ swizzle) * 16;
}

KP_FN u32 pack(float low, float high) {
    u32 x;
    if (OUT == 0) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}

// Columns `box` · STORE on of this warp's 16 rows, from registers to shared memory.
KP_FN void stage_box(u32 smem, const float (&d)[COLUMNS / 2], int box, float alpha, const Consumer &me) {
    constexpr int GROUPS = STORE / 8; // of 8 columns
    const int first = box * GROUPS;
    if constexpr (OUT == 2) {
        const u32 r = me.lane / 4, q = me.lane % 4;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const int i = 4 * (first + g);
            const u32 chunk = g * 2 + q / 2, half = q % 2 * 8;
            ptx::store_shared(smem + chunk_at(r, chunk) + half, d[i] * alpha, d[i + 1] * alpha);
            ptx::store_shared(smem + chunk_at(r + 8, chunk) + half, d[i + 2] * alpha, d[i + 3] * alpha);
        }
    } else {
        const u32 matrix = me.lane / 8, r = matrix % 2 * 8 + me.lane % 8;
#pragma unroll
        for (int g = 0; g < GROUPS; g += 2) {
            // A box of one group only stores it twice.
            const int i = 4 * (first + g), j = GROUPS == 1 ? i : i + 4;
            ptx::store_matrices(smem + chunk_at(r, GROUPS == 1 ? 0 : g + matrix / 2), pack(d[i] * alpha, d[i + 1] * alpha),
                                pack(d[i + 2] * alpha, d[i + 3] * alpha), pack(d[j] * alpha, d[j + 1] * alpha),
                                pack(d[j + 2] * alpha, d[j + 3] * alpha));
        }
    }
}

// 16 rows of a box in shared memory, of which D has `rows`, to D without the copy engine.
KP_FN void store_rows(u32 smem, const Args &args, i32 batch, i32 row, i32 rows, i32 col, const Consumer &me) {
    constexpr u32 CHUNKS = STORE * OUT_BYTES / 16, PER_CHUNK = 16 / OUT_BYTES;
    char *d = static_cast<char *>(args.d) + batch * args.d_batch * OUT_BYTES;
    for (u32 i = me.lane; i < 16 * CHUNKS; i += 32) {
        const u32 r = i / CHUNKS, c = i % CHUNKS, x = col + c * PER_CHUNK;
        const i32 left = args.n - (i32)x;
        if ((i32)r >= rows || left <= 0) continue;
        u32 v[4];
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                     : "r"(smem + chunk_at(r, c))
                     : "memory");
        char *to = d + ((u64)(u32)(row + r) * args.d_row + x) * OUT_BYTES;
        if (left >= (i32)PER_CHUNK && (u64)to % 16 == 0) {
            *reinterpret_cast<uint4 *>(to) = make_uint4(v[0], v[1], v[2], v[3]);
        } else {
#pragma unroll
            for (u32 e = 0; e < PER_CHUNK; e++) {
                if ((i32)e >= left) continue;
                if constexpr (OUT == 2) reinterpret_cast<u32 *>(to)[e] = v[e];
                else reinterpret_cast<u16 *>(to)[e] = (u16)(v[e / 2] >> (e % 2 * 16));
            }
        }
    }
}

// Each warpgroup writes BOXES boxes of its 64 rows, and one fence hands them all to the copy engine. Boxes of a warp's 16 rows would let warps
// go their own ways, but keep the copy engine from the next tile's operands for longer.
KP_FN void store(const float (&total)[WAVES][COLUMNS / 2], u32 base, const TensorMap &d_map, const Args &args, const Tile &t, const Consumer &me) {
    constexpr int ALL = WAVES * (COLUMNS / STORE);
    const u32 boxes = base + D_AT + me.number * (BOXES * BOX_BYTES), mine = me.warp * (BOX_BYTES / 4);
    const bool first_thread = me.warp == 0 && me.lane == 0;
#pragma unroll
    for (int first = 0; first < ALL; first += BOXES) {
        if (first_thread) ptx::store_wait_read<0>();
        ptx::sync_threads(1 + me.number, 128);
#pragma unroll
        for (int i = first; i < first + BOXES && i < ALL; i++) {
            stage_box(boxes + (i - first) * BOX_BYTES + mine, total[i / (COLUMNS / STORE)], i % (COLUMNS / STORE), SCALED ? 1.f : args.alpha, me);
        }
        if (args.d_copies) ptx::fence_async_shared();
        ptx::sync_threads(1 + me.number, 128);
#pragma unroll
        for (int i = first; i < first + BOXES && i < ALL; i++) {
            const u32 smem = boxes + (i - first) * BOX_BYTES;
            const i32 at = me.slab(i / (COLUMNS / STORE)) * 64, rows = t.rows - at, col = t.col + i % (COLUMNS / STORE) * STORE;
            if (rows <= 0 || col >= args.n) continue;
            const i32 own = me.warp * 16;
            // A box may not reach into rows that belong to others.
            if (!args.d_copies || (GROUPING != 0 && rows < 64)) store_rows(smem + mine, args, t.batch, t.row + at + own, rows - own, col, me);
            else if (first_thread) ptx::store_box(&d_map, smem, col, t.row + at, t.batch);
        }
        if (first_thread) ptx::store_commit();
    }
}

} // namespace

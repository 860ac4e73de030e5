// D = epilogue(alpha · A·B + beta · C) for m up to 128: the weights' n lies along the matrix unit's fixed 64 rows, A's few
// rows along its free side, so that nothing is padded but m to a multiple of 8.
//
//      B, n×k: ROWS = 64·ROW_SLABS·GROUPS rows a tile       A, m×k: TOKENS rows a tile        Dᵗ
//      ┌────────┬────────┬────────┬────────┐            ┌────────┬──── … ┬────────┐     ┌──────┐ ROW_SLABS·64 rows of
//      │ rank 0 │ rank 1 │ rank 2 │ rank 3 │ ROWS       │ rank 0 │       │ rank 3 │     │      │ each warpgroup,
//      └────────┴────────┴────────┴────────┘            └────────┴──── … ┴────────┘     └──────┘ TOKENS columns
//        blocks of 128 bytes of k, a stage each
//
// A cluster of SPLIT blocks shares a tile: each sums its part of k, then each finishes its share of the tile, adding the
// ranks' sums in rank order out of their shared memory. The order of summation depends on k, SPLIT and the type alone.
// One warp copies boxes, GROUPS warpgroups multiply. Blocks live for one tile, so that two or three share a
// multiprocessor and one's beginning and end hide behind another's copies.
//
// Entry    gemm(const __grid_constant__ TensorMap a, b, const __grid_constant__ Epilogue, u64 d, u32 k_blocks)
// Maps     a: {k, m, batch}, box {128 bytes, TOKENS, 1}; b: {k, n, batch}, box {128 bytes, ROWS (ROWS / 2 if GATE is
//          HALVES), 1}; both swizzled by 128 bytes; zeros outside. k_blocks: ceil(bytes of a row / 128)
// Grid     x: SPLIT · ceil(n / ROWS), y: ceil(m / TOKENS), z: batch; cluster (SPLIT, 1, 1); block 128·GROUPS + 32
// Shared   dynamic: SHARED_BYTES = 1024 + max(STAGES · 128 · (ROWS + TOKENS), TOKENS · (ROWS + 4) · 4). No scratch
// Defines  TYPE      BF16, F16, E4M3, E5M2, E4M3_E5M2 (of B, then of A), E5M2_E4M3
//          TOKENS    8 … 128, a multiple of 8              ROW_SLABS, GROUPS   1 or 2 each
//          SPLIT     1 … 8                                 STAGES          as shared memory allows
//          PROMOTE   1: sums of 8-bit floats go to f32 registers after every block of k (accumulation as good as f32's);
//                    0: they stay in the matrix unit
//          SCALE     NONE, TENSOR, ROW        PREFETCH  1: the first boxes of B are asked into L2 before the wait for the
//                    kernel before, which helps if the launch overlaps with it
//          D_TYPE, C_TYPE, BIAS_TYPE, RESIDUAL_TYPE   Type's names; ACT, GATE   Act's and Gate's names
//          BLOCKS_PER_SM          blocks that registers must allow
#include "common/cuda/math.cuh"
#include "common/cuda/wgmma.cuh"
#include "gemm/cuda/sm90_epilogue.cuh"

#ifndef PREFETCH
#define PREFETCH 0
#endif
#ifndef KEEP_OF_B
#define KEEP_OF_B ptx::KEEP_FIRST_OUT
#endif

struct Config {
    static constexpr WgmmaType TYPE_ = WgmmaType::TYPE;
    static constexpr bool WIDE = TYPE_ == WgmmaType::BF16 || TYPE_ == WgmmaType::F16;
    static constexpr u32 BLOCK_K = WIDE ? 64 : 128; // elements of 128 bytes
    static constexpr u32 ROWS = 64 * ROW_SLABS * GROUPS;
    static constexpr u32 B_BYTES = ROWS * 128, A_BYTES = TOKENS * 128, STAGE = A_BYTES + B_BYTES;
    static constexpr u32 PITCH = ROWS + 4; // floats of a row of sums; 4 more keep a fragment's stores apart
    static constexpr Gate GATE_ = Gate::GATE;
    static constexpr u32 OUT = GATE_ == Gate::NONE ? ROWS : ROWS / 2; // columns of D of a tile
};
using T = Config;

// ---- compute ----

// The four steps of 32 bytes that a block of k has. A's and B's blocks lie at `a` and `b`.
template <int N> KP_FN void multiply(float (&d)[ROW_SLABS][N], u32 a, u32 b, bool accumulate) {
#pragma unroll
    for (int step = 0; step < 4; ++step)
#pragma unroll
        for (int s = 0; s < ROW_SLABS; ++s)
            Wgmma<TOKENS>::mma<T::TYPE_>(d[s], wgmma::k_major(b + s * 64 * 128) + 2 * step, wgmma::k_major(a) + 2 * step,
                                         accumulate || step > 0);
}

// ---- store ----

// Four sums of a row of D's tile, next to each other along n, of all ranks.
KP_FN float4 total(u32 at) {
    float4 sum = {0, 0, 0, 0};
#pragma unroll
    for (int rank = 0; rank < SPLIT; ++rank) {
        float4 x;
        if (SPLIT == 1)
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(at));
        else
            asm volatile("{\n.reg .b32 r;\nmapa.shared::cluster.u32 r, %4, %5;\nld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [r];\n}"
                         : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                         : "r"(at), "r"(rank));
        sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
    return sum;
}

// X of one element of the product.
KP_FN float finished(const Epilogue &e, float x, float scale, u32 row, u32 column, u32 batch) {
    if (column >= e.n) return 0;
    if constexpr (Scale::SCALE == Scale::ROW) scale *= ((const float *)e.b_scale)[column];
    x *= scale;
    if constexpr (Type::C_TYPE != Type::NONE)
        if (e.beta != 0) x += e.beta * load<Type::C_TYPE>(e.c, batch * e.c_stride + row * e.c_ld + column);
    if constexpr (Type::BIAS_TYPE != Type::NONE) x += load<Type::BIAS_TYPE>(e.bias, column);
    return x;
}

template <Type U> KP_FN void store(u64 array, i64 i, float x) {
    if constexpr (U == Type::F32) ((float *)array)[i] = x;
    else if constexpr (bytes_of(U) == 2) ((u16 *)array)[i] = (u16)pack<U>(x, 0);
    else ((u8 *)array)[i] = (u8)pack<U>(x, 0);
}

// Four neighbours from a multiple of four on, aligned to their size.
template <Type U> KP_FN void store_four(u64 array, i64 i, const float (&y)[4]) {
    if constexpr (U == Type::F32) *(float4 *)((float *)array + i) = {y[0], y[1], y[2], y[3]};
    else if constexpr (bytes_of(U) == 2) *(uint2 *)((u16 *)array + i) = {pack<U>(y[0], y[1]), pack<U>(y[2], y[3])};
    else *(u32 *)((u8 *)array + i) = pack<U>(y[0], y[1]) | pack<U>(y[2], y[3]) << 16;
}

// Finishes this rank's share of a tile whose sums lie at `sums` in every rank.
KP_FN void finish(const Epilogue &e, u64 d, u32 sums, u32 tile, u32 row0, u32 batch, u32 rank) {
    const u32 columns = T::GATE_ == Gate::NONE ? e.n : e.n / 2;
    const bool aligned = e.d_ld % 4 == 0 && e.d_stride % 4 == 0 && d % (4 * bytes_of(Type::D_TYPE)) == 0;
    float scale = e.alpha, divided = 1;
    if constexpr (Scale::SCALE == Scale::TENSOR) scale *= *(const float *)e.a_scale * *(const float *)e.b_scale;
    if constexpr (bytes_of(Type::D_TYPE) == 1)
        if (e.d_scale) divided = *(const float *)e.d_scale;
    constexpr u32 QUADS = T::OUT / 4, THREADS = 128 * GROUPS;
    const u32 rows = min((u32)TOKENS, e.m - row0);
    for (u32 i = rank * THREADS + threadIdx.x; i < rows * QUADS; i += SPLIT * THREADS) {
        const u32 token = i / QUADS, q = i % QUADS * 4, row = row0 + token;
        const u32 at = sums + token * T::PITCH * 4, column = tile * T::OUT + q; // of D
        if (column >= columns) continue;
        float s = scale;
        if constexpr (Scale::SCALE == Scale::ROW) s *= ((const float *)e.a_scale)[row];
        float y[4];
        if constexpr (T::GATE_ == Gate::NONE) {
            float4 x = total(at + q * 4);
            y[0] = x.x, y[1] = x.y, y[2] = x.z, y[3] = x.w;
#pragma unroll
            for (int j = 0; j < 4; ++j) y[j] = activated<Act::ACT>(finished(e, y[j], s, row, column + j, batch));
        } else {
            constexpr bool PAIRS = T::GATE_ == Gate::PAIRS;
            float4 lo = total(at + (PAIRS ? 2 * q : q) * 4), hi = total(at + (PAIRS ? 2 * q + 4 : T::OUT + q) * 4);
            float g[4] = {lo.x, PAIRS ? lo.z : lo.y, PAIRS ? hi.x : lo.z, PAIRS ? hi.z : lo.w};
            float u[4] = {PAIRS ? lo.y : hi.x, PAIRS ? lo.w : hi.y, PAIRS ? hi.y : hi.z, hi.w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                u32 g_column = PAIRS ? 2 * (column + j) : column + j, u_column = PAIRS ? g_column + 1 : g_column + columns;
                y[j] = activated<Act::ACT>(finished(e, g[j], s, row, g_column, batch)) * finished(e, u[j], s, row, u_column, batch);
            }
        }
        const i64 to = batch * e.d_stride + row * e.d_ld + column;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if constexpr (Type::RESIDUAL_TYPE != Type::NONE)
                if (column + j < columns) y[j] += load<Type::RESIDUAL_TYPE>(e.residual, to + j);
            if constexpr (bytes_of(Type::D_TYPE) == 1) y[j] /= divided;
        }
        if (aligned && column + 4 <= columns) {
            store_four<Type::D_TYPE>(d, to, y);
        } else {
#pragma unroll
            for (int j = 0; j < 4; ++j)
                if (column + j < columns) store<Type::D_TYPE>(d, to + j, y[j]);
        }
    }
}

// ---- entry ----

extern "C" __global__ void __launch_bounds__(128 * GROUPS + 32, BLOCKS_PER_SM)
    gemm(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, const __grid_constant__ Epilogue e, u64 d,
         u32 k_blocks) {
    extern __shared__ u8 raw[];
    __shared__ alignas(8) u64 barriers[2 * STAGES];
    const u32 stages = (ptx::smem_address(raw) + 1023) & ~1023u;
    const u32 full = ptx::smem_address(barriers), empty = full + 8 * STAGES;
    const u32 warp = ptx::warp(), rank = SPLIT == 1 ? 0 : ptx::cluster_rank();
    const u32 tile = blockIdx.x / SPLIT, row0 = blockIdx.y * TOKENS, batch = blockIdx.z;
    const u32 begin = (u64)k_blocks * rank / SPLIT, end = (u64)k_blocks * (rank + 1) / SPLIT;

    if (threadIdx.x == 128 * GROUPS) {
        ptx::prefetch_map(&a_map), ptx::prefetch_map(&b_map);
        for (u32 s = 0; s < STAGES; ++s) ptx::mbarrier_init(full + 8 * s, 1), ptx::mbarrier_init(empty + 8 * s, GROUPS);
        ptx::mbarrier_init_fence();
    }
    __syncthreads();
    if (SPLIT > 1) ptx::cluster_arrive(); // waited for before the first access of another block's memory

    if (warp == 4 * GROUPS) {
        if (ptx::elect()) {
            constexpr u32 BOXES = T::GATE_ == Gate::HALVES ? 2 : 1; // of B
            auto b_row = [&](u32 box) { return tile * (T::ROWS / BOXES) + box * (e.n / 2); };
            if (PREFETCH)
                for (u32 i = begin; i < min(end, begin + STAGES); ++i)
                    for (u32 box = 0; box < BOXES; ++box)
                        asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(&b_map), "r"(i * T::BLOCK_K),
                                     "r"(b_row(box)), "r"(batch)
                                     : "memory");
            ptx::wait_for_previous_kernel();
            ptx::allow_next_kernel();
            u32 s = 0, phase = 0;
            for (u32 i = begin; i < end; ++i) {
                ptx::mbarrier_wait(empty + 8 * s, phase ^ 1);
                const u32 at = stages + s * T::STAGE, bar = full + 8 * s;
                ptx::mbarrier_expect(bar, T::STAGE);
                for (u32 box = 0; box < BOXES; ++box)
                    ptx::load_box(at + box * (T::B_BYTES / BOXES), &b_map, bar, i * T::BLOCK_K, b_row(box), batch, KEEP_OF_B);
                ptx::load_box(at + T::B_BYTES, &a_map, bar, i * T::BLOCK_K, row0, batch, ptx::KEEP_NORMAL);
                if (++s == STAGES) s = 0, phase ^= 1;
            }
        }
    } else {
        const u32 group = warp / 4;
        float sums[ROW_SLABS][TOKENS / 2];
#pragma unroll
        for (int i = 0; i < ROW_SLABS; ++i)
#pragma unroll
            for (int j = 0; j < TOKENS / 2; ++j) sums[i][j] = 0;
        u32 s = 0, phase = 0, previous = 0;
        for (u32 i = begin; i < end; ++i) {
            const u32 at = stages + s * T::STAGE;
            ptx::mbarrier_wait(full + 8 * s, phase);
#if PROMOTE
            float part[ROW_SLABS][TOKENS / 2];
            wgmma::fence();
            multiply(part, at + T::B_BYTES, at + group * ROW_SLABS * 64 * 128, false);
            wgmma::commit();
            wgmma::wait<0>();
            if (threadIdx.x % 128 == 0) ptx::mbarrier_arrive(empty + 8 * s);
#pragma unroll
            for (int j = 0; j < ROW_SLABS; ++j)
#pragma unroll
                for (int c = 0; c < TOKENS / 2; ++c) sums[j][c] += part[j][c];
#else
            wgmma::fence();
            multiply(sums, at + T::B_BYTES, at + group * ROW_SLABS * 64 * 128, true);
            wgmma::commit();
            // The block before is done; this one goes on while the next is waited for.
            wgmma::wait<1>();
            if (i > begin && threadIdx.x % 128 == 0) ptx::mbarrier_arrive(empty + 8 * previous);
            previous = s;
#endif
            if (++s == STAGES) s = 0, phase ^= 1;
        }
        wgmma::wait<0>();
#pragma unroll
        for (int j = 0; j < ROW_SLABS; ++j) wgmma::pin(sums[j]);

        // All boxes have arrived and been read by this group's warps; the sums take their place once every group is done.
        ptx::sync_threads(1, 128 * GROUPS);
        const u32 r = group * ROW_SLABS * 64 + warp % 4 * 16 + ptx::lane() / 4;
#pragma unroll
        for (int j = 0; j < ROW_SLABS; ++j)
#pragma unroll
            for (int c = 0; c < TOKENS / 2; ++c) {
                u32 token = c / 4 * 8 + ptx::lane() % 4 * 2 + c % 2, row = r + j * 64 + c / 2 % 2 * 8;
                asm volatile("st.shared.f32 [%0], %1;" ::"r"(stages + (token * T::PITCH + row) * 4), "f"(sums[j][c]) : "memory");
            }
    }
    if (SPLIT > 1) {
        ptx::cluster_wait();
        ptx::cluster_sync();
    } else if (warp < 4 * GROUPS) {
        ptx::sync_threads(1, 128 * GROUPS);
    }
    if (warp < 4 * GROUPS) finish(e, d, stages, tile, row0, batch, rank);
    if (SPLIT > 1) ptx::cluster_sync(); // sums stay until all ranks have read them
}

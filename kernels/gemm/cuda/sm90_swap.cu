// D = epilogue(alpha · A·B + beta · C) for m up to 128: the weights' n lies along the matrix unit's fixed 64 rows, A's few
// rows along its free side, so that nothing is padded but m to a multiple of 8.
//
//      B, n×k: ROWS = 64·SLABS·GROUPS rows a tile       A, m×k: KP_TOKENS rows a tile        Dᵗ
//      ┌────────┬────────┬────────┬────────┐            ┌────────┬──── … ┬────────┐     ┌──────┐ KP_SLABS·64 rows of
//      │ rank 0 │ rank 1 │ rank 2 │ rank 3 │ ROWS       │ rank 0 │       │ rank 3 │     │      │ each warpgroup,
//      └────────┴────────┴────────┴────────┘            └────────┴──── … ┴────────┘     └──────┘ KP_TOKENS columns
//        blocks of 128 bytes of k, a stage each
//
// A cluster of KP_SPLIT blocks shares a tile: each sums its part of k, then each finishes its share of the tile, adding the
// ranks' sums in rank order out of their shared memory. The order of summation depends on k, KP_SPLIT and the type alone.
// One warp copies boxes, KP_GROUPS warpgroups multiply. Blocks live for one tile, so that two or three share a
// multiprocessor and one's beginning and end hide behind another's copies.
//
// Entry    gemm(const __grid_constant__ TensorMap a, b, const __grid_constant__ Epilogue, u64 d, u32 k_blocks)
// Maps     a: {k, m, batch}, box {128 bytes, KP_TOKENS, 1}; b: {k, n, batch}, box {128 bytes, ROWS (ROWS / 2 if GATE is
//          HALVES), 1}; both swizzled by 128 bytes; zeros outside. k_blocks: ceil(bytes of a row / 128)
// Grid     x: KP_SPLIT · ceil(n / ROWS), y: ceil(m / KP_TOKENS), z: batch; cluster (KP_SPLIT, 1, 1); block 128·KP_GROUPS + 32
// Shared   dynamic: SHARED_BYTES = 1024 + max(KP_STAGES · 128 · (ROWS + KP_TOKENS), KP_TOKENS · (ROWS + 4) · 4). No scratch
// Macros   KP_TYPES     BF16, F16, E4M3, E5M2, E4M3_E5M2 (of B, then of A), E5M2_E4M3
//          KP_TOKENS    8 … 128, a multiple of 8
//          KP_SLABS     1 or 2: 64 rows of B that a warpgroup has
//          KP_GROUPS    1 or 2: warpgroups that multiply
//          KP_SPLIT     1 … 8: blocks that share a tile; KP_STAGES: as shared memory allows
//          KP_PROMOTE   1: sums of 8-bit floats go to f32 registers after every block of k, and are as good as f32's;
//                       0: they stay in the matrix unit
//          KP_SCALE     NONE, TENSOR, ROW
//          KP_PREFETCH  1: the first boxes of B are asked into L2 before the wait for the kernel before
//          KP_KEEP_B    ptx::Keep's name for B's boxes
//          KP_D, KP_C, KP_BIAS, KP_RESIDUAL   Type's names; KP_ACT, KP_GATE   Act's and Gate's names
//          KP_BLOCKS_PER_SM                   blocks that registers must allow
#include "common/cuda/math.cuh"
#include "common/cuda/wgmma.cuh"
#include "gemm/cuda/sm90_epilogue.cuh"

struct Config {
    static constexpr WgmmaType TYPE_ = WgmmaType::KP_TYPES;
    static constexpr bool WIDE = TYPE_ == WgmmaType::BF16 || TYPE_ == WgmmaType::F16;
    static constexpr u32 BLOCK_K = WIDE ? 64 : 128; // elements of 128 bytes
    static constexpr u32 ROWS = 64 * KP_SLABS * KP_GROUPS;
    static constexpr u32 B_BYTES = ROWS * 128, A_BYTES = KP_TOKENS * 128, STAGE = A_BYTES + B_BYTES;
    static constexpr u32 PITCH = ROWS + 4; // floats of a row of sums; 4 more keep a fragment's stores apart
    static constexpr Gate GATE_ = Gate::KP_GATE;
    static constexpr u32 OUT = GATE_ == Gate::NONE ? ROWS : ROWS / 2; // columns of D of a tile
};
using T = Config;

// ---- compute ----

// The four steps of 32 bytes that a block of k has. A's and B's blocks lie at `a` and `b`.
template <int N> KP_FN void multiply(float (&d)[KP_SLABS][N], u32 a, u32 b, bool accumulate) {
#pragma unroll
    for (int step = 0; step < 4; ++step)
#pragma unroll
        for (int s = 0; s < KP_SLABS; ++s)
            Wgmma<KP_TOKENS>::mma<T::TYPE_>(d[s], wgmma::k_major(b + s * 64 * 128) + 2 * step, wgmma::k_major(a) + 2 * step,
                                         accumulate || step > 0);
}

// ---- store ----

// Four sums of a row of D's tile, next to each other along n, of all ranks.
KP_FN float4 total(u32 at) {
    float4 sum = {0, 0, 0, 0};
#pragma unroll
    for (int rank = 0; rank < KP_SPLIT; ++rank) {
        float4 x;
        if (KP_SPLIT == 1)
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
    if constexpr (Scale::KP_SCALE == Scale::ROW) scale *= ((const float *)e.b_scale)[column];
    x *= scale;
    if constexpr (Type::KP_C != Type::NONE)
        if (e.beta != 0) x += e.beta * load<Type::KP_C>(e.c, batch * e.c_stride + row * e.c_ld + column);
    if constexpr (Type::KP_BIAS != Type::NONE) x += load<Type::KP_BIAS>(e.bias, column);
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
    const bool aligned = e.d_ld % 4 == 0 && e.d_stride % 4 == 0 && d % (4 * bytes_of(Type::KP_D)) == 0;
    float scale = e.alpha, divided = 1;
    if constexpr (Scale::KP_SCALE == Scale::TENSOR) scale *= *(const float *)e.a_scale * *(const float *)e.b_scale;
    if constexpr (bytes_of(Type::KP_D) == 1)
        if (e.d_scale) divided = *(const float *)e.d_scale;
    constexpr u32 QUADS = T::OUT / 4, THREADS = 128 * KP_GROUPS;
    const u32 rows = min((u32)KP_TOKENS, e.m - row0);
    for (u32 i = rank * THREADS + threadIdx.x; i < rows * QUADS; i += KP_SPLIT * THREADS) {
        const u32 token = i / QUADS, q = i % QUADS * 4, row = row0 + token;
        const u32 at = sums + token * T::PITCH * 4, column = tile * T::OUT + q; // of D
        if (column >= columns) continue;
        float s = scale;
        if constexpr (Scale::KP_SCALE == Scale::ROW) s *= ((const float *)e.a_scale)[row];
        float y[4];
        if constexpr (T::GATE_ == Gate::NONE) {
            float4 x = total(at + q * 4);
            y[0] = x.x, y[1] = x.y, y[2] = x.z, y[3] = x.w;
#pragma unroll
            for (int j = 0; j < 4; ++j) y[j] = activated<Act::KP_ACT>(finished(e, y[j], s, row, column + j, batch));
        } else {
            constexpr bool PAIRS = T::GATE_ == Gate::PAIRS;
            float4 lo = total(at + (PAIRS ? 2 * q : q) * 4), hi = total(at + (PAIRS ? 2 * q + 4 : T::OUT + q) * 4);
            float g[4] = {lo.x, PAIRS ? lo.z : lo.y, PAIRS ? hi.x : lo.z, PAIRS ? hi.z : lo.w};
            float u[4] = {PAIRS ? lo.y : hi.x, PAIRS ? lo.w : hi.y, PAIRS ? hi.y : hi.z, hi.w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                u32 g_column = PAIRS ? 2 * (column + j) : column + j, u_column = PAIRS ? g_column + 1 : g_column + columns;
                y[j] = activated<Act::KP_ACT>(finished(e, g[j], s, row, g_column, batch)) * finished(e, u[j], s, row, u_column, batch);
            }
        }
        const i64 to = batch * e.d_stride + row * e.d_ld + column;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if constexpr (Type::KP_RESIDUAL != Type::NONE)
                if (column + j < columns) y[j] += load<Type::KP_RESIDUAL>(e.residual, to + j);
            if constexpr (bytes_of(Type::KP_D) == 1) y[j] /= divided;
        }
        if (aligned && column + 4 <= columns) {
            store_four<Type::KP_D>(d, to, y);
        } else {
#pragma unroll
            for (int j = 0; j < 4; ++j)
                if (column + j < columns) store<Type::KP_D>(d, to + j, y[j]);
        }
    }
}

// ---- entry ----

extern "C" __global__ void __launch_bounds__(128 * KP_GROUPS + 32, KP_BLOCKS_PER_SM)
    gemm(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, const __grid_constant__ Epilogue e, u64 d,
         u32 k_blocks) {
    extern __shared__ u8 raw[];
    __shared__ alignas(8) u64 barriers[2 * KP_STAGES];
    const u32 stages = (ptx::smem_address(raw) + 1023) & ~1023u;
    const u32 full = ptx::smem_address(barriers), empty = full + 8 * KP_STAGES;
    const u32 warp = ptx::warp(), rank = KP_SPLIT == 1 ? 0 : ptx::cluster_rank();
    const u32 tile = blockIdx.x / KP_SPLIT, row0 = blockIdx.y * KP_TOKENS, batch = blockIdx.z;
    const u32 begin = (u64)k_blocks * rank / KP_SPLIT, end = (u64)k_blocks * (rank + 1) / KP_SPLIT;

    if (threadIdx.x == 128 * KP_GROUPS) {
        ptx::prefetch_map(&a_map), ptx::prefetch_map(&b_map);
        for (u32 s = 0; s < KP_STAGES; ++s) ptx::mbarrier_init(full + 8 * s, 1), ptx::mbarrier_init(empty + 8 * s, KP_GROUPS);
        ptx::mbarrier_init_fence();
    }
    __syncthreads();
    if (KP_SPLIT > 1) ptx::cluster_arrive(); // waited for before the first access of another block's memory

    if (warp == 4 * KP_GROUPS) {
        if (ptx::elect()) {
            constexpr u32 BOXES = T::GATE_ == Gate::HALVES ? 2 : 1; // of B
            auto b_row = [&](u32 box) { return tile * (T::ROWS / BOXES) + box * (e.n / 2); };
            if (KP_PREFETCH)
                for (u32 i = begin; i < min(end, begin + KP_STAGES); ++i)
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
                    ptx::load_box(at + box * (T::B_BYTES / BOXES), &b_map, bar, i * T::BLOCK_K, b_row(box), batch, ptx::KP_KEEP_B);
                ptx::load_box(at + T::B_BYTES, &a_map, bar, i * T::BLOCK_K, row0, batch, ptx::KEEP_NORMAL);
                if (++s == KP_STAGES) s = 0, phase ^= 1;
            }
        }
    } else {
        const u32 group = warp / 4;
        float sums[KP_SLABS][KP_TOKENS / 2];
#pragma unroll
        for (int i = 0; i < KP_SLABS; ++i)
#pragma unroll
            for (int j = 0; j < KP_TOKENS / 2; ++j) sums[i][j] = 0;
        u32 s = 0, phase = 0;
        [[maybe_unused]] u32 previous = 0;
        for (u32 i = begin; i < end; ++i) {
            const u32 at = stages + s * T::STAGE;
            ptx::mbarrier_wait(full + 8 * s, phase);
#if KP_PROMOTE
            float part[KP_SLABS][KP_TOKENS / 2];
            wgmma::fence();
            multiply(part, at + T::B_BYTES, at + group * KP_SLABS * 64 * 128, false);
            wgmma::commit();
            wgmma::wait<0>();
            if (threadIdx.x % 128 == 0) ptx::mbarrier_arrive(empty + 8 * s);
#pragma unroll
            for (int j = 0; j < KP_SLABS; ++j)
#pragma unroll
                for (int c = 0; c < KP_TOKENS / 2; ++c) sums[j][c] += part[j][c];
#else
            wgmma::fence();
            multiply(sums, at + T::B_BYTES, at + group * KP_SLABS * 64 * 128, true);
            wgmma::commit();
            // The block before is done; this one goes on while the next is waited for.
            wgmma::wait<1>();
            if (i > begin && threadIdx.x % 128 == 0) ptx::mbarrier_arrive(empty + 8 * previous);
            previous = s;
#endif
            if (++s == KP_STAGES) s = 0, phase ^= 1;
        }
        wgmma::wait<0>();
#pragma unroll
        for (int j = 0; j < KP_SLABS; ++j) wgmma::pin(sums[j]);

        // All boxes have arrived and been read by this group's warps; the sums take their place once every group is done.
        ptx::sync_threads(1, 128 * KP_GROUPS);
        const u32 r = group * KP_SLABS * 64 + warp % 4 * 16 + ptx::lane() / 4;
#pragma unroll
        for (int j = 0; j < KP_SLABS; ++j)
#pragma unroll
            for (int c = 0; c < KP_TOKENS / 2; ++c) {
                u32 token = c / 4 * 8 + ptx::lane() % 4 * 2 + c % 2, row = r + j * 64 + c / 2 % 2 * 8;
                asm volatile("st.shared.f32 [%0], %1;" ::"r"(stages + (token * T::PITCH + row) * 4), "f"(sums[j][c]) : "memory");
            }
    }
    if (KP_SPLIT > 1) {
        ptx::cluster_wait();
        ptx::cluster_sync();
    } else if (warp < 4 * KP_GROUPS) {
        ptx::sync_threads(1, 128 * KP_GROUPS);
    }
    if (warp < 4 * KP_GROUPS) finish(e, d, stages, tile, row0, batch, rank);
    if (KP_SPLIT > 1) ptx::cluster_sync(); // sums stay until all ranks have read them
}

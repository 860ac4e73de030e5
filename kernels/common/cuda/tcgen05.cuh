// tcgen05: the matrix unit of sm_100 and its own memory (TMEM), in PTX.
//
// TMEM is 128 lanes x 512 columns of 32 bits per block; an address is lane << 16 | column. Products read A and B from shared memory and scales
// from TMEM, and leave their sums there: row i of a block's 128 in lane i, a column of sums in a column. One thread issues them.
//
// PAIR is the `cta_group`: 1, or 2 if the two blocks of a cluster multiply together. Then the block of rank 0 issues for both; each has half
// of A's and D's rows, and half of B's columns, at the same addresses as the other. All instructions of a kernel have one PAIR.
//
// Descriptors are numbers that the host makes; see kp-nvidia's `gemm/sm100/descriptor.rs`.
#pragma once
#include "common/cuda/ptx.cuh"

namespace tcgen05 {

enum class Kind { TF32, F16, F8F6F4, MXF8F6F4, MXF4, MXF4NVF4 };

// --- Memory. By one converged warp, if PAIR is 2 by one of each block; the same warp frees it.

// Writes the address of `columns` columns, a power of 2 from 32 to 512, to shared memory at `to`; waits until they are free.
template <int PAIR> KP_FN void allocate(u32 to, u32 columns) {
    if constexpr (PAIR == 1) {
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to), "r"(columns) : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
    } else {
        asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to), "r"(columns) : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;");
    }
}
// After all accesses, the other block's too.
template <int PAIR> KP_FN void release(u32 tmem, u32 columns) {
    if constexpr (PAIR == 1) asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(tmem), "r"(columns));
    else asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(tmem), "r"(columns));
}

// --- Order. What a thread did to TMEM before `fence_before` and a barrier, others see after the barrier and `fence_after`.

KP_FN void fence_before() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
KP_FN void fence_after() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

// Arrives at `bar`, in both blocks of a pair, when all that this thread has issued so far is complete. Implies `fence_before`.
template <int PAIR> KP_FN void commit(u32 bar) {
    if constexpr (PAIR == 1) {
        asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(bar) : "memory");
    } else {
        asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(bar), "h"((u16)3)
                     : "memory");
    }
}

// --- Products. One thread; in the order of issue as long as they add to the same sums.

#define KP_MMA(GROUP, KIND)                                                                                                      \
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %4, 0;\ntcgen05.mma.cta_group::" GROUP ".kind::" KIND " [%0], %1, %2, %3, p;\n}" ::"r"(sums), \
                 "l"(a), "l"(b), "r"(instruction), "r"(accumulate)                                                               \
                 : "memory")
#define KP_MMA_SCALED(GROUP, KIND)                                                                                               \
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %4, 0;\ntcgen05.mma.cta_group::" GROUP ".kind::" KIND                         \
                 " [%0], %1, %2, %3, [%5], [%6], p;\n}" ::"r"(sums),                                                             \
                 "l"(a), "l"(b), "r"(instruction), "r"(accumulate), "r"(a_scales), "r"(b_scales)                                 \
                 : "memory")

// Multiplies 32 bytes of k of A and B; `accumulate` 0 overwrites the sums.
template <int PAIR, Kind KIND> KP_FN void mma(u32 sums, u64 a, u64 b, u32 instruction, u32 accumulate) {
    if constexpr (PAIR == 1 && KIND == Kind::TF32) KP_MMA("1", "tf32");
    else if constexpr (PAIR == 1 && KIND == Kind::F16) KP_MMA("1", "f16");
    else if constexpr (PAIR == 1) KP_MMA("1", "f8f6f4");
    else if constexpr (KIND == Kind::TF32) KP_MMA("2", "tf32");
    else if constexpr (KIND == Kind::F16) KP_MMA("2", "f16");
    else KP_MMA("2", "f8f6f4");
}
// The same with a scale for each row and run of 32 (MX) or 16 (NV) of k. Row i's are in lane i % 32, column i / 32.
template <int PAIR, Kind KIND> KP_FN void mma(u32 sums, u64 a, u64 b, u32 instruction, u32 accumulate, u32 a_scales, u32 b_scales) {
    if constexpr (PAIR == 1 && KIND == Kind::MXF8F6F4) KP_MMA_SCALED("1", "mxf8f6f4.block_scale.block32");
    else if constexpr (PAIR == 1 && KIND == Kind::MXF4) KP_MMA_SCALED("1", "mxf4.block_scale.block32");
    else if constexpr (PAIR == 1) KP_MMA_SCALED("1", "mxf4nvf4.block_scale.block16");
    else if constexpr (KIND == Kind::MXF8F6F4) KP_MMA_SCALED("2", "mxf8f6f4.block_scale.block32");
    else if constexpr (KIND == Kind::MXF4) KP_MMA_SCALED("2", "mxf4.block_scale.block32");
    else KP_MMA_SCALED("2", "mxf4nvf4.block_scale.block16");
}
#undef KP_MMA
#undef KP_MMA_SCALED

// Copies 32 rows of 16 bytes to four columns, lanes 32w to 32w + 31 of each warp w alike; of a pair, each block its own. Products that
// this thread issues afterwards see it.
template <int PAIR> KP_FN void copy_scales(u32 tmem, u64 from) {
    if constexpr (PAIR == 1) asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(tmem), "l"(from) : "memory");
    else asm volatile("tcgen05.cp.cta_group::2.32x128b.warpx4 [%0], %1;" ::"r"(tmem), "l"(from) : "memory");
}

// --- Sums to registers. By a converged warp; warp w of a warpgroup reaches lanes 32w to 32w + 31.

// 16 lanes x 32 columns from `tmem` on: lane l of the warp gets, of every 8 columns i,
//     d[4i], d[4i + 1]      row l / 4,     columns 8i + 2 (l % 4) and the next
//     d[4i + 2], d[4i + 3]  row l / 4 + 8, the same columns
// which is `wgmma`'s fragment. The registers are the caller's after `wait_loads`.
KP_FN void load(float *d, u32 tmem) {
    asm volatile("tcgen05.ld.sync.aligned.16x256b.x4.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, [%16];"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]), "=f"(d[8]), "=f"(d[9]),
                   "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15])
                 : "r"(tmem)
                 : "memory");
}
KP_FN void wait_loads() { asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory"); }

} // namespace tcgen05

// --- What a pair needs of barriers and of the copy engine, and how words get to shared memory

namespace ptx {

// Arrives at a barrier anywhere in the cluster. Orders nothing but what the fences of `tcgen05` order.
KP_FN void mbarrier_arrive_relaxed(u32 bar) {
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Waits for such arrivals.
KP_FN void mbarrier_wait_relaxed(u32 bar, u32 parity) {
    asm volatile("{\n.reg .pred p;\nwaiting:\nmbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%0], %1, 0x989680;\n@p bra done;\nbra "
                 "waiting;\ndone:\n}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}
KP_FN u32 load_shared_word(u32 at) {
    u32 x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
    return x;
}
// `load_box` whose barrier may be the other block's of a pair.
KP_FN void load_box_pair(u32 smem, const TensorMap *map, u32 bar, i32 x, i32 y, i32 z, u64 keep) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2.L2::cache_hint"
                 " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(smem),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "l"(keep)
                 : "memory");
}

} // namespace ptx

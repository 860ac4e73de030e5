// sm_90 in PTX: barriers, the copy engine, clusters, fences. Raw instructions on integer types, so that no toolkit header is needed.
// Shared memory is named by its 32-bit address (`smem_address`), barriers too.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using i32 = int;
using u64 = unsigned long long;
using i64 = long long;

// What cuTensorMapEncodeTiled fills in; passed by value as a `const __grid_constant__` parameter.
struct alignas(64) TensorMap {
    u64 words[16];
};

namespace ptx {

#define KP_FN __device__ __forceinline__

// --- Who and where

// Volatile, or it would be computed again wherever it is used.
KP_FN u32 smem_address(const void *p) {
    u32 address;
    asm volatile("{\n.reg .u64 a;\ncvta.to.shared.u64 a, %1;\ncvt.u32.u64 %0, a;\n}" : "=r"(address) : "l"(p));
    return address;
}
KP_FN u32 lane() { return threadIdx.x % 32; }
// The warp's number, known to the compiler to be the same in all lanes.
KP_FN u32 warp() { return __shfl_sync(~0u, threadIdx.x / 32, 0); }
KP_FN u32 uniform(u32 x) { return __shfl_sync(~0u, x, 0); }
KP_FN u32 cluster_rank() {
    u32 r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
// One lane of a converged warp; always the same one.
KP_FN bool elect() {
    u32 p;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(p));
    return p;
}

// --- Registers of a warpgroup

template <int N> KP_FN void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> KP_FN void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

// --- Barriers of a block and of a cluster

// Barrier `id` (1 to 15) among `threads` threads.
KP_FN void sync_threads(u32 id, u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
KP_FN void arrive_threads(u32 id, u32 threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
KP_FN void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
KP_FN void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
KP_FN void cluster_sync() { cluster_arrive(), cluster_wait(); }
// Orders no memory, and so needs none of the release's barriers on the whole memory system; for after `mbarrier_init_fence`.
KP_FN void cluster_sync_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    cluster_wait();
}

// --- mbarrier

KP_FN void mbarrier_init(u32 bar, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count)); }
// Makes the initialized barriers known to the copy engine and to the cluster; a block or cluster barrier must follow.
KP_FN void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
KP_FN void mbarrier_arrive(u32 bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
// Arrives on the barrier at the same offset in the cluster's block `rank`. Of block scope: `release.cluster` would add full memory
// barriers, which who only waits for the tensor cores' reads does not need.
KP_FN void mbarrier_arrive_at(u32 bar, u32 rank) {
    asm volatile("{\n.reg .b32 r;\nmapa.shared::cluster.u32 r, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [r];\n}" ::"r"(bar),
                 "r"(rank)
                 : "memory");
}
// Arrives, and makes the phase wait for `bytes` more of copies.
KP_FN void mbarrier_expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
// Makes the phase wait for `bytes` more of copies; does not arrive.
KP_FN void mbarrier_expect_more(u32 bar, u32 bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
KP_FN bool mbarrier_try_wait(u32 bar, u32 parity) {
    u32 done;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done;
}
// Waits until the phase of this parity has completed. A fresh barrier counts as having completed parity 1.
KP_FN void mbarrier_wait(u32 bar, u32 parity) {
    asm volatile("{\n.reg .pred p;\nwaiting:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, 0x989680;\n@p bra done;\nbra waiting;\ndone:\n}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

// --- The copy engine (TMA)

// How long the L2 cache should keep what passes: createpolicy's words for all of it.
enum Keep : u64 { KEEP_NORMAL = 0x1000000000000000, KEEP_FIRST_OUT = 0x12F0000000000000, KEEP_LAST_OUT = 0x14F0000000000000 };

KP_FN void prefetch_map(const TensorMap *map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// Copies the box at (x, y, z) to `smem`, counted by `bar`. x is the contiguous dimension.
KP_FN void load_box(u32 smem, const TensorMap *map, u32 bar, i32 x, i32 y, i32 z, u64 keep) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(smem),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "l"(keep)
                 : "memory");
}
// The same to `smem` of every block in the mask `blocks`, each counted by its own `bar`.
KP_FN void load_box_multicast(u32 smem, const TensorMap *map, u32 bar, i32 x, i32 y, i32 z, u16 blocks, u64 keep) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
                 " [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(smem),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "h"(blocks), "l"(keep)
                 : "memory");
}
// Copies consecutive bytes to `smem`, counted by `bar`; both addresses and `bytes` are multiples of 16.
KP_FN void load_bulk(u32 smem, const void *from, u32 bytes, u32 bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(smem), "l"(from),
                 "r"(bytes), "r"(bar)
                 : "memory");
}
// Copies `smem` to the box at (x, y, z); what lies outside of the tensor is left out. Belongs to the thread's open bulk group.
KP_FN void store_box(const TensorMap *map, u32 smem, i32 x, i32 y, i32 z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map), "r"(smem), "r"(x),
                 "r"(y), "r"(z)
                 : "memory");
}
KP_FN void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until all but the last N groups of this thread have read their shared memory.
template <int N> KP_FN void store_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }
// Waits until all but the last N groups of this thread are complete.
template <int N> KP_FN void store_wait() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory"); }
// Orders this thread's shared memory accesses before later ones of the copy engine and the tensor cores.
KP_FN void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// --- Copies by single threads

// Copies the 4 bytes at `from` to shared memory, or zeros. Belongs to the thread's open group of copies.
KP_FN void copy_word(u32 smem, u64 from, bool exists) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(smem), "l"(from), "r"(exists ? 4 : 0) : "memory");
}
// Arrives when this thread's copies so far are there.
KP_FN void arrive_with_copies(u32 bar) { asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory"); }
KP_FN void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all but the last N groups of this thread are complete.
template <int N> KP_FN void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// --- Launches that overlap (programmatic dependent launch)

// Waits until the kernels this one depends on are complete; returns at once if launched without overlap.
KP_FN void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// Lets the next kernel be launched when all blocks got here.
KP_FN void allow_next_kernel() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// --- Shared and global memory

// Four 8x8 matrices of 16-bit elements: lane l gives the address of row l % 8 of matrix l / 8, and holds of each matrix the elements
// 2 (l % 4) and its neighbour of row l / 4.
KP_FN void store_matrices(u32 row, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
KP_FN void store_shared(u32 at, u16 x) { asm volatile("st.shared.b16 [%0], %1;" ::"r"(at), "h"(x) : "memory"); }
KP_FN void store_shared(u32 at, float x, float y) { asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory"); }
// The same address in the shared memory of the cluster's block `rank`.
KP_FN u32 in_block(u32 address, u32 rank) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
// Stores to another block's shared memory, whose barrier `bar` counts the 16 bytes.
KP_FN void store_cluster(u32 at, u32 bar, float x, float y, float z, float w) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%2, %3, %4, %5}, [%1];" ::"r"(at), "r"(bar),
                 "r"(__float_as_uint(x)), "r"(__float_as_uint(y)), "r"(__float_as_uint(z)), "r"(__float_as_uint(w))
                 : "memory");
}
KP_FN float load_shared_number(u32 at) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
    return x;
}
KP_FN float2 load_shared_pair(u32 at) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at) : "memory");
    return x;
}
KP_FN float4 load_shared(u32 at) {
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(at) : "memory");
    return x;
}
// Where byte `column` (0 to 127) of a row of 128 bytes lies in shared memory that the copy engine swizzles by 128 bytes.
KP_FN u32 swizzled(u32 row, u32 column) { return row * 128 + (column ^ (row % 8 * 16)); }

KP_FN u32 load_acquire(const u32 *p) {
    u32 x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}
KP_FN void store_release(u32 *p, u32 x) { asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory"); }
KP_FN void store_relaxed(u32 *p, u32 x) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory"); }

} // namespace ptx

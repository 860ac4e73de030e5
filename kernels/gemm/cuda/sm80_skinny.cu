// D = epilogue(alpha · A·B + beta · C) for few rows of A: B is streamed once, at the memory's pace.
//
//      B, n×k, k contiguous                 A, m×k                    D, m×n
//      ┌───────────────────────┐            ┌───────────────────┐
//      │ 8·BLOCKS rows: a CTA  │ 64 B a row │ 16 rows           │      8·BLOCKS columns of 16 rows
//      │ w0 w1 w2 … w0 w1 w2 … │ and slot   │ w0 w1 w2 … w0 w1 …│      from each cluster of SPLIT CTAs
//      └───────────────────────┘            └───────────────────┘
//
// A lane loads 16 consecutive bytes of one row; which k they are does not matter as long as both operands agree, so B's
// registers go from the load into the matrix unit's 8-column operand as they are. (On its 16-row side, where they would
// fill twice as many lanes for m ≤ 8, a fragment mixes two rows: four moves an instruction, and the loads wait for them.)
// Every warp owns the groups w, w + W, w + 2W, … of RUN slots of all the CTA's rows (W counts the warps of the cluster),
// keeps DEPTH groups in flight, and the warps' sums are added in warp order at the end, within a CTA and a cluster.
// The order of summation depends on WARPS, SPLIT and RUN alone: the bits of a row of D are the same for every m.
//
// Entry    skinny(const __grid_constant__ Params)
// Grid     x: SPLIT · ceil(n / (8·BLOCKS)), y: ceil(m / 16), z: batch; cluster (SPLIT, 1, 1); block 32·WARPS
// Shared   static. No scratch. May be launched with programmatic serialization.
// Defines  TYPE      0 f16, 1 bf16, 2 e4m3, 3 e5m2, 4 i8: of A; TYPE_B likewise, same as TYPE unless both are 8-bit floats
//          BLOCKS    1, 2, 4 or 8 (even if GATE is 1)      WARPS 1 … 16      SPLIT 1 … 8 (above 1 needs sm_90)
//          HALF      1: m is at most 8, which saves registers
//          RUN       consecutive slots of a warp (a slot is 64 bytes of a row); DEPTH groups of them in flight
//          VECTOR    1: pointers, row and batch distances of A and B are multiples of 16 bytes, and so are k elements;
//                    0: anything (an element at a time)
//          SCALES    0 none, 1 one f32 each, 2 one per row of A and of B, 3 per 1×128 of A and 128×128 of B,
//                    4 per 1×128 of both
//          MIN_CTAS  resident CTAs that registers must allow
//          and those of epilogue_scalar.cuh
// Needs    sm_80; e4m3 and e5m2 sm_89.
#include "epilogue_scalar.cuh"

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
typedef unsigned long long u64;

#ifndef TYPE
#define TYPE 1
#endif
#ifndef TYPE_B
#define TYPE_B TYPE
#endif
#ifndef BLOCKS
#define BLOCKS 1
#endif
#ifndef HALF
#define HALF 0
#endif
#ifndef WARPS
#define WARPS 8
#endif
#ifndef SPLIT
#define SPLIT 1
#endif
#ifndef RUN
#define RUN 2
#endif
#ifndef DEPTH
#define DEPTH 2
#endif
#ifndef VECTOR
#define VECTOR 1
#endif
#ifndef SCALES
#define SCALES 0
#endif
#ifndef MIN_CTAS
#define MIN_CTAS 1
#endif

struct Params {
    const u8* a;           // m × k, rows lda elements apart
    const u8* b;           // n × k, rows ldb elements apart
    void* d;               // m × n (n/2 if gated), rows ldd elements apart
    const void* c;         // m × n, tight
    const void* bias;      // n
    const void* residual;  // as d
    const float* a_scale;  // element row · a_scale_row + (k / 128) · a_scale_k
    const float* b_scale;  // element (column, or column / 128) · b_scale_row + (k / 128) · b_scale_k
    const float* d_global;
    u64 stride_a, stride_b, stride_d; // elements from one matrix of the batch to the next
    u64 stride_as, stride_bs;         // the same for scales
    u32 m, n, k, lda, ldb, ldd;
    u32 a_scale_row, a_scale_k, b_scale_row, b_scale_k;
    float alpha, beta;
};

constexpr int BYTES = TYPE < 2 ? 2 : 1;         // of an element
constexpr int LANE_K = 16 / BYTES;              // elements of a lane in a slot
constexpr int SLOT_K = 4 * LANE_K;              // elements of a row in a slot
constexpr int ROWS = 8 * BLOCKS;                // rows of B of a CTA
constexpr int COLS = HALF ? 8 : 16;             // rows of A of a CTA
constexpr int TOKENS = COLS / 8;
constexpr int TEAM = WARPS * SPLIT;             // warps that share the slots
constexpr int PITCH = ROWS + 8;                 // of the sums in shared memory; 8 more keep the fragment's stores apart
constexpr bool FLOAT8 = TYPE == 2 || TYPE == 3;

// Scales of B that a lane needs of a slot: 128 rows share one, but the halves of a gated product are far apart.
constexpr int BLOCK_SCALES = SCALES == 4 ? 2 * BLOCKS : GATE == 1 ? 2 : 1;

using Sum = epilogue::u32; // f32 or i32 bits

struct Vec { u32 x[4]; };

// ---- load ----

// Streamed once: not worth a line of L1.
__device__ __forceinline__ Vec load_stream(const u8* p, bool ok) {
    Vec v;
    asm volatile("{\n.reg .pred q;\nsetp.ne.b32 q, %5, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
                 "@q ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                 : "=r"(v.x[0]), "=r"(v.x[1]), "=r"(v.x[2]), "=r"(v.x[3]) : "l"(p), "r"(int(ok)));
    return v;
}

// Read by every CTA of the multiprocessor.
__device__ __forceinline__ Vec load_shared_by_all(const u8* p, bool ok) {
    Vec v;
    asm volatile("{\n.reg .pred q;\nsetp.ne.b32 q, %5, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
                 "@q ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                 : "=r"(v.x[0]), "=r"(v.x[1]), "=r"(v.x[2]), "=r"(v.x[3]) : "l"(p), "r"(int(ok)));
    return v;
}

// 16 bytes of a row, `left` elements of which exist.
__device__ __forceinline__ Vec load_elements(const u8* p, int left) {
    Vec v = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < LANE_K; ++i) {
        u32 e = 0;
        if (i < left) e = BYTES == 2 ? u32(reinterpret_cast<const u16*>(p)[i]) : u32(p[i]);
        v.x[i * BYTES / 4] |= e << (i * BYTES % 4 * 8);
    }
    return v;
}

// A slot of this warp: its part of every row of B and of A, and the scales that go with it.
struct Slot {
    Vec b[BLOCKS];
    Vec a[TOKENS];
#if SCALES >= 3
    float as[TOKENS], bs[BLOCK_SCALES];
#endif
};

// ---- compute ----

// 8-bit floats become f16, which holds them exactly: products and sums are then as good as f32's.
template <int T, int N>
__device__ __forceinline__ void widen(const Vec& v, u32 (&h)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        u16 pair = u16(v.x[i * 4 / N] >> (i % 2 * 16));
        if constexpr (N == 4) h[i] = v.x[i];
        else if constexpr (T == 2) asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h[i]) : "h"(pair));
        else asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(h[i]) : "h"(pair));
    }
}

__device__ __forceinline__ void mma(Sum (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#define KP_MMA(instruction)                                                                                             \
    asm volatile(instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                         \
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                                                       \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))
#if TYPE == 1
    KP_MMA("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32");
#elif TYPE == 4
    KP_MMA("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32");
#else
    KP_MMA("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32");
#endif
#undef KP_MMA
}

// sums += slot. Register pair (2j, 2j + 1) of a row is what one instruction takes of it.
__device__ __forceinline__ void multiply(Sum (&sums)[BLOCKS][4], const Slot& s) {
    constexpr int PAIRS = FLOAT8 ? 4 : 2;
    u32 a[TOKENS][2 * PAIRS];
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) widen<TYPE>(s.a[t], a[t]);
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) {
        u32 b[2 * PAIRS];
        widen<TYPE_B>(s.b[i], b);
#if SCALES >= 3
        Sum part[4] = {0, 0, 0, 0};
#else
        Sum(&part)[4] = sums[i];
#endif
#pragma unroll
        for (int j = 0; j < 2 * PAIRS; j += 2)
            mma(part, a[0][j], HALF ? 0 : a[TOKENS - 1][j], a[0][j + 1], HALF ? 0 : a[TOKENS - 1][j + 1], b[j], b[j + 1]);
#if SCALES >= 3
#pragma unroll
        for (int j = 0; j < 2 * TOKENS; ++j) {
            float scale = s.as[j / 2] * s.bs[SCALES == 4 ? 2 * i + j % 2 : i % BLOCK_SCALES];
            sums[i][j] = __float_as_uint(fmaf(scale, __uint_as_float(part[j]), __uint_as_float(sums[i][j])));
        }
#endif
    }
}

// ---- order ----

// Bytes of B may be on their way while the kernel before still runs: L2 is where its writes land too.
__device__ __forceinline__ void prefetch_l2(const u8* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// The row of B that row `r` of the CTA's tile is. Halves of a gated product alternate, 8 rows of each.
__device__ __forceinline__ u32 column_of(u32 tile, u32 r, u32 n) {
#if GATE == 1
    u32 j = tile * (ROWS / 2) + r / 16 * 8 + r % 8;
    return j < n / 2 ? j + (r & 8 ? n / 2 : 0) : n;
#else
    return tile * ROWS + r;
#endif
}

// ---- entry ----

extern "C" __global__ void __launch_bounds__(32 * WARPS, MIN_CTAS) skinny(const __grid_constant__ Params p) {
    __shared__ __align__(16) Sum partial[WARPS][COLS][PITCH];

    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const u32 rank = blockIdx.x % SPLIT, tile = blockIdx.x / SPLIT, m0 = blockIdx.y * COLS, batch = blockIdx.z;
    const u32 member = rank * WARPS + warp;
    const u32 first_k = member * (RUN * SLOT_K) + t * LANE_K; // of this lane

    const u8* b_row[BLOCKS];
#if SCALES >= 3
    const float *bs_row[BLOCK_SCALES], *as_row[TOKENS];
#endif
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) {
        u32 column = min(column_of(tile, i * 8 + g, p.n), p.n - 1); // what lies past n is computed and not stored
        b_row[i] = p.b + (batch * p.stride_b + u64(column) * p.ldb + first_k) * BYTES;
    }
    const u8* a_row[TOKENS];
    bool a_ok[TOKENS];
#pragma unroll
    for (int i = 0; i < TOKENS; ++i) {
        u32 row = m0 + i * 8 + g;
        a_ok[i] = row < p.m;
        a_row[i] = p.a + (batch * p.stride_a + u64(a_ok[i] ? row : 0) * p.lda + first_k) * BYTES;
    }
#if SCALES >= 3
#pragma unroll
    for (int i = 0; i < BLOCK_SCALES; ++i) {
        u32 r = SCALES == 4 ? i / 2 * 8 + 2 * t + i % 2 : i * 8;
        u32 column = min(column_of(tile, r, p.n), p.n - 1);
        bs_row[i] = p.b_scale + batch * p.stride_bs + u64(SCALES == 4 ? column : column / 128) * p.b_scale_row;
    }
#pragma unroll
    for (int i = 0; i < TOKENS; ++i)
        as_row[i] = p.a_scale + batch * p.stride_as + u64(min(m0 + i * 8 + g, p.m - 1)) * p.a_scale_row;
#endif

    if (first_k < p.k) {
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) prefetch_l2(b_row[i]);
    }
#if SPLIT > 1
    asm volatile("barrier.cluster.arrive.relaxed;");
#endif
    wait_for_previous_kernel();
    let_next_kernel_start();

    auto fetch = [&](u32 step, int d, int r) { // slot `r` of group `d` of this round
        const u32 offset = (d * TEAM * RUN + r) * SLOT_K;
        const u32 k = step + offset;
        Slot s;
#if VECTOR
        const bool ok = k < p.k;
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) s.b[i] = load_stream(b_row[i] + offset * BYTES, ok);
#pragma unroll
        for (int i = 0; i < TOKENS; ++i) s.a[i] = load_shared_by_all(a_row[i] + offset * BYTES, ok && a_ok[i]);
#else
        const int left = int(p.k - min(k, p.k));
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) s.b[i] = load_elements(b_row[i] + offset * BYTES, left);
#pragma unroll
        for (int i = 0; i < TOKENS; ++i) s.a[i] = load_elements(a_row[i] + offset * BYTES, a_ok[i] ? left : 0);
#endif
#if SCALES >= 3
        const u32 block = min(k, p.k - 1) / 128; // past k: the codes are zero, the scale must be finite
#pragma unroll
        for (int i = 0; i < BLOCK_SCALES; ++i) s.bs[i] = __ldg(bs_row[i] + u64(block) * p.b_scale_k);
#pragma unroll
        for (int i = 0; i < TOKENS; ++i) s.as[i] = __ldg(as_row[i] + u64(block) * p.a_scale_k);
#endif
        return s;
    };

    constexpr u32 ROUND = DEPTH * TEAM * RUN * SLOT_K; // elements of a row that the cluster covers in a round
    Sum sums[BLOCKS][4] = {};
    Slot ring[DEPTH][RUN];
#pragma unroll
    for (int d = 0; d < DEPTH; ++d)
#pragma unroll
        for (int r = 0; r < RUN; ++r) ring[d][r] = fetch(first_k, d, r);
    // The round is the same for a warp's lanes: the lane's own k would end some lanes' loop before others'.
    for (u32 step = first_k; step - t * LANE_K < p.k; step += ROUND) {
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) b_row[i] += ROUND * BYTES;
#pragma unroll
        for (int i = 0; i < TOKENS; ++i) a_row[i] += ROUND * BYTES;
#pragma unroll
        for (int d = 0; d < DEPTH; ++d)
#pragma unroll
            for (int r = 0; r < RUN; ++r) {
                multiply(sums, ring[d][r]);
                ring[d][r] = fetch(step + ROUND, d, r);
            }
    }

    // ---- add the warps' sums, and store ----
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i)
#pragma unroll
        for (int e = 0; e < 2 * TOKENS; e += 2)
            *reinterpret_cast<uint2*>(&partial[warp][e / 2 * 8 + g][i * 8 + 2 * t]) = make_uint2(sums[i][e], sums[i][e + 1]);
#if SPLIT > 1
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); // every CTA of the cluster runs
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#else
    __syncthreads();
#endif

    // Each CTA of the cluster finishes every SPLIT-th chunk of the tile.
    constexpr int PER = GATE ? 2 : 1; // sums of an output
    constexpr int OUT = ROWS / PER;   // outputs of a row of the tile
    for (u32 e = rank * (32 * WARPS) + threadIdx.x; e < COLS * OUT; e += TEAM * 32) {
        const u32 row = m0 + e / OUT, o = e % OUT;
        if (row >= p.m) break;
        float y[PER];
        bool inside = true;
#pragma unroll
        for (int h = 0; h < PER; ++h) {
#if GATE == 1
            const u32 r = o / 8 * 16 + o % 8 + h * 8;
#elif GATE == 2
            const u32 r = 2 * o + h;
#else
            const u32 r = o;
#endif
            const u32 column = column_of(tile, r, p.n);
            inside = inside && column < p.n;
            const u32 at = u32(__cvta_generic_to_shared(&partial[0][e / OUT][r]));
            Sum total = 0;
#pragma unroll
            for (int q = 0; q < SPLIT; ++q)
#pragma unroll
                for (int w = 0; w < WARPS; ++w) {
                    u32 from = at + w * (COLS * PITCH * 4);
                    Sum x;
#if SPLIT > 1
                    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %1, %2;\nld.shared::cluster.b32 %0, [there];\n}"
                                 : "=r"(x) : "r"(from), "r"(q));
#else
                    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from));
#endif
#if TYPE == 4
                    total += x;
#else
                    total = __float_as_uint(__uint_as_float(total) + __uint_as_float(x));
#endif
                }
            if (column >= p.n) continue;
#if TYPE == 4
            float x = float(int(total));
#else
            float x = __uint_as_float(total);
#endif
#if SCALES == 1
            x *= p.a_scale[batch * p.stride_as] * p.b_scale[batch * p.stride_bs];
#elif SCALES == 2
            x *= p.a_scale[batch * p.stride_as + row] * p.b_scale[batch * p.stride_bs + column];
#endif
            x *= p.alpha;
#if C_TYPE
            if (p.beta != 0.f)
                x += p.beta * epilogue::load<C_TYPE>(p.c, (u64(batch) * p.m + row) * p.n + column);
#endif
#if BIAS_TYPE
            x += epilogue::load<BIAS_TYPE>(p.bias, column);
#endif
            y[h] = x;
        }
        if (!inside) continue;
        float v = epilogue::act<ACT>(y[0]);
#if GATE
        v *= y[1];
#endif
        const u64 to = batch * p.stride_d + u64(row) * p.ldd + tile * OUT + o;
#if RESIDUAL_TYPE
        v += epilogue::load<RESIDUAL_TYPE>(p.residual, to);
#endif
#if D_SCALED
        v /= *p.d_global;
#endif
        epilogue::store<D_TYPE>(p.d, to, v);
    }
#if SPLIT > 1
    asm volatile("barrier.cluster.arrive.release;" ::: "memory"); // sums stay until all have read them
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

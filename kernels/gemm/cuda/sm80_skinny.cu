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
// Entry    gemm(const __grid_constant__ Source a, b, const __grid_constant__ Epilogue, u64 d, u32 k)
// Grid     x: SPLIT · ceil(n / (8·BLOCKS)), y: ceil(m / 16) (8 if KP_HALF), z: batch; cluster (SPLIT, 1, 1); block 32·WARPS
// Shared   static. No scratch. May be launched with programmatic serialization
// Macros   KP_A, KP_B   F16, BF16, E4M3, E5M2, I8: types of A and B, the same unless both are 8-bit floats
//          KP_BLOCKS    1, 2, 4 or 8 (even if the gate is HALVES); KP_WARPS 1 … 16; KP_SPLIT 1 … 8 (above 1 needs sm_90)
//          KP_HALF      1: m is at most 8, which saves registers
//          KP_RUN       consecutive slots of a warp (a slot is 64 bytes of a row); KP_DEPTH groups of them in flight
//          KP_VECTOR    1: pointers, row and batch distances of A and B, and k, are multiples of 16 bytes;
//                       0: anything (an element at a time)
//          KP_SCALES    0 none, 1 one f32 each, 2 one per row of A and of B, 3 per 1×128 of A and 128×128 of B,
//                       4 per 1×128 of both
//          KP_D, KP_C, KP_BIAS, KP_RESIDUAL   DType's names, VOID if there is none; KP_ACT, KP_GATE   Act's and Gate's
//          KP_BLOCKS_PER_SM                   blocks that registers must allow
// Needs    sm_80; 8-bit floats sm_89.
#include "common/cuda/numbers.cuh"
#include "gemm/cuda/sm90_epilogue.cuh"

// A or B: rows of k elements, `ld` elements apart, matrices `stride` elements apart. The scale of row r (r / 128 for B's
// blocks of 128×128) and elements 128i … 128i + 127 is r · scale_row + i · scale_k behind the matrix's first.
struct Source {
    u64 data;
    i64 stride, scale_stride;
    u32 ld, scale_row, scale_k;
};

constexpr DType NOTHING = DType::E8m0; // a type that no operand of the epilogue has
#define VOID E8m0
constexpr DType A = DType::KP_A, B = DType::KP_B;
constexpr DType D = DType::KP_D, C = DType::KP_C, BIAS = DType::KP_BIAS, RESIDUAL = DType::KP_RESIDUAL;
#undef VOID
constexpr Act ACT = Act::KP_ACT;
constexpr Gate GATE = Gate::KP_GATE;
constexpr int SCALES = KP_SCALES, WARPS = KP_WARPS, SPLIT = KP_SPLIT, BLOCKS = KP_BLOCKS;
// What is loaded an element at a time, or comes to 16 warps with scales, has no registers for more.
constexpr bool FEW = !KP_VECTOR || (SCALES >= 3 && WARPS > 8);
constexpr int RUN = FEW && KP_RUN > 2 ? 2 : KP_RUN, DEPTH = FEW ? 1 : KP_DEPTH;

constexpr bool FLOAT8 = A == DType::E4m3 || A == DType::E5m2, INTEGER = A == DType::I8;
constexpr int BYTES = FLOAT8 || INTEGER ? 1 : 2; // of an element
constexpr int LANE_K = 16 / BYTES;               // elements of a lane in a slot
constexpr int SLOT_K = 4 * LANE_K;               // elements of a row in a slot
constexpr int ROWS = 8 * BLOCKS;                 // rows of B of a block
constexpr int TOKENS = KP_HALF ? 8 : 16;         // rows of A of a block
constexpr int EIGHTS = TOKENS / 8;
constexpr int TEAM = WARPS * SPLIT;              // warps that share the slots
constexpr int PITCH = ROWS + 8;                  // of the sums in shared memory; 8 more keep a fragment's stores apart
// Scales of B that a lane needs of a slot: 128 rows share one, but a half of a gated product may begin anywhere.
constexpr bool COLUMN_SCALES = SCALES == 4 || GATE == Gate::HALVES;
constexpr int B_SCALES = COLUMN_SCALES ? 2 * BLOCKS : 1;

constexpr u32 BITS = bits_of(D);

// Sums of integers are exact, and stay so in f64.
template <bool WIDE> struct Choose { using Real = float; };
template <> struct Choose<true> { using Real = double; };
using Real = Choose<INTEGER>::Real;

// ---- load ----

struct Vec { u32 x[4]; };

// Streamed once: not worth a line of L1.
KP_FN Vec load_stream(u64 p, bool ok) {
    Vec v;
    asm volatile("{\n.reg .pred q;\nsetp.ne.b32 q, %5, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
                 "@q ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                 : "=r"(v.x[0]), "=r"(v.x[1]), "=r"(v.x[2]), "=r"(v.x[3])
                 : "l"(p), "r"(int(ok)));
    return v;
}

// Read by every block of the multiprocessor.
KP_FN Vec load_shared_by_all(u64 p, bool ok) {
    Vec v;
    asm volatile("{\n.reg .pred q;\nsetp.ne.b32 q, %5, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
                 "@q ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                 : "=r"(v.x[0]), "=r"(v.x[1]), "=r"(v.x[2]), "=r"(v.x[3])
                 : "l"(p), "r"(int(ok)));
    return v;
}

// 16 bytes of a row, `left` elements of which exist.
KP_FN Vec load_elements(u64 p, int left) {
    Vec v = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < LANE_K; ++i) {
        u32 e = 0;
        if (i < left) e = BYTES == 2 ? u32(((const u16 *)p)[i]) : u32(((const u8 *)p)[i]);
        v.x[i * BYTES / 4] |= e << (i * BYTES % 4 * 8);
    }
    return v;
}

// A slot of this warp: its part of every row of B and of A, and the scales that go with it.
struct Slot {
    Vec b[BLOCKS];
    Vec a[EIGHTS];
    float b_scale[B_SCALES], a_scale[EIGHTS];
};

// ---- compute ----

// 8-bit floats become f16, which holds them exactly: products and sums are then as good as f32's.
template <DType T, int N> KP_FN void widen(const Vec &v, u32 (&h)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        [[maybe_unused]] u16 pair = u16(v.x[i * 4 / N] >> (i % 2 * 16));
        if constexpr (N == 4) h[i] = v.x[i];
        else if constexpr (T == DType::E4m3) asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h[i]) : "h"(pair));
        else asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(h[i]) : "h"(pair));
    }
}

KP_FN void mma(u32 (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#define KP_MMA(instruction)                                                                                                                \
    asm volatile(instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                            \
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                                                                          \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))
    if constexpr (A == DType::Bf16) KP_MMA("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32");
    else if constexpr (INTEGER) KP_MMA("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32");
    else KP_MMA("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32");
#undef KP_MMA
}

// sums += slot. Register pair (2j, 2j + 1) of a row is what one instruction takes of it.
KP_FN void multiply(u32 (&sums)[BLOCKS][4], const Slot &s) {
    constexpr int REGISTERS = FLOAT8 ? 8 : 4;
    u32 a[EIGHTS][REGISTERS];
#pragma unroll
    for (int t = 0; t < EIGHTS; ++t) widen<A>(s.a[t], a[t]);
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) {
        u32 b[REGISTERS], fresh[4] = {0, 0, 0, 0};
        widen<B>(s.b[i], b);
        u32(&part)[4] = SCALES >= 3 ? fresh : sums[i];
#pragma unroll
        for (int j = 0; j < REGISTERS; j += 2)
            mma(part, a[0][j], KP_HALF ? 0 : a[EIGHTS - 1][j], a[0][j + 1], KP_HALF ? 0 : a[EIGHTS - 1][j + 1], b[j], b[j + 1]);
        if constexpr (SCALES >= 3)
#pragma unroll
            for (int j = 0; j < 2 * EIGHTS; ++j) {
                float scale = s.a_scale[j / 2] * s.b_scale[COLUMN_SCALES ? 2 * i + j % 2 : 0];
                sums[i][j] = __float_as_uint(fmaf(scale, __uint_as_float(part[j]), __uint_as_float(sums[i][j])));
            }
    }
}

// ---- order ----

// Bytes of B may be on their way while the kernel before still runs: L2 is where its writes land too.
KP_FN void prefetch_l2(u64 p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

KP_FN void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    ptx::wait_for_previous_kernel();
    ptx::allow_next_kernel();
#endif
}

// The column of the product that row `r` of the block's tile of B is. Halves of a gated product alternate, 8 of each.
KP_FN u32 column_of(u32 tile, u32 r, u32 n) {
    if constexpr (GATE == Gate::HALVES) {
        u32 j = tile * (ROWS / 2) + r / 16 * 8 + r % 8;
        return j < n / 2 ? j + (r & 8 ? n / 2 : 0) : n;
    }
    return tile * ROWS + r;
}

// ---- store ----

// The sum that all warps of the cluster have of the element at `at` in their shared memory.
KP_FN Real total(u32 at) {
    [[maybe_unused]] float sum = 0;
    [[maybe_unused]] int whole = 0;
#pragma unroll
    for (int rank = 0; rank < SPLIT; ++rank)
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            u32 from = at + w * (TOKENS * PITCH * 4), x;
#if KP_SPLIT > 1
            asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %1, %2;\nld.shared::cluster.b32 %0, [there];\n}"
                         : "=r"(x)
                         : "r"(from), "r"(rank));
#else
            asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from));
#endif
            if constexpr (INTEGER) whole += int(x);
            else sum += __uint_as_float(x);
        }
    if constexpr (INTEGER) return whole;
    else return sum;
}

// X of one element of the product.
KP_FN Real finished(const Source &a, const Source &b, const Epilogue &e, Real x, u32 row, u32 column, u32 batch) {
    const float *as = (const float *)e.a_scale + batch * a.scale_stride, *bs = (const float *)e.b_scale + batch * b.scale_stride;
    float scale = e.alpha;
    if constexpr (SCALES == 1) scale *= as[0] * bs[0];
    if constexpr (SCALES == 2) scale *= as[row] * bs[column];
    x *= scale;
    if constexpr (C != NOTHING)
        if (e.beta != 0) x += e.beta * number<Real>(C, (const void *)e.c, batch * e.c_stride + row * e.c_ld + column);
    if constexpr (BIAS != NOTHING) x += number<Real>(BIAS, (const void *)e.bias, column);
    return x;
}

// Stores element `i` of D.
KP_FN void store(u64 d, i64 i, Real x) {
    const u64 code = encode<Real>(D, x);
    if constexpr (BITS == 8) ((u8 *)d)[i] = (u8)code;
    else if constexpr (BITS == 16) ((u16 *)d)[i] = (u16)code;
    else if constexpr (BITS == 32) ((u32 *)d)[i] = (u32)code;
    else ((u64 *)d)[i] = code;
}

// ---- entry ----

extern "C" __global__ void __launch_bounds__(32 * WARPS, KP_BLOCKS_PER_SM)
    gemm(const __grid_constant__ Source a, const __grid_constant__ Source b, const __grid_constant__ Epilogue e, u64 d, u32 k) {
    __shared__ alignas(16) u32 partial[WARPS][TOKENS][PITCH];

    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const u32 rank = blockIdx.x % SPLIT, tile = blockIdx.x / SPLIT, row0 = blockIdx.y * TOKENS, batch = blockIdx.z;
    const u32 first_k = (rank * WARPS + warp) * (RUN * SLOT_K) + t * LANE_K; // of this lane

    // What lies past n is computed, from the last row, and not stored.
    u64 b_row[BLOCKS], a_row[EIGHTS];
    bool a_ok[EIGHTS];
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i)
        b_row[i] = b.data + (batch * b.stride + i64(min(column_of(tile, i * 8 + g, e.n), e.n - 1)) * b.ld + first_k) * BYTES;
#pragma unroll
    for (int i = 0; i < EIGHTS; ++i) {
        u32 row = row0 + i * 8 + g;
        a_ok[i] = row < e.m;
        a_row[i] = a.data + (batch * a.stride + i64(a_ok[i] ? row : 0) * a.ld + first_k) * BYTES;
    }
    [[maybe_unused]] const float *b_scale[B_SCALES], *a_scale[EIGHTS];
    if constexpr (SCALES >= 3) {
#pragma unroll
        for (int i = 0; i < B_SCALES; ++i) {
            u32 column = min(column_of(tile, COLUMN_SCALES ? i / 2 * 8 + 2 * t + i % 2 : 0, e.n), e.n - 1);
            b_scale[i] = (const float *)e.b_scale + batch * b.scale_stride + i64(SCALES == 4 ? column : column / 128) * b.scale_row;
        }
#pragma unroll
        for (int i = 0; i < EIGHTS; ++i)
            a_scale[i] = (const float *)e.a_scale + batch * a.scale_stride + i64(min(row0 + i * 8 + g, e.m - 1)) * a.scale_row;
    }

    if (first_k < k) {
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) prefetch_l2(b_row[i]);
    }
    if constexpr (SPLIT > 1) ptx::cluster_arrive();
    wait_for_previous_kernel();

    auto fetch = [&](u32 from, int group, int r) { // slot `r` of a group of the round that begins at `from`
        const u32 offset = (group * TEAM * RUN + r) * SLOT_K, at = from + offset;
        Slot s;
#if KP_VECTOR
        const bool ok = at < k;
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) s.b[i] = load_stream(b_row[i] + offset * BYTES, ok);
#pragma unroll
        for (int i = 0; i < EIGHTS; ++i) s.a[i] = load_shared_by_all(a_row[i] + offset * BYTES, ok && a_ok[i]);
#else
        const int left = int(k - min(at, k));
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) s.b[i] = load_elements(b_row[i] + offset * BYTES, left);
#pragma unroll
        for (int i = 0; i < EIGHTS; ++i) s.a[i] = load_elements(a_row[i] + offset * BYTES, a_ok[i] ? left : 0);
#endif
        if constexpr (SCALES >= 3) {
            const u32 block = min(at, k - 1) / 128; // past k, where codes are zero, the scale must be a number
#pragma unroll
            for (int i = 0; i < B_SCALES; ++i) s.b_scale[i] = b_scale[i][i64(block) * b.scale_k];
#pragma unroll
            for (int i = 0; i < EIGHTS; ++i) s.a_scale[i] = a_scale[i][i64(block) * a.scale_k];
        }
        return s;
    };

    constexpr u32 ROUND = DEPTH * TEAM * RUN * SLOT_K; // elements of a row that the cluster covers in a round
    u32 sums[BLOCKS][4] = {};
    Slot ring[DEPTH][RUN];
#pragma unroll
    for (int i = 0; i < DEPTH; ++i)
#pragma unroll
        for (int r = 0; r < RUN; ++r) ring[i][r] = fetch(first_k, i, r);
    // All lanes of a warp go the same number of rounds.
    for (u32 at = first_k; at - t * LANE_K < k; at += ROUND) {
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) b_row[i] += ROUND * BYTES;
#pragma unroll
        for (int i = 0; i < EIGHTS; ++i) a_row[i] += ROUND * BYTES;
#pragma unroll
        for (int i = 0; i < DEPTH; ++i)
#pragma unroll
            for (int r = 0; r < RUN; ++r) {
                multiply(sums, ring[i][r]);
                ring[i][r] = fetch(at + ROUND, i, r);
            }
    }

#pragma unroll
    for (int i = 0; i < BLOCKS; ++i)
#pragma unroll
        for (int h = 0; h < EIGHTS; ++h)
            *(uint2 *)&partial[warp][h * 8 + g][i * 8 + 2 * t] = {sums[i][2 * h], sums[i][2 * h + 1]};
    if constexpr (SPLIT > 1) {
        ptx::cluster_wait();
        ptx::cluster_sync();
    } else {
        __syncthreads();
    }

    // Each block of the cluster finishes every SPLIT-th part of the tile.
    constexpr int PER = GATE == Gate::NONE ? 1 : 2; // sums of an element of D
    constexpr int OUT = ROWS / PER;
    const u32 columns = e.n / PER, rows = min((u32)TOKENS, e.m - row0);
    for (u32 i = rank * (32 * WARPS) + threadIdx.x; i < rows * OUT; i += TEAM * 32) {
        const u32 row = row0 + i / OUT, o = i % OUT, column = tile * OUT + o;
        if (column >= columns) continue;
        Real y[PER];
#pragma unroll
        for (int h = 0; h < PER; ++h) {
            const u32 r = GATE == Gate::HALVES ? o / 8 * 16 + o % 8 + h * 8 : GATE == Gate::PAIRS ? 2 * o + h : o;
            y[h] = finished(a, b, e, total(ptx::smem_address(&partial[0][i / OUT][r])), row, column_of(tile, r, e.n), batch);
        }
        if constexpr (ACT != Act::IDENTITY) y[0] = activated<ACT>(float(y[0]));
        if constexpr (PER == 2) y[0] *= y[1];
        const i64 to = batch * e.d_stride + row * e.d_ld + column;
        if constexpr (RESIDUAL != NOTHING) y[0] += number<Real>(RESIDUAL, (const void *)e.residual, to);
        if (e.d_scale) y[0] /= *(const float *)e.d_scale;
        store(d, to, y[0]);
    }
    if constexpr (SPLIT > 1) ptx::cluster_sync(); // sums stay until all have read them
}

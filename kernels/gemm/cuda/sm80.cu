// D = A·B on the matrix unit of any device since sm_80, with every epilogue, grouping and layout that `simt` has.
//
//        BN = 2 · 64 or 4 · 32          A stage holds 128 bytes of k of BM rows of A and BN columns of B. Runs of 16 bytes go from
//      ┌──┬──┬──┬──┐  8 warps, each     global to shared memory by themselves (cp.async), STAGES - 1 stages ahead; fragments
//  BM  │w0│w1│w2│w3│  WM × WN of D      come out by ldmatrix. Within a line of shared memory, run c of line r lies at c ^ r % 8,
//      ├──┼──┼──┼──┤                    so neither side meets bank conflicts. If not all runs are aligned, elements are loaded one
//      │w4│w5│w6│w7│                    by one, which is slow but right.
//      └──┴──┴──┴──┘
//
//      k contiguous:      lines of 128 bytes of k, one for each row of A or column of B
//      k not contiguous:  lines of all the tile's rows (columns), one for each k; 16-bit types only, transposed by ldmatrix
//
// Each step of 32 bytes of k is one instruction, steps in ascending order: a row's bits depend on nothing but the row.
//
// Defines: KP_TYPE (BF16, F16, TF32, E4M3, E5M2, S8: of A and B), FINISH (`float` or `double`), TILE (0: 128 × 128,
// 1: 64 × 64), KP_STAGES, KP_A_OUTER and KP_B_OUTER (1: k is not contiguous), KP_WHOLE (1 with S8), KP_FP8 (1 with E4M3 and E5M2,
// which need sm_89). Entry: sm80(Params). Grid: up to `tiles` blocks of 256 threads. Shared: dynamic,
// STAGES · (BM + BN) · 128 bytes, at least BM · BN · 4.
#include "common/cuda/numbers.cuh"

enum Type { BF16, F16, TF32, E4M3, E5M2, S8 };
constexpr Type TYPE = KP_TYPE;

template <bool WHOLE_> struct SumOf { typedef float R; };
template <> struct SumOf<true> { typedef int R; };
typedef SumOf<TYPE == S8>::R R;
typedef FINISH E;

constexpr int BYTES = TYPE == BF16 || TYPE == F16 ? 2 : TYPE == TF32 ? 4 : 1; // of an element
constexpr int RUN = 16 / BYTES;                                              // elements of 16 bytes
constexpr int STAGES = KP_STAGES;
constexpr bool SCALES_LAST = true;

struct T {
    static constexpr int BM = TILE == 0 ? 128 : 64, BN = BM, BK = 128 / BYTES, MS = 1, THREADS = 256;
    // Warps along m and n, and what each computes, in fragments of 16 × 8.
    static constexpr int WARPS_M = 2, WARPS_N = 4, WM = BM / WARPS_M, WN = BN / WARPS_N, FM = WM / 16, FN = WN / 8;
    static constexpr int A_BYTES = BM * 128, STAGE = (BM + BN) * 128;
};
static_assert(STAGES * T::STAGE >= T::BM * T::BN * 4, "sums leave through the stages");

#include "gemm/cuda/simt_finish.cuh"

// --- loading ---------------------------------------------------------------------------------------------------------

__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

/// Copies `bytes` of 16 bytes and clears the rest.
__device__ __forceinline__ void copy_run(u32 to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/// Where run `c` of line `r` lies; lines of LINE runs.
template <int LINE>
__device__ __forceinline__ u32 place(u32 r, u32 c) { return (r * LINE + (c ^ r % 8)) * 16; }

/// Loads the stages of one operand, WIDTH rows of A or columns of B.
template <int WIDTH>
struct Loader {
    static constexpr int COUNT = WIDTH * 8 / T::THREADS;

    const Operand &s;
    const u8 *codes;
    u32 first[2], some[2];

    __device__ __forceinline__ Loader(const Operand &s, u32 batch, const u32 (&first_)[2], const u32 (&some_)[2])
        : s(s), codes(static_cast<const u8 *>(s.codes) + batch * s.stride * BYTES) {
        for (int h = 0; h < 2; ++h) first[h] = first_[h], some[h] = some_[h];
    }

    /// Starts loading the stage at `k0` to `to`.
    __device__ __forceinline__ void load(u32 k0, u8 *to) const {
        bool outer = s.form == Form::Outer;
#pragma unroll
        for (int n = 0; n < COUNT; ++n) {
            int at = threadIdx.x + n * T::THREADS;
            // Row (or first of a run of rows) and k (or first of a run of k) within the tile.
            int row = outer ? at % (WIDTH / RUN) * RUN : at / 8, k = outer ? at / (WIDTH / RUN) : at % 8 * RUN;
            int half = row >= WIDTH / 2, in_half = row - half * (WIDTH / 2);
            u32 there = half ? some[1] : some[0], o = (half ? first[1] : first[0]) + in_half, i = k0 + k;
            u32 rows = there > in_half ? there - in_half : 0, left = i < s.inner ? s.inner - i : 0;
            u32 length = rows == 0 || left == 0 ? 0 : min(outer ? rows : left, (u32)RUN);
            const u8 *from = codes + (outer ? (u64)i * s.ld + o : (u64)o * s.ld + i) * BYTES;
            u32 line = outer ? k : row, run = outer ? row / RUN : k / RUN;
            u8 *target = to + (outer ? place<WIDTH / RUN>(line, run) : place<8>(line, run));
            if (s.vector) {
                // What is not there has no address either.
                copy_run(shared_address(target), length == 0 ? codes : from, length * BYTES);
            } else {
                element_by_element(target, from, length);
            }
        }
    }

    static __device__ __forceinline__ void element_by_element(u8 *to, const u8 *from, u32 length) {
        u32 x[4] = {0, 0, 0, 0};
#pragma unroll
        for (u32 e = 0; e < RUN; ++e) {
            if (e >= length) break;
            u32 code = BYTES == 4   ? reinterpret_cast<const u32 *>(from)[e]
                       : BYTES == 2 ? reinterpret_cast<const u16 *>(from)[e]
                                    : from[e];
            x[e * BYTES / 4] |= code << (e * BYTES % 4 * 8);
        }
        *reinterpret_cast<uint4 *>(to) = make_uint4(x[0], x[1], x[2], x[3]);
    }
};

// --- multiplying -----------------------------------------------------------------------------------------------------

template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(u32 (&x)[4], u32 from) {
    if constexpr (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(from));
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(from));
    }
}

__device__ __forceinline__ void multiply(R (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#define KP_MMA(SHAPE, TYPES, LETTER)                                                                                   \
    asm volatile("mma.sync.aligned." SHAPE ".row.col." TYPES " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+" LETTER(d[0]), "+" LETTER(d[1]), "+" LETTER(d[2]), "+" LETTER(d[3])                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
#if KP_WHOLE
    KP_MMA("m16n8k32", "s32.s8.s8.s32", "r");
#else
    if constexpr (TYPE == BF16) KP_MMA("m16n8k16", "f32.bf16.bf16.f32", "f");
    else if constexpr (TYPE == F16) KP_MMA("m16n8k16", "f32.f16.f16.f32", "f");
    else if constexpr (TYPE == TF32) KP_MMA("m16n8k8", "f32.tf32.tf32.f32", "f");
#if KP_FP8
    else if constexpr (TYPE == E4M3) KP_MMA("m16n8k32", "f32.e4m3.e4m3.f32", "f");
    else if constexpr (TYPE == E5M2) KP_MMA("m16n8k32", "f32.e5m2.e5m2.f32", "f");
#endif
#endif
#undef KP_MMA
}

/// The fragments of A: 16 rows from `row` on, at step `step`.
template <bool OUTER>
__device__ __forceinline__ void load_a(u32 (&x)[4], u32 base, u32 row, u32 step, u32 lane) {
    if constexpr (OUTER) {
        u32 k = step * 16 + lane % 8 + lane / 16 * 8, run = row / 8 + lane / 8 % 2;
        load_matrices<true>(x, base + place<T::BM / RUN>(k, run));
    } else {
        load_matrices<false>(x, base + place<8>(row + lane % 16, step * 2 + lane / 16));
    }
}

/// Those of B: 16 columns from `column` on; two registers for each 8.
template <bool OUTER>
__device__ __forceinline__ void load_b(u32 (&x)[4], u32 base, u32 column, u32 step, u32 lane) {
    if constexpr (OUTER) {
        u32 k = step * 16 + lane % 16, run = column / 8 + lane / 16;
        load_matrices<true>(x, base + place<T::BN / RUN>(k, run));
    } else {
        load_matrices<false>(x, base + place<8>(column + lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2));
    }
}

/// Adds the products of one stage.
template <bool A_OUTER, bool B_OUTER>
__device__ __forceinline__ void multiply_stage(R (&sums)[T::FM][T::FN][4], u32 a, u32 b, u32 row, u32 column, u32 lane) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        u32 x[T::FM][4], y[T::FN / 2][4];
#pragma unroll
        for (int i = 0; i < T::FM; ++i) load_a<A_OUTER>(x[i], a, row + i * 16, step, lane);
#pragma unroll
        for (int j = 0; j < T::FN / 2; ++j) load_b<B_OUTER>(y[j], b, column + j * 16, step, lane);
#pragma unroll
        for (int i = 0; i < T::FM; ++i)
#pragma unroll
            for (int j = 0; j < T::FN; ++j) multiply(sums[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
    }
}

extern "C" __global__ void __launch_bounds__(T::THREADS, TILE == 0 ? 1 : 2) sm80(const __grid_constant__ Params p) {
    extern __shared__ __align__(128) u8 stages[];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 row = warp / T::WARPS_N * T::WM, column = warp % T::WARPS_N * T::WN;
    u32 steps = p.k / T::BK + (p.k % T::BK != 0);
    for (u64 t = blockIdx.x; t < p.tiles; t += gridDim.x) {
        Item item;
        if (!find(p, t, item)) continue;
        u32 rows[2] = {item.row, item.row + T::BM / 2};
        u32 some[2] = {item.rows, item.rows > T::BM / 2 ? item.rows - T::BM / 2 : 0};
        Loader<T::BM> a(p.a, item.row_batch, rows, some);
        Loader<T::BN> b(p.b, item.b, item.col, item.cols);
        auto load = [&](u32 step) {
            if (step < steps) {
                u8 *stage = stages + step % STAGES * T::STAGE;
                a.load(step * T::BK, stage);
                b.load(step * T::BK, stage + T::A_BYTES);
            }
            // An empty group too, so that the number of groups under way is always the same.
            asm volatile("cp.async.commit_group;" ::: "memory");
        };
        R sums[T::FM][T::FN][4];
#pragma unroll
        for (int i = 0; i < T::FM; ++i)
#pragma unroll
            for (int j = 0; j < T::FN; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) sums[i][j][e] = (R)0;
        for (int ahead = 0; ahead < STAGES - 1; ++ahead) load(ahead);
        for (u32 step = 0; step < steps; ++step) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            // What this step reads is there for all, and what the next load overwrites has been read by all.
            __syncthreads();
            load(step + STAGES - 1);
            u32 base = shared_address(stages + step % STAGES * T::STAGE);
            multiply_stage<KP_A_OUTER, KP_B_OUTER>(sums, base, base + T::A_BYTES, row, column, lane);
        }
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        R(*finished)[T::BN] = reinterpret_cast<R(*)[T::BN]>(stages);
#pragma unroll
        for (int i = 0; i < T::FM; ++i)
#pragma unroll
            for (int j = 0; j < T::FN; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    finished[row + i * 16 + lane / 4 + e / 2 * 8][column + j * 8 + lane % 4 * 2 + e % 2] = sums[i][j][e];
        __syncthreads();
        finish_rows(p, item, 0, finished);
        __syncthreads();
    }
}

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
// Sums of 8-bit floats need not stay in the matrix unit, which keeps fewer bits of them than f32 has: those of a stage, or of
// an instruction if each has scales of its own, are added in f32. A thread loads the scales of one row or column a stage ahead
// and leaves them in shared memory for those who need them.
//
// Defines: KP_TYPE and KP_B_TYPE (BF16, F16, TF32, E4M3, E5M2, S8: of A and B, the same but for E4M3 and E5M2), KP_SUMS (UNIT: sums
// stay in the unit; the others, of 8-bit floats, do not: STAGE: they have no scales along k; BLOCKS: an F32 for each 128 along k; MX: an
// E8M0 for each 32), FINISH (`float` or `double`), TILE (0: 128 × 128, 1: 64 × 64), KP_STAGES, KP_A_OUTER and KP_B_OUTER (1: k is not
// contiguous), KP_WHOLE (1 with S8), KP_FP8 (1 with E4M3 and E5M2, which need sm_89). Entry: sm80(Params). Grid: up to `tiles` blocks
// of 256 threads. Shared: dynamic, STAGES · (BM + BN) · 128 bytes, at least BM · BN · 4, and with scales along k (BM + BN) · 8 more.
#include "common/cuda/numbers.cuh"

enum Type { BF16, F16, TF32, E4M3, E5M2, S8 };
constexpr Type TYPE = KP_TYPE;
enum Sums { UNIT, STAGE, BLOCKS, MX };
constexpr Sums SUMS = KP_SUMS;
constexpr bool SCALED_ALONG_K = SUMS == BLOCKS || SUMS == MX;

template <bool WHOLE_> struct SumOf { typedef float R; };
template <> struct SumOf<true> { typedef int R; };
typedef SumOf<TYPE == S8>::R R;
typedef FINISH E;

constexpr int BYTES = TYPE == BF16 || TYPE == F16 ? 2 : TYPE == TF32 ? 4 : 1; // of an element
constexpr int RUN = 16 / BYTES;                                              // elements of 16 bytes
constexpr int STAGES = KP_STAGES;
constexpr bool SCALES_LAST = !SCALED_ALONG_K;

struct T {
    static constexpr int BM = TILE == 0 ? 128 : 64, BN = BM, BK = 128 / BYTES, MS = 1, THREADS = 256;
    // Warps along m and n, and what each computes, in fragments of 16 × 8.
    static constexpr int WARPS_M = 2, WARPS_N = 4, WM = BM / WARPS_M, WN = BN / WARPS_N, FM = WM / 16, FN = WN / 8;
    static constexpr int A_BYTES = BM * 128, STAGE = (BM + BN) * 128;
};
static_assert(STAGES * T::STAGE >= T::BM * T::BN * 4, "sums leave through the stages");

#include "gemm/cuda/simt_finish.cuh"
#include "gemm/cuda/sm80_stages.cuh"

// --- multiplying -----------------------------------------------------------------------------------------------------

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
    else if constexpr (TYPE == E4M3 && KP_B_TYPE == E4M3) KP_MMA("m16n8k32", "f32.e4m3.e4m3.f32", "f");
    else if constexpr (TYPE == E4M3) KP_MMA("m16n8k32", "f32.e4m3.e5m2.f32", "f");
    else if constexpr (KP_B_TYPE == E4M3) KP_MMA("m16n8k32", "f32.e5m2.e4m3.f32", "f");
    else KP_MMA("m16n8k32", "f32.e5m2.e5m2.f32", "f");
#endif
#endif
#undef KP_MMA
}

/// A square of fragments; element e of one belongs to row e / 2 · 8 + lane / 4 and column lane % 4 · 2 + e % 2 of its 16 × 8.
typedef R Square[T::FM][T::FN][4];

/// The scales of one row of A or column of B, of all its blocks along k.
struct ScaleLine {
    /// The first.
    const u8 *codes;
    /// Bytes from one block to the next, and from one stage's to the next's; how many blocks there are.
    u32 block, stage, count;

    __device__ __forceinline__ ScaleLine(const Operand &s, u32 batch, u32 o, bool is_there) {
        constexpr u32 BYTES = SUMS == MX ? 1 : 4, COUNT = SUMS == MX ? 4 : 1;
        u64 place = scale_place(o / s.block_outer, 0, s.scale_outer, s.scale_inner, s.inner_blocks);
        bool in_tiles = (s.scale_outer | s.scale_inner) == 0;
        codes = static_cast<const u8 *>(s.scales) + (batch * s.scale_stride + place) * BYTES;
        block = in_tiles ? 1 : (u32)s.scale_inner * BYTES;
        stage = in_tiles ? 512 : block * COUNT;
        count = is_there ? s.inner_blocks : 0;
    }

    /// What stage `step` needs of them: the bits of an F32, or four E8M0.
    __device__ __forceinline__ u32 of_stage(u32 step) const {
        const u8 *at = codes + (u64)step * stage;
        if constexpr (SUMS == BLOCKS) return step < count ? *reinterpret_cast<const u32 *>(at) : 0;
        u32 word = 0;
#pragma unroll
        for (u32 n = 0; n < 4; ++n)
            if (step * 4 + n < count) word |= (u32)at[n * block] << n * 8;
        return word;
    }
};

/// Scale `n` of what `of_stage` answers.
__device__ __forceinline__ float scale_of(u32 word, int n) {
    if constexpr (SUMS == BLOCKS) return __uint_as_float(word);
    u32 code = word >> n * 8 & 255;
    // 2^-127 has a form of its own, and the last code is not infinite but no number.
    return __uint_as_float(code == 0 ? 1u << 22 : code == 255 ? 0x7fffffffu : code << 23);
}

/// The scales of a thread's rows and columns of the tile: number `n` of each word of a stage, rows' first.
struct Factors {
    float row[T::FM][2], column[T::FN][2];

    __device__ __forceinline__ Factors(const u32 *words, int n, u32 first_row, u32 first_column, u32 lane) {
        const u32 *rows = words + first_row + lane / 4, *columns = words + T::BM + first_column + lane % 4 * 2;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int i = 0; i < T::FM; ++i) row[i][h] = scale_of(rows[i * 16 + h * 8], n);
#pragma unroll
            for (int j = 0; j < T::FN; ++j) column[j][h] = scale_of(columns[j * 8 + h], n);
        }
    }

    /// Adds a fragment's sums to all that was summed before.
    __device__ __forceinline__ void add(R (&sums)[4], const R (&part)[4], int i, int j) const {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[e] += part[e] * (row[i][e / 2] * column[j][e % 2]);
    }
};

/// Calls `each(i, j)` for every fragment of a square.
template <class F> __device__ __forceinline__ void for_fragments(F each) {
#pragma unroll
    for (int i = 0; i < T::FM; ++i)
#pragma unroll
        for (int j = 0; j < T::FN; ++j) each(i, j);
}

__device__ __forceinline__ void clear(Square &sums) {
    for_fragments([&](int i, int j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[i][j][e] = (R)0;
    });
}

/// Adds the products of one stage, whose scales are `words`.
template <bool A_OUTER, bool B_OUTER>
__device__ __forceinline__ void multiply_stage(Square &sums, u32 a, u32 b, const u32 *words, u32 row, u32 column, u32 lane) {
    Square stage;
    clear(stage);
    // Scales of each step besides would not fit into registers unrolled.
#pragma unroll(SUMS == MX ? 1 : 4)
    for (int step = 0; step < 4; ++step) {
        u32 x[T::FM][4], y[T::FN / 2][4];
#pragma unroll
        for (int i = 0; i < T::FM; ++i) load_a<A_OUTER>(x[i], a, row + i * 16, step, lane);
#pragma unroll
        for (int j = 0; j < T::FN / 2; ++j) load_b<B_OUTER>(y[j], b, column + j * 16, step, lane);
        auto add_products = [&](R(&d)[4], int i, int j) { multiply(d, x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]); };
        if constexpr (SUMS == MX) {
            Factors factors(words, step, row, column, lane);
            for_fragments([&](int i, int j) {
                R part[4] = {0, 0, 0, 0};
                add_products(part, i, j);
                factors.add(sums[i][j], part, i, j);
            });
        } else {
            for_fragments([&](int i, int j) { add_products(SUMS == UNIT ? sums[i][j] : stage[i][j], i, j); });
        }
    }
    if constexpr (SUMS == BLOCKS) {
        Factors factors(words, 0, row, column, lane);
        for_fragments([&](int i, int j) { factors.add(sums[i][j], stage[i][j], i, j); });
    } else if constexpr (SUMS == STAGE) {
        for_fragments([&](int i, int j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[i][j][e] += stage[i][j][e];
        });
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
        Square sums;
        clear(sums);
        // Of this thread's row or column; two stages' in turn.
        bool is_row = threadIdx.x < T::BM;
        u32 at = is_row ? threadIdx.x : threadIdx.x - T::BM, half = at >= T::BN / 2, in_half = at - half * (T::BN / 2);
        ScaleLine line = is_row ? ScaleLine(p.a, item.row_batch, item.row + at, at < item.rows)
                                : ScaleLine(p.b, item.b, (half ? item.col[1] : item.col[0]) + in_half,
                                            at < T::BN && in_half < (half ? item.cols[1] : item.cols[0]));
        u32(*scales)[T::BM + T::BN] = reinterpret_cast<u32(*)[T::BM + T::BN]>(stages + STAGES * T::STAGE);
        u32 word = SCALED_ALONG_K ? line.of_stage(0) : 0;
        for (int ahead = 0; ahead < STAGES - 1; ++ahead) load(ahead);
        for (u32 step = 0; step < steps; ++step) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            if (SCALED_ALONG_K && threadIdx.x < T::BM + T::BN) scales[step % 2][threadIdx.x] = word;
            // What this step reads is there for all, and what the next load overwrites has been read by all.
            __syncthreads();
            load(step + STAGES - 1);
            u32 base = shared_address(stages + step % STAGES * T::STAGE);
            if (SCALED_ALONG_K) word = line.of_stage(step + 1);
            multiply_stage<KP_A_OUTER, KP_B_OUTER>(sums, base, base + T::A_BYTES, scales[step % 2], row, column, lane);
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

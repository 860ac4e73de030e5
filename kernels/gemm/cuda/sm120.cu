// D = A·B of 8-bit and 4-bit floats whose blocks have scales (MX, NVFP4), on the matrix unit of sm_120, with every epilogue that `simt` has.
// Never run: no such device was at hand. `kernels/gemm/blackwell.md` lists what to review.
//
// Tiles, stages, warps and fragments are those of `sm80.cu`: a step of 32 bytes of k is one instruction, and its fragments lie byte by byte
// as those of 16-bit types do. Two 4-bit elements are a byte; all that is said of bytes of k holds for them too.
//
//     codes    global ─ cp.async ─▶ stages of 128 bytes of k ─ ldmatrix ─▶ registers
//     scales   global ─▶ registers, a stage ahead; four along k are a word, which serves the steps that need them
//
// An instruction takes scales from some lanes only: of each quad, two for the 16 rows of A, one for the 8 columns of B. So a register holds
// those of two fragments of A, or of four of B, and the instruction says whose it wants:
//
//     lane l of a quad                     0        1        2        3
//     rows of A, fragments 2i and 2i + 1   2i: r    r + 8    2i + 1: r    r + 8     r = lane / 4
//     columns of B, fragments 4j to 4j + 3   4j     4j + 1   4j + 2       4j + 3    column lane / 4
//
// Scales may lie in rows or in tiles (kp-hal's `ScaleLayout`), as long as four along k are an aligned word.
//
// Steps go in ascending order: a row's bits depend on nothing but the row.
//
// Defines: KP_KIND (MXF8F6F4, MXF4, MXF4NVF4), KP_A, KP_B (e4m3, e5m2: of MXF8F6F4), FINISH (`float` or `double`), TILE (0: 128 × 128, 1: 64 × 64),
// KP_STAGES. Entry: sm120(Params). Grid: up to `tiles` blocks of 256 threads. Shared: dynamic, STAGES · (BM + BN) · 128 bytes, at least
// BM · BN · 4.
//
// Limits: k a multiple of what an instruction takes; A and B contiguous along k; scales aligned to 4 bytes, a row of them a multiple of 4
// unless they lie in tiles.
#include "common/cuda/numbers.cuh"

enum class Kind { MXF8F6F4, MXF4, MXF4NVF4 };
constexpr Kind KIND = Kind::KP_KIND;

typedef float R;
typedef FINISH E;

constexpr int BYTES = 1, RUN = 16; // of a byte of codes
constexpr int IN_BYTE = KIND == Kind::MXF8F6F4 ? 1 : 2;
constexpr int STAGES = KP_STAGES;
// Sums come scaled out of the matrix unit.
constexpr bool SCALES_LAST = false;
// Scales of a row that an instruction takes; as many words of four belong to a stage of four instructions.
constexpr int SCALES = KIND == Kind::MXF8F6F4 ? 1 : KIND == Kind::MXF4 ? 2 : 4, WORDS = SCALES;

struct T {
    static constexpr int BM = TILE == 0 ? 128 : 64, BN = BM, BK = 128, MS = 1, THREADS = 256;
    // Warps along m and n, and what each computes, in fragments of 16 × 8.
    static constexpr int WARPS_M = 2, WARPS_N = 4, WM = BM / WARPS_M, WN = BN / WARPS_N, FM = WM / 16, FN = WN / 8;
    static constexpr int A_BYTES = BM * 128, STAGE = (BM + BN) * 128;
    // Registers for each word of scales.
    static constexpr int SM = (FM + 1) / 2, SN = (FN + 3) / 4;
};
static_assert(STAGES * T::STAGE >= T::BM * T::BN * 4, "sums leave through the stages");

#include "gemm/cuda/simt_finish.cuh"
#include "gemm/cuda/sm80_stages.cuh"

// --- scales ----------------------------------------------------------------------------------------------------------

/// Those of one stage.
struct Scales {
    u32 a[T::SM][WORDS], b[T::SN][WORDS];
};

/// Word `w` of outer row `o`, four scales along k; 0 if there is none.
__device__ __forceinline__ u32 scale_word(const Operand &s, u32 batch, u32 o, bool exists, u32 w) {
    if (!exists || w * 4 >= s.inner_blocks) return 0;
    const u8 *scales = static_cast<const u8 *>(s.scales) + batch * s.scale_stride;
    return __ldg(reinterpret_cast<const u32 *>(scales + scale_place(o, w * 4, s.scale_outer, s.scale_inner, s.inner_blocks)));
}

/// What this lane holds for stage `stage`; `row` and `column` are where the warp's part of the tile begins.
__device__ __forceinline__ void load_scales(Scales &to, const Params &p, const Item &item, u32 stage, u32 row, u32 column, u32 lane) {
    u32 in_quad = lane % 4;
#pragma unroll
    for (int w = 0; w < WORDS; ++w) {
#pragma unroll
        for (int i = 0; i < T::SM; ++i) {
            u32 r = row + (2 * i + in_quad / 2) * 16 + in_quad % 2 * 8 + lane / 4;
            to.a[i][w] = scale_word(p.a, item.row_batch, item.row + r, r < item.rows, stage * WORDS + w);
        }
#pragma unroll
        for (int j = 0; j < T::SN; ++j) {
            u32 c = column + (4 * j + in_quad) * 8 + lane / 4, half = c >= T::BN / 2, within = c - half * (T::BN / 2);
            u32 first = half ? item.col[1] : item.col[0], some = half ? item.cols[1] : item.cols[0];
            to.b[j][w] = scale_word(p.b, item.b, first + within, c < T::BN && within < some, stage * WORDS + w);
        }
    }
}

// --- multiplying -----------------------------------------------------------------------------------------------------

/// `a_from` and `b_from` say which lanes of each quad have the scales, `first` which of their bytes is the first.
__device__ __forceinline__ void multiply(R (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, u32 a_scales, u32 b_scales, u16 first, u16 a_from, u16 b_from) {
#define KP_TEXT_(X) #X
#define KP_TEXT(X) KP_TEXT_(X)
#define KP_MMA(SHAPE, KIND, TYPES)                                                                                     \
    asm volatile("mma.sync.aligned." SHAPE ".row.col.kind::" KIND "." TYPES " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}," \
                 " %10, {%12, %13}, %11, {%12, %14};"                                                                  \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(a_scales), "r"(b_scales), "h"(first), "h"(a_from), "h"(b_from))
    if constexpr (KIND == Kind::MXF8F6F4) KP_MMA("m16n8k32", "mxf8f6f4.block_scale.scale_vec::1X", "f32." KP_TEXT(KP_A) "." KP_TEXT(KP_B) ".f32.ue8m0");
    else if constexpr (KIND == Kind::MXF4) KP_MMA("m16n8k64", "mxf4.block_scale.scale_vec::2X", "f32.e2m1.e2m1.f32.ue8m0");
    else KP_MMA("m16n8k64", "mxf4nvf4.block_scale.scale_vec::4X", "f32.e2m1.e2m1.f32.ue4m3");
#undef KP_MMA
}

/// Adds the products of one stage, of which there are `steps`.
__device__ __forceinline__ void multiply_stage(R (&sums)[T::FM][T::FN][4], const Scales &scales, u32 a, u32 b, u32 row, u32 column, u32 lane, u32 steps) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        // Past k there may be no scales, and what is in their place may be NaN.
        if (step >= steps) break;
        u32 x[T::FM][4], y[T::FN / 2][4];
#pragma unroll
        for (int i = 0; i < T::FM; ++i) load_a<false>(x[i], a, row + i * 16, step, lane);
#pragma unroll
        for (int j = 0; j < T::FN / 2; ++j) load_b<false>(y[j], b, column + j * 16, step, lane);
        constexpr int S = SCALES;
        int word = step * S / 4, first = step * S % 4;
#pragma unroll
        for (int i = 0; i < T::FM; ++i)
#pragma unroll
            for (int j = 0; j < T::FN; ++j)
                multiply(sums[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1], scales.a[i / 2][word], scales.b[j / 4][word], first, i % 2, j % 4);
    }
}

/// The operand with its bytes as elements.
__device__ __forceinline__ Operand in_bytes(Operand s) {
    s.inner /= IN_BYTE, s.ld /= IN_BYTE, s.stride /= IN_BYTE;
    return s;
}

extern "C" __global__ void __launch_bounds__(T::THREADS, TILE == 0 ? 1 : 2) sm120(const __grid_constant__ Params p) {
    extern __shared__ __align__(128) u8 stages[];
    Operand codes_a = in_bytes(p.a), codes_b = in_bytes(p.b);
    // NVFP4 has one number for all blocks on top of their scales.
    float global = KIND == Kind::MXF4NVF4 ? *p.a.global * *p.b.global : 1.0f;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 row = warp / T::WARPS_N * T::WM, column = warp % T::WARPS_N * T::WN;
    u32 instructions = p.k / (32 * IN_BYTE), steps = (instructions + 3) / 4;
    for (u64 t = blockIdx.x; t < p.tiles; t += gridDim.x) {
        Item item;
        if (!find(p, t, item)) continue;
        u32 rows[2] = {item.row, item.row + T::BM / 2};
        u32 some[2] = {item.rows, item.rows > T::BM / 2 ? item.rows - T::BM / 2 : 0};
        Loader<T::BM> a(codes_a, item.row_batch, rows, some);
        Loader<T::BN> b(codes_b, item.b, item.col, item.cols);
        auto load = [&](u32 step) {
            if (step < steps) {
                u8 *stage = stages + step % STAGES * T::STAGE;
                a.load(step * T::BK, stage);
                b.load(step * T::BK, stage + T::A_BYTES);
            }
            // An empty group too, so that the number of groups under way is always the same.
            asm volatile("cp.async.commit_group;" ::: "memory");
        };
        R sums[T::FM][T::FN][4] = {};
        for (int ahead = 0; ahead < STAGES - 1; ++ahead) load(ahead);
        Scales scales, next;
        load_scales(next, p, item, 0, row, column, lane);
        for (u32 step = 0; step < steps; ++step) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            // What this step reads is there for all, and what the next load overwrites has been read by all.
            __syncthreads();
            load(step + STAGES - 1);
            scales = next;
            if (step + 1 < steps) load_scales(next, p, item, step + 1, row, column, lane);
            u32 base = shared_address(stages + step % STAGES * T::STAGE);
            multiply_stage(sums, scales, base, base + T::A_BYTES, row, column, lane, instructions - step * 4);
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
                    finished[row + i * 16 + lane / 4 + e / 2 * 8][column + j * 8 + lane % 4 * 2 + e % 2] = sums[i][j][e] * global;
        __syncthreads();
        finish_rows(p, item, 0, finished);
        __syncthreads();
    }
}

// What `sm90_blocks.cuh` is built as: its defines, what a launch is told, and where things lie in shared memory.
#pragma once
#include "common/cuda/wgmma.cuh"

#ifndef OUT
#define OUT 0
#endif
#ifndef GROUPING
#define GROUPING 0
#endif
#ifndef AHEAD
#define AHEAD 0
#endif
#ifndef CLUSTER_K
#define CLUSTER_K 1
#endif

/// What a launch is told beside its tensor maps. Strides count elements. Scales of rows come fastest in the outer layout, aligned to 16
/// bytes: then one bulk copy per stage brings them, while copies of single numbers keep the tensor cores from shared memory.
struct Args {
    const float *a_scale, *b_scale; ///< scale of block (row, kb) of batch z: [z · batch + row · row_stride + kb · k_stride]
    i64 a_scale_batch, b_scale_batch;
    u32 a_scale_row, a_scale_k; ///< inner layout: (k/128 rounded up, 1); outer layout: (1, rows of blocks rounded up to 4)
    u32 b_scale_row, b_scale_k;
    void *d;
    i64 d_batch;
    const i32 *groups; ///< bounds (contiguous, one more than groups) or sizes (masked); not read without groups
    i32 m, n, k;       ///< m: all rows (contiguous), the most of a group (masked)
    i32 batch;         ///< batches or groups
    i32 a_step, b_step; ///< 0 if one matrix serves all batches, else 1
    u32 d_row;         ///< distance of D's rows
    i32 band;          ///< tiles along m that run side by side before n advances
    i32 d_copies;      ///< whether d_map holds: D's rows and batches 16-byte aligned
    i32 b_streams;     ///< whether B is read once, and too large to stay in L2 until the next launch
    float alpha;
};

namespace {

constexpr int gcd(int a, int b) { return b == 0 ? a : gcd(b, a % b); }

constexpr bool SCALED = A_SCALE != 0;
constexpr int CONSUMERS = BM == 64 ? 1 : BM == 192 ? 3 : 2;
constexpr int WAVES = BM / (64 * CONSUMERS);
constexpr int THREADS = 128 * (1 + CONSUMERS);
constexpr int CLUSTER = CLUSTER_M * CLUSTER_N; // blocks whose copies land in a stage
constexpr int BLOCKS = CLUSTER * CLUSTER_K;    // of a cluster
constexpr bool BYTES = TYPE >= WgmmaType::E4M3;
constexpr int BK = BYTES ? 128 : 64; // elements in the 128 bytes of a stage
constexpr int STEP = BYTES ? 32 : 16; // elements of one wgmma
constexpr int OUT_BYTES = OUT == 2 ? 4 : 2;
constexpr int COLUMNS = BN / CLUSTER_K; // of the tile that a block stores
constexpr int STORE = gcd(COLUMNS, 128 / OUT_BYTES);

static_assert(BM == 64 || BM == 128 || BM == 192 || BM == 256, "slabs of 64 rows for one to three consumers");
static_assert(BN % 8 == 0 && BN <= 256 && BM % CLUSTER_N == 0 && BM / CLUSTER_N % 8 == 0 && BN / CLUSTER_M % 8 == 0, "swizzle atoms have 8 rows");
static_assert(A_SCALE <= 1, "A is scaled per row or not at all");
static_assert(BLOCKS == CLUSTER_M || BLOCKS == CLUSTER_N || BLOCKS == CLUSTER_K, "a cluster has one purpose");
static_assert(CLUSTER_K == 1 || (GROUPING == 0 && WAVES == 1 && COLUMNS * CLUSTER_K == BN && COLUMNS % 8 == 0), "a tile's columns are parted evenly");

// Scales of a stage: A's, then B's. Columns with one scale in common form zones: n0 is a multiple of BN, so a block of 128 can only
// begin at a multiple of gcd(BN, 128) within the tile. In bulk, A's begin up to 3 rows before the tile.
constexpr int ZONE = B_SCALE == 1 ? BN : gcd(BN, 128);
constexpr int A_SCALES = A_SCALE == 0 ? 0 : BM + 4;
constexpr int B_SCALES = B_SCALE == 0 ? 0 : B_SCALE == 1 ? BN : (BN / ZONE + 3) / 4 * 4;

// --- Shared memory

constexpr u32 A_BYTES = BM * 128, B_BYTES = BN * 128, SCALE_BYTES = (A_SCALES + B_SCALES) * 4;
constexpr u32 BOX_BYTES = 64 * STORE * OUT_BYTES;
constexpr u32 A_AT = 0, B_AT = A_AT + STAGES * A_BYTES, D_AT = B_AT + STAGES * B_BYTES;
// Sums of this block's columns that the others of its cluster send to one of its warpgroups.
constexpr u32 INBOX_BYTES = (CLUSTER_K - 1) * 64 * COLUMNS * 4;
constexpr u32 INBOX_AT = D_AT + CONSUMERS * BOXES * BOX_BYTES, SCALE_AT = INBOX_AT + CONSUMERS * INBOX_BYTES;
constexpr u32 TILE_AT = (SCALE_AT + STAGES * SCALE_BYTES + 15) / 16 * 16;
constexpr u32 BARRIER_AT = TILE_AT + STAGES * 16;
constexpr u32 INBOX_BARRIER_AT = BARRIER_AT + STAGES * 16;
constexpr u32 SHARED = INBOX_BARRIER_AT + (CLUSTER_K > 1 ? CONSUMERS * 8 : 0);
static_assert(SHARED <= 232448, "more shared memory than a block can have");

// The blocks of k that this block of threads sums: the first, and how many.
struct Part {
    i32 first, blocks;
    KP_FN Part(const Args &args) : first(0), blocks((args.k + BK - 1) / BK) {
        if constexpr (CLUSTER_K > 1) {
            const i32 all = blocks, rank = ptx::cluster_rank();
            first = all * rank / CLUSTER_K, blocks = all * (rank + 1) / CLUSTER_K - first;
        }
    }
};

// A tile of D: its first row in A and D, and how many of the group's are left from there (may be none, or more than BM).
struct Tile {
    i32 row, rows, col, batch;
    KP_FN bool none() const { return col < 0; }
};

struct Stages {
    u32 base, stage = 0, parity = 0;
    KP_FN u32 a() const { return base + A_AT + stage * A_BYTES; }
    KP_FN u32 b() const { return base + B_AT + stage * B_BYTES; }
    KP_FN u32 scales() const { return base + SCALE_AT + stage * SCALE_BYTES; }
    // Which tile is multiplied from this stage on, as the copying warp tells the others in the first of its stages.
    KP_FN void tell(const Tile &t) const {
        asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(base + TILE_AT + stage * 16), "r"(t.row), "r"(t.rows), "r"(t.col), "r"(t.batch)
                     : "memory");
    }
    KP_FN Tile told() const {
        Tile t;
        asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(t.row), "=r"(t.rows), "=r"(t.col), "=r"(t.batch)
                     : "r"(base + TILE_AT + stage * 16)
                     : "memory");
        return t;
    }
    KP_FN u32 full() const { return base + BARRIER_AT + stage * 8; }
    KP_FN u32 empty() const { return base + BARRIER_AT + (STAGES + stage) * 8; }
    KP_FN void wait_full() const { ptx::mbarrier_wait(full(), parity); }
    KP_FN void wait_empty() const { ptx::mbarrier_wait(empty(), parity ^ 1); }
    KP_FN void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

} // namespace

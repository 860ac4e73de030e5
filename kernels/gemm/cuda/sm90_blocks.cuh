// D = alpha · Σ over blocks of 128 k of  a_scale · b_scale · (A · Bᵀ of the block)          A m×k, B n×k, D m×n
//
// Each block of k is one wgmma group with a fresh accumulator, which is then scaled and added to f32 totals: the sums are as exact as
// f32's, whatever the matrix unit keeps. The same skeleton without scales multiplies 16-bit groups. It serves plain, batched and
// grouped products; the sources that include it say which by defines.
//
//     block of threads      warpgroup 0: warp 0 copies tiles of A and B (TMA) and tells which, warps 1 and 2 copy scales
//                           warpgroups 1 to CONSUMERS: each computes slabs of 64 rows: slab w · CONSUMERS + its number, w < WAVES
//     one scales its block while the other's wgmma runs, so there are two as soon as BM is 128
//
//              BN                       A, B stages of 128 bytes of k, 128-byte swizzle    D leaves through shared memory in
//         ┌──────────┐                  scales of the stage beside them                   boxes of 64 rows × STORE columns,
//         │ 1st   w0 │ 64                                                                 each warpgroup its own
//         │ 2nd   w0 │ 64               CLUSTER_N blocks of a cluster take neighbouring columns and share A: each copies
//     BM  │ 1st   w1 │ 64               a part of its rows to all. CLUSTER_M likewise with rows, sharing B.
//         │ 2nd   w1 │ 64
//         └──────────┘                  CLUSTER_K blocks each sum a part of a tile's k, and finish a part of its columns.
//
// Defines (one line of the variants table each):
//     BM            64 (one consumer), 128, 192 (three consumers), 256 (two waves)
//     BN            a multiple of 8, at most 256; with scales BN/2 · (1 + BM/128) + ~60 registers must fit 232: 128×192, 256×128
//     STAGES        tiles in flight
//     CLUSTER_M, CLUSTER_N, CLUSTER_K   at most one of them more than 1; BN / CLUSTER_M, BM / CLUSTER_N and BN / CLUSTER_K multiples of 8;
//                   along k without groups, BM 64 or 128, and k of as many blocks at least
//     BOXES         boxes of D that each warpgroup has shared memory for
//     AHEAD         1: the next block's products are issued before this one's are scaled; BM 64 or 128, BN at most 128
//     OUT           0 bf16, 1 f16, 2 f32
// and by the including source:
//     TYPE          WgmmaType of A and B        A_SCALE, B_SCALE   rows that share a scale: 1, 128, or 0 for none
//     GROUPING      0 batches, 1 contiguous groups of rows, 2 masked groups
//
// Launch: THREADS = 128 (1 + CONSUMERS); SHARED bytes as below; a grid of clusters, at most as many as run at once: they are persistent. Those
// that part k are not, and there is one for each tile.
//     a_map   3-D {k, rows, batch}: box {128 bytes, BM / CLUSTER_N, 1}, 128-byte swizzle
//     b_map   3-D {k, n, batch or groups}: box {128 bytes, BN / CLUSTER_M, 1}, 128-byte swizzle
//     d_map   3-D {n, rows, batch}: box {STORE, 64, 1}, swizzle of STORE elements' bytes (128, 64, 32, none);
//             STORE the largest of 64, 32, 16, 8 elements (f32: 32, 16, 8) that divides BN / CLUSTER_K. Not read unless args.d_copies.
// Rows of A and B must be a multiple of 16 bytes apart and 16-byte aligned, as the copy engine wants; D need not be.
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

// --- Config

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

// --- Which tile next

// The copying warps walk the same tiles: unit blockIdx / BLOCKS, then a grid further, where a unit is what one cluster does.
struct Schedule {
    const Args &args;
    i32 unit, units_n;
    // The group at hand, which is B's batch: its first unit, how many, its rows.
    i32 group = -1, first = 0, units = 0, row = 0, rows = 0;

    KP_FN Schedule(const Args &args)
        : args(args), unit(blockIdx.x / BLOCKS - gridDim.x / BLOCKS), units_n((args.n + BN * CLUSTER_N - 1) / (BN * CLUSTER_N)) {}

    static KP_FN i32 units_m(i32 rows) { return (rows + BM * CLUSTER_M - 1) / (BM * CLUSTER_M); }

    // Moves on to the group that `unit` is in; whole warps only. 32 groups at a time, since they may be empty.
    KP_FN bool find_group() {
        first += units;
        for (i32 base = group + 1; base < args.batch; base += 32) {
            i32 g = base + (i32)ptx::lane(), start = 0, size = 0;
            if (g < args.batch) {
                size = args.groups[g];
                if (GROUPING == 1) start = size, size = args.groups[g + 1] - start;
            }
            i32 here = units_m(size) * units_n, sum = here;
#pragma unroll
            for (int d = 1; d < 32; d *= 2) {
                i32 below = __shfl_up_sync(~0u, sum, d);
                if ((i32)ptx::lane() >= d) sum += below;
            }
            u32 past = __ballot_sync(~0u, first + sum > unit);
            if (past) {
                int l = __ffs((int)past) - 1;
                group = base + l;
                units = __shfl_sync(~0u, here, l);
                first += __shfl_sync(~0u, sum, l) - units;
                row = __shfl_sync(~0u, start, l), rows = __shfl_sync(~0u, size, l);
                return true;
            }
            first += __shfl_sync(~0u, sum, 31);
        }
        return false;
    }

    KP_FN bool next(Tile &t) {
        unit += gridDim.x / BLOCKS;
        if (GROUPING == 0) {
            units = units_m(args.m) * units_n, rows = args.m;
            group = unit / units;
            if (group >= args.batch) return false;
            first = group * units;
        } else if (unit >= first + units && !find_group()) {
            return false;
        }
        i32 height = args.band, in_group = unit - first, band = in_group / (height * units_n);
        in_group -= band * height * units_n;
        i32 top = band * height, left = units_m(rows) - top;
        height = left < height ? left : height;
        i32 n = in_group / height, m = top + in_group % height;
        if (CLUSTER_M > 1) m = m * CLUSTER_M + ptx::cluster_rank();
        if (CLUSTER_N > 1) n = n * CLUSTER_N + ptx::cluster_rank();
        t = {row + m * BM, rows - m * BM, n * BN, GROUPING == 1 ? 0 : group};
        return true;
    }
};

// A warp's place in the schedule.
struct Walk {
    Schedule schedule;
    Tile tile;
    bool more = true;

    // Finding a tile takes some hundred cycles, so the first is found before anything is waited for; groups are known only after that.
    KP_FN Walk(const Args &args) : schedule(args) {
        if (GROUPING != 0) return;
        step();
    }
    KP_FN void begin() { if (GROUPING != 0) step(); }
    KP_FN void step() { more = schedule.next(tile); }
};

// --- Load

KP_FN void load_tiles(const TensorMap &a_map, const TensorMap &b_map, const Args &args, Stages s, Walk walk) {
    constexpr int A_ROWS = BM / CLUSTER_N, B_ROWS = BN / CLUSTER_M;
    constexpr u16 ALL = (1 << CLUSTER) - 1; // blocks of the cluster
    const u32 rank = CLUSTER > 1 ? ptx::cluster_rank() : 0;
    const u64 b_keep = args.b_streams ? ptx::KEEP_FIRST_OUT : ptx::KEEP_NORMAL;
    const Part part(args);
    for (; walk.more; walk.step()) {
        const Tile &t = walk.tile;
        if (ptx::elect()) {
            const i32 a_batch = t.batch * args.a_step, b_batch = walk.schedule.group * args.b_step;
            for (i32 kb = part.first, end = kb + part.blocks; kb < end; kb++, s.advance()) {
                s.wait_empty();
                if (kb == part.first) s.tell(t);
                ptx::mbarrier_expect(s.full(), A_BYTES + B_BYTES);
                if (CLUSTER_N > 1) {
                    u32 row = rank * A_ROWS;
                    ptx::load_box_multicast(s.a() + row * 128, &a_map, s.full(), kb * BK, t.row + row, a_batch, ALL, ptx::KEEP_NORMAL);
                } else {
                    ptx::load_box(s.a(), &a_map, s.full(), kb * BK, t.row, a_batch, ptx::KEEP_NORMAL);
                }
                if (CLUSTER_M > 1) {
                    u32 row = rank * B_ROWS;
                    ptx::load_box_multicast(s.b() + row * 128, &b_map, s.full(), kb * BK, t.col + row, b_batch, ALL, b_keep);
                } else {
                    ptx::load_box(s.b(), &b_map, s.full(), kb * BK, t.col, b_batch, b_keep);
                }
            }
        }
        __syncwarp();
        // The elected lane alone advanced; the others only need to be elected again as it was.
    }
    // One stage more, which says that there is no tile; the scales' lanes arrive there too.
    if (ptx::elect()) s.wait_empty(), s.tell({0, 0, -1, 0}), ptx::mbarrier_arrive(s.full());
    __syncwarp();
}

#if A_SCALE
// Whether an operand's scales of one block of k lie one after the other, from a multiple of 16 bytes on.
KP_FN bool in_bulk(const float *scales, u32 row, u32 k, i64 batch) {
    return row == 1 && (u64)scales % 16 == 0 && k % 4 == 0 && batch % 4 == 0;
}
// Small tiles wait for their operands, not for shared memory: they are no faster with bulk copies.
KP_FN bool in_bulk(const Args &args) {
    return BM > 64 && in_bulk(args.a_scale, args.a_scale_row, args.a_scale_k, args.a_scale_batch) &&
           (B_SCALE != 1 || in_bulk(args.b_scale, args.b_scale_row, args.b_scale_k, args.b_scale_batch));
}
constexpr u32 COPYING = BM == 64 ? 2 : 1; // warps that copy scales one by one; code for it in the one that copies in bulk costs 1 to 3 %
// Lanes that copy scales, each of which arrives at a stage's barrier.
constexpr u32 BULK_LANES = B_SCALE == 1 ? 1 : BN / ZONE;
KP_FN u32 scale_lanes(const Args &args) { return in_bulk(args) ? BULK_LANES : 32; }

// Scales of rows in one copy each for A and B. Scales of zones one by one, a lane for each.
KP_FN void load_scales_in_bulk(const Args &args, Stages s, Walk walk) {
    const Part part(args);
    for (; walk.more; walk.step()) {
        const Tile &t = walk.tile;
        if (ptx::lane() < BULK_LANES) {
            // From a multiple of 4 rows on, and no further than the scales of this block of k go.
            const i32 row = t.row & ~3, col = t.col + ptx::lane() * ZONE;
            const u32 a_bytes = ptx::lane() == 0 && t.rows > 0 ? 4 * min(BM + 4, (i32)args.a_scale_k - row) : 0;
            const u32 b_bytes = B_SCALE == 1 && col < args.n ? 4 * min(BN, (i32)args.b_scale_k - col) : 0;
            const bool there = col < args.n;
            const float *a = args.a_scale + t.batch * args.a_scale_batch + row + (u64)part.first * args.a_scale_k;
            const float *b = args.b_scale + walk.schedule.group * args.b_scale_batch + (u64)part.first * args.b_scale_k;
            b += there ? (u64)(u32)(col / B_SCALE) * args.b_scale_row : 0;
            for (i32 kb = 0; kb < part.blocks; kb++, s.advance(), a += args.a_scale_k, b += args.b_scale_k) {
                s.wait_empty();
                const u32 full = s.full(), smem = s.scales();
                if (a_bytes + b_bytes) ptx::mbarrier_expect_more(full, a_bytes + b_bytes);
                if (a_bytes) ptx::load_bulk(smem, a, a_bytes, full);
                if (b_bytes) ptx::load_bulk(smem + A_SCALES * 4, b, b_bytes, full);
                if (B_SCALE != 1) ptx::copy_word(smem + (A_SCALES + ptx::lane()) * 4, (u64)b, there);
                ptx::arrive_with_copies(full);
            }
        }
        __syncwarp();
    }
    if (ptx::lane() < BULK_LANES) s.wait_empty(), ptx::mbarrier_arrive(s.full());
    __syncwarp();
}

// `COUNT` scales of one operand, one every `EVERY` of its rows, from row `row` on, of which `rows` exist.
template <int COUNT, int EVERY, int SHARED_BY> KP_FN void copy_scales(u32 smem, const float *block, u32 stride, i32 row, i32 rows) {
#pragma unroll 2
    for (int i = ptx::lane(); i < COUNT; i += 32) {
        const i32 at = i * EVERY;
        const bool there = at < rows;
        ptx::copy_word(smem + i * 4, (u64)(block + (u64)(u32)(there ? (row + at) / SHARED_BY : 0) * stride), there);
    }
}

// Scales in any layout, one by one: 330 cycles a stage, more than tiles of 64 rows multiply, so that COPYING warps take turns; this is `which`.
KP_FN void load_scales(const Args &args, Stages s, Walk walk, u32 which) {
    const Part part(args);
    u32 turn = 0;
    for (; walk.more; walk.step()) {
        const Tile &t = walk.tile;
        const float *a = args.a_scale + t.batch * args.a_scale_batch + (u64)part.first * args.a_scale_k;
        const float *b = args.b_scale + walk.schedule.group * args.b_scale_batch + (u64)part.first * args.b_scale_k;
        for (i32 kb = 0; kb < part.blocks; kb++, s.advance(), a += args.a_scale_k, b += args.b_scale_k) {
            if (turn++ % COPYING != which) continue;
            // Or the compiler makes a loop over lanes with different barriers: 40 of the 330 cycles between two stages.
            const u32 full = ptx::uniform(s.full());
            s.wait_empty();
            copy_scales<BM, 1, 1>(s.scales(), a, args.a_scale_row, t.row, t.rows);
            copy_scales<B_SCALE == 1 ? BN : BN / ZONE, B_SCALE == 1 ? 1 : ZONE, B_SCALE>(s.scales() + A_SCALES * 4, b, args.b_scale_row, t.col,
                                                                                        args.n - t.col);
            ptx::arrive_with_copies(full);
        }
    }
    if (turn % COPYING == which) s.wait_empty(), ptx::mbarrier_arrive(s.full());
}
#else
KP_FN bool in_bulk(const Args &) { return false; }
KP_FN u32 scale_lanes(const Args &) { return 0; }
#endif

// --- Compute

// Where this thread stands among the consumers.
struct Consumer {
    u32 number, warp, lane;
    KP_FN u32 slab(int wave) const { return wave * CONSUMERS + number; }
    KP_FN u32 row(int wave) const { return slab(wave) * 64 + warp * 16 + lane / 4; }
};

// Lets the producers of every block that writes to this stage have it back: one lane's word for what all lanes of the warp have read.
KP_FN void release(const Stages &s, const Consumer &me) {
    __syncwarp();
    if (CLUSTER > 1) {
        if (me.lane < CLUSTER) ptx::mbarrier_arrive_at(s.empty(), me.lane);
    } else if (me.lane == 0) {
        ptx::mbarrier_arrive(s.empty());
    }
}

KP_FN void multiply(float (&d)[BN / 2], u32 a, u32 b, u32 accumulate) {
    const u64 da = wgmma::k_major(a), db = wgmma::k_major(b);
#pragma unroll
    for (int k = 0; k < BK / STEP; k++) Wgmma<BN>::mma<TYPE>(d, da + 2 * k, db + 2 * k, k > 0 || accumulate);
}

KP_FN void clear(float (&total)[WAVES][BN / 2]) {
#pragma unroll
    for (int w = 0; w < WAVES; w++) {
#pragma unroll
        for (int i = 0; i < BN / 2; i++) total[w][i] = 0.f;
    }
}

// Where consumers find a tile's scales, and what else its sums are multiplied by.
struct Scaling {
    u32 row; // of this thread's first row, in A's scales of a stage: bytes
    float alpha;
};

#if A_SCALE
// Volatile, to be worked out while products run and not after them.
KP_FN float times(float x, float y) {
    float product;
    asm volatile("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(x), "f"(y));
    return product;
}

// A thread's scales of one block of k.
struct Scales {
    static constexpr bool BY_COLUMN = B_SCALE == 1;
    static constexpr int ZONES = BN / ZONE;
    float rows[WAVES][2];                        // with alpha
    float columns[BY_COLUMN ? BN / 4 : ZONES];   // of those that this thread has sums of, or of zones
    float factors[BY_COLUMN ? BN / 2 : 2 * ZONES]; // of the slab at hand: of each sum, or of each row's zones

    KP_FN Scales() {}
    KP_FN Scales(const Stages &s, const Scaling &scaling, const Consumer &me) {
        const u32 rows_at = s.scales() + scaling.row, columns_at = s.scales() + 4 * A_SCALES;
#pragma unroll
        for (int w = 0; w < WAVES; w++) {
#pragma unroll
            for (int h = 0; h < 2; h++) rows[w][h] = times(scaling.alpha, ptx::load_shared_number(rows_at + 4 * (w * CONSUMERS * 64 + 8 * h)));
        }
        if constexpr (BY_COLUMN) {
#pragma unroll
            for (int i = 0; i < BN / 4; i += 2) {
                const float2 pair = ptx::load_shared_pair(columns_at + 4 * (i / 2 * 8 + me.lane % 4 * 2));
                columns[i] = pair.x, columns[i + 1] = pair.y;
            }
        } else {
#pragma unroll
            for (int z = 0; z < ZONES; z++) columns[z] = ptx::load_shared_number(columns_at + 4 * z);
        }
    }
    // Works out what slab `w` is multiplied by, while its products run.
    KP_FN void prepare(int w) {
#pragma unroll
        for (int i = 0; i < (BY_COLUMN ? BN / 2 : 2 * ZONES); i++) {
            factors[i] = BY_COLUMN ? times(rows[w][i / 2 % 2], columns[i / 4 * 2 + i % 2]) : times(rows[w][i / ZONES], columns[i % ZONES]);
        }
    }
    // total += scaled block
    KP_FN void add(float (&total)[BN / 2], const float (&block)[BN / 2]) const {
#pragma unroll
        for (int i = 0; i < BN / 2; i++) total[i] += factors[BY_COLUMN ? i : i / 2 % 2 * ZONES + i / (ZONE / 2)] * block[i];
    }
};

#if AHEAD
// The next block's products are issued before this block's are scaled: each warpgroup keeps the tensor cores busy by itself, for the
// registers of a second block.
KP_FN void compute(float (&total)[WAVES][BN / 2], i32 blocks, Stages &s, const Scaling &scaling, const Consumer &me) {
    static_assert(WAVES == 1, "registers for two blocks");
    float block[2][BN / 2];
    Scales scales[2];
    Stages before = s;
    const auto issue = [&](float (&block)[BN / 2], Scales &scales) {
        s.wait_full();
        scales = Scales(s, scaling, me);
        wgmma::fence();
        multiply(block, s.a() + me.slab(0) * 64 * 128, s.b(), 0);
        wgmma::commit();
        scales.prepare(0);
        s.advance();
    };
    const auto finish = [&](float (&block)[BN / 2], const Scales &scales) {
        wgmma::pin(block);
        release(before, me);
        before.advance();
        scales.add(total[0], block);
    };
    issue(block[0], scales[0]);
    clear(total);
    i32 left = blocks - 1; // blocks to be issued
    for (; left >= 2; left -= 2) {
        issue(block[1], scales[1]);
        wgmma::wait<1>();
        finish(block[0], scales[0]);
        issue(block[0], scales[0]);
        wgmma::wait<1>();
        finish(block[1], scales[1]);
    }
    if (left) {
        issue(block[1], scales[1]);
        wgmma::wait<1>();
        finish(block[0], scales[0]);
        wgmma::wait<0>();
        finish(block[1], scales[1]);
    } else {
        wgmma::wait<0>();
        finish(block[0], scales[0]);
    }
}
#else
// As `further`, but worked out where it stands: there are not registers enough to keep the descriptors of all stages.
KP_FN u64 at(u64 descriptor, u32 by) {
    u32 low;
    asm volatile("add.u32 %0, %1, %2;" : "=r"(low) : "r"((u32)descriptor), "r"(by));
    return (descriptor & ~(u64)0xffffffff) | low;
}

// A number that the compiler knows.
template <int N> struct Constant {
    static constexpr int VALUE = N;
};

// Between a block's products and the next one's nothing is done but scaling: what else there is, is done while products run. Each stage
// has code of its own, so that where its operands lie needs no arithmetic; a tile begins in the middle of it, where the last one ended.
KP_FN void compute(float (&total)[WAVES][BN / 2], i32 blocks, Stages &s, const Scaling &scaling, const Consumer &me) {
    // Reads of shared memory between a block's products wait for these, and the products after them for the reads. So scales are read a block
    // ahead, unless they are so many that there are no registers for that.
    constexpr bool EARLY = B_SCALE != 1;
    float block[BN / 2];
    Scales scales, after;
    if (EARLY) scales = Scales(s, scaling, me);
    const u64 a = wgmma::k_major(s.base + A_AT + me.slab(0) * 64 * 128), b = wgmma::k_major(s.base + B_AT);
    i32 left = blocks;
    const auto one = [&](auto stage) {
        constexpr int STAGE = decltype(stage)::VALUE;
        const Stages here = {s.base, STAGE, s.parity};
        if (STAGE == STAGES - 1) s.parity ^= 1;
        const Stages next = {s.base, (STAGE + 1) % STAGES, s.parity};
        left--;
#pragma unroll
        for (int w = 0; w < WAVES; w++) {
            wgmma::pin(block);
            wgmma::fence();
#pragma unroll
            for (int k = 0; k < BK / STEP; k++) {
                Wgmma<BN>::mma<TYPE>(block, at(a, (STAGE * A_BYTES + w * CONSUMERS * 64 * 128 >> 4) + 2 * k), at(b, (STAGE * B_BYTES >> 4) + 2 * k),
                                     k > 0);
            }
            wgmma::commit();
            if (!EARLY && w == 0) scales = Scales(here, scaling, me);
            scales.prepare(w);
            if (w == WAVES - 1 && left > 0) {
                next.wait_full();
                if (EARLY) after = Scales(next, scaling, me);
            }
            wgmma::wait<0>();
            wgmma::pin(block);
            if (w == WAVES - 1) release(here, me);
            scales.add(total[w], block);
        }
        if (EARLY) scales = after;
        s.stage = next.stage;
        return left > 0;
    };
    switch (s.stage) {
#define KP_CASE(n)                                                                                                                         \
    case n:                                                                                                                                \
        if constexpr ((n) < STAGES)                                                                                                        \
            if (!one(Constant<(n) < STAGES ? (n) : 0>())) return;
#define KP_CASES(n) KP_CASE(n) KP_CASE(n + 1) KP_CASE(n + 2)
        while (true) {
            KP_CASES(0) KP_CASES(3) KP_CASES(6) KP_CASES(9) KP_CASES(12) KP_CASES(15)
        }
#undef KP_CASES
#undef KP_CASE
    }
}
#endif
#else
// One group of wgmmas stays in flight while the next one is issued; a stage is given back one block later.
KP_FN void compute(float (&total)[WAVES][BN / 2], i32 blocks, Stages &s, const Scaling &, const Consumer &me) {
    Stages before = s;
    for (i32 kb = 0; kb < blocks; kb++, s.advance()) {
        s.wait_full();
#pragma unroll
        for (int w = 0; w < WAVES; w++) wgmma::pin(total[w]);
        wgmma::fence();
#pragma unroll
        for (int w = 0; w < WAVES; w++) multiply(total[w], s.a() + me.slab(w) * 64 * 128, s.b(), kb > 0);
        wgmma::commit();
        wgmma::wait<1>();
        if (kb > 0) release(before, me), before.advance();
    }
    wgmma::wait<0>();
#pragma unroll
    for (int w = 0; w < WAVES; w++) wgmma::pin(total[w]);
    release(before, me);
}
#endif

// --- Parts of k

#if CLUSTER_K > 1
// Sends each block of the cluster this one's sums of its columns, and adds to `mine` what all have of this one's, in the order of k.
KP_FN void exchange(const float (&total)[BN / 2], float (&mine)[COLUMNS / 2], u32 base, const Consumer &me) {
    constexpr int N = COLUMNS / 2;
    const u32 rank = ptx::cluster_rank(), barrier = base + INBOX_BARRIER_AT + me.number * 8;
    // Others' sums lie in the order of their ranks.
    const u32 inbox = base + INBOX_AT + me.number * INBOX_BYTES + (me.warp * 32 + me.lane) * 16;
    const auto sent = [&](int n, u32 from, u32 to) { return inbox + ((from - (from > to)) * N + n) * 512; };
#pragma unroll
    for (u32 to = 0; to < CLUSTER_K; to++) {
        if (to == rank) continue;
#pragma unroll
        for (int n = 0; n < N; n += 4) {
            const float *x = total + to * N + n;
            ptx::store_cluster(ptx::in_block(sent(n, rank, to), to), ptx::in_block(barrier, to), x[0], x[1], x[2], x[3]);
        }
    }
    ptx::mbarrier_wait(barrier, 0);
#pragma unroll
    for (int n = 0; n < N; n += 4) {
        float sum[4] = {};
#pragma unroll
        for (u32 from = 0; from < CLUSTER_K; from++) {
            float4 x = {total[from * N + n], total[from * N + n + 1], total[from * N + n + 2], total[from * N + n + 3]};
            if (from != rank) x = ptx::load_shared(sent(n, from, rank));
            sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
        }
#pragma unroll
        for (int e = 0; e < 4; e++) mine[n + e] = sum[e];
    }
}
#endif

// --- Store

// Where 16-byte chunk `chunk` of row `row` of a box lies: boxes have STORE columns and the swizzle of their width.
KP_FN u32 chunk_at(u32 row, u32 chunk) {
    constexpr u32 CHUNKS = STORE * OUT_BYTES / 16; // 8, 4, 2 or 1 in a row
    u32 swizzle = CHUNKS == 8 ? row % 8 : CHUNKS == 4 ? row / 2 % 4 : CHUNKS == 2 ? row / 4 % 2 : 0;
    return row * CHUNKS * 16 + (chunk ^ swizzle) * 16;
}

KP_FN u32 pack(float low, float high) {
    u32 x;
    if (OUT == 0) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}

// Columns `box` · STORE on of this warp's 16 rows, from registers to shared memory.
KP_FN void stage_box(u32 smem, const float (&d)[COLUMNS / 2], int box, float alpha, const Consumer &me) {
    constexpr int GROUPS = STORE / 8; // of 8 columns
    const int first = box * GROUPS;
    if constexpr (OUT == 2) {
        const u32 r = me.lane / 4, q = me.lane % 4;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const int i = 4 * (first + g);
            const u32 chunk = g * 2 + q / 2, half = q % 2 * 8;
            ptx::store_shared(smem + chunk_at(r, chunk) + half, d[i] * alpha, d[i + 1] * alpha);
            ptx::store_shared(smem + chunk_at(r + 8, chunk) + half, d[i + 2] * alpha, d[i + 3] * alpha);
        }
    } else {
        const u32 matrix = me.lane / 8, r = matrix % 2 * 8 + me.lane % 8;
#pragma unroll
        for (int g = 0; g < GROUPS; g += 2) {
            // A box of one group only stores it twice.
            const int i = 4 * (first + g), j = GROUPS == 1 ? i : i + 4;
            ptx::store_matrices(smem + chunk_at(r, GROUPS == 1 ? 0 : g + matrix / 2), pack(d[i] * alpha, d[i + 1] * alpha),
                                pack(d[i + 2] * alpha, d[i + 3] * alpha), pack(d[j] * alpha, d[j + 1] * alpha),
                                pack(d[j + 2] * alpha, d[j + 3] * alpha));
        }
    }
}

// 16 rows of a box in shared memory, of which D has `rows`, to D without the copy engine.
KP_FN void store_rows(u32 smem, const Args &args, i32 batch, i32 row, i32 rows, i32 col, const Consumer &me) {
    constexpr u32 CHUNKS = STORE * OUT_BYTES / 16, PER_CHUNK = 16 / OUT_BYTES;
    char *d = static_cast<char *>(args.d) + batch * args.d_batch * OUT_BYTES;
    for (u32 i = me.lane; i < 16 * CHUNKS; i += 32) {
        const u32 r = i / CHUNKS, c = i % CHUNKS, x = col + c * PER_CHUNK;
        const i32 left = args.n - (i32)x;
        if ((i32)r >= rows || left <= 0) continue;
        u32 v[4];
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                     : "r"(smem + chunk_at(r, c))
                     : "memory");
        char *to = d + ((u64)(u32)(row + r) * args.d_row + x) * OUT_BYTES;
        if (left >= (i32)PER_CHUNK && (u64)to % 16 == 0) {
            *reinterpret_cast<uint4 *>(to) = make_uint4(v[0], v[1], v[2], v[3]);
        } else {
#pragma unroll
            for (u32 e = 0; e < PER_CHUNK; e++) {
                if ((i32)e >= left) continue;
                if constexpr (OUT == 2) reinterpret_cast<u32 *>(to)[e] = v[e];
                else reinterpret_cast<u16 *>(to)[e] = (u16)(v[e / 2] >> (e % 2 * 16));
            }
        }
    }
}

// Each warpgroup writes BOXES boxes of its 64 rows, and one fence hands them all to the copy engine. Boxes of a warp's 16 rows would let warps
// go their own ways, but keep the copy engine from the next tile's operands for longer.
KP_FN void store(const float (&total)[WAVES][COLUMNS / 2], u32 base, const TensorMap &d_map, const Args &args, const Tile &t, const Consumer &me) {
    constexpr int ALL = WAVES * (COLUMNS / STORE);
    const u32 boxes = base + D_AT + me.number * (BOXES * BOX_BYTES), mine = me.warp * (BOX_BYTES / 4);
    const bool first_thread = me.warp == 0 && me.lane == 0;
#pragma unroll
    for (int first = 0; first < ALL; first += BOXES) {
        if (first_thread) ptx::store_wait_read<0>();
        ptx::sync_threads(1 + me.number, 128);
#pragma unroll
        for (int i = first; i < first + BOXES && i < ALL; i++) {
            stage_box(boxes + (i - first) * BOX_BYTES + mine, total[i / (COLUMNS / STORE)], i % (COLUMNS / STORE), SCALED ? 1.f : args.alpha, me);
        }
        if (args.d_copies) ptx::fence_async_shared();
        ptx::sync_threads(1 + me.number, 128);
#pragma unroll
        for (int i = first; i < first + BOXES && i < ALL; i++) {
            const u32 smem = boxes + (i - first) * BOX_BYTES;
            const i32 at = me.slab(i / (COLUMNS / STORE)) * 64, rows = t.rows - at, col = t.col + i % (COLUMNS / STORE) * STORE;
            if (rows <= 0 || col >= args.n) continue;
            const i32 own = me.warp * 16;
            // A box may not reach into rows that belong to others.
            if (!args.d_copies || (GROUPING != 0 && rows < 64)) store_rows(smem + mine, args, t.batch, t.row + at + own, rows - own, col, me);
            else if (first_thread) ptx::store_box(&d_map, smem, col, t.row + at, t.batch);
        }
        if (first_thread) ptx::store_commit();
    }
}

KP_FN void consume(const TensorMap &d_map, const Args &args, Stages s, u32 number) {
    const Consumer me = {number, ptx::warp() % 4, ptx::lane()};
    const i32 blocks = Part(args).blocks;
    for (;;) {
        s.wait_full();
        Tile t = s.told();
        if (t.none()) break;
        if ((i32)me.slab(0) * 64 >= t.rows || t.col >= args.n) {
            for (i32 kb = 0; kb < blocks; kb++, s.advance()) s.wait_full(), release(s, me);
            continue;
        }
        float total[WAVES][BN / 2];
        // Not while the first products run: the compiler would do it in every block, by selection. AHEAD peels the first.
        if (!AHEAD && SCALED) clear(total);
        Scaling scaling = {4 * (me.row(0) + (in_bulk(args) ? (u32)t.row % 4 : 0)), args.alpha};
        // Or it would be worked out again for every block.
        asm volatile("" : "+r"(scaling.row));
        compute(total, blocks, s, scaling, me);
#if CLUSTER_K > 1
        float mine[1][COLUMNS / 2];
        exchange(total[0], mine[0], s.base, me);
        t.col += ptx::cluster_rank() * COLUMNS;
        store(mine, s.base, d_map, args, t, me);
#else
        store(total, s.base, d_map, args, t, me);
#endif
    }
    if (me.lane == 0) ptx::store_wait_read<0>();
}

// Until the barriers of the cluster are ready, and what this kernel reads.
KP_FN void start() {
    __syncwarp();
    // The next kernel waits for this one before it touches memory, however early it starts.
    ptx::allow_next_kernel();
    if (BLOCKS > 1) ptx::cluster_sync_relaxed();
    else __syncthreads();
    ptx::wait_for_previous_kernel();
}

} // namespace

// --- Entry

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, const __grid_constant__ TensorMap d_map,
     const __grid_constant__ Args args) {
    extern __shared__ __align__(1024) char shared[];
    Stages s = {ptx::smem_address(shared)};
    const u32 warp = ptx::warp();
    // A warp that has nothing else to do.
    if (warp == 3 && ptx::elect()) {
        for (Stages i = s; i.parity == 0; i.advance()) {
            ptx::mbarrier_init(i.full(), 1 + scale_lanes(args));
            ptx::mbarrier_init(i.empty(), CONSUMERS * 4 * CLUSTER);
        }
        const u32 inboxes = s.base + INBOX_BARRIER_AT;
        for (u32 i = 0; CLUSTER_K > 1 && i < CONSUMERS; i++) ptx::mbarrier_init(inboxes + 8 * i, 1);
        ptx::mbarrier_init_fence();
        for (u32 i = 0; CLUSTER_K > 1 && i < CONSUMERS; i++) ptx::mbarrier_expect(inboxes + 8 * i, INBOX_BYTES);
    }
    if (warp < 4) {
        if (warp == 0 && ptx::elect()) ptx::prefetch_map(&a_map), ptx::prefetch_map(&b_map), ptx::prefetch_map(&d_map);
        Walk walk(args);
        start();
        walk.begin();
        ptx::give_registers<56>();
        if (warp == 0) load_tiles(a_map, b_map, args, s, walk);
#if A_SCALE
        if (warp - 1 < COPYING && !in_bulk(args)) load_scales(args, s, walk, warp - 1);
        if (warp == 2 && in_bulk(args)) load_scales_in_bulk(args, s, walk);
#endif
    } else {
        start();
        ptx::take_registers<CONSUMERS == 3 ? 152 : CONSUMERS == 2 ? 224 : 232>();
        consume(d_map, args, s, warp / 4 - 1);
    }
    // A block's shared memory must outlive what its neighbours send to it.
    if (CLUSTER > 1) ptx::cluster_sync();
}

// D = act(alpha · A·B + beta · C + bias) + residual on sm_90a: 16-bit and 8-bit floats and TF32, sums in f32; 8-bit integers, in i32.
//
//     block     1 warpgroup that copies (a thread each for A and B) + KP_WARPGROUPS that multiply; 128 threads each
//     tile      KP_BM x KP_BN of D per block, or per warpgroup if KP_PINGPONG; 128 bytes of k per stage
//     cluster   KP_CLUSTER_M x KP_CLUSTER_N blocks; those along m load each a part of their B for all, those along n of their A;
//               or KP_CLUSTER_K blocks that part the k of one tile, and exchange their sums through shared memory
//
//              n                      one stage of a 128 x 256 tile, bf16
//         +----------+                  A  128 rows x 128 bytes   warpgroup 0: rows 0 to 63, all columns
//       m | w0       |                  B  256 rows x 128 bytes   warpgroup 1: rows 64 to 127
//         | w1       |                KP_STAGES of them, then KP_BUFFERS slabs of D per warpgroup, then
//         +----------+                the tile's bias, and scales of rows and columns, if each has one
//
// Blocks are persistent: each (or each cluster) takes the items of `Schedule`. Multiplying warpgroups do not wait for each other, so one
// stores its tile while the other multiplies. All tensor maps have 3 dimensions (contiguous, rows, batch), zeros outside, and
//     A  k-major: box {128 bytes, A_BOX rows}     m-major (KP_A_MN): box {64, 64 of k}      128-byte swizzle
//     B  k-major: box {128 bytes, B_BOX rows}     n-major (KP_B_MN): box {64, 64 of k}      128-byte swizzle
//     D  box {`Store::WIDTH` bytes, 64 rows}, swizzle of that width
// A_BOX is KP_BM / KP_CLUSTER_N; B_BOX is KP_BN / KP_CLUSTER_M, at most KP_BN / 2 if the gate is HALVES.
//
// Launch: grid a multiple of the cluster, at most what fits the device at once if tiles are streamed, exactly one cluster per tile if
// KP_CLUSTER_K > 1; block 128 (1 + KP_WARPGROUPS); dynamic shared memory `Config::SHARED`; attribute programmatic stream serialization
// allowed. `partials` holds, per block, a tile in f32; `flags`, per block and multiplying warpgroup, a u32 that is 0 before the launch and
// again after it. Both are touched only if tiles are streamed.
//
// Limits: k at least 1, and KP_CLUSTER_K k blocks; streamed tiles have at least one k block per cluster in all; rows of A, B and D, and
// matrices of a batch, are a multiple of 16 bytes apart; a row of D itself is one too, since the copy engine cuts off what it stores at
// multiples of 16 bytes only. The rest of a variant's is checked by `static_assert`.
#include "common/cuda/wgmma.cuh"
#include "gemm/cuda/sm90_epilogue.cuh"

#ifndef KP_TYPES // BF16, F16, TF32, E4M3, E5M2, E4M3_E5M2, E5M2_E4M3, S8: of A and B
#define KP_TYPES BF16
#endif
#ifndef KP_D // BF16, F16, F32, E4M3, E5M2; I32 of S8, and then nothing but alpha
#define KP_D BF16
#endif
#ifndef KP_A_MN // A's columns are contiguous; 16-bit types only
#define KP_A_MN 0
#endif
#ifndef KP_B_MN // B's rows are contiguous; 16-bit types only
#define KP_B_MN 0
#endif
#ifndef KP_BM
#define KP_BM 128
#endif
#ifndef KP_BN
#define KP_BN 256
#endif
#ifndef KP_STAGES
#define KP_STAGES 4
#endif
#ifndef KP_BUFFERS
#define KP_BUFFERS 2
#endif
#ifndef KP_WARPGROUPS
#define KP_WARPGROUPS 2
#endif
#ifndef KP_PINGPONG // each warpgroup has tiles of its own
#define KP_PINGPONG 0
#endif
#ifndef KP_CLUSTER_M
#define KP_CLUSTER_M 1
#endif
#ifndef KP_CLUSTER_N
#define KP_CLUSTER_N 1
#endif
#ifndef KP_CLUSTER_K // blocks that share a tile's sum, each a part of k
#define KP_CLUSTER_K 1
#endif
#ifndef KP_RESIDENT // blocks that fit a multiprocessor at once, so that the next kernel's prologue overlaps
#define KP_RESIDENT 1
#endif
#ifndef KP_PROMOTE // whether the sums of each k block are added in full f32, for 8-bit types
#define KP_PROMOTE 0
#endif
#ifndef KP_SCALE // NONE, TENSOR, ROW
#define KP_SCALE NONE
#endif
#ifndef KP_C // NONE, F32, F16, BF16
#define KP_C NONE
#endif
#ifndef KP_BIAS
#define KP_BIAS NONE
#endif
#ifndef KP_RESIDUAL
#define KP_RESIDUAL NONE
#endif
#ifndef KP_ACT // IDENTITY, RELU, GELU, GELU_TANH, SILU, SIGMOID, TANH
#define KP_ACT IDENTITY
#endif
#ifndef KP_GATE // NONE, HALVES, PAIRS
#define KP_GATE NONE
#endif

struct Config {
    static constexpr WgmmaType TYPES = WgmmaType::KP_TYPES;
    static constexpr bool WIDE = TYPES == WgmmaType::BF16 || TYPES == WgmmaType::F16;
    static constexpr bool WHOLE = TYPES == WgmmaType::S8;
    static constexpr Type D = Type::KP_D, C = Type::KP_C, BIAS = Type::KP_BIAS, RESIDUAL = Type::KP_RESIDUAL;
    static constexpr Act ACT = Act::KP_ACT;
    static constexpr Gate GATE = Gate::KP_GATE;
    static constexpr Scale SCALE = Scale::KP_SCALE;
    static constexpr int BUFFERS = KP_BUFFERS, STAGES = KP_STAGES, WARPGROUPS = KP_WARPGROUPS, PROMOTE = KP_PROMOTE;
    static constexpr int A_MN = KP_A_MN, B_MN = KP_B_MN;

    // Elements of k in a stage, and k steps of a wgmma in it: always 4 of 32 bytes.
    static constexpr int BK = TYPES == WgmmaType::TF32 ? 32 : WIDE ? 64 : 128;
    // Warpgroups that share a tile; they part its rows as long as each gets 64, then its columns.
    static constexpr int TEAM = KP_PINGPONG ? 1 : WARPGROUPS;
    static constexpr int TEAM_M = KP_BM / 64 < TEAM ? KP_BM / 64 : TEAM, TEAM_N = TEAM / TEAM_M;
    static constexpr int WM = KP_BM / TEAM_M, WN = KP_BN / TEAM_N;
    static constexpr int MI = WM / 64;
    // Whether a warpgroup that promotes has registers to issue its next products before it adds the last ones.
    static constexpr bool AHEAD = KP_PROMOTE && MI == 1 && WN <= 128 && WARPGROUPS <= 2;
    static constexpr int SUMS = (MI + (AHEAD ? 2 : KP_PROMOTE)) * WN / 2; // registers of them

    static constexpr int CLUSTER_M = KP_CLUSTER_M, CLUSTER_N = KP_CLUSTER_N, CLUSTER_K = KP_CLUSTER_K;
    static constexpr int CLUSTER = CLUSTER_M * CLUSTER_N * CLUSTER_K;
    static constexpr int A_BOXES = A_MN ? KP_BM / 64 : CLUSTER_N;
    static constexpr int B_BOXES = B_MN ? KP_BN / 64 : GATE == Gate::HALVES && CLUSTER_M == 1 ? 2 : CLUSTER_M;
    // Blocks that one block loads for, itself among them: its row and column of the cluster.
    static constexpr int SERVED = CLUSTER_M + CLUSTER_N - 1;
    static constexpr int A_BYTES = KP_BM * 128, B_BYTES = KP_BN * 128, STAGE = A_BYTES + B_BYTES;

    // Columns of a warpgroup's tile that it finishes; blocks that part k finish a part of the columns each.
    static constexpr int COLUMNS = WN / CLUSTER_K;
    using Out = Store<Config, WM, COLUMNS>;
    static constexpr int STAGING = BUFFERS * Out::SLAB;
    static constexpr int FETCHED = STAGES * STAGE + WARPGROUPS * STAGING;
    // Sums of the other blocks for the columns of this one.
    static constexpr int EXCHANGE = WM * COLUMNS * 4;
    static constexpr int EXCHANGED = FETCHED + WARPGROUPS * Out::FETCHED;
    static constexpr int BARRIERS = EXCHANGED + (CLUSTER_K - 1) * WARPGROUPS * EXCHANGE;
    static constexpr int SHARED = BARRIERS + (2 * STAGES + 1) * 8;

    static_assert(!KP_PINGPONG || WARPGROUPS == 2, "two play ping-pong");
    // Registers per thread of the copying warpgroup and of two multiplying ones; their sum is what the launch gave all. One alone has enough.
    static constexpr bool TRADES = WARPGROUPS > 1;
    static constexpr int LAUNCHED = 65536 / 128 / (1 + WARPGROUPS) / 8 * 8 * (1 + WARPGROUPS), COPYING = SUMS < 128 ? 56 : 40;
    static constexpr int MULTIPLYING = (LAUNCHED - COPYING) / WARPGROUPS / 8 * 8 < 248 ? (LAUNCHED - COPYING) / WARPGROUPS / 8 * 8 : 248;

    static_assert(KP_RESIDENT == 1 || WARPGROUPS == 1, "only small blocks share a multiprocessor");
    static_assert(TEAM_M * TEAM_N == TEAM && WM % 64 == 0 && WM * TEAM_M == KP_BM, "warpgroups part the tile");
    static_assert(TEAM_N == 1 || GATE != Gate::HALVES, "both halves of a gate are one warpgroup's");
    static_assert(CLUSTER_K == 1 || (CLUSTER_M * CLUSTER_N == 1 && !KP_PINGPONG && GATE != Gate::HALVES && WN % (8 * CLUSTER_K) == 0),
                  "blocks part k alone, and then the columns");
    static_assert(!PROMOTE || !KP_PINGPONG, "one kind of turns at a time");
    static_assert(WIDE || (!A_MN && !B_MN), "only 16-bit operands need not be k-major");
    static_assert(D != Type::I32 || (WHOLE && C == Type::NONE && BIAS == Type::NONE && RESIDUAL == Type::NONE && ACT == Act::IDENTITY &&
                                     GATE == Gate::NONE && SCALE == Scale::NONE),
                  "integers are stored as they are");
    static_assert(A_BOXES % CLUSTER_N == 0 && B_BOXES % CLUSTER_M == 0, "each block of a cluster loads equally many boxes");
    static_assert(SHARED <= 232448, "shared memory of a block");
};

struct Params {
    Tiles tiles;
    // 0 if one matrix serves the whole batch.
    u32 a_batched, b_batched;
    // Whether B is read once, and too large to stay in L2 until the next launch.
    u32 b_streams;
    Epilogue epilogue;
    float *partials;
    u32 *flags;
};

// A block's place in its cluster.
struct Place {
    u32 rank, m = 0, n = 0;

    KP_FN Place() : rank(Config::CLUSTER > 1 ? ptx::cluster_rank() : 0) {
        if (Config::CLUSTER_K == 1) m = rank % Config::CLUSTER_M, n = rank / Config::CLUSTER_M;
    }
    // Blocks with the same rows of D, which share A; with the same columns, which share B.
    KP_FN u16 sharing_a() const {
        u32 blocks = 0;
#pragma unroll
        for (int i = 0; i < Config::CLUSTER_N; i++) blocks |= 1 << i * Config::CLUSTER_M;
        return blocks << m;
    }
    KP_FN u16 sharing_b() const { return ((1 << Config::CLUSTER_M) - 1) << n * Config::CLUSTER_M; }
    // The i-th of the blocks that load for this one.
    KP_FN u32 serving(u32 i) const {
        if (i < Config::CLUSTER_M) return n * Config::CLUSTER_M + i;
        i -= Config::CLUSTER_M;
        return (i + (i >= n)) * Config::CLUSTER_M + m;
    }
    // The part of an item that is this block's.
    KP_FN void part(Item &item) const {
        if (Config::CLUSTER_K == 1) return;
        u32 k = item.end, each = k / Config::CLUSTER_K, more = k % Config::CLUSTER_K;
        item.begin = rank * each + min(rank, more);
        item.end = item.begin + each + (rank < more);
    }
    KP_FN u32 tile_m(const Item &item) const { return item.m * Config::CLUSTER_M + m; }
    KP_FN u32 tile_n(const Item &item) const { return item.n * Config::CLUSTER_N + n; }
};

// What this block computes, one item after the other.
struct Items {
    Schedule schedule;
    Item item;
    bool more;

    KP_FN Items(const Tiles &tiles, const Place &place)
        : schedule(tiles, blockIdx.x / Config::CLUSTER, gridDim.x / Config::CLUSTER), more(false) {
        step(place);
    }
    // Has the first item found here, divisions and all, rather than where it is used.
    KP_FN void keep() { asm volatile("" : "+r"(item.m), "+r"(item.n), "+r"(item.batch), "+r"(item.begin), "+r"(item.end)::"memory"); }
    KP_FN bool last() const { return schedule.done(); }
    KP_FN void step(const Place &place) {
        more = schedule.next(item);
        if (more) place.part(item);
    }
};

// The ring of stages as one role sees it.
struct Ring {
    u32 base;
    u32 stage = 0, parity = 0;

    KP_FN u32 full() const { return base + Config::BARRIERS + stage * 8; }
    KP_FN u32 empty() const { return full() + Config::STAGES * 8; }
    // Completes when the other blocks' sums have come.
    KP_FN u32 exchanged() const { return base + Config::BARRIERS + 2 * Config::STAGES * 8; }
    KP_FN u32 a() const { return base + stage * Config::STAGE; }
    KP_FN u32 b() const { return a() + Config::A_BYTES; }
    KP_FN void step() {
        if (++stage == Config::STAGES) stage = 0, parity ^= 1;
    }
    KP_FN void skip(u32 n) {
        stage += n;
        parity ^= stage / Config::STAGES & 1;
        stage %= Config::STAGES;
    }
};

// Columns of the product where tile `n` begins, and where its box `i` begins.
KP_FN u32 tile_column(u32 n) { return n * (KP_BN / (Config::GATE == Gate::HALVES ? 2 : 1)); }
KP_FN u32 box_column(const Params &p, u32 n, int i) {
    constexpr int BOX = KP_BN / Config::B_BOXES;
    if (Config::GATE != Gate::HALVES) return n * KP_BN + i * BOX;
    bool second = i * BOX >= KP_BN / 2;
    return tile_column(n) + i * BOX + (second ? p.epilogue.n / 2 - KP_BN / 2 : 0);
}

// A copying thread: one for A, who also tells each stage how many bytes will come, and one for B, since one alone issues too slowly for
// small tiles.
template <bool IS_A> KP_FN void load(const Params &p, const TensorMap *map, Ring ring, const Place &place, Items items) {
    constexpr bool MN = IS_A ? Config::A_MN : Config::B_MN;
    constexpr int SHARING = IS_A ? Config::CLUSTER_N : Config::CLUSTER_M; // blocks, each of which loads some of the boxes
    constexpr int ALL = IS_A ? Config::A_BOXES : Config::B_BOXES, BOXES = ALL / SHARING;
    constexpr u32 BYTES = (IS_A ? Config::A_BYTES : Config::B_BYTES) / ALL, ROWS = (IS_A ? KP_BM : KP_BN) / ALL;
    u16 blocks = IS_A ? place.sharing_a() : place.sharing_b();
    u32 mine = IS_A ? place.n : place.m;
    const u64 keep = !IS_A && p.b_streams ? ptx::KEEP_FIRST_OUT : ptx::KEEP_NORMAL;
    for (; items.more; items.step(place)) {
        const Item &item = items.item;
        u32 n = place.tile_n(item), rows[BOXES];
#pragma unroll
        for (int i = 0; i < BOXES; i++) {
            u32 box = i * SHARING + mine;
            rows[i] = IS_A ? place.tile_m(item) * KP_BM + box * ROWS : box_column(p, n, box);
        }
        u32 batch = (IS_A ? p.a_batched : p.b_batched) ? item.batch : 0;
        u32 k = item.begin;
        for (u32 left = item.end - item.begin; left > 0; left--, k++, ring.step()) {
            ptx::mbarrier_wait(ring.empty(), ring.parity ^ 1);
            if (IS_A) ptx::mbarrier_expect(ring.full(), Config::STAGE);
#pragma unroll
            for (int i = 0; i < BOXES; i++) {
                u32 to = (IS_A ? ring.a() : ring.b()) + (i * SHARING + mine) * BYTES;
                i32 x = MN ? rows[i] : k * Config::BK, y = MN ? k * Config::BK : rows[i];
                if (SHARING > 1) ptx::load_box_multicast(to, map, ring.full(), x, y, batch, blocks, keep);
                else ptx::load_box(to, map, ring.full(), x, y, batch, keep);
            }
        }
    }
    // A block's shared memory outlives what its neighbours still send to it: their warps' word that they are done with each stage.
    if (Config::SERVED > 1)
        for (int i = 0; i < Config::STAGES; i++, ring.step()) ptx::mbarrier_wait(ring.empty(), ring.parity ^ 1);
}

// Named barriers: 1 and up within a warpgroup, TURN and up for turns.
constexpr u32 TURN = 8;

// The sums of one warpgroup: MI x 64 rows, WN columns.
template <bool WHOLE> struct SumOf { using T = float; };
template <> struct SumOf<true> { using T = i32; };
using Sum = SumOf<Config::WHOLE>::T;
struct Sums {
    Sum d[Config::MI][Config::WN / 2];
};
// Four of them as they pass through memory.
KP_FN float4 packed(const float *d) { return {d[0], d[1], d[2], d[3]}; }
KP_FN float4 packed(const i32 *d) { return {__int_as_float(d[0]), __int_as_float(d[1]), __int_as_float(d[2]), __int_as_float(d[3])}; }
KP_FN void add(float *d, float4 x) { d[0] += x.x, d[1] += x.y, d[2] += x.z, d[3] += x.w; }
KP_FN void add(i32 *d, float4 x) {
    d[0] += __float_as_int(x.x), d[1] += __float_as_int(x.y), d[2] += __float_as_int(x.z), d[3] += __float_as_int(x.w);
}

// A warp tells all blocks that load for this one that it is done with a stage. `block` is the one this lane tells, if any.
KP_FN void release(u32 empty, u32 block) {
    if (Config::SERVED > 1) {
        if (ptx::lane() < Config::SERVED) ptx::mbarrier_arrive_at(empty, block);
    } else if (ptx::elect()) ptx::mbarrier_arrive(empty);
}

// Where a warpgroup's part of a stage lies, as the tensor cores are told.
struct Operands {
    u64 a, b;

    KP_FN Operands(const Ring &ring, u32 team_m, u32 team_n) {
        u32 a_at = ring.a() + team_m * Config::WM * 128, b_at = ring.b() + team_n * Config::WN * 128;
        a = Config::A_MN ? wgmma::mn_major<Config::BK>(a_at) : wgmma::k_major(a_at);
        b = Config::B_MN ? wgmma::mn_major<Config::BK>(b_at) : wgmma::k_major(b_at);
    }
    // Multiplies 64 rows, the i-th, by step `step` of the 4 of a stage.
    KP_FN void multiply(Sum (&d)[Config::WN / 2], int i, int step, u32 accumulate) const {
        // 64 rows take as many bytes as 64 columns of an m-major A.
        Wgmma<Config::WN>::mma<Config::TYPES, Config::A_MN, Config::B_MN>(
            d, wgmma::further(a, (Config::A_MN ? 128 : 2) * step + i * (64 * 128 >> 4)), wgmma::further(b, (Config::B_MN ? 128 : 2) * step),
            accumulate);
    }
};

// Sums the item's k blocks, and does something else while the first products run.
template <class Meanwhile>
KP_FN void multiply(Sums &sums, Ring &ring, const Item &item, u32 team_m, u32 team_n, u32 block, const Meanwhile &meanwhile) {
    u32 before = 0;
    for (u32 k = item.begin; k < item.end; k++) {
        ptx::mbarrier_wait(ring.full(), ring.parity);
        wgmma::fence();
        Operands operands(ring, team_m, team_n);
#pragma unroll
        for (int step = 0; step < 4; step++)
#pragma unroll
            for (int i = 0; i < Config::MI; i++) operands.multiply(sums.d[i], i, step, step > 0 ? 1 : k - item.begin);
        wgmma::commit();
        // This block's products are under way while the next is waited for and issued.
        if (k > item.begin) {
            wgmma::wait<1>();
            release(before, block);
        } else meanwhile();
        before = ring.empty();
        ring.step();
    }
    wgmma::wait<0>();
    release(before, block);
#pragma unroll
    for (int i = 0; i < Config::MI; i++) wgmma::pin(sums.d[i]);
}

// The same for 8-bit types, whose tensor cores keep fewer bits: the sums of each stage are added in full f32, while the next products of
// this warpgroup are under way (AHEAD), or the other's, which needs no turns: they drift apart by themselves.
template <class Meanwhile>
KP_FN void multiply_promoted(Sums &sums, Ring &ring, const Item &item, u32 team_m, u32 team_n, u32 block, const Meanwhile &meanwhile) {
    constexpr int N = Config::WN / 2;
    Ring before = ring;
    const auto issue = [&](Sum (&part)[N], int i) {
        wgmma::pin(part);
        wgmma::fence();
        Operands operands(ring, team_m, team_n);
#pragma unroll
        for (int step = 0; step < 4; step++) operands.multiply(part, i, step, step > 0);
        wgmma::commit();
        if (i == Config::MI - 1) ring.step();
    };
    const auto add = [&](Sum (&part)[N], int i) {
        wgmma::pin(part);
        if (i == Config::MI - 1) release(before.empty(), block), before.step();
#pragma unroll
        for (int j = 0; j < N; j++) sums.d[i][j] += part[j];
    };
    const auto wait = [&] { ptx::mbarrier_wait(ring.full(), ring.parity); };
    u32 left = item.end - item.begin;
    wait();
    if constexpr (Config::AHEAD) {
        Sum part[2][N];
        issue(part[0], 0);
        sums = {}, meanwhile();
        for (left--; left >= 2; left -= 2) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                wait();
                issue(part[i ^ 1], 0);
                wgmma::wait<1>();
                add(part[i], 0);
            }
        }
        if (left > 0) {
            wait();
            issue(part[1], 0);
            wgmma::wait<1>();
            add(part[0], 0);
            wgmma::wait<0>();
            add(part[1], 0);
        } else {
            wgmma::wait<0>();
            add(part[0], 0);
        }
    } else {
        Sum part[N];
        for (u32 all = left; left > 0; left--)
#pragma unroll
            for (int i = 0; i < Config::MI; i++) {
                issue(part, i);
                if (i == 0 && left == all) sums = {}, meanwhile();
                // The next stage is waited for while products run.
                if (i == Config::MI - 1 && left > 1) wait();
                wgmma::wait<0>();
                add(part, i);
            }
    }
}

// Where block `rank` of cluster `c` leaves the sums of the warpgroup `team`, and how it tells.
KP_FN float4 *partial(const Params &p, u32 c, u32 rank, u32 team, u32 thread) {
    u64 slot = ((u64)c * Config::CLUSTER + rank) * Config::TEAM + team;
    return (float4 *)p.partials + slot * (Config::MI * Config::WN / 8 * 128) + thread;
}
KP_FN u32 *flag(const Params &p, u32 c, u32 rank, u32 team) { return p.flags + (c * Config::CLUSTER + rank) * Config::TEAM + team; }

KP_FN void leave(const Params &p, const Sums &sums, const Schedule &s, u32 rank, u32 team, u32 thread, u32 barrier) {
    float4 *to = partial(p, s.cluster, rank, team, thread);
#pragma unroll
    for (int i = 0; i < Config::MI; i++)
#pragma unroll
        for (int j = 0; j < Config::WN / 8; j++) __stcg(to + (i * (Config::WN / 8) + j) * 128, packed(&sums.d[i][4 * j]));
    // The barrier and the release make all 128 threads' sums visible before the flag.
    ptx::sync_threads(barrier, 128);
    if (thread == 0) ptx::store_release(flag(p, s.cluster, rank, team), 1);
}

// Adds what the clusters after this one left of the same tile, whose blocks from `item.end` on they summed.
KP_FN void gather(const Params &p, Sums &sums, const Schedule &s, const Item &item, u32 rank, u32 team, u32 thread, u32 barrier) {
    u32 tile_end = s.end - item.end + s.tiles.k;
    for (u32 c = s.cluster + 1;; c++) {
        u32 *ready = flag(p, c, rank, team);
        if (thread == 0) {
            while (ptx::load_acquire(ready) == 0) {}
            ptx::store_relaxed(ready, 0);
        }
        ptx::sync_threads(barrier, 128);
        const float4 *from = partial(p, c, rank, team, thread);
#pragma unroll
        for (int i = 0; i < Config::MI; i++)
#pragma unroll
            for (int j = 0; j < Config::WN / 8; j++) add(&sums.d[i][4 * j], __ldcg(from + (i * (Config::WN / 8) + j) * 128));
        if (s.bound(c + 1) >= tile_end) return;
    }
}

// Blocks that part k: each gets from the others their sums of its columns, in `mine`, and adds them in the order of k.
KP_FN void exchange(const Sums &sums, Sum (&mine)[Config::MI][Config::COLUMNS / 2], const Ring &ring, const Place &place, u32 group, u32 thread) {
    constexpr int N = Config::COLUMNS / 2, PARTS = Config::CLUSTER_K;
    u32 at = ring.base + Config::EXCHANGED + group * Config::EXCHANGE + thread * 16;
    constexpr u32 NEXT = Config::WARPGROUPS * Config::EXCHANGE;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        if (part == place.rank) continue;
        // The others' sums lie in the order of their ranks.
        u32 to = ptx::in_block(at + (place.rank - (place.rank > part)) * NEXT, part), bar = ptx::in_block(ring.exchanged(), part);
#pragma unroll
        for (int i = 0; i < Config::MI; i++)
#pragma unroll
            for (int j = 0; j < N; j += 4) {
                float4 x = packed(&sums.d[i][part * N + j]);
                ptx::store_cluster(to + (i * N + j) * 512, bar, x.x, x.y, x.z, x.w);
            }
    }
    ptx::mbarrier_wait(ring.exchanged(), 0);
#pragma unroll
    for (int i = 0; i < Config::MI; i++)
#pragma unroll
        for (int j = 0; j < N; j += 4) {
            Sum own[4];
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                if (part == place.rank)
#pragma unroll
                    for (int e = 0; e < 4; e++) own[e] = sums.d[i][part * N + j + e];
#pragma unroll
            for (int e = 0; e < 4; e++) mine[i][j + e] = 0;
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                add(&mine[i][j], part == place.rank ? packed(own) : ptx::load_shared(at + (part - (part > place.rank)) * NEXT + (i * N + j) * 512));
        }
}

// A multiplying warpgroup.
KP_FN void consume(const Params &p, const TensorMap *d, Ring ring, const Place &place, u32 group) {
    Items items(p.tiles, place);
    u32 team = KP_PINGPONG ? 0 : group, team_m = team % Config::TEAM_M, team_n = team / Config::TEAM_M;
    u32 thread = threadIdx.x % 128, barrier = 1 + group, block = place.serving(ptx::lane());
    typename Config::Out out(p.epilogue, d, ring.base + Config::STAGES * Config::STAGE + group * Config::STAGING, barrier, thread,
                             ring.base + Config::FETCHED + group * Config::Out::FETCHED);
    // Ping-pong: a warpgroup multiplies when the other one has, and so meets every stage in its turn; barriers know only two phases.
    if (KP_PINGPONG && group == 1) ptx::arrive_threads(TURN, 256);
    // The next item is found while the first products run; in ping-pong the other's do anyway, and registers are short.
    constexpr bool EARLY = !KP_PINGPONG;
    const auto meanwhile = [&] {
        if (EARLY) items.step(place);
    };
    for (u32 turn = 0; items.more; EARLY ? void() : items.step(place), turn++) {
        const Item item = items.item;
        if (KP_PINGPONG && turn % 2 != group) {
            ring.skip(item.end - item.begin);
            continue;
        }
        u32 m = place.tile_m(item) * KP_BM + team_m * Config::WM;
        u32 n = tile_column(place.tile_n(item)) + team_n * Config::WN + place.rank % Config::CLUSTER_K * Config::COLUMNS;
        u32 corner = Config::GATE == Gate::PAIRS ? n / 2 : n;
        out.fetch(m, corner);
        if (KP_PINGPONG) ptx::sync_threads(TURN + group, 256);
        Sums sums;
        if constexpr (Config::PROMOTE) multiply_promoted(sums, ring, item, team_m, team_n, block, meanwhile);
        else multiply(sums, ring, item, team_m, team_n, block, meanwhile);
        if (KP_PINGPONG) ptx::arrive_threads(TURN + (group ^ 1), 256);
        out.await_fetched();
        if constexpr (Config::CLUSTER_K > 1) {
            Sum mine[Config::MI][Config::COLUMNS / 2];
            exchange(sums, mine, ring, place, group, thread);
#pragma unroll
            for (int i = 0; i < Config::MI; i++) out.rows(mine[i], i, m, corner, item.batch, i == Config::MI - 1);
            break;
        }
        if (item.begin != 0) {
            leave(p, sums, items.schedule, place.rank, team, thread, barrier);
            continue;
        }
        if (item.end != p.tiles.k) gather(p, sums, items.schedule, item, place.rank, team, thread, barrier);
#pragma unroll
        for (int i = 0; i < Config::MI; i++)
            out.rows(sums.d[i], i, m, corner, item.batch, i == Config::MI - 1 && (EARLY ? !items.more : items.last()));
    }
    if (thread == 0) ptx::store_wait_read<0>();
}

// Until all barriers of the cluster are ready, and what this kernel reads.
KP_FN void start() {
    __syncwarp();
    // The next kernel waits for this one before it touches memory, however early it starts.
    ptx::allow_next_kernel();
    if (Config::CLUSTER > 1) ptx::cluster_sync_relaxed();
    else __syncthreads();
    ptx::wait_for_previous_kernel();
}

extern "C" __global__ void __launch_bounds__(128 * (1 + KP_WARPGROUPS), KP_RESIDENT)
    gemm(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap d,
         const __grid_constant__ Params p) {
    extern __shared__ __align__(1024) u8 shared[];
    Ring ring{ptx::smem_address(shared)};
    u32 warp = ptx::warp();
    Place place;
    // A warp that has nothing else to do.
    if (warp == 3 && ptx::elect()) {
        for (Ring r = ring; r.parity == 0; r.step()) {
            ptx::mbarrier_init(r.full(), 1);
            ptx::mbarrier_init(r.empty(), Config::SERVED * Config::TEAM * 4);
        }
        if (Config::CLUSTER_K > 1) ptx::mbarrier_init(ring.exchanged(), 1);
        ptx::mbarrier_init_fence();
        if (Config::CLUSTER_K > 1) ptx::mbarrier_expect(ring.exchanged(), (Config::CLUSTER_K - 1) * Config::WARPGROUPS * Config::EXCHANGE);
    }
    if (warp < 4) {
        if (warp == 2 && ptx::elect()) ptx::prefetch_map(&a), ptx::prefetch_map(&b), ptx::prefetch_map(&d);
        Items items(p.tiles, place);
        items.keep();
        start();
        if constexpr (Config::TRADES) ptx::give_registers<Config::COPYING>();
        if (warp == 0 && ptx::elect()) load<true>(p, &a, ring, place, items);
        if (warp == 1 && ptx::elect()) load<false>(p, &b, ring, place, items);
    } else {
        start();
        if constexpr (Config::TRADES) ptx::take_registers<Config::MULTIPLYING>();
        consume(p, &d, ring, place, warp / 4 - 1);
    }
}

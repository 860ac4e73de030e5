// What the kernels share that lay the weights' n along the matrix unit's fixed 64 rows and the few rows of A along its free
// side, so that nothing is padded but m to a multiple of 8.
//
//      a tile of Dᵗ: GROUPS·64·SLABS columns of the product by TOKENS of its rows        a stage, of STEPS·128 bytes of k
//                TOKENS                                                                   B  STEPS × [ROWS × 128 bytes]
//      group 0  ┌──────┐ 64·SLABS                                                         A  STEPS × [TOKENS × 128 bytes]
//      group 1  └──────┘
//
// One warp copies boxes, and one the scales of blocks, if there are any; GROUPS warpgroups multiply, and each stores its own part of the
// tile by way of shared memory, where it is transposed.
//
// Maps     a: {k, m, batch}, box {128 bytes, TOKENS, 1}; b: {k, n, batch}, box {128 bytes, ROWS, 1}, or {128 bytes,
//          32·SLABS, 1} if the gate is HALVES; both swizzled by 128 bytes, zeros outside
// Macros   KP_TYPES     BF16, F16, E4M3, E5M2, E4M3_E5M2 (of B, then of A), E5M2_E4M3
//          KP_TOKENS    8 … 128, a multiple of 8          KP_SLABS   1 or 2; KP_GROUPS   1 … 4 (ROWS at most 256)
//          KP_SPLIT     1 … 8: blocks of a cluster, which part k of a tile
//          KP_STEPS     1, 2 or 4                         KP_STAGES             at least 2, as shared memory allows
//          KP_PROMOTE   1: sums of 8-bit floats go to f32 registers after every 128 of k, and are as good as f32's;
//                       0: they stay in the matrix unit
//          KP_SCALE     NONE, TENSOR, ROW; BLOCKS: one for each row of A and one for KP_B_BLOCK (1 or 128) rows of B, for every 128 of
//                       k, of 8-bit floats with KP_PROMOTE; the gate is not HALVES
//          KP_PREFETCH  1: the first boxes of B are asked into L2 before the wait for the kernel before
//          KP_EARLY     1: the next kernel may be launched once all blocks run; 0: once they have asked for all boxes
//          KP_D, KP_C, KP_BIAS, KP_RESIDUAL   Type's names; KP_ACT, KP_GATE   Act's and Gate's names
//          KP_BLOCKS_PER_SM                   blocks that registers must allow
#pragma once
#include "common/cuda/math.cuh"
#include "common/cuda/wgmma.cuh"
#include "gemm/cuda/sm90_epilogue.cuh"

#ifndef KP_B_BLOCK
#define KP_B_BLOCK 128
#endif

namespace swap {

constexpr WgmmaType TYPES = WgmmaType::KP_TYPES;
constexpr Type D = Type::KP_D, C = Type::KP_C, BIAS = Type::KP_BIAS, RESIDUAL = Type::KP_RESIDUAL;
constexpr Act ACT = Act::KP_ACT;
constexpr Gate GATE = Gate::KP_GATE;
constexpr Scale SCALE = Scale::KP_SCALE;
constexpr u32 TOKENS = KP_TOKENS, SLABS = KP_SLABS, GROUPS = KP_GROUPS, STEPS = KP_STEPS, SPLIT = KP_SPLIT;

constexpr bool WIDE = TYPES == WgmmaType::BF16 || TYPES == WgmmaType::F16;
constexpr u32 STEP_K = WIDE ? 64 : 128;                   // elements of 128 bytes
constexpr u32 GROUP_ROWS = 64 * SLABS, ROWS = GROUPS * GROUP_ROWS;
constexpr u32 B_STEP = ROWS * 128, A_STEP = TOKENS * 128; // bytes
constexpr u32 STAGE = STEPS * (A_STEP + B_STEP);
constexpr u32 OUT = GATE == Gate::NONE ? GROUP_ROWS : GROUP_ROWS / 2; // columns of D of a group
constexpr u32 PITCH = GROUP_ROWS + 4;                     // floats of a row of sums; 4 more keep a fragment's stores apart
constexpr u32 GROUP_SUMS = TOKENS * PITCH * 4;            // bytes

// Scales of a step: A's rows, then of each group B's rows, or one number for a slab of them.
constexpr bool BLOCKS = SCALE == Scale::BLOCKS;
constexpr u32 B_SCALES = KP_B_BLOCK == 1 ? GROUP_ROWS : SLABS; // of a group
constexpr u32 SCALES = BLOCKS ? (TOKENS + GROUPS * B_SCALES + 1) / 2 * 2 : 0; // an even number: they are read in pairs
static_assert(!BLOCKS || (KP_PROMOTE && !WIDE && GATE != Gate::HALVES && (KP_B_BLOCK == 1 || KP_B_BLOCK == 128)), "what scales of blocks go with");
constexpr u32 THREADS = 128 * GROUPS + (BLOCKS ? 64 : 32);

// Rank r of a cluster finishes the eights of rows r, r + SPLIT, …: at most so many.
constexpr u32 EIGHTS = TOKENS / 8, MINE = (EIGHTS + SPLIT - 1) / SPLIT;
// Bytes of an eight's sums of a group, in fragment order, and of all that a group is sent.
constexpr u32 EIGHT = SLABS * 128 * 16, GROUP_INBOX = (SPLIT - 1) * MINE * EIGHT;
constexpr u32 STAGES = KP_STAGES;
static_assert(STAGES >= 2, "one is multiplied while another is copied");

// What a launch has, whatever its blocks' order.
struct Problem {
    Epilogue epilogue;
    u64 d;
    u32 stages_k;             // stages along k
    u32 a_batched, b_batched; // 0 if one matrix serves the whole batch
    u32 b_streams;            // whether B is too large to stay in L2 until it is used again
    // Of blocks: the scale of row r and block kb of a batch's matrix z lies at z · batch + r · row + kb · k.
    i64 a_scale_batch, b_scale_batch;
    u32 a_scale_row, a_scale_k;
    u32 b_scale_row, b_scale_k;
    u32 blocks_k; // blocks along k
};

// Stages of shared memory as one role sees them.
struct Ring {
    u32 base, barriers, scale_base;
    u32 stage = 0, parity = 0;

    KP_FN u32 b() const { return base + stage * STAGE; }
    KP_FN u32 a() const { return b() + STEPS * B_STEP; }
    KP_FN u32 scales(u32 step) const { return scale_base + (stage * STEPS + step) * (SCALES * 4); }
    KP_FN u32 full() const { return barriers + 8 * stage; }
    KP_FN u32 empty() const { return full() + 8 * STAGES; }
    KP_FN void step() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    // By the thread that loads; a barrier of the block must follow before others use it.
    KP_FN void init() const {
        for (u32 s = 0; s < STAGES; ++s) {
            ptx::mbarrier_init(barriers + 8 * s, BLOCKS ? 33 : 1);
            ptx::mbarrier_init(barriers + 8 * (STAGES + s), GROUPS * 4);
        }
        ptx::mbarrier_init_fence();
    }
};

// ---- load ----

// The copying thread: stages `begin` to `end` along k of B's tile `tile` and of A's rows from `row0` on.
struct Loader {
    const TensorMap *a, *b;
    const Problem &p;

    // The first row of B's box, and boxes of a tile.
    static constexpr u32 BOXES = GATE == Gate::HALVES ? 2 * GROUPS : 1;
    KP_FN u32 row(u32 tile, u32 box) const {
        if (GATE != Gate::HALVES) return tile * ROWS;
        return (tile * GROUPS + box / 2) * OUT + box % 2 * (p.epilogue.n / 2);
    }
    // Asks for boxes of B ahead of all waits: L2 is where the writes of the kernel before land too.
    KP_FN void prefetch(u32 tile, u32 batch, u32 begin, u32 end) const {
        for (u32 i = begin * STEPS; i < min(end, begin + STAGES) * STEPS; ++i)
#pragma unroll
            for (u32 box = 0; box < BOXES; ++box)
                asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(b), "r"(i * STEP_K),
                             "r"(row(tile, box)), "r"(p.b_batched ? batch : 0)
                             : "memory");
    }
    KP_FN void load(Ring &ring, u32 tile, u32 row0, u32 batch, u32 begin, u32 end) const {
        const u64 keep = p.b_streams ? ptx::KEEP_FIRST_OUT : ptx::KEEP_NORMAL;
        for (u32 i = begin; i < end; ++i, ring.step()) {
            ptx::mbarrier_wait(ring.empty(), ring.parity ^ 1);
            ptx::mbarrier_expect(ring.full(), STAGE);
#pragma unroll
            for (u32 step = 0; step < STEPS; ++step)
#pragma unroll
                for (u32 box = 0; box < BOXES; ++box)
                    ptx::load_box(ring.b() + step * B_STEP + box * (B_STEP / BOXES), b, ring.full(), (i * STEPS + step) * STEP_K,
                                  row(tile, box), p.b_batched ? batch : 0, keep);
#pragma unroll
            for (u32 step = 0; step < STEPS; ++step)
                ptx::load_box(ring.a() + step * A_STEP, a, ring.full(), (i * STEPS + step) * STEP_K, row0, p.a_batched ? batch : 0,
                              ptx::KEEP_LAST_OUT);
        }
    }
};

// The warp that copies scales of blocks: number by number, so that any layout will do.
struct ScaleLoader {
    static constexpr u32 EACH = BLOCKS ? (STEPS * SCALES + 31) / 32 : 1; // numbers of a lane
    static constexpr u32 ALL = BLOCKS ? SCALES : 1;
    const float *from[EACH];
    u32 stride[EACH], step[EACH];
    bool exists[EACH];
    u32 blocks;

    KP_FN ScaleLoader(const Problem &p, u32 tile, u32 row0, u32 batch) : blocks(p.blocks_k) {
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            const u32 x = i * 32 + ptx::lane(), at = x % ALL;
            step[i] = x / ALL;
            if (at < TOKENS) {
                from[i] = (const float *)p.epilogue.a_scale + batch * p.a_scale_batch + (u64)(row0 + at) * p.a_scale_row;
                stride[i] = p.a_scale_k, exists[i] = row0 + at < p.epilogue.m;
            } else {
                const u32 row = tile * ROWS + (at - TOKENS) * (KP_B_BLOCK == 1 ? 1 : 64);
                from[i] = (const float *)p.epilogue.b_scale + batch * p.b_scale_batch + (u64)(row / KP_B_BLOCK) * p.b_scale_row;
                stride[i] = p.b_scale_k, exists[i] = row < p.epilogue.n;
            }
            exists[i] = exists[i] && step[i] < STEPS;
        }
    }
    KP_FN void load(Ring &ring, u32 begin, u32 end) const {
        for (u32 i = begin; i < end; ++i, ring.step()) {
            ptx::mbarrier_wait(ring.empty(), ring.parity ^ 1);
#pragma unroll
            for (u32 j = 0; j < EACH; ++j) {
                const u32 block = i * STEPS + step[j];
                if (step[j] < STEPS)
                    ptx::copy_word(ring.scales(0) + (j * 32 + ptx::lane()) * 4, (u64)(from[j] + (u64)block * stride[j]),
                                   exists[j] && block < blocks);
            }
            ptx::arrive_with_copies(ring.full());
        }
    }
};

// ---- compute ----

struct Sums {
    float d[SLABS][TOKENS / 2];
};

KP_FN void pin(Sums &sums) {
#pragma unroll
    for (u32 i = 0; i < SLABS; ++i) wgmma::pin(sums.d[i]);
}

// Issues the products of 128 bytes of k.
KP_FN void issue(Sums &sums, const Ring &ring, u32 group, u32 step, bool accumulate) {
    const u32 b = ring.b() + step * B_STEP + group * (GROUP_ROWS * 128), a = ring.a() + step * A_STEP;
#pragma unroll
    for (u32 quarter = 0; quarter < 4; ++quarter)
#pragma unroll
        for (u32 s = 0; s < SLABS; ++s)
            Wgmma<TOKENS>::template mma<TYPES>(sums.d[s], wgmma::k_major(b + s * (64 * 128)) + 2 * quarter, wgmma::k_major(a) + 2 * quarter,
                                      accumulate || quarter > 0);
}

KP_FN void release(u32 empty) {
    if (ptx::elect()) ptx::mbarrier_arrive(empty);
}

// What a thread multiplies the sums of 128 of k by.
struct Factors {
    static constexpr u32 PER_SLAB = KP_B_BLOCK == 1 ? 2 : 1;
    float a[TOKENS / 4], b[SLABS][PER_SLAB];

    // Read while products run.
    KP_FN Factors(const Ring &ring, u32 group, u32 step) {
        const u32 a_at = ring.scales(step), b_at = a_at + (TOKENS + group * B_SCALES) * 4;
#pragma unroll
        for (u32 i = 0; i < TOKENS / 8; ++i) {
            const float2 pair = ptx::load_shared_pair(a_at + (i * 8 + ptx::lane() % 4 * 2) * 4);
            a[2 * i] = pair.x, a[2 * i + 1] = pair.y;
        }
#pragma unroll
        for (u32 s = 0; s < SLABS; ++s)
#pragma unroll
            for (u32 h = 0; h < PER_SLAB; ++h) {
                const u32 row = s * 64 + threadIdx.x % 128 / 32 * 16 + ptx::lane() / 4 + h * 8;
                b[s][h] = ptx::load_shared_number(b_at + (KP_B_BLOCK == 1 ? row : s) * 4);
            }
    }
    KP_FN float of(u32 s, u32 j) const { return a[j / 4 * 2 + j % 2] * b[s][j / 2 % 2 * (PER_SLAB - 1)]; }
};

// The sums over stages `begin` to `end` of one warpgroup.
KP_FN void multiply(Sums &sums, Ring &ring, u32 group, u32 begin, u32 end) {
    sums = {};
    u32 before = 0;
    for (u32 i = begin; i < end; ++i) {
        ptx::mbarrier_wait(ring.full(), ring.parity);
        if constexpr (KP_PROMOTE) {
#pragma unroll
            for (u32 step = 0; step < STEPS; ++step) {
                Sums part;
                wgmma::fence();
                issue(part, ring, group, step, false);
                wgmma::commit();
                if constexpr (BLOCKS) {
                    const Factors factors(ring, group, step);
                    wgmma::wait<0>();
                    if (step == STEPS - 1) release(ring.empty());
                    pin(part);
#pragma unroll
                    for (u32 s = 0; s < SLABS; ++s)
#pragma unroll
                        for (u32 j = 0; j < TOKENS / 2; ++j) sums.d[s][j] += factors.of(s, j) * part.d[s][j];
                    continue;
                }
                wgmma::wait<0>();
                if (step == STEPS - 1) release(ring.empty());
                pin(part);
#pragma unroll
                for (u32 s = 0; s < SLABS; ++s)
#pragma unroll
                    for (u32 j = 0; j < TOKENS / 2; ++j) sums.d[s][j] += part.d[s][j];
            }
        } else {
            wgmma::fence();
#pragma unroll
            for (u32 step = 0; step < STEPS; ++step) issue(sums, ring, group, step, true);
            wgmma::commit();
            // The stage before is done; this one goes on while the next is waited for.
            wgmma::wait<1>();
            if (i > begin) release(before);
            before = ring.empty();
        }
        ring.step();
    }
    if constexpr (!KP_PROMOTE) {
        wgmma::wait<0>();
        if (begin < end) release(before);
    }
    pin(sums);
}

// ---- store ----

// Sends each rank of the cluster the eights that it finishes, and adds to this rank's own what the others send, in rank order.
// `inbox` and `barrier` are the group's.
KP_FN void exchange(Sums &sums, u32 inbox, u32 barrier, u32 rank) {
    const u32 thread = threadIdx.x % 128 * 16;
#pragma unroll
    for (u32 i = 0; i < EIGHTS; ++i) {
        const u32 owner = i % SPLIT;
        if (owner == rank) continue;
        const u32 to = inbox + (((rank < owner ? rank : rank - 1) * MINE + i / SPLIT) * EIGHT) + thread;
#pragma unroll
        for (u32 s = 0; s < SLABS; ++s) {
            const float *x = sums.d[s] + 4 * i;
            ptx::store_cluster(ptx::in_block(to + s * 2048, owner), ptx::in_block(barrier, owner), x[0], x[1], x[2], x[3]);
        }
    }
    if (rank < EIGHTS) ptx::mbarrier_wait(barrier, 0);
#pragma unroll
    for (u32 i = 0; i < EIGHTS; ++i) {
        if (i % SPLIT != rank) continue;
#pragma unroll
        for (u32 s = 0; s < SLABS; ++s) {
            float *x = sums.d[s] + 4 * i;
            float4 sum = {0, 0, 0, 0};
#pragma unroll
            for (u32 from = 0; from < SPLIT; ++from) {
                float4 y = {x[0], x[1], x[2], x[3]};
                if (from != rank) y = ptx::load_shared(inbox + ((from < rank ? from : from - 1) * MINE + i / SPLIT) * EIGHT + s * 2048 + thread);
                sum.x += y.x, sum.y += y.y, sum.z += y.z, sum.w += y.w;
            }
            x[0] = sum.x, x[1] = sum.y, x[2] = sum.z, x[3] = sum.w;
        }
    }
}

// Leaves the sums of a group's eights that this rank finishes at `at`, a row of them for each row of A.
KP_FN void transpose(const Sums &sums, u32 at, u32 rank) {
    const u32 row = threadIdx.x % 128 / 32 * 16 + ptx::lane() / 4, token = ptx::lane() % 4 * 2;
#pragma unroll
    for (u32 i = 0; i < EIGHTS; ++i) {
        if (i % SPLIT != rank) continue;
#pragma unroll
        for (u32 s = 0; s < SLABS; ++s)
#pragma unroll
            for (u32 j = 0; j < 4; ++j)
                asm volatile("st.shared.f32 [%0], %1;" ::"r"(at + ((i / SPLIT * 8 + token + j % 2) * PITCH + row + s * 64 + j / 2 * 8) * 4),
                             "f"(sums.d[s][4 * i + j])
                             : "memory");
    }
}

// X of one element of the product.
KP_FN float finished(const Epilogue &e, float x, float scale, u32 row, u32 column, u32 batch) {
    if (column >= e.n) return 0;
    if constexpr (SCALE == Scale::ROW) scale *= ((const float *)e.b_scale)[column];
    x *= scale;
    if constexpr (C != Type::NONE)
        if (e.beta != 0) x += e.beta * load<C>(e.c, batch * e.c_stride + row * e.c_ld + column);
    if constexpr (BIAS != Type::NONE) x += load<BIAS>(e.bias, column);
    return x;
}

KP_FN void store(u64 array, i64 i, float x) {
    if constexpr (D == Type::F32) ((float *)array)[i] = x;
    else if constexpr (bytes_of(D) == 2) ((u16 *)array)[i] = (u16)pack<D>(x, 0);
    else ((u8 *)array)[i] = (u8)pack<D>(x, 0);
}

// Four neighbours, aligned to their size.
KP_FN void store_four(u64 array, i64 i, const float (&y)[4]) {
    if constexpr (D == Type::F32) *(float4 *)((float *)array + i) = {y[0], y[1], y[2], y[3]};
    else if constexpr (bytes_of(D) == 2) *(uint2 *)((u16 *)array + i) = {pack<D>(y[0], y[1]), pack<D>(y[2], y[3])};
    else *(u32 *)((u8 *)array + i) = pack<D>(y[0], y[1]) | pack<D>(y[2], y[3]) << 16;
}

// What all of D is multiplied by; asked for before the sums are there.
KP_FN float tensor_scale(const Epilogue &e) {
    if constexpr (SCALE == Scale::TENSOR) return e.alpha * *(const float *)e.a_scale * *(const float *)e.b_scale;
    return e.alpha;
}

// Finishes and stores what `transpose` left at `at`: a group's tile of columns `tile`, of the rows from `row0` on that are this
// rank's.
KP_FN void finish(const Problem &p, float scale, u32 at, u32 tile, u32 row0, u32 batch, u32 rank) {
    const Epilogue &e = p.epilogue;
    constexpr bool PAIRS = GATE == Gate::PAIRS;
    constexpr u32 PARTS = GATE == Gate::NONE ? 1 : 2, QUADS = OUT / 4, ALL = MINE * 8 * QUADS;
    constexpr u32 PASSES = (ALL + 127) / 128, BATCH = PASSES < 4 ? PASSES : 4;
    const u32 columns = e.n / PARTS;
    const bool aligned = e.d_ld % 4 == 0 && e.d_stride % 4 == 0 && p.d % (4 * bytes_of(D)) == 0;
#pragma unroll
    for (u32 pass = 0; pass < PASSES; pass += BATCH) {
        // A batch of loads is under way before the first is used.
        float4 x[BATCH][PARTS];
#pragma unroll
        for (u32 k = 0; k < BATCH; ++k) {
            const u32 i = min((pass + k) * 128 + threadIdx.x % 128, ALL - 1);
#pragma unroll
            for (u32 h = 0; h < PARTS; ++h)
                x[k][h] = ptx::load_shared(at + i / QUADS * (PITCH * 4) + i % QUADS * (PAIRS ? 32 : 16) + h * (PAIRS ? 16 : OUT * 4));
        }
#pragma unroll
        for (u32 k = 0; k < BATCH; ++k) {
            const u32 i = (pass + k) * 128 + threadIdx.x % 128, mine = i / QUADS;
            const u32 token = (mine / 8 * SPLIT + rank) * 8 + mine % 8, row = row0 + token, column = tile * OUT + i % QUADS * 4; // of D
            if (i >= ALL || token >= TOKENS || row >= e.m || column >= columns) continue;
            float s = scale, y[4];
            if constexpr (SCALE == Scale::ROW) s *= ((const float *)e.a_scale)[row];
            const float4 low = x[k][0], high = x[k][PARTS - 1];
            const float g[4] = {low.x, PAIRS ? low.z : low.y, PAIRS ? high.x : low.z, PAIRS ? high.z : low.w};
            const float u[4] = {PAIRS ? low.y : high.x, PAIRS ? low.w : high.y, PAIRS ? high.y : high.z, high.w};
            const i64 to = batch * e.d_stride + row * e.d_ld + column;
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                const u32 first = PAIRS ? 2 * (column + j) : column + j, second = PAIRS ? first + 1 : first + columns;
                y[j] = activated<ACT>(finished(e, g[j], s, row, first, batch));
                if constexpr (PARTS == 2) y[j] *= finished(e, u[j], s, row, second, batch);
                if constexpr (RESIDUAL != Type::NONE)
                    if (column + j < columns) y[j] += load<RESIDUAL>(e.residual, to + j);
                if constexpr (bytes_of(D) == 1)
                    if (e.d_scale) y[j] /= *(const float *)e.d_scale;
            }
            if (aligned && column + 4 <= columns) {
                store_four(p.d, to, y);
            } else {
#pragma unroll
                for (u32 j = 0; j < 4; ++j)
                    if (column + j < columns) store(p.d, to + j, y[j]);
            }
        }
    }
}

} // namespace swap

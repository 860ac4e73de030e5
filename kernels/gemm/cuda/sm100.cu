// D = act(alpha · A·B + beta · C + bias) + residual on sm_100: TF32, floats of 16 and 8 bits, blocks of 8-bit and 4-bit floats with scales (MX,
// NVFP4); sums in f32. Never run: no such device was at hand. `kernels/gemm/blackwell.md` lists what to review.
//
//     warp 0         A, B, scales ─ TMA ─▶ ring of KP_STAGES stages of 128 bytes of k
//     warp 1         ring ─ tcgen05 ─▶ sums in TMEM, KP_SUMS tiles; one thread. Allocates TMEM
//     warp 2         scales that lie in rows ─ cp.async ─▶ the same ring, in tiles (KP_GATHER)
//     warps 4 to 7   sums ─ tcgen05.ld ─▶ registers ─ stmatrix ─▶ slabs ─ TMA ─▶ D, while the next tile is multiplied
//
// A tile is 128 x KP_BN of D. If KP_PAIR is 2, two blocks (a cluster) make 256 x KP_BN: each loads 128 rows of A and KP_BN / 2 columns of B, and
// rank 0 issues the products of both. Barriers:
//
//     full[stage]    bytes of A, B, scales, of both blocks; 1,     copies ─▶ products     rank 0's
//                    and 1 for each warp that gathers scales
//     empty[stage]   1, by commit, in both blocks                  products ─▶ copies     each its own
//     done[sums]     1, by commit, in both blocks                  products ─▶ store      each its own
//     free[sums]     4 warps of each block                         store ─▶ products      rank 0's
//
// Blocks are persistent; each cluster takes the tiles of `Schedule`. Tensor maps have 3 dimensions, zeros outside, and
//     A  k-major: box {128 bytes, 128 rows}          m-major (KP_A_MN): box {64, 64 of k}     128-byte swizzle
//     B  k-major: box {128 bytes, B_ROWS rows}       n-major (KP_B_MN): box {64, 64 of k}     128-byte swizzle
//     scales  {128 words, tiles along k, tiles along rows}: box {128, KP_SCALES, 1 (A) or B_TILES}, no swizzle
//     D  box {`Out::WIDTH` bytes, 128 rows}, swizzle of that width
//
// The matrix unit reads scales in tiles of 128 rows x 4 along k (kp-hal's `ScaleLayout::Tiles`), four along k being a word: see blackwell.md.
// Scales in rows are gathered word by word. Each stage has columns of TMEM of its own for them, so that they are overwritten only when the
// products that read them are known to be complete.
//
// Launch: grid a multiple of KP_PAIR, at most what fits at once, clusters of KP_PAIR; 256 threads; dynamic shared memory `Config::SHARED`;
// attribute programmatic stream serialization allowed. KP_INSTRUCTION and KP_*_DESCRIPTOR are the host's.
//
// Limits: k at least 1; rows of A, B and D, and matrices of a batch, are a multiple of 16 bytes apart; a row of D itself is one too. No tile's
// k is parted. Scaled: k a multiple of what one product takes, no gate by halves. Gathered: rows of scales are whole words.
#include "common/cuda/tcgen05.cuh"
#include "gemm/cuda/sm90_epilogue.cuh"

using tcgen05::Kind;

struct Config {
    static constexpr Kind KIND = Kind::KP_KIND;
    static constexpr bool SCALED = KIND != Kind::TF32 && KIND != Kind::F16 && KIND != Kind::F8F6F4;
    static constexpr Type D = Type::KP_D, C = Type::KP_C, BIAS = Type::KP_BIAS, RESIDUAL = Type::KP_RESIDUAL;
    static constexpr Act ACT = Act::KP_ACT;
    static constexpr Gate GATE = Gate::KP_GATE;
    static constexpr Scale SCALE = Scale::KP_SCALE;
    static constexpr int PAIR = KP_PAIR, STAGES = KP_STAGES, SUMS = KP_SUMS, BUFFERS = 2;
    static constexpr int A_MN = KP_A_MN, B_MN = KP_B_MN;

    static constexpr int BM = 128, BN = KP_BN, B_ROWS = BN / PAIR;
    // Elements of k in a stage, and products of 32 bytes in it.
    static constexpr int BITS = KIND == Kind::TF32 ? 32 : KIND == Kind::F16 ? 16 : KIND == Kind::F8F6F4 || KIND == Kind::MXF8F6F4 ? 8 : 4;
    static constexpr int BK = 1024 / BITS, STEPS = 4;
    static constexpr int A_BOXES = A_MN ? BM / 64 : 1;
    static constexpr int B_BOXES = B_MN ? B_ROWS / 64 : GATE == Gate::HALVES && PAIR == 1 ? 2 : 1;
    static constexpr int A_BYTES = BM * 128, B_BYTES = B_ROWS * 128, STAGE = A_BYTES + B_BYTES;

    // Scales per row and product, which is also tiles of them along k in a stage; tiles along B's columns.
    static constexpr int SCALES = SCALED ? KP_SCALES : 0, B_TILES = (BN + 127) / 128;
    static constexpr int SCALE_TILE = 512, A_SCALES = SCALES * SCALE_TILE, B_SCALES = B_TILES * A_SCALES;
    static constexpr bool GATHER = KP_GATHER;
    static constexpr int LOADED = PAIR * (STAGE + (GATHER ? 0 : A_SCALES + B_SCALES));

    // TMEM: sums, then for each stage the scales of A and of B, four columns a tile.
    static constexpr int SCALE_COLUMNS = SCALES * (1 + B_TILES) * 4;
    static constexpr int USED = SUMS * BN + STAGES * SCALE_COLUMNS;
    static constexpr int COLUMNS = USED <= 32 ? 32 : USED <= 64 ? 64 : USED <= 128 ? 128 : USED <= 256 ? 256 : 512;

    // D leaves in slabs of 128 rows and up to 128 bytes, at most 64 columns.
    static constexpr int GATES = GATE == Gate::NONE ? 1 : 2;
    static constexpr int WIDEST = D == Type::F32 ? 32 : 64, SLAB_COLUMNS = WIDEST < BN / GATES ? WIDEST : BN / GATES;
    static constexpr int SLABS = BN / GATES / SLAB_COLUMNS;
    using Out = Store<Config, BM, GATES * SLAB_COLUMNS>;
    static constexpr int SLAB = BM * Out::WIDTH;

    static constexpr int SLABS_AT = STAGES * STAGE, SCALES_AT = SLABS_AT + BUFFERS * SLAB;
    static constexpr int BARRIERS = SCALES_AT + STAGES * (A_SCALES + B_SCALES);
    // 1024 to align the base by hand, 16 for the address of TMEM.
    static constexpr int SHARED = 1024 + BARRIERS + (2 * STAGES + 2 * SUMS) * 8 + 16;

    static_assert(PAIR == 1 || PAIR == 2, "a block, or a pair");
    static_assert(BN % 64 == 0 && BN <= 256 && (!B_MN || B_ROWS % 64 == 0), "what the matrix unit takes, in whole boxes");
    static_assert(!B_MN || GATE != Gate::HALVES || BN / 2 % 64 == 0, "a box is of one half of a gate");
    static_assert(USED <= 512, "tensor memory");
    static_assert(KIND == Kind::F16 || (!A_MN && !B_MN), "operands that do not have 16 bits are k-major");
    static_assert(SCALED || !GATHER, "scales are what is gathered");
    static_assert(!SCALED || GATE != Gate::HALVES, "scales of columns are of one run of them");
    static_assert(BN / GATES % SLAB_COLUMNS == 0 && SLAB_COLUMNS % 32 == 0, "sums are read 32 columns at a time");
    static_assert(SHARED <= 232448, "shared memory of a block");
};

struct Params {
    Tiles tiles;
    // 0 if one matrix serves the whole batch.
    u32 a_batched, b_batched;
    // Products of 32 bytes along k; tiles of scales along the rows of one A, and the columns of one B.
    u32 steps, a_tiles, b_tiles;
    // Of scales that are gathered: words in a row, and where they are.
    u32 words;
    u64 a_scales, b_scales;
    Epilogue epilogue;
};

// The ring of stages as one role sees it.
struct Ring {
    u32 base;
    u32 stage = 0, parity = 0;

    KP_FN u32 full() const { return base + Config::BARRIERS + stage * 8; }
    KP_FN u32 empty() const { return full() + Config::STAGES * 8; }
    KP_FN u32 a() const { return base + stage * Config::STAGE; }
    KP_FN u32 b() const { return a() + Config::A_BYTES; }
    KP_FN u32 a_scales() const { return base + Config::SCALES_AT + stage * (Config::A_SCALES + Config::B_SCALES); }
    KP_FN u32 b_scales() const { return a_scales() + Config::A_SCALES; }
    KP_FN void step() {
        if (++stage == Config::STAGES) stage = 0, parity ^= 1;
    }
};

// The tiles of sums in TMEM as one role sees them.
struct Sums {
    u32 base;
    u32 slot = 0, parity = 0;

    KP_FN u32 done() const { return base + Config::BARRIERS + (2 * Config::STAGES + slot) * 8; }
    KP_FN u32 free() const { return done() + Config::SUMS * 8; }
    // Where TMEM's address is kept.
    KP_FN u32 address() const { return base + Config::BARRIERS + (2 * Config::STAGES + 2 * Config::SUMS) * 8; }
    KP_FN void step() {
        if (++slot == Config::SUMS) slot = 0, parity ^= 1;
    }
};

KP_FN Schedule schedule(const Params &p) { return Schedule(p.tiles, blockIdx.x / Config::PAIR, gridDim.x / Config::PAIR); }

// Where column `c` of tile `n` lies in A·B.
KP_FN u32 column(const Params &p, u32 n, u32 c) {
    if (Config::GATE != Gate::HALVES) return n * Config::BN + c;
    constexpr u32 HALF = Config::BN / 2;
    return n * HALF + (c < HALF ? c : p.epilogue.n / 2 + c - HALF);
}

KP_FN void load_box(u32 to, const TensorMap *map, u32 bar, i32 x, i32 y, i32 z) {
    if (Config::PAIR == 2) ptx::load_box_pair(to, map, bar, x, y, z, ptx::KEEP_NORMAL);
    else ptx::load_box(to, map, bar, x, y, z, ptx::KEEP_NORMAL);
}

// The copying thread of each block.
KP_FN void load(const Params &p, const TensorMap *a, const TensorMap *b, const TensorMap *a_scale, const TensorMap *b_scale, Ring ring, u32 rank) {
    Schedule tiles = schedule(p);
    Item item;
    while (tiles.next(item)) {
        u32 m = item.m * Config::PAIR + rank, a_batch = p.a_batched ? item.batch : 0, b_batch = p.b_batched ? item.batch : 0;
        for (u32 k = 0; k < p.tiles.k; k++, ring.step()) {
            ptx::mbarrier_wait(ring.empty(), ring.parity ^ 1);
            if (rank == 0) ptx::mbarrier_expect(ring.full(), Config::LOADED);
            u32 full = Config::PAIR == 2 ? ptx::in_block(ring.full(), 0) : ring.full();
            i32 along = k * Config::BK / (Config::BITS == 4 ? 2 : 1); // pairs of 4-bit elements are bytes to the map
#pragma unroll
            for (int i = 0; i < Config::A_BOXES; i++) {
                i32 row = m * Config::BM + i * (Config::BM / Config::A_BOXES);
                load_box(ring.a() + i * (Config::A_BYTES / Config::A_BOXES), a, full, Config::A_MN ? row : along, Config::A_MN ? along : row, a_batch);
            }
#pragma unroll
            for (int i = 0; i < Config::B_BOXES; i++) {
                i32 row = column(p, item.n, rank * Config::B_ROWS + i * (Config::B_ROWS / Config::B_BOXES));
                load_box(ring.b() + i * (Config::B_BYTES / Config::B_BOXES), b, full, Config::B_MN ? row : along, Config::B_MN ? along : row, b_batch);
            }
            if constexpr (Config::SCALED && !Config::GATHER) {
                // All columns' scales are needed by both blocks, since each multiplies its rows by all of B: the tiles that have them.
                load_box(ring.a_scales(), a_scale, full, 0, k * Config::SCALES, a_batch * p.a_tiles + m);
                load_box(ring.b_scales(), b_scale, full, 0, k * Config::SCALES, b_batch * p.b_tiles + item.n * Config::BN / 128);
            }
        }
    }
    // A block's barriers outlive what the other's products have yet to tell them.
    if (Config::PAIR == 2)
        for (int i = 0; i < Config::STAGES; i++, ring.step()) ptx::mbarrier_wait(ring.empty(), ring.parity ^ 1);
}

// Starts copying the words `word` and up, SCALES of them, of 128 TILES rows from `row` on to tiles; lanes have rows 32 apart, which are
// neighbours in a tile. What does not exist is 0.
template <int TILES> KP_FN void gather_words(u32 to, u64 scales, u32 rows, u32 batch, u32 row, u32 words, u32 word) {
    u32 lane = ptx::lane();
#pragma unroll
    for (int i = 0; i < 4 * TILES; i++) {
        u32 r = row + 32 * i + lane;
        u64 from = scales + ((u64)batch * rows + r) * words * 4;
#pragma unroll
        for (int w = 0; w < Config::SCALES; w++) {
            bool exists = r < rows && word + w < words;
            ptx::copy_word(to + (i / 4 * Config::SCALES + w) * Config::SCALE_TILE + lane * 16 + i % 4 * 4, exists ? from + (word + w) * 4 : scales, exists);
        }
    }
}

// The gathering warp. A stage is told to be full when its words have come, while those of AHEAD later ones are on their way.
KP_FN void gather(const Params &p, Ring ring, u32 rank) {
    constexpr int AHEAD = Config::STAGES / 2;
    Ring arrived = ring;
    auto tell = [&] {
        // Plain copies become visible to the matrix unit's.
        ptx::fence_async_shared();
        __syncwarp();
        if (ptx::elect()) {
            if (Config::PAIR == 2) ptx::mbarrier_arrive_at(arrived.full(), 0);
            else ptx::mbarrier_arrive(arrived.full());
        }
        arrived.step();
    };
    Schedule tiles = schedule(p);
    Item item;
    u32 under_way = 0;
    while (tiles.next(item)) {
        u32 m = item.m * Config::PAIR + rank, a_batch = p.a_batched ? item.batch : 0, b_batch = p.b_batched ? item.batch : 0;
        for (u32 k = 0; k < p.tiles.k; k++, ring.step()) {
            ptx::mbarrier_wait(ring.empty(), ring.parity ^ 1);
            gather_words<1>(ring.a_scales(), p.a_scales, p.epilogue.m, a_batch, m * Config::BM, p.words, k * Config::SCALES);
            gather_words<Config::B_TILES>(ring.b_scales(), p.b_scales, p.epilogue.n, b_batch, item.n * Config::BN & ~127u, p.words, k * Config::SCALES);
            ptx::copy_commit();
            if (under_way < AHEAD) under_way++;
            else ptx::copy_wait<AHEAD>(), tell();
        }
    }
    ptx::copy_wait<0>();
    for (; under_way > 0; under_way--) tell();
}

// The bits of a descriptor that say where.
KP_FN u64 at(u32 smem) { return (smem & 0x3ffff) >> 4; }

// Brings the scales of a stage to TMEM: a tile of 4 along k takes 4 columns for each 128 rows.
template <int TILES> KP_FN void copy_scales(u32 tmem, u32 smem) {
#pragma unroll
    for (int row = 0; row < TILES; row++)
#pragma unroll
        for (int k = 0; k < Config::SCALES; k++)
            tcgen05::copy_scales<Config::PAIR>(tmem + (k * TILES + row) * 4,
                                               KP_SCALE_DESCRIPTOR | at(smem + (row * Config::SCALES + k) * Config::SCALE_TILE));
}

// The multiplying thread, of rank 0.
KP_FN void multiply(const Params &p, Ring ring, Sums sums, u32 tmem) {
    // Units of 16 bytes from one product's operands to the next: 32 bytes within a row, or 16 rows of 128 bytes.
    constexpr u32 A_STEP = Config::A_MN ? 128 : 2, B_STEP = Config::B_MN ? 128 : 2;
    Schedule tiles = schedule(p);
    Item item;
    for (; tiles.next(item); sums.step()) {
        ptx::mbarrier_wait_relaxed(sums.free(), sums.parity ^ 1);
        tcgen05::fence_after();
        u32 d = tmem + sums.slot * Config::BN;
        // Columns of the first tile of scales that belong to the tile of D before.
        u32 before = item.n * Config::BN % 128 / 32;
        for (u32 k = 0; k < p.tiles.k; k++, ring.step()) {
            ptx::mbarrier_wait(ring.full(), ring.parity);
            tcgen05::fence_after();
            u64 a = KP_A_DESCRIPTOR | at(ring.a()), b = KP_B_DESCRIPTOR | at(ring.b());
            u32 a_scales = tmem + Config::SUMS * Config::BN + ring.stage * Config::SCALE_COLUMNS, b_scales = a_scales + Config::SCALES * 4;
            if constexpr (Config::SCALED) {
                copy_scales<1>(a_scales, ring.a_scales());
                copy_scales<Config::B_TILES>(b_scales, ring.b_scales());
            }
#pragma unroll
            for (int step = 0; step < Config::STEPS; step++) {
                // Past k there may be no scales, and what is in their place may be NaN.
                if (k * Config::STEPS + step >= p.steps) break;
                u32 accumulate = k * Config::STEPS + step;
                if constexpr (Config::SCALED) {
                    // The tile of 4 scales, and the first of them, that this product needs.
                    constexpr int S = Config::SCALES;
                    u32 tile = step * S / 4, first = step * S % 4;
                    tcgen05::mma<Config::PAIR, Config::KIND>(d, a + step * A_STEP, b + step * B_STEP, KP_INSTRUCTION | first << 29 | first << 4, accumulate,
                                                             a_scales + tile * 4, b_scales + tile * Config::B_TILES * 4 + before);
                } else {
                    tcgen05::mma<Config::PAIR, Config::KIND>(d, a + step * A_STEP, b + step * B_STEP, KP_INSTRUCTION, accumulate);
                }
            }
            tcgen05::commit<Config::PAIR>(ring.empty());
        }
        tcgen05::commit<Config::PAIR>(sums.done());
    }
    // As the copying thread does, for what the other block's warps have yet to tell.
    if (Config::PAIR == 2)
        for (int i = 0; i < Config::SUMS; i++, sums.step()) ptx::mbarrier_wait_relaxed(sums.free(), sums.parity ^ 1);
}

// Finishes 16 rows of a slab, from its row `first` on, and writes them to shared memory.
template <int N>
KP_FN void put(const Config::Out &out, const float (&d)[N], const float (&scale)[2], float divided, u32 slab, u32 row, u32 first, u32 corner, u32 batch) {
    using Out = Config::Out;
    u32 lane = ptx::lane();
#pragma unroll
    for (int i = 0; i < Config::SLAB_COLUMNS / 8; i += 2) {
        auto columns = out.columns(corner, i / Out::CHUNK);
        float2 y[2][2];
#pragma unroll
        for (int g = 0; g < 2; g++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                y[g][h] = out.result(d, i + g, h, (i64)row + first + lane / 4 + 8 * h, corner, corner + (i + g) * 8 + 2 * (lane % 4), batch, scale[h],
                                     columns);
        if constexpr (Out::SIZE == 2) {
            ptx::store_matrices(slab + Out::place(first + lane % 16, i * 16 + lane / 16 * 16), pack<Config::D>(y[0][0].x, y[0][0].y),
                                pack<Config::D>(y[0][1].x, y[0][1].y), pack<Config::D>(y[1][0].x, y[1][0].y),
                                pack<Config::D>(y[1][1].x, y[1][1].y));
        } else {
#pragma unroll
            for (int g = 0; g < 2; g++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    u32 to = slab + Out::place(first + lane / 4 + 8 * h, ((i + g) * 8 + 2 * (lane % 4)) * Out::SIZE);
                    if constexpr (Out::SIZE == 4) ptx::store_shared(to, y[g][h].x, y[g][h].y);
                    else ptx::store_shared(to, (u16)pack<Config::D>(y[g][h].x * divided, y[g][h].y * divided));
                }
        }
    }
}

// The storing warpgroup: 128 rows of each tile.
KP_FN void store(const Params &p, const TensorMap *map, Sums sums, u32 tmem, u32 rank) {
    using Out = Config::Out;
    constexpr int COLUMNS = Config::SLAB_COLUMNS, LOADS = Config::GATES * COLUMNS / 32;
    const Epilogue &e = p.epilogue;
    u32 thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32, barrier = 1;
    Out out{e, map, 0, barrier, thread, 0};
    float alpha = out.alpha, divided = out.divided;
    u32 free = Config::PAIR == 2 ? ptx::in_block(sums.free(), 0) : sums.free();
    u32 slabs = sums.base + Config::SLABS_AT, buffer = 0;
    Schedule tiles = schedule(p);
    Item item;
    for (; tiles.next(item); sums.step()) {
        u32 row = (item.m * Config::PAIR + rank) * Config::BM, corner = item.n * (Config::BN / Config::GATES);
        float scale[2][2];
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                scale[half][h] = alpha;
                if constexpr (Config::SCALE == Scale::ROW) {
                    u32 r = row + 32 * warp + 16 * half + lane / 4 + 8 * h;
                    if (r < e.m) scale[half][h] *= ((const float *)e.a_scale)[r];
                }
            }
        ptx::mbarrier_wait_relaxed(sums.done(), sums.parity);
        tcgen05::fence_after();
#pragma unroll 1
        for (int slab = 0; slab < Config::SLABS; slab++) {
            // Of a gate by halves, each slab is of the same columns of both.
            u32 from = tmem + sums.slot * Config::BN + slab * (Config::GATE == Gate::PAIRS ? 2 : 1) * COLUMNS + (32 * warp << 16);
            u32 base = slabs + buffer * Config::SLAB, left = corner + slab * COLUMNS;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float d[LOADS * 16];
#pragma unroll
                for (int i = 0; i < LOADS; i++) {
                    bool second = Config::GATE == Gate::HALVES && i >= LOADS / 2;
                    tcgen05::load(d + 16 * i, from + (16 * half << 16) + (second ? Config::BN / 2 + 32 * (i - LOADS / 2) : 32 * i));
                }
                tcgen05::wait_loads();
                if (half == 1 && slab == Config::SLABS - 1) {
                    tcgen05::fence_before();
                    __syncwarp();
                    if (ptx::elect()) ptx::mbarrier_arrive_relaxed(free + sums.slot * 8);
                }
                put(out, d, scale[half], divided, base, row, 32 * warp + 16 * half, left, item.batch);
            }
            ptx::fence_async_shared();
            // The barrier tells that this slab is written and that the next one is free.
            if (thread == 0) ptx::store_wait_read<Config::BUFFERS - 2>();
            ptx::sync_threads(barrier, 128);
            if (thread == 0) {
                ptx::store_box(map, base, left, row, item.batch);
                ptx::store_commit();
            }
            buffer ^= 1;
        }
    }
    if (thread == 0) ptx::store_wait_read<0>();
}

extern "C" __global__ void __launch_bounds__(256, 1)
    gemm(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap a_scale,
         const __grid_constant__ TensorMap b_scale, const __grid_constant__ TensorMap d, const __grid_constant__ Params p) {
    extern __shared__ u8 shared[];
    Ring ring{(ptx::smem_address(shared) + 1023) & ~1023u};
    Sums sums{ring.base};
    u32 warp = ptx::warp(), rank = Config::PAIR == 2 ? ptx::cluster_rank() : 0;
    if (warp == 0 && ptx::elect()) {
        ptx::prefetch_map(&a), ptx::prefetch_map(&b), ptx::prefetch_map(&d);
        if (Config::SCALED && !Config::GATHER) ptx::prefetch_map(&a_scale), ptx::prefetch_map(&b_scale);
        for (Ring r = ring; r.parity == 0; r.step()) {
            ptx::mbarrier_init(r.full(), Config::GATHER ? 1 + Config::PAIR : 1);
            ptx::mbarrier_init(r.empty(), 1);
        }
        for (Sums s = sums; s.parity == 0; s.step()) ptx::mbarrier_init(s.done(), 1), ptx::mbarrier_init(s.free(), 4 * Config::PAIR);
        ptx::mbarrier_init_fence();
    }
    __syncwarp();
    // The next kernel waits for this one before it touches memory, however early it starts.
    ptx::allow_next_kernel();
    if (Config::PAIR == 2) ptx::cluster_sync_relaxed();
    else __syncthreads();

    // Both blocks of a pair are there now, as they must be to allocate. Copies do not wait for it.
    constexpr u32 ALLOCATED = 2;
    if (warp == 1) {
        tcgen05::allocate<Config::PAIR>(sums.address(), Config::COLUMNS);
        ptx::sync_threads(ALLOCATED, 160);
    } else if (warp >= 4) ptx::sync_threads(ALLOCATED, 160);
    ptx::wait_for_previous_kernel();

    u32 tmem = 0;
    if (warp == 1 || warp >= 4) tmem = ptx::load_shared_word(sums.address());
    if (warp == 0 && ptx::elect()) load(p, &a, &b, &a_scale, &b_scale, ring, rank);
    if (warp == 1 && rank == 0 && ptx::elect()) multiply(p, ring, sums, tmem);
    if (Config::GATHER && warp == 2) gather(p, ring, rank);
    if (warp >= 4) store(p, &d, sums, tmem, rank);
    __syncwarp();

    // Memory is freed when all warps, and those of the other block, have read it.
    tcgen05::fence_before();
    if (Config::PAIR == 2) ptx::cluster_sync_relaxed();
    else __syncthreads();
    if (warp == 1) {
        tcgen05::fence_after();
        tcgen05::release<Config::PAIR>(tmem, Config::COLUMNS);
    }
}

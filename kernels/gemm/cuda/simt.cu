// D = A·B for every form of the op, on the ordinary arithmetic units.
//
//            BN                 A thread block takes one BM × BN tile of D and walks k in steps of BK. Codes become
//        ┌────┬────┐            numbers on their way to shared memory, where both operands lie as [k][outer]; four
//   BM   │ t  │ t  │ MS · SM    elements of one run are a chunk, and chunks of different k are swapped about so that
//        ├────┼────┤            writing and reading are free of bank conflicts. A thread sums MS × NS pieces of
//        │ t  │ t  │            SM × SN, spread over the tile. Plain numbers of the next step are loaded before the
//        └────┴────┘            sums of this one; other codes after them, while other warps still multiply.
//         NS · SN
//
// Sums are kept in SUM (one multiply-add per element, k ascending, whatever the tile: a row's bits depend on nothing
// else), what follows in FINISH. With `Gate::Halves` the left half of a tile holds columns of g, the right half theirs of u.
//
// Defines: SUM and FINISH (`float`, `double`, SUM also `int`), PLAIN (1: dense f32 rows or columns without scales),
// TILE (0 large, 1 medium, 2 for few rows).
// Entry: simt(Params). Grid: up to `tiles` blocks of THREADS; static shared memory only. Limits: none.
#include "gemm/cuda/simt.cuh"

template <int BM_, int BN_, int BK_, int TY_, int TX_, int MS_, int NS_, int RESIDENT_ = 1>
struct Tile {
    static constexpr int BM = BM_, BN = BN_, BK = BK_, TY = TY_, TX = TX_, MS = MS_, NS = NS_, RESIDENT = RESIDENT_;
    static constexpr int THREADS = TX * TY, SM = BM / TY / MS, SN = BN / TX / NS;
};
template <int NUMBER_BYTES, int INDEX> struct TileOf;
#if PLAIN
// A unit's shared memory returns 32 numbers a cycle and its arithmetic takes 128 products, so that 8 × 8 sums a thread would
// make both equally busy; 16 × 8 leave shared memory a quarter of its time.
template <> struct TileOf<4, 0> { typedef Tile<256, 128, 8, 16, 16, 4, 2> T; };
#else
// Two blocks at a time, one of which loads while the other multiplies.
template <> struct TileOf<4, 0> { typedef Tile<128, 128, 8, 16, 16, 2, 2, 2> T; };
#endif
template <> struct TileOf<4, 1> { typedef Tile<64, 64, 16, 8, 16, 2, 2> T; };
template <> struct TileOf<4, 2> { typedef Tile<16, 32, 64, 16, 8, 1, 2> T; };
template <> struct TileOf<8, 0> { typedef Tile<64, 128, 16, 16, 16, 2, 2, 2> T; };
template <> struct TileOf<8, 1> { typedef Tile<64, 64, 16, 8, 16, 2, 2> T; };
template <> struct TileOf<8, 2> { typedef Tile<16, 32, 32, 16, 8, 1, 2> T; };

typedef SUM R;
typedef FINISH E;
typedef TileOf<sizeof(R), TILE>::T T;

/// Whether sums are of whole numbers; scales then wait for their end.
constexpr bool WHOLE = (R)0.5f == (R)0, SCALES_LAST = WHOLE;

template <class N, int COUNT> struct alignas(sizeof(N) * COUNT) Run { N x[COUNT]; };
template <bool WIDE> struct BitsOf { typedef u32 Word; };
template <> struct BitsOf<true> { typedef u64 Word; };
/// Holds one code of whatever the sums are of.
typedef BitsOf<sizeof(R) == 8>::Word Word;

#include "gemm/cuda/simt_finish.cuh"

// --- loading ---------------------------------------------------------------------------------------------------------

/// Where outer row `outer` lies in line `k` of a tile of WIDTH: a warp that stores chunks along k fills each bank once.
template <int WIDTH>
__device__ __forceinline__ int swapped(int outer, int k) {
    constexpr int PER_WARP = T::BK == 8 ? 16 : 8;
    return WIDTH < 32 ? outer : outer ^ k / 4 % (32 / PER_WARP) * PER_WARP;
}

/// Four elements of a tile: those of one outer row, or of one k.
struct Chunk {
    /// Place in the tile.
    int outer, k;
    /// Place in the operand, and how many outer rows from there on exist.
    u32 o, some;
};

/// Loads tiles of WIDTH outer rows of one operand.
template <int WIDTH>
struct Loader {
    static constexpr int COUNT = WIDTH * T::BK / 4 / T::THREADS;
    static_assert(WIDTH * T::BK % (4 * T::THREADS) == 0, "whole chunks for every thread");

    const Operand &s;
    u64 matrix, scales;
    u32 batch;
    /// The first outer row of each half of the tile, and how many exist from there on.
    u32 first[2], some[2];

    __device__ __forceinline__ Loader(const Operand &s, u32 batch, const u32 (&first_)[2], const u32 (&some_)[2])
        : s(s), matrix(batch * s.stride), scales(batch * s.scale_stride), batch(batch) {
        for (int h = 0; h < 2; ++h) first[h] = first_[h], some[h] = some_[h];
    }

    __device__ __forceinline__ Chunk chunk(int i) const {
        int at = threadIdx.x + i * T::THREADS;
        Chunk c;
        if (s.form == Form::Outer) {
            c.outer = at % (WIDTH / 4) * 4;
            c.k = at / (WIDTH / 4);
        } else {
            c.outer = at / (T::BK / 4);
            c.k = at % (T::BK / 4) * 4;
        }
        int half = c.outer >= WIDTH / 2, in_half = c.outer - half * (WIDTH / 2);
        u32 there = half ? some[1] : some[0];
        c.o = (half ? first[1] : first[0]) + in_half;
        c.some = there > in_half ? there - in_half : 0;
        return c;
    }

    /// Elements of a chunk from (`c`, inner `i`) on that exist.
    __device__ __forceinline__ u32 length(const Chunk &c, u32 i) const {
        if (i >= s.inner || c.some == 0) return 0;
        return min(s.form == Form::Outer ? c.some : s.inner - i, 4u);
    }

    __device__ __forceinline__ u64 place(const Chunk &c, u32 i) const {
        return matrix + (s.form == Form::Outer ? (u64)i * s.ld + c.o : (u64)c.o * s.ld + i);
    }

#if PLAIN
    /// Where each chunk of the next step begins, its place in a tile, and how many of its outer rows exist, at most four.
    const float *source[COUNT];
    int target[COUNT];
    u32 present[COUNT];
    /// Elements from one step to the next, and the end of the steps of which every chunk is whole and aligned.
    u64 step;
    u32 whole;
    R waiting[COUNT][4];

    /// Must be called before the first step is loaded.
    __device__ __forceinline__ void start() {
        bool outer = s.form == Form::Outer, is_whole = s.vector;
        step = outer ? (u64)s.ld * T::BK : T::BK;
#pragma unroll
        for (int n = 0; n < COUNT; ++n) {
            Chunk c = chunk(n);
            source[n] = static_cast<const float *>(s.codes) + place(c, c.k);
            target[n] = c.k * WIDTH + swapped<WIDTH>(c.outer, c.k);
            present[n] = min(c.some, 4u);
            is_whole &= present[n] == 4 || (!outer && present[n] != 0);
        }
        whole = is_whole ? s.inner / T::BK * T::BK : 0;
    }

    /// Starts loading the step at `k0`, which follows the last one.
    __device__ __forceinline__ void load(u32 k0) {
        if (k0 < whole) {
#pragma unroll
            for (int n = 0; n < COUNT; ++n) {
                float4 x = *reinterpret_cast<const float4 *>(source[n]);
                waiting[n][0] = x.x, waiting[n][1] = x.y, waiting[n][2] = x.z, waiting[n][3] = x.w;
                source[n] += step;
            }
            return;
        }
        bool outer = s.form == Form::Outer;
#pragma unroll
        for (int n = 0; n < COUNT; ++n) {
            u32 i = k0 + chunk(n).k, left = i < s.inner ? s.inner - i : 0;
            u32 length = left == 0 || present[n] == 0 ? 0 : outer ? present[n] : min(left, 4u);
#pragma unroll
            for (u32 e = 0; e < 4; ++e) waiting[n][e] = e < length ? source[n][e] : 0.0f;
            source[n] += step;
        }
    }

    /// Moves what was loaded to `tile`.
    __device__ __forceinline__ void store(u32, R (*tile)[WIDTH]) const {
        R *to = &tile[0][0];
        if (s.form == Form::Outer) {
#pragma unroll
            for (int n = 0; n < COUNT; ++n)
                *reinterpret_cast<float4 *>(to + target[n]) =
                    make_float4(waiting[n][0], waiting[n][1], waiting[n][2], waiting[n][3]);
        } else {
#pragma unroll
            for (int n = 0; n < COUNT; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) to[target[n] + e * WIDTH] = waiting[n][e];
        }
    }
#else
    /// Nothing: a step is loaded and unpacked at once, and other warps multiply meanwhile.
    __device__ __forceinline__ void start() {}
    __device__ __forceinline__ void load(u32) {}

    __device__ __forceinline__ void put(const Chunk &c, const R (&x)[4], R (*tile)[WIDTH]) const {
        if (s.form == Form::Outer) {
            Run<R, 4> &run = *reinterpret_cast<Run<R, 4> *>(&tile[c.k][swapped<WIDTH>(c.outer, c.k)]);
#pragma unroll
            for (int e = 0; e < 4; ++e) run.x[e] = x[e];
        } else {
#pragma unroll
            for (int e = 0; e < 4; ++e) tile[c.k + e][swapped<WIDTH>(c.outer, c.k)] = x[e];
        }
    }

    /// Loads the step at `k0` and unpacks it to `tile`.
    __device__ __forceinline__ void store(u32 k0, R (*tile)[WIDTH]) const {
#pragma unroll 1
        for (int n = 0; n < COUNT; ++n) {
            Chunk c = chunk(n);
            u32 i = k0 + c.k, length = this->length(c, i), present = (1u << length) - 1;
            Word codes[4] = {0, 0, 0, 0};
            R x[4];
            if (s.form == Form::Sparse && length != 0) {
                u64 row = matrix + (u64)c.o * s.ld, meta = ((u64)batch * s.outer + c.o) * (s.inner / 8);
                u32 positions = s.meta[meta + i / 8] >> i % 8, low = positions & 3, high = positions >> 2 & 3;
                Word kept[2] = {code(row + i / 2), code(row + i / 2 + 1)};
#pragma unroll
                for (u32 e = 0; e < 4; ++e) codes[e] = e == low ? kept[0] : kept[1];
                present = 1u << low | 1u << high;
            } else if (s.form == Form::Panel || !s.vector || length < 4) {
#pragma unroll
                for (u32 e = 0; e < 4; ++e)
                    if (e < length) codes[e] = code(s.form == Form::Panel ? panel_place(c.o, i + e) : place(c, i) + e);
            } else {
                run(place(c, i), codes);
            }
            values(codes, x);
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                bool outer = s.form == Form::Outer, is_present = present >> e & 1;
                if (s.scales != nullptr && is_present) x[e] = scaled(x[e], outer ? c.o + e : c.o, outer ? i : i + e);
                // What is missing is 0, whatever the code 0 means.
                x[e] = is_present ? x[e] : (R)0;
            }
            put(c, x, tile);
        }
    }

    /// Index of element (`o`, `i`) of panels.
    __device__ __forceinline__ u64 panel_place(u32 o, u32 i) const {
        u64 width = s.panel_width, depth = s.panel_depth;
        u64 panel = (s.inner + depth - 1) / depth * depth * width;
        return matrix + o / s.panel_width * panel + i / s.panel_depth * depth * width + o % s.panel_width * depth + i % s.panel_depth;
    }

    __device__ __forceinline__ Word code(u64 at) const {
        switch (bits_of(s.dtype)) {
        case 4: return static_cast<const u8 *>(s.codes)[at / 2] >> (at % 2 * 4) & 15;
        case 8: return static_cast<const u8 *>(s.codes)[at];
        case 16: return static_cast<const u16 *>(s.codes)[at];
        case 32: return static_cast<const u32 *>(s.codes)[at];
        default: return (Word) static_cast<const u64 *>(s.codes)[at];
        }
    }

    /// Four codes from `at` on.
    __device__ __forceinline__ void run(u64 at, Word (&x)[4]) const {
        u32 bits = bits_of(s.dtype);
        const u8 *source = static_cast<const u8 *>(s.codes) + at * bits / 8;
        switch (bits) {
        case 4: {
            u32 w = *reinterpret_cast<const u16 *>(source);
            x[0] = w & 15, x[1] = w >> 4 & 15, x[2] = w >> 8 & 15, x[3] = w >> 12;
            break;
        }
        case 8: {
            u32 w = *reinterpret_cast<const u32 *>(source);
            x[0] = w & 255, x[1] = w >> 8 & 255, x[2] = w >> 16 & 255, x[3] = w >> 24;
            break;
        }
        case 16: {
            uint2 w = *reinterpret_cast<const uint2 *>(source);
            x[0] = w.x & 0xffff, x[1] = w.x >> 16, x[2] = w.y & 0xffff, x[3] = w.y >> 16;
            break;
        }
        case 32: {
            uint4 w = *reinterpret_cast<const uint4 *>(source);
            x[0] = w.x, x[1] = w.y, x[2] = w.z, x[3] = w.w;
            break;
        }
        default: {
            ulonglong2 low = reinterpret_cast<const ulonglong2 *>(source)[0];
            ulonglong2 high = reinterpret_cast<const ulonglong2 *>(source)[1];
            x[0] = (Word)low.x, x[1] = (Word)low.y, x[2] = (Word)high.x, x[3] = (Word)high.y;
        }
        }
    }

    /// The numbers of four codes.
    __device__ __forceinline__ void values(const Word (&codes)[4], R (&x)[4]) const {
        if constexpr (sizeof(R) == 8) {
            if (s.dtype == DType::F64) {
#pragma unroll
                for (int e = 0; e < 4; ++e) x[e] = __longlong_as_double((i64)codes[e]);
                return;
            }
        }
        u32 narrow[4] = {(u32)codes[0], (u32)codes[1], (u32)codes[2], (u32)codes[3]};
        decode_run<R>(s.dtype, narrow, x);
    }

    /// `x` less its zero point, and times its scale unless sums are whole.
    __device__ __forceinline__ R scaled(R x, u32 o, u32 i) const {
        u64 at = scales + scale_place(o / s.block_outer, i / s.block_inner, s.scale_outer, s.scale_inner, s.inner_blocks);
        if (s.zeros) x -= (R)s.zeros[at];
        if constexpr (WHOLE) return x;
        R scale = scale_number<R>(s.scale_dtype, s.scales, at);
        return x * (s.global ? scale * (R)*s.global : scale);
    }
#endif
};

// --- summing ---------------------------------------------------------------------------------------------------------

/// Loads a piece of COUNT neighbours.
template <int COUNT>
__device__ __forceinline__ void piece(const R *from, R *to) {
    // 16 bytes at a time at most.
    constexpr int AT_ONCE = COUNT * sizeof(R) > 16 ? 16 / sizeof(R) : COUNT;
#pragma unroll
    for (int i = 0; i < COUNT; i += AT_ONCE) {
        Run<R, AT_ONCE> run = *reinterpret_cast<const Run<R, AT_ONCE> *>(from + i);
#pragma unroll
        for (int e = 0; e < AT_ONCE; ++e) to[i + e] = run.x[e];
    }
}

struct Tiles {
    R a[T::BK][T::BM];
    R b[T::BK][T::BN];
};

/// Shared memory: two steps, and afterwards a part of the sums.
union Room {
    Tiles tiles[2];
    R finished[T::BM / T::MS][T::BN];
};

__device__ __forceinline__ void multiply(const Tiles &s, int ty, int tx, R (&sums)[T::MS * T::SM][T::NS * T::SN]) {
#pragma unroll
    for (int k = 0; k < T::BK; ++k) {
        R a[T::MS * T::SM], b[T::NS * T::SN];
#pragma unroll
        for (int h = 0; h < T::MS; ++h)
            piece<T::SM>(&s.a[k][swapped<T::BM>(h * (T::BM / T::MS) + ty * T::SM, k)], a + h * T::SM);
#pragma unroll
        for (int h = 0; h < T::NS; ++h)
            piece<T::SN>(&s.b[k][swapped<T::BN>(h * (T::BN / T::NS) + tx * T::SN, k)], b + h * T::SN);
#pragma unroll
        for (int i = 0; i < T::MS * T::SM; ++i)
#pragma unroll
            for (int j = 0; j < T::NS * T::SN; ++j) sums[i][j] += a[i] * b[j];
    }
}

extern "C" __global__ void __launch_bounds__(T::THREADS, T::RESIDENT)
simt(const __grid_constant__ Params p) {
    __shared__ __align__(16) Room room;
    Tiles *tiles = room.tiles;
    // A warp covers 4 × 8 threads, so that it reads few different pieces of both operands.
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    constexpr int WARPS_X = T::TX / 8;
    int ty = warp / WARPS_X * 4 + lane / 8, tx = warp % WARPS_X * 8 + lane % 8;
    for (u64 t = blockIdx.x; t < p.tiles; t += gridDim.x) {
        Item item;
        if (!find(p, t, item)) continue;
        R sums[T::MS * T::SM][T::NS * T::SN];
#pragma unroll
        for (int i = 0; i < T::MS * T::SM; ++i)
#pragma unroll
            for (int j = 0; j < T::NS * T::SN; ++j) sums[i][j] = (R)0;
        u32 rows[2] = {item.row, item.row + T::BM / 2};
        u32 some[2] = {item.rows, item.rows > T::BM / 2 ? item.rows - T::BM / 2 : 0};
        Loader<T::BM> a(p.a, item.row_batch, rows, some);
        Loader<T::BN> b(p.b, item.b, item.col, item.cols);
        if (p.k > 0) {
            a.start(), b.start();
            a.load(0), b.load(0);
            a.store(0, tiles[0].a), b.store(0, tiles[0].b);
        }
        __syncthreads();
        int stage = 0;
        for (u32 k = 0; k < p.k; stage ^= 1) {
            u32 next = p.k - k > T::BK ? k + T::BK : p.k;
            if (next < p.k) a.load(next), b.load(next);
            multiply(tiles[stage], ty, tx, sums);
            if (next < p.k) a.store(next, tiles[stage ^ 1].a), b.store(next, tiles[stage ^ 1].b);
            __syncthreads();
            k = next;
        }
        // By way of shared memory, so that neighbours finish neighbours and the code for it stands here once.
#pragma unroll 1
        for (int h = 0; h < T::MS; ++h) {
#pragma unroll
            for (int i = 0; i < T::MS * T::SM; ++i) {
                if (i / T::SM != h) continue;
#pragma unroll
                for (int j = 0; j < T::NS * T::SN; ++j)
                    room.finished[ty * T::SM + i % T::SM][j / T::SN * (T::BN / T::NS) + tx * T::SN + j % T::SN] = sums[i][j];
            }
            __syncthreads();
            finish_rows(p, item, h, room.finished);
            __syncthreads();
        }
    }
}

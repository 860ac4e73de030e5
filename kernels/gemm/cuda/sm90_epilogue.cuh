// From accumulators to D: D = store(act(scale · sum + beta · C + bias) + residual), through shared memory and the copy engine.
#pragma once
#include "common/cuda/math.cuh"
#include "gemm/cuda/sm90_schedule.cuh"

enum class Gate { NONE, HALVES, PAIRS };
// Scales of 8-bit operands: none, one number each, or one per row of A and column of B.
enum class Scale { NONE, TENSOR, ROW };

// Addresses are of device memory; 0 if there is no such operand.
struct Epilogue {
    u64 bias;              // n numbers
    u64 c;                 // m x n, rows `c_ld` apart, matrices `c_stride` apart
    u64 residual;          // laid out as D
    u64 a_scale, b_scale;  // f32
    u64 d_scale;           // one f32 that D is divided by
    i64 c_ld, c_stride;
    i64 d_ld, d_stride;
    u32 m, n;              // of the product; D has n / 2 columns if gated
    float alpha, beta;
};

// What one warpgroup stores: ROWS x COLUMNS (of the product), its tile's corner at (row, column). T has the types and `BUFFERS`.
template <class T, int ROWS, int COLUMNS> struct Store {
    static constexpr bool GATED = T::GATE != Gate::NONE;
    static constexpr int SIZE = bytes_of(T::D);
    static constexpr int OUT = GATED ? COLUMNS / 2 : COLUMNS;
    // A slab is 64 rows of `WIDTH` bytes, swizzled: what one store of the copy engine takes.
    static constexpr int WIDTH = OUT * SIZE % 128 == 0 ? 128 : OUT * SIZE % 64 == 0 ? 64 : 32;
    static constexpr int SLAB = 64 * WIDTH;
    static constexpr int SLAB_COLUMNS = WIDTH / SIZE;
    static constexpr int SLABS = OUT / SLAB_COLUMNS;
    static_assert(OUT * SIZE % 32 == 0 && SLAB_COLUMNS % 16 == 0, "rows of slabs are 32, 64 or 128 bytes, in pairs of 8 columns");

    const Epilogue &e;
    const TensorMap *map;
    u32 staging;  // BUFFERS slabs of this warpgroup
    u32 barrier;  // of this warpgroup
    u32 thread;   // in the warpgroup
    u32 buffer;   // to be written next, always free

    KP_FN static u32 place(u32 row, u32 column) {
        // The 16-byte piece's number, with the bits of the address that count rows of 128 bytes.
        return row * WIDTH + (column ^ row * WIDTH / 128 % (WIDTH / 16) * 16);
    }

    // The sum of the product at two neighbours of a row becomes X; `column` is even.
    KP_FN float2 finished(float2 x, float row_scale, i64 row, u32 column, u32 batch) const {
        bool inside = row < e.m && column < e.n, pair = column + 1 < e.n;
        float2 s = {row_scale, row_scale};
        if constexpr (T::SCALE == Scale::ROW) {
            if (column < e.n) s.x *= ((const float *)e.b_scale)[column];
            if (pair) s.y *= ((const float *)e.b_scale)[column + 1];
        }
        x.x *= s.x, x.y *= s.y;
        if constexpr (T::C != Type::NONE) {
            if (inside && e.beta != 0) {
                float2 c = both<T::C>(e.c, batch * e.c_stride + row * e.c_ld + column, pair);
                x.x += e.beta * c.x, x.y += e.beta * c.y;
            }
        }
        if constexpr (T::BIAS != Type::NONE) {
            if (column < e.n) x.x += load<T::BIAS>(e.bias, column);
            if (pair) x.y += load<T::BIAS>(e.bias, column + 1);
        }
        return x;
    }

    // Elements i and i + 1, the latter if `pair`; in one access if that is aligned.
    template <Type U> KP_FN static float2 both(u64 array, i64 i, bool pair) {
        if (pair && (array + i * bytes_of(U)) % (2 * bytes_of(U)) == 0) return load_pair<U>(array, i);
        return {load<U>(array, i), pair ? load<U>(array, i + 1) : 0};
    }

    // Two neighbours of a row of D before rounding; `i` is the first of the thread's two registers of them, `column` is D's.
    template <int N> KP_FN float2 result(const float (&d)[N], int group, int half, i64 row, u32 corner, u32 column, u32 batch,
                                         float row_scale) const {
        float2 y;
        if constexpr (T::GATE == Gate::NONE) {
            y = finished({d[4 * group + 2 * half], d[4 * group + 2 * half + 1]}, row_scale, row, column, batch);
            y = {activated<T::ACT>(y.x), activated<T::ACT>(y.y)};
        } else if constexpr (T::GATE == Gate::HALVES) {
            int u = 4 * (group + COLUMNS / 16);
            float2 g = finished({d[4 * group + 2 * half], d[4 * group + 2 * half + 1]}, row_scale, row, column, batch);
            float2 v = finished({d[u + 2 * half], d[u + 2 * half + 1]}, row_scale, row, e.n / 2 + column, batch);
            y = {activated<T::ACT>(g.x) * v.x, activated<T::ACT>(g.y) * v.y};
        } else {
            // Columns 2j and 2j + 1 of the product are this thread's, but of D it holds 4 (j / 4) + lane % 4: trade with the quad.
            u32 quad = thread % 4, mine = 2 * corner + 16 * group + 2 * quad;
            float2 p[2];
#pragma unroll
            for (int i = 0; i < 2; i++)
                p[i] = finished({d[4 * (2 * group + i) + 2 * half], d[4 * (2 * group + i) + 2 * half + 1]}, row_scale, row, mine + 8 * i,
                                batch);
            float low = activated<T::ACT>(p[0].x) * p[0].y, high = activated<T::ACT>(p[1].x) * p[1].y;
            float x0 = __shfl_sync(~0u, low, 2 * quad % 4, 4), x1 = __shfl_sync(~0u, low, 2 * quad % 4 + 1, 4);
            float y0 = __shfl_sync(~0u, high, 2 * quad % 4, 4), y1 = __shfl_sync(~0u, high, 2 * quad % 4 + 1, 4);
            y = quad < 2 ? float2{x0, x1} : float2{y0, y1};
        }
        if constexpr (T::RESIDUAL != Type::NONE) {
            u32 columns = GATED ? e.n / 2 : e.n;
            if (row < e.m && column < columns) {
                float2 r = both<T::RESIDUAL>(e.residual, batch * e.d_stride + row * e.d_ld + column, column + 1 < columns);
                y.x += r.x, y.y += r.y;
            }
        }
        return y;
    }

    // Stores 64 rows from `row` on, the columns of D from `corner` on.
    template <int N> KP_FN void rows(float (&d)[N], u32 row, u32 corner, u32 batch) {
        u32 warp = thread / 32, lane = thread % 32;
        float scale[2] = {e.alpha, e.alpha}, divided = 1;
        if constexpr (T::SCALE == Scale::TENSOR) scale[0] = scale[1] = e.alpha * *(const float *)e.a_scale * *(const float *)e.b_scale;
        if constexpr (T::D == Type::E4M3 || T::D == Type::E5M2) divided = e.d_scale ? 1 / *(const float *)e.d_scale : 1;
#pragma unroll
        for (int h = 0; h < 2; h++)
            if constexpr (T::SCALE == Scale::ROW) {
                u32 r = row + 16 * warp + lane / 4 + 8 * h;
                if (r < e.m) scale[h] *= ((const float *)e.a_scale)[r];
            }
#pragma unroll
        for (int slab = 0; slab < SLABS; slab++) {
            u32 base = staging + buffer * SLAB;
            constexpr int GROUPS = SLAB_COLUMNS / 8;
#pragma unroll
            for (int i = 0; i < GROUPS; i += 2) {
                float2 y[2][2];
#pragma unroll
                for (int g = 0; g < 2; g++)
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        y[g][h] = result(d, slab * GROUPS + i + g, h, (i64)row + 16 * warp + lane / 4 + 8 * h, corner,
                                         corner + slab * SLAB_COLUMNS + (i + g) * 8 + 2 * (lane % 4), batch, scale[h]);
                if constexpr (SIZE == 2) {
                    u32 r = 16 * warp + lane % 16, column = i * 16 + lane / 16 * 16;
                    ptx::store_matrices(base + place(r, column), pack<T::D>(y[0][0].x, y[0][0].y), pack<T::D>(y[0][1].x, y[0][1].y),
                                        pack<T::D>(y[1][0].x, y[1][0].y), pack<T::D>(y[1][1].x, y[1][1].y));
                } else {
#pragma unroll
                    for (int g = 0; g < 2; g++)
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            u32 r = 16 * warp + lane / 4 + 8 * h, column = ((i + g) * 8 + 2 * (lane % 4)) * SIZE;
                            if constexpr (SIZE == 4) ptx::store_shared(base + place(r, column), y[g][h].x, y[g][h].y);
                            else ptx::store_shared(base + place(r, column), (u16)pack<T::D>(y[g][h].x * divided, y[g][h].y * divided));
                        }
                }
            }
            ptx::fence_async_shared();
            // The barrier tells that this slab is written and that the next one is free.
            if (thread == 0) ptx::store_wait_read<T::BUFFERS - 2>();
            ptx::sync_threads(barrier, 128);
            if (thread == 0) {
                ptx::store_box(map, base, corner + slab * SLAB_COLUMNS, row, batch);
                ptx::store_commit();
            }
            buffer = buffer + 1 == T::BUFFERS ? 0 : buffer + 1;
        }
    }
};

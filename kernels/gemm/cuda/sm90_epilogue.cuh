// From accumulators to D: D = store(act(scale · sum + beta · C + bias) + residual), through shared memory and the copy engine.
#pragma once
#include "common/cuda/math.cuh"
#include "gemm/cuda/sm90_schedule.cuh"

enum class Gate { NONE, HALVES, PAIRS };
// Scales of 8-bit operands: none, one number each, one per row of A and column of B, or for every 128 of k, which the sums already have.
enum class Scale { NONE, TENSOR, ROW, BLOCKS };

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
    u32 fetched;  // what `fetch` brings, `FETCHED` bytes of this warpgroup
    float alpha;  // with the scales of whole tensors
    float divided = 1;

    // Of a tile: scales of its rows, if each has one, then of its columns, then their bias.
    static constexpr int ROW_SCALES = T::SCALE == Scale::ROW ? ROWS * 4 : 0, SCALES = T::SCALE == Scale::ROW ? (ROWS + COLUMNS) * 4 : 0;
    static constexpr int FETCHED = SCALES + (T::BIAS == Type::NONE ? 0 : COLUMNS * bytes_of(T::BIAS));

    KP_FN Store(const Epilogue &e, const TensorMap *map, u32 staging, u32 barrier, u32 thread, u32 fetched)
        : e(e), map(map), staging(staging), barrier(barrier), thread(thread), buffer(0), fetched(fetched), alpha(e.alpha) {
        if constexpr (T::SCALE == Scale::TENSOR) alpha *= *(const float *)e.a_scale * *(const float *)e.b_scale;
        if constexpr (T::D == Type::E4M3 || T::D == Type::E5M2) divided = e.d_scale ? 1 / *(const float *)e.d_scale : 1;
        // Loaded here, long before they are used.
        asm volatile("" : "+f"(alpha), "+f"(divided));
    }

    // Begins to bring what belongs to a tile's rows and columns, for which `rows` would have to wait, and its registers with it.
    KP_FN void fetch(u32 row, u32 corner) const {
        if constexpr (FETCHED == 0) return;
        const auto words = [&](u32 to, u64 array, u32 each) { // of the columns, `each` of them a word
#pragma unroll
            for (u32 i = thread * each; i < COLUMNS; i += 128 * each) {
                u32 at = corner + i;
                if (T::GATE == Gate::HALVES) at = corner + i % (COLUMNS / 2) + i / (COLUMNS / 2) * (e.n / 2);
                if (T::GATE == Gate::PAIRS) at = 2 * corner + i;
                ptx::copy_word(to + 4 / each * i, array + (u64)(4 / each) * at, at < e.n);
            }
        };
        if constexpr (T::SCALE == Scale::ROW) {
#pragma unroll
            for (u32 i = thread; i < ROWS; i += 128) ptx::copy_word(fetched + 4 * i, e.a_scale + 4 * (u64)(row + i), row + i < e.m);
            words(fetched + ROW_SCALES, e.b_scale, 1);
        }
        if constexpr (T::BIAS != Type::NONE) words(fetched + SCALES, e.bias, 4 / bytes_of(T::BIAS));
        ptx::copy_commit();
    }
    // Waits for it; also before the next is fetched.
    KP_FN void await_fetched() const {
        if constexpr (FETCHED > 0) ptx::copy_wait<0>(), ptx::sync_threads(barrier, 128);
    }

    KP_FN static u32 place(u32 row, u32 column) {
        // The 16-byte piece's number, with the bits of the address that count rows of 128 bytes.
        return row * WIDTH + (column ^ row * WIDTH / 128 % (WIDTH / 16) * 16);
    }

    // What belongs to columns of the product, for `CHUNK` groups of 8 columns of D: this thread's two of each group; if gated, of g and of u.
    static constexpr int GROUPS = SLAB_COLUMNS / 8, CHUNK = GROUPS < 2 ? GROUPS : 2, CHUNKS = SLABS * GROUPS / CHUNK, PARTS = GATED ? 2 : 1;
    struct Columns {
        float2 bias[CHUNK][PARTS], scale[CHUNK][PARTS];
    };

    // The first of the thread's two columns of the product in a group of D's: of part 0 or 1 if gated, which are g and u if in halves, and the
    // first and second 8 columns if in pairs.
    KP_FN u32 product_column(u32 corner, int group, int part) const {
        u32 mine = 2 * (thread % 4);
        if constexpr (T::GATE == Gate::HALVES) return corner + 8 * group + mine + part * (e.n / 2);
        else if constexpr (T::GATE == Gate::PAIRS) return 2 * corner + 16 * group + 8 * part + mine;
        else return corner + 8 * group + mine;
    }

    // Rows of D are whole pieces of 16 bytes, so that two neighbouring columns are both there or neither is.
    KP_FN Columns columns(u32 corner, int chunk) const {
        Columns c;
#pragma unroll
        for (int i = 0; i < CHUNK; i++)
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                u32 at = product_column(corner, chunk * CHUNK + i, part);
                c.bias[i][part] = {0, 0}, c.scale[i][part] = {1, 1};
                if (at < e.n) {
                    if constexpr (T::BIAS != Type::NONE) c.bias[i][part] = {load<T::BIAS>(e.bias, at), load<T::BIAS>(e.bias, at + 1)};
                    if constexpr (T::SCALE == Scale::ROW)
                        c.scale[i][part] = {load<Type::F32>(e.b_scale, at), load<Type::F32>(e.b_scale, at + 1)};
                }
            }
        return c;
    }
    // The same of what `fetch` brought.
    KP_FN Columns fetched_columns(int chunk) const {
        Columns c;
#pragma unroll
        for (int i = 0; i < CHUNK; i++)
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                int group = chunk * CHUNK + i, first = T::GATE == Gate::PAIRS ? 16 * group + 8 * part : 8 * group + part * (COLUMNS / 2);
                u32 at = first + 2 * (thread % 4);
                c.bias[i][part] = {0, 0}, c.scale[i][part] = {1, 1};
                if constexpr (T::SCALE == Scale::ROW) c.scale[i][part] = ptx::load_shared_pair(fetched + ROW_SCALES + 4 * at);
                if constexpr (T::BIAS == Type::F32) c.bias[i][part] = ptx::load_shared_pair(fetched + SCALES + 4 * at);
                else if constexpr (T::BIAS != Type::NONE) {
                    u32 pair = __float_as_uint(ptx::load_shared_number(fetched + SCALES + 2 * at));
                    c.bias[i][part] = {widened<T::BIAS>((u16)pair), widened<T::BIAS>((u16)(pair >> 16))};
                }
            }
        return c;
    }

    // A sum as f32. Of an integer that f32 does not hold, one that rounds to D's shorter type as it would have itself: cut off, its last
    // bit set (round to odd).
    KP_FN static float number(float sum) { return sum; }
    KP_FN static float number(i32 sum) {
        if constexpr (T::D == Type::F32) return __int2float_rn(sum);
        float cut = __int2float_rz(sum);
        return __float2int_rz(cut) == sum ? cut : __uint_as_float(__float_as_uint(cut) | 1);
    }

    // X at two neighbours of a row, of which `x` are the product's sums.
    KP_FN float2 finished(float2 x, float row_scale, i64 row, u32 column, u32 batch, float2 bias, float2 scale) const {
        float2 s = {row_scale, row_scale}, more = bias;
        if constexpr (T::SCALE == Scale::ROW) s.x *= scale.x, s.y *= scale.y;
        if constexpr (T::C != Type::NONE) {
            if (row < e.m && column < e.n && e.beta != 0) {
                float2 c = pair<T::C>(e.c, batch * e.c_stride + row * e.c_ld + column);
                more.x = fmaf(e.beta, c.x, more.x), more.y = fmaf(e.beta, c.y, more.y);
            }
        }
        if constexpr (T::C == Type::NONE && T::BIAS == Type::NONE) return {x.x * s.x, x.y * s.y};
        else return {fmaf(x.x, s.x, more.x), fmaf(x.y, s.y, more.y)};
    }

    // Elements i and i + 1, in one access if that is aligned.
    template <Type U> KP_FN static float2 pair(u64 array, i64 i) {
        if ((array + i * bytes_of(U)) % (2 * bytes_of(U)) == 0) return load_pair<U>(array, i);
        return {load<U>(array, i), load<U>(array, i + 1)};
    }

    // Two neighbours of a row of D that is of integers, as bits; exact if alpha is 1.
    template <int N> KP_FN static float2 integers(const i32 (&d)[N], int group, int half, float alpha) {
        i32 x = d[4 * group + 2 * half], y = d[4 * group + 2 * half + 1];
        if (alpha != 1) x = __float2int_rn(alpha * x), y = __float2int_rn(alpha * y);
        return {__int_as_float(x), __int_as_float(y)};
    }

    // Two neighbours of a row of D before rounding: of group `group` of the thread's registers, row `half`. `column` is D's.
    template <class S, int N> KP_FN float2 result(const S (&d)[N], int group, int half, i64 row, u32 corner, u32 column, u32 batch, float row_scale,
                                         const Columns &c) const {
        float2 x[PARTS], y;
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            int at = 4 * (T::GATE == Gate::PAIRS ? 2 * group + part : group + part * (COLUMNS / 16)) + 2 * half;
            x[part] = finished({number(d[at]), number(d[at + 1])}, row_scale, row, product_column(corner, group, part), batch, c.bias[group % CHUNK][part],
                               c.scale[group % CHUNK][part]);
        }
        if constexpr (T::GATE == Gate::NONE) y = {activated<T::ACT>(x[0].x), activated<T::ACT>(x[0].y)};
        else if constexpr (T::GATE == Gate::HALVES) y = {activated<T::ACT>(x[0].x) * x[1].x, activated<T::ACT>(x[0].y) * x[1].y};
        else {
            // Columns 2j and 2j + 1 of the product are this thread's, but of D it holds 4 (j / 4) + lane % 4: trade with the quad.
            u32 quad = thread % 4;
            float low = activated<T::ACT>(x[0].x) * x[0].y, high = activated<T::ACT>(x[1].x) * x[1].y;
            float x0 = __shfl_sync(~0u, low, 2 * quad % 4, 4), x1 = __shfl_sync(~0u, low, 2 * quad % 4 + 1, 4);
            float y0 = __shfl_sync(~0u, high, 2 * quad % 4, 4), y1 = __shfl_sync(~0u, high, 2 * quad % 4 + 1, 4);
            y = quad < 2 ? float2{x0, x1} : float2{y0, y1};
        }
        if constexpr (T::RESIDUAL != Type::NONE) {
            if (row < e.m && column < e.n / PARTS) {
                float2 r = pair<T::RESIDUAL>(e.residual, batch * e.d_stride + row * e.d_ld + column);
                y.x += r.x, y.y += r.y;
            }
        }
        return y;
    }

    // Stores 64 rows of the tile whose first is `tile_row`, of part `part`, and the columns of D from `corner` on; `last` if nothing follows.
    template <class S, int N> KP_FN void rows(S (&d)[N], int part, u32 tile_row, u32 corner, u32 batch, bool last) {
        u32 warp = thread / 32, lane = thread % 32, row = tile_row + 64 * part;
        float scale[2] = {alpha, alpha};
#pragma unroll
        for (int h = 0; h < 2; h++)
            if constexpr (T::SCALE == Scale::ROW) scale[h] *= ptx::load_shared_number(fetched + 4 * (64 * part + 16 * warp + lane / 4 + 8 * h));
        Columns next = fetched_columns(0);
#pragma unroll
        for (int slab = 0; slab < SLABS; slab++) {
            u32 base = staging + buffer * SLAB;
            Columns now;
#pragma unroll
            for (int i = 0; i < GROUPS; i += 2) {
                // Loaded a chunk ahead, so that nobody waits for it.
                if (i % CHUNK == 0) {
                    int chunk = (slab * GROUPS + i) / CHUNK;
                    now = next;
                    if (chunk + 1 < CHUNKS) next = fetched_columns(chunk + 1);
                }
                float2 y[2][2];
#pragma unroll
                for (int g = 0; g < 2; g++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        int group = slab * GROUPS + i + g;
                        if constexpr (T::D == Type::I32) y[g][h] = integers(d, group, h, e.alpha);
                        else y[g][h] = result(d, group, h, (i64)row + 16 * warp + lane / 4 + 8 * h, corner, corner + group * 8 + 2 * (lane % 4),
                                              batch, scale[h], now);
                    }
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
            // The barrier tells that this slab is written and that the next one, if any, is free.
            if (thread == 0 && !(last && slab == SLABS - 1)) ptx::store_wait_read<T::BUFFERS - 2>();
            ptx::sync_threads(barrier, 128);
            if (thread == 0) {
                ptx::store_box(map, base, corner + slab * SLAB_COLUMNS, row, batch);
                ptx::store_commit();
            }
            buffer = buffer + 1 == T::BUFFERS ? 0 : buffer + 1;
        }
    }
};

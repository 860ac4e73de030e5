// Which tile of D a block makes, and what becomes of its sums: for kernels whose blocks leave sums in shared memory.
//
// The source that includes this says before: R, the type of sums; E, of what follows; T, the tile, with BM, BN, MS (parts of
// its rows that are finished one after the other), THREADS; SCALES_LAST, whether scales multiply sums instead of operands.
#pragma once
#include "gemm/cuda/simt.cuh"

/// Rows of A that meet one B, and the tile of D that is made of them.
struct Item {
    u32 row_batch, b;
    /// The first row of the tile in A and D, and how many rows from there on are the item's.
    u32 row, rows;
    /// The first column of each half of the tile in A·B, and how many from there on exist.
    u32 col[2], cols[2];
};

// --- which tile ------------------------------------------------------------------------------------------------------

/// Tile (`i`, `j`) of `place`, in bands of eight tile rows, so that blocks at work together share operands in L2.
__device__ __forceinline__ void in_bands(u64 place, u32 rows, u32 cols, u32 &i, u32 &j) {
    u64 band = place / (8ull * cols), within = place - band * 8 * cols;
    u32 height = min(8u, rows - (u32)band * 8);
    j = (u32)(within / height);
    i = (u32)band * 8 + (u32)(within % height);
}

/// Tile rows of `rows` rows.
__device__ __forceinline__ u32 tile_rows(u32 rows) { return rows / T::BM + (rows % T::BM != 0); }

/// Finds tile `t`; false if there is none.
__device__ bool find(const Params &p, u64 t, Item &item) {
    u32 i, j, rows = p.m;
    item.row = 0;
    if (p.d.grouping == Grouping::Contiguous) {
        // Groups are a few hundred at most, so that each block walks them itself.
        u32 row_tile = (u32)(t / p.tiles_n), g = 0;
        j = (u32)(t % p.tiles_n);
        for (;; ++g) {
            if (g == p.batch) return false;
            u32 first = group_number(p, g), end = group_number(p, g + 1);
            rows = end > first ? end - first : 0;
            item.row = first;
            if (row_tile < tile_rows(rows)) break;
            row_tile -= tile_rows(rows);
        }
        i = row_tile;
        item.row_batch = 0;
        item.b = g;
    } else {
        u64 each = (u64)tile_rows(p.m) * p.tiles_n;
        item.row_batch = item.b = (u32)(t / each);
        in_bands(t % each, tile_rows(p.m), p.tiles_n, i, j);
        if (p.d.grouping == Grouping::Masked) rows = group_number(p, item.b);
        if (i >= tile_rows(rows)) return false;
    }
    item.row += i * T::BM;
    item.rows = rows - i * T::BM;
    constexpr u32 HALF = T::BN / 2;
    if (p.d.gate == Gate::Halves) {
        u32 first = j * HALF, half = p.n / 2;
        item.col[0] = first;
        item.col[1] = first + half;
        item.cols[0] = item.cols[1] = half - first;
    } else {
        u32 first = j * T::BN, left = p.n - first;
        item.col[0] = first;
        item.col[1] = first + HALF;
        item.cols[0] = left;
        item.cols[1] = left > HALF ? left - HALF : 0;
    }
    return true;
}

// --- finishing -------------------------------------------------------------------------------------------------------

template <class N> __device__ __forceinline__ N sigmoid(N x) {
    // e^x rather than e^-x for negative x, so that nothing overflows and x · sigmoid(x) goes to 0, not NaN.
    N e = exp(x < (N)0 ? x : -x);
    return (x < (N)0 ? e : (N)1) / ((N)1 + e);
}

template <class N> __device__ __noinline__ N activated(Act act, N x) {
    switch (act) {
    case Act::Relu: return x < (N)0 ? (N)0 : x;
    case Act::Gelu: return x * ((N)0.5 * erfc(x * (N)-0.70710678118654752));
    case Act::GeluTanh: {
        N u = x * ((N)1 + x * x * (N)0.044715) * (N)0.79788456080286536;
        return x * sigmoid(u + u);
    }
    case Act::Silu: return x * sigmoid(x);
    case Act::Sigmoid: return sigmoid(x);
    case Act::Tanh: return tanh(x);
    default: return x;
    }
}

/// As `number` and `encode`, called: what follows the sums is little work, and would be most of the code.
__device__ __noinline__ E number_of(DType t, const void *codes, u64 i) { return number<E>(t, codes, i); }
__device__ __noinline__ u64 code_of(DType t, E x) { return encode<E>(t, x); }

/// The scale of outer row `o` of an operand whose rows have one each, or one for all.
__device__ __forceinline__ E row_scale(const Operand &s, u32 batch, u32 o) {
    if (s.scales == nullptr) return (E)1;
    return number_of(s.scale_dtype, s.scales, batch * s.scale_stride + scale_place(o / s.block_outer, 0, s.scale_outer, s.scale_inner, 1));
}

/// alpha · sum + beta · C + bias of element (`row`, `col`) of A·B.
__device__ __forceinline__ E summed(const Params &p, const Item &item, R sum, u32 row, u32 col) {
    const Result &d = p.d;
    E x = (E)sum;
    if (d.half_sums) x = (E)decode_f16(encode_f16(narrow(x)));
    // Rows of no elements have no scales.
    if (SCALES_LAST && p.k > 0) x *= row_scale(p.a, item.row_batch, row) * row_scale(p.b, item.b, col);
    x *= (E)d.alpha;
    if (d.addend != Addend::None && d.beta != 0.0f) {
        bool given = d.addend == Addend::Given;
        u64 tight = ((u64)item.row_batch * p.m + row) * p.n + col;
        u64 in_d = item.row_batch * d.stride + (d.column_order ? (u64)col * d.ld + row : (u64)row * d.ld + col);
        x += (E)d.beta * number_of(d.c_dtype, given ? d.c : d.codes, given ? tight : in_d);
    }
    if (d.bias) x += number_of(d.bias_dtype, d.bias, (d.grouping != Grouping::None ? (u64)item.b * p.n : 0) + col);
    return x;
}

/// Adds the residual to `count` neighbours of row `row` of D and stores them.
__device__ __forceinline__ void put(const Params &p, const Item &item, u32 row, u32 col, E (&x)[4], u32 count) {
    const Result &d = p.d;
    u64 at = item.row_batch * d.stride + (d.column_order ? (u64)col * d.ld + row : (u64)row * d.ld + col);
    u64 step = d.column_order ? d.ld : 1;
    if (d.residual) {
#pragma unroll
        for (u32 e = 0; e < 4; ++e)
            if (e < count) x[e] += number_of(d.residual_dtype, d.residual, at + e * step);
    }
    if (d.stage) {
        E *stage = static_cast<E *>(d.stage) + ((u64)item.row_batch * p.m + row) * d.cols + col;
#pragma unroll
        for (u32 e = 0; e < 4; ++e)
            if (e < count) stage[e] = x[e];
        return;
    }
    u32 bytes = bits_of(d.dtype) / 8;
    u8 *target = static_cast<u8 *>(d.codes) + at * bytes;
    u64 codes[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) codes[e] = code_of(d.dtype, x[e]);
    bool whole = count == 4 && step == 1 && reinterpret_cast<u64>(target) % (4 * bytes) == 0;
    if (whole && bytes == 4) {
        *reinterpret_cast<uint4 *>(target) = make_uint4((u32)codes[0], (u32)codes[1], (u32)codes[2], (u32)codes[3]);
    } else if (whole && bytes == 2) {
        *reinterpret_cast<uint2 *>(target) = make_uint2((u32)(codes[0] | codes[1] << 16), (u32)(codes[2] | codes[3] << 16));
    } else {
#pragma unroll
        for (u32 e = 0; e < 4; ++e) {
            if (e >= count) break;
            u8 *to = target + e * step * bytes;
            switch (bytes) {
            case 1: *to = (u8)codes[e]; break;
            case 2: *reinterpret_cast<u16 *>(to) = (u16)codes[e]; break;
            case 4: *reinterpret_cast<u32 *>(to) = (u32)codes[e]; break;
            default: *reinterpret_cast<u64 *>(to) = codes[e];
            }
        }
    }
}

/// Finishes four columns of A·B from `at` in the tile on, or eight if they are gated by halves.
__device__ __forceinline__ void finish(const Params &p, const Item &item, u32 row, u32 at, const R *sums) {
    E x[4], u[4];
    Gate gate = p.d.gate;
    constexpr u32 HALF = T::BN / 2;
    u32 half = at >= HALF, offset = at - half * HALF;
    u32 there = half ? item.cols[1] : item.cols[0];
    if (offset >= there) return;
    u32 count = min(there - offset, 4u), col = (half ? item.col[1] : item.col[0]) + offset;
#pragma unroll
    for (u32 e = 0; e < 4; ++e) x[e] = e < count ? summed(p, item, sums[at + e], row, col + e) : (E)0;
    if (gate == Gate::Halves) {
#pragma unroll
        for (u32 e = 0; e < 4; ++e)
            u[e] = e < count ? summed(p, item, sums[HALF + at + e], row, item.col[1] + offset + e) : (E)0;
    }
    if (gate == Gate::Pairs) {
        u[0] = x[1], u[1] = x[3];
        x[1] = x[2];
        col /= 2, count /= 2;
    }
    if (p.d.act != Act::Identity) {
#pragma unroll
        for (int e = 0; e < 4; ++e) x[e] = activated(p.d.act, x[e]);
    }
    if (gate != Gate::None) {
#pragma unroll
        for (int e = 0; e < 4; ++e) x[e] *= u[e];
    }
    put(p, item, row, col, x, count);
}

/// Finishes the rows of D whose sums lie in shared memory: row `r` of `sums` is row `row_of(r)` of the tile.
__device__ __forceinline__ void finish_rows(const Params &p, const Item &item, int h, const R (*sums)[T::BN]) {
    constexpr u32 ROWS = T::BM / T::MS;
    // Of a tile gated by halves, only the left half is columns of D.
    u32 width = (p.d.gate == Gate::Halves ? T::BN / 2 : T::BN) / 4;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < ROWS * width; i += T::THREADS) {
        u32 r = p.d.column_order ? i % ROWS : i / width, at = (p.d.column_order ? i / ROWS : i % width) * 4;
        u32 within = h * ROWS + r;
        if (within < item.rows) finish(p, item, item.row + within, at, sums[r]);
    }
}

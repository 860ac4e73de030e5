// Stages of 128 bytes of k in shared memory: how they are loaded, and how fragments come out of them.
//
// The source that includes this says before: BYTES, of an element; RUN, how many are 16 bytes; T, the tile, with BM, BN, THREADS.
#pragma once
#include "gemm/cuda/simt.cuh"

__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

/// Copies `bytes` of 16 bytes and clears the rest.
__device__ __forceinline__ void copy_run(u32 to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/// Where run `c` of line `r` lies; lines of LINE runs.
template <int LINE>
__device__ __forceinline__ u32 place(u32 r, u32 c) { return (r * LINE + (c ^ r % 8)) * 16; }

/// Loads the stages of one operand, WIDTH rows of A or columns of B.
template <int WIDTH>
struct Loader {
    static constexpr int COUNT = WIDTH * 8 / T::THREADS;

    const Operand &s;
    const u8 *codes;
    u32 first[2], some[2];

    __device__ __forceinline__ Loader(const Operand &s, u32 batch, const u32 (&first_)[2], const u32 (&some_)[2])
        : s(s), codes(static_cast<const u8 *>(s.codes) + batch * s.stride * BYTES) {
        for (int h = 0; h < 2; ++h) first[h] = first_[h], some[h] = some_[h];
    }

    /// Starts loading the stage at `k0` to `to`.
    __device__ __forceinline__ void load(u32 k0, u8 *to) const {
        bool outer = s.form == Form::Outer;
#pragma unroll
        for (int n = 0; n < COUNT; ++n) {
            int at = threadIdx.x + n * T::THREADS;
            // Row (or first of a run of rows) and k (or first of a run of k) within the tile.
            int row = outer ? at % (WIDTH / RUN) * RUN : at / 8, k = outer ? at / (WIDTH / RUN) : at % 8 * RUN;
            int half = row >= WIDTH / 2, in_half = row - half * (WIDTH / 2);
            u32 there = half ? some[1] : some[0], o = (half ? first[1] : first[0]) + in_half, i = k0 + k;
            u32 rows = there > in_half ? there - in_half : 0, left = i < s.inner ? s.inner - i : 0;
            u32 length = rows == 0 || left == 0 ? 0 : min(outer ? rows : left, (u32)RUN);
            const u8 *from = codes + (outer ? (u64)i * s.ld + o : (u64)o * s.ld + i) * BYTES;
            u32 line = outer ? k : row, run = outer ? row / RUN : k / RUN;
            u8 *target = to + (outer ? place<WIDTH / RUN>(line, run) : place<8>(line, run));
            if (s.vector) {
                // What is not there has no address either.
                copy_run(shared_address(target), length == 0 ? codes : from, length * BYTES);
            } else {
                element_by_element(target, from, length);
            }
        }
    }

    static __device__ __forceinline__ void element_by_element(u8 *to, const u8 *from, u32 length) {
        u32 x[4] = {0, 0, 0, 0};
#pragma unroll
        for (u32 e = 0; e < RUN; ++e) {
            if (e >= length) break;
            u32 code = BYTES == 4   ? reinterpret_cast<const u32 *>(from)[e]
                       : BYTES == 2 ? reinterpret_cast<const u16 *>(from)[e]
                                    : from[e];
            x[e * BYTES / 4] |= code << (e * BYTES % 4 * 8);
        }
        *reinterpret_cast<uint4 *>(to) = make_uint4(x[0], x[1], x[2], x[3]);
    }
};

// --- fragments -------------------------------------------------------------------------------------------------------

template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(u32 (&x)[4], u32 from) {
    if constexpr (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(from));
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(from));
    }
}

/// The fragments of A: 16 rows from `row` on, at step `step`.
template <bool OUTER>
__device__ __forceinline__ void load_a(u32 (&x)[4], u32 base, u32 row, u32 step, u32 lane) {
    if constexpr (OUTER) {
        u32 k = step * 16 + lane % 8 + lane / 16 * 8, run = row / 8 + lane / 8 % 2;
        load_matrices<true>(x, base + place<T::BM / RUN>(k, run));
    } else {
        load_matrices<false>(x, base + place<8>(row + lane % 16, step * 2 + lane / 16));
    }
}

/// Those of B: 16 columns from `column` on; two registers for each 8.
template <bool OUTER>
__device__ __forceinline__ void load_b(u32 (&x)[4], u32 base, u32 column, u32 step, u32 lane) {
    if constexpr (OUTER) {
        u32 k = step * 16 + lane % 16, run = column / 8 + lane / 16;
        load_matrices<true>(x, base + place<T::BN / RUN>(k, run));
    } else {
        load_matrices<false>(x, base + place<8>(column + lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2));
    }
}

// Finished numbers → scaled or 4-bit codes of D: what `simt` leaves to others, because a scale serves numbers of many
// tiles, and a byte holds two codes.
//
//   stage: row_batch × m × cols numbers of FINISH ──▶ simt_scales: one warp per block of D: amax ──▶ scale
//                                                 └─▶ simt_codes: one thread per byte (or code): code of x / (scale · global)
//
// Numbers are divided in f64: a quotient in f32 would be rounded twice, and scales times globals may leave f32's range.
// Defines: FINISH (`float` or `double`). Entries: simt_scales(Params), simt_codes(Params), 256 threads, any grid. Rows of a
// grouped product that belong to no group are neither read nor written.
#include "gemm/cuda/simt.cuh"

typedef FINISH E;

/// The largest number of a type whose codes are scaled.
__device__ __forceinline__ double largest(DType t) {
    switch (t) {
    case DType::E4m3: return 448.0;
    case DType::E5m2: case DType::E5m2Fnuz: return 57344.0;
    case DType::E4m3Fnuz: return 240.0;
    case DType::E2m1: return 6.0;
    case DType::Nf4: return 1.0;
    case DType::I4: return 7.0;
    default: return 127.0;
    }
}

__device__ __forceinline__ double power_of_two(int exponent) { return __longlong_as_double((i64)(exponent + 1023) << 52); }

/// The exponent of a positive finite number that is not subnormal.
__device__ __forceinline__ int floor_log2(double x) { return (int)(__double_as_longlong(x) >> 52 & 0x7ff) - 1023; }

/// A positive number as a code of a scale's type: the nearest, but neither 0 nor infinite.
__device__ u32 scale_code(DType t, double x) {
    switch (t) {
    case DType::F32: return __float_as_uint((float)fmin(fmax(x, 1.401298464324817e-45), 3.4028234663852886e38));
    case DType::F16: return encode_f16(narrow(fmin(fmax(x, 5.9604644775390625e-8), 65504.0)));
    case DType::Bf16: return encode_bf16(narrow(fmin(fmax(x, 9.183549615799121e-41), 3.3895313892515355e38)));
    case DType::E8m0: {
        int exponent = floor_log2(fmax(x, 5.877471754111438e-39));
        exponent += x >= 1.5 * power_of_two(exponent) ? 1 : 0;
        return (u32)min(exponent + 127, 254);
    }
    default: return E4m3::encode(narrow(fmin(fmax(x, 0.001953125), 448.0)));
    }
}

/// The code of the scale of a block whose largest magnitude is `amax`.
__device__ u32 scale_of(const Result &d, double amax) {
    bool is_small = d.scale_dtype == DType::E8m0 || d.scale_dtype == DType::Ue4m3;
    if (amax == 0.0) return is_small ? 0 : scale_code(d.scale_dtype, 1.0);
    double most = largest(d.dtype);
    if (!d.floor_rule) return scale_code(d.scale_dtype, amax / most);
    int exponent = max(floor_log2(amax) - floor_log2(most), -127);
    return scale_code(d.scale_dtype, power_of_two(min(exponent, 127)));
}

/// What everything is divided by before its block is looked at.
__device__ __forceinline__ double global_of(const Result &d) { return d.global ? (double)*d.global : 1.0; }

extern "C" __global__ void __launch_bounds__(256) simt_scales(const __grid_constant__ Params p) {
    const Result &d = p.d;
    u64 blocks_o = p.m / d.block_outer + (p.m % d.block_outer != 0);
    u64 blocks_i = d.cols / d.block_inner + (d.cols % d.block_inner != 0);
    u64 batches = d.grouping == Grouping::Contiguous ? 1 : p.batch, warps = (u64)gridDim.x * 8;
    double global = global_of(d);
    for (u64 at = (u64)blockIdx.x * 8 + threadIdx.x / 32; at < batches * blocks_o * blocks_i; at += warps) {
        u64 batch = at / (blocks_o * blocks_i), o = at / blocks_i % blocks_o, i = at % blocks_i;
        u32 live_first, live_end;
        live_rows(p, (u32)batch, live_first, live_end);
        u64 first = max(o * d.block_outer, (u64)live_first), end = min((o + 1) * d.block_outer, (u64)live_end);
        u64 left = i * d.block_inner, width = min((u64)d.block_inner, d.cols - left);
        if (first >= end) continue;
        const E *stage = static_cast<const E *>(d.stage) + batch * p.m * d.cols;
        double amax = 0.0;
        for (u64 n = threadIdx.x % 32; n < (end - first) * width; n += 32) {
            double x = fabs((double)stage[(first + n / width) * d.cols + left + n % width] / global);
            // NaN fails the comparison, and infinities are not looked at.
            if (x > amax && x <= 1.7976931348623157e308) amax = x;
        }
        for (int step = 16; step > 0; step /= 2) amax = fmax(amax, __shfl_xor_sync(~0u, amax, step));
        if (threadIdx.x % 32 != 0) continue;
        u64 place = batch * d.scale_stride + scale_place(o, i, d.scale_outer, d.scale_inner, blocks_i);
        u32 code = scale_of(d, amax);
        switch (bits_of(d.scale_dtype)) {
        case 8: static_cast<u8 *>(d.scales)[place] = (u8)code; break;
        case 16: static_cast<u16 *>(d.scales)[place] = (u16)code; break;
        default: static_cast<u32 *>(d.scales)[place] = code;
        }
    }
}

/// The code of element (`row`, `col`).
__device__ u32 code_of(const Params &p, u64 batch, u32 row, u32 col, double global) {
    const Result &d = p.d;
    double x = (double)static_cast<const E *>(d.stage)[(batch * p.m + row) * d.cols + col], divisor = global;
    if (d.scales) {
        u32 blocks_i = d.cols / d.block_inner + (d.cols % d.block_inner != 0);
        u64 place = scale_place(row / d.block_outer, col / d.block_inner, d.scale_outer, d.scale_inner, blocks_i);
        divisor *= scale_number<double>(d.scale_dtype, d.scales, batch * d.scale_stride + place);
    }
    // A block of zeros may have scale 0: its codes are those of 0. NaN stays NaN, but comes from nothing else.
    double y = divisor == 0.0 && x == 0.0 ? 0.0 : x / divisor;
    if (y != y && x == x) y = 0.0;
    // With a scale, the range of integers is symmetric.
    bool symmetric = (d.dtype == DType::I8 || d.dtype == DType::I4) && (d.scales || d.global);
    if (symmetric && y < -largest(d.dtype)) y = -largest(d.dtype);
    return (u32)encode(d.dtype, y);
}

extern "C" __global__ void __launch_bounds__(256) simt_codes(const __grid_constant__ Params p) {
    const Result &d = p.d;
    bool by_columns = d.column_order, packed = bits_of(d.dtype) == 4;
    u32 lines = by_columns ? d.cols : p.m, length = by_columns ? p.m : d.cols;
    u32 per_line = packed ? length / 2 + length % 2 : length;
    u64 batches = d.grouping == Grouping::Contiguous ? 1 : p.batch, threads = (u64)gridDim.x * blockDim.x;
    double global = global_of(d);
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < batches * lines * per_line; at += threads) {
        u64 batch = at / ((u64)lines * per_line);
        u32 line = (u32)(at / per_line % lines), place = (u32)(at % per_line), live_first, live_end;
        live_rows(p, (u32)batch, live_first, live_end);
        u64 start = batch * d.stride + (u64)line * d.ld;
        auto is_live = [&](u32 i) {
            u32 row = by_columns ? i : line;
            return i < length && row >= live_first && row < live_end;
        };
        auto code = [&](u32 i) { return code_of(p, batch, by_columns ? i : line, by_columns ? line : i, global); };
        if (packed) {
            bool low = is_live(2 * place), high = is_live(2 * place + 1);
            if (!low && !high) continue;
            u8 *byte = static_cast<u8 *>(d.codes) + start / 2 + place;
            // What belongs to no row of a group keeps its half of the byte.
            u32 kept = low && high ? 0 : *byte;
            u32 left = low ? code(2 * place) : kept & 15, right = high ? code(2 * place + 1) : kept >> 4;
            *byte = (u8)(left | right << 4);
        } else if (is_live(place)) {
            u64 to = start + place;
            u32 x = code(place);
            switch (bits_of(d.dtype)) {
            case 8: static_cast<u8 *>(d.codes)[to] = (u8)x; break;
            case 16: static_cast<u16 *>(d.codes)[to] = (u16)x; break;
            default: static_cast<u32 *>(d.codes)[to] = x;
            }
        }
    }
}

// Number formats of kp-hal as arithmetic on registers: codes to numbers and back, on every architecture.
//
// Rounding is to nearest, ties to even. Past the largest number, integers and floats of 8 and 4 bits saturate, wider floats
// become infinite. NaN stays NaN, and becomes 0 where a type has none.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

/// kp_hal::DType, in its order.
enum class DType : u8 {
    F64, F32, Tf32, F16, Bf16, E4m3, E5m2, E4m3Fnuz, E5m2Fnuz, E2m1, Nf4, E8m0, Ue4m3, I4, U4, I8, U8, I32, I64
};

/// Bits of one element.
__device__ __forceinline__ constexpr u32 bits_of(DType t) {
    switch (t) {
    case DType::F64: case DType::I64: return 64;
    case DType::F32: case DType::Tf32: case DType::I32: return 32;
    case DType::F16: case DType::Bf16: return 16;
    case DType::E2m1: case DType::Nf4: case DType::I4: case DType::U4: return 4;
    default: return 8;
    }
}

/// NormalFloat's quantiles (QLoRA, appendix E).
__device__ const float NF4[16] = {
    -1.0f, -0.6961928f, -0.52507305f, -0.3949175f, -0.28444138f, -0.18477343f, -0.091050036f, 0.0f,
    0.0795803f, 0.1609302f, 0.2461123f, 0.33791524f, 0.44070983f, 0.562617f, 0.72295684f, 1.0f,
};

/// A float of 1 + E + MANTISSA bits in all BITS, whose largest number has the code MAX.
template <u32 BITS, u32 MANTISSA, u32 BIAS, u32 MAX, bool INFINITY_, bool FNUZ>
struct Small {
    static constexpr u32 SHIFT = 23 - MANTISSA;

    static __device__ __forceinline__ float decode(u32 code) {
        u32 magnitude = code & ((1u << (BITS - 1)) - 1);
        u32 sign = code >> (BITS - 1) << 31;
        float normal = __uint_as_float((magnitude << SHIFT) + ((127 - BIAS) << 23));
        // With exponent 1 in place of 0, the leading bit that is not there is taken away again.
        constexpr u32 ONE = (128 - BIAS) << 23;
        float subnormal = __uint_as_float((magnitude << SHIFT) + ONE) - __uint_as_float(ONE);
        u32 value = __float_as_uint(magnitude >> MANTISSA == 0 ? subnormal : normal) | sign;
        if (FNUZ) return __uint_as_float(code == 1u << (BITS - 1) ? 0x7fffffffu : value);
        if (magnitude > MAX) value = sign | (INFINITY_ && magnitude == MAX + 1 ? 0x7f800000u : 0x7fffffffu);
        return __uint_as_float(value);
    }

    static __device__ __forceinline__ u32 encode(float x) {
        u32 magnitude = __float_as_uint(x) & 0x7fffffffu;
        u32 sign = __float_as_uint(x) >> 31 << (BITS - 1);
        bool is_nan = magnitude > 0x7f800000u;
        // Half a step less one, plus one if the code below is odd.
        u32 normal = ((magnitude + (1u << (SHIFT - 1)) - 1 + (magnitude >> SHIFT & 1)) >> SHIFT) - ((127 - BIAS) << MANTISSA);
        // Added to a power of two whose last bit is worth a step of the subnormals.
        constexpr u32 POWER = (151 - BIAS - MANTISSA) << 23;
        u32 subnormal = __float_as_uint(__uint_as_float(magnitude) + __uint_as_float(POWER)) - POWER;
        u32 code = magnitude < (128 - BIAS) << 23 ? subnormal : normal;
        code = code > MAX ? MAX : code;
        if (FNUZ) return is_nan ? 1u << (BITS - 1) : code == 0 ? 0 : code | sign;
        if (is_nan) return BITS == 4 ? 0 : (1u << (BITS - 1)) - 1;
        return code | sign;
    }
};
typedef Small<8, 3, 7, 0x7e, false, false> E4m3;
typedef Small<8, 2, 15, 0x7b, true, false> E5m2;
typedef Small<8, 3, 8, 0x7f, false, true> E4m3Fnuz;
typedef Small<8, 2, 16, 0x7f, false, true> E5m2Fnuz;
typedef Small<4, 1, 1, 7, false, false> E2m1;

__device__ __forceinline__ float decode_f16(u32 code) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((u16)code));
    return x;
}

__device__ __forceinline__ float decode_e8m0(u32 code) {
    return __uint_as_float(code == 255 ? 0x7fffffffu : code == 0 ? 1u << 22 : code << 23);
}

__device__ __forceinline__ u32 encode_f16(float x) {
    u16 code;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(x));
    return code;
}

__device__ __forceinline__ u32 encode_bf16(float x) {
    u32 bits = __float_as_uint(x);
    return (bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

__device__ __forceinline__ u32 encode_nf4(float x) {
    if (x != x) return 7;
    u32 code = 0;
    for (u32 i = 0; i < 15; ++i) {
        // Twice the middle between two neighbours, exact in f64.
        double middle = (double)NF4[i] + (double)NF4[i + 1], twice = 2.0 * (double)x;
        code += twice > middle || (twice == middle && (i & 1)) ? 1 : 0;
    }
    return code;
}

/// The f32 towards zero from `x`, its last bit set unless it is `x`: rounded again to fewer bits, it rounds as `x` does.
__device__ __forceinline__ float narrow(double x) {
    float cut = __double2float_rz(x);
    return (double)cut == x || x != x ? cut : __uint_as_float(__float_as_uint(cut) | 1);
}
__device__ __forceinline__ float narrow(float x) { return x; }

/// The number of a code of at most 32 bits.
template <class R>
__device__ __forceinline__ R decode(DType t, u32 code) {
    switch (t) {
    case DType::F32: case DType::Tf32: return (R)__uint_as_float(code);
    case DType::F16: return (R)decode_f16(code);
    case DType::Bf16: return (R)__uint_as_float(code << 16);
    case DType::E4m3: case DType::Ue4m3: return (R)E4m3::decode(code);
    case DType::E5m2: return (R)E5m2::decode(code);
    case DType::E4m3Fnuz: return (R)E4m3Fnuz::decode(code);
    case DType::E5m2Fnuz: return (R)E5m2Fnuz::decode(code);
    case DType::E2m1: return (R)E2m1::decode(code);
    case DType::Nf4: return (R)NF4[code];
    case DType::E8m0: return (R)decode_e8m0(code);
    case DType::I4: return (R)((int)(code << 28) >> 28);
    case DType::I8: return (R)(int)(signed char)code;
    case DType::I32: return (R)(int)code;
    default: return (R)code;
    }
}

/// The numbers of four codes of at most 32 bits: one choice of type for all of them.
template <class R>
__device__ __forceinline__ void decode_run(DType t, const u32 (&codes)[4], R (&x)[4]) {
#define KP_EACH(WHAT)                                                                                                  \
    _Pragma("unroll") for (int e = 0; e < 4; ++e) {                                                                    \
        u32 code = codes[e];                                                                                           \
        x[e] = (R)(WHAT);                                                                                              \
    }                                                                                                                  \
    return
    switch (t) {
    case DType::F32: case DType::Tf32: KP_EACH(__uint_as_float(code));
    case DType::F16: KP_EACH(decode_f16(code));
    case DType::Bf16: KP_EACH(__uint_as_float(code << 16));
    case DType::E4m3: KP_EACH(E4m3::decode(code));
    case DType::E5m2: KP_EACH(E5m2::decode(code));
    case DType::E4m3Fnuz: KP_EACH(E4m3Fnuz::decode(code));
    case DType::E5m2Fnuz: KP_EACH(E5m2Fnuz::decode(code));
    case DType::E2m1: KP_EACH(E2m1::decode(code));
    case DType::Nf4: KP_EACH(NF4[code & 15]);
    case DType::I4: KP_EACH((int)(code << 28) >> 28);
    case DType::I8: KP_EACH((int)(signed char)code);
    default: KP_EACH(code);
    }
#undef KP_EACH
}

/// Element `i` of an array of scales.
template <class R>
__device__ __forceinline__ R scale_number(DType t, const void *scales, u64 i) {
    switch (t) {
    case DType::F32: return (R)static_cast<const float *>(scales)[i];
    case DType::F16: return (R)decode_f16(static_cast<const u16 *>(scales)[i]);
    case DType::Bf16: return (R)__uint_as_float((u32)static_cast<const u16 *>(scales)[i] << 16);
    case DType::E8m0: return (R)decode_e8m0(static_cast<const u8 *>(scales)[i]);
    default: return (R)E4m3::decode(static_cast<const u8 *>(scales)[i]);
    }
}

/// `x` as a whole number from `low` to `high`; NaN becomes 0.
template <class R>
__device__ __forceinline__ int encode_whole(R x, R low, R high) {
    return x != x ? 0 : (int)rint(x < low ? low : x > high ? high : x);
}

/// The code nearest to `x`.
template <class R>
__device__ __forceinline__ u64 encode(DType t, R x) {
    switch (t) {
    case DType::F64: return (u64)__double_as_longlong((double)x);
    case DType::F32: case DType::Tf32: return __float_as_uint((float)x);
    case DType::F16: return encode_f16(narrow(x));
    case DType::Bf16: return encode_bf16(narrow(x));
    case DType::E4m3: return E4m3::encode(narrow(x));
    case DType::E5m2: return E5m2::encode(narrow(x));
    case DType::E4m3Fnuz: return E4m3Fnuz::encode(narrow(x));
    case DType::E5m2Fnuz: return E5m2Fnuz::encode(narrow(x));
    case DType::E2m1: return E2m1::encode(narrow(x));
    case DType::Nf4: return encode_nf4(narrow(x));
    case DType::I4: return encode_whole<R>(x, -8, 7) & 15;
    case DType::U4: return encode_whole<R>(x, 0, 15);
    case DType::I8: return encode_whole<R>(x, -128, 127) & 255;
    case DType::U8: return encode_whole<R>(x, 0, 255);
    case DType::I32: return (u32)(x != x ? 0 : __double2int_rn((double)x));
    case DType::I64: return (u64)(x != x ? 0 : __double2ll_rn((double)x));
    default: return 0;
    }
}

/// Element `i` of an array of codes, by its own type.
template <class R>
__device__ __forceinline__ R number(DType t, const void *codes, u64 i) {
    switch (bits_of(t)) {
    case 4: return decode<R>(t, static_cast<const u8 *>(codes)[i / 2] >> (i % 2 * 4) & 15);
    case 8: return decode<R>(t, static_cast<const u8 *>(codes)[i]);
    case 16: return decode<R>(t, static_cast<const u16 *>(codes)[i]);
    case 32: return decode<R>(t, static_cast<const u32 *>(codes)[i]);
    default:
        return t == DType::F64 ? (R)static_cast<const double *>(codes)[i] : (R)static_cast<const i64 *>(codes)[i];
    }
}

// What happens to one sum of a GEMM before it is stored, an element at a time: for kernels whose output is small.
//
//     x = alpha · sum + beta · c + bias        y = act(x)  or  act(x_g) · x_u        d = store(y + residual)
//
// Types are numbered 0 none, 1 f32, 2 f16, 3 bf16, 4 e4m3, 5 e5m2, 6 i8, 7 i32, 8 f64; defines choose them:
//     D_TYPE   of D            C_TYPE  of C (IN_PLACE: C is D)        BIAS_TYPE, RESIDUAL_TYPE   0 if there is none
//     ACT      0 identity, 1 relu, 2 gelu, 3 gelu by tanh, 4 silu, 5 sigmoid, 6 tanh
//     GATE     0 none, 1 halves, 2 pairs
//     D_SCALED 1: D is divided by the f32 at d_global
#pragma once

#ifndef D_TYPE
#define D_TYPE 3
#endif
#ifndef C_TYPE
#define C_TYPE 0
#endif
#ifndef BIAS_TYPE
#define BIAS_TYPE 0
#endif
#ifndef RESIDUAL_TYPE
#define RESIDUAL_TYPE 0
#endif
#ifndef ACT
#define ACT 0
#endif
#ifndef GATE
#define GATE 0
#endif
#ifndef D_SCALED
#define D_SCALED 0
#endif

namespace epilogue {

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
typedef unsigned long long u64;

__device__ __forceinline__ float f16_to_f32(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

// Element `at` of an array of type T.
template <int T>
__device__ __forceinline__ float load(const void* p, u64 at) {
    if constexpr (T == 1) return static_cast<const float*>(p)[at];
    if constexpr (T == 2) return f16_to_f32(static_cast<const u16*>(p)[at]);
    if constexpr (T == 3) return __uint_as_float(u32(static_cast<const u16*>(p)[at]) << 16);
    if constexpr (T == 7) return float(static_cast<const int*>(p)[at]);
    if constexpr (T == 8) return float(static_cast<const double*>(p)[at]);
    return 0.f;
}

// Nearest even; 8-bit types and integers saturate, wider floats become infinite.
template <int T>
__device__ __forceinline__ void store(void* p, u64 at, float x) {
    if constexpr (T == 1) static_cast<float*>(p)[at] = x;
    if constexpr (T == 2) {
        u16 h;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
        static_cast<u16*>(p)[at] = h;
    }
    if constexpr (T == 3) {
        u16 h;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
        static_cast<u16*>(p)[at] = h;
    }
    if constexpr (T == 4) {
        u16 h;
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(h) : "f"(0.f), "f"(x));
        static_cast<u8*>(p)[at] = u8(h);
    }
    if constexpr (T == 5) {
        u16 h;
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(h) : "f"(0.f), "f"(x));
        static_cast<u8*>(p)[at] = u8(h);
    }
    if constexpr (T == 6) {
        int i;
        asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(i) : "f"(x));
        static_cast<u8*>(p)[at] = u8(i);
    }
    if constexpr (T == 7) {
        static_cast<int*>(p)[at] = __float2int_rn(x);
    }
    if constexpr (T == 8) static_cast<double*>(p)[at] = x;
}

template <int F>
__device__ __forceinline__ float act(float x) {
    if constexpr (F == 1) return x < 0.f ? 0.f : x; // NaN stays NaN
    if constexpr (F == 2) return 0.5f * x * erfcf(-0.70710678118654752f * x);
    if constexpr (F == 3) return x / (1.f + expf(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
    if constexpr (F == 4) return x / (1.f + expf(-x));
    if constexpr (F == 5) return 1.f / (1.f + expf(-x));
    if constexpr (F == 6) return tanhf(x);
    return x;
}

} // namespace epilogue

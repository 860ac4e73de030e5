// Numbers: conversions of pairs, activations.
#pragma once
#include "common/cuda/ptx.cuh"

// Types of stored elements.
enum class Type { NONE, F32, F16, BF16, E4M3, E5M2, I32 };

KP_FN constexpr u32 bytes_of(Type t) { return t == Type::F32 || t == Type::I32 ? 4 : t == Type::F16 || t == Type::BF16 ? 2 : 1; }

// Two numbers rounded to nearest even; the first lies in the low half. Floats of 8 bits saturate, f16 and bf16 become infinite.
template <Type T> KP_FN u32 pack(float x, float y) {
    u32 p;
    if constexpr (T == Type::BF16) asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(p) : "f"(x), "f"(y));
    else if constexpr (T == Type::F16) asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(p) : "f"(x), "f"(y));
    else {
        u16 h;
        if constexpr (T == Type::E4M3) asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(h) : "f"(x), "f"(y));
        else asm("cvt.rn.satfinite.e5m2x2.f32 %0, %2, %1;" : "=h"(h) : "f"(x), "f"(y));
        p = h;
    }
    return p;
}

template <Type T> KP_FN float widened(u16 x) {
    float y;
    if constexpr (T == Type::BF16) y = __uint_as_float((u32)x << 16);
    else asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}

// Element `i` of an array of type T in global memory.
template <Type T> KP_FN float load(u64 array, i64 i) {
    if constexpr (T == Type::F32) return ((const float *)array)[i];
    else return widened<T>(((const u16 *)array)[i]);
}
// Elements `i` and `i + 1`, in one access; `i` is even and the array aligned to two elements.
template <Type T> KP_FN float2 load_pair(u64 array, i64 i) {
    if constexpr (T == Type::F32) return *(const float2 *)((const float *)array + i);
    else {
        u32 p = *(const u32 *)((const u16 *)array + i);
        return {widened<T>((u16)p), widened<T>((u16)(p >> 16))};
    }
}

// --- Activations, as kp-hal's `Act` defines them

enum class Act { IDENTITY, RELU, GELU, GELU_TANH, SILU, SIGMOID, TANH };

// 1 / (1 + 2^z), to a few units in the last place; 0 for large z.
KP_FN float logistic(float z) {
    float e, y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(z));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1 + e));
    return y;
}

template <Act A> KP_FN float activated(float x) {
    constexpr float LOG2_E = 1.4426950408889634f, TANH = 1.5957691216057308f; // 2 √(2/π)
    // What tends to 0 on the left would be infinity times 0 there. NaN stays.
    if constexpr (A == Act::GELU || A == Act::GELU_TANH || A == Act::SILU) asm("max.NaN.f32 %0, %0, 0fff61b1e6;" : "+f"(x)); // -3e38
    if constexpr (A == Act::RELU) return x < 0 ? 0 : x; // NaN stays
    else if constexpr (A == Act::GELU) {
        float half = 0.5f * x;
        return fmaf(half, erff(0.70710678118654752f * x), half);
    }
    // x / 2 (1 + tanh y) is x / (1 + e^-2y), which does not cancel.
    else if constexpr (A == Act::GELU_TANH) return x * logistic(x * fmaf(x * x, -0.044715f * TANH * LOG2_E, -TANH * LOG2_E));
    else if constexpr (A == Act::SILU) return x * logistic(-LOG2_E * x);
    else if constexpr (A == Act::SIGMOID) return logistic(-LOG2_E * x);
    else if constexpr (A == Act::TANH) return tanhf(x);
    else return x;
}

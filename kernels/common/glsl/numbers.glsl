// Number formats: codes of 32 bits and fewer as f32, and back, rounded to nearest even.
//
// kp says what each bit is, and Vulkan leaves open what a driver does with conversions: rounding of packHalf2x16, subnormal numbers,
// NaN. So they are integer arithmetic, unless the device was asked and does the same: see `probe.comp`. f32 holds every number
// of the narrower formats; of i32, 24 bits.

#include "common/glsl/memory.glsl"

// kp_hal::DType, in its order.
const uint F64 = 0u, F32 = 1u, TF32 = 2u, F16 = 3u, BF16 = 4u, E4M3 = 5u, E5M2 = 6u, E4M3FNUZ = 7u, E5M2FNUZ = 8u, E2M1 = 9u,
           NF4 = 10u, E8M0 = 11u, UE4M3 = 12u, I4 = 13u, U4 = 14u, I8 = 15u, U8 = 16u, I32 = 17u, I64 = 18u;

// Whether conversions between f16 and f32 are the device's own: they are exact, round to nearest even and know subnormal numbers.
// Set for every pipeline of a device.
layout(constant_id = 100) const uint NATIVE = 0u;

const uint QUIET_NAN = 0x7fc00000u, INFINITE = 0x7f800000u;

// Quantiles of a normal distribution scaled to [-1, 1] (QLoRA, appendix E).
const float NF4_VALUES[16] = float[](
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0);

bool is_nan(float x) {
    return (floatBitsToUint(x) & 0x7fffffffu) > INFINITE;
}

// Bits of an element.
uint bits_of(uint dtype) {
    switch (dtype) {
        case F64: case I64: return 64u;
        case F32: case TF32: case I32: return 32u;
        case F16: case BF16: return 16u;
        case E2M1: case NF4: case I4: case U4: return 4u;
        default: return 8u;
    }
}

// 2^e, where that is a normal number.
float power_of_two(int e) {
    return uintBitsToFloat(uint(e + 127) << 23);
}

// A code without sign of a format with `mantissa` bits and `bias`, all of whose codes are numbers.
float decoded(uint code, uint mantissa, int bias) {
    const uint u = (code << (23u - mantissa)) + (uint(127 - bias) << 23);
    // A subnormal number is what the same digits are with the next exponent, less the first of them.
    return code >> mantissa == 0u ? uintBitsToFloat(u + 0x800000u) - power_of_two(1 - bias) : uintBitsToFloat(u);
}

float with_sign(float magnitude, bool negative) {
    return uintBitsToFloat(floatBitsToUint(magnitude) | (negative ? 0x80000000u : 0u));
}

// A whole number from 0 to 255: the last digits of 2^23 and it.
float whole(uint number) {
    return uintBitsToFloat(0x4b000000u | number) - 8388608.0;
}

float of_f16(uint code) {
    if (NATIVE != 0u) {
        return unpackHalf2x16(code).x;
    }
    const uint magnitude = code & 0x7fffu;
    const float infinite = uintBitsToFloat(magnitude == 0x7c00u ? INFINITE : QUIET_NAN);
    return with_sign(magnitude >= 0x7c00u ? infinite : decoded(magnitude, 10u, 15), (code & 0x8000u) != 0u);
}

// The number that `code` stands for.
float of_code(uint code, uint dtype) {
    const bool negative = (code & 0x80u) != 0u;
    const uint magnitude = code & 0x7fu;
    const float not_a_number = uintBitsToFloat(QUIET_NAN);
    switch (dtype) {
        case F32: case TF32: return uintBitsToFloat(code);
        case F16: return of_f16(code);
        case BF16: return uintBitsToFloat(code << 16);
        case E4M3: return magnitude == 0x7fu ? not_a_number : with_sign(decoded(magnitude, 3u, 7), negative);
        case E5M2:
            if (magnitude > 0x7cu) return not_a_number;
            return with_sign(magnitude == 0x7cu ? uintBitsToFloat(INFINITE) : decoded(magnitude, 2u, 15), negative);
        case E4M3FNUZ: return code == 0x80u ? not_a_number : with_sign(decoded(magnitude, 3u, 8), negative);
        case E5M2FNUZ: return code == 0x80u ? not_a_number : with_sign(decoded(magnitude, 2u, 16), negative);
        case E2M1: return with_sign(decoded(code & 7u, 1u, 1), (code & 8u) != 0u);
        case NF4: return NF4_VALUES[code & 15u];
        case E8M0:
            // 2^-127 is no normal number.
            return code == 0xffu ? not_a_number : uintBitsToFloat(code == 0u ? 0x400000u : code << 23);
        case UE4M3: return magnitude == 0x7fu ? not_a_number : decoded(magnitude, 3u, 7);
        case I4: return whole((code & 15u) ^ 8u) - 8.0;
        case I8: return whole((code & 255u) ^ 128u) - 128.0;
        case I32: return float(int(code));
        default: return whole(code);
    }
}

// The code of element `index` of an operand at `base`.
uint code_at(uint64_t base, uint64_t index, uint dtype) {
    switch (bits_of(dtype)) {
        case 32u: return Word(base + 4ul * index).v;
        case 16u: return uint(Half(base + 2ul * index).v);
        case 8u: return uint(Byte(base + index).v);
        default: return uint(Byte(base + index / 2ul).v) >> (4u * (uint(index) & 1u)) & 15u;
    }
}

// Element `index` of an operand at `base`.
float number_at(uint64_t base, uint64_t index, uint dtype) {
    return of_code(code_at(base, index, dtype), dtype);
}

// The code, without sign and without a limit, of the finite magnitude whose bits are `a`, in a format with `mantissa` bits
// and `bias`: the nearest, or of two the even one.
uint encoded(uint a, uint mantissa, int bias) {
    if (NATIVE != 0u) {
        const uint rest = 23u - mantissa;
        const uint normal = ((a + (1u << rest - 1u) - 1u + (a >> rest & 1u)) >> rest) - (uint(127 - bias) << mantissa);
        // With a number added whose last digit counts as much as theirs, subnormal numbers are its last digits.
        const float large = power_of_two(24 - bias - int(mantissa));
        const uint small = floatBitsToUint(uintBitsToFloat(a) + large) - floatBitsToUint(large);
        return uintBitsToFloat(a) < power_of_two(1 - bias) ? small : normal;
    }
    const int exponent = max(int(a >> 23), 1);
    const uint fraction = (a & 0x7fffffu) | (a >= 0x800000u ? 0x800000u : 0u);
    // Biased as in f32, that of the format's smallest normal number.
    const int lowest = 128 - bias;
    const uint dropped = 23u - mantissa + uint(max(lowest - exponent, 0));
    if (dropped > 24u) {
        return 0u;
    }
    const uint rest = fraction & ((1u << dropped) - 1u);
    const uint middle = 1u << (dropped - 1u);
    const uint kept = fraction >> dropped;
    const uint rounded = kept + ((rest > middle || (rest == middle && (kept & 1u) == 1u)) ? 1u : 0u);
    return rounded + (uint(max(exponent - lowest, 0)) << mantissa);
}

uint to_f16(float x) {
    if (NATIVE != 0u) {
        return packHalf2x16(vec2(x, 0.0));
    }
    const uint u = floatBitsToUint(x);
    const uint sign = u >> 16 & 0x8000u;
    const uint a = u & 0x7fffffffu;
    if (a > INFINITE) {
        return sign | 0x7e00u;
    }
    return sign | (a == INFINITE ? 0x7c00u : min(encoded(a, 10u, 15), 0x7c00u));
}

uint to_bf16(float x) {
    const uint u = floatBitsToUint(x);
    if (is_nan(x)) {
        return u >> 16 | 0x40u;
    }
    return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

// Of the two neighbours in NF4 the nearer; of two as near, the lower code.
uint to_nf4(float x) {
    uint code = 0u;
    for (uint i = 1u; i < 16u; i++) {
        code += x > 0.5 * (NF4_VALUES[i - 1u] + NF4_VALUES[i]) ? 1u : 0u;
    }
    return code;
}

// Whole numbers: to nearest even, past the ends the ends, NaN becomes 0.
int to_whole(float x, int low, int high) {
    if (is_nan(x)) {
        return 0;
    }
    const float whole = roundEven(x);
    return whole <= float(low) ? low : whole >= float(high) ? high : int(whole);
}

// The code of `x`. Floats of 8 and 4 bits saturate; with `propagate`, those of 8 become what they have for infinity.
uint to_code(float x, uint dtype, bool propagate) {
    const uint u = floatBitsToUint(x);
    const uint a = u & 0x7fffffffu;
    const uint sign = u >> 24 & 0x80u;
    const bool nan = a > INFINITE;
    // An infinity is as far past every limit as the largest number.
    const uint finite = min(a, INFINITE - 1u);
    switch (dtype) {
        case F32: case TF32: return u;
        case F16: return to_f16(x);
        case BF16: return to_bf16(x);
        case E4M3: {
            const uint code = encoded(finite, 3u, 7);
            return sign | (nan ? 0x7fu : code > 0x7eu ? (propagate ? 0x7fu : 0x7eu) : code);
        }
        case E5M2: {
            const uint code = encoded(finite, 2u, 15);
            return sign | (nan ? 0x7fu : code > 0x7bu ? (propagate ? 0x7cu : 0x7bu) : code);
        }
        case E4M3FNUZ: case E5M2FNUZ: {
            const uint code = dtype == E4M3FNUZ ? encoded(finite, 3u, 8) : encoded(finite, 2u, 16);
            if (nan || (code > 0x7fu && propagate)) {
                return 0x80u;
            }
            return code == 0u ? 0u : sign | min(code, 0x7fu);
        }
        case E2M1: return nan ? 7u : sign >> 4 | min(encoded(finite, 1u, 1), 7u);
        case NF4: return to_nf4(x);
        case I4: return uint(to_whole(x, -8, 7)) & 15u;
        case U4: return uint(to_whole(x, 0, 15));
        case I8: return uint(to_whole(x, -128, 127)) & 255u;
        case U8: return uint(to_whole(x, 0, 255));
        case I32:
            // 2^31 - 1 is no f32; what is below 2^31 is at most 2^31 - 128.
            return nan ? 0u : x >= 2147483648.0 ? 0x7fffffffu : x <= -2147483648.0 ? 0x80000000u : uint(int(roundEven(x)));
        default: return 0u;
    }
}

// Stores a code of 8 bits or more.
void store_code(uint64_t base, uint64_t index, uint dtype, uint code) {
    switch (bits_of(dtype)) {
        case 32u: Word(base + 4ul * index).v = code; break;
        case 16u: Half(base + 2ul * index).v = uint16_t(code); break;
        default: Byte(base + index).v = uint8_t(code); break;
    }
}

void store_number(uint64_t base, uint64_t index, uint dtype, float x) {
    store_code(base, index, dtype, to_code(x, dtype, false));
}

// Scales of blocks, and codes: see kp_hal::op::QuantizeSpec. Whoever includes this has the constants Q_TYPE, SCALE_TYPE, RULE (that is
// kp_hal::op::ScaleRule, in its order) and FLAGS.

const uint HAS_SCALES = 1u, HAS_GLOBAL = 2u, HAS_ZEROS = 4u, GIVEN = 8u, PROPAGATE = 16u, HAS_WHOLE = 32u;
const uint NEAREST = 0u, FLOOR = 1u;

// x / y to the last bit, for y of twelve digits at most: drivers may divide to 2.5 ulp. Both halves of the quotient have exact
// products with y, and so has what is left of x.
float divided(float x, float y) {
    precise const float near = x / y;
    precise const float high = uintBitsToFloat(floatBitsToUint(near) & 0xfffff000u);
    precise const float left = (x - high * y) - (near - high) * y;
    precise const float better = near + left / y;
    // Infinite numbers leave nothing to add.
    return is_nan(better) ? near : better;
}

// The largest number of Q's type.
float largest_code() {
    switch (Q_TYPE) {
        case E4M3: return 448.0;
        case E5M2: case E5M2FNUZ: return 57344.0;
        case E4M3FNUZ: return 240.0;
        case E2M1: return 6.0;
        case I4: return 7.0;
        case U4: return 15.0;
        case I8: return 127.0;
        case U8: return 255.0;
        default: return 1.0;
    }
}

// The exponent of a positive finite number.
int exponent_of(float x) {
    const uint u = floatBitsToUint(x);
    return u < 0x800000u ? findMSB(u) - 149 : int(u >> 23) - 127;
}

// The first 24 bits of a positive finite number, the first of them set.
uint digits_of(float x) {
    const uint u = floatBitsToUint(x);
    return u < 0x800000u ? u << 23 - findMSB(u) : u & 0x7fffffu | 0x800000u;
}

// 2^e, as near as f32 has it.
float power(int e) {
    return e < -126 ? uintBitsToFloat(1u << max(e + 149, 0)) : uintBitsToFloat(uint(min(e, 127) + 127) << 23);
}

// The code of the scale of a block whose largest magnitude is `most`, after division by what multiplies all scales.
uint scale_code(float most, float by) {
    if (most == 0.0) {
        return SCALE_TYPE == E8M0 || SCALE_TYPE == UE4M3 ? 0u : to_code(1.0, SCALE_TYPE, false);
    }
    const float top = largest_code();
    float wanted = divided(most, top) / by;
    int e = exponent_of(most) - exponent_of(top);
    if (RULE != NEAREST) {
        // The smallest that is no less is one more, where the digits are.
        e += RULE != FLOOR && digits_of(most) > digits_of(top) ? 1 : 0;
        wanted = power(e);
    }
    switch (SCALE_TYPE) {
        case F32: return clamp(floatBitsToUint(wanted), 1u, INFINITE - 1u);
        case F16: return clamp(to_f16(wanted), 1u, 0x7bffu);
        case BF16: return clamp(to_bf16(wanted), 1u, 0x7f7fu);
        case UE4M3: return clamp(to_code(wanted, E4M3, false), 1u, 0x7eu);
        default:
            // A power of two; ties to the larger.
            if (RULE == NEAREST) {
                e = exponent_of(wanted) + (digits_of(wanted) >= 0xc00000u ? 1 : 0);
            }
            return uint(clamp(e + 127, 0, 254));
    }
}

// The code of `value`, of which `zero` is that of 0 where it is not the type's.
uint code_of(float value, float divisor, float zero) {
    if (is_nan(value)) {
        const bool has_nan = Q_TYPE == E4M3 || Q_TYPE == E5M2 || Q_TYPE == E4M3FNUZ || Q_TYPE == E5M2FNUZ;
        return has_nan ? to_code(value, Q_TYPE, false) : (FLAGS & HAS_ZEROS) != 0u ? uint(zero) : Q_TYPE == NF4 ? 7u : 0u;
    }
    // 0 / 0 is not the number's fault.
    const float quotient = (FLAGS & HAS_SCALES) == 0u ? value : value == 0.0 ? value : value / divisor;
    return to_code((FLAGS & HAS_ZEROS) != 0u ? roundEven(quotient + zero) : quotient, Q_TYPE, (FLAGS & PROPAGATE) != 0u);
}

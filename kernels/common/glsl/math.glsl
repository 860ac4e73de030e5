// Functions to some 2 ulp on every driver: Vulkan promises 3 + 2|x| ulp of exp, which is too few digits for f32, and of tanh
// less. The polynomials are least squares fits, weighted until the relative error was even.

// e^x. The logarithm of 2 comes in two parts, of which whole multiples of the first are exact.
float exp_of(float x) {
    if (is_nan(x)) {
        return x;
    }
    if (x > 88.8) {
        return uintBitsToFloat(INFINITE);
    }
    if (x < -104.0) {
        return 0.0;
    }
    const float n = roundEven(x * 1.44269504);
    const float r = (x - n * 0.693359375) + n * 2.12194440e-4;
    const float p = 0.5 + r * (0.166665733 + r * (0.0416668616 + r * (0.00836373307 + r * 0.00139015203)));
    const float e = 1.0 + (r + r * r * p);
    // In two steps, because 2^n alone may be no number where the product is one.
    const int low = int(n) >> 1;
    return e * power_of_two(low) * power_of_two(int(n) - low);
}

// e^x of a number that is at most 0, or little more: the device's own power of two where that has been asked.
float power_below(float x) {
    return NATIVE != 0u ? exp2(x * 1.44269504) : exp_of(x);
}

float tanh_of(float x) {
    if (is_nan(x)) {
        return x;
    }
    const float a = abs(x);
    if (a < 0.6) {
        const float z = x * x;
        return x + x * z * (-0.333333313 + z * (0.133329138 + z * (-0.0538738444 + z * (0.0211105961 - z * 0.00626869546))));
    }
    const float t = 1.0 - 2.0 / (exp_of(2.0 * min(a, 20.0)) + 1.0);
    return x < 0.0 ? -t : t;
}

// The normal distribution function, Φ(x) = (1 + erf(x/√2))/2.
float normal_below(float x) {
    const float a = abs(x) * 0.707106781;
    // erfc(a)·e^(a²) in t = 1/(1 + 0.4a); past 6 nothing is left of erfc.
    const float t = 1.0 / (1.0 + 0.4 * min(a, 6.0));
    const float q = 1.86950740e-04 + t * (0.222246855 + t * (0.253069371 + t * (0.0828333646 + t * (0.526913345
        + t * (-0.527242303 + t * (0.805875957 + t * (-0.448432684 + t * 0.0845490545)))))));
    const float beyond = 0.5 * q * power_below(-a * a);
    return x < 0.0 ? beyond : 1.0 - beyond;
}

float sigmoid_of(float x) {
    if (NATIVE != 0u) {
        return 1.0 / (1.0 + exp2(x * -1.44269504));
    }
    // Of a large negative number the exponential alone is left, which 1 + e^-x would divide by infinity.
    return x < -80.0 ? exp_of(x) : 1.0 / (1.0 + exp_of(-x));
}

// kp_hal::Act, in its order.
const uint IDENTITY = 0u, RELU = 1u, GELU = 2u, GELU_TANH = 3u, SILU = 4u, SIGMOID = 5u, TANH = 6u;

// x·p, where p tends to 0 with x to -infinity faster than x grows, or is NaN with x.
float times(float x, float p) {
    return max(x, -200.0) * p;
}

float activated(float x, uint act) {
    switch (act) {
        // A comparison alone may become a maximum, which loses NaN.
        case RELU: return is_nan(x) ? x : max(x, 0.0);
        case GELU: return times(x, normal_below(x));
        // 1 + tanh(z) = 2σ(2z), which does not cancel on the left.
        case GELU_TANH: return times(x, sigmoid_of(1.59576912 * (x + 0.044715 * x * x * x)));
        case SILU: return times(x, sigmoid_of(x));
        case SIGMOID: return sigmoid_of(x);
        case TANH: return tanh_of(x);
        default: return x;
    }
}

// ln x for x at least 1: what is left after the power of two, by the series of the inverse hyperbolic tangent.
float log_of(float x) {
    if (is_nan(x) || x == uintBitsToFloat(INFINITE)) {
        return x;
    }
    const uint u = floatBitsToUint(x);
    // Between √½ and √2.
    const int e = int(u - 0x3f3504f3u) >> 23;
    const float f = uintBitsToFloat(u - (uint(e) << 23));
    const float t = (f - 1.0) / (f + 1.0);
    const float z = t * t;
    const float series = t * z * (0.666666667 + z * (0.4 + z * (0.285714286 + z * 0.222222222)));
    return (float(e) * 0.693359375 + 2.0 * t) + (series - float(e) * 2.12194440e-4);
}

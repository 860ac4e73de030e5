#version 460

// Asks whether the device's own conversions and powers of two are what kp wants of them. Thread i looks at code i of f16, and at numbers of f32 on and
// between that code and the next; a bit of `wrong` is set for each kind of difference that somebody found.
//
// Compiled with NATIVE = 0, so that the functions it compares with are integer arithmetic.

#include "common/glsl/numbers.glsl"
#include "common/glsl/math.glsl"

layout(local_size_x = 256) in;

layout(push_constant, std430) uniform Push {
    uint64_t wrong;
};

const uint UNPACKED = 1u, PACKED = 2u, ADDED = 4u, RAISED = 8u;

// Whether two codes of f16 are the same, or both not a number.
bool same(uint x, uint y) {
    return x == y || ((x & 0x7fffu) > 0x7c00u && (y & 0x7fffu) > 0x7c00u);
}

void main() {
    const uint code = gl_GlobalInvocationID.x & 0xffffu;
    uint found = 0u;
    const float number = of_f16(code);
    const vec2 two = unpackHalf2x16(code | code << 16);
    if (floatBitsToUint(two.x) != floatBitsToUint(two.y)
        || (is_nan(number) ? !is_nan(two.x) : floatBitsToUint(two.x) != floatBitsToUint(number))) {
        found |= UNPACKED;
    }
    // The number and the middle between it and the next, both exact, what is on either side of them, and something else.
    const float next = of_f16(code + 1u & 0xffffu);
    const uint starts[3] = uint[](floatBitsToUint(number), floatBitsToUint(0.5 * (number + next)), floatBitsToUint(number) + 0xb75u);
    for (uint i = 0u; i < 3u; i++) {
        const float below = uintBitsToFloat(starts[i] - 1u);
        const float on = uintBitsToFloat(starts[i]);
        const float above = uintBitsToFloat(starts[i] + 1u);
        const uvec2 packed = uvec2(packHalf2x16(vec2(below, on)), packHalf2x16(vec2(above, on)));
        if (!same(packed.x & 0xffffu, to_f16(below)) || !same(packed.x >> 16, to_f16(on)) || !same(packed.y & 0xffffu, to_f16(above))) {
            found |= PACKED;
        }
        // Additions round to nearest even: what is left of numbers below 1 next to 2^14, against the other way.
        const uint a = floatBitsToUint(on) & 0x7fffffffu;
        if (a < 0x3c800000u) {
            const uint small = floatBitsToUint(uintBitsToFloat(a) + 16384.0) - 0x46800000u;
            if (small != encoded(a, 3u, 7)) {
                found |= ADDED;
            }
        }
    }
    // Powers down to the smallest normal number, to 5 ulp; what Vulkan promises gets worse with the exponent.
    const float x = float(code) * -0.001922;
    const float n = roundEven(x);
    const float wanted = exp_of((x - n) * 0.693147181) * power_of_two(int(n));
    if (!(abs(exp2(x) - wanted) <= 6e-7 * wanted)) {
        found |= RAISED;
    }
    if (found != 0u) {
        atomicOr(Word(wrong).v, found);
    }
}

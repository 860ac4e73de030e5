// Runs of eight neighbouring numbers, loaded and stored at once where they start on as many bytes as they have, 16 of them at most.
//
// Who loads several runs and knows that all are whole says so by a count of 8: where a run may be less, the driver waits for each
// before it loads the next.

#ifdef OPEN
// Loops over runs stay loops: a driver for processors would compile the code of every type for each turn.
#define UNROLL
#else
#define UNROLL [[unroll]]
#endif

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Pair { uvec2 v; };

#ifdef NF4_TABLE
// Where threads look numbers of NF4 up, once a group has called `bring_nf4_table`: an index into constants costs far more.
shared float nf4_table[16];

void bring_nf4_table() {
    if (gl_LocalInvocationIndex < 16u) {
        nf4_table[gl_LocalInvocationIndex] = NF4_VALUES[gl_LocalInvocationIndex];
    }
    barrier();
}
#endif

// A run as it lies in memory: `high` where numbers have 32 bits.
struct Run {
    uvec4 low;
    uvec4 high;
};

// Numbers `place` to `place` + `count` of an operand, 0 behind them; `at_once` if eight may be loaded together.
Run run_at(uint64_t base, uint64_t place, uint count, uint dtype, bool at_once) {
    const uint bits = bits_of(dtype);
    Run run = Run(uvec4(0u), uvec4(0u));
    if (at_once && count >= 8u) {
        switch (bits) {
            case 32u:
                run.low = Quad(base + 4ul * place).v;
                run.high = Quad(base + 4ul * place + 16ul).v;
                break;
            case 16u: run.low = Quad(base + 2ul * place).v; break;
            case 8u: run.low.xy = Pair(base + place).v; break;
            default: run.low.x = Word(base + place / 2ul).v; break;
        }
        return run;
    }
    if (dtype == NF4) {
        // 0 has code 7 of 0 to 15.
        run.low.x = count < 8u ? 0x77777777u << 4u * count : 0u;
    }
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        if (i < count) {
            const uint code = code_at(base, place + i, dtype) << i * bits % 32u;
            if (i * bits < 128u) {
                run.low[i * bits / 32u % 4u] |= code;
            } else {
                run.high[i * bits / 32u % 4u] |= code;
            }
        }
    }
    return run;
}

// What eight codes stand for.
struct Eight {
    vec4 low;
    vec4 high;
};

// One of them, of a format that has no shorter way below.
float number_in(Run run, uint i, uint dtype) {
    const uint bits = bits_of(dtype);
    const uint word = i * bits < 128u ? run.low[i * bits / 32u % 4u] : run.high[i * bits / 32u % 4u];
    return of_code(bits == 32u ? word : word >> i * bits % 32u & ((1u << bits % 32u) - 1u), dtype);
}

// Two numbers of 16 bits.
vec2 two_in(uint word, uint dtype) {
    return dtype == F16 ? unpackHalf2x16(word) : vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000u));
}

// Four numbers of 8 bits, by way of f16: E5M2 is its first half, E4M3 has its exponents in their middle.
vec4 four_in(uint word, uint dtype) {
    const uvec2 codes = uvec2(word, word >> 8) & 0x00ff00ffu;
    const uvec2 halves = dtype == E5M2 ? codes << 8 : (codes & 0x007f007fu) << 7 | (codes & 0x00800080u) << 8;
    const vec2 even = unpackHalf2x16(halves.x);
    const vec2 odd = unpackHalf2x16(halves.y);
    vec4 four = vec4(even.x, odd.x, even.y, odd.y);
    if (dtype == E4M3) {
        // The greatest magnitude would be 480.
        four *= 256.0;
        four = mix(four, vec4(uintBitsToFloat(QUIET_NAN)), greaterThan(abs(four), vec4(448.0)));
    }
    return four;
}

// Numbers `i` and `i` + 4 of E2M1, by way of f16.
vec2 pair_in(uint word, uint i) {
    const uint codes = word >> 4u * i;
    return unpackHalf2x16((codes & 0x00070007u) << 9 | (codes & 0x00080008u) << 12) * 16384.0;
}

// A whole number of 4 bits: 2^23 with the code among its digits, brought to where its last one counts 1.
float whole_in(uint word, uint i, float less) {
    const uint place = 4u * (i % 5u);
    const float digits = uintBitsToFloat(0x4b000000u | (i < 5u ? word : word >> 20) & 15u << place);
    return digits * power_of_two(-int(place)) - (power_of_two(23 - int(place)) + less);
}

// Written out, because what a driver makes of arrays of numbers is not always registers.
Eight eight_of(Run run, uint dtype) {
    const uvec4 low = run.low;
    if (dtype == BF16 || (dtype == F16 && NATIVE != 0u)) {
        return Eight(vec4(two_in(low.x, dtype), two_in(low.y, dtype)), vec4(two_in(low.z, dtype), two_in(low.w, dtype)));
    }
    if (dtype == F32 || dtype == TF32) {
        return Eight(uintBitsToFloat(low), uintBitsToFloat(run.high));
    }
    if ((dtype == E4M3 || dtype == E5M2) && NATIVE != 0u) {
        return Eight(four_in(low.x, dtype), four_in(low.y, dtype));
    }
    if (dtype == E2M1 && NATIVE != 0u) {
        const vec2 a = pair_in(low.x, 0u);
        const vec2 b = pair_in(low.x, 1u);
        const vec2 c = pair_in(low.x, 2u);
        const vec2 d = pair_in(low.x, 3u);
        return Eight(vec4(a.x, b.x, c.x, d.x), vec4(a.y, b.y, c.y, d.y));
    }
    if (dtype == I4 || dtype == U4) {
        const uint word = dtype == I4 ? low.x ^ 0x88888888u : low.x;
        const float less = dtype == I4 ? 8.0 : 0.0;
        return Eight(vec4(whole_in(word, 0u, less), whole_in(word, 1u, less), whole_in(word, 2u, less), whole_in(word, 3u, less)),
                     vec4(whole_in(word, 4u, less), whole_in(word, 5u, less), whole_in(word, 6u, less), whole_in(word, 7u, less)));
    }
#ifdef NF4_TABLE
    if (dtype == NF4) {
        const uvec4 places = uvec4(0u, 4u, 8u, 12u);
        const uvec4 first = uvec4(low.x) >> places & 15u;
        const uvec4 last = uvec4(low.x) >> places + 16u & 15u;
        return Eight(vec4(nf4_table[first.x], nf4_table[first.y], nf4_table[first.z], nf4_table[first.w]),
                     vec4(nf4_table[last.x], nf4_table[last.y], nf4_table[last.z], nf4_table[last.w]));
    }
#endif
    return Eight(vec4(number_in(run, 0u, dtype), number_in(run, 1u, dtype), number_in(run, 2u, dtype), number_in(run, 3u, dtype)),
                 vec4(number_in(run, 4u, dtype), number_in(run, 5u, dtype), number_in(run, 6u, dtype), number_in(run, 7u, dtype)));
}

void numbers_of(Run run, uint dtype, out float numbers[8]) {
    const Eight x = eight_of(run, dtype);
    numbers = float[](x.low.x, x.low.y, x.low.z, x.low.w, x.high.x, x.high.y, x.high.z, x.high.w);
}

void load_run(uint64_t base, uint64_t place, uint count, uint dtype, bool at_once, out float numbers[8]) {
    numbers_of(run_at(base, place, count, dtype, at_once), dtype, numbers);
}

// Stores a run's first `count` codes, all at once if `at_once`; of 8 bits and more.
void store_codes(uint64_t base, uint64_t place, uint count, uint dtype, bool at_once, Run run) {
    const uint bits = bits_of(dtype);
    if (at_once && count >= 8u) {
        switch (bits) {
            case 32u:
                Quad(base + 4ul * place).v = run.low;
                Quad(base + 4ul * place + 16ul).v = run.high;
                break;
            case 16u: Quad(base + 2ul * place).v = run.low; break;
            default: Pair(base + place).v = run.low.xy; break;
        }
        return;
    }
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        if (i < count) {
            const uint word = i * bits < 128u ? run.low[i * bits / 32u % 4u] : run.high[i * bits / 32u % 4u];
            store_code(base, place + i, dtype, word >> i * bits % 32u);
        }
    }
}

// The lowest bytes of four words.
uint low_bytes(uvec4 w) {
    return (w.x & 0xffu) | (w.y & 0xffu) << 8 | (w.z & 0xffu) << 16 | w.w << 24;
}

// Two numbers, neither of them NaN, as bf16.
uint two_bf16(float x, float y) {
    const uvec2 u = floatBitsToUint(vec2(x, y));
    const uvec2 rounded = u + 0x7fffu + (u >> 16 & 1u);
    return rounded.x >> 16 | (rounded.y & 0xffff0000u);
}

// E4M3 and E5M2: digits behind the point, the bias, and the largest number.
uint digits_of_narrow(uint dtype) {
    return dtype == E4M3 ? 3u : 2u;
}

int bias_of_narrow(uint dtype) {
    return dtype == E4M3 ? 7 : 15;
}

float largest_of_narrow(uint dtype) {
    return dtype == E4M3 ? 448.0 : 57344.0;
}

// Magnitudes' codes, in the lowest seven bits, of four numbers times 2^bias, none of them NaN: saturating, to nearest even. Times
// that, the smallest normal number is 2. A power of two is added that leaves of each number its digits.
uvec4 four_magnitudes(vec4 x, uint dtype) {
    const uint rest = 23u - digits_of_narrow(dtype);
    const vec4 a = min(abs(x), vec4(largest_of_narrow(dtype) * power_of_two(bias_of_narrow(dtype))));
    const uvec4 first = max(floatBitsToUint(a) & INFINITE, uvec4(0x40000000u));
    const vec4 cut = uintBitsToFloat(first) * power_of_two(int(rest)) + a;
    return floatBitsToUint(cut) + (first >> rest);
}

// The bytes with the signs of four numbers, at their highest bits.
uint four_signs(vec4 x) {
    return low_bytes(floatBitsToUint(x) >> 24) & 0x80808080u;
}

// The codes of eight numbers times 2^bias, none of them NaN, in a type of 8 bits.
uvec2 eight_codes(vec4 low, vec4 high, uint dtype) {
    const uvec2 magnitudes = uvec2(low_bytes(four_magnitudes(low, dtype)), low_bytes(four_magnitudes(high, dtype)));
    return (magnitudes & 0x7f7f7f7fu) | uvec2(four_signs(low), four_signs(high));
}

// Magnitudes' codes of four numbers in E2M1, none of them NaN: numbers are a half apart up to 2, then 1, then 2 from 4 on, and of the
// three straight lines through their codes the lowest is right. Rounding is adding 2^23 and a half of it.
uvec4 four_e2m1(vec4 x) {
    const vec4 a = abs(x);
    const uvec4 halves = floatBitsToUint(a * 2.0 + 12582912.0);
    const uvec4 ones = floatBitsToUint(a + 12582914.0);
    const uvec4 twos = floatBitsToUint(a * 0.5 + 12582916.0);
    return min(min(halves, ones), min(twos, uvec4(0x4b400007u)));
}

// The codes of eight numbers in E2M1, none of them NaN: of even places, and of odd ones.
uint eight_e2m1(vec4 even, vec4 odd) {
    return (low_bytes(four_e2m1(even)) | four_signs(even) >> 4) + ((low_bytes(four_e2m1(odd)) << 4) | four_signs(odd));
}

// Whether one of them is NaN, by the bits of each: NVIDIA's driver 580 takes a sum of them for a number where one is 0 times infinity.
bool has_nan(float x[8]) {
    uint most = 0u;
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        most = max(most, floatBitsToUint(x[i]) & 0x7fffffffu);
    }
    return most > INFINITE;
}

// The codes of numbers, of 8 bits and more.
Run run_of(float numbers[8], uint dtype, bool propagate) {
    Run run = Run(uvec4(0u), uvec4(0u));
    if (dtype == F32 || dtype == TF32) {
        run.low = floatBitsToUint(vec4(numbers[0], numbers[1], numbers[2], numbers[3]));
        run.high = floatBitsToUint(vec4(numbers[4], numbers[5], numbers[6], numbers[7]));
        return run;
    }
    if (dtype == F16 && NATIVE != 0u) {
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            run.low[i] = packHalf2x16(vec2(numbers[2u * i], numbers[2u * i + 1u]));
        }
        return run;
    }
    const bool narrow = NATIVE != 0u && !propagate && (dtype == E4M3 || dtype == E5M2);
    if ((dtype == BF16 || narrow) && !has_nan(numbers)) {
        if (dtype == BF16) {
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                run.low[i] = two_bf16(numbers[2u * i], numbers[2u * i + 1u]);
            }
        } else {
            const float by = power_of_two(bias_of_narrow(dtype));
            run.low.xy = eight_codes(by * vec4(numbers[0], numbers[1], numbers[2], numbers[3]),
                                     by * vec4(numbers[4], numbers[5], numbers[6], numbers[7]), dtype);
        }
        return run;
    }
    const uint bits = bits_of(dtype);
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        const uint code = to_code(numbers[i], dtype, propagate) << i * bits % 32u;
        if (i * bits < 128u) {
            run.low[i * bits / 32u % 4u] |= code;
        } else {
            run.high[i * bits / 32u % 4u] |= code;
        }
    }
    return run;
}

void store_run(uint64_t base, uint64_t place, uint count, uint dtype, bool at_once, float numbers[8]) {
    store_codes(base, place, count, dtype, at_once, run_of(numbers, dtype, false));
}

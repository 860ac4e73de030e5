// Runs of eight neighbouring numbers, loaded and stored at once where they start on as many bytes as they have, 16 of them at most.

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

// Numbers `place` to `place` + `count` of an operand, codes of 0 behind them; `at_once` if eight may be loaded together.
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

// What a run's codes stand for.
void numbers_of(Run run, uint dtype, out float numbers[8]) {
    if (dtype == BF16 || (dtype == F16 && NATIVE != 0u)) {
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            const uint word = run.low[i];
            const vec2 two = dtype == F16 ? unpackHalf2x16(word) : vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000u));
            numbers[2u * i] = two.x;
            numbers[2u * i + 1u] = two.y;
        }
        return;
    }
    if ((dtype == E4M3 || dtype == E5M2) && NATIVE != 0u) {
        // E5M2 is the first half of f16; E4M3 has its exponents in their middle.
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            const uint codes = run.low[i / 2u] >> 8u * (i % 2u) & 0x00ff00ffu;
            const uint halves = dtype == E5M2 ? codes << 8 : (codes & 0x007f007fu) << 7 | (codes & 0x00800080u) << 8;
            const vec2 two = unpackHalf2x16(halves) * (dtype == E5M2 ? 1.0 : 256.0);
            // The greatest magnitude would be 480.
            numbers[i / 2u * 4u + i % 2u] = dtype == E4M3 && abs(two.x) > 448.0 ? uintBitsToFloat(QUIET_NAN) : two.x;
            numbers[i / 2u * 4u + i % 2u + 2u] = dtype == E4M3 && abs(two.y) > 448.0 ? uintBitsToFloat(QUIET_NAN) : two.y;
        }
        return;
    }
    if (dtype == E2M1 && NATIVE != 0u) {
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            const uint codes = run.low.x >> 4u * i & 0x000f000fu;
            const vec2 two = unpackHalf2x16((codes & 0x00070007u) << 9 | (codes & 0x00080008u) << 12) * 16384.0;
            numbers[i] = two.x;
            numbers[i + 4u] = two.y;
        }
        return;
    }
    if (dtype == I4 || dtype == U4) {
        // 2^23 with the code among its digits, brought to where its last one counts 1.
        const uint word = dtype == I4 ? run.low.x ^ 0x88888888u : run.low.x;
        [[unroll]] for (uint i = 0u; i < 8u; i++) {
            const uint place = 4u * (i % 5u);
            const float digits = uintBitsToFloat(0x4b000000u | (i < 5u ? word : word >> 20) & 15u << place);
            numbers[i] = digits * power_of_two(-int(place)) - (power_of_two(23 - int(place)) + (dtype == I4 ? 8.0 : 0.0));
        }
        return;
    }
#ifdef NF4_TABLE
    if (dtype == NF4) {
        [[unroll]] for (uint i = 0u; i < 8u; i++) {
            numbers[i] = nf4_table[run.low.x >> 4u * i & 15u];
        }
        return;
    }
#endif
    const uint bits = bits_of(dtype);
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        const uint word = i * bits < 128u ? run.low[i * bits / 32u % 4u] : run.high[i * bits / 32u % 4u];
        numbers[i] = of_code(bits == 32u ? word : word >> i * bits % 32u & ((1u << bits % 32u) - 1u), dtype);
    }
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

// The codes of numbers, of 8 bits and more.
Run run_of(float numbers[8], uint dtype, bool propagate) {
    Run run = Run(uvec4(0u), uvec4(0u));
    if (dtype == F16 && NATIVE != 0u) {
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            run.low[i] = packHalf2x16(vec2(numbers[2u * i], numbers[2u * i + 1u]));
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

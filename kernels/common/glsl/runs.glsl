// Runs of eight neighbouring numbers, loaded and stored at once where they start on as many bytes as they have, 16 of them at most.

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Pair { uvec2 v; };

// Numbers `place` to `place` + `count` of an operand, 0 behind them; `at_once` if eight may be loaded together.
void load_run(uint64_t base, uint64_t place, uint count, uint dtype, bool at_once, out float numbers[8]) {
    const uint bits = bits_of(dtype);
    if (at_once && count >= 8u && bits >= 4u) {
        const uint64_t from = base + place * bits / 8ul;
        uint words[8];
        if (bits == 32u) {
            const uvec4 low = Quad(from).v;
            const uvec4 high = Quad(from + 16ul).v;
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                words[i] = low[i];
                words[4u + i] = high[i];
            }
        } else if (bits == 16u) {
            const uvec4 all = Quad(from).v;
            [[unroll]] for (uint i = 0u; i < 8u; i++) {
                words[i] = all[i / 2u] >> 16u * (i % 2u) & 0xffffu;
            }
        } else if (bits == 8u) {
            const uvec2 all = Pair(from).v;
            [[unroll]] for (uint i = 0u; i < 8u; i++) {
                words[i] = all[i / 4u] >> 8u * (i % 4u) & 0xffu;
            }
        } else {
            const uint all = Word(from).v;
            [[unroll]] for (uint i = 0u; i < 8u; i++) {
                words[i] = all >> 4u * i & 0xfu;
            }
        }
        [[unroll]] for (uint i = 0u; i < 8u; i++) {
            numbers[i] = of_code(words[i], dtype);
        }
        return;
    }
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        numbers[i] = i < count ? number_at(base, place + i, dtype) : 0.0;
    }
}

// Stores codes, eight at once if `at_once` and there are as many; of 8 bits and more.
void store_run(uint64_t base, uint64_t place, uint count, uint dtype, bool at_once, float numbers[8]) {
    const uint bits = bits_of(dtype);
    uint codes[8];
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        codes[i] = to_code(numbers[i], dtype, false);
    }
    if (at_once && count >= 8u) {
        const uint64_t to = base + place * bits / 8ul;
        if (bits == 32u) {
            Quad(to).v = uvec4(codes[0], codes[1], codes[2], codes[3]);
            Quad(to + 16ul).v = uvec4(codes[4], codes[5], codes[6], codes[7]);
        } else if (bits == 16u) {
            Quad(to).v = uvec4(codes[0] | codes[1] << 16, codes[2] | codes[3] << 16, codes[4] | codes[5] << 16, codes[6] | codes[7] << 16);
        } else {
            Pair(to).v = uvec2(codes[0] | codes[1] << 8 | codes[2] << 16 | codes[3] << 24,
                               codes[4] | codes[5] << 8 | codes[6] << 16 | codes[7] << 24);
        }
        return;
    }
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        if (i < count) {
            store_code(base, place + i, dtype, codes[i]);
        }
    }
}

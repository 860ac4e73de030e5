// Which keys a query sees, and what a score becomes before its exponential. Positions are those of kp_hal::op::Mask.

int64_t of_operator(uint op, int64_t x, int64_t y) {
    switch (op) {
        case 0x7cu: return x != 0l || y != 0l ? 1l : 0l;
        case 0x26u: return x != 0l && y != 0l ? 1l : 0l;
        case 0x3du: return x == y ? 1l : 0l;
        case 0x23u: return x != y ? 1l : 0l;
        case 0x6cu: return x <= y ? 1l : 0l;
        case 0x67u: return x >= y ? 1l : 0l;
        case 0x3cu: return x < y ? 1l : 0l;
        case 0x3eu: return x > y ? 1l : 0l;
        case 0x2bu: return x + y;
        case 0x2du: return x - y;
        case 0x2au: return x * y;
        // By -1 in its own way: what the least number divided by it is, no machine agrees on.
        case 0x2fu: return y == 0l ? 0l : y == -1l ? -x : x / y;
        default: return y == 0l || y == -1l ? 0l : x - x / y * y;
    }
}

// The expression's value: its code is postfix, a number being 0 and four bytes. See kp_hal::op::Expr::code.
bool expression(int position, int key, uint head, uint number) {
    const uint code[12] = uint[](CODE_0, CODE_1, CODE_2, CODE_3, CODE_4, CODE_5, CODE_6, CODE_7, CODE_8, CODE_9, CODE_10, CODE_11);
    // Deeper than any expression nests.
    int64_t stack[26];
    uint top = 0u;
    // What follows the code is 0s, and no code ends in a number's first byte.
    for (uint at = 0u; at < MASK_A; at++) {
        const uint op = code[at / 4u] >> 8u * (at % 4u) & 0xffu;
        switch (op) {
            case 0u: {
                uint value = 0u;
                for (uint i = 1u; i <= 4u; i++) {
                    value |= (code[(at + i) / 4u] >> 8u * ((at + i) % 4u) & 0xffu) << 8u * (i - 1u);
                }
                stack[top++] = int64_t(value);
                at += 4u;
                break;
            }
            case 0x71u: stack[top++] = int64_t(position); break;
            case 0x6bu: stack[top++] = int64_t(key); break;
            case 0x68u: stack[top++] = int64_t(head); break;
            case 0x62u: stack[top++] = int64_t(number); break;
            case 0x21u: stack[top - 1u] = stack[top - 1u] == 0l ? 1l : 0l; break;
            case 0x7eu: stack[top - 1u] = -stack[top - 1u]; break;
            default:
                top--;
                stack[top - 1u] = of_operator(op, stack[top - 1u], stack[top]);
                break;
        }
    }
    return stack[0] != 0l;
}

// Whether query `query` at `position` sees key `key`.
bool sees(Sequence s, uint query, int position, uint key, uint head) {
    const int at = int(key);
    switch (MASK) {
        case MASK_CAUSAL: return at <= position;
        // Distances that pass the end of 32 bits are as good as the end.
        case MASK_WINDOW: return int64_t(position) - int64_t(MASK_A) <= int64_t(at) && int64_t(at) <= int64_t(position) + int64_t(MASK_B);
        case MASK_PREFIX: return at <= position || key < MASK_A;
        case MASK_BLOCKS: {
            const uint64_t place = uint64_t(query / MASK_A) * ((kv_len + MASK_B - 1u) / MASK_B) + key / MASK_B;
            return uint(Byte(given[AT_BLOCKS] + place).v) != 0u;
        }
        case MASK_EXPR: return expression(position, at, head, s.number);
        default: return true;
    }
}

// The keys that queries `first` to `last` can see at most, from x to before y.
uvec2 in_sight(Sequence s, uint first, uint last) {
    const int64_t ahead = int64_t(s.keys) - int64_t(s.queries);
    const int64_t from = int64_t(first) + ahead;
    const int64_t to = int64_t(last) + ahead;
    const int64_t all = int64_t(s.keys);
    switch (MASK) {
        case MASK_CAUSAL: return uvec2(0u, uint(clamp(to + 1l, 0l, all)));
        case MASK_WINDOW: return uvec2(uint(clamp(from - int64_t(MASK_A), 0l, all)), uint(clamp(to + int64_t(MASK_B) + 1l, 0l, all)));
        case MASK_PREFIX: return uvec2(0u, uint(clamp(max(to + 1l, int64_t(MASK_A)), 0l, all)));
        default: return uvec2(0u, s.keys);
    }
}

// Whether row `row` sees key `key`, both being there.
bool is_seen(Sequence s, uint row, uint key, uint head) {
    const uint query = row / GROUP;
    return key < s.keys && query < s.queries && sees(s, query, int(query) + int(s.keys) - int(s.queries), key, head);
}

// What the dot product of a query with a key counts for; -infinity where it is not seen.
float score(float dot_product, Sequence s, uint row, uint key, uint head) {
    if (!is_seen(s, row, key, head)) {
        return -uintBitsToFloat(INFINITE);
    }
    float x = SCALE * dot_product;
    if (SOFTCAP != 0.0) {
        x = SOFTCAP * tanh_of(x / SOFTCAP);
    }
    if ((FLAGS & HAS_SLOPES) != 0u) {
        x += real_at(AT_SLOPES, head) * float(int(key) - (int(row / GROUP) + int(s.keys) - int(s.queries)));
    }
    return x;
}

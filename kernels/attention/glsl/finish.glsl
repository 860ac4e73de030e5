// What becomes of a row when its keys are done: a result, or a part of one that `merge.comp` puts together.

// Numbers of one part of a row: its share of O, undivided, the greatest score, and the sum of the weights against it.
const uint PART = V_DIM + 2u;

// Where part `split` of row `row` lies in scratch, in numbers.
uint64_t part_place(uint number, uint kv_head, uint row, uint split) {
    const uint64_t rows = uint64_t(q_len) * GROUP;
    return (((uint64_t(number) * KV_HEADS + kv_head) * rows + row) * splits + split) * PART;
}

void store_part(uint64_t place, uint at, float x) {
    Word(given[AT_SCRATCH] + 4ul * (place + at)).v = floatBitsToUint(x);
}

float part_at(uint64_t place, uint at) {
    return real_at(AT_SCRATCH, place + at);
}

// Stores the log-sum-exp of a query that has one.
void store_lse(uvec3 token, uint head, float most, float total) {
    if ((FLAGS & HAS_LSE) != 0u) {
        // The sum is at least 1, of which the logarithm is known.
        const float all = total == 0.0 ? -uintBitsToFloat(INFINITE) : most + log_of(total);
        Word(given[AT_LSE] + 4ul * lse_place(token, head)).v = floatBitsToUint(all);
    }
}

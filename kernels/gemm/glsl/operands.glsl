// Elements of A and B wherever they lie.

// The index of A's element (`row`, `col`), the matrix starting at `origin`.
uint64_t a_place(uint64_t origin, uint row, uint col) {
    return origin + (A_FORM == 0u ? uint64_t(row) * a_ld + col : uint64_t(col) * a_ld + row);
}

// The index of B's element (`row`, `col`).
uint64_t b_place(uint64_t origin, uint row, uint col) {
    if (B_FORM == 2u) {
        const uint width = b_ld & 0xffffu;
        const uint depth = b_ld >> 16;
        const uint64_t panel = uint64_t((k + depth - 1u) / depth * depth) * width;
        const uint64_t group = uint64_t(row / depth * depth) * width;
        return origin + col / width * panel + group + col % width * depth + row % depth;
    }
    return origin + (B_FORM == 0u ? uint64_t(row) * b_ld + col : uint64_t(col) * b_ld + row);
}

// Whose rows are whose where rows are in groups: numbers at GROUPS_BASE, which whoever includes this names.

const uint CONTIGUOUS = 256u, MASKED = 512u;

// What is at work: its group, and the row behind the last that there is.
uint group_at_work;
uint row_end;

#define FIRST_BIAS ((FLAGS & (CONTIGUOUS | MASKED)) != 0u ? uint64_t(group_at_work) * n : 0ul)
#define ROW_END row_end

// Number `i` of those that say whose rows are whose; none is past the last row, whatever they are.
uint group_number(uint i) {
    return uint(clamp(int(Word(GROUPS_BASE + 4ul * i).v), 0, int(m)));
}

// The first row and the row behind the last of group `g`.
uvec2 group_rows(uint g) {
    if ((FLAGS & MASKED) != 0u) {
        return uvec2(0u, group_number(g));
    }
    return (FLAGS & CONTIGUOUS) != 0u ? uvec2(group_number(g), group_number(g + 1u)) : uvec2(0u, m);
}

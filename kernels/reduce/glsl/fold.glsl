// How numbers become one. All extremes are largest numbers: the smallest is the largest of what is negated.

layout(push_constant, std430) uniform Push {
    uint64_t x;
    uint64_t y;
    uint64_t offsets;
    uint rows;
    uint cols;
    uint x_ld;
    // Results of a column.
    uint segments;
};

// kp_hal::op::ReduceOp, in its order.
const uint SUM = 0u, MEAN = 1u, MAX = 2u, MIN = 3u, AMAX = 4u;

bool is_extreme() {
    return OP >= MAX;
}

float neutral() {
    return OP == MAX || OP == MIN ? -uintBitsToFloat(INFINITE) : 0.0;
}

float folded(float all, float x) {
    switch (OP) {
        case MAX: return larger(all, x);
        case MIN: return larger(all, -x);
        case AMAX: return larger(all, abs(x));
        default: return all + x;
    }
}

float result_of(float all, uint count) {
    if (OP == MEAN) {
        return count == 0u ? uintBitsToFloat(QUIET_NAN) : all / float(count);
    }
    return OP == MIN ? -all : all;
}

// Sums and extremes over a workgroup of THREADS: over each subgroup, then over those in their order, the same bits each time.
//
// Every thread calls, and every thread gets the result.

#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require

// Two sets in turn: whoever writes the next one may be ahead of those who read the last.
shared uint of_subgroups[2u * THREADS];
uint set_of_subgroups = 0u;

// What each subgroup has, at `of_subgroups[first]` and behind it; `first` is the result.
uint gathered(uint word) {
    set_of_subgroups = THREADS - set_of_subgroups;
    if (subgroupElect()) {
        of_subgroups[set_of_subgroups + gl_SubgroupID] = word;
    }
    barrier();
    return set_of_subgroups;
}

float group_sum(float x) {
    float all = subgroupAdd(x);
    if (gl_NumSubgroups > 1u) {
        const uint first = gathered(floatBitsToUint(all));
        all = 0.0;
        for (uint i = 0u; i < gl_NumSubgroups; i++) {
            all += uintBitsToFloat(of_subgroups[first + i]);
        }
    }
    return all;
}

// The larger; NaN if either is.
float larger(float x, float y) {
    return is_nan(x) ? x : is_nan(y) ? y : x > y ? x : y;
}

// A number's place in the order of all, NaN being the last.
uint rank_of(float x) {
    const uint u = floatBitsToUint(x);
    return is_nan(x) ? 0xffffffffu : (u & 0x80000000u) != 0u ? ~u : u | 0x80000000u;
}

float group_max(float x) {
    uint rank = subgroupMax(rank_of(x));
    if (gl_NumSubgroups > 1u) {
        const uint first = gathered(rank);
        for (uint i = 0u; i < gl_NumSubgroups; i++) {
            rank = max(rank, of_subgroups[first + i]);
        }
    }
    return rank == 0xffffffffu ? uintBitsToFloat(QUIET_NAN) : uintBitsToFloat((rank & 0x80000000u) != 0u ? rank & 0x7fffffffu : ~rank);
}

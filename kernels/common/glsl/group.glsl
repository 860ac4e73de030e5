// Sums and extremes over a workgroup of THREADS, a power of two, by a tree: the same bits each time.
//
// Every thread calls, and every thread gets the result.

shared float of_threads[THREADS];

float group_sum(float x) {
    const uint thread = gl_LocalInvocationIndex;
    of_threads[thread] = x;
    barrier();
    for (uint half_of = THREADS / 2u; half_of > 0u; half_of /= 2u) {
        if (thread < half_of) {
            of_threads[thread] += of_threads[thread + half_of];
        }
        barrier();
    }
    const float all = of_threads[0];
    // Nobody writes the next ones before everybody has read this.
    barrier();
    return all;
}

// The larger; NaN if either is.
float larger(float x, float y) {
    return is_nan(x) ? x : is_nan(y) ? y : x > y ? x : y;
}

float group_max(float x) {
    const uint thread = gl_LocalInvocationIndex;
    of_threads[thread] = x;
    barrier();
    for (uint half_of = THREADS / 2u; half_of > 0u; half_of /= 2u) {
        if (thread < half_of) {
            of_threads[thread] = larger(of_threads[thread], of_threads[thread + half_of]);
        }
        barrier();
    }
    const float all = of_threads[0];
    barrier();
    return all;
}

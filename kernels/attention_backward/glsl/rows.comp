#version 460
#extension GL_GOOGLE_include_directive : require
// also open: OPEN=1

// D = Σ O · dO of each query and head, a thread for one at a time. With OF_SINKS, the gradients of the sinks: of each head the sum of
// −e^(sink − lse) · D over all queries, a group for a head at a time.
// Limits: fewer than 2^31 queries of all heads.

#include "attention_backward/glsl/given.glsl"

layout(constant_id = 32) const uint OF_SINKS = 0u;
layout(local_size_x = 64) in;

shared float of_threads[64];

float product_of(uvec3 token, uint head) {
    const uint64_t place = token_place(token, head, Q_HEADS, V_DIM, O_LD);
    float sum = 0.0;
    for (uint c = 0u; c < V_DIM; c++) {
        sum += number_at(o, place + c, O_TYPE) * number_at(given[AT_GRAD_O], place + c, O_TYPE);
    }
    return sum;
}

void main() {
    const uint thread = gl_LocalInvocationIndex;
    if (OF_SINKS == 0u) {
        // In 32 bits: divided in 64, an H200's driver (580.159) lost the first head of packed sequences with heads apart.
        const uint rows = batch * Q_HEADS * q_len;
        for (uint i = gl_WorkGroupID.x * 64u + thread; i < rows; i += gl_NumWorkGroups.x * 64u) {
            const uint query = i % q_len;
            const uint head = i / q_len % Q_HEADS;
            const Sequence s = sequence(i / q_len / Q_HEADS);
            if (query < s.queries) {
                const uvec3 token = query_token(s, query);
                Word(given[AT_PRODUCTS] + 4ul * lse_place(token, head)).v = floatBitsToUint(product_of(token, head));
            }
        }
        return;
    }
    for (uint head = gl_WorkGroupID.x; head < Q_HEADS; head += gl_NumWorkGroups.x) {
        const float sink = real_at(AT_SINKS, head);
        float sum = 0.0;
        for (uint number = 0u; number < batch; number++) {
            const Sequence s = sequence(number);
            for (uint query = thread; query < s.queries; query += 64u) {
                const uint64_t place = lse_place(query_token(s, query), head);
                const float all = real_at(AT_LSE, place);
                // Where nothing is seen, the sink weighs nothing either.
                sum -= all == -uintBitsToFloat(INFINITE) ? 0.0 : exp_of(sink - all) * real_at(AT_PRODUCTS, place);
            }
        }
        of_threads[thread] = sum;
        barrier();
        for (uint apart = 32u; apart > 0u; apart /= 2u) {
            if (thread < apart) {
                of_threads[thread] += of_threads[thread + apart];
            }
            barrier();
        }
        if (thread == 0u) {
            Word(given[AT_RESULT] + 4ul * head).v = floatBitsToUint(of_threads[0]);
        }
        barrier();
    }
}

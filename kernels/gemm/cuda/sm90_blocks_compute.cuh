// The warpgroups that multiply: sums of a tile, each block of k scaled and added to f32 totals.
#pragma once
#include "gemm/cuda/sm90_blocks_stages.cuh"

namespace {

// Where this thread stands among the consumers.
struct Consumer {
    u32 number, warp, lane;
    KP_FN u32 slab(int wave) const { return wave * CONSUMERS + number; }
    KP_FN u32 row(int wave) const { return slab(wave) * 64 + warp * 16 + lane / 4; }
};

// Lets the producers of every block that writes to this stage have it back: one lane's word for what all lanes of the warp have read.
KP_FN void release(const Stages &s, const Consumer &me) {
    __syncwarp();
    if (CLUSTER > 1) {
        if (me.lane < CLUSTER) ptx::mbarrier_arrive_at(s.empty(), me.lane);
    } else if (me.lane == 0) {
        ptx::mbarrier_arrive(s.empty());
    }
}

KP_FN void multiply(float (&d)[BN / 2], u32 a, u32 b, u32 accumulate) {
    const u64 da = wgmma::k_major(a), db = wgmma::k_major(b);
#pragma unroll
    for (int k = 0; k < BK / STEP; k++) Wgmma<BN>::mma<TYPE>(d, da + 2 * k, db + 2 * k, k > 0 || accumulate);
}

KP_FN void clear(float (&total)[WAVES][BN / 2]) {
#pragma unroll
    for (int w = 0; w < WAVES; w++) {
#pragma unroll
        for (int i = 0; i < BN / 2; i++) total[w][i] = 0.f;
    }
}

// Where consumers find a tile's scales, and what else its sums are multiplied by.
struct Scaling {
    u32 row; // of this thread's first row, in A's scales of a stage: bytes
    float alpha;
};

#if A_SCALE
// Volatile, to be worked out while products run and not after them.
KP_FN float times(float x, float y) {
    float product;
    asm volatile("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(x), "f"(y));
    return product;
}

// A thread's scales of one block of k.
struct Scales {
    static constexpr bool BY_COLUMN = B_SCALE == 1;
    static constexpr int ZONES = BN / ZONE;
    float rows[WAVES][2];                        // with alpha
    float columns[BY_COLUMN ? BN / 4 : ZONES];   // of those that this thread has sums of, or of zones
    float factors[BY_COLUMN ? BN / 2 : 2 * ZONES]; // of the slab at hand: of each sum, or of each row's zones

    KP_FN Scales() {}
    KP_FN Scales(const Stages &s, const Scaling &scaling, const Consumer &me) {
        const u32 rows_at = s.scales() + scaling.row, columns_at = s.scales() + 4 * A_SCALES;
#pragma unroll
        for (int w = 0; w < WAVES; w++) {
#pragma unroll
            for (int h = 0; h < 2; h++) rows[w][h] = times(scaling.alpha, ptx::load_shared_number(rows_at + 4 * (w * CONSUMERS * 64 + 8 * h)));
        }
        if constexpr (BY_COLUMN) {
#pragma unroll
            for (int i = 0; i < BN / 4; i += 2) {
                const float2 pair = ptx::load_shared_pair(columns_at + 4 * (i / 2 * 8 + me.lane % 4 * 2));
                columns[i] = pair.x, columns[i + 1] = pair.y;
            }
        } else {
#pragma unroll
            for (int z = 0; z < ZONES; z++) columns[z] = ptx::load_shared_number(columns_at + 4 * z);
        }
    }
    // Works out what slab `w` is multiplied by, while its products run.
    KP_FN void prepare(int w) {
#pragma unroll
        for (int i = 0; i < (BY_COLUMN ? BN / 2 : 2 * ZONES); i++) {
            factors[i] = BY_COLUMN ? times(rows[w][i / 2 % 2], columns[i / 4 * 2 + i % 2]) : times(rows[w][i / ZONES], columns[i % ZONES]);
        }
    }
    // total += scaled block
    KP_FN void add(float (&total)[BN / 2], const float (&block)[BN / 2]) const {
#pragma unroll
        for (int i = 0; i < BN / 2; i++) total[i] += factors[BY_COLUMN ? i : i / 2 % 2 * ZONES + i / (ZONE / 2)] * block[i];
    }
};

#if AHEAD
// The next block's products are issued before this block's are scaled: each warpgroup keeps the tensor cores busy by itself, for the
// registers of a second block.
KP_FN void compute(float (&total)[WAVES][BN / 2], i32 blocks, Stages &s, const Scaling &scaling, const Consumer &me) {
    static_assert(WAVES == 1, "registers for two blocks");
    float block[2][BN / 2];
    Scales scales[2];
    Stages before = s;
    const auto issue = [&](float (&block)[BN / 2], Scales &scales) {
        s.wait_full();
        scales = Scales(s, scaling, me);
        wgmma::fence();
        multiply(block, s.a() + me.slab(0) * 64 * 128, s.b(), 0);
        wgmma::commit();
        scales.prepare(0);
        s.advance();
    };
    const auto finish = [&](float (&block)[BN / 2], const Scales &scales) {
        wgmma::pin(block);
        release(before, me);
        before.advance();
        scales.add(total[0], block);
    };
    issue(block[0], scales[0]);
    clear(total);
    i32 left = blocks - 1; // blocks to be issued
    for (; left >= 2; left -= 2) {
        issue(block[1], scales[1]);
        wgmma::wait<1>();
        finish(block[0], scales[0]);
        issue(block[0], scales[0]);
        wgmma::wait<1>();
        finish(block[1], scales[1]);
    }
    if (left) {
        issue(block[1], scales[1]);
        wgmma::wait<1>();
        finish(block[0], scales[0]);
        wgmma::wait<0>();
        finish(block[1], scales[1]);
    } else {
        wgmma::wait<0>();
        finish(block[0], scales[0]);
    }
}
#else
// As `further`, but worked out where it stands: there are not registers enough to keep the descriptors of all stages.
KP_FN u64 at(u64 descriptor, u32 by) {
    u32 low;
    asm volatile("add.u32 %0, %1, %2;" : "=r"(low) : "r"((u32)descriptor), "r"(by));
    return (descriptor & ~(u64)0xffffffff) | low;
}

// A number that the compiler knows.
template <int N> struct Constant {
    static constexpr int VALUE = N;
};

// Between a block's products and the next one's nothing is done but scaling: what else there is, is done while products run. Each stage
// has code of its own, so that where its operands lie needs no arithmetic; a tile begins in the middle of it, where the last one ended.
KP_FN void compute(float (&total)[WAVES][BN / 2], i32 blocks, Stages &s, const Scaling &scaling, const Consumer &me) {
    // Reads of shared memory between a block's products wait for these, and the products after them for the reads. So scales are read a block
    // ahead, unless they are so many that there are no registers for that.
    constexpr bool EARLY = B_SCALE != 1;
    float block[BN / 2];
    Scales scales, after;
    if (EARLY) scales = Scales(s, scaling, me);
    const u64 a = wgmma::k_major(s.base + A_AT + me.slab(0) * 64 * 128), b = wgmma::k_major(s.base + B_AT);
    i32 left = blocks;
    const auto one = [&](auto stage) {
        constexpr int STAGE = decltype(stage)::VALUE;
        const Stages here = {s.base, STAGE, s.parity};
        if (STAGE == STAGES - 1) s.parity ^= 1;
        const Stages next = {s.base, (STAGE + 1) % STAGES, s.parity};
        left--;
#pragma unroll
        for (int w = 0; w < WAVES; w++) {
            wgmma::pin(block);
            wgmma::fence();
#pragma unroll
            for (int k = 0; k < BK / STEP; k++) {
                Wgmma<BN>::mma<TYPE>(block, at(a, (STAGE * A_BYTES + w * CONSUMERS * 64 * 128 >> 4) + 2 * k), at(b, (STAGE * B_BYTES >> 4) + 2 * k),
                                     k > 0);
            }
            wgmma::commit();
            if (!EARLY && w == 0) scales = Scales(here, scaling, me);
            scales.prepare(w);
            if (w == WAVES - 1 && left > 0) {
                next.wait_full();
                if (EARLY) after = Scales(next, scaling, me);
            }
            wgmma::wait<0>();
            wgmma::pin(block);
            if (w == WAVES - 1) release(here, me);
            scales.add(total[w], block);
        }
        if (EARLY) scales = after;
        s.stage = next.stage;
        return left > 0;
    };
    switch (s.stage) {
#define KP_CASE(n)                                                                                                                         \
    case n:                                                                                                                                \
        if constexpr ((n) < STAGES)                                                                                                        \
            if (!one(Constant<(n) < STAGES ? (n) : 0>())) return;
#define KP_CASES(n) KP_CASE(n) KP_CASE(n + 1) KP_CASE(n + 2)
        while (true) {
            KP_CASES(0) KP_CASES(3) KP_CASES(6) KP_CASES(9) KP_CASES(12) KP_CASES(15)
        }
#undef KP_CASES
#undef KP_CASE
    }
}
#endif
#else
// One group of wgmmas stays in flight while the next one is issued; a stage is given back one block later.
KP_FN void compute(float (&total)[WAVES][BN / 2], i32 blocks, Stages &s, const Scaling &, const Consumer &me) {
    Stages before = s;
    for (i32 kb = 0; kb < blocks; kb++, s.advance()) {
        s.wait_full();
#pragma unroll
        for (int w = 0; w < WAVES; w++) wgmma::pin(total[w]);
        wgmma::fence();
#pragma unroll
        for (int w = 0; w < WAVES; w++) multiply(total[w], s.a() + me.slab(w) * 64 * 128, s.b(), kb > 0);
        wgmma::commit();
        wgmma::wait<1>();
        if (kb > 0) release(before, me), before.advance();
    }
    wgmma::wait<0>();
#pragma unroll
    for (int w = 0; w < WAVES; w++) wgmma::pin(total[w]);
    release(before, me);
}
#endif

#if CLUSTER_K > 1
// Sends each block of the cluster this one's sums of its columns, and adds to `mine` what all have of this one's, in the order of k.
KP_FN void exchange(const float (&total)[BN / 2], float (&mine)[COLUMNS / 2], u32 base, const Consumer &me) {
    constexpr int N = COLUMNS / 2;
    const u32 rank = ptx::cluster_rank(), barrier = base + INBOX_BARRIER_AT + me.number * 8;
    // Others' sums lie in the order of their ranks.
    const u32 inbox = base + INBOX_AT + me.number * INBOX_BYTES + (me.warp * 32 + me.lane) * 16;
    const auto sent = [&](int n, u32 from, u32 to) { return inbox + ((from - (from > to)) * N + n) * 512; };
#pragma unroll
    for (u32 to = 0; to < CLUSTER_K; to++) {
        if (to == rank) continue;
#pragma unroll
        for (int n = 0; n < N; n += 4) {
            const float *x = total + to * N + n;
            ptx::store_cluster(ptx::in_block(sent(n, rank, to), to), ptx::in_block(barrier, to), x[0], x[1], x[2], x[3]);
        }
    }
    ptx::mbarrier_wait(barrier, 0);
#pragma unroll
    for (int n = 0; n < N; n += 4) {
        float sum[4] = {};
#pragma unroll
        for (u32 from = 0; from < CLUSTER_K; from++) {
            float4 x = {total[from * N + n], total[from * N + n + 1], total[from * N + n + 2], total[from * N + n + 3]};
            if (from != rank) x = ptx::load_shared(sent(n, from, rank));
            sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
        }
#pragma unroll
        for (int e = 0; e < 4; e++) mine[n + e] = sum[e];
    }
}
#endif

} // namespace

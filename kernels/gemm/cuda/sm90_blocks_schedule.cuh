// Which tile of D a block of threads multiplies next.
#pragma once
#include "gemm/cuda/sm90_blocks_stages.cuh"

namespace {

// The copying warps walk the same tiles: unit blockIdx / BLOCKS, then a grid further, where a unit is what one cluster does.
struct Schedule {
    const Args &args;
    i32 unit, units_n;
    // The group at hand, which is B's batch: its first unit, how many, its rows.
    i32 group = -1, first = 0, units = 0, row = 0, rows = 0;

    KP_FN Schedule(const Args &args)
        : args(args), unit(blockIdx.x / BLOCKS - gridDim.x / BLOCKS), units_n((args.n + BN * CLUSTER_N - 1) / (BN * CLUSTER_N)) {}

    static KP_FN i32 units_m(i32 rows) { return (rows + BM * CLUSTER_M - 1) / (BM * CLUSTER_M); }

    // Entry `i` of `groups`; none is past the last row, whatever they are.
    KP_FN i32 number(i32 i) const { return min(max(args.groups[i], 0), args.m); }

    // Moves on to the group that `unit` is in; whole warps only. 32 groups at a time, since they may be empty.
    KP_FN bool find_group() {
        first += units;
        for (i32 base = group + 1; base < args.batch; base += 32) {
            i32 g = base + (i32)ptx::lane(), start = 0, size = 0;
            if (g < args.batch) {
                size = number(g);
                if (GROUPING == 1) start = size, size = max(number(g + 1) - start, 0);
            }
            i32 here = units_m(size) * units_n, sum = here;
#pragma unroll
            for (int d = 1; d < 32; d *= 2) {
                i32 below = __shfl_up_sync(~0u, sum, d);
                if ((i32)ptx::lane() >= d) sum += below;
            }
            u32 past = __ballot_sync(~0u, first + sum > unit);
            if (past) {
                int l = __ffs((int)past) - 1;
                group = base + l;
                units = __shfl_sync(~0u, here, l);
                first += __shfl_sync(~0u, sum, l) - units;
                row = __shfl_sync(~0u, start, l), rows = __shfl_sync(~0u, size, l);
                return true;
            }
            first += __shfl_sync(~0u, sum, 31);
        }
        return false;
    }

    KP_FN bool next(Tile &t) {
        unit += gridDim.x / BLOCKS;
        if (GROUPING == 0) {
            units = units_m(args.m) * units_n, rows = args.m;
            group = unit / units;
            if (group >= args.batch) return false;
            first = group * units;
        } else if (unit >= first + units && !find_group()) {
            return false;
        }
        i32 height = args.band, in_group = unit - first, band = in_group / (height * units_n);
        in_group -= band * height * units_n;
        i32 top = band * height, left = units_m(rows) - top;
        height = left < height ? left : height;
        i32 n = in_group / height, m = top + in_group % height;
        if (CLUSTER_M > 1) m = m * CLUSTER_M + ptx::cluster_rank();
        if (CLUSTER_N > 1) n = n * CLUSTER_N + ptx::cluster_rank();
        t = {row + m * BM, rows - m * BM, n * BN, GROUPING == 1 ? 0 : group};
        return true;
    }
};

// A warp's place in the schedule.
struct Walk {
    Schedule schedule;
    Tile tile;
    bool more = true;

    // Finding a tile takes some hundred cycles, so the first is found before anything is waited for; groups are known only after that.
    KP_FN Walk(const Args &args) : schedule(args) {
        if (GROUPING != 0) return;
        step();
    }
    KP_FN void begin() { if (GROUPING != 0) step(); }
    KP_FN void step() { more = schedule.next(tile); }
};

} // namespace

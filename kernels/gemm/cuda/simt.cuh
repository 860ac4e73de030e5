// What `simt.cu` and `simt_store.cu` share: the argument block, mirrored field by field in kp-nvidia's `gemm/simt/params.rs`.
#pragma once
#include "common/cuda/numbers.cuh"

/// How the elements of an operand lie.
enum class Form : u32 {
    /// Those that are summed over lie next to each other.
    Inner,
    /// The others do.
    Outer,
    /// Panels: see kp-hal's `Order::Panel`.
    Panel,
    /// As `Inner`, two of four, with their positions in `meta`.
    Sparse,
};

/// A or B: `outer` rows (A's rows, B's columns) of `inner` elements, which are summed over.
struct Operand {
    const void *codes;
    const void *scales;
    const u8 *zeros;
    const float *global;
    const u8 *meta;
    /// Elements, and scales, from one matrix to the next.
    u64 stride, scale_stride;
    /// Scales from one block to the next along outer and inner; both 0 if they lie in tiles of 128 × 4.
    u64 scale_outer, scale_inner;
    u32 outer, inner, ld;
    u32 block_outer, block_inner;
    /// Blocks along inner.
    u32 inner_blocks;
    u32 panel_width, panel_depth;
    Form form;
    DType dtype, scale_dtype;
    /// Whether runs of four elements may be loaded at once wherever all four exist.
    u8 vector;
    u8 unused;
};

enum class Act : u8 { Identity, Relu, Gelu, GeluTanh, Silu, Sigmoid, Tanh };
enum class Gate : u8 { None, Halves, Pairs };
enum class Addend : u8 { None, Given, InPlace };
enum class Grouping : u8 { None, Contiguous, Masked };

/// D, and what becomes of the sums.
struct Result {
    void *codes;
    void *scales;
    const float *global;
    const void *c, *bias, *residual;
    /// `row_batch` × `m` × `cols` finished numbers, where they wait to be scaled; else null.
    void *stage;
    /// I32 numbers of grouped rows.
    const int *groups;
    u64 stride, scale_stride, scale_outer, scale_inner;
    u32 cols, ld;
    u32 block_outer, block_inner;
    float alpha, beta;
    DType dtype, scale_dtype, c_dtype, bias_dtype, residual_dtype;
    Act act;
    Gate gate;
    Addend addend;
    Grouping grouping;
    u8 column_order;
    /// Whether sums are rounded to f16 before anything else happens to them.
    u8 half_sums;
    /// Whether scales follow E8M0's rule of rounding down.
    u8 floor_rule;
    u8 unused[4];
};

struct Params {
    Operand a, b;
    Result d;
    u32 batch, m, n, k;
    /// Tiles of D, and those along n.
    u64 tiles;
    u32 tiles_n, unused;
};

/// Where the scale of block (`o`, `i`) lies in one matrix of `inner_blocks` blocks a row.
__device__ __forceinline__ u64 scale_place(u64 o, u64 i, u64 outer_step, u64 inner_step, u64 inner_blocks) {
    if ((outer_step | inner_step) != 0) return o * outer_step + i * inner_step;
    u64 tile = o / 128 * ((inner_blocks + 3) / 4) + i / 4;
    return tile * 512 + o % 32 * 16 + o % 128 / 32 * 4 + i % 4;
}

/// Entry `i` of `groups`; numbers that make no sense are clamped, so that nothing outside is touched.
__device__ __forceinline__ u32 group_number(const Params &p, u32 i) {
    int x = p.d.groups[i];
    return x < 0 ? 0 : min((u32)x, p.m);
}

/// Rows of D number `row_batch` that exist: from `first` to `end`.
__device__ __forceinline__ void live_rows(const Params &p, u32 row_batch, u32 &first, u32 &end) {
    first = 0;
    end = p.m;
    if (p.d.grouping == Grouping::Masked) end = group_number(p, row_batch);
    if (p.d.grouping == Grouping::Contiguous) {
        first = group_number(p, 0);
        end = group_number(p, p.batch);
    }
}
static_assert(sizeof(Operand) == 112 && sizeof(Result) == 136 && sizeof(Params) == 392, "as the host's structs");

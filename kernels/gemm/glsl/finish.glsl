// Products by kernels with limits: what they are told, and what becomes of their sums.

#include "common/glsl/numbers.glsl"
#include "common/glsl/math.glsl"

#ifdef OPEN
// As numbers behind the arguments, all but those that say how tiles are laid out, where A and B decide that: see
// kp_vulkan::shaders::Open.
#ifdef OPEN_OPERANDS
#define A_TYPE numbers[0]
#define B_TYPE numbers[1]
#define A_FORM numbers[10]
#define B_FORM numbers[11]
#else
layout(constant_id = 0) const uint A_TYPE = 1u;
layout(constant_id = 1) const uint B_TYPE = 1u;
layout(constant_id = 10) const uint A_FORM = 0u;
layout(constant_id = 11) const uint B_FORM = 0u;
#endif
#define D_TYPE numbers[2]
#define C_TYPE numbers[3]
#define BIAS_TYPE numbers[4]
#define RESIDUAL_TYPE numbers[5]
#define ACT numbers[6]
#define GATE numbers[7]
#define ADDEND numbers[8]
#define FLAGS numbers[9]
#else
layout(constant_id = 0) const uint A_TYPE = 1u;
layout(constant_id = 1) const uint B_TYPE = 1u;
layout(constant_id = 2) const uint D_TYPE = 1u;
layout(constant_id = 3) const uint C_TYPE = 1u;
layout(constant_id = 4) const uint BIAS_TYPE = 1u;
layout(constant_id = 5) const uint RESIDUAL_TYPE = 1u;
layout(constant_id = 6) const uint ACT = 0u;
layout(constant_id = 7) const uint GATE = 0u;
layout(constant_id = 8) const uint ADDEND = 0u;
// Bits: bias, residual, D by columns, sums of f16; scales of B, one more for all, zero points; rows in groups, as in groups.glsl; k in
// parts.
layout(constant_id = 9) const uint FLAGS = 0u;
// How A lies: 0 rows contiguous, 1 columns. B has 2 besides: panels.
layout(constant_id = 10) const uint A_FORM = 0u;
layout(constant_id = 11) const uint B_FORM = 0u;
#endif

// Beside those of epilogue.glsl and groups.glsl.
const uint B_SCALED = 16u, B_GLOBAL = 32u, B_ZEROS = 64u, IN_PARTS = 1024u;

layout(push_constant, std430) uniform Push {
    uint64_t a;
    uint64_t b;
    uint64_t d;
    // Operands that not every problem has, those that this one has: see below.
    uint64_t given[5];
    // Elements from one matrix of a batch to the next.
    uint64_t a_stride;
    uint64_t b_stride;
    uint64_t d_stride;
    uint batch;
    uint m;
    uint n;
    uint k;
    // Elements from one row to the next, or from one column.
    uint a_ld;
    // Of panels: width and depth, 16 bits each.
    uint b_ld;
    uint d_ld;
    float alpha;
    float beta;
    // Parts of k, of each of which D has a matrix of its own, where a kernel knows them.
    uint splits;
#ifdef OPEN
    layout(offset = 128) uint numbers[18];
#endif
};

// Where each of those stands: C, bias, residual, B's scales, the one for all of them, zero points. The last
// place has whose rows are whose: then there is no C.
#define AT_BIAS (ADDEND == ADDEND_GIVEN ? 1u : 0u)
#define AT_RESIDUAL (AT_BIAS + ((FLAGS & HAS_BIAS) != 0u ? 1u : 0u))
#define AT_B_SCALE (AT_RESIDUAL + ((FLAGS & HAS_RESIDUAL) != 0u ? 1u : 0u))

#define C_BASE given[0]
#define BIAS_BASE given[AT_BIAS]
#define RESIDUAL_BASE given[AT_RESIDUAL]
#define STAGE_BASE 0ul
#ifdef GROUPED
#define GROUPS_BASE given[4]
#include "gemm/glsl/groups.glsl"
#else
#define FIRST_BIAS 0ul
#define ROW_END m
#endif
#include "gemm/glsl/epilogue.glsl"

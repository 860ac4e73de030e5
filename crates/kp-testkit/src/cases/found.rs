//! What random problems found: the smallest lines on which a kernel or a bound was wrong.

/// Those of one op.
pub(crate) fn lines(op: &str) -> impl Iterator<Item = &'static str> {
    FOUND.iter().copied().filter(move |line| line.split(' ').next() == Some(op))
}

const FOUND: &[&str] = &[
    // Weights that are flushed to 0.
    "attention 1x3x31:2x24 bf16:bf16:bf16 scale=8.0",
    // Tokens of no sequence.
    "attention_backward 1x2x3:1x12:15 f16:bf16:bf16 layout=bhsd lens=packed/20/90 sinks",
    // An O that its type does not hold.
    "attention_backward 1x2x1:5x2 f32:f32:f16",
    "attention_backward 1x8:1x3x16 f16:f16:f16 sinks",
    // A slope of the cap that is all error, times a D that was rounded with O.
    "attention_backward 3x2x9:1x3:1 f32:f32:f16 layout=bhsd softcap=50.0 ldv=2304 sinks repro=batch-invariant",
    // A sink's share that is flushed to 0.
    "attention_backward 1x1x1:4x1:63 f16:f16:f16 lens=padded ldk=2304 sinks",
    // A left side that is looked up in a table, beside a right side that is not.
    "gemm 1x3x96x128 nf4:e4m3:f32 b=col",
    // Rows that a kernel of batch-invariant bits reads only so far apart.
    "gemm 1x2x2x24 e4m3@1x128:e4m3@128x128:bf16 a=row/32 b=col/32 repro=batch-invariant",
    // Numbers behind the last of k, where both sides' code 0 is -1.
    "gemm 1x1x1x9 nf4:nf4:f32 b=col",
    // Addresses between numbers.
    "gemm 1x1x1x1 f32:f32:f32 align=1",
    // Sums of nothing, of a B that is read where it lies.
    "gemm 1x1x136x0 i8@tensor:i8@row:f16 b=panel64x4",
    "gemm 1x64x9x0 i8:i8:f32 b=col",
    // No rows of a gated product.
    "gemm 1x0x2x1 bf16:bf16:bf16 b=col/2 d=col acc=f32fast gate=halves",
    // An infinity times a sum that cancels, but for its scales' rounding.
    "gemm 1x112x34x3 e5m2@row:e5m2@row:f32 b=row/35 gate=halves align=1",
    // Sums that are rounded before their bias is added.
    "gemm 1x6x95x15 bf16:bf16:bf16 b=col/16 bias=bf16",
    "gemm 1x257x4x136 f16:f16:f16 b=col/144 d=row/16 c=d bias=f16 align=64",
    // A bias of f32 that a library knows only by itself.
    "gemm 1x1x32x128 e4m3:e4m3:f32 b=col acc=f32fast bias=f32",
    "gemm 1x1x32x128 e4m3:e4m3:f32 b=col acc=f32fast bias=bf16",
    // Rows of D that are not aligned, beside those of C, which are.
    "gemm 2x264x32x384 bf16:bf16:bf16 a=row/384/1500000 b=row/32/0 d=row/33 c=bf16",
    // Sums that saturate.
    "gemm 1x3x16x896 bf16:f32:e2m1 b=panel64x4",
    // Products of whole numbers that f32 does not hold, and what is added to them.
    "grouped_gemm 1x6x16x128 f32:u4@g32/f16z:f32 acc=f32q8 bias=f32 gate=halves residual=bf16",
    // No groups, so no scales to make ready beforehand, and no scratch for them.
    "grouped_gemm 0x4x48x640 f16:nf4@g64/f32:bf16 b=col",
    // NaN that arithmetic makes.
    "norm 1x1 bf16:bf16 kind=layer eps=0.0",
    // An infinite number in a row that is divided by eps.
    "norm_backward 144x2 f32:f32 kind=l2 eps=0.5 bias",
    // No rows, or no columns, but a scale.
    "quantize 0x144 f32:e2m1@nv",
    "quantize 5x0 f32:e4m3@tensor",
    // Runs that are not loaded at once, in blocks that follow one another.
    "quantize 2x16 f32:u4@g128/f32z scales=given align=8",
];

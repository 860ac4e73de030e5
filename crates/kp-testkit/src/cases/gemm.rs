//! What GEMM is judged on.

use super::{
    gemm_laws as laws,
    pairwise::{lines, words},
    part, shapes, tail,
};
use crate::{
    fill::{Fill, FillKind},
    judge::{Depth, Fewer, Judge, Output, Property},
    operands::Operands,
    reference::gemm::{self as reference, A, B},
    tensor::place,
};
use kp_hal::op::{Acc, Act, Addend, Gemm, GemmProblem, GemmSpec, Matrix, Scheme, Sparsity, Spec};

/// What every backend must multiply.
const FLOOR: &[&str] = &[
    "gemm 1x64x64x64 f32:f32:f32",
    "gemm 1x1x1x1 f32:f32:f32",
    "gemm 1x17x31x65 f32:f32:f32 b=col",
    "gemm 3x33x15x8 f32:f32:f32 a=col bias=f32 act=relu",
    "gemm 1x128x96x160 bf16:bf16:bf16",
    "gemm 1x1x257x129 bf16:bf16:bf16 b=col",
    "gemm 1x64x96x128 f16:f16:f16 b=col",
    "gemm 1x16x24x64 f32:f32:f32 act=gelu_tanh bias=f32 residual=f32",
    "gemm 0x0x0x0 f32:f32:f32",
    "gemm 1x5x7x0 f32:f32:f32",
];

/// Past what the reference takes.
const LARGE: &[&str] = &[
    "gemm 1x1000x400x400 f32:f32:f32",
    "gemm 1x400x400x1000 bf16:bf16:bf16 b=col",
    "gemm 1x64x64x40000 bf16:bf16:f32 b=col",
];

impl Judge for Gemm {
    fn cases(depth: Depth) -> Vec<String> {
        let count = if depth == Depth::Quick { 6 } else { 20 };
        let mut dims: Vec<String> = shapes::triples(count).map(|[m, n, k]| format!("1x{m}x{n}x{k}")).collect();
        dims.extend(words("3x7x9x17 1x0x5x7 1x5x0x7 1x5x7x0 0x3x4x5"));
        let valid = |line: &str| line.parse::<GemmProblem>().is_ok();
        // Plain products in every layout first: most kernels know no more.
        let mut out = lines(
            "gemm",
            &[
                dims,
                words("f32:f32:f32 bf16:bf16:bf16 f16:f16:f16 f16:f16:f32 e4m3:e4m3:bf16 i8:i8:i32"),
                words("- - a=row/260 a=row/261/70000 a=col"),
                words("- b=col b=row/262 b=col/259 b=row/260/0"),
                words("- - d=row/260 d=row/261/80000 d=col"),
                words("- - repro=batch-invariant repro=fast"),
                words("- - - align=4 align=64"),
            ],
            valid,
        );
        let epilogues = if depth == Depth::Quick { 3 } else { 14 };
        let mut dims: Vec<String> = shapes::triples(epilogues).map(|[m, n, k]| format!("1x{m}x{n}x{k}")).collect();
        dims.extend(words("3x7x9x17 1x0x5x7 1x5x0x7 1x5x7x0"));
        out.extend(lines(
            "gemm",
            &[
                dims,
                words(
                    "f32:f32:f32 bf16:bf16:bf16 bf16:bf16:f32 f16:f16:f16 f16:f16:f32 f64:f64:f64 \
                     tf32:tf32:f32 f32:bf16:f32 bf16:f16:f32",
                ),
                words("- - a=col a=row/260 a=row/261/70000 a=col/264"),
                words("- b=col b=row/262 b=col/259 b=row/260/0 b=panel16x2 b=panel8x1"),
                words("- - d=col d=row/260 d=col/300/80000"),
                words("- - c=d c=f32 c=bf16"),
                words("- bias=f32 bias=bf16"),
                words("- act=relu act=gelu act=gelu_tanh act=silu act=sigmoid act=tanh"),
                words("- - gate=halves gate=pairs"),
                words("- residual=f32 residual=bf16"),
                words("- - acc=f16 acc=f32fast"),
                words("- - - repro=batch-invariant repro=fast"),
                words("- - align=1 align=4 align=64"),
            ],
            valid,
        ));
        // A constant B as it is packed ahead: panels as wide as registers, a step of k or four bytes of it at a time.
        out.extend(lines(
            "gemm",
            &[
                words("1x1x130x257 1x5x200x96 2x8x128x70 1x1x520x130 1x3x64x1 1x40x192x300"),
                words("f32:f32:f32 bf16:bf16:bf16 f16:f16:f32 i8@row:i8@row:f32 f32:bf16:f64 i8:i8:i32"),
                words("b=panel64x1 b=panel64x4 b=panel64x1 b=panel16x1 b=panel16x4"),
                words("- - d=col d=row/600"),
                words("- bias=f32"),
                words("- - act=silu gate=halves gate=pairs"),
                words("- - - repro=batch-invariant"),
            ],
            valid,
        ));
        // The same of two vectors of AVX2, by few rows.
        out.extend(lines(
            "gemm",
            &[
                words("1x1x130x257 1x3x64x1 2x4x70x300 1x2x520x130"),
                words("f32:f32:f32 bf16:bf16:bf16 f16:f16:f32 f32:bf16:f64"),
                words("b=panel16x1"),
                words("- d=col d=row/600"),
                words("- bias=f32"),
                words("- gate=halves gate=pairs"),
            ],
            valid,
        ));
        // Rows of whole 16 bytes, as copy engines want them, around the tiles of matrix units.
        let aligned = words("1x130x272x192 2x33x64x128 1x257x272x192 1x1x256x512 1x64x128x1024 3x200x96x64");
        out.extend(lines(
            "gemm",
            &[
                aligned.clone(),
                words("bf16:bf16:bf16 f16:f16:f16 bf16:bf16:f32 f16:f16:f32 e4m3@tensor:e4m3@tensor:bf16 e4m3@row:e4m3@row:bf16 \
                       e4m3:e4m3:bf16 e5m2@tensor:e4m3@tensor:f32 e4m3@tensor:e4m3@tensor:e4m3@tensor e4m3@1x128:e4m3@128x128:bf16 \
                       e4m3@1x128^outer:e4m3@128x128:f32 e4m3@1x128:e4m3@1x128:bf16 bf16:bf16:e4m3"),
                words("b=col b=col b=col - a=col"),
                words("- - acc=f32fast acc=f32fast"),
                words("- - repro=batch-invariant repro=fast"),
                words("- - - align=64 align=2"),
            ],
            valid,
        ));
        out.extend(lines(
            "gemm",
            &[
                aligned.clone(),
                words("bf16:bf16:bf16 f16:f16:f16 bf16:bf16:f32 e4m3@tensor:e4m3@tensor:bf16 e4m3@row:e4m3@row:f16"),
                words("b=col b=col -"),
                words("- acc=f32fast"),
                words("- - c=d c=f32 c=bf16"),
                words("- bias=f32 bias=bf16"),
                words("- act=relu act=gelu act=gelu_tanh act=silu act=sigmoid act=tanh"),
                words("- - gate=halves gate=pairs"),
                words("- - residual=f32 residual=bf16"),
            ],
            valid,
        ));
        // Blocks with scales, as matrix units take them that multiply by scales themselves.
        out.extend(lines(
            "gemm",
            &[
                aligned,
                words("e4m3@mx:e4m3@mx:bf16 e4m3@mx^tiles:e5m2@mx^tiles:f32 e2m1@mx:e2m1@mx:f16 e2m1@mx^tiles:e2m1@mx^tiles:bf16 \
                       e2m1@nv:e2m1@nv:bf16 e2m1@nv^tiles:e2m1@nv^tiles:bf16"),
                words("b=col"),
                words("- bias=bf16"),
                words("- - gate=pairs"),
                words("- - - repro=batch-invariant"),
            ],
            valid,
        ));
        // Weights of few bits by activations of 16, as matrix units take them; in full, rows of whole 16 bytes and not.
        let [dims, options] = match depth {
            Depth::Quick => ["1x130x272x192", "-"],
            Depth::Full => [
                "1x130x272x192 1x40x200x321 1x33x64x128 2x20x96x256 1x65x57x96",
                "- bias=bf16 gate=halves gate=pairs act=silu repro=batch-invariant",
            ],
        };
        out.extend(lines(
            "gemm",
            &[
                words(dims),
                words("f16:i4@g32/f16:f16 bf16:i4@g32/f16:f32 f16:u4@g64/f32z:f32 bf16:u4@g64/bf16z:bf16 f16:nf4@g64/f32:f32 \
                       bf16:nf4@g64/f32:bf16 f16:e2m1@mx:bf16 bf16:e2m1@mx:f32 f16:e2m1@nv:f16 bf16:e2m1@nv^tiles:f32 \
                       f16:e4m3@row:f16 f16:e4m3@128x128:f32 bf16:e4m3@128x128:bf16 f16:i8@row:f16 bf16:e5m2@tensor:bf16 \
                       f16:e4m3@mx^tiles:f32"),
                words("b=col"),
                words(options),
            ],
            valid,
        ));
        // Few rows of them, long enough for kernels to take several steps of a column and the scales of more than one at once, or not.
        let [dims, more] = match depth {
            Depth::Quick => ["1x5x72x1536", ""],
            Depth::Full => [
                "1x1x65x1280 1x5x72x1536 2x8x40x2816 1x7x64x1152",
                "f16:i4@g64/bf16:f32 f16:u4@g128/f16z:f16 bf16:nf4@g64/f32:f32",
            ],
        };
        let formats = format!(
            "f16:i4@g128/f16:f16 bf16:i4@g32/f16:f32 bf16:u4@g64/f16z:f32 f16:nf4@g64/f32:f16 f16:e2m1@mx:f16 \
             f16:e2m1@nv:f16 {more}"
        );
        out.extend(lines("gemm", &[words(dims), words(&formats), words("b=col"), words("-")], valid));
        // Rows of no elements have no scales.
        let [dims, layouts, options] = match depth {
            Depth::Quick => ["2x130x64x0", "b=col", "-"],
            Depth::Full => ["1x5x6x0 2x130x64x0", "b=col -", "- act=silu"],
        };
        out.extend(lines(
            "gemm",
            &[
                words(dims),
                words("e4m3@row:e4m3@row:bf16 i8@row:i8@row:f32 i8@row:i4@g32/f16:f32 f32:i8@row:f32 f16:e2m1@mx:f16"),
                words(layouts),
                words(options),
            ],
            valid,
        ));
        // Few rows of whole numbers of 8 bits, all of each column contiguous in whole 16 bytes, and not; or in panels.
        let [dims, options] = match depth {
            Depth::Quick => ["1x5x66x272 1x8x130x1037", "-"],
            Depth::Full => [
                "1x1x70x1040 1x5x66x256 2x8x33x96 1x3x9x16 1x8x130x1037 2x2x256x70",
                "- bias=f32 gate=halves gate=pairs c=d",
            ],
        };
        out.extend(lines(
            "gemm",
            &[
                words(dims),
                words(
                    "i8:i8:i32 u8:i8:i32 i8:u8:f32 u8:u8:i32 i8@row:i8@row:bf16 i8@tensor:i8@row:f32 i4@row:i8@row:f32",
                ),
                words("b=col b=panel64x4"),
                words(options),
            ],
            valid,
        ));
        // The same weights by few rows of bf16, which holds all codes of 8 bits.
        let dims = match depth {
            Depth::Quick => "1x5x33x2088 1x8x6x99",
            Depth::Full => "1x2x70x1040 1x5x33x2088 2x8x9x96 1x3x6x99 1x8x40x4200",
        };
        out.extend(lines(
            "gemm",
            &[
                words(dims),
                words("bf16:i8@row:bf16 bf16:u8@row:f32 bf16:e4m3@row:bf16 bf16:e5m2@tensor:f32 bf16:i8:f32"),
                words("b=col"),
            ],
            valid,
        ));
        // The same by many rows: whole panels of rows, a last panel of few columns, sums in several runs of k, rows in several chunks.
        let [dims, options] = match depth {
            Depth::Quick => ["1x64x70x1036 1x320x9x132 1x61x6x4364", "-"],
            Depth::Full => [
                "1x64x70x1036 1x320x9x132 1x61x6x4364 2x64x130x64 1x127x65x1100 1x520x66x20",
                "- bias=f32 gate=halves c=d",
            ],
        };
        out.extend(lines(
            "gemm",
            &[
                words(dims),
                words("i8@row:i8@row:f32 i8:i8:i32 i8@row:i8@row:bf16"),
                words("b=col b=panel64x4"),
                words(options),
            ],
            valid,
        ));
        // Weights of 8 and 4 bits by floats that may be rounded: few rows, tiles of rows; runs and groups that end short.
        let [dims, types, layouts, options] = match depth {
            Depth::Quick => [
                "1x1x70x1040 1x5x33x304 1x37x130x352 2x3x18x45 1x8x6x5168",
                "f32:i4@g32/f16:f32 f32:u4@g32/f16z:f32 bf16:i4@g128/bf16:bf16 f32:e2m1@nv:f32 f16:i8@row:f16 f32:i4:f32 \
                 f32:nf4@g64/f32:f32",
                "b=col",
                "-",
            ],
            Depth::Full => [
                "1x1x70x1040 1x2x19x4128 1x5x33x304 1x8x65x672 1x8x6x5168 \
                 1x37x130x352 1x130x70x2080 2x3x18x45 2x7x33x16 1x1x5x1 1x0x5x7 1x5x7x0",
                "f32:i4@g32/f16:f32 f32:u4@g32/f16z:f32 bf16:i4@g128/bf16:bf16 f16:u4@g64/f32z:f16 f32:i4@g16/f32:bf16 \
                 f32:e2m1@mx:f32 bf16:e2m1@mx^tiles:f32 f32:e2m1@nv:f32 f32:i8@row:f32 bf16:i8@row:bf16 f16:i8@g64/f32:f32 \
                 f32:u8@g32/f16z:f32 f32:i4:f32 f32:i4@128x128:f32 f32:nf4@g64/f32:f32 f32:nf4@g32/f16:f32 \
                 bf16:nf4@g16/bf16:bf16 bf16:e4m3@row:bf16 f32:i8:f64",
                "b=col b=col b=col - b=panel16x8 a=col",
                "- bias=f32 gate=halves act=silu c=d residual=bf16 a=row/4200 repro=batch-invariant",
            ],
        };
        let shapes_and_types = [words(dims), words(types), words("acc=f32q8"), words(layouts), words(options)];
        out.extend(lines("gemm", &shapes_and_types, valid));
        // Codes of 8 bits, which floats that are rounded do not all become, by weights of 4.
        let dims = match depth {
            Depth::Quick => "1x37x130x352",
            Depth::Full => "1x1x70x1040 1x5x33x304 1x8x65x672 1x37x130x352 2x13x34x96 1x130x70x2080",
        };
        let types = match depth {
            Depth::Quick => "i8@row:u4@g32/f16z:f32",
            Depth::Full => "i8@row:i4@g32/f16:f32 i8@row:u4@g32/f16z:f32 i8@row:u4@g16/f16z:f32 i8@row:e2m1@nv:f32",
        };
        out.extend(lines("gemm", &[words(dims), words(types), words("b=col")], valid));
        // An f16 sum of integers, or of codes before their scales, would only overflow.
        let valid = |line: &str| {
            let problem = line.parse::<GemmProblem>();
            problem.is_ok_and(|p| {
                p.acc != Acc::F16
                    || [p.a.format, p.b.format].iter().all(|f| f.dtype.is_float() && f.scheme == Scheme::None)
            })
        };
        let few = if depth == Depth::Quick { 3 } else { 9 };
        let mut dims: Vec<String> = shapes::triples(few).map(|[m, n, k]| format!("1x{m}x{n}x{k}")).collect();
        dims.extend(words("2x16x32x128 1x5x6x300 1x130x258x256"));
        let mut types = words(NARROW);
        if depth == Depth::Quick {
            types.retain(|t| t.len() % 3 == 0);
        }
        out.extend(lines(
            "gemm",
            &[
                dims.clone(),
                types,
                words("- a=row/304 a=col/304"),
                words("- b=col b=col b=row/306 b=col/320"),
                words("- - acc=f32fast acc=f16"),
                words("- - bias=f32"),
                words("- - act=silu"),
                words("- - residual=bf16"),
                words("- - - repro=batch-invariant align=2"),
            ],
            valid,
        ));
        out.extend(lines(
            "gemm",
            &[
                dims,
                words("f32:f32 bf16:bf16").into_iter().flat_map(|ab| stored_types(&ab)).collect(),
                words("- d=row/320"),
                words("- gate=halves"),
                words("- act=silu act=relu"),
                words("- residual=f32"),
                words("- repro=batch-invariant"),
            ],
            valid,
        ));
        out.extend(lines(
            "gemm",
            &[
                words("1x16x16x64 1x7x9x32 2x33x17x128 1x1x8x8"),
                words("bf16:bf16:f32 f16:f16:f16 e4m3:e4m3:f32 i8:i8:i32 e4m3@row:e4m3@row:bf16 e2m1@mx:e2m1@mx:f32"),
                words("sparse=2:4"),
                words("- b=col"),
                words("- a=row/192"),
                words("- bias=f32"),
                words("- repro=batch-invariant"),
            ],
            valid,
        ));
        out
    }

    fn floor() -> &'static [&'static str] {
        FLOOR
    }

    fn large() -> &'static [&'static str] {
        LARGE
    }

    fn inputs(problem: &GemmProblem, fill: &mut Fill) -> Operands {
        let spec = problem.spec();
        let mut operands = Operands::new::<Self>(problem, fill.kind());
        fill_product(&mut operands, spec, [spec.batch, spec.batch], fill);
        operands.set_scalar("alpha", fill.scalar());
        // By 0 nothing is multiplied: C, or what D held, stays poison.
        let beta = if fill.below(4) == 0 { 0.0 } else { fill.scalar() };
        operands.set_scalar("beta", beta);
        if beta != 0.0 {
            operands.fill_all("c", fill);
        }
        if beta != 0.0 && spec.c == Addend::InPlace {
            operands.fill_matrix("d", &spec.d, (spec.m, spec.d_cols(), spec.batch), fill);
        }
        operands
    }

    fn reference(problem: &GemmProblem, operands: &Operands) -> Vec<Output> {
        reference::reference(problem, operands)
    }

    /// NaN and infinities go through sums as IEEE says. A sparse kernel never sees the products with absent zeros,
    /// and what an activation does with infinity is its own matter.
    fn special(problem: &GemmProblem) -> bool {
        problem.sparsity == Sparsity::Dense && problem.epilogue.act == Act::Identity
    }

    fn properties() -> &'static [Property<Self>] {
        &[
            Property {
                name: "D times a vector is A times (B times it)",
                inputs: laws::vector_inputs,
                again: None,
                check: laws::vector_law,
            },
            Property {
                name: "whole numbers above 0 sum exactly",
                inputs: laws::counting_inputs,
                again: None,
                check: laws::counting_law,
            },
            Property {
                name: "weights may be of any size",
                inputs: laws::far_inputs,
                again: None,
                check: laws::vector_law,
            },
        ]
    }

    fn fewer_rows(problem: &GemmProblem, operands: &Operands) -> Option<Fewer<Self>> {
        let large = problem.spec();
        // The last third, so that a row's place in a tile changes too.
        let m = tail::kept(large.m)?;
        let small = part::of_height(large, m)?.build().ok()?;
        let small = small.with_repro(problem.repro()).with_align(problem.align());
        let rows = |b: u32| (0..m).map(move |row| ((b, row), (b, large.m - m + row)));
        let rows: Vec<_> = (0..large.batch).flat_map(rows).collect();
        Some(part::of_rows((large, operands), (small, &small), &rows))
    }
}

/// Operand types and schemes of at most 8 bits, one of them at least.
const NARROW: &str = "e4m3:e4m3:bf16 e5m2:e4m3:f32 e4m3fnuz:e5m2fnuz:f32 i8:i8:i32 i8:i8:f32 u8:i8:i32 \
    e2m1:e2m1:f32 nf4:nf4:f32 i4:u4:i32 i8:i4:i32 bf16:e4m3:bf16 bf16:i8:f32 f32:i4:f32 f16:e2m1:f16 \
    e4m3@tensor:e4m3@tensor:bf16 e4m3@row:e4m3@row:bf16 e4m3@1x128:e4m3@128x128:bf16 e5m2@1x128^outer:e4m3@128x128:f32 \
    i8@row:i8@row:bf16 i8@tensor:i8@row:f32 e2m1@mx:e2m1@mx:bf16 e2m1@mx^tiles:e4m3@mx:f32 e2m1@nv:e2m1@nv:bf16 \
    e2m1@nv^tiles:e2m1@nv^tiles:f32 bf16:i4@g32/f16z:bf16 f16:u4@g128/bf16z:f16 bf16:nf4@g64/f32:f32 bf16:i8@row:bf16 \
    f32:i4@g32/f32:f32 bf16:e2m1@mx:bf16 f16:e4m3@row:f16 bf16:e4m3@g32/f32:f32 i8@g64/f32:i8@g64/f32:f32 f32:e2m1@nv:f32";

/// Results that are narrow or scaled.
fn stored_types(ab: &str) -> Vec<String> {
    let formats = "e4m3 e5m2 i8 i32 e2m1 e4m3@tensor e4m3@row e4m3@1x128 e5m2@1x32^outer i8@row e2m1@mx e4m3@mx^tiles \
                   e2m1@nv e4m3@2x16 i4@g32/f16";
    words(formats).into_iter().map(|d| format!("{ab}:{d}")).collect()
}

/// Fills A and B with their scales, the meta data of a sparse A, bias, residual and D's given scale.
/// `batches` are those of A and D and those of B.
pub(super) fn fill_product(operands: &mut Operands, spec: &GemmSpec, [rows_batch, b_batch]: [u32; 2], fill: &mut Fill) {
    operands.fill_scaled(A, &spec.a, (spec.m, spec.a_cols(), rows_batch), fill);
    operands.fill_scaled(B, &spec.b, (spec.k, spec.n, b_batch), fill);
    if spec.acc == Acc::F32Q8 && fill.kind() == FillKind::Exact {
        // Whole numbers are kept in runs that have 127.
        for (batch, row) in (0..rows_batch).flat_map(|batch| (0..spec.m).map(move |row| (batch, row))) {
            for col in (0..spec.k).step_by(Acc::RUN as usize) {
                operands.codes_mut("a").set_value(place(&spec.a, (spec.m, batch), row, col), 127.0);
            }
        }
    }
    if spec.sparsity == Sparsity::TwoOfFour {
        let mut meta = operands.codes_mut("a_meta");
        for i in 0..meta.len() {
            // Ascending pairs of distinct positions.
            const PAIRS: [u64; 6] = [0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110];
            let [low, high] = [(); 2].map(|()| PAIRS[fill.below(6) as usize]);
            meta.set_code(i, low | high << 4);
        }
    }
    let d_shape = (spec.m, spec.d_cols(), rows_batch);
    operands.fill_all("bias", fill);
    if let Some(dtype) = spec.epilogue.residual {
        operands.fill_matrix("residual", &Matrix { format: dtype.into(), ..spec.d }, d_shape, fill);
    }
    operands.fill_scales("d_global", fill);
}

//! Random small problems of every op: each kernel that supports one must agree with the reference.
//!
//! The suite's cases are chosen to meet every pair of options; these are not chosen, so they meet what nobody thought
//! of. A failure prints the smallest problem line that still fails: add it to the op's cases.

use kp_hal::op::*;
use kp_hal::{Device, Variant};
use kp_testkit::{FillKind, cases::pairwise::words, check};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::{
    cell::Cell,
    panic::{self, AssertUnwindSafe},
    sync::Arc,
};

/// What the words after an op's name are drawn from. A number in `dims` is the most a dimension may be; `A:B` draws two.
struct Grammar {
    dims: &'static str,
    types: &'static str,
    /// Choices, one per option; `-` leaves it out.
    options: &'static [&'static str],
}

const FLOATS: &str = "f32:f32 bf16:bf16 f16:f16 f64:f64 bf16:f32 f32:f16 f16:bf16";
const REPRO: &str = "- repro=fast repro=batch-invariant";

fn grammar(op: &str) -> Grammar {
    const QUANTIZED: &str = "f32:e4m3@1x128 f32:e4m3@row bf16:e4m3@3x5 f32:e5m2@tensor f16:e2m1@mx f32:e2m1@nv \
                             f32:e2m1@mx^tiles bf16:e2m1@nv^tiles f32:e4m3@2x16^outer f32:i8@row bf16:i4@g32/f16 \
                             f32:nf4@g64/f32 f32:u4@g16/f32z f32:e4m3fnuz@row f32:e4m3";
    const STORED: &str = "f32:f32 bf16:bf16 f16:f32 f64:f64 f32:e4m3@row bf16:e4m3@1x32 f32:i8@row f32:e2m1@mx";
    const MASKS: &str = "- mask=causal mask=window/3/0 mask=window/2/5 mask=prefix/4 mask=blocks/4/3 \
                         mask=(q>=k&&q-k<5||k<2) mask=((q+k+h)%3!=b)";
    match op {
        "activation" => Grammar {
            dims: "40x70",
            types: STORED,
            options: &[
                "- act=relu act=gelu act=gelu_tanh act=silu act=sigmoid act=tanh",
                "- gate=halves gate=pairs",
                "- factor=f32 factor=bf16",
                "- residual=f32 residual=f16",
                "- ldx=160",
                "- ldy=98",
                REPRO,
            ],
        },
        "attention" => Grammar {
            dims: "3x3:3x20:24x40:20",
            types: "f32:f32:f32 bf16:bf16:bf16 f16:f16:f32 f64:f64:f64 e4m3@row:e4m3@row:bf16 bf16:e4m3@tensor:bf16",
            options: &[
                "- layout=bhsd",
                "- lens=padded lens=packed/31/33",
                "- page=4/50",
                MASKS,
                "- scale=0.3 scale=-1.0",
                "- softcap=2.5",
                "- alibi",
                "- sinks",
                "- lse",
                "- ldq=270",
                "- ldv=300",
                REPRO,
            ],
        },
        "attention_backward" => Grammar {
            dims: "3x3:3x14:16x24:20",
            types: "f32:f32:f32 bf16:bf16:bf16 f16:f16:f16 f64:f64:f64",
            options: &[
                "- layout=bhsd",
                "- lens=padded",
                MASKS,
                "- scale=0.3",
                "- softcap=2.5",
                "- alibi",
                "- sinks",
                REPRO,
            ],
        },
        "cast" => Grammar {
            dims: "3x40x40",
            types: "f32:bf16 bf16:f32 f32:f16 f32:e4m3 e4m3:f32 f64:f32 f32:i8 i4:i4 f32:f32 e2m1:e2m1 f32:e5m2 nf4:f16",
            options: &["- x=col x=row/42/2000", "- y=col y=panel16x2 y=panel3x4 y=row/44/2000", "- overflow=propagate"],
        },
        "dequantize" => Grammar {
            dims: "40x150",
            types: "e4m3@1x128:f32 e4m3@row:bf16 e5m2@tensor:f16 e2m1@mx:f32 e2m1@nv:f32 e2m1@nv^tiles:bf16 \
                    e2m1@mx^tiles:f32 i8@row:f32 i4@g32/f16:f32 u4@g16/f32z:f32 nf4@g64/bf16:bf16 e4m3@2x16^outer:f64",
            options: &["- ldq=152", "- ldy=153", REPRO],
        },
        "gather" => Grammar {
            dims: "40x50",
            types: "f32:f32 bf16:f32 f16:f16 i8:i32 e4m3:f32 i64:i64",
            options: &["from=30 from=1 from=7", "- ldt=64", "- ldy=66"],
        },
        "gemm" => Grammar {
            dims: "3x40x40x70",
            types: "f32:f32:f32 bf16:bf16:bf16 f16:f16:f32 f64:f64:f64 i8:i8:i32 e4m3:e4m3:bf16 \
                    e4m3@1x16:e4m3@16x16:bf16 e4m3@row:e4m3@row:f32 e2m1@mx:e2m1@mx:f32 e2m1@nv^tiles:e2m1@nv^tiles:f32 \
                    bf16:i4@g16/f16z:bf16 f16:nf4@g32/f32:f16 bf16:bf16:e4m3@row bf16:bf16:e4m3@1x32",
            options: &[
                "- a=col a=row/72 a=row/80/4000 a=col/44",
                "- b=col b=row/46 b=col/80 b=panel16x2 b=panel5x3 b=row/42/0",
                "- d=col d=row/50 d=row/50/3000",
                "- c=d c=f32",
                "- bias=f32 bias=bf16",
                "- act=gelu act=silu act=relu",
                "- gate=halves gate=pairs",
                "- residual=f32",
                "- acc=f32fast",
                "- sparse=2:4",
                REPRO,
                "- align=1 align=64",
            ],
        },
        "grouped_gemm" => Grammar {
            dims: "5x40x30x40",
            types: "f32:f32:f32 bf16:bf16:bf16 e4m3@1x16:e4m3@16x16:bf16 bf16:i4@g16/f16:bf16 bf16:bf16:e4m3@row",
            options: &[
                "- grouping=masked",
                "- a=row/48",
                "- b=col b=panel16x2",
                "- d=row/36",
                "- bias=f32",
                "- act=silu",
                "- gate=halves",
                REPRO,
            ],
        },
        "norm" => Grammar {
            dims: "40x150",
            types: STORED,
            options: &[
                "kind=rms kind=layer kind=l2",
                "- eps=0.5 eps=0.0",
                "- weight=f32 weight=bf16",
                "- bias=f32",
                "- residual",
                "- ldx=160",
                "- ldy=162",
                REPRO,
            ],
        },
        "norm_backward" => Grammar {
            dims: "40x100",
            types: FLOATS,
            options: &[
                "kind=rms kind=layer kind=l2",
                "- eps=0.5",
                "- weight=f32 weight=bf16",
                "- bias",
                "- ldx=120",
                "- ldg=121",
            ],
        },
        "quantize" => Grammar {
            dims: "40x150",
            types: QUANTIZED,
            options: &[
                "- rule=floor rule=up",
                "- overflow=propagate",
                "- scales=given",
                "- ldx=151",
                "- ldq=152",
                REPRO,
            ],
        },
        "reduce" => Grammar {
            dims: "40x100",
            types: FLOATS,
            options: &[
                "op=sum op=mean op=max op=min op=amax",
                "- over=rows over=segments/3 over=segments/0",
                "- ldx=120",
                REPRO,
            ],
        },
        "rope" => Grammar {
            dims: "20x4x32",
            types: FLOATS,
            options: &[
                "positions=30 positions=1",
                "- pairs=adjacent",
                "- rotated=4 rotated=0",
                "- ldx=150",
                "- ldy=140",
                "- inverse",
            ],
        },
        "softmax" => Grammar {
            dims: "40x150",
            types: FLOATS,
            options: &["- scale=0.125 scale=-2.0", "- log", "- ldx=160", "- ldy=161", REPRO],
        },
        other => panic!("nothing draws problems of {other}: write its grammar above"),
    }
}

/// A line made of `choices`, which are used up one after the other; 0 chooses the simplest.
fn line(op: &str, choices: &[u32]) -> String {
    let grammar = grammar(op);
    let mut choices = choices.iter().copied();
    let mut below = |n: u32| choices.next().unwrap_or(0) % n;
    let most = |text: &str| text.parse::<u32>().expect("a grammar's dimensions are numbers");
    let mut dim = |text: &str| match text.split_once(':') {
        // Query heads are a multiple of the others, lengths and widths may differ.
        Some((a, b)) if a == b => {
            let few = 1 + below(most(b));
            format!("{}:{few}", few * (1 + below(most(a))))
        }
        Some((a, b)) => format!("{}:{}", 1 + below(most(a)), 1 + below(most(b))),
        None => below(most(text) + 1).to_string(),
    };
    let dims: Vec<String> = grammar.dims.split('x').map(&mut dim).collect();
    let mut pick = |from: &str| {
        let from = words(from);
        from[below(from.len() as u32) as usize].clone()
    };
    let mut out = vec![op.to_owned(), dims.join("x"), pick(grammar.types)];
    out.extend(grammar.options.iter().map(|option| pick(option)));
    out.retain(|word| !word.is_empty());
    out.join(" ")
}

/// Runs every kernel and variant that supports the problem; answers how many there are.
struct Agree<'d>(&'d Arc<dyn Device>, FillKind, u64);

impl OpVisitor for Agree<'_> {
    type Out = Result<u32, String>;
    fn visit<O: Op>(self, problem: &Problem<O::Spec>) -> Result<u32, String> {
        let Self(device, kind, seed) = self;
        let mut ran = 0;
        for kernel in O::kernels(kp_cpu::BACKEND.kernels()) {
            let Ok(variants) = kernel.supports(device.caps(), problem) else { continue };
            for variant in variants.iter() {
                ran += 1;
                let Variant(nth) = variant;
                let named = |e: String| format!("{}#{nth}, {kind} numbers, seed {seed}: {e}", kernel.name());
                let report = check(device, *kernel, variant, problem, kind, seed).map_err(|e| named(e.to_string()))?;
                if let Some(failure) = report.failure {
                    return Err(named(failure.to_string()));
                }
            }
        }
        Ok(ran)
    }
}

/// How many kernels the op `name` has.
struct Offered<'n> {
    name: &'n str,
    kernels: usize,
}

impl EachOp for Offered<'_> {
    fn op<O: Op>(&mut self) {
        if O::NAME == self.name {
            self.kernels = O::kernels(kp_cpu::BACKEND.kernels()).len();
        }
    }
}

/// Draws until `CASES` lines are problems that some kernel runs.
fn agree(op: &str) {
    const CASES: u32 = 48;
    let mut offered = Offered { name: op, kernels: 0 };
    each_op(&mut offered);
    if offered.kernels == 0 {
        println!("kp-cpu has no kernel of {op} yet");
        return;
    }
    let device = kp_cpu::BACKEND.open(0).expect("a CPU is always there");
    let config = ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        max_global_rejects: 100 * CASES,
        ..ProptestConfig::default()
    };
    let kinds = prop::sample::select(vec![FillKind::Exact, FillKind::Normal, FillKind::Wide]);
    let input = (prop::collection::vec(any::<u32>(), 0..24), kinds, 0..1000_u64);
    let ran = Cell::new(0);
    let result = TestRunner::new(config).run(&input, |(choices, kind, seed)| {
        let line = line(op, &choices);
        let Ok(problem) = line.parse::<AnyProblem>() else { return Err(TestCaseError::reject("no problem")) };
        let agreed = panic::catch_unwind(AssertUnwindSafe(|| problem.visit(Agree(&device, kind, seed))));
        let kernels = agreed.unwrap_or_else(|_| Err(format!("a kernel panicked on {kind} numbers, seed {seed}")));
        let kernels = kernels.map_err(|e| TestCaseError::fail(format!("{problem}\n{e}")))?;
        ran.set(ran.get() + kernels);
        prop_assume!(kernels > 0);
        Ok(())
    });
    if let Err(e) = result {
        panic!("{e}");
    }
    assert!(ran.get() >= CASES, "{} runs for {CASES} problems", ran.get());
}

macro_rules! ops {
    ($($op:ident)*) => {
        $(#[test]
        fn $op() {
            agree(stringify!($op));
        })*

        #[test]
        fn every_op_is_drawn() {
            assert_eq!(AnyProblem::OPS, [$(stringify!($op)),*]);
        }
    };
}
ops! {
    activation attention attention_backward cast dequantize gather gemm grouped_gemm norm norm_backward quantize reduce
    rope softmax
}

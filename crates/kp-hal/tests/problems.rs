//! Problems as text: what round-trips, what is refused, and with which numbers.

use kp_hal::op::*;
use kp_hal::{DType, DeviceId, Slice, SliceMut};

/// Each line is the one spelling of its problem.
const CANONICAL: &[&str] = &[
    "gemm 1x4096x7168x2048 e4m3@1x128:e4m3@128x128:bf16 b=col",
    "gemm 1x1x4096x14336 bf16:bf16:bf16",
    "gemm 8x17x31x129 f32:f32:f32 a=col/40/5200 b=row/32/0 acc=f32fast c=d bias=f32 act=gelu_tanh",
    "gemm 1x64x128x256 bf16:i4@g128/f16z:bf16 b=col",
    "gemm 1x64x128x256 bf16:i4@g32/f16:bf16 b=col acc=f32q8",
    "gemm 1x64x128x256 bf16:bf16:e4m3@tensor gate=halves act=silu",
    "gemm 1x64x128x256 e2m1@nv^tiles:e2m1@nv^tiles:f32 b=col sparse=2:4",
    "gemm 1x64x128x256 bf16:bf16:bf16 b=panel16x2",
    "gemm 0x0x0x0 i8:i8:i32",
    "grouped_gemm 8x4096x7168x2048 bf16:bf16:bf16 b=col grouping=masked",
    "attention 2x32:8x1024:4096x128 bf16:bf16:bf16 mask=causal lse",
    "attention 1x16x7:9x192:128 f32:f32:f32 layout=bhsd mask=window/128/0 scale=0.125 softcap=50.0 sinks",
    "attention 4x32:8x1:8192x128 bf16:e4m3@row:bf16 lens=padded page=16/4096",
    "attention 3x4x10:20x64 f16:f16:f16 lens=packed/25/44 mask=(q>=k&&q-k<128||k<4) ldq=1024 alibi",
    "attention 1x1x64x64 f32:f32:f32 mask=blocks/16/32",
    "attention_backward 2x32:8x1024x128 bf16:bf16:bf16 mask=causal",
    "quantize 4096x7168 bf16:e4m3@1x128^outer rule=up",
    "quantize 16x64 f32:e2m1@mx ldx=80",
    "quantize 16x64 f32:e4m3 overflow=propagate",
    "quantize 16x64 f32:i8@row scales=given",
    "dequantize 16x64 nf4@g64/bf16:f32 ldy=66",
    "norm 4096x7168 bf16:e4m3@1x128 kind=rms eps=1e-6 weight=bf16 residual",
    "norm_backward 16x64 f32:f32 kind=layer weight=f32 bias",
    "softmax 16x64 bf16:f32 scale=0.5 log",
    "activation 16x64 bf16:bf16 act=silu gate=pairs residual=bf16 ldx=160",
    "rope 1024x32x128 bf16:bf16 positions=4096 pairs=adjacent rotated=64 inverse",
    "reduce 16x64 f32:f32 op=mean over=segments/3",
    "cast 2x64x32 f32:bf16 x=col y=row/40/4000",
    "cast 1x64x32 bf16:bf16 y=panel16x2",
    "gather 16x384 bf16:f32 from=30522",
    "gemm 1x64x64x64 bf16:bf16:bf16 repro=batch-invariant align=2",
];

#[test]
fn canonical_text_round_trips() {
    for text in CANONICAL {
        let problem: AnyProblem = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        let shown = problem.to_string();
        assert_eq!(shown.parse::<AnyProblem>().as_ref(), Ok(&problem), "{text}");
        let words = |s: &str| {
            let mut words: Vec<_> = s.split_whitespace().map(str::to_owned).collect();
            words.sort();
            words
        };
        assert_eq!(words(&shown), words(text), "only the order of options may differ");
    }
}

#[test]
fn what_equals_the_default_is_one_problem() {
    for (long, short) in [
        ("gemm 1x64x32x16 f32:f32:f32 a=row/16/99 b=row/32 acc=f32 c=none", "gemm 1x64x32x16 f32:f32:f32"),
        ("attention 1x4:4x9:9x64:64 f32:f32:f32 mask=full layout=bshd", "attention 1x4x9x64 f32:f32:f32"),
        ("attention_backward 1x4x9x64 f32:f32:f32 lse", "attention_backward 1x4x9x64 f32:f32:f32"),
        ("softmax 4x4 f32:f32 scale=1e0 align=16 repro=deterministic", "softmax 4x4 f32:f32"),
    ] {
        let parse = |text: &str| text.parse::<AnyProblem>().unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(parse(long), parse(short));
        assert_eq!(parse(long).to_string(), short);
    }
}

#[test]
fn nonsense_is_refused_with_its_numbers() {
    for (text, message) in [
        ("", "op is missing"),
        (
            "gem 1x1x1x1 f32:f32:f32",
            "op must be one of activation, attention, attention_backward, cast, dequantize, \
          gather, gemm, grouped_gemm, norm, norm_backward, quantize, reduce, rope, softmax, got `gem`",
        ),
        ("gemm 1x1x1 f32:f32:f32", "dims must be BATCHxMxNxK, got `1x1x1`"),
        ("gemm 1x1x1x1 f32:f32", "types must be A:B:D, each dtype[@scheme], got `f32:f32`"),
        (
            "gemm 1x1x1x1 f32:f32:f33",
            "D must be one of f64 f32 tf32 f16 bf16 e4m3 e5m2 e4m3fnuz e5m2fnuz e2m1 nf4 e8m0 ue4m3 i4 u4 i8 u8 i32 i64, \
          got `f33`",
        ),
        (
            "gemm 1x1x1x1 f32:i4@g32:f32",
            "B must be dtype@SCHEME, SCHEME one of tensor, row, mx, nv, OUTERxINNER, gINNER/TYPE[z], sizes below 65536, \
          got `i4@g32`",
        ),
        (
            "gemm 1x1x1x1 f32:e2m1@mx^x:f32",
            "B must be dtype@SCHEME^LAYOUT, LAYOUT one of outer, tiles, got `e2m1@mx^x`",
        ),
        ("gemm 1x1x1x4294967296 f32:f32:f32", "K may be at most 4294967295, got 4294967296"),
        ("attention 1x1x8:99999999999x64 f32:f32:f32", "a dim may be at most 4294967295, got 99999999999"),
        ("gemm 1x64x64x64 f32:f32:f32 a=row/32", "ld of a must be at least 64, got 32"),
        ("gemm 2x64x64x64 f32:f32:f32 d=row/64/100", "batch stride of d must be at least 4096, got 100"),
        ("gemm 1x64x63x64 f32:f32:f32 gate=halves", "n of a gated product must be a multiple of 2, got 63"),
        ("reduce 4x4 f32:f32 op=max beta=1", "unknown word `beta=1`, known here: ldx op over repro align"),
        ("gemm 1x64x64x64 f32:f32:f32 acc=f32 acc=f32", "`acc` is given twice"),
        ("gemm 1x1x1x1 f32:f32:f32 acc=i32", "acc=i32 cannot go with an operand that is no integer"),
        ("gemm 1x1x1x1 i8:i8:f32 acc=f32q8", "a must be a float of 16 or 32 bits with acc=f32q8, got i8"),
        ("gemm 1x1x1x1 f32:bf16:f32 acc=f32q8", "b must be a type of at most 8 bits with acc=f32q8, got bf16"),
        ("gemm 1x1x1x8 f32:i4:f32 acc=f32q8 sparse=2:4", "acc=f32q8 cannot go with sparse=2:4"),
        ("gemm 1x1x1x1 i32:i8:i32", "a must be a float or an integer of at most 8 bits, got i32"),
        ("gemm 1x1x1x1 f64:f32:f64", "b must be f64 as a is, got f32"),
        ("gemm 1x1x1x1 f64:f64:f64 acc=f32", "acc must be f64 where a and b are, got `f32`"),
        ("gemm 1x1x1x1 f32:f32:f32 acc=f64", "acc must be no f64 where a and b are not, got `f64`"),
        ("gemm 1x1x1x1 f32:f32:u8", "d must be a float or a signed integer, got u8"),
        (
            "gemm 4294967295x4294967295x4294967295x1 f64:f64:f64",
            "bytes of a may be at most 9223372036854775807, got more than 2^64",
        ),
        ("attention 1x32:5x8x64 f32:f32:f32", "q_heads must be a multiple of 5, got 32"),
        ("attention 1x1x8x64 f32:f32:f32 page=16/4", "page cannot go with lens=fixed"),
        (
            "attention 1x1x8x64 f32:f32:f32 mask=(q=k)",
            "mask must be full, causal, window/LEFT/RIGHT, prefix/LEN, \
          blocks/Q/K or an expression in parentheses, got `(q=k)`",
        ),
        ("attention 1x1x8x64 f32:f32:f32 softcap=inf", "softcap must be a finite number, got `inf`"),
        ("attention 1x1x8x64 f32:f32:f32 softcap=-2.5", "softcap must be above 0, got `-2.5`"),
        ("attention 1x65536x1x65536 f32:f32:f32", "numbers of a token may be at most 4294967295, got 4294967296"),
        ("attention 1x1x8x64 i8:f32:f32", "q must be a float, got i8"),
        ("norm 4x4 f32:f32", "kind is missing"),
        ("rope 4x4x64 f32:f32 positions=9 rotated=65", "rotated may be at most 64, got 65"),
        ("quantize 4x4 f32:f32@row", "q must be a type of at most 8 bits, got f32"),
    ] {
        let got = text.parse::<AnyProblem>().map_or_else(|e| e.to_string(), |p| format!("parsed as {p}"));
        assert_eq!(got, message, "{text}");
    }
}

#[test]
fn scales_are_refused_where_an_op_has_none() {
    let mut spec = GatherSpec::new(4, 8, 16, DType::E4m3);
    assert!(spec.build().is_ok());
    spec.table.format.scheme = Scheme::Row;
    assert_eq!(spec.build(), Err(BadProblem::Conflict { one: "table", other: "scales" }));
}

#[test]
fn hostile_text_neither_panics_nor_floods_the_message() {
    let long = format!("gemm {} f32:f32:f32", "9".repeat(100_000));
    for text in
        [long.as_str(), "gemm \u{0}x\u{7}\u{1b}[31m", "=", "gemm =", "gemm 1x1x1x1 f32:f32:f32 ==", "\u{feff}gemm"]
    {
        let message = text.parse::<AnyProblem>().expect_err("nonsense").to_string();
        assert!(message.chars().count() < 400 && !message.contains('\u{1b}'), "{message}");
    }
}

#[test]
fn needs_count_the_bytes_of_every_operand() {
    let need = |text: &str, operand: &str| {
        let problem: AnyProblem = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        struct Find<'a>(&'a str);
        impl OpVisitor for Find<'_> {
            type Out = Option<u64>;
            fn visit<O: Op>(self, problem: &Problem<O::Spec>) -> Option<u64> {
                let at = <O::Args<'_> as Args<'_>>::OPERANDS.iter().position(|o| o.name == self.0).expect("an operand");
                let need = *needs::<O>(problem).get(at);
                need.is_present().then_some(need.bytes)
            }
        }
        problem.visit(Find(operand))
    };
    let fp8 = "gemm 1x100x200x300 e4m3@1x128:e4m3@128x128:bf16 b=col bias=f32";
    assert_eq!(need(fp8, "a"), Some(100 * 300));
    assert_eq!(need(fp8, "a_scale"), Some(4 * 100 * 3));
    assert_eq!(need(fp8, "b_scale"), Some(4 * 2 * 3));
    assert_eq!(need(fp8, "bias"), Some(4 * 200));
    assert_eq!(need(fp8, "c"), None);
    assert_eq!(need("gemm 3x4x5x6 f32:f32:f32 a=row/10/50", "a"), Some(4 * (2 * 50 + 3 * 10 + 6)));
    assert_eq!(need("gemm 1x4x5x6 f32:e2m1@mx:f32 b=col", "b"), Some(5 * 3));
    assert_eq!(need("attention 4x8:2x1:100x64 f16:f16:f16 lens=padded page=16/99", "page_table"), Some(4 * 4 * 7));
    assert_eq!(need("attention 4x8:2x1:100x64 f16:f16:f16 lens=padded page=16/99", "k"), Some(2 * 99 * 16 * 2 * 64));
    assert_eq!(need("quantize 3x33 f32:e2m1@nv", "scale"), Some(3 * 3));
    assert_eq!(need("quantize 3x33 f32:e2m1@nv", "q"), Some(2 * 17 + 17));
}

#[test]
fn every_spec_names_only_operands_of_its_op() {
    struct Check;
    impl OpVisitor for Check {
        type Out = ();
        fn visit<O: Op>(self, problem: &Problem<O::Spec>) {
            let needs = needs::<O>(problem);
            let operands = <O::Args<'_> as Args<'_>>::OPERANDS;
            for (i, operand) in operands.iter().enumerate() {
                assert!(operand.optional || needs.get(i).is_present(), "{problem} lacks {}", operand.name);
                assert!(!needs.get(i).is_present() || operand.output || needs.get(i).reads, "{}", operand.name);
            }
            assert!(O::NAME == O::Spec::NAME && problem.flops() >= 0.0);
        }
    }
    for text in CANONICAL {
        text.parse::<AnyProblem>().unwrap_or_else(|e| panic!("{text}: {e}")).visit(Check);
    }
}

#[test]
fn the_limits_of_u32_are_problems_or_errors_never_overflow() {
    let max = u32::MAX;
    for text in [
        format!("gemm 1x{max}x1x{max} e4m3:e4m3:bf16"),
        format!("gemm {max}x{max}x{max}x{max} f64:f64:f64 gate=pairs"),
        format!("attention {max}x{max}x{max}x{max} f32:f32:f32 mask=causal"),
        format!("attention 1x1x{max}x64 bf16:bf16:bf16 mask=window/{max}/{max} lens=packed/{max}/{max}"),
        format!("quantize {max}x{max} f32:e2m1@mx^tiles"),
        format!("rope {max}x{max}x{max} f32:f32 positions={max}"),
        format!("activation {max}x{max} f32:f32 gate=halves"),
        format!("cast {max}x{max}x{max} f32:f32 y=panel65535x65535"),
        format!("gather {max}x{max} f32:f32 from={max}"),
        format!("reduce {max}x{max} f32:f32 op=sum over=segments/{max}"),
        format!("grouped_gemm {max}x{max}x{max}x{max} bf16:bf16:bf16"),
        format!("norm {max}x{max} f32:f32 kind=rms ldx={max}"),
        format!("gemm 1x1x{max}x{max} f32:e2m1@mx:f32 b=col"),
    ] {
        if let Ok(problem) = text.parse::<AnyProblem>() {
            struct Touch;
            impl OpVisitor for Touch {
                type Out = f64;
                fn visit<O: Op>(self, problem: &Problem<O::Spec>) -> f64 {
                    let _ = (needs::<O>(problem), problem.bytes(), problem.fingerprint());
                    problem.flops()
                }
            }
            assert!(problem.visit(Touch).is_finite(), "{text}");
        }
    }
}

/// Arguments whose addresses are numbers only: `check` must not touch them.
fn args(device: DeviceId, bytes: [u64; 3], addr: u64) -> GemmArgs<'static> {
    // SAFETY: nothing reads or writes through these views.
    unsafe {
        GemmArgs::new(
            Slice::external(device, addr, bytes[0]),
            Slice::external(device, 4096, bytes[1]),
            SliceMut::external(device, 8192, bytes[2]),
        )
    }
}

#[test]
fn arguments_are_checked_against_needs() {
    let problem: GemmProblem = "gemm 1x64x64x64 e4m3:e4m3:bf16".parse().expect("a problem");
    let needs = needs::<Gemm>(&problem);
    let (here, there) = (DeviceId::next(), DeviceId::next());
    let sizes = [4096, 4096, 8192];
    let check = |args: &GemmArgs<'_>| args.check(&needs, here).map_err(|e| e.to_string());

    assert_eq!(check(&args(here, sizes, 4096)), Ok(()));
    assert_eq!(check(&args(here, [100, 4096, 8192], 4096)), Err("a needs 4096 bytes, got 100".into()));
    assert_eq!(check(&args(here, sizes, 4100)), Err("a must be aligned to 16 bytes, got address 0x1004".into()));
    assert_eq!(check(&args(there, sizes, 4096)), Err(format!("a is on device {there}, the plan is for device {here}")));
    // SAFETY: nothing reads through the view.
    let bias = unsafe { Slice::external(here, 4096, 256) };
    let given = GemmArgs { bias: Some(bias), ..args(here, sizes, 4096) };
    assert_eq!(check(&given), Err("bias is given, but the problem has none".into()));

    let with_bias: GemmProblem = "gemm 1x64x64x64 e4m3:e4m3:bf16 bias=f32".parse().expect("a problem");
    let with_bias = kp_hal::op::needs::<Gemm>(&with_bias);
    assert!(given.check(&with_bias, here).is_ok());
    assert_eq!(
        args(here, sizes, 4096).check(&with_bias, here).map_err(|e| e.to_string()),
        Err("bias is missing".into())
    );
}

#[test]
fn flops_of_masks_follow_their_shape() {
    let flops = |mask: &str| {
        let text = format!("attention 1x1x1000x64 f32:f32:f32 mask={mask}");
        text.parse::<AttentionProblem>().unwrap_or_else(|e| panic!("{text}: {e}")).flops()
    };
    let full = 4.0 * 1000.0 * 1000.0 * 64.0;
    assert_eq!(flops("full"), full);
    assert!((flops("causal") / full - 0.5005).abs() < 1e-3);
    assert!((flops("window/99/0") / full - 0.095).abs() < 5e-3);
    assert!((flops("prefix/500") / full - 0.625).abs() < 5e-3);
}

#[test]
fn problems_are_small() {
    assert!(size_of::<GemmProblem>() <= 160, "{}", size_of::<GemmProblem>());
    assert_eq!(DType::COUNT, 19);
}

//! What attention is judged on.

use super::{
    attention_laws as laws,
    pairwise::{lines, words},
    sequences, tail,
};
use crate::{
    fill::Fill,
    judge::{Depth, Fewer, Judge, Output, Property},
    operands::Operands,
    reference::{attention as reference, heads::Tensors},
};
use kp_hal::op::{Attention, AttentionProblem, AttentionSpec, Lens, Mask, Scheme, Spec};

const FLOOR: &[&str] = &[
    "attention 1x2x16x32 f32:f32:f32",
    "attention 2x4:2x9:17x64 f32:f32:f32 mask=causal lse",
    "attention 1x8:2x1:65x64 bf16:bf16:bf16 mask=causal",
    "attention 1x2x33x64 f16:f16:f16 layout=bhsd lse",
    "attention 2x18:9x1:300x160 f32:f32:f32",
    "attention 1x1x5:3x16 f32:f32:f32 mask=causal lse",
    "attention 2x2x3:0x16 f32:f32:f32 lse",
    "attention 0x2x4x16 f32:f32:f32",
];

/// Sizes with the ways in which lengths and pages can be stored, one line each.
pub(super) const STORED: &[&str] = &[
    "1x1x1x8",
    "2x4:2x7:33x16",
    "1x8:1x1:130x64",
    "1x2x65x32",
    "1x3x16x24:40",
    "1x2x5:3x16",
    "2x2x4:0x16",
    "2x2x0:4x16",
    "0x2x4x16",
    "3x4:2x5:20x16 lens=padded",
    "3x2:1x1:70x64 lens=padded",
    "4x4:2x9:20x16 lens=packed/20/41",
    "5x2x16x32 lens=packed/33/33",
    "2x2x4x16 lens=packed/0/0",
    "3x4:2x5:20x16 lens=padded page=4/17",
    "3x8:2x1:70x64 lens=padded page=16/16",
    "4x4:2x6:19x16 lens=packed/13/0 page=8/12",
    "2x2x3:5x16 lens=padded page=1/11",
    "2x2x3:5x16 lens=padded page=64/3",
];

/// Sizes with more queries to a key head than fit a vector, which kernels that multiply pairs of bf16 take: odd numbers of
/// queries, keys and numbers, few and many queries of many heads, more keys than are summed together.
const MANY: &[&str] = &[
    "1x2x17:33x32",
    "1x1x70:131x24:40",
    "2x2x33:65x65:130",
    "1x8:2x9:70x64",
    "1x20:1x1:90x64:48",
    "1x1x40:530x16",
    "1x1x20:5x32",
    "3x2x30:70x16 lens=padded",
    "4x4:2x29:40x48 lens=packed/70/90",
    "3x4:2x21:70x16 lens=padded page=5/50",
    "3x4:1x9:50x32 lens=packed/20/0 page=16/14",
];

/// Sizes with one query, whole and odd numbers of rows that are read together, heads alone and in groups.
const ONE: &[&str] =
    &["1x8:2x1:130x64", "2x3x1:261x64:128", "3x5:1x1:43x128:64 lens=padded", "2x14:2x1:70x64 lens=padded page=16/10"];

/// Masks of every form.
pub(super) const MASKS: &str = "- mask=causal mask=window/4/0 mask=window/2/3 mask=window/0/0 mask=prefix/3 \
    mask=blocks/4/8 mask=blocks/3/5 mask=(q>=k&&q-k<5||k<2+h) mask=(q%3!=k%3||b==1)";

impl Judge for Attention {
    fn cases(depth: Depth) -> Vec<String> {
        let mut stored: Vec<String> = STORED.iter().map(|&s| s.to_owned()).collect();
        match depth {
            Depth::Quick => stored.retain(|s| !s.starts_with("1x3") && !s.contains("page=1/") && !s.contains("70x64")),
            Depth::Full => stored.extend(words("1x2x128:256x128 1x4:1x64x192:128 2x1x17:129x256 1x1x3:1025x16")),
        }
        let valid = |line: &str| line.parse::<AttentionProblem>().is_ok();
        let by_pairs = lines(
            "attention",
            &[
                MANY.iter().map(|&s| s.to_owned()).collect(),
                words("bf16:bf16:bf16 bf16:bf16:f32 bf16:bf16:f16"),
                words("- layout=bhsd"),
                words(MASKS),
                words("- scale=0.3 scale=-1.0"),
                words("- softcap=2.5"),
                words("- alibi"),
                words("- sinks"),
                words("- lse"),
                words("- ldq=1026 ldk=1028 ldv=1029 ldo=1025"),
            ],
            valid,
        );
        let of_one = lines(
            "attention",
            &[
                ONE.iter().map(|&s| s.to_owned()).collect(),
                words(
                    "bf16:bf16:bf16 bf16:bf16:f32 bf16:e4m3@row:bf16 bf16:e4m3@tensor:f32 bf16:e5m2:bf16 \
                     bf16:e5m2@row:f32",
                ),
                words("- layout=bhsd"),
                words("- mask=causal mask=window/40/0"),
                words("- scale=0.3 scale=-1.0"),
                words("- softcap=2.5"),
                words("- alibi"),
                words("- sinks"),
                words("- lse"),
                words("- ldq=1026 ldk=1028 ldv=1029"),
            ],
            valid,
        );
        let all = lines(
            "attention",
            &[
                stored,
                words(
                    "f32:f32:f32 bf16:bf16:bf16 f16:f16:f16 bf16:bf16:f32 f64:f64:f64 f32:f32:bf16 \
                     e4m3@tensor:e4m3@tensor:bf16 e4m3@row:e4m3@row:f32 e5m2@tensor:e4m3@row:f16 e4m3:e4m3:bf16 \
                     bf16:e4m3@row:bf16 f16:e5m2@tensor:f16 bf16:e4m3:bf16 bf16:e2m1@row:bf16 f32:f16:f32",
                ),
                words("- layout=bhsd"),
                words(MASKS),
                words("- - scale=0.3 scale=-1.0"),
                words("- - softcap=2.5 softcap=50.0"),
                words("- alibi"),
                words("- sinks"),
                words("- lse"),
                words("- - ldq=1026"),
                words("- - ldk=1028"),
                words("- - ldv=1030"),
                words("- - ldo=1025"),
                words("- - repro=batch-invariant repro=fast"),
                words("- - align=4 align=64"),
            ],
            valid,
        );
        all.into_iter().chain(by_pairs).chain(of_one).collect()
    }

    fn floor() -> &'static [&'static str] {
        FLOOR
    }

    fn inputs(problem: &AttentionProblem, fill: &mut Fill) -> Operands {
        let mut operands = Operands::new::<Self>(problem, fill.kind());
        sequences::fill(problem, &mut operands, fill);
        operands
    }

    fn cost(problem: &AttentionProblem) -> f64 {
        // Every key is asked whether it is seen.
        let asked = f64::from(problem.batch) * f64::from(problem.q_heads) * f64::from(problem.q_len);
        2.0 * problem.flops() / 2.0 + 4.0 * asked * f64::from(problem.kv_len)
    }

    fn reference(problem: &AttentionProblem, operands: &Operands) -> Vec<Output> {
        reference::attention(problem, operands)
    }

    /// A NaN among keys is in every query's sum, or hidden by a mask: the formula does not say which.
    fn special(_: &AttentionProblem) -> bool {
        false
    }

    fn properties() -> &'static [Property<Self>] {
        laws::FORWARD
    }

    /// The last queries of each sequence keep their positions, so they must keep their bits.
    fn fewer_rows(problem: &AttentionProblem, operands: &Operands) -> Option<Fewer<Self>> {
        if matches!(problem.mask, Mask::Blocks { .. }) {
            return None;
        }
        let q_len = tail::kept(problem.q_len)?;
        let large_at = Tensors::new(problem, operands);
        let sequences = large_at.sequences();
        let kept = |queries: u32| match problem.lens {
            Lens::Packed { .. } => queries.div_ceil(3),
            _ => q_len,
        };
        let ends = sequences.iter().scan(0, |end, sequence| {
            *end += kept(sequence.queries);
            Some(*end)
        });
        let offsets: Vec<u32> = [0].into_iter().chain(ends).collect();
        let lens = match problem.lens {
            Lens::Packed { kv_total, .. } => Lens::Packed { q_total: *offsets.last()?, kv_total },
            lens => lens,
        };
        let small = AttentionSpec { q_len, lens, ..*problem.spec() }.build().ok()?;
        let small = small.with_repro(problem.repro()).with_align(problem.align());
        let mut part = Operands::new::<Self>(&small, operands.kind());
        for operand in operands.list().iter().filter(|o| !o.output && operands.has(o.name)) {
            if !matches!(operand.name, "q" | "q_scale" | "q_offsets") {
                part.set_bytes(operand.name, operands.codes(operand.name).bytes);
            }
        }
        if part.has("q_offsets") {
            part.set_ints("q_offsets", offsets.into_iter().map(i64::from));
        }
        let small_at = Tensors::new(&small, &part);
        let (mut q, mut scales, mut same) = (Vec::new(), Vec::new(), Vec::new());
        let heads = u64::from(problem.q_heads);
        let (small_len, large_len) = (small.q_extent().1, problem.q_extent().1);
        for (fewer, all) in small_at.sequences().iter().zip(&sequences) {
            let count = kept(all.queries);
            for token in 0..count {
                let (to, from) = (fewer.place(token), all.place(all.queries - count + token));
                for head in 0..problem.q_heads {
                    let at = |i| (small_at.q.index(to, head, i), large_at.q.index(from, head, i));
                    q.extend((0..problem.qk_dim).map(at));
                    let row = |(b, token): (u64, u64), len: u32| (b * u64::from(len) + token) * heads + u64::from(head);
                    scales.push((row(to, small_len), row(from, large_len)));
                    let at = |i| ("o", small_at.o.index(to, head, i), large_at.o.index(from, head, i));
                    same.extend((0..problem.v_dim).map(at));
                }
            }
        }
        q.into_iter().for_each(|(to, from)| part.codes_mut("q").set_code(to, operands.codes("q").code(from)));
        match problem.q.scheme {
            Scheme::None => {}
            Scheme::Tensor => part.set_bytes("q_scale", operands.codes("q_scale").bytes),
            _ => scales.into_iter().for_each(|(to, from)| {
                part.codes_mut("q_scale").set_code(to, operands.codes("q_scale").code(from));
            }),
        }
        Some(Fewer { problem: small, operands: part, same })
    }
}

/// Whether a line is of dense keys, for ops that know no pages.
pub(super) fn dense(line: &str) -> bool {
    !line.contains("page=")
}

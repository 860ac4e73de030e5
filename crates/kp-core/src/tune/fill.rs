//! Inputs to measure with: ordinary numbers, valid indices.

use kp_hal::{
    AnyProblem, DType,
    op::{AttentionSpec, Grouping, Kv, Lens, Need},
};

/// Makes the contents of operands before they are measured.
pub trait Fill {
    /// Writes all of `bytes`, the contents of the operand called `name`, which kernels will read.
    fn operand(&mut self, problem: &AnyProblem, name: &str, need: &Need, bytes: &mut [u8]);
}

impl<F: FnMut(&AnyProblem, &str, &Need, &mut [u8])> Fill for F {
    fn operand(&mut self, problem: &AnyProblem, name: &str, need: &Need, bytes: &mut [u8]) {
        self(problem, name, need, bytes);
    }
}

/// Numbers between −1 and 1, small integers, positive scales; lengths, offsets and indices that the op allows.
///
/// The same sequence in every process.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Default for Random {
    fn default() -> Self {
        Self { state: 0x6b70 }
    }
}

impl Fill for Random {
    fn operand(&mut self, problem: &AnyProblem, name: &str, need: &Need, bytes: &mut [u8]) {
        let count = need.dtype.per_byte() as usize * bytes.len() * 8 / (8.max(need.dtype.bits()) as usize);
        match indices(problem, name, count) {
            Some(Indices::List(list)) => i32s(bytes, list.into_iter()),
            Some(Indices::Below(end)) => i32s(bytes, std::iter::repeat_with(|| self.below(end) as i32)),
            Some(Indices::Bytes(byte)) => bytes.fill(byte),
            // Zero points that are codes, of whatever integers.
            None if name.ends_with("zero") => bytes.fill_with(|| (self.next() >> 61) as u8),
            None => {
                let positive = name.ends_with("scale") || name.ends_with("global");
                self.numbers(need.dtype, positive, bytes);
            }
        }
    }
}

impl Random {
    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.state;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// A number in `0..end`, 0 if that is empty.
    fn below(&mut self, end: u32) -> u32 {
        (((self.next() >> 32) * u64::from(end)) >> 32) as u32
    }

    fn numbers(&mut self, dtype: DType, positive: bool, bytes: &mut [u8]) {
        let width = (dtype.bits() / 8).max(1) as usize;
        for element in bytes.chunks_mut(width) {
            let code = self.code(dtype, positive).to_le_bytes();
            element.copy_from_slice(&code[..element.len()]);
        }
    }

    /// The bits of one number, or of two that share a byte.
    fn code(&mut self, dtype: DType, positive: bool) -> u64 {
        let random = self.next();
        let (exponent, mantissa, bias) = match dtype {
            DType::F64 => (11, 52, 1023),
            DType::F32 | DType::Tf32 => (8, 23, 127),
            DType::Bf16 => (8, 7, 127),
            DType::F16 => (5, 10, 15),
            DType::E4m3 => (4, 3, 7),
            DType::E5m2 => (5, 2, 15),
            DType::E4m3Fnuz => (4, 3, 8),
            DType::E5m2Fnuz => (5, 2, 16),
            // 2^-1 to 2^2.
            DType::E8m0 => return 126 + (random >> 62),
            DType::Ue4m3 => (4, 3, 7),
            DType::I32 | DType::I64 => return ((random >> 57) as i64 - 64) as u64,
            // Every code is a number.
            _ => return random,
        };
        // A power of two from 1/16 to 1/2 and any mantissa, in the format's own bits: no rounding, no special value.
        let power = bias - 1 - (random >> 62);
        let fraction = random & ((1 << mantissa) - 1);
        let negative = random >> 61 & 1 == 1 && !positive && dtype != DType::Ue4m3;
        u64::from(negative) << (exponent + mantissa) | power << mantissa | fraction
    }
}

/// What an operand holds that is no number to compute with.
enum Indices {
    /// These, as I32.
    List(Vec<i32>),
    /// Anything from 0 to below this, as I32.
    Below(u32),
    /// This in every byte.
    Bytes(u8),
}

/// What `name` of `problem` holds if its values mean places, lengths or flags; `count` of them.
fn indices(problem: &AnyProblem, name: &str, count: usize) -> Option<Indices> {
    match (problem, name) {
        (AnyProblem::Gather(p), "index") => Some(Indices::Below(p.table_rows)),
        (AnyProblem::Rope(p), "positions") => Some(Indices::Below(p.positions)),
        (AnyProblem::GroupedGemm(p), "groups") => Some(Indices::List(match p.grouping {
            Grouping::Contiguous => split(p.gemm.m, count),
            Grouping::Masked => vec![small(p.gemm.m); count],
        })),
        // Positions 0 and 1 of each group of four.
        (_, "a_meta") => Some(Indices::Bytes(0b0100_0100)),
        (AnyProblem::Attention(p), _) => of_mask(p, name, count),
        (AnyProblem::AttentionBackward(p), _) => of_mask(&p.forward, name, count),
        _ => None,
    }
}

fn of_mask(p: &AttentionSpec, name: &str, count: usize) -> Option<Indices> {
    let (q_total, kv_total) = match p.lens {
        Lens::Packed { q_total, kv_total } => (q_total, kv_total),
        _ => (0, 0),
    };
    let pages = match p.storage {
        Kv::Paged { pages, .. } => pages,
        Kv::Dense => 0,
    };
    Some(match name {
        "q_offsets" => Indices::List(split(q_total, count)),
        "kv_offsets" => Indices::List(split(kv_total, count)),
        "kv_lens" => Indices::List(vec![small(p.kv_len); count]),
        "page_table" => Indices::Below(pages),
        // All blocks are seen: the most work.
        "blocks" => Indices::Bytes(1),
        _ => return None,
    })
}

/// `count` offsets from 0 to `total`, evenly.
fn split(total: u32, count: usize) -> Vec<i32> {
    let parts = count.saturating_sub(1).max(1) as u64;
    (0..count as u64).map(|i| small((u64::from(total) * i / parts) as u32)).collect()
}

fn small(x: u32) -> i32 {
    x.min(i32::MAX as u32) as i32
}

fn i32s(bytes: &mut [u8], mut values: impl Iterator<Item = i32>) {
    for place in bytes.chunks_exact_mut(4) {
        place.copy_from_slice(&values.next().unwrap_or_default().to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kp_hal::op::{Args, Op, OpVisitor, Problem, needs};

    /// Every operand that is read, as bytes.
    struct Inputs<'a>(&'a AnyProblem);

    impl OpVisitor for Inputs<'_> {
        type Out = Vec<(&'static str, DType, Vec<u8>)>;

        fn visit<O: Op>(self, problem: &Problem<O::Spec>) -> Self::Out {
            let (needs, mut random) = (needs::<O>(problem), Random::default());
            let operands = <O::Args<'_> as Args<'_>>::OPERANDS.iter().enumerate();
            let read = operands.map(|(i, o)| (o, *needs.get(i))).filter(|(_, need)| need.is_present() && need.reads);
            read.map(|(operand, need)| {
                let mut bytes = vec![0xee; need.bytes as usize];
                random.operand(self.0, operand.name, &need, &mut bytes);
                (operand.name, need.dtype, bytes)
            })
            .collect()
        }
    }

    fn inputs(text: &str) -> Vec<(&'static str, DType, Vec<u8>)> {
        let problem: AnyProblem = text.parse().expect(text);
        problem.visit(Inputs(&problem))
    }

    fn ints(text: &str, operand: &str) -> Vec<i32> {
        let all = inputs(text);
        let (_, _, bytes) = all.iter().find(|(name, ..)| *name == operand).expect(operand);
        bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().expect("4 bytes"))).collect()
    }

    #[test]
    fn indices_are_valid() {
        assert!(ints("gather 100x8 f32:f32 from=7", "index").iter().all(|i| (0..7).contains(i)));
        assert!(ints("rope 50x2x8 f32:f32 positions=9", "positions").iter().all(|i| (0..9).contains(i)));
        assert_eq!(ints("grouped_gemm 4x10x8x8 f32:f32:f32", "groups"), [0, 2, 5, 7, 10]);
        assert_eq!(ints("grouped_gemm 3x10x8x8 f32:f32:f32 grouping=masked", "groups"), [10; 3]);
        let packed = "attention 3x2x9x8 f16:f16:f16 lens=packed/20/24";
        assert_eq!(ints(packed, "q_offsets"), [0, 6, 13, 20]);
        assert_eq!(ints(packed, "kv_offsets"), [0, 8, 16, 24]);
        let paged = "attention 2x2x1:64x8 f16:f16:f16 lens=padded page=16/5";
        assert_eq!(ints(paged, "kv_lens"), [64; 2]);
        assert!(ints(paged, "page_table").iter().all(|i| (0..5).contains(i)));
    }

    #[test]
    fn numbers_are_ordinary() {
        for (name, dtype, bytes) in inputs("gemm 1x32x32x64 f32:e4m3@1x32:f32 bias=f32") {
            match dtype {
                DType::F32 => {
                    for number in bytes.chunks_exact(4) {
                        let x = f32::from_le_bytes(number.try_into().expect("4 bytes"));
                        assert!((0.0625..1.0).contains(&x.abs()), "{name} holds {x}");
                        assert!(x > 0.0 || !name.ends_with("scale"), "{name} holds {x}");
                    }
                }
                // Exponent fields 3 to 6: no NaN, which is 15 with all bits set.
                _ => assert!(bytes.iter().all(|b| (3..=6).contains(&(b >> 3 & 15))), "{name}"),
            }
        }
    }
}

//! Every variant against nested loops in f64 that follow the definition.

use crate::numbers::{self, index};
use kp_hal::{
    Buffer, DType, Device, Kernel, MemoryKind, Op, Queue, Variant,
    op::{self, Args, Attention, AttentionProblem, HeadLayout, Kv, Lens, Mask, Overflow, Scheme, Vars, View},
};
use std::sync::Arc;

/// Bytes of each operand, by name.
#[derive(Clone)]
pub(crate) struct Operands(pub(crate) Vec<(&'static str, Vec<u8>)>);

impl Operands {
    pub(crate) fn get(&self, name: &str) -> &[u8] {
        self.0.iter().find(|(n, _)| *n == name).map_or(&[], |(_, bytes)| bytes)
    }

    pub(crate) fn get_mut(&mut self, name: &str) -> &mut [u8] {
        self.0.iter_mut().find(|(n, _)| *n == name).map_or(&mut [], |(_, bytes)| bytes)
    }
}

/// A sequence of numbers that looks random.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    /// Between −1 and 1.
    pub(super) fn unit(&mut self) -> f64 {
        f64::from(self.next()) / f64::from(1_u32 << 30) - 1.0
    }
}

/// Operands for a problem of either direction: numbers within ±1, lengths and pages that make sense.
pub(crate) fn fill<O: Op>(problem: &op::Problem<O::Spec>, p: &op::AttentionSpec, seed: u64) -> Operands {
    let needs = op::needs::<O>(problem);
    let mut random = Random(seed);
    let list = <O::Args<'_> as Args<'_>>::OPERANDS.iter().enumerate().filter(|(i, _)| needs.get(*i).is_present());
    let one = |(i, operand): (usize, &op::Operand)| {
        let need = needs.get(i);
        let count = (need.bytes * 8 / u64::from(need.dtype.bits())) as usize;
        let mut bytes = vec![0xff_u8; need.bytes as usize];
        let ints: Option<Vec<i32>> = match operand.name {
            // Uneven, the second one empty.
            "q_offsets" | "kv_offsets" => {
                let (total, most) = match p.lens {
                    Lens::Packed { q_total, .. } if operand.name == "q_offsets" => (q_total, p.q_len),
                    Lens::Packed { kv_total, .. } => (kv_total, p.kv_len),
                    _ => unreachable!("only packed sequences have offsets"),
                };
                let mut at = 0;
                let lens = (0..p.batch).map(|b| if b == 1 { 0 } else { random.next() % (most + 1) });
                Some(
                    std::iter::once(0)
                        .chain(lens.map(|len| {
                            at = (at + len).min(total);
                            at as i32
                        }))
                        .collect(),
                )
            }
            "kv_lens" => {
                Some((0..p.batch).map(|b| if b == 1 { 0 } else { random.next() % (p.kv_len + 1) } as i32).collect())
            }
            "page_table" => {
                let Kv::Paged { pages, .. } = p.storage else { unreachable!("only pages have tables") };
                Some((0..count).map(|_| (random.next() % pages) as i32).collect())
            }
            _ => None,
        };
        if let Some(ints) = ints {
            bytes.chunks_exact_mut(4).zip(ints).for_each(|(b, x)| b.copy_from_slice(&x.to_le_bytes()));
        } else if operand.name == "blocks" {
            bytes.iter_mut().for_each(|b| *b = (random.next() % 3) as u8);
        } else if !operand.output {
            let is_scale = operand.name.ends_with("scale");
            let numbers: Vec<f64> =
                (0..count).map(|_| if is_scale { 1.5 + random.unit() } else { 2.0 * random.unit() }).collect();
            numbers::write(need.dtype, &numbers, &mut bytes, 0, Overflow::Saturate);
        }
        (operand.name, bytes)
    };
    Operands(list.map(one).collect())
}

/// Runs a kernel; answers every operand afterwards.
pub(crate) fn launch<O: Op>(
    kernel: &dyn Kernel<O>,
    problem: &op::Problem<O::Spec>,
    variant: Variant,
    operands: &Operands,
) -> Operands {
    let device: Arc<dyn Device> = crate::BACKEND.open(0).expect("the processor");
    let mut queue: Box<dyn Queue> = device.clone().queue().expect("a queue");
    let plan = kernel.plan(&device, problem, variant).expect("supported, so planned");
    // Scratch holds whatever was there before.
    queue.reserve_scratch(plan.scratch_bytes().max(1)).expect("memory");
    crate::kernel::own(&mut *queue).scratch().fill(0xff);
    let mut buffers: Vec<Option<Buffer>> = <O::Args<'_> as Args<'_>>::OPERANDS
        .iter()
        .map(|operand| {
            let (_, bytes) = operands.0.iter().find(|(name, _)| *name == operand.name)?;
            let mut buffer = device.clone().alloc(bytes.len() as u64, MemoryKind::Device).expect("memory");
            queue.upload(buffer.slice_mut(), bytes).expect("as long");
            Some(buffer)
        })
        .collect();
    let views = <O::Args<'_> as Args<'_>>::OPERANDS.iter().zip(&mut buffers).map(|(operand, buffer)| {
        buffer.as_mut().map(|b| if operand.output { View::Out(b.slice_mut()) } else { View::In(b.slice()) })
    });
    let args = O::Args::bind(views.collect()).expect("every operand is there");
    plan.launch(&mut *queue, &args).expect("a launch");
    drop(args);
    let read = |(operand, buffer): (&op::Operand, &Option<Buffer>)| {
        let buffer = buffer.as_ref()?;
        let mut bytes = vec![0; buffer.bytes() as usize];
        queue.download(&mut bytes, buffer.slice()).expect("as long");
        Some((operand.name, bytes))
    };
    Operands(<O::Args<'_> as Args<'_>>::OPERANDS.iter().zip(&buffers).filter_map(read).collect())
}

/// A problem's operands as the definition names them.
pub(crate) struct Naive<'a> {
    pub(crate) p: &'a op::AttentionSpec,
    pub(crate) operands: &'a Operands,
}

/// Sequence as stored, token.
type Place = (u32, u32);

impl Naive<'_> {
    /// First query and key as stored, and how many there are.
    pub(crate) fn sequence(&self, b: u32) -> (Place, u32, Place, u32) {
        let int = |name: &str, i: u32| index(self.operands.get(name), i as usize) as u32;
        let (q, queries) = match self.p.lens {
            Lens::Packed { .. } => ((0, int("q_offsets", b)), int("q_offsets", b + 1) - int("q_offsets", b)),
            _ => ((b, 0), self.p.q_len),
        };
        let (k, keys) = match (self.p.storage, self.p.lens) {
            (Kv::Paged { .. }, _) => ((0, 0), int("kv_lens", b)),
            (_, Lens::Packed { .. }) => ((0, int("kv_offsets", b)), int("kv_offsets", b + 1) - int("kv_offsets", b)),
            (_, Lens::Padded) => ((b, 0), int("kv_lens", b)),
            (_, Lens::Fixed) => ((b, 0), self.p.kv_len),
        };
        (q, queries, k, keys)
    }

    pub(crate) fn key(&self, b: u32, first: Place, k: u32) -> Place {
        match self.p.storage {
            Kv::Dense => (first.0, first.1 + k),
            Kv::Paged { page, .. } => {
                let table = self.operands.get("page_table");
                (index(table, (b * self.p.kv_len.div_ceil(page) + k / page) as usize) as u32, k % page)
            }
        }
    }

    /// Where number `c` of an operand lies.
    pub(crate) fn at(&self, name: &str, (sequence, token): Place, head: u32, c: u32) -> usize {
        let p = self.p;
        let (i, heads, dim, len) = match name {
            "q" | "grad_q" => (0, p.q_heads, p.qk_dim, p.q_extent().1),
            "k" | "grad_k" => (1, p.kv_heads, p.qk_dim, p.kv_extent().1),
            "v" | "grad_v" => (2, p.kv_heads, p.v_dim, p.kv_extent().1),
            _ => (3, p.q_heads, p.v_dim, p.q_extent().1),
        };
        let at = match p.layout {
            HeadLayout::Bshd => (sequence * len + token) * p.ld[i] + head * dim + c,
            HeadLayout::Bhsd => ((sequence * heads + head) * len + token) * p.ld[i] + c,
        };
        at as usize
    }

    pub(crate) fn number(&self, name: &str, place: Place, head: u32, c: u32) -> f64 {
        let p = self.p;
        let (format, heads, len) = match name {
            "q" => (p.q, p.q_heads, p.q_extent().1),
            "k" | "v" => (p.kv, p.kv_heads, p.kv_extent().1),
            _ => (p.o.into(), p.q_heads, p.q_extent().1),
        };
        let code: f64 = numbers::get(format.dtype, self.operands.get(name), self.at(name, place, head, c));
        let scales = || {
            self.operands.get(match name {
                "q" => "q_scale",
                "k" => "k_scale",
                _ => "v_scale",
            })
        };
        match format.scheme {
            Scheme::Tensor => code * numbers::get::<f64>(DType::F32, scales(), 0),
            Scheme::Row => {
                let at = (place.0 * len + place.1) * heads + head;
                code * numbers::get::<f64>(DType::F32, scales(), at as usize)
            }
            _ => code,
        }
    }

    pub(crate) fn per_head(&self, name: &str, head: u32) -> f64 {
        numbers::get(DType::F32, self.operands.get(name), head as usize)
    }

    /// The score of key `k`, and d score / d (scaled product); `None` if hidden.
    pub(crate) fn score(&self, b: u32, head: u32, i: u32, k: u32) -> Option<(f64, f64)> {
        let p = self.p;
        let (first_q, queries, first_k, keys) = self.sequence(b);
        let position = i64::from(i) + i64::from(keys) - i64::from(queries);
        let key = i64::from(k);
        let seen = match p.mask {
            Mask::Full => true,
            Mask::Causal => key <= position,
            Mask::Window { left, right } => position - i64::from(left) <= key && key <= position + i64::from(right),
            Mask::Prefix { len } => key <= position || k < len,
            Mask::Blocks { q, k: cols } => {
                self.operands.get("blocks")[(i / q * p.kv_len.div_ceil(cols) + k / cols) as usize] != 0
            }
            Mask::Expr(expr) => expr.eval(Vars { q: position, k: key, h: head.into(), b: b.into() }) != 0,
        };
        if !seen {
            return None;
        }
        let kv_head = head / (p.q_heads / p.kv_heads);
        let (at_q, at_k) = ((first_q.0, first_q.1 + i), self.key(b, first_k, k));
        let product: f64 =
            (0..p.qk_dim).map(|c| self.number("q", at_q, head, c) * self.number("k", at_k, kv_head, c)).sum();
        let (mut score, mut slope) = (product * f64::from(p.score_scale()), 1.0);
        if let Some(cap) = p.softcap {
            let cap = f64::from(cap.get());
            let t = (score / cap).tanh();
            (score, slope) = (cap * t, 1.0 - t * t);
        }
        if p.alibi {
            score += self.per_head("slopes", head) * (key - position) as f64;
        }
        Some((score, slope))
    }

    /// P of every key (0 if hidden), with the score's slope, and the log-sum-exp.
    pub(crate) fn weights(&self, b: u32, head: u32, i: u32) -> (Vec<(f64, f64)>, f64) {
        let keys = self.sequence(b).3;
        let scores: Vec<_> = (0..keys).map(|k| self.score(b, head, i, k)).collect();
        let sink = if self.p.sinks { self.per_head("sinks", head) } else { f64::NEG_INFINITY };
        let max = scores.iter().flatten().map(|s| s.0).fold(sink, f64::max);
        let base = if max == f64::NEG_INFINITY { 0.0 } else { max };
        let sum = scores.iter().flatten().map(|s| (s.0 - base).exp()).sum::<f64>() + (sink - base).exp();
        let weights = scores.iter().map(|s| s.map_or((0.0, 0.0), |s| ((s.0 - base).exp() / sum, s.1))).collect();
        (weights, base + sum.ln())
    }
}

/// A number that a kernel must write, and where.
struct Number {
    at: usize,
    /// Sequence, head, query and column.
    of: [u32; 4],
    want: f64,
    /// The magnitudes of the terms of its sum.
    most: f64,
}

/// The numbers of O, and of the log-sum-exps if they are asked for.
fn definition(naive: &Naive<'_>) -> (Vec<Number>, Vec<Number>) {
    let (p, mut numbers, mut all_lse) = (naive.p, Vec::new(), Vec::new());
    for (b, head) in (0..p.batch).flat_map(|b| (0..p.q_heads).map(move |h| (b, h))) {
        let (first_q, queries, first_k, keys) = naive.sequence(b);
        let kv_head = head / (p.q_heads / p.kv_heads);
        for i in 0..queries {
            let (weights, lse) = naive.weights(b, head, i);
            let place = (first_q.0, first_q.1 + i);
            for c in 0..p.v_dim {
                let value = |k: u32| naive.number("v", naive.key(b, first_k, k), kv_head, c);
                let terms = (0..keys).map(|k| (weights[k as usize].0, k)).filter(|(w, _)| *w != 0.0);
                let products = terms.map(|(w, k)| w * value(k));
                let (want, most) = products.fold((0.0, 0.0), |(sum, most), x| (sum + x, most + x.abs()));
                numbers.push(Number { at: naive.at("o", place, head, c), of: [b, head, i, c], want, most });
            }
            if p.lse {
                let at = ((place.0 * p.q_heads + head) * p.q_extent().1 + place.1) as usize;
                all_lse.push(Number { at, of: [b, head, i, 0], want: lse, most: lse });
            }
        }
    }
    (numbers, all_lse)
}

fn check(text: &str) {
    let problem: AttentionProblem = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
    let p = *problem.spec();
    let operands = fill::<Attention>(&problem, &p, 7);
    let naive = Naive { p: &p, operands: &operands };
    let caps = crate::caps::with_tiles();
    let (exact, o_unit) = match (p.q.dtype, p.o) {
        (DType::F64, DType::F64) => (1e-12, 1e-13),
        (_, DType::Bf16) => (2e-5, 0.004),
        (_, DType::F16) => (2e-5, 0.0005),
        _ => (2e-5, 1e-6),
    };
    let (wanted, lse) = definition(&naive);
    let mut untouched = vec![true; operands.get("o").len() * 8 / p.o.bits() as usize];
    wanted.iter().for_each(|number| untouched[number.at] = false);
    let mut places = 0;
    let copies = super::KERNELS.iter().flat_map(|kernel| {
        let variants = kernel.supports(&caps, &problem).into_iter().flat_map(|variants| variants.iter());
        variants.map(move |variant| (*kernel, variant))
    });
    for (kernel, variant) in copies {
        let got = launch::<Attention>(kernel, &problem, variant, &operands);
        let kernel = kernel.name();
        // Pairs are of bf16, weights too.
        let is_paired = kernel.ends_with("_bf16") || matches!((kernel, variant.0), ("avx512_decode", 2..));
        for &Number { at, of, want, most } in &wanted {
            let got: f64 = numbers::get(p.o, got.get("o"), at);
            places += 1;
            let rounded = if is_paired { 0.004 * most } else { 0.0 };
            assert!(
                (got - want).abs() <= exact * 3.0 + o_unit * want.abs() + rounded,
                "{text} {kernel}#{}: o{of:?} is {got}, should be {want}",
                variant.0
            );
        }
        for &Number { at, of, want, .. } in &lse {
            let got: f64 = numbers::get(DType::F32, got.get("lse"), at);
            let close = (got - want).abs() <= 1e-5 + 1e-6 * want.abs() || got == want;
            assert!(close, "{text} {kernel}#{}: lse{of:?} is {got}, should be {want}", variant.0);
        }
        // What belongs to no row keeps its bytes, here all ones.
        let bytes = p.o.bits() as usize / 8;
        for at in untouched.iter().enumerate().filter(|(_, u)| **u).map(|(at, _)| at * bytes) {
            assert!(got.get("o")[at..at + bytes].iter().all(|b| *b == 0xff), "{text}: byte {at} of o was written");
        }
    }
    assert!(places > 0 || text.starts_with("attention 0"), "{text} compared nothing");
}

#[test]
fn options_follow_the_definition() {
    for text in [
        "attention 1x1x1x1 f32:f32:f32 lse",
        "attention 2x3x5x16 f32:f32:f32 lse",
        "attention 1x2x70:130x24:40 f32:f32:f32 mask=causal lse",
        "attention 2x8:2x5:9x32 bf16:bf16:bf16 lse",
        "attention 1x2x5:3x16 f32:f32:f32 mask=causal lse",
        "attention 1x2x3:1x16 f32:f32:f32 sinks lse",
        "attention 2x4:2x5:6x16 f32:f32:f32 mask=causal sinks lse",
        "attention 2x2x4:5x16 f32:f32:f32 ldq=40 ldk=36 ldv=48 ldo=33",
        "attention 2x3x4:6x16 f32:f32:f32 layout=bhsd mask=causal lse ldq=20 ldo=17",
        "attention 1x4x6x16 f32:f32:f32 mask=causal alibi lse",
        "attention 1x2x33:100x16 f32:f32:f32 softcap=1.5 alibi lse",
        "attention 1x2x33:700x16 f32:f32:f32 softcap=0.25 mask=window/40/7 lse",
        "attention 1x2x9x16 f32:f32:f32 mask=window/3/0 lse",
        "attention 1x2x8x16 f32:f32:f32 mask=prefix/3 scale=-0.3 lse",
        "attention 2x2x70:100x16 f32:f32:f32 mask=blocks/7/13 lse",
        "attention 2x2x8x16 f32:f32:f32 mask=(q>=k&&q-k<3||k<1+b+h) lse",
        "attention 1x2x6:40x16 f64:f64:f64 mask=causal alibi softcap=2 lse",
        "attention 1x1x6:40x16 f64:f32:f32 mask=causal",
        "attention 1x1x6:40x16 f32:f64:f16",
        "attention 1x2x12x16 f16:f16:f16 mask=causal lse",
        "attention 1x2x12x16 tf32:tf32:f32",
        "attention 1x1x3:4x5:7 f32:f32:f32",
        "attention 0x1x3:4x5:7 f32:f32:f32",
        "attention 2x1x3:0x5:7 f32:f32:f32 lse",
    ] {
        check(text);
    }
}

#[test]
fn lengths_pages_and_scales_follow_the_definition() {
    for text in [
        "attention 3x2x3:8x16 f32:f32:f32 lens=padded mask=causal lse",
        "attention 5x2x9:13x16 f32:f32:f32 lens=packed/30/40 mask=causal lse",
        "attention 5x2x9:13x16 f32:f32:f32 lens=packed/30/40 layout=bhsd lse",
        "attention 3x4:2x2:70x16 bf16:bf16:bf16 lens=padded page=16/9 mask=causal lse",
        "attention 3x4:2x2:70x16 f32:f32:f32 lens=padded page=5/40 layout=bhsd",
        "attention 3x4:2x4:70x16 f32:e4m3@row:f32 lens=packed/9/0 page=16/9 lse",
        "attention 1x4:2x3:5x32 e4m3@row:e4m3@row:f32 mask=causal",
        "attention 2x2x4:6x32 e5m2@tensor:e4m3@tensor:bf16 lse",
        "attention 2x2x4:6x32 e2m1@tensor:e2m1@row:f32 layout=bhsd",
        "attention 1x2x4:6x32 e4m3:nf4:f32",
    ] {
        check(text);
    }
}

#[test]
fn pairs_of_numbers_and_keys_follow_the_definition() {
    for text in [
        "attention 1x2x17x1 bf16:bf16:f32 lse",
        "attention 2x3x40:33x16 bf16:bf16:bf16 lse",
        "attention 1x2x70:130x24:40 bf16:bf16:f32 mask=causal lse",
        "attention 1x1x100:129x65:130 bf16:bf16:f16 mask=window/40/7 ldq=70 ldk=72 ldv=131 ldo=140 lse",
        "attention 1x8:2x9:600x64 bf16:bf16:f32 layout=bhsd mask=causal sinks lse",
        "attention 1x2x33:100x80 bf16:bf16:f32 softcap=1.5 alibi lse",
        "attention 1x2x20x16 bf16:bf16:f32 mask=prefix/3 scale=-2.5 lse",
        "attention 2x2x70:100x16 bf16:bf16:f32 mask=blocks/7/13 lse",
        "attention 2x2x20x16 bf16:bf16:f32 mask=(q>=k&&q-k<3||k<1+b+h) lse",
        "attention 5x2x29:33x16 bf16:bf16:f32 lens=packed/90/100 mask=causal lse",
        "attention 3x4:2x30:70x16 bf16:bf16:f32 lens=padded page=5/40 lse",
        "attention 1x1x1:20x16 bf16:bf16:f32 scale=40",
        "attention 1x1x60:200x16 bf16:bf16:f32 scale=40 lse",
        // Bases rise while weights wait, of a chunk and of the next.
        "attention 1x1x100:700x16 bf16:bf16:f32 scale=40 lse",
        "attention 1x2x300:1100x32 bf16:bf16:bf16 mask=causal lse",
        // More runs of keys than stay ready, and tiles that find those of others.
        "attention 1x4x70:4700x16 bf16:bf16:f32 mask=window/4400/0 lse",
        "attention 2x1x20:0x16 bf16:bf16:f32 lse",
    ] {
        check(text);
    }
}

/// Of numbers of one part to three.
#[test]
fn parts_follow_the_definition() {
    for text in [
        "attention 1x2x17x1 f32:f32:f32 lse",
        "attention 1x2x70:130x24:40 f32:f32:f32 mask=causal lse",
        "attention 1x1x100:129x65:130 f32:f32:f32 mask=window/40/7 ldq=70 ldk=72 ldv=131 ldo=140 lse",
        "attention 1x8:2x9:600x64 f16:f16:f32 layout=bhsd mask=causal sinks lse",
        "attention 1x2x33:100x80 f16:f16:f16 softcap=1.5 alibi lse",
        "attention 1x2x20x16 f32:bf16:f32 mask=prefix/3 scale=-2.5 lse",
        "attention 2x2x70:100x16 bf16:f32:f32 mask=blocks/7/13 lse",
        "attention 5x2x29:33x16 bf16:e4m3:f32 lens=packed/90/100 mask=causal lse",
        "attention 3x4:2x30:70x16 bf16:e4m3@row:f32 lens=padded page=5/40 lse",
        "attention 2x2x40x48 f16:e5m2@tensor:f32 lse",
        "attention 1x1x60:200x16 f32:f32:f32 scale=8 lse",
        "attention 1x1x100:700x16 f32:f32:f32 scale=8 lse",
        "attention 1x4x70:2700x16 f32:f32:f32 mask=window/2400/0 lse",
    ] {
        check(text);
    }
}

#[test]
fn many_keys_and_many_tiles_follow_the_definition() {
    for text in [
        "attention 1x1x1:2100x16 f32:f32:f32 lse",
        "attention 1x8:1x1:1500x32 bf16:bf16:f32 mask=causal lse",
        "attention 1x1x5:1400x16 f32:f32:f32 mask=window/600/0 sinks lse",
        "attention 2x16:4x40:600x16 f32:f32:f32 mask=causal lse",
        "attention 2x4:1x1100x8 f32:f32:f32 mask=causal",
        // One query: splits, chunks and steps that end within, heads that share rows in fours and alone.
        "attention 1x5:1x1:1300x48 f32:f32:f32 mask=window/700/0 alibi sinks lse",
        "attention 3x2x1:700x16 bf16:bf16:f32 lens=padded softcap=2.5 lse",
        "attention 2x12:2x1:600x64:80 f32:f16:f32 layout=bhsd alibi lse",
        "attention 3x8:2x1:530x32 bf16:e4m3@row:f32 lens=padded page=16/120 lse",
        "attention 2x4:2x1:270x24 f32:e5m2@tensor:f32 layout=bhsd sinks",
        // The same in pairs of bf16.
        "attention 1x5:1x1:1300x128:64 bf16:bf16:f32 mask=window/700/0 alibi sinks lse",
        "attention 3x8:2x1:530x64 bf16:e4m3@row:f32 lens=padded page=16/120 lse",
        "attention 2x12:2x1:603x64:128 bf16:e5m2@tensor:f32 layout=bhsd softcap=2.5 lse",
        "attention 1x32:2x1:290x64 bf16:bf16:f32 mask=window/100/0 lse",
        "attention 2x3x1:330x192:64 bf16:e4m3:f32 lse",
    ] {
        check(text);
    }
}

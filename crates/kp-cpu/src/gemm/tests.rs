//! Every kernel and variant against three nested loops in f64.

use super::product::Summing;
use crate::{caps::with_tiles, numbers};
use kp_hal::{
    Buffer, DType, Device, Kernel, MemoryKind, Op, Queue, Slice,
    op::{self, Addend, Args, Gate, Gemm, GemmProblem, GemmSpec, Scheme, Sparsity, View},
};
use std::sync::Arc;

/// Bytes of each operand, by name.
struct Operands(Vec<(&'static str, Vec<u8>)>);

impl Operands {
    fn get(&self, name: &str) -> &[u8] {
        self.0.iter().find(|(n, _)| *n == name).map_or(&[], |(_, bytes)| bytes)
    }
}

/// Small whole numbers and powers of two, so that every sum below is exact in f32.
fn fill(problem: &GemmProblem, seed: u64) -> Operands {
    let needs = op::needs::<Gemm>(problem);
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    let operands = <Gemm as Op>::Args::<'_>::OPERANDS.iter().enumerate().filter(|(i, _)| needs.get(*i).is_present());
    Operands(
        operands
            .map(|(i, operand)| {
                let need = needs.get(i);
                let elements = (need.bytes * 8 / u64::from(need.dtype.bits())) as usize;
                let is_scale = operand.name.contains("scale") || operand.name.contains("global");
                let numbers: Vec<f64> = (0..elements)
                    .map(|_| match next() {
                        x if is_scale => [0.5, 1.0, 2.0][x as usize % 3],
                        x if need.dtype == DType::Nf4 => f64::from(x % 2),
                        // The last is no code of four bits.
                        x if operand.name.ends_with("zero") => [0.0, 1.0, 3.0, 40.0][x as usize % 4],
                        x if matches!(need.dtype, DType::U4 | DType::U8) => f64::from(x % 5),
                        x => f64::from(x % 5) - 2.0,
                    })
                    .collect();
                let mut bytes = vec![0_u8; need.bytes as usize];
                match operand.name {
                    // Two of four: positions 0..4 in ascending pairs.
                    "a_meta" => bytes.iter_mut().for_each(|b| {
                        let pair = |x: u32| [0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110][x as usize % 6];
                        *b = pair(next()) | pair(next()) << 4;
                    }),
                    _ => numbers::write(need.dtype, &numbers, &mut bytes, 0, op::Overflow::Saturate),
                }
                (operand.name, bytes)
            })
            .collect(),
    )
}

/// Element (`o`, `i`) of an operand with its scale.
fn element(spec: &GemmSpec, operands: &Operands, name: &str, batch: u32, o: u32, i: u32) -> f64 {
    let (m, outer, place) = match name {
        "a" => {
            let i = if spec.sparsity == Sparsity::TwoOfFour {
                let meta =
                    operands.get("a_meta")[((batch * spec.m + o) * (spec.k / 8) + i / 8) as usize] >> (i / 4 % 2 * 4);
                match (0..2).find(|kept| u32::from(meta >> (2 * kept) & 3) == i % 4) {
                    Some(kept) => i / 4 * 2 + kept,
                    None => return 0.0,
                }
            } else {
                i
            };
            (&spec.a, spec.m, spec.a.index(o, i, spec.m))
        }
        _ => (&spec.b, spec.n, spec.b.index(i, o, spec.k)),
    };
    let code: f64 = numbers::get(m.dtype(), operands.get(name), (u64::from(batch) * m.stride + place) as usize);
    let format = m.format;
    let block = (o / format.block().0, i / format.block().1);
    let at = match format.scheme {
        Scheme::Tensor | Scheme::None => 0,
        _ => u64::from(batch) * format.scale_count(outer, spec.k) + format.scale_index(block, (outer, spec.k)),
    } as usize;
    let part = |suffix: &str| format!("{name}_{suffix}");
    let zero = if format.has_zero() { f64::from(operands.get(&part("zero"))[at]) } else { 0.0 };
    let scale: f64 = format.scale_dtype().map_or(1.0, |t| numbers::get(t, operands.get(&part("scale")), at));
    let global: f64 =
        if format.has_global() { numbers::get(DType::F32, operands.get(&part("global")), 0) } else { 1.0 };
    (code - zero) * scale * global
}

/// What D must hold, row-major over its columns.
fn expected(spec: &GemmSpec, operands: &Operands, (alpha, beta): (f32, f32)) -> Vec<f64> {
    let (n, cols, mut d) = (spec.n, spec.d_cols(), Vec::new());
    for batch in 0..spec.batch {
        let sides: [Vec<f64>; 2] = [("a", spec.m), ("b", n)].map(|(name, outer)| {
            let row = |o| (0..spec.k).map(move |i| element(spec, operands, name, batch, o, i));
            (0..outer).flat_map(row).collect()
        });
        let line = |side: usize, outer: u32| &sides[side][(outer * spec.k) as usize..][..spec.k as usize];
        for row in 0..spec.m {
            let x: Vec<f64> = (0..n)
                .map(|col| {
                    let sum: f64 = line(0, row).iter().zip(line(1, col)).map(|(x, y)| x * y).sum();
                    let c: f64 = match spec.c {
                        Addend::None => 0.0,
                        Addend::Given(t) => {
                            numbers::get(t, operands.get("c"), ((batch * spec.m + row) * n + col) as usize)
                        }
                        Addend::InPlace => {
                            numbers::get(spec.d.dtype(), operands.get("d"), place(spec, batch, row, col))
                        }
                    };
                    let bias: f64 =
                        spec.epilogue.bias.map_or(0.0, |t| numbers::get(t, operands.get("bias"), col as usize));
                    let c = if beta == 0.0 { 0.0 } else { f64::from(beta) * c };
                    f64::from(alpha) * sum + c + bias
                })
                .collect();
            for col in 0..cols {
                let (g, u) = spec.epilogue.gate.sources(col, cols);
                let mut y = [x[g as usize]];
                crate::act::each(spec.epilogue.act, &mut y);
                let [mut y] = y;
                if spec.epilogue.gate != Gate::None {
                    y *= x[u as usize];
                }
                if let Some(t) = spec.epilogue.residual {
                    y += numbers::get::<f64>(t, operands.get("residual"), place(spec, batch, row, col));
                }
                d.push(y);
            }
        }
    }
    d
}

fn place(spec: &GemmSpec, batch: u32, row: u32, col: u32) -> usize {
    (u64::from(batch) * spec.d.stride + spec.d.index(row, col, spec.m)) as usize
}

struct Machine {
    device: Arc<dyn Device>,
    queue: Box<dyn Queue>,
}

impl Machine {
    fn new() -> Self {
        let device = crate::BACKEND.open(0).expect("the processor is there");
        let queue = device.clone().queue().expect("a queue");
        Self { device, queue }
    }

    fn buffer(&mut self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.device.clone().alloc(bytes.len() as u64, MemoryKind::Device).expect("memory");
        self.queue.upload(buffer.slice_mut(), bytes).expect("upload");
        buffer
    }

    fn bytes(&mut self, slice: Slice<'_>) -> Vec<u8> {
        let mut bytes = vec![0; slice.bytes() as usize];
        self.queue.download(&mut bytes, slice).expect("download");
        bytes
    }

    /// D and its scales as `kernel` leaves them, one for each variant.
    fn run(
        &mut self,
        kernel: &dyn Kernel<Gemm>,
        problem: &GemmProblem,
        operands: &Operands,
        (alpha, beta): (f32, f32),
    ) -> Vec<(Vec<u8>, Vec<u8>)> {
        let Ok(variants) = kernel.supports(&with_tiles(), problem) else { return Vec::new() };
        variants
            .iter()
            .map(|variant| {
                let plan = kernel.plan(&self.device, problem, variant).expect("what is supported can be planned");
                let list = <Gemm as Op>::Args::<'_>::OPERANDS;
                let mut buffers: Vec<Option<Buffer>> = list
                    .iter()
                    .map(|o| operands.0.iter().find(|(n, _)| *n == o.name).map(|(_, b)| b.clone()))
                    .map(|bytes| bytes.map(|bytes| self.buffer(&bytes)))
                    .collect();
                self.queue.reserve_scratch(plan.scratch_bytes()).expect("scratch");
                crate::kernel::own(&mut *self.queue).scratch().fill(0xff);
                let views = buffers.iter_mut().zip(list).map(|(buffer, operand)| {
                    buffer.as_mut().map(|b| if operand.output { View::Out(b.slice_mut()) } else { View::In(b.slice()) })
                });
                let mut args = <Gemm as Op>::Args::bind(views.collect()).expect("all operands");
                (args.alpha, args.beta) = (alpha, beta);
                plan.launch(&mut *self.queue, &args).expect("launch");
                let of = |name| list.iter().position(|o| o.name == name).expect("an operand");
                let d = self.bytes(buffers[of("d")].as_ref().expect("d").slice());
                let scale = buffers[of("d_scale")].take().map_or(Vec::new(), |b| self.bytes(b.slice()));
                (d, scale)
            })
            .collect()
    }
}

pub(super) fn check(problem: &str, scalars: (f32, f32)) {
    let problem: GemmProblem = problem.parse().unwrap_or_else(|e| panic!("{problem}: {e}"));
    let spec = problem.spec();
    let operands = fill(&problem, 7);
    let want = expected(spec, &operands, scalars);
    let mut machine = Machine::new();
    let mut ran = 0;
    for kernel in crate::KERNELS.gemm {
        for (d, d_scale) in machine.run(*kernel, &problem, &operands, scalars) {
            ran += 1;
            let mut i = 0;
            for batch in 0..spec.batch {
                for row in 0..spec.m {
                    for col in 0..spec.d_cols() {
                        let code: f64 = numbers::get(spec.d.dtype(), &d, place(spec, batch, row, col));
                        let (scale, step) = scale_of_d(spec, &operands, &d_scale, batch, row, col);
                        // Only a scale that is given, or none, leaves numbers too large to store.
                        let most = numbers::largest(spec.d.dtype()) * scale;
                        let (got, want) = (code * scale, want[i].clamp(-most, most));
                        let tolerance = want.abs() * 2e-6 + 1e-6 + step * scale;
                        assert!(
                            (got - want).abs() <= tolerance + want.abs() * rounding(spec.d.dtype()),
                            "{problem} {} ({ran}) at {batch},{row},{col}: {got}, not {want}",
                            kernel.name(),
                        );
                        i += 1;
                    }
                }
            }
        }
    }
    assert!(ran > 0, "{problem}");
}

fn rounding(t: DType) -> f64 {
    match t {
        DType::F64 | DType::F32 | DType::I32 => 0.0,
        DType::F16 | DType::Bf16 => 0.004,
        DType::E5m2 => 0.126,
        DType::E2m1 | DType::Nf4 => 0.26,
        _ => 0.07,
    }
}

fn scale_of_d(spec: &GemmSpec, operands: &Operands, scales: &[u8], batch: u32, row: u32, col: u32) -> (f64, f64) {
    let format = spec.d.format;
    let step = match format.dtype {
        DType::I32 => 0.5,
        t if t.bits() > 8 => 0.0,
        _ => 0.6,
    };
    let global: f64 = match format.scheme {
        Scheme::Tensor | Scheme::Nv => numbers::get(DType::F32, operands.get("d_global"), 0),
        _ => 1.0,
    };
    let Some(dtype) = format.scale_dtype().filter(|_| format.scheme != Scheme::Tensor) else { return (global, step) };
    let shape = (spec.m, spec.d_cols());
    let at = u64::from(batch) * format.scale_count(shape.0, shape.1)
        + format.scale_index((row / format.block().0, col / format.block().1), shape);
    (numbers::get::<f64>(dtype, scales, at as usize) * global, step)
}

#[test]
fn orders_strides_and_odd_sizes() {
    for problem in [
        "gemm 1x1x1x1 f32:f32:f32",
        "gemm 1x37x53x41 f32:f32:f32",
        "gemm 1x37x53x41 f32:f32:f32 a=col b=col d=col",
        "gemm 3x13x70x300 f32:f32:f32 a=row/301/5000 b=col/310/0 d=row/71/2000",
        "gemm 1x200x300x600 f32:f32:f32 b=col",
        "gemm 1x65x129x1300 f64:f64:f64 b=panel32x1",
        "gemm 1x5x40x77 bf16:bf16:bf16 b=panel16x2",
        "gemm 40x9x17x33 f32:f32:f32",
        "gemm 1x3x100x2100 bf16:bf16:f32 b=col",
        "gemm 1x8x100x500 f16:f16:f32",
        "gemm 1x2100x40x3 f32:f32:f32",
        "gemm 1x3x2100x4 f32:f32:f32",
    ] {
        check(problem, (1.0, 1.0));
    }
}

#[test]
fn nothing_times_something() {
    for problem in [
        "gemm 0x3x3x3 f32:f32:f32",
        "gemm 2x0x3x3 f32:f32:f32",
        "gemm 2x3x0x3 f32:f32:f32",
        "gemm 2x3x4x0 f32:f32:f32 bias=f32 c=f32",
        "gemm 1x3x4x0 i8:i8:i32",
        "gemm 1x9x4x0 e4m3@row:e4m3@1x128:e4m3@row",
        "gemm 1x9x4x0 bf16:e2m1@mx:bf16 b=panel16x2",
        "gemm 1x9x4x0 i8@row:i8@row:f32 b=col",
    ] {
        check(problem, (1.0, 1.0));
    }
}

#[test]
fn every_type_and_scheme() {
    for types in [
        "f16:bf16:f16",
        "tf32:f32:f32",
        "e4m3:e5m2:bf16",
        "e4m3fnuz@tensor:e5m2fnuz@row:f32",
        "e4m3@1x128:e4m3@128x128:bf16",
        "e4m3@1x128^outer:e4m3@128x128:f32",
        "e2m1@nv:e2m1@nv^tiles:f32",
        "e2m1@mx^tiles:e4m3@mx:f32",
        "bf16:i4@g32/f16z:f32",
        "f16:u8@g64/bf16z:f32",
        "f32:nf4@g64/f32:f32",
        "bf16:u4@g48/f32z:bf16",
        "i8:i8:i32",
        "u8:i4:f32",
        "i8@row:i8@row:bf16",
        "i8@mx:i8@mx:f32",
        "i8@row:i4@g32/f16:f32",
        "i8@g48/f32z:u8@g64/f16z:f32",
    ] {
        check(&format!("gemm 1x21x34x290 {types}"), (1.0, 1.0));
        check(&format!("gemm 2x3x66x290 {types} b=col"), (0.5, 1.0));
    }
    for problem in [
        "gemm 1x21x34x290 f16:f16:f32 acc=f16",
        "gemm 1x21x34x290 i8:i8:f32 acc=f32",
        "gemm 2x7x9x290 e4m3:e4m3:f32 acc=f32fast b=col",
        "gemm 1x1x34x608 i8:u4@g32/f16z:f32 b=col",
        "gemm 1x1x9x23040 i8:i4@g16/f16:f32 b=col",
        "gemm 1x300x33x2080 i8@row:i4@g16/f32z:f32 b=col",
    ] {
        check(problem, (1.0, 1.0));
    }
}

/// Signed bytes that are read where they lie: panels of 64 columns, and columns that meet 64 rows at a time.
#[test]
fn bytes_in_place() {
    for size in ["1x60x66x1100 b=col/1104", "1x300x66x36 b=col", "1x7x66x1100 b=panel64x4", "2x9x128x36 b=panel64x4"] {
        let (size, order) = size.split_once(' ').expect("a size and an order");
        for types in ["i8@row:i8@row:f32", "i8:i8:i32", "u8:i8:i32", "u8:i8@row:bf16"] {
            check(&format!("gemm {size} {types} {order}"), (1.0, 1.0));
        }
        check(&format!("gemm {size} i8@row:i8@tensor:bf16 gate=halves act=relu bias=f32 {order}"), (1.0, 1.0));
        check(&format!("gemm {size} i8@row:i8@row:f32 gate=pairs c=f32 {order}"), (0.5, 2.0));
    }
    check("gemm 1x2x66x0 i8:i8:i32 a=row/80 b=col/80", (1.0, 1.0));
}

/// More of k than is near at a time, ends of lines and of pairs, and the last panel.
#[test]
fn few_rows_of_pairs() {
    for size in ["2x8x66x2100", "1x3x40x33", "2x2x97x1090", "1x5x64x31", "1x1x33x2001"] {
        check(&format!("gemm {size} bf16:bf16:f32 b=col/2200"), (1.0, 1.0));
        check(&format!("gemm {size} bf16:bf16:f32 b=panel32x2"), (1.0, 1.0));
    }
}

/// What tiles of 32 by 32 by 64 bytes take apart: whole and broken blocks, more than one task, each way in which B lies.
#[test]
fn tiles_of_bytes_and_bf16() {
    for (types, orders) in [
        (
            "bf16:bf16:f32",
            ["", "b=col", "b=panel32x2", "b=panel48x2", "b=panel64x1", "a=col b=col/1100", "b=panel16x1"],
        ),
        ("i8@row:i8@row:f32", ["", "b=col", "b=panel32x4", "b=panel16x4", "b=panel64x1", "a=col b=col", "d=col"]),
        ("i4:u8:f32", ["", "b=col", "b=panel32x4", "b=panel80x4", "a=col", "d=col b=col", "b=panel16x2"]),
    ] {
        for order in orders {
            for size in ["1x33x65x582", "2x40x66x64"] {
                check(&format!("gemm {size} {types} {order}"), (1.0, 1.0));
            }
        }
        check(&format!("gemm 1x33x40x1088 {types} b=col"), (1.0, 1.0));
        check(&format!("gemm 1x40x132x192 {types} gate=halves act=relu bias=f32 b=col"), (1.0, 1.0));
        check(&format!("gemm 2x40x136x64 {types} gate=pairs b=col c=f32"), (0.5, 2.0));
        // So many rows that tasks pack their own, if there are threads.
        check(&format!("gemm 1x260x65x1100 {types} b=col"), (1.0, 1.0));
    }
    let integers = "bf16:i8@row:bf16 bf16:i4@g32/f16:f32 bf16:u4@g64/f16z:f32 f32:i4@g16/f32z:f32";
    for types in integers.split(' ').chain(["bf16:e2m1@mx:f32", "bf16:e4m3@row:f32"]) {
        check(&format!("gemm 1x1x70x1088 {types} b=col"), (1.0, 1.0));
        check(&format!("gemm 1x40x70x1088 {types} b=col"), (1.0, 1.0));
    }
}

#[test]
fn sparse_rows() {
    for types in ["bf16:bf16:f32", "i8:i8:i32", "e4m3@row:e4m3@row:f32", "i8@g48/f32z:bf16:f32", "e2m1@nv:e2m1@nv:f32"]
    {
        check(&format!("gemm 2x17x35x296 {types} sparse=2:4"), (1.0, 1.0));
        check(&format!("gemm 1x2x35x296 {types} sparse=2:4 b=col"), (1.0, 1.0));
    }
}

#[test]
fn everything_that_follows_the_sums() {
    for options in [
        "f32:f32:f32 c=f32 bias=bf16",
        "f32:f32:f32 c=d",
        "f32:f32:f32 c=d d=col/40",
        "f32:f32:f16 c=f64 residual=f32",
        "i8:i8:i32 c=i32",
        "f32:f32:f32 act=gelu bias=f32",
        "f32:f32:f32 act=silu gate=halves bias=f32",
        "f32:f32:f32 act=silu gate=pairs bias=f32 c=f32",
        "f32:f32:f32 act=relu gate=halves residual=f16 d=col",
        "i8@row:i8@row:f32 gate=halves c=f16",
    ] {
        for rows in [3, 37] {
            for cols in [70, 300] {
                for scalars in [(1.0, 1.0), (0.5, -2.0), (2.0, 0.0)] {
                    check(&format!("gemm 2x{rows}x{cols}x30 {options}"), scalars);
                }
            }
        }
    }
}

#[test]
fn stored_with_scales() {
    for d in [
        "e4m3@tensor",
        "e4m3@row",
        "e4m3@1x128",
        "e4m3@32x16^outer",
        "e5m2@mx^tiles",
        "e2m1@nv",
        "i8@g32/f16",
        "i4@g32/f32",
        "i4",
        "i8",
    ] {
        for order in ["row", "col", "row/150/9000", "col/60/9000"] {
            check(&format!("gemm 2x37x130x20 f32:f32:{d} d={order}"), (1.0, 1.0));
        }
        check(&format!("gemm 1x37x66x20 f32:f32:{d} gate=halves act=relu"), (1.0, 1.0));
    }
}

/// A row of D has the same bits whatever the other rows and however many.
#[test]
fn rows_do_not_know_of_each_other() {
    let mut machine = Machine::new();
    for layout in ["", "b=col"] {
        let problem = |m: u32| -> GemmProblem {
            format!("gemm 1x{m}x70x1500 f32:f32:f32 {layout} repro=batch-invariant").parse().expect("a problem")
        };
        let mut state = 1_u64;
        let mut numbers = |n: usize| -> Vec<u8> {
            let next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                ((state >> 40) as f32 / 1e6 - 8.0).to_le_bytes()
            };
            std::iter::repeat_with(next).take(n).flatten().collect()
        };
        let (a, b) = (numbers(300 * 1500), numbers(1500 * 70));
        let mut rows = Vec::new();
        for m in [1, 2, 7, 50, 300] {
            let problem = problem(m);
            let d = vec![0; m as usize * 70 * 4];
            let operands = Operands(vec![("a", a[..m as usize * 6000].to_vec()), ("b", b.clone()), ("d", d)]);
            for kernel in crate::KERNELS.gemm {
                for (d, _) in machine.run(*kernel, &problem, &operands, (1.0, 1.0)) {
                    rows.push((m, kernel.name(), d[..280].to_vec()));
                }
            }
        }
        let ran: Vec<_> = rows.iter().map(|r| (r.0, r.1)).collect();
        assert!(rows.iter().all(|(_, _, row)| *row == rows[0].2), "{ran:?}");
    }
}

#[test]
fn integers_wrap() {
    // 65535 · 127 · 127 · 2 < 2³¹ < 140000 · 127².
    let problem: GemmProblem = "gemm 1x1x2x140000 i8:i8:i32".parse().expect("a problem");
    let operands = Operands(vec![("a", vec![127; 140_000]), ("b", vec![127; 280_000]), ("d", vec![0; 8])]);
    let mut machine = Machine::new();
    for kernel in crate::KERNELS.gemm {
        for (d, _) in machine.run(*kernel, &problem, &operands, (1.0, 1.0)) {
            let want = (140_000_i64 * 127 * 127) as i32;
            assert_eq!(numbers::index(&d, 1), want, "{}", kernel.name());
        }
    }
}

#[test]
fn blocks_of_whole_numbers_stay_exact() {
    let block = |types: &str| {
        let problem: GemmProblem = format!("gemm 1x1x1x999 {types}").parse().expect("a problem");
        Summing::of(problem.spec()).block
    };
    assert_eq!(block("i8:i8:i32"), 512);
    assert_eq!(block("u8:u8:i32"), 256);
    assert_eq!(block("i8@g999/f32z:i8@g999/f32z:f32"), 64);
}

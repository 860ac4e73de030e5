//! Norms of rows that no cache holds against the same rows, a few at a time.

use kp_hal::{
    MemoryKind, Variant,
    op::{NormArgs, NormProblem},
};

fn launch(problem: &NormProblem, [x, weight, bias]: [&[u8]; 3], y_bytes: usize) -> Vec<u8> {
    let device = crate::BACKEND.open(0).expect("the processor is there");
    let mut queue = device.clone().queue().expect("a queue");
    let buffer = |bytes: usize| device.clone().alloc(bytes as u64, MemoryKind::Device).expect("memory");
    let (mut from, mut by, mut plus, mut to) =
        (buffer(x.len()), buffer(weight.len()), buffer(bias.len()), buffer(y_bytes));
    for (buffer, bytes) in [(&mut from, x), (&mut by, weight), (&mut plus, bias)] {
        queue.upload(buffer.slice_mut(), bytes).expect("upload");
    }
    queue.fill(to.slice_mut(), 0xaa).expect("fill");
    let plan = crate::KERNELS.norm[0].plan(&device, problem, Variant(0)).expect("a plan");
    let args =
        NormArgs { weight: Some(by.slice()), bias: Some(plus.slice()), ..NormArgs::new(from.slice(), to.slice_mut()) };
    plan.launch(&mut *queue, &args).expect("launch");
    let mut bytes = vec![0; y_bytes];
    queue.download(&mut bytes, to.slice()).expect("download");
    bytes
}

#[test]
fn streamed_rows_are_those_of_the_caches() {
    const FEW: u32 = 7;
    for (rows, rest) in [
        (601, "x1003 bf16:bf16 kind=rms weight=bf16 bias=bf16"),
        (601, "x1024 bf16:bf16 kind=layer weight=bf16 bias=bf16 ldx=1040 ldy=1031"),
        (301, "x1003 f32:f32 kind=layer weight=f32 bias=f32"),
        (301, "x1024 f32:f32 kind=l2 weight=f32 bias=f32 ldy=1030"),
        (601, "x1001 f32:bf16 kind=rms weight=f32 bias=f32"),
        (601, "x1002 bf16:f32 kind=layer weight=bf16 bias=bf16"),
    ] {
        let of = |rows: u32| -> NormProblem {
            let text = format!("norm {rows}{rest}");
            text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
        };
        let (p, few) = (of(rows), of(FEW));
        let (x_size, y_size) = (p.x.dtype().bits() as usize / 8, p.y.dtype().bits() as usize / 8);
        let numbers = |count: usize, seed: usize| -> Vec<u8> {
            // Between −1 and 1, as many as there are, no two rows alike.
            let number = |i: usize| ((i + seed) * 7919 % 10007) as f32 / 5003.5 - 1.0;
            (0..count).flat_map(|i| number(i).to_le_bytes()[4 - x_size..].to_vec()).collect()
        };
        let [weight, bias] = [1, 2].map(|seed| numbers(p.cols as usize, seed));
        let x = numbers(p.rows as usize * p.x.ld as usize, 3);
        let bytes = |rows: usize, ld: u32, size: usize| rows * ld as usize * size;
        let y = launch(&p, [&x, &weight, &bias], bytes(p.rows as usize, p.y.ld, y_size));
        for first in (0..(p.rows - FEW) as usize).step_by(53) {
            let x = &x[bytes(first, p.x.ld, x_size)..][..bytes(FEW as usize, p.x.ld, x_size)];
            let want = launch(&few, [x, &weight, &bias], bytes(FEW as usize, p.y.ld, y_size));
            let got = &y[bytes(first, p.y.ld, y_size)..][..want.len()];
            let wrong = got.iter().zip(&want).position(|(got, want)| got != want);
            assert_eq!(wrong, None, "{rest}: byte from row {first} on");
        }
    }
}

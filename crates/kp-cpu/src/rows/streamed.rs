//! For tests of rows that no cache holds: the same rows a few at a time, which stay there, must become the same.

use kp_hal::{DType, Device, MemoryKind, Queue, Slice, SliceMut, op::Rows};
use std::sync::Arc;

/// Rows that any cache holds.
const FEW: u32 = 7;

/// Numbers between −1 and 1, as many as there are different ones of `dtype`.
pub(crate) fn codes(dtype: DType, count: usize, seed: usize) -> Vec<u8> {
    let number = |i: usize| ((i + seed) * 7919 % 10007) as f32 / 5003.5 - 1.0;
    let bytes = size(dtype);
    (0..count).flat_map(|i| number(i).to_le_bytes()[size_of::<f32>() - bytes..].to_vec()).collect()
}

fn size(dtype: DType) -> usize {
    dtype.bits() as usize / 8
}

/// What `run` leaves in `y_bytes` bytes.
pub(crate) fn launch<const N: usize>(
    inputs: [&[u8]; N],
    y_bytes: usize,
    run: impl FnOnce(&Arc<dyn Device>, &mut dyn Queue, [Slice<'_>; N], SliceMut<'_>),
) -> Vec<u8> {
    let device = crate::BACKEND.open(0).expect("the processor is there");
    let mut queue = device.clone().queue().expect("a queue");
    let buffer = |bytes: usize| device.clone().alloc(bytes as u64, MemoryKind::Device).expect("memory");
    let inputs = inputs.map(|bytes| {
        let mut input = buffer(bytes.len());
        queue.upload(input.slice_mut(), bytes).expect("upload");
        input
    });
    let mut y = buffer(y_bytes);
    queue.fill(y.slice_mut(), 0xaa).expect("fill");
    run(&device, &mut *queue, inputs.each_ref().map(|input| input.slice()), y.slice_mut());
    let mut bytes = vec![0; y_bytes];
    queue.download(&mut bytes, y.slice()).expect("download");
    bytes
}

/// `of` a number of rows answers how they lie before and behind an operation, and the operation, of those rows to so many bytes.
pub(crate) fn same_as_few<F: Fn(&[u8], usize) -> Vec<u8>>(rows: u32, of: impl Fn(u32) -> (Rows, Rows, F)) {
    let bytes = |rows: u32, lie: &Rows| rows as usize * lie.ld as usize * size(lie.dtype());
    let ((x_rows, y_rows, run), (_, _, run_few)) = (of(rows), of(FEW));
    let x = codes(x_rows.dtype(), rows as usize * x_rows.ld as usize, 3);
    let y = run(&x, bytes(rows, &y_rows));
    for first in (0..rows - FEW).step_by(53) {
        let x = &x[bytes(first, &x_rows)..][..bytes(FEW, &x_rows)];
        let want = run_few(x, bytes(FEW, &y_rows));
        let got = &y[bytes(first, &y_rows)..][..want.len()];
        let wrong = got.iter().zip(&want).position(|(got, want)| got != want);
        assert_eq!(wrong, None, "{x_rows:?} to {y_rows:?}: byte from row {first} on");
    }
}

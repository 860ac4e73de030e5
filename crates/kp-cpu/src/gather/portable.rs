//! Rows of a table by index, each moved as it is or cast as `cast` does. Limits: none.

use crate::{
    kernel::{Output, input},
    numbers::{self, Real},
    portable::Portable,
    threads,
};
use kp_hal::{
    DType, Problem,
    op::{Gather, GatherArgs, GatherProblem, GatherSpec, Overflow, Rows},
    source_hash,
};

impl Portable for Gather {
    const CODE: u64 = source_hash(include_bytes!("portable.rs"));

    unsafe fn run(p: &Problem<GatherSpec>, _: &mut [u8], args: &GatherArgs<'_>) {
        let wide = |t: DType| matches!(t, DType::F64 | DType::I32 | DType::I64);
        // SAFETY: the caller's promise.
        unsafe {
            match wide(p.table.dtype()) || wide(p.y.dtype()) {
                true => run::<f64>(p, args),
                false => run::<f32>(p, args),
            }
        }
    }
}

/// Elements that are cast at a time.
const RUN: usize = 512;

/// Rows of fewer bytes than this in all are not worth a second thread.
const GRAIN: u64 = 64 << 10;

/// # Safety
/// As `Portable::run`.
unsafe fn run<R: Real>(p: &GatherProblem, args: &GatherArgs<'_>) {
    // SAFETY: within a launch, whose arguments were checked.
    let (table, index, y) = unsafe { (input(&args.table), input(&args.index), Output::new(&args.y)) };
    let row_bytes = p.y.dtype().bytes(p.cols.into());
    if p.rows == 0 || row_bytes == 0 {
        return;
    }
    let rows_at_once = (GRAIN / row_bytes).clamp(1, p.rows.into()) as usize;
    threads::for_each((p.rows as usize).div_ceil(rows_at_once), |task| {
        for i in task * rows_at_once..((task + 1) * rows_at_once).min(p.rows as usize) {
            let first = first_byte(&p.y, i);
            // SAFETY: rows do not share bytes, and each has one task.
            let y = unsafe { y.part(first..first + row_bytes as usize) };
            let chosen = usize::try_from(numbers::index(index, i)).ok().filter(|&row| row < p.table_rows as usize);
            match chosen {
                Some(row) if p.table.dtype() == p.y.dtype() => {
                    let first = first_byte(&p.table, row);
                    y.copy_from_slice(&table[first..first + y.len()]);
                }
                Some(row) => cast::<R>(p, table, row, y),
                None => fill_nan(p, y),
            }
        }
    });
}

fn first_byte(rows: &Rows, row: usize) -> usize {
    rows.dtype().bytes(row as u64 * u64::from(rows.ld)) as usize
}

fn cast<R: Real>(p: &GatherProblem, table: &[u8], row: usize, y: &mut [u8]) {
    let mut run = [R::ZERO; RUN];
    for first in (0..p.cols as usize).step_by(RUN) {
        let run = &mut run[..RUN.min(p.cols as usize - first)];
        numbers::read(p.table.dtype(), table, row * p.table.ld as usize + first, run);
        numbers::write(p.y.dtype(), run, y, first, Overflow::Saturate);
    }
}

/// NaN, or 0 in types without.
fn fill_nan(p: &GatherProblem, y: &mut [u8]) {
    let run = [f32::NAN; RUN];
    for first in (0..p.cols as usize).step_by(RUN) {
        numbers::write(p.y.dtype(), &run[..RUN.min(p.cols as usize - first)], y, first, Overflow::Saturate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kp_hal::MemoryKind;

    fn gather(text: &str, table: &[f64], index: &[i32]) -> Vec<f64> {
        let p: GatherProblem = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        let device = crate::BACKEND.open(0).expect("the processor is there");
        let mut queue = device.clone().queue().expect("a queue");
        let mut bytes = vec![0; p.table.dtype().bytes(table.len() as u64) as usize];
        numbers::write(p.table.dtype(), table, &mut bytes, 0, Overflow::Saturate);
        let index: Vec<u8> = index.iter().flat_map(|i| i.to_le_bytes()).collect();
        let span = p.y.span(p.rows, p.cols);
        let mut buffer = |bytes: &[u8]| {
            let mut buffer = device.clone().alloc(bytes.len() as u64, MemoryKind::Device).expect("memory");
            queue.upload(buffer.slice_mut(), bytes).expect("upload");
            buffer
        };
        let (table, index) = (buffer(&bytes), buffer(&index));
        let mut y = buffer(&vec![0; p.y.dtype().bytes(span) as usize]);
        let plan = crate::KERNELS.gather[0].plan(&device, &p, kp_hal::Variant(0)).expect("a plan");
        plan.launch(&mut *queue, &GatherArgs::new(table.slice(), index.slice(), y.slice_mut())).expect("launch");
        let mut bytes = vec![0; y.bytes() as usize];
        queue.download(&mut bytes, y.slice()).expect("download");
        (0..span as usize).map(|i| numbers::get(p.y.dtype(), &bytes, i)).collect()
    }

    #[test]
    fn rows_arrive_and_outsiders_are_nan() {
        let table = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        assert_eq!(gather("gather 3x2 f32:f32 from=3", &table, &[2, 0, 2]), [5.0, 6.0, 1.0, 2.0, 5.0, 6.0]);
        assert_eq!(gather("gather 1x2 bf16:f32 from=3", &table, &[1]), [3.0, 4.0]);
        let out = gather("gather 3x2 f32:bf16 from=3", &table, &[-1, 3, 1]);
        assert!(out[..4].iter().all(|x| x.is_nan()), "{out:?}");
        assert_eq!(out[4..], [3.0, 4.0]);
        assert_eq!(gather("gather 2x2 i8:i32 from=3", &table, &[7, 1]), [0.0, 0.0, 3.0, 4.0]);
        assert_eq!(gather("gather 1x1 i4:i4 from=3 ldt=2", &table, &[2]), [5.0]);
    }
}

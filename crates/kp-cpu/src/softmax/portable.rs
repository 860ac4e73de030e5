//! Softmax in three passes over a row that is in cache: maximum, sum, quotient.

use crate::{
    kernel::{Output, input},
    portable::Portable,
    rows::{Out, bytes_of, each_row_by_parts, largest, lying, map, read, scratch_bytes, stretches, sum, with_real},
    simd::{
        arith::Arith,
        vector::{Vectors, Wide, WorkOn},
    },
    store::Store,
};
use kp_hal::{
    DType, Problem,
    op::{Softmax, SoftmaxArgs, SoftmaxProblem, SoftmaxSpec},
    source_hash,
};

impl Portable for Softmax {
    const CODE: u64 =
        source_hash(include_bytes!("portable.rs")) ^ source_hash(include_bytes!("bf16s.rs")).rotate_left(1);

    fn scratch_bytes(p: &SoftmaxProblem) -> u64 {
        scratch_bytes::<f64>(p.cols.into())
    }

    unsafe fn run(p: &Problem<SoftmaxSpec>, scratch: &mut [u8], args: &SoftmaxArgs<'_>) {
        // SAFETY: the caller's promise.
        with_real!(p.x.dtype() == DType::F64, R => unsafe { run::<R>(p, scratch, args) });
    }
}

/// # Safety
/// As `Portable::run`.
unsafe fn run<R: Arith + Wide>(p: &SoftmaxProblem, scratch: &mut [u8], args: &SoftmaxArgs<'_>) {
    let scale = R::from_f32(p.scale.get());
    // SAFETY: within a launch, whose arguments were checked.
    let (bytes, y) = unsafe { (input(&args.x), Output::new(&args.y)) };
    let store = Store::fused(p.y.format, (p.rows, p.cols), p.y.ld, y, Output::of(&mut []), &[]).of_launch(p.x.dtype());
    let next_of = |row: u32| bytes_of(&p.x, bytes, row + 1, (p.rows, p.cols));
    #[cfg(target_arch = "x86_64")]
    if p.x.dtype() == DType::Bf16 && !p.log && crate::numbers::bf16s::are_here() && store.format == DType::Bf16.into() {
        let row = |row: u32, room: &mut [f32]| {
            let x = bytes_of(&p.x, bytes, row, (p.rows, p.cols));
            // SAFETY: a row is one thread's; the processor has what `bf16s` asks for.
            unsafe {
                let y = crate::numbers::bf16s::Row { codes: store.row(row), streams: store.streams };
                super::bf16s::share(p.scale.get(), x, next_of(row), room, y);
            }
        };
        // SAFETY: scratch and output are this launch's.
        return unsafe { crate::rows::each_unit(&store, scratch, row) };
    }
    let row = |row: u32, out: Out<'_, R>| {
        let next = next_of(row);
        let x = lying(&p.x, bytes, row, 0, out.room.len());
        if x.is_none() {
            read(&p.x, bytes, row, 0, out.room);
        }
        R::run_widest(out.room.len(), Share { scale, log: p.log, x, next, out });
    };
    // SAFETY: scratch and output are this launch's.
    unsafe { each_row_by_parts(&store, scratch, row) };
}

/// One row: `x`, or what the room of `out` holds.
struct Share<'a, R> {
    scale: R,
    log: bool,
    x: Option<&'a [R]>,
    /// The next row's bytes.
    next: &'a [u8],
    out: Out<'a, R>,
}

impl<R: Arith> WorkOn<R> for Share<'_, R> {
    #[inline(always)]
    fn run_on<I: Vectors<R>>(self) {
        let Self { scale, log, x, next, out } = self;
        // What is NaN makes the sum NaN, and so the row, whatever the largest number is found to be.
        let largest = match x {
            Some(x) if scale == R::ONE => largest::<I, R>(x),
            _ => {
                map(x, out.room, |_, x| x * scale);
                largest::<I, R>(out.room)
            }
        };
        let x = x.filter(|_| scale == R::ONE);
        if log {
            let mut total = R::ZERO;
            let mut tile = [R::ZERO; TILE];
            for x in x.unwrap_or(out.room).chunks(TILE) {
                let tile = &mut tile[..x.len()];
                map(Some(x), tile, |_, x| (x - largest).exp_falling::<I>());
                total += sum::<I, R>(tile);
            }
            let log = total.ln();
            stretches(x, out, next, |_, x, out| map(x, out, |_, x| x - largest - log));
        } else {
            let powers = Out::of(out.room);
            stretches(x, powers, next, |_, x, powers| map(x, powers, |_, x| (x - largest).exp_falling::<I>()));
            let share = R::ONE / sum::<I, R>(out.room);
            stretches(None, out, &[], |_, powers, out| map(powers, out, |_, power| power * share));
        }
    }
}

/// Numbers whose exponentials are summed at a time.
const TILE: usize = 1024;

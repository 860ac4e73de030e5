//! Quantization: one pass, two where a scale serves the whole tensor.

use crate::{
    kernel::{Output, input, optional},
    numbers::{self, Real},
    portable::Portable,
    rows::{bytes_of, each_unit, lying, parts, read, scratch_bytes, scratch_of, units_of, with_real},
    store::{self, Store, scale_of},
    threads,
};
use kp_hal::{
    DType, Problem,
    op::{Overflow, Quantize, QuantizeArgs, QuantizeProblem, QuantizeSpec, Scales, Scheme},
    source_hash,
};

impl Portable for Quantize {
    const CODE: u64 = source_hash(include_bytes!("portable.rs"));

    fn scratch_bytes(p: &QuantizeProblem) -> u64 {
        let unit = match p.q.format.scheme {
            Scheme::Block { outer, .. } => u32::from(outer).min(p.rows.max(1)),
            _ => 1,
        };
        scratch_bytes::<f64>(u64::from(unit) * u64::from(p.cols))
    }

    unsafe fn run(p: &Problem<QuantizeSpec>, scratch: &mut [u8], args: &QuantizeArgs<'_>) {
        // SAFETY: the caller's promise.
        with_real!(p.x.dtype() == DType::F64, R => unsafe { run::<R>(p, scratch, args) });
    }
}

/// # Safety
/// As `Portable::run`.
unsafe fn run<R: Real>(p: &QuantizeProblem, scratch: &mut [u8], args: &QuantizeArgs<'_>) {
    let format = p.q.format;
    // SAFETY: within a launch, whose arguments were checked.
    let (x, given_scales, given_zeros) =
        unsafe { (input(&args.x), optional(&args.given_scale), optional(&args.given_zero)) };
    // SAFETY: as above.
    let (codes, scales, globals, zeros) = unsafe {
        (
            Output::new(&args.q),
            Output::optional(&args.scale),
            Output::optional(&args.global),
            Output::optional(&args.zero),
        )
    };
    let global = match (format.scheme, p.scales) {
        (Scheme::Tensor, Scales::Given) => numbers::get(DType::F32, given_scales, 0),
        (Scheme::Tensor, Scales::Computed) => {
            // SAFETY: scratch is this launch's.
            let amax = unsafe { largest::<R>(p, x, scratch) };
            let scale = scale_of(amax, format.dtype, DType::F32, p.rule);
            put(&scales, scale);
            scale
        }
        (Scheme::Nv, _) => {
            // SAFETY: scratch is this launch's.
            let amax = unsafe { largest::<R>(p, x, scratch) };
            let limit = numbers::largest(DType::Ue4m3) * numbers::largest(DType::E2m1);
            // As f32 stores it, but never 0, by which everything is divided, nor infinity.
            let stored = ((amax / limit) as f32).clamp(f32::from_bits(1), f32::MAX);
            let global = if amax == 0.0 { 1.0 } else { f64::from(stored) };
            put(&globals, global);
            global
        }
        _ => 1.0,
    };
    let store = Store {
        format,
        shape: (p.rows, p.cols),
        ld: p.q.ld,
        codes,
        scales,
        zeros,
        given_scales,
        given_zeros,
        global,
        rule: p.rule,
        overflow: p.overflow,
        streams: false,
    }
    .of_launch(p.x.dtype());
    let unit = |i: u32, room: &mut [R]| {
        let rows = store.rows_of(i);
        let next = bytes_of(&p.x, x, rows.end, (p.rows, p.cols));
        let x = match lying(&p.x, x, rows.start, 0, p.cols as usize) {
            Some(x) if rows.len() == 1 => x,
            _ => {
                let room = &mut room[..rows.len() * p.cols as usize];
                rows.zip(room.chunks_exact_mut(p.cols as usize)).for_each(|(row, out)| read(&p.x, x, row, 0, out));
                room
            }
        };
        // SAFETY: each unit comes once; the outputs are this launch's.
        unsafe { store.unit_before(i, x, next) };
    };
    // SAFETY: scratch is this launch's.
    unsafe { each_unit(&store, scratch, unit) };
}

/// The largest finite magnitude of the whole tensor, of parts found in parallel.
///
/// # Safety
/// `scratch` is this launch's, as large as `scratch_bytes` says.
unsafe fn largest<R: Real>(p: &QuantizeProblem, x: &[u8], scratch: &mut [u8]) -> f64 {
    const TILE: usize = 1024;
    if p.rows == 0 || p.cols == 0 {
        return 0.0;
    }
    let parts = parts(p.rows, u64::from(p.rows) * u64::from(p.cols));
    let found = Output::of(scratch);
    // SAFETY: a part has one thread, and later only this one looks.
    let place = |part: usize| unsafe { &mut scratch_of::<f64>(&found, part, 1)[0] };
    threads::for_each(parts, |part| {
        let (mut most, mut tile) = ([0.0], [R::ZERO; TILE]);
        for row in units_of(part, parts, p.rows) {
            match lying::<R>(&p.x, x, row, 0, p.cols as usize) {
                Some(x) => store::largest(x, x.len(), &mut most),
                None => {
                    for first in (0..p.cols).step_by(TILE) {
                        let tile = &mut tile[..TILE.min((p.cols - first) as usize)];
                        read(&p.x, x, row, first, tile);
                        store::largest(tile, tile.len(), &mut most);
                    }
                }
            }
        }
        *place(part) = most[0];
    });
    (0..parts).map(|part| *place(part)).fold(0.0, f64::max)
}

/// Stores the one f32 of a tensor.
fn put(place: &Output<'_>, value: f64) {
    // SAFETY: only the launching thread writes it, and before any other reads it.
    numbers::write(DType::F32, &[value], unsafe { place.part(0..4) }, 0, Overflow::Saturate);
}

//! Quantization: one pass, two where a scale serves the whole tensor.

use crate::{
    kernel::{Output, input, optional},
    numbers::{self, Real},
    portable::Portable,
    rows::{each_row, read, scratch_bytes, with_real},
    store::{Store, amax, scale_of},
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
            let scale = scale_of(largest::<R>(p, x), format.dtype, DType::F32, p.rule);
            put(&scales, scale);
            scale
        }
        (Scheme::Nv, _) => {
            let amax = largest::<R>(p, x);
            let limit = numbers::largest(DType::Ue4m3) * numbers::largest(DType::E2m1);
            // As f32 stores it, but never 0, by which everything is divided.
            let global = if amax == 0.0 { 1.0 } else { f64::from(((amax / limit) as f32).max(f32::from_bits(1))) };
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
    };
    // SAFETY: scratch and outputs are this launch's.
    unsafe { each_row(&store, scratch, |row, out: &mut [R]| read(&p.x, x, row, 0, out)) };
}

/// The largest finite magnitude of the whole tensor.
fn largest<R: Real>(p: &QuantizeProblem, x: &[u8]) -> f64 {
    const TILE: usize = 256;
    let mut tile = [R::ZERO; TILE];
    let mut largest = 0.0_f64;
    for row in 0..p.rows {
        for first in (0..p.cols).step_by(TILE) {
            let tile = &mut tile[..TILE.min((p.cols - first) as usize)];
            read(&p.x, x, row, first, tile);
            largest = largest.max(amax(tile.iter().map(|x| x.to_f64())));
        }
    }
    largest
}

/// Stores the one f32 of a tensor.
fn put(place: &Output<'_>, value: f64) {
    // SAFETY: only the launching thread writes it, and before any other reads it.
    numbers::write(DType::F32, &[value], unsafe { place.part(0..4) }, 0, Overflow::Saturate);
}

//! D = A·B for rows of bytes, or floats that may be rounded to such, whose B has contiguous columns of 4-bit codes with scales that
//! change along k, of A or of B, on processors that have AVX2 and no AVX-512: exact sums of a share, scaled and added in f32.
//!
//! See [`super::few::sets`] for how it is cut and [`super::few::avx2_byte_lanes`] for the loops. Limits: as `vnni_four_bits`.

use super::{
    few::{
        avx2_byte_lanes::{self, BYTES, ORDER_OF_BYTES, ORDER_OF_WORDS, WORDS, lanes, open},
        avx2_lanes::MOST_ROWS,
        byte_dots::Lift,
        byte_row::{FINE, FLIPPED, LOOKED_UP, SHIFTED},
        bytes::{Bytes, suits_anywhere},
        columns::{self, overlapped},
        dots::{SHARE, STEP},
        lanes::{EIGHT, Each, Later, SET},
        sets::{Meet, Rows, Sets, Turned},
    },
    product::{Item, Product},
    rounded::is_rounded,
    side::varies,
};
use crate::{
    kernel::Disjoint,
    memory::numbers_mut,
    numbers::Real,
    simd::{Avx2, Isa},
    threads,
};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Gemm, GemmProblem, GemmSpec},
    source_hash,
};
use std::{ops::Range, sync::Arc};

/// The kernel for rows of bytes by weights of four bits without AVX-512.
pub(crate) struct Avx2FourBitCodeLanes;

impl Kernel<Gemm> for Avx2FourBitCodeLanes {
    fn name(&self) -> &'static str {
        "avx2_four_bit_code_lanes"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("avx2_four_bit_code_lanes.rs"))
                ^ source_hash(include_bytes!("few/avx2_byte_lanes.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("few/lists.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("few/columns.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("few/sets.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("few/bytes.rs")).rotate_left(5)
                ^ source_hash(include_bytes!("rounded.rs")).rotate_left(6)
                ^ source_hash(include_bytes!("few/avx2_lanes.rs")).rotate_left(7)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        if let Some(need) = Avx2::FEATURES.iter().find(|feature| !caps.has(feature)) {
            return Err(Unsupported::Feature { need });
        }
        suits_anywhere(p)?;
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        // Cycles for a line of 64 bytes, as measured on Zen 3: turning and opening it, and each row.
        let lines = f64::from(p.batch) * f64::from(p.n.next_multiple_of(SET as u32)) * f64::from(p.k) / 128.0;
        let (opening, row) = if p.b.dtype() == DType::Nf4 { (31.0, 5.7) } else { (25.0, 3.6) };
        let cycles = opening + row * Rows::even(p.m as usize, MOST_ROWS).all() as f64;
        let compute = lines * cycles / (caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        Nanos::from_secs(overlapped(memory, compute) + 2e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let groups = Groups::new(p);
        let sets = Sets::new(p, varies(&p.b, p.k), groups.bytes.share, groups);
        Ok(columns::plan(self, device, p, variant, SET, sets))
    }
}

type Open = unsafe fn(&Lift, (&[Each<u32>], usize), &[Each<u32>], Later<'_, '_>, &mut [Each<u32>]);
type Loop = unsafe fn(avx2_byte_lanes::Rows<'_>, (&[Each<u32>], usize), &[Each<f32>], &mut [Each<f32>]);

/// Rows of bytes side by side.
struct Groups {
    bytes: Bytes,
    rows: Rows,
    /// Vectors that eight codes of columns are opened to.
    width: usize,
    open: Open,
    multiply: Loop,
}

impl Groups {
    fn new(spec: &GemmSpec) -> Self {
        let mut bytes = Bytes::of(spec);
        let rows = Rows::even(spec.m as usize, MOST_ROWS);
        let has_zero = spec.b.format.has_zero();
        if has_zero && !is_rounded(spec) {
            // Sixteen products of −128 with codes that are sixteen less than their zero points are too much for sixteen bits.
            bytes.share = SHARE;
        }
        let (width, open) = match spec.b.dtype() {
            DType::Nf4 => (WORDS, open::<FINE> as Open),
            DType::E2m1 => (BYTES, open::<LOOKED_UP> as Open),
            _ if has_zero => (BYTES, open::<SHIFTED> as Open),
            _ => (BYTES, open::<FLIPPED> as Open),
        };
        if width == WORDS {
            bytes.sign();
        }
        macro_rules! heights {
            ($($height:literal)*) => {
                match (rows.height, width) {
                    $(($height, BYTES) => lanes::<$height, BYTES> as Loop, ($height, _) => lanes::<$height, WORDS>,)*
                    (height, _) => unreachable!("{height} rows at once"),
                }
            };
        }
        Self { bytes, rows, width, open, multiply: heights!(1 2 3 4 5 6) }
    }

    /// Of a step of all rows of a group made ready: vectors of codes, and shares.
    fn lens(&self) -> [usize; 2] {
        [self.rows.height * STEP / EIGHT * self.width, self.rows.height * STEP / self.bytes.share]
    }

    /// Codes, what sums begin with, and scales of `steps` steps of a group from `first` on.
    fn part<'a>(&self, a: &'a [u8], group: usize, steps: Range<usize>) -> avx2_byte_lanes::Rows<'a> {
        let (all, [codes, shares]) = (self.rows.groups * self.bytes.steps(), self.lens());
        let a = columns::numbers::<u32>(&a[..self.bytes()]);
        let (of_codes, rest) = a.split_at(all * codes);
        let (taken, scales) = rest.split_at(all * shares);
        let first = group * self.bytes.steps();
        let part = |each: usize| (first + steps.start) * each..(first + steps.end) * each;
        let scales = columns::numbers(columns::bytes(&scales[part(shares)]));
        avx2_byte_lanes::Rows { codes: &of_codes[part(codes)], taken: &taken[part(shares)], scales }
    }
}

impl Meet for Groups {
    const WIDE: bool = false;

    type Held = ();

    fn rows(&self) -> Rows {
        self.rows
    }

    fn hold(&self) {}

    fn bytes(&self) -> usize {
        let [codes, shares] = self.lens();
        self.rows.groups * self.bytes.steps() * (codes + 2 * shares) * size_of::<u32>()
    }

    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) {
        let Rows { height, groups } = self.rows;
        let (steps, share, offset) = (self.bytes.steps(), self.bytes.share, self.bytes.offset as i16);
        let lens = self.lens();
        let a = &mut numbers_mut::<u32>(a)[..self.bytes() / size_of::<u32>()];
        let (codes, rest) = a.split_at_mut(groups * steps * lens[0]);
        let (taken, scales) = rest.split_at_mut(groups * steps * lens[1]);
        let scales = numbers_mut::<f32>(columns::bytes_mut(scales));
        let (codes, taken, scales) = (Disjoint::of(codes), Disjoint::of(taken), Disjoint::of(scales));
        threads::for_each(groups * steps, |i| {
            // SAFETY: each step of each group once.
            let (codes, taken, scales) = unsafe {
                let part = |each: usize| i * each..(i + 1) * each;
                (codes.part(part(lens[0])), taken.part(part(lens[1])), scales.part(part(lens[1])))
            };
            let (group, step) = (i / steps, i % steps);
            for r in 0..height {
                let row = group * height + r;
                let (mut line, mut of_shares) = ([0; STEP], [0.0; STEP / SHARE]);
                if row < item.rows {
                    (line, of_shares) = self.bytes.step(product, item, row, step);
                }
                let (eights, mut out) = (line.as_chunks::<EIGHT>().0, codes[r..].iter_mut().step_by(height));
                let mut put = |code: u32| *out.next().expect("room for a step") = code;
                for eight in eights {
                    if self.width == BYTES {
                        let bytes = ORDER_OF_BYTES.map(|i| eight[i] as u8);
                        bytes.as_chunks().0.iter().for_each(|&four| put(u32::from_le_bytes(four)));
                    } else {
                        let words = ORDER_OF_WORDS.map(|i| i16::from(eight[i]));
                        words.as_chunks().0.iter().for_each(|&[low, high]| put(pair(low, high)));
                    }
                }
                for (s, eights) in eights.chunks_exact(share / EIGHT).enumerate() {
                    // The sums that are the lower and the upper word of a lane.
                    let sum = |places: [usize; 4]| {
                        eights.iter().map(|eight| places.map(|i| i16::from(eight[i])).iter().sum::<i16>()).sum::<i16>()
                    };
                    let [low, high] = [[0, 2, 1, 3], [4, 6, 5, 7]].map(sum);
                    taken[s * height + r] = pair(low.wrapping_mul(-offset), high.wrapping_mul(-offset));
                    scales[s * height + r] = of_shares[s];
                }
            }
        });
    }

    fn opened(&self) -> usize {
        self.width
    }

    unsafe fn open(&self, columns: Turned<'_>, later: Later<'_, '_>, out: &mut [Each<u32>]) {
        let Turned { codes, shared, shifts, .. } = columns;
        // SAFETY: passed on.
        unsafe { (self.open)(&self.bytes.lift, (codes, shared), shifts, later, out) };
    }

    unsafe fn multiply(
        &self,
        a: &[u8],
        (group, steps): (usize, Range<usize>),
        columns: Turned<'_>,
        _: Option<Later<'_, '_>>,
        sums: &mut [Each<f32>],
        (): &(),
    ) {
        let Turned { codes, shared, scales, .. } = columns;
        // SAFETY: passed on.
        unsafe { (self.multiply)(self.part(a, group, steps), (codes, shared), scales, sums) };
    }

    fn sum(&self, a: &[u8], row: usize, share: usize) -> f32 {
        let (Rows { height, .. }, len) = (self.rows, self.bytes.share);
        let step = share * len / STEP;
        let step = self.part(a, row / height, step..step + 1);
        let (share, row) = (share % (STEP / len), row % height);
        let vectors = len / EIGHT * self.width;
        let codes = step.codes[share * vectors * height + row..].iter().step_by(height).take(vectors);
        let sum = codes.flat_map(|codes| codes.to_le_bytes()).map(|code| f32::from(code as i8)).sum::<f32>();
        sum * step.scales[share * height + row]
    }

    fn factor<E: Real>(&self, product: &Product<'_>, item: Item, row: usize) -> E {
        self.bytes.factor(product, item, row)
    }
}

/// Two words of a lane.
fn pair(low: i16, high: i16) -> u32 {
    u32::from(low as u16) | u32::from(high as u16) << 16
}

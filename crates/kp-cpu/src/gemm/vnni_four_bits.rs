//! D = A·B for rows of bytes whose B has contiguous columns of 4-bit codes with scales that change along k, of A or of
//! B: exact sums of a share in i32, scaled and added in f32.
//!
//! See [`super::few::sets`] for how it is cut and [`super::few::byte_lanes`] for the loops. Limits: as `vnni_few_rows`, but for
//! the number of rows; B of i4, u4 or e2m1.

use super::{
    few::{
        byte_dots::Lift,
        byte_lanes::{self, byte_lanes},
        byte_row::{FINE, FLIPPED, LOOKED_UP, SHIFTED},
        bytes::{self, Bytes},
        columns::{self, MOST, overlapped},
        dots::{SHARE, STEP},
        lanes::{Each, Later, SET},
        sets::{Meet, Rows, Sets, Turned},
    },
    product::{Item, Product},
    side::varies,
    vnni::rows::ready,
};
use crate::{kernel::Disjoint, memory::numbers_mut, numbers::Real, threads};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Variant, Variants,
    op::{Gemm, GemmProblem, GemmSpec},
    source_hash,
};
use std::{ops::Range, sync::Arc};

/// The kernel for rows of bytes by weights of four bits.
pub(crate) struct VnniFourBits;

impl Kernel<Gemm> for VnniFourBits {
    fn name(&self) -> &'static str {
        "vnni_four_bits"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("vnni_four_bits.rs"))
                ^ source_hash(include_bytes!("few/byte_lanes.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("few/lists.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("few/columns.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("few/sets.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("few/bytes.rs")).rotate_left(5)
                ^ source_hash(include_bytes!("rounded.rs")).rotate_left(6)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        bytes::suits(caps, p)?;
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        // Cycles for a line of 64 bytes, as measured on cores of Zen 5, Emerald Rapids and Granite Rapids: turning it, and for each row two
        // products and its share of a scale.
        let lines = f64::from(p.batch) * f64::from(p.n.next_multiple_of(SET as u32)) * f64::from(p.k) / 128.0;
        let products = if p.b.dtype() == DType::Nf4 { 2.0 } else { 1.0 };
        let cycles = 9.0 + 1.8 * products * rows(p).all() as f64;
        let compute = lines * cycles / (caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        Nanos::from_secs(overlapped(memory, compute) + 2e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let groups = Groups::new(p);
        let sets = Sets::new(p, varies(&p.b, p.k), groups.bytes.share, groups);
        Ok(columns::plan(self, device, p, variant, SET, sets))
    }
}

type Loop = unsafe fn(
    &Lift,
    byte_lanes::Rows<'_>,
    (&[Each<u32>], usize),
    (&[Each<f32>], &[Each<u32>]),
    Option<Later<'_, '_>>,
    &mut [Each<f32>],
);

/// How rows are grouped: sums of 256ths, which NF4 has, need as many registers again.
fn rows(spec: &GemmSpec) -> Rows {
    Rows::of(spec.m as usize, if spec.b.dtype() == DType::Nf4 { 4 } else { MOST })
}

/// Rows of bytes side by side.
struct Groups {
    bytes: Bytes,
    rows: Rows,
    multiply: Loop,
}

impl Groups {
    fn new(spec: &GemmSpec) -> Self {
        let rows = rows(spec);
        macro_rules! heights {
            ($how:ident) => {
                match rows.height {
                    2 => byte_lanes::<2, $how> as Loop,
                    4 => byte_lanes::<4, $how>,
                    _ => byte_lanes::<8, $how>,
                }
            };
        }
        let multiply = match spec.b.dtype() {
            DType::E2m1 => heights!(LOOKED_UP),
            DType::Nf4 if rows.height == 2 => byte_lanes::<2, FINE>,
            DType::Nf4 => byte_lanes::<4, FINE>,
            _ if spec.b.format.has_zero() => heights!(SHIFTED),
            _ => heights!(FLIPPED),
        };
        Self { bytes: Bytes::of(spec), rows, multiply }
    }

    /// Bytes of codes, and of each: what sums of shares begin with, and scales.
    fn lens(&self) -> [usize; 2] {
        let all = self.rows.all() * self.bytes.steps() * STEP;
        [all, all / self.bytes.share * 4]
    }

    fn parts<'a>(&self, a: &'a [u8]) -> byte_lanes::Rows<'a> {
        let [codes, shares] = self.lens();
        let (codes, rest) = a.split_at(codes);
        let (taken, scales) = rest.split_at(shares);
        let (codes, taken) = (columns::numbers(codes), columns::numbers(taken));
        byte_lanes::Rows { codes, taken, scales: columns::numbers(&scales[..shares]) }
    }
}

impl Meet for Groups {
    type Held = ();

    fn rows(&self) -> Rows {
        self.rows
    }

    fn hold(&self) {}

    fn bytes(&self) -> usize {
        let [codes, shares] = self.lens();
        codes + 2 * shares
    }

    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) {
        let Rows { height, groups } = self.rows;
        let (steps, share) = (self.bytes.steps(), self.bytes.share);
        let shares = STEP / share;
        let lens = self.lens();
        let (codes, rest) = columns::take::<u32>(a, lens[0] / 4);
        let (taken, rest) = rest.split_at_mut(lens[1]);
        let (taken, scales) = (numbers_mut::<i32>(taken), numbers_mut::<f32>(&mut rest[..lens[1]]));
        let (codes, taken, scales) = (Disjoint::of(codes), Disjoint::of(taken), Disjoint::of(scales));
        threads::for_each(groups * steps, |i| {
            // SAFETY: each step of each group once.
            let (codes, taken, scales) = unsafe {
                let part = |each: usize| i * height * each..(i + 1) * height * each;
                (codes.part(part(STEP / 4)), taken.part(part(shares)), scales.part(part(shares)))
            };
            let (group, step) = (i / steps, i % steps);
            for r in 0..height {
                let row = group * height + r;
                let (mut line, mut sums, mut parted) = ([0; STEP], [0; STEP / SHARE], [0; STEP]);
                let mut of_shares = [0.0; STEP / SHARE];
                if row < item.rows {
                    (line, of_shares) = self.bytes.step(product, item, row, step);
                }
                // SAFETY: `supports` asked for the features.
                unsafe { ready(&line.map(|code| code as u8), 4, &mut parted, share, &mut sums) };
                // Of eight elements, four of even place and four of odd.
                for (out, &code) in codes[r..].iter_mut().step_by(height).zip(parted.as_chunks().0) {
                    *out = u32::from_le_bytes(code);
                }
                for s in 0..shares {
                    taken[s * height + r] = -self.bytes.offset * sums[s];
                    scales[s * height + r] = of_shares[s];
                }
            }
        });
    }

    unsafe fn multiply(
        &self,
        a: &[u8],
        (group, steps): (usize, Range<usize>),
        columns: Turned<'_>,
        later: Option<Later<'_, '_>>,
        sums: &mut [Each<f32>],
        (): &(),
    ) {
        let first = (group * self.bytes.steps() + steps.start) * self.rows.height;
        let all = self.parts(a);
        let a = byte_lanes::Rows {
            codes: &all.codes[first * STEP / 4..],
            taken: &all.taken[first * STEP / self.bytes.share..],
            scales: &all.scales[first * STEP / self.bytes.share..],
        };
        let Turned { codes, shared, scales, shifts } = columns;
        // SAFETY: passed on.
        unsafe { (self.multiply)(&self.bytes.lift, a, (codes, shared), (scales, shifts), later, sums) };
    }

    fn sum(&self, a: &[u8], row: usize, share: usize) -> f32 {
        let Rows { height, .. } = self.rows;
        let at = (row / height * self.bytes.steps() * (STEP / self.bytes.share) + share) * height + row % height;
        let a = self.parts(a);
        (-a.taken[at] / self.bytes.offset) as f32 * a.scales[at]
    }

    fn factor<E: Real>(&self, product: &Product<'_>, item: Item, row: usize) -> E {
        self.bytes.factor(product, item, row)
    }
}

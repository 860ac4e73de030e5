//! D = A·B for at most eight rows of bytes, or floats that may be rounded to such, whose B has contiguous columns of 4-bit codes with
//! scales that change along k, of A or of B, on processors that have AVX2 and no AVX-512: exact sums of the elements that share
//! these in i32, scaled and added in f32.
//!
//! See [`super::few::avx2_shares`] for the loop. Limits: as `vnni_four_bits`.

use super::{
    few::{
        avx2_shares::{self, Column, ELEMENTS, SHARES, share_of, shares},
        byte_dots::Lift,
        byte_row::{FINE, FLIPPED, LOOKED_UP, SHIFTED},
        bytes::{Bytes, suits_anywhere},
        columns::{self, Codes, Dots, HEIGHTS, MOST, Reading, Task, overlapped},
        dots::{BROAD_SHARE, SHARE, STEP},
        lists::Lists,
    },
    product::{Item, Product},
    side::varies,
    vnni_few_rows,
};
use crate::{
    act::Tail,
    kernel::Disjoint,
    memory::numbers_mut,
    simd::{Avx2, Isa},
    threads,
};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Gemm, GemmProblem, GemmSpec},
    source_hash,
};
use std::{ops::Range, sync::Arc};

/// The kernel for few rows of bytes by weights of four bits without AVX-512.
pub(crate) struct Avx2FourBitCodes;

impl Kernel<Gemm> for Avx2FourBitCodes {
    fn name(&self) -> &'static str {
        "avx2_four_bit_codes"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("avx2_four_bit_codes.rs"))
                ^ source_hash(include_bytes!("few/avx2_shares.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("few/lists.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("few/columns.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("few/bytes.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("rounded.rs")).rotate_left(5)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        if let Some(need) = Avx2::FEATURES.iter().find(|feature| !caps.has(feature)) {
            return Err(Unsupported::Feature { need });
        }
        if p.m as usize > MOST {
            return Err(Unsupported::TooLarge { dim: "m", max: MOST as u64, got: p.m.into() });
        }
        suits_anywhere(p)?;
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        // Cycles for 256 codes, as measured on Zen 3: what makes them bytes or words and lists their scales, and each row.
        let (codes, row) = if p.b.dtype() == DType::Nf4 { (25.0, 16.5) } else { (10.0, 10.0) };
        let rows = HEIGHTS[columns::height((p.m as usize).max(1))] as f64;
        let stretches = f64::from(p.batch) * f64::from(p.n) * f64::from(p.k) / 256.0;
        let compute = stretches * (codes + row * rows) / (caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        Nanos::from_secs(overlapped(memory, compute) + 2e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        Ok(columns::plan(self, device, p, variant, 16, Rows::new(p)))
    }
}

type Loop = unsafe fn(&Lift, avx2_shares::Rows<'_>, Column<'_>, &mut [f32]);

/// Bytes of A that meet all columns of a task before the rest does: about what the first cache holds.
const NEAR: usize = 48 << 10;

/// The sums of few rows.
struct Rows {
    spec: GemmSpec,
    bytes: Bytes,
    /// As many as a loop is for.
    height: usize,
    multiply: Loop,
}

impl Rows {
    fn new(spec: &GemmSpec) -> Self {
        let mut bytes = Bytes::of(spec);
        // Zero points are subtracted from sums, where they need no room above codes.
        bytes.offset = vnni_few_rows::lift(spec.b.dtype()).map_or(bytes.offset, |(_, offset, _)| offset);
        if spec.b.dtype() == DType::Nf4 {
            bytes.sign();
        }
        let height = HEIGHTS[columns::height((spec.m as usize).max(1))];
        macro_rules! heights {
            ($how:ident, $share:ident) => {
                match height {
                    1 => shares::<1, $how, $share> as Loop,
                    2 => shares::<2, $how, $share>,
                    4 => shares::<4, $how, $share>,
                    _ => shares::<8, $how, $share>,
                }
            };
            ($how:ident) => {
                if bytes.share == SHARE { heights!($how, SHARE) } else { heights!($how, BROAD_SHARE) }
            };
        }
        let multiply = match spec.b.dtype() {
            DType::E2m1 => heights!(LOOKED_UP),
            DType::Nf4 => heights!(FINE),
            _ if spec.b.format.has_zero() => heights!(SHIFTED),
            _ => heights!(FLIPPED),
        };
        Self { spec: *spec, bytes, height, multiply }
    }

    /// Elements of a stretch.
    fn elements(&self) -> usize {
        SHARES * self.bytes.share
    }

    fn stretches(&self) -> usize {
        (self.spec.k as usize).div_ceil(self.elements())
    }

    /// Bytes of a code of A.
    fn width(&self) -> usize {
        if self.spec.b.dtype() == DType::Nf4 { 2 } else { 1 }
    }

    /// Of a stretch of all rows made ready: bytes of codes, and shares.
    fn lens(&self) -> [usize; 2] {
        [self.height * self.elements() * self.width(), self.height * SHARES]
    }

    /// Stretches of blocks of k: all of one length but the last.
    fn near(&self) -> usize {
        self.stretches().div_ceil(self.ready_bytes().div_ceil(NEAR).max(1)).max(1)
    }

    /// Bytes of all rows made ready.
    fn ready_bytes(&self) -> usize {
        let [codes, shares] = self.lens();
        self.stretches() * (codes + 8 * shares)
    }
}

impl<E: Tail> Dots<E> for Rows {
    fn a_bytes(&self) -> usize {
        self.ready_bytes()
    }

    fn work_bytes(&self) -> usize {
        2 * (self.near() * SHARES * size_of::<f32>()).next_multiple_of(64)
    }

    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) {
        let (height, share, offset) = (self.height, self.bytes.share, self.bytes.offset);
        let [codes_len, shares_len] = self.lens();
        let (codes, rest) = a.split_at_mut(self.stretches() * codes_len);
        let (sums, scales) = rest.split_at_mut(self.stretches() * shares_len * 4);
        let (codes, sums) = (Disjoint::of(codes), Disjoint::of(numbers_mut::<u32>(sums)));
        let scales = Disjoint::of(numbers_mut::<f32>(scales));
        let steps = self.elements() / STEP;
        threads::for_each(self.stretches() * height, |i| {
            let (stretch, row) = (i / height, i % height);
            let (mut line, mut of_shares) = ([0_i8; SHARES * BROAD_SHARE], [0.0_f32; SHARES]);
            for step in (0..steps).filter(|step| row < item.rows && stretch * steps + step < self.bytes.steps()) {
                let (codes, scales) = self.bytes.step(product, item, row, stretch * steps + step);
                line[step * STEP..][..STEP].copy_from_slice(&codes);
                let shares = STEP / share;
                of_shares[step * shares..][..shares].copy_from_slice(&scales[..shares]);
            }
            // SAFETY: each stretch of each row once.
            let (codes, sums, scales) = unsafe {
                let part = |all: usize| i * all / height..(i + 1) * all / height;
                (codes.part(part(codes_len)), sums.part(part(shares_len)), scales.part(part(shares_len)))
            };
            let [of_bytes, of_words] = ELEMENTS;
            if self.width() == 1 {
                for (out, place) in codes.iter_mut().zip(of_bytes) {
                    *out = line[usize::from(place)] as u8;
                }
            } else {
                for (out, place) in codes.as_chunks_mut().0.iter_mut().zip(of_words) {
                    *out = i16::from(line[usize::from(place)]).to_le_bytes();
                }
            }
            for (lane, (sum, scale)) in sums.iter_mut().zip(scales).enumerate() {
                let place = share_of(share, lane);
                let codes = line[place * share..][..share].iter().copied().map(i32::from).sum::<i32>();
                let is_shifted = self.spec.b.format.has_zero();
                *sum = if is_shifted { (codes as f32).to_bits() } else { (-offset * codes) as u32 };
                *scale = of_shares[place];
            }
        });
    }

    fn sums(&self, task: Task<'_, '_>, sums: &mut [E], ld: usize, work: &mut [u8]) {
        let Task { product, item, columns, a } = task;
        let (b, k) = (&product.b, self.spec.k as usize);
        let (share, near) = (self.bytes.share, self.near());
        let [codes_len, shares_len] = self.lens();
        let (a_codes, rest) = a.split_at(self.stretches() * codes_len);
        let (a_sums, a_scales) = rest.split_at(self.stretches() * shares_len * 4);
        let (a_sums, a_scales) = (columns::numbers::<u32>(a_sums), columns::numbers::<f32>(a_scales));
        let (scales, rest) = columns::take::<f32>(work, near * SHARES);
        let (zeros, _) = columns::take::<f32>(rest, near * SHARES);
        let (has_zero, varies) = (b.matrix.format.has_zero(), varies(&b.matrix, self.spec.k));
        if !varies {
            scales.fill(1.0);
        }
        for sums in sums.chunks_mut(ld).take(item.rows) {
            sums[..columns.len()].fill(E::ZERO);
        }
        for first in (0..self.stretches()).step_by(near) {
            let some = first..(first + near).min(self.stretches());
            let inner: Range<usize> = some.start * self.elements()..(some.end * self.elements()).min(k);
            let part = |each: usize| some.start * each..some.end * each;
            let rows = avx2_shares::Rows {
                codes: &a_codes[part(codes_len)],
                sums: &a_sums[part(shares_len)],
                scales: &a_scales[part(shares_len)],
            };
            let lists = Lists::new(b, item.b, inner.start, share);
            let codes = Codes::of(b, item.b, inner.clone());
            let entries = some.len() * SHARES;
            for o in columns.clone() {
                if varies {
                    lists.scales(o, &mut scales[..entries]);
                }
                if has_zero {
                    lists.zeros(o, &mut zeros[..entries]);
                    zeros[..entries].iter_mut().for_each(|zero| *zero += self.bytes.offset as f32);
                }
                let (ahead, _) = codes.ahead(Reading::InTurn, o, 1, inner.len() == k);
                let column = Column { codes: codes.column(o), scales: &*scales, zeros: &*zeros, ahead };
                let mut of_rows = [0.0; MOST];
                // SAFETY: `supports` asked for the features.
                unsafe { (self.multiply)(&self.bytes.lift, rows, column, &mut of_rows) };
                for (sums, &more) in sums.chunks_mut(ld).zip(&of_rows[..item.rows]) {
                    sums[o - columns.start] += E::from_f32(more);
                }
            }
        }
        columns::scale(b, item, columns, varies, &|r| self.bytes.factor(product, item, r), sums, ld);
    }
}

//! D = A·B for one row of bytes whose B has contiguous columns of 4-bit codes with scales that change along k, of A or of B:
//! exact sums of eight in i32, scaled and added in f32, at the speed of memory.
//!
//! See [`super::few::byte_row`] for the loop. Limits: as `vnni_four_bits`, but for the number of rows.

use super::{
    few::{
        apart::{AtOnce, are_apart},
        byte_dots::{self, Lift},
        byte_row::{FINE, FLIPPED, LOOKED_UP, SHIFTED, byte_row},
        bytes::{self, Bytes},
        columns::{self, Codes, Dots, Reading, Task, overlapped},
        dots::{SHARE, STEP, SUMS},
        far::Far,
        folded::folded,
        lists::{Columns, LIST, List, Lists},
    },
    product::{Item, Product},
    side::varies,
};
use crate::{act::Tail, kernel::Disjoint, memory::numbers_mut, threads};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant,
    op::{Gemm, GemmProblem, GemmSpec},
    source_hash,
};
use std::sync::Arc;

/// The kernel for one row of bytes by weights of four bits.
pub(crate) struct VnniOneRow;

impl Kernel<Gemm> for VnniOneRow {
    fn name(&self) -> &'static str {
        "vnni_one_row"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("vnni_one_row.rs"))
                ^ source_hash(include_bytes!("few/byte_row.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("few/lists.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("few/columns.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("few/bytes.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("rounded.rs")).rotate_left(5)
                ^ source_hash(include_bytes!("few/folded.rs")).rotate_left(6)
                ^ source_hash(include_bytes!("few/apart.rs")).rotate_left(7)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        if p.m > 1 {
            return Err(Unsupported::TooLarge { dim: "m", max: 1, got: p.m.into() });
        }
        bytes::suits(caps, p)?;
        Ok(Reading::VARIANTS)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        // Cycles for a line of 64 bytes: codes made bytes and multiplied, and the lists of its scales.
        let cycles = match Reading::of(variant) {
            Reading::Beside if !is_long(p) || Reading::of_several(caps) == Reading::InOrder => 4.0,
            // Of long columns, those that are read next find less room in the first cache.
            Reading::Beside => 9.0,
            _ => 7.0,
        };
        let lines = f64::from(p.batch) * f64::from(p.n) * f64::from(p.k) / 128.0;
        let compute = lines * cycles / (caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        Nanos::from_secs(overlapped(memory, compute) + 2e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let caps = &device.info().caps;
        let order = match Reading::of_several(caps) {
            Reading::InOrder => Reading::InOrder,
            _ => Reading::fastest(caps),
        };
        let row = Row::new(p, Reading::of(variant), order);
        Ok(columns::plan(self, device, p, variant, 16, row))
    }
}

type Loop = unsafe fn(&Lift, (&[i8], &[i32]), &Columns<'_>, &mut [f32]);

/// Most columns that are read at once; of long ones, longer than this in bytes, half as many, so that L1 has room for the next
/// ones while these are read: what is asked for later than that comes too late.
const MOST: usize = 4;
const LONG: usize = 4 << 10;

/// Whether columns are.
fn is_long(spec: &GemmSpec) -> bool {
    spec.k as usize / 2 > LONG
}

/// The sums of a row.
struct Row {
    spec: GemmSpec,
    bytes: Bytes,
    multiply: Loop,
    breadth: usize,
    /// In which memory likes to be read.
    order: Reading,
    /// Whether columns that are read at once are far from each other.
    is_apart: bool,
}

impl Row {
    fn new(spec: &GemmSpec, reading: Reading, order: Reading) -> Self {
        let is_apart = are_apart(spec, reading);
        let breadth = match reading {
            Reading::InTurn | Reading::InOrder => 1,
            Reading::Beside if is_long(spec) && !is_apart => MOST / 2,
            Reading::Beside => MOST,
        };
        macro_rules! loops {
            ($how:ident) => {
                match breadth {
                    1 => byte_row::<$how, 1> as Loop,
                    2 => byte_row::<$how, 2>,
                    _ => byte_row::<$how, MOST>,
                }
            };
        }
        let multiply = match spec.b.dtype() {
            DType::E2m1 => loops!(LOOKED_UP),
            DType::Nf4 => loops!(FINE),
            _ if spec.b.format.has_zero() => loops!(SHIFTED),
            _ => loops!(FLIPPED),
        };
        Self { spec: *spec, bytes: Bytes::of(spec), multiply, breadth, order, is_apart }
    }

    /// Steps whose lists there is room for, and for what is read past them: fours, whose lists are whole vectors.
    fn near(&self) -> usize {
        (LIST - STEP / SHARE) * self.bytes.share / STEP / 4 * 4
    }

    /// Numbers of A made ready: codes, what lanes begin with, scales.
    fn lens(&self) -> [usize; 3] {
        let steps = self.bytes.steps();
        [steps * STEP, steps * 16, steps * STEP / self.bytes.share]
    }
}

impl<E: Tail> Dots<E> for Row {
    fn a_bytes(&self) -> usize {
        let [codes, taken, scales] = self.lens();
        codes + 4 * (taken + scales).next_multiple_of(16)
    }

    fn work_bytes(&self) -> usize {
        2 * MOST * size_of::<List>()
    }

    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) {
        let (steps, shares) = (self.bytes.steps(), STEP / self.bytes.share);
        let (codes, rest) = columns::take::<i8>(a, steps * STEP);
        let (taken, scales) = rest.split_at_mut(steps * 64);
        let (codes, taken) = (Disjoint::of(codes), Disjoint::of(numbers_mut::<i32>(taken)));
        let scales = Disjoint::of(&mut numbers_mut::<f32>(scales)[..steps * shares]);
        threads::for_each(steps, |step| {
            let (line, of_shares) = match item.rows {
                0 => ([0; STEP], [0.0; STEP / SHARE]),
                _ => self.bytes.step(product, item, 0, step),
            };
            // SAFETY: each step once.
            let (codes, taken, scales) = unsafe {
                let part = |each: usize| step * each..(step + 1) * each;
                (codes.part(part(STEP)), taken.part(part(16)), scales.part(part(shares)))
            };
            for (byte, code) in codes.iter_mut().enumerate() {
                *code = line[byte_dots::place(4, byte)];
            }
            for (taken, codes) in taken.iter_mut().zip(line.as_chunks::<8>().0) {
                *taken = -self.bytes.offset * codes.iter().copied().map(i32::from).sum::<i32>();
            }
            scales.copy_from_slice(&of_shares[..shares]);
        });
    }

    fn sums(&self, task: Task<'_, '_>, sums: &mut [E], _: usize, work: &mut [u8]) {
        let Task { product, item, columns, a } = task;
        if item.rows == 0 {
            return;
        }
        let (b, k, share) = (&product.b, self.spec.k as usize, self.bytes.share);
        let [all_codes, all_taken, _] = self.lens();
        let (codes, rest) = a.split_at(all_codes);
        let (taken, scales) = rest.split_at(4 * all_taken);
        let (row, taken) = (columns::numbers::<i8>(codes), columns::numbers::<i32>(taken));
        let row_scales = columns::numbers::<f32>(scales);
        let (scales, rest) = columns::take::<f32>(work, MOST * LIST);
        let (zeros, _) = columns::take::<f32>(rest, MOST * LIST);
        let (scales, zeros): (&mut [List], &mut [List]) = (scales.as_chunks_mut().0, zeros.as_chunks_mut().0);
        let (has_zero, varies) = (b.matrix.format.has_zero(), varies(&b.matrix, self.spec.k));
        sums[..columns.len()].fill(E::ZERO);
        for first in (0..self.bytes.steps()).step_by(self.near()) {
            let steps = first..(first + self.near()).min(self.bytes.steps());
            let inner = steps.start * STEP..(steps.end * STEP).min(k);
            let shares = steps.start * STEP / share..steps.end * STEP / share;
            let of_row = &row_scales[shares.clone()];
            let lists = Lists::new(b, item.b, inner.start, share);
            let codes = Codes::of(b, item.b, inner.clone());
            let sets = AtOnce::new(columns.clone(), self.breadth, self.is_apart);
            for o in sets.firsts() {
                let place = |c: usize| sets.column(o, c);
                let (mut some, mut is_beyond): ([&[u8]; MOST], _) = ([&[]; MOST], [false; MOST]);
                for (c, some) in some[..self.breadth].iter_mut().enumerate() {
                    *some = codes.column(place(c));
                    let scales = &mut scales[c][..shares.len()];
                    if !varies {
                        scales.copy_from_slice(of_row);
                    }
                    // SAFETY: `supports` asked for the features.
                    unsafe {
                        if varies {
                            folded(&lists, place(c), of_row, scales);
                        }
                        if has_zero {
                            is_beyond[c] =
                                lists.shifts(place(c), &mut columns::bytes_mut(&mut zeros[c])[..shares.len()]);
                        }
                    }
                }
                let (ahead, far) = if self.is_apart {
                    (columns::AHEAD, Far::NONE)
                } else {
                    codes.ahead(self.order, o, self.breadth, false)
                };
                let some = Columns { codes: &some[..self.breadth], share, scales, zeros, ahead, far };
                let mut of_columns = [0.0; SUMS];
                let of_a = (&row[steps.start * STEP..], &taken[steps.start * 16..]);
                // SAFETY: as above.
                unsafe { (self.multiply)(&self.bytes.lift, of_a, &some, &mut of_columns) };
                for c in (0..self.breadth).filter(|&c| is_beyond[c]) {
                    let sum = |i: usize| {
                        let lanes = &taken[(shares.start + i) * share / 8..][..share / 8];
                        (-lanes.iter().sum::<i32>() / self.bytes.offset) as f32 * of_row[i]
                    };
                    of_columns[c] -= lists.beyond(place(c), shares.len(), sum);
                }
                for (place, &more) in sets.places(o).zip(&of_columns) {
                    sums[place] += E::from_f32(more);
                }
            }
        }
        columns::scale(b, item, columns, varies, &|_| self.bytes.factor(product, item, 0), sums, usize::MAX);
    }
}

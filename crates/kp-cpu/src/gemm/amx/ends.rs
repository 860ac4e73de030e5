//! How sums of products by tiles end: turned if need be, multiplied by scales, and finished as D.

use super::{
    lines::{BLOCK, turn_sums},
    parts::is_special,
    product::ByTiles,
    source::{Source, unit_of},
    tile::Dot,
};
use crate::{
    act::Tail,
    gemm::{
        few::columns::bytes_mut,
        finish::Finish,
        side::{LINE, Scaling},
        vnni::end::End,
    },
    memory::numbers_mut,
    numbers,
    simd::run_widest,
};
use kp_hal::DType;
use std::{any::TypeId, ops::Range};

impl<E: Tail> ByTiles<E> {
    /// Finishes the sums of a task. Some number of A may be `special`, so that it has no parts and counted as 0.
    ///
    /// # Safety
    /// No other thread has the same elements of D.
    pub(super) unsafe fn end(
        &self,
        finish: &Finish<'_, '_, E>,
        rows: Range<usize>,
        run: Range<usize>,
        special: bool,
        (sums, turned, ends): (&mut [u32], &mut [u32], &mut [E]),
    ) {
        let ld = self.ld(run.len());
        let (row_factors, ends) = ends.split_at_mut(BLOCK);
        let (column_factors, ends) = ends.split_at_mut(ld);
        let (ends, rest) = ends.split_at_mut(BLOCK * ld);
        let is_sum = self.dot == Dot::Bf16 && !self.scaled && TypeId::of::<E>() == TypeId::of::<f32>();
        if is_sum && !self.is_turned() {
            let sums = numbers_mut::<E>(bytes_mut(sums));
            // SAFETY: passed on.
            return unsafe { finish.tile(rows, run, sums, ld, rest) };
        }
        if let Some(d) = self.d_as_sums(finish) {
            // SAFETY: passed on.
            return unsafe { self.store(d, finish, (rows, run), sums) };
        }
        if !is_sum {
            self.column_factors(finish, run.clone(), column_factors);
        }
        for (j, first) in rows.clone().step_by(BLOCK).enumerate() {
            let some = first..(first + BLOCK).min(rows.end);
            let numbers = match self.is_turned() {
                true => {
                    let blocks = &sums[j * BLOCK * ld..][..BLOCK * ld];
                    for (i, block) in blocks.chunks_exact(BLOCK * BLOCK).enumerate() {
                        let out = &mut turned[i * BLOCK..][..(BLOCK - 1) * ld + BLOCK];
                        // SAFETY: there are as many rows, and `supports` asked for the features.
                        unsafe { turn_sums((block, BLOCK), (out.as_mut_ptr(), ld)) };
                    }
                    &mut *turned
                }
                false => &mut sums[j * BLOCK * ld..][..BLOCK * ld],
            };
            if let Some(global) = self.late_global(finish) {
                numbers_mut::<f32>(bytes_mut(numbers)).iter_mut().for_each(|sum| *sum *= global);
            }
            if self.splits {
                self.mend(finish, some.clone(), &run, special, (numbers_mut(bytes_mut(numbers)), ld));
            }
            if is_sum {
                let numbers = numbers_mut::<E>(bytes_mut(numbers));
                // SAFETY: passed on.
                unsafe { finish.tile(some, run.clone(), numbers, ld, rest) };
                continue;
            }
            self.row_factors(finish, some.clone(), row_factors);
            let is_whole = self.dot != Dot::Bf16;
            let mut all = ends.chunks_exact_mut(ld);
            let ends_of = |_| all.next().expect("as many as rows");
            let (sums, rows, by) = (numbers, &*row_factors, &*column_factors);
            run_widest(ld, End { sums, ld, is_whole, excess: None, rows, by, ends: ends_of });
            // SAFETY: passed on.
            unsafe { finish.tile(some, run.clone(), ends, ld, rest) };
        }
    }

    /// The item's rows of D, where that is whole sums as they are.
    fn d_as_sums(&self, finish: &Finish<'_, '_, E>) -> Option<(*mut u32, usize)> {
        let is_whole = self.dot != Dot::Bf16 && !self.scaled && self.unit() == 1.0;
        if is_whole { finish.d_as_whole_sums() } else { None }
    }

    /// Stores whole sums of a task as D.
    ///
    /// # Safety
    /// No other thread has the same elements of D, which are there.
    unsafe fn store(
        &self,
        (d, d_ld): (*mut u32, usize),
        finish: &Finish<'_, '_, E>,
        (rows, run): (Range<usize>, Range<usize>),
        sums: &[u32],
    ) {
        let ld = self.ld(run.len());
        let mut turned = [0; BLOCK * BLOCK];
        for (j, first) in rows.clone().step_by(BLOCK).enumerate() {
            let count = BLOCK.min(rows.end - first);
            for (i, p) in run.clone().enumerate() {
                let columns = finish.panels.columns(p);
                let out = d.wrapping_add(first * d_ld + columns.start);
                let (mut block, mut of_row) = (&sums[j * BLOCK * ld + i * BLOCK..], ld);
                if self.is_turned() {
                    block = &sums[j * BLOCK * ld + i * BLOCK * BLOCK..][..BLOCK * BLOCK];
                    if count == BLOCK && columns.len() == BLOCK {
                        // SAFETY: `supports` asked for the features, and as the caller promises.
                        unsafe { turn_sums((block, BLOCK), (out, d_ld)) };
                        continue;
                    }
                    // SAFETY: as above.
                    unsafe { turn_sums((block, BLOCK), (turned.as_mut_ptr(), BLOCK)) };
                    (block, of_row) = (&turned, BLOCK);
                }
                for (r, row) in block.chunks(of_row).take(count).enumerate() {
                    // SAFETY: as the caller promises.
                    let out = unsafe { std::slice::from_raw_parts_mut(out.add(r * d_ld), columns.len()) };
                    out.copy_from_slice(&row[..columns.len()]);
                }
            }
        }
    }

    /// What a sum of codes is worth, but for scales.
    fn unit(&self) -> f32 {
        unit_of(&self.spec.a, self.holds) * unit_of(&self.spec.b, self.holds)
    }

    /// The one f32 for everything that B's codes were made numbers without, unless it is a column's factor as its scales are.
    fn late_global(&self, finish: &Finish<'_, '_, E>) -> Option<f32> {
        let global = finish.product.b.global;
        let is_late = matches!(self.b, Source::Left(_)) && self.scaling == Scaling::Applied;
        (is_late && !global.is_empty()).then(|| numbers::get(DType::F32, global, 0))
    }

    /// Adds up anew what became NaN: parts of one number may have opposite signs, and all of them meet an infinite one of B. Then adds the products
    /// of numbers that have no parts.
    fn mend(
        &self,
        finish: &Finish<'_, '_, E>,
        rows: Range<usize>,
        run: &Range<usize>,
        special: bool,
        (sums, ld): (&mut [f32], usize),
    ) {
        for (row, sums) in rows.zip(sums.chunks_mut(ld)) {
            let sums = &mut sums[..run.len() * BLOCK];
            if sums.iter().fold(false, |some, sum| some | sum.is_nan()) {
                self.add_products(finish, row, run, false, sums);
            }
            if special {
                let (mut has_special, mut has_nan) = (false, false);
                self.each_run(|inner| {
                    let mut a = [0.0_f32; LINE];
                    self.row_of_a(finish, row, inner, &mut a);
                    has_special |= a.iter().any(|&a| is_special(a));
                    has_nan |= a.iter().any(|a| a.is_nan());
                });
                // NaN, whatever it meets.
                if has_nan {
                    sums.fill(f32::NAN);
                } else if has_special {
                    self.add_products(finish, row, run, true, sums);
                }
            }
        }
    }

    /// Adds products of a row of A, one after the other: to all sums those of numbers that are `special`, or anew those of all others where a
    /// sum is NaN.
    #[cold]
    fn add_products(
        &self,
        finish: &Finish<'_, '_, E>,
        row: usize,
        run: &Range<usize>,
        special: bool,
        sums: &mut [f32],
    ) {
        let Finish { product, item, .. } = *finish;
        for (p, sums) in run.clone().zip(sums.chunks_mut(BLOCK)) {
            for (column, sum) in finish.panels.columns(p).zip(sums).filter(|(_, sum)| special || sum.is_nan()) {
                if !special {
                    *sum = 0.0;
                }
                self.each_run(|inner| {
                    let (mut a, mut b) = ([0.0_f32; LINE], [0.0_f32; LINE]);
                    self.row_of_a(finish, row, inner.clone(), &mut a);
                    product.b.row(item.b, column, inner.clone(), self.scaling, &mut b[..inner.len()]);
                    for (a, b) in a.into_iter().zip(b).filter(|(a, _)| is_special(*a) == special) {
                        *sum += a * b;
                    }
                });
            }
        }
    }

    /// Calls `f` with the elements of k, as many as are read at a time.
    fn each_run(&self, mut f: impl FnMut(Range<usize>)) {
        let k = self.spec.k as usize;
        (0..k).step_by(LINE).for_each(|first| f(first..(first + LINE).min(k)));
    }

    /// Reads elements `inner` of a row of A.
    fn row_of_a(&self, finish: &Finish<'_, '_, E>, row: usize, inner: Range<usize>, out: &mut [f32; LINE]) {
        let (item, count) = (finish.item, inner.len());
        finish.product.a.row(item.row_batch, item.row + row, inner, Scaling::Left, &mut out[..count]);
    }

    /// What sums of the columns of panels `run` are worth.
    fn column_factors(&self, finish: &Finish<'_, '_, E>, run: Range<usize>, out: &mut [E]) {
        let unit = E::from_f32(self.unit());
        out.fill(unit);
        if self.scaling == Scaling::Applied || !self.scaled {
            return;
        }
        for (p, out) in run.zip(out.chunks_exact_mut(BLOCK)) {
            let columns = self.panels.columns(p);
            let out = &mut out[..columns.len()];
            finish.product.b.scales_of(finish.item.b, columns, 0, out);
            out.iter_mut().for_each(|factor| *factor *= unit);
        }
    }

    /// What sums of rows `rows` are worth.
    fn row_factors(&self, finish: &Finish<'_, '_, E>, rows: Range<usize>, out: &mut [E]) {
        out.fill(E::ONE);
        if self.scaled {
            let item = finish.item;
            let of = item.row + rows.start..item.row + rows.end;
            finish.product.a.scales_of(item.row_batch, of, 0, &mut out[..rows.len()]);
        }
    }
}

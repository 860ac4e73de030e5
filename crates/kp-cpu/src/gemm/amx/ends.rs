//! How sums of products by tiles end: turned if need be, multiplied by scales, and finished as D.

use super::{
    lines::{BLOCK, turn_sums},
    parts::is_special,
    product::ByTiles,
    source::unit_of,
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
    simd::run_widest,
};
use std::{any::TypeId, ops::Range};

impl<E: Tail> ByTiles<E> {
    /// Finishes the sums of a task; whether some number of A has no parts, or none.
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
        if !is_sum {
            self.column_factors(finish, run.clone(), column_factors);
        }
        for (j, first) in rows.clone().step_by(BLOCK).enumerate() {
            let some = first..(first + BLOCK).min(rows.end);
            let numbers = match self.is_turned() {
                true => {
                    let blocks = &sums[j * BLOCK * ld..][..BLOCK * ld];
                    for (i, block) in blocks.chunks_exact(BLOCK * BLOCK).enumerate() {
                        // SAFETY: `supports` asked for the features.
                        unsafe { turn_sums(block, &mut turned[i * BLOCK..], ld) };
                    }
                    &mut *turned
                }
                false => &mut sums[j * BLOCK * ld..][..BLOCK * ld],
            };
            if self.parts > 1 {
                let numbers = numbers_mut(bytes_mut(numbers));
                self.add_again(finish, some.clone(), run.clone(), numbers, ld);
                if special {
                    self.add_specials(finish, some.clone(), run.clone(), numbers, ld);
                }
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

    /// Adds up anew, one product after the other, what became NaN: parts of one number may have opposite signs, and all of them meet an infinite
    /// one of B.
    fn add_again(
        &self,
        finish: &Finish<'_, '_, E>,
        rows: Range<usize>,
        run: Range<usize>,
        sums: &mut [f32],
        ld: usize,
    ) {
        let of_row = |sums: &[f32]| sums[..run.len() * BLOCK].iter().fold(false, |some, sum| some | sum.is_nan());
        for (row, sums) in rows.zip(sums.chunks_mut(ld)).filter(|(_, sums)| of_row(sums)) {
            for (p, sums) in run.clone().zip(sums.chunks_mut(BLOCK)) {
                for (column, sum) in finish.panels.columns(p).zip(sums).filter(|(_, sum)| sum.is_nan()) {
                    *sum = 0.0;
                    self.each_product(finish, row, column, |a, b| *sum += if is_special(a) { 0.0 } else { a * b });
                }
            }
        }
    }

    /// Adds the products of numbers of A that have no parts.
    #[cold]
    fn add_specials(
        &self,
        finish: &Finish<'_, '_, E>,
        rows: Range<usize>,
        run: Range<usize>,
        sums: &mut [f32],
        ld: usize,
    ) {
        let Finish { product, item, .. } = *finish;
        for (row, sums) in rows.zip(sums.chunks_mut(ld)) {
            let (mut has_special, mut has_nan) = (false, false);
            for first in (0..self.spec.k as usize).step_by(LINE) {
                let inner = first..(first + LINE).min(self.spec.k as usize);
                let mut a = [0.0_f32; LINE];
                product.a.row(item.row_batch, item.row + row, inner.clone(), Scaling::Left, &mut a[..inner.len()]);
                has_special |= a.iter().any(|&a| is_special(a));
                has_nan |= a.iter().any(|a| a.is_nan());
            }
            // Whatever it meets.
            if has_nan {
                sums[..run.len() * BLOCK].fill(f32::NAN);
            } else if has_special {
                for (p, sums) in run.clone().zip(sums.chunks_mut(BLOCK)) {
                    for (column, sum) in finish.panels.columns(p).zip(sums) {
                        self.each_product(finish, row, column, |a, b| *sum += if is_special(a) { a * b } else { 0.0 });
                    }
                }
            }
        }
    }

    /// Calls `f` with the numbers of a row of A and of a column of B.
    #[cold]
    fn each_product(&self, finish: &Finish<'_, '_, E>, row: usize, column: usize, mut f: impl FnMut(f32, f32)) {
        let Finish { product, item, .. } = *finish;
        for first in (0..self.spec.k as usize).step_by(LINE) {
            let inner = first..(first + LINE).min(self.spec.k as usize);
            let (mut a, mut b) = ([0.0_f32; LINE], [0.0_f32; LINE]);
            let (of_a, of_b) = (&mut a[..inner.len()], &mut b[..inner.len()]);
            product.a.row(item.row_batch, item.row + row, inner.clone(), Scaling::Left, of_a);
            product.b.row(item.b, column, inner, self.scaling, of_b);
            of_a.iter().zip(of_b).for_each(|(&a, &mut b)| f(a, b));
        }
    }

    /// What sums of the columns of panels `run` are worth.
    fn column_factors(&self, finish: &Finish<'_, '_, E>, run: Range<usize>, out: &mut [E]) {
        let unit = E::from_f32(unit_of(&self.spec.a, self.holds) * unit_of(&self.spec.b, self.holds));
        out.fill(unit);
        if !self.scaled {
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

//! Products of numbers that were split, by tiles: each term is a product of two of their [parts](super::parts).

use super::parts::{PARTS, WIDE, left_bytes, right_bytes};
use crate::amx::{ROW_BYTES, ROWS, TILE_BYTES, Tiles};
use std::{arch::asm, mem::offset_of};

/// Which parts of left and right numbers of so many are multiplied with each other, small ones first.
pub(crate) fn terms([left, right]: [usize; 2]) -> impl Iterator<Item = (usize, usize)> + Clone {
    let all = (0..left).rev().flat_map(move |i| (0..right).rev().map(move |j| (i, j)));
    all.filter(|(i, j)| i + j < PARTS)
}

/// Instructions that load a part of left rows, or of right columns, or multiply what was loaded last.
macro_rules! term {
    (a0) => {
        "tileloaddt1 tmm2, [{a} + {row}]\n"
    };
    (a1) => {
        "tileloaddt1 tmm2, [{a} + {row} + {tile}]\n"
    };
    (a2) => {
        "tileloaddt1 tmm2, [{a} + {row} + 2 * {tile}]\n"
    };
    (b0) => {
        "tileloadd tmm3, [{b} + {row}]\ntileloadd tmm4, [{b} + {row} + {tile}]\n"
    };
    (b1) => {
        "tileloadd tmm3, [{b} + {row} + 2 * {tile}]\ntileloadd tmm4, [{b} + {row} + 3 * {tile}]\n"
    };
    (b2) => {
        "tileloadd tmm3, [{b} + {row} + 4 * {tile}]\ntileloadd tmm4, [{b} + {row} + 5 * {tile}]\n"
    };
    (x) => {
        "tdpbf16ps tmm0, tmm2, tmm3\ntdpbf16ps tmm1, tmm2, tmm4\n"
    };
    // Turned.
    (y) => {
        "tdpbf16ps tmm0, tmm3, tmm2\ntdpbf16ps tmm1, tmm4, tmm2\n"
    };
}
pub(super) use term;

/// Products of some tiles of rows and of 32 columns over a run.
#[repr(C)]
pub(super) struct Products {
    pub(super) left: *const u8,
    /// Bytes from a tile of rows to the next.
    pub(super) left_step: usize,
    pub(super) right: *const u8,
    pub(super) rows: usize,
    pub(super) steps: usize,
    pub(super) sums: *mut f32,
    /// Bytes from a row of sums to the next, to those of the other 16 columns, and from a tile of rows to the next.
    pub(super) ld: usize,
    pub(super) others: usize,
    pub(super) sums_step: usize,
    pub(super) first: usize,
    /// How many parts left numbers have, and right ones.
    parts: [usize; 2],
    /// Whether tiles are turned, and so are sums.
    pub(super) turned: bool,
}

/// An operand that was split: its tiles, and how many parts numbers have.
#[derive(Clone, Copy)]
pub(crate) struct Split<'a> {
    pub(crate) tiles: &'a [u8],
    pub(crate) parts: usize,
}

/// Adds the products of a run of `steps` steps, one at least, of `rows` tiles of rows, one at least, to sums, 16 rows of 32 for each, or stores
/// them if they are the `first`. Tiles of rows are `left_step` bytes apart.
///
/// # Safety
/// - The operands have been split to as many steps.
/// - The processor has tiles of bf16.
///
/// # Panics
/// If an operand or `sums` is short, or one of the numbers 0.
#[inline]
pub(crate) unsafe fn add_products(
    (left, left_step, rows): (Split<'_>, usize, usize),
    right: Split<'_>,
    steps: usize,
    (sums, ld): (&mut [f32], usize),
    first: bool,
    tiles: &Tiles,
) {
    // SAFETY: as the caller says.
    unsafe { Products::of((left, left_step, rows), right, steps, (sums, ld), first, false).run(tiles) };
}

/// The same by tiles that were turned: sums are turned, too, 32 rows of 16 for each tile of rows, side by side.
///
/// # Safety
/// As [`add_products`].
///
/// # Panics
/// As [`add_products`].
#[inline]
pub(crate) unsafe fn add_turned(
    (left, left_step, rows): (Split<'_>, usize, usize),
    right: Split<'_>,
    steps: usize,
    (sums, ld): (&mut [f32], usize),
    first: bool,
    tiles: &Tiles,
) {
    // SAFETY: as the caller says.
    unsafe { Products::of((left, left_step, rows), right, steps, (sums, ld), first, true).run(tiles) };
}

impl Products {
    /// For [`add_products`] or [`add_turned`].
    ///
    /// # Panics
    /// As those.
    pub(super) fn of(
        (left, left_step, rows): (Split<'_>, usize, usize),
        right: Split<'_>,
        steps: usize,
        (sums, ld): (&mut [f32], usize),
        first: bool,
        turned: bool,
    ) -> Self {
        assert!(rows > 0 && steps > 0, "there is something to multiply");
        let (sums, [ld, others, sums_step]) = match turned {
            true => (&mut sums[..(WIDE - 1) * ld + rows * ROWS], [4 * ld, 4 * ld * ROWS, ROW_BYTES]),
            false => (&mut sums[..(rows * ROWS - 1) * ld + WIDE], [4 * ld, ROW_BYTES, 4 * ld * ROWS]),
        };
        let parts = [left.parts, right.parts];
        let left = left.tiles[..(rows - 1) * left_step + steps * left_bytes(parts[0])].as_ptr();
        let right = right.tiles[..steps * right_bytes(parts[1])].as_ptr();
        let (sums, first) = (sums.as_mut_ptr(), first.into());
        Self { left, left_step, right, rows, steps, sums, ld, others, sums_step, first, parts, turned }
    }

    /// # Safety
    /// As [`add_products`]; sums are there.
    #[inline]
    unsafe fn run(&self, _: &Tiles) {
        #[cfg(test)]
        if crate::amx::is_imitated() {
            // SAFETY: passed on.
            return unsafe { self.imitate() };
        }
        macro_rules! run {
            ($left:literal, $right:literal; $($term:ident),*) => {
                // SAFETY: tiles have their shape, since there is a value that says so, and memory is as the caller says.
                unsafe {
                    asm!(
                        "mov {first_a}, [{t} + {left}]",
                        "mov {c}, [{t} + {sums}]",
                        "mov {ld}, [{t} + {ld_at}]",
                        "mov {n}, [{t} + {rows}]",
                        "5:",
                        "mov {d}, {c}",
                        "add {d}, [{t} + {others}]",
                        "cmp qword ptr [{t} + {first}], 0",
                        "jne 2f",
                        "tileloadd tmm0, [{c} + {ld}]",
                        "tileloadd tmm1, [{d} + {ld}]",
                        "jmp 3f",
                        "2:",
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "3:",
                        "mov {a}, {first_a}",
                        "mov {b}, [{t} + {right}]",
                        "mov {k}, [{t} + {steps}]",
                        "4:",
                        concat!($(term!($term)),*),
                        "add {a}, {left_bytes}",
                        "add {b}, {right_bytes}",
                        "dec {k}",
                        "jnz 4b",
                        "tilestored [{c} + {ld}], tmm0",
                        "tilestored [{d} + {ld}], tmm1",
                        "add {first_a}, [{t} + {left_step}]",
                        "add {c}, [{t} + {sums_step}]",
                        "dec {n}",
                        "jnz 5b",
                        t = in(reg) self,
                        a = out(reg) _,
                        b = out(reg) _,
                        c = out(reg) _,
                        d = out(reg) _,
                        first_a = out(reg) _,
                        ld = out(reg) _,
                        n = out(reg) _,
                        k = out(reg) _,
                        row = in(reg) ROW_BYTES,
                        tile = const TILE_BYTES,
                        left_bytes = const left_bytes($left),
                        right_bytes = const right_bytes($right),
                        left = const offset_of!(Products, left),
                        left_step = const offset_of!(Products, left_step),
                        rows = const offset_of!(Products, rows),
                        others = const offset_of!(Products, others),
                        sums_step = const offset_of!(Products, sums_step),
                        right = const offset_of!(Products, right),
                        steps = const offset_of!(Products, steps),
                        sums = const offset_of!(Products, sums),
                        ld_at = const offset_of!(Products, ld),
                        first = const offset_of!(Products, first),
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _,
                        options(nostack),
                    );
                }
            };
        }
        // Small products first, and as few loads as three names allow.
        match (self.parts, self.turned) {
            ([3, 3], false) => run!(3, 3; a1, b1, x, b0, x, a2, x, a0, x, b1, x, b2, x),
            ([3, 2], false) => run!(3, 2; a1, b1, x, b0, x, a2, x, a0, x, b1, x),
            ([3, 1], false) => run!(3, 1; b0, a2, x, a1, x, a0, x),
            ([2, 3], false) => run!(2, 3; a1, b1, x, b0, x, a0, x, b1, x, b2, x),
            ([2, 2], false) => run!(2, 2; a1, b1, x, b0, x, a0, x, b1, x),
            ([2, 1], false) => run!(2, 1; b0, a1, x, a0, x),
            ([1, 3], false) => run!(1, 3; a0, b2, x, b1, x, b0, x),
            ([1, 2], false) => run!(1, 2; a0, b1, x, b0, x),
            ([1, 1], false) => run!(1, 1; a0, b0, x),
            ([3, 3], true) => run!(3, 3; a1, b1, y, b0, y, a2, y, a0, y, b1, y, b2, y),
            ([3, 2], true) => run!(3, 2; a1, b1, y, b0, y, a2, y, a0, y, b1, y),
            ([3, 1], true) => run!(3, 1; b0, a2, y, a1, y, a0, y),
            ([2, 3], true) => run!(2, 3; a1, b1, y, b0, y, a0, y, b1, y, b2, y),
            ([2, 2], true) => run!(2, 2; a1, b1, y, b0, y, a0, y, b1, y),
            ([2, 1], true) => run!(2, 1; b0, a1, y, a0, y),
            ([1, 3], true) => run!(1, 3; a0, b2, y, b1, y, b0, y),
            ([1, 2], true) => run!(1, 2; a0, b1, y, b0, y),
            ([1, 1], true) => run!(1, 1; a0, b0, y),
            (other, _) => unreachable!("no number has so many parts: {other:?}"),
        }
    }

    /// What tiles would do, in loops.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[cfg(test)]
    pub(super) unsafe fn imitate(&self) {
        let number = |at: *const u8, i: usize| {
            // SAFETY: within an operand, says the caller.
            let code = unsafe { at.cast::<u16>().wrapping_add(i).read_unaligned() };
            f32::from_bits(u32::from(code) << 16)
        };
        let all = (0..self.steps).flat_map(|step| terms(self.parts).map(move |parts| (step, parts)));
        for (row, column) in (0..self.rows * ROWS).flat_map(|row| (0..WIDE).map(move |column| (row, column))) {
            let (down, across) = if self.turned { (column % ROWS, row % ROWS) } else { (row % ROWS, column % ROWS) };
            let tiles = row / ROWS * self.sums_step + column / ROWS * self.others;
            let at = self.sums.wrapping_byte_add(tiles + down * self.ld).wrapping_add(across);
            // SAFETY: sums are there.
            let mut sum = if self.first == 1 { 0.0 } else { unsafe { at.read() } };
            for (step, (of_left, of_right)) in all.clone() {
                let tile = self.left.wrapping_add(row / ROWS * self.left_step + step * left_bytes(self.parts[0]));
                let left = tile.wrapping_add(of_left * TILE_BYTES);
                let tile = 2 * of_right + column / ROWS;
                let step = step * right_bytes(self.parts[1]);
                let right = self.right.wrapping_add(step + tile * TILE_BYTES);
                let half = |half: usize| {
                    let in_row = |tile: *const u8, row: usize, pair: usize| {
                        number(tile.wrapping_add(row % ROWS * ROW_BYTES), 2 * pair + half)
                    };
                    let in_column = |tile: *const u8, column: usize, pair: usize| {
                        number(tile.wrapping_add(pair * ROW_BYTES + 4 * (column % ROWS)), half)
                    };
                    let product = |pair| match self.turned {
                        true => in_column(left, row, pair) * in_row(right, column, pair),
                        false => in_row(left, row, pair) * in_column(right, column, pair),
                    };
                    (0..ROWS).map(product).sum::<f32>()
                };
                sum += half(0) + half(1);
            }
            // SAFETY: as above.
            unsafe { at.write(sum) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        amx::{features, is_imitated},
        gemm::amx::{
            lines::turn,
            parts::{Places, numbers, split_lines, split_rows},
        },
    };

    /// Two tiles of rows, over 70 elements, stored and added, of any number of parts: in the mean no further from the product than a chain of
    /// multiply-adds of f32.
    #[test]
    fn products_are_those_of_f32() {
        const RUN: usize = 70;
        const LD: usize = WIDE + 3;
        if !crate::caps::with_tiles().has("avx512bw")
            || !is_imitated() && !features().any(|feature| feature == "amx-bf16")
        {
            println!("skipped: the processor has no AVX-512, or tiles that multiply no bf16");
            return;
        }
        for parts in (1..=PARTS).flat_map(|left| (1..=PARTS).map(move |right| [left, right])) {
            let (rows, lines) = (numbers(2 * ROWS * RUN, parts[0], None), numbers(RUN * WIDE, parts[1], None));
            let (left_step, right_len) = (3 * left_bytes(parts[0]), 3 * right_bytes(parts[1]));
            let (mut left, mut right) = (vec![0; 2 * left_step], vec![0; right_len]);
            // SAFETY: the processor has AVX-512; there are tiles, or nothing is done with them, and this thread has no others.
            let tiles = unsafe {
                for (rows, left) in rows.chunks(ROWS * RUN).zip(left.chunks_mut(left_step)) {
                    split_rows((rows, RUN), ROWS, RUN, parts[0], (Places::left(parts[0]), left));
                }
                split_lines((&lines, WIDE), WIDE, RUN, parts[1], (Places::right(parts[1]), &mut right));
                Tiles::new()
            };
            let mut sums = vec![9.0; 2 * ROWS * LD];
            for times in [1.0, 2.0] {
                let left = (Split { tiles: &left, parts: parts[0] }, left_step, 2);
                let right = Split { tiles: &right, parts: parts[1] };
                // SAFETY: operands were split to three steps; tiles are imitated where there are none.
                unsafe { add_products(left, right, 3, (&mut sums, LD), times == 1.0, &tiles) };
                let (mut off, mut chain_off) = (0.0, 0.0);
                for (row, column) in (0..2 * ROWS).flat_map(|row| (0..WIDE).map(move |column| (row, column))) {
                    let factors = (0..RUN).map(|k| (rows[row * RUN + k], lines[k * WIDE + column]));
                    let want: f64 = factors.clone().map(|(a, b)| f64::from(a) * f64::from(b)).sum();
                    let chain = factors.fold(0.0_f32, |sum, (a, b)| a.mul_add(b, sum));
                    off += (f64::from(sums[row * LD + column]) / times - want).powi(2);
                    chain_off += (f64::from(chain) - want).powi(2);
                }
                assert!(
                    off <= chain_off,
                    "{parts:?}, {times}: squares of errors are {off:e}, of a chain {chain_off:e}"
                );
            }
            assert!((0..2 * ROWS).all(|row| sums[row * LD..].iter().skip(WIDE).take(3).all(|&x| x == 9.0)));
            let mut turned = vec![9.0; WIDE * LD];
            // SAFETY: as above, and all tiles are turned.
            unsafe {
                turn(&mut left);
                turn(&mut right);
                for first in [true, false] {
                    let left = (Split { tiles: &left, parts: parts[0] }, left_step, 2);
                    let right = Split { tiles: &right, parts: parts[1] };
                    add_turned(left, right, 3, (&mut turned, LD), first, &tiles);
                }
            }
            for (row, column) in (0..2 * ROWS).flat_map(|row| (0..WIDE).map(move |column| (row, column))) {
                let (turned, sum) = (turned[column * LD + row], sums[row * LD + column]);
                assert_eq!(turned.to_bits(), sum.to_bits(), "{parts:?}: {row}, {column}");
            }
        }
    }
}

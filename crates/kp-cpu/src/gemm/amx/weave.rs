//! [Products](super::terms) of three parts by three, while numbers are split for the products after these.
//!
//! Tiles and vectors are units of their own: a tile product takes sixteen cycles, splitting two vectors twelve. But a core looks too little ahead
//! to do both at once where instructions of one kind follow all of the other. So behind every third product stands what splits a line.

use super::{
    parts::{PARTS, WIDE, left_bytes, right_bytes},
    terms::{Products, Split, term},
};
use crate::amx::{ROW_BYTES, ROWS, TILE_BYTES, Tiles};
use std::{arch::asm, marker::PhantomData, mem::offset_of};

/// How the numbers of some steps of 32 columns lie.
#[derive(Clone, Copy)]
pub(crate) enum Lie {
    /// Columns are contiguous.
    Columns,
    /// Elements of neighbouring columns are.
    Rows,
}

/// What is split: lines of 16 pairs of numbers, of which the second stands 16 elements after the first.
#[repr(C)]
pub(crate) struct Soon<'a> {
    /// The first numbers of the next line's pairs, and the second ones.
    from: *const f32,
    second: *const f32,
    /// How many bytes further what comes later is asked for meanwhile.
    ahead: usize,
    /// Bytes from a line to the next, and besides from the end of each 16, and of each 32.
    line: usize,
    tile: usize,
    step: usize,
    /// Right tiles, a step after the other.
    to: *mut u8,
    /// Lines left, 32 of each step.
    left: usize,
    /// Not 0 if a number is special, so that there are no parts of it.
    special: usize,
    operands: PhantomData<(&'a [f32], &'a mut [u8])>,
}

impl<'a> Soon<'a> {
    /// Numbers from `numbers` on, `ld` from column to column, or from row to row, of as many steps as `to` has, and others `ahead` of them to ask for.
    ///
    /// # Panics
    /// If `numbers` is short.
    pub(crate) fn new((numbers, ld): (&'a [f32], usize), lie: Lie, ahead: usize, to: &'a mut [u8]) -> Self {
        let (steps, _) = to.as_chunks_mut::<{ right_bytes(PARTS) }>();
        let left = WIDE * steps.len();
        let (rows, each) = if let Lie::Columns = lie { (WIDE, left) } else { (left, WIDE) };
        let from = if left == 0 { numbers } else { &numbers[..(rows - 1) * ld + each] }.as_ptr();
        let bytes = |numbers: usize| numbers.wrapping_mul(size_of::<f32>());
        let [second, line, tile, step] = match lie {
            // A line is of one column; then come the same columns, 32 elements further.
            Lie::Columns => [ROWS, ld, 0, WIDE.wrapping_sub(WIDE * ld)],
            // A line is of two rows, of sixteen columns; then come the others; then 32 rows further the first.
            Lie::Rows => [ROWS * ld, ld, ROWS.wrapping_sub(ROWS * ld), (WIDE * ld).wrapping_sub(WIDE)],
        };
        let [line, tile, step, ahead] = [line, tile, step, ahead].map(bytes);
        let (second, to) = (from.wrapping_add(second), to.as_mut_ptr());
        Self { from, second, ahead, line, tile, step, to, left, special: 0, operands: PhantomData }
    }
}

/// What the loop below reads.
#[repr(C)]
struct Weave<'a> {
    products: Products,
    soon: Soon<'a>,
}

/// Adds products as [`add_products`](super::terms::add_products) does, or [`add_turned`](super::terms::add_turned), and splits what comes `soon`.
/// Answers whether a number of that is special; then there are no parts of it.
///
/// # Safety
/// As those.
///
/// # Panics
/// As those.
#[inline]
pub(crate) unsafe fn weave(
    (left, left_step, rows): (&[u8], usize, usize),
    right: &[u8],
    steps: usize,
    (sums, ld, turned): (&mut [f32], usize, bool),
    first: bool,
    soon: Soon<'_>,
    tiles: &Tiles,
) -> bool {
    let [left, right] = [left, right].map(|tiles| Split { tiles, parts: PARTS });
    let products = Products::of((left, left_step, rows), right, steps, (sums, ld), first, turned);
    let mut all = Weave { products, soon };
    // SAFETY: passed on.
    unsafe { all.run(tiles) };
    all.soon.special != 0
}

impl Weave<'_> {
    /// # Safety
    /// As [`weave`].
    unsafe fn run(&mut self, _: &Tiles) {
        #[cfg(test)]
        if crate::amx::is_imitated() {
            // SAFETY: passed on.
            return unsafe { self.imitate() };
        }
        // What splits a line, beside what `term` says.
        macro_rules! weft {
            // If one is left.
            (s) => {
                concat!("dec {left}\njs 8f\n", weft!(line), "8:\n")
            };
            (line) => {
                concat!(
                    "vmovups zmm8, [{from}]\n",
                    "vmovups zmm9, [{second}]\n",
                    "prefetcht1 [{from} + {ahead}]\n",
                    "prefetcht1 [{second} + {ahead}]\n",
                    weft!(part),
                    "vmovups [{to}], zmm12\n",
                    weft!(rest),
                    weft!(part),
                    "vmovups [{to} + 2 * {tile}], zmm12\n",
                    weft!(rest),
                    "vpsrld zmm12, zmm8, 16\n",
                    "vmovdqu16 zmm12{{k1}}, zmm9\n",
                    "vmovups [{to} + 4 * {tile}], zmm12\n",
                    // Of a special number NaN is left.
                    "vpandd zmm12, zmm12, zmm15\n",
                    "vpcmpeqw k2, zmm12, zmm15\n",
                    "kord k3, k3, k2\n",
                    "add {from}, [{t} + {line}]\n",
                    "add {second}, [{t} + {line}]\n",
                    "add {to}, {row_bytes}\n",
                    "test {left}, 15\n",
                    "jnz 9f\n",
                    "add {from}, [{t} + {tile_at}]\n",
                    "add {second}, [{t} + {tile_at}]\n",
                    "test {left}, 31\n",
                    "jnz 9f\n",
                    "add {from}, [{t} + {step}]\n",
                    "add {second}, [{t} + {step}]\n",
                    "add {to}, 4 * {tile}\n",
                    "9:\n",
                )
            };
            // The nearest numbers of bf16, as `parts::nearest` finds them, and pairs of them.
            (part) => {
                concat!(
                    "vpaddd zmm10, zmm8, zmm13\n",
                    "vpaddd zmm11, zmm9, zmm13\n",
                    "vpandd zmm11, zmm11, zmm14\n",
                    "vpsrld zmm12, zmm10, 16\n",
                    "vmovdqu16 zmm12{{k1}}, zmm11\n",
                )
            };
            (rest) => {
                concat!("vpandd zmm10, zmm10, zmm14\n", "vsubps zmm8, zmm8, zmm10\n", "vsubps zmm9, zmm9, zmm11\n",)
            };
            ($other:ident) => {
                term!($other)
            };
        }
        macro_rules! run {
            ($($term:ident),*) => {
                // SAFETY: tiles have their shape, since there is a value that says so, and memory is as the caller says.
                unsafe {
                    asm!(
                        "mov {k:e}, 0x8000",
                        "vpbroadcastd zmm13, {k:e}",
                        "mov {k:e}, 0xffff0000",
                        "vpbroadcastd zmm14, {k:e}",
                        "mov {k:e}, 0x7f807f80",
                        "vpbroadcastd zmm15, {k:e}",
                        "mov {k:e}, 0xaaaaaaaa",
                        "kmovd k1, {k:e}",
                        "kxord k3, k3, k3",
                        "mov {from}, [{t} + {from_at}]",
                        "mov {second}, [{t} + {second_at}]",
                        "mov {to}, [{t} + {to_at}]",
                        "mov {left}, [{t} + {left_at}]",
                        "mov {first_a}, [{t} + {a_at}]",
                        "mov {c}, [{t} + {sums}]",
                        "mov {ld}, [{t} + {ld_at}]",
                        "mov {ahead}, [{t} + {ahead_at}]",
                        "5:",
                        "mov {k}, {c}",
                        "add {k}, [{t} + {others}]",
                        "cmp qword ptr [{t} + {first}], 0",
                        "jne 2f",
                        "tileloadd tmm0, [{c} + {ld}]",
                        "tileloadd tmm1, [{k} + {ld}]",
                        "jmp 3f",
                        "2:",
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "3:",
                        "mov {a}, {first_a}",
                        "mov {b}, [{t} + {b_at}]",
                        "mov {k}, [{t} + {steps}]",
                        "4:",
                        concat!($(weft!($term)),*),
                        "add {a}, {left_bytes}",
                        "add {b}, {right_bytes}",
                        "dec {k}",
                        "jnz 4b",
                        "mov {k}, {c}",
                        "add {k}, [{t} + {others}]",
                        "tilestored [{c} + {ld}], tmm0",
                        "tilestored [{k} + {ld}], tmm1",
                        "add {first_a}, [{t} + {a_step}]",
                        "add {c}, [{t} + {sums_step}]",
                        "dec qword ptr [{t} + {rows}]",
                        "jnz 5b",
                        "6:",
                        "dec {left}",
                        "js 7f",
                        weft!(line),
                        "jmp 6b",
                        "7:",
                        "kmovd {k:e}, k3",
                        "mov [{t} + {special}], {k}",
                        t = in(reg) std::ptr::from_mut(self),
                        a = out(reg) _,
                        b = out(reg) _,
                        c = out(reg) _,
                        first_a = out(reg) _,
                        ld = out(reg) _,
                        ahead = out(reg) _,
                        k = out(reg) _,
                        from = out(reg) _,
                        second = out(reg) _,
                        to = out(reg) _,
                        left = out(reg) _,
                        row = in(reg) ROW_BYTES,
                        row_bytes = const ROW_BYTES,
                        tile = const TILE_BYTES,
                        left_bytes = const left_bytes(PARTS),
                        right_bytes = const right_bytes(PARTS),
                        a_at = const offset_of!(Weave<'_>, products.left),
                        a_step = const offset_of!(Weave<'_>, products.left_step),
                        b_at = const offset_of!(Weave<'_>, products.right),
                        rows = const offset_of!(Weave<'_>, products.rows),
                        steps = const offset_of!(Weave<'_>, products.steps),
                        sums = const offset_of!(Weave<'_>, products.sums),
                        ld_at = const offset_of!(Weave<'_>, products.ld),
                        others = const offset_of!(Weave<'_>, products.others),
                        sums_step = const offset_of!(Weave<'_>, products.sums_step),
                        first = const offset_of!(Weave<'_>, products.first),
                        from_at = const offset_of!(Weave<'_>, soon.from),
                        second_at = const offset_of!(Weave<'_>, soon.second),
                        ahead_at = const offset_of!(Weave<'_>, soon.ahead),
                        line = const offset_of!(Weave<'_>, soon.line),
                        tile_at = const offset_of!(Weave<'_>, soon.tile),
                        step = const offset_of!(Weave<'_>, soon.step),
                        to_at = const offset_of!(Weave<'_>, soon.to),
                        left_at = const offset_of!(Weave<'_>, soon.left),
                        special = const offset_of!(Weave<'_>, soon.special),
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _,
                        out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _, out("zmm12") _,
                        out("zmm13") _, out("zmm14") _, out("zmm15") _, out("k1") _, out("k2") _, out("k3") _,
                        options(nostack),
                    );
                }
            };
        }
        if self.products.turned {
            run!(a1, b1, y, s, b0, y, s, a2, y, a0, y, s, b1, y, s, b2, y);
        } else {
            run!(a1, b1, x, s, b0, x, s, a2, x, a0, x, s, b1, x, s, b2, x);
        }
    }

    /// What tiles and vectors would do, in loops.
    ///
    /// # Safety
    /// As [`weave`].
    #[cfg(test)]
    unsafe fn imitate(&mut self) {
        use super::parts::is_special;

        let Self { products, soon } = self;
        // SAFETY: passed on.
        unsafe { products.imitate() };
        let (mut from, mut to) = (soon.from, soon.to);
        for line in 1..=soon.left {
            for i in 0..2 * ROWS {
                let second = soon.second.addr() - soon.from.addr();
                let at = from.wrapping_byte_add(i % 2 * second).wrapping_add(i / 2);
                // SAFETY: a number that is to be split.
                let mut rest = unsafe { at.read() };
                soon.special |= usize::from(is_special(rest));
                for part in 0..PARTS {
                    let upper = (rest.to_bits().wrapping_add(0x8000) >> 16) as u16;
                    rest -= f32::from_bits(u32::from(upper) << 16);
                    // SAFETY: of a line of right tiles.
                    unsafe { to.wrapping_add(2 * part * TILE_BYTES + 2 * i).cast::<u16>().write_unaligned(upper) };
                }
            }
            (from, to) = (from.wrapping_byte_add(soon.line), to.wrapping_add(ROW_BYTES));
            if line % ROWS == 0 {
                from = from.wrapping_byte_add(soon.tile);
            }
            if line % WIDE == 0 {
                (from, to) = (from.wrapping_byte_add(soon.step), to.wrapping_add(4 * TILE_BYTES));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        amx::{features, is_imitated},
        gemm::amx::{
            parts::{Places, numbers, split_lines, split_rows},
            terms::{add_products, add_turned},
        },
    };

    /// Products are those that are computed alone, and parts those that are made alone, of columns and of rows, with fewer lines than products leave
    /// room for and with more.
    #[test]
    fn products_and_parts_are_those_of_each() {
        const STEPS: usize = 3;
        const LD: usize = 40;
        let run = STEPS * WIDE;
        if !crate::caps::with_tiles().has("avx512bw")
            || !is_imitated() && !features().any(|feature| feature == "amx-bf16")
        {
            println!("skipped: the processor has no AVX-512, or tiles that multiply no bf16");
            return;
        }
        let (left_step, right_len) = (STEPS * left_bytes(PARTS), STEPS * right_bytes(PARTS));
        for (rows, lie, turned, special) in [
            (1, Lie::Columns, true, None),
            (3, Lie::Rows, false, None),
            (9, Lie::Columns, true, Some((5, f32::NAN))),
            (9, Lie::Rows, false, Some((7, f32::INFINITY))),
            (2, Lie::Rows, true, Some((7, f32::from_bits(0x7fff_ffff)))),
        ] {
            let (of_a, of_b) = (numbers(rows * ROWS * run, PARTS, None), numbers(run * WIDE, PARTS, None));
            let (of_columns, ld) = (numbers(run * run, PARTS, special), if let Lie::Columns = lie { run } else { LD });
            let (mut left, mut right, mut soon) = (vec![0; rows * left_step], vec![0; right_len], vec![1; right_len]);
            let mut want = vec![0; right_len];
            // SAFETY: the processor has AVX-512; there are tiles, or nothing is done with them, and this thread has no others.
            let (tiles, told) = unsafe {
                let places = Places::right(PARTS).apart();
                for (rows, left) in of_a.chunks(ROWS * run).zip(left.chunks_mut(left_step)) {
                    split_rows((rows, run), ROWS, run, PARTS, (Places::left(PARTS).apart(), left));
                }
                split_lines((&of_b, WIDE), WIDE, run, PARTS, (places, &mut right));
                let told = match lie {
                    Lie::Columns => (0..2).fold(false, |told, tile| {
                        let out = &mut want[tile * TILE_BYTES..];
                        split_rows((&of_columns[tile * ROWS * ld..], ld), ROWS, run, PARTS, (places, out)) || told
                    }),
                    Lie::Rows => split_lines((&of_columns, ld), WIDE, run, PARTS, (places, &mut want)),
                };
                (Tiles::new(), told)
            };
            let (of_row, len) = (if turned { rows * ROWS } else { WIDE } + 3, (rows * ROWS + 3) * (WIDE + 3));
            let (mut sums, mut alone) = (vec![9.0; len], vec![9.0; len]);
            for first in [true, false] {
                let to = Soon::new((&of_columns, ld), lie, 0, &mut soon);
                // SAFETY: operands were split to three steps; tiles are imitated where there are none.
                let special = unsafe {
                    let split = [&left, &right].map(|tiles| Split { tiles, parts: PARTS });
                    let of_left = (split[0], left_step, rows);
                    match turned {
                        true => add_turned(of_left, split[1], STEPS, (&mut alone, of_row), first, &tiles),
                        false => add_products(of_left, split[1], STEPS, (&mut alone, of_row), first, &tiles),
                    }
                    weave((&left, left_step, rows), &right, STEPS, (&mut sums, of_row, turned), first, to, &tiles)
                };
                assert_eq!(special, told, "{rows}");
                assert!(sums.iter().zip(&alone).all(|(sum, alone)| sum.to_bits() == alone.to_bits()), "{rows}");
                assert!(special || soon == want, "{rows}");
            }
        }
    }
}

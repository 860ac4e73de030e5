//! Four tiles of sums: 32 rows of one operand and 32 of the other, over a run of k, two tiles of sums at a time.
//!
//! ```text
//!                  right: 16 lines a step, each four bytes of k of 16 rows, side by side
//!                 ┌────┬────┐
//!                 │ r₀ │ r₁ │     a step multiplies 64 bytes of k: 32 numbers of bf16 or 64 bytes
//!    left         └────┴────┘
//!   ┌────┐        ┌────┬────┐
//!   │ l₀ │        │ c₀₀│ c₀₁│     first this run, if left passes
//!   ├────┤        ├────┼────┤
//!   │ l₁ │        │ c₁₀│ c₁₁│     then this one
//!   └────┘        └────┴────┘
//! ```
//! One operand passes: its tiles are loaded once for two products, from the second cache. The other stays: what it has of the run is
//! in the first cache, since it meets all that passes. Three tiles are loaded for two products, where four for four would do; but
//! a processor keeps few more tiles than the eight that have names, and half of them while another thread has the other half of
//! the core. A tile can be loaded before others are done with only if it finds room, so fewer names go faster: in the first cache,
//! beside a busy neighbour, 1100 GFLOP/s with four names, 870 with six, 520 with eight; alone 2320 with any.
//!
//! A tile of one form is a tile of the other with rows and columns exchanged, in units of four bytes.

use crate::amx::{ROW_BYTES, ROWS, Tiles};
use std::{arch::asm, mem::offset_of, ops::Range};

/// What is multiplied, and how sums are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dot {
    /// bf16, summed in f32.
    Bf16,
    /// Bytes, summed in i32; whether left ones, and right ones, are signed.
    Bytes { left: bool, right: bool },
}

/// Two tiles of an operand, and where the next two are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    pub(crate) at: [*const u8; 2],
    /// Bytes from a row, or line, to the next.
    pub(crate) ld: usize,
    /// Bytes from a step to the next.
    pub(crate) step: usize,
}

impl Operand {
    /// Tiles one after the other, two for each step.
    pub(crate) fn packed(at: *const u8) -> Self {
        let tile = crate::amx::TILE_BYTES;
        Self { at: [at, at.wrapping_add(tile)], ld: ROW_BYTES, step: 2 * tile }
    }

    /// What lies so many bytes on.
    pub(crate) fn moved(self, bytes: usize) -> Self {
        Self { at: self.at.map(|at| at.wrapping_add(bytes)), ..self }
    }

    /// Lines of steps `steps`, both tiles of each.
    fn lines(&self, steps: Range<usize>) -> impl Iterator<Item = *const u8> {
        let Self { at, ld, step } = *self;
        let tiles = steps.flat_map(move |s| at.map(|at| at.wrapping_add(s * step)));
        tiles.flat_map(move |tile| (0..ROWS).map(move |line| tile.wrapping_add(line * ld)))
    }

    /// Copies `steps` steps to tiles one after the other.
    ///
    /// # Safety
    /// There are as many.
    ///
    /// # Panics
    /// If `out` is short.
    pub(crate) unsafe fn pack(&self, steps: usize, out: &mut [u8]) {
        let out = &mut out.as_chunks_mut::<ROW_BYTES>().0[..2 * ROWS * steps];
        for (line, out) in self.lines(0..steps).zip(out) {
            // SAFETY: the caller's promise.
            *out = unsafe { line.cast::<[u8; ROW_BYTES]>().read() };
        }
    }
}

/// Which operand passes: nothing of it should stay in the first cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Passes {
    Left,
    Right,
}

/// Two lines of each step that are asked for while tiles multiply, to the second cache.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    /// The first line.
    pub(crate) at: *const u8,
    /// Bytes from it to the second.
    pub(crate) line: usize,
    /// Bytes from a step's to the next one's.
    pub(crate) step: usize,
}

/// The product of a run of k.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile {
    pub(crate) left: Operand,
    pub(crate) right: Operand,
    pub(crate) passes: Passes,
    /// Tiles of what passes: one where the second would be all padding.
    pub(crate) halves: usize,
    /// What either half of what passes asks for: four lines a step, since more at once would keep tiles waiting.
    pub(crate) ahead: [Option<[Ahead; 2]>; 2],
    /// Steps of k, one at least.
    pub(crate) steps: usize,
    /// The sums of the upper and the lower 16 rows: 32 a row, or 16 if there is one right tile.
    pub(crate) sums: [*mut u32; 2],
    /// Bytes from a row of sums to the next.
    pub(crate) sums_ld: usize,
    /// Whether sums are stored, rather than added to what is there.
    pub(crate) first: bool,
}

/// A tile of what passes by two of what stays.
#[repr(C)]
struct Pair {
    passes: *const u8,
    passes_ld: usize,
    passes_step: usize,
    stays: [*const u8; 2],
    stays_ld: usize,
    stays_step: usize,
    steps: usize,
    sums: [*mut u32; 2],
    sums_ld: usize,
    first: usize,
    ahead: [Ahead; 2],
}

/// Sums of a tile's row take as many bytes as it has.
const _: () = assert!(ROWS * size_of::<u32>() == ROW_BYTES);

impl Tile {
    /// Computes it.
    ///
    /// # Safety
    /// - The pointers name what they say, of which nothing else writes operands or accesses sums.
    /// - The processor has the instructions for `dot`.
    #[inline]
    pub(crate) unsafe fn run(&self, dot: Dot, tiles: &Tiles) {
        let (passes, stays) = match self.passes {
            Passes::Left => (&self.left, &self.right),
            Passes::Right => (&self.right, &self.left),
        };
        for half in 0..self.halves {
            let sums = match self.passes {
                Passes::Left => [self.sums[half], self.sums[half].wrapping_add(ROWS)],
                Passes::Right => self.sums.map(|sums| sums.wrapping_add(half * ROWS)),
            };
            let ahead = self.ahead[half];
            let pair = Pair {
                passes: passes.at[half],
                passes_ld: passes.ld,
                passes_step: passes.step,
                stays: stays.at,
                stays_ld: stays.ld,
                stays_step: stays.step,
                steps: self.steps,
                sums,
                sums_ld: self.sums_ld,
                first: self.first.into(),
                ahead: ahead.unwrap_or([Ahead { at: std::ptr::null(), line: 0, step: 0 }; 2]),
            };
            // SAFETY: passed on.
            unsafe {
                match ahead {
                    Some(_) => pair.run::<true>(dot, self.passes, tiles),
                    None => pair.run::<false>(dot, self.passes, tiles),
                }
            }
        }
    }
}

impl Pair {
    /// Computes it, and asks for what is ahead if told so.
    ///
    /// # Safety
    /// As [`Tile::run`].
    #[inline]
    unsafe fn run<const ASKS: bool>(&self, dot: Dot, passes: Passes, _: &Tiles) {
        #[cfg(test)]
        if crate::amx::is_imitated() {
            // SAFETY: passed on.
            return unsafe { self.imitate(dot, passes) };
        }
        macro_rules! with {
            ($dot:literal, $left:literal, $right:literal, $ask:expr) => {
                // SAFETY: tiles have their shape, since there is a value that says so, and memory is as the caller says.
                unsafe {
                    asm!(
                        // Sums so far.
                        "cmp qword ptr [{t} + {first}], 0",
                        "jne 2f",
                        "mov {b}, [{t} + {sums}]",
                        "mov {c}, [{t} + {sums} + 8]",
                        "mov {ld}, [{t} + {sums_ld}]",
                        "tileloadd tmm0, [{b} + {ld}]",
                        "tileloadd tmm1, [{c} + {ld}]",
                        "jmp 3f",
                        "2:",
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "3:",
                        "mov {a}, [{t} + {passes}]",
                        "mov {ld}, [{t} + {passes_ld}]",
                        "mov {step}, [{t} + {passes_step}]",
                        "mov {b}, [{t} + {stays}]",
                        "mov {c}, [{t} + {stays} + 8]",
                        "mov {stays_ld}, [{t} + {stays_ld_at}]",
                        "mov {stays_step}, [{t} + {stays_step_at}]",
                        "mov {k}, [{t} + {steps}]",
                        "mov {p}, [{t} + {ahead}]",
                        "mov {q}, [{t} + {ahead} + {of_ahead}]",
                        "mov {line}, [{t} + {ahead} + 8]",
                        "mov {other}, [{t} + {ahead} + {of_ahead} + 8]",
                        "4:",
                        // Not to the first cache, if the processor heeds what it is told.
                        "tileloaddt1 tmm2, [{a} + {ld}]",
                        "tileloadd tmm3, [{b} + {stays_ld}]",
                        concat!($dot, " tmm0, ", $left, ", ", $right),
                        "tileloadd tmm3, [{c} + {stays_ld}]",
                        concat!($dot, " tmm1, ", $left, ", ", $right),
                        $ask,
                        "add {a}, {step}",
                        "add {b}, {stays_step}",
                        "add {c}, {stays_step}",
                        "dec {k}",
                        "jnz 4b",
                        "mov {b}, [{t} + {sums}]",
                        "mov {c}, [{t} + {sums} + 8]",
                        "mov {ld}, [{t} + {sums_ld}]",
                        "tilestored [{b} + {ld}], tmm0",
                        "tilestored [{c} + {ld}], tmm1",
                        t = in(reg) self,
                        a = out(reg) _,
                        b = out(reg) _,
                        c = out(reg) _,
                        ld = out(reg) _,
                        step = out(reg) _,
                        stays_ld = out(reg) _,
                        stays_step = out(reg) _,
                        k = out(reg) _,
                        p = out(reg) _,
                        q = out(reg) _,
                        line = out(reg) _,
                        other = out(reg) _,
                        passes = const offset_of!(Pair, passes),
                        passes_ld = const offset_of!(Pair, passes_ld),
                        passes_step = const offset_of!(Pair, passes_step),
                        stays = const offset_of!(Pair, stays),
                        stays_ld_at = const offset_of!(Pair, stays_ld),
                        stays_step_at = const offset_of!(Pair, stays_step),
                        steps = const offset_of!(Pair, steps),
                        sums = const offset_of!(Pair, sums),
                        sums_ld = const offset_of!(Pair, sums_ld),
                        first = const offset_of!(Pair, first),
                        ahead = const offset_of!(Pair, ahead),
                        of_ahead = const size_of::<Ahead>(),
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        options(nostack),
                    );
                }
            };
            ($dot:literal, $left:literal, $right:literal) => {
                if ASKS {
                    with!(
                        $dot,
                        $left,
                        $right,
                        "prefetcht1 [{p}]
                        prefetcht1 [{p} + {line}]
                        prefetcht1 [{q}]
                        prefetcht1 [{q} + {other}]
                        add {p}, [{t} + {ahead} + 16]
                        add {q}, [{t} + {ahead} + {of_ahead} + 16]"
                    );
                } else {
                    with!($dot, $left, $right, "");
                }
            };
            ($dot:literal) => {
                match passes {
                    Passes::Left => with!($dot, "tmm2", "tmm3"),
                    Passes::Right => with!($dot, "tmm3", "tmm2"),
                }
            };
        }
        match dot {
            Dot::Bf16 => with!("tdpbf16ps"),
            Dot::Bytes { left: true, right: true } => with!("tdpbssd"),
            Dot::Bytes { left: true, right: false } => with!("tdpbsud"),
            Dot::Bytes { left: false, right: true } => with!("tdpbusd"),
            Dot::Bytes { left: false, right: false } => with!("tdpbuud"),
        }
    }

    /// What tiles would do, in loops.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[cfg(test)]
    unsafe fn imitate(&self, dot: Dot, passes: Passes) {
        let sum = |mut sum: u32, left: [u8; 4], right: [u8; 4]| {
            let Dot::Bytes { left: l, right: r } = dot else {
                let number = |code: [u8; 4], i: usize| {
                    f32::from_bits(u32::from(u16::from_le_bytes([code[2 * i], code[2 * i + 1]])) << 16)
                };
                let product = |i| number(left, i) * number(right, i);
                return (f32::from_bits(sum) + product(0) + product(1)).to_bits();
            };
            let number = |code: u8, signed: bool| if signed { i32::from(code as i8) } else { code.into() };
            for (left, right) in left.into_iter().zip(right) {
                sum = sum.wrapping_add((number(left, l) * number(right, r)) as u32);
            }
            sum
        };
        // SAFETY: within the operand, says the caller.
        let four = |at: *const u8| unsafe { at.cast::<[u8; 4]>().read() };
        let of_passes = |step, line, lane| {
            four(self.passes.wrapping_add(step * self.passes_step + line * self.passes_ld + 4 * lane))
        };
        let of_stays = |tile: usize, step, line, lane| {
            four(self.stays[tile].wrapping_add(step * self.stays_step + line * self.stays_ld + 4 * lane))
        };
        let places = (0..2 * ROWS * ROWS).map(|i| (i / (ROWS * ROWS), i / ROWS % ROWS, i % ROWS));
        let at = |(tile, row, column): (usize, usize, usize)| {
            self.sums[tile].wrapping_byte_add(row * self.sums_ld).wrapping_add(column)
        };
        let total = |place| {
            let (tile, row, column) = place;
            // SAFETY: within the sums, says the caller.
            let mut total = if self.first == 1 { 0 } else { unsafe { at(place).read() } };
            for (step, k) in (0..self.steps).flat_map(|step| (0..ROWS).map(move |k| (step, k))) {
                let (left, right) = match passes {
                    Passes::Left => (of_passes(step, row, k), of_stays(tile, step, k, column)),
                    Passes::Right => (of_stays(tile, step, row, k), of_passes(step, k, column)),
                };
                total = sum(total, left, right);
            }
            total
        };
        // Two tiles of sums may be one: nothing is stored before everything is loaded.
        let totals: Vec<u32> = places.clone().map(total).collect();
        for (place, total) in places.zip(totals) {
            // SAFETY: as above.
            unsafe { at(place).write(total) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amx::{TILE_BYTES, features};

    const STEPS: usize = 3;
    const BYTES: usize = 2 * STEPS * TILE_BYTES;
    /// Columns of sums, of which the first 32 are computed.
    const LD: usize = 2 * ROWS + 5;

    /// Bytes −2 to 2 of both operands, and what their product adds to sums of row and column.
    fn example(passes: Passes) -> ([Vec<u8>; 2], impl Fn(usize, usize) -> i32) {
        let operand = |seed: usize| -> Vec<u8> {
            (0..BYTES).map(|i| ((i * 7 + i / 64 * 3 + seed) % 5) as u8).map(|x| x.wrapping_sub(2)).collect()
        };
        let (left, right) = (operand(0), operand(1 + passes as usize));
        let operands = [left.clone(), right.clone()];
        let product = move |row: usize, column: usize| {
            let (of_left, of_right) = (row / ROWS * TILE_BYTES, column / ROWS * TILE_BYTES);
            (0..STEPS * ROW_BYTES)
                .map(|k| {
                    let (step, k) = (k / ROW_BYTES * 2 * TILE_BYTES, k % ROW_BYTES);
                    let left = left[of_left + step + row % ROWS * ROW_BYTES + k] as i8;
                    let right = right[of_right + step + k / 4 * ROW_BYTES + column % ROWS * 4 + k % 4] as i8;
                    i32::from(left) * i32::from(right)
                })
                .sum()
        };
        (operands, product)
    }

    /// Whichever operand passes, whether sums are new or there are some, and whether one tile passes or two do.
    #[test]
    fn tiles_add_up_to_products() {
        if features().next().is_some() && !features().any(|feature| feature == "amx-int8") {
            println!("skipped: the processor has tiles, but not of bytes");
            return;
        }
        // SAFETY: there are tiles, or nothing is done with them; this thread has no others.
        let tiles = unsafe { Tiles::new() };
        for (passes, first, halves) in [Passes::Left, Passes::Right].into_iter().flat_map(|passes| {
            [(true, 2), (false, 2), (true, 1), (false, 1)].map(|(first, halves)| (passes, first, halves))
        }) {
            let ([left, right], product) = example(passes);
            let mut sums = vec![1000_u32; 2 * ROWS * LD];
            let upper = sums.as_mut_ptr();
            let [left, right] = [&left, &right].map(|packed| Operand::packed(packed.as_ptr()));
            let ahead = Ahead { at: left.at[0], line: 64, step: 256 };
            let ahead = [first.then_some([ahead; 2]); 2];
            let sums_at = [upper, upper.wrapping_add(ROWS * LD)];
            let tile = Tile { left, right, passes, halves, ahead, steps: STEPS, sums: sums_at, sums_ld: 4 * LD, first };
            let dot = Dot::Bytes { left: true, right: true };
            // SAFETY: operands are packed and sums are as many; tiles are imitated where there are none.
            unsafe { tile.run(dot, &tiles) };
            let [rows, columns] = match passes {
                Passes::Left => [halves * ROWS, 2 * ROWS],
                Passes::Right => [2 * ROWS, halves * ROWS],
            };
            for (i, &sum) in sums.iter().enumerate() {
                let (row, column) = (i / LD, i % LD);
                let expected = match row < rows && column < columns {
                    true => product(row, column) + if first { 0 } else { 1000 },
                    false => 1000,
                };
                assert_eq!(sum as i32, expected, "{passes:?}, first {first}, {halves} halves: {row}, {column}");
            }
        }
    }
}

//! Four tiles of sums: 32 rows of one operand and 32 of the other, over a run of k.
//!
//! ```text
//!                  right: 16 lines a step, each four bytes of k of 16 rows, side by side
//!                 ┌────┬────┐
//!                 │ r₀ │ r₁ │
//!    left         └────┴────┘
//!   ┌────┐        ┌────┬────┐
//!   │ l₀ │        │ c₀₀│ c₀₁│   a step multiplies 64 bytes of k: 32 numbers of bf16 or 64 bytes
//!   ├────┤        ├────┼────┤
//!   │ l₁ │        │ c₁₀│ c₁₁│   four tiles are loaded for four products, each of which takes as long as two loads
//!   └────┘        └────┴────┘
//! ```
//! A tile of one form is a tile of the other with rows and columns exchanged, in units of four bytes.

use crate::amx::{ROW_BYTES, ROWS, Tiles};
use std::{arch::asm, mem::offset_of};

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
#[repr(C)]
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
}

/// The product of a run of k.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Tile {
    pub(crate) left: Operand,
    pub(crate) right: Operand,
    /// Steps of k, one at least.
    pub(crate) steps: usize,
    /// The sums of the upper and the lower 16 rows: 32 a row.
    pub(crate) sums: [*mut u32; 2],
    /// Bytes from a row of sums to the next.
    pub(crate) sums_ld: usize,
    /// Whether sums are stored, rather than added to what is there.
    pub(crate) first: usize,
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
    pub(crate) unsafe fn run(&self, dot: Dot, _: &Tiles) {
        #[cfg(test)]
        if crate::amx::is_imitated() {
            // SAFETY: passed on.
            return unsafe { self.imitate(dot) };
        }
        macro_rules! with {
            ($dot:literal) => {
                // SAFETY: tiles have their shape, since there is a value that says so, and memory is as the caller says.
                unsafe {
                    asm!(
                        // Sums so far.
                        "cmp qword ptr [{t} + {first}], 0",
                        "jne 2f",
                        "mov {a}, [{t} + {sums}]",
                        "mov {b}, [{t} + {sums} + 8]",
                        "mov {ld}, [{t} + {sums_ld}]",
                        "tileloadd tmm0, [{a} + {ld}]",
                        "tileloadd tmm1, [{a} + {ld} + 64]",
                        "tileloadd tmm2, [{b} + {ld}]",
                        "tileloadd tmm3, [{b} + {ld} + 64]",
                        "jmp 3f",
                        "2:",
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "tilezero tmm2",
                        "tilezero tmm3",
                        "3:",
                        "mov {a}, [{t} + {left}]",
                        "mov {b}, [{t} + {left} + 8]",
                        "mov {ld}, [{t} + {left} + 16]",
                        "mov {step}, [{t} + {left} + 24]",
                        "mov {c}, [{t} + {right}]",
                        "mov {d}, [{t} + {right} + 8]",
                        "mov {right_ld}, [{t} + {right} + 16]",
                        "mov {right_step}, [{t} + {right} + 24]",
                        "mov {k}, [{t} + {steps}]",
                        "4:",
                        "tileloadd tmm6, [{c} + {right_ld}]",
                        "tileloadd tmm4, [{a} + {ld}]",
                        concat!($dot, " tmm0, tmm4, tmm6"),
                        ".irp at, 0, 64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 832, 896, 960",
                        "prefetcht0 [{a} + {step} + \\at]",
                        ".endr",
                        "tileloadd tmm7, [{d} + {right_ld}]",
                        concat!($dot, " tmm1, tmm4, tmm7"),
                        ".irp at, 0, 64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 832, 896, 960",
                        "prefetcht0 [{c} + {right_step} + \\at]",
                        ".endr",
                        "tileloadd tmm5, [{b} + {ld}]",
                        concat!($dot, " tmm2, tmm5, tmm6"),
                        ".irp at, 0, 64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 832, 896, 960",
                        "prefetcht0 [{a} + {step} + 1024 + \\at]",
                        ".endr",
                        concat!($dot, " tmm3, tmm5, tmm7"),
                        ".irp at, 0, 64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 832, 896, 960",
                        "prefetcht0 [{c} + {right_step} + 1024 + \\at]",
                        ".endr",
                        "add {a}, {step}",
                        "add {b}, {step}",
                        "add {c}, {right_step}",
                        "add {d}, {right_step}",
                        "dec {k}",
                        "jnz 4b",
                        "mov {a}, [{t} + {sums}]",
                        "mov {b}, [{t} + {sums} + 8]",
                        "mov {ld}, [{t} + {sums_ld}]",
                        "tilestored [{a} + {ld}], tmm0",
                        "tilestored [{a} + {ld} + 64], tmm1",
                        "tilestored [{b} + {ld}], tmm2",
                        "tilestored [{b} + {ld} + 64], tmm3",
                        t = in(reg) self,
                        a = out(reg) _,
                        b = out(reg) _,
                        c = out(reg) _,
                        d = out(reg) _,
                        ld = out(reg) _,
                        step = out(reg) _,
                        right_ld = out(reg) _,
                        right_step = out(reg) _,
                        k = out(reg) _,
                        left = const offset_of!(Tile, left),
                        right = const offset_of!(Tile, right),
                        steps = const offset_of!(Tile, steps),
                        sums = const offset_of!(Tile, sums),
                        sums_ld = const offset_of!(Tile, sums_ld),
                        first = const offset_of!(Tile, first),
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack),
                    );
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
    unsafe fn imitate(&self, dot: Dot) {
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
        let four = |operand: &Operand, tile: usize, step: usize, line: usize, lane: usize| {
            let at = operand.at[tile].wrapping_add(step * operand.step + line * operand.ld + 4 * lane);
            // SAFETY: within the operand, says the caller.
            unsafe { at.cast::<[u8; 4]>().read() }
        };
        let places = || (0..2 * ROWS).flat_map(|row| (0..2 * ROWS).map(move |column| (row, column)));
        let at = |row: usize, column| {
            self.sums[row / ROWS].wrapping_byte_add(row % ROWS * self.sums_ld).wrapping_add(column)
        };
        let total = |(row, column)| {
            // SAFETY: within the sums, says the caller.
            let mut total = if self.first == 1 { 0 } else { unsafe { at(row, column).read() } };
            for (step, k) in (0..self.steps).flat_map(|step| (0..ROWS).map(move |k| (step, k))) {
                let left = four(&self.left, row / ROWS, step, row % ROWS, k);
                let right = four(&self.right, column / ROWS, step, k, column % ROWS);
                total = sum(total, left, right);
            }
            total
        };
        // Two tiles of sums may be one: nothing is stored before everything is loaded.
        let totals: Vec<u32> = places().map(total).collect();
        for ((row, column), total) in places().zip(totals) {
            // SAFETY: as above.
            unsafe { at(row, column).write(total) };
        }
    }
}

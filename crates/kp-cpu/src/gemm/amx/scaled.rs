//! [Turned products](super::terms) whose columns have scales that change along k: what shares a scale is summed up in tiles, multiplied by it, and
//! added to sums in vectors. Codes then have few enough bits to be numbers of bf16, where with scales they would be the sum of two or three.
//!
//! ```text
//!   steps that share scales ─▶ a tile: 16 columns × 16 rows ─▶ a vector for each column, times its scale, added to 16 vectors of sums
//!   these                                                      those before
//! ```
//! Loads of what tiles have just stored wait for all of their products, so the next ones are made before those are added.

use super::{
    codes::ENTRIES,
    parts::{WIDE, left_bytes, right_bytes},
    terms::Split,
};
use crate::amx::{ROW_BYTES, ROWS, TILE_BYTES, Tiles};
use std::{arch::asm, mem::offset_of};

/// Steps whose rows stay in the first cache until both tiles of columns have met them.
const NEAR: usize = 8;

/// Bytes from a column's scales to the next one's, and from its sums.
const OF_SCALES: usize = ENTRIES * size_of::<f32>();
const OF_SUMS: usize = WIDE * size_of::<f32>();

/// A tile of columns by one of rows, over some steps.
#[repr(C)]
struct Scaled {
    left: *const u8,
    right: *const u8,
    /// Of the first column, an entry for each step.
    scales: *const f32,
    /// Of the first column.
    sums: *mut f32,
    /// How many steps share a scale, and how many times so many there are.
    each: usize,
    count: usize,
    /// Parts of left numbers.
    parts: usize,
}

/// Room for two products by turns: a bit of the place says which.
#[repr(align(2048))]
struct Room([u8; 2 * TILE_BYTES]);

/// Adds the products of a run of `steps` steps of `rows` tiles of rows, `left_step` bytes apart, with 32 columns to their sums: 32 for each
/// column, as many as two tiles have rows. Columns have `scales`, [`ENTRIES`] each, one for each step; `each` steps share one.
///
/// # Safety
/// - The operands have been split to as many steps, that of columns to one part.
/// - The processor has tiles of bf16 and AVX-512.
///
/// # Panics
/// If an operand, scales or sums are short.
pub(super) unsafe fn add_scaled(
    (left, left_step, rows): (Split<'_>, usize, usize),
    right: &[u8],
    steps: usize,
    (scales, each): (&[f32], usize),
    sums: &mut [f32],
    tiles: &Tiles,
) {
    let (of_left, of_right) = (left_bytes(left.parts), right_bytes(1));
    assert!(rows <= WIDE / ROWS && left.tiles.len() >= (rows - 1) * left_step + steps * of_left, "rows");
    assert!(right.len() >= steps * of_right && sums.len() >= WIDE * WIDE, "columns");
    assert!(steps <= ENTRIES && scales.len() >= WIDE * ENTRIES, "scales");
    let mut room = Room([0; 2 * TILE_BYTES]);
    let near = NEAR.max(each);
    for (first, row) in (0..steps).step_by(near).flat_map(|first| (0..rows).map(move |row| (first, row))) {
        let some = near.min(steps - first);
        for column in 0..WIDE / ROWS {
            let mut scaled = Scaled {
                left: left.tiles.as_ptr().wrapping_add(row * left_step + first * of_left),
                right: right.as_ptr().wrapping_add(first * of_right + column * TILE_BYTES),
                scales: scales.as_ptr().wrapping_add(column * ROWS * ENTRIES + first),
                sums: sums.as_mut_ptr().wrapping_add(column * ROWS * WIDE + row * ROWS),
                each,
                count: some / each,
                parts: left.parts,
            };
            if scaled.count > 0 {
                // SAFETY: as the caller says, within what was asserted.
                unsafe { scaled.run(&mut room, tiles) };
            }
            // What is left of a run that ends earlier.
            let done = scaled.count * each;
            if done < some {
                scaled.left = scaled.left.wrapping_add(done * of_left);
                scaled.right = scaled.right.wrapping_add(done * of_right);
                scaled.scales = scaled.scales.wrapping_add(done);
                (scaled.each, scaled.count) = (some - done, 1);
                // SAFETY: as above.
                unsafe { scaled.run(&mut room, tiles) };
            }
        }
    }
}

impl Scaled {
    /// # Safety
    /// As [`add_scaled`]; there is a step.
    unsafe fn run(&self, room: &mut Room, _: &Tiles) {
        #[cfg(test)]
        if crate::amx::is_imitated() {
            // SAFETY: passed on.
            return unsafe { self.imitate() };
        }
        macro_rules! columns {
            ($each:ident) => {
                concat!(
                    $each!("0", "16", "0"),
                    $each!("1", "17", "1"),
                    $each!("2", "18", "2"),
                    $each!("3", "19", "3"),
                    $each!("4", "20", "0"),
                    $each!("5", "21", "1"),
                    $each!("6", "22", "2"),
                    $each!("7", "23", "3"),
                    $each!("8", "24", "0"),
                    $each!("9", "25", "1"),
                    $each!("10", "26", "2"),
                    $each!("11", "27", "3"),
                    $each!("12", "28", "0"),
                    $each!("13", "29", "1"),
                    $each!("14", "30", "2"),
                    $each!("15", "31", "3"),
                )
            };
        }
        macro_rules! load {
            ($column:literal, $sums:literal, $some:literal) => {
                concat!("vmovups zmm", $sums, ", [{c} + ", $column, " * {of_sums}]\n")
            };
        }
        macro_rules! store {
            ($column:literal, $sums:literal, $some:literal) => {
                concat!("vmovups [{c} + ", $column, " * {of_sums}], zmm", $sums, "\n")
            };
        }
        macro_rules! add {
            ($column:literal, $sums:literal, $some:literal) => {
                concat!(
                    "vmovups zmm",
                    $some,
                    ", [{room} + ",
                    $column,
                    " * {row_bytes}]\n",
                    "vfmadd231ps zmm",
                    $sums,
                    ", zmm",
                    $some,
                    ", dword ptr [{s} + ",
                    $column,
                    " * {of_scales}]{{1to16}}\n",
                )
            };
        }
        macro_rules! run {
            ($parts:literal, $($term:literal),*) => {
                // SAFETY: tiles have their shape, since there is a value that says so, and memory is as the caller says.
                unsafe {
                    asm!(
                        "mov {c}, [{t} + {sums}]",
                        columns!(load),
                        "mov {a}, [{t} + {left}]",
                        "mov {b}, [{t} + {right}]",
                        "mov {s}, [{t} + {scales}]",
                        "mov {n}, [{t} + {count}]",
                        // The first turn has none before it.
                        "mov {k}, [{t} + {each}]",
                        "jmp 3f",
                        "2:",
                        "mov {k}, [{t} + {each}]",
                        "3:",
                        "tilezero tmm0",
                        "4:",
                        "tileloadd tmm3, [{b} + {row}]",
                        $($term, "tdpbf16ps tmm0, tmm3, tmm2",)*
                        "add {a}, {left_bytes}",
                        "add {b}, {right_bytes}",
                        "dec {k}",
                        "jnz 4b",
                        "tilestored [{room} + {row}], tmm0",
                        "xor {room}, {tile}",
                        "cmp {n}, [{t} + {count}]",
                        "je 5f",
                        columns!(add),
                        "mov {k}, [{t} + {each}]",
                        "lea {s}, [{s} + 4 * {k}]",
                        "5:",
                        "dec {n}",
                        "jnz 2b",
                        "xor {room}, {tile}",
                        columns!(add),
                        columns!(store),
                        t = in(reg) std::ptr::from_ref(self),
                        a = out(reg) _,
                        b = out(reg) _,
                        c = out(reg) _,
                        s = out(reg) _,
                        room = inout(reg) room.0.as_mut_ptr() => _,
                        n = out(reg) _,
                        k = out(reg) _,
                        row = in(reg) ROW_BYTES,
                        row_bytes = const ROW_BYTES,
                        tile = const TILE_BYTES,
                        of_scales = const OF_SCALES,
                        of_sums = const OF_SUMS,
                        left_bytes = const left_bytes($parts),
                        right_bytes = const right_bytes(1),
                        left = const offset_of!(Scaled, left),
                        right = const offset_of!(Scaled, right),
                        scales = const offset_of!(Scaled, scales),
                        sums = const offset_of!(Scaled, sums),
                        each = const offset_of!(Scaled, each),
                        count = const offset_of!(Scaled, count),
                        out("tmm0") _, out("tmm2") _, out("tmm3") _,
                        out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _,
                        out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
                        out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
                        out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _,
                        out("zmm28") _, out("zmm29") _, out("zmm30") _, out("zmm31") _,
                        options(nostack),
                    );
                }
            };
        }
        // Small products first.
        match self.parts {
            1 => run!(1, "tileloadd tmm2, [{a} + {row}]"),
            2 => run!(2, "tileloadd tmm2, [{a} + {row} + {tile}]", "tileloadd tmm2, [{a} + {row}]"),
            3 => run!(
                3,
                "tileloadd tmm2, [{a} + {row} + 2 * {tile}]",
                "tileloadd tmm2, [{a} + {row} + {tile}]",
                "tileloadd tmm2, [{a} + {row}]"
            ),
            other => unreachable!("no number has so many parts: {other}"),
        }
    }

    /// What tiles would do, in loops.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[cfg(test)]
    unsafe fn imitate(&self) {
        use super::parts::STEP;

        let number = |at: *const u8, i: usize| {
            // SAFETY: within an operand, says the caller.
            let code = unsafe { at.cast::<u16>().wrapping_add(i).read_unaligned() };
            f32::from_bits(u32::from(code) << 16)
        };
        for (column, row) in (0..ROWS).flat_map(|column| (0..ROWS).map(move |row| (column, row))) {
            let at = self.sums.wrapping_add(column * WIDE + row);
            for group in 0..self.count {
                let mut product = 0.0;
                for step in group * self.each..(group + 1) * self.each {
                    let codes = self.right.wrapping_add(step * right_bytes(1) + column * ROW_BYTES);
                    for (part, k) in (0..self.parts).rev().flat_map(|part| (0..STEP).map(move |k| (part, k))) {
                        let left = self.left.wrapping_add(step * left_bytes(self.parts) + part * TILE_BYTES);
                        let left = left.wrapping_add(k / 2 * ROW_BYTES + 4 * row);
                        product += number(codes, k) * number(left, k % 2);
                    }
                }
                // SAFETY: a scale of each step, and sums.
                unsafe {
                    let scale = self.scales.wrapping_add(column * ENTRIES + group * self.each).read();
                    at.write(at.read() + product * scale);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::gemm::tests::check;

    /// Scales of one step to all of them, over ends of runs, of k and of blocks; rows of two parts and three.
    #[test]
    fn scales_wait_for_sums() {
        for a in ["f32", "f16", "i8@row", "e4m3@tensor"] {
            for b in
                ["i4@g32/f16", "u4@g32/f16z", "i4@g96/f32", "i8@g64/f16", "u8@g512/f32z", "e4m3@128x128", "e2m1@nv"]
            {
                for size in ["1x17x66x1088", "2x40x33x608", "1x270x20x96"] {
                    check(&format!("gemm {size} {a}:{b}:f32 b=col"), (1.0, 1.0));
                }
            }
        }
    }
}

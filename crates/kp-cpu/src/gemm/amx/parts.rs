//! Numbers of f32 as sums of three of bf16, and products of such by tiles.
//!
//! ```text
//!   x = h + m + l      each the nearest to what is left, of which nothing is: three times 8 bits are the 24 of f32
//!   a·b ≈ hH + (hM + mH) + (hL + mM + lH)      what is left out is at most 2⁻²⁴ |a·b|, as much as rounding a product would lose
//! ```
//! An instruction adds up 32 products from zero before it adds them to a sum, which is rounded six times for 32 elements of k so, not 32 times
//! as by multiply-adds of f32. Six products by tiles take less than half of the time of one of those, on a core that no other thread shares.
//!
//! A line holds 16 pairs of k, numbers `j` and `16 + j` of a step as pair `j`: nothing is exchanged between lanes.
//!
//! Infinity has no such parts, nor has NaN or what rounds to infinity: they count as 0 here, and are [told](split). Parts below 2⁻¹²⁶
//! count as 0, as for all tiles.

use crate::amx::{ROW_BYTES, ROWS, TILE_BYTES, Tiles};
use std::{
    arch::{
        asm,
        x86_64::{
            __m512, __m512i, __mmask16, _mm512_add_epi32, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps,
            _mm512_cmpge_epu32_mask, _mm512_mask_blend_epi16, _mm512_maskz_loadu_ps, _mm512_maskz_mov_ps,
            _mm512_set1_epi32, _mm512_srli_epi32, _mm512_storeu_si512, _mm512_sub_ps,
        },
    },
    mem::offset_of,
};

/// Numbers of bf16 that one of f32 is the sum of.
pub(crate) const PARTS: usize = 3;

/// Elements of k of a step.
pub(crate) const STEP: usize = 2 * ROWS;

/// Columns that are multiplied together: those of two tiles.
pub(crate) const WIDE: usize = 2 * ROWS;

/// Bytes of a step of 16 rows, and of 32 columns.
pub(crate) const LEFT_BYTES: usize = PARTS * TILE_BYTES;
pub(crate) const RIGHT_BYTES: usize = 2 * LEFT_BYTES;

/// Whether a number has no parts: it is not finite, or rounds to what is not.
pub(crate) fn is_special(x: f32) -> bool {
    x.to_bits() & MAGNITUDE >= SPECIAL
}

const MAGNITUDE: u32 = 0x7fff_ffff;

/// Halfway between the largest number of bf16 and infinity.
const SPECIAL: u32 = 0x7f7f_8000;

/// The parts of 16 numbers and of 16 others, in pairs; and which of either are special, and count as 0.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn split(first: __m512, second: __m512) -> ([__m512i; PARTS], __mmask16) {
    let (first, special) = plain(first);
    let (second, also) = plain(second);
    let (h, rest) = (nearest(first), nearest(second));
    let (first, second) = (_mm512_sub_ps(first, h), _mm512_sub_ps(second, rest));
    let upper = pairs(h, rest);
    let (m, rest) = (nearest(first), nearest(second));
    let (first, second) = (_mm512_sub_ps(first, m), _mm512_sub_ps(second, rest));
    // Of what is left then, nothing is to be rounded.
    ([upper, pairs(m, rest), pairs(first, second)], special | also)
}

/// Numbers, 0 for those that are special, and which are.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn plain(x: __m512) -> (__m512, __mmask16) {
    let magnitude = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(MAGNITUDE as i32));
    let special = _mm512_cmpge_epu32_mask(magnitude, _mm512_set1_epi32(SPECIAL as i32));
    (_mm512_maskz_mov_ps(!special, x), special)
}

/// The nearest numbers of bf16, those further from 0 of two that are as near.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn nearest(x: __m512) -> __m512 {
    let rounded = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
    _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(0xffff_0000_u32 as i32)))
}

/// Numbers of bf16, two a word.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn pairs(first: __m512, second: __m512) -> __m512i {
    let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(first));
    _mm512_mask_blend_epi16(0xaaaa_aaaa, low, _mm512_castps_si512(second))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn store(line: __m512i, out: &mut [u8]) {
    let out = &mut out[..ROW_BYTES];
    // SAFETY: 64 bytes.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), line) };
}

/// Sixteen numbers, of which `count` are there; 0 for others.
///
/// # Safety
/// Those are there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn load(at: *const f32, count: usize) -> __m512 {
    let mask = ((1_u32 << count.min(ROWS)) - 1) as u16;
    // SAFETY: the caller's promise.
    unsafe { _mm512_maskz_loadu_ps(mask, at) }
}

/// Splits a run of at most 16 rows of A, `ld` apart, to left tiles: of each step three. Answers whether a number is special.
///
/// # Panics
/// If `numbers` or `out` is short.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn split_rows(numbers: &[f32], ld: usize, rows: usize, run: usize, out: &mut [u8]) -> bool {
    let mut special = 0;
    for row in 0..ROWS {
        let numbers = if row < rows { &numbers[row * ld..][..run] } else { &[] };
        for (step, out) in out.chunks_exact_mut(LEFT_BYTES).take(run.div_ceil(STEP)).enumerate() {
            let first = numbers.as_ptr().wrapping_add(step * STEP);
            let left = numbers.len().saturating_sub(step * STEP);
            // SAFETY: those that are left.
            let (low, high) = unsafe { (load(first, left), load(first.wrapping_add(ROWS), left.saturating_sub(ROWS))) };
            let (lines, some) = split(low, high);
            special |= some;
            for (line, out) in lines.into_iter().zip(out.chunks_exact_mut(TILE_BYTES)) {
                store(line, &mut out[row * ROW_BYTES..]);
            }
        }
    }
    special != 0
}

/// Splits a run of rows of at most 32 columns of B, `ld` apart, to right tiles: of each step three pairs. Answers whether a number is
/// special.
///
/// # Panics
/// If `numbers` or `out` is short.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn split_lines(numbers: &[f32], ld: usize, columns: usize, run: usize, out: &mut [u8]) -> bool {
    let numbers = &numbers[..(run - 1) * ld + columns];
    let mut special = 0;
    for (step, out) in out.chunks_exact_mut(RIGHT_BYTES).take(run.div_ceil(STEP)).enumerate() {
        for line in 0..ROWS {
            for tile in 0..2 {
                let columns = columns.saturating_sub(tile * ROWS);
                let of = |k: usize| {
                    let columns = if k < run { columns } else { 0 };
                    // SAFETY: the columns that are there, of a row that is.
                    unsafe { load(numbers.as_ptr().wrapping_add(k * ld + tile * ROWS), columns) }
                };
                let first = step * STEP + line;
                let (lines, some) = split(of(first), of(first + ROWS));
                special |= some;
                for (part, codes) in lines.into_iter().enumerate() {
                    store(codes, &mut out[(2 * part + tile) * TILE_BYTES + line * ROW_BYTES..]);
                }
            }
        }
    }
    special != 0
}

/// Products of some tiles of rows and of 32 columns over a run.
#[repr(C)]
struct Six {
    left: *const u8,
    /// Bytes from a tile of rows to the next.
    left_step: usize,
    right: *const u8,
    rows: usize,
    steps: usize,
    sums: *mut f32,
    /// Bytes from a row of sums to the next, and from a tile of rows.
    ld: usize,
    sums_step: usize,
    first: usize,
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
    (left, left_step, rows): (&[u8], usize, usize),
    right: &[u8],
    steps: usize,
    (sums, ld): (&mut [f32], usize),
    first: bool,
    tiles: &Tiles,
) {
    assert!(rows > 0 && steps > 0, "there is something to multiply");
    let left = left[..(rows - 1) * left_step + steps * LEFT_BYTES].as_ptr();
    let right = right[..steps * RIGHT_BYTES].as_ptr();
    let sums = sums[..(rows * ROWS - 1) * ld + WIDE].as_mut_ptr();
    let (ld, sums_step) = (4 * ld, 4 * ld * ROWS);
    let six = Six { left, left_step, right, rows, steps, sums, ld, sums_step, first: first.into() };
    // SAFETY: as the caller says.
    unsafe { six.run(tiles) };
}

impl Six {
    /// # Safety
    /// As [`add_products`]; sums are there.
    #[inline]
    unsafe fn run(&self, _: &Tiles) {
        #[cfg(test)]
        if crate::amx::is_imitated() {
            // SAFETY: passed on.
            return unsafe { self.imitate() };
        }
        // SAFETY: tiles have their shape, since there is a value that says so, and memory is as the caller says.
        unsafe {
            asm!(
                "mov {first_a}, [{t} + {left}]",
                "mov {c}, [{t} + {sums}]",
                "mov {ld}, [{t} + {ld_at}]",
                "mov {n}, [{t} + {rows}]",
                "5:",
                "cmp qword ptr [{t} + {first}], 0",
                "jne 2f",
                "tileloadd tmm0, [{c} + {ld}]",
                "tileloadd tmm1, [{c} + {ld} + {bytes}]",
                "jmp 3f",
                "2:",
                "tilezero tmm0",
                "tilezero tmm1",
                "3:",
                "mov {a}, {first_a}",
                "mov {b}, [{t} + {right}]",
                "mov {k}, [{t} + {steps}]",
                "4:",
                // m by M and H.
                "tileloaddt1 tmm2, [{a} + {row} + {tile}]",
                "tileloadd tmm3, [{b} + {row} + 2 * {tile}]",
                "tileloadd tmm4, [{b} + {row} + 3 * {tile}]",
                "tdpbf16ps tmm0, tmm2, tmm3",
                "tdpbf16ps tmm1, tmm2, tmm4",
                "tileloadd tmm3, [{b} + {row}]",
                "tileloadd tmm4, [{b} + {row} + {tile}]",
                "tdpbf16ps tmm0, tmm2, tmm3",
                "tdpbf16ps tmm1, tmm2, tmm4",
                // l by H.
                "tileloaddt1 tmm2, [{a} + {row} + 2 * {tile}]",
                "tdpbf16ps tmm0, tmm2, tmm3",
                "tdpbf16ps tmm1, tmm2, tmm4",
                // h by H, M and L.
                "tileloaddt1 tmm2, [{a} + {row}]",
                "tdpbf16ps tmm0, tmm2, tmm3",
                "tdpbf16ps tmm1, tmm2, tmm4",
                "tileloadd tmm3, [{b} + {row} + 2 * {tile}]",
                "tileloadd tmm4, [{b} + {row} + 3 * {tile}]",
                "tdpbf16ps tmm0, tmm2, tmm3",
                "tdpbf16ps tmm1, tmm2, tmm4",
                "tileloadd tmm3, [{b} + {row} + 4 * {tile}]",
                "tileloadd tmm4, [{b} + {row} + 5 * {tile}]",
                "tdpbf16ps tmm0, tmm2, tmm3",
                "tdpbf16ps tmm1, tmm2, tmm4",
                "add {a}, {left_bytes}",
                "add {b}, {right_bytes}",
                "dec {k}",
                "jnz 4b",
                "tilestored [{c} + {ld}], tmm0",
                "tilestored [{c} + {ld} + {bytes}], tmm1",
                "add {first_a}, [{t} + {left_step}]",
                "add {c}, [{t} + {sums_step}]",
                "dec {n}",
                "jnz 5b",
                t = in(reg) self,
                a = out(reg) _,
                b = out(reg) _,
                c = out(reg) _,
                first_a = out(reg) _,
                ld = out(reg) _,
                n = out(reg) _,
                k = out(reg) _,
                row = in(reg) ROW_BYTES,
                bytes = const ROW_BYTES,
                tile = const TILE_BYTES,
                left_bytes = const LEFT_BYTES,
                right_bytes = const RIGHT_BYTES,
                left = const offset_of!(Six, left),
                left_step = const offset_of!(Six, left_step),
                rows = const offset_of!(Six, rows),
                sums_step = const offset_of!(Six, sums_step),
                right = const offset_of!(Six, right),
                steps = const offset_of!(Six, steps),
                sums = const offset_of!(Six, sums),
                ld_at = const offset_of!(Six, ld),
                first = const offset_of!(Six, first),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _,
                options(nostack),
            );
        }
    }

    /// What tiles would do, in loops.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[cfg(test)]
    unsafe fn imitate(&self) {
        let number = |at: *const u8, i: usize| {
            // SAFETY: within an operand, says the caller.
            let code = unsafe { at.cast::<u16>().wrapping_add(i).read_unaligned() };
            f32::from_bits(u32::from(code) << 16)
        };
        const PRODUCTS: [(usize, usize); 6] = [(1, 1), (1, 0), (2, 0), (0, 0), (0, 1), (0, 2)];
        let all = (0..self.steps).flat_map(|step| PRODUCTS.map(|parts| (step, parts)));
        for (row, column) in (0..self.rows * ROWS).flat_map(|row| (0..WIDE).map(move |column| (row, column))) {
            let at = self.sums.wrapping_byte_add(row * self.ld).wrapping_add(column);
            // SAFETY: sums are there.
            let mut sum = if self.first == 1 { 0.0 } else { unsafe { at.read() } };
            for (step, (of_left, of_right)) in all.clone() {
                let tile = self.left.wrapping_add(row / ROWS * self.left_step + step * LEFT_BYTES);
                let left = tile.wrapping_add(of_left * TILE_BYTES + row % ROWS * ROW_BYTES);
                let tile = 2 * of_right + column / ROWS;
                let right = self.right.wrapping_add(step * RIGHT_BYTES + tile * TILE_BYTES + 4 * (column % ROWS));
                let half = |half: usize| {
                    let product =
                        |pair| number(left, 2 * pair + half) * number(right.wrapping_add(pair * ROW_BYTES), half);
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
    use crate::amx::{features, is_imitated};

    /// Numbers of 24 bits between ±2, and one that is special.
    fn numbers(count: usize, special: Option<(usize, f32)>) -> Vec<f32> {
        let mut state = 11_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 38) as i32 - (1 << 25)) as f32 / (1 << 24) as f32
        };
        let mut numbers: Vec<f32> = (0..count).map(|_| next()).collect();
        if let Some((at, x)) = special {
            numbers[at] = x;
        }
        numbers
    }

    /// The number whose parts lie at `at` and every `part` bytes after.
    fn whole(codes: &[u8], at: usize, part: usize) -> f64 {
        let code = |at: usize| u32::from(u16::from_le_bytes([codes[at], codes[at + 1]])) << 16;
        (0..PARTS).map(|i| f64::from(f32::from_bits(code(at + i * part)))).sum()
    }

    /// Of 5 rows of 70 elements, and of 70 lines of 21 columns: three steps, of which the last is short.
    #[test]
    fn parts_add_up_to_numbers() {
        const RUN: usize = 70;
        if !crate::caps::with_tiles().has("avx512bw") {
            println!("skipped: the processor has no AVX-512");
            return;
        }
        let pair = |k: usize| (k % STEP % ROWS, k % STEP / ROWS);
        for special in [None, Some((3, f32::INFINITY)), Some((69, f32::NAN)), Some((60, -3.4e38))] {
            let expected = |x: f32| if is_special(x) { 0.0 } else { f64::from(x) };
            let (rows, lines) = (numbers(5 * RUN, special), numbers(RUN * 21, special));
            let (mut left, mut right) = (vec![0xff; 3 * LEFT_BYTES], vec![0xff; 3 * RIGHT_BYTES]);
            // SAFETY: the processor has AVX-512.
            let told =
                unsafe { [split_rows(&rows, RUN, 5, RUN, &mut left), split_lines(&lines, 21, 21, RUN, &mut right)] };
            assert_eq!(told, [special.is_some(); 2], "{special:?}");
            for (row, k) in (0..ROWS).flat_map(|row| (0..3 * STEP).map(move |k| (row, k))) {
                let want = if row < 5 && k < RUN { expected(rows[row * RUN + k]) } else { 0.0 };
                let (pair, half) = pair(k);
                let at = k / STEP * LEFT_BYTES + row * ROW_BYTES + 4 * pair + 2 * half;
                assert_eq!(whole(&left, at, TILE_BYTES), want, "row {row}, element {k}");
            }
            for (column, k) in (0..WIDE).flat_map(|column| (0..3 * STEP).map(move |k| (column, k))) {
                let want = if column < 21 && k < RUN { expected(lines[k * 21 + column]) } else { 0.0 };
                let (pair, half) = pair(k);
                let at = k / STEP * RIGHT_BYTES + column / ROWS * TILE_BYTES + pair * ROW_BYTES;
                let at = at + 4 * (column % ROWS) + 2 * half;
                assert_eq!(whole(&right, at, 2 * TILE_BYTES), want, "column {column}, element {k}");
            }
        }
    }

    /// Two tiles of rows, over 70 elements, stored and added: in the mean no further from the product than a chain of multiply-adds of f32.
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
        let (rows, lines) = (numbers(2 * ROWS * RUN, None), numbers(RUN * WIDE, None));
        let (mut left, mut right) = (vec![0; 6 * LEFT_BYTES], vec![0; 3 * RIGHT_BYTES]);
        // SAFETY: the processor has AVX-512; there are tiles, or nothing is done with them, and this thread has no others.
        let tiles = unsafe {
            for (rows, left) in rows.chunks(ROWS * RUN).zip(left.chunks_mut(3 * LEFT_BYTES)) {
                split_rows(rows, RUN, ROWS, RUN, left);
            }
            split_lines(&lines, WIDE, WIDE, RUN, &mut right);
            Tiles::new()
        };
        let mut sums = vec![9.0; 2 * ROWS * LD];
        for times in [1.0, 2.0] {
            let left = (&left[..], 3 * LEFT_BYTES, 2);
            // SAFETY: operands were split to three steps; tiles are imitated where there are none.
            unsafe { add_products(left, &right, 3, (&mut sums, LD), times == 1.0, &tiles) };
            let (mut off, mut chain_off) = (0.0, 0.0);
            for (row, column) in (0..2 * ROWS).flat_map(|row| (0..WIDE).map(move |column| (row, column))) {
                let factors = (0..RUN).map(|k| (rows[row * RUN + k], lines[k * WIDE + column]));
                let want: f64 = factors.clone().map(|(a, b)| f64::from(a) * f64::from(b)).sum();
                let chain = factors.fold(0.0_f32, |sum, (a, b)| a.mul_add(b, sum));
                off += (f64::from(sums[row * LD + column]) / times - want).powi(2);
                chain_off += (f64::from(chain) - want).powi(2);
            }
            assert!(off <= chain_off, "{times}: squares of errors add up to {off:e}, of a chain to {chain_off:e}");
        }
        assert!((0..2 * ROWS).all(|row| sums[row * LD..].iter().skip(WIDE).take(3).all(|&x| x == 9.0)));
    }
}

//! Numbers of f32 as sums of three of bf16, and products of such by tiles.
//!
//! ```text
//!   x = h + m + l      each the nearest to what is left, of which nothing is: three times 8 bits are the 24 of f32
//!   a·b ≈ hH + (hM + mH) + (hL + mM + lH)      what is left out is at most 2⁻²⁴ |a·b|, as much as rounding a product would lose
//! ```
//! An instruction adds up 32 products from zero before it adds them to a sum, which is rounded six times for 32 elements of k so, not 32 times
//! as by multiply-adds of f32. Six products by tiles take less than half of the time of one of those, on a core that no other thread shares.
//! Numbers of [fewer bits](super::bits) have one part or two, and products fewer terms.
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
            _mm512_or_si512, _mm512_permutex2var_ps, _mm512_set1_epi32, _mm512_setr_epi32, _mm512_srli_epi32,
            _mm512_storeu_si512, _mm512_sub_ps,
        },
    },
    mem::offset_of,
};

/// Numbers of bf16, at most, that a number is the sum of.
pub(crate) const PARTS: usize = 3;

/// Elements of k of a step.
pub(crate) const STEP: usize = 2 * ROWS;

/// Columns that are multiplied together: those of two tiles.
pub(crate) const WIDE: usize = 2 * ROWS;

/// Bytes of a step of 16 rows whose numbers have so many parts.
pub(crate) const fn left_bytes(parts: usize) -> usize {
    parts * TILE_BYTES
}

/// Bytes of a step of 32 columns.
pub(crate) const fn right_bytes(parts: usize) -> usize {
    2 * parts * TILE_BYTES
}

/// Which parts of left and right numbers of so many are multiplied with each other, small ones first.
pub(crate) fn terms([left, right]: [usize; 2]) -> impl Iterator<Item = (usize, usize)> + Clone {
    let all = (0..left).rev().flat_map(move |i| (0..right).rev().map(move |j| (i, j)));
    all.filter(|(i, j)| i + j < PARTS)
}

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
pub(super) fn plain(x: __m512) -> (__m512, __mmask16) {
    let magnitude = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(MAGNITUDE as i32));
    let special = _mm512_cmpge_epu32_mask(magnitude, _mm512_set1_epi32(SPECIAL as i32));
    (_mm512_maskz_mov_ps(!special, x), special)
}

/// The nearest numbers of bf16, those further from 0 of two that are as near.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn nearest(x: __m512) -> __m512 {
    let rounded = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
    _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(0xffff_0000_u32 as i32)))
}

/// Numbers of bf16, two a word.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn pairs(first: __m512, second: __m512) -> __m512i {
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

/// Numbers 0, 2, 4 and so on of 32, and those between.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn by_turns(low: __m512, high: __m512) -> [__m512; 2] {
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
    [even, odd].map(|places| _mm512_permutex2var_ps(low, places, high))
}

/// Splits a run of at most 16 rows of A, `ld` apart, to left tiles: of each step one for each part. Answers whether a number is special.
///
/// # Panics
/// If `numbers` or `out` is short.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn split_rows(
    (numbers, ld): (&[f32], usize),
    rows: usize,
    run: usize,
    parts: usize,
    out: &mut [u8],
) -> bool {
    let mut special = 0;
    for row in 0..ROWS {
        let numbers = if row < rows { &numbers[row * ld..][..run] } else { &[] };
        for (step, out) in out.chunks_exact_mut(left_bytes(parts)).take(run.div_ceil(STEP)).enumerate() {
            let first = numbers.as_ptr().wrapping_add(step * STEP);
            let left = numbers.len().saturating_sub(step * STEP);
            // SAFETY: those that are left.
            let (low, high) = unsafe { (load(first, left), load(first.wrapping_add(ROWS), left.saturating_sub(ROWS))) };
            let [even, odd] = by_turns(low, high);
            let (lines, some) = split(even, odd);
            special |= some;
            for (line, out) in lines.into_iter().zip(out.chunks_exact_mut(TILE_BYTES)) {
                store(line, &mut out[row * ROW_BYTES..]);
            }
        }
    }
    special != 0
}

/// Splits a run of rows of at most 32 columns of B, `ld` apart, to right tiles: of each step two for each part. Answers whether a number is
/// special.
///
/// # Panics
/// If `numbers` or `out` is short.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn split_lines(
    (numbers, ld): (&[f32], usize),
    columns: usize,
    run: usize,
    parts: usize,
    out: &mut [u8],
) -> bool {
    let numbers = &numbers[..(run - 1) * ld + columns];
    let mut special = 0;
    for (step, out) in out.chunks_exact_mut(right_bytes(parts)).take(run.div_ceil(STEP)).enumerate() {
        for line in 0..ROWS {
            for tile in 0..2 {
                let columns = columns.saturating_sub(tile * ROWS);
                let of = |k: usize| {
                    let columns = if k < run { columns } else { 0 };
                    // SAFETY: the columns that are there, of a row that is.
                    unsafe { load(numbers.as_ptr().wrapping_add(k * ld + tile * ROWS), columns) }
                };
                let first = step * STEP + 2 * line;
                let (lines, some) = split(of(first), of(first + 1));
                special |= some;
                for (part, codes) in lines.into_iter().take(parts).enumerate() {
                    store(codes, &mut out[(2 * part + tile) * TILE_BYTES + line * ROW_BYTES..]);
                }
            }
        }
    }
    special != 0
}

/// Products of some tiles of rows and of 32 columns over a run.
#[repr(C)]
struct Products {
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
    /// How many parts left numbers have, and right ones.
    parts: [usize; 2],
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
    assert!(rows > 0 && steps > 0, "there is something to multiply");
    let parts = [left.parts, right.parts];
    let left = left.tiles[..(rows - 1) * left_step + steps * left_bytes(parts[0])].as_ptr();
    let right = right.tiles[..steps * right_bytes(parts[1])].as_ptr();
    let sums = sums[..(rows * ROWS - 1) * ld + WIDE].as_mut_ptr();
    let (ld, sums_step) = (4 * ld, 4 * ld * ROWS);
    let products = Products { left, left_step, right, rows, steps, sums, ld, sums_step, first: first.into(), parts };
    // SAFETY: as the caller says.
    unsafe { products.run(tiles) };
}

impl Products {
    /// # Safety
    /// As [`add_products`]; sums are there.
    #[inline]
    unsafe fn run(&self, _: &Tiles) {
        #[cfg(test)]
        if crate::amx::is_imitated() {
            // SAFETY: passed on.
            return unsafe { self.imitate() };
        }
        // Loads part `i` of left rows, or of right columns; multiplies what was loaded last.
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
                        concat!($(term!($term)),*),
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
                        left_bytes = const left_bytes($left),
                        right_bytes = const right_bytes($right),
                        left = const offset_of!(Products, left),
                        left_step = const offset_of!(Products, left_step),
                        rows = const offset_of!(Products, rows),
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
        match self.parts {
            [3, 3] => run!(3, 3; a1, b1, x, b0, x, a2, x, a0, x, b1, x, b2, x),
            [3, 2] => run!(3, 2; a1, b1, x, b0, x, a2, x, a0, x, b1, x),
            [3, 1] => run!(3, 1; b0, a2, x, a1, x, a0, x),
            [2, 3] => run!(2, 3; a1, b1, x, b0, x, a0, x, b1, x, b2, x),
            [2, 2] => run!(2, 2; a1, b1, x, b0, x, a0, x, b1, x),
            [2, 1] => run!(2, 1; b0, a1, x, a0, x),
            [1, 3] => run!(1, 3; a0, b2, x, b1, x, b0, x),
            [1, 2] => run!(1, 2; a0, b1, x, b0, x),
            [1, 1] => run!(1, 1; a0, b0, x),
            parts => unreachable!("numbers have one part to three, not {parts:?}"),
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
        let all = (0..self.steps).flat_map(|step| terms(self.parts).map(move |parts| (step, parts)));
        for (row, column) in (0..self.rows * ROWS).flat_map(|row| (0..WIDE).map(move |column| (row, column))) {
            let at = self.sums.wrapping_byte_add(row * self.ld).wrapping_add(column);
            // SAFETY: sums are there.
            let mut sum = if self.first == 1 { 0.0 } else { unsafe { at.read() } };
            for (step, (of_left, of_right)) in all.clone() {
                let tile = self.left.wrapping_add(row / ROWS * self.left_step + step * left_bytes(self.parts[0]));
                let left = tile.wrapping_add(of_left * TILE_BYTES + row % ROWS * ROW_BYTES);
                let tile = 2 * of_right + column / ROWS;
                let step = step * right_bytes(self.parts[1]);
                let right = self.right.wrapping_add(step + tile * TILE_BYTES + 4 * (column % ROWS));
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

    /// Numbers of 24 bits between ±2, or of as many as `parts` hold, and one that is special.
    fn numbers(count: usize, parts: usize, special: Option<(usize, f32)>) -> Vec<f32> {
        let mut state = 11_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let kept = !0_i32 << (8 * (PARTS - parts) + 1);
            (((state >> 38) as i32 - (1 << 25)) & kept) as f32 / (1 << 24) as f32
        };
        let mut numbers: Vec<f32> = (0..count).map(|_| next()).collect();
        if let Some((at, x)) = special {
            numbers[at] = x;
        }
        numbers
    }

    /// The number whose parts lie at `at` and every `apart` bytes after.
    fn whole(codes: &[u8], at: usize, (parts, apart): (usize, usize)) -> f64 {
        let code = |at: usize| u32::from(u16::from_le_bytes([codes[at], codes[at + 1]])) << 16;
        (0..parts).map(|i| f64::from(f32::from_bits(code(at + i * apart)))).sum()
    }

    /// Of 5 rows of 70 elements, and of 70 lines of 21 columns: three steps, of which the last is short.
    #[test]
    fn parts_add_up_to_numbers() {
        const RUN: usize = 70;
        if !crate::caps::with_tiles().has("avx512bw") {
            println!("skipped: the processor has no AVX-512");
            return;
        }
        let pair = |k: usize| (k % STEP / 2, k % 2);
        let specials = [None, Some((3, f32::INFINITY)), Some((69, f32::NAN)), Some((60, -3.4e38))];
        for (special, parts) in specials.into_iter().flat_map(|special| (1..=PARTS).map(move |parts| (special, parts)))
        {
            let expected = |x: f32| if is_special(x) { 0.0 } else { f64::from(x) };
            let (rows, lines) = (numbers(5 * RUN, parts, special), numbers(RUN * 21, parts, special));
            let (mut left, mut right) = (vec![0xff; 3 * left_bytes(parts)], vec![0xff; 3 * right_bytes(parts)]);
            // SAFETY: the processor has AVX-512.
            let told = unsafe {
                [
                    split_rows((&rows, RUN), 5, RUN, parts, &mut left),
                    split_lines((&lines, 21), 21, RUN, parts, &mut right),
                ]
            };
            assert_eq!(told, [special.is_some(); 2], "{special:?}");
            for (row, k) in (0..ROWS).flat_map(|row| (0..3 * STEP).map(move |k| (row, k))) {
                let want = if row < 5 && k < RUN { expected(rows[row * RUN + k]) } else { 0.0 };
                let (pair, half) = pair(k);
                let at = k / STEP * left_bytes(parts) + row * ROW_BYTES + 4 * pair + 2 * half;
                assert_eq!(whole(&left, at, (parts, TILE_BYTES)), want, "{parts} parts: row {row}, element {k}");
            }
            for (column, k) in (0..WIDE).flat_map(|column| (0..3 * STEP).map(move |k| (column, k))) {
                let want = if column < 21 && k < RUN { expected(lines[k * 21 + column]) } else { 0.0 };
                let (pair, half) = pair(k);
                let at = k / STEP * right_bytes(parts) + column / ROWS * TILE_BYTES + pair * ROW_BYTES;
                let at = at + 4 * (column % ROWS) + 2 * half;
                let got = whole(&right, at, (parts, 2 * TILE_BYTES));
                assert_eq!(got, want, "{parts} parts: column {column}, element {k}");
            }
        }
    }

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
                    split_rows((rows, RUN), ROWS, RUN, parts[0], left);
                }
                split_lines((&lines, WIDE), WIDE, RUN, parts[1], &mut right);
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
        }
    }
}

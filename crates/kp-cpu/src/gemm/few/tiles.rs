//! Products of several rows with columns of four bits by tiles of AMX, a column in each lane.
//!
//! ```text
//!   turned codes ─▶ a step, 32 elements of 32 columns, as two right tiles of bf16 ─▶ times rows ─▶ scaled, added
//!                   step s                                                      step s − 1      step s − 2
//! ```
//! Tiles and vectors are units of their own, so three steps are under way in one turn of the loop: one after the other took half as long
//! again. Codes are numbers of bf16 and have their scales left to the sums, so that nothing is rounded, and a line of 32 of them is a shift, a look-up and a
//! store. For its lines no lane changes: a pair of a line are elements four apart, as [rows](super::tile_rows) have them too.

use super::{
    columns::sixteen,
    dots::{MOST_SHIFT, five_bits},
    lanes::{Each, LANES, Later, VECTORS, each_byte},
};
use crate::amx::{ROW_BYTES, ROWS, TILE_BYTES, Tiles};
use kp_hal::{DType, op::Format};
use std::{
    arch::{
        asm,
        x86_64::{
            _mm512_add_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_permutexvar_epi16,
            _mm512_set1_epi8, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_srli_epi16, _mm512_storeu_ps,
            _mm512_storeu_si512,
        },
    },
    mem::MaybeUninit,
};

/// Turned vectors of a step.
const OF_STEP: usize = 4;

/// Elements of a step.
pub(crate) const STEP: usize = 2 * ROWS;

/// What codes of four bits stand for as bf16.
pub(crate) struct Words {
    numbers: [u16; 2 * LANES],
    /// The bits of a byte of two codes that make them unsigned.
    inverted: u8,
}

impl Words {
    /// Of codes with zero points see [`super::dots::Table`]: five bits.
    pub(crate) fn of(format: Format) -> Self {
        let values = sixteen(format.dtype);
        let numbers = std::array::from_fn(|i| match format.has_zero() {
            true => rounded(i as f32 - f32::from(MOST_SHIFT)),
            // The bit above a code is some other's.
            false => rounded(values[i % values.len()]),
        });
        let inverted = if format.has_zero() && format.dtype == DType::I4 { 8 } else { 0 };
        Self { numbers, inverted }
    }
}

/// A finite number to nearest even; what codes stand for but NF4's is not rounded.
fn rounded(x: f32) -> u16 {
    let bits = x.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Two tiles, each of lines of its own.
#[repr(align(64))]
struct Two(MaybeUninit<[[u8; TILE_BYTES]; VECTORS]>);

impl Two {
    const NEW: Self = Self(MaybeUninit::uninit());

    fn at(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// Adds to `sums` the products of `R` rows with the columns of `codes`, of which each step has `HALVES` entries of `scales`, and four steps one of
/// `shifts` if codes are `SHIFTED`, see [`super::dots::Table`]: a byte each. `a` has `TILES` tiles for each step, whose rows are `JOINED` parts of the rows for each half
/// of a step. Asks meanwhile for as many codes of `later`.
///
/// # Safety
/// The processor has tiles of bf16, and the first three of them have as many rows as `a`'s tiles, of whole lines; two more are whole.
///
/// # Panics
/// If rows, scales or shifts are short.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(crate) unsafe fn tiles<
    const R: usize,
    const HALVES: usize,
    const JOINED: usize,
    const TILES: usize,
    const SHIFTED: bool,
>(
    words: &Words,
    a: &[u8],
    codes: &[Each<u32>],
    (scales, shifts): (&[Each<f32>], &[Each<u32>]),
    later: Option<Later<'_, '_>>,
    sums: &mut [Each<f32>],
    held: &Tiles,
) {
    const { assert!(HALVES * JOINED * R <= ROWS && !(SHIFTED && HALVES > 1), "rows of a tile, shifts of a step") };
    let of_step = TILES * HALVES * JOINED * R * ROW_BYTES;
    let steps = codes.len() / OF_STEP;
    let (a, scales, sums) = (&a[..steps * of_step], &scales[..steps * HALVES], &mut sums[..R]);
    let shifts = if SHIFTED { &shifts[..steps.div_ceil(4)] } else { shifts };
    // SAFETY: 32 numbers.
    let table = unsafe { _mm512_loadu_si512(words.numbers.as_ptr().cast()) };
    let inverted = _mm512_set1_epi8(words.inverted as i8);
    let mut totals = [[_mm512_setzero_ps(); VECTORS]; R];
    for (totals, sums) in totals.iter_mut().zip(&*sums) {
        // SAFETY: sixteen numbers each.
        *totals = [0, 1].map(|v| unsafe { _mm512_loadu_ps(sums[v].as_ptr()) });
    }
    let (mut opened, mut products) = ([Two::NEW; 2], [Two::NEW; 2]);
    for step in 0..steps + 2 {
        if step < steps {
            let out = opened[step % 2].at();
            let mut shift = [_mm512_setzero_si512(); VECTORS];
            if SHIFTED {
                shift = [0, 1].map(|v| each_byte(&shifts[step / 4][v], step % 4));
            }
            for i in 0..OF_STEP {
                let vector = step * OF_STEP + i;
                if let Some(later) = later {
                    later.ask(vector);
                }
                for v in 0..VECTORS {
                    // SAFETY: sixteen times eight codes.
                    let codes = unsafe { _mm512_loadu_si512(codes[vector][v].as_ptr().cast()) };
                    let lines = if SHIFTED {
                        let [even, odd] = [0, 1].map(|parity| five_bits(inverted, codes, parity, shift[v]));
                        [even, odd, _mm512_srli_epi16::<8>(even), _mm512_srli_epi16::<8>(odd)]
                    } else {
                        let [second, third] = [_mm512_srli_epi16::<4>(codes), _mm512_srli_epi16::<8>(codes)];
                        [codes, second, third, _mm512_srli_epi16::<12>(codes)]
                    };
                    for (j, places) in lines.into_iter().enumerate() {
                        let line = v * TILE_BYTES + (OF_STEP * i + j) * ROW_BYTES;
                        // SAFETY: a line of a tile.
                        unsafe {
                            let number = _mm512_permutexvar_epi16(places, table);
                            _mm512_storeu_si512(out.add(line).cast(), number);
                        }
                    }
                }
            }
        }
        if (1..=steps).contains(&step) {
            let (before, at) = (step - 1, (step - 1) % 2);
            // SAFETY: both tiles were opened in the turn before; the rest is the caller's promise.
            unsafe {
                let a = a.as_ptr().add(before * of_step);
                multiply::<TILES>(a, HALVES * JOINED * R, opened[at].at(), products[at].at(), held);
            }
        }
        if step >= 2 {
            let (before, products) = (step - 2, products[step % 2].at());
            for half in 0..HALVES {
                let scale = &scales[before * HALVES + half];
                // SAFETY: sixteen numbers.
                let scale = [0, 1].map(|v| unsafe { _mm512_loadu_ps(scale[v].as_ptr()) });
                for (r, totals) in totals.iter_mut().enumerate() {
                    for (v, total) in totals.iter_mut().enumerate() {
                        let part = |j: usize| {
                            let row = (half * JOINED + j) * R + r;
                            // SAFETY: a row of products, which was stored in the turn before.
                            unsafe { _mm512_loadu_ps(products.add(v * TILE_BYTES + row * ROW_BYTES).cast()) }
                        };
                        let mut sum = part(JOINED - 1);
                        for j in (0..JOINED - 1).rev() {
                            sum = _mm512_add_ps(sum, part(j));
                        }
                        *total = _mm512_fmadd_ps(sum, scale[v], *total);
                    }
                }
            }
        }
    }
    for (totals, sums) in totals.into_iter().zip(sums) {
        for (total, sum) in totals.into_iter().zip(sums) {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(sum.as_mut_ptr(), total) };
        }
    }
}

/// Stores the products of `TILES` left tiles of `rows` rows, one after the other and added up, with each of two right tiles.
///
/// # Safety
/// As [`tiles`], of one step.
#[inline(always)]
unsafe fn multiply<const TILES: usize>(a: *const u8, rows: usize, b: *const u8, out: *mut u8, _: &Tiles) {
    #[cfg(test)]
    if crate::amx::is_imitated() {
        // SAFETY: passed on.
        return unsafe { imitate(TILES, a, rows, b, out) };
    }
    macro_rules! run {
        ($($more:literal),*) => {
            // SAFETY: tiles have their shape, and memory is as the caller says.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tileloadd tmm2, [{a} + {line}]",
                    "tileloadd tmm3, [{b} + {line}]",
                    "tdpbf16ps tmm0, tmm2, tmm3",
                    "tileloadd tmm4, [{b} + {line} + {tile}]",
                    "tdpbf16ps tmm1, tmm2, tmm4",
                    $($more,)*
                    "tilestored [{out} + {line}], tmm0",
                    "tilestored [{out} + {line} + {tile}], tmm1",
                    a = inout(reg) a => _,
                    b = in(reg) b,
                    out = in(reg) out,
                    line = in(reg) ROW_BYTES,
                    bytes = in(reg) rows * ROW_BYTES,
                    tile = const TILE_BYTES,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _,
                    options(nostack),
                );
            }
        };
    }
    match TILES {
        1 => run!("/* {bytes} */"),
        2 => run!(
            "add {a}, {bytes}",
            "tileloadd tmm2, [{a} + {line}]",
            "tdpbf16ps tmm0, tmm2, tmm3",
            "tdpbf16ps tmm1, tmm2, tmm4"
        ),
        3 => run!(
            "add {a}, {bytes}",
            "tileloadd tmm2, [{a} + {line}]",
            "tdpbf16ps tmm0, tmm2, tmm3",
            "tdpbf16ps tmm1, tmm2, tmm4",
            "add {a}, {bytes}",
            "tileloadd tmm2, [{a} + {line}]",
            "tdpbf16ps tmm0, tmm2, tmm3",
            "tdpbf16ps tmm1, tmm2, tmm4"
        ),
        _ => unreachable!("rows have no more tiles"),
    }
}

/// What tiles would do, in loops.
///
/// # Safety
/// As [`multiply`].
#[cfg(test)]
unsafe fn imitate(tiles: usize, a: *const u8, rows: usize, b: *const u8, out: *mut u8) {
    // SAFETY: within an operand, says the caller.
    let number = |at: *const u8, i: usize| unsafe {
        f32::from_bits(u32::from(at.cast::<u16>().wrapping_add(i).read_unaligned()) << 16)
    };
    for (row, column) in (0..rows).flat_map(|row| (0..VECTORS * LANES).map(move |column| (row, column))) {
        let right = b.wrapping_add(column / LANES * TILE_BYTES + 4 * (column % LANES));
        let mut sum = 0.0;
        for (tile, k) in (0..tiles).flat_map(|tile| (0..STEP).map(move |k| (tile, k))) {
            let left = number(a.wrapping_add((tile * rows + row) * ROW_BYTES), k);
            sum += left * number(right.wrapping_add(k / 2 * ROW_BYTES), k % 2);
        }
        let at = out.wrapping_add(column / LANES * TILE_BYTES + row * ROW_BYTES).cast::<f32>();
        // SAFETY: as above.
        unsafe { at.wrapping_add(column % LANES).write(sum) };
    }
}

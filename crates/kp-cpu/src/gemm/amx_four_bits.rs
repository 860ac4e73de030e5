//! D = A·B for a few rows whose B has contiguous columns of 4-bit codes, by tiles of AMX.
//!
//! See [`super::few::sets`] for how it is cut, [`super::few::tiles`] for the loops and [`super::few::tile_rows`] for A. Codes are numbers of bf16, and
//! scales multiply sums, so B is not rounded, but that of NF4 to bf16 where A has no more bits. Rows of f32 and f16 have two or three
//! [parts](super::amx::parts); those that `acc=f32q8` lets be rounded become bf16, which is closer to them than eight bits. Rows with a number
//! that has no parts are multiplied in f32, as `avx512_four_bits` does it. Limits: AMX and AVX-512 with VBMI; scales that change along k do so at multiples of 16, with zero points of 32;
//! numbers of A below 2⁻¹¹⁰ lose bits, and count as 0 below 2⁻¹²⁶; not `batch-invariant`.

use super::{
    amx::{
        bits::{kept, most_zero, parts_of, scaling},
        parts::PARTS,
    },
    amx_bf16::has_tiles,
    avx512_four_bits::Numbers,
    few::{
        columns::{self, MOST, overlapped},
        dots::{BROAD_SHARE, SHARE},
        lanes::{Each, Later, SET},
        sets::{Meet, Rows, Sets, Turned},
        suits,
        tile_rows::TileRows,
        tiles::{Words, tiles},
    },
    product::{Item, Product},
    side::{Scaling, scales_vary, varies},
};
use crate::{
    amx::{ROW_BYTES, ROWS, Tiles},
    memory::LINE,
    numbers::Real,
};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Acc, Gemm, GemmProblem, GemmSpec, Scheme},
    source_hash,
};
use std::{ops::Range, sync::Arc};

/// The kernel for a few rows by weights of four bits.
pub(crate) struct AmxFourBits;

/// Most rows, in groups of [`MOST`]: columns are opened for each.
const MOST_ROWS: usize = 2 * MOST;

impl Kernel<Gemm> for AmxFourBits {
    fn name(&self) -> &'static str {
        "amx_four_bits"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("amx_four_bits.rs"))
                ^ source_hash(include_bytes!("few/tiles.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("few/tile_rows.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("few/lists.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("few/columns.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("few/sets.rs")).rotate_left(5)
                ^ source_hash(include_bytes!("few/lanes.rs")).rotate_left(6)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        has_tiles(caps)?;
        suits::four_bits(caps, &columns::FEATURES, p, MOST_ROWS)?;
        if p.b.dtype() == DType::Nf4 && (parts(p) > 1 || p.acc == Acc::F32Q8) {
            return Err(Unsupported::DType { operand: "b", got: p.b.dtype() });
        }
        if p.b.format.has_zero() && halves(p) > 1 {
            return Err(Unsupported::Scheme { operand: "b", got: p.b.format.to_string() });
        }
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        let rows = rows(p);
        // Cycles for a step of a set, as measured on an Emerald Rapids core: turning and opening it, a product, and each row's sums.
        let steps = f64::from(p.batch) * f64::from(p.n.div_ceil(SET as u32)) * f64::from(p.k.div_ceil(32));
        let of_rows = TileRows::new(rows, p.k as usize, Scaling::Left, parts(p), halves(p));
        let cycles = 64.0 + rows.groups as f64 * (70.0 + 60.0 * of_rows.tiles as f64 + of_rows.lines() as f64);
        let compute = steps * cycles / (caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        Nanos::from_secs(overlapped(memory, compute) + 3e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let share = if halves(p) > 1 { SHARE } else { BROAD_SHARE };
        let sets = Sets::new(p, varies(&p.b, p.k), share, Tiled::new(p, share));
        Ok(columns::plan(self, device, p, variant, SET, sets))
    }
}

/// Parts of A's numbers.
fn parts(spec: &GemmSpec) -> usize {
    let parts = match spec.a.format.scheme {
        // Its f32 for everything has too many digits.
        Scheme::Nv => PARTS,
        _ => parts_of(&spec.a, spec.k, most_zero(&spec.a)),
    };
    kept([parts, 1], spec)[0]
}

/// Entries of B's scales for 32 elements.
fn halves(spec: &GemmSpec) -> usize {
    let is_broad = !varies(&spec.b, spec.k) || (spec.b.format.block().1 as usize).is_multiple_of(BROAD_SHARE);
    if is_broad { 1 } else { 2 }
}

fn rows(spec: &GemmSpec) -> Rows {
    Rows::of(spec.m as usize, MOST)
}

type Loop = unsafe fn(
    &Words,
    &[u8],
    &[Each<u32>],
    (&[Each<f32>], &[Each<u32>]),
    Option<Later<'_, '_>>,
    &mut [Each<f32>],
    &Tiles,
);

/// Rows in tiles.
struct Tiled {
    rows: TileRows,
    words: Box<Words>,
    multiply: Loop,
    share: usize,
    /// Whether a number of A may have no parts.
    is_split: bool,
    /// What multiplies then.
    numbers: Numbers,
    has_row_scales: bool,
}

impl Tiled {
    fn new(spec: &GemmSpec, share: usize) -> Self {
        let rows = TileRows::new(rows(spec), spec.k as usize, scaling(&spec.a, spec.k), parts(spec), halves(spec));
        macro_rules! loops {
            ($height:literal, $(($halves:literal, $joined:literal, $tiles:literal))*) => {
                match (rows.halves, rows.joined, rows.tiles, spec.b.format.has_zero()) {
                    $(($halves, $joined, $tiles, false) => tiles::<$height, $halves, $joined, $tiles, false> as Loop,)*
                    $((1, $joined, $tiles, true) if $halves == 1 => tiles::<$height, 1, $joined, $tiles, true>,)*
                    other => unreachable!("no rows are so many tiles: {other:?}"),
                }
            };
        }
        let multiply = match rows.rows.height {
            2 => loops!(2, (1, 1, 1)(1, 2, 1)(1, 3, 1)(2, 1, 1)(2, 2, 1)(2, 3, 1)),
            4 => loops!(4, (1, 1, 1)(1, 2, 1)(1, 3, 1)(2, 1, 1)(2, 2, 1)(2, 2, 2)),
            _ => loops!(8, (1, 1, 1)(1, 2, 1)(1, 2, 2)(2, 1, 1)(2, 1, 2)(2, 1, 3)),
        };
        let words = Box::new(Words::of(spec.b.format));
        let is_split = parts(spec) > 1 || spec.acc == Acc::F32Q8;
        let has_row_scales = spec.a.format.scale_dtype().is_some() && !scales_vary(&spec.a, spec.k);
        Self { rows, words, multiply, share, is_split, numbers: Numbers::new(spec, share), has_row_scales }
    }

    /// A ready for tiles, and for loops in f32 if it must be.
    fn ready<'a>(&self, a: &'a [u8]) -> (&'a [u8], Option<&'a [u8]>) {
        let (told, rest) = a.split_at(LINE);
        let (of_tiles, numbers) = rest.split_at(self.rows.bytes());
        (of_tiles, (told[0] != 0).then_some(numbers))
    }
}

impl Meet for Tiled {
    type Held = Tiles;

    fn rows(&self) -> Rows {
        self.rows.rows
    }

    fn hold(&self) -> Tiles {
        let (few, whole) = ((self.rows.lines(), ROW_BYTES), (ROWS, ROW_BYTES));
        // SAFETY: `supports` asked for the feature, and a thread that multiplies columns has no other tiles.
        unsafe { Tiles::shaped(&[few, few, few, whole, whole]) }
    }

    fn bytes(&self) -> usize {
        LINE + self.rows.bytes() + if self.is_split { self.numbers.bytes() } else { 0 }
    }

    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) {
        let (told, rest) = a.split_at_mut(LINE);
        let (of_tiles, numbers) = rest.split_at_mut(self.rows.bytes());
        let special = self.rows.prepare(product, item, of_tiles) && self.is_split;
        told[0] = special.into();
        if special {
            self.numbers.prepare(product, item, numbers);
        }
    }

    unsafe fn multiply(
        &self,
        a: &[u8],
        (group, steps): (usize, Range<usize>),
        columns: Turned<'_>,
        later: Option<Later<'_, '_>>,
        sums: &mut [Each<f32>],
        held: &Tiles,
    ) {
        let Turned { codes, scales, shifts, .. } = columns;
        match self.ready(a) {
            (of_tiles, None) => {
                let a = self.rows.part(of_tiles, group, steps);
                // SAFETY: passed on; tiles are as `hold` has shaped them.
                unsafe { (self.multiply)(&self.words, a, codes, (scales, shifts), later, sums, held) };
            }
            // SAFETY: passed on.
            (_, Some(numbers)) => unsafe {
                self.numbers.multiply(numbers, (group, steps), columns, later, sums, &());
            },
        }
    }

    fn sum(&self, a: &[u8], row: usize, share: usize) -> f32 {
        match self.ready(a) {
            (of_tiles, None) => self.rows.sum(of_tiles, row, share * self.share, self.share),
            (_, Some(numbers)) => self.numbers.sum(numbers, row, share),
        }
    }

    fn factor<E: Real>(&self, product: &Product<'_>, item: Item, row: usize) -> E {
        let mut factor = [E::ONE];
        if self.has_row_scales {
            let row = item.row + row;
            product.a.scales_of(item.row_batch, row..row + 1, 0, &mut factor);
        }
        factor[0]
    }
}

#[cfg(test)]
mod tests {
    use crate::gemm::tests::check;

    /// Every way in which rows lie in tiles, of one group and of two, over ends of k, of columns and of sets.
    #[test]
    fn parts_of_rows_share_tiles() {
        for a in ["bf16", "f16", "f32", "i8@row", "e4m3@tensor", "i8@g32/f16"] {
            for b in ["i4@g32/f16", "i4@g16/f32", "u4@g32/f16z", "i4@g64/f16z", "e2m1@nv", "i4@row", "nf4@g64/f32"] {
                for size in ["1x2x33x192", "2x4x64x704", "1x7x70x192", "1x13x40x1088"] {
                    check(&format!("gemm {size} {a}:{b}:f32 b=col"), (1.0, 1.0));
                }
            }
        }
        for options in ["bias=f32 act=relu", "a=col"] {
            check(&format!("gemm 1x5x70x320 f32:e2m1@mx:f32 b=col {options}"), (1.0, 1.0));
        }
    }
}

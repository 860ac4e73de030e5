//! Judging outputs that hold codes with scales.

use crate::{
    compare::{Comparison, Touched, Wrong},
    formats::{decode, encode, floor_log2, max_value, nan_code, smallest},
    judge::Want,
    operands::Operands,
    tensor::place,
};
use kp_hal::{
    DType,
    op::{Matrix, Overflow, ScaleRule, Scheme},
};
use std::ops::Range;

/// Codes of a scaled format and the scales that belong to them.
///
/// The scales a kernel wrote are judged first, each within the interval that the slack of its block leaves; then
/// every code is judged against the scale that the kernel chose.
#[derive(Clone, Debug)]
pub struct Scaled {
    /// The operand that holds the codes.
    pub codes: &'static str,
    /// Its scales.
    pub scale: Part,
    /// The f32 that multiplies all scales.
    pub global: Part,
    /// Its zero points.
    pub zero: Part,
    /// Layout and format; outer rows, inner columns.
    pub matrix: Matrix,
    /// Rows, columns, batch.
    pub shape: (u32, u32, u32),
    /// How scales are rounded.
    pub rule: ScaleRule,
    /// What becomes of numbers past the largest code.
    pub overflow: Overflow,
    /// `[batch][rows][cols]`: what the numbers are before they are scaled and rounded.
    pub values: Vec<Want>,
}

/// Where a part of a scaled operand comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The format has none.
    Absent,
    /// The caller gave it, in this operand.
    Given(&'static str),
    /// The kernel computes it, into this operand.
    Written(&'static str),
}

/// What a kernel may lose where it scales in f32: two divisions and a product, or reciprocals instead, each within
/// 2⁻²⁴ of its result.
const SCALING_ERROR: f64 = 1.0 / 4_194_304.0;

impl Scaled {
    /// Judges scales, zero points and codes.
    pub(crate) fn compare(&self, before: &Operands, after: &Operands, out: &mut Comparison, touched: &mut Touched) {
        let parts = [self.scale, self.global, self.zero];
        parts.iter().filter_map(|part| part.written()).for_each(|name| touched.mark_all(name));
        let source = |part: Part| match part {
            Part::Absent => None,
            Part::Given(name) => Some(before.codes(name)),
            Part::Written(name) => Some(after.codes(name)),
        };
        let [scale, global, zero] = parts.map(source);
        if let Part::Written(name) = self.global {
            self.global_scale(name, out, after);
        }
        let global = global.map_or(1.0, |g| g.value(0));
        let (rows, cols, batch) = self.shape;
        let format = self.matrix.format;
        let (block_rows, block_cols) = format.block();
        let (o_blocks, i_blocks) = format.blocks(rows, cols);
        for b in 0..batch {
            for o in 0..o_blocks {
                for i in 0..i_blocks {
                    let at = match format.scheme {
                        Scheme::Tensor => 0,
                        _ => u64::from(b) * format.scale_count(rows, cols) + format.scale_index((o, i), (rows, cols)),
                    };
                    let block = Block {
                        rows: (o * block_rows.min(rows))
                            ..rows.min(o.saturating_mul(block_rows).saturating_add(block_rows)),
                        cols: (i * block_cols.min(cols))
                            ..cols.min(i.saturating_mul(block_cols).saturating_add(block_cols)),
                    };
                    let extremes = self.extremes(b, &block);
                    let divisor = scale.map_or(1.0, |s| s.value(at));
                    if let (Part::Written(name), Some(codes)) = (self.scale, scale)
                        && extremes.any
                        && !extremes.unknown
                    {
                        self.block_scale(name, codes.dtype, (at, codes.code(at)), extremes, global, out);
                    }
                    if let (Part::Written(name), Some(codes)) = (self.zero, zero)
                        && extremes.any
                        && !extremes.unknown
                    {
                        self.zero_point(name, (at, codes.code(at)), extremes, divisor, out);
                    }
                    let zero = zero.map(|z| z.value(at));
                    self.block_codes((b, &block), divisor * global, zero, after, out, touched);
                }
            }
        }
    }

    /// Operand, index and slack of every element that holds a result: codes, and the scales in use.
    pub(crate) fn elements(&self) -> Vec<(&'static str, u64, f64)> {
        let (rows, cols, batch) = self.shape;
        let format = self.matrix.format;
        let (o_blocks, i_blocks) = format.blocks(rows, cols);
        let mut out: Vec<_> = self.global.written().map(|name| (name, 0, 0.0)).into_iter().collect();
        for b in 0..batch {
            let cells = Block { rows: 0..rows, cols: 0..cols };
            for (row, col) in cells.cells().filter(|&(row, col)| self.value(b, row, col) != Want::Untouched) {
                out.push((self.codes, place(&self.matrix, (rows, b), row, col), 0.0));
            }
            for name in [self.scale, self.zero].into_iter().filter_map(Part::written) {
                let first = u64::from(b) * format.scale_count(rows, cols);
                for o in 0..o_blocks {
                    out.extend((0..i_blocks).map(|i| match format.scheme {
                        Scheme::Tensor => (name, 0, 0.0),
                        _ => (name, first + format.scale_index((o, i), (rows, cols)), 0.0),
                    }));
                }
            }
        }
        out
    }

    fn value(&self, b: u32, row: u32, col: u32) -> Want {
        let (rows, cols) = (self.shape.0 as usize, self.shape.1 as usize);
        self.values[(b as usize * rows + row as usize) * cols + col as usize]
    }

    /// The extremes of a block, each as the smallest and the largest that the slack leaves.
    fn extremes(&self, b: u32, block: &Block) -> Extremes {
        let mut e = Extremes::default();
        for (row, col) in block.cells() {
            match self.value(b, row, col) {
                Want::Number { value, slack } => {
                    e.any = true;
                    if value.is_finite() {
                        e.include(value, slack);
                    }
                }
                Want::Any => e.unknown = true,
                Want::NotFinite => e.any = true,
                Want::Code(_) | Want::Untouched => {}
            }
        }
        e
    }

    /// `@nv`: amax of everything / (448 · 6).
    fn global_scale(&self, name: &'static str, out: &mut Comparison, after: &Operands) {
        let all = Block { rows: 0..self.shape.0, cols: 0..self.shape.1 };
        let e = self.extremes(0, &all);
        let codes = after.codes(name);
        if e.amax.1 == 0.0 || e.unknown {
            // Nothing to scale by: any number will do, but for NaN.
            out.judge(!codes.value(0).is_nan(), name, codes.dtype, 0, codes.code(0), Wrong::Code(0));
            return;
        }
        let most = max_value(DType::Ue4m3) * max_value(self.matrix.dtype());
        let (low, high) = (e.amax.0 / most * (1.0 - SCALING_ERROR), e.amax.1 / most * (1.0 + SCALING_ERROR));
        let middle = (e.amax.0 + e.amax.1) / 2.0 / most;
        let wanted = (middle, (high - low) / 2.0);
        out.number(name, codes.dtype, (0, codes.code(0)), wanted, (low, high), Overflow::Saturate);
    }

    fn block_scale(
        &self,
        name: &'static str,
        dtype: DType,
        (at, code): (u64, u64),
        e: Extremes,
        global: f64,
        out: &mut Comparison,
    ) {
        let got = decode(dtype, code);
        let most = max_value(self.matrix.dtype());
        let empty = if self.zero == Part::Absent { e.amax.1 == 0.0 } else { e.max.1 == e.min.0 };
        if empty || e.amax.0 == 0.0 && self.zero == Part::Absent {
            // A block of zeros: 1, or the smallest scale there is. UE4M3's is 0, or 2⁻⁹ if a scale must divide.
            let right = match dtype {
                DType::E8m0 => code == 0,
                DType::Ue4m3 => code <= 1,
                _ => got == 1.0,
            };
            if right || empty {
                out.judge(right, name, dtype, at, code, Wrong::Code(encode(dtype, 1.0, Overflow::Saturate)));
                return;
            }
        }
        let (low, high) = match self.zero {
            Part::Absent => (e.amax.0 / global, e.amax.1 / global),
            _ => (e.max.0 - e.min.1, e.max.1 - e.min.0),
        };
        // Powers of two are found by looking at exponents; only the nearest scale takes a division.
        let (low, high) = match self.rule {
            ScaleRule::Nearest => (low / most * (1.0 - SCALING_ERROR), high / most * (1.0 + SCALING_ERROR)),
            ScaleRule::Floor => (floor_rule(low, most), floor_rule(high, most)),
            ScaleRule::Up => (up_rule(low, most), up_rule(high, most)),
        };
        // A scale that would round to 0 may become the smallest instead, so that it divides; none is infinite.
        let (tiny, largest) = (smallest(dtype), max_value(dtype));
        let high = if dtype == DType::E8m0 { high } else { high.max(tiny).min(largest) };
        let low = low.min(largest);
        let wanted = ((low + high) / 2.0, (high - low) / 2.0);
        out.number(name, dtype, (at, code), wanted, (low, high), Overflow::Saturate);
    }

    fn zero_point(&self, name: &'static str, (at, code): (u64, u64), e: Extremes, scale: f64, out: &mut Comparison) {
        let most = max_value(self.matrix.dtype());
        let point = |min: f64, error: f64| (-min / scale * (1.0 + error)).round_ties_even().clamp(0.0, most);
        let (low, high) = (point(e.min.1, -SCALING_ERROR), point(e.min.0, SCALING_ERROR));
        let wanted = ((low + high) / 2.0, (high - low) / 2.0);
        out.number(name, DType::U8, (at, code), wanted, (low, high), Overflow::Saturate);
    }

    /// Each code against its number divided by the scale that the kernel chose.
    fn block_codes(
        &self,
        (b, block): (u32, &Block),
        divisor: f64,
        zero: Option<f64>,
        after: &Operands,
        out: &mut Comparison,
        touched: &mut Touched,
    ) {
        let (codes, dtype) = (after.codes(self.codes), self.matrix.dtype());
        let (rows, most) = (self.shape.0, max_value(dtype));
        for (row, col) in block.cells() {
            let at = place(&self.matrix, (rows, b), row, col);
            let code = codes.code(at);
            let got = decode(dtype, code);
            let want = self.value(b, row, col);
            if want != Want::Untouched {
                touched.mark(self.codes, at);
            }
            match want {
                Want::Untouched | Want::Any | Want::NotFinite => {}
                Want::Code(want) => out.judge(code == want, self.codes, dtype, at, code, Wrong::Code(want)),
                Want::Number { value, .. } if value.is_nan() => {
                    let right = match nan_code(dtype) {
                        Some(_) => got.is_nan(),
                        None => got == 0.0 || Some(got) == zero,
                    };
                    let what = Wrong::Code(nan_code(dtype).unwrap_or(0));
                    out.judge(right, self.codes, dtype, at, code, what);
                }
                // Nothing is said of numbers whose scale vanished, but 0 stays 0.
                Want::Number { value, .. } if divisor == 0.0 && value != 0.0 => out.checked += 1,
                Want::Number { value, slack } => {
                    let scaled = |x: f64| if x == 0.0 { 0.0 } else { x / divisor };
                    let zero = zero.unwrap_or(0.0);
                    // A division by a power of two is exact; an infinite number is past every code.
                    let exact = zero == 0.0 && self.global == Part::Absent && is_power(divisor);
                    let margin = match (value.is_finite(), exact) {
                        (false, _) => 0.0,
                        (true, true) => scaled(slack).abs(),
                        (true, false) => scaled(value).abs() * SCALING_ERROR + scaled(slack).abs(),
                    };
                    let middle = scaled(value) + zero;
                    let (mut low, mut high) = (middle - margin, middle + margin);
                    // Symmetric integers do not use their least code once there is a scale; a given scale may be
                    // too small for the number, and then either end is right.
                    if !dtype.is_float() && high < -most {
                        (low, high) = (low.max(-most - 1.0), -most);
                    }
                    out.number(self.codes, dtype, (at, code), (middle, margin), (low, high), self.overflow);
                }
            }
        }
    }
}

fn is_power(x: f64) -> bool {
    x > 0.0 && x.is_finite() && 2_f64.powi(floor_log2(x)) == x
}

/// `2^(floor(log2 amax) − floor(log2 MAX))`
fn floor_rule(amax: f64, most: f64) -> f64 {
    2_f64.powi((floor_log2(amax) - floor_log2(most)).clamp(-127, 127))
}

/// The smallest power of two that is no less than amax / MAX.
fn up_rule(amax: f64, most: f64) -> f64 {
    let at_or_below = floor_log2(amax / most).clamp(-1000, 1000);
    let exponent = at_or_below + i32::from(2_f64.powi(at_or_below) * most < amax);
    2_f64.powi(exponent.clamp(-127, 127))
}

/// A rectangle of rows and columns that share a scale.
struct Block {
    rows: Range<u32>,
    cols: Range<u32>,
}

impl Block {
    fn cells(&self) -> impl Iterator<Item = (u32, u32)> {
        self.rows.clone().flat_map(|row| self.cols.clone().map(move |col| (row, col)))
    }
}

/// Least and greatest possible value of each extreme.
#[derive(Clone, Copy, Default)]
struct Extremes {
    /// Whether there is any number, finite or not.
    any: bool,
    /// Whether there is a number of which nothing is said, so that it may or may not be the largest.
    unknown: bool,
    /// The largest magnitude.
    amax: (f64, f64),
    /// The largest number, or 0.
    max: (f64, f64),
    /// The smallest number, or 0.
    min: (f64, f64),
}

impl Extremes {
    fn include(&mut self, value: f64, slack: f64) {
        let grow = |(low, high): (f64, f64), x: f64| (low.max(x - slack), high.max(x + slack));
        self.amax = grow(self.amax, value.abs());
        self.max = grow(self.max, value);
        self.min = (self.min.0.min(value - slack), self.min.1.min(value + slack));
    }
}

impl Part {
    fn written(self) -> Option<&'static str> {
        match self {
            Self::Written(name) => Some(name),
            _ => None,
        }
    }
}

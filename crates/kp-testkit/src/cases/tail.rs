//! The last rows of a problem as a problem of their own, for what batch invariance promises.

use crate::{judge::Fewer, operands::Operands};
use kp_hal::op::{Format, Op, Problem, Scheme};

/// How many of `rows` the smaller problem keeps: the last third, so that a row's place in a tile changes too.
pub(super) fn kept(rows: u32) -> Option<u32> {
    (rows >= 2).then(|| rows.div_ceil(3))
}

/// The smaller problem with its inputs. Element i of an operand is element `i + shift(operand)` of the larger one;
/// `results` are elements of the smaller one's outputs.
pub(super) fn fewer<O: Op>(
    problem: Problem<O::Spec>,
    operands: &Operands,
    shift: impl Fn(&str) -> u64,
    results: impl IntoIterator<Item = (&'static str, u64)>,
) -> Fewer<O> {
    let mut part = Operands::new::<O>(&problem, operands.kind());
    for operand in operands.list().iter().filter(|o| !o.output && operands.has(o.name)) {
        let (from, mut to) = (operands.codes(operand.name), part.codes_mut(operand.name));
        let first = shift(operand.name);
        // Of an odd number of 4-bit elements the last byte has one more, which the larger problem may lack.
        (0..to.len().min(from.len().saturating_sub(first))).for_each(|i| to.set_code(i, from.code(i + first)));
    }
    let same = results.into_iter().map(|(name, at)| (name, at, at + shift(name))).collect();
    Fewer { problem, operands: part, same }
}

/// Whether each row of a result has scales of its own, so that a row alone is stored as it is among others.
pub(super) fn scaled_alone(format: Format) -> bool {
    !matches!(format.scheme, Scheme::Block { outer: 2.., .. })
}

/// Adds the scales of a result of `cols` columns, whose rows have scales of their own, to what must be the same: those of
/// its `rows` rows, the last of `all`.
pub(super) fn with_scales<O: Op>(
    fewer: Fewer<O>,
    name: &'static str,
    format: Format,
    (rows, all, cols): (u32, u32, u32),
) -> Fewer<O> {
    if !fewer.operands.has(name) {
        return fewer;
    }
    let at = |row: u32, i: u32, of: u32| format.scale_index((row, i), (of, cols));
    let scales = (0..rows).flat_map(|row| (0..format.blocks(1, cols).1).map(move |i| (row, i)));
    let scales = scales.map(|(row, i)| (name, at(row, i, rows), at(all - rows + row, i, all)));
    let same = fewer.same.into_iter().chain(scales).collect();
    Fewer { same, ..fewer }
}

/// The elements of `rows` rows at a distance of `ld`.
pub(super) fn elements(name: &'static str, ld: u32, rows: u32, cols: u32) -> impl Iterator<Item = (&'static str, u64)> {
    let rows = (0..u64::from(rows)).map(move |r| r * u64::from(ld));
    rows.flat_map(move |first| (first..first + u64::from(cols)).map(move |at| (name, at)))
}

//! Some rows of a product as a product of their own, for what batch invariance promises.

use crate::{judge::Fewer, operands::Operands, tensor::place};
use kp_hal::op::{Addend, GemmSpec, Matrix, Op, Problem, Scheme, Sparsity};

/// A row of A and D: of which of them, and which.
pub(super) type Row = (u32, u32);

/// Operands that do not depend on which rows there are.
const ALIKE: [&str; 7] = ["b", "b_scale", "b_global", "b_zero", "bias", "a_global", "d_global"];

/// The same product of `m` rows, A and D as far apart in memory as they were, or tight if they were; `None` if rows are scaled
/// together, so that some of them are another problem.
pub(super) fn of_height(large: &GemmSpec, m: u32) -> Option<GemmSpec> {
    let together = |matrix: &Matrix| matches!(matrix.format.scheme, Scheme::Block { outer: 2.., .. });
    let tall = |matrix: &Matrix, cols: u32| {
        let tight = |rows| Matrix::tight(matrix.format, matrix.order, rows, cols);
        if matrix.ld == tight(large.m).ld { tight(m) } else { *matrix }
    };
    let alone = !together(&large.a) && !together(&large.d);
    alone.then(|| GemmSpec { m, a: tall(&large.a, large.a_cols()), d: tall(&large.d, large.d_cols()), ..*large })
}

/// `problem`, whose product is `small`, with the inputs of those rows of `large` that `rows` pairs with its own: its row
/// first. Every number of D and every scale of D must be the same.
pub(super) fn of_rows<O: Op>(
    (large, operands): (&GemmSpec, &Operands),
    (problem, small): (Problem<O::Spec>, &GemmSpec),
    rows: &[(Row, Row)],
) -> Fewer<O> {
    let mut part = Operands::new::<O>(&problem, operands.kind());
    for operand in ALIKE.into_iter().filter(|name| operands.has(name)) {
        part.set_bytes(operand, operands.codes(operand).bytes);
    }
    operands.scalars().iter().for_each(|&(name, value)| part.set_scalar(name, value));
    let mut copy = |name: &str, pairs: &mut dyn Iterator<Item = (u64, u64)>| {
        let (source, mut target) = (operands.codes(name), part.codes_mut(name));
        pairs.for_each(|(to, from)| target.set_code(to, source.code(from)));
    };
    copy("a", &mut elements(rows, (&small.a, small.m), (&large.a, large.m), large.a_cols()));
    if large.sparsity == Sparsity::TwoOfFour {
        copy("a_meta", &mut tight(rows, [small.m, large.m], large.k / 8));
    }
    for name in ["a_scale", "a_zero"].into_iter().filter(|name| operands.has(name)) {
        copy(name, &mut scales(rows, (&small.a, small.m), (&large.a, large.m), large.k));
    }
    match large.c {
        Addend::None => {}
        Addend::Given(_) => copy("c", &mut tight(rows, [small.m, large.m], large.n)),
        Addend::InPlace => copy("d", &mut elements(rows, (&small.d, small.m), (&large.d, large.m), large.d_cols())),
    }
    if operands.has("residual") {
        copy("residual", &mut elements(rows, (&small.d, small.m), (&large.d, large.m), large.d_cols()));
    }
    let d = elements(rows, (&small.d, small.m), (&large.d, large.m), large.d_cols());
    let mut same: Vec<_> = d.map(|(to, from)| ("d", to, from)).collect();
    if operands.has("d_scale") {
        let scales = scales(rows, (&small.d, small.m), (&large.d, large.m), large.d_cols());
        same.extend(scales.map(|(to, from)| ("d_scale", to, from)));
    }
    Fewer { problem, operands: part, same }
}

/// Where the numbers of the rows lie in the smaller and in the larger matrix, given with their heights.
fn elements(
    rows: &[(Row, Row)],
    (small, small_m): (&Matrix, u32),
    (large, large_m): (&Matrix, u32),
    cols: u32,
) -> impl Iterator<Item = (u64, u64)> {
    rows.iter().flat_map(move |&((b, row), (large_b, large_row))| {
        (0..cols)
            .map(move |col| (place(small, (small_m, b), row, col), place(large, (large_m, large_b), large_row, col)))
    })
}

/// The same for matrices whose rows and batches are tight.
fn tight(rows: &[(Row, Row)], [small_m, large_m]: [u32; 2], cols: u32) -> impl Iterator<Item = (u64, u64)> {
    let first = move |m: u32, (b, row): Row| (u64::from(b) * u64::from(m) + u64::from(row)) * u64::from(cols);
    rows.iter().flat_map(move |&(to, from)| {
        (0..u64::from(cols)).map(move |i| (first(small_m, to) + i, first(large_m, from) + i))
    })
}

/// The same for their scales, or zero points.
fn scales(
    rows: &[(Row, Row)],
    (small, small_m): (&Matrix, u32),
    (large, large_m): (&Matrix, u32),
    cols: u32,
) -> impl Iterator<Item = (u64, u64)> {
    let (small, large) = (small.format, large.format);
    let one = small.scheme == Scheme::Tensor;
    let blocks = if one { 1 } else { small.blocks(1, cols).1 };
    let at = move |format: kp_hal::op::Format, m: u32, (b, row): Row, i: u32| match one {
        true => 0,
        false => u64::from(b) * format.scale_count(m, cols) + format.scale_index((row, i), (m, cols)),
    };
    rows.iter()
        .flat_map(move |&(to, from)| (0..blocks).map(move |i| (at(small, small_m, to, i), at(large, large_m, from, i))))
}

//! What of the next block of B is asked for while tiles multiply: some lines every step, since as many at once as the processor has places for would keep
//! tiles waiting. (One core of Granite Rapids, 2048³ in panels without packing or storing: 1410 GFLOP/s where nothing is asked for, 1510 four lines a
//! step in half of the products, and 1570 two lines in each.)

use super::{along::Along, cut::DEEP, lines::STEP_BYTES, product::ByTiles, source::Source, tile::Ahead};
use crate::{
    act::Tail,
    amx::ROW_BYTES,
    gemm::product::{Item, Product},
    memory::LINE,
};
use std::ops::Range;

/// Units of a block, each of as many pairs of lines as a block has steps; or, where a block is one run of [`DEEP`] steps, a step.
const UNITS: usize = DEEP;

/// Lines of a block in pairs.
pub(super) struct Asks {
    at: *const u8,
    /// Bytes to the other line, to the next pair, and to the next unit.
    line: usize,
    step: usize,
    unit: usize,
}

impl Asks {
    /// A unit.
    fn unit(&self, unit: usize) -> Ahead {
        Ahead { at: self.at.wrapping_add(unit * self.unit), line: self.line, step: self.step }
    }

    /// Two units, in turns where the second follows the first.
    fn units(&self, unit: usize) -> [Ahead; 2] {
        let [first, second] = [unit, unit + 1].map(|unit| self.unit(unit));
        match self.unit == UNITS * self.step {
            true => [0, 1].map(|i| Ahead { at: first.at.wrapping_add(i * self.step), step: 2 * self.step, ..first }),
            false => [first, second],
        }
    }

    /// What both halves of what passes ask for while block `j` of `blocks` of rows is multiplied: a unit if it is their turn, or two where blocks are few.
    pub(super) fn of(&self, j: usize, blocks: usize) -> [Option<[Ahead; 2]>; 2] {
        let turns = 2 * blocks;
        let of_turn = |units: usize, turn: usize| (units * turn % turns < units).then_some(units * turn / turns);
        [2 * j, 2 * j + 1].map(|turn| match turns < UNITS {
            true => Some(self.units(2 * of_turn(UNITS / 2, turn)?)),
            // The same lines once more are little work.
            false => Some([self.unit(of_turn(UNITS, turn)?); 2]),
        })
    }
}

impl<E: Tail> ByTiles<E> {
    /// Lines of steps `steps` of panel `p` where they lie or, [packed for all](super::along), in `along`. What each task packs is asked for as
    /// what comes before it is packed.
    pub(super) fn asks(
        &self,
        product: &Product<'_>,
        item: Item,
        (p, steps): (usize, &Range<usize>),
        along: Option<&Along<'_>>,
    ) -> Option<Asks> {
        const { assert!(STEP_BYTES == 2 * LINE * UNITS, "a step is a unit") };
        if steps.len() != self.deep(item) {
            return None;
        }
        if let Some(along) = along {
            let at = along.block(p, steps).at[0];
            return Some(Asks { at, line: LINE, step: 2 * LINE, unit: along.apart() });
        }
        if let Some(of_b) = self.in_panels(product, item, p, steps) {
            return Some(Asks { at: of_b.at[0], line: LINE, step: of_b.ld, unit: steps.len() * of_b.ld });
        }
        let (b, columns, elements) = (&product.b, self.panels.columns(p), self.holds.elements());
        match self.b {
            Source::Left(lines) if lines.are_rows() && columns.len() == 2 * UNITS => {
                let at = |column: usize| ROW_BYTES / elements * b.place(item.b, column, steps.start * elements);
                let ld = at(columns.start + 1) - at(columns.start);
                Some(Asks { at: b.codes.as_ptr().wrapping_add(at(columns.start)), line: ld, step: LINE, unit: 2 * ld })
            }
            _ => None,
        }
    }
}

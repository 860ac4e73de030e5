//! What attention and its backward twin plan alike: who runs it, in which numbers, and how rows are cut into tiles.

use super::{
    machine::{Compiled, Machine, VARIANTS, is_in},
    sight::MAX_ROWS,
};
use crate::{kernel, rows::with_real};
use kp_hal::{Caps, DType, Support, Unsupported, Variant, Variants, op::AttentionSpec, source_hash};
use std::borrow::Cow;

/// Hash of the sources that both passes are made of.
pub(crate) const SOURCES: u64 = source_hash(include_bytes!("plan.rs"))
    ^ source_hash(include_bytes!("chunk.rs"))
    ^ source_hash(include_bytes!("product.rs"))
    ^ source_hash(include_bytes!("machine.rs"))
    ^ source_hash(include_bytes!("../simd/arith.rs"))
    ^ source_hash(include_bytes!("places.rs"))
    ^ source_hash(include_bytes!("sight.rs"))
    ^ source_hash(include_bytes!("../simd/vector.rs"));

/// The variants that `caps` run.
pub(crate) fn supports(caps: &Caps) -> Support {
    let otherwise = Unsupported::Kind { got: caps.kind };
    Variants::filter(VARIANTS, otherwise, |variant| is_in(caps, variant))
}

/// One of the two passes, planned; a row is a query in one head of its group.
#[derive(Clone, Copy)]
pub(crate) struct Code {
    pub(crate) spec: AttentionSpec,
    pub(crate) variant: Variant,
}

/// How the rows of one sequence and key head are cut.
#[derive(Clone, Copy)]
pub(crate) struct Tiling<R> {
    pub(crate) machine: Machine<R>,
    /// Rows of a tile.
    pub(crate) tile: usize,
    /// How many tiles there are.
    pub(crate) tiles: usize,
}

impl Code {
    /// Whether f64 is needed.
    pub(crate) fn is_wide(&self) -> bool {
        [self.spec.q.dtype, self.spec.kv.dtype].contains(&DType::F64)
    }

    fn rows(&self) -> usize {
        self.spec.q_len as usize * (self.spec.q_heads / self.spec.kv_heads) as usize
    }

    pub(crate) fn tiling<R: Compiled>(&self) -> Tiling<R> {
        let rows = self.rows();
        let machine = R::machine(self.variant, rows <= 16);
        let tile = rows.next_multiple_of(machine.lanes).clamp(machine.lanes, MAX_ROWS);
        Tiling { machine, tile, tiles: rows.div_ceil(tile) }
    }

    /// Panels of rows are computed whole.
    pub(crate) fn note(&self) -> Option<Cow<'static, str>> {
        let lanes = with_real!(self.is_wide(), R => self.tiling::<R>().machine.lanes);
        kernel::pads([("queries of a key head", self.rows(), lanes)])
    }
}

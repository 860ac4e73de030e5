//! How products by tiles are cut into tasks for threads.

use super::lines::{BLOCK, STEP_BYTES};
use crate::{amx::ROW_BYTES, gemm::finish::Panels};

/// Most rows of a task, whose steps of a run and whose sums stay in L2; and most bytes of these sums.
pub(super) const MOST_ROWS: usize = 512;
pub(super) const MOST_SUMS: usize = 512 << 10;

/// The same where L2 has few ways and B is read where it lies, so that fewer rows do not pack it once more. On Zen 4, whose megabyte
/// has eight, 512×4096×4096 in panels took 0.935 of the time so; beside busy neighbours it reached 0.72 of the peak by 512 rows, 0.92 by 128.
const FEW_ROWS: usize = 128;
const FEW_SUMS: usize = 256 << 10;

/// Steps of k of a run: a block of B, 32 KB of tiles, stays in L1.
pub(super) const DEEP: usize = 16;

/// The same of vectors where L2 has few ways: B comes from L2 as fast as they need it, and sums are added to less often. On Zen 4 panels, whose
/// runs then end with k at 2048, took 0.98 to 0.99 of the time, and B in rows, of which blocks are packed, 0.97.
const DEEP_LYING: usize = 64;
const DEEP_PACKED: usize = 32;

/// Bytes of A's rows of a task, at most, that stay in L2 from one task to the next beside sums and what passes; tiles take half of
/// [`MOST_ROWS`] if those stay and all do not, or if no task packs B for itself. (One thread, 2048³ of bf16 in panels: 18.2 ms by 256 rows, 22.8
/// by 512; 1024³ 2.06 and 1.97. On Granite Rapids 1024³ 2.2 and 2.5.)
pub(super) const MOST_OF_A: usize = 1 << 20;

/// The least blocks of rows that are worth packing a block of B for, where columns can be divided instead.
const LEAST_BLOCKS: usize = 4;

/// Tasks that each thread finds, where there is enough for them: so many products of a block of rows, a panel and a step
/// for each.
const TASKS: usize = 3;
const ENOUGH: usize = 1024;

/// Steps of blocks of A, two megabytes, that each thread packs for itself rather than half of it for both. With two cores on two
/// chiplets of Zen 5, which fetch lines from each other in a microsecond, 256³, 512³ and 1024³ took 82, 393 and 2710 µs when A was
/// packed together, and take 55, 343 and 2600; eight megabytes are no faster so.
const OWN_STEPS: usize = (2 << 20) / STEP_BYTES;

/// What is to be cut: rows, panels and steps of k.
pub(super) struct Work {
    pub(super) rows: usize,
    pub(super) panels: Panels,
    pub(super) steps: usize,
    /// Whether B need not be packed.
    pub(super) b_lies: bool,
    /// Whether each task packs blocks of it, which is work of its own.
    pub(super) b_is_packed: bool,
    /// Whether packing A is little beside multiplying by a few panels.
    pub(super) packs_fast: bool,
    /// Whether tiles multiply, several times as fast as vectors.
    pub(super) tiles: bool,
    /// Whether L2 keeps little beside what passes through it.
    pub(super) spares_l2: bool,
}

/// Who packs A.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Packs {
    /// All threads, for all, in a loop of its own before the tasks.
    Together,
    /// Each thread, for itself: it takes less time than to fetch what another core has just written.
    Thread,
    /// Each task the rows that it needs, since a loop over threads would take longer.
    Task,
    /// Each thread the rows of its tasks, which follow each other: they stay in its caches, and no other thread has them.
    Rows,
}

/// How it is cut.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    /// Tasks there are along m and n.
    pub(super) grid: [usize; 2],
    /// Who packs A.
    pub(super) packs: Packs,
    /// Steps of a run of k.
    pub(super) deep: usize,
}

impl Work {
    /// Cut for so many threads.
    pub(super) fn cut(&self, threads: usize) -> Cut {
        let panels = &self.panels;
        let (blocks, units) = (self.rows.div_ceil(BLOCK), panels.count() / panels.unit());
        let deep = match (self.spares_l2, self.b_lies) {
            (false, _) => DEEP,
            (true, true) => DEEP_LYING,
            (true, false) => DEEP_PACKED,
        };
        if blocks == 0 || units == 0 {
            return Cut { grid: [0, 0], packs: Packs::Together, deep };
        }
        let stay = |rows: usize| rows * self.steps * ROW_BYTES <= MOST_OF_A;
        let (most_rows, most_sums) = match self.b_lies && self.spares_l2 {
            true => (FEW_ROWS, FEW_SUMS),
            false if self.tiles && (!self.b_is_packed || !stay(MOST_ROWS) && stay(MOST_ROWS / 2)) => {
                (MOST_ROWS / 2, MOST_SUMS)
            }
            false => (MOST_ROWS, MOST_SUMS),
        };
        let (mut down, most) = (blocks.div_ceil(most_rows / BLOCK), most_sums / (BLOCK * BLOCK * size_of::<f32>()));
        // Where threads have little to do, most of it was waiting for A, and reading what others had packed of it. So tasks
        // are two for each thread, of few rows, which they pack themselves. (On sixteen threads 1024³, 512³ and 256³ with B
        // in panels took 460, 73 and 26 µs when A was packed first, and take 424, 67 and 18; 4 by 4 tasks 481, 88 and 21.)
        // Where B must be packed, each task does, and few threads would do little else: two took 5 % longer so at 512³.
        let few = 2 * LEAST_BLOCKS;
        let packs_cheaply = self.b_lies || few <= 2 * threads;
        if threads > 1
            && packs_cheaply
            && blocks >= few
            && blocks * panels.count() * self.steps < TASKS * threads * ENOUGH
        {
            let across = (2 * threads).div_ceil(few).min(units);
            if blocks.div_ceil(few) * units.div_ceil(across) * panels.unit() <= most {
                return Cut { grid: [few, across], packs: Packs::Task, deep };
            }
        }
        // Sums stay near.
        let mut across = units.div_ceil((most / (blocks.div_ceil(down) * panels.unit())).max(1));
        let wanted = if threads == 1 { 1 } else { TASKS * threads };
        while down * across < wanted {
            // Both operands are read from afar, but B may also be packed once more for each task below another.
            let (high, wide) = (blocks / down, units * panels.unit() / across);
            match (high >= 2 * LEAST_BLOCKS && high > 4 * wide, across < units) {
                (false, true) => across += 1,
                (true, _) => down += 1,
                (false, false) if down < blocks => down += 1,
                (false, false) => break,
            }
        }
        // As much for one thread as for another.
        let across = if down % threads != 0 { across.next_multiple_of(threads).min(units) } else { across };
        let fast = self.packs_fast || self.tiles && stay(blocks.div_ceil(down) * BLOCK);
        let packs = if fast && down % threads == 0 {
            Packs::Rows
        } else if self.packs_fast && panels.count() >= 4 * threads && blocks * self.steps <= OWN_STEPS {
            Packs::Thread
        } else {
            Packs::Together
        };
        Cut { grid: [down, across], packs, deep }
    }
}

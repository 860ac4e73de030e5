//! The register tile: some rows of A times one panel of B, summed in registers over a run of k.
//!
//! ```text
//!              b    NV vectors of each row
//!            ┌────────────────┐
//!        k   │                │
//!            └────────────────┘
//!     a  k        c
//!   ┌───────┐┌────────────────┐
//!   │ ROWS  ││ ROWS × NV sums │   a number of A is spread over a vector as it is loaded, and meets NV vectors of B
//!   └───────┘└────────────────┘
//! ```
//! With four vectors of B, six rows of A and 24 sums, 32 registers are full and an AVX-512 step is 24 multiply-adds for
//! ten loads. Twelve rows and two vectors are as many sums for 14 loads, and 6 % slower on a processor with two units
//! (Ice Lake, from L1); eight rows and three vectors are as fast, but 48 columns divide few matrices.
//!
//! What counts is how few instructions there are to a multiply-add, since another program may have half of the core's: B is
//! not asked for from L2, where the processor fetches it ahead by itself and four more instructions a step cost a tenth;
//! numbers of A that the multiply-adds spread by themselves save instructions, but are as many loads, and lose a third.

use crate::{
    caps::asks_first_cache,
    memory::prefetch,
    numbers::Real,
    simd::{Work, vector::Vectors},
};
use std::{marker::PhantomData, slice};

/// Most rows of a tile.
pub(crate) const ROWS: usize = 6;

/// One tile: `rows` × `NV` vectors.
///
/// `a` points to the first of `rows` rows of `k` numbers, `lda` apart; `b` to `k` rows of `NV` vectors, `ldb` apart; `c`
/// to `rows` rows of `NV` vectors, `ldc` apart.
#[derive(Clone, Copy)]
pub(crate) struct Tile<R> {
    pub(crate) rows: usize,
    pub(crate) k: usize,
    pub(crate) a: *const R,
    pub(crate) lda: usize,
    pub(crate) b: *const R,
    pub(crate) ldb: usize,
    pub(crate) c: *mut R,
    pub(crate) ldc: usize,
    /// Whether sums are stored, rather than added to what is there.
    pub(crate) first: bool,
    /// What is wanted next.
    pub(crate) ahead: Ahead,
}

/// Memory that is wanted next: `count` runs of `bytes` bytes, `step` bytes apart. It may lie anywhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) at: *const u8,
    pub(crate) bytes: usize,
    pub(crate) count: usize,
    pub(crate) step: usize,
}

impl Wanted {
    /// `bytes` bytes in a row.
    pub(crate) fn row<T>(at: *const T, bytes: usize) -> Self {
        Self { at: at.cast(), bytes, count: 1, step: 0 }
    }

    /// Shared by `tiles` tiles of `k` steps, so that each asks for some runs' next bytes; more of them at a time, if tiles are few.
    /// The divisions are done here: once for a panel, not for each tile, of whose time they were a hundredth.
    pub(crate) fn shared(self, tiles: usize, k: usize) -> Shared {
        let (steps, near) = ((k / GROUP).max(1), asks_first_cache());
        let lines = (self.count * self.bytes).div_ceil(LINE).div_ceil(tiles * steps).max(LINES);
        let lanes = if self.count == 1 && !near { lines.min(LANES) } else { 1 };
        let width = LINE * lines.div_ceil(lanes);
        Shared { wanted: self, steps, width, lanes, each: self.count.div_ceil(steps), near }
    }
}

/// Memory that is wanted next, divided among tiles.
#[derive(Clone, Copy)]
pub(crate) struct Shared {
    wanted: Wanted,
    /// Requests of a tile, and bytes of each in each lane.
    steps: usize,
    width: usize,
    /// Parts of a single run that are asked for side by side.
    lanes: usize,
    /// Tiles that ask for the same bytes of different runs.
    each: usize,
    near: bool,
}

impl Shared {
    /// What the `i`th tile asks for.
    pub(crate) fn part(&self, i: usize) -> Ahead {
        let Self { wanted: Wanted { at, bytes, count, step }, steps, width, lanes, each, near } = *self;
        let apart = bytes.div_ceil(LINE).div_ceil(lanes) * LINE;
        let (first, step, there) = if count == 1 {
            let first = i * steps * width;
            (first, width, first < apart)
        } else {
            let across = i / each * width;
            (i % each * steps * step + across, step, across < bytes)
        };
        let at = at.wrapping_add(first);
        match (there, lanes) {
            (false, _) => Ahead::NONE,
            // The lines of a single lane are so many lanes of one line.
            (true, 1) => Ahead { at, step, lanes: width / LINE, apart: LINE, lines: 1, near },
            (true, _) => Ahead { at, step, lanes, apart, lines: width / LINE, near },
        }
    }
}

/// What a tile asks for while it computes, so that it is near when its turn comes: some lines every [`GROUP`] steps of k,
/// `step` bytes apart, in each of some lanes, `apart` bytes from one to the next.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    at: *const u8,
    step: usize,
    lanes: usize,
    apart: usize,
    lines: usize,
    /// Whether the first cache is asked, not the second.
    near: bool,
}

impl Ahead {
    /// Nothing.
    pub(crate) const NONE: Self = Self { at: std::ptr::null(), step: 0, lanes: 0, apart: 0, lines: 0, near: false };

    /// A line of each of `lanes` lanes, `apart` bytes from one to the next, and then the lines that follow them.
    pub(crate) fn lines(at: *const u8, lanes: usize, apart: usize) -> Self {
        Self { at, step: LINE, lanes, apart, lines: 1, near: asks_first_cache() }
    }

    /// Asks for what is wanted before a group of steps.
    #[inline(always)]
    pub(crate) fn ask(&mut self) {
        for line in 0..self.lines {
            for lane in 0..self.lanes {
                let at = self.at.wrapping_add(lane * self.apart + line * LINE);
                if self.near {
                    prefetch::<1>(at);
                } else {
                    prefetch::<2>(at);
                }
            }
        }
        self.at = self.at.wrapping_add(self.step);
    }
}

/// Steps of k between two requests; they are unrolled, so that addresses cost nothing.
pub(crate) const GROUP: usize = 8;

/// Groups of steps before the end of a tile of so many vectors, some 800 cycles, when what sums are added to is asked for.
/// Asked for at the beginning it is gone again, since a panel of B that is larger than L1 passes meanwhile.
const fn late(vectors: usize) -> usize {
    32 / vectors
}

/// The bytes of a cache line, and the least of them that is asked for at a time.
const LINE: usize = 64;
const LINES: usize = 2;

/// Most lanes. Intel's processors fetch ahead within pages that are read, so several are asked for side by side: a lab of six rows by
/// panels in memory read 10.9 GB/s in one lane, 12.5 in two, 14.8 in four and eight, 14.3 in sixteen on an Emerald Rapids core.
const LANES: usize = 4;

impl<R: Real> Tile<R> {
    /// Computes it.
    ///
    /// # Safety
    /// The pointers are aligned and name what they say, of which nothing else writes A and B or accesses C.
    #[inline(always)]
    pub(crate) unsafe fn run<I: Vectors<R>, const NV: usize>(self) {
        macro_rules! of {
            ($rows:literal) => {
                I::run(Rows::<I, R, $rows, NV>(self, PhantomData))
            };
        }
        match self.rows {
            0 => {}
            1 => of!(1),
            2 => of!(2),
            3 => of!(3),
            4 => of!(4),
            5 => of!(5),
            _ => of!(6),
        }
    }
}

/// How many of `left` rows the next tile takes, so that none has so few that its sums wait for each other.
#[inline(always)]
pub(crate) fn next_rows(left: usize) -> usize {
    match left {
        0..=6 => left,
        7 | 8 => 4,
        9 => 5,
        _ => ROWS,
    }
}

/// A tile of a known number of rows. Only [`Tile::run`] makes one, by whose promise the pointers are valid.
struct Rows<I, R, const MR: usize, const NV: usize>(Tile<R>, PhantomData<fn() -> I>);

impl<I: Vectors<R>, R: Real, const MR: usize, const NV: usize> Work for Rows<I, R, MR, NV> {
    #[inline(always)]
    fn run(self) {
        let Tile { k, a, lda, b, ldb, c, ldc, first, mut ahead, .. } = self.0;
        let mut sums = [[I::splat(R::ZERO); NV]; MR];
        // SAFETY: as `Tile::run` was promised; prefetching may name anything.
        unsafe {
            let (mut a, mut b) = (a, b);
            let groups = k / GROUP;
            let late = late(NV).min(groups.saturating_sub(1));
            for left in (0..groups).rev() {
                if left == late {
                    for row in 0..MR {
                        for j in 0..NV {
                            prefetch::<1>(c.wrapping_add(row * ldc + j * I::N).cast());
                        }
                    }
                }
                ahead.ask();
                for _ in 0..GROUP {
                    step::<I, R, MR, NV>(&mut sums, a, lda, b);
                    (a, b) = (a.wrapping_add(1), b.wrapping_add(ldb));
                }
            }
            for _ in 0..k % GROUP {
                step::<I, R, MR, NV>(&mut sums, a, lda, b);
                (a, b) = (a.wrapping_add(1), b.wrapping_add(ldb));
            }
            for (row, sums) in sums.iter().enumerate() {
                for (j, &sum) in sums.iter().enumerate() {
                    let c = slice::from_raw_parts_mut(c.add(row * ldc + j * I::N), I::N);
                    let total = if first { sum } else { I::times_plus(sum, I::splat(R::ONE), I::load(c)) };
                    I::store(total, c);
                }
            }
        }
    }
}

/// A step of k.
///
/// # Safety
/// `a` points to a column of `MR` numbers, `lda` apart, `b` to `NV` vectors.
#[inline(always)]
unsafe fn step<I: Vectors<R>, R: Real, const MR: usize, const NV: usize>(
    sums: &mut [[I::V; NV]; MR],
    a: *const R,
    lda: usize,
    b: *const R,
) {
    let mut of_b = [I::splat(R::ZERO); NV];
    for (j, of_b) in of_b.iter_mut().enumerate() {
        // SAFETY: passed on.
        *of_b = I::load(unsafe { slice::from_raw_parts(b.wrapping_add(j * I::N), I::N) });
    }
    for (row, sums) in sums.iter_mut().enumerate() {
        // SAFETY: passed on.
        let of_a = I::splat(unsafe { *a.wrapping_add(row * lda) });
        for (sum, &of_b) in sums.iter_mut().zip(&of_b) {
            *sum = I::times_plus(of_a, of_b, *sum);
        }
    }
}

//! Rows of K or V of a head against all rows of the query that share them, some in registers at a time.

use super::{
    ahead::Lines,
    fours::{Few, LD},
};
use std::marker::PhantomData;

/// Rows of the query that meet them in registers.
const TOGETHER: usize = 4;

/// How rows of K or V of a type, `N` of them at a time, a multiple of four, meet those of a query.
pub(super) trait Meets {
    /// Products of rows of Q, one after the other, with rows of K: to the front of `s` and each multiple of [`LD`]. As many
    /// lines are asked for as are read, a few at a time.
    fn dots<const ROWS: usize, const N: usize>(q: &[f32], k: &Few<'_, N>, s: &mut [f32], soon: Lines);

    /// Adds rows of V times their weights, from `place` on of each row of weights, to rows of sums; lines are asked for as
    /// there.
    fn add<const ROWS: usize, const N: usize>(s: &[f32], place: usize, v: &Few<'_, N>, acc: &mut [f32], soon: Lines);
}

/// What is done with the rows of `N` keys of a head, whose first has a place. Not a closure, which would not be compiled for the
/// instructions of the function that it is in.
pub(super) trait Takes<const N: usize> {
    /// `soon` is to be asked for meanwhile.
    fn take(&mut self, head: usize, place: usize, rows: &Few<'_, N>, soon: Lines);

    /// All were taken.
    #[inline(always)]
    fn end(&mut self) {}
}

/// Products of rows of Q with rows of K.
pub(super) struct Dots<'m, M> {
    pub(super) q: &'m [f32],
    pub(super) s: &'m mut [f32],
    pub(super) group: usize,
    pub(super) width: usize,
    pub(super) by: PhantomData<fn() -> M>,
}

impl<M: Meets, const N: usize> Takes<N> for Dots<'_, M> {
    #[inline(always)]
    fn take(&mut self, head: usize, place: usize, k: &Few<'_, N>, mut soon: Lines) {
        let (group, width) = (self.group, self.width);
        let (q, s, mut row) = (&self.q[head * group * width..], &mut self.s[head * group * LD..], 0);
        while row < group {
            let (q, s) = (&q[row * width..], &mut s[row * LD + place..]);
            row += if row + TOGETHER <= group {
                M::dots::<TOGETHER, N>(q, k, s, soon);
                TOGETHER
            } else {
                M::dots::<1, N>(q, k, s, soon);
                1
            };
            soon = Lines::none(k.first());
        }
    }
}

/// Sums of rows of V times their weights.
pub(super) struct Adds<'m, M> {
    pub(super) s: &'m [f32],
    pub(super) acc: &'m mut [f32],
    pub(super) group: usize,
    pub(super) width: usize,
    pub(super) by: PhantomData<fn() -> M>,
}

impl<M: Meets, const N: usize> Takes<N> for Adds<'_, M> {
    #[inline(always)]
    fn take(&mut self, head: usize, place: usize, v: &Few<'_, N>, mut soon: Lines) {
        let (group, width) = (self.group, self.width);
        let (s, acc, mut row) = (&self.s[head * group * LD..], &mut self.acc[head * group * width..], 0);
        while row < group {
            let (s, acc) = (&s[row * LD..], &mut acc[row * width..]);
            row += if row + TOGETHER <= group {
                M::add::<TOGETHER, N>(s, place, v, acc, soon);
                TOGETHER
            } else {
                M::add::<1, N>(s, place, v, acc, soon);
                1
            };
            soon = Lines::none(v.first());
        }
    }
}

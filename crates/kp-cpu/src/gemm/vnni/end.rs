//! What becomes of sums once they are complete.

use crate::{numbers::Real, simd::Work};

/// Rows of sums, times what they and their columns are worth.
pub(crate) struct End<'w, E, F> {
    /// Of each row at least as many as there are columns, `ld` apart.
    pub(crate) sums: &'w [u32],
    pub(crate) ld: usize,
    /// Whether sums are i32, not f32.
    pub(crate) is_whole: bool,
    /// What each column of whole sums has too much, if anything.
    pub(crate) excess: Option<&'w [u32]>,
    pub(crate) rows: &'w [E],
    pub(crate) by: &'w [E],
    /// Where a row goes, as many numbers as there are columns.
    pub(crate) ends: F,
}

impl<'w, E: Real, F: FnMut(usize) -> &'w mut [E]> Work for End<'w, E, F> {
    #[inline(always)]
    fn run(self) {
        let Self { sums, ld, is_whole, excess, rows, by, mut ends } = self;
        let whole = |sum: i32| {
            if size_of::<E>() == size_of::<f32>() { E::from_f32(sum as f32) } else { E::from_f64(f64::from(sum)) }
        };
        for (r, (&row, sums)) in rows.iter().zip(sums.chunks(ld)).enumerate() {
            let all = ends(r)[..by.len()].iter_mut().zip(&sums[..by.len()]).zip(by);
            match excess {
                _ if !is_whole => {
                    all.for_each(|((end, &sum), &by)| *end = E::from_f32(f32::from_bits(sum)) * (row * by));
                }
                None => all.for_each(|((end, &sum), &by)| *end = whole(sum as i32) * (row * by)),
                Some(excess) => all.zip(excess).for_each(|(((end, &sum), &by), &excess)| {
                    *end = whole(sum.wrapping_sub(excess) as i32) * (row * by);
                }),
            }
        }
    }
}

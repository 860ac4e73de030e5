//! What becomes of sums once they are complete.

use crate::{numbers::Real, simd::Work};

/// Sums of a row, times what it and its columns are worth.
pub(crate) struct End<'w, E> {
    pub(crate) sums: &'w [u32],
    /// Whether sums are i32, not f32.
    pub(crate) is_whole: bool,
    pub(crate) row: E,
    pub(crate) by: &'w [E],
    pub(crate) ends: &'w mut [E],
}

impl<E: Real> Work for End<'_, E> {
    #[inline(always)]
    fn run(self) {
        let Self { sums, is_whole, row, by, ends } = self;
        let all = ends.iter_mut().zip(sums).zip(by);
        if is_whole && size_of::<E>() == size_of::<f32>() {
            all.for_each(|((end, &sum), &by)| *end = E::from_f32(sum as i32 as f32) * (row * by));
        } else if is_whole {
            all.for_each(|((end, &sum), &by)| *end = E::from_f64(f64::from(sum as i32)) * (row * by));
        } else {
            all.for_each(|((end, &sum), &by)| *end = E::from_f32(f32::from_bits(sum)) * (row * by));
        }
    }
}

//! Where the elements of a tensor lie in its buffer.

use kp_hal::{
    DType,
    op::{Order, Rows},
};
use std::fmt;

/// Most dimensions a tensor may have.
pub const MAX_RANK: usize = 6;

/// Sizes and distances of up to [`MAX_RANK`] dimensions, outermost first, and where the first element lies.
///
/// Distances are in elements. Of two views of one buffer both may be read; nothing is ever written through a view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    sizes: [usize; MAX_RANK],
    strides: [usize; MAX_RANK],
    rank: usize,
    /// Elements before the first one.
    pub(crate) start: usize,
}

/// Two dimensions of a view as a kernel wants them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Plane {
    /// Matrices, each `rows` × `cols`.
    pub(crate) batch: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) order: Order,
    /// Between rows, or columns if `order` says so.
    pub(crate) ld: usize,
    /// Between matrices.
    pub(crate) stride: usize,
}

impl Extent {
    /// Rows one behind the other, each starting at a whole byte; `None` past [`MAX_RANK`] or 2⁶³ − 1 elements.
    pub(crate) fn tight(sizes: &[usize], dtype: DType) -> Option<Self> {
        let rank = sizes.len();
        let mut extent = Self { sizes: [1; MAX_RANK], strides: [1; MAX_RANK], rank, start: 0 };
        extent.sizes.get_mut(..rank)?.copy_from_slice(sizes);
        let mut next = 1_usize;
        for i in (0..rank).rev() {
            extent.strides[i] = next;
            // A dimension of 0 must not hide that the others overflow: strides are computed with them as well.
            next = next.checked_mul(sizes[i].max(1)).filter(|&n| n <= isize::MAX as usize)?;
            if i + 1 == rank {
                next = next.checked_next_multiple_of(dtype.per_byte() as usize)?;
            }
        }
        Some(extent)
    }

    pub(crate) fn sizes(&self) -> &[usize] {
        &self.sizes[..self.rank]
    }

    pub(crate) fn strides(&self) -> &[usize] {
        &self.strides[..self.rank]
    }

    /// How many elements.
    pub(crate) fn count(&self) -> usize {
        self.sizes().iter().product()
    }

    /// Elements from the first to the last one, both included.
    pub(crate) fn span(&self) -> usize {
        if self.count() == 0 {
            return 0;
        }
        self.sizes().iter().zip(self.strides()).map(|(size, stride)| (size - 1) * stride).sum::<usize>() + 1
    }

    /// The first and last sizes as a matrix: all but the last dimension are rows.
    pub(crate) fn rows_and_cols(&self) -> (usize, usize) {
        match self.sizes() {
            [] => (1, 1),
            [outer @ .., cols] => (outer.iter().product(), *cols),
        }
    }

    /// Whether rows follow each other without gaps, as in [`Extent::tight`].
    pub(crate) fn is_tight(&self, dtype: DType) -> bool {
        let tight = Self::tight(self.sizes(), dtype).expect("it is a view of a tensor that exists");
        let mut each = self.sizes().iter().zip(self.strides()).zip(tight.strides());
        self.count() == 0 || each.all(|((&size, stride), tight)| size == 1 || stride == tight)
    }

    /// The same elements with dimensions `a` and `b` exchanged.
    pub(crate) fn swapped(mut self, a: usize, b: usize) -> Self {
        self.sizes.swap(a, b);
        self.strides.swap(a, b);
        self
    }

    /// The part at `range` of dimension `dim`.
    pub(crate) fn sliced(mut self, dim: usize, range: std::ops::Range<usize>) -> Self {
        self.start += range.start * self.strides[dim];
        self.sizes[dim] = range.len();
        self
    }

    /// The part at `index` of the outermost dimension, which is dropped.
    pub(crate) fn inner(&self, index: usize) -> Self {
        let mut inner = Self { start: self.start + index * self.strides[0], ..*self };
        inner.sizes.rotate_left(1);
        inner.strides.rotate_left(1);
        inner.rank -= 1;
        inner
    }

    /// The same elements in the same order as `sizes`, or `None` if no strides say so (or the counts differ).
    pub(crate) fn reshaped(&self, sizes: &[usize], dtype: DType) -> Option<Self> {
        let mut new = Self { start: self.start, ..Self::tight(sizes, dtype)? };
        if new.count() != self.count() {
            return None;
        }
        if self.count() == 0 {
            return Some(new);
        }
        // Rows of packed types may end in half a byte, so that a tight tensor need not be one run.
        let runs = self.runs();
        let mut runs = runs.iter().rev();
        let (mut left, mut stride) = *runs.next().unwrap_or(&(1, 1));
        for i in (0..new.rank).rev() {
            let size = new.sizes[i];
            while left == 1 && size != 1 {
                (left, stride) = *runs.next()?;
            }
            if size != 1 {
                if !left.is_multiple_of(size) {
                    return None;
                }
                new.strides[i] = stride;
                left /= size;
                stride *= size;
            }
        }
        Some(new)
    }

    /// The dimensions, neighbours joined where one continues the other; without those of size 1.
    fn runs(&self) -> Vec<(usize, usize)> {
        let mut runs: Vec<(usize, usize)> = Vec::with_capacity(self.rank);
        for (&size, &stride) in self.sizes().iter().zip(self.strides()).filter(|(size, _)| **size != 1) {
            match runs.last_mut() {
                Some(outer) if outer.1 == stride * size => *outer = (outer.0 * size, stride),
                _ => runs.push((size, stride)),
            }
        }
        runs
    }

    /// All but the last dimension as the rows of one matrix, or `None` if their distances differ or numbers
    /// within a row are apart.
    pub(crate) fn as_rows(&self, dtype: DType) -> Option<(usize, usize, usize)> {
        let (rows, cols) = self.rows_and_cols();
        let tight = Rows::tight(dtype, u32::try_from(cols).ok()?).ld as usize;
        if rows == 0 || cols == 0 {
            return Some((rows, cols, tight));
        }
        let matrix = self.reshaped(&[rows, cols], dtype)?;
        let ld = if rows == 1 { tight } else { matrix.strides[0] };
        let contiguous = cols == 1 || matrix.strides[1] == 1;
        (contiguous && ld >= cols && ld.is_multiple_of(dtype.per_byte() as usize)).then_some((rows, cols, ld))
    }

    /// The last two dimensions as matrices, the others as their batch; `None` if that is no regular pattern.
    /// A vector is one row.
    pub(crate) fn as_planes(&self, dtype: DType) -> Option<Plane> {
        let (outer, rows, cols) = match self.sizes() {
            [] => (&[][..], 1, 1),
            [cols] => (&[][..], 1, *cols),
            [outer @ .., rows, cols] => (outer, *rows, *cols),
        };
        let batch = outer.iter().product();
        if batch == 0 || rows == 0 || cols == 0 {
            let ld = cols.checked_next_multiple_of(dtype.per_byte() as usize)?;
            return Some(Plane { batch, rows, cols, order: Order::Row, ld, stride: rows * ld });
        }
        let cube = self.reshaped(&[batch, rows, cols], dtype)?;
        let [stride, down, across] = [cube.strides[0], cube.strides[1], cube.strides[2]];
        let per_byte = dtype.per_byte() as usize;
        let (order, ld, extent) = match (rows, cols) {
            (1, _) if cols == 1 || across == 1 => (Order::Row, cols.next_multiple_of(per_byte), cols),
            (_, 1) if down == 1 && rows > 1 => (Order::Col, rows.next_multiple_of(per_byte), rows),
            _ if across == 1 || cols == 1 => (Order::Row, down, cols),
            _ if down == 1 || rows == 1 => (Order::Col, across, rows),
            _ => return None,
        };
        let lines = if order == Order::Row { rows } else { cols };
        let stride = if batch == 1 { lines * ld } else { stride };
        let whole = ld.is_multiple_of(per_byte) && stride.is_multiple_of(per_byte);
        // Matrices that interleave are none to a kernel, nor are lines.
        let apart = ld >= extent && (batch == 1 || stride >= (lines - 1) * ld + extent);
        (whole && apart).then_some(Plane { batch, rows, cols, order, ld, stride })
    }
}

/// Prints sizes as `4x5`; a single number without dimensions is `scalar`.
impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shape_text(self.sizes()))
    }
}

/// Sizes as messages write them: `4x5`, `scalar`.
pub(crate) fn shape_text(sizes: &[usize]) -> String {
    match sizes {
        [] => "scalar".into(),
        _ => sizes.iter().map(usize::to_string).collect::<Vec<_>>().join("x"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::{E2m1, F32};

    /// The index in the buffer of every element, in order.
    fn indices(e: &Extent) -> Vec<usize> {
        match e.rank {
            0 => vec![e.start],
            _ => (0..e.sizes[0]).flat_map(|i| indices(&e.inner(i))).collect(),
        }
    }

    fn tight(sizes: &[usize]) -> Extent {
        Extent::tight(sizes, F32).expect("small")
    }

    #[test]
    fn reshapes_keep_the_order_of_elements() {
        let sliced = tight(&[4, 12]).sliced(1, 3..9);
        let transposed = tight(&[3, 4]).swapped(0, 1);
        for (from, to) in [
            (tight(&[2, 3, 4]), &[6, 4][..]),
            (tight(&[2, 3, 4]), &[24]),
            (tight(&[2, 3, 4]), &[1, 2, 1, 12, 1]),
            (sliced, &[4, 2, 3]),
            (sliced, &[2, 2, 6]),
            (transposed, &[2, 2, 3]),
            (tight(&[1, 1]), &[]),
            (tight(&[]), &[1, 1, 1]),
            (tight(&[0, 5]), &[5, 0, 7]),
        ] {
            let new = from.reshaped(to, F32).unwrap_or_else(|| panic!("{from} as {to:?}"));
            assert_eq!(new.sizes(), to);
            assert_eq!(indices(&new), indices(&from), "{from} as {to:?}");
        }
        assert_eq!(sliced.reshaped(&[24], F32), None);
        assert_eq!(transposed.reshaped(&[12], F32), None);
        assert_eq!(tight(&[2, 3]).reshaped(&[5], F32), None);
        assert_eq!(tight(&[2, 3]).reshaped(&[3, 3], F32), None);
    }

    #[test]
    fn planes_name_the_same_elements() {
        let cases = [
            tight(&[3, 4]),
            tight(&[3, 4]).swapped(0, 1),
            tight(&[5, 3, 4]).swapped(1, 2),
            tight(&[5, 6, 8]).sliced(1, 2..5).sliced(2, 3..7),
            tight(&[5, 6, 8]).sliced(1, 2..3),
            tight(&[5, 6, 8]).sliced(2, 2..3),
            tight(&[6, 8]).sliced(1, 2..3).swapped(0, 1),
            tight(&[1, 8]).swapped(0, 1),
            tight(&[7]),
            tight(&[]),
            tight(&[2, 3, 4, 5]),
        ];
        for e in cases {
            let p = e.as_planes(F32).unwrap_or_else(|| panic!("{e:?}"));
            let at = |b: usize, r: usize, c: usize| {
                let (outer, inner) = if p.order == Order::Row { (r, c) } else { (c, r) };
                e.start + b * p.stride + outer * p.ld + inner
            };
            let named: Vec<usize> = (0..p.batch)
                .flat_map(|b| (0..p.rows).flat_map(move |r| (0..p.cols).map(move |c| (b, r, c))))
                .map(|(b, r, c)| at(b, r, c))
                .collect();
            assert_eq!(named, indices(&e), "{e:?} as {p:?}");
        }
        assert_eq!(tight(&[4, 2, 3]).swapped(0, 1).as_planes(F32), None, "matrices interleave");
        // Every other number of every other row: no kernel takes that.
        assert_eq!(tight(&[3, 4, 5]).swapped(0, 2).swapped(1, 2).as_planes(F32), None);
    }

    #[test]
    fn rows_are_found_where_they_are_regular() {
        assert_eq!(tight(&[2, 3, 4]).as_rows(F32), Some((6, 4, 4)));
        assert_eq!(tight(&[3, 12]).sliced(1, 4..8).as_rows(F32), Some((3, 4, 12)));
        assert_eq!(tight(&[2, 3, 12]).sliced(2, 4..8).as_rows(F32), Some((6, 4, 12)));
        assert_eq!(tight(&[2, 3, 12]).sliced(1, 0..2).as_rows(F32), None);
        assert_eq!(tight(&[3, 4]).swapped(0, 1).as_rows(F32), None);
        assert_eq!(tight(&[]).as_rows(F32), Some((1, 1, 1)));
        assert_eq!(tight(&[0, 4]).as_rows(F32), Some((0, 4, 4)));
    }

    #[test]
    fn packed_rows_start_at_whole_bytes() {
        let odd = Extent::tight(&[4, 5], E2m1).expect("small");
        assert_eq!((odd.strides(), odd.span()), (&[6, 1][..], 23));
        assert_eq!(odd.as_rows(E2m1), Some((4, 5, 6)));
        assert!(odd.is_tight(E2m1));
        assert_eq!(odd.reshaped(&[20], E2m1), None);
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        assert_eq!(Extent::tight(&[usize::MAX, 2], F32), None);
        assert_eq!(Extent::tight(&[0, usize::MAX, usize::MAX], F32), None);
        assert_eq!(Extent::tight(&[1; MAX_RANK + 1], F32), None);
    }
}

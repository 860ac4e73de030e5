//! Where operands lie and what they are, as shaders are told; and what all of them refuse.

use kp_hal::{
    Caps, DType, Unsupported,
    op::{Format, Matrix, Order, Rows, Scheme},
};

/// Whether a part of a problem suits a kernel, or the first reason why not.
pub(crate) type Check = Result<(), Unsupported>;

/// An order as `*_FORM` of a shader: 0 rows contiguous, 1 columns, 2 panels.
pub(crate) fn form(matrix: &Matrix) -> u32 {
    match matrix.order {
        Order::Row => 0,
        Order::Col => 1,
        Order::Panel { .. } => 2,
    }
}

/// The order of scales as `SCALE_LAYOUT` of a shader: that of its layout, 3 if there is one for all.
pub(crate) fn scale_order(format: Format) -> u32 {
    match (format.scheme, format.scales) {
        (Scheme::None | Scheme::Tensor, _) => 3,
        (_, layout) => layout as u32,
    }
}

/// The distance between rows or columns, or the width and depth of panels, 16 bits each.
pub(crate) fn pushed_ld(matrix: &Matrix) -> u32 {
    match matrix.order {
        Order::Row | Order::Col => matrix.ld,
        Order::Panel { width, depth } => u32::from(width) | u32::from(depth) << 16,
    }
}

/// Types that shaders read as f32: not 64-bit numbers, and not i32, of which f32 holds 24 bits.
///
/// # Errors
/// The first operand of another type.
pub(crate) fn reads(operands: &[(&'static str, DType)]) -> Check {
    match operands.iter().find(|(_, dtype)| dtype.bits() > 32 || *dtype == DType::I32) {
        Some(&(operand, got)) => Err(Unsupported::DType { operand, got }),
        None => Ok(()),
    }
}

/// What shaders store: codes of a byte at least, without scales. Two threads cannot share a byte.
///
/// # Errors
/// The scheme or the type.
pub(crate) fn stores(operand: &'static str, format: Format) -> Check {
    if format.scheme != Scheme::None {
        return Err(Unsupported::Scheme { operand, got: format.to_string() });
    }
    if format.dtype.bits() == 4 || format.dtype.bits() == 64 {
        return Err(Unsupported::DType { operand, got: format.dtype });
    }
    Ok(())
}

/// Sizes that shaders count with 32 bits, twice over without passing the end.
///
/// # Errors
/// The first that is larger.
pub(crate) fn counts(sizes: &[(&'static str, u32)]) -> Check {
    match sizes.iter().find(|(_, size)| *size >= 1 << 31) {
        Some(&(dim, got)) => Err(Unsupported::TooLarge { dim, max: (1 << 31) - 1, got: got.into() }),
        None => Ok(()),
    }
}

/// Columns that a thread takes at once: see `kernels/common/glsl/runs.glsl`.
pub(crate) const RUN: u32 = 8;

/// Runs that a thread keeps, at most.
pub(crate) const MOST_KEPT: u32 = 4;

/// Threads of a group that takes rows of `cols` numbers in runs, and runs that each keeps; 0 if a row has more. A function of the
/// row alone, so that its bits are too.
pub(crate) fn row_runs(caps: &Caps, cols: u32) -> (u32, u32) {
    let most = 1 << caps.max_threads.clamp(1, 512).ilog2();
    let runs = cols.div_ceil(RUN);
    let threads = runs.div_ceil(MOST_KEPT).next_power_of_two().clamp(32, 512).min(most);
    let kept = runs.div_ceil(threads);
    (threads, if kept <= MOST_KEPT { kept } else { 0 })
}

/// How kernels that work element by element share rows among groups: see `kernels/common/glsl/tiles.glsl`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tiles {
    /// Runs of a tile's row.
    pub(crate) across: u32,
    /// Runs of a thread.
    pub(crate) deep: u32,
    /// Tiles of a row.
    pub(crate) tiles_across: u32,
    /// All of them.
    pub(crate) count: u64,
}

/// Tiles of `rows` × `cols` numbers, of each of which `bits` bits are loaded.
pub(crate) fn tiles(caps: &Caps, rows: u32, cols: u32, bits: u32) -> Tiles {
    const THREADS: u32 = 256;
    let runs = cols.div_ceil(RUN).max(1);
    // Of what a tile has beyond the row's end, little; but a few runs, so that neighbours load neighbouring bytes.
    let fits = |across: &u32| u64::from(runs.next_multiple_of(*across)) * 8 <= u64::from(runs) * 9;
    let across = [256, 128, 64, 32, 16].into_iter().find(fits).unwrap_or(runs.min(16).next_power_of_two());
    let tiles_across = runs.div_ceil(across);
    let count = |deep| u64::from(rows.div_ceil(THREADS / across * deep)) * u64::from(tiles_across);
    // 64 bytes under way in each thread, if there is work for all units then.
    let most = (64 / bits.max(1)).clamp(1, 8);
    let busy = |deep: &u32| *deep <= most && count(*deep) >= 8 * u64::from(caps.units);
    let deep = [8, 4, 2].into_iter().find(busy).unwrap_or(1);
    Tiles { across, deep, tiles_across, count: if cols > 0 { count(deep) } else { 0 } }
}

/// The `bits` of [`tiles`] where numbers of `x` are stored as `y`. Runs that widen to 32 bits are stored by halves, with gaps between
/// neighbours that only the second half fills: one at a time, which is a quarter faster than two on an H200.
pub(crate) fn tile_bits(x: DType, y: DType) -> u32 {
    if y.bits() == 32 && x.bits() < 32 { 64 } else { x.bits() }
}

/// Whether every run of every row can be loaded or stored at once, rows being promised to start where `align` says.
pub(crate) fn at_once(rows: &Rows, align: u32) -> bool {
    let bits = rows.dtype().bits();
    // Eight numbers have as many bytes as one has bits; no more than 16 of them go together.
    let bytes = bits.min(16);
    let apart = u64::from(rows.ld) * u64::from(bits) / 8;
    align >= bytes && apart.is_multiple_of(bytes.into())
}

/// The same, and that rows of `cols` numbers are whole runs: what shaders then need not ask is half of their code, and loads that
/// depend on no question are under way together.
pub(crate) fn whole_runs(rows: &Rows, cols: u32, align: u32) -> bool {
    cols.is_multiple_of(RUN) && at_once(rows, align)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kp_hal::DeviceKind;

    #[test]
    fn threads_keep_rows_that_are_not_long() {
        let mut caps = Caps::new(DeviceKind::Gpu, "vulkan1.2");
        caps.max_threads = 1024;
        let of = |cols| row_runs(&caps, cols);
        assert_eq!([1, 129, 4096, 8192, 16384].map(of), [(32, 1), (32, 1), (128, 4), (256, 4), (512, 4)]);
        assert_eq!(of(16385), (512, 0));
    }

    #[test]
    fn tiles_cover_rows_with_little_to_spare() {
        let mut caps = Caps::new(DeviceKind::Gpu, "vulkan1.2");
        caps.units = 132;
        let of = |rows, cols| tiles(&caps, rows, cols, 16);
        assert_eq!(of(16384, 8192), Tiles { across: 256, deep: 4, tiles_across: 4, count: 16384 });
        assert_eq!(of(16384, 1104).across, 16, "138 runs are nine times 16 less 6");
        assert_eq!((of(1 << 20, 24).across, of(1 << 20, 24).tiles_across), (4, 1));
        assert_eq!(of(1, 1 << 20), Tiles { across: 256, deep: 1, tiles_across: 512, count: 512 });
        assert_eq!((of(7, 0).count, of(0, 7).count), (0, 0));
    }

    #[test]
    fn rows_that_start_anywhere_are_taken_one_by_one() {
        let rows = |dtype: DType, ld| Rows { ld, ..Rows::tight(dtype, ld) };
        assert!(
            at_once(&rows(DType::Bf16, 64), 16)
                && at_once(&rows(DType::F32, 4), 16)
                && at_once(&rows(DType::E4m3, 8), 8)
        );
        assert!(!at_once(&rows(DType::Bf16, 60), 16) && !at_once(&rows(DType::Bf16, 64), 8));
    }

    #[test]
    fn what_shaders_cannot_do_is_said() {
        assert!(reads(&[("x", DType::F16), ("c", DType::I32)]).is_err_and(|why| why.to_string() == "c cannot be i32"));
        assert!(stores("y", "e4m3@1x128".parse().expect("a format")).is_err());
        assert!(stores("y", DType::E2m1.into()).is_err() && stores("y", DType::I32.into()).is_ok());
        assert!(counts(&[("m", 1 << 31)]).is_err() && counts(&[("m", u32::MAX >> 1)]).is_ok());
    }
}

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

/// Threads of a group that takes rows of `cols` numbers: a power of two, a few numbers each, as far as the device goes. A
/// function of the row alone, so that its bits are too.
pub(crate) fn row_threads(caps: &Caps, cols: u32) -> u32 {
    let most = 1 << caps.max_threads.clamp(1, 512).ilog2();
    cols.div_ceil(4).next_power_of_two().clamp(32, 512).min(most)
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

/// Whether every run of every row can be loaded or stored at once, rows being promised to start where `align` says.
pub(crate) fn at_once(rows: &Rows, align: u32) -> bool {
    let bits = rows.dtype().bits();
    // Eight numbers have as many bytes as one has bits; no more than 16 of them go together.
    let bytes = bits.min(16);
    let apart = u64::from(rows.ld) * u64::from(bits) / 8;
    align >= bytes && apart.is_multiple_of(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kp_hal::DeviceKind;

    #[test]
    fn rows_have_threads_as_they_have_numbers() {
        let mut caps = Caps::new(DeviceKind::Gpu, "vulkan1.2");
        caps.max_threads = 1024;
        assert_eq!([0, 1, 129, 1000, 1 << 20].map(|cols| row_threads(&caps, cols)), [32, 32, 64, 256, 512]);
        caps.max_threads = 128;
        assert_eq!(row_threads(&caps, 1 << 20), 128);
    }

    #[test]
    fn threads_keep_rows_that_are_not_long() {
        let mut caps = Caps::new(DeviceKind::Gpu, "vulkan1.2");
        caps.max_threads = 1024;
        let of = |cols| row_runs(&caps, cols);
        assert_eq!([1, 129, 4096, 8192, 16384].map(of), [(32, 1), (32, 1), (128, 4), (256, 4), (512, 4)]);
        assert_eq!(of(16385), (512, 0));
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

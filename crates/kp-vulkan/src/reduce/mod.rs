//! Sums, means and extremes.

mod columns;
mod rows;

use kp_hal::{
    KernelList,
    op::{Reduce, ReduceArgs},
};

/// Best first.
pub(crate) const LIST: KernelList<Reduce> = &[&rows::Rows, &columns::Columns];

crate::launch::push! {
    /// Arguments of both shaders.
    struct ReducePush {
        x: u64,
        y: u64,
        offsets: u64,
        rows: u32,
        cols: u32,
        x_ld: u32,
        /// Results of a column.
        segments: u32,
    }
}

impl crate::launch::Arguments<Reduce> for ReducePush {
    fn with(self, args: &ReduceArgs<'_>) -> Self {
        Self { x: args.x.addr(), y: args.y.addr(), offsets: crate::launch::addr(&args.offsets), ..self }
    }
}

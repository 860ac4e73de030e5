//! Matrix products.
//!
//! ```text
//! coopmat.rs  16-bit floats on the matrix unit, where the driver lists one
//! coopmat_whole.rs
//!             whole numbers of 8 bits there
//! coopmat_weights.rs
//!             the same of 16-bit floats by weights of 8 and 4 bits, widened on the way
//! coopmat_few_rows.rs
//!             up to eight or sixteen rows there, weights of 16 bits and fewer, at the speed of memory
//! dot_few_rows.rs
//!             up to eight rows of whole numbers of 8 bits, by the device's dot product
//! few_rows.rs up to eight rows, at the speed of memory, on the ordinary units
//! simt.rs     types of 32 bits and fewer in every form, on any device
//! form.rs     what a problem's layouts, types and epilogue are to the shaders
//! full.rs     the same with scales, groups and whole numbers
//! scales.rs   the step before, where f16 has no room for scales as they are
//! splits.rs   the second step, where k is in parts
//! store.rs    the second step, where D is scaled
//! ```

pub(crate) mod coopmat;
mod coopmat_few_rows;
pub(crate) mod coopmat_weights;
mod coopmat_whole;
mod dot_few_rows;
mod few_rows;
mod form;
pub(crate) mod full;
mod scales;
pub(crate) mod simt;
mod splits;
mod store;

use kp_hal::{
    Caps, KernelList,
    op::{Gemm, GemmProblem, Repro},
};

/// Best first.
pub(crate) const LIST: KernelList<Gemm> = &[
    &coopmat_few_rows::CoopmatFewRows,
    &few_rows::FewRows,
    &dot_few_rows::DotFewRows,
    &coopmat::Coopmat,
    &coopmat_weights::CoopmatWeights,
    &coopmat_whole::CoopmatWhole,
    &simt::Simt,
];

/// Whether a kernel before `name` runs `p` whatever m is, and a row's bits may not depend on m: kernels add in orders of their
/// own, so one of them takes a row for every m, the first that promises it.
fn is_invariant_elsewhere(caps: &Caps, p: &GemmProblem, name: &str) -> bool {
    let before = || LIST.iter().take_while(|kernel| kernel.name() != name);
    p.repro() == Repro::BatchInvariant && before().any(|kernel| kernel.supports(caps, p).is_ok())
}

//! Finds the hardware, ranks its kernels, plans once, launches fast.
//!
//! ```text
//! Problem ─ supports ▶ candidates ─ estimate / measured ▶ rank ─ plan ▶ Plan ─ launch ▶ Queue
//! ```
//!
//! An [`Engine`] is one open device; [`Tensor`] has a method for each op. A problem is a line of text, of which
//! [`hal::op`] has the grammar, and [`Engine::explain`] says what every kernel makes of it:
//!
//! ```
//! use kp_core::{Engine, hal::op::GemmProblem};
//!
//! # fn main() -> kp_core::Result<()> {
//! # if cfg!(not(feature = "cpu")) {
//! #     return Ok(());
//! # }
//! # let engine = Engine::builder().device("cpu").memory_only().open()?;
//! # let _ = stringify!(
//! let engine = Engine::open()?; // the best device here; KP_DEVICE=cpu chooses
//! # );
//! let x = engine.tensor(&[2, 3], &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! let w = engine.tensor(&[2, 3], &[0.5_f32, 0.0, 0.0, 0.0, 1.0, 0.0])?;
//! let y = x.matmul(&w.t())?.relu()?;
//! assert_eq!(y.to_vec::<f32>()?, [0.5, 2.0, 2.0, 5.0]);
//!
//! let problem: GemmProblem = "gemm 1x2x2x3 f32:f32:f32 b=col".parse()?;
//! println!("{}", engine.explain(&problem));
//! # Ok(())
//! # }
//! ```
//! Where nothing may be allocated or looked up, hold a plan ([`Engine::plan`]) and launch it on a queue of your own
//! ([`Engine::queue`]).
//!
//! | file | what it answers |
//! |---|---|
//! | [`engine`] | one device, opened, and everything below for it |
//! | `backends` | which backends are compiled in; the only file that names them |
//! | [`registry`] | which devices there are, which is best, which was asked for |
//! | [`mod@candidates`] | which kernels can solve a problem, and why the others cannot |
//! | [`mod@rank`] | which of them is fastest: as measured, else as estimated |
//! | [`wisdom`] | what was measured before, on disk |
//! | [`tune`] | what is measured now, on request only |
//! | [`plan_cache`] | plan once |
//! | [`dispatcher`] | launch many times |
//! | [`explain`] | all of the above for one problem, to read |
//! | [`mod@env`] | the environment variables, read in one place |
//! | [`buckets`] | sizes to pad to, so that a few plans serve many sizes |
//! | [`tensor`] | arrays, and each op in one call |
//! | [`calibrate`] | weights rounded with their inputs in view |
//!
//! Nothing here looks inside a problem or a buffer: ops come from `kp-hal`, kernels from the backends.

mod backends;
pub mod buckets;
pub mod calibrate;
pub mod candidates;
pub mod dispatcher;
pub mod engine;
pub mod env;
pub mod error;
pub mod explain;
pub mod plan_cache;
pub mod rank;
pub mod registry;
pub mod tensor;
pub mod tune;
pub mod wisdom;

pub use candidates::{Candidate, Candidates, candidates};
pub use dispatcher::Dispatcher;
pub use engine::{Engine, EngineBuilder};
pub use env::Env;
pub use error::{Error, Result};
pub use explain::Explanation;
pub use kp_hal as hal;
pub use rank::rank;
pub use tensor::Tensor;
pub use tune::{Progress, Tune, Tuned};
pub use wisdom::Wisdom;

/// The programs of the README, which must run as they stand there.
#[cfg(all(doctest, feature = "cpu"))]
#[doc = include_str!("../../../README.md")]
struct Readme;

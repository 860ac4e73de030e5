//! Arrays on a device, and what can be asked of them in one call.
//!
//! A [`Tensor`] is a value and cheap to clone: clones, transposes, slices and most reshapes share one buffer. Each
//! operation builds a problem, takes the best kernel of the engine (planned once per problem), allocates its result
//! and enqueues the work on the engine's own queue; the result may be used at once, and only reading it back
//! ([`Tensor::to_vec`]) waits. Who wants no allocation and no lock launches plans on queues of their own.
//!
//! Shapes are checked before there is a problem, so that an error speaks of the tensors that were passed. All tensors of an
//! operation belong to one engine; one of another is `BadOperands`. A *row* is what lies along the last dimension, a tensor of any rank is
//! rows of its last dimension one behind the other, and a result has rows without gaps.
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use kp_core::{Engine, tensor::formats};
//! # let engine = Engine::builder().only(kp_null::BACKEND).memory_only().open()?;
//! # let _ = stringify!(
//! let engine = Engine::open()?;
//! # );
//! let x = engine.tensor(&[2, 64], &[0.5_f32; 128])?;
//! let w = engine.tensor(&[32, 64], &[0.25_f32; 2048])?;
//! let y = x.matmul(&w.t())?.gelu()?;
//! let q = w.quantize(formats::MXFP4)?;
//! let z = x.matmul(&q.t())?;
//! println!("{:?} by {}", z.shape(), z.how());
//! # assert_eq!(y.shape(), z.shape());
//! # Ok(())
//! # }
//! ```
//!
//! [`Tensor::write`] alone changes a tensor, and not what shares its buffer: a cache of keys and values grows by it.
//! [`Tensor::codes`] and [`Tensor::from_buffer`] lead to plans launched by hand and back.
//!
//! No operation moves data between devices. Those that need regular rows first copy a view that has none, as
//! [`Tensor::contiguous`] does.

mod attention;
mod attention_backward;
mod bucket;
mod cast;
mod create;
mod element;
mod error_bound;
mod gather;
mod grouped_gemm;
mod matmul;
mod norm;
mod norm_backward;
mod pack;
mod pointwise;
mod quantize;
mod reduce;
mod rope;
mod run;
mod shape;
mod view;
#[cfg(feature = "safetensors")]
mod weights;
mod write;

pub use attention::{Attend, Pages};
pub use attention_backward::AttentionGradients;
pub use create::Parts;
pub use element::Element;
pub use gather::Sequences;
pub use matmul::Epilogue;
pub use norm::Norm;
pub use norm_backward::NormGradients;
pub use pack::{Packed, Right};
pub use quantize::formats;
pub use reduce::Over;
pub use rope::RopeTable;
pub use view::MAX_RANK;
#[cfg(feature = "safetensors")]
pub use weights::Weights;

use crate::Engine;
use kp_hal::{Buffer, DType, Label, op::Format};
use std::{fmt, sync::Arc};
use view::Extent;

/// Numbers of one format in up to [`MAX_RANK`] dimensions, on the device of one engine.
#[derive(Clone)]
pub struct Tensor {
    engine: Engine,
    data: Arc<Data>,
    extent: Extent,
    format: Format,
    /// Whether the last two dimensions were exchanged since scales were computed; always `false` without scales.
    flipped: bool,
    how: How,
    /// See [`Tensor::error_bound`].
    error_bound: Option<f64>,
}

/// The buffers of a tensor.
#[derive(Debug)]
struct Data {
    codes: Buffer,
    scale: Option<Buffer>,
    global: Option<Buffer>,
    zero: Option<Buffer>,
}

/// How a tensor came to be; prints as `cpu/gemm/portable_f32#0`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum How {
    /// Its numbers came from the host; prints as `host`.
    Host,
    /// A kernel made it.
    Kernel {
        /// The backend.
        backend: &'static str,
        /// The op.
        op: &'static str,
        /// The kernel and its variant.
        label: Label,
    },
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.pad("host"),
            Self::Kernel { backend, op, label } => f.pad(&format!("{backend}/{op}/{label}")),
        }
    }
}

impl Tensor {
    /// The engine it belongs to.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Its sizes, outermost first; empty for a single number.
    pub fn shape(&self) -> &[usize] {
        self.extent.sizes()
    }

    /// How many dimensions it has.
    pub fn rank(&self) -> usize {
        self.shape().len()
    }

    /// How many numbers it has.
    pub fn len(&self) -> usize {
        self.extent.count()
    }

    /// Whether it has no numbers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements between neighbours in each dimension.
    pub fn strides(&self) -> &[usize] {
        self.extent.strides()
    }

    /// Type of its codes.
    pub fn dtype(&self) -> DType {
        self.format.dtype
    }

    /// Type of its codes, and how they are scaled.
    pub fn format(&self) -> Format {
        self.format
    }

    /// What made it: the backend, op and kernel of the operation, or the host. Views keep what made their buffer.
    pub fn how(&self) -> How {
        self.how
    }

    /// How far a product may be from the exact product of its operands as they are stored, relative to the sum of the
    /// magnitudes of the terms that an element is the sum of (each `alpha·a·b`, the bias, the residual):
    ///
    /// ```text
    /// |got − exact| ≤ error_bound · (Σ|alpha·a·b| + |bias| + |residual|)
    /// ```
    /// Derived from types and `k` alone, for the worst order of adding and rounding; random numbers come much
    /// closer. It holds where no number on the way is past or below the normal numbers of its type.
    ///
    /// `None` for what is no product of [`matmul`](Self::matmul) and its kin, and for products whose error is no such
    /// share: those quantized or rounded to integers as they are stored, gated, or activated other than by `relu`.
    /// Views and copies keep what their tensor has.
    pub fn error_bound(&self) -> Option<f64> {
        self.error_bound
    }

    /// Bytes that its numbers and scales occupy on the device, shared ones included.
    pub fn device_bytes(&self) -> u64 {
        let Data { codes, scale, global, zero } = &*self.data;
        let rest = [scale, global, zero].into_iter().flatten();
        codes.bytes() + rest.map(Buffer::bytes).sum::<u64>()
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {}, {})", self.extent, self.format, self.how)
    }
}

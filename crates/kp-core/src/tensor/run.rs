//! From tensors to a launch and back: addresses, allocation, errors.

use super::{Data, Extent, How, Tensor};
use crate::Engine;
use kp_hal::{
    BadOperands, BadProblem, Buffer, DType, Error, Op, OpSpec, Queue, Result, Slice, SliceMut,
    op::{Align, Format},
};
use std::{borrow::Cow, sync::Arc};

/// One launch in the making: remembers of the operands it has seen their least alignment, and one of another engine.
pub(super) struct Run<'e> {
    engine: &'e Engine,
    op: &'static str,
    /// All addresses, ored together.
    addrs: u64,
    mixed: Result<()>,
}

impl<'e> Run<'e> {
    /// For what users call `op`.
    pub(super) fn new(engine: &'e Engine, op: &'static str) -> Self {
        Self { engine, op, addrs: 0, mixed: Ok(()) }
    }

    /// The bytes of a tensor from its first to its last element.
    pub(super) fn read<'t>(&mut self, tensor: &'t Tensor) -> Slice<'t> {
        if self.mixed.is_ok() {
            self.mixed = tensor.of_engine(self.op, "an operand", self.engine);
        }
        let slice = tensor.codes();
        if slice.bytes() > 0 {
            self.addrs |= slice.addr();
        }
        slice
    }

    /// The same for an operand that may be absent.
    pub(super) fn maybe<'t>(&mut self, tensor: Option<&'t Tensor>) -> Option<Slice<'t>> {
        tensor.map(|tensor| self.read(tensor))
    }

    /// Takes note of a part of a result that does not start where its buffer does.
    pub(super) fn wrote(&mut self, part: &SliceMut<'_>) {
        if part.bytes() > 0 {
            self.addrs |= part.addr();
        }
    }

    /// Checks, plans unless that was done before, and enqueues.
    pub(super) fn launch<S: OpSpec>(self, spec: S, args: &<S::Op as Op>::Args<'_>) -> Result<How> {
        self.mixed?;
        let align = Align::default().min(Align::of_addr(self.addrs));
        let problem = spec.build().map_err(|bad| bad.of(self.op))?.with_repro(self.engine.repro()).with_align(align);
        let plan = self.engine.plan(&problem)?;
        self.engine.with_queue(|queue| plan.launch(queue, args))?;
        Ok(How::Kernel { backend: self.engine.backend().name(), op: S::NAME, label: plan.label() })
    }
}

/// A result before it is computed. Nothing else can name its buffers yet, so kernels may write them.
pub(super) struct Output {
    pub(super) data: Data,
    extent: Extent,
    format: Format,
}

impl Output {
    /// Room for `sizes` numbers, tight, and their scales; the format sees all but the last dimension as rows.
    pub(super) fn new(engine: &Engine, sizes: &[usize], format: impl Into<Format>) -> Result<Self> {
        let format = format.into();
        let extent = tight(sizes, format.dtype)?;
        let scales = scale_count(format, &extent)?;
        let alloc = |on: bool, dtype: DType, elements: u64| on.then(|| engine.alloc(dtype.bytes(elements))).transpose();
        let scale_dtype = format.scale_dtype();
        let data = Data {
            codes: engine.alloc(format.dtype.bytes(extent.span() as u64))?,
            scale: alloc(scale_dtype.is_some(), scale_dtype.unwrap_or(DType::F32), scales)?,
            global: alloc(format.has_global(), DType::F32, 1)?,
            zero: alloc(format.has_zero(), DType::U8, scales)?,
        };
        Ok(Self { data, extent, format })
    }

    /// Type of its codes.
    pub(super) fn dtype(&self) -> DType {
        self.format.dtype
    }

    /// Makes its codes and scales zero bytes, where a kernel will not write all of them.
    pub(super) fn clear(&mut self, engine: &Engine) -> Result<()> {
        let Data { codes, scale, .. } = &mut self.data;
        engine.with_queue(|queue| {
            queue.fill(codes.slice_mut(), 0)?;
            scale.as_mut().map_or(Ok(()), |scale| queue.fill(scale.slice_mut(), 0))
        })
    }

    /// The tensor, once a kernel that fills it is enqueued.
    pub(super) fn finish(self, engine: &Engine, how: How) -> Tensor {
        let Self { data, extent, format } = self;
        Tensor { engine: engine.clone(), data: Arc::new(data), extent, format, flipped: false, how, error_bound: None }
    }
}

/// Scales of a tight tensor, which a format sees as rows of its last dimension.
pub(super) fn scale_count(format: Format, extent: &Extent) -> Result<u64> {
    if format.scale_dtype().is_none() {
        return Ok(0);
    }
    let (rows, cols) = extent.rows_and_cols();
    Ok(format.scale_count(dim("rows", rows)?, dim("columns", cols)?))
}

impl Engine {
    /// Runs `work` on the engine's own queue, in the order in which threads come.
    pub(super) fn with_queue<T>(&self, work: impl FnOnce(&mut dyn Queue) -> Result<T>) -> Result<T> {
        work(&mut **self.default_queue())
    }

    /// The same bytes in a buffer of their own.
    pub(super) fn copy_of(&self, buffer: &Buffer) -> Result<Buffer> {
        let mut copy = self.alloc(buffer.bytes())?;
        self.with_queue(|queue| queue.copy(copy.slice_mut(), buffer.slice()))?;
        Ok(copy)
    }
}

impl Tensor {
    /// The bytes from the first to the last number, as an operand of a plan that is launched by hand.
    ///
    /// They lie as [`Tensor::strides`] says. The engine's own queue may still be at work on them: another queue first
    /// [waits](Queue::wait) for a mark of it.
    /// ```
    /// # use kp_core::{Engine, hal::op::{GemmArgs, GemmProblem}};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = Engine::builder().only(kp_null::BACKEND).memory_only().open()?;
    /// let problem: GemmProblem = "gemm 1x8x16x32 f32:f32:f32 b=col".parse()?;
    /// let plan = engine.plan(&problem)?;
    /// let (x, weight) = (engine.zeros(&[8, 32], kp_hal::DType::F32)?, engine.zeros(&[16, 32], kp_hal::DType::F32)?);
    /// let (mut y, mut queue) = (engine.alloc(8 * 16 * 4)?, engine.queue()?);
    /// queue.wait(engine.default_queue().mark()?)?;
    /// plan.launch(&mut *queue, &GemmArgs::new(x.codes(), weight.codes(), y.slice_mut()))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn codes(&self) -> Slice<'_> {
        let dtype = self.format.dtype;
        let start = dtype.bytes(self.extent.start as u64);
        let bytes = dtype.bytes(self.extent.span() as u64);
        // An empty part of a buffer may begin past its end.
        let start = if bytes == 0 { 0 } else { start };
        self.data.codes.slice().at(start..start + bytes)
    }

    /// The scales, if the format has any, in its layout; otherwise as [`Tensor::codes`].
    pub fn scale(&self) -> Option<Slice<'_>> {
        self.data.scale.as_ref().map(Buffer::slice)
    }

    /// The one f32 of `@nv`; otherwise as [`Tensor::codes`].
    pub fn global(&self) -> Option<Slice<'_>> {
        self.data.global.as_ref().map(Buffer::slice)
    }

    /// The zero points, if the format has any, one per scale; otherwise as [`Tensor::codes`].
    pub fn zero(&self) -> Option<Slice<'_>> {
        self.data.zero.as_ref().map(Buffer::slice)
    }

    /// Shape and format as messages write them.
    pub(super) fn describe(&self) -> String {
        format!("{} {}", self.extent, self.format)
    }

    /// Refuses a tensor of another engine.
    pub(super) fn of_engine(&self, op: &'static str, name: &'static str, engine: &Engine) -> Result<()> {
        if self.engine.is(engine) {
            return Ok(());
        }
        Err(refuse(op, [(name, format!("{} of another engine", self.describe()))], "all must be of one"))
    }

    /// Refuses a tensor with scales where plain numbers are needed.
    pub(super) fn plain(&self, op: &'static str, name: &'static str) -> Result<()> {
        if self.format.scale_dtype().is_none() {
            return Ok(());
        }
        Err(refuse(op, [(name, self.describe())], "it must not be scaled: dequantize it first"))
    }

    /// Refuses a tensor that is not `count` numbers without gaps.
    pub(super) fn vector(&self, op: &'static str, name: &'static str, count: usize) -> Result<Self> {
        self.plain(op, name)?;
        if self.len() != count {
            return Err(refuse(op, [(name, self.extent.to_string())], format!("it must have {count} numbers")));
        }
        self.contiguous()
    }

    /// The same for a vector of one type.
    pub(super) fn vector_of(&self, op: &'static str, name: &'static str, count: usize, dtype: DType) -> Result<Self> {
        if self.format.dtype != dtype {
            return Err(refuse(op, [(name, self.describe())], format!("it must be {dtype}")));
        }
        self.vector(op, name, count)
    }
}

/// Sizes in rows without gaps.
pub(super) fn tight(sizes: &[usize], dtype: DType) -> Result<Extent> {
    let too_large = |what, max, got| BadProblem::TooLarge { what, max, got };
    Extent::tight(sizes, dtype).ok_or_else(|| {
        if sizes.len() > super::MAX_RANK {
            too_large("the rank", super::MAX_RANK as u64, sizes.len() as u64).into()
        } else {
            too_large("elements", i64::MAX as u64, u64::MAX).into()
        }
    })
}

/// A size as problems have it.
pub(super) fn dim(what: &'static str, size: usize) -> Result<u32> {
    let got = size as u64;
    size.try_into().map_err(|_| BadProblem::TooLarge { what, max: u32::MAX.into(), got }.into())
}

/// The error of tensors that do not go together.
pub(super) fn refuse<const N: usize>(
    op: &'static str,
    operands: [(&'static str, String); N],
    rule: impl Into<Cow<'static, str>>,
) -> Error {
    BadOperands { op, operands: operands.into(), rule: rule.into() }.into()
}

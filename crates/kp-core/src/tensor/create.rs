//! Tensors from the host and back.

use super::{
    Data, Element, How, Tensor,
    run::{Output, refuse, scale_count, tight},
    view::shape_text,
};
use crate::Engine;
use kp_hal::{Buffer, DType, Result, op::Format};
use std::sync::Arc;

/// The bytes of a tensor with scales, as [`Tensor::to_parts`] returns them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Parts {
    /// Codes, row by row; rows of 4-bit codes start at whole bytes.
    pub codes: Vec<u8>,
    /// Scales in the format's layout; empty if there are none.
    pub scale: Vec<u8>,
    /// The one f32 of `@nv`; empty if there is none.
    pub global: Vec<u8>,
    /// Zero points, one per scale; empty if there are none.
    pub zero: Vec<u8>,
}

impl Engine {
    /// A tensor of `shape` from numbers on the host, row by row.
    ///
    /// # Errors
    /// `BadOperands` if there are more or fewer numbers than the shape has; `OutOfMemory`.
    pub fn tensor<T: Element>(&self, shape: &[usize], numbers: &[T]) -> Result<Tensor> {
        let extent = tight(shape, T::DTYPE)?;
        if extent.count() != numbers.len() {
            let rule = format!("the shape has {} numbers", extent.count());
            return Err(refuse(
                "tensor",
                [("the shape", shape_text(shape)), ("the data", format!("{} numbers", numbers.len()))],
                rule,
            ));
        }
        Tensor::from_bytes(self, shape, T::DTYPE, bytemuck::cast_slice(numbers))
    }

    /// A tensor of `shape` whose elements are all 0; of E8M0, which has none, the least.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn zeros(&self, shape: &[usize], dtype: DType) -> Result<Tensor> {
        let mut out = Output::new(self, shape, dtype)?;
        self.with_queue(|queue| queue.fill(out.data.codes.slice_mut(), zero_byte(dtype)))?;
        Ok(out.finish(self, How::Host))
    }
}

/// The byte whose elements are all 0.
pub(super) fn zero_byte(dtype: DType) -> u8 {
    // NF4's eighth number; its first is -1.
    if dtype == DType::Nf4 { 0x77 } else { 0 }
}

impl Tensor {
    /// A tensor of `shape` from the bytes of its elements, row by row; rows of 4-bit types start at whole bytes.
    ///
    /// # Errors
    /// `BadOperands` if there are more or fewer bytes than that takes, or if the format has scales
    /// ([`Tensor::from_parts`] takes those); `OutOfMemory`.
    pub fn from_bytes(engine: &Engine, shape: &[usize], format: impl Into<Format>, bytes: &[u8]) -> Result<Self> {
        let format = format.into();
        if format.scale_dtype().is_some() {
            let got = [("the format", format.to_string())];
            return Err(refuse("from_bytes", got, "it has scales, which only from_parts takes"));
        }
        Self::upload(engine, shape, format, [bytes, &[], &[], &[]])
    }

    /// A tensor of `shape` that takes over a buffer of this engine's device, such as the result of a plan launched by hand
    /// or another library's memory. Nothing is copied; the numbers lie row by row from the first byte on.
    ///
    /// Operations on the tensor use the engine's own queue, which must come after whatever fills the buffer:
    /// let it [wait](kp_hal::Queue::wait) for a mark of that work.
    ///
    /// # Errors
    /// `BadOperands` if the buffer is too short or of another device, or if the format has scales.
    pub fn from_buffer(engine: &Engine, shape: &[usize], format: impl Into<Format>, buffer: Buffer) -> Result<Self> {
        const OP: &str = "from_buffer";
        let format = format.into();
        let is = || [("the shape", format!("{} {format}", shape_text(shape))), ("the buffer", buffer_text(&buffer))];
        if format.scale_dtype().is_some() {
            return Err(refuse(OP, is(), "it has scales, which are buffers of their own"));
        }
        let extent = tight(shape, format.dtype)?;
        let need = format.dtype.bytes(extent.span() as u64);
        if buffer.bytes() < need {
            return Err(refuse(OP, is(), format!("{need} bytes are needed")));
        }
        let device = engine.device().id();
        if buffer.device() != device {
            return Err(refuse(OP, is(), format!("the engine's is device {device}")));
        }
        let data = Arc::new(Data { codes: buffer, scale: None, global: None, zero: None });
        Ok(Self { engine: engine.clone(), data, extent, format, flipped: false, how: How::Host, error_bound: None })
    }

    /// A tensor of `shape` from codes and scales; the format sees all but the last dimension as rows.
    ///
    /// # Errors
    /// `BadOperands` if a part has more or fewer bytes than the format takes; `OutOfMemory`.
    pub fn from_parts(engine: &Engine, shape: &[usize], format: impl Into<Format>, parts: &Parts) -> Result<Self> {
        let Parts { codes, scale, global, zero } = parts;
        Self::upload(engine, shape, format.into(), [codes, scale, global, zero])
    }

    /// The numbers on the host, row by row; waits for them.
    ///
    /// # Errors
    /// `BadOperands` if the tensor is of another type or has scales.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.plain("to_vec", "x")?;
        if self.dtype() != T::DTYPE {
            return Err(refuse(
                "to_vec",
                [("x", self.describe())],
                format!("{} was asked for: cast it first", T::DTYPE),
            ));
        }
        let mut numbers = vec![T::zeroed(); self.len()];
        let source = self.contiguous()?;
        self.engine.with_queue(|queue| queue.download(bytemuck::cast_slice_mut(&mut numbers), source.codes()))?;
        Ok(numbers)
    }

    /// Codes and scales on the host; waits for them. A transposed tensor with scales gives those of the matrix that
    /// was quantized.
    ///
    /// # Errors
    /// Failures of the device.
    pub fn to_parts(&self) -> Result<Parts> {
        let source = if self.flipped { self.t() } else { self.contiguous()? };
        let download = |part: Option<kp_hal::Slice<'_>>| -> Result<Vec<u8>> {
            let Some(part) = part else { return Ok(Vec::new()) };
            let mut bytes = vec![0; dim_bytes(part.bytes())?];
            self.engine.with_queue(|queue| queue.download(&mut bytes, part))?;
            Ok(bytes)
        };
        Ok(Parts {
            codes: download(Some(source.codes()))?,
            scale: download(source.scale())?,
            global: download(source.global())?,
            zero: download(source.zero())?,
        })
    }

    /// The one number of a tensor that has just one; waits for it.
    ///
    /// # Errors
    /// `BadOperands` if it has more or none, is of another type or has scales.
    pub fn item<T: Element>(&self) -> Result<T> {
        match self.to_vec::<T>()?[..] {
            [one] => Ok(one),
            _ => Err(refuse("item", [("x", self.describe())], "it must have exactly one number")),
        }
    }

    fn upload(engine: &Engine, shape: &[usize], format: Format, parts: [&[u8]; 4]) -> Result<Self> {
        let extent = tight(shape, format.dtype)?;
        let scales = scale_count(format, &extent)?;
        let needs = [
            Some(format.dtype.bytes(extent.span() as u64)),
            format.scale_dtype().map(|dtype| dtype.bytes(scales)),
            format.has_global().then_some(size_of::<f32>() as u64),
            format.has_zero().then_some(scales),
        ];
        let names = ["codes", "scale", "global", "zero"];
        for ((need, part), name) in needs.iter().zip(parts).zip(names) {
            let need = need.unwrap_or(0);
            if part.len() as u64 != need {
                let is =
                    [("the shape", format!("{} {format}", shape_text(shape))), (name, format!("{} bytes", part.len()))];
                return Err(refuse("tensor", is, format!("{need} bytes are needed")));
            }
        }
        let mut buffers = [None, None, None, None];
        for ((buffer, need), part) in buffers.iter_mut().zip(needs).zip(parts) {
            let Some(bytes) = need else { continue };
            let mut room: Buffer = engine.alloc(bytes)?;
            engine.with_queue(|queue| queue.upload(room.slice_mut(), part))?;
            *buffer = Some(room);
        }
        let [codes, scale, global, zero] = buffers;
        let codes = codes.expect("every format has codes");
        let data = Arc::new(Data { codes, scale, global, zero });
        Ok(Self { engine: engine.clone(), data, extent, format, flipped: false, how: How::Host, error_bound: None })
    }
}

fn buffer_text(buffer: &Buffer) -> String {
    format!("{} bytes on device {}", buffer.bytes(), buffer.device())
}

/// A length as the host has it.
fn dim_bytes(bytes: u64) -> Result<usize> {
    bytes.try_into().map_err(|_| {
        kp_hal::BadProblem::TooLarge { what: "bytes on the host", max: usize::MAX as u64, got: bytes }.into()
    })
}

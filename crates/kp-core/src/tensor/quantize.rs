//! Narrow codes with scales, and back.

use super::{
    Data, Tensor,
    run::{Output, Run, dim},
};
use kp_hal::{
    Buffer, DType, Result,
    op::{DequantizeArgs, DequantizeSpec, Format, QuantizeArgs, QuantizeSpec, Rows, ScaleRule},
};

/// Formats under their usual names.
pub mod formats {
    use super::{DType, Format};
    use kp_hal::op::Scheme;

    /// E4M3 codes, one f32 per row.
    pub const FP8_ROW: Format = Format::new(DType::E4m3, Scheme::Row);
    /// E4M3 codes, one f32 per 1×128 numbers: activations of DeepSeek-V3.
    pub const FP8_1X128: Format = Format::new(DType::E4m3, Scheme::Block { outer: 1, inner: 128 });
    /// E4M3 codes, one f32 per 128×128 numbers: weights of DeepSeek-V3.
    pub const FP8_128X128: Format = Format::new(DType::E4m3, Scheme::Block { outer: 128, inner: 128 });
    /// E4M3 codes, one power of two per 32 numbers (OCP MX): 8.25 bits a number.
    pub const MXFP8: Format = Format::new(DType::E4m3, Scheme::Mx);
    /// E2M1 codes, one power of two per 32 numbers (OCP MX): 4.25 bits a number.
    pub const MXFP4: Format = Format::new(DType::E2m1, Scheme::Mx);
    /// E2M1 codes, one E4M3 scale per 16 numbers and one f32 for all: 4.5 bits a number.
    pub const NVFP4: Format = Format::new(DType::E2m1, Scheme::Nv);
    /// 8-bit integers, one f32 per row.
    pub const INT8_ROW: Format = Format::new(DType::I8, Scheme::Row);
    /// 4-bit integers, one f16 per 32 numbers: 4.5 bits a number.
    pub const INT4_G32: Format = Format::new(DType::I4, group(32));
    /// 4-bit integers, one f16 per 128 numbers: 4.125 bits a number; the symmetric groups of GPTQ.
    pub const INT4_G128: Format = Format::new(DType::I4, group(128));
    /// 4-bit integers from 0 on, one f16 and one zero point of a byte per 128 numbers: 4.1875 bits a number; the groups of AWQ and of
    /// GPTQ that are not symmetric.
    pub const UINT4_G128_ZERO: Format =
        Format::new(DType::U4, Scheme::Group { inner: 128, scale: DType::F16, zero: true });
    /// 4-bit NormalFloat codes, one f16 per 32 numbers: 4.5 bits a number.
    pub const NF4_G32: Format = Format::new(DType::Nf4, group(32));
    /// 4-bit NormalFloat codes, one f16 per 64 numbers: 4.25 bits a number; blocks as QLoRA has them.
    pub const NF4_G64: Format = Format::new(DType::Nf4, group(64));

    const fn group(inner: u16) -> Scheme {
        Scheme::Group { inner, scale: DType::F16, zero: false }
    }
}

impl Tensor {
    /// Codes and scales of `format` ([`formats`] names the usual ones), row by row: the scales run along the last
    /// dimension. A weight stored `n`×`k` is quantized as it is, and [`Tensor::t`] then makes it the right side of a
    /// product.
    ///
    /// # Errors
    /// `BadOperands` if the tensor has scales already; `BadProblem` if there is no such format; `Unsupported`;
    /// `OutOfMemory`.
    pub fn quantize(&self, format: impl Into<Format>) -> Result<Self> {
        let format = format.into();
        self.quantize_by(format, ScaleRule::of(format))
    }

    /// The same with scales rounded by `rule`, where the format's usual rule is not wanted: that of `@mx` lets large
    /// numbers saturate, [`ScaleRule::Up`] does not.
    ///
    /// # Errors
    /// As [`Tensor::quantize`]; `BadProblem` also if the format has no such rule.
    pub fn quantize_by(&self, format: impl Into<Format>, rule: ScaleRule) -> Result<Self> {
        let format = format.into();
        let x = self.as_rows("quantize")?;
        let spec = QuantizeSpec { x: x.layout, rule, ..QuantizeSpec::new(x.rows, x.cols, self.dtype(), format) };
        // The problem is checked before room is made for what it cannot have.
        let _ = kp_hal::Spec::build(spec).map_err(|bad| bad.of("quantize"))?;
        let mut q = Output::new(&self.engine, self.shape(), format)?;
        let mut run = Run::new(&self.engine, "quantize");
        let Data { codes, scale, global, zero } = &mut q.data;
        let args = QuantizeArgs {
            scale: scale.as_mut().map(Buffer::slice_mut),
            global: global.as_mut().map(Buffer::slice_mut),
            zero: zero.as_mut().map(Buffer::slice_mut),
            ..QuantizeArgs::new(run.read(&x.tensor), codes.slice_mut())
        };
        let how = run.launch(spec, &args)?;
        Ok(q.finish(&self.engine, how))
    }

    /// Codes times scales as `dtype`: `f64`, `f32`, `f16` or `bf16`. Plain numbers are cast.
    ///
    /// # Errors
    /// `BadProblem` if `dtype` is none of those; `Unsupported`; `OutOfMemory`.
    pub fn dequantize(&self, dtype: DType) -> Result<Self> {
        if self.format.scale_dtype().is_none() {
            return self.cast(dtype);
        }
        if self.flipped {
            return Ok(self.t().dequantize(dtype)?.t());
        }
        let (rows, cols) = self.extent.rows_and_cols();
        let (rows, cols) = (dim("rows", rows)?, dim("columns", cols)?);
        let spec =
            DequantizeSpec { q: Rows::tight(self.format, cols), ..DequantizeSpec::new(rows, cols, self.format, dtype) };
        let _ = kp_hal::Spec::build(spec).map_err(|bad| bad.of("dequantize"))?;
        let mut y = Output::new(&self.engine, self.shape(), dtype)?;
        let mut run = Run::new(&self.engine, "dequantize");
        let args = DequantizeArgs {
            scale: self.scale(),
            global: self.global(),
            zero: self.zero(),
            ..DequantizeArgs::new(run.read(self), y.data.codes.slice_mut())
        };
        let how = run.launch(spec, &args)?;
        Ok(y.finish(&self.engine, how))
    }
}

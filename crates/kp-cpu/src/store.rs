//! Rows of numbers to codes and scales: what `quantize` does, and every op that quantizes as it stores.

use crate::{
    kernel::Output,
    numbers::{self, Real},
};
use kp_hal::{
    DType,
    op::{Format, Overflow, ScaleRule, Scheme},
};

/// Where rows go and how they are scaled.
pub(crate) struct Store<'a> {
    /// Codes and scales.
    pub(crate) format: Format,
    /// Rows and columns in all.
    pub(crate) shape: (u32, u32),
    /// Distance between rows, in elements.
    pub(crate) ld: u32,
    /// Codes.
    pub(crate) codes: Output<'a>,
    /// Scales, where they are computed.
    pub(crate) scales: Output<'a>,
    /// Zero points, where they are computed.
    pub(crate) zeros: Output<'a>,
    /// Scales to use as they are.
    pub(crate) given_scales: &'a [u8],
    /// Zero points to use as they are.
    pub(crate) given_zeros: &'a [u8],
    /// What everything is divided by before its block is looked at: the scale of `@tensor`, the global of `@nv`, else 1.
    pub(crate) global: f64,
    /// How scales are rounded.
    pub(crate) rule: ScaleRule,
    /// What becomes of numbers past the largest code.
    pub(crate) overflow: Overflow,
}

impl<'a> Store<'a> {
    /// For an op that quantizes as it stores: the usual rule, saturating, `global` as the caller gave it.
    pub(crate) fn fused(
        format: Format,
        shape: (u32, u32),
        ld: u32,
        codes: Output<'a>,
        scales: Output<'a>,
        global: &[u8],
    ) -> Self {
        Self {
            format,
            shape,
            ld,
            codes,
            scales,
            zeros: Output::of(&mut []),
            given_scales: &[],
            given_zeros: &[],
            global: if global.is_empty() { 1.0 } else { numbers::get(DType::F32, global, 0) },
            rule: ScaleRule::of(format),
            overflow: Overflow::Saturate,
        }
    }

    /// Rows that must be stored together, since a block spans them.
    pub(crate) fn unit(&self) -> u32 {
        match self.format.scheme {
            Scheme::Block { outer, .. } => outer.into(),
            _ => 1,
        }
    }

    /// Units there are.
    pub(crate) fn units(&self) -> u32 {
        self.shape.0.div_ceil(self.unit())
    }

    /// Rows of unit `i`.
    pub(crate) fn rows_of(&self, i: u32) -> std::ops::Range<u32> {
        let first = i * self.unit();
        first..first.saturating_add(self.unit()).min(self.shape.0)
    }

    /// Stores unit `i`, whose rows lie one behind the other in `x`.
    ///
    /// # Safety
    /// No other thread stores the same unit.
    pub(crate) unsafe fn unit_of<R: Real>(&self, i: u32, x: &[R]) {
        let cols = self.shape.1 as usize;
        if self.format.scheme == Scheme::None {
            for (row, x) in self.rows_of(i).zip(x.chunks_exact(cols.max(1))) {
                // SAFETY: a unit has its own rows.
                numbers::write(self.format.dtype, x, unsafe { self.row(row) }, 0, self.overflow);
            }
            return;
        }
        let inner = (self.format.block().1 as usize).min(cols.max(1));
        let mut codes = [0_u8; 64];
        for (block, first) in (0..cols).step_by(inner).enumerate() {
            let range = first..(first + inner).min(cols);
            let place = (i, block as u32);
            // SAFETY: a unit has its own scales.
            let Scaled { scale, zero } =
                unsafe { self.scale(place, x.chunks_exact(cols).map(|row| &row[range.clone()])) };
            let divisor = scale * self.global;
            for (row, x) in self.rows_of(i).zip(x.chunks_exact(cols)) {
                // SAFETY: a unit has its own rows.
                let row = unsafe { self.row(row) };
                let mut at = range.start;
                for x in x[range.clone()].chunks(codes.len()) {
                    for (code, x) in codes.iter_mut().zip(x) {
                        *code = self.code(x.to_f64(), divisor, zero);
                    }
                    self.put(&codes[..x.len()], row, at);
                    at += x.len();
                }
            }
        }
    }

    fn code(&self, x: f64, divisor: f64, zero: f64) -> u8 {
        // A block of zeros may have scale 0: its codes are those of 0, and NaN stays NaN.
        let scaled = if divisor == 0.0 && x == 0.0 { 0.0 } else { x / divisor };
        if self.format.has_zero() {
            let largest = numbers::largest(self.format.dtype);
            let code = if scaled.is_nan() { zero } else { (scaled + zero).round_ties_even() };
            return code.clamp(0.0, largest) as u8;
        }
        let signed_integer = matches!(self.format.dtype, DType::I8 | DType::I4);
        // The range is symmetric: -128 and -8 are not used once there is a scale.
        let scaled = if signed_integer {
            let largest = numbers::largest(self.format.dtype);
            // Not `max`, which would make NaN a number.
            if scaled < -largest { -largest } else { scaled }
        } else {
            scaled
        };
        numbers::encode(self.format.dtype, if scaled.is_nan() && !x.is_nan() { 0.0 } else { scaled }, self.overflow)
    }

    /// Puts codes at element `at` of a row.
    fn put(&self, codes: &[u8], row: &mut [u8], at: usize) {
        if self.format.dtype.bits() == 8 {
            row[at..at + codes.len()].copy_from_slice(codes);
            return;
        }
        for (i, &code) in (at..).zip(codes) {
            let byte = &mut row[i / 2];
            // An even element starts its byte anew, which also clears the padding of an odd row.
            *byte = if i % 2 == 0 { code & 15 } else { *byte & 15 | code << 4 };
        }
    }

    /// The bytes of one row.
    ///
    /// # Safety
    /// No other thread has the same row.
    unsafe fn row(&self, row: u32) -> &'a mut [u8] {
        let bits = u64::from(self.format.dtype.bits());
        let first = (u64::from(row) * u64::from(self.ld) * bits / 8) as usize;
        let bytes = self.format.dtype.bytes(self.shape.1.into()) as usize;
        // SAFETY: rows do not overlap; the rest is the caller's promise.
        unsafe { self.codes.part(first..first + bytes) }
    }

    /// The scale and zero point of the block at `place`, computed from its numbers and stored, or as given.
    ///
    /// # Safety
    /// No other thread has the same block.
    unsafe fn scale<'x, R: Real>(&self, place: (u32, u32), rows: impl Iterator<Item = &'x [R]> + Clone) -> Scaled {
        let Some(dtype) = self.format.scale_dtype() else { return Scaled::ONE };
        if self.format.scheme == Scheme::Tensor {
            return Scaled::ONE;
        }
        let at = self.format.scale_index(place, self.shape) as usize;
        if !self.given_scales.is_empty() {
            let zero = if self.format.has_zero() { self.given_zeros[at].into() } else { 0.0 };
            return Scaled { scale: numbers::get(dtype, self.given_scales, at), zero };
        }
        let values = rows.flatten().map(|x| x.to_f64() / self.global);
        let (scale, zero) = if self.format.has_zero() {
            let (low, high) =
                values.filter(|x| x.is_finite()).fold((0.0, 0.0), |(l, h), x| (f64::min(l, x), f64::max(h, x)));
            let range = numbers::largest(self.format.dtype);
            let scale = if low == high { 1.0 } else { rounded(dtype, (high - low) / range) };
            (scale, (-low / scale).round_ties_even().clamp(0.0, range))
        } else {
            (scale_of(amax(values), self.format.dtype, dtype, self.rule), 0.0)
        };
        let bytes = dtype.bits() as usize / 8;
        // SAFETY: a block has its own scale and zero point.
        let (scale_bytes, zero_byte) = unsafe {
            let zero = if self.format.has_zero() { self.zeros.part(at..at + 1) } else { &mut [] };
            (self.scales.part(at * bytes..(at + 1) * bytes), zero)
        };
        match dtype {
            DType::E8m0 | DType::Ue4m3 => scale_bytes[0] = numbers::encode(dtype, scale, Overflow::Saturate),
            _ => numbers::write(dtype, &[scale], scale_bytes, 0, Overflow::Saturate),
        }
        if let [byte] = zero_byte {
            *byte = zero as u8;
        }
        Scaled { scale, zero }
    }
}

/// What the codes of a block are multiplied by, and what is subtracted from them first.
struct Scaled {
    scale: f64,
    zero: f64,
}

impl Scaled {
    const ONE: Self = Self { scale: 1.0, zero: 0.0 };
}

/// The largest finite magnitude; 0 of nothing.
pub(crate) fn amax(values: impl Iterator<Item = f64>) -> f64 {
    values.map(f64::abs).filter(|x| x.is_finite()).fold(0.0, f64::max)
}

/// The scale of a block whose largest magnitude is `amax`, as stored in `scale`.
pub(crate) fn scale_of(amax: f64, codes: DType, scale: DType, rule: ScaleRule) -> f64 {
    if amax == 0.0 {
        let zero = matches!(scale, DType::E8m0 | DType::Ue4m3);
        return if zero { numbers::get(scale, &[0], 0) } else { 1.0 };
    }
    let largest = numbers::largest(codes);
    let wanted = match rule {
        ScaleRule::Nearest => amax / largest,
        ScaleRule::Floor => exp2(log2_floor(amax) - log2_floor(largest)),
        ScaleRule::Up => {
            let ratio = amax / largest;
            let floor = exp2(log2_floor(ratio));
            if floor < ratio { 2.0 * floor } else { floor }
        }
    };
    rounded(scale, wanted)
}

/// A positive number as `dtype` stores it: the nearest, but neither 0 nor infinite.
fn rounded(dtype: DType, x: f64) -> f64 {
    let (smallest, largest) = match dtype {
        DType::F32 => (f64::from(f32::from_bits(1)), f32::MAX.into()),
        DType::F16 => (half::f16::MIN_POSITIVE_SUBNORMAL.to_f64(), half::f16::MAX.to_f64()),
        DType::Bf16 => (half::bf16::MIN_POSITIVE_SUBNORMAL.to_f64(), half::bf16::MAX.to_f64()),
        _ => (if dtype == DType::E8m0 { exp2(-127) } else { exp2(-9) }, numbers::largest(dtype)),
    };
    let x = x.clamp(smallest, largest);
    match dtype {
        DType::F32 => f64::from(x as f32),
        DType::F16 => half::f16::from_f64(x).to_f64(),
        DType::Bf16 => half::bf16::from_f64(x).to_f64(),
        DType::E8m0 => {
            let floor = exp2(log2_floor(x));
            if x < 1.5 * floor { floor } else { 2.0 * floor }
        }
        _ => numbers::get(dtype, &[numbers::encode(dtype, x, Overflow::Saturate)], 0),
    }
}

/// The exponent of a positive finite number.
fn log2_floor(x: f64) -> i32 {
    let exponent = (x.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    // Subnormal f64: far below the smallest scale of any type, whatever its exponent.
    exponent.max(-1022)
}

fn exp2(exponent: i32) -> f64 {
    f64::from_bits(((exponent.clamp(-1022, 1023) + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_differ_as_specified() {
        let scale = |amax, rule| scale_of(amax, DType::E2m1, DType::E8m0, rule);
        // OCP: 2^(floor(log2 7) - 2) = 1, so 7 saturates to 6.
        assert_eq!(scale(7.0, ScaleRule::Floor), 1.0);
        assert_eq!(scale(7.0, ScaleRule::Up), 2.0);
        assert_eq!(scale(6.0, ScaleRule::Up), 1.0);
        assert_eq!([8.9, 9.0, 9.1].map(|amax| scale(amax, ScaleRule::Nearest)), [1.0, 2.0, 2.0]);
        assert_eq!(scale(0.0, ScaleRule::Floor), exp2(-127));
        assert_eq!(scale_of(0.0, DType::E4m3, DType::F32, ScaleRule::Nearest), 1.0);
        assert_eq!(scale_of(1e-300, DType::E4m3, DType::F32, ScaleRule::Nearest), f64::from(f32::from_bits(1)));
    }

    #[test]
    fn odd_rows_of_packed_codes_stay_apart() {
        let (mut codes, mut scales) = ([0xff_u8; 4], [0_u8; 2]);
        let format = Format::new(DType::E2m1, Scheme::Mx);
        let store = Store::fused(format, (2, 3), 4, Output::of(&mut codes), Output::of(&mut scales), &[]);
        for unit in 0..store.units() {
            // SAFETY: one thread.
            unsafe { store.unit_of(unit, &[4.0_f32, -4.0, 1.0]) };
        }
        assert_eq!(scales, [127, 127]);
        assert_eq!(codes, [0xe6, 0x02, 0xe6, 0x02]);
    }
}

//! The bytes of every operand of one problem, on the host.

use crate::{
    fill::{Fill, FillKind},
    formats::{decode, encode, get, nan_code, set},
};
use kp_hal::{
    DType,
    op::{Args, Format, Matrix, Needs, Op, Operand, Overflow, Problem, Rows, needs},
};

/// The bytes of every operand of one problem, and its scalars.
///
/// New ones hold poison: NaN where the type has one. What a judge does not fill is padding, and stays so.
#[derive(Clone, Debug)]
pub struct Operands {
    list: &'static [Operand],
    needs: Needs,
    bytes: Vec<Option<Vec<u8>>>,
    scalars: Vec<(&'static str, f32)>,
    kind: FillKind,
}

/// The names of a scaled operand's parts: codes, scales, global, zero points.
pub type Parts = [&'static str; 4];

impl Operands {
    /// Room for every operand of `problem`, all poison; scalars at their defaults.
    pub fn new<O: Op>(problem: &Problem<O::Spec>, kind: FillKind) -> Self {
        let (list, needs) = (<O::Args<'_> as Args<'_>>::OPERANDS, needs::<O>(problem));
        let bytes = (0..list.len()).map(|i| {
            let need = needs.get(i);
            need.is_present().then(|| poison(need.dtype, need.bytes))
        });
        Self { list, needs, bytes: bytes.collect(), scalars: <O::Args<'_> as Args<'_>>::SCALARS.to_vec(), kind }
    }

    /// What they are filled with.
    pub fn kind(&self) -> FillKind {
        self.kind
    }

    /// Every operand the op may have, in the order of its arguments.
    pub fn list(&self) -> &'static [Operand] {
        self.list
    }

    /// What the problem needs of each.
    pub fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Whether the problem has this operand.
    pub fn has(&self, name: &str) -> bool {
        self.bytes[self.index(name)].is_some()
    }

    /// The bytes of operand `i`, if the problem has it.
    pub fn at(&self, i: usize) -> Option<&[u8]> {
        self.bytes[i].as_deref()
    }

    /// The same, to write.
    pub fn at_mut(&mut self, i: usize) -> Option<&mut Vec<u8>> {
        self.bytes[i].as_mut()
    }

    /// The operand's elements, to read one by one.
    ///
    /// # Panics
    /// If the problem does not have it.
    pub fn codes(&self, name: &str) -> Codes<'_> {
        let i = self.index(name);
        let bytes = self.bytes[i].as_deref().unwrap_or_else(|| panic!("the problem has no {name}"));
        Codes { dtype: self.needs.get(i).dtype, bytes }
    }

    /// The operand's elements, or `None` if the problem does not have it.
    pub fn maybe(&self, name: &str) -> Option<Codes<'_>> {
        self.has(name).then(|| self.codes(name))
    }

    /// The operand's elements, to write one by one.
    ///
    /// # Panics
    /// If the problem does not have it.
    pub fn codes_mut(&mut self, name: &str) -> CodesMut<'_> {
        let i = self.index(name);
        let dtype = self.needs.get(i).dtype;
        let bytes = self.bytes[i].as_mut().unwrap_or_else(|| panic!("the problem has no {name}"));
        CodesMut { dtype, bytes }
    }

    /// Replaces an operand's bytes.
    ///
    /// # Panics
    /// If the problem does not have it or needs another number of bytes.
    pub fn set_bytes(&mut self, name: &str, bytes: &[u8]) {
        let own = self.codes_mut(name).bytes;
        assert_eq!(own.len(), bytes.len(), "bytes of {name}");
        own.copy_from_slice(bytes);
    }

    /// Writes whole numbers from the first element on.
    pub fn set_ints(&mut self, name: &str, values: impl IntoIterator<Item = i64>) {
        let mut codes = self.codes_mut(name);
        for (i, value) in values.into_iter().enumerate() {
            codes.set_code(i as u64, value as u64);
        }
    }

    /// Scalar `name`.
    ///
    /// # Panics
    /// If the op has none of that name.
    pub fn scalar(&self, name: &str) -> f64 {
        let found = self.scalars.iter().find(|(n, _)| *n == name);
        found.unwrap_or_else(|| panic!("the op has no scalar {name}")).1.into()
    }

    /// Sets scalar `name`.
    ///
    /// # Panics
    /// If the op has none of that name.
    pub fn set_scalar(&mut self, name: &str, value: f32) {
        let found = self.scalars.iter_mut().find(|(n, _)| *n == name);
        found.unwrap_or_else(|| panic!("the op has no scalar {name}")).1 = value;
    }

    /// Every scalar.
    pub fn scalars(&self) -> &[(&'static str, f32)] {
        &self.scalars
    }

    /// Fills every element of `name` from its first byte to its last, if the problem has it.
    pub fn fill_all(&mut self, name: &str, fill: &mut Fill) {
        if self.has(name) {
            let mut codes = self.codes_mut(name);
            (0..codes.len()).for_each(|i| codes.set_code(i, fill.code(codes.dtype)));
        }
    }

    /// Fills every element of `name` with scales, if the problem has it.
    pub fn fill_scales(&mut self, name: &str, fill: &mut Fill) {
        if self.has(name) {
            let mut codes = self.codes_mut(name);
            (0..codes.len()).for_each(|i| codes.set_code(i, fill.scale_code(codes.dtype)));
        }
    }

    /// Fills the elements of a matrix; what lies between its rows stays as it is.
    pub fn fill_matrix(&mut self, name: &str, m: &Matrix, (rows, cols, batch): (u32, u32, u32), fill: &mut Fill) {
        self.fill_places(name, m, (rows, cols, batch), fill);
    }

    /// The same for rows.
    pub fn fill_rows(&mut self, name: &str, r: &Rows, (rows, cols): (u32, u32), fill: &mut Fill) {
        self.fill_places(name, &r.as_matrix(rows), (rows, cols, 1), fill);
    }

    /// Fills a matrix of a scaled format: codes, scales, global and zero points, as far as the problem has them.
    pub fn fill_scaled(&mut self, parts: Parts, m: &Matrix, (rows, cols, batch): (u32, u32, u32), fill: &mut Fill) {
        let [codes, scale, global, zero] = parts;
        self.fill_places(codes, m, (rows, cols, batch), fill);
        for name in [scale, global].into_iter().filter(|n| !n.is_empty()) {
            self.fill_scales(name, fill);
        }
        if !zero.is_empty() && self.has(zero) {
            let most = zero_points(m.format);
            let mut codes = self.codes_mut(zero);
            (0..codes.len()).for_each(|i| codes.set_code(i, fill.below(most)));
        }
    }

    fn fill_places(&mut self, name: &str, m: &Matrix, (rows, cols, batch): (u32, u32, u32), fill: &mut Fill) {
        let dtype = m.dtype();
        let mut codes = self.codes_mut(name);
        if matches!(m.order, kp_hal::op::Order::Panel { .. }) {
            // The padding of panels is part of the format: zeros.
            let zero = encode(dtype, 0.0, Overflow::Saturate);
            (0..codes.len()).for_each(|i| codes.set_code(i, zero));
        }
        let batches = if m.stride == 0 { batch.min(1) } else { batch };
        for b in 0..batches {
            for row in 0..rows {
                for col in 0..cols {
                    codes.set_code(u64::from(b) * m.stride + m.index(row, col, rows), fill.code(dtype));
                }
            }
        }
    }

    fn index(&self, name: &str) -> usize {
        let found = self.list.iter().position(|o| o.name == name);
        found.unwrap_or_else(|| panic!("the op has no operand {name}"))
    }
}

/// Bytes that no computation should use: NaN in every element that can hold one.
pub fn poison(t: DType, bytes: u64) -> Vec<u8> {
    let code = nan_code(t).unwrap_or(u64::MAX);
    let mut out = vec![0xff; bytes as usize];
    if t.bits() >= 8 {
        (0..bytes / u64::from(t.bits() / 8)).for_each(|i| set(t, &mut out, i, code));
    }
    out
}

/// How many zero points a format can mean: those that are codes and fit a U8.
fn zero_points(format: Format) -> u64 {
    match format.dtype {
        DType::I4 => 8,
        DType::U4 => 16,
        DType::I8 => 128,
        _ => 256,
    }
}

/// Packed elements, to read.
#[derive(Clone, Copy, Debug)]
pub struct Codes<'a> {
    /// Their type.
    pub dtype: DType,
    /// Where they are.
    pub bytes: &'a [u8],
}

impl Codes<'_> {
    /// How many whole elements there are; of two in the last byte, both.
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64 * 8 / u64::from(self.dtype.bits())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Element `i` as a code.
    #[inline]
    pub fn code(&self, i: u64) -> u64 {
        get(self.dtype, self.bytes, i)
    }

    /// Element `i` as a number.
    #[inline]
    pub fn value(&self, i: u64) -> f64 {
        decode(self.dtype, self.code(i))
    }

    /// Element `i` of an integer type.
    #[inline]
    pub fn int(&self, i: u64) -> i64 {
        self.value(i) as i64
    }
}

/// Packed elements, to write.
#[derive(Debug)]
pub struct CodesMut<'a> {
    /// Their type.
    pub dtype: DType,
    /// Where they are.
    pub bytes: &'a mut Vec<u8>,
}

impl CodesMut<'_> {
    /// How many whole elements there are; of two in the last byte, both.
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64 * 8 / u64::from(self.dtype.bits())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Sets element `i`.
    #[inline]
    pub fn set_code(&mut self, i: u64, code: u64) {
        set(self.dtype, self.bytes, i, code);
    }

    /// Sets element `i` to the number nearest to `x`.
    #[inline]
    pub fn set_value(&mut self, i: u64, x: f64) {
        self.set_code(i, encode(self.dtype, x, Overflow::Saturate));
    }
}

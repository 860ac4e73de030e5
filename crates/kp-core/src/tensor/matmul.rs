//! Products of matrices.

use super::{
    Data, Right, Tensor, error_bound,
    run::{Output, Run, dim, refuse},
    view::{Plane, shape_text},
};
use kp_hal::{
    DType, Result,
    op::{self, Acc, Act, Format, Gate, GemmArgs, GemmSpec, Matrix, Order, ScaleLayout, Scheme},
};

/// What a product does to its sums before it stores them: `act(alpha · sums + bias)`, gated, plus a residual.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue<'t> {
    /// A number per column of the product, added to every row.
    pub bias: Option<&'t Tensor>,
    /// The activation.
    pub act: Act,
    /// Whether pairs of columns are combined, which halves the columns of the result.
    pub gate: Gate,
    /// A tensor of the result's shape, added last.
    pub residual: Option<&'t Tensor>,
    /// Multiplies the sums.
    pub alpha: f32,
    /// What the result is stored as; see [`Tensor::matmul`] for the choice made otherwise. A scaled format is
    /// quantized as it is stored; `@tensor` and `@nv`, which must see everything first, are not possible here.
    pub out: Option<Format>,
    /// What the sums are kept in; the usual accumulator of the operands otherwise. [`Acc::F32Q8`] permits more: floats may be
    /// rounded to bytes on their way to weights of at most 8 bits.
    pub acc: Option<Acc>,
}

impl Default for Epilogue<'_> {
    fn default() -> Self {
        Self { bias: None, act: Act::Identity, gate: Gate::None, residual: None, alpha: 1.0, out: None, acc: None }
    }
}

impl Epilogue<'_> {
    /// What the product of `a` and `b` is stored as.
    pub(super) fn result(&self, op: &'static str, a: Format, b: Format) -> Result<Format> {
        let out = self.out.unwrap_or_else(|| result_format(a, b));
        if matches!(out.scheme, Scheme::Tensor | Scheme::Nv) {
            let rule = "the result's scale is known only when all of it is: quantize it afterwards";
            return Err(refuse(op, [("the result", out.to_string())], rule));
        }
        Ok(out)
    }
}

const OP: &str = "matmul";

impl Tensor {
    /// The product `self · b`: `m`×`k` by `k`×`n` is `m`×`n`.
    ///
    /// Further dimensions in front are a batch; one side may have none, or 1, and then is used for each of the
    /// other's. Transposed views cost nothing. Either side may be quantized, with its scales along `k`: quantize a
    /// weight stored `n`×`k` as it is and multiply by its [`Tensor::t`]; one that is used many times may be
    /// [packed](Tensor::pack). The result has the left side's type if that
    /// is a float of at least 16 bits, else the right side's, else `i32` for integers without scales, else `f32`.
    ///
    /// # Errors
    /// `BadOperands` if the shapes or scales do not go together, `Unsupported` if no kernel multiplies these types,
    /// `OutOfMemory`. The tensors and the engine stay usable.
    pub fn matmul<'b>(&self, b: impl Into<Right<'b>>) -> Result<Self> {
        self.product(b.into(), Epilogue::default())
    }

    /// The product with what usually follows it, fused into one kernel.
    ///
    /// # Errors
    /// As [`Tensor::matmul`]; `BadOperands` also if bias or residual have another shape than the result wants.
    pub fn matmul_with<'b>(&self, b: impl Into<Right<'b>>, epilogue: Epilogue<'_>) -> Result<Self> {
        self.product(b.into(), epilogue)
    }

    fn product(&self, right: Right<'_>, epilogue: Epilogue<'_>) -> Result<Self> {
        let (a, b) = (self, right.tensor);
        let shapes = || [("a", a.describe()), ("b", b.describe())];
        let (&[ref a_outer @ .., _, k], &[ref b_outer @ .., b_rows, n]) = (a.shape(), b.shape()) else {
            return Err(refuse(OP, shapes(), "both need at least two dimensions"));
        };
        if k != b_rows {
            let (a, b) = (shape_text(a.shape()), shape_text(b.shape()));
            return Err(refuse(OP, [("a", a), ("b", b)], "columns of a must equal rows of b"));
        }
        let batches: [usize; 2] = [a_outer, b_outer].map(|outer| outer.iter().product());
        if a_outer != b_outer && batches[0] != 1 && batches[1] != 1 {
            return Err(refuse(OP, shapes(), "dimensions before the last two must be the same, or 1 on one side"));
        }
        if !runs_along_k(a, false) || !runs_along_k(b, true) {
            return Err(refuse(OP, shapes(), SCALES_ALONG_K));
        }
        let outer = if batches[0] == 1 && batches[1] != 1 { b_outer } else { a_outer };
        let outer = if batches == [1, 1] && b_outer.len() > a_outer.len() { b_outer } else { outer };
        if n % epilogue.gate.columns() as usize != 0 {
            return Err(refuse(OP, shapes(), "a gate needs an even number of columns of b"));
        }
        let d_cols = n / epilogue.gate.columns() as usize;
        let m = a.shape()[a.rank() - 2];
        let d_shape: Vec<usize> = outer.iter().copied().chain([m, d_cols]).collect();

        let (a, b) = (a.as_operand(OP, false)?, right.as_operand(OP)?);
        let (mut a_plane, b_plane) = (a.1, b.1);
        // One b for all: the rows of every a are rows of one product, and the scales are one list anyway.
        let foldable = b_plane.batch == 1 && a_plane.batch > 1 && a_plane.order == Order::Row;
        if let (true, Some((rows, cols, ld))) = (foldable, a.0.extent.as_rows(a.0.dtype())) {
            a_plane = Plane { batch: 1, rows, cols, order: Order::Row, ld, stride: rows * ld };
        }
        let batch = a_plane.batch.max(b_plane.batch);
        let batch = if a_plane.batch == 0 || b_plane.batch == 0 { 0 } else { batch };
        for (operand, plane, rows) in [(&a.0, &a_plane, m), (&b.0, &b_plane, n)] {
            if operand.format.scale_dtype().is_some() && batch > 1 {
                if plane.batch != batch {
                    return Err(refuse(OP, shapes(), "in a batch, each matrix must have scales of its own"));
                }
                own_scales(OP, operand.format, rows, shapes)?;
            }
        }

        let out = epilogue.result(OP, a.0.format, b.0.format)?;
        if out.scale_dtype().is_some() && batch > 1 {
            own_scales(OP, out, m, shapes)?;
        }
        let bias = epilogue.bias.map(|bias| bias.vector(OP, "the bias", n)).transpose()?;
        let residual = epilogue.residual.map(|residual| residual.of_shape(OP, "the residual", &d_shape)).transpose()?;
        let [m, n, k] = [("rows of a", a_plane.rows), ("columns of b", n), ("columns of a", k)].map(|(w, s)| dim(w, s));
        let (m, n, k) = (m?, n?, k?);
        let spec = GemmSpec {
            batch: dim("batch", batch)?,
            m,
            n,
            k,
            a: matrix(a.0.format, &a_plane, batch)?,
            b: matrix(b.0.format, &b_plane, batch)?,
            d: Matrix::tight(out, Order::Row, m, dim("columns of b", d_cols)?),
            acc: epilogue.acc.unwrap_or_else(|| Acc::of(a.0.dtype(), b.0.dtype())),
            epilogue: op::Epilogue {
                bias: bias.as_ref().map(Tensor::dtype),
                act: epilogue.act,
                gate: epilogue.gate,
                residual: residual.as_ref().map(Tensor::dtype),
            },
            ..GemmSpec::new(m, n, k, [a.0.format, b.0.format, out])
        };
        let mut result = Output::new(&a.0.engine, &d_shape, out)?;
        let mut run = Run::new(&a.0.engine, OP);
        let Data { codes, scale, .. } = &mut result.data;
        let args = GemmArgs {
            a_scale: a.0.scale(),
            a_global: a.0.global(),
            a_zero: a.0.zero(),
            b_scale: b.0.scale(),
            b_global: b.0.global(),
            b_zero: b.0.zero(),
            bias: run.maybe(bias.as_ref()),
            residual: run.maybe(residual.as_ref()),
            d_scale: scale.as_mut().map(kp_hal::Buffer::slice_mut),
            alpha: epilogue.alpha,
            ..GemmArgs::new(run.read(&a.0), run.read(&b.0), codes.slice_mut())
        };
        let how = run.launch(spec, &args)?;
        let error_bound = error_bound::of_product(&spec, epilogue.alpha);
        Ok(Self { error_bound, ..result.finish(&a.0.engine, how) })
    }

    /// The tensor as matrices, copied if it is none.
    pub(super) fn as_operand(&self, op: &'static str, right: bool) -> Result<(Self, Plane)> {
        if let Some(plane) = self.extent.as_planes(self.dtype()) {
            return Ok((self.clone(), plane));
        }
        let straight = self.contiguous()?;
        let plane = straight.extent.as_planes(self.dtype());
        let plane = plane.ok_or_else(|| {
            refuse(op, [(if right { "b" } else { "a" }, self.describe())], "rows of 4-bit codes must be whole bytes")
        })?;
        Ok((straight, plane))
    }

    /// Refuses another shape, and straightens.
    pub(super) fn of_shape(&self, op: &'static str, name: &'static str, shape: &[usize]) -> Result<Self> {
        self.plain(op, name)?;
        if self.shape() != shape {
            return Err(refuse(op, [(name, self.describe())], format!("it must be {}", shape_text(shape))));
        }
        self.contiguous()
    }
}

/// Whether a's scales serve parts of its rows, b's of its columns.
pub(super) fn runs_along_k(tensor: &Tensor, right: bool) -> bool {
    matches!(tensor.format.scheme, Scheme::None | Scheme::Tensor) || tensor.flipped == right
}

/// What a weight that was quantized the other way round is told.
pub(super) const SCALES_ALONG_K: &str =
    "scales must run along k: quantize a as m x k, b as n x k, and pass b's transpose";

/// Refuses matrices one behind the other, of `rows` rows each, whose scales are not one behind the other too: where a
/// block of scales would serve the end of one matrix and the beginning of the next.
pub(super) fn own_scales<const N: usize>(
    op: &'static str,
    format: Format,
    rows: usize,
    operands: impl Fn() -> [(&'static str, String); N],
) -> Result<()> {
    if format.scheme == Scheme::Tensor {
        return Ok(());
    }
    let together = match format.scales {
        ScaleLayout::Inner => format.block().0 as usize,
        // Tiles are of 128 rows of scales.
        ScaleLayout::Tiles => format.block().0 as usize * 128,
        ScaleLayout::Outer => return Err(refuse(op, operands(), "scales ^outer are those of one matrix")),
    };
    if rows.is_multiple_of(together) {
        return Ok(());
    }
    let rule = format!("{format} scales {together} rows together, which must divide the {rows} rows of each matrix");
    Err(refuse(op, operands(), rule))
}

fn result_format(a: Format, b: Format) -> Format {
    let plain = |f: Format| f.dtype.is_float() && f.dtype.bits() >= 16 && f.dtype != DType::Tf32;
    let scaled = a.scale_dtype().is_some() || b.scale_dtype().is_some();
    match (plain(a), plain(b)) {
        (true, _) => a.dtype.into(),
        (_, true) => b.dtype.into(),
        _ if !scaled && !a.dtype.is_float() && !b.dtype.is_float() => DType::I32.into(),
        _ => DType::F32.into(),
    }
}

pub(super) fn matrix(format: Format, plane: &Plane, batch: usize) -> Result<Matrix> {
    let stride = if plane.batch == 1 && batch > 1 { 0 } else { plane.stride as u64 };
    Ok(Matrix { format, order: plane.order, ld: dim("the distance between rows", plane.ld)?, stride })
}

//! Products of groups of rows, each by a matrix of its own.

use super::{
    Data, Epilogue, Tensor, error_bound,
    matmul::{SCALES_ALONG_K, matrix, own_scales, runs_along_k},
    run::{Output, Run, dim, refuse},
    view::shape_text,
};
use kp_hal::{
    Buffer, DType, Result,
    op::{self, Acc, GemmSpec, GroupedGemmArgs, GroupedGemmSpec, Grouping, Matrix, Order},
};

const OP: &str = "grouped_gemm";

impl Tensor {
    /// Each group of rows times its own matrix of `b`, `groups`×`k`×`n`: the experts of a mixture.
    ///
    /// Rows `m`×`k` lie group by group: group g has rows `groups[g] .. groups[g + 1]`, ascending from 0, and the
    /// result is `m`×`n`. Rows `groups`×`m`×`k` have room for `m` in each group, of which the first `groups[g]` count,
    /// and the result is `groups`×`m`×`n`. `groups` is `i32`; a number below 0 is taken as 0, one past `m` as `m`, and what rows that
    /// two groups claim become is not said. Rows of no group are zero bytes in the result. Types and scales are as in [`Tensor::matmul`].
    ///
    /// # Errors
    /// `BadOperands` if shapes, scales or the number of groups do not go together; `Unsupported`; `OutOfMemory`.
    pub fn grouped_gemm(&self, b: &Tensor, groups: &Tensor) -> Result<Self> {
        self.grouped_gemm_with(b, groups, Epilogue::default())
    }

    /// The same with what usually follows it, fused into one kernel; the bias is `groups`×`n`.
    ///
    /// # Errors
    /// As [`Tensor::grouped_gemm`]; `BadOperands` also if bias or residual have another shape than the result wants.
    pub fn grouped_gemm_with(&self, b: &Tensor, groups: &Tensor, epilogue: Epilogue<'_>) -> Result<Self> {
        let a = self;
        let shapes = || [("a", a.describe()), ("b", b.describe())];
        let (&[ref a_outer @ .., m, k], &[count, b_rows, n]) = (a.shape(), b.shape()) else {
            return Err(refuse(OP, shapes(), "a needs two or three dimensions, b three"));
        };
        let (grouping, numbers) = match *a_outer {
            [] => (Grouping::Contiguous, count + 1),
            [of_a] if of_a == count => (Grouping::Masked, count),
            _ => return Err(refuse(OP, shapes(), "a is m x k, or groups x m x k with as many groups as b")),
        };
        if k != b_rows {
            let (a, b) = (shape_text(a.shape()), shape_text(b.shape()));
            return Err(refuse(OP, [("a", a), ("b", b)], "columns of a must equal rows of b"));
        }
        if !runs_along_k(a, false) || !runs_along_k(b, true) {
            return Err(refuse(OP, shapes(), SCALES_ALONG_K));
        }
        let gate = epilogue.gate.columns() as usize;
        if n % gate != 0 {
            return Err(refuse(OP, shapes(), "a gate needs an even number of columns of b"));
        }
        let d_shape: Vec<usize> = a_outer.iter().copied().chain([m, n / gate]).collect();
        let groups = groups.vector_of(OP, "groups", numbers, DType::I32)?;
        let ((a, a_plane), (b, b_plane)) = (a.as_operand(OP, false)?, b.as_operand(OP, true)?);
        for (operand, plane, rows) in [(&a, &a_plane, m), (&b, &b_plane, n)] {
            if operand.format.scale_dtype().is_some() && plane.batch > 1 {
                own_scales(OP, operand.format, rows, shapes)?;
            }
        }
        let out = epilogue.result(OP, a.format, b.format)?;
        if out.scale_dtype().is_some() && a_plane.batch > 1 {
            own_scales(OP, out, m, shapes)?;
        }
        let bias = epilogue.bias.map(|bias| bias.of_shape(OP, "the bias", &[count, n])).transpose()?;
        let residual = epilogue.residual.map(|residual| residual.of_shape(OP, "the residual", &d_shape)).transpose()?;
        let (m, n, k) = (dim("rows of a", m)?, dim("columns of b", n)?, dim("columns of a", k)?);
        let gemm = GemmSpec {
            batch: dim("groups", count)?,
            a: matrix(a.format, &a_plane, a_plane.batch)?,
            b: matrix(b.format, &b_plane, count)?,
            d: Matrix::tight(out, Order::Row, m, n / epilogue.gate.columns()),
            acc: epilogue.acc.unwrap_or_else(|| Acc::of(a.dtype(), b.dtype())),
            epilogue: op::Epilogue {
                bias: bias.as_ref().map(Tensor::dtype),
                act: epilogue.act,
                gate: epilogue.gate,
                residual: residual.as_ref().map(Tensor::dtype),
            },
            ..GemmSpec::new(m, n, k, [a.format, b.format, out])
        };
        let engine = &a.engine;
        let mut result = Output::new(engine, &d_shape, out)?;
        // Rows of no group are not written, and memory may hold anything.
        result.clear(engine)?;
        let Data { codes, scale, .. } = &mut result.data;
        let mut run = Run::new(engine, OP);
        let args = GroupedGemmArgs {
            a_scale: a.scale(),
            a_global: a.global(),
            a_zero: a.zero(),
            b_scale: b.scale(),
            b_global: b.global(),
            b_zero: b.zero(),
            bias: run.maybe(bias.as_ref()),
            residual: run.maybe(residual.as_ref()),
            d_scale: scale.as_mut().map(Buffer::slice_mut),
            alpha: epilogue.alpha,
            ..GroupedGemmArgs::new(run.read(&a), run.read(&b), codes.slice_mut(), run.read(&groups))
        };
        let how = run.launch(GroupedGemmSpec { gemm, grouping }, &args)?;
        let error_bound = error_bound::of_product(&gemm, epilogue.alpha);
        Ok(Self { error_bound, ..result.finish(engine, how) })
    }
}

//! The argument block of `simt.cu` and `simt_store.cu`, field by field as `simt.cuh` declares it.

use kp_hal::{
    DType, Slice,
    op::{
        Acc, Addend, Align, Format, Gate, GemmArgs, GemmSpec, GroupedGemmArgs, Grouping, Matrix, Order, ScaleLayout,
        Scheme, Sparsity,
    },
};

/// A or B.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Operand {
    codes: u64,
    scales: u64,
    zeros: u64,
    global: u64,
    meta: u64,
    stride: u64,
    scale_stride: u64,
    scale_outer: u64,
    scale_inner: u64,
    outer: u32,
    inner: u32,
    ld: u32,
    block_outer: u32,
    block_inner: u32,
    inner_blocks: u32,
    panel_width: u32,
    panel_depth: u32,
    form: u32,
    dtype: u8,
    scale_dtype: u8,
    vector: u8,
    unused: u8,
}

/// D, and what becomes of the sums.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Finish {
    codes: u64,
    scales: u64,
    global: u64,
    c: u64,
    bias: u64,
    residual: u64,
    stage: u64,
    groups: u64,
    stride: u64,
    scale_stride: u64,
    scale_outer: u64,
    scale_inner: u64,
    cols: u32,
    ld: u32,
    block_outer: u32,
    block_inner: u32,
    alpha: f32,
    beta: f32,
    dtype: u8,
    scale_dtype: u8,
    c_dtype: u8,
    bias_dtype: u8,
    residual_dtype: u8,
    act: u8,
    gate: u8,
    addend: u8,
    grouping: u8,
    column_order: u8,
    half_sums: u8,
    floor_rule: u8,
    unused: [u8; 4],
}

/// All of it, passed by value.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(in crate::gemm) struct Params {
    a: Operand,
    b: Operand,
    d: Finish,
    batch: u32,
    m: u32,
    n: u32,
    k: u32,
    tiles: u64,
    tiles_n: u32,
    unused: u32,
}

// As `simt.cuh` asserts of its own.
const _: () = assert!(size_of::<Operand>() == 112 && size_of::<Finish>() == 136 && size_of::<Params>() == 392);

/// A launch's addresses and scalars.
#[derive(Clone, Copy, Debug)]
pub(in crate::gemm) struct Buffers {
    a: [u64; 5],
    b: [u64; 4],
    d: [u64; 3],
    c: u64,
    bias: u64,
    residual: u64,
    groups: u64,
    alpha: f32,
    beta: f32,
}

fn addr(slice: &Option<Slice<'_>>) -> u64 {
    slice.as_ref().map_or(0, Slice::addr)
}

impl From<&GemmArgs<'_>> for Buffers {
    fn from(args: &GemmArgs<'_>) -> Self {
        let d_scale = args.d_scale.as_ref().map_or(0, |s| s.addr());
        Self {
            a: [args.a.addr(), addr(&args.a_scale), addr(&args.a_zero), addr(&args.a_global), addr(&args.a_meta)],
            b: [args.b.addr(), addr(&args.b_scale), addr(&args.b_zero), addr(&args.b_global)],
            d: [args.d.addr(), d_scale, addr(&args.d_global)],
            c: addr(&args.c),
            bias: addr(&args.bias),
            residual: addr(&args.residual),
            groups: 0,
            alpha: args.alpha,
            beta: args.beta,
        }
    }
}

impl From<&GroupedGemmArgs<'_>> for Buffers {
    fn from(args: &GroupedGemmArgs<'_>) -> Self {
        let d_scale = args.d_scale.as_ref().map_or(0, |s| s.addr());
        Self {
            a: [args.a.addr(), addr(&args.a_scale), addr(&args.a_zero), addr(&args.a_global), 0],
            b: [args.b.addr(), addr(&args.b_scale), addr(&args.b_zero), addr(&args.b_global)],
            d: [args.d.addr(), d_scale, addr(&args.d_global)],
            c: 0,
            bias: addr(&args.bias),
            residual: addr(&args.residual),
            groups: args.groups.addr(),
            alpha: args.alpha,
            beta: 0.0,
        }
    }
}

impl Params {
    /// Everything but what a launch brings; `tile` is rows and columns of A·B that one block makes.
    pub(in crate::gemm) fn of(
        spec: &GemmSpec,
        grouping: Option<Grouping>,
        align: Align,
        (tile_m, tile_n): (u32, u32),
        run: fn(DType) -> u32,
    ) -> Self {
        let GemmSpec { batch, m, n, k, .. } = *spec;
        let row_batch = if grouping == Some(Grouping::Contiguous) { 1 } else { batch };
        let tiles_n = match spec.epilogue.gate {
            // Each half of a tile holds half of its columns.
            Gate::Halves => (n / 2).div_ceil(tile_n / 2),
            Gate::None | Gate::Pairs => n.div_ceil(tile_n),
        };
        let row_tiles = match grouping {
            // Each group may end within a tile.
            Some(Grouping::Contiguous) => u64::from(m.div_ceil(tile_m)) + u64::from(batch),
            _ => u64::from(batch) * u64::from(m.div_ceil(tile_m)),
        };
        let tiles = if row_batch == 0 || m == 0 { 0 } else { row_tiles * u64::from(tiles_n) };
        let mut a = Operand::of(&spec.a, (m, k), Side::A, align, run);
        if spec.sparsity == Sparsity::TwoOfFour {
            a.form = FORM_SPARSE;
        }
        let mut b = Operand::of(&spec.b, (n, k), Side::B, align, run);
        let per_run = |x: &Operand, elements: u32| elements.is_multiple_of(run(spec.b.dtype())) || x.form != FORM_OUTER;
        // Groups start at any row, and the second half of gated columns anywhere.
        a.vector &= u8::from(grouping != Some(Grouping::Contiguous) || a.form != FORM_OUTER);
        b.vector &= u8::from(spec.epilogue.gate != Gate::Halves || per_run(&b, n / 2));
        Self { a, b, d: Finish::of(spec, grouping), batch, m, n, k, tiles, tiles_n, unused: 0 }
    }

    /// Tiles of D that there may be.
    pub(in crate::gemm) fn tiles(&self) -> u64 {
        self.tiles
    }

    /// With the addresses of one launch; `stage` is that of the scratch, 0 if D needs none.
    pub(in crate::gemm) fn with(&self, buffers: &Buffers, stage: u64) -> Self {
        let mut params = *self;
        let Buffers { a, b, d, c, bias, residual, groups, alpha, beta } = *buffers;
        [params.a.codes, params.a.scales, params.a.zeros, params.a.global, params.a.meta] = a;
        [params.b.codes, params.b.scales, params.b.zeros, params.b.global] = b;
        [params.d.codes, params.d.scales, params.d.global] = d;
        params.d = Finish { c, bias, residual, stage, groups, alpha, beta, ..params.d };
        params
    }
}

/// Which operand of the product.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    A,
    B,
}

/// Values of `Form` in `simt.cuh`.
const FORM_INNER: u32 = 0;
const FORM_OUTER: u32 = 1;
const FORM_PANEL: u32 = 2;
const FORM_SPARSE: u32 = 3;

impl Operand {
    fn of(matrix: &Matrix, (outer, inner): (u32, u32), side: Side, align: Align, run: fn(DType) -> u32) -> Self {
        let form = match (matrix.order, side) {
            (Order::Panel { .. }, _) => FORM_PANEL,
            (Order::Row, Side::A) | (Order::Col, Side::B) => FORM_INNER,
            (Order::Row, Side::B) | (Order::Col, Side::A) => FORM_OUTER,
        };
        let (panel_width, panel_depth) = match matrix.order {
            Order::Panel { width, depth } => (width.into(), depth.into()),
            Order::Row | Order::Col => (1, 1),
        };
        let format = matrix.format;
        let scales = Scales::of(format, (outer, inner));
        // As many elements as are loaded at once, or 16 bytes if that is less.
        let run = (u64::from(run(format.dtype) * format.dtype.bits()) / 8).min(16);
        let starts = |elements: u64| (elements * u64::from(format.dtype.bits()) / 8).is_multiple_of(run);
        let aligned = u64::from(align.bytes()) >= run && starts(matrix.ld.into()) && starts(matrix.stride);
        Self {
            stride: matrix.stride,
            scale_stride: scales.stride,
            scale_outer: scales.outer,
            scale_inner: scales.inner,
            outer,
            inner,
            ld: matrix.ld,
            block_outer: scales.block.0,
            block_inner: scales.block.1,
            inner_blocks: scales.inner_blocks,
            panel_width,
            panel_depth,
            form,
            dtype: format.dtype as u8,
            scale_dtype: format.scale_dtype().unwrap_or(DType::F32) as u8,
            vector: u8::from(aligned),
            ..Self::default()
        }
    }
}

/// Where scales lie.
struct Scales {
    stride: u64,
    outer: u64,
    inner: u64,
    block: (u32, u32),
    inner_blocks: u32,
}

impl Scales {
    fn of(format: Format, (outer, inner): (u32, u32)) -> Self {
        let blocks = format.blocks(outer, inner);
        let (step_outer, step_inner) = match format.scales {
            ScaleLayout::Inner => (u64::from(blocks.1), 1),
            ScaleLayout::Outer => (1, u64::from(blocks.0).next_multiple_of(4)),
            ScaleLayout::Tiles => (0, 0),
        };
        // The one scale of a tensor is that of every matrix of a batch.
        let stride = if format.scheme == Scheme::Tensor { 0 } else { format.scale_count(outer, inner) };
        Self { stride, outer: step_outer, inner: step_inner, block: format.block(), inner_blocks: blocks.1 }
    }
}

impl Finish {
    fn of(spec: &GemmSpec, grouping: Option<Grouping>) -> Self {
        let (d, epilogue) = (spec.d, spec.epilogue);
        let cols = spec.d_cols();
        let scales = Scales::of(d.format, (spec.m, cols));
        let (addend, c_dtype) = match spec.c {
            Addend::None => (0, DType::F32),
            Addend::Given(dtype) => (1, dtype),
            Addend::InPlace => (2, d.dtype()),
        };
        Self {
            stride: d.stride,
            scale_stride: scales.stride,
            scale_outer: scales.outer,
            scale_inner: scales.inner,
            cols,
            ld: d.ld,
            block_outer: scales.block.0,
            block_inner: scales.block.1,
            dtype: d.dtype() as u8,
            scale_dtype: d.format.scale_dtype().unwrap_or(DType::F32) as u8,
            c_dtype: c_dtype as u8,
            bias_dtype: epilogue.bias.unwrap_or(DType::F32) as u8,
            residual_dtype: epilogue.residual.unwrap_or(DType::F32) as u8,
            act: epilogue.act as u8,
            gate: epilogue.gate as u8,
            addend,
            grouping: match grouping {
                None => 0,
                Some(Grouping::Contiguous) => 1,
                Some(Grouping::Masked) => 2,
            },
            column_order: u8::from(d.order == Order::Col),
            half_sums: u8::from(spec.acc == Acc::F16),
            floor_rule: u8::from(d.format.scheme == Scheme::Mx),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kp_hal::op::{Act, GemmProblem};

    /// The names of an enumeration of the device code.
    fn names(header: &str, declaration: &str) -> Vec<String> {
        let body = header.split(declaration).nth(1).unwrap_or_else(|| panic!("{declaration} is in the header"));
        let body = body.split(['{', '}']).nth(1).expect("it has a body");
        let lines = body.lines().filter(|line| !line.trim_start().starts_with("//"));
        let names = lines.flat_map(|line| line.split(',')).map(|name| name.trim().to_owned());
        names.filter(|name| !name.is_empty()).collect()
    }

    #[test]
    fn enumerations_are_in_one_order() {
        let numbers = include_str!("../../../../../kernels/common/cuda/numbers.cuh");
        let simt = include_str!("../../../../../kernels/gemm/cuda/simt.cuh");
        let spelled = |list: Vec<String>| list.iter().map(|name| name.to_lowercase()).collect::<Vec<_>>();
        let dtypes: Vec<String> = DType::ALL.iter().map(ToString::to_string).collect();
        assert_eq!(spelled(names(numbers, "enum class DType")), dtypes);
        let acts: Vec<String> = Act::ALL.iter().map(|act| act.to_string().replace('_', "")).collect();
        assert_eq!(spelled(names(simt, "enum class Act")), acts);
        assert_eq!(names(simt, "enum class Gate"), ["None", "Halves", "Pairs"]);
        assert_eq!([Gate::None, Gate::Halves, Gate::Pairs].map(|gate| gate as u8), [0, 1, 2]);
        assert_eq!(names(simt, "enum class Form"), ["Inner", "Outer", "Panel", "Sparse"]);
        assert_eq!(names(simt, "enum class Addend"), ["None", "Given", "InPlace"]);
        assert_eq!(names(simt, "enum class Grouping"), ["None", "Contiguous", "Masked"]);
    }

    fn params(text: &str) -> Params {
        let problem: GemmProblem = text.parse().expect(text);
        Params::of(&problem, None, problem.align(), (128, 128), |_| 4)
    }

    #[test]
    fn runs_are_loaded_at_once_where_all_are_aligned() {
        let vector = |text: &str| {
            let p = params(text);
            (p.a.vector, p.b.vector)
        };
        assert_eq!(vector("gemm 1x8x8x8 f32:f32:f32"), (1, 1));
        assert_eq!(vector("gemm 1x8x8x7 f32:f32:f32"), (0, 1));
        assert_eq!(vector("gemm 1x8x8x8 f32:f32:f32 align=4"), (0, 0));
        assert_eq!(vector("gemm 1x8x12x8 bf16:e4m3:f32 align=4"), (0, 1));
        assert_eq!(vector("gemm 1x8x12x8 f32:f32:f32 gate=halves"), (1, 0), "u starts at column 6");
        assert_eq!(vector("gemm 2x8x8x8 f32:f32:f32 b=row/8/65"), (1, 0));
    }

    #[test]
    fn tiles_cover_halves_and_groups() {
        assert_eq!(params("gemm 3x129x300x8 f32:f32:f32").tiles(), 3 * 2 * 3);
        assert_eq!(params("gemm 1x1x300x8 f32:f32:f32 gate=halves").tiles(), 3);
        assert_eq!(params("gemm 0x0x0x0 f32:f32:f32").tiles(), 0);
        let spec = *params_spec("gemm 4x129x128x8 f32:f32:f32").spec();
        let groups = Params::of(&spec, Some(Grouping::Contiguous), Align::default(), (128, 128), |_| 4);
        assert_eq!(groups.tiles(), 2 + 4);
    }

    fn params_spec(text: &str) -> GemmProblem {
        text.parse().expect(text)
    }
}

//! One launch of a product: its operands as bytes, and which rows go with which B.

use super::side::{Scaling, Side, scales_vary};
use crate::{
    kernel::{Output, input, optional},
    numbers::{Real, small::F16},
};
use kp_hal::{
    DType,
    op::{Acc, GemmArgs, GemmSpec, GroupedGemmArgs, GroupedGemmSpec, Grouping, Overflow, Scheme, Sparsity},
};

/// What a launch was given.
pub(crate) struct Product<'a> {
    pub(crate) spec: &'a GemmSpec,
    pub(crate) a: Side<'a>,
    pub(crate) b: Side<'a>,
    pub(crate) c: &'a [u8],
    pub(crate) bias: &'a [u8],
    pub(crate) residual: &'a [u8],
    pub(crate) d: Output<'a>,
    pub(crate) d_scale: Output<'a>,
    pub(crate) d_global: &'a [u8],
    pub(crate) alpha: f32,
    pub(crate) beta: f32,
}

/// Rows of A that meet one B.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    /// Which A, and which D.
    pub(crate) row_batch: usize,
    /// Which B, and which bias.
    pub(crate) b: usize,
    /// Whether each B has a bias of its own.
    pub(crate) own_bias: bool,
    /// The first row in A and D.
    pub(crate) row: usize,
    /// How many.
    pub(crate) rows: usize,
}

/// The parts that plain and grouped products are given alike, from either's arguments; nothing sparse, nothing added.
macro_rules! alike {
    ($spec:expr, $args:expr) => {{
        let (spec, args): (&GemmSpec, _) = ($spec, $args);
        Product {
            spec,
            a: Side {
                matrix: spec.a,
                columns: false,
                outer: spec.m,
                inner: spec.k,
                codes: input(&args.a),
                scales: optional(&args.a_scale),
                zeros: optional(&args.a_zero),
                global: optional(&args.a_global),
                meta: None,
            },
            b: Side {
                matrix: spec.b,
                columns: true,
                outer: spec.n,
                inner: spec.k,
                codes: input(&args.b),
                scales: optional(&args.b_scale),
                zeros: optional(&args.b_zero),
                global: optional(&args.b_global),
                meta: None,
            },
            c: &[],
            bias: optional(&args.bias),
            residual: optional(&args.residual),
            d: Output::new(&args.d),
            d_scale: Output::optional(&args.d_scale),
            d_global: optional(&args.d_global),
            alpha: args.alpha,
            beta: 0.0,
        }
    }};
}

impl<'a> Product<'a> {
    /// # Safety
    /// Within `Launch::launch`, whose arguments were checked.
    pub(crate) unsafe fn of(spec: &'a GemmSpec, args: &'a GemmArgs<'_>) -> Self {
        // SAFETY: passed on.
        unsafe {
            let mut product = alike!(spec, args);
            product.a.meta = (spec.sparsity == Sparsity::TwoOfFour).then(|| optional(&args.a_meta));
            Self { c: optional(&args.c), beta: args.beta, ..product }
        }
    }

    /// # Safety
    /// As [`Self::of`].
    pub(crate) unsafe fn of_groups(spec: &'a GroupedGemmSpec, args: &'a GroupedGemmArgs<'_>) -> Self {
        // SAFETY: passed on.
        unsafe { alike!(&spec.gemm, args) }
    }
}

/// Item `i` of a plain product.
pub(crate) fn item(spec: &GemmSpec, i: usize) -> Item {
    Item { row_batch: i, b: i, own_bias: false, row: 0, rows: spec.m as usize }
}

/// Item `g` of a grouped product. Numbers of `groups` that make no sense are clamped, so that nothing outside is touched.
pub(crate) fn group(spec: &GroupedGemmSpec, groups: &[u8], g: usize) -> Item {
    let number = |i| (crate::numbers::index(groups, i).max(0) as usize).min(spec.gemm.m as usize);
    match spec.grouping {
        Grouping::Contiguous => {
            let (first, end) = (number(g), number(g + 1));
            Item { row_batch: 0, b: g, own_bias: true, row: first, rows: end.saturating_sub(first) }
        }
        Grouping::Masked => Item { row_batch: g, b: g, own_bias: true, row: 0, rows: number(g) },
    }
}

/// How sums of a block of k become sums of all of k.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sums {
    /// They are added.
    Added,
    /// Added and rounded to f16.
    Half,
    /// Whole numbers, added exactly; the scales, if any, come at the end.
    Whole,
    /// Whole numbers, scaled and added, since scales change along k.
    Scaled,
}

/// What follows from a problem for every kernel that sums block by block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summing {
    pub(crate) sums: Sums,
    /// Scales of the operands when they are unpacked.
    pub(crate) scaling: Scaling,
    /// Most elements of a block; blocks start at its multiples.
    pub(crate) block: usize,
    /// Where else blocks end: multiples of these.
    cuts: [usize; 2],
}

impl Summing {
    pub(crate) fn of(spec: &GemmSpec) -> Self {
        let plain = |sums| Self { sums, scaling: Scaling::Applied, block: BLOCK, cuts: [usize::MAX; 2] };
        match spec.acc {
            Acc::F16 => plain(Sums::Half),
            Acc::F32 | Acc::F32Fast | Acc::F32Q8 | Acc::F64 => plain(Sums::Added),
            Acc::I32 => {
                // Products of whole numbers are summed in f32, exactly as long as the sum stays below 2²⁴.
                let most = |m: &kp_hal::op::Matrix| {
                    let code = match m.dtype() {
                        DType::I4 => 8,
                        DType::U4 => 15,
                        DType::I8 => 128,
                        _ => 255,
                    };
                    let signed = matches!(m.dtype(), DType::I4 | DType::I8);
                    match (m.format.has_zero(), signed) {
                        (true, true) => code + 255,
                        (true, false) => 255,
                        (false, _) => code,
                    }
                };
                let exact: usize = (1 << 24) / (most(&spec.a) * most(&spec.b));
                let block = (1 << exact.ilog2()).min(BLOCK);
                if scales_vary(&spec.a, spec.k) || scales_vary(&spec.b, spec.k) {
                    let cuts = [spec.a, spec.b].map(|m| m.format.block().1 as usize);
                    return Self { sums: Sums::Scaled, scaling: Scaling::Left, block, cuts };
                }
                Self { sums: Sums::Whole, scaling: Scaling::Left, block, cuts: [usize::MAX; 2] }
            }
        }
    }

    /// The end of the block that starts at `start`.
    #[inline(always)]
    pub(crate) fn end(&self, start: usize, k: usize) -> usize {
        let next = |multiple: usize| (start / multiple + 1).saturating_mul(multiple);
        next(self.block).min(next(self.cuts[0])).min(next(self.cuts[1])).min(k)
    }
}

/// Elements of k whose products are summed before anything else happens to the sum.
const BLOCK: usize = super::side::LINE;

/// Whether what follows the sums is computed in f64: where f32 would lose what an operand holds.
pub(crate) fn finishes_in_f64(spec: &GemmSpec) -> bool {
    let wide = |t: DType| matches!(t, DType::F64 | DType::I32 | DType::I64);
    let c = match spec.c {
        kp_hal::op::Addend::Given(t) => wide(t),
        _ => false,
    };
    let epilogue = spec.epilogue.bias.is_some_and(wide) || spec.epilogue.residual.is_some_and(wide);
    matches!(spec.acc, Acc::F64 | Acc::I32) || wide(spec.d.dtype()) || c || epilogue
}

/// Whether what follows the sums is computed in f64: where f32 would lose what an operand or an exact sum holds.
pub(crate) fn ends_wide(spec: &GemmSpec) -> bool {
    let is_plain = spec.a.format.scheme == Scheme::None && spec.b.format.scheme == Scheme::None;
    spec.acc == Acc::I32 && is_plain || finishes_in_f64(&GemmSpec { acc: Acc::F32, ..*spec })
}

/// Adds the sum of a block to `total`.
#[inline(always)]
pub(crate) fn add<R: Real, E: Real>(sums: Sums, total: &mut E, block: R, scale: E) {
    let block = E::from_f64(block.to_f64());
    *total = match sums {
        Sums::Added | Sums::Whole => *total + block,
        Sums::Half => E::from_f32(F16.decode(F16.encode((*total + block).to_f32(), Overflow::Propagate))),
        Sums::Scaled => *total + block * scale,
    };
}

//! Products of every form, grouped ones too: constants that a pipeline is made with, and the arguments that are pushed. Field by field
//! as `kernels/gemm/glsl/product.glsl` and `store.comp` declare them.

use super::{form, store::STORE};
use crate::{
    device::VulkanDevice,
    launch::{addr, groups, push},
    layouts::{Check, counts, pushed_ld, reads, scale_order},
    pipelines::{Build, Function},
    queue::VulkanQueue,
    shaders::Shader,
};
use kp_hal::{
    DType, Device, Launch, Queue, Result, SliceMut, Unsupported,
    op::{
        Acc, Act, Addend, Format, Gemm, GemmArgs, GemmSpec, GroupedGemm, GroupedGemmArgs, Grouping, Order, ScaleRule,
        Scheme, Sparsity,
    },
};
use std::sync::Arc;

/// Operands that not every problem has, at most, of one problem: as many as there is room for among the arguments.
const MOST_GIVEN: usize = 7;

push! {
    /// Arguments of a product.
    struct ProductPush {
        a: u64,
        b: u64,
        d: u64,
        given: [u64; MOST_GIVEN],
        batch: u32,
        m: u32,
        n: u32,
        k: u32,
        a_ld: u32,
        b_ld: u32,
        d_ld: u32,
        a_stride: u32,
        b_stride: u32,
        d_stride: u32,
        alpha: f32,
        beta: f32,
    }
}

push! {
    /// Arguments of what scales and stores D.
    struct StorePush {
        x: u64,
        q: u64,
        scales: u64,
        global: u64,
        groups: u64,
        q_stride: u64,
        batch: u32,
        rows: u32,
        cols: u32,
        q_ld: u32,
        block_rows: u32,
        block_cols: u32,
        group_count: u32,
        unused: u32,
    }
}

/// Threads of a group of what stores D.
const STORE_THREADS: u32 = 128;

/// Columns that a block of its has where the scheme does not say.
const PIECE: u32 = 2048;

/// A product, and whose rows are whose if they are in groups.
#[derive(Clone, Copy)]
pub(crate) struct Form<'p> {
    pub(crate) spec: &'p GemmSpec,
    pub(crate) grouping: Option<Grouping>,
}

impl Form<'_> {
    /// How often A and D repeat.
    fn row_batch(&self) -> u32 {
        if self.grouping == Some(Grouping::Contiguous) { 1 } else { self.spec.batch }
    }

    /// Whether sums are of f64.
    pub(crate) fn is_wide(&self) -> bool {
        self.spec.acc == Acc::F64
    }

    /// Whether D waits to be scaled, or its bytes have two numbers.
    fn is_staged(&self) -> bool {
        self.spec.d.format.scheme != Scheme::None || self.spec.d.dtype().bits() == 4
    }

    /// Which of the optional operands there are, in the shader's order.
    fn present(&self) -> [bool; 12] {
        let GemmSpec { a, b, c, epilogue, sparsity, .. } = self.spec;
        let of = |format: Format| [format.scale_dtype().is_some(), format.has_global(), format.has_zero()];
        let ([a_scale, a_global, a_zero], [b_scale, b_global, b_zero]) = (of(a.format), of(b.format));
        [
            matches!(c, Addend::Given(_)),
            epilogue.bias.is_some(),
            epilogue.residual.is_some(),
            a_scale,
            a_global,
            a_zero,
            *sparsity != Sparsity::Dense,
            b_scale,
            b_global,
            b_zero,
            self.grouping.is_some(),
            self.is_staged(),
        ]
    }

    /// Whether the shaders know the problem.
    ///
    /// # Errors
    /// The first part that they do not know.
    pub(crate) fn known(&self) -> Check {
        let GemmSpec { batch, m, n, k, a, b, d, epilogue, .. } = *self.spec;
        counts(&[("batch", batch), ("m", m), ("n", n), ("k", k)])?;
        if self.is_wide() {
            self.known_wide()?;
        } else {
            reads(&[("a", a.dtype()), ("b", b.dtype())])?;
        }
        let most = if self.is_wide() { 64 } else { 32 };
        let c = match self.spec.c {
            Addend::Given(dtype) => dtype,
            Addend::InPlace | Addend::None => DType::F32,
        };
        let [bias, residual] = [epilogue.bias, epilogue.residual].map(|dtype| dtype.unwrap_or(DType::F32));
        for (operand, got) in [("c", c), ("bias", bias), ("residual", residual), ("d", d.dtype())] {
            if got.bits() > most {
                return Err(Unsupported::DType { operand, got });
            }
        }
        if batch > 1 {
            for (dim, stride) in
                [("distance of as", a.stride), ("distance of bs", b.stride), ("distance of ds", d.stride)]
            {
                let max = u32::MAX.into();
                if stride > max {
                    return Err(Unsupported::TooLarge { dim, max, got: stride });
                }
            }
        }
        let given = self.present().into_iter().filter(|&has| has).count();
        if given > MOST_GIVEN {
            return Err(Unsupported::TooLarge { dim: "optional operands", max: MOST_GIVEN as u64, got: given as u64 });
        }
        let (_, inner) = d.format.block();
        if d.dtype().bits() == 4 {
            if d.order != Order::Row {
                return Err(Unsupported::Layout { operand: "d", got: d.order.to_string() });
            }
            if inner < self.spec.d_cols() && !inner.is_multiple_of(2) {
                return Err(Unsupported::Align { dim: "columns of a block of d", multiple: 2, got: inner.into() });
            }
        }
        Ok(())
    }

    /// Whether the shader for f64 knows the problem: devices have its sums, but no functions of it.
    ///
    /// # Errors
    /// As [`Self::known`].
    fn known_wide(&self) -> Check {
        let GemmSpec { a, b, d, epilogue, .. } = self.spec;
        if d.dtype() != DType::F64 {
            return Err(Unsupported::DType { operand: "d", got: d.dtype() });
        }
        for (operand, format) in [("a", a.format), ("b", b.format), ("d", d.format)] {
            if format.scheme != Scheme::None {
                return Err(Unsupported::Scheme { operand, got: format.to_string() });
            }
        }
        match epilogue.act {
            Act::Identity | Act::Relu => Ok(()),
            act => Err(Unsupported::Option { option: "act", got: act.to_string() }),
        }
    }

    /// Constants 0 to 20.
    fn constants(&self) -> Vec<u32> {
        let GemmSpec { a, b, .. } = self.spec;
        let mut all = form::constants(self.spec);
        let flags =
            [self.is_staged(), self.grouping == Some(Grouping::Contiguous), self.grouping == Some(Grouping::Masked)];
        all[9] |= flags.iter().zip(7..).map(|(&on, bit)| u32::from(on) << bit).sum::<u32>();
        for format in [a.format, b.format] {
            let (outer, inner) = format.block();
            all.extend([format.scale_dtype().unwrap_or(DType::F32) as u32, scale_order(format), outer, inner]);
        }
        all.push(self.present().iter().zip(0..).map(|(&on, bit)| u32::from(on) << bit).sum());
        all
    }

    /// Tiles of so many rows and columns, at most.
    pub(crate) fn tiles(&self, (rows, cols): (u32, u32)) -> u64 {
        let GemmSpec { batch, m, n, .. } = *self.spec;
        let down = match self.grouping {
            // Each group ends with one that is cut off.
            Some(Grouping::Contiguous) => u64::from(m.div_ceil(rows)) + u64::from(batch),
            _ => u64::from(batch) * u64::from(m.div_ceil(rows)),
        };
        if m == 0 { 0 } else { down * u64::from(n.div_ceil(cols)) }
    }

    /// Bytes of scratch.
    pub(crate) fn scratch_bytes(&self) -> u64 {
        let all = u64::from(self.row_batch()) * u64::from(self.spec.m) * u64::from(self.spec.d_cols());
        if self.is_staged() { 4 * all } else { 0 }
    }

    /// The product made ready, by `shader` with `own` constants behind the problem's, in tiles of `tile`, for subgroups of a size if it
    /// matters.
    ///
    /// # Errors
    /// `Driver` if the driver refuses a kernel.
    pub(crate) fn ready(
        &self,
        device: &Arc<dyn Device>,
        name: &'static str,
        shader: &'static Shader,
        own: &[u32],
        tile: (u32, u32),
        subgroup: Option<u32>,
    ) -> Result<Code> {
        let vulkan: &VulkanDevice = device.downcast_ref().expect("a device of this backend");
        let GemmSpec { batch, m, n, k, a, b, d, .. } = *self.spec;
        let constants = [&self.constants(), own].concat();
        let main = vulkan.function(&Build { shader, constants, subgroup })?;
        let store = self.is_staged().then(|| self.store(vulkan)).transpose()?;
        let push = ProductPush {
            batch,
            m,
            n,
            k,
            a_ld: pushed_ld(&a),
            b_ld: pushed_ld(&b),
            d_ld: pushed_ld(&d),
            // Of one matrix alone the distance is not asked for.
            a_stride: a.stride as u32,
            b_stride: b.stride as u32,
            d_stride: d.stride as u32,
            ..ProductPush::default()
        };
        let most = vulkan.max_groups();
        let main = (main, groups(self.tiles(tile), most));
        Ok(Code { name, main, store, push, present: self.present() })
    }

    /// What scales D and stores it.
    fn store(&self, vulkan: &VulkanDevice) -> Result<(Function, u32, StorePush)> {
        let (d, rows, cols) = (&self.spec.d, self.spec.m, self.spec.d_cols());
        let format = d.format;
        let is_tensor = format.scheme == Scheme::Tensor;
        let (block_rows, block_cols) = match format.scheme {
            Scheme::None | Scheme::Tensor => (1, PIECE),
            _ => format.block(),
        };
        let pairs = u64::from(block_rows.min(rows)) * u64::from(block_cols.min(cols).div_ceil(2));
        let lanes = pairs.div_ceil(4).next_power_of_two().min(STORE_THREADS.into()) as u32;
        let has = [
            (format.scale_dtype().is_some(), 0),
            (format.has_global(), 1),
            (is_tensor, 3),
            (d.order == Order::Col, 6),
            (self.grouping == Some(Grouping::Contiguous), 7),
            (self.grouping == Some(Grouping::Masked), 8),
        ];
        let flags = has.into_iter().map(|(on, bit)| u32::from(on) << bit).sum();
        let scale = format.scale_dtype().unwrap_or(DType::F32);
        let rule = ScaleRule::of(format) as u32;
        let constants = vec![format.dtype as u32, scale as u32, scale_order(format), flags, rule, lanes];
        let function = vulkan.function(&Build { shader: &STORE, constants, subgroup: None })?;
        let blocks =
            u64::from(self.row_batch()) * u64::from(rows.div_ceil(block_rows)) * u64::from(cols.div_ceil(block_cols));
        let push = StorePush {
            q_stride: d.stride,
            batch: self.row_batch(),
            rows,
            cols,
            q_ld: pushed_ld(d),
            block_rows,
            block_cols,
            group_count: self.spec.batch,
            ..StorePush::default()
        };
        Ok((function, groups(blocks.div_ceil((STORE_THREADS / lanes).into()), vulkan.max_groups()), push))
    }
}

/// The launches of a plan.
#[derive(Debug)]
pub(crate) struct Code {
    name: &'static str,
    main: (Function, u32),
    store: Option<(Function, u32, StorePush)>,
    push: ProductPush,
    present: [bool; 12],
}

/// What a launch brings.
struct Brought {
    a: u64,
    b: u64,
    d: u64,
    /// The optional operands but the last, scratch, in the shader's order.
    optional: [u64; 11],
    d_scale: u64,
    d_global: u64,
    alpha: f32,
    beta: f32,
}

/// What plain and grouped products are given alike, with what they are not.
macro_rules! brought {
    ($args:expr, c: $c:expr, meta: $meta:expr, groups: $groups:expr, beta: $beta:expr) => {{
        let args = $args;
        Brought {
            a: args.a.addr(),
            b: args.b.addr(),
            d: args.d.addr(),
            optional: [
                $c,
                addr(&args.bias),
                addr(&args.residual),
                addr(&args.a_scale),
                addr(&args.a_global),
                addr(&args.a_zero),
                $meta,
                addr(&args.b_scale),
                addr(&args.b_global),
                addr(&args.b_zero),
                $groups,
            ],
            d_scale: args.d_scale.as_ref().map_or(0, SliceMut::addr),
            d_global: addr(&args.d_global),
            alpha: args.alpha,
            beta: $beta,
        }
    }};
}

impl Code {
    /// # Safety
    /// As `Launch::launch`.
    unsafe fn enqueue(&self, queue: &mut dyn Queue, brought: &Brought) -> Result<()> {
        if self.main.1 == 0 {
            return Ok(());
        }
        let queue: &mut VulkanQueue = queue.downcast_mut().expect("same device, so same backend");
        let scratch = if self.store.is_some() { queue.scratch_addr() } else { 0 };
        let mut push = self.push;
        (push.a, push.b, push.d) = (brought.a, brought.b, brought.d);
        (push.alpha, push.beta) = (brought.alpha, brought.beta);
        let all = brought.optional.into_iter().chain([scratch]).zip(self.present);
        let given = all.filter_map(|(addr, has)| has.then_some(addr));
        push.given.iter_mut().zip(given).for_each(|(place, addr)| *place = addr);
        // SAFETY: the function takes these arguments and came from the plan's device; the rest is the caller's promise.
        unsafe { queue.launch(self.name, self.main.0, self.main.1, &push) }?;
        let Some((function, groups, mut push)) = self.store else { return Ok(()) };
        (push.x, push.q, push.groups) = (scratch, brought.d, brought.optional[10]);
        (push.scales, push.global) = (brought.d_scale, brought.d_global);
        // SAFETY: as above.
        unsafe { queue.launch("store", function, groups, &push) }
    }
}

impl Launch<Gemm> for Code {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GemmArgs<'_>) -> Result<()> {
        let brought = brought!(args, c: addr(&args.c), meta: addr(&args.a_meta), groups: 0, beta: args.beta);
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(queue, &brought) }
    }
}

impl Launch<GroupedGemm> for Code {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GroupedGemmArgs<'_>) -> Result<()> {
        let brought = brought!(args, c: 0, meta: 0, groups: args.groups.addr(), beta: 0.0);
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(queue, &brought) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kp_hal::op::{GemmProblem, GroupedGemmProblem};

    fn given(text: &str) -> u32 {
        let problem: GemmProblem = text.parse().expect(text);
        let form = Form { spec: problem.spec(), grouping: None };
        assert_eq!(form.known(), Ok(()), "{text}");
        let all = form.constants();
        assert_eq!(all.len(), 21);
        all[20]
    }

    #[test]
    fn operands_stand_in_the_shaders_order() {
        assert_eq!(given("gemm 1x8x8x8 f32:f32:f32"), 0);
        assert_eq!(given("gemm 1x8x8x8 f32:f32:f32 c=f32 bias=f32 residual=f32"), 0b111);
        assert_eq!(given("gemm 1x8x8x64 e2m1@nv:i4@g32/f16z:f32"), 0b10_1001_1000);
        assert_eq!(given("gemm 1x8x8x8 f32:f32:e4m3@row"), 1 << 11);
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let known = |text: &str| {
            let problem: GemmProblem = text.parse().expect(text);
            Form { spec: problem.spec(), grouping: None }.known()
        };
        assert!(known("gemm 1x8x8x8 f64:f64:f64 c=f64 act=relu").is_ok());
        assert!(known("gemm 1x8x8x8 f64:f64:f32").is_err() && known("gemm 1x8x8x8 f64:f64:f64 act=silu").is_err());
        assert!(known("gemm 1x8x8x8 f32:f32:e2m1@mx d=col").is_err());
        let full = "gemm 1x8x8x64 e2m1@nv:e2m1@nv:f32 c=f32 bias=f32";
        assert_eq!(known(full), Ok(()));
        assert!(known(&format!("{full} residual=f32")).is_ok());
        assert!(known("gemm 1x8x8x64 e2m1@nv:e2m1@nv:e4m3@row bias=f32 residual=f32").is_ok());
        assert!(known("gemm 1x8x8x64 e2m1@nv:e2m1@nv:e4m3@row bias=f32 residual=f32 sparse=2:4").is_err());
    }

    #[test]
    fn groups_have_tiles_of_their_own() {
        let problem: GroupedGemmProblem = "grouped_gemm 5x100x64x64 f32:f32:f32".parse().expect("a problem");
        let of = |grouping| Form { spec: &problem.gemm, grouping: Some(grouping) }.tiles((64, 64));
        assert_eq!((of(Grouping::Contiguous), of(Grouping::Masked)), (7, 10));
    }
}

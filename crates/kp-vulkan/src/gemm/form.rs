//! What a problem's layouts, types and epilogue are to the shaders: constants that a pipeline is made with, and the
//! arguments that are pushed. Field by field as `kernels/gemm/glsl/finish.glsl` declares them.

use super::{
    scales::{self, Scales},
    splits::SPLITS,
};
use crate::{
    device::VulkanDevice,
    launch::{Arguments, Once, groups, push},
    layouts::{Check, counts, form, pushed_ld, reads, scale_order, stores},
    pipelines::{Build, Function},
    queue::VulkanQueue,
    shaders::Shader,
};
use kp_hal::{
    DType, Device, Launch, Queue, Result, Slice, Unsupported,
    op::{
        Acc, Addend, Epilogue, Format, Gemm, GemmArgs, GemmSpec, GroupedGemm, GroupedGemmArgs, Grouping, Matrix, Op,
        Order, Scheme, Sparsity,
    },
};
use std::sync::Arc;

/// Operands that not every problem has, at most, of one problem.
const MOST_GIVEN: usize = 5;

push! {
    /// Arguments of a product.
    struct ProductPush {
        a: u64,
        b: u64,
        d: u64,
        given: [u64; MOST_GIVEN],
        a_stride: u64,
        b_stride: u64,
        d_stride: u64,
        batch: u32,
        m: u32,
        n: u32,
        k: u32,
        a_ld: u32,
        b_ld: u32,
        d_ld: u32,
        alpha: f32,
        beta: f32,
        splits: u32,
    }
}

/// Whether the shaders' ends know all that follows the sums, and no operand is scaled or sparse.
///
/// # Errors
/// The first part that they do not know.
pub(super) fn plain(spec: &GemmSpec) -> Check {
    unscaled("b", spec.b.format)?;
    weighed(spec)
}

fn unscaled(operand: &'static str, format: Format) -> Check {
    if format.scheme == Scheme::None {
        return Ok(());
    }
    Err(Unsupported::Scheme { operand, got: format.to_string() })
}

/// The same of a kernel that knows scales of B: see `kernels/gemm/glsl/weights.glsl`.
///
/// # Errors
/// The first part that is not known.
pub(super) fn weighed(spec: &GemmSpec) -> Check {
    counts(&[("batch", spec.batch), ("m", spec.m), ("n", spec.n), ("k", spec.k)])?;
    unscaled("a", spec.a.format)?;
    if spec.sparsity != Sparsity::Dense {
        return Err(Unsupported::Option { option: "sparse", got: spec.sparsity.to_string() });
    }
    if matches!(spec.acc, Acc::F64 | Acc::I32) {
        return Err(Unsupported::Option { option: "acc", got: spec.acc.to_string() });
    }
    let c = match spec.c {
        Addend::Given(dtype) => dtype,
        Addend::InPlace => spec.d.dtype(),
        Addend::None => DType::F32,
    };
    let [bias, residual] = [spec.epilogue.bias, spec.epilogue.residual].map(|dtype| dtype.unwrap_or(DType::F32));
    reads(&[("c", c), ("bias", bias), ("residual", residual)])?;
    stores("d", spec.d.format)
}

/// Constants 0 to 11.
pub(super) fn constants(spec: &GemmSpec) -> Vec<u32> {
    let GemmSpec { a, b, d, epilogue, .. } = spec;
    let (addend, c) = match spec.c {
        Addend::None => (0, DType::F32),
        Addend::Given(dtype) => (1, dtype),
        Addend::InPlace => (2, d.dtype()),
    };
    let scheme = b.format;
    let flags = [
        epilogue.bias.is_some(),
        epilogue.residual.is_some(),
        d.order == Order::Col,
        spec.acc == Acc::F16,
        scheme.scale_dtype().is_some(),
        scheme.has_global(),
        scheme.has_zero(),
    ];
    let flags = flags.iter().zip(0..).map(|(&on, bit)| u32::from(on) << bit).sum();
    let types = [
        a.dtype(),
        b.dtype(),
        d.dtype(),
        c,
        epilogue.bias.unwrap_or(DType::F32),
        epilogue.residual.unwrap_or(DType::F32),
    ];
    let choices = [epilogue.act as u32, epilogue.gate as u32, addend, flags, form(a), form(b)];
    types.into_iter().map(|dtype| dtype as u32).chain(choices).collect()
}

/// The first constant of a problem with scales, where kernels have no more of their own.
const SCALES: usize = 32;

/// Constants 32 to 35: type and order of B's scales, and the block that shares one.
fn scales(format: Format) -> Option<[u32; 4]> {
    let (cols, depth) = format.block();
    Some([format.scale_dtype()? as u32, scale_order(format), cols, depth])
}

/// What a kernel adds to the form that all have.
pub(super) struct Main {
    pub(super) name: &'static str,
    pub(super) shader: &'static Shader,
    /// Constants from 12.
    pub(super) constants: Vec<u32>,
    pub(super) subgroup: Option<u32>,
    /// Rows and columns of A·B that a group makes at a time.
    pub(super) tile: (u32, u32),
    /// Whether scales along k are made ready in a step before.
    pub(super) weighs: bool,
}

impl Main {
    /// The pipeline's constants.
    fn build(&self, spec: &GemmSpec, grouping: Option<Grouping>) -> Build {
        let mut constants: Vec<u32> = constants(spec).into_iter().chain(self.constants.iter().copied()).collect();
        // As in `kernels/gemm/glsl/groups.glsl`.
        constants[9] |= match grouping {
            None => 0,
            Some(Grouping::Contiguous) => 1 << 8,
            Some(Grouping::Masked) => 1 << 9,
        };
        if let Some(scales) = scales(spec.b.format) {
            assert!(constants.len() <= SCALES, "{} constants before those of scales", constants.len());
            constants.resize(SCALES, 0);
            constants.extend(scales);
            if let Some(made) = scales::dtype(spec).filter(|_| self.weighs) {
                constants[SCALES] = made as u32;
            }
        }
        Build { shader: self.shader, constants, subgroup: self.subgroup }
    }

    /// The step that makes scales, its results in scratch from `at`, if there is one.
    ///
    /// # Errors
    /// `Driver` if the driver refuses the kernel.
    fn scales(&self, device: &VulkanDevice, spec: &GemmSpec, at: u64) -> Result<Option<Scales>> {
        if self.weighs { Scales::new(device, spec, at) } else { Ok(None) }
    }

    /// Tiles of a product, at most.
    fn tiles(&self, spec: &GemmSpec, grouping: Option<Grouping>) -> u64 {
        let (rows, cols) = self.tile;
        let down = match grouping {
            // Each group ends with one that is cut off.
            Some(Grouping::Contiguous) if spec.m > 0 => u64::from(spec.m.div_ceil(rows)) + u64::from(spec.batch),
            _ => u64::from(spec.batch) * u64::from(spec.m.div_ceil(rows)),
        };
        down * u64::from(spec.n.div_ceil(cols))
    }
}

impl ProductPush {
    fn new(spec: &GemmSpec) -> Self {
        Self {
            a_stride: spec.a.stride,
            b_stride: spec.b.stride,
            d_stride: spec.d.stride,
            batch: spec.batch,
            m: spec.m,
            n: spec.n,
            k: spec.k,
            a_ld: pushed_ld(&spec.a),
            b_ld: pushed_ld(&spec.b),
            d_ld: pushed_ld(&spec.d),
            splits: 1,
            ..Self::default()
        }
    }
}

/// A product made ready.
///
/// # Errors
/// `Driver` if the driver refuses the kernel.
pub(super) fn product(device: &Arc<dyn Device>, spec: &GemmSpec, main: Main) -> Result<Box<dyn Launch<Gemm>>> {
    let (build, tiles) = (main.build(spec, None), main.tiles(spec, None));
    ready(device, spec, main, &build, tiles)
}

/// A product of groups of rows made ready, by a shader that includes `groups.glsl`.
///
/// # Errors
/// As [`product`].
pub(super) fn grouped(
    device: &Arc<dyn Device>,
    spec: &GemmSpec,
    grouping: Grouping,
    main: Main,
) -> Result<Box<dyn Launch<GroupedGemm>>> {
    let (build, tiles) = (main.build(spec, Some(grouping)), main.tiles(spec, Some(grouping)));
    ready(device, spec, main, &build, tiles)
}

/// One launch, behind that which makes scales where there is one.
fn ready<O: Op>(
    device: &Arc<dyn Device>,
    spec: &GemmSpec,
    main: Main,
    build: &Build,
    tiles: u64,
) -> Result<Box<dyn Launch<O>>>
where
    ProductPush: Arguments<O>,
{
    let push = ProductPush::new(spec);
    let vulkan: &VulkanDevice = device.downcast_ref().expect("a device of this backend");
    match main.scales(vulkan, spec, 0)? {
        None => Ok(Box::new(Once::new(device, main.name, build, tiles, push)?)),
        Some(scales) => {
            let function = (vulkan.function(build)?, groups(tiles, vulkan.max_groups()));
            Ok(Box::new(Weighed { name: main.name, scales, function, push }))
        }
    }
}

/// The launches of a product whose scales are made ready before.
#[derive(Debug)]
struct Weighed {
    name: &'static str,
    scales: Scales,
    function: (Function, u32),
    push: ProductPush,
}

impl<O: Op> Launch<O> for Weighed
where
    ProductPush: Arguments<O>,
{
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &O::Args<'_>) -> Result<()> {
        if self.function.1 == 0 {
            return Ok(());
        }
        let queue: &mut VulkanQueue = queue.downcast_mut().expect("same device, so same backend");
        let mut push = Arguments::<O>::with(self.push, args);
        // SAFETY: the plan has asked for the scratch that scales take; the rest is the caller's promise.
        unsafe { self.scales.launch(queue, &mut push.given) }?;
        // SAFETY: the function takes these arguments and came from the plan's device; the rest is the caller's promise.
        unsafe { queue.launch(self.name, self.function.0, self.function.1, &push) }
    }
}

/// The product whose results are what a part of k adds to `spec`'s sums.
pub(super) fn part(spec: &GemmSpec) -> GemmSpec {
    GemmSpec {
        c: Addend::None,
        d: Matrix::tight(DType::F32, Order::Row, spec.m, spec.n),
        epilogue: Epilogue::default(),
        acc: Acc::F32,
        ..*spec
    }
}

/// Bytes of scratch of a product in `splits` parts, as `main` makes it.
pub(super) fn scratch_bytes(spec: &GemmSpec, splits: u32, main: &Main) -> u64 {
    let parts = if splits == 1 { 0 } else { parts_bytes(spec, splits).next_multiple_of(16) };
    parts + if main.weighs { scales::bytes(spec) } else { 0 }
}

/// Bytes of the sums of `splits` parts.
pub(super) fn parts_bytes(spec: &GemmSpec, splits: u32) -> u64 {
    4 * u64::from(spec.batch) * u64::from(splits) * u64::from(spec.m) * u64::from(spec.n)
}

/// Of constant 9, as in `kernels/gemm/glsl/finish.glsl`.
const IN_PARTS: u32 = 1 << 10;

/// Threads of a group of what adds parts, each of which makes two numbers.
const THREADS: u64 = 256;

/// A product in `splits` parts of k made ready: `main` makes [`part`]s of it, which are added in their order.
///
/// # Errors
/// As [`product`].
pub(super) fn split(
    device: &Arc<dyn Device>,
    spec: &GemmSpec,
    main: Main,
    splits: u32,
) -> Result<Box<dyn Launch<Gemm>>> {
    let vulkan: &VulkanDevice = device.downcast_ref().expect("a device of this backend");
    let part = part(spec);
    let mut build = main.build(&part, None);
    build.constants[9] |= IN_PARTS;
    let function = vulkan.function(&build)?;
    let tiles = u64::from(splits) * main.tiles(&part, None);
    let parts = (function, groups(tiles, vulkan.max_groups()), ProductPush { splits, ..ProductPush::new(&part) });
    let function = vulkan.function(&Build { shader: &SPLITS, constants: constants(spec), subgroup: None })?;
    let pairs = u64::from(spec.batch) * u64::from(spec.m) * u64::from(spec.n.div_ceil(2));
    let push = ProductPush { splits, ..ProductPush::new(spec) };
    let sum = (function, groups(pairs.div_ceil(THREADS), vulkan.max_groups()), push);
    // As of `spec`, but that what else it has is added in the end.
    let scales = main.scales(vulkan, &part, parts_bytes(spec, splits).next_multiple_of(16))?;
    Ok(Box::new(Split { name: main.name, scales, parts, sum }))
}

/// The launches of a product in parts.
#[derive(Debug)]
struct Split {
    name: &'static str,
    scales: Option<Scales>,
    parts: (Function, u32, ProductPush),
    sum: (Function, u32, ProductPush),
}

impl Launch<Gemm> for Split {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GemmArgs<'_>) -> Result<()> {
        let queue: &mut VulkanQueue = queue.downcast_mut().expect("same device, so same backend");
        let scratch = queue.scratch_addr();
        let (function, groups, push) = self.parts;
        let (a, b) = (args.a.addr(), args.b.addr());
        let given = given([&args.b_scale, &args.b_global, &args.b_zero]);
        let mut push = ProductPush { a, b, d: scratch, given, alpha: 1.0, ..push };
        if let Some(scales) = &self.scales {
            // SAFETY: as below.
            unsafe { scales.launch(queue, &mut push.given) }?;
        }
        // SAFETY: the function takes these arguments and came from the plan's device; the plan has asked for the scratch that the parts
        // take; the rest is the caller's promise.
        unsafe { queue.launch(self.name, function, groups, &push) }?;
        let (function, groups, push) = self.sum;
        let push = ProductPush { a: scratch, ..Arguments::<Gemm>::with(push, args) };
        // SAFETY: as above.
        unsafe { queue.launch("splits", function, groups, &push) }
    }
}

/// The addresses of those operands that there are, one behind the other.
fn given<const N: usize>(all: [&Option<Slice<'_>>; N]) -> [u64; MOST_GIVEN] {
    let mut given = [0; MOST_GIVEN];
    given.iter_mut().zip(all.into_iter().flatten()).for_each(|(place, slice)| *place = slice.addr());
    given
}

impl Arguments<Gemm> for ProductPush {
    fn with(self, args: &GemmArgs<'_>) -> Self {
        let given = given([&args.c, &args.bias, &args.residual, &args.b_scale, &args.b_global, &args.b_zero]);
        Self { a: args.a.addr(), b: args.b.addr(), d: args.d.addr(), given, alpha: args.alpha, beta: args.beta, ..self }
    }
}

impl Arguments<GroupedGemm> for ProductPush {
    fn with(self, args: &GroupedGemmArgs<'_>) -> Self {
        let mut given = given([&args.bias, &args.residual, &args.b_scale, &args.b_global, &args.b_zero]);
        given[MOST_GIVEN - 1] = args.groups.addr();
        Self { a: args.a.addr(), b: args.b.addr(), d: args.d.addr(), given, alpha: args.alpha, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kp_hal::op::{Act, Gate, GemmProblem};

    /// The constants that `declaration` introduces in a source, in order of their values.
    fn names(source: &str, first: &str) -> Vec<String> {
        let from = source.find(first).unwrap_or_else(|| panic!("{first} is in the source"));
        let body = source[from..].split(';').next().expect("it ends");
        body.split(',').map(|name| name.split('=').next().expect("a part").trim().replace("const uint ", "")).collect()
    }

    #[test]
    fn enumerations_are_in_one_order() {
        let numbers = include_str!("../../../../kernels/common/glsl/numbers.glsl");
        let math = include_str!("../../../../kernels/common/glsl/math.glsl");
        let spelled = |list: Vec<String>| list.iter().map(|name| name.to_lowercase()).collect::<Vec<_>>();
        assert_eq!(
            spelled(names(numbers, "const uint F64")),
            DType::ALL.iter().map(ToString::to_string).collect::<Vec<_>>()
        );
        assert_eq!(
            spelled(names(math, "const uint IDENTITY")),
            Act::ALL.iter().map(ToString::to_string).collect::<Vec<_>>()
        );
        assert_eq!([Gate::None, Gate::Halves, Gate::Pairs].map(|gate| gate as u32), [0, 1, 2]);
    }

    #[test]
    fn a_problem_is_its_constants() {
        let problem: GemmProblem =
            "gemm 1x8x8x8 bf16:f16:f32 a=col b=panel16x2 c=bf16 bias=bf16 act=silu gate=pairs acc=f16"
                .parse()
                .expect("a problem");
        let [bf16, f16, f32] = [DType::Bf16, DType::F16, DType::F32].map(|dtype| dtype as u32);
        assert_eq!(constants(&problem), [bf16, f16, f32, bf16, bf16, f32, Act::Silu as u32, 2, 1, 0b1001, 1, 2]);
    }
}

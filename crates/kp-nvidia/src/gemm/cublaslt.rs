//! D = act(alpha · A·B + beta · C + bias) by the vendor's library, opened when first planned.
//!
//! Its matrices have contiguous columns, so it computes Dᵀ = Bᵀ·Aᵀ. Variants are the algorithms that its heuristics rank
//! best for the problem. Limits: D's rows contiguous, without gaps beside a C of its own; C, bias and residual
//! of D's type, but a bias of bf16 where sums of 8-bit floats are stored in f32; no activation but ReLU; 8-bit floats
//! contiguous along k and in multiples of 16; a bias of 16 bits with sizes in multiples of 8.

mod library;

use super::Check;
use crate::{device::NvidiaDevice, queue::NvidiaQueue};
use cudarc::cublaslt::sys::{
    cublasComputeType_t as Compute, cublasLtEpilogue_t as LtEpilogue, cublasLtMatmulAlgo_t,
    cublasLtMatmulDescAttributes_t as D, cublasLtMatmulMatrixScale_t as ScaleMode, cudaDataType_t as Element,
};
use kp_hal::{
    Caps, DType, Device, Kernel, Launch, Nanos, Plan, Queue, Result, Slice, Support, Unsupported, Variant, Variants,
    op::{Acc, Act, Addend, Gate, Gemm, GemmArgs, GemmProblem, GemmSpec, Matrix, Order, Repro, Scheme, Sparsity, Spec},
    source_hash,
};
pub(crate) use library::file;
use library::{Handle, Layout, Operation, heuristics};
use std::{ffi::c_void, sync::Arc};

/// The library.
pub(crate) struct CublasLt;

/// How many of the library's suggestions are variants. It may have fewer: the last stands for those that are missing.
const SUGGESTIONS: usize = 8;

/// What the library may use besides its operands: as much as its users give it on cards of this size.
const WORKSPACE_BYTES: u64 = 32 << 20;

impl Kernel<Gemm> for CublasLt {
    fn name(&self) -> &'static str {
        "cublaslt"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("cublaslt.rs")) }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        supports(caps, p)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        estimate(caps, p.spec(), variant)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let own: &NvidiaDevice = device.downcast_ref().expect("a device of this backend");
        let code = Ready::new(own, p, variant)?;
        // SAFETY: layouts and scalars are the spec's; the workspace is in the scratch.
        Ok(unsafe { Plan::new(self.name(), variant, device.id(), p, code.workspace_bytes, Box::new(code)) })
    }
}

fn supports(caps: &Caps, p: &GemmProblem) -> Support {
    let spec = p.spec();
    if !caps.has("cublaslt") {
        return Err(Unsupported::Feature { need: "cublaslt" });
    }
    if p.repro() == Repro::BatchInvariant {
        return Err(Unsupported::Repro { asked: p.repro() });
    }
    operands(caps, spec)?;
    epilogue(spec)?;
    // Numbers lie at multiples of their size.
    let widest = [spec.a, spec.b, spec.d].map(|matrix| matrix.dtype().bits() / 8).into_iter().max().unwrap_or(1);
    if p.align().bytes() < widest {
        return Err(Unsupported::Address { need: widest, got: p.align().bytes() });
    }
    super::sizes(spec)?;
    if let Some(multiple) = multiple(spec) {
        if p.align().bytes() < 16 {
            return Err(Unsupported::Address { need: 16, got: p.align().bytes() });
        }
        let divides = |dim, got: u64| {
            if got.is_multiple_of(multiple) { Ok(()) } else { Err(Unsupported::Align { dim, multiple, got }) }
        };
        let GemmSpec { n, k, a, b, d, .. } = *spec;
        for (dim, got) in [("n", n), ("k", k), ("ld of a", a.ld), ("ld of b", b.ld), ("ld of d", d.ld)] {
            divides(dim, got.into())?;
        }
        for (dim, x) in [("batch stride of a", a), ("batch stride of b", b), ("batch stride of d", d)] {
            divides(dim, if spec.batch > 1 { x.stride } else { 0 })?;
        }
    }
    let never = Unsupported::Feature { need: "cublaslt" };
    Variants::filter(SUGGESTIONS as u8, never, |_| true)
}

/// What sizes and strides must be multiples of, if of anything.
fn multiple(spec: &GemmSpec) -> Option<u64> {
    if spec.a.dtype().bits() == 8 {
        return Some(16);
    }
    // Its kernels for other sizes round the sum to D's type, and a second kernel adds the bias and rounds again.
    (spec.epilogue.bias.is_some() && spec.d.dtype().bits() == 16).then_some(8)
}

fn operands(caps: &Caps, spec: &GemmSpec) -> Check {
    use DType::{Bf16, E4m3, E5m2, F16, F32, F64, Tf32};
    let (a, b, d) = (spec.a.dtype(), spec.b.dtype(), spec.d.dtype());
    let layout = |operand, order: Order| Err(Unsupported::Layout { operand, got: order.to_string() });
    match (spec.a.order, spec.b.order, spec.d.order) {
        (Order::Panel { .. }, _, _) => return layout("a", spec.a.order),
        (_, Order::Panel { .. }, _) => return layout("b", spec.b.order),
        (_, _, Order::Row) => {}
        _ => return layout("d", spec.d.order),
    }
    let narrow = match (a, b) {
        (Bf16, Bf16) | (F16, F16) | (F32, F32) | (Tf32, Tf32) | (F64, F64) => false,
        // There is no kernel for e5m2 times e5m2.
        (E4m3, E4m3 | E5m2) | (E5m2, E4m3) if caps.has("fp8") => true,
        (Bf16 | F16 | F32 | Tf32 | F64 | E4m3 | E5m2, got) => return Err(Unsupported::DType { operand: "b", got }),
        (got, _) => return Err(Unsupported::DType { operand: "a", got }),
    };
    let fits = match a {
        Bf16 => matches!(d, Bf16 | F32),
        F16 => matches!(d, F16 | F32),
        F32 | Tf32 => d == F32,
        F64 => d == F64,
        _ => matches!(d, Bf16 | F16 | F32),
    };
    if !fits {
        return Err(Unsupported::DType { operand: "d", got: d });
    }
    if narrow && spec.a.order != Order::Row {
        return layout("a", spec.a.order);
    }
    if narrow && spec.b.order != Order::Col {
        return layout("b", spec.b.order);
    }
    let schemes = (spec.a.format.scheme, spec.b.format.scheme);
    let known = match schemes {
        (Scheme::None, Scheme::None) | (Scheme::Tensor, Scheme::Tensor) => true,
        // Scales per row are those of Hopper, and of results in bf16; each matrix of a batch would need its own.
        (Scheme::Row, Scheme::Row) => caps.arch_version == 90 && d == Bf16 && spec.batch == 1,
        _ => false,
    };
    if !known {
        return Err(Unsupported::Scheme { operand: "a", got: spec.a.format.to_string() });
    }
    if spec.d.format.scheme != Scheme::None {
        return Err(Unsupported::Scheme { operand: "d", got: spec.d.format.to_string() });
    }
    // Its kernels take D's rows to be aligned as C's are: where only C's are, some end in a fault.
    let tight = Matrix::tight(spec.d.format, Order::Row, spec.m, spec.n);
    let gaps = spec.d.ld != tight.ld || spec.batch > 1 && spec.d.stride != tight.stride;
    if matches!(spec.c, Addend::Given(_)) && gaps {
        let got = format!("{}/{}/{}", spec.d.order, spec.d.ld, spec.d.stride);
        return Err(Unsupported::Layout { operand: "d", got });
    }
    Ok(())
}

/// What is added to the product is the residual, if there is no C.
fn addend(spec: &GemmSpec) -> Option<DType> {
    match spec.c {
        Addend::None => spec.epilogue.residual,
        Addend::Given(t) => Some(t),
        Addend::InPlace => Some(spec.d.dtype()),
    }
}

fn epilogue(spec: &GemmSpec) -> Check {
    let option = |option, got: String| Err(Unsupported::Option { option, got });
    let (d, epilogue) = (spec.d.dtype(), spec.epilogue);
    if !spec.acc.is_f32() && spec.acc != Acc::F64 {
        return option("acc", spec.acc.to_string());
    }
    if spec.sparsity != Sparsity::Dense {
        return option("sparse", spec.sparsity.to_string());
    }
    if epilogue.gate != Gate::None {
        return option("gate", epilogue.gate.to_string());
    }
    // It has a GELU by tanh, which errs by 2e-6: more than f32's rounding, and so more than an activation may.
    let acts = if d == DType::F64 { &[Act::Identity][..] } else { &[Act::Identity, Act::Relu][..] };
    if !acts.contains(&epilogue.act) {
        return option("act", epilogue.act.to_string());
    }
    let residual_is_c = spec.c == Addend::None && epilogue.act == Act::Identity;
    if let (Some(got), false) = (epilogue.residual, residual_is_c) {
        return option("residual", got.to_string());
    }
    let bias = if spec.a.dtype().bits() == 8 && d == DType::F32 { DType::Bf16 } else { d };
    if let Some(got) = epilogue.bias.filter(|&got| got != bias || d == DType::F64) {
        return Err(Unsupported::DType { operand: "bias", got });
    }
    match addend(spec).filter(|&got| got != d) {
        Some(got) => Err(Unsupported::DType { operand: if spec.c == Addend::None { "residual" } else { "c" }, got }),
        None => Ok(()),
    }
}

/// The shares of peaks that it reaches on large products, a ramp below them, and less for each suggestion after the first.
fn estimate(caps: &Caps, spec: &GemmSpec, variant: Variant) -> Nanos {
    let (units, batch) = (f64::from(caps.units.max(1)), f64::from(spec.batch));
    let by_rows = spec.a.format.scheme == Scheme::Row;
    let rows = if spec.m > 64 || by_rows { 128.0 } else { 64.0 };
    let waves = batch * (f64::from(spec.m) / rows).ceil() * (f64::from(spec.n) / 128.0).ceil() / units;
    // It parts k where tiles are few, down to about half of a unit's share, but not with scales of rows.
    let waves = if waves < 1.0 && !by_rows { waves.max(0.5) } else { waves.ceil() };
    let products = 2.0 * rows * 128.0 * f64::from(spec.k) / (caps.rates.get(spec.rate_dtype()) / units * SUSTAINED);
    let bytes = spec.bytes() as f64 / (caps.bytes_per_s * MEMORY);
    let longest = (waves * (products + END)).powi(SHARPNESS) + bytes.powi(SHARPNESS);
    let worse = 1.0 + 0.03 * f64::from(variant.0);
    Nanos::from_secs((longest.powf(1.0 / f64::from(SHARPNESS)) + OVERHEAD) * worse)
}

// With these it is first for none of 150 problems in bf16 and e4m3 on an H200; where it is the fastest, what is first takes at most 1.26 times
// as long.

/// Of the peak, on large products.
const SUSTAINED: f64 = 0.67;
/// Of a tile that no products hide, in seconds.
const END: f64 = 0.9e-6;
/// Of the memory's peak.
const MEMORY: f64 = 0.85;
/// The power mean's exponent.
const SHARPNESS: i32 = 4;
/// From the launch to the last store of an empty tile, in seconds.
const OVERHEAD: f64 = 3.2e-6;

/// A product made ready.
struct Ready {
    spec: GemmSpec,
    handle: Arc<Handle>,
    operation: Operation,
    /// Of the library's A, B, C and D: B, A, C and D.
    layouts: [Layout; 4],
    algorithm: cublasLtMatmulAlgo_t,
    workspace_bytes: u64,
}

// SAFETY: descriptors and algorithm are plain words.
unsafe impl Send for Ready {}
// SAFETY: as above; launches copy what they change.
unsafe impl Sync for Ready {}

impl Ready {
    fn new(device: &NvidiaDevice, p: &GemmProblem, variant: Variant) -> Result<Self> {
        let spec = *p.spec();
        let GemmSpec { batch, m, n, k, a, b, d, .. } = spec;
        let handle = Handle::of(device)?;
        let api = handle.api;
        let (compute, scale) = match a.dtype() {
            DType::F64 => (Compute::CUBLAS_COMPUTE_64F, Element::CUDA_R_64F),
            DType::Tf32 => (Compute::CUBLAS_COMPUTE_32F_FAST_TF32, Element::CUDA_R_32F),
            _ => (Compute::CUBLAS_COMPUTE_32F, Element::CUDA_R_32F),
        };
        let mut operation = Operation::new(api, compute, scale)?;
        // CUBLAS_OP_T and CUBLAS_OP_N.
        let transposed = i32::from;
        operation.set(api, D::CUBLASLT_MATMUL_DESC_TRANSA, transposed(b.order == Order::Col))?;
        operation.set(api, D::CUBLASLT_MATMUL_DESC_TRANSB, transposed(a.order == Order::Col))?;
        operation.set(api, D::CUBLASLT_MATMUL_DESC_EPILOGUE, lt_epilogue(&spec))?;
        if a.dtype().bits() == 8 {
            operation.set(api, D::CUBLASLT_MATMUL_DESC_FAST_ACCUM, i8::from(spec.acc == Acc::F32Fast))?;
        }
        if a.format.scheme == Scheme::Row {
            let mode = ScaleMode::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
            operation.set(api, D::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode)?;
            operation.set(api, D::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode)?;
        }
        if let Some(bias) = spec.epilogue.bias {
            operation.set(api, D::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, element(bias))?;
        }
        let seen =
            |rows_contiguous: bool, (rows, cols): (u32, u32)| if rows_contiguous { (cols, rows) } else { (rows, cols) };
        let layout = |x: &Matrix, shape| {
            Layout::new(api, element(x.dtype()), seen(x.order == Order::Row, shape), x.ld, (batch, x.stride))
        };
        let d_layout = layout(&d, (m, n))?;
        // C lies as D does.
        let layouts = [layout(&b, (k, n))?, layout(&a, (m, k))?, d_layout, d_layout];
        // With pointers of some value, since what it may do depends on there being any.
        let asked = with_pointers(operation, api, &spec, [256; 3])?;
        let found = heuristics::<SUGGESTIONS>(&handle, asked, layouts, WORKSPACE_BYTES, p.align().bytes())?;
        let chosen = found[usize::from(variant.0).min(found.len() - 1)];
        let workspace_bytes = chosen.workspaceSize as u64;
        Ok(Self { spec, handle, operation, layouts, algorithm: chosen.algo, workspace_bytes })
    }
}

/// `operation` with the addresses of bias, A's and B's scales.
#[inline]
fn with_pointers(
    mut operation: Operation,
    api: &library::Api,
    spec: &GemmSpec,
    [bias, a_scale, b_scale]: [u64; 3],
) -> Result<Operation> {
    if spec.epilogue.bias.is_some() {
        operation.set(api, D::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias)?;
    }
    if spec.a.format.scheme != Scheme::None {
        operation.set(api, D::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, b_scale)?;
        operation.set(api, D::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a_scale)?;
    }
    Ok(operation)
}

fn lt_epilogue(spec: &GemmSpec) -> LtEpilogue {
    match (spec.epilogue.act, spec.epilogue.bias.is_some()) {
        (Act::Relu, false) => LtEpilogue::CUBLASLT_EPILOGUE_RELU,
        (Act::Relu, true) => LtEpilogue::CUBLASLT_EPILOGUE_RELU_BIAS,
        (_, false) => LtEpilogue::CUBLASLT_EPILOGUE_DEFAULT,
        (_, true) => LtEpilogue::CUBLASLT_EPILOGUE_BIAS,
    }
}

fn element(t: DType) -> Element {
    match t {
        DType::F64 => Element::CUDA_R_64F,
        DType::F16 => Element::CUDA_R_16F,
        DType::Bf16 => Element::CUDA_R_16BF,
        DType::E4m3 => Element::CUDA_R_8F_E4M3,
        DType::E5m2 => Element::CUDA_R_8F_E5M2,
        _ => Element::CUDA_R_32F,
    }
}

impl Launch<Gemm> for Ready {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GemmArgs<'_>) -> Result<()> {
        let queue: &mut NvidiaQueue = queue.downcast_mut().expect("same device, so same backend");
        queue.usable()?;
        queue.context().enter()?;
        let (api, spec) = (self.handle.api, &self.spec);
        let addr = |slice: &Option<Slice<'_>>| slice.as_ref().map_or(0, Slice::addr);
        let pointers = [&args.bias, &args.a_scale, &args.b_scale].map(addr);
        let mut operation = with_pointers(self.operation, api, spec, pointers)?;
        let (c, beta) = match spec.c {
            Addend::None if spec.epilogue.residual.is_some() => (addr(&args.residual), 1.0),
            Addend::None => (args.d.addr(), 0.0),
            Addend::Given(_) => (addr(&args.c), args.beta),
            Addend::InPlace => (args.d.addr(), args.beta),
        };
        let single = [args.alpha, beta];
        let double = single.map(f64::from);
        let scalar = |i: usize| -> *const c_void {
            if spec.a.dtype() == DType::F64 { (&raw const double[i]).cast() } else { (&raw const single[i]).cast() }
        };
        let workspace = if self.workspace_bytes > 0 { queue.scratch() } else { 0 };
        let [mut b_layout, mut a_layout, mut c_layout, mut d_layout] = self.layouts;
        let at = |addr: u64| addr as *const c_void;
        // SAFETY: the library reads descriptors and scalars before it returns; operands are as the layouts say, which the
        // arguments were checked against, and the workspace was reserved.
        let status = unsafe {
            api.cublasLtMatmul(
                self.handle.raw,
                &mut operation.0,
                scalar(0),
                at(args.b.addr()),
                &mut b_layout.0,
                at(args.a.addr()),
                &mut a_layout.0,
                scalar(1),
                at(c),
                &mut c_layout.0,
                args.d.addr() as *mut c_void,
                &mut d_layout.0,
                &self.algorithm,
                workspace as *mut c_void,
                self.workspace_bytes as usize,
                queue.stream().raw().cast(),
            )
        };
        status.ok()?;
        queue.launched("cublaslt");
        Ok(())
    }
}

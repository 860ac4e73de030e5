//! D = A·B of f16 or bf16 on the matrix unit, through `VK_KHR_cooperative_matrix`.
//!
//! See `kernels/gemm/glsl/coopmat.comp` for the tiling. Limits: A and B of one 16-bit type for which the driver lists a shape with
//! sums in f32. A driver without the extension does not refuse such a shader: it computes something else. So what it lists is
//! all that is asked for.

use super::{
    form::{self, Main, part, parts_bytes, plain, product, scratch_bytes},
    splits::SPLITS,
};
use crate::{
    caps::{COOPMAT, COOPMAT_BF16, mma_shape},
    launch::planned,
    layouts::Check,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, DType, Device, DeviceKind, Kernel, Launch, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    caps::MmaShape,
    op::{
        Acc, Act, Addend, Gate, Gemm, GemmProblem, GemmSpec, GroupedGemm, GroupedGemmProblem, Grouping, Matrix, Order,
        Repro, Spec,
    },
    source_hash,
};
use std::sync::Arc;

/// The kernel for matrix units that subgroups share.
pub(crate) struct Coopmat;

static F16: Shader = shader!("gemm", "coopmat", open 12 but [0, 1, 10, 11], and [21]);
static BF16: Shader = shader!("gemm", "coopmat_bf16");

/// What one variant is.
pub(crate) struct Tile {
    /// Rows, columns and depth that a group has in shared memory, of elements of two bytes.
    shape: (u32, u32, u32),
    /// Subgroups down and across.
    subgroups: (u32, u32),
    /// Groups that a unit has room for, and shares of its peak that one of them reaches and that all of them do. Only what they are
    /// to one another matters, the peak being a guess: as on an H200.
    room: u32,
    alone: f64,
    full: f64,
}

/// Variants; append only, because wisdom names them by their place.
pub(crate) const TILES: [Tile; 9] = [
    Tile { shape: (128, 128, 32), subgroups: (2, 2), room: 2, alone: 0.36, full: 0.61 },
    Tile { shape: (64, 64, 32), subgroups: (2, 2), room: 4, alone: 0.1, full: 0.27 },
    Tile { shape: (128, 256, 32), subgroups: (2, 4), room: 1, alone: 0.65, full: 0.65 },
    Tile { shape: (32, 32, 32), subgroups: (2, 2), room: 8, alone: 0.025, full: 0.15 },
    Tile { shape: (64, 64, 64), subgroups: (2, 2), room: 2, alone: 0.18, full: 0.34 },
    Tile { shape: (128, 128, 64), subgroups: (2, 4), room: 1, alone: 0.52, full: 0.52 },
    Tile { shape: (64, 128, 64), subgroups: (2, 4), room: 1, alone: 0.34, full: 0.34 },
    Tile { shape: (32, 64, 64), subgroups: (1, 2), room: 4, alone: 0.09, full: 0.22 },
    Tile { shape: (256, 128, 32), subgroups: (4, 2), room: 1, alone: 0.67, full: 0.67 },
];

impl Tile {
    /// Whether the device has room for it, and `mma` divides what each subgroup makes.
    pub(super) fn fits(&self, caps: &Caps, mma: &MmaShape) -> bool {
        let ((rows, cols, _), (down, across)) = (self.shape, self.subgroups);
        let (part_rows, part_cols) = (rows / down, cols / across);
        let parts = part_rows.is_multiple_of(mma.m) && part_cols.is_multiple_of(mma.n);
        let whole = parts && self.depth(caps, mma).is_multiple_of(mma.k);
        let sums = part_rows / mma.m * (part_cols / mma.n);
        // A driver for processors makes hundreds of instructions of each matrix, and takes a second to compile a few.
        let most = if caps.kind == DeviceKind::SoftwareGpu { 4 } else { 32 };
        let room = self.threads(caps) <= caps.max_threads && self.shared_bytes(mma) <= caps.shared_bytes;
        whole && sums <= most && room
    }

    /// Elements along k that a group has in shared memory.
    pub(super) fn depth(&self, caps: &Caps, mma: &MmaShape) -> u32 {
        let most = self.most_depth(mma);
        // A driver for processors compiles for seconds what more matrices unroll to.
        if caps.kind == DeviceKind::SoftwareGpu { most.min(2 * mma.k) } else { most }
    }

    fn most_depth(&self, mma: &MmaShape) -> u32 {
        16 * self.shape.2 / mma.a.bits()
    }

    /// Rows and columns of a group.
    pub(super) fn size(&self) -> (u32, u32) {
        (self.shape.0, self.shape.1)
    }

    /// The shader's constants, of which `runs` says how operands lie.
    pub(super) fn constants(&self, caps: &Caps, mma: &MmaShape, runs: u32) -> Vec<u32> {
        let ((rows, cols), (down, across)) = (self.size(), self.subgroups);
        vec![rows, cols, self.depth(caps, mma), down, across, self.threads(caps), mma.m, mma.n, mma.k, runs]
    }

    /// Columns that a group has in shared memory.
    pub(super) fn cols(&self) -> u32 {
        self.shape.1
    }

    fn threads(&self, caps: &Caps) -> u32 {
        self.subgroups.0 * self.subgroups.1 * caps.lanes
    }

    /// What `tiles` of these take over `depth` elements along k.
    fn seconds(&self, caps: &Caps, dtype: DType, tiles: f64, depth: f64) -> f64 {
        let (rows, cols, _) = self.shape;
        let units = f64::from(caps.units.max(1));
        let each = 2.0 * f64::from(rows) * f64::from(cols) * (depth + ENDS) * units / caps.rates.get(dtype);
        // Of so many groups on every unit.
        let round = |groups: f64| {
            let more = (groups - 1.0).max(0.0) / f64::from(self.room - 1).max(1.0);
            groups * each / (self.alone + more * (self.full - self.alone))
        };
        let room = units * f64::from(self.room);
        let rounds = (tiles / room).floor();
        rounds * round(self.room.into()) + round(((tiles - rounds * room) / units).ceil())
    }

    /// What the products of `p` take in `splits` parts of k.
    pub(super) fn seconds_in(&self, caps: &Caps, p: &GemmSpec, splits: u32) -> f64 {
        let (rows, cols, _) = self.shape;
        let parts = f64::from(p.batch) * f64::from(splits);
        let tiles = parts * f64::from(p.m.div_ceil(rows)) * f64::from(p.n.div_ceil(cols));
        let sums = self.seconds(caps, p.a.dtype(), tiles, f64::from(p.k) / f64::from(splits));
        let moved = 2.0 * parts_bytes(p, splits) as f64;
        sums + if splits == 1 { 0.0 } else { (SECOND_STEP + moved) / caps.bytes_per_s }
    }

    /// The parts of k that a product is made in, those that take least; one where a row's bits depend on nothing but the row.
    pub(super) fn splits(&self, caps: &Caps, p: &GemmProblem) -> u32 {
        if p.repro() == Repro::BatchInvariant {
            return 1;
        }
        let takes = |splits: &u32| (self.seconds_in(caps, p.spec(), *splits), *splits);
        let deep = |splits: &u32| *splits == 1 || p.k / splits >= LEAST_PART;
        let best = [1, 2, 4, 8, 16].into_iter().filter(deep).min_by(|x, y| takes(x).0.total_cmp(&takes(y).0));
        best.unwrap_or(1)
    }

    /// What the products of `p` take, in as many parts as are best.
    pub(super) fn least_seconds(&self, caps: &Caps, p: &GemmProblem) -> f64 {
        self.seconds_in(caps, p.spec(), self.splits(caps, p))
    }

    /// The kernel of this tile for `p`, of one of the forms of the shader; operands promise to start on `align` bytes.
    pub(super) fn main(
        &self,
        caps: &Caps,
        p: &GemmSpec,
        (align, grouping): (u32, Option<Grouping>),
        name: &'static str,
        shader: &'static Shader,
    ) -> Main {
        let mma = mma_shape(caps, p.a.dtype()).expect("supported, so there is a shape");
        let depth = self.depth(caps, mma);
        // Groups of rows start anywhere in a column of A.
        let starts = grouping != Some(Grouping::Contiguous) || p.a.order == Order::Row;
        // Halves of B's columns alternate, so that eight of them are not neighbours.
        let neighbours = p.epilogue.gate != Gate::Halves || p.b.order == Order::Col;
        let of_a = starts && runs(&p.a, p.batch, align);
        let at_once = u32::from(of_a) | u32::from(neighbours && runs(&p.b, p.batch, align)) << 1;
        // Whether all steps are made of eight elements at once: see `steps_end` in the shader.
        let in_eights = |matrix: &Matrix, along_k, size: u32| matrix.order == along_k || size.is_multiple_of(8);
        let sides = in_eights(&p.a, Order::Row, p.m) && in_eights(&p.b, Order::Col, p.n);
        let whole = at_once == 3 && sides && p.k.is_multiple_of(depth) && p.k > 0;
        let stored = p.n.is_multiple_of(8) && mma.n.is_multiple_of(8) && bare(p) && runs(&p.d, p.batch, align);
        let bits = at_once | u32::from(whole) << 2 | u32::from(stored) << 3;
        let constants = self.constants(caps, mma, bits);
        let weighs = p.b.dtype() != p.a.dtype();
        Main { name, shader, constants, subgroup: Some(caps.lanes), tile: self.size(), weighs }
    }

    /// What the products of groups take if each has as many rows as the others.
    pub(crate) fn grouped_seconds(&self, caps: &Caps, p: &GroupedGemmProblem) -> f64 {
        let (rows, cols, _) = self.shape;
        let spec = &p.spec().gemm;
        let down = match p.grouping {
            Grouping::Masked => f64::from(spec.m.div_ceil(rows)),
            // Each group's last is half empty, on average.
            Grouping::Contiguous => (f64::from(spec.m) / f64::from(spec.batch.max(1)) / f64::from(rows) + 0.5).max(1.0),
        };
        let tiles = f64::from(spec.batch) * down * f64::from(spec.n.div_ceil(cols));
        self.seconds(caps, spec.a.dtype(), tiles, spec.k.into())
    }

    /// The products of groups made ready in these tiles, and the bytes of scratch that they take.
    ///
    /// # Errors
    /// `Driver` if the driver refuses the kernel.
    pub(crate) fn grouped(
        &self,
        device: &Arc<dyn Device>,
        p: &GroupedGemmProblem,
        name: &'static str,
        shader: &'static Shader,
    ) -> Result<(Box<dyn Launch<GroupedGemm>>, u64)> {
        let (spec, place) = (&p.spec().gemm, (p.align().bytes(), Some(p.grouping)));
        let main = self.main(device.caps(), spec, place, name, shader);
        let scratch = scratch_bytes(spec, 1, &main);
        Ok((form::grouped(device, spec, p.grouping, main)?, scratch))
    }

    /// The product `p` made ready in these tiles, and the bytes of scratch that it takes.
    ///
    /// # Errors
    /// `Driver` if the driver refuses the kernel.
    pub(super) fn ready(
        &self,
        device: &Arc<dyn Device>,
        p: &GemmProblem,
        name: &'static str,
        shader: &'static Shader,
    ) -> Result<(Box<dyn Launch<Gemm>>, u64)> {
        let (caps, spec, place) = (device.caps(), p.spec(), (p.align().bytes(), None));
        let splits = self.splits(caps, p);
        let main = self.main(caps, &if splits == 1 { *spec } else { part(spec) }, place, name, shader);
        let scratch = scratch_bytes(spec, splits, &main);
        let launch = if splits == 1 { product(device, spec, main) } else { form::split(device, spec, main, splits) };
        Ok((launch?, scratch))
    }

    /// Both operands' parts at their largest, with the 16 bytes that each line is longer, or a matrix of each subgroup.
    pub(super) fn shared_bytes(&self, mma: &MmaShape) -> u32 {
        let ((rows, cols), (down, across)) = (self.size(), self.subgroups);
        let (bytes, depth) = (mma.a.bits() / 8, self.most_depth(mma));
        let part = |size: u32| (size * (bytes * depth + 16)).max(depth * (bytes * size + 16));
        (part(rows) + part(cols)).max(4 * down * across * mma.m * mma.n)
    }
}

/// The matrices that the driver lists for A's type.
///
/// # Errors
/// Another type than 16-bit floats, or the option that is not there.
pub(super) fn matrices<'c>(caps: &'c Caps, p: &GemmSpec) -> std::result::Result<&'c MmaShape, Unsupported> {
    let need = match p.a.dtype() {
        DType::F16 => COOPMAT,
        DType::Bf16 => COOPMAT_BF16,
        got => return Err(Unsupported::DType { operand: "a", got }),
    };
    mma_shape(caps, p.a.dtype()).filter(|_| caps.has(need)).ok_or(Unsupported::Feature { need })
}

/// What the kernel is made of.
pub(crate) const CODE: u64 = source_hash(include_bytes!("coopmat.rs"))
    ^ F16.hash().rotate_left(1)
    ^ BF16.hash().rotate_left(2)
    ^ SPLITS.hash().rotate_left(3);

/// The shader for A's type.
pub(crate) fn shader(p: &GemmSpec) -> &'static Shader {
    if p.a.dtype() == DType::F16 { &F16 } else { &BF16 }
}

/// Whether the shaders, which count tiles in 32 bits, can: of the smallest there may be so many times the most parts.
///
/// # Errors
/// How many there are.
pub(super) fn countable(p: &GemmSpec) -> Check {
    let tiles = (u64::from(p.m.div_ceil(32)) * u64::from(p.n.div_ceil(32))).saturating_mul(p.batch.into());
    let max = 1 << 27;
    if tiles > max {
        return Err(Unsupported::TooLarge { dim: "tiles of 32×32", max, got: tiles });
    }
    Ok(())
}

/// The variants that suit a device and a product.
pub(crate) fn supports(caps: &Caps, p: &GemmSpec) -> Support {
    let mma = matrices(caps, p)?;
    countable(p)?;
    if p.b.dtype() != p.a.dtype() {
        return Err(Unsupported::DType { operand: "b", got: p.b.dtype() });
    }
    plain(p)?;
    let have = caps.shared_bytes.into();
    let never = Unsupported::SharedMemory { need: TILES[3].shared_bytes(mma).into(), have };
    Variants::filter(TILES.len() as u8, never, |v| TILES[usize::from(v.0)].fits(caps, mma))
}

/// Whether eight elements can be loaded at once, or of codes of fewer than 16 bits sixteen with their scale: lines and matrices start
/// where so many may.
fn runs(matrix: &Matrix, batch: u32, align: u32) -> bool {
    let bits = matrix.dtype().bits();
    let count = if bits < 16 { 16 } else { 8 };
    let (_, depth) = matrix.format.block();
    let whole =
        [matrix.ld.into(), if batch == 1 { 0 } else { matrix.stride }].iter().all(|n: &u64| n.is_multiple_of(count));
    let shared = depth == u32::MAX || u64::from(depth).is_multiple_of(count);
    align >= (count as u32 * bits / 8).min(16) && whole && shared && !matches!(matrix.order, Order::Panel { .. })
}

/// Whether D is alpha times the sums and no more, by rows, in a type that the shader stores eight of at once.
fn bare(p: &GemmSpec) -> bool {
    let epilogue = &p.epilogue;
    let added = p.c != Addend::None || epilogue.bias.is_some() || epilogue.residual.is_some();
    let changed = epilogue.act != Act::Identity || epilogue.gate != Gate::None || p.acc == Acc::F16;
    !added && !changed && p.d.order == Order::Row && matches!(p.d.dtype(), DType::F32 | DType::F16 | DType::Bf16)
}

/// Times a copy's time that a problem of few rows takes on an H200, where only one step of B is on its way.
pub(crate) const READING: f64 = 1.9;

/// What the step that adds parts of k costs beside their bytes, as bytes: its launch and its start, as on an H200.
const SECOND_STEP: f64 = 20e6;

/// What a tile takes before its first step and behind its last, as elements along k: as on an H200, where with less of it products in
/// many short parts, or in the largest tiles, ranked before faster ones.
const ENDS: f64 = 160.0;

/// Elements along k that a part has at least.
const LEAST_PART: u32 = 256;

impl Kernel<Gemm> for Coopmat {
    fn name(&self) -> &'static str {
        "coopmat"
    }

    fn code(&self) -> u64 {
        CODE
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        supports(caps, p.spec())
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        let bytes = READING * p.bytes() as f64 / caps.bytes_per_s;
        Nanos::from_secs(caps.launch_ns as f64 * 1e-9 + TILES[usize::from(variant.0)].least_seconds(caps, p).max(bytes))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let (code, scratch) = TILES[usize::from(variant.0)].ready(device, p, self.name(), shader(p.spec()))?;
        // SAFETY: the shaders touch what the spec names, and the scratch that is asked for.
        Ok(unsafe { planned(self.name(), variant, device.id(), p, scratch, code) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kp_hal::caps::MmaScope;

    fn problem(types: &str) -> GemmProblem {
        format!("gemm 1x256x256x256 {types}").parse().expect("a problem")
    }

    /// A driver that knows nothing of the extension would compute wrong numbers: what it lists gates the kernel.
    #[test]
    fn what_the_driver_does_not_list_is_not_run() {
        let mut caps = Caps::new(DeviceKind::Gpu, "vulkan1.4");
        (caps.max_threads, caps.shared_bytes, caps.lanes) = (1024, 48 << 10, 32);
        let mma = |a, d| MmaShape { m: 16, n: 16, k: 16, a, b: a, d, scope: MmaScope::Subgroup };
        let supports = |caps: &Caps, types: &str| Coopmat.supports(caps, &problem(types));
        assert_eq!(supports(&caps, "f16:f16:f32"), Err(Unsupported::Feature { need: COOPMAT }));
        caps.mma_shapes = vec![mma(DType::F16, DType::F32)];
        assert!(supports(&caps, "f16:f16:f32").is_err(), "shapes without the feature");
        caps.set_features([COOPMAT]);
        assert!(supports(&caps, "f16:f16:f32").is_ok());
        assert!(supports(&caps, "bf16:bf16:f32").is_err(), "another type than the driver lists");
        caps.mma_shapes = vec![mma(DType::F16, DType::F16)];
        assert!(supports(&caps, "f16:f16:f32").is_err(), "sums of f16 are not asked for");
        caps.mma_shapes = vec![MmaShape { scope: MmaScope::Workgroup, ..mma(DType::F16, DType::F32) }];
        assert!(supports(&caps, "f16:f16:f32").is_err(), "shapes of workgroups are another extension's");
    }

    #[test]
    fn tiles_fit_what_devices_have() {
        let mma =
            MmaShape { m: 16, n: 16, k: 16, a: DType::F16, b: DType::F16, d: DType::F32, scope: MmaScope::Subgroup };
        let mut caps = Caps::new(DeviceKind::Gpu, "vulkan1.4");
        (caps.max_threads, caps.shared_bytes, caps.lanes) = (1024, 32 << 10, 32);
        let whole = MmaShape { k: 32, a: DType::I8, b: DType::I8, d: DType::I32, ..mma };
        let fits = |caps: &Caps, mma| TILES.iter().map(|tile| tile.fits(caps, mma)).collect::<Vec<_>>();
        let fit = |caps: &Caps| fits(caps, &mma);
        assert_eq!(fits(&caps, &whole), fit(&caps), "a tile has as many bytes of either");
        assert_eq!(fit(&caps), [true, true, true, true, true, false, true, true, true]);
        caps.shared_bytes = 48 << 10;
        assert_eq!(fit(&caps), [true; 9]);
        caps.kind = DeviceKind::SoftwareGpu;
        assert_eq!(fit(&caps), [false, true, false, true, true, false, true, true, false]);
    }
}

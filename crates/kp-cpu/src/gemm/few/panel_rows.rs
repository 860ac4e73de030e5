//! Few rows of numbers by panels of a B that was packed ahead: what makes rows ready, and which of them meets which panels,
//! whichever loops multiply them.

use super::{
    columns::{self, Dots, MOST, Task},
    far::Far,
};
use crate::{
    act::Tail,
    caps::asks_first_cache,
    gemm::{
        product::{Item, Product},
        side::Scaling,
    },
    kernel::Disjoint,
    memory::{LINE, numbers_mut},
    threads,
};
use kp_hal::{
    Caps, DType, Nanos, Unsupported,
    op::{Gate, GemmProblem, GemmSpec, Order, Scheme},
};

/// Whether loops of `features` by panels of `W` columns suit `p`, of `most` rows at most.
///
/// # Errors
/// The first part that does not.
pub(crate) fn suits<const W: usize>(
    caps: &Caps,
    features: &[&'static str],
    p: &GemmProblem,
    most: usize,
) -> std::result::Result<(), Unsupported> {
    columns::suits(caps, features, p, most, Order::Panel { width: W as u16, depth: 1 })?;
    if !matches!(p.b.dtype(), DType::F32 | DType::Bf16 | DType::F16) {
        return Err(Unsupported::DType { operand: "b", got: p.b.dtype() });
    }
    if p.b.format.scheme != Scheme::None {
        return Err(Unsupported::Scheme { operand: "b", got: p.b.format.to_string() });
    }
    // Each half begins with a panel.
    let multiple = 2 * W as u32;
    if p.epilogue.gate == Gate::Halves && !p.n.is_multiple_of(multiple) {
        return Err(Unsupported::Align { dim: "n", multiple: multiple.into(), got: p.n.into() });
    }
    Ok(())
}

/// Time of loops whose vectors have so many `lanes`.
pub(crate) fn estimate(caps: &Caps, p: &GemmProblem, lanes: f64) -> Nanos {
    let (_, memory) = Nanos::floors(caps, p);
    // For each vector an instruction or two to make it numbers, one for each row; two at a time.
    let vectors = f64::from(p.batch) * f64::from(p.n) * f64::from(p.k) / lanes;
    let compute = vectors * (2.0 + rows(p) as f64) / (1.6 * caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
    // Several places are read faster than the one at which memory's rate is measured, and at which `packed` reads. On Emerald Rapids `packed` is faster
    // where many threads read: sixteen read one row's panels in 0.83 of the time.
    let is_behind = caps.has("amx-bf16") && caps.units >= 4;
    let share = if is_behind { 0.9 } else { 1.05 };
    Nanos::from_secs((memory.as_secs() / share).max(compute / 0.9) + 2e-7 * f64::from(p.batch.max(1)))
}

/// Panels that meet one row at once; rows that meet one panel.
pub(crate) const BREADTH: usize = 4;
pub(crate) const HEIGHT: usize = 4;

/// Steps of a panel that all rows meet before the next ones: in L1.
const NEAR: usize = 128;

/// Rows of A that are made ready: one, or groups filled up with zeros.
fn rows(spec: &GemmSpec) -> usize {
    if spec.m <= 1 { 1 } else { (spec.m as usize).next_multiple_of(HEIGHT) }
}

/// Adds the products of rows, so far apart, with steps of k of panels to sums, panel by panel, asking for lines meanwhile.
pub(crate) type Loop<const W: usize> = unsafe fn(&[f32], usize, &[&[u8]], (usize, Far), &mut [[f32; W]]);

/// What multiplies.
pub(crate) struct Loops<const W: usize> {
    /// One row by [`BREADTH`] panels.
    pub(crate) one_row: Loop<W>,
    /// [`HEIGHT`] rows by one.
    pub(crate) group: Loop<W>,
    /// Whether what groups read is asked of the second cache.
    pub(crate) by_second: bool,
}

/// Sums of rows.
pub(crate) struct Rows<const W: usize> {
    spec: GemmSpec,
    loops: Loops<W>,
}

impl<const W: usize> Rows<W> {
    /// Whoever makes them promises that the processor has what the loops use.
    pub(crate) fn new(spec: &GemmSpec, loops: Loops<W>) -> Self {
        Self { spec: *spec, loops }
    }

    /// From one row of A to the next.
    fn ld(&self) -> usize {
        (self.spec.k as usize).next_multiple_of(NEAR)
    }
}

impl<E: Tail, const W: usize> Dots<E> for Rows<W> {
    fn a_bytes(&self) -> usize {
        rows(&self.spec) * self.ld() * size_of::<f32>()
    }

    fn work_bytes(&self) -> usize {
        0
    }

    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) {
        let (rows, ld, k) = (rows(&self.spec), self.ld(), self.spec.k as usize);
        let a = Disjoint::of(&mut numbers_mut::<f32>(a)[..rows * ld]);
        threads::for_each(rows * ld / NEAR, |i| {
            // SAFETY: each part once.
            let out = unsafe { a.part(i * NEAR..(i + 1) * NEAR) };
            out.fill(0.0);
            let (row, first) = (i * NEAR / ld, i * NEAR % ld);
            let inner = first..(first + NEAR).min(k);
            if row < item.rows {
                let line = &mut out[..inner.len()];
                product.a.row(item.row_batch, item.row + row, inner, Scaling::Applied, line);
            }
        });
    }

    fn sums(&self, task: Task<'_, '_>, sums: &mut [E], ld: usize, _: &mut [u8]) {
        let Task { product, item, columns, a } = task;
        let (b, k) = (&product.b, self.spec.k as usize);
        let (rows, a_ld) = (rows(&self.spec), self.ld());
        let a = &columns::numbers::<f32>(a)[..rows * a_ld];
        let size = b.matrix.dtype().bits() as usize / 8;
        let panel = |column: usize| {
            let first = item.b as u64 * b.matrix.stride + b.matrix.index(0, column as u32, b.inner);
            &b.codes[first as usize * size..][..k * W * size]
        };
        let breadth = if rows == 1 { BREADTH } else { 1 };
        for first in columns.clone().step_by(breadth * W) {
            let mut totals = [[0.0; W]; MOST];
            if rows == 1 {
                // Past the last panel, that one again.
                let last = (columns.end - 1) / W * W;
                let some: [&[u8]; BREADTH] = std::array::from_fn(|i| panel((first + i * W).min(last)));
                // SAFETY: the promise of whoever made these.
                unsafe { (self.loops.one_row)(a, a_ld, &some, (0, Far::NONE), &mut totals) };
            } else {
                // On Intel's processors two rows by 4096×4096 of f32 take 3.9 ms by the second and 5.4 by the first, eight 4.5 and 5.8.
                let groups = rows / HEIGHT;
                let by_second = !asks_first_cache() || self.loops.by_second;
                for (i, steps) in panel(first).chunks(NEAR * W * size).enumerate() {
                    for (group, totals) in totals[..rows].chunks_exact_mut(HEIGHT).enumerate() {
                        let a = &a[group * HEIGHT * a_ld + i * NEAR..];
                        // Each group asks for its share of what follows.
                        let share = steps.len() / groups;
                        let ahead = match by_second {
                            true => (W * size / LINE / groups, Far::behind(steps[group * share..].as_ptr(), share)),
                            false => (0, Far::NONE),
                        };
                        // SAFETY: as above.
                        unsafe { (self.loops.group)(a, a_ld, &[steps], ahead, totals) };
                    }
                }
            }
            // One panel's rows, or one row's panels.
            for (i, totals) in totals.iter().enumerate().take(if rows == 1 { BREADTH } else { item.rows }) {
                let (row, column) = if rows == 1 { (0, first + i * W) } else { (i, first) };
                let there = column.min(columns.end)..(column + W).min(columns.end);
                let at = row * ld + there.start - columns.start;
                if row < item.rows {
                    for (sum, &total) in sums[at..at + there.len()].iter_mut().zip(totals) {
                        *sum = E::from_f32(total);
                    }
                }
            }
        }
    }
}

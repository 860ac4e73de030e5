//! Operands of a problem: made on the host as conformance makes them, and put on the device, once or several times.

use crate::units;
use anyhow::{Context, Result, ensure};
use kp_core::{
    Engine,
    tune::{Fill as _, Random},
};
use kp_hal::{
    AnyProblem, Buffer, DeviceKind, Queue,
    op::{Args, Op, Problem, View, needs},
};
use kp_testkit::{Fill, FillKind, Judged, Operands, Output, compare::Comparison, judge_of};
use std::marker::PhantomData;

/// A problem's operands on the host, and how its result is judged.
pub(crate) struct Host<O: Op> {
    /// Bytes of every operand.
    pub(crate) operands: Operands,
    /// What each output should hold, if the reference was affordable.
    pub(crate) reference: Option<Vec<Output>>,
    op: PhantomData<O>,
}

/// Multiply-adds of the f64 reference of a problem, infinite if the conformance suite does not know the op.
pub(crate) fn reference_cost<O: Op>(problem: &Problem<O::Spec>) -> f64 {
    judge_of::<O>().map_or(f64::INFINITY, |judge: &'static Judged<O>| (judge.cost)(problem))
}

/// Refuses operands that have no room once on the host and once on the device, a quarter of what is free left to others: a
/// host that is asked for too much ends the program, and with it what was measured before.
///
/// # Errors
/// What is needed, and what is free.
pub(crate) fn check_room<O: Op>(engine: &Engine, problem: &Problem<O::Spec>) -> Result<()> {
    let needs = needs::<O>(problem);
    let all = (0..<O::Args<'_> as Args<'_>>::OPERANDS.len()).map(|i| needs.get(i)).filter(|need| need.is_present());
    let bytes = all.fold(0_u64, |sum, need| sum.saturating_add(need.bytes));
    let check = |place: &str, needed: u64, free: u64| {
        let fits = needed <= free / 4 * 3;
        let [needed, free] = [needed, free].map(units::bytes);
        ensure!(fits, "needs {needed} on the {place}, {free} are free");
        Ok(())
    };
    let free = engine.device().memory()?.free;
    if engine.caps().kind == DeviceKind::Cpu {
        return check("host", bytes.saturating_mul(2), free);
    }
    check("device", bytes, free)?;
    match engine.devices().iter().find(|device| device.info.caps.kind == DeviceKind::Cpu) {
        Some(host) => check("host", bytes, host.backend.open(host.info.index)?.memory()?.free),
        None => Ok(()),
    }
}

impl<O: Op> Host<O> {
    /// Operands of `problem`, the same each time: as conformance makes them if the reference takes at most `affordable`
    /// multiply-adds, else faster and not to be judged.
    pub(crate) fn new(problem: &Problem<O::Spec>, any: &AnyProblem, affordable: f64) -> Self {
        match judge_of::<O>().filter(|judge| (judge.cost)(problem) <= affordable) {
            Some(judge) => {
                let operands = (judge.inputs)(problem, &mut Fill::new(FillKind::Normal, SEED));
                let reference = Some((judge.reference)(problem, &operands));
                Self { operands, reference, op: PhantomData }
            }
            None => {
                let mut operands = Operands::new::<O>(problem, FillKind::Normal);
                let mut random = Random::default();
                for (at, operand) in operands.list().iter().enumerate() {
                    let need = *operands.needs().get(at);
                    if let Some(bytes) = operands.at_mut(at).filter(|_| need.reads) {
                        random.operand(any, operand.name, &need, bytes);
                    }
                }
                Self { operands, reference: None, op: PhantomData }
            }
        }
    }

    /// Reads the outputs of `set` back and compares them with the reference, if there is one.
    ///
    /// # Errors
    /// What the queue returned.
    pub(crate) fn compare(&self, set: &Set, queue: &mut dyn Queue) -> Result<Option<Comparison>> {
        let Some(reference) = &self.reference else { return Ok(None) };
        let mut after = self.operands.clone();
        for (at, operand) in self.operands.list().iter().enumerate().filter(|(_, operand)| operand.output) {
            if let (Some(bytes), Some(buffer)) = (after.at_mut(at), &set.0[at]) {
                queue.download(bytes, buffer.slice()).with_context(|| operand.name)?;
            }
        }
        Ok(Some(Comparison::of(reference, &self.operands, &after)))
    }

    /// Bytes of all operands.
    pub(crate) fn bytes(&self) -> u64 {
        let list = 0..self.operands.list().len();
        list.filter_map(|at| self.operands.at(at)).map(|bytes| bytes.len() as u64).sum()
    }
}

/// One copy of every operand on the device, in the order of the op's arguments.
pub(crate) struct Set(Vec<Option<Buffer>>);

impl Set {
    /// Allocates and fills a copy.
    ///
    /// # Errors
    /// `OutOfMemory`, or what the queue returned.
    pub(crate) fn upload(engine: &Engine, host: &Operands, queue: &mut dyn Queue) -> Result<Self> {
        let put = |at: usize| {
            let Some(bytes) = host.at(at) else { return Ok(None) };
            let mut buffer = engine.alloc(bytes.len() as u64)?;
            queue.upload(buffer.slice_mut(), bytes)?;
            Ok(Some(buffer))
        };
        Ok(Self((0..host.list().len()).map(put).collect::<Result<_>>()?))
    }

    /// Arguments over the copy.
    ///
    /// # Errors
    /// An operand that every problem of the op needs and this one does not have.
    pub(crate) fn args<O: Op>(&mut self, host: &Operands) -> Result<O::Args<'_>> {
        let views = host.list().iter().zip(&mut self.0).map(|(operand, buffer)| {
            let buffer = buffer.as_mut()?;
            Some(if operand.output { View::Out(buffer.slice_mut()) } else { View::In(buffer.slice()) })
        });
        let mut args = O::Args::bind(views.collect())?;
        for (name, value) in host.scalars() {
            args.set_scalar(name, *value);
        }
        Ok(args)
    }
}

/// Any number does; the same one makes runs comparable.
const SEED: u64 = 0x6b70;

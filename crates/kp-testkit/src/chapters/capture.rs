//! Recording work and submitting it again. Backends without graphs say `NotCapturable`, and that is all.

use super::{Check, ensure};
use crate::{
    check::{Failure, run},
    fill::{Fill, FillKind},
    judges::judge_of,
    load::Loaded,
    suite::candidates,
};
use kp_hal::{
    Backend, Device, Error, ErrorKind, MemoryKind, Plan, Queue,
    op::{EachOp, Gemm, Op, Problem, each_op},
};
use std::sync::Arc;

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("replays memory operations", memory_operations),
    ("replays kernels", kernels),
    ("leaves the queue usable when it fails", failing),
    ("lets other threads plan and run meanwhile", beside),
];

fn unable(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::NotCapturable { .. })
}

fn memory_operations(_: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    let mut queue = device.clone().queue()?;
    let mut a = device.clone().alloc(256, MemoryKind::Device)?;
    let mut b = device.clone().alloc(256, MemoryKind::Device)?;
    queue.fill(a.slice_mut(), 1)?;
    queue.fill(b.slice_mut(), 2)?;
    let recorded = queue.capture(|queue| {
        queue.fill(a.slice_mut(), 3)?;
        queue.copy(b.slice_mut(), a.slice())
    });
    let graph = match recorded {
        Err(e) if unable(&e) => return Ok(()),
        recorded => recorded?,
    };
    let mut got = [0; 256];
    queue.download(&mut got, b.slice())?;
    ensure(got == [2; 256], || "recording ran the work".into())?;
    // SAFETY: both buffers are alive and no other queue knows them.
    unsafe { graph.replay(&mut *queue)? };
    queue.download(&mut got, b.slice())?;
    ensure(got == [3; 256], || format!("a replay should have copied 3, found {}", got[0]))
}

fn kernels(backend: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    struct Each<'a>(&'static dyn Backend, &'a Arc<dyn Device>, Result<(), Failure>);
    impl EachOp for Each<'_> {
        fn op<O: Op>(&mut self) {
            if self.2.is_ok() {
                self.2 = first_plan::<O>(self.0, self.1).and_then(|plan| match plan {
                    Some(plan) => replayed(self.1, &plan),
                    None => Ok(()),
                });
            }
        }
    }
    let mut each = Each(backend, device, Ok(()));
    each_op(&mut each);
    each.2
}

/// A plan of the first kernel that runs a problem of the op's floor.
pub(super) fn first_plan<O: Op>(
    backend: &'static dyn Backend,
    device: &Arc<dyn Device>,
) -> Result<Option<Plan<O>>, Failure> {
    let kernels = O::kernels(backend.kernels());
    let Some(judge) = judge_of::<O>() else { return Ok(None) };
    for text in (judge.floor)() {
        let problem: Problem<O::Spec> = text.parse().map_err(|e| format!("{text}: {e}"))?;
        if let Some(&(kernel, variant)) = candidates(kernels, device, &problem).first() {
            return Ok(Some(kernel.plan(device, &problem, variant)?));
        }
    }
    Ok(None)
}

fn replayed<O: Op>(device: &Arc<dyn Device>, plan: &Plan<O>) -> Result<(), Failure> {
    let judge = judge_of::<O>().expect("a plan was made for it");
    let operands = (judge.inputs)(plan.problem(), &mut Fill::new(FillKind::Normal, 11));
    let mut queue: Box<dyn Queue> = device.clone().queue()?;
    let (direct, _) = run(device, &mut *queue, plan, &operands)?;
    let mut loaded = Loaded::new(device, &mut *queue, &operands)?;
    {
        let mut args = loaded.args::<O>(&operands);
        let recording = match plan.record(&mut *queue, &mut args, 2) {
            Err(e) if unable(&e) => return Ok(()),
            recording => recording?,
        };
        recording.replay(&mut *queue)?;
        recording.replay(&mut *queue)?;
        queue.sync()?;
    }
    let after = loaded.download(&mut *queue, &operands)?;
    let same = (0..operands.list().len()).all(|i| direct.at(i) == after.at(i));
    ensure(same, || format!("{plan:?} gives other bits when replayed"))
}

fn failing(_: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    let mut queue = device.clone().queue()?;
    let mut buffer = device.clone().alloc(16, MemoryKind::Device)?;
    let refused = queue.capture(|_| Err(ErrorKind::NotCapturable { what: "this test" }.into()));
    ensure(refused.is_err(), || "a recording that failed gave a graph".into())?;
    queue.fill(buffer.slice_mut(), 4)?;
    let mut got = [0; 16];
    queue.download(&mut got, buffer.slice())?;
    ensure(got == [4; 16], || "the queue does not work after a failed recording".into())
}

/// A recording is one thread's business: another allocates, plans, launches and waits on a queue of its own.
fn beside(backend: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    let mut queue = device.clone().queue()?;
    let mut buffer = device.clone().alloc(16, MemoryKind::Device)?;
    let mut other = Ok(());
    let recorded = queue.capture(|queue| {
        other = std::thread::scope(|scope| {
            let work = || {
                let Some(plan) = first_plan::<Gemm>(backend, device)? else { return Ok(()) };
                let judge = judge_of::<Gemm>().expect("a plan was made for it");
                let operands = (judge.inputs)(plan.problem(), &mut Fill::new(FillKind::Exact, 12));
                run(device, &mut *device.clone().queue()?, &plan, &operands).map(drop)
            };
            scope.spawn(work).join().unwrap_or_else(|_| Err("the other thread panicked".to_owned().into()))
        });
        queue.fill(buffer.slice_mut(), 5)
    });
    let graph = match recorded {
        Err(e) if unable(&e) => return Ok(()),
        recorded => recorded?,
    };
    other.map_err(|e: Failure| format!("while a queue records, another thread gets: {e}"))?;
    // SAFETY: `buffer` is alive and no other queue knows it.
    unsafe { graph.replay(&mut *queue)? };
    let mut got = [0; 16];
    queue.download(&mut got, buffer.slice())?;
    ensure(got == [5; 16], || format!("the replay should have filled with 5, found {}", got[0]))
}

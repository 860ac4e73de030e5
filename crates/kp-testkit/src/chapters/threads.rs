//! Many threads at once, each with its own queue.

use super::{Check, capture::first_plan, ensure, pattern};
use crate::{
    check::{Failure, run},
    fill::{Fill, FillKind},
    judges::judge_of,
};
use kp_hal::{
    Backend, Device, MemoryKind, Plan,
    op::{EachOp, Op, each_op},
};
use std::sync::Arc;

pub(super) const CHECKS: &[(&str, Check)] = &[("share a device", share_device), ("share plans", share_plans)];

const THREADS: u8 = 4;

fn share_device(_: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    on_threads(|thread| {
        let mut queue = device.clone().queue()?;
        for round in 0..20_u8 {
            let bytes = 1000 + 37 * usize::from(thread) + 11 * usize::from(round);
            let (sent, mut got) = (pattern(bytes, thread ^ round), vec![0; bytes]);
            let mut a = device.clone().alloc(bytes as u64, MemoryKind::Device)?;
            let mut b = device.clone().alloc(bytes as u64, MemoryKind::Device)?;
            queue.upload(a.slice_mut(), &sent)?;
            queue.copy(b.slice_mut(), a.slice())?;
            queue.fill(a.slice_mut(), 0)?;
            queue.download(&mut got, b.slice())?;
            ensure(got == sent, || format!("thread {thread}, round {round}: bytes of another came back"))?;
        }
        Ok(())
    })
}

fn share_plans(backend: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    struct Each<'a>(&'static dyn Backend, &'a Arc<dyn Device>, Result<(), Failure>);
    impl EachOp for Each<'_> {
        fn op<O: Op>(&mut self) {
            if self.2.is_ok() {
                self.2 = first_plan::<O>(self.0, self.1).and_then(|plan| match plan {
                    Some(plan) => shared(self.1, &plan),
                    None => Ok(()),
                });
            }
        }
    }
    let mut each = Each(backend, device, Ok(()));
    each_op(&mut each);
    each.2
}

/// What each thread gets is what it would get alone.
fn shared<O: Op>(device: &Arc<dyn Device>, plan: &Plan<O>) -> Result<(), Failure> {
    let judge = judge_of::<O>().expect("a plan was made for it");
    let mut alone = Vec::new();
    let mut queue = device.clone().queue()?;
    for thread in 0..THREADS {
        let operands = (judge.inputs)(plan.problem(), &mut Fill::new(FillKind::Normal, thread.into()));
        let (after, _) = run(device, &mut *queue, plan, &operands)?;
        alone.push((operands, after));
    }
    on_threads(|thread| {
        let (operands, alone) = &alone[usize::from(thread)];
        let mut queue = device.clone().queue()?;
        for round in 0..4 {
            let (after, _) = run(device, &mut *queue, plan, operands)?;
            let same = (0..operands.list().len()).all(|i| alone.at(i) == after.at(i));
            ensure(same, || format!("{plan:?}, thread {thread}, round {round}: other bits than alone"))?;
        }
        Ok(())
    })
}

fn on_threads(work: impl Fn(u8) -> Result<(), Failure> + Sync) -> Result<(), Failure> {
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn({
                    let work = &work;
                    move || work(thread)
                })
            })
            .collect();
        let results = handles
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|_| Err(String::from("a thread panicked").into())));
        results.collect()
    })
}

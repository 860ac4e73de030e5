//! Operands to launch with, and the time of a launch.

use super::Fill;
use crate::engine::Engine;
use kp_hal::{
    AnyProblem, Args, Buffer, ErrorKind, Nanos, Op, Problem, Queue, Result,
    op::{Need, Operand, View, needs},
};
use std::time::{Duration, Instant};

/// Least time between two clock readings: launches are repeated until a reading is this long.
const READING: Nanos = Nanos(50_000);

/// Most launches between two readings.
const MOST_LAUNCHES: u64 = 1000;

/// Most readings of which the median is taken.
const READINGS: usize = 31;

/// A buffer for each operand that a problem has.
pub(super) struct Operands {
    list: Vec<(&'static Operand, Option<Buffer>)>,
}

impl Operands {
    /// Allocates every operand and fills those that are read.
    pub(super) fn new<O: Op>(
        engine: &Engine,
        queue: &mut dyn Queue,
        problem: &Problem<O::Spec>,
        any: &AnyProblem,
        fill: &mut dyn Fill,
    ) -> Result<Self> {
        let needs = needs::<O>(problem);
        let operands = <O::Args<'_> as Args<'_>>::OPERANDS;
        let list: Vec<_> = (0..operands.len()).map(|i| (&operands[i], needs.get(i))).collect();
        Self::of(engine, queue, &list, any, fill)
    }

    fn of(
        engine: &Engine,
        queue: &mut dyn Queue,
        operands: &[(&'static Operand, &Need)],
        any: &AnyProblem,
        fill: &mut dyn Fill,
    ) -> Result<Self> {
        let present = operands.iter().filter(|(_, need)| need.is_present());
        let wanted = present.fold(0_u64, |sum, (_, need)| sum.saturating_add(need.bytes));
        let memory = engine.device().memory()?;
        let full = |wanted| ErrorKind::OutOfMemory { wanted, free: memory.free, total: memory.total };
        if wanted > memory.free {
            return Err(full(wanted).into());
        }
        let mut list = Vec::with_capacity(operands.len());
        let mut host = Vec::new();
        for &(operand, need) in operands {
            if !need.is_present() {
                list.push((operand, None));
                continue;
            }
            let mut buffer = engine.alloc(need.bytes)?;
            if need.reads {
                let bytes = usize::try_from(need.bytes).map_err(|_| full(need.bytes))?;
                host.clear();
                host.try_reserve_exact(bytes).map_err(|_| full(need.bytes))?;
                host.resize(bytes, 0);
                fill.operand(any, operand.name, need, &mut host);
                queue.upload(buffer.slice_mut(), &host)?;
            }
            list.push((operand, Some(buffer)));
        }
        Ok(Self { list })
    }

    /// The operands in their op's order, to bind.
    pub(super) fn views(&mut self) -> Vec<Option<View<'_>>> {
        let views = self.list.iter_mut().map(|(operand, buffer)| {
            let buffer = buffer.as_mut()?;
            Some(if operand.output { View::Out(buffer.slice_mut()) } else { View::In(buffer.slice()) })
        });
        views.collect()
    }
}

/// The median time of one `launch`, repeated for about `share`, at least once after the one that warms up.
pub(super) fn median(
    queue: &mut dyn Queue,
    share: Duration,
    launch: &mut dyn FnMut(&mut dyn Queue) -> Result<()>,
) -> Result<Nanos> {
    let start = Instant::now();
    // The first launch pays for pages, caches and clocks; the second says how many a reading takes.
    reading(queue, 1, launch)?;
    let once = reading(queue, 1, launch)?;
    let launches = (READING.0 / once.0).clamp(1, MOST_LAUNCHES);
    let mut times = vec![if launches == 1 { once } else { reading(queue, launches, launch)? }];
    while times.len() < READINGS && start.elapsed() < share {
        times.push(reading(queue, launches, launch)?);
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// The mean time of `launches` launches: by the device's clock if it has one, else by the host's.
fn reading(
    queue: &mut dyn Queue,
    launches: u64,
    launch: &mut dyn FnMut(&mut dyn Queue) -> Result<()>,
) -> Result<Nanos> {
    queue.sync()?;
    let start = Instant::now();
    let from = queue.mark()?;
    for _ in 0..launches {
        launch(queue)?;
    }
    let to = queue.mark()?;
    queue.sync()?;
    let host = Nanos::from(start.elapsed());
    let time = queue.elapsed(from, to)?.unwrap_or(host);
    // No launch takes no time: a fact of 0 ns would beat everything for ever.
    Ok(Nanos((time.0 / launches).max(1)))
}

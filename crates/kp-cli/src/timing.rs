//! How long a launch takes.

use crate::operands::Set;
use anyhow::{Context, Result};
use kp_core::Engine;
use kp_hal::{Buffer, Caps, DeviceKind, Plan, Queue, op::Op};
use kp_testkit::Operands;
use std::time::{Duration, Instant};

/// What the samples of one kernel on one problem say.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Timing {
    /// Half of the launches took less.
    pub(crate) median_ns: f64,
    /// Width of the middle half of the samples.
    pub(crate) iqr_ns: f64,
    /// How many.
    pub(crate) samples: u32,
}

/// A sample repeats short launches for at least this long, so that reading the clock does not count.
const SAMPLE: Duration = Duration::from_micros(20);
/// Samples wanted of the usual turns.
const SAMPLES: usize = 20;
/// Time that they together should cover, so that one disturbance does not reach most of them.
const SPAN: Duration = Duration::from_millis(100);
/// Launches repeat so long before them, unless told otherwise: caches, page tables and clocks settle.
const WARM_UP: Duration = Duration::from_millis(20);
/// A GPU that has nothing to do while the host makes operands for so long lets its clock fall, an H200 from 1980 to 345 MHz, and takes
/// a part of the other time at work to come back.
const RESTED: Duration = Duration::from_secs(1);
const WAKE_UP: Duration = Duration::from_millis(400);
/// Launches that follow each other without the host waiting are at most so many, and take about so long.
const BURST: u32 = 16;
const BURST_TIME: Duration = Duration::from_millis(10);
/// Kernels of one problem are timed in turns, so many unless told otherwise: each then meets the device as the others leave it, and a
/// slow one has samples enough for a median that one disturbance cannot move.
pub(crate) const TURNS: u32 = 3;

/// What a sample is. Rivals are timed in one of the last two ways by their own tools: compare like with like.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub(crate) enum Method {
    /// Launches one after another, each on operands that the cache does not hold
    #[default]
    Rotate,
    /// Launches one after another on the same operands, which the cache may hold
    Repeat,
    /// One launch after the cache was overwritten
    Flush,
    /// Replays of a recording of launches on the same operands, which the cache may hold
    Graph,
}

impl Method {
    /// The method in words, for records.
    pub(crate) fn words(self, turns: u32) -> String {
        let (samples, operands, around) = match self {
            Self::Rotate => (
                "samples of at least 20 us of launches",
                "operands rotated through twice the last-level cache where cold",
                "launches",
            ),
            Self::Repeat => ("samples of at least 20 us of launches", "the same operands every time", "launches"),
            Self::Flush => (
                "single launches, each after 256 MiB or twice the last-level cache were overwritten",
                "on a GPU without rest between them",
                "the launch",
            ),
            Self::Graph => (
                "replays of a recording of launches, at least 2 ms and 10 launches long",
                "the same operands every time",
                "the replay",
            ),
        };
        format!(
            "median of {samples}; at least 20 of them over 100 ms, fewer but one a turn if the budget of the row ends first; {turns} turns with \
             the other kernels; {operands}; device clock on a GPU, host clock around {around} and a synchronization on a CPU"
        )
    }

    /// How many sets of operands of `bytes` bytes it wants, and whether a launch finds none of its operands in the last-level cache.
    pub(crate) fn sets(self, bytes: u64, caps: &Caps, room: u64) -> (usize, bool) {
        match self {
            Self::Rotate => sets(bytes, caps, room),
            Self::Flush => (1, true),
            Self::Repeat | Self::Graph => (1, false),
        }
    }
}

/// A recording is at least this long, so that what a replay costs by itself does not count.
const RECORDING: Duration = Duration::from_millis(2);
/// And has at least so many launches.
const RECORDED: u128 = 10;
/// What a flush overwrites at least.
const FLUSHED: u64 = 256 << 20;

/// How to measure.
pub(crate) struct Clock<'e> {
    /// Where.
    pub(crate) engine: &'e Engine,
    /// What a sample is.
    pub(crate) method: Method,
    /// Time for the samples of all turns.
    pub(crate) budget: Duration,
    /// How many turns.
    pub(crate) turns: u32,
    /// Time of launches before the samples of the usual turns, if not the usual.
    pub(crate) warm: Option<Duration>,
}

impl Clock<'_> {
    /// What all turns of a kernel take, each launch of which takes `one`; overwriting a cache comes on top.
    pub(crate) fn expected(&self, one: Duration) -> Duration {
        let Times { budget, warm } = self.times();
        let samples = SAMPLES.div_ceil(TURNS as usize) as u32;
        let wanted = (SPAN / TURNS).max(samples * one.max(SAMPLE));
        (warm.max(one) + wanted.min(budget).max(one)) * self.turns
    }

    /// What one turn may take.
    fn times(&self) -> Times {
        let warm = self.warm.unwrap_or(WARM_UP.min(self.budget / 2));
        Times { budget: self.budget / self.turns, warm: warm / TURNS }
    }

    /// Launches `plan` until a GPU that had nothing to do since `then` is awake.
    ///
    /// # Errors
    /// What launching or the queue returned.
    pub(crate) fn wake<O: Op>(
        &self,
        then: Instant,
        plan: &Plan<O>,
        host: &Operands,
        set: &mut Set,
        queue: &mut dyn Queue,
    ) -> Result<()> {
        if self.engine.caps().kind == DeviceKind::Cpu || then.elapsed() < RESTED {
            return Ok(());
        }
        let args = set.args::<O>(host)?;
        let start = Instant::now();
        while start.elapsed() < WAKE_UP {
            let burst = Instant::now();
            for _ in 0..BURST {
                plan.launch(queue, &args)?;
                if burst.elapsed() > BURST_TIME {
                    break;
                }
            }
            queue.sync()?;
        }
        Ok(())
    }

    /// Nanoseconds of the launches of one turn of `plan`, over `sets` of operands one after the other; at least one.
    ///
    /// # Errors
    /// What launching or the queue returned; `NotCapturable` for recordings on a backend without.
    pub(crate) fn time<O: Op>(
        &self,
        plan: &Plan<O>,
        host: &Operands,
        sets: &mut [Set],
        queue: &mut dyn Queue,
    ) -> Result<Vec<f64>> {
        let kind = self.engine.caps().kind;
        let times = self.times();
        match self.method {
            Method::Rotate | Method::Repeat => rotated(plan, host, sets, queue, kind, times),
            Method::Flush => {
                let mut over = self.engine.alloc(FLUSHED.max(2 * last_level(self.engine.caps())))?;
                flushed(plan, host, &mut sets[0], &mut over, queue, (kind, times))
            }
            Method::Graph => replayed(plan, host, &mut sets[0], queue, kind, times),
        }
    }
}

/// What samples may take, and launches before the first.
#[derive(Clone, Copy)]
struct Times {
    budget: Duration,
    warm: Duration,
}

fn flushed<O: Op>(
    plan: &Plan<O>,
    host: &Operands,
    set: &mut Set,
    over: &mut Buffer,
    queue: &mut dyn Queue,
    (kind, times): (DeviceKind, Times),
) -> Result<Vec<f64>> {
    let args = set.args::<O>(host)?;
    let start = Instant::now();
    let (mut one, mut launches) = (Duration::MAX, 1);
    while one == Duration::MAX || start.elapsed() < times.warm {
        let before = Instant::now();
        for _ in 0..launches {
            plan.launch(queue, &args)?;
        }
        queue.sync()?;
        one = one.min(before.elapsed() / launches);
        launches = (BURST_TIME.as_nanos() / one.as_nanos().max(1)).clamp(1, BURST.into()) as u32;
    }
    if kind == DeviceKind::Cpu {
        return sampled(times.budget, || {
            queue.fill(over.slice_mut(), 0)?;
            queue.sync()?;
            timed(kind, queue, |queue| Ok(plan.launch(queue, &args)?))
        });
    }
    // A device that rests while the host reads its clock would be cooler, and faster, than one at work.
    let mut taken = Vec::new();
    sampled(times.budget, || {
        if taken.is_empty() {
            let mut marks = Vec::new();
            for _ in 0..launches {
                queue.fill(over.slice_mut(), 0)?;
                let from = queue.mark()?;
                plan.launch(queue, &args)?;
                marks.push((from, queue.mark()?));
            }
            queue.sync()?;
            for (from, to) in marks {
                taken.push(queue.elapsed(from, to)?.context("the device has no clock")?.0 as f64);
            }
        }
        Ok(taken.pop().expect("a burst has a launch at least"))
    })
}

fn replayed<O: Op>(
    plan: &Plan<O>,
    host: &Operands,
    set: &mut Set,
    queue: &mut dyn Queue,
    kind: DeviceKind,
    Times { budget, warm }: Times,
) -> Result<Vec<f64>> {
    let mut args = set.args::<O>(host)?;
    let one = (0..3)
        .map(|_| timed(kind, queue, |queue| Ok(plan.launch(queue, &args)?)))
        .try_fold(f64::INFINITY, |least, ns| ns.map(|ns| least.min(ns)))?;
    let times = RECORDING.as_nanos().div_ceil((one as u128).max(20)).clamp(RECORDED, 10_000) as u32;
    let recording = plan.record(queue, &mut args, times)?;
    let start = Instant::now();
    while start.elapsed() < warm {
        recording.replay(queue)?;
        queue.sync()?;
    }
    sampled(budget, || Ok(timed(kind, queue, |queue| Ok(recording.replay(queue)?))? / f64::from(times)))
}

/// Samples until there are enough for a turn or the budget ends.
fn sampled(budget: Duration, mut sample: impl FnMut() -> Result<f64>) -> Result<Vec<f64>> {
    let start = Instant::now();
    let mut samples = Vec::new();
    while samples.is_empty()
        || (start.elapsed() < budget
            && (samples.len() < SAMPLES.div_ceil(TURNS as usize) || start.elapsed() < SPAN / TURNS)
            && samples.len() < 100_000)
    {
        samples.push(sample()?);
    }
    Ok(samples)
}

fn rotated<O: Op>(
    plan: &Plan<O>,
    host: &Operands,
    sets: &mut [Set],
    queue: &mut dyn Queue,
    kind: DeviceKind,
    Times { budget, warm }: Times,
) -> Result<Vec<f64>> {
    let args = sets.iter_mut().map(|set| set.args::<O>(host)).collect::<Result<Vec<_>>>()?;
    let mut next = args.iter().cycle();
    let mut launch = |queue: &mut dyn Queue, times: u64| -> Result<()> {
        for args in next.by_ref().take(times as usize) {
            plan.launch(queue, args)?;
        }
        Ok(())
    };
    let start = Instant::now();
    let mut one = Duration::MAX;
    while one == Duration::MAX || start.elapsed() < warm {
        let before = Instant::now();
        launch(queue, 1)?;
        queue.sync()?;
        one = one.min(before.elapsed());
    }
    let repeats = SAMPLE.as_nanos().div_ceil(one.as_nanos().max(20)).clamp(1, 10_000) as u64;
    sampled(budget, || Ok(timed(kind, queue, |queue| launch(queue, repeats))? / repeats as f64))
}

/// Nanoseconds that `work` takes: by the device's clock on a GPU, by the host's on a CPU.
fn timed(kind: DeviceKind, queue: &mut dyn Queue, work: impl FnOnce(&mut dyn Queue) -> Result<()>) -> Result<f64> {
    let before = Instant::now();
    if kind == DeviceKind::Cpu {
        work(queue)?;
        queue.sync()?;
        return Ok(before.elapsed().as_nanos() as f64);
    }
    let from = queue.mark()?;
    work(queue)?;
    let to = queue.mark()?;
    queue.sync()?;
    let host = before.elapsed().as_nanos() as f64;
    Ok(queue.elapsed(from, to)?.map_or(host, |time| time.0 as f64))
}

/// Median and width of the middle half, between neighbours where the count is even.
pub(crate) fn summary(mut samples: Vec<f64>) -> Timing {
    samples.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let place = part * (samples.len() - 1) as f64;
        let (low, high) = (samples[place.floor() as usize], samples[place.ceil() as usize]);
        low + (high - low) * place.fract()
    };
    Timing { median_ns: at(0.5), iqr_ns: at(0.75) - at(0.25), samples: samples.len() as u32 }
}

/// How many sets of `bytes` bytes of operands it takes for a launch to find nothing of its own in the last-level cache, and
/// whether the sets allowed by `room` bytes of memory are so many.
fn sets(bytes: u64, caps: &Caps, room: u64) -> (usize, bool) {
    let cache = last_level(caps);
    let wanted = (2 * cache).div_ceil(bytes.max(1)) + 1;
    let allowed = (room / bytes.max(1)).clamp(1, MOST_SETS);
    (wanted.min(allowed) as usize, cache > 0 && wanted <= allowed)
}

fn last_level(caps: &Caps) -> u64 {
    caps.l1_bytes.max(caps.l2_bytes).max(caps.l3_bytes)
}

/// More sets than this would only serve problems that take no time.
const MOST_SETS: u64 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_the_middle_of_the_samples() {
        let timing = summary(vec![4.0, 1.0, 100.0, 2.0, 3.0]);
        assert_eq!(timing, Timing { median_ns: 3.0, iqr_ns: 2.0, samples: 5 });
        assert_eq!(summary(vec![1.0, 2.0]).median_ns, 1.5);
        assert_eq!(summary(vec![7.0]), Timing { median_ns: 7.0, iqr_ns: 0.0, samples: 1 });
    }

    #[test]
    fn sets_exceed_the_cache_or_say_that_they_do_not() {
        let mut caps = Caps::new(DeviceKind::Cpu, "test");
        caps.l3_bytes = 48 << 20;
        assert_eq!(sets(12 << 20, &caps, 1 << 40), (9, true));
        assert_eq!(sets(200 << 20, &caps, 1 << 40), (2, true), "even what exceeds the cache leaves its end there");
        assert_eq!(sets(12 << 20, &caps, 30 << 20), (2, false));
        assert_eq!(sets(1024, &caps, 1 << 40), (256, false));
        assert_eq!(sets(0, &caps, 0), (1, false));
    }
}

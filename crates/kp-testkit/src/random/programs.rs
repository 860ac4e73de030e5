//! Random launches of every op, one behind the other in a queue, that read what others wrote and write what others read: whatever a queue
//! lets run beside each other, memory must end as if each launch had waited for the one before.

use super::{CHOICES, grammar, line};
use crate::{
    check::Failure,
    fill::{Fill, FillKind},
    judges::judge_of,
    load::bind,
    operands::Operands,
    suite::candidates,
};
use kp_hal::{
    Backend, Buffer, DType, Device, Error, ErrorKind, Label, MemoryKind, Queue,
    op::{AnyProblem, Args, Op, OpVisitor, Problem, Repro, View, needs},
};
use std::{ops::Range, sync::Arc};

/// Buffers that launches share. The first is only read, so that numbers stay finite now and then.
const SLOTS: usize = 9;
const SLOT_BYTES: u64 = 1 << 21;
/// Steps of a program, at most.
const STEPS: u64 = 24;
/// Operations of a launch, at most.
const COST: f64 = 1e8;
/// How often a program that was wrong once is asked again: what races is not always wrong.
const AGAIN: usize = 8;

/// Runs `programs` of them.
pub(super) fn agree(
    backend: &'static dyn Backend,
    device: &Arc<dyn Device>,
    programs: u32,
    seed: u64,
) -> Result<(), Failure> {
    let mut random = Fill::new(FillKind::Normal, seed);
    let mut stage = Stage::new(device)?;
    for _ in 0..programs {
        let mut steps = Vec::new();
        for _ in 0..2 + random.below(STEPS - 1) {
            steps.extend(step(backend, device, &mut *stage.queue, &mut random)?);
        }
        if let Err(e) = stage.judge(&steps) {
            return Err(stage.smallest(steps, e));
        }
    }
    Ok(())
}

/// Something to submit.
struct Step {
    text: String,
    submit: Box<Submit>,
}

type Submit = dyn Fn(&mut dyn Queue, &mut [Buffer]) -> Result<(), Error>;

/// A copy, a fill, or a launch of some kernel on some problem; nothing if none was found.
fn step(
    backend: &'static dyn Backend,
    device: &Arc<dyn Device>,
    queue: &mut dyn Queue,
    random: &mut Fill,
) -> Result<Option<Step>, Failure> {
    match random.below(8) {
        0 => return Ok(Some(copy(random))),
        1 => return Ok(Some(fill(random))),
        _ => {}
    }
    for _ in 0..200 {
        let op = AnyProblem::OPS[random.below(AnyProblem::OPS.len() as u64) as usize];
        let places = grammar::places(op).ok_or_else(|| format!("nothing draws problems of {op}: write its grammar"))?;
        let choices: Vec<u16> = (0..CHOICES).map(|_| random.bits() as u16).collect();
        let Ok(problem) = line(op, places, &choices).parse::<AnyProblem>() else { continue };
        if let Some(step) = problem.visit(Drawn { backend, device, queue, random })? {
            return Ok(Some(step));
        }
    }
    Ok(None)
}

fn copy(random: &mut Fill) -> Step {
    let (from, to) = (random.below(SLOTS as u64) as usize, 1 + random.below(SLOTS as u64 - 1) as usize);
    let bytes = 1 + random.below(SLOT_BYTES);
    let (source, target) = (place(bytes, 1, random), place(bytes, 1, random));
    let text = format!("copy {from}[{source:?}] to {to}[{target:?}]");
    let submit =
        Box::new(move |queue: &mut dyn Queue, slots: &mut [Buffer]| match slots.get_disjoint_mut([from, to]) {
            Ok([a, b]) => queue.copy(b.slice_mut().at(target.clone()), a.slice().at(source.clone())),
            Err(_) => Ok(()),
        });
    Step { text, submit }
}

fn fill(random: &mut Fill) -> Step {
    let slot = 1 + random.below(SLOTS as u64 - 1) as usize;
    let (range, byte) = (place(1 + random.below(SLOT_BYTES), 1, random), byte(random));
    let text = format!("fill {slot}[{range:?}] with {byte}");
    let submit = Box::new(move |queue: &mut dyn Queue, slots: &mut [Buffer]| {
        queue.fill(slots[slot].slice_mut().at(range.clone()), byte)
    });
    Step { text, submit }
}

/// Where `bytes` lie in a slot: half of the time where many do.
fn place(bytes: u64, align: u64, random: &mut Fill) -> Range<u64> {
    let rest = (SLOT_BYTES - bytes) / align;
    let first = if random.below(2) == 0 { 0 } else { random.below(rest + 1) * align };
    first..first + bytes
}

/// Bytes of which every float with a sign is finite and below 2 in magnitude.
fn byte(random: &mut Fill) -> u8 {
    let bits = random.bits() as u8;
    0x30 | bits & 0x8f
}

/// Makes a launch of a problem.
struct Drawn<'d> {
    backend: &'static dyn Backend,
    device: &'d Arc<dyn Device>,
    queue: &'d mut dyn Queue,
    random: &'d mut Fill,
}

/// Where an operand lies.
enum Place {
    /// Numbers that say where others are: they must be sensible.
    Apart(Buffer),
    Slot(usize, Range<u64>),
}

impl OpVisitor for Drawn<'_> {
    type Out = Result<Option<Step>, Failure>;
    fn visit<O: Op>(self, problem: &Problem<O::Spec>) -> Self::Out {
        let Self { backend, device, queue, random } = self;
        let judge = judge_of::<O>().ok_or_else(|| format!("{} has no judge", O::NAME))?;
        let list = <O::Args<'_> as Args<'_>>::OPERANDS;
        let needs = needs::<O>(problem);
        let present = |i: &usize| needs.get(*i).is_present();
        let fits = (0..list.len()).filter(present).all(|i| needs.get(i).bytes <= SLOT_BYTES / 2);
        let outputs = (0..list.len()).filter(present).filter(|&i| list[i].output).count();
        if problem.repro() == Repro::Fast || !fits || outputs + 2 > SLOTS || (judge.cost)(problem) > COST {
            return Ok(None);
        }
        let candidates = candidates(O::kernels(backend.kernels()), device, problem);
        if candidates.is_empty() {
            return Ok(None);
        }
        let (kernel, variant) = candidates[random.below(candidates.len() as u64) as usize];
        let plan = kernel.plan(device, problem, variant)?;
        let operands: Operands = (judge.inputs)(problem, &mut Fill::new(FillKind::Normal, random.bits()));
        // Outputs have slots of their own, since a launch must not read what it writes.
        let mut free: Vec<usize> = (1..SLOTS).collect();
        let mut slots = vec![0; list.len()];
        for i in (0..list.len()).filter(present).filter(|&i| list[i].output) {
            slots[i] = free.swap_remove(random.below(free.len() as u64) as usize);
        }
        free.push(0);
        let mut places = Vec::new();
        let label = Label { kernel: kernel.name(), variant };
        let mut text = format!("{label} {problem}");
        for (i, operand) in list.iter().enumerate() {
            let Some(bytes) = operands.at(i) else {
                places.push(None);
                continue;
            };
            let need = needs.get(i);
            places.push(Some(if !operand.output && need.dtype == DType::I32 {
                let mut buffer = device.clone().alloc(need.bytes.max(1), MemoryKind::Device)?;
                queue.upload(buffer.slice_mut().at(0..need.bytes), bytes)?;
                Place::Apart(buffer)
            } else {
                let slot = if operand.output { slots[i] } else { free[random.below(free.len() as u64) as usize] };
                let range = place(need.bytes, need.align.into(), random);
                text.push_str(&format!(" {}={slot}[{range:?}]", operand.name));
                Place::Slot(slot, range)
            }));
        }
        queue.reserve_scratch(plan.scratch_bytes())?;
        let submit = Box::new(move |queue: &mut dyn Queue, slots: &mut [Buffer]| {
            let args = bind::<O>(views(&places, list.iter().map(|operand| operand.output), slots), &operands);
            plan.launch(queue, &args.expect("every operand has a place"))
        });
        Ok(Some(Step { text, submit }))
    }
}

fn views<'a>(
    places: &'a [Option<Place>],
    is_output: impl Iterator<Item = bool> + Clone,
    slots: &'a mut [Buffer],
) -> Vec<Option<View<'a>>> {
    let mut views: Vec<Option<View<'a>>> = places.iter().map(|_| None).collect();
    let mut written: Vec<Option<&mut Buffer>> = slots.iter_mut().map(Some).collect();
    for ((view, place), _) in views.iter_mut().zip(places).zip(is_output.clone()).filter(|(_, is_output)| *is_output) {
        if let Some(Place::Slot(slot, range)) = place {
            let buffer = written[*slot].take().expect("an output has a slot of its own");
            *view = Some(View::Out(buffer.slice_mut().at(range.clone())));
        }
    }
    let read: Vec<Option<&Buffer>> = written.into_iter().map(|buffer| buffer.map(|buffer| &*buffer)).collect();
    for ((view, place), _) in views.iter_mut().zip(places).zip(is_output).filter(|(_, is_output)| !is_output) {
        *view = place.as_ref().map(|place| match place {
            Place::Apart(buffer) => View::In(buffer.slice()),
            Place::Slot(slot, range) => {
                View::In(read[*slot].expect("nothing is read that is written").slice().at(range.clone()))
            }
        });
    }
    views
}

/// Where programs run.
struct Stage {
    queue: Box<dyn Queue>,
    slots: Vec<Buffer>,
    /// What slots hold before.
    image: Vec<u8>,
}

impl Stage {
    fn new(device: &Arc<dyn Device>) -> Result<Self, Failure> {
        let slot = || device.clone().alloc(SLOT_BYTES, MemoryKind::Device);
        let slots = (0..SLOTS).map(|_| slot()).collect::<Result<_, _>>()?;
        let mut random = Fill::new(FillKind::Normal, 3);
        let image = (0..SLOT_BYTES).map(|_| byte(&mut random)).collect();
        Ok(Self { queue: device.clone().queue()?, slots, image })
    }

    /// Runs the steps with a wait after each, without, and recorded.
    fn judge(&mut self, steps: &[Step]) -> Result<(), Failure> {
        let wanted = self.after(|queue, slots| {
            for step in steps {
                (step.submit)(queue, slots)?;
                queue.sync()?;
            }
            Ok(())
        })?;
        let all =
            |queue: &mut dyn Queue, slots: &mut [Buffer]| steps.iter().try_for_each(|step| (step.submit)(queue, slots));
        let got = self.after(all)?;
        same(&got, &wanted, "submitted one behind the other")?;
        let graph = match self.queue.capture(|queue| all(queue, &mut self.slots)) {
            Err(e) if matches!(e.kind(), ErrorKind::NotCapturable { .. }) => return Ok(()),
            graph => graph?,
        };
        // SAFETY: slots and what steps own are alive, and no other queue knows them.
        let got = self.after(|queue, _| unsafe { graph.replay(queue) })?;
        same(&got, &wanted, "recorded and replayed")
    }

    /// All slots as `submit` leaves them.
    fn after(
        &mut self,
        submit: impl FnOnce(&mut dyn Queue, &mut [Buffer]) -> Result<(), Error>,
    ) -> Result<Vec<Vec<u8>>, Failure> {
        for slot in &mut self.slots {
            self.queue.upload(slot.slice_mut(), &self.image)?;
        }
        submit(&mut *self.queue, &mut self.slots)?;
        let mut after = vec![vec![0; SLOT_BYTES as usize]; SLOTS];
        for (slot, after) in self.slots.iter().zip(&mut after) {
            self.queue.download(after, slot.slice())?;
        }
        Ok(after)
    }

    /// Leaves out what may be left out, and tells of the rest.
    fn smallest(&mut self, mut steps: Vec<Step>, mut failure: Failure) -> Failure {
        let mut at = 0;
        while at < steps.len() {
            let without = steps.remove(at);
            match (0..AGAIN).find_map(|_| self.judge(&steps).err()) {
                Some(e) => failure = e,
                None => {
                    steps.insert(at, without);
                    at += 1;
                }
            }
        }
        let texts: Vec<&str> = steps.iter().map(|step| step.text.as_str()).collect();
        format!("{failure}\n{}", texts.join("\n")).into()
    }
}

fn same(got: &[Vec<u8>], wanted: &[Vec<u8>], how: &str) -> Result<(), Failure> {
    for (slot, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        let wrong: Vec<usize> = (0..got.len()).filter(|&i| got[i] != wanted[i]).collect();
        if let (Some(first), Some(last)) = (wrong.first(), wrong.last()) {
            return Err(format!("{how}, {} bytes of slot {slot} differ, {first} to {last}", wrong.len()).into());
        }
    }
    Ok(())
}

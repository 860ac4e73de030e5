//! Recording with an engine: what was planned is recorded, what was not is refused, and nothing is spoiled.

mod common;

use common::{engine, problem};
use kp_core::{
    Engine, Error, Tune,
    hal::{
        AnyProblem, Buffer, Error as HalError, ErrorKind, Queue,
        op::{Gemm, GemmArgs},
    },
};
use kp_null::NullQueue;

const KNOWN: &str = "gemm 1x8x16x32 f32:f32:f32";
const NEW: &str = "gemm 1x8x16x16 f32:f32:f32";

fn what(error: &HalError) -> &'static str {
    match error.kind() {
        ErrorKind::NotCapturable { what } => what,
        other => panic!("not about recording: {other}"),
    }
}

/// A, B and D of either problem.
fn buffers(engine: &Engine) -> [Buffer; 3] {
    [8 * 32 * 4, 32 * 16 * 4, 8 * 16 * 4].map(|bytes| engine.alloc(bytes).expect("there is room"))
}

fn launches(queue: &mut Box<dyn Queue>) -> u64 {
    queue.downcast_mut::<NullQueue>().expect("a queue of the null device").launches()
}

#[test]
fn a_held_plan_is_recorded_and_a_new_problem_is_refused() {
    let engine = engine();
    let mut queue = engine.queue().expect("a queue costs nothing");
    let [a, b, mut d] = buffers(&engine);
    let held = engine.plan(&problem(KNOWN)).expect("planned");
    let mut site = engine.dispatcher::<Gemm>();
    let graph = queue
        .capture(|queue| {
            let args = GemmArgs::new(a.slice(), b.slice(), d.slice_mut());
            held.launch(queue, &args)?;
            // Planned by the engine, though not by this dispatcher.
            site.run(queue, &problem(KNOWN), &args)?;
            let new = "planning a new problem";
            assert_eq!(what(&engine.plan(&problem(NEW)).expect_err("new")), new);
            assert_eq!(what(&site.run(queue, &problem(NEW), &args).expect_err("new")), new);
            assert!(!engine.candidates(&problem(NEW)).accepted.is_empty(), "questions are answered at any time");
            engine.explain(&problem(NEW));
            Ok(())
        })
        .expect("what was refused was not recorded");
    assert_eq!(launches(&mut queue), 0);
    // SAFETY: the buffers are alive and no other queue knows them.
    unsafe { graph.replay(&mut *queue) }.expect("recorded by this queue");
    assert_eq!(launches(&mut queue), 2);
    assert!(engine.explain(&problem(NEW)).winner().is_some());
    engine.plan(&problem(NEW)).expect("no longer recording");
}

#[test]
fn forgotten_plans_are_new_again() {
    let engine = engine();
    let mut queue = engine.queue().expect("a queue costs nothing");
    let mut site = engine.dispatcher::<Gemm>();
    site.plan(&problem(KNOWN)).expect("planned");
    engine.forget_plans();
    let refused = queue.capture(|_| site.plan(&problem(KNOWN)).map(drop)).err().expect("forgotten");
    assert_eq!(what(&refused), "planning a new problem");
    site.plan(&problem(KNOWN)).expect("planned again");
}

#[test]
fn nothing_is_tuned_while_recording_and_other_threads_plan_on() {
    let engine = engine();
    let mut queue = engine.queue().expect("a queue costs nothing");
    let problems: [AnyProblem; 1] = [NEW.parse().expect("well formed")];
    queue
        .capture(|_| {
            match engine.tune(&problems, Tune::default()) {
                Err(Error::Hal(error)) => assert_eq!(what(&error), "tuning"),
                other => panic!("tuned while recording: {other:?}"),
            }
            std::thread::scope(|scope| scope.spawn(|| engine.plan(&problem(NEW)).map(drop)).join())
                .expect("planning does not panic")
        })
        .expect("nothing was recorded");
}

#[cfg(feature = "cpu")]
#[test]
fn a_processor_that_records_nothing_says_so_and_goes_on() {
    let engine = Engine::builder().device("cpu").memory_only().open().expect("the processor opens");
    let mut queue = engine.queue().expect("a queue costs nothing");
    let refused = queue.capture(|_| panic!("nothing is recorded")).err().expect("no graphs here");
    assert_eq!(what(&refused), "work of this backend");
    let [a, b, mut d] = buffers(&engine);
    let plan = engine.plan(&problem(NEW)).expect("the refusal is over");
    plan.launch(&mut *queue, &GemmArgs::new(a.slice(), b.slice(), d.slice_mut())).expect("the buffers fit");
    // A recording elsewhere on this thread refuses planning here too, and lets what is planned run.
    let null = common::engine();
    null.queue()
        .expect("a queue costs nothing")
        .capture(|_| {
            plan.launch(&mut *queue, &GemmArgs::new(a.slice(), b.slice(), d.slice_mut()))?;
            assert_eq!(what(&engine.plan(&problem(KNOWN)).expect_err("new")), "planning a new problem");
            Ok(())
        })
        .expect("nothing was recorded");
}

//! Remembers plans for one call site.

use crate::engine::Engine;
use kp_hal::{Op, Plan, Problem, Queue, Result};
use std::{fmt, sync::Arc};

/// Places in the table.
const SLOTS: usize = 128;

/// Places a problem may take, from its first on.
const REACH: usize = 4;

/// A small table of the plans that one call site used last.
///
/// Owned by its caller and used through `&mut`, so a hit takes no lock, counts no reference and allocates nothing.
/// A miss asks the engine. The engine forgets its ranking when it is tuned; so does the dispatcher, at its next call.
pub struct Dispatcher<O: Op> {
    engine: Engine,
    generation: u64,
    slots: Box<[Slot<O>]>,
    /// Which of a problem's places gives way next.
    turn: usize,
}

struct Slot<O: Op> {
    /// The problem's, so that other problems are passed over without a look at the plan.
    fingerprint: u64,
    plan: Option<Arc<Plan<O>>>,
}

impl<O: Op> Dispatcher<O> {
    /// An empty table in front of `engine`.
    pub fn new(engine: &Engine) -> Self {
        let empty = || Slot { fingerprint: 0, plan: None };
        // REACH places more than there are beginnings, so that a reach need not wrap.
        let slots = std::iter::repeat_with(empty).take(SLOTS + REACH).collect();
        Self { engine: engine.clone(), generation: engine.generation(), slots, turn: 0 }
    }

    /// Launches the best kernel for `problem`.
    ///
    /// # Errors
    /// As [`Engine::plan`] on a miss, `NotCapturable` while recording among them, and as [`Plan::launch`].
    #[inline]
    pub fn run(&mut self, queue: &mut dyn Queue, problem: &Problem<O::Spec>, args: &O::Args<'_>) -> Result<()> {
        self.plan(problem)?.launch(queue, args)
    }

    /// The plan that `run` would launch.
    ///
    /// # Errors
    /// As [`Engine::plan`], on a miss.
    #[inline]
    pub fn plan(&mut self, problem: &Problem<O::Spec>) -> Result<&Arc<Plan<O>>> {
        let fingerprint = problem.fingerprint();
        let home = fingerprint as usize % SLOTS;
        let found = self.slots[home..home + REACH].iter().position(
            |slot| matches!(&slot.plan, Some(plan) if slot.fingerprint == fingerprint && plan.problem() == problem),
        );
        let at = match found {
            Some(place) if self.generation == self.engine.generation() => home + place,
            _ => self.miss(problem, home)?,
        };
        Ok(self.slots[at].plan.as_ref().expect("a place that was found or filled holds a plan"))
    }

    /// Asks the engine; answers where the plan now is.
    #[cold]
    #[inline(never)]
    fn miss(&mut self, problem: &Problem<O::Spec>, home: usize) -> Result<usize> {
        if self.generation != self.engine.generation() {
            self.clear();
        }
        let plan = self.engine.plan(problem)?;
        let places = &self.slots[home..home + REACH];
        let at = home
            + places.iter().position(|slot| slot.plan.is_none()).unwrap_or_else(|| {
                self.turn = (self.turn + 1) % REACH;
                self.turn
            });
        self.slots[at] = Slot { fingerprint: problem.fingerprint(), plan: Some(plan) };
        Ok(at)
    }

    /// Forgets every plan.
    pub fn clear(&mut self) {
        self.generation = self.engine.generation();
        self.slots.iter_mut().for_each(|slot| slot.plan = None);
    }

    /// The engine it asks.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

impl<O: Op> fmt::Debug for Dispatcher<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plans = self.slots.iter().filter_map(|slot| slot.plan.as_ref());
        f.debug_list().entries(plans).finish()
    }
}

//! Many compilers at work at once.

use crate::{Task, judge};
use kp_nvidia::compile::{Compiled, Nvrtc, Report, Store, compile};
use std::{
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// A build, and what became of it.
pub(crate) struct Done {
    pub(crate) task: Task,
    /// The time it took, next to nothing if it was kept from an earlier run.
    pub(crate) time: Duration,
    /// `None` if the compiler refused.
    pub(crate) compiled: Option<Compiled>,
    pub(crate) report: Report,
    /// Why it may not be used as it is.
    faults: Vec<String>,
}

/// Compiles all of `tasks`, in their order, `cores` at a time.
pub(crate) fn all(tasks: Vec<Task>, store: &Store, cores: usize) -> Vec<Done> {
    let total = tasks.len();
    let slots: Vec<Mutex<(Option<Task>, Option<Done>)>> =
        tasks.into_iter().map(|task| Mutex::new((Some(task), None))).collect();
    let (next, start) = (AtomicUsize::new(0), Instant::now());
    let work = || {
        while let Some(slot) = slots.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut slot = slot.lock().expect("each slot has one visitor");
            let task = slot.0.take().expect("each slot has one visitor");
            slot.1 = Some(one(task, store));
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..cores.max(1)).map(|_| scope.spawn(work)).collect();
        // A minute without a word would look like a hang.
        let mut said = Instant::now();
        while !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(20));
            if said.elapsed() > Duration::from_secs(15) {
                said = Instant::now();
                let begun = next.load(Ordering::Relaxed).min(total);
                println!("{begun} of {total} begun, {:.0} s", start.elapsed().as_secs_f64());
            }
        }
    });
    slots
        .into_iter()
        .map(|slot| slot.into_inner().ok().and_then(|slot| slot.1).expect("every slot was visited"))
        .collect()
}

fn one(task: Task, store: &Store) -> Done {
    let start = Instant::now();
    let compiled = compile(&task.listed.build, task.arch, Some(store));
    let time = start.elapsed();
    match compiled {
        Ok(compiled) => {
            let (report, faults) = judge::faults(&compiled.log, &task.listed);
            Done { task, time, compiled: Some(compiled), report, faults }
        }
        Err(why) => Done { task, time, compiled: None, report: Report::default(), faults: vec![why.to_string()] },
    }
}

impl Done {
    /// Each fault with the build it was found in.
    pub(crate) fn faults(&self) -> impl Iterator<Item = String> {
        let Task { listed, arch, .. } = &self.task;
        let place = match self.compiled {
            Some(_) => format!("{listed} for {arch}"),
            // The refusal itself says which macros and architecture.
            None => listed.kernel.to_owned(),
        };
        self.faults.iter().map(move |fault| format!("{place}: {fault}"))
    }

    /// The build, what it costs, and where its cubin is kept in `folder`.
    pub(crate) fn line(&self, folder: &Path) -> String {
        let Self { task, time, report, .. } = self;
        let version = Nvrtc::get().map_or((0, 0), Nvrtc::version);
        let path = folder.join(task.key.by(version).to_string());
        format!("{:8} {} {report}, {:.2} s, {}", task.arch, task.listed, time.as_secs_f64(), path.display())
    }
}

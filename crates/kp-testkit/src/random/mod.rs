//! Random problems of every op: each kernel and variant that supports one must agree with the reference.
//!
//! Launches of them that follow each other must leave memory as if each had waited for the one before.
//!
//! The suite's cases are chosen to meet every pair of options; these are not chosen, so they meet what nobody thought of. A failure
//! prints the smallest problem line that still fails: add it to `cases/found.rs`.
//!
//! In the backend's crate, `tests/random.rs` with `harness = false` is three lines, as the suite is.

mod grammar;
mod programs;

use crate::{
    cases::pairwise::words,
    check::{Case, Failure, agreed, judge_case},
    judges::judge_of,
    runner::{Test, caught},
    suite::{Suite, candidates},
};
use kp_hal::{
    Backend, Device, Label,
    op::{AnyProblem, EachOp, Op, OpVisitor, Problem, Repro, each_op},
};
use proptest::{
    collection::vec,
    prelude::{ProptestConfig, any},
    test_runner::{RngSeed, TestCaseError, TestError, TestRunner},
};
use std::{cell::RefCell, collections::HashMap, process::ExitCode, sync::Arc};

/// Runs `problems` random problems of every op that the suite's backend has kernels of, as a test binary's `main`: as many as `KP_RANDOM` says
/// if it does, others for another `KP_SEED`.
pub fn random(suite: impl Into<Suite>, problems: u32) -> ExitCode {
    let asked = std::env::var_os("KP_RANDOM").filter(|asked| !asked.is_empty());
    let Ok(asked) = asked.as_ref().map(|asked| asked.to_string_lossy().parse()).transpose() else {
        eprintln!("error: KP_RANDOM must be a whole number, got {asked:?}");
        return ExitCode::from(2);
    };
    let (problems, soak) = (asked.unwrap_or(problems), asked.is_some());
    let suite = suite.into();
    let backend = suite.backend();
    suite.main_of(|device, settings| {
        let mut made = Maker { backend, device, seed: settings.seed, problems, soak, tests: Vec::new() };
        each_op(&mut made);
        let (device, seed) = (device.clone(), settings.seed);
        // Each has a dozen launches.
        let agree = move || programs::agree(backend, &device, problems.div_ceil(8), seed);
        made.tests.push(Test::new(format!("{}/random/programs", backend.name()), agree));
        made.tests
    })
}

/// Makes one test for each op.
struct Maker<'s> {
    backend: &'static dyn Backend,
    device: &'s Arc<dyn Device>,
    seed: u64,
    problems: u32,
    /// Whether to tell of what is done.
    soak: bool,
    tests: Vec<Test>,
}

impl EachOp for Maker<'_> {
    fn op<O: Op>(&mut self) {
        if O::kernels(self.backend.kernels()).is_empty() {
            return;
        }
        let (backend, device) = (self.backend, self.device.clone());
        let Self { seed, problems, soak, .. } = *self;
        self.tests.push(Test::new(format!("{}/random/{}", backend.name(), O::NAME), move || {
            let state = RefCell::default();
            let judged = agree(O::NAME, problems, seed, |problem| {
                problem.visit(Everything { backend, device: &device, seed, state: &state, told: soak })
            });
            if soak {
                let ran = &state.borrow().ran;
                let missed = O::kernels(backend.kernels()).iter().map(|kernel| kernel.name());
                let missed: Vec<_> = missed.filter(|name| !ran.contains_key(name)).collect();
                println!("{}: {} runs, none of: {}", O::NAME, ran.values().sum::<u32>(), missed.join(" "));
            }
            judged
        }));
    }
}

/// Draws until `problems` lines are problems that `judge` finds kernels for.
fn agree(
    op: &str,
    problems: u32,
    seed: u64,
    judge: impl Fn(&AnyProblem) -> Result<u32, String>,
) -> Result<(), Failure> {
    let places = grammar::places(op).ok_or_else(|| format!("nothing draws problems of {op}: write its grammar"))?;
    let config = ProptestConfig {
        cases: problems,
        failure_persistence: None,
        max_global_rejects: 200 * problems,
        max_shrink_iters: u32::MAX,
        max_shrink_time: SHRINK_MS,
        rng_seed: RngSeed::Fixed(seed),
        ..ProptestConfig::default()
    };
    // Shrinking meets the same line again and again.
    let known: RefCell<HashMap<String, Result<u32, String>>> = RefCell::default();
    let judge = |problem: &AnyProblem| {
        let line = problem.to_string();
        if let Some(known) = known.borrow().get(&line) {
            return known.clone();
        }
        let judged = judge(problem).map_err(|e| format!("{line}\n{e}"));
        known.borrow_mut().insert(line, judged.clone());
        judged
    };
    let first = RefCell::new(None);
    let drawn = TestRunner::new(config).run(&vec(any::<u16>(), CHOICES), |choices| {
        let Ok(problem) = line(op, places, &choices).parse() else { return Err(TestCaseError::reject("no problem")) };
        match judge(&problem) {
            Ok(0) => Err(TestCaseError::reject("no kernel")),
            Ok(_) => Ok(()),
            Err(e) => {
                first.borrow_mut().get_or_insert_with(|| e.clone());
                Err(TestCaseError::fail(e))
            }
        }
    });
    match (drawn, first.into_inner()) {
        (Ok(()), _) => Ok(()),
        (Err(TestError::Fail(smallest, _)), first) => {
            Err(format!("{smallest}\nas drawn: {}", first.unwrap_or_default()).into())
        }
        (Err(e), _) => Err(e.to_string().into()),
    }
}

/// On a device that compiles what each problem needs, shrinking could go on for long.
const SHRINK_MS: u32 = 30_000;

/// More than any line takes.
const CHOICES: usize = 96;

/// A line made of `choices`, which are used up one after the other; smaller ones make simpler lines.
fn line(op: &str, places: &[&str], choices: &[u16]) -> String {
    let mut draw = Draw { choices: choices.iter(), lengths: Vec::new() };
    let options = draw.below(4);
    let mut line = op.to_owned();
    for place in places {
        let mut from = words(place);
        if from[0].is_empty() {
            from.remove(0);
            if draw.below(8) < 8 - options {
                continue;
            }
        }
        let nth = draw.below(from.len());
        line.extend([" ", &draw.word(&from[nth])]);
    }
    line
}

/// What choices are made of.
struct Draw<'c> {
    choices: std::slice::Iter<'c, u16>,
    /// Lengths by their names.
    lengths: Vec<(char, u32)>,
}

impl Draw<'_> {
    /// A number from 0 up to, not including, 1.
    fn unit(&mut self) -> f64 {
        f64::from(self.choices.next().copied().unwrap_or(0)) / 65536.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }

    /// The word of a grammar with all that is open in it decided.
    fn word(&mut self, open: &str) -> String {
        let mut chosen = String::new();
        let mut rest = open;
        while let Some((before, (choices, after))) =
            rest.split_once('{').and_then(|(b, r)| Some((b, r.split_once('}')?)))
        {
            let choices: Vec<&str> = choices.split(',').collect();
            chosen.extend([before, choices[self.below(choices.len())]]);
            rest = after;
        }
        chosen.push_str(rest);
        let mut word = String::new();
        let mut rest = chosen.chars().peekable();
        while let Some(c) = rest.next() {
            match c {
                '#' => {
                    let name = rest.next().expect("a length has a name");
                    let length = self.length(number(&mut rest));
                    let length = if rest.next_if_eq(&'*').is_some() { length * number(&mut rest) } else { length };
                    self.lengths.push((name, length));
                    word.push_str(&length.to_string());
                }
                '$' => {
                    let name = rest.next();
                    let length = self.lengths.iter().find(|(n, _)| Some(*n) == name).map_or(0, |(_, length)| *length);
                    let length = match rest.next_if(|c| matches!(c, '+' | '~')) {
                        Some('+') => length + number(&mut rest),
                        Some(_) => length.next_multiple_of(number(&mut rest)),
                        None => length,
                    };
                    word.push_str(&length.to_string());
                }
                c => word.push(c),
            }
        }
        word
    }

    /// A length of at most `most`, now and then 0.
    fn length(&mut self, most: u32) -> u32 {
        if self.below(40) == 39 {
            return 0;
        }
        let count = LENGTHS.partition_point(|&length| length <= most);
        LENGTHS[(self.unit().powi(2) * count as f64) as usize]
    }
}

fn number(text: &mut std::iter::Peekable<std::str::Chars<'_>>) -> u32 {
    let digits: String = std::iter::from_fn(|| text.next_if(char::is_ascii_digit)).collect();
    digits.parse().expect("a grammar's lengths are numbers")
}

/// Small, beside the edges of tiles and steps, and whole ones of them.
const LENGTHS: [u32; 76] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 20, 24, 31, 32, 33, 34, 40, 47, 48, 50, 63, 64, 65, 72, 80, 95, 96, 97,
    100, 112, 127, 128, 129, 130, 136, 144, 160, 176, 192, 200, 224, 255, 256, 257, 264, 272, 300, 320, 384, 500, 512,
    513, 520, 640, 768, 1000, 1024, 1040, 1100, 2000, 2048, 2049, 4096, 4097, 4200, 5000, 8192, 8200, 10000, 16384,
    16390, 16400, 20000,
];

/// What became of an op's problems.
#[derive(Default)]
struct State {
    /// Runs of each kernel.
    ran: HashMap<&'static str, u32>,
    /// Who failed: while the problem shrinks nobody else is judged.
    suspect: Option<Label>,
}

/// Judges every kernel and variant that supports the problem as the suite does; answers how many there are.
struct Everything<'s> {
    backend: &'static dyn Backend,
    device: &'s Arc<dyn Device>,
    seed: u64,
    state: &'s RefCell<State>,
    /// Whether to tell of a problem before it may end the process.
    told: bool,
}

impl OpVisitor for Everything<'_> {
    type Out = Result<u32, String>;
    fn visit<O: Op>(self, problem: &Problem<O::Spec>) -> Result<u32, String> {
        let Self { backend, device, seed, state, told } = self;
        let candidates = candidates(O::kernels(backend.kernels()), device, problem);
        if candidates.is_empty() {
            return Ok(0);
        }
        if told {
            println!("{problem}");
        }
        match device.clone().queue() {
            Ok(_) => {}
            // The problem that ended the device is as small as it will get.
            Err(_) if state.borrow().suspect.is_some() => return Ok(0),
            Err(e) => return Err(e.to_string()),
        }
        let judge = judge_of::<O>().ok_or_else(|| format!("{} has no judge", O::NAME))?;
        let case = Case::<O>::new(*problem, judge, seed);
        for &(kernel, variant) in &candidates {
            let label = Label { kernel: kernel.name(), variant };
            if state.borrow().suspect.as_ref().is_some_and(|suspect| *suspect != label) {
                continue;
            }
            *state.borrow_mut().ran.entry(label.kernel).or_default() += 1;
            if let Err(e) = caught(|| judge_case(device, kernel, variant, &case)) {
                let e = format!("{label}: {e}");
                state.borrow_mut().suspect = Some(label);
                return Err(e);
            }
        }
        if problem.repro() == Repro::BatchInvariant && state.borrow().suspect.is_none() {
            caught(|| agreed(device, &candidates, &case)).map_err(|e| e.to_string())?;
        }
        Ok(candidates.len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_has_a_grammar_that_draws_problems() {
        for op in AnyProblem::OPS {
            let places = grammar::places(op).unwrap_or_else(|| panic!("no grammar of {op}"));
            let mut fill = crate::Fill::new(crate::FillKind::Normal, 1);
            let mut problems = 0;
            for _ in 0..1000 {
                let choices: Vec<u16> = (0..CHOICES).map(|_| fill.bits() as u16).collect();
                problems += u32::from(line(op, places, &choices).parse::<AnyProblem>().is_ok());
            }
            assert!(problems > 50, "{problems} of 1000 lines of {op} are problems");
            assert!(line(op, places, &[]).parse::<AnyProblem>().is_ok(), "{}", line(op, places, &[]));
        }
    }

    #[test]
    fn what_is_open_in_a_word_is_decided() {
        let mut draw = Draw { choices: [40_000, 65_535, 0, 65_535].iter(), lengths: Vec::new() };
        let word = draw.word("{a,b}x#M9:{,z}");
        assert_eq!((word.as_str(), draw.word("$M+3:$M~16:$M")), ("bx9:z", "12:16:9".to_owned()));
    }
}

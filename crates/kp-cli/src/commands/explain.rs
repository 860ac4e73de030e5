//! `kp explain`: every kernel's answer to one problem.

use crate::{Global, output::Output, suites};
use anyhow::Result;
use kp_core::{Engine, Explanation, explain::Bound};
use kp_hal::{
    AnyProblem,
    op::{Op, OpVisitor, Problem},
};
use serde_json::{Value, json};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The problem, quoted or not: `gemm 1x1x4096x14336 bf16:bf16:bf16`
    #[arg(required = true)]
    problem: Vec<String>,
}

/// Prints the ranking.
///
/// # Errors
/// A problem that makes no sense, a device that is not there.
pub(crate) fn run(global: &Global, args: &Args, out: &mut Output) -> Result<bool> {
    let problem = suites::problem(&args.problem)?;
    let explanation = explain(&global.open(out)?, &problem);
    match out.json {
        true => out.print_json(&as_json(&explanation))?,
        false => out.print(&explanation.to_string())?,
    }
    Ok(explanation.winner().is_some())
}

/// Every kernel's answer to `problem`.
pub(crate) fn explain(engine: &Engine, problem: &AnyProblem) -> Explanation {
    struct Ask<'e>(&'e Engine);
    impl OpVisitor for Ask<'_> {
        type Out = Explanation;
        fn visit<O: Op>(self, problem: &Problem<O::Spec>) -> Explanation {
            self.0.explain(problem)
        }
    }
    problem.visit(Ask(engine))
}

fn as_json(explained: &Explanation) -> Value {
    json!({
        "problem": explained.problem,
        "device": explained.device,
        "arch": explained.arch,
        "units": explained.units,
        "bytes_per_s": explained.bytes_per_s,
        "peaks": if explained.measured_peaks { "measured" } else { "stated" },
        "floor_ns": explained.floor.0,
        "bound": match explained.bound { Bound::Memory => "memory", Bound::Compute => "compute" },
        "bytes": explained.bytes,
        "flops": explained.flops,
        "winner": explained.winner().map(|row| &row.label),
        "candidates": explained.candidates.iter().map(|row| json!({
            "kernel": row.label,
            "time_ns": row.time.0,
            "measured": row.measured,
            "of_floor": row.of_floor,
            "note": row.note,
            "failed": row.failed,
        })).collect::<Vec<_>>(),
        "rejected": explained.rejected.iter().map(|row| json!({ "kernel": row.kernel, "why": row.why })).collect::<Vec<_>>(),
    })
}

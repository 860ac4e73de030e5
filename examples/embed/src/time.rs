//! How many sentences a second, from their text to numbers on the host.

use crate::{
    check::sentences,
    model::{MiniLm, Precision},
};
use anyhow::Result;
use kp_core::Engine;
use std::{
    fmt,
    path::Path,
    time::{Duration, Instant},
};

/// What one precision came to, on the hundred sentences of `reference/`.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Of the matrices.
    pub precision: Precision,
    /// Sentences a second, one after the other.
    pub one_by_one: f64,
    /// Sentences a second, all given at once.
    pub at_once: f64,
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { precision, one_by_one, at_once } = self;
        writeln!(f, "{precision:5} one by one {one_by_one:8.1} sentences/s")?;
        write!(f, "{precision:5} at once    {at_once:8.1} sentences/s")
    }
}

/// Times the reference sentences in one precision; medians of as many rounds as two seconds hold, at least three.
///
/// # Errors
/// What is missing; what the device refuses.
pub fn time(engine: &Engine, model_dir: &Path, precision: Precision) -> Result<Rates> {
    let model = MiniLm::open(engine, model_dir, precision)?;
    let sentences = sentences();
    let rate = |batch: usize| -> Result<f64> {
        let seconds = median(|| {
            for some in sentences.chunks(batch) {
                model.embed(some)?.rows.to_vec::<f32>()?;
            }
            Ok(())
        })?;
        Ok(sentences.len() as f64 / seconds)
    };
    Ok(Rates { precision, one_by_one: rate(1)?, at_once: rate(sentences.len())? })
}

/// Seconds of a round; the first, which makes plans, does not count.
fn median(mut round: impl FnMut() -> Result<()>) -> Result<f64> {
    round()?;
    let (mut times, start) = (Vec::new(), Instant::now());
    while times.len() < 3 || start.elapsed() < Duration::from_secs(2) {
        let start = Instant::now();
        round()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

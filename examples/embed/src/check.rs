//! The comparison with PyTorch's embeddings of a hundred sentences.

use crate::model::{MiniLm, Precision};
use anyhow::{Context, Result, ensure};
use kp_core::Engine;
use std::{fmt, fs, path::Path, time::Instant};

/// What one precision came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// Of the matrices.
    pub precision: Precision,
    /// The least cosine of a sentence's embedding with PyTorch's.
    pub min: f64,
    /// The mean of all.
    pub mean: f64,
    /// The kernel of the last product.
    pub product: String,
    /// Seconds for all sentences.
    pub seconds: f64,
}

impl Precision {
    /// The least cosine that passes.
    pub fn bar(self) -> f64 {
        match self {
            Self::F32 => 0.9999,
            Self::Bf16 => 0.999,
            Self::Int8 | Self::Int8Q8 => 0.99,
            Self::W8A8 => 0.98,
            Self::Int4 => 0.95,
            // Nothing is promised of it.
            Self::Other(_) => -1.0,
        }
    }
}

impl Report {
    /// Whether every sentence reached the bar.
    pub fn passes(&self) -> bool {
        // Not `!(min < bar)`: NaN must fail.
        self.min >= self.precision.bar()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { precision, min, mean, product, seconds } = self;
        let (bar, verdict) = (precision.bar(), if self.passes() { "ok" } else { "FAILED" });
        write!(f, "{precision:5} min {min:.6}  mean {mean:.6}  bar {bar:<6}  {verdict:6} ")?;
        write!(f, "{seconds:6.2} s  {product}")
    }
}

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/reference");

/// The hundred sentences of `reference/`.
pub fn sentences() -> Vec<&'static str> {
    let text = include_str!("../reference/sentences.txt");
    // Not `lines`: what stands before the newline belongs to the sentence, whatever it is.
    text.strip_suffix('\n').unwrap_or(text).split('\n').collect()
}

/// Embeds the reference sentences in one precision.
///
/// # Errors
/// What is missing; token ids that differ from the reference's; what the device refuses.
pub fn check(engine: &Engine, model_dir: &Path, precision: Precision) -> Result<Report> {
    let reference = Path::new(REFERENCE);
    let sentences = sentences();
    let wanted = engine.load(reference.join("embeddings.safetensors"))?.get("embeddings")?;
    ensure!(wanted.shape()[0] == sentences.len(), "{} sentences, {} embeddings", sentences.len(), wanted.shape()[0]);
    let ids = fs::read_to_string(reference.join("token_ids.json")).context("cannot read the token ids")?;
    let ids: Vec<Vec<u32>> = serde_json::from_str(&ids).context("cannot parse the token ids")?;

    let model = MiniLm::open(engine, model_dir, precision)?;
    for (sentence, ids) in sentences.iter().zip(&ids) {
        ensure!(model.tokens(sentence)? == *ids, "other tokens than the reference for {sentence:?}");
    }
    let start = Instant::now();
    let embedded = model.embed(&sentences)?;
    let rows = embedded.rows.to_vec::<f32>()?;
    let seconds = start.elapsed().as_secs_f64();
    let width = wanted.shape()[1];
    let wanted = wanted.to_vec::<f32>()?;
    let cosines: Vec<f64> = rows.chunks(width).zip(wanted.chunks(width)).map(|(a, b)| cosine(a, b)).collect();
    ensure!(cosines.len() == sentences.len(), "{} embeddings of {} sentences", cosines.len(), sentences.len());
    Ok(Report {
        precision,
        // Not `f64::min`, which would drop NaN.
        min: cosines.iter().copied().fold(f64::INFINITY, |min, c| if c < min || c.is_nan() { c } else { min }),
        mean: cosines.iter().sum::<f64>() / cosines.len() as f64,
        product: embedded.product,
        seconds,
    })
}

/// The cosine of the angle between two vectors.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

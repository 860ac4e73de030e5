//! One step of a model as problem lines.

use super::{Linear, Model, Phase};
use crate::suites::Line;
use anyhow::{Context, Result};
use std::fmt;

/// The problems of one step, and how often it runs each.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    /// What the model is doing.
    pub(crate) title: String,
    /// Its problems, in the order in which a step first meets them.
    pub(crate) lines: Vec<Line>,
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.title.is_empty() {
            writeln!(f, "\n## {}", self.title)?;
        }
        let width = self.lines.iter().map(|line| line.text.len()).max().unwrap_or_default();
        self.lines.iter().try_for_each(|Line { text, count, label, .. }| match &**label {
            "" => writeln!(f, "{text}"),
            label => writeln!(f, "{text:width$}  # {count}× {label}"),
        })
    }
}

/// A step while it is written down.
pub(super) struct Step {
    pub(super) phase: Phase,
    /// Rows of the linear layers.
    pub(super) rows: u32,
    /// Type of activations.
    pub(super) dtype: &'static str,
    lines: Vec<Line>,
}

impl Step {
    /// Adds `count` runs of the problem that `text` spells; runs of a problem that is there already are counted with it.
    pub(super) fn push(&mut self, count: u32, label: &str, text: impl AsRef<str>) -> Result<()> {
        let text = text.as_ref();
        let problem = text.parse().with_context(|| format!("`{text}` ({label})"))?;
        match self.lines.iter_mut().find(|line| line.problem == problem) {
            Some(line) => {
                line.count += count;
                if !line.label.split(", ").any(|part| part == label) {
                    line.label = format!("{}, {label}", line.label);
                }
            }
            None => self.lines.push(Line { problem, text: problem.to_string(), count, label: label.to_owned() }),
        }
        Ok(())
    }

    /// A product of all rows with a weight stored `n`×`k`, its input quantized first if the format asks for it.
    pub(super) fn linear(
        &mut self,
        count: u32,
        label: &str,
        [n, k]: [u32; 2],
        linear: Linear,
        more: &str,
    ) -> Result<()> {
        let Self { rows, dtype, .. } = *self;
        self.quantize(count, rows, k, linear)?;
        let (a, b) = (linear.input.unwrap_or(dtype), linear.weight);
        self.push(count, label, format!("gemm 1x{rows}x{n}x{k} {a}:{b}:{dtype} b=col{more}"))
    }

    /// The products of each expert's rows, `rows` of all tokens together.
    pub(super) fn experts(
        &mut self,
        count: u32,
        label: &str,
        [groups, rows, n, k]: [u32; 4],
        linear: Linear,
        more: &str,
    ) -> Result<()> {
        let dtype = self.dtype;
        self.quantize(count, rows, k, linear)?;
        let (a, b) = (linear.input.unwrap_or(dtype), linear.weight);
        self.push(count, label, format!("grouped_gemm {groups}x{rows}x{n}x{k} {a}:{b}:{dtype} b=col{more}"))
    }

    fn quantize(&mut self, count: u32, rows: u32, cols: u32, linear: Linear) -> Result<()> {
        let Some(input) = linear.input else { return Ok(()) };
        let dtype = self.dtype;
        self.push(count, "input of a product", format!("quantize {rows}x{cols} {dtype}:{input}"))
    }
}

impl Model {
    /// One step of `phase`, its linear layers stored as `linear` says instead of as published.
    ///
    /// # Errors
    /// A problem that makes no sense, with its text: a format that does not suit the model's sizes.
    pub(crate) fn section(&self, phase: Phase, linear: Option<Linear>) -> Result<Section> {
        let mut step = Step { phase, rows: phase.rows(), dtype: self.dtype, lines: Vec::new() };
        let linear = linear.unwrap_or(self.linear);
        let (rows, hidden, vocab, dtype) = (step.rows, self.hidden, self.vocab, self.dtype);
        step.push(1, "embedding", format!("gather {rows}x{hidden} {dtype}:{dtype} from={vocab}"))?;
        self.norms(&mut step)?;
        self.attend(&mut step, linear)?;
        self.feed_forward(&mut step, linear)?;
        // Only the last token of each sequence is asked what comes next; an encoder's first token is pooled.
        let (batch, _, _) = phase.extent();
        if self.decodes() {
            step.push(1, "logits", format!("gemm 1x{batch}x{vocab}x{hidden} {dtype}:{dtype}:f32 b=col"))?;
            step.push(1, "probabilities", format!("softmax {batch}x{vocab} f32:f32"))?;
        } else {
            let pooled =
                format!("gemm 1x{batch}x{hidden}x{hidden} {dtype}:{dtype}:{dtype} b=col bias={dtype} act=tanh");
            step.push(1, "pooler", pooled)?;
        }
        Ok(Section { title: phase.to_string(), lines: step.lines })
    }

    /// The norms before attention, before the feed-forward and at the end; each adds the residual.
    fn norms(&self, step: &mut Step) -> Result<()> {
        let (rows, hidden, dtype) = (step.rows, self.hidden, self.dtype);
        let (kind, eps) = (self.norm.kind, self.norm.eps);
        let bias = if self.norm.bias { format!(" bias={dtype}") } else { String::new() };
        let norm = format!("norm {rows}x{hidden} {dtype}:{dtype} kind={kind} eps={eps} weight={dtype}{bias}");
        step.push(1, "first norm", &norm)?;
        step.push(2 * self.layers, "norm of a layer", format!("{norm} residual"))
    }
}

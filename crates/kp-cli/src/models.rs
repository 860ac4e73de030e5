//! Real models as data: the numbers of their public configurations, and the problems one step of each asks for.

mod attention;
mod ffn;
mod steps;
mod table;

pub(crate) use steps::Section;
pub(crate) use table::{MODELS, WEIGHTS};

use anyhow::{Result, bail};

/// A transformer, as far as its kernels' shapes depend on it.
pub(crate) struct Model {
    /// The name on the command line, and of its suite.
    pub(crate) name: &'static str,
    /// The configuration's own numbers, for the head of the suite.
    config: &'static str,
    /// What its kernels differ in from those of its framework, if in anything.
    note: &'static str,
    /// Numbers of a token between layers.
    hidden: u32,
    /// Blocks of attention and feed-forward.
    layers: u32,
    /// Rows of the embedding table.
    vocab: u32,
    /// Longest sequence.
    positions: u32,
    /// Type of activations and of weights that have no format of their own.
    dtype: &'static str,
    /// Weights of the linear layers, unless the command line says otherwise.
    linear: Linear,
    norm: Norm,
    attention: Attention,
    ffn: Ffn,
}

/// How the weights of linear layers are stored, as a problem spells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Linear {
    /// Format of the weight: `bf16`, `e4m3@128x128`, `i4@g128/f16z`.
    pub(crate) weight: &'static str,
    /// Format that activations are quantized to before the product, if they are.
    pub(crate) input: Option<&'static str>,
}

/// The norms between layers.
struct Norm {
    kind: &'static str,
    eps: &'static str,
    bias: bool,
}

enum Attention {
    /// Heads of queries share heads of keys.
    Heads {
        heads: u32,
        kv_heads: u32,
        dim: u32,
        /// Whether the projections add a bias.
        bias: bool,
        /// Whether heads of Q and K are normalized.
        qk_norm: bool,
        /// Whether positions are turned into Q and K; else they are learned and added to the embedding.
        rope: bool,
        /// Tokens a query of every other layer sees, itself among them.
        window: Option<u32>,
        /// Whether each head has a sink.
        sinks: bool,
    },
    /// Keys and values are read from one latent vector per token.
    Latent { heads: u32, q_rank: u32, kv_rank: u32, nope: u32, rope: u32, v: u32, scale: &'static str },
}

enum Ffn {
    /// Up, activation, down.
    Plain { inner: u32, act: &'static str },
    /// Gate and up in one product, silu, down.
    Gated { inner: u32 },
    /// A router picks `top` of `experts`, each gated.
    Experts {
        experts: u32,
        top: u32,
        inner: u32,
        /// Expert of all tokens, and how wide it is.
        shared: Option<u32>,
        /// The first layers that have an ordinary feed-forward, and how wide it is.
        dense: (u32, u32),
        /// Format of the experts' weights, if not that of the other layers.
        weight: Option<Linear>,
        bias: bool,
        gate: &'static str,
    },
}

/// What a model is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Each of `batch` sequences gets one token more, after `context` of them.
    Decode {
        /// Sequences.
        batch: u32,
        /// Tokens of each, the new one among them.
        context: u32,
    },
    /// `batch` sequences of `tokens` tokens are read from nothing.
    Prefill {
        /// Sequences.
        batch: u32,
        /// Tokens of each.
        tokens: u32,
    },
}

impl Phase {
    /// Rows of the linear layers.
    fn rows(self) -> u32 {
        match self {
            Self::Decode { batch, .. } => batch,
            Self::Prefill { batch, tokens } => batch.saturating_mul(tokens),
        }
    }

    /// Sequences, their queries and their keys.
    fn extent(self) -> (u32, u32, u32) {
        match self {
            Self::Decode { batch, context } => (batch, 1, context),
            Self::Prefill { batch, tokens } => (batch, tokens, tokens),
        }
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (batch, tokens) = match *self {
            Self::Decode { batch, context } => (batch, context),
            Self::Prefill { batch, tokens } => (batch, tokens),
        };
        let sequences = if batch == 1 { "1 sequence".to_owned() } else { format!("{batch} sequences") };
        match self {
            Self::Decode { .. } => write!(f, "decode: {sequences} at context {tokens}"),
            Self::Prefill { .. } => write!(f, "prefill: {sequences} of {tokens} tokens"),
        }
    }
}

impl Model {
    /// The model called `name`.
    ///
    /// # Errors
    /// The names there are.
    pub(crate) fn named(name: &str) -> Result<&'static Self> {
        match MODELS.iter().find(|model| model.name == name) {
            Some(model) => Ok(model),
            None => {
                let names: Vec<&str> = MODELS.iter().map(|model| model.name).collect();
                bail!(crate::usage(format!("model must be one of {}, got `{name}`", names.join(", "))))
            }
        }
    }

    /// Whether it makes one token after another.
    pub(crate) fn decodes(&self) -> bool {
        !matches!(self.ffn, Ffn::Plain { .. })
    }

    /// The longest sequence it reads.
    pub(crate) fn positions(&self) -> u32 {
        self.positions
    }

    /// What its suite holds: decoders at batch 1, 8 and 64 and prefills of 512 and 4096 tokens, encoders as many
    /// sequences of 128 tokens and the same prefills, cut at the longest sequence.
    pub(crate) fn phases(&self) -> Vec<Phase> {
        let batches = [1, 8, 64].map(|batch| match self.decodes() {
            true => Phase::Decode { batch, context: CONTEXT },
            false => Phase::Prefill { batch, tokens: 128 },
        });
        batches.into_iter().chain(PREFILLS.map(|tokens| self.prefill(tokens))).collect()
    }

    /// A prefill of so many tokens, in sequences as long as the model reads.
    pub(crate) fn prefill(&self, tokens: u32) -> Phase {
        let longest = tokens.min(self.positions).max(1);
        Phase::Prefill { batch: tokens.div_ceil(longest), tokens: longest }
    }

    /// What its suite says first: the configuration, and who made the file.
    pub(crate) fn head(&self) -> String {
        let head = format!("{}: {}\n{}\n{MADE}", self.name, self.config, self.note);
        head.lines().filter(|line| !line.is_empty()).map(commented).collect()
    }
}

const MADE: &str = "`N×` says how often one step of the model runs the line. Made by kp-cli's models.rs; \
                    KP_BLESS=1 cargo test -p kp-cli writes it again.";

/// `text` as comments of at most 120 columns.
fn commented(text: &str) -> String {
    let (mut out, mut width) = (String::from("#"), 1);
    for word in text.split_whitespace() {
        let chars = word.chars().count() + 1;
        if width + chars > 120 {
            out.push_str("\n#");
            width = 1;
        }
        out.push(' ');
        out.push_str(word);
        width += chars;
    }
    out.push('\n');
    out
}

/// Tokens of the sequences that the suites decode.
pub(crate) const CONTEXT: u32 = 4096;
/// Tokens of the suites' prefills.
pub(crate) const PREFILLS: [u32; 2] = [512, 4096];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_makes_problems_that_parse() {
        for model in MODELS {
            for phase in model.phases() {
                let section = model.section(phase, None).unwrap_or_else(|e| panic!("{}: {phase}: {e:#}", model.name));
                assert!(section.lines.len() >= 6, "{}: {phase}: {} lines", model.name, section.lines.len());
            }
        }
    }

    #[test]
    fn every_weight_format_suits_a_dense_model() {
        let model = Model::named("llama-3-8b").expect("it is in the table");
        for (name, linear) in WEIGHTS {
            let section = model.section(Phase::Decode { batch: 8, context: 64 }, Some(*linear));
            assert!(section.is_ok(), "{name}: {section:?}");
        }
    }

    /// Published counts of the parameters that a token meets, embeddings left out: a wrong number in the table shows.
    #[test]
    fn the_linear_layers_have_the_published_number_of_weights() {
        for (name, billions) in [
            ("llama-3-8b", 7.5),
            ("llama-3-70b", 69.5),
            ("bert-base", 0.086),
            ("qwen3-30b-a3b", 3.0),
            ("gpt-oss-20b", 3.6),
            ("deepseek-v3", 37.0),
        ] {
            let model = Model::named(name).expect("it is in the table");
            // A token costs two operations a weight it meets, where attention sees nothing but itself.
            let phase = if model.decodes() {
                Phase::Decode { batch: 1, context: 1 }
            } else {
                Phase::Prefill { batch: 1, tokens: 1 }
            };
            let section = model.section(phase, None).unwrap_or_else(|e| panic!("{name}: {e:#}"));
            let products = section.lines.iter().filter(|line| line.text.contains("gemm"));
            let weights = products
                .map(|line| f64::from(line.count) * crate::suites::facts(&line.problem).flops / 2e9)
                .sum::<f64>();
            assert!((weights / billions - 1.0).abs() < 0.03, "{name}: {weights} billion, published {billions}");
        }
    }

    #[test]
    fn a_name_that_is_none_lists_those_there_are() {
        let error = Model::named("llama").err().expect("no such model").to_string();
        assert!(error.contains("llama-3-8b") && error.contains("got `llama`"), "{error}");
    }
}

//! BERT with 6 layers, mean pooling and unit length.
//!
//! Sentences of different lengths are packed one behind the other, without padding: products and norms see one
//! matrix of all tokens, attention sees where each sentence begins.
//!
//! Weights of 4 bits are rounded with the inputs in view that sentences of `calibration.txt` bring about
//! ([`Tensor::quantize_for`]), layer by layer: each sees what the rounded layers before it make.

use anyhow::{Context, bail};
use kp_core::{
    Engine, Tensor,
    calibrate::Rounded,
    tensor::{Attend, Epilogue, How, Norm, Over, Sequences, Weights, formats},
};
use kp_hal::{
    DType,
    op::{Act, Format, NormKind, Scheme},
};
use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};
use tokenizers::{Tokenizer, TruncationParams};

const LAYERS: usize = 6;
const HEADS: usize = 12;
/// Numbers of a token.
const HIDDEN: usize = 384;
/// Tokens of a sentence that are looked at.
const MAX_TOKENS: usize = 256;
const EPS: f32 = 1e-12;
/// The format of [`Precision::Int4`].
const INT4: Format = Format::new(DType::U4, Scheme::Group { inner: 16, scale: DType::F16, zero: true });
/// One sentence a line; none of them is judged.
const CALIBRATION: &str = include_str!("../calibration.txt");

/// What the matrices of the layers are stored as. Activations, norms and the table of words are f32, but bf16 in
/// [`Precision::Bf16`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// As they come.
    F32,
    /// Everything in bf16.
    Bf16,
    /// 8-bit integers, one f32 per row.
    Int8,
    /// 4-bit integers, an f16 scale and an 8-bit zero point per 16 numbers: 5.5 bits a number.
    Int4,
    /// Any format that can be quantized to.
    Other(Format),
}

impl Precision {
    /// Those that have a name and a bar, most exact first.
    pub const ALL: [Self; 4] = [Self::F32, Self::Bf16, Self::Int8, Self::Int4];

    /// Type of activations.
    fn activations(self) -> DType {
        if self == Self::Bf16 { DType::Bf16 } else { DType::F32 }
    }

    /// What a matrix is quantized to, if it is.
    fn matrices(self) -> Option<Format> {
        match self {
            Self::F32 | Self::Bf16 => None,
            Self::Int8 => Some(formats::INT8_ROW),
            Self::Int4 => Some(INT4),
            Self::Other(format) => Some(format),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32 => f.pad("f32"),
            Self::Bf16 => f.pad("bf16"),
            Self::Int8 => f.pad("int8"),
            Self::Int4 => f.pad("int4"),
            Self::Other(format) => f.pad(&format.to_string()),
        }
    }
}

impl FromStr for Precision {
    type Err = String;
    /// # Errors
    /// What may be written.
    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|precision| precision.to_string() == text);
        let format = || text.parse().ok().filter(|format: &Format| format.scale_dtype().is_some()).map(Self::Other);
        named.or_else(format).ok_or_else(|| {
            "expected f32, bf16, int8, int4 or a format with scales, such as e2m1@nv or i4@g32/f16".to_owned()
        })
    }
}

/// The model on one device, in one precision.
pub struct MiniLm {
    engine: Engine,
    tokenizer: Tokenizer,
    words: Tensor,
    /// Positions, each plus the one token type there is.
    positions: Tensor,
    norm: Affine,
    layers: Vec<Layer>,
}

struct Layer {
    qkv: Affine,
    attended: Affine,
    attended_norm: Affine,
    wide: Affine,
    narrow: Affine,
    narrow_norm: Affine,
}

/// A weight and a bias: of a product (rows are outputs) or of a norm.
struct Affine {
    weight: Tensor,
    bias: Tensor,
}

/// Tokens of sentences one behind the other, and where each sentence begins.
struct Packed {
    x: Tensor,
    sequences: Sequences,
}

/// Embeddings, one row per sentence, and how many tokens they took.
pub struct Embedded {
    /// Sentences × 384, f32, each row of length 1.
    pub rows: Tensor,
    /// The kernel of the last layer's last product.
    pub product: String,
    /// Tokens of all sentences.
    pub tokens: usize,
}

/// Where `cargo xtask model minilm` puts the model.
pub fn default_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/models/minilm")
}

/// The files that are not in `dir`.
pub fn missing(dir: &Path) -> Vec<&'static str> {
    [WEIGHTS, TOKENIZER].into_iter().filter(|file| !dir.join(file).is_file()).collect()
}

const WEIGHTS: &str = "model.safetensors";
const TOKENIZER: &str = "tokenizer.json";

impl MiniLm {
    /// Reads the model from `dir`.
    ///
    /// # Errors
    /// Which files are missing and the command that brings them; what the device refuses.
    pub fn open(engine: &Engine, dir: &Path, precision: Precision) -> anyhow::Result<Self> {
        let absent = missing(dir);
        if !absent.is_empty() {
            bail!("{} is not in {}; this brings it: cargo xtask model minilm", absent.join(" and "), dir.display());
        }
        let mut tokenizer =
            Tokenizer::from_file(dir.join(TOKENIZER)).map_err(|e| anyhow::anyhow!("cannot read {TOKENIZER}: {e}"))?;
        let truncation = TruncationParams { max_length: MAX_TOKENS, ..TruncationParams::default() };
        tokenizer.with_truncation(Some(truncation)).map_err(|e| anyhow::anyhow!("cannot truncate: {e}"))?;
        tokenizer.with_padding(None);
        let weights = engine.load(dir.join(WEIGHTS)).context("cannot load the weights")?;
        let calibrated = precision.matrices().filter(|format| format.dtype.bits() <= 4);
        let read = Reader { weights: &weights, precision, calibrated: calibrated.is_some() };

        let positions = read.plain("embeddings.position_embeddings.weight")?;
        let first_type = engine.zeros(&[positions.shape()[0]], DType::I32)?;
        let types = read.plain("embeddings.token_type_embeddings.weight")?.gather(&first_type)?;
        let mut model = Self {
            words: read.plain("embeddings.word_embeddings.weight")?,
            positions: positions.add(&types)?,
            norm: read.norm("embeddings.LayerNorm")?,
            layers: (0..LAYERS).map(|i| read.layer(i)).collect::<anyhow::Result<_>>()?,
            engine: engine.clone(),
            tokenizer,
        };
        if let Some(format) = calibrated {
            model.round(format, &CALIBRATION.lines().collect::<Vec<_>>()).context("cannot round the weights")?;
        }
        Ok(model)
    }

    /// Rounds the matrices to `format` with what the sentences bring about in view.
    fn round(&mut self, format: Format, sentences: &[&str]) -> anyhow::Result<()> {
        let Packed { mut x, sequences } = self.look_up(sentences)?;
        for layer in &mut self.layers {
            layer.qkv.round(format, &x)?;
            let seen = layer.attend(&x, &sequences)?;
            layer.attended.round(format, &seen)?;
            let attended = layer.join(&x, &seen)?;
            layer.wide.round(format, &attended)?;
            let wide = layer.widen(&attended)?;
            layer.narrow.round(format, &wide)?;
            x = layer.narrow(&attended, &wide)?.0;
        }
        Ok(())
    }

    /// Token ids of a sentence, `[CLS]` and `[SEP]` included.
    ///
    /// # Errors
    /// What the tokenizer refuses.
    pub fn tokens(&self, sentence: &str) -> anyhow::Result<Vec<u32>> {
        let encoded = self.tokenizer.encode(sentence, true).map_err(|e| anyhow::anyhow!("cannot tokenize: {e}"))?;
        Ok(encoded.get_ids().to_vec())
    }

    /// The embeddings of `sentences`, all at once.
    ///
    /// # Errors
    /// What the tokenizer or the device refuses.
    pub fn embed(&self, sentences: &[impl AsRef<str>]) -> anyhow::Result<Embedded> {
        let Packed { mut x, sequences } = self.look_up(sentences)?;
        let mut product = String::new();
        for layer in &self.layers {
            let seen = layer.attend(&x, &sequences)?;
            let attended = layer.join(&x, &seen)?;
            let wide = layer.widen(&attended)?;
            let how;
            (x, how) = layer.narrow(&attended, &wide)?;
            product = how.to_string();
        }
        let rows = x.cast(DType::F32)?.mean(Over::Segments(&sequences))?.l2_normalize(EPS)?;
        Ok(Embedded { rows, product, tokens: sequences.total() })
    }

    /// What the first layer sees of `sentences`.
    fn look_up(&self, sentences: &[impl AsRef<str>]) -> anyhow::Result<Packed> {
        let ids: Vec<Vec<u32>> = sentences.iter().map(|s| self.tokens(s.as_ref())).collect::<anyhow::Result<_>>()?;
        let lens: Vec<usize> = ids.iter().map(Vec::len).collect();
        let words: Vec<i32> = ids.iter().flatten().map(|&id| id as i32).collect();
        let places: Vec<i32> = lens.iter().flat_map(|&len| 0..len as i32).collect();
        let tokens = words.len();
        let words = self.words.gather(&self.engine.tensor(&[tokens], &words)?)?;
        let places = self.positions.gather(&self.engine.tensor(&[tokens], &places)?)?;
        let (x, _) = words.add_norm(&places, self.norm.as_norm())?;
        Ok(Packed { x, sequences: Sequences::new(&self.engine, &lens)? })
    }
}

impl Layer {
    /// What each token gathers from those of its sentence.
    fn attend(&self, x: &Tensor, sequences: &Sequences) -> kp_hal::Result<Tensor> {
        let tokens = x.shape()[0];
        let qkv = self.qkv.times(x, Epilogue::default())?;
        let head = |i: usize| qkv.slice_cols(i * HIDDEN..(i + 1) * HIDDEN)?.reshape(&[tokens, HEADS, HIDDEN / HEADS]);
        let options = Attend { queries: Some(sequences), ..Attend::default() };
        head(0)?.attention(&head(1)?, &head(2)?, &options)?.reshape(&[tokens, HIDDEN])
    }

    /// Adds that to the tokens.
    fn join(&self, x: &Tensor, seen: &Tensor) -> kp_hal::Result<Tensor> {
        let attended = self.attended.times(seen, Epilogue { residual: Some(x), ..Epilogue::default() })?;
        attended.norm(self.attended_norm.as_norm())
    }

    fn widen(&self, attended: &Tensor) -> kp_hal::Result<Tensor> {
        self.wide.times(attended, Epilogue { act: Act::Gelu, ..Epilogue::default() })
    }

    /// What the next layer sees, and how its last product came to be.
    fn narrow(&self, attended: &Tensor, wide: &Tensor) -> kp_hal::Result<(Tensor, How)> {
        let narrow = self.narrow.times(wide, Epilogue { residual: Some(attended), ..Epilogue::default() })?;
        Ok((narrow.norm(self.narrow_norm.as_norm())?, narrow.how()))
    }
}

impl Affine {
    /// `x · weightᵀ + bias`, and what follows.
    fn times(&self, x: &Tensor, epilogue: Epilogue<'_>) -> kp_hal::Result<Tensor> {
        x.matmul_with(&self.weight.t(), Epilogue { bias: Some(&self.bias), ..epilogue })
    }

    /// The weight in codes; the bias makes up for the mean of what that loses.
    fn round(&mut self, format: Format, inputs: &Tensor) -> kp_hal::Result<()> {
        let Rounded { weight, shift } = self.weight.quantize_for(format, inputs)?;
        *self = Self { weight, bias: self.bias.add(&shift)? };
        Ok(())
    }

    fn as_norm(&self) -> Norm<'_> {
        Norm { kind: NormKind::Layer, eps: EPS, weight: Some(&self.weight), bias: Some(&self.bias) }
    }
}

/// Takes weights out of the file in the precision wanted.
struct Reader<'w> {
    weights: &'w Weights,
    precision: Precision,
    /// Whether matrices are rounded later, once their inputs are known.
    calibrated: bool,
}

impl Reader<'_> {
    fn plain(&self, name: &str) -> anyhow::Result<Tensor> {
        Ok(self.weights.get(name)?.cast(self.precision.activations())?)
    }

    fn norm(&self, name: &str) -> anyhow::Result<Affine> {
        Ok(Affine { weight: self.plain(&format!("{name}.weight"))?, bias: self.plain(&format!("{name}.bias"))? })
    }

    /// Several products of one input as one.
    fn product(&self, names: &[String]) -> anyhow::Result<Affine> {
        let parts = |what: &str| -> anyhow::Result<Tensor> {
            let parts: Vec<Tensor> =
                names.iter().map(|name| self.weights.get(&format!("{name}.{what}"))).collect::<kp_hal::Result<_>>()?;
            Ok(Tensor::cat(&parts.iter().collect::<Vec<_>>())?)
        };
        let weight = parts("weight")?;
        let weight = match self.precision.matrices() {
            Some(format) if !self.calibrated => weight.quantize(format)?,
            _ => weight.cast(self.precision.activations())?,
        };
        Ok(Affine { weight, bias: parts("bias")?.cast(self.precision.activations())? })
    }

    fn layer(&self, index: usize) -> anyhow::Result<Layer> {
        let name = |part: &str| format!("encoder.layer.{index}.{part}");
        let one = |part: &str| self.product(&[name(part)]);
        Ok(Layer {
            qkv: self.product(&["query", "key", "value"].map(|part| name(&format!("attention.self.{part}"))))?,
            attended: one("attention.output.dense")?,
            attended_norm: self.norm(&name("attention.output.LayerNorm"))?,
            wide: one("intermediate.dense")?,
            narrow: one("output.dense")?,
            narrow_norm: self.norm(&name("output.LayerNorm"))?,
        })
    }
}

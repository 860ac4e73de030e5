//! BERT with 6 layers, mean pooling and unit length.
//!
//! Sentences of different lengths are packed one behind the other, without padding: products and norms see one
//! matrix of all tokens, attention sees where each sentence begins.
//!
//! Weights of 4 bits are rounded with the inputs in view that sentences of `calibration.txt` bring about
//! ([`Tensor::quantize_for`]), layer by layer: each sees what the rounded layers before it make.

use anyhow::{Context, bail, ensure};
use kp_core::{
    Engine, Tensor,
    calibrate::Rounded,
    tensor::{Attend, Epilogue, How, Norm, Over, Packed, Sequences, Weights, formats},
};
use kp_hal::{
    DType,
    op::{Acc, Act, Format, NormKind, Scheme},
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
    /// The same, and so is what each product takes in, row by row.
    W8A8,
    /// As [`Precision::Int8`], and a product may round what it takes in to bytes on the way ([`Acc::F32Q8`]).
    Int8Q8,
    /// 4-bit integers, an f16 scale and an 8-bit zero point per 16 numbers: 5.5 bits a number.
    Int4,
    /// Any format that can be quantized to.
    Other(Format),
}

impl Precision {
    /// Those that have a name and a bar, most exact first.
    pub const ALL: [Self; 6] = [Self::F32, Self::Bf16, Self::Int8, Self::Int8Q8, Self::W8A8, Self::Int4];

    /// Type of activations.
    fn activations(self) -> DType {
        if self == Self::Bf16 { DType::Bf16 } else { DType::F32 }
    }

    /// What a matrix is quantized to, if it is.
    fn matrices(self) -> Option<Format> {
        match self {
            Self::F32 | Self::Bf16 => None,
            Self::Int8 | Self::Int8Q8 | Self::W8A8 => Some(formats::INT8_ROW),
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
            Self::Int8Q8 => f.pad("int8q8"),
            Self::W8A8 => f.pad("w8a8"),
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
            "expected f32, bf16, int8, int8q8, w8a8, int4 or a format with scales, such as e2m1@nv or i4@g32/f16"
                .to_owned()
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
    qkv: Dense,
    attended: Dense,
    attended_norm: Affine,
    wide: Dense,
    narrow: Dense,
    narrow_norm: Affine,
}

/// A product with a constant matrix, whose rows are outputs, and a bias.
struct Dense {
    right: Packed,
    bias: Tensor,
    /// What its input is quantized to, if it is.
    input: Option<Format>,
    /// What sums are kept in, if not in the usual.
    acc: Option<Acc>,
}

/// A weight and a bias of a norm.
struct Affine {
    weight: Tensor,
    bias: Tensor,
}

/// Tokens of sentences one behind the other, and where each sentence begins.
struct Tokens {
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

/// One more than the largest id that the tokenizer gives.
fn ids_of(tokenizer: &Tokenizer) -> usize {
    tokenizer.get_vocab(true).into_values().max().map_or(0, |largest| largest as usize + 1)
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
        let read = Reader { weights: &weights, precision };

        let words = read.table("embeddings.word_embeddings.weight")?;
        let (ids, rows) = (ids_of(&tokenizer), words.shape()[0]);
        ensure!(ids <= rows, "{TOKENIZER} has {ids} words and {WEIGHTS} {rows}: they are of two models");
        let positions = read.table("embeddings.position_embeddings.weight")?;
        let first_type = engine.zeros(&[positions.shape()[0]], DType::I32)?;
        let types = read.table("embeddings.token_type_embeddings.weight")?.gather(&first_type)?;
        let mut model = Self {
            words,
            positions: positions.add(&types)?,
            norm: read.norm("embeddings.LayerNorm")?,
            layers: Vec::new(),
            engine: engine.clone(),
            tokenizer,
        };
        model.layers = match precision.matrices().filter(|format| format.dtype.bits() <= 4) {
            None => (0..LAYERS).map(|i| read.layer(i)).collect::<anyhow::Result<_>>()?,
            Some(format) => {
                let Tokens { x, sequences } = model.look_up(&CALIBRATION.lines().collect::<Vec<_>>())?;
                read.rounded_layers(format, x, &sequences).context("cannot round the weights")?
            }
        };
        Ok(model)
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
        let Tokens { mut x, sequences } = self.look_up(sentences)?;
        let mut product = String::new();
        for layer in &self.layers {
            let seen = layer.qkv.attend(&x, &sequences)?;
            let attended = layer.attended.add_norm(&seen, &x, &layer.attended_norm)?.0;
            let wide = layer.wide.gelu(&attended, layer.narrow.input)?;
            let how;
            (x, how) = layer.narrow.add_norm(&wide, &attended, &layer.narrow_norm)?;
            product = how.to_string();
        }
        let rows = x.cast(DType::F32)?.mean(Over::Segments(&sequences))?.l2_normalize(EPS)?;
        Ok(Embedded { rows, product, tokens: sequences.total() })
    }

    /// What the first layer sees of `sentences`.
    fn look_up(&self, sentences: &[impl AsRef<str>]) -> anyhow::Result<Tokens> {
        let ids: Vec<Vec<u32>> = sentences.iter().map(|s| self.tokens(s.as_ref())).collect::<anyhow::Result<_>>()?;
        let lens: Vec<usize> = ids.iter().map(Vec::len).collect();
        let words: Vec<i32> = ids.iter().flatten().map(|&id| id as i32).collect();
        let places: Vec<i32> = lens.iter().flat_map(|&len| 0..len as i32).collect();
        let tokens = words.len();
        let words = self.words.gather(&self.engine.tensor(&[tokens], &words)?)?;
        let places = self.positions.gather(&self.engine.tensor(&[tokens], &places)?)?;
        let (x, _) = words.add_norm(&places, self.norm.as_norm())?;
        Ok(Tokens { x, sequences: Sequences::new(&self.engine, &lens)? })
    }
}

impl Dense {
    fn new(weight: &Tensor, bias: Tensor, precision: Precision) -> anyhow::Result<Self> {
        let input = (precision == Precision::W8A8).then_some(formats::INT8_ROW);
        let acc = (precision == Precision::Int8Q8).then_some(Acc::F32Q8);
        let left = input.map_or(bias.dtype(), |input| input.dtype);
        Ok(Self { right: weight.t().pack(left)?, bias, input, acc })
    }

    /// `x · weightᵀ + bias`, and what follows.
    fn times(&self, x: &Tensor, epilogue: Epilogue<'_>) -> kp_hal::Result<Tensor> {
        // What made it may have quantized it already.
        let codes = self.input.filter(|&input| x.format() != input).map(|input| x.quantize(input)).transpose()?;
        codes
            .as_ref()
            .unwrap_or(x)
            .matmul_with(&self.right, Epilogue { bias: Some(&self.bias), acc: self.acc, ..epilogue })
    }

    /// What each token gathers from those of its sentence, where this makes queries, keys and values.
    fn attend(&self, x: &Tensor, sequences: &Sequences) -> kp_hal::Result<Tensor> {
        let tokens = x.shape()[0];
        let qkv = self.times(x, Epilogue::default())?;
        let head = |i: usize| qkv.slice_cols(i * HIDDEN..(i + 1) * HIDDEN)?.reshape(&[tokens, HEADS, HIDDEN / HEADS]);
        let options = Attend { queries: Some(sequences), ..Attend::default() };
        head(0)?.attention(&head(1)?, &head(2)?, &options)?.reshape(&[tokens, HIDDEN])
    }

    /// The same, activated, and quantized to `out` as it is stored, if to anything.
    fn gelu(&self, x: &Tensor, out: Option<Format>) -> kp_hal::Result<Tensor> {
        self.times(x, Epilogue { act: Act::Gelu, out, ..Epilogue::default() })
    }

    /// Adds what it makes of `x` to the tokens, normalized, and tells how its product came to be.
    fn add_norm(&self, x: &Tensor, tokens: &Tensor, norm: &Affine) -> kp_hal::Result<(Tensor, How)> {
        let sum = self.times(x, Epilogue { residual: Some(tokens), ..Epilogue::default() })?;
        Ok((sum.norm(norm.as_norm())?, sum.how()))
    }
}

impl Affine {
    fn as_norm(&self) -> Norm<'_> {
        Norm { kind: NormKind::Layer, eps: EPS, weight: Some(&self.weight), bias: Some(&self.bias) }
    }
}

/// Takes weights out of the file in the precision wanted.
struct Reader<'w> {
    weights: &'w Weights,
    precision: Precision,
}

impl Reader<'_> {
    fn plain(&self, name: &str) -> anyhow::Result<Tensor> {
        Ok(self.weights.get(name)?.cast(self.precision.activations())?)
    }

    /// A table of tokens' numbers, a row for each.
    fn table(&self, name: &str) -> anyhow::Result<Tensor> {
        let table = self.plain(name)?;
        let shape = table.shape();
        ensure!(matches!(shape, [_, HIDDEN]), "{name} must be of rows of {HIDDEN} numbers, its shape is {shape:?}");
        Ok(table)
    }

    fn norm(&self, name: &str) -> anyhow::Result<Affine> {
        Ok(Affine { weight: self.plain(&format!("{name}.weight"))?, bias: self.plain(&format!("{name}.bias"))? })
    }

    /// A part of all matrices of those names, one below the other.
    fn joined(&self, names: &[String], part: &str) -> anyhow::Result<Tensor> {
        let parts = names.iter().map(|name| self.weights.get(&format!("{name}.{part}")));
        let parts: Vec<Tensor> = parts.collect::<kp_hal::Result<_>>()?;
        Ok(Tensor::cat(&parts.iter().collect::<Vec<_>>())?)
    }

    /// Several products of one input as one.
    fn dense(&self, names: &[String]) -> anyhow::Result<Dense> {
        let weight = self.joined(names, "weight")?;
        let weight = match self.precision.matrices() {
            Some(format) => weight.quantize(format)?,
            None => weight.cast(self.precision.activations())?,
        };
        let bias = self.joined(names, "bias")?.cast(self.precision.activations())?;
        Dense::new(&weight, bias, self.precision)
    }

    /// The same with codes chosen in view of `inputs`; the bias makes up for the mean of what they lose.
    fn rounded(&self, names: &[String], format: Format, inputs: &Tensor) -> anyhow::Result<Dense> {
        let Rounded { weight, shift } = self.joined(names, "weight")?.quantize_for(format, inputs)?;
        Dense::new(&weight, self.joined(names, "bias")?.add(&shift)?, self.precision)
    }

    fn layer(&self, index: usize) -> anyhow::Result<Layer> {
        let [qkv, attended, wide, narrow] = names(index);
        let [attended_norm, narrow_norm] = self.norms(index)?;
        let dense = |names: &[String]| self.dense(names);
        Ok(Layer {
            qkv: dense(&qkv)?,
            attended: dense(&attended)?,
            attended_norm,
            wide: dense(&wide)?,
            narrow: dense(&narrow)?,
            narrow_norm,
        })
    }

    /// Layers in codes of `format`, for the tokens `x` of some sentences.
    fn rounded_layers(&self, format: Format, mut x: Tensor, sequences: &Sequences) -> anyhow::Result<Vec<Layer>> {
        let mut layers = Vec::new();
        for index in 0..LAYERS {
            let [qkv, attended, wide, narrow] = names(index);
            let [attended_norm, narrow_norm] = self.norms(index)?;
            let qkv = self.rounded(&qkv, format, &x)?;
            let seen = qkv.attend(&x, sequences)?;
            let attended = self.rounded(&attended, format, &seen)?;
            let tokens = attended.add_norm(&seen, &x, &attended_norm)?.0;
            let wide = self.rounded(&wide, format, &tokens)?;
            let bent = wide.gelu(&tokens, None)?;
            let narrow = self.rounded(&narrow, format, &bent)?;
            x = narrow.add_norm(&bent, &tokens, &narrow_norm)?.0;
            layers.push(Layer { qkv, attended, attended_norm, wide, narrow, narrow_norm });
        }
        Ok(layers)
    }

    fn norms(&self, index: usize) -> anyhow::Result<[Affine; 2]> {
        let norm = |part: &str| self.norm(&format!("encoder.layer.{index}.{part}.LayerNorm"));
        Ok([norm("attention.output")?, norm("output")?])
    }
}

/// What the file calls the four matrices of a layer, the first of which it has in three parts.
fn names(layer: usize) -> [Vec<String>; 4] {
    let name = |part: &str| format!("encoder.layer.{layer}.{part}");
    [
        ["query", "key", "value"].map(|part| name(&format!("attention.self.{part}"))).to_vec(),
        vec![name("attention.output.dense")],
        vec![name("intermediate.dense")],
        vec![name("output.dense")],
    ]
}

//! The models: every number is that of the model's published configuration.

use super::{Attention, Ffn, Linear, Model, Norm};

const BF16: Linear = Linear { weight: "bf16", input: None };
const RMS_5: Norm = Norm { kind: "rms", eps: "1e-5", bias: false };
const RMS_6: Norm = Norm { kind: "rms", eps: "1e-6", bias: false };

/// Grouped-query attention with rotated positions and nothing else, as Llama has it.
const fn heads(heads: u32, kv_heads: u32, dim: u32) -> Attention {
    Attention::Heads { heads, kv_heads, dim, bias: false, qk_norm: false, rope: true, window: None, sinks: false }
}

/// Every model that `--model` knows.
pub(crate) const MODELS: &[Model] = &[
    Model {
        name: "llama-3-8b",
        config: "hidden 4096, 32 layers, 32 heads, 8 kv heads, head 128, ffn 14336, vocab 128256, bf16",
        note: "",
        hidden: 4096,
        layers: 32,
        vocab: 128_256,
        positions: 8192,
        dtype: "bf16",
        linear: BF16,
        norm: RMS_5,
        attention: heads(32, 8, 128),
        ffn: Ffn::Gated { inner: 14336 },
    },
    Model {
        name: "llama-3-70b",
        config: "hidden 8192, 80 layers, 64 heads, 8 kv heads, head 128, ffn 28672, vocab 128256, bf16",
        note: "",
        hidden: 8192,
        layers: 80,
        vocab: 128_256,
        positions: 8192,
        dtype: "bf16",
        linear: BF16,
        norm: RMS_5,
        attention: heads(64, 8, 128),
        ffn: Ffn::Gated { inner: 28672 },
    },
    Model {
        name: "deepseek-v3",
        config: "hidden 7168, 61 layers (3 dense, ffn 18432), 128 heads, q rank 1536, kv rank 512, head 128 + 64 rope, v 128, \
                 256 experts of 2048, 8 per token, 1 shared, vocab 129280, e4m3 weights in blocks of 128x128",
        note: "Decode absorbs the key and value projections into Q and O: one head of keys, 576 wide, whose first 512 numbers are \
               the values (K and V are two operands here, one in a server). Experts without a token are left out: groups = \
               min(256, 8 x tokens).",
        hidden: 7168,
        layers: 61,
        vocab: 129_280,
        positions: 163_840,
        dtype: "bf16",
        linear: FP8_BLOCKS,
        norm: RMS_6,
        // 192^-0.5 times the square of YaRN's 0.1 · ln 40 + 1.
        attention: Attention::Latent {
            heads: 128,
            q_rank: 1536,
            kv_rank: 512,
            nope: 128,
            rope: 64,
            v: 128,
            scale: "0.13523377",
        },
        ffn: Ffn::Experts {
            experts: 256,
            top: 8,
            inner: 2048,
            shared: Some(2048),
            dense: (3, 18432),
            weight: None,
            bias: false,
            gate: "halves",
        },
    },
    Model {
        name: "qwen3-30b-a3b",
        config: "hidden 2048, 48 layers, 32 heads, 4 kv heads, head 128, q and k normalized, 128 experts of 768, 8 per token, \
                 vocab 151936, bf16",
        note: "Experts without a token are left out: groups = min(128, 8 x tokens).",
        hidden: 2048,
        layers: 48,
        vocab: 151_936,
        positions: 40_960,
        dtype: "bf16",
        linear: BF16,
        norm: RMS_6,
        attention: Attention::Heads {
            heads: 32,
            kv_heads: 4,
            dim: 128,
            bias: false,
            qk_norm: true,
            rope: true,
            window: None,
            sinks: false,
        },
        ffn: Ffn::Experts {
            experts: 128,
            top: 8,
            inner: 768,
            shared: None,
            dense: (0, 0),
            weight: None,
            bias: false,
            gate: "halves",
        },
    },
    Model {
        name: "gpt-oss-20b",
        config: "hidden 2880, 24 layers, 64 heads, 8 kv heads, head 64, sinks, window 128 in every other layer, 32 experts of 2880, \
                 4 per token, MXFP4 experts, biases, vocab 201088, bf16",
        note: "The experts' clamped swish is run as silu, which costs the same. Experts without a token are left out: groups = \
               min(32, 4 x tokens).",
        hidden: 2880,
        layers: 24,
        vocab: 201_088,
        positions: 131_072,
        dtype: "bf16",
        linear: BF16,
        norm: RMS_5,
        attention: Attention::Heads {
            heads: 64,
            kv_heads: 8,
            dim: 64,
            bias: true,
            qk_norm: false,
            rope: true,
            window: Some(128),
            sinks: true,
        },
        ffn: Ffn::Experts {
            experts: 32,
            top: 4,
            inner: 2880,
            shared: None,
            dense: (0, 0),
            weight: Some(Linear { weight: "e2m1@mx", input: None }),
            bias: true,
            gate: "pairs",
        },
    },
    Model {
        name: "bert-base",
        config: "hidden 768, 12 layers, 12 heads, head 64, ffn 3072, vocab 30522, 512 positions, f32",
        note: "An encoder: its sections are whole sentences.",
        hidden: 768,
        layers: 12,
        vocab: 30_522,
        positions: 512,
        dtype: "f32",
        linear: Linear { weight: "f32", input: None },
        norm: Norm { kind: "layer", eps: "1e-12", bias: true },
        attention: Attention::Heads {
            heads: 12,
            kv_heads: 12,
            dim: 64,
            bias: true,
            qk_norm: false,
            rope: false,
            window: None,
            sinks: false,
        },
        ffn: Ffn::Plain { inner: 3072, act: "gelu" },
    },
];

const FP8_BLOCKS: Linear = Linear { weight: "e4m3@128x128", input: Some("e4m3@1x128") };

/// Formats of linear layers that `--weights` knows by name.
pub(crate) const WEIGHTS: &[(&str, Linear)] = &[
    ("bf16", BF16),
    ("f32", Linear { weight: "f32", input: None }),
    ("fp8", FP8_BLOCKS),
    ("mxfp8", Linear { weight: "e4m3@mx", input: Some("e4m3@mx") }),
    ("int8", Linear { weight: "i8@row", input: Some("i8@row") }),
    ("int4", Linear { weight: "i4@g128/f16", input: None }),
    ("mxfp4", Linear { weight: "e2m1@mx", input: None }),
    ("nvfp4", Linear { weight: "e2m1@nv", input: Some("e2m1@nv") }),
];

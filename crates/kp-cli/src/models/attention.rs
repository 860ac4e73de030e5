//! The attention half of a layer.

use super::{Attention, Linear, Model, Phase, steps::Step};
use anyhow::Result;

impl Model {
    /// Projections, positions, attention and output of all layers.
    pub(super) fn attend(&self, step: &mut Step, linear: Linear) -> Result<()> {
        match self.attention {
            Attention::Heads { .. } => self.attend_heads(step, linear),
            Attention::Latent { .. } => self.attend_latent(step, linear),
        }
    }

    fn attend_heads(&self, step: &mut Step, linear: Linear) -> Result<()> {
        let Attention::Heads { heads, kv_heads, dim, bias, qk_norm, rope, window, sinks } = self.attention else {
            return Ok(());
        };
        let Self { hidden, layers, positions, dtype, .. } = *self;
        let rows = step.rows;
        let bias = if bias { format!(" bias={dtype}") } else { String::new() };
        let qkv = (heads + 2 * kv_heads) * dim;
        step.linear(layers, "q, k and v", [qkv, hidden], linear, &bias)?;
        if qk_norm {
            for (label, heads) in [("norm of q", heads), ("norm of k", kv_heads)] {
                let (rows, kind, eps) = (rows * heads, self.norm.kind, self.norm.eps);
                step.push(
                    layers,
                    label,
                    format!("norm {rows}x{dim} {dtype}:{dtype} kind={kind} eps={eps} weight={dtype}"),
                )?;
            }
        }
        if rope {
            for (label, heads) in [("positions of q", heads), ("positions of k", kv_heads)] {
                // Q and K lie side by side in the rows of the projection unless a norm moved them.
                let ld = if qk_norm { String::new() } else { format!(" ldx={qkv}") };
                step.push(
                    layers,
                    label,
                    format!("rope {rows}x{heads}x{dim} {dtype}:{dtype} positions={positions}{ld}"),
                )?;
            }
        }
        let (batch, q_len, kv_len) = step.phase.extent();
        let shape = format!("attention {batch}x{heads}:{kv_heads}x{q_len}:{kv_len}x{dim} {dtype}:{dtype}:{dtype}");
        let sinks = if sinks { " sinks" } else { "" };
        // The one query of a decode step sees every key, so nothing is masked.
        let full = match step.phase {
            Phase::Prefill { .. } if self.decodes() => " mask=causal",
            _ => "",
        };
        match window {
            None => step.push(layers, "attention", format!("{shape}{full}{sinks}"))?,
            Some(window) => {
                step.push(layers - layers / 2, "attention, all keys", format!("{shape}{full}{sinks}"))?;
                let left = window - 1;
                step.push(layers / 2, "attention, window", format!("{shape} mask=window/{left}/0{sinks}"))?;
            }
        }
        step.linear(layers, "output of attention", [hidden, heads * dim], linear, &bias)
    }

    fn attend_latent(&self, step: &mut Step, linear: Linear) -> Result<()> {
        let Attention::Latent { heads, q_rank, kv_rank, nope, rope, v, scale } = self.attention else {
            return Ok(());
        };
        let Self { hidden, layers, positions, dtype, .. } = *self;
        let rows = step.rows;
        let down = q_rank + kv_rank + rope;
        step.linear(layers, "latents of q and kv", [down, hidden], linear, "")?;
        for (label, rank) in [("norm of the q latent", q_rank), ("norm of the kv latent", kv_rank)] {
            let (kind, eps) = (self.norm.kind, self.norm.eps);
            let norm = format!("norm {rows}x{rank} {dtype}:{dtype} kind={kind} eps={eps} weight={dtype} ldx={down}");
            step.push(layers, label, norm)?;
        }
        let q = heads * (nope + rope);
        step.linear(layers, "q from its latent", [q, q_rank], linear, "")?;
        for (label, heads, ld) in [("positions of q", heads, heads * rope), ("positions of k", 1, down)] {
            let turn =
                format!("rope {rows}x{heads}x{rope} {dtype}:{dtype} positions={positions} pairs=adjacent ldx={ld}");
            step.push(layers, label, turn)?;
        }
        let (batch, q_len, kv_len) = step.phase.extent();
        match step.phase {
            Phase::Decode { .. } => {
                let absorb = |n: u32, k: u32| format!("gemm {heads}x{rows}x{n}x{k} {dtype}:{dtype}:{dtype}");
                step.push(layers, "q into latent space", absorb(kv_rank, nope))?;
                let wide = kv_rank + rope;
                step.push(
                    layers,
                    "attention",
                    format!(
                        "attention {batch}x{heads}:1x{q_len}:{kv_len}x{wide}:{kv_rank} {dtype}:{dtype}:{dtype} scale={scale}"
                    ),
                )?;
                step.push(layers, "values out of latent space", absorb(v, kv_rank))?;
            }
            Phase::Prefill { .. } => {
                step.linear(layers, "k and v from their latent", [heads * (nope + v), kv_rank], linear, "")?;
                let wide = nope + rope;
                step.push(
                    layers,
                    "attention",
                    format!(
                        "attention {batch}x{heads}x{q_len}:{kv_len}x{wide}:{v} {dtype}:{dtype}:{dtype} mask=causal scale={scale}"
                    ),
                )?;
            }
        }
        step.linear(layers, "output of attention", [hidden, heads * v], linear, "")
    }
}

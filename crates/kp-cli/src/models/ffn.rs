//! The feed-forward half of a layer.

use super::{Ffn, Linear, Model, steps::Step};
use anyhow::Result;

impl Model {
    /// Router, experts or the one feed-forward of all layers.
    pub(super) fn feed_forward(&self, step: &mut Step, linear: Linear) -> Result<()> {
        let Self { hidden, layers, dtype, .. } = *self;
        let rows = step.rows;
        match self.ffn {
            Ffn::Plain { inner, act } => {
                step.linear(layers, "up", [inner, hidden], linear, &format!(" bias={dtype} act={act}"))?;
                step.linear(layers, "down", [hidden, inner], linear, &format!(" bias={dtype}"))
            }
            Ffn::Gated { inner } => self.gated(step, layers, "", inner, linear),
            Ffn::Experts { experts, top, inner, shared, dense, weight, bias, gate } => {
                let (dense_layers, dense_inner) = dense;
                if dense_layers > 0 {
                    self.gated(step, dense_layers, " of a dense layer", dense_inner, linear)?;
                }
                let layers = layers - dense_layers;
                let bias = if bias { format!(" bias={dtype}") } else { String::new() };
                step.push(
                    layers,
                    "router",
                    format!("gemm 1x{rows}x{experts}x{hidden} {dtype}:{dtype}:f32 b=col{bias}"),
                )?;
                step.push(layers, "router's choice", format!("softmax {rows}x{experts} f32:f32"))?;
                let picked = rows.saturating_mul(top);
                let groups = experts.min(picked);
                let linear = weight.unwrap_or(linear);
                let gated = format!(" act=silu gate={gate}{bias}");
                step.experts(layers, "experts, gate and up", [groups, picked, 2 * inner, hidden], linear, &gated)?;
                step.experts(layers, "experts, down", [groups, picked, hidden, inner], linear, &bias)?;
                match shared {
                    Some(inner) => self.gated(step, layers, " of the shared expert", inner, linear),
                    None => Ok(()),
                }
            }
        }
    }

    fn gated(&self, step: &mut Step, layers: u32, of: &str, inner: u32, linear: Linear) -> Result<()> {
        let hidden = self.hidden;
        step.linear(layers, &format!("gate and up{of}"), [2 * inner, hidden], linear, " act=silu gate=halves")?;
        step.linear(layers, &format!("down{of}"), [hidden, inner], linear, "")
    }
}

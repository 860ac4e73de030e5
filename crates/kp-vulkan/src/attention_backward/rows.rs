//! The first step, each query's product of O with its gradient, and the last, gradients of the sinks.

use crate::shaders::{Shader, shader};

pub(super) static ROWS: Shader = shader!("attention_backward", "rows", open 32 but [4]);

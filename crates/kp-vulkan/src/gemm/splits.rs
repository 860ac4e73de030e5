//! The second step of products in parts of k: D from what waits in scratch.

use crate::shaders::{Shader, shader};

pub(super) static SPLITS: Shader = shader!("gemm", "splits", open 12 but []);

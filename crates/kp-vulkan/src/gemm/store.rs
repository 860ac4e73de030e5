//! The second step where D is scaled or has two numbers in a byte: codes and scales of what waits in scratch.

use crate::shaders::{Shader, shader};

pub(super) static STORE: Shader = shader!("gemm", "store");

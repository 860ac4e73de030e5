//! The steps after the rows: gradients by weight and bias, summed column by column.

use crate::shaders::{Shader, shader};

pub(super) static COLUMNS: Shader = shader!("norm_backward", "columns");

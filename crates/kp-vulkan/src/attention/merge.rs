//! The second step where keys are split among groups: each row's parts put together by their maxima and sums.

use crate::shaders::{Shader, shader};

pub(super) static MERGE: Shader = shader!("attention", "merge", open 32 but [4]);

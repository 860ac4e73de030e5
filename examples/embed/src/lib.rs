//! Sentence embeddings by all-MiniLM-L6-v2, every layer through `kp-core`.
//!
//! | file | what it holds |
//! |---|---|
//! | `model.rs` | the weights, and the way from sentences to embeddings |
//! | `check.rs` | the comparison with PyTorch's embeddings in `reference/` |
//! | `time.rs` | how many sentences a second |
//! | `main.rs` | the command line |

pub mod check;
pub mod model;
pub mod time;

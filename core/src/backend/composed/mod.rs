//! Fused ops in terms of primitives, one file per stem: the defaults of [`super::FusedOps`], and the twin that every
//! fused kernel is compared with.

mod embed;
mod linear;
mod norm;
mod rope;

pub use embed::embed_add;
pub use linear::{gated_linear, linear_act, linear_add};
pub use norm::add_norm;
pub use rope::qkv_rope_append;

//! Quantization codecs: pure functions between stored bytes and values, without a backend or a file in sight.
//!
//! `block` has GGUF's block formats; `plain` widens every stored type to f32. Kernels that multiply packed weights
//! must equal `decode` followed by the same multiplication.
pub mod block;
pub mod plain;

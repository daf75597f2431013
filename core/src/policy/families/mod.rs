//! The architecture families, one file each: a table of names, and what the configuration says of the shape.

mod albert;
mod baichuan;
mod bert;
mod bloom;
mod chatglm;
mod clip;
mod distilbert;
mod electra;
mod falcon;
mod gemma;
mod gpt2;
mod gpt_neo;
mod gpt_neox;
mod gptj;
mod llama;
mod megatron;
mod meta;
mod mixtral;
mod mpt;
mod opt;
mod phi;
mod post_norm;
mod qwen;
mod qwen1;
mod stablelm;
mod yuan;

pub use albert::Albert;
pub use baichuan::BAICHUAN;
pub use bert::{BERT, ROBERTA};
pub use bloom::BLOOM;
pub use chatglm::CHATGLM;
pub use clip::Clip;
pub use distilbert::DISTILBERT;
pub use electra::ELECTRA;
pub use falcon::FALCON;
pub use gemma::{GEMMA, GEMMA2, GEMMA3};
pub use gpt_neo::GPT_NEO;
pub use gpt_neox::GPT_NEOX;
pub use gpt2::{GPT_BIGCODE, GPT2};
pub use gptj::{CODEGEN, GPTJ};
pub use llama::{LLAMA, MISTRAL};
pub use megatron::MEGATRON;
pub use meta::MetaLlama;
pub use mixtral::MIXTRAL;
pub use mpt::MPT;
pub use opt::OPT;
pub use phi::{PHI, PHI3};
pub use post_norm::{EXAONE4, OLMO2};
pub use qwen::{QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE};
pub use qwen1::QWEN;
pub use stablelm::{STABLELM, STARCODER2};
pub use yuan::YUAN;

use crate::policy::describe::Described;

/// The families that are described by tables.
pub(in crate::policy) const FAMILIES: [Described; 35] = [
    LLAMA,
    MISTRAL,
    OLMO2,
    EXAONE4,
    QWEN2,
    QWEN3,
    QWEN2_MOE,
    QWEN3_MOE,
    MIXTRAL,
    GEMMA,
    GEMMA2,
    GEMMA3,
    PHI,
    PHI3,
    STABLELM,
    STARCODER2,
    GPT2,
    GPT_BIGCODE,
    GPT_NEO,
    GPTJ,
    CODEGEN,
    GPT_NEOX,
    BLOOM,
    MPT,
    FALCON,
    OPT,
    BERT,
    ROBERTA,
    DISTILBERT,
    ELECTRA,
    QWEN,
    BAICHUAN,
    CHATGLM,
    MEGATRON,
    YUAN,
];

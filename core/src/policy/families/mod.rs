//! The architecture families, one file each: a table of names, and what the configuration says of the shape.

mod afmoe;
mod albert;
mod apertus;
mod baichuan;
mod bart;
mod bert;
mod bloom;
mod chatglm;
mod clip;
mod cohere;
mod deberta;
mod deepseek;
mod deepseek_index;
mod distilbert;
mod electra;
mod ernie;
mod exaone;
mod falcon;
mod gemma;
mod gemma3n;
mod gemma4;
mod glm;
mod gpt2;
mod gpt_neo;
mod gpt_neox;
mod gpt_oss;
mod gptj;
mod granite;
mod hunyuan;
mod internlm;
mod laguna;
mod llama;
mod llama4;
mod longcat;
mod megatron;
mod meta;
mod mimo;
mod minimax;
mod mistral;
mod mixtral;
mod modern_bert;
mod moonshine;
mod mpnet;
mod mpt;
mod olmo;
mod opt;
mod phi;
mod phimoe;
mod post_norm;
mod qwen;
mod qwen1;
mod relu_squared;
mod rotary_encoder;
mod seed_oss;
mod smollm;
mod stablelm;
mod t5;
mod wav2vec2;
mod whisper;
mod yuan;

pub use albert::Albert;
pub use clip::Clip;
pub use meta::MetaLlama;

use crate::policy::describe::Described;

/// `families!(module: FAMILY, ...; ...)`: exports families, and lists them in the order in which they
/// are asked.
macro_rules! families {
    ($($module:ident: $($family:ident),+);+ $(;)?) => {
        $(pub use $module::{$($family),+};)+

        /// The families that are described by tables.
        pub(in crate::policy) const FAMILIES: &[Described] = &[$($($family),+),+];
    };
}

families!(
    llama: LLAMA;
    mistral: MISTRAL, MINISTRAL3, MISTRAL4;
    smollm: SMOLLM3;
    granite: GRANITE, GRANITE_MOE, GRANITE_HYBRID;
    hunyuan: HUNYUAN, HUNYUAN_MOE, HY_V3;
    ernie: ERNIE4_5, ERNIE4_5_MOE;
    seed_oss: SEED_OSS;
    internlm: INTERNLM2, INTERNLM3;
    glm: GLM, GLM4, GLM4_MOE;
    deepseek: DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE, DOTS1;
    deepseek_index: DEEPSEEK_V32, GLM_MOE_DSA;
    minimax: MINIMAX_M2;
    exaone: EXAONE_MOE;
    afmoe: AFMOE;
    apertus: APERTUS;
    phimoe: PHIMOE;
    laguna: LAGUNA;
    mimo: MIMO_V2_FLASH;
    longcat: LONGCAT_FLASH;
    llama4: LLAMA4;
    gpt_oss: GPT_OSS;
    relu_squared: ARCEE, NEMOTRON;
    olmo: OLMO, OLMOE;
    cohere: COHERE, COHERE2, COHERE2_MOE;
    post_norm: OLMO2, OLMO3, EXAONE4;
    qwen: QWEN2, QWEN3, QWEN2_MOE, QWEN3_MOE;
    mixtral: MIXTRAL;
    gemma: GEMMA, GEMMA2, GEMMA3;
    gemma3n: GEMMA3N;
    gemma4: GEMMA4;
    phi: PHI, PHI3;
    stablelm: STABLELM, STARCODER2;
    gpt2: GPT2, GPT_BIGCODE;
    gpt_neo: GPT_NEO;
    gptj: GPTJ, CODEGEN;
    gpt_neox: GPT_NEOX;
    bloom: BLOOM;
    mpt: MPT;
    falcon: FALCON;
    opt: OPT;
    bert: BERT, ROBERTA;
    rotary_encoder: EUROBERT, NOMIC_BERT, GTE;
    modern_bert: MODERNBERT;
    mpnet: MPNET;
    deberta: DEBERTA_V2;
    distilbert: DISTILBERT;
    electra: ELECTRA;
    t5: T5, UMT5;
    bart: BART, MBART, PEGASUS, MARIAN, M2M_100;
    whisper: WHISPER;
    moonshine: MOONSHINE;
    wav2vec2: WAV2VEC2;
    qwen1: QWEN;
    baichuan: BAICHUAN;
    chatglm: CHATGLM;
    megatron: MEGATRON;
    yuan: YUAN;
);

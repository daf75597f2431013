//! Flags of the commands that read a text per line.

use super::super::values::{positive, stride};
use super::model::ModelArgs;
use clap::Args as ClapArgs;
use engraft::Pooling;
use std::path::PathBuf;

/// Where texts come from.
#[derive(Debug, ClapArgs)]
pub struct LinesArgs {
    /// File of texts, a line of JSON each: "a text" or {"text": "...", "id": ...}; a pipe will do; without
    /// one, or with -, standard input
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Take lines as the texts themselves, not as JSON
    #[arg(long)]
    pub plain: bool,
    /// Truncate texts to as many tokens as the model takes; longer ones are refused otherwise
    #[arg(long)]
    pub truncate: bool,
}

#[derive(Debug, ClapArgs)]
pub struct EmbedArgs {
    #[command(flatten)]
    pub lines: LinesArgs,
    /// How the vectors of a text's tokens become one; model is the model's own pooler. Default: as the
    /// model's files say (sentence-transformers, GGUF), else mean
    #[arg(long, value_name = "HOW", value_enum)]
    pub pooling: Option<PoolingArg>,
    /// Leave vectors at their own length; else it is made 1
    #[arg(long, visible_alias = "raw")]
    pub no_normalize: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// Names of [`Pooling`].
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum PoolingArg {
    Mean,
    First,
    Last,
    Model,
}

impl From<PoolingArg> for Pooling {
    fn from(arg: PoolingArg) -> Self {
        match arg {
            PoolingArg::Mean => Pooling::Mean,
            PoolingArg::First => Pooling::First,
            PoolingArg::Last => Pooling::Last,
            PoolingArg::Model => Pooling::Model,
        }
    }
}

#[derive(Debug, ClapArgs)]
pub struct ScoreArgs {
    #[command(flatten)]
    pub lines: LinesArgs,
    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Debug, ClapArgs)]
pub struct ClassifyArgs {
    #[command(flatten)]
    pub lines: LinesArgs,
    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Debug, ClapArgs)]
pub struct AnswerArgs {
    /// File of lines, each {"question": "...", "context": "...", "id": ...}; a pipe will do; without one, or
    /// with -, standard input
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Answers to a question at most; with more than one, a line has all of them under `answers`
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = positive)]
    pub top_k: usize,
    /// Tokens of an answer at most
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = positive)]
    pub max_answer_len: usize,
    /// Let the empty answer win where the context does not say (models trained for that, as on SQuAD 2)
    #[arg(long, visible_alias = "impossible")]
    pub handle_impossible_answer: bool,
    /// Tokens of a window over a long context, the question included; less where the model cannot
    #[arg(long, value_name = "N", default_value_t = 384, value_parser = positive)]
    pub max_seq_len: usize,
    /// Tokens that two windows share; default: half a window, at most 128
    #[arg(long, value_name = "N", value_parser = stride)]
    pub doc_stride: Option<usize>,
    #[command(flatten)]
    pub model: ModelArgs,
}

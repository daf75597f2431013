//! Flags of `transcribe`.

use super::model::ModelArgs;
use clap::Args as ClapArgs;
use engraft::engraft_audio::Format;
use std::path::PathBuf;

#[derive(Debug, ClapArgs)]
pub struct TranscribeArgs {
    /// A WAV or FLAC file; a pipe will do; - is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The language that is spoken, as the model's tokens spell it (en, de, ...); default: what is heard
    /// first
    #[arg(short, long, value_name = "LANGUAGE")]
    pub language: Option<String>,
    /// What the model makes of the speech: text in its language, or in English
    #[arg(long, value_name = "TASK", value_enum, default_value = "transcribe")]
    pub task: TranscribeTask,
    /// How segments are written: text, json, srt, vtt
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,
    /// Take each window as one segment, not what the model's timestamps say
    #[arg(long)]
    pub no_timestamps: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// Names of [`engraft::Task`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum TranscribeTask {
    Transcribe,
    Translate,
}

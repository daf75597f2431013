//! Flags of `transcribe`.

use super::super::values::temperature;
use super::model::ModelArgs;
use clap::Args as ClapArgs;
use engraft::engraft_audio::Format;
use std::path::PathBuf;

#[derive(Debug, ClapArgs)]
pub struct TranscribeArgs {
    /// A WAV or FLAC file; a pipe will do; - is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The language that is spoken, as the model's tokens spell it (en, de, ...), or its English name;
    /// default: what the model's files say, or else what is heard first
    #[arg(short, long, value_name = "LANGUAGE")]
    pub language: Option<String>,
    /// What the model makes of the speech: text in its language, or in English; default: what the model's
    /// files say, or else transcribe
    #[arg(long, value_name = "TASK", value_enum)]
    pub task: Option<TranscribeTask>,
    /// How segments are written: text, json, srt, vtt
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,
    /// Take each window as one segment, not what the model's timestamps say
    #[arg(long)]
    pub no_timestamps: bool,
    /// What was said before, in the model's view: names and spellings that are to be expected
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prompt: String,
    /// Hear each window without the text of those before it
    #[arg(long)]
    pub no_previous_text: bool,
    /// Temperatures of a window, one after the other until its text is within the thresholds; 0 takes the
    /// likeliest tokens [default: 0,0.2,0.4,0.6,0.8,1]
    #[arg(long, value_name = "T,T,...", value_delimiter = ',', allow_hyphen_values = true,
        value_parser = temperature)]
    pub temperature: Vec<f32>,
    /// Sample a window anew whose text has more bytes for a byte of it compressed, or none [default: 2.4]
    #[arg(long, value_name = "RATIO|none")]
    pub compression_ratio_threshold: Option<Threshold>,
    /// Sample a window anew whose tokens have a smaller mean log-probability, or none [default: -1]
    #[arg(long, value_name = "LOGPROB|none", allow_hyphen_values = true)]
    pub logprob_threshold: Option<Threshold>,
    /// Pass over a window that has a greater probability of no speech, unless its text is believed by the
    /// threshold of log-probability, or none [default: 0.6]
    #[arg(long, value_name = "PROBABILITY|none")]
    pub no_speech_threshold: Option<Threshold>,
    /// Of the random numbers of temperatures above 0
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// A number, or that there is none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold(pub Option<f64>);

impl std::str::FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(None)),
            number => match number.parse::<f64>() {
                Ok(at) if !at.is_nan() => Ok(Self(Some(at))),
                _ => Err(format!("\"{number}\" is neither a number nor `none`")),
            },
        }
    }
}

/// Names of [`engraft::Task`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum TranscribeTask {
    Transcribe,
    Translate,
}

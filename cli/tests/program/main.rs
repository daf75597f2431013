//! The program as users run it, command by command, as a child process.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod answer;
mod commands;
mod configured;
mod from_deepspeed;
mod gguf_files;
mod hostile;
#[cfg(feature = "image")]
mod image;
#[cfg(feature = "image")]
mod image_goldens;
#[cfg(unix)]
mod launchers;
#[cfg(target_os = "linux")]
mod nodes;
#[cfg(unix)]
mod pipes;
#[cfg(unix)]
mod processes;
#[cfg(all(unix, feature = "serve"))]
mod serve;
#[path = "../support/shards.rs"]
mod shards;
#[path = "../support/mod.rs"]
mod support;
mod texts;
#[cfg(feature = "speech")]
mod transcribe;
mod usage;
#[cfg(feature = "speech")]
#[path = "../../../engraft/tests/whisper/mod.rs"]
mod whisper;

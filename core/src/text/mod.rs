//! Text at both ends of the engine: prompts to token ids, token ids to text as they arrive.
//!
//! Here are the tokenizer ([`Tokenizer`], from `tokenizer.json`, from a SentencePiece model, from a
//! vocabulary with merges, from a file of ranks or from a GGUF file's metadata), the incremental detokenizer
//! ([`Detokenizer`]), stop strings on the stream ([`StopMatcher`]) and chat templates ([`ChatTemplate`]). No
//! model, no scheduling, no files: bytes and plain values come from `checkpoint`, ids go to `schedule`, ids
//! come back from `sample`. The invariant: pieces of a stream put together equal the text of all tokens, and
//! no piece ever breaks a character.

mod byte_level;
mod characters;
mod clip;
mod clock;
pub mod detokenize;
pub mod gguf;
mod jinja;
mod limits;
mod pair;
mod pieces;
mod published;
mod rank_bpe;
mod sentencepiece;
mod settings;
mod shield;
mod splitting;
mod stages;
pub mod stop;
pub mod template;
mod to_gguf;
pub mod tokenizer;
mod vocabulary;

pub use detokenize::Detokenizer;
pub use gguf::GgufVocab;
pub use jinja::Data;
pub use pair::{PairWindow, PairWindows};
pub use stop::{StopEvent, StopMatcher};
pub use template::{ChatTemplate, Message};
pub use tokenizer::Tokenizer;

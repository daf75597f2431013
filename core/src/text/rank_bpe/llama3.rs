//! Llama 3's `tokenizer.model`: a file of ranks as tiktoken reads it, under the name of older models'
//! SentencePiece files. Which of both it is its content says (`VocabularyFiles::ranks`).
//!
//! The file has 128,000 ranks and nothing else. 256 special tokens follow them, whose names stand in Meta's
//! code, in two layouts: that of Llama 3, and that of 3.1, which later models keep. The file is the same, so
//! the model says which: 3.1 is the one whose rotation is stretched (`use_scaled_rope` of Meta's
//! `params.json`, `rope_type` `llama3` of a `config.json`). Both have the marks of texts, headers and turns
//! at the same ids; only what is reserved in 3 became tokens for calls of tools, for padding and for steps in
//! 3.1. Names in `added_tokens_decoder` go before both.
//!
//! Meta's code refuses a model whose vocabulary is not as large as that of its tokenizer. Here it is the
//! same: ranks and special tokens together must be `vocab_size`, or 128,256 where the model does not say it.
//! So a file of ranks of another family (Llama 4's has 200,000 and splits texts otherwise) is refused, not
//! misread.

use super::plan::{Plan, Special};
use super::table::Ranks;
use super::tiktoken;
use crate::Result;
use crate::checkpoint::VocabularyFiles;
use crate::text::pieces::LLAMA3;
use crate::text::settings::Settings;

/// Special tokens behind the ranks.
const RESERVED: u32 = 256;
/// Tokens of a model that does not say how many it has.
const USUAL: u64 = 128_256;
/// Names of the first special tokens of Llama 3; those without one are reserved.
const FIRST: [&str; 10] = [BEGIN, END, "", "", "", "", "<|start_header_id|>", "<|end_header_id|>", "", TURN];
/// The same of Llama 3.1.
const FIRST_STRETCHED: [&str; 11] = [
    BEGIN,
    END,
    "",
    "",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    MESSAGE,
    TURN,
    "<|python_tag|>",
];
const BEGIN: &str = "<|begin_of_text|>";
const END: &str = "<|end_of_text|>";
const TURN: &str = "<|eot_id|>";
const MESSAGE: &str = "<|eom_id|>";

/// Classes that `tokenizer_config.json` names for such files, and types of models that have them.
const CLASSES: [(&str, ()); 2] = [("PreTrainedTokenizer", ()), ("LlamaTokenizer", ())];
const MODEL_TYPES: [(&str, ()); 1] = [("llama", ())];

/// What the file says, with what is known of its family.
///
/// # Errors
/// [`Error::Format`](crate::Error::Format) with the file, what is found and what is allowed: also for a model
/// of another family, and for a vocabulary of another size.
pub(super) fn read(settings: &Settings<'_>, bytes: &[u8]) -> Result<Plan> {
    // Meta's own parameters name neither a class nor a type.
    if settings.class().is_some() || !settings.files.model_type.is_empty() {
        settings.choose(&CLASSES, &MODEL_TYPES)?;
    }
    let ranks = tiktoken::parse(&settings.place(VocabularyFiles::EITHER), bytes)?;
    check_count(&ranks, settings.files.vocab_size)?;
    let first: &[&str] = if settings.files.stretched { &FIRST_STRETCHED } else { &FIRST };
    let mut special = layout(first, ranks.tokens.len() as u32);
    tiktoken::rename(&mut special, settings)?;
    let there = |text: &&str| special.iter().any(|token| token.text == **text);
    let ends = [END, TURN, MESSAGE].iter().filter(|text| there(text)).map(|text| (*text).into()).collect();
    Ok(Plan {
        ranks,
        offset: 0,
        special,
        pattern: LLAMA3.replace("DIGITS", "{1,3}"),
        compose: false,
        bos: Some(settings.token("bos_token", BEGIN)),
        around: true,
        eos: settings.token("eos_token", END),
        ends,
    })
}

/// Refuses a file that has not as many ranks as the model needs.
fn check_count(ranks: &Ranks, vocab_size: Option<u64>) -> Result<()> {
    let (count, size) = (ranks.tokens.len() as u64, vocab_size.unwrap_or(USUAL));
    if count + u64::from(RESERVED) == size {
        return Ok(());
    }
    let whose = if vocab_size.is_some() { "vocab_size of the model is" } else { "Llama 3's are" };
    Err(ranks.broken(format!(
        "has {count} ranks, with {RESERVED} special tokens {} tokens; {whose} {size}",
        count + u64::from(RESERVED)
    )))
}

/// Special tokens from id `behind`: those with a name, and numbered ones.
fn layout(first: &[&str], behind: u32) -> Vec<Special> {
    let mut reserved = 0..RESERVED;
    let names = first.iter().copied().chain(std::iter::repeat(""));
    let named = |(id, name): (u32, &str)| {
        let text = match name {
            "" => format!("<|reserved_special_token_{}|>", reserved.next().unwrap_or(RESERVED)),
            name => name.to_owned(),
        };
        Special { id, text, special: true }
    };
    (behind..behind + RESERVED).zip(names).map(named).collect()
}

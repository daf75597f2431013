//! Byte-level BPE out of ranks: Mistral's `tekken.json`, and files of ranks as tiktoken reads them (Qwen 1,
//! Kimi, Llama 3).
//!
//! Such files have no merges: neighbours are joined whose concatenation has the lowest rank. Here the ranks
//! become merges ([`table`]) and the rest the same kind of model that a `tokenizer.json` gives, so that
//! everything after this is one path.

mod llama3;
mod plan;
mod table;
mod tekken;
mod tiktoken;

use serde_json::{Value, json};
use tokenizers::PostProcessorWrapper;

use self::plan::Plan;
use super::limits;
use super::settings::{Settings, part};
use super::tokenizer::{Marks, Tokenizer};
use crate::checkpoint::VocabularyFiles;
use crate::{Error, Result};

/// Whether the files are of this sort.
pub(super) fn is(files: &VocabularyFiles) -> bool {
    files.ranks().is_some() || !files.unknown_ranks.is_empty()
}

/// The tokenizer of a file of ranks.
///
/// # Errors
/// [`Error::Format`] with the file, what is found in it and what is allowed; also for a file of ranks of a
/// family that is not known.
pub(super) fn read(settings: &Settings<'_>) -> Result<Tokenizer> {
    let plan = match settings.files.ranks() {
        Some((tekken::NAME, _)) => tekken::read(settings)?,
        Some((VocabularyFiles::EITHER, bytes)) => llama3::read(settings, bytes)?,
        Some(_) => tiktoken::read(settings)?,
        None => {
            let names = settings.files.unknown_ranks.join(", ");
            return Err(Error::format(
                settings.place(&names),
                format!(
                    "is a file of ranks of a family that is not known; read are {}",
                    VocabularyFiles::RANKS.join(", ")
                ),
            ));
        }
    };
    plan.check()?;
    let (vocab, twins) = plan.vocabulary()?;
    let mut built = plan.build(vocab)?;
    plan.add_special(&mut built)?;
    limits::check_steps(&plan.ranks.file, &built)?;
    let id = |token: &String| {
        let found = plan.special.iter().find(|special| special.text == *token).map(|special| special.id);
        found.ok_or_else(|| plan.ranks.broken(format!("`{token}` is none of its special tokens")))
    };
    let eos_ids = plan.ends.iter().map(id).collect::<Result<Vec<u32>>>()?;
    if let Some(bos) = &plan.bos {
        let bos_id = id(bos)?;
        if plan.around {
            around(&mut built, bos, bos_id)?;
        }
    }
    let Plan { ranks, bos, eos, .. } = plan;
    let file = Some(ranks.file);
    Tokenizer::assemble(built, Marks { file, bos, eos: Some(eos), eos_ids, twins, ..settings.marks() })
}

/// `bos` in front of each text.
fn around(built: &mut tokenizers::Tokenizer, bos: &str, id: u32) -> Result<()> {
    let text = |name: &str, kind: u32| -> Vec<Value> {
        vec![
            json!({"SpecialToken": {"id": bos, "type_id": kind}}),
            json!({"Sequence": {"id": name, "type_id": kind}}),
        ]
    };
    let (single, pair) = (text("A", 0), [text("A", 0), text("B", 1)].concat());
    let template = json!({
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": {bos: {"id": bos, "ids": [id], "tokens": [bos]}},
    });
    built.with_post_processor(Some(part::<PostProcessorWrapper>(template)?));
    Ok(())
}

#[cfg(test)]
mod llama3_tests;
#[cfg(test)]
#[path = "tests.rs"]
mod tests;

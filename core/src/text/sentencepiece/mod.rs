//! A tokenizer out of a SentencePiece model, as older folders and encoder-decoders have it.
//!
//! The file ([`proto`]) is a list of pieces with scores; a tokenizer class ([`classes`]) says what their
//! ids are and what stands around a text. Here both become the same kind of model that a `tokenizer.json`
//! gives, so that everything after this is one path. Pairs to merge are not in the file: they follow from
//! the scores.

mod classes;
mod languages;
mod proto;

use std::collections::HashSet;

use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::models::unigram::Unigram;
use tokenizers::normalizers::{Precompiled, Sequence};
use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
};

use self::classes::{Class, Plan, Special};
use self::proto::{Algorithm, Model, Normalizer, PieceType};
use super::limits;
use super::settings::{Settings, add, part};
use super::stages::segments;
use super::tokenizer::{Marks, Tokenizer};
use super::vocabulary::{Outside, guarded};
use crate::{Error, Result};

/// Bytes that are looked up to find the pairs to merge, and bytes of all pairs. Published models take a fifth
/// of the first and an eighth of the second.
const MOST_LOOKED_UP: usize = 1 << 27;
const MOST_MERGES: usize = 1 << 25;
/// Tokens that are looked for before a text is split into pieces. Published models have up to 6,300.
const MOST_ADDED: usize = 1 << 16;

/// The tokenizer of a SentencePiece model and the files next to it.
///
/// # Errors
/// [`Error::Format`] with the file, what is found in it and what is allowed.
pub(super) fn read(settings: &Settings<'_>) -> Result<Tokenizer> {
    let class = Class::of(settings)?;
    let files = settings.files;
    let (name, bytes) =
        files.model().ok_or_else(|| Error::internal("SentencePiece files without a model"))?;
    let model = Model::parse(&format!("{}{name}", files.place), bytes)?;
    let plan = classes::plan(class, &model, settings)?;
    let mut built = build(&model, &plan)?;
    // A class with a vocabulary of its own has no place for more.
    if plan.outside.is_none() {
        let known = plan.added.iter().map(|token| token.text.as_str()).collect();
        settings.add_tokens(&mut built, &known)?;
    }
    limits::check_steps(&model.file, &built)?;
    let Plan { bos, eos, added, outside, .. } = plan;
    let id = |token: &String| match &outside {
        Some(Outside { ids, .. }) => ids.get(token).copied(),
        None => built.token_to_id(token),
    };
    let eos_ids = eos.iter().filter_map(id).collect();
    let marks = || added.into_iter().filter(|token| token.special).map(|token| token.text).collect();
    // The reference writes a blank behind Marian's special tokens.
    let behind = if class == Class::Marian { " " } else { "" };
    let stages = outside.is_some().then(|| segments(marks(), behind));
    let marks = Marks { file: Some(model.file), bos, eos, eos_ids, outside, stages, ..settings.marks() };
    Tokenizer::assemble(built, marks)
}

/// A unigram model whose pieces are kept as lists, as GGUF has them.
pub(super) struct Listed<'a> {
    /// The file, for messages.
    pub file: &'a str,
    /// Spelling, score and type by id; types have the numbers of the model's file.
    pub pieces: Vec<(&'a str, f32, u64)>,
    /// The table of replacements, none if text stays as it is.
    pub charsmap: &'a [u8],
    /// Whether a blank goes in front of a text.
    pub dummy_prefix: bool,
    /// Whether blanks around a text go and those in a row become one.
    pub remove_extra_whitespaces: bool,
}

/// The model of such lists, with nothing around a text.
///
/// # Errors
/// [`Error::Format`] with the piece, what stands there and what is allowed.
pub(super) fn listed(lists: &Listed<'_>) -> Result<tokenizers::Tokenizer> {
    let normalizer = Normalizer {
        charsmap: lists.charsmap,
        dummy_prefix: lists.dummy_prefix,
        remove_extra_whitespaces: lists.remove_extra_whitespaces,
    };
    let model = Model::listed(lists.file, &lists.pieces, &normalizer)?;
    let built = build(&model, &classes::listed(&model))?;
    limits::check_steps(&model.file, &built)?;
    Ok(built)
}

/// The model that splits texts, with the steps before and behind it.
fn build(model: &Model, plan: &Plan) -> Result<tokenizers::Tokenizer> {
    let broken = |e: &dyn std::fmt::Display| model.broken(e.to_string());
    let splitter: ModelWrapper = match model.algorithm {
        Algorithm::Unigram => {
            let entries =
                plan.entries.iter().map(|(text, score)| (text.clone(), f64::from(*score))).collect();
            Unigram::from(entries, Some(plan.unknown), plan.byte_fallback).map_err(|e| broken(&e))?.into()
        }
        Algorithm::Bpe => {
            let ids: Vocab =
                plan.entries.iter().enumerate().map(|(id, (text, _))| (text.clone(), id as u32)).collect();
            let bpe = BPE::builder()
                .vocab_and_merges::<Vocab>(ids, merges(model)?)
                .unk_token(plan.entries[plan.unknown].0.clone())
                .fuse_unk(true)
                .byte_fallback(plan.byte_fallback);
            bpe.build().map_err(|e| broken(&e))?.into()
        }
    };
    let mut built = tokenizers::Tokenizer::new(splitter);
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if !model.charsmap.is_empty() && plan.uses_charsmap {
        let table = guarded(|| Precompiled::from(&model.charsmap).map_err(|e| e.to_string()));
        steps.push(table.map_err(|what| model.broken(format!("precompiled_charsmap: {what}")))?.into());
    }
    for step in &plan.normalizers {
        steps.push(part(step.clone())?);
    }
    if !steps.is_empty() {
        let steps: NormalizerWrapper = Sequence::new(steps).into();
        built.with_normalizer(Some(steps)).map_err(|e| broken(&e))?;
    }
    if let Some(words) = &plan.pre_tokenizer {
        built.with_pre_tokenizer(Some(part::<PreTokenizerWrapper>(words.clone())?));
    }
    built.with_decoder(Some(part::<DecoderWrapper>(plan.decoder.clone())?));
    if plan.added.len() > MOST_ADDED {
        let what =
            format!("{} special and user-defined tokens; at most {MOST_ADDED} are allowed", plan.added.len());
        return Err(model.broken(what));
    }
    let added = plan.added.iter().map(|Special { text, special, lstrip, normalized }| {
        AddedToken::from(text.clone(), *special).normalized(*normalized).lstrip(*lstrip)
    });
    add(&mut built, added).map_err(|what| model.broken(what))?;
    around(&mut built, &plan.around)?;
    Ok(built)
}

/// What stands around a text and between two.
fn around(built: &mut tokenizers::Tokenizer, around: &[Vec<String>; 3]) -> Result<()> {
    let [before, between, behind] = around;
    let mut special = serde_json::Map::new();
    for token in around.iter().flatten() {
        let id = built.token_to_id(token);
        let id = id.ok_or_else(|| Error::internal(format!("`{token}` is around texts and no token")))?;
        special.insert(token.clone(), json!({"id": token, "ids": [id], "tokens": [token]}));
    }
    if special.is_empty() {
        return Ok(());
    }
    let pieces = |tokens: &[String]| -> Vec<Value> {
        tokens.iter().map(|token| json!({"SpecialToken": {"id": token, "type_id": 0}})).collect()
    };
    let text = |name: &str| vec![json!({"Sequence": {"id": name, "type_id": 0}})];
    let single = [pieces(before), text("A"), pieces(behind)].concat();
    let pair = [pieces(before), text("A"), pieces(between), text("B"), pieces(behind)].concat();
    let template =
        json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special});
    built.with_post_processor(Some(part::<PostProcessorWrapper>(template)?));
    Ok(())
}

/// Every pair of pieces that together are a piece, best score first, then the longest left one.
fn merges(model: &Model) -> Result<Merges> {
    let mergeable =
        |role: PieceType| matches!(role, PieceType::Normal | PieceType::UserDefined | PieceType::Unused);
    let pieces = || model.pieces.iter().filter(|piece| mergeable(piece.role));
    let looked_up = pieces().map(|piece| piece.text.len().pow(2)).fold(0, usize::saturating_add);
    if looked_up > MOST_LOOKED_UP {
        return Err(model.broken(format!(
            "squared lengths of its pieces add up to {looked_up}; at most {MOST_LOOKED_UP} are allowed for BPE"
        )));
    }
    let known: HashSet<&str> = pieces().map(|piece| piece.text.as_str()).collect();
    let (mut merges, mut bytes) = (Vec::new(), 0usize);
    for piece in pieces() {
        for (at, _) in piece.text.char_indices().skip(1) {
            let (left, right) = piece.text.split_at(at);
            if known.contains(left) && known.contains(right) {
                bytes += piece.text.len();
                merges.push((piece.score, left, right));
            }
        }
        if bytes > MOST_MERGES {
            return Err(model.broken(format!("pairs to merge of more than {MOST_MERGES} bytes")));
        }
    }
    let chars = |text: &str| text.chars().count();
    merges.sort_by(|a, b| {
        b.0.total_cmp(&a.0).then_with(|| (chars(b.1), chars(b.2)).cmp(&(chars(a.1), chars(a.2))))
    });
    Ok(merges.into_iter().map(|(_, left, right)| (left.to_owned(), right.to_owned())).collect())
}

#[cfg(test)]
#[path = "tests.rs"]
pub(super) mod tests;

//! What a tokenizer class makes of the pieces of a SentencePiece model.
//!
//! The file says how text is split into pieces. Which id a piece has, which tokens there are besides and what
//! stands around a text is the class's, which `tokenizer_config.json` names, and the model's type where it
//! names none. Each class follows the `tokenizer.json` that is published for it elsewhere; those that are
//! published with none (M2M-100, Marian) follow SentencePiece's own steps.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::languages;
use super::proto::{Model, PieceType};
use crate::text::settings::Settings;
use crate::text::vocabulary::Outside;
use crate::{Error, Result};

/// Tokens that T5 has for spans left out, if its files are silent.
const EXTRA_IDS: u64 = 100;
/// The most that a file may ask for; published ones have 300.
const MOST_EXTRA_IDS: u64 = 1 << 12;
/// Ids in front of Pegasus's pieces.
const PEGASUS_OFFSET: u64 = 103;

/// A tokenizer class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    T5,
    Llama,
    MBart,
    MBart50,
    Nllb,
    XlmRoberta,
    Pegasus,
    M2m100,
    Marian,
}

const CLASSES: [(&str, Class); 10] = [
    ("T5Tokenizer", Class::T5),
    ("MT5Tokenizer", Class::T5),
    ("LlamaTokenizer", Class::Llama),
    ("MBartTokenizer", Class::MBart),
    ("MBart50Tokenizer", Class::MBart50),
    ("NllbTokenizer", Class::Nllb),
    ("XLMRobertaTokenizer", Class::XlmRoberta),
    ("PegasusTokenizer", Class::Pegasus),
    ("M2M100Tokenizer", Class::M2m100),
    ("MarianTokenizer", Class::Marian),
];

/// The class of models whose configuration of the tokenizer names none, by `model_type`.
const MODEL_TYPES: [(&str, Class); 12] = [
    ("t5", Class::T5),
    ("mt5", Class::T5),
    ("umt5", Class::T5),
    ("longt5", Class::T5),
    ("llama", Class::Llama),
    ("mistral", Class::Llama),
    ("mixtral", Class::Llama),
    ("mbart", Class::MBart),
    ("nllb-moe", Class::Nllb),
    ("xlm-roberta", Class::XlmRoberta),
    ("pegasus", Class::Pegasus),
    ("marian", Class::Marian),
];

impl Class {
    /// The class that a folder's files name.
    ///
    /// # Errors
    /// [`Error::Format`] with the name and those that are known.
    pub fn of(settings: &Settings<'_>) -> Result<Self> {
        if settings.class().is_some() {
            return settings.choose(&CLASSES, &MODEL_TYPES);
        }
        match settings.files.model_type.as_str() {
            // Both are models of this type, and only one has a vocabulary of its own.
            "m2m_100" if settings.files.bytes("vocab.json").is_some() => Ok(Class::M2m100),
            "m2m_100" => Ok(Class::Nllb),
            _ => settings.choose(&CLASSES, &MODEL_TYPES),
        }
    }
}

/// A token that is looked for in a text before it is split into pieces.
pub(super) struct Special {
    pub text: String,
    /// Whether it is left out of texts without special tokens.
    pub special: bool,
    /// Whether it takes the blanks in front of it.
    pub lstrip: bool,
    /// Whether it is looked for in the normalized text.
    pub normalized: bool,
}

/// Everything that a tokenizer is built from besides the model's file.
pub(super) struct Plan {
    /// Spelling and score by id.
    pub entries: Vec<(String, f32)>,
    pub unknown: usize,
    pub byte_fallback: bool,
    pub added: Vec<Special>,
    /// Tokens in front of a text, between two, and behind.
    pub around: [Vec<String>; 3],
    /// Whether the model's own table of replacements comes first.
    pub uses_charsmap: bool,
    /// The steps behind it.
    pub normalizers: Vec<Value>,
    pub pre_tokenizer: Option<Value>,
    pub decoder: Value,
    pub bos: Option<String>,
    pub eos: Option<String>,
    /// Ids that are another file's.
    pub outside: Option<Outside>,
}

/// What `class` makes of a model.
///
/// # Errors
/// [`Error::Format`] if the files do not fit the class.
pub(super) fn plan(class: Class, model: &Model, settings: &Settings<'_>) -> Result<Plan> {
    match class {
        Class::T5 => t5(model, settings),
        Class::Llama => Ok(llama(model, settings)),
        Class::Pegasus => pegasus(model, settings),
        Class::MBart | Class::MBart50 | Class::Nllb | Class::XlmRoberta => fairseq(class, model, settings),
        Class::M2m100 => m2m_100(model, settings),
        Class::Marian => marian(model, settings),
    }
}

fn special(text: impl Into<String>) -> Special {
    Special { text: text.into(), special: true, lstrip: false, normalized: false }
}

fn entries(model: &Model, from: usize) -> impl Iterator<Item = (String, f32)> {
    model.pieces.iter().skip(from).map(|piece| (piece.text.clone(), piece.score))
}

/// A blank as SentencePiece writes it, in front of every word.
fn metaspace() -> Value {
    json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true})
}

fn words() -> Value {
    json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace()]})
}

fn replace(pattern: Value, content: &str) -> Value {
    json!({"type": "Replace", "pattern": pattern, "content": content})
}

/// Blanks in a row become one.
fn single_blanks() -> Value {
    replace(json!({"Regex": " {2,}"}), " ")
}

/// Pieces in their order, and tokens for spans left out, numbered from the end.
fn t5(model: &Model, settings: &Settings<'_>) -> Result<Plan> {
    let (pad, eos, unk) = (
        settings.token("pad_token", "<pad>"),
        settings.token("eos_token", "</s>"),
        settings.token("unk_token", "<unk>"),
    );
    let count = settings.config.get("extra_ids").and_then(Value::as_u64);
    let count = count.unwrap_or(if settings.files.model_type == "mt5" { 0 } else { EXTRA_IDS });
    if count > MOST_EXTRA_IDS {
        return Err(settings.broken(format!("extra_ids is {count}; at most {MOST_EXTRA_IDS} are allowed")));
    }
    let extra: Vec<String> = (0..count).rev().map(|i| format!("<extra_id_{i}>")).collect();
    let mut vocabulary: Vec<_> = entries(model, 0).collect();
    vocabulary.extend(extra.iter().map(|token| (token.clone(), 0.0)));
    let added = [pad, eos.clone(), unk].into_iter().chain(extra).map(special).collect();
    Ok(Plan {
        entries: vocabulary,
        unknown: model.unknown,
        byte_fallback: model.byte_fallback,
        added,
        around: [vec![], vec![eos.clone()], vec![eos.clone()]],
        uses_charsmap: true,
        normalizers: vec![],
        pre_tokenizer: Some(words()),
        decoder: metaspace(),
        bos: None,
        eos: Some(eos),
        outside: None,
    })
}

/// A model without a class: pieces in their order, split as T5's are where the model has T5's settings, else
/// by SentencePiece's own steps. What is special and what stands around a text is the caller's.
pub(super) fn listed(model: &Model) -> Plan {
    let usual = model.dummy_prefix && model.remove_extra_whitespaces;
    let (normalizers, pre_tokenizer) = match usual {
        true => (vec![], Some(words())),
        false => (own_steps(model), None),
    };
    let mut decoder = metaspace();
    if !model.dummy_prefix {
        decoder["prepend_scheme"] = json!("never");
    }
    Plan {
        entries: entries(model, 0).collect(),
        unknown: model.unknown,
        byte_fallback: model.byte_fallback,
        added: vec![],
        around: [vec![], vec![], vec![]],
        uses_charsmap: true,
        normalizers,
        pre_tokenizer,
        decoder,
        bos: None,
        eos: None,
        outside: None,
    }
}

/// Pegasus: masks and a hundred unused tokens stand in front of the pieces.
fn pegasus(model: &Model, settings: &Settings<'_>) -> Result<Plan> {
    let offset = settings.config.get("offset").and_then(Value::as_u64).unwrap_or(PEGASUS_OFFSET);
    if offset != PEGASUS_OFFSET {
        return Err(settings.broken(format!("offset is {offset}; only {PEGASUS_OFFSET} is supported")));
    }
    if model.unknown < 2 {
        return Err(
            model.broken(format!("the unknown piece is {}; Pegasus has two before it", model.unknown))
        );
    }
    let (pad, eos) = (settings.token("pad_token", "<pad>"), settings.token("eos_token", "</s>"));
    let masks = [settings.token("mask_token_sent", "<mask_1>"), settings.token("mask_token", "<mask_2>")];
    let front = [pad.clone(), eos.clone()].into_iter().chain(masks.clone());
    let mut vocabulary: Vec<_> = front.map(|token| (token, 0.0)).collect();
    vocabulary.extend((2..offset).map(|i| (format!("<unk_{i}>"), -100.0)));
    vocabulary.extend(entries(model, 2));
    let unk = settings.token("unk_token", "<unk>");
    let unused = (2..offset).map(|i| format!("<unk_{i}>"));
    let added = [pad, eos.clone(), unk].into_iter().chain(masks).chain(unused).map(special).collect();
    Ok(Plan {
        entries: vocabulary,
        unknown: model.unknown + offset as usize,
        byte_fallback: model.byte_fallback,
        added,
        around: [vec![], vec![], vec![eos.clone()]],
        uses_charsmap: true,
        normalizers: vec![],
        pre_tokenizer: Some(words()),
        decoder: metaspace(),
        bos: None,
        eos: Some(eos),
        outside: None,
    })
}

/// LLaMA: pieces in their order, blanks kept, unknown characters by their bytes.
fn llama(model: &Model, settings: &Settings<'_>) -> Plan {
    let piece = |id: Option<usize>, usual: &str| id.map_or(usual.into(), |id| model.pieces[id].text.clone());
    let bos = settings.token("bos_token", &piece(model.bos, "<s>"));
    let eos = settings.token("eos_token", &piece(model.eos, "</s>"));
    let unk = settings.token("unk_token", &model.pieces[model.unknown].text);
    let mut added: Vec<Special> = [unk, bos.clone(), eos.clone()].into_iter().map(special).collect();
    for piece in &model.pieces {
        let is_special = piece.role == PieceType::Control;
        let known = added[..3].iter().any(|token| token.text == piece.text);
        if (is_special || piece.role == PieceType::UserDefined) && !known {
            added.push(Special { special: is_special, ..special(piece.text.clone()) });
        }
    }
    let prefix = settings.flag("add_prefix_space", true);
    let blank = || replace(json!({"String": " "}), "\u{2581}");
    // Without the habit of old versions a text that follows a special token has no blank of its own.
    let (normalizers, pre_tokenizer) = match (settings.flag("legacy", true), prefix) {
        (true, true) => (vec![json!({"type": "Prepend", "prepend": "\u{2581}"}), blank()], None),
        (true, false) => (vec![blank()], None),
        (false, _) => {
            let scheme = if prefix { "first" } else { "never" };
            let words = json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": scheme,
                "split": false});
            (vec![], Some(words))
        }
    };
    let mut decoders = vec![
        replace(json!({"String": "\u{2581}"}), " "),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let before: Vec<_> = settings.flag("add_bos_token", true).then(|| bos.clone()).into_iter().collect();
    let behind: Vec<_> = settings.flag("add_eos_token", false).then(|| eos.clone()).into_iter().collect();
    Plan {
        entries: entries(model, 0).collect(),
        unknown: model.unknown,
        byte_fallback: true,
        added,
        around: [before.clone(), [behind.clone(), before].concat(), behind],
        uses_charsmap: false,
        normalizers,
        pre_tokenizer,
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        bos: Some(bos),
        eos: Some(eos),
        outside: None,
    }
}

/// fairseq's order: its own four tokens, the pieces but their first three, languages, the mask.
fn fairseq(class: Class, model: &Model, settings: &Settings<'_>) -> Result<Plan> {
    let role = |id: usize| model.pieces.get(id).map(|piece| piece.role);
    if model.unknown != 0 || [1, 2].iter().any(|&id| role(id) != Some(PieceType::Control)) {
        return Err(model.broken("the first three pieces are not the unknown one and two of control"));
    }
    let front = [("bos_token", "<s>"), ("pad_token", "<pad>"), ("eos_token", "</s>"), ("unk_token", "<unk>")];
    let front = front.map(|(name, usual)| settings.token(name, usual));
    let mask = Special {
        lstrip: true,
        normalized: class == Class::Nllb,
        ..special(settings.token("mask_token", "<mask>"))
    };
    let codes: Vec<&str> = match class {
        Class::MBart => languages::MBART.split(' ').collect(),
        Class::MBart50 => languages::MBART.split(' ').chain(languages::MBART_50.split(' ')).collect(),
        Class::Nllb => languages::NLLB.split(' ').collect(),
        _ => Vec::new(),
    };
    let usual = if class == Class::Nllb { "eng_Latn" } else { "en_XX" };
    let code = match codes.is_empty() {
        true => None,
        false => Some(language(settings, usual, codes.iter().copied())?),
    };
    let tokens = |list: &[&String]| list.iter().map(|&t| t.clone()).collect::<Vec<_>>();
    let (bos, eos) = (front[0].clone(), front[2].clone());
    let around = match (&code, class) {
        (Some(code), Class::MBart) => [vec![], vec![], tokens(&[&eos, code])],
        (Some(code), Class::Nllb) if settings.flag("legacy_behaviour", false) => {
            [vec![], vec![], tokens(&[&eos, code])]
        }
        (Some(code), _) => [tokens(&[code]), vec![], tokens(&[&eos])],
        (None, _) => [tokens(&[&bos]), tokens(&[&eos, &eos]), tokens(&[&eos])],
    };
    let zero = |token: String| (token, 0.0);
    let mut vocabulary: Vec<_> = front.iter().cloned().map(zero).collect();
    vocabulary.extend(entries(model, 3));
    vocabulary.extend(codes.iter().map(|&code| zero(code.to_owned())));
    vocabulary.push(zero(mask.text.clone()));
    let added = front.into_iter().chain(codes.iter().map(|&code| code.to_owned())).map(special);
    Ok(Plan {
        entries: vocabulary,
        unknown: 3,
        byte_fallback: model.byte_fallback,
        added: added.chain([mask]).collect(),
        around,
        uses_charsmap: true,
        normalizers: vec![single_blanks()],
        pre_tokenizer: Some(if class == Class::Nllb { metaspace() } else { words() }),
        decoder: metaspace(),
        bos: Some(bos),
        eos: Some(eos),
        outside: None,
    })
}

/// SentencePiece's own steps, for tokenizers that call it.
fn own_steps(model: &Model) -> Vec<Value> {
    let mut steps = Vec::new();
    if model.remove_extra_whitespaces {
        steps.push(replace(json!({"Regex": "^ +"}), ""));
        steps.push(single_blanks());
        // The mark of a blank that stands in the text goes as well.
        steps.push(replace(json!({"Regex": "[ \u{2581}]+$"}), ""));
    }
    if model.dummy_prefix {
        steps.push(json!({"type": "Prepend", "prepend": "\u{2581}"}));
    }
    steps.push(replace(json!({"String": " "}), "\u{2581}"));
    steps
}

/// A plan whose ids are those of `vocab.json`.
fn own_vocabulary(model: &Model, added: Vec<Special>, around: [Vec<String>; 3], outside: Outside) -> Plan {
    Plan {
        entries: entries(model, 0).collect(),
        unknown: model.unknown,
        byte_fallback: model.byte_fallback,
        added,
        around,
        uses_charsmap: true,
        normalizers: own_steps(model),
        pre_tokenizer: None,
        decoder: metaspace(),
        bos: None,
        eos: None,
        outside: Some(outside),
    }
}

/// M2M-100: the ids of `vocab.json`, and languages behind them.
fn m2m_100(model: &Model, settings: &Settings<'_>) -> Result<Plan> {
    let list = match settings.token("language_codes", "m2m100").as_str() {
        "m2m100" => languages::M2M_100,
        "wmt21" => languages::WMT_21,
        other => {
            return Err(settings.broken(format!("language_codes is `{other}`; known are m2m100, wmt21")));
        }
    };
    let spelled = |code: &str| format!("__{code}__");
    let language = spelled(&language(settings, "en", list.split(' '))?);
    let mut vocab = settings.vocab_json()?;
    let behind = vocab.len() as u32;
    vocab.extend(list.split(' ').zip(behind..).map(|(code, id)| (spelled(code), id)));
    let (bos, eos) = (settings.token("bos_token", "<s>"), settings.token("eos_token", "</s>"));
    let (pad, unk) = (settings.token("pad_token", "<pad>"), settings.token("unk_token", "<unk>"));
    let outside = outside(settings, vocab, &unk)?;
    let mut added: Vec<Special> = [bos.clone(), eos.clone(), unk, pad].into_iter().map(special).collect();
    // Texts without special tokens keep the codes, as those of the reference do.
    added.extend(list.split(' ').map(|code| Special { special: false, ..special(spelled(code)) }));
    let plan = own_vocabulary(model, added, [vec![language], vec![], vec![eos.clone()]], outside);
    Ok(Plan { bos: Some(bos), eos: Some(eos), ..plan })
}

/// Marian: the source language's pieces with the ids of `vocab.json`, which has those of both languages.
fn marian(model: &Model, settings: &Settings<'_>) -> Result<Plan> {
    if settings.flag("separate_vocabs", false) {
        return Err(settings.broken("separate_vocabs is true; only one vocabulary is supported"));
    }
    let eos = settings.token("eos_token", "</s>");
    let (pad, unk) = (settings.token("pad_token", "<pad>"), settings.token("unk_token", "<unk>"));
    let outside = Outside { leading_codes: true, ..outside(settings, settings.vocab_json()?, &unk)? };
    let added = [eos.clone(), unk, pad].into_iter().map(special).collect();
    let plan = own_vocabulary(model, added, [vec![], vec![], vec![eos.clone()]], outside);
    Ok(Plan { eos: Some(eos), ..plan })
}

/// The language of texts, which must be one of `codes`.
fn language<'c>(
    settings: &Settings<'_>,
    usual: &str,
    mut codes: impl Iterator<Item = &'c str>,
) -> Result<String> {
    let code = settings.token("src_lang", usual);
    match codes.any(|known| known == code) {
        true => Ok(code),
        false => {
            Err(settings.broken(format!("src_lang is `{code}`, which is none of this class's languages")))
        }
    }
}

fn outside(settings: &Settings<'_>, vocab: BTreeMap<String, u32>, unknown: &str) -> Result<Outside> {
    let name = format!("{}vocab.json", settings.files.place);
    let Some(&unknown) = vocab.get(unknown) else {
        return Err(Error::format(name, format!("has no `{unknown}`, the unknown token")));
    };
    let mut tokens = BTreeMap::new();
    for (token, &id) in &vocab {
        if let Some(other) = tokens.insert(id, token.clone()) {
            return Err(Error::format(name, format!("`{other}` and `{token}` have both the id {id}")));
        }
    }
    Ok(Outside { ids: vocab.into_iter().collect(), tokens, unknown, leading_codes: false })
}

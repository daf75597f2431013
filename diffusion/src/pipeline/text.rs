//! The text encoders of pipelines: prompts to rows that a model of pictures reads.

use engraft_core::backend::Backend;
use engraft_core::checkpoint::{ModelFiles, TensorInfo};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Batch, EncoderInput, Engine, ForwardWant, Layers, Pick};
use engraft_core::inject::{self, inject};
use engraft_core::mem::Float;
use engraft_core::ops::Signature;
use engraft_core::policy::{Catalog, Part, Registry, resolve};
use engraft_core::text::Tokenizer;
use engraft_core::weights::{HostMatrix, LoadOptions};
use engraft_core::{Error, Result};
use serde_json::Value;
use std::sync::Arc;

/// Tokens of a text that T5 reads at most: distances have a bias however long a text is.
const MOST_TOKENS: usize = 512;

/// Tokens of a text that Gemma reads at most, with what stands in front of it.
const MOST_OF_GEMMA: usize = 1024;

/// Which encoder a folder has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    Clip,
    /// T5 or one of its family.
    T5,
    /// A decoder, whose last rows are read.
    Gemma,
}

impl Reader {
    fn of(files: &ModelFiles) -> Self {
        match files.config.get("model_type").and_then(Value::as_str).unwrap_or("") {
            known if known.ends_with("t5") => Self::T5,
            known if known.starts_with("gemma") => Self::Gemma,
            _ => Self::Clip,
        }
    }
}

/// A text encoder with its tokenizer: CLIP's, the encoder of a T5, or a Gemma.
pub(super) struct TextEncoder<B: Backend> {
    engine: Engine<B>,
    tokenizer: Tokenizer,
    /// Tokens of every text; of T5, most tokens.
    pub length: usize,
    pad: u32,
    width: usize,
    /// None of T5 and Gemma, whose last layer alone is read.
    final_norm: Option<FinalNorm>,
}

/// What is known of an encoder before a weight is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Tokens of every text.
    pub length: usize,
    /// Columns of a row.
    pub width: usize,
}

impl Sizes {
    /// Of an encoder's files and what `tokenizer_config.json` says.
    ///
    /// # Errors
    /// `Tensor` for a file without the last norm.
    pub fn of(files: &ModelFiles, config: &Value) -> Result<Self> {
        let field = |name: &str| files.config.get(name).and_then(Value::as_u64);
        let positions = field("max_position_embeddings");
        match Reader::of(files) {
            Reader::T5 => {
                let width = field("d_model").unwrap_or(512) as usize;
                return Ok(Self { length: MOST_TOKENS, width });
            }
            Reader::Gemma => {
                let length = positions.map_or(MOST_OF_GEMMA, |most| (most as usize).min(MOST_OF_GEMMA));
                return Ok(Self { length, width: field("hidden_size").unwrap_or(0) as usize });
            }
            Reader::Clip => {}
        }
        let positions = positions.unwrap_or(77);
        // Tokenizers without a limit name a number beyond all positions.
        let most = config.get("model_max_length").and_then(Value::as_u64).unwrap_or(positions);
        let width = final_norm(files, "weight")?.elements();
        Ok(Self { length: most.min(positions) as usize, width })
    }
}

/// A tensor of the norm behind the last layer.
fn final_norm<'f>(files: &'f ModelFiles, part: &str) -> Result<&'f TensorInfo> {
    let name = ["text_model.", ""].map(|prefix| format!("{prefix}final_layer_norm.{part}"));
    let found = name.iter().find_map(|name| files.source.find(name));
    found.ok_or_else(|| Error::tensor(&name[0], format!("is not in {}", files.source.file())))
}

/// Refuses an encoder whose tensors are others than its configuration asks for, and one that the backend
/// cannot run, before a weight is read.
///
/// # Errors
/// What recognising it raises; `Unsupported`, naming op, operand and reason.
pub(super) fn check<B: Backend>(backend: &Arc<B>, files: &ModelFiles, dtype: Float) -> Result<()> {
    let (spec, policy, config) = inject::describe(files, &Registry::default())?;
    let catalog = Catalog::new(files.source.tensors());
    let resolved = resolve(policy.as_ref(), &spec, &config, catalog)?;
    let coverage = |signature: &Signature| backend.coverage(signature);
    let (source, options) = (files.source.as_ref(), options(dtype));
    inject::check(backend.name(), &coverage, source, &spec, &resolved, options).map(drop)
}

/// How encoders are loaded.
fn options(dtype: Float) -> LoadOptions {
    LoadOptions { dtype: Some(dtype), ..LoadOptions::default() }
}

/// What an encoder says of a text.
pub(super) struct Encoded {
    /// `[length, width]`.
    pub rows: Vec<f32>,
    /// The row of the end token, projected by encoders that project; none of T5.
    pub pooled: Vec<f32>,
}

/// Which rows of an encoder are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layer {
    /// Layers at the end that are left out.
    pub skipped: usize,
    /// Whether the last norm follows.
    pub normed: bool,
}

/// The norm behind the last layer, on the host: of layers before it, whose rows the engine gives as they are.
struct FinalNorm {
    weight: Vec<f32>,
    bias: Vec<f32>,
    eps: f64,
}

impl FinalNorm {
    fn read(files: &ModelFiles) -> Result<Self> {
        let vector = |part: &str| -> Result<Vec<f32>> {
            let tensor = final_norm(files, part)?;
            HostMatrix::new(tensor, files.source.bytes(&tensor.name)?, Part::Bias)?.to_f32()
        };
        let eps = files.config.get("layer_norm_eps").and_then(Value::as_f64).unwrap_or(1e-5);
        Ok(Self { weight: vector("weight")?, bias: vector("bias")?, eps })
    }

    fn apply(&self, rows: &mut [f32]) {
        for row in rows.chunks_exact_mut(self.weight.len().max(1)) {
            let count = row.len() as f64;
            let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
            let variance = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count;
            let factor = 1.0 / (variance + self.eps).sqrt();
            for ((x, weight), bias) in row.iter_mut().zip(&self.weight).zip(&self.bias) {
                *x = ((f64::from(*x) - mean) * factor * f64::from(*weight) + f64::from(*bias)) as f32;
            }
        }
    }
}

/// The number of the token that fills up texts; of Gemma none does.
///
/// # Errors
/// `Config` for one that is none.
fn pad_token(reader: Reader, tokenizer: &Tokenizer, config: &Value) -> Result<u32> {
    let named = config.get("pad_token");
    let named = named.and_then(|pad| pad.as_str().or_else(|| pad.get("content")?.as_str()));
    let pad = match reader {
        Reader::Gemma => return Ok(0),
        Reader::T5 => named.unwrap_or("<pad>"),
        Reader::Clip => named.or(tokenizer.eos_token()).unwrap_or("<|endoftext|>"),
    };
    let missing = || Error::config("pad_token", pad, "a token of the vocabulary");
    tokenizer.token_id(pad).ok_or_else(missing)
}

impl<B: Backend> TextEncoder<B> {
    /// Loads an encoder.
    ///
    /// # Errors
    /// What recognising and loading it raise; `Config` for a pad token that is none.
    pub fn load(
        backend: &Arc<B>,
        files: &ModelFiles,
        (tokenizer, config): (Tokenizer, Value),
        dtype: Float,
    ) -> Result<Self> {
        let reader = Reader::of(files);
        let Sizes { length, .. } = Sizes::of(files, &config)?;
        let pad = pad_token(reader, &tokenizer, &config)?;
        let engine = EngineConfig {
            // A text is read once: nothing is found again.
            prefix_cache: false,
            dtype,
            kv_dtype: dtype.into(),
            max_context: length,
            max_step_tokens: (length * 2).max(1),
            max_seqs: 2,
            ..EngineConfig::default()
        };
        let final_norm = (reader == Reader::Clip).then(|| FinalNorm::read(files)).transpose()?;
        let model = inject(backend, files, &Registry::default(), length, options(dtype), &mut |_, _| {})?;
        let engine = Engine::new(backend.clone(), model, engine)?;
        let width = engine.model().spec.hidden;
        Ok(Self { engine, tokenizer, length, pad, width, final_norm })
    }

    /// Columns of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Ids of a text, at most so many: what is too long ends early.
    ///
    /// # Errors
    /// What tokenizing raises.
    fn ids(&self, text: &str, length: usize) -> Result<Vec<u32>> {
        self.tokenizer.encode_truncated(text, true, length)
    }

    /// Notes the texts of which the beginning alone is read, each once.
    ///
    /// # Errors
    /// What tokenizing raises.
    pub fn note_long(&self, texts: &[String], length: usize, all: &mut Vec<(String, usize)>) -> Result<()> {
        for text in texts {
            let known = all.iter().any(|(known, tokens)| (known, *tokens) == (text, length));
            if !known && self.ids(text, length + 1)?.len() > length {
                all.push((text.clone(), length));
            }
        }
        Ok(())
    }

    /// Rows of the last layer for the tokens of each text alone, at most so many: nothing is padded.
    ///
    /// # Errors
    /// What the engine raises.
    pub fn encode_short(&mut self, texts: &[String], length: usize) -> Result<Vec<Vec<f32>>> {
        let ids = texts.iter().map(|text| self.ids(text, length).map(EncoderInput::from));
        let encoded = self.engine.encode(&ids.collect::<Result<Vec<_>>>()?, Layers::Last)?;
        Ok(encoded.into_iter().map(|mut encoded| encoded.hidden.pop().unwrap_or_default()).collect())
    }

    /// Tokens of a text.
    ///
    /// # Errors
    /// What tokenizing raises.
    pub fn count(&self, text: &str) -> Result<usize> {
        Ok(self.ids(text, usize::MAX)?.len())
    }

    /// The same of a decoder.
    ///
    /// # Errors
    /// `Config` for more tokens than it reads; what the engine raises.
    pub fn forward_short(&mut self, texts: &[String], length: usize) -> Result<Vec<Vec<f32>>> {
        if length > self.length {
            let allowed = format!("at most {}, the instruction included", self.length);
            return Err(Error::config("max_sequence_length", format!("{length} tokens"), allowed));
        }
        let ids = texts.iter().map(|text| self.ids(text, length)).collect::<Result<Vec<_>>>()?;
        let want = ForwardWant { hidden: Pick::Last, logits: Pick::None };
        let read = self.engine.forward(Batch::Ragged(&ids), &want)?;
        Ok(read.into_iter().map(|mut read| read.hidden.pop().unwrap_or_default()).collect())
    }

    /// Rows of texts, each padded to so many tokens.
    ///
    /// # Errors
    /// `Config` for more layers left out than there are; what the engine raises.
    pub fn encode(&mut self, texts: &[String], length: usize, rows: Layer) -> Result<Vec<Encoded>> {
        let padded = |text: &String| {
            let mut ids = self.ids(text, length)?;
            ids.resize(length, self.pad);
            Ok(EncoderInput::from(ids))
        };
        let ids: Vec<EncoderInput> = texts.iter().map(padded).collect::<Result<_>>()?;
        let encoded = self.engine.encode(&ids, Layers::All)?;
        let one = |mut encoded: engraft_core::engine::Encoded| {
            let last = encoded.hidden.len().saturating_sub(1);
            if rows.skipped > last || rows.skipped == last && last == 0 {
                let allowed = format!("less than the {last} layers");
                return Err(Error::config("clip_skip", rows.skipped, allowed));
            }
            let mut own = encoded.hidden.swap_remove(last - rows.skipped);
            // The engine has normed the last.
            if let Some(norm) = self.final_norm.as_ref().filter(|_| rows.normed && rows.skipped > 0) {
                norm.apply(&mut own);
            }
            Ok(Encoded { rows: own, pooled: encoded.pooled })
        };
        encoded.into_iter().map(one).collect()
    }
}

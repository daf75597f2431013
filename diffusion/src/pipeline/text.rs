//! The text encoders of pipelines: prompts to rows that a UNet reads.

use engraft_core::backend::Backend;
use engraft_core::checkpoint::{ModelFiles, TensorInfo};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{EncoderInput, Engine, Layers};
use engraft_core::inject::inject;
use engraft_core::mem::Float;
use engraft_core::policy::{Part, Registry};
use engraft_core::text::Tokenizer;
use engraft_core::weights::{HostMatrix, LoadOptions};
use engraft_core::{Error, Result};
use serde_json::Value;
use std::sync::Arc;

/// A CLIP text encoder with its tokenizer.
pub(super) struct TextEncoder<B: Backend> {
    engine: Engine<B>,
    tokenizer: Tokenizer,
    /// Tokens of every text.
    pub length: usize,
    pad: u32,
    final_norm: FinalNorm,
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
        let positions = files.config.get("max_position_embeddings").and_then(Value::as_u64).unwrap_or(77);
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

/// What an encoder says of a text.
pub(super) struct Encoded {
    /// `[length, width]`.
    pub rows: Vec<f32>,
    /// The projected row of the end token, of encoders that project.
    pub pooled: Vec<f32>,
}

/// Which rows of an encoder a UNet reads.
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
        let Sizes { length, .. } = Sizes::of(files, &config)?;
        let pad = config.get("pad_token");
        let pad = pad.and_then(|pad| pad.as_str().or_else(|| pad.get("content")?.as_str()));
        let pad = pad.or(tokenizer.eos_token()).unwrap_or("<|endoftext|>").to_string();
        let missing = || Error::config("pad_token", &pad, "a token of the vocabulary");
        let pad = tokenizer.token_id(&pad).ok_or_else(missing)?;
        let engine = EngineConfig {
            dtype,
            kv_dtype: dtype,
            max_context: length,
            max_step_tokens: (length * 2).max(1),
            max_seqs: 2,
            ..EngineConfig::default()
        };
        let final_norm = FinalNorm::read(files)?;
        let options = LoadOptions { dtype: Some(dtype), ..LoadOptions::default() };
        let model = inject(backend, files, &Registry::default(), length, options, &mut |_, _| {})?;
        let engine = Engine::new(backend.clone(), model, engine)?;
        Ok(Self { engine, tokenizer, length, pad, final_norm })
    }

    /// Columns of a row.
    pub fn width(&self) -> usize {
        self.final_norm.weight.len()
    }

    /// Ids of a text, as many as the encoder reads: what is too long ends early, what is too short is padded.
    ///
    /// # Errors
    /// What tokenizing raises.
    fn ids(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = self.tokenizer.encode_truncated(text, true, self.length)?;
        ids.resize(self.length, self.pad);
        Ok(ids)
    }

    /// Whether a text has more tokens than the encoder reads.
    ///
    /// # Errors
    /// What tokenizing raises.
    pub fn is_too_long(&self, text: &str) -> Result<bool> {
        Ok(self.tokenizer.encode_truncated(text, true, self.length + 1)?.len() > self.length)
    }

    /// Rows of texts.
    ///
    /// # Errors
    /// `Config` for more layers left out than there are; what the engine raises.
    pub fn encode(&mut self, texts: &[String], rows: Layer) -> Result<Vec<Encoded>> {
        let ids: Vec<EncoderInput> =
            texts.iter().map(|text| self.ids(text).map(EncoderInput::from)).collect::<Result<_>>()?;
        let encoded = self.engine.encode(&ids, Layers::All)?;
        let one = |mut encoded: engraft_core::engine::Encoded| {
            let last = encoded.hidden.len().saturating_sub(1);
            if rows.skipped > last || rows.skipped == last && last == 0 {
                let allowed = format!("less than the {last} layers");
                return Err(Error::config("clip_skip", rows.skipped, allowed));
            }
            let mut own = encoded.hidden.swap_remove(last - rows.skipped);
            // The engine has normed the last.
            if rows.normed && rows.skipped > 0 {
                self.final_norm.apply(&mut own);
            }
            Ok(Encoded { rows: own, pooled: encoded.pooled })
        };
        encoded.into_iter().map(one).collect()
    }
}

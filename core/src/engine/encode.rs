//! Encoders: whole texts or images in, hidden states, pooled rows and head outputs out; no KV cache.

use super::executor::StreamExecutor;
use super::kept::read_f32;
use super::*;
use crate::backend::block_on;
use crate::mem::{MatRef, SKIP, StepShape};
use crate::model::Exec;
use crate::ops::{Checked, Convert, Run};
use crate::policy::{Family, HeadSpec, PatchSpec, PoolSource};

/// One text of an encoder batch.
///
/// ```
/// use engraft_core::engine::EncoderInput;
///
/// let plain = EncoderInput::from(vec![101, 2054, 102]);
/// assert!(plain.token_type_ids.is_empty(), "all of type 0");
/// let typed = EncoderInput { ids: vec![101, 2054, 102, 1996, 102], token_type_ids: vec![0, 0, 0, 1, 1] };
/// assert_eq!(typed.ids.len(), typed.token_type_ids.len());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncoderInput {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Token types; empty counts as all 0.
    pub token_type_ids: Vec<u32>,
}

impl From<Vec<u32>> for EncoderInput {
    /// A text without token types.
    fn from(ids: Vec<u32>) -> Self {
        Self { ids, token_type_ids: Vec::new() }
    }
}

/// What an encoder says of one text; absent parts are empty.
///
/// The library's `EngineHandle::encode` gives it.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Encoded {
    /// Hidden states `[tokens, hidden]` of every layer, if asked for; else of the last only.
    pub hidden: Vec<Vec<f32>>,
    /// Token logits `[tokens, vocab]` in an engine with [`EngineConfig::all_logits`], or label logits
    /// `[labels]`.
    pub logits: Vec<f32>,
    /// Pooled row, after its projection where there is one.
    pub pooled: Vec<f32>,
}

impl<B: Backend> Engine<B> {
    /// Encodes texts in steps of as many as fit; `all_layers` keeps every layer's hidden states.
    ///
    /// # Errors
    /// `Architecture` for decoders; `Request` (numbered by text) for empty or too long texts, ids beyond a
    /// table.
    pub fn encode(&mut self, texts: &[EncoderInput], all_layers: bool) -> Result<Vec<Encoded>> {
        let spec = &self.model.spec;
        let no = |reason: &str| {
            let (op, arch) = ("encode".into(), spec.arch.clone());
            Err(Error::Architecture { op, arch, reason: reason.into() })
        };
        match (spec.family, spec.embed.patches) {
            (Family::Decoder, _) => return no("this model is a decoder: put requests"),
            (_, Some(_)) => return no("this model reads images: use encode_images"),
            _ => {}
        }
        for (i, text) in texts.iter().enumerate() {
            self.check_text(i as u64, text)?;
        }
        self.encode_all(texts, &[], all_layers)
    }

    /// Encodes images, each `[channels, side, side]` normalised pixels, as [`Engine::encode`] does texts.
    /// Hidden states have a row for the class token, then one per square, row by row.
    ///
    /// # Errors
    /// `Architecture` for models of texts; `Request` (numbered by image) for another number of pixels than
    /// the model's, or an engine whose steps cannot hold an image.
    pub fn encode_images(&mut self, images: &[&[f32]], all_layers: bool) -> Result<Vec<Encoded>> {
        let spec = &self.model.spec;
        let Some(patches) = spec.embed.patches else {
            return Err(Error::Architecture {
                op: "encode_images".into(),
                arch: spec.arch.clone(),
                reason: "this model reads texts".into(),
            });
        };
        let (rows, most) = (patches.count() + 1, self.config.max_context.min(self.config.max_step_tokens));
        let pixels = patches.channels * patches.image * patches.image;
        for (i, image) in images.iter().enumerate() {
            let no = |what: String| Err(Error::Request { id: i as u64, what });
            if image.len() != pixels {
                return no(format!("the image has {} values; the model takes {pixels}", image.len()));
            }
            if rows > most {
                return no(format!("an image takes {rows} rows; the engine's steps have {most}"));
            }
        }
        // Row 0 is the class token: kind 0 adds its vector, kind 1 (beyond the table) adds nothing.
        let token_type_ids: Vec<u32> = (0..rows).map(|r| u32::from(r > 0)).collect();
        let texts = vec![EncoderInput { ids: vec![0; rows], token_type_ids }; images.len()];
        let image_patches: Vec<Vec<f32>> = images.iter().map(|image| image_patches(image, patches)).collect();
        self.encode_all(&texts, &image_patches, all_layers)
    }

    /// In steps of as many as fit; `image_patches` are the rows of pixels of each, or none.
    fn encode_all(
        &mut self,
        texts: &[EncoderInput],
        image_patches: &[Vec<f32>],
        all_layers: bool,
    ) -> Result<Vec<Encoded>> {
        self.make_wide()?;
        let mut encoded = Vec::with_capacity(texts.len());
        let mut from = 0;
        while from < texts.len() {
            let mut tokens = 0;
            let fits = texts[from..].iter().take(self.config.max_seqs).take_while(|t| {
                tokens += t.ids.len();
                tokens <= self.config.max_step_tokens
            });
            let to = from + fits.count();
            self.upload_image_patches(image_patches.get(from..to).unwrap_or_default())?;
            self.encode_step(&texts[from..to], all_layers, &mut encoded)?;
            from = to;
        }
        Ok(encoded)
    }

    /// Puts rows of pixels where the embedding reads them.
    fn upload_image_patches(&mut self, image_patches: &[Vec<f32>]) -> Result<()> {
        let Self { state, stream, .. } = self;
        let (Some(pixels), Some(to)) = (&mut state.scratch.pixels, &mut state.scratch.image_patches) else {
            return Ok(());
        };
        let all = image_patches.concat();
        let rows = all.len() / pixels.cols();
        stream.upload(&all, pixels.view_mut(rows)?.into_f32()?)?;
        stream.run(Checked::new(Convert { x: pixels.view(rows)?, out: to.view_mut(rows)? })?)
    }

    fn check_text(&self, id: u64, text: &EncoderInput) -> Result<()> {
        let (spec, len) = (&self.model.spec, text.ids.len());
        let most = self.config.max_context.min(self.config.max_step_tokens);
        let no = |what: String| Err(Error::Request { id, what });
        if len == 0 || len > most {
            return no(format!("the text has {len} tokens; 1 to {most} are possible"));
        }
        if let Some(bad) = text.ids.iter().find(|t| **t as usize >= spec.vocab) {
            return no(format!("token {bad} is beyond the vocabulary of {}", spec.vocab));
        }
        if !text.token_type_ids.is_empty() && text.token_type_ids.len() != len {
            return no(format!("{} token types for {len} tokens", text.token_type_ids.len()));
        }
        let token_types = spec.embed.token_types.unwrap_or(1);
        if let Some(bad) = text.token_type_ids.iter().find(|k| **k as usize >= token_types) {
            return no(format!("token type {bad}; below {token_types} is possible"));
        }
        Ok(())
    }

    /// Rows that the head reads: the pooled row of a text, or all.
    fn head_rows(&self, text: &EncoderInput) -> usize {
        match self.model.spec.head {
            HeadSpec::Tokens { .. } if self.config.all_logits => text.ids.len(),
            HeadSpec::Tokens { .. } => 0,
            HeadSpec::Labels { .. } => 1,
            HeadSpec::None => usize::from(self.model.spec.pooler.is_some()),
        }
    }

    /// The first of those rows: where there is one alone, it is the pooled one.
    pub(super) fn first_row(&self, text: &EncoderInput) -> usize {
        let last = text.ids.len() - 1;
        let find = |id: u32| text.ids.iter().position(|t| *t == id);
        match (self.model.spec.head, self.model.spec.pooler) {
            (HeadSpec::Tokens { .. }, _) | (_, None) => 0,
            (_, Some(pool)) => match pool.from {
                PoolSource::First => 0,
                PoolSource::Last => last,
                PoolSource::LastExcept(id) => text.ids.iter().rposition(|t| *t != id).unwrap_or(0),
                PoolSource::Token(id) => find(id).unwrap_or(last),
                PoolSource::LargestToken => text.ids.iter().max().and_then(|id| find(*id)).unwrap_or(last),
            },
        }
    }

    fn encode_step(
        &mut self,
        texts: &[EncoderInput],
        all_layers: bool,
        encoded: &mut Vec<Encoded>,
    ) -> Result<()> {
        let rows: Vec<usize> = texts.iter().map(|t| self.head_rows(t)).collect();
        let longest = texts.iter().map(|t| t.ids.len()).max().unwrap_or(0);
        let shape = StepShape {
            tokens: texts.iter().map(|t| t.ids.len()).sum(),
            seqs: texts.len(),
            rows: rows.iter().sum(),
            table_edits: 0,
            max_query: longest,
            max_keys: longest,
        };
        self.fill_texts(texts, &rows, shape)?;
        let mut results = vec![Encoded::default(); texts.len()];
        let mut probe = self.new_probe();
        let layers = self.model.blocks.len();
        let Self { state, eager, stream, comm, model, .. } = self;
        let Eager { step, plan, wide } = eager;
        let mut tap = |stream: &mut B::Stream, layer: usize, hidden: MatRef<'_, Mem<B>>| {
            if !all_layers && layer < layers {
                return Ok(());
            }
            let wide = wide.as_mut().ok_or_else(|| lost("the buffer for hidden states"))?;
            let values = read_f32::<B>(stream, wide, hidden)?;
            let mut from = 0;
            for (text, result) in texts.iter().zip(&mut results) {
                let end = from + text.ids.len() * hidden.cols();
                result.hidden.push(values[from..end].to_vec());
                from = end;
            }
            Ok(())
        };
        let mut live = StreamExecutor::<B> { stream, comm, probe: probe.as_mut(), tap: Some(&mut tap) };
        model.step(&mut Exec::new(&mut live), state, step.view()?, plan)?;
        self.read_heads(&rows, shape.rows, &mut results)?;
        if let (Some(probe), Some(profile)) = (probe, &mut self.profile) {
            self.stream.sync()?;
            profile.append(probe.resolve::<B>(&mut self.stream)?);
        }
        encoded.append(&mut results);
        Ok(())
    }

    fn fill_texts(&mut self, texts: &[EncoderInput], rows: &[usize], shape: StepShape) -> Result<()> {
        let firsts: Vec<usize> = texts.iter().map(|t| self.first_row(t)).collect();
        let mut fill = self.eager.step.begin(shape)?;
        let (mut token, mut row) = (0, 0);
        for (s, (text, wanted)) in texts.iter().zip(rows).enumerate() {
            for r in 0..*wanted {
                fill.want(row, (token + firsts[s] + r) as u32, None);
                row += 1;
            }
            for (position, id) in text.ids.iter().enumerate() {
                let token_type = text.token_type_ids.get(position).copied().unwrap_or(0);
                fill.token(token, *id, position as u32, SKIP, token_type);
                token += 1;
            }
            fill.seq(s, token, 0, text.ids.len() as u32);
        }
        let (words, to) = self.eager.step.upload_parts();
        self.stream.upload(words, to)?;
        self.stream.plan_attention(shape, &mut self.eager.plan)
    }

    fn read_heads(&mut self, rows: &[usize], total: usize, results: &mut [Encoded]) -> Result<()> {
        if total == 0 {
            return Ok(());
        }
        let Self { state, stream, eager, .. } = self;
        if let Some(logits) = &state.scratch.logits {
            let mut values = vec![0.0; total * logits.cols()];
            let ticket = stream.download(logits.view(total)?.as_f32()?)?;
            block_on(stream.collect(ticket, &mut values))?;
            share(&values, logits.cols(), rows, results.iter_mut().map(|r| &mut r.logits));
        }
        if let (Some(pooled), Some(wide)) = (&state.scratch.pooled, &mut eager.wide) {
            let values = read_f32::<B>(stream, wide, pooled.view(total)?)?;
            share(&values, pooled.cols(), rows, results.iter_mut().map(|r| &mut r.pooled));
        }
        Ok(())
    }
}

/// Pixels `[channels, side, side]` as rows `[1 + patches, channels * patch * patch]`: zeros for the
/// class token, then the squares, row by row.
fn image_patches(image: &[f32], p: PatchSpec) -> Vec<f32> {
    let per_side = p.image / p.patch;
    let mut rows = vec![0.0; p.values()];
    for (y, x) in (0..per_side).flat_map(|y| (0..per_side).map(move |x| (y, x))) {
        for (channel, line) in (0..p.channels).flat_map(|c| (0..p.patch).map(move |l| (c, l))) {
            let at = (channel * p.image + y * p.patch + line) * p.image + x * p.patch;
            rows.extend_from_slice(&image[at..at + p.patch]);
        }
    }
    rows
}

/// Splits rows among their texts.
fn share<'a>(values: &[f32], cols: usize, rows: &[usize], to: impl Iterator<Item = &'a mut Vec<f32>>) {
    let mut from = 0;
    for (count, to) in rows.iter().zip(to) {
        let end = from + count * cols;
        to.extend_from_slice(&values[from..end]);
        from = end;
    }
}

//! Encoders: whole texts in, hidden states, pooled rows and head outputs out; no KV cache.

use super::capture::read_f32;
use super::*;
use crate::backend::{Exec, PrimitiveOps, Table, block_on};
use crate::mem::{MatRef, SKIP, StepShape};
use crate::model::StepInputs;
use crate::policy::{Family, HeadSpec};

/// One text of an encoder batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncoderInput {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Token types; empty counts as all 0.
    pub kinds: Vec<u32>,
}

/// What an encoder says of one text; absent parts are empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Encoded {
    /// Hidden states `[tokens, hidden]` of every layer, if asked for; else of the last only.
    pub hidden: Vec<Vec<f32>>,
    /// Token logits `[tokens, vocab]`, or label logits `[labels]`.
    pub logits: Vec<f32>,
    /// Pooled first token `[hidden]`.
    pub pooled: Vec<f32>,
}

impl<B: Backend> Engine<B> {
    /// Encodes texts in steps of as many as fit; `all_layers` keeps every layer's hidden states.
    ///
    /// # Errors
    /// `Unsupported` for decoders; `Request` (numbered by text) for empty or too long texts, ids beyond a table.
    pub fn encode(&mut self, texts: &[EncoderInput], all_layers: bool) -> Result<Vec<Encoded>> {
        if self.model.spec.family != Family::Encoder {
            return Err(Error::Unsupported {
                op: "encode".into(),
                backend: self.model.spec.arch.clone(),
                reason: "this model is a decoder: put requests".into(),
            });
        }
        for (i, text) in texts.iter().enumerate() {
            self.check_text(i as u64, text)?;
        }
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
            self.encode_step(&texts[from..to], all_layers, &mut encoded)?;
            from = to;
        }
        Ok(encoded)
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
        if !text.kinds.is_empty() && text.kinds.len() != len {
            return no(format!("{} token types for {len} tokens", text.kinds.len()));
        }
        let kinds = spec.embed.kinds.unwrap_or(1);
        if let Some(bad) = text.kinds.iter().find(|k| **k as usize >= kinds) {
            return no(format!("token type {bad}; below {kinds} is possible"));
        }
        Ok(())
    }

    /// Rows that the head reads: the first token of a text, or all.
    fn head_rows(&self, text: &EncoderInput) -> usize {
        match self.model.spec.head {
            HeadSpec::Tokens { .. } if self.config.all_logits => text.ids.len(),
            HeadSpec::Tokens { .. } => 0,
            HeadSpec::Labels { .. } => 1,
            HeadSpec::None => usize::from(self.model.spec.pooler),
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
            patches: 0,
            max_query: longest,
            max_keys: longest,
        };
        self.fill_texts(texts, &rows, shape)?;
        let mut results = vec![Encoded::default(); texts.len()];
        let mut probe = self.new_probe();
        let layers = self.model.blocks.len();
        let Self { device, eager, stream, comm, model, .. } = self;
        let Eager { step, plan, wide } = eager;
        let mut tap = |stream: &mut B::Stream, layer: usize, hidden: MatRef<'_, B::Mem>| {
            if !all_layers && layer < layers {
                return Ok(());
            }
            let wide = wide.as_mut().ok_or_else(|| lost("the buffer for hidden states"))?;
            let values = read_f32::<B>(stream, wide, hidden)?;
            let mut from = 0;
            for (text, result) in texts.iter().zip(&mut results) {
                let end = from + text.ids.len() * hidden.cols;
                result.hidden.push(values[from..end].to_vec());
                from = end;
            }
            Ok(())
        };
        let view = step.view();
        let table = Table { pages: device.table.view(), stride: 1 };
        let inputs = StepInputs { view, kv: &device.kv, table, plan };
        let mut x = Exec { stream, comm, probe: probe.as_mut() };
        model.forward(&mut x, &inputs, &mut device.scratch, Some(&mut tap))?;
        self.read_heads(&rows, shape.rows, &mut results)?;
        if let (Some(probe), Some(profile)) = (probe, &mut self.profile) {
            self.stream.sync()?;
            profile.append(probe.resolve::<B>(&mut self.stream)?);
        }
        encoded.append(&mut results);
        Ok(())
    }

    fn fill_texts(&mut self, texts: &[EncoderInput], rows: &[usize], shape: StepShape) -> Result<()> {
        let mut fill = self.eager.step.begin(shape)?;
        let (mut token, mut row) = (0, 0);
        for (s, (text, wanted)) in texts.iter().zip(rows).enumerate() {
            for r in 0..*wanted {
                fill.want(row, (token + r) as u32, None);
                row += 1;
            }
            for (position, id) in text.ids.iter().enumerate() {
                let kind = text.kinds.get(position).copied().unwrap_or(0);
                fill.token(token, *id, position as u32, SKIP, kind);
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
        let Self { device, stream, eager, .. } = self;
        if let Some(logits) = &device.scratch.logits {
            let mut values = vec![0.0; total * logits.cols()];
            let ticket = stream.download(logits.view(total).as_f32()?)?;
            block_on(stream.collect(ticket, &mut values))?;
            share(&values, logits.cols(), rows, results.iter_mut().map(|r| &mut r.logits));
        }
        if let (Some(pooled), Some(wide)) = (&device.scratch.pooled, &mut eager.wide) {
            let values = read_f32::<B>(stream, wide, pooled.view(total))?;
            share(&values, pooled.cols(), rows, results.iter_mut().map(|r| &mut r.pooled));
        }
        Ok(())
    }
}

/// Cuts rows among their texts.
fn share<'a>(values: &[f32], cols: usize, rows: &[usize], to: impl Iterator<Item = &'a mut Vec<f32>>) {
    let mut from = 0;
    for (count, to) in rows.iter().zip(to) {
        let end = from + count * cols;
        to.extend_from_slice(&values[from..end]);
        from = end;
    }
}

//! Encoders: whole texts or images in, hidden states, pooled rows and head outputs out; no KV cache.

use super::api::Engine;
use super::input::{Encoded, EncoderInput, ForwardWant, Pick};
use super::kept::Kept;
use super::request::Layers;
use super::texts::Texts;
use crate::backend::Backend;
use crate::policy::{Family, PatchSpec};
use crate::{Error, Result};

impl<B: Backend> Engine<B> {
    /// Encodes texts in steps of as many as fit, and keeps the hidden states of `layers`.
    ///
    /// # Errors
    /// `Architecture` for decoders; `Request` (numbered by text) for empty or too long texts, ids beyond a
    /// table.
    pub fn encode(&mut self, texts: &[EncoderInput], layers: Layers) -> Result<Vec<Encoded>> {
        let queued = self.submit_encode(texts, layers)?;
        self.run_until(queued.ids())?;
        self.take_encoded(queued)
    }

    /// Encodes images, each `[channels, side, side]` normalised pixels, as [`Engine::encode`] does texts.
    /// Hidden states have a row for the class token, then one per patch; patches go by rows of the image.
    ///
    /// # Errors
    /// `Architecture` for models of texts; `Request` (numbered by image) for another number of pixels than
    /// the model's, or an engine whose steps cannot hold an image.
    pub fn encode_images(&mut self, images: &[&[f32]], layers: Layers) -> Result<Vec<Encoded>> {
        let queued = self.submit_images(images, layers)?;
        self.run_until(queued.ids())?;
        self.take_encoded(queued)
    }

    /// Queues texts to encode.
    ///
    /// # Errors
    /// As [`Engine::encode`].
    pub fn submit_encode(&mut self, texts: &[EncoderInput], layers: Layers) -> Result<Texts> {
        let spec = &self.model().spec;
        let no = |reason: &str| {
            let (op, arch) = ("encode".into(), spec.arch.clone());
            Err(Error::Architecture { op, arch, reason: reason.into() })
        };
        match (spec.family, spec.embed.patches) {
            (Family::Decoder, _) => {
                return no("a decoder encodes nothing; `forward` and `embed` give its hidden states");
            }
            (_, Some(_)) => return no("this model reads images; `encode_images` takes them"),
            _ => {}
        }
        self.submit_texts(texts, &of_layers(layers))
    }

    /// Queues images to encode.
    ///
    /// # Errors
    /// As [`Engine::encode_images`].
    pub fn submit_images(&mut self, images: &[&[f32]], layers: Layers) -> Result<Texts> {
        let spec = &self.model().spec;
        let Some(patches) = spec.embed.patches else {
            return Err(Error::Architecture {
                op: "encode_images".into(),
                arch: spec.arch.clone(),
                reason: "this model reads texts".into(),
            });
        };
        let config = self.config();
        let (rows, most) = (patches.count() + 1, config.text_tokens());
        let pixels = patches.channels * patches.image * patches.image;
        for (i, image) in images.iter().enumerate() {
            let no = |what: String| Err(Error::Request { id: i as u64, what });
            if image.len() != pixels {
                return no(format!("the image has {} values; the model takes {pixels}", image.len()));
            }
            if rows > most {
                let limit = config.text_limit(self.model().spec.max_positions);
                return no(format!("an image takes {rows} positions; at most {limit}"));
            }
        }
        // Row 0 is the class token: token type 0 adds its vector, type 1 (beyond the table) adds nothing.
        let token_type_ids: Vec<u32> = (0..rows).map(|r| u32::from(r > 0)).collect();
        let text = EncoderInput { ids: vec![0; rows], token_type_ids, ..EncoderInput::default() };
        let images = images.iter().map(|image| (&text, image_patches(image, patches)));
        self.enqueue_whole(images, &of_layers(layers))
    }

    /// What the encoder says of texts or images whose requests have ended.
    ///
    /// # Errors
    /// `Internal` where one has not.
    pub fn take_encoded(&mut self, texts: Texts) -> Result<Vec<Encoded>> {
        let encoded = |kept: Kept| Encoded { hidden: kept.hidden, logits: kept.logits, pooled: kept.pooled };
        Ok(self.take_texts(texts)?.into_iter().map(encoded).collect())
    }
}

fn of_layers(layers: Layers) -> ForwardWant {
    let hidden = match layers {
        Layers::None => Pick::None,
        Layers::Last => Pick::Last,
        Layers::All => Pick::All,
    };
    ForwardWant { hidden, logits: Pick::None }
}

/// Pixels `[channels, side, side]` as rows `[1 + patches, channels * patch * patch]`: zeros for the
/// class token, then the patches, by rows of the image.
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

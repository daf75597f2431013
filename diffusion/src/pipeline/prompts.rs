//! Prompts to what a UNet reads of them.

use super::request::ImageRequest;
use super::text::{Encoded, Layer, TextEncoder};
use engraft_core::backend::Backend;
use engraft_core::{Error, Result};

/// What a UNet reads of the texts of a run, negative prompts first where there is guidance.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Prompts {
    /// `[texts * tokens, width]`.
    pub rows: Vec<f32>,
    /// Tokens of a text.
    pub tokens: usize,
    /// `[texts, width]`: the texts as one row each; empty where nothing reads it.
    pub pooled: Vec<f32>,
    /// Texts that are too long for an encoder, and the tokens that it reads.
    pub shortened: Vec<(String, usize)>,
}

/// How a pipeline's texts are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    /// Whether rows are those of the last layer but one, without a norm, and of all encoders side by side.
    pub penultimate: bool,
    /// Whether no negative prompt means zeros.
    pub zeros: bool,
}

/// One text for each of `count` pictures, or one for all.
pub(super) fn for_each(field: &'static str, texts: &[String], count: usize) -> Result<Vec<String>> {
    match texts {
        [one] => Ok(vec![one.clone(); count]),
        all if all.len() == count => Ok(all.to_vec()),
        all => Err(Error::config(field, format!("{} texts", all.len()), format!("one or {count}"))),
    }
}

/// Encodes the prompts of a request.
///
/// # Errors
/// `Config` for another number of texts; what encoding raises.
pub(super) fn encode<B: Backend>(
    encoders: &mut [TextEncoder<B>],
    request: &ImageRequest,
    reading: Reading,
    guided: bool,
) -> Result<Prompts> {
    let count = request.prompts.len();
    let second =
        request.second_prompts.as_ref().map(|texts| for_each("prompt_2", texts, count)).transpose()?;
    let second = second.as_ref().unwrap_or(&request.prompts);
    let mut all = Prompts::default();
    if guided {
        let zeros = reading.zeros && request.negative.is_none() && request.second_negative.is_none();
        let first = request.negative.clone().unwrap_or_else(|| vec![String::new()]);
        let first = for_each("negative_prompt", &first, count)?;
        let other = request.second_negative.as_ref();
        let other = other.map(|texts| for_each("negative_prompt_2", texts, count)).transpose()?;
        let other = other.unwrap_or_else(|| first.clone());
        // Layers are left out for prompts alone.
        all = one_side(encoders, [&first, &other], reading, 0)?;
        if zeros {
            all.rows.fill(0.0);
            all.pooled.fill(0.0);
        }
    }
    let own = one_side(encoders, [&request.prompts, second], reading, request.clip_skip)?;
    all.rows.extend(own.rows);
    all.pooled.extend(own.pooled);
    all.shortened.extend(own.shortened);
    Ok(Prompts { tokens: own.tokens, ..all })
}

/// The rows of one text for each picture, of all encoders side by side.
fn one_side<B: Backend>(
    encoders: &mut [TextEncoder<B>],
    texts: [&[String]; 2],
    reading: Reading,
    skip: usize,
) -> Result<Prompts> {
    let rows = Layer { skipped: skip + usize::from(reading.penultimate), normed: !reading.penultimate };
    let tokens = encoders.iter().map(|encoder| encoder.length).min().unwrap_or(0);
    let widths: Vec<usize> = encoders.iter().map(TextEncoder::width).collect();
    let read = encoders.iter_mut().zip(texts);
    let read = read.map(|(encoder, texts)| encoder.encode(texts, encoder.length, rows));
    let read: Vec<Vec<Encoded>> = read.collect::<Result<_>>()?;
    let mut all = Prompts { tokens, ..Prompts::default() };
    for (encoder, texts) in encoders.iter().zip(texts) {
        encoder.note_long(texts, encoder.length, &mut all.shortened)?;
    }
    for item in 0..texts[0].len() {
        for token in 0..tokens {
            for (encoder, width) in read.iter().zip(&widths) {
                all.rows.extend(&encoder[item].rows[token * width..(token + 1) * width]);
            }
        }
        if reading.penultimate {
            all.pooled.extend(read.last().map_or(&[][..], |encoder| &encoder[item].pooled));
        }
    }
    Ok(all)
}

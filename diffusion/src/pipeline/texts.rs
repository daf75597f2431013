//! Prompts to what a transformer reads of them.

use super::prompts::for_each;
use super::request::ImageRequest;
use super::text::{Encoded, Layer, TextEncoder};
use engraft_core::backend::Backend;
use engraft_core::{Error, Result};

/// What a transformer reads of the texts of a run, negative prompts first where there is guidance.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Texts {
    /// `[texts * tokens, width]`.
    pub rows: Vec<f32>,
    /// Tokens of a text.
    pub tokens: usize,
    /// `[texts, width]`: the texts as one row each.
    pub pooled: Vec<f32>,
    /// `[texts * tokens]`: tokens that count.
    pub mask: Vec<bool>,
    /// Texts that are too long for an encoder, and the tokens that it reads.
    pub shortened: Vec<(String, usize)>,
}

impl Texts {
    /// Adds what is behind these.
    pub fn extend(&mut self, other: Texts) {
        self.tokens = other.tokens;
        self.rows.extend(other.rows);
        self.pooled.extend(other.pooled);
        self.mask.extend(other.mask);
        let new: Vec<_> = other.shortened.into_iter().filter(|one| !self.shortened.contains(one)).collect();
        self.shortened.extend(new);
    }
}

/// What the encoders of one side of guidance read: a text for each picture and encoder.
pub(super) struct Sides {
    /// Of the first to the third encoder.
    pub texts: [Vec<String>; 3],
    /// Layers at the end of CLIP's encoders that are left out.
    pub skipped: usize,
}

/// The texts of encoders behind the first: their own, or the first one's; an empty text counts as none, as
/// in the reference.
fn others(
    first: &[String],
    given: [(&'static str, Option<&Vec<String>>); 2],
    count: usize,
) -> Result<[Vec<String>; 3]> {
    let [second, third] = given.map(|(field, texts)| {
        let texts = texts.filter(|texts| !matches!(&texts[..], [one] if one.is_empty()));
        texts.map_or(Ok(first.to_vec()), |texts| for_each(field, texts, count))
    });
    Ok([first.to_vec(), second?, third?])
}

impl Sides {
    /// Those of prompts.
    ///
    /// # Errors
    /// `Config` for another number of texts.
    pub fn prompts(request: &ImageRequest) -> Result<Self> {
        let given =
            [("prompt_2", request.second_prompts.as_ref()), ("prompt_3", request.third_prompts.as_ref())];
        let texts = others(&request.prompts, given, request.prompts.len())?;
        Ok(Self { texts, skipped: request.clip_skip })
    }

    /// Those of what is not to be seen; layers are left out for prompts alone.
    ///
    /// # Errors
    /// As [`Sides::prompts`].
    pub fn negative(request: &ImageRequest) -> Result<Self> {
        let count = request.prompts.len();
        let first = request.negative.clone().unwrap_or_else(|| vec![String::new()]);
        let first = for_each("negative_prompt", &first, count)?;
        let given = [
            ("negative_prompt_2", request.second_negative.as_ref()),
            ("negative_prompt_3", request.third_negative.as_ref()),
        ];
        Ok(Self { texts: others(&first, given, count)?, skipped: 0 })
    }
}

/// Stable Diffusion 3: rows of the two CLIP encoders' last layers but one side by side, filled up with
/// zeros to the width of T5's rows, which follow; both projected texts are the one row. Without a T5 its
/// rows are zeros.
///
/// # Errors
/// What encoding raises; `Config` for rows that are wider than the model's.
pub(super) fn of_sd3<B: Backend>(
    encoders: &mut [TextEncoder<B>],
    sides: &Sides,
    (tokens, width): (usize, usize),
) -> Result<Texts> {
    let (clip, rest) = encoders.split_at_mut(encoders.len().min(2));
    let mut all = Texts::default();
    let rows = Layer { skipped: sides.skipped + 1, normed: false };
    let length = clip.iter().map(|encoder| encoder.length).min().unwrap_or(0);
    let widths: Vec<usize> = clip.iter().map(TextEncoder::width).collect();
    let mut read: Vec<Vec<Encoded>> = Vec::new();
    for (encoder, texts) in clip.iter_mut().zip(&sides.texts) {
        read.push(encoder.encode(texts, encoder.length, rows)?);
        encoder.note_long(texts, encoder.length, &mut all.shortened)?;
    }
    let last = match rest.first_mut() {
        Some(t5) => {
            t5.note_long(&sides.texts[2], tokens, &mut all.shortened)?;
            Some(t5.encode(&sides.texts[2], tokens, LAST)?)
        }
        None => None,
    };
    let blank = width.checked_sub(widths.iter().sum()).ok_or_else(|| {
        let got = format!("{} columns of CLIP's encoders", widths.iter().sum::<usize>());
        Error::config("joint_attention_dim", got, format!("at most {width}"))
    })?;
    for item in 0..sides.texts[0].len() {
        for token in 0..length {
            for (encoder, width) in read.iter().zip(&widths) {
                all.rows.extend(&encoder[item].rows[token * width..(token + 1) * width]);
            }
            all.rows.extend(std::iter::repeat_n(0.0, blank));
        }
        match &last {
            Some(last) => all.rows.extend(&last[item].rows),
            None => all.rows.extend(std::iter::repeat_n(0.0, tokens * width)),
        }
        read.iter().for_each(|encoder| all.pooled.extend(&encoder[item].pooled));
    }
    Ok(Texts { tokens: length + tokens, ..all })
}

/// The rows that are read of T5.
const LAST: Layer = Layer { skipped: 0, normed: true };

/// FLUX: the end token's row of CLIP, and rows of T5.
///
/// # Errors
/// What encoding raises.
pub(super) fn of_flux<B: Backend>(
    encoders: &mut [TextEncoder<B>],
    sides: &Sides,
    tokens: usize,
) -> Result<Texts> {
    let [clip, t5] = encoders else { return Err(Error::internal("two text encoders")) };
    let mut all = Texts { tokens, ..Texts::default() };
    let read = clip.encode(&sides.texts[0], clip.length, LAST)?;
    read.iter().for_each(|text| all.pooled.extend(&text.pooled));
    clip.note_long(&sides.texts[0], clip.length, &mut all.shortened)?;
    let read = t5.encode(&sides.texts[1], tokens, LAST)?;
    read.iter().for_each(|text| all.rows.extend(&text.rows));
    t5.note_long(&sides.texts[1], tokens, &mut all.shortened)?;
    Ok(all)
}

/// Sana: rows of Gemma for the tokens of a text in lower case without blanks around it; those behind its end
/// are hidden. Of what stands in front of it the first token stays, and the last.
///
/// # Errors
/// What encoding raises.
pub(super) fn of_sana<B: Backend>(
    encoders: &mut [TextEncoder<B>],
    texts: &[String],
    (tokens, instruction): (usize, &str),
) -> Result<Texts> {
    let [gemma] = encoders else { return Err(Error::internal("one text encoder")) };
    let in_front = if instruction.is_empty() { 2 } else { gemma.count(instruction)?.max(2) };
    let whole = |text: &String| format!("{instruction}{}", text.to_lowercase().trim());
    let texts: Vec<String> = texts.iter().map(whole).collect();
    let (most, width) = (in_front + tokens - 2, gemma.width());
    let mut all = Texts { tokens, ..Texts::default() };
    for rows in gemma.forward_short(&texts, most)? {
        let first = rows.len().min(width);
        let behind = rows.len().min((in_front - 1) * width);
        let mut own = [&rows[..first], &rows[behind.max(first)..]].concat();
        let seen = own.len() / width.max(1);
        own.resize(tokens * width, 0.0);
        all.rows.extend(own);
        all.mask.extend((0..tokens).map(|n| n < seen));
    }
    gemma.note_long(&texts, most, &mut all.shortened)?;
    Ok(all)
}

/// PixArt: rows of T5 for the tokens of a text in lower case without blanks around it; those behind its end
/// are hidden.
///
/// # Errors
/// What encoding raises.
pub(super) fn of_pixart<B: Backend>(
    encoders: &mut [TextEncoder<B>],
    sides: &Sides,
    tokens: usize,
) -> Result<Texts> {
    let [t5] = encoders else { return Err(Error::internal("one text encoder")) };
    let texts: Vec<String> =
        sides.texts[0].iter().map(|text| text.to_lowercase().trim().to_string()).collect();
    let (mut all, width) = (Texts { tokens, ..Texts::default() }, t5.width());
    for mut rows in t5.encode_short(&texts, tokens)? {
        let seen = rows.len() / width.max(1);
        rows.resize(tokens * width, 0.0);
        all.rows.extend(rows);
        all.mask.extend((0..tokens).map(|token| token < seen));
    }
    t5.note_long(&texts, tokens, &mut all.shortened)?;
    Ok(all)
}

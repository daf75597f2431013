//! What a run begins with, what of it stays, and how its latents become pictures.

use super::folder::of_image;
use super::noise::{Noise, Purpose};
use super::packed::packed;
use super::request::{ImageRequest, Init};
use crate::graph::Grid;
use crate::vae::Vae;
use engraft_core::backend::Backend;
use engraft_core::{Error, Result};
use engraft_image::{Scheduler, skipped_flow_steps, skipped_steps};

/// Logarithms of variances are held within these, as the reference does.
const LOG_VARIANCE: [f32; 2] = [-30.0, 20.0];

/// Latents at the beginning of a run.
pub(super) struct First {
    /// `[items * latents, channels]`.
    pub latents: Vec<f32>,
    /// What of the picture that is given stays; none without a mask, and where the model reads it.
    pub kept: Option<Kept>,
    /// What the model reads next to the sample, a row for each of the sample's ([`MaskInput`]); none for
    /// models that read a sample alone.
    pub extra: Option<Vec<f32>>,
}

/// What a model reads next to its sample where a run fills in a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MaskInput {
    /// Nothing: what stays is put back after every step.
    Absent,
    /// `[latents, 1 + channels]`: the mask at the size of latents, then the latents of the picture without
    /// what is masked.
    Latents,
    /// `[latents, channels + factor^2]`: those latents, then all pixels of the mask, line by line; a latent
    /// has `factor` pixels along a line.
    Pixels(usize),
}

/// A picture's latents where they stay.
pub(super) struct Kept {
    /// `[items * latents, channels]`.
    original: Vec<f32>,
    /// The noise that the run began with.
    noise: Vec<f32>,
    /// `[items * latents]`, or one for each value: 1 where latents may change, else 0.
    mask: Vec<f32>,
}

impl First {
    /// With the four latents of a square as one row.
    pub fn packed(self, size: Grid, channels: usize) -> Self {
        let rows = (self.latents.len() / channels.max(1)).max(1);
        let extra = self.extra.map(|extra| packed(&extra, size, extra.len() / rows));
        let packed = |latents: &[f32]| packed(latents, size, channels);
        let kept = self.kept.map(|Kept { original, noise, mask }| {
            let each: Vec<f32> = mask.iter().flat_map(|x| std::iter::repeat_n(*x, channels)).collect();
            Kept { original: packed(&original), noise: packed(&noise), mask: packed(&each) }
        });
        Self { latents: packed(&self.latents), kept, extra }
    }
}

impl Kept {
    /// Puts what stays back, with the noise of the step that follows; behind the last without.
    pub fn blend(&self, scheduler: &Scheduler, last: bool, latents: &mut [f32]) -> Result<()> {
        let own = match last {
            true => self.original.clone(),
            false => scheduler.add_noise(&self.original, &self.noise).map_err(of_image)?,
        };
        let channels = latents.len() / self.mask.len().max(1);
        let rows = latents.chunks_mut(channels.max(1)).zip(own.chunks(channels.max(1)));
        for ((row, own), mask) in rows.zip(&self.mask) {
            row.iter_mut().zip(own).for_each(|(x, own)| *x = (1.0 - mask) * own + mask * *x);
        }
        Ok(())
    }
}

/// Unit noise of all pictures, each picture by itself.
pub(super) fn unit_noise(
    noise: &mut dyn Noise,
    what: Purpose,
    items: usize,
    each: usize,
) -> Result<Vec<f32>> {
    let mut all = vec![0.0; items * each];
    all.chunks_mut(each.max(1)).enumerate().try_for_each(|(item, own)| noise.fill(what, item, own))?;
    Ok(all)
}

/// Steps of a run that are left out; pipelines of transformers round them down.
pub(super) fn skipped(request: &ImageRequest, steps: usize, rounds_down: bool) -> Result<usize> {
    let Some(init) = &request.init else { return Ok(0) };
    let count = if rounds_down { skipped_flow_steps } else { skipped_steps };
    let skipped = count(steps, init.strength).map_err(of_image)?;
    match skipped < steps {
        true => Ok(skipped),
        false => {
            Err(Error::config("strength", init.strength, format!("more, so that one of {steps} steps runs")))
        }
    }
}

/// What a run begins with: noise, or a picture's latents with the noise of the step that it begins at;
/// `reads` says what of a mask and a picture the model reads next to its sample.
pub(super) async fn first<B: Backend>(
    vae: &mut Vae<B>,
    noise: &mut dyn Noise,
    scheduler: &Scheduler,
    (request, items, size): (&ImageRequest, usize, Grid),
    reads: MaskInput,
) -> Result<First> {
    let each = size.pixels() * vae.spec().latent_channels;
    let factor = scheduler.init_noise_sigma();
    let scaled = |noise: &[f32]| noise.iter().map(|x| (f64::from(*x) * factor) as f32).collect();
    let Some(init) = &request.init else {
        let added = unit_noise(noise, Purpose::Latents, items, each)?;
        return Ok(First { latents: scaled(&added), kept: None, extra: None });
    };
    // A run over all steps begins with noise alone where a mask says what stays.
    let whole = init.strength >= 1.0 && init.mask.is_some();
    let mut samples = 0;
    let mut original = None;
    if !whole || reads == MaskInput::Absent {
        original = Some(latents_of(vae, noise, &init.rgb, (request, items), &mut samples).await?);
    }
    let added = unit_noise(noise, Purpose::Latents, items, each)?;
    let latents = match &original {
        Some(original) if !whole => scheduler.add_noise(original, &added).map_err(of_image)?,
        _ => scaled(&added),
    };
    let Some(mask) = &init.mask else { return Ok(First { latents, kept: None, extra: None }) };
    if let (MaskInput::Absent, Some(original)) = (reads, original) {
        let mask = of_latents(mask, request, size).repeat(items);
        return Ok(First { latents, kept: Some(Kept { original, noise: added, mask }), extra: None });
    }
    let own = latents_of(vae, noise, &hidden(init), (request, items), &mut samples).await?;
    let extra = match reads {
        MaskInput::Pixels(factor) => {
            let pixels = of_pixels(mask, size, factor).repeat(items);
            joined(&own, vae.spec().latent_channels, &pixels)
        }
        _ => joined(&of_latents(mask, request, size).repeat(items), 1, &own),
    };
    Ok(First { latents, kept: None, extra: Some(extra) })
}

/// A mask at the size of latents, by nearest neighbours: 1 where pixels may change.
fn of_latents(mask: &[f32], request: &ImageRequest, size: Grid) -> Vec<f32> {
    let at = |y: usize, x: usize| {
        let (line, column) = (y * request.height / size.height, x * request.width / size.width);
        if mask[line * request.width + column] >= 0.5 { 1.0 } else { 0.0 }
    };
    (0..size.height).flat_map(|y| (0..size.width).map(move |x| at(y, x))).collect()
}

/// All pixels of a mask `[latents, factor * factor]`, those of a latent line by line: 1 where they may
/// change.
fn of_pixels(mask: &[f32], size: Grid, factor: usize) -> Vec<f32> {
    let at = |y: usize, x: usize| if mask[y * size.width * factor + x] >= 0.5 { 1.0 } else { 0.0 };
    let latents = (0..size.height).flat_map(|y| (0..size.width).map(move |x| (y, x)));
    let pixels = |(y, x): (usize, usize)| {
        let lines = (0..factor).map(move |line| y * factor + line);
        lines.flat_map(move |y| (0..factor).map(move |column| (y, x * factor + column)))
    };
    latents.flat_map(pixels).map(|(y, x)| at(y, x)).collect()
}

/// The picture with the middle of all values where it may change.
fn hidden(init: &Init) -> Vec<f32> {
    let empty = Vec::new();
    let mask = init.mask.as_ref().unwrap_or(&empty);
    let mut rgb = init.rgb.clone();
    for (pixel, _) in rgb.chunks_mut(3).zip(mask).filter(|(_, mask)| **mask >= 0.5) {
        pixel.fill(0.5);
    }
    rgb
}

/// Rows of two matrices with as many side by side; the first has so many columns.
pub(super) fn joined(first: &[f32], columns: usize, second: &[f32]) -> Vec<f32> {
    let others = (second.len() * columns / first.len().max(1)).max(1);
    first.chunks(columns.max(1)).zip(second.chunks(others)).flat_map(|(a, b)| [a, b].concat()).collect()
}

/// Latents of a picture for all of a run, `[items * latents, channels]`: `scale * (mean + deviation * noise -
/// shift)`, each with its own noise, as it has alone.
async fn latents_of<B: Backend>(
    vae: &mut Vae<B>,
    noise: &mut dyn Noise,
    rgb: &[f32],
    (request, items): (&ImageRequest, usize),
    samples: &mut usize,
) -> Result<Vec<f32>> {
    let pixels: Vec<f32> = rgb.iter().map(|x| 2.0 * x - 1.0).collect();
    let size = Grid { height: request.height, width: request.width };
    let moments = vae.encode(&pixels, 1, size).await?;
    let (channels, spec) = (vae.spec().latent_channels, vae.spec());
    let (scale, shift) = (spec.scaling_factor, spec.shift_factor.unwrap_or(0.0));
    // Without a variance there is nothing to sample.
    if !spec.has_variance() {
        let one: Vec<f32> = moments.iter().map(|x| (scale * (f64::from(*x) - shift)) as f32).collect();
        return Ok(one.repeat(items));
    }
    let unit = unit_noise(noise, Purpose::Posterior(*samples), items, moments.len() / 2)?;
    *samples += 1;
    let rows = moments.chunks_exact(2 * channels).cycle().zip(unit.chunks_exact(channels));
    let one = |((mean, log), unit): ((&f32, &f32), &f32)| {
        let [least, most] = LOG_VARIANCE;
        let deviation = (0.5 * f64::from(log.clamp(least, most))).exp();
        (scale * (f64::from(*mean) + deviation * f64::from(*unit) - shift)) as f32
    };
    Ok(rows.flat_map(|(row, unit)| row[..channels].iter().zip(&row[channels..]).zip(unit).map(one)).collect())
}

/// Pictures of latents: `decode(latents / scale + shift)`.
pub(super) async fn decoded<B: Backend>(
    vae: &mut Vae<B>,
    latents: &[f32],
    items: usize,
    size: Grid,
) -> Result<Vec<f32>> {
    let (scale, shift) = (vae.spec().scaling_factor, vae.spec().shift_factor.unwrap_or(0.0));
    let scaled: Vec<f32> = latents.iter().map(|x| (f64::from(*x) / scale + shift) as f32).collect();
    vae.decode(&scaled, items, size).await
}

//! Values of flags: what is allowed is said where it is not understood.

use engraft::backends::{self, BackendName};
use engraft::engraft_core::mem::Groups;
use engraft::engraft_core::weights::gguf::{GgufFormat, Mix};
#[cfg(feature = "image")]
use engraft::engraft_diffusion::Lora;
use engraft::{Float, KvFormat, SamplingParams, WeightFormat};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

pub(super) fn backend(text: &str) -> Result<BackendName, String> {
    text.parse().map_err(|_| format!("unknown backend; there are {}", backends::KNOWN))
}

pub(super) fn dtype(text: &str) -> Result<Float, String> {
    text.parse().map_err(|_| "allowed: f32, f16, bf16".into())
}

pub(super) fn kv_format(text: &str) -> Result<KvFormat, String> {
    text.parse().map_err(|_| format!("allowed: {}", KvFormat::ALL.map(KvFormat::name).join(", ")))
}

/// A format by its name. Four bits for a whole row cost much accuracy, so `int4` alone means groups of 32
/// with a minimum.
pub(super) fn weight_format(text: &str) -> Result<WeightFormat, String> {
    if matches!(text, "int4" | "int4a") {
        return Ok(WeightFormat::Group(Groups::FINE));
    }
    text.parse().map_err(|e| match e {
        _ if text.parse::<Mix>().is_ok() => {
            "a mix is for a GGUF file: `engraft convert --out FILE.gguf` makes one".into()
        }
        engraft::Error::Config { allowed, .. } => format!("allowed: {allowed}"),
        other => other.to_string(),
    })
}

/// A format of a GGUF file: one as above, or a mix.
pub(super) fn gguf_format(text: &str) -> Result<GgufFormat, String> {
    if let Ok(mix) = text.parse() {
        return Ok(GgufFormat::Mix(mix));
    }
    let one = weight_format(text).map(GgufFormat::All);
    one.map_err(|said| format!("{said}; for a GGUF file also {}", Mix::ALL.map(Mix::name).join(", ")))
}

pub(super) fn degree(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| [1, 2, 4, 8].contains(n)).ok_or_else(|| "allowed: 1, 2, 4, 8".into())
}

/// A whole number in a range.
fn whole<T: FromStr + PartialOrd + Display>(text: &str, range: RangeInclusive<T>) -> Result<T, String> {
    let n = text.parse().ok().filter(|n| range.contains(n));
    n.ok_or_else(|| format!("allowed: whole numbers from {} to {}", range.start(), range.end()))
}

pub(super) fn threads(text: &str) -> Result<usize, String> {
    whole(text, 0..=1024)
}

pub(super) fn positive(text: &str) -> Result<usize, String> {
    whole(text, 1..=1 << 20)
}

/// Bytes, one at least.
#[cfg(feature = "serve")]
pub(super) fn bytes(text: &str) -> Result<usize, String> {
    whole(text, 1..=1 << 40)
}

/// Seconds of a report.
pub(super) fn report_seconds(text: &str) -> Result<usize, String> {
    whole(text, 1..=3600)
}

pub(super) fn top_k(text: &str) -> Result<u32, String> {
    whole(text, 0..=u32::MAX)
}

pub(super) fn stride(text: &str) -> Result<usize, String> {
    whole(text, 0..=1 << 20)
}

/// Tokens to generate; -1, as in llama.cpp: as many as the context holds.
pub(super) fn new_tokens(text: &str) -> Result<usize, String> {
    match text {
        "-1" => Ok(usize::MAX),
        _ => whole(text, 0..=1 << 20).map_err(|e| format!("{e}; -1: until the context is full")),
    }
}

pub(super) fn seed(text: &str) -> Result<u64, String> {
    whole(text, 0..=u64::MAX).map_err(|e| format!("{e}; without --seed every text has a new one"))
}

pub(super) fn stop(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("a stop string cannot be empty".into()) } else { Ok(text.into()) }
}

/// A number that the sampler takes for the field that `set` writes.
fn sampled(text: &str, set: impl Fn(&mut SamplingParams, f32)) -> Result<f32, String> {
    let value: f32 = text.parse().map_err(|_| "a number is expected".to_string())?;
    let mut params = SamplingParams::default();
    set(&mut params, value);
    params.validate().map(|()| value).map_err(|e| match e {
        engraft::Error::Config { allowed, .. } => format!("allowed: {allowed}"),
        other => other.to_string(),
    })
}

pub(super) fn temperature(text: &str) -> Result<f32, String> {
    sampled(text, |p, v| p.temperature = v)
}

pub(super) fn top_p(text: &str) -> Result<f32, String> {
    sampled(text, |p, v| p.top_p = v)
}

pub(super) fn min_p(text: &str) -> Result<f32, String> {
    sampled(text, |p, v| p.min_p = v)
}

pub(super) fn repetition_penalty(text: &str) -> Result<f32, String> {
    sampled(text, |p, v| p.repetition_penalty = v)
}

/// A number that is not infinite.
#[cfg(feature = "image")]
pub(super) fn number(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value: &f64| value.is_finite());
    value.ok_or_else(|| "a number is expected".into())
}

/// From 0 to 1.
#[cfg(feature = "image")]
pub(super) fn share(text: &str) -> Result<f64, String> {
    number(text).ok().filter(|value| (0.0..=1.0).contains(value)).ok_or_else(|| "allowed: 0 to 1".into())
}

/// Width and height: `512x768`.
#[cfg(feature = "image")]
pub(super) fn size(text: &str) -> Result<(usize, usize), String> {
    let sides = text.split_once('x').and_then(|(w, h)| Some((w.parse().ok()?, h.parse().ok()?)));
    sides.ok_or_else(|| "width and height are expected: 512x768".into())
}

/// Pixels of a picture, to those of the largest one that there is.
#[cfg(all(feature = "image", feature = "serve"))]
pub(super) fn pixels(text: &str) -> Result<usize, String> {
    whole(text, 1..=1 << 28)
}

/// A file, and behind `@` how much of it.
#[cfg(feature = "image")]
pub(super) fn lora(text: &str) -> Result<Lora, String> {
    match text.rsplit_once('@') {
        Some((file, scale)) if !scale.contains('/') => Ok(Lora { file: file.into(), scale: number(scale)? }),
        _ => Ok(Lora { file: text.into(), scale: 1.0 }),
    }
}

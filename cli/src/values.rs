//! Values of flags: what is allowed is said where it is not understood.

use engraft::backends::{self, BackendName};
use engraft::{Float, SamplingParams, WeightFormat};

pub(super) fn backend(text: &str) -> Result<BackendName, String> {
    text.parse().map_err(|_| format!("unknown backend; there are {}", backends::KNOWN))
}

pub(super) fn dtype(text: &str) -> Result<Float, String> {
    text.parse().map_err(|_| "allowed: f32, f16, bf16".into())
}

/// A format by its name. Four bits for a whole row cost much accuracy, so `int4` alone means groups of 32
/// with a minimum.
pub(super) fn weight_format(text: &str) -> Result<WeightFormat, String> {
    let text = if matches!(text, "int4" | "int4a") { "int4a:32" } else { text };
    text.parse().map_err(|e| match e {
        engraft::Error::Config { allowed, .. } => format!("allowed: {allowed}"),
        other => other.to_string(),
    })
}

pub(super) fn degree(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| [1, 2, 4, 8].contains(n)).ok_or_else(|| "allowed: 1, 2, 4, 8".into())
}

pub(super) fn threads(text: &str) -> Result<usize, String> {
    let n: usize = text.parse().map_err(|_| "a whole number is expected".to_string())?;
    if n <= 1024 { Ok(n) } else { Err("at most 1024 are possible".into()) }
}

pub(super) fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=1 << 20).contains(&n) => Ok(n),
        _ => Err("a whole number from 1 to 1048576 is expected".into()),
    }
}

pub(super) fn seed(text: &str) -> Result<u64, String> {
    let allowed = "allowed: 0 to 18446744073709551615; without --seed every text has a new one";
    text.parse().map_err(|_| allowed.into())
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

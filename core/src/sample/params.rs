//! What a request may ask of the sampler, checked once, and the row of plain data a device receives.
//!
//! [`SamplingParams`] is the user's side: names and meaning as in `generation_config.json`, every field
//! honoured or refused by name. [`SampleRow`] is the device's side: 48 bytes, no floats that a kernel would
//! have to round again (the reciprocals and the fixed-point thresholds are computed here, once; shading
//! languages do not promise a correctly rounded division).

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::{Error, Result};

/// Weights are fixed point with this many fraction bits: the best token weighs `2^30`.
pub const WEIGHT_BITS: u32 = 30;
/// `top_p` is fixed point with this many fraction bits.
pub const TOP_P_BITS: u32 = 24;

/// `top_k` of the reference implementation where a file that samples does not name it.
const REFERENCE_TOP_K: u32 = 50;

/// How the next token is chosen from the logits.
///
/// ```
/// use engraft_core::sample::SamplingParams;
///
/// let params = SamplingParams { temperature: 0.7, top_p: 0.9, ..SamplingParams::default() };
/// params.validate()?;
/// assert!(SamplingParams::default().is_greedy() && !params.is_greedy());
/// let wrong = SamplingParams { top_p: 1.5, ..params };
/// assert!(wrong.validate().unwrap_err().to_string().contains("top_p"));
/// # Ok::<(), engraft_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingParams {
    /// Logits are divided by this; 0 is greedy (the default).
    pub temperature: f32,
    /// Only the k best tokens stay; 0 is off.
    pub top_k: u32,
    /// Only the best tokens stay that reach this share of the probability; 1 is off.
    pub top_p: f32,
    /// Only tokens stay with at least this share of the best token's probability; 0 is off.
    pub min_p: f32,
    /// Logits of tokens seen so far are divided (positive ones) or multiplied (others) by this; 1 is off.
    pub repetition_penalty: f32,
    /// Key of the random generator; none: a new one for every request, unless it is greedy.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: None,
        }
    }
}

impl SamplingParams {
    /// Checks every field.
    ///
    /// # Errors
    /// [`Error::Config`] with the field, the value found and what is allowed: temperature finite and either 0
    /// or at least 1e-5 (its reciprocal must stay finite in f32 with room for logits), `top_p` in (0, 1],
    /// `min_p` in [0, 1), `repetition_penalty` finite and in [1e-5, 1e5].
    pub fn validate(&self) -> Result<()> {
        let (t, p, m, r) = (self.temperature, self.top_p, self.min_p, self.repetition_penalty);
        if !(t == 0.0 || (1e-5..=1e5).contains(&t)) {
            return Err(Error::config("temperature", t, "0 (greedy) or 1e-5 to 1e5"));
        }
        if !(p > 0.0 && p <= 1.0) {
            return Err(Error::config("top_p", p, "greater than 0, at most 1 (1 = off)"));
        }
        if !(0.0..1.0).contains(&m) {
            return Err(Error::config("min_p", m, "at least 0 (0 = off), less than 1"));
        }
        if !(1e-5..=1e5).contains(&r) {
            return Err(Error::config("repetition_penalty", r, "1e-5 to 1e5 (1 = off)"));
        }
        Ok(())
    }

    /// Reads the fields of a `generation_config.json` that concern sampling; absent or null ones keep their
    /// default.
    ///
    /// As in the reference implementation nothing is sampled unless `do_sample` is true: otherwise the
    /// temperature is 0 whatever the file says. And as there, a file that samples without a word on `top_k`
    /// means 50; null and 0 are off. `seed` is not a field of that file and stays none.
    ///
    /// # Errors
    /// A field of the wrong type, or a value that [`validate`](Self::validate) refuses.
    pub fn from_generation_config(config: &Value) -> Result<Self> {
        if !config.is_object() {
            return Err(Error::config("generation_config", kind(config), "a JSON object"));
        }
        let base = SamplingParams::default();
        let sampled = match present(config, "do_sample") {
            None => false,
            Some(v) => v.as_bool().ok_or_else(|| Error::config("do_sample", v, "true or false"))?,
        };
        let top_k = match present(config, "top_k") {
            None if sampled && config.get("top_k").is_none() => REFERENCE_TOP_K,
            None => base.top_k,
            Some(v) => v
                .as_u64()
                .and_then(|k| u32::try_from(k).ok())
                .ok_or_else(|| Error::config("top_k", v, "a whole number from 0 (off) to 4294967295"))?,
        };
        let params = SamplingParams {
            temperature: number(config, "temperature", 1.0)?,
            top_k,
            top_p: number(config, "top_p", base.top_p)?,
            min_p: number(config, "min_p", base.min_p)?,
            repetition_penalty: number(config, "repetition_penalty", base.repetition_penalty)?,
            seed: base.seed,
        };
        params.validate()?;
        Ok(if sampled { params } else { SamplingParams { temperature: 0.0, ..params } })
    }

    /// True if no random bits are used.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// The same parameters with a seed: where there is none and random bits are used, a new one that cannot
    /// be guessed, of 32 bits, so that every JSON reader keeps it.
    ///
    /// The engine does so with what it is handed; callers who want to know the seed do it before.
    ///
    /// ```
    /// use engraft_core::sample::SamplingParams;
    ///
    /// let params = SamplingParams { temperature: 0.7, ..SamplingParams::default() };
    /// let taken = params.seeded();
    /// assert!(params.seed.is_none() && taken.seed.is_some());
    /// assert_eq!(taken.seeded(), taken);
    /// ```
    #[must_use]
    pub fn seeded(self) -> Self {
        // The standard library keys every hasher anew from the system's random bits.
        let fresh = || RandomState::new().build_hasher().finish() >> 32;
        let seed = if self.is_greedy() { self.seed } else { self.seed.or_else(|| Some(fresh())) };
        Self { seed, ..self }
    }

    /// The device's row for one sample.
    ///
    /// `subsequence`, `position` and `index` are the Philox counter; `seen_slot` is the row of the device's
    /// bitmaps of seen tokens, or -1. The fields are taken as valid: call [`validate`](Self::validate) where
    /// they come in. No seed counts as 0: call [`seeded`](Self::seeded) there, too.
    pub fn row(&self, subsequence: u32, position: u32, index: u32, seen_slot: i32) -> SampleRow {
        let inv_temperature = if self.is_greedy() { 0.0 } else { 1.0 / self.temperature };
        let inv_penalty = 1.0 / self.repetition_penalty;
        let seed = self.seed.unwrap_or(0);
        // Rounded up, so that a tiny top_p never becomes 0; both products are exact in f64.
        let top_p = (f64::from(self.top_p) * f64::from(1u32 << TOP_P_BITS)).ceil() as u32;
        let min_weight = (f64::from(self.min_p) * f64::from(1u32 << WEIGHT_BITS)).ceil() as u32;
        SampleRow {
            inv_temperature,
            penalty: self.repetition_penalty,
            inv_penalty,
            top_k: self.top_k,
            top_p,
            min_weight,
            seed: [seed as u32, (seed >> 32) as u32],
            subsequence,
            position,
            index,
            seen_slot,
        }
    }
}

/// One row of the sampling op's parameters as they lie in device memory (12 words, little endian, no
/// padding).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable, serde::Serialize, serde::Deserialize)]
pub struct SampleRow {
    /// `1 / temperature`, rounded once; 0 is greedy.
    pub inv_temperature: f32,
    /// What the logits of seen tokens are multiplied by where they are zero or negative; 1 is off.
    pub penalty: f32,
    /// `1 / penalty`, rounded once: what positive logits of seen tokens are multiplied by.
    pub inv_penalty: f32,
    /// Tokens kept by top-k; 0 is off.
    pub top_k: u32,
    /// Top-p as `ceil(top_p * 2^24)`; `2^24` is off.
    pub top_p: u32,
    /// Min-p as the smallest weight that stays, `ceil(min_p * 2^30)`; 0 is off.
    pub min_weight: u32,
    /// Philox key: low and high word of the seed.
    pub seed: [u32; 2],
    /// Philox counter word 0.
    pub subsequence: u32,
    /// Philox counter word 1: position of the token that is sampled.
    pub position: u32,
    /// Philox counter word 2: distinguishes several samples at one position (speculation).
    pub index: u32,
    /// Row of the bitmaps of seen tokens; -1 is none.
    pub seen_slot: i32,
}

fn present<'a>(config: &'a Value, field: &str) -> Option<&'a Value> {
    config.get(field).filter(|v| !v.is_null())
}

fn number(config: &Value, field: &str, default: f32) -> Result<f32> {
    match present(config, field) {
        None => Ok(default),
        Some(v) => v.as_f64().map(|x| x as f32).ok_or_else(|| Error::config(field, v, "a number")),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_row_is_48_bytes() {
        assert_eq!(size_of::<SampleRow>(), 48);
    }

    #[test]
    fn defaults_are_greedy_and_valid() {
        let p = SamplingParams::default();
        p.validate().unwrap();
        assert!(p.is_greedy());
        let row = p.row(1, 2, 3, -1);
        assert_eq!((row.inv_temperature, row.top_p, row.min_weight), (0.0, 1 << TOP_P_BITS, 0));
    }

    #[test]
    fn seeds_are_new_ones_only_where_they_are_used_and_not_given() {
        let hot = SamplingParams { temperature: 1.0, ..SamplingParams::default() };
        assert_ne!(hot.seeded().seed, hot.seeded().seed);
        assert_ne!(hot.seeded().row(0, 0, 0, -1).seed, hot.seeded().row(0, 0, 0, -1).seed);
        let given = SamplingParams { seed: Some(0), ..hot };
        assert_eq!(given.seeded(), given);
        assert_eq!(SamplingParams::default().seeded(), SamplingParams::default());
    }

    #[test]
    fn refusals_name_field_and_value() {
        let ok = SamplingParams { temperature: 0.7, ..Default::default() };
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0, 1e-30] {
            let text = SamplingParams { temperature: bad, ..ok }.validate().unwrap_err().to_string();
            assert!(text.contains("temperature") && text.contains(&bad.to_string()), "{text}");
        }
        for bad in [f32::NAN, 0.0, -0.1, 1.5] {
            let text = SamplingParams { top_p: bad, ..ok }.validate().unwrap_err().to_string();
            assert!(text.contains("top_p"), "{text}");
        }
        for bad in [f32::NAN, 1.0, -0.1, f32::INFINITY] {
            assert!(SamplingParams { min_p: bad, ..ok }.validate().is_err());
        }
        for bad in [f32::NAN, 0.0, -2.0, f32::INFINITY] {
            assert!(SamplingParams { repetition_penalty: bad, ..ok }.validate().is_err());
        }
    }

    #[test]
    fn unknown_fields_are_refused() {
        assert!(serde_json::from_value::<SamplingParams>(json!({"temperature": 0.5, "top_q": 1})).is_err());
        let p: SamplingParams =
            serde_json::from_value(json!({"temperature": 0.5, "seed": u64::MAX})).unwrap();
        assert_eq!((p.temperature, p.seed, p.top_p), (0.5, Some(u64::MAX), 1.0));
    }

    #[test]
    fn generation_config_samples_only_when_asked() {
        let file =
            json!({"bos_token_id": 0, "do_sample": true, "temperature": 0.7, "top_p": 0.9, "top_k": null});
        let p = SamplingParams::from_generation_config(&file).unwrap();
        assert_eq!((p.temperature, p.top_p, p.top_k), (0.7, 0.9, 0));
        let p = SamplingParams::from_generation_config(&json!({"temperature": 0.7})).unwrap();
        assert!(p.is_greedy());
        let p = SamplingParams::from_generation_config(&json!({"do_sample": true})).unwrap();
        assert_eq!((p.temperature, p.top_k, p.top_p), (1.0, 50, 1.0));
        let off = SamplingParams::from_generation_config(&json!({"do_sample": true, "top_k": 0})).unwrap();
        assert_eq!((off.top_k, SamplingParams::default().top_k), (0, 0));
        for bad in [json!([]), json!({"top_k": -1}), json!({"top_p": "high"}), json!({"do_sample": 1})] {
            assert!(SamplingParams::from_generation_config(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn thresholds_are_exact() {
        let p = SamplingParams { temperature: 0.5, top_p: 0.5, min_p: 0.25, ..Default::default() };
        let row = p.row(0, 0, 0, -1);
        assert_eq!((row.inv_temperature, row.top_p, row.min_weight), (2.0, 1 << 23, 1 << 28));
        let row = SamplingParams { top_p: 1e-20, ..p }.row(0, 0, 0, -1);
        assert_eq!(row.top_p, 1);
    }
}

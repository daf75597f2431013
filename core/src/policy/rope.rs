//! Rotary settings as published: `rope_theta` and `rope_scaling`, or the newer `rope_parameters`.

use super::Catalog;
use super::rope_spec::{RopeScaling, RopeSpec};
use crate::config::ModelConfig;
use crate::params::RopeStyle;
use crate::{Error, Result};

/// Where a configuration names the base.
pub(crate) const BASES: [&str; 4] =
    ["rope_parameters.rope_theta", "rope_theta", "rotary_emb_base", "rope_base"];

/// Where a configuration names how its rotation is stretched.
const TYPES: [&str; 3] = ["rope_parameters.rope_type", "rope_scaling.rope_type", "rope_scaling.type"];

/// Where a configuration names by how much.
const FACTORS: [&str; 2] = ["rope_parameters.factor", "rope_scaling.factor"];

/// Where one of type llama3 names the frequencies between which the stretching grows.
const LOW_FACTORS: [&str; 2] = ["rope_parameters.low_freq_factor", "rope_scaling.low_freq_factor"];
const HIGH_FACTORS: [&str; 2] = ["rope_parameters.high_freq_factor", "rope_scaling.high_freq_factor"];

/// Where a configuration names the context that its rotation was made for.
const ORIGINALS: [&str; 3] = [
    "rope_parameters.original_max_position_embeddings",
    "rope_scaling.original_max_position_embeddings",
    "original_max_position_embeddings",
];

/// A configuration whose rotation has this base where it names none.
pub(crate) fn with_theta(config: &ModelConfig, theta: f64) -> ModelConfig {
    match BASES.iter().any(|field| config.get(field).is_some()) {
        true => config.clone(),
        false => config.with("rope_theta", theta),
    }
}

/// Reads the rotary settings of a model whose heads rotate `columns` columns.
pub(crate) fn read(
    config: &ModelConfig,
    catalog: Catalog<'_>,
    style: RopeStyle,
    columns: usize,
    max_positions: usize,
) -> Result<RopeSpec> {
    if columns == 0 || !columns.is_multiple_of(2) {
        return Err(Error::config("head_dim (rotated columns)", columns, "an even number above 0"));
    }
    if let Some(sections) = config.get("rope_parameters").and_then(|own| own.as_object())
        && let Some((kind, section)) = sections.iter().find(|(_, section)| section.is_object())
    {
        let allowed = "one rotation for all blocks of this family";
        return Err(Error::config(format!("rope_parameters.{kind}"), section, allowed));
    }
    let theta = config.positive(&BASES, 10_000.0)?;
    let kind = stretching(config)?;
    let factor = || {
        required(config, kind, &FACTORS)?;
        stretched_by(config)
    };
    let original = || config.positive(&ORIGINALS, max_positions as f64);
    let said = matches!(config.text_opt(&TYPES)?, Some("default" | "proportional"));
    let scaling = match kind {
        // GGUF keeps llama3's factors as a tensor and the type as nothing.
        _ if catalog.find("rope_freqs.weight").is_some() && !said => RopeScaling::Stored,
        // Positions by time, height and width: of texts the three are the same.
        "default" | "mrope" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: factor()? },
        "llama3" => RopeScaling::Llama3 {
            factor: factor()?,
            low: required(config, kind, &LOW_FACTORS)?,
            high: required(config, kind, &HIGH_FACTORS)?,
            original: required(config, kind, &ORIGINALS)?,
        },
        "yarn" => yarn(config, factor()?, original()?)?,
        "proportional" => proportional(config, columns, stretched_by(config)?)?,
        "longrope" | "su" => long(config, columns, original()?, max_positions)?,
        other => {
            let known = "default, mrope, linear, llama3, yarn, longrope, proportional";
            return Err(Error::config("rope_type", format!("\"{other}\""), known));
        }
    };
    Ok(RopeSpec { style, columns, theta, scaling })
}

/// How the rotation is stretched. Settings that cannot be read are none that may be passed over.
fn stretching(config: &ModelConfig) -> Result<&str> {
    for field in ["rope_parameters", "rope_scaling"] {
        config.object_opt(field)?;
    }
    match (config.text_opt(&TYPES)?, config.number_opt(&FACTORS)?) {
        (Some(kind), _) => Ok(kind),
        (None, None | Some(1.0)) => Ok("default"),
        (None, Some(factor)) => {
            Err(Error::config("rope_type", "missing", format!("a type, where a factor ({factor}) is given")))
        }
    }
}

/// A number above 0 that this type of stretching cannot do without.
fn required(config: &ModelConfig, kind: &str, fields: &[&'static str]) -> Result<f64> {
    if config.number_opt(fields)?.is_none() {
        let allowed = format!("a number above 0, where rope_type is \"{kind}\"");
        return Err(Error::config(fields.join(" / "), "missing", allowed));
    }
    config.positive(fields, 1.0)
}

/// The factor of a stretched rotation.
fn stretched_by(config: &ModelConfig) -> Result<f64> {
    let factor = config.positive(&FACTORS, 1.0)?;
    if factor < 1.0 {
        return Err(Error::config("rope factor", factor, "at least 1"));
    }
    Ok(factor)
}

/// A configuration without the stretching that begins behind the trained length (`dynamic`), and the factor
/// of that: up to this length heads rotate as without it, and the model's sequences end there.
///
/// # Errors
/// `Config` for a factor below 1, and for a trained length that is not the model's.
pub(crate) fn up_to_trained(config: &ModelConfig) -> Result<(ModelConfig, Option<f64>)> {
    if config.text_opt(&TYPES)? != Some("dynamic") {
        return Ok((config.clone(), None));
    }
    let factor = stretched_by(config)?;
    if let Some(trained) = config.number_opt(&ORIGINALS)?
        && config.number_opt(&["max_position_embeddings"])? != Some(trained)
    {
        let allowed = "max_position_embeddings, where rope_type is \"dynamic\"";
        return Err(Error::config("original_max_position_embeddings", trained, allowed));
    }
    let plain = config.with("rope_scaling", serde_json::Value::Null);
    match plain.get("rope_parameters").is_some() {
        true => Ok((plain.with("rope_parameters.rope_type", "default"), Some(factor))),
        false => Ok((plain, Some(factor))),
    }
}

/// Gemma 4's: the share of the pairs that turn.
fn proportional(config: &ModelConfig, columns: usize, factor: f64) -> Result<RopeScaling> {
    let share = config.number(&["rope_parameters.partial_rotary_factor"], 1.0)?;
    if !(0.0..=1.0).contains(&share) {
        return Err(Error::config("partial_rotary_factor", share, "a number from 0 to 1"));
    }
    let pairs = (share * columns as f64 / 2.0).floor() as usize;
    Ok(RopeScaling::Proportional { pairs, factor })
}

fn yarn(config: &ModelConfig, factor: f64, original: f64) -> Result<RopeScaling> {
    let number = |new, old, default| config.number(&[new, old], default);
    let mscale = number("rope_parameters.mscale", "rope_scaling.mscale", 0.0)?;
    let mscale_all = number("rope_parameters.mscale_all_dim", "rope_scaling.mscale_all_dim", 0.0)?;
    // Section 3.4 of the paper: scores grow by 0.1 ln(factor) + 1 per side; DeepSeek's files give two
    // factors.
    let grown = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * libm::log(factor) + 1.0 };
    let default =
        if mscale != 0.0 && mscale_all != 0.0 { grown(mscale) / grown(mscale_all) } else { grown(1.0) };
    Ok(RopeScaling::Yarn {
        factor,
        beta_fast: number("rope_parameters.beta_fast", "rope_scaling.beta_fast", 32.0)?,
        beta_slow: number("rope_parameters.beta_slow", "rope_scaling.beta_slow", 1.0)?,
        original,
        attention_factor: number(
            "rope_parameters.attention_factor",
            "rope_scaling.attention_factor",
            default,
        )?,
        truncate: config.flag(&["rope_parameters.truncate", "rope_scaling.truncate"], true)?,
    })
}

/// LongRoPE's two lists of divisors.
fn long(config: &ModelConfig, columns: usize, original: f64, max_positions: usize) -> Result<RopeScaling> {
    let list = |new: &'static str, old: &'static str| -> Result<Vec<f64>> {
        let found = config.get(new).or(config.get(old));
        let numbers: Option<Vec<f64>> =
            found.and_then(|l| l.as_array()).and_then(|l| l.iter().map(|v| v.as_f64()).collect());
        match numbers {
            Some(all) if all.len() == columns / 2 && all.iter().all(|f| *f > 0.0) => Ok(all),
            _ => {
                let got = found.map_or("missing".to_string(), |v| v.to_string());
                Err(Error::config(old, got, format!("{} numbers above 0", columns / 2)))
            }
        }
    };
    let factor = config.positive(&FACTORS, max_positions as f64 / original)?;
    // Section 3.2 of the paper, as Phi-3's code has it.
    let default = if factor <= 1.0 { 1.0 } else { (1.0 + libm::log(factor) / libm::log(original)).sqrt() };
    let given = ["rope_parameters.attention_factor", "rope_scaling.attention_factor"];
    Ok(RopeScaling::Long {
        short: list("rope_parameters.short_factor", "rope_scaling.short_factor")?,
        long: list("rope_parameters.long_factor", "rope_scaling.long_factor")?,
        original: original as usize,
        attention_factor: config.number(&given, default)?,
    })
}

/// A table for every type of block: the field of its settings, and its base and the part of a head that it
/// turns where they say nothing.
pub(crate) fn for_layer_types<const N: usize>(
    config: &ModelConfig,
    catalog: Catalog<'_>,
    types: [(&'static str, f64, f64); N],
    width: usize,
    max_positions: usize,
) -> Result<Vec<RopeSpec>> {
    let of = |(field, theta, part): (&'static str, f64, f64)| {
        let own = config.get(field).cloned().unwrap_or_else(|| serde_json::json!({}));
        let own = ModelConfig::new(serde_json::json!({ "rope_parameters": own }))?;
        let part = own.number(&["rope_parameters.partial_rotary_factor"], part)?;
        if !(part > 0.0 && part <= 1.0) {
            return Err(Error::config("partial_rotary_factor", part, "a number above 0, at most 1"));
        }
        let columns = (part * width as f64) as usize;
        read(&with_theta(&own, theta), catalog, RopeStyle::Half, columns, max_positions)
    };
    types.into_iter().map(of).collect()
}

/// Gemma 3's two tables: local blocks turn by `rope_local_base_freq`, global ones by `rope_theta`, stretched;
/// columns of the heads of either.
pub(crate) fn local_and_global(
    config: &ModelConfig,
    catalog: Catalog<'_>,
    [local_columns, global_columns]: [usize; 2],
    max_positions: usize,
) -> Result<Vec<RopeSpec>> {
    let of = |layers: &'static str, fields: &[&'static str], theta: f64, columns| -> Result<RopeSpec> {
        let theta = config.positive(fields, theta)?;
        let own = match config.get(layers) {
            Some(section) => ModelConfig::new(serde_json::json!({ "rope_parameters": section }))?,
            None if layers.ends_with("sliding_attention") => ModelConfig::new(serde_json::json!({}))?,
            None => config.clone(),
        };
        Ok(RopeSpec { theta, ..read(&own, catalog, RopeStyle::Half, columns, max_positions)? })
    };
    let local = ["rope_parameters.sliding_attention.rope_theta", "rope_local_base_freq"];
    let global = ["rope_parameters.full_attention.rope_theta", "rope_theta"];
    Ok(vec![
        of("rope_parameters.sliding_attention", &local, 10_000.0, local_columns)?,
        of("rope_parameters.full_attention", &global, 1_000_000.0, global_columns)?,
    ])
}

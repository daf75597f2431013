//! Combinations: pairs of settings that cannot both be meant. Each refusal names both sides; nothing has been
//! opened yet.

use super::settings::BLOCK;
use super::taker::Taker;
use super::{CheckpointRef, DeepSpeedConfig, Warning};
use crate::mem::WeightFormat;
use crate::{Error, Result};

/// Refuses what cannot work together, and notes what has no effect together with something else.
pub(super) fn check(t: &Taker, c: &DeepSpeedConfig, warnings: &mut Vec<Warning>) -> Result<()> {
    let pair = |a: &str, b: &str| format!("{}` and `{}", t.spelled(a), t.spelled(b));
    if c.injection_policy.is_some() && c.kernel_inject {
        let allowed = "one of them: an injection policy describes a model for the composed path";
        return Err(Error::config(
            pair("injection_policy", "replace_with_kernel_inject"),
            "both given",
            allowed,
        ));
    }
    if c.min_out_tokens > c.max_out_tokens {
        let got = format!("{} with {}", c.min_out_tokens, c.max_out_tokens);
        return Err(Error::config(
            pair("min_out_tokens", "max_out_tokens"),
            got,
            "a minimum up to the maximum",
        ));
    }
    experts(t, c)?;
    if let Some(s) = &c.state {
        let count = "state_manager.max_ragged_sequence_count";
        for (most, field) in [
            (s.max_tracked_sequences, "state_manager.max_tracked_sequences"),
            (s.max_ragged_batch_size, "state_manager.max_ragged_batch_size"),
        ] {
            if s.max_ragged_sequence_count > most {
                let got = format!("{} with {most}", s.max_ragged_sequence_count);
                return Err(Error::config(pair(count, field), got, "a count up to the other"));
            }
        }
    }
    if let Some(WeightFormat::Group(groups)) = c.quantize
        && groups.is_coarse()
    {
        let mode = "quantization.quantization_mode";
        let field = if t.given(mode) { mode } else { "quant.weight.group_size" };
        let what = format!("{groups} is coarse and costs accuracy; groups of 32 (int4a:32) are the default");
        warn(warnings, t.spelled(field), &what);
    }
    described(t, c)?;
    if let Some(blocks) = c.state.as_ref().and_then(|s| s.kv_blocks)
        && blocks.saturating_mul(BLOCK) < c.min_out_tokens
    {
        let got = format!("{} with room for {}", c.min_out_tokens, blocks.saturating_mul(BLOCK));
        let both = pair("min_out_tokens", "state_manager.memory_config.size");
        return Err(Error::config(both, got, "a minimum that the KV cache has room for"));
    }
    without_effect(t, c, warnings);
    Ok(())
}

/// Settings that are fine by themselves and mean nothing together with the others.
fn without_effect(t: &Taker, c: &DeepSpeedConfig, warnings: &mut Vec<Warning>) {
    for path in ["moe.moe_experts", "moe.type"] {
        if t.given(path) {
            warn(
                warnings,
                t.spelled(path),
                "has no effect: the checkpoint says how many experts it has, and of which kind",
            );
        }
    }
    if c.moe.enabled && t.given("moe.enabled") && c.moe.ep_size == 1 {
        warn(
            warnings,
            t.spelled("moe.enabled"),
            "has no effect: the checkpoint says whether there are experts",
        );
    }
    let tracked = "state_manager.max_tracked_sequences";
    if t.given(tracked) {
        let what = match t.given("state_manager.max_ragged_sequence_count") {
            true => "has no effect next to `max_ragged_sequence_count`: requests wait without a limit",
            false => "bounds `max_ragged_sequence_count` alone: requests wait without a limit",
        };
        warn(warnings, t.spelled(tracked), what);
    }
    unquantized(t, c, warnings);
    for path in ["quant.activation.num_bits", "quant.activation.q_type", "quant.activation.q_groups"] {
        if t.given(path) && c.quantize != Some(WeightFormat::W8A8) {
            warn(warnings, t.spelled(path), "has no effect without `quant.activation.enabled`");
        }
    }
    if t.given("tensor_parallel.tp_grain_size") && c.tp_grain != 64 {
        let what = "has no effect: shares follow heads, and the leaves of sums in whole 64s";
        warn(warnings, t.spelled("tensor_parallel.tp_grain_size"), what);
    }
    let about_files = [
        ("base_dir", !c.base_dir.is_empty()),
        ("config", c.model_config.is_some()),
        ("training_mp_size", c.training_mp_size.is_some()),
    ];
    for (path, _) in about_files.into_iter().filter(|(_, given)| c.checkpoint.is_none() && *given) {
        warn(warnings, t.spelled(path), "has no effect without `checkpoint`");
    }
}

/// `quant.weight.enabled` that is false takes the whole section back, and no other setting.
fn unquantized(t: &Taker, c: &DeepSpeedConfig, warnings: &mut Vec<Warning>) {
    let (section, weights) = ("quant.enabled", "quant.weight.enabled");
    let mode = "quantization.quantization_mode";
    if t.said(weights) != Some(false) {
        return;
    }
    match &c.quantize {
        Some(format) => {
            let by = t.spelled(if t.given(mode) { mode } else { "dtype" });
            warn(warnings, t.spelled(weights), &format!("has no effect: `{by}` makes the weights {format}"));
        }
        None if t.said(section) == Some(true) => {
            let what = format!("has no effect: `{}` is false, so no weight is quantized", t.spelled(weights));
            warn(warnings, t.spelled(section), &what);
        }
        None => {}
    }
}

fn experts(t: &Taker, c: &DeepSpeedConfig) -> Result<()> {
    let pair = |a: &str, b: &str| format!("{}` and `{}", t.spelled(a), t.spelled(b));
    if !c.moe.enabled {
        for path in ["moe.ep_size", "moe.moe_experts", "moe.type"] {
            if t.given(path) {
                return Err(Error::config(
                    pair(path, "moe.enabled"),
                    "given with false",
                    "enabled, or no experts",
                ));
            }
        }
    }
    if let Some(n) = c.moe.experts.iter().find(|n| **n > 1 && !n.is_multiple_of(c.moe.ep_size)) {
        let got = format!("{n} with {}", c.moe.ep_size);
        let allowed = "experts that spread evenly over the ranks";
        return Err(Error::config(pair("moe.moe_experts", "moe.ep_size"), got, allowed));
    }
    Ok(())
}

/// A description in place is here to be compared; one in a file is compared when it is opened.
fn described(t: &Taker, c: &DeepSpeedConfig) -> Result<()> {
    let (Some(CheckpointRef::Description(d)), Some(degree)) = (&c.checkpoint, c.training_mp_size) else {
        return Ok(());
    };
    for key in ["tp_size", "mp_size"] {
        if let Some(stored) = d.get(key).and_then(serde_json::Value::as_u64)
            && stored != degree as u64
        {
            let both = format!("{}` and `checkpoint.{key}", t.spelled("training_mp_size"));
            let got = format!("{degree} with {stored}");
            return Err(Error::config(both, got, "one value: both are the degree of the stored checkpoint"));
        }
    }
    Ok(())
}

fn warn(warnings: &mut Vec<Warning>, field: String, what: &str) {
    warnings.push(Warning { field, what: what.into() });
}

//! The second stage: types and ranges of single settings; `pairs.rs` has the combinations.

use super::settings::TRACKED;
use super::taker::{Entry, MAX_COUNT, Taker, kind, whole};
use super::{CheckpointRef, DataType, DeepSpeedConfig, MoeConfig, MoeKind, StateConfig, Warning, pairs};
use crate::mem::{GroupBits, Groups, WeightFormat};
use crate::{Error, Result};
use serde_json::Value;
use std::collections::BTreeMap;

/// Settings by canonical name to a configuration; `warnings` are those that there are already.
pub(super) fn check(
    entries: BTreeMap<String, Entry>,
    mut warnings: Vec<Warning>,
) -> Result<(DeepSpeedConfig, Vec<Warning>)> {
    let mut t = Taker::new(entries);
    let mut config = DeepSpeedConfig::default();
    let c = &mut config;
    c.kernel_inject = t.flag("replace_with_kernel_inject")?.unwrap_or(c.kernel_inject);
    if let Some(text) = t.text("dtype")? {
        c.dtype = text.parse()?;
    }
    tensor_parallel(&mut t, c)?;
    c.graphs = t.flag("enable_cuda_graph")?.unwrap_or(c.graphs);
    c.moe = moe(&mut t, &c.moe)?;
    c.quantize = quant(&mut t, c.dtype)?;
    c.checkpoint = checkpoint(&mut t)?;
    c.base_dir = t.text("base_dir")?.unwrap_or_default();
    c.save_mp_checkpoint_path = t.text("save_mp_checkpoint_path")?.map(Into::into);
    c.training_mp_size = t.count("training_mp_size", 1)?;
    c.injection_policy = injection_policy(&mut t)?;
    c.model_config = match t.take("config") {
        Some(e) if !e.value.is_object() => return Err(Error::config(e.spelled, kind(&e.value), "an object")),
        other => other.map(|e| e.value),
    };
    c.own_context = t.given("max_out_tokens") || t.given("state_manager.max_context");
    c.max_out_tokens = t.count("max_out_tokens", 1)?.unwrap_or(c.max_out_tokens);
    c.min_out_tokens = t.count("min_out_tokens", 1)?.unwrap_or(c.min_out_tokens);
    c.state = state(&mut t, c)?;
    if let Some(path) = t.entries.keys().next() {
        return Err(Error::internal(format!("setting `{path}` has a name and no meaning")));
    }
    pairs::check(&t, c, &mut warnings)?;
    Ok((config, warnings))
}

fn tensor_parallel(t: &mut Taker, c: &mut DeepSpeedConfig) -> Result<()> {
    let on = t.flag("tensor_parallel.enabled")?.unwrap_or(true);
    let size = t.count("tensor_parallel.tp_size", 1)?.unwrap_or(1);
    let spelled = t.spelled("tensor_parallel.tp_size");
    if ![1, 2, 4, 8].contains(&size) {
        // Sums have eight leaves, and every rank owns whole ones.
        return Err(Error::config(spelled, size, "1, 2, 4 or 8"));
    }
    if !on && size > 1 {
        let both = format!("{}` and `{spelled}", t.spelled("tensor_parallel.enabled"));
        return Err(Error::config(both, format!("false with {size}"), "true, or a degree of 1"));
    }
    c.tp_size = size;
    c.tp_grain = t.count("tensor_parallel.tp_grain_size", 1)?.unwrap_or(c.tp_grain);
    Ok(())
}

fn moe(t: &mut Taker, default: &MoeConfig) -> Result<MoeConfig> {
    let enabled = t.flag("moe.enabled")?.unwrap_or(default.enabled);
    let ep_size = t.count("moe.ep_size", 1)?.unwrap_or(default.ep_size);
    let kinds = [("standard", MoeKind::Standard), ("residual", MoeKind::Residual)];
    let kind_of = t.one_of("moe.type", &kinds)?.unwrap_or_default();
    let experts = match t.take("moe.moe_experts") {
        None => default.experts.clone(),
        Some(e) => {
            let one = |v: &Value| v.as_u64().filter(|n| (1..=MAX_COUNT).contains(n)).map(|n| n as usize);
            let all = match &e.value {
                Value::Array(list) => list.iter().map(one).collect::<Option<Vec<_>>>(),
                number => one(number).map(|n| vec![n]),
            };
            let all = all.filter(|a| !a.is_empty() && a.len() <= 1 << 16);
            all.ok_or_else(|| Error::config(e.spelled, e.value, "a count of experts or a list of counts"))?
        }
    };
    Ok(MoeConfig { enabled, ep_size, experts, kind: kind_of })
}

/// The ragged engine's own setting for the same thing.
fn mode(t: &mut Taker) -> Result<Option<WeightFormat>> {
    const PATH: &str = "quantization.quantization_mode";
    match t.text(PATH)?.as_deref() {
        None => Ok(None),
        // FP6 with a scale for each output; activations of any type.
        Some("wf6af16") => "fp6".parse().map(Some),
        // Four bits for a whole row cost much accuracy: without a size the name means what the program's
        // does.
        Some("int4" | "int4a") => Ok(Some(WeightFormat::Group(Groups::FINE))),
        Some(name) => name.parse::<WeightFormat>().map(Some).map_err(|e| match e {
            Error::Config { got, allowed, .. } => Error::config(t.spelled(PATH), got, allowed),
            other => other,
        }),
    }
}

/// Values of a group; 0 is one group per row.
fn group_size(t: &Taker, size: usize) -> Result<u32> {
    if !size.is_multiple_of(32) || size > 1 << 16 {
        let allowed = "a multiple of 32 up to 65536, or 0 for one group per row";
        return Err(Error::config(t.spelled("quant.weight.group_size"), size, allowed));
    }
    Ok(size as u32)
}

/// Refuses codes of activations other than those of [`WeightFormat::W8A8`]: signed bytes around zero.
fn activation_codes(t: &mut Taker) -> Result<()> {
    let no = |t: &Taker, name: &str, got: String, allowed: &str| {
        Err(Error::config(t.spelled(&format!("quant.activation.{name}")), got, allowed))
    };
    if let Some(bits) = t.count("quant.activation.num_bits", 1)?.filter(|n| *n != 8) {
        return no(t, "num_bits", bits.to_string(), "8");
    }
    let kinds = [("symmetric", false), ("asymmetric", true)];
    if t.one_of("quant.activation.q_type", &kinds)? == Some(true) {
        return no(t, "q_type", "\"asymmetric\"".into(), "\"symmetric\"");
    }
    if let Some(groups) = t.count("quant.activation.q_groups", 1)?.filter(|n| *n != 1) {
        return no(t, "q_groups", groups.to_string(), "1: activations always have blocks of 32");
    }
    Ok(())
}

/// The weights' format with quantized activations: bytes on both sides, or a refusal that names both.
fn with_activations(t: &Taker, format: Option<WeightFormat>, size: Option<usize>) -> Result<WeightFormat> {
    let refused = |other: &str, got: String, allowed: &str| {
        let both = format!("{}` and `{}", t.spelled("quant.activation.enabled"), t.spelled(other));
        Err(Error::config(both, got, allowed))
    };
    match format {
        Some(WeightFormat::Group(Groups { bits: GroupBits::Eight, asymmetric: false, .. })) => match size {
            None | Some(0 | 32) => Ok(WeightFormat::W8A8),
            Some(n) => refused("quant.weight.group_size", format!("true with {n}"), "no size, or 32"),
        },
        Some(WeightFormat::Group(Groups { asymmetric: true, .. })) => {
            refused("quant.weight.q_type", "true with \"asymmetric\"".into(), "\"symmetric\" weights")
        }
        Some(other) => refused("quant.weight.num_bits", format!("true with {other}"), "8 bits for both"),
        None => refused(
            "quant.enabled",
            "true without weights".into(),
            "both true: quantized activations go with weights of 8 bits",
        ),
    }
}

/// What DeepSpeed's tables call `quant`: the weights' format, which says whether activations have one.
fn quant(t: &mut Taker, dtype: DataType) -> Result<Option<WeightFormat>> {
    let on = t.flag("quant.enabled")?;
    let activation = t.flag("quant.activation.enabled")?.unwrap_or(false);
    let weight = t.flag("quant.weight.enabled")?.unwrap_or(true);
    let qkv = t.flag("quant.qkv.enabled")?.unwrap_or(true);
    let bits = t.count("quant.weight.num_bits", 1)?;
    let kinds = [("symmetric", false), ("asymmetric", true)];
    let q_type = t.one_of("quant.weight.q_type", &kinds)?;
    let per_row = t.count("quant.weight.q_groups", 1)?;
    let given_size = t.count("quant.weight.group_size", 0)?;
    activation_codes(t)?;
    for path in ["quant.weight.quantized_initialization", "quant.weight.post_init_quant"] {
        if let Some(e) = t.take(path)
            && e.value.as_object().is_none_or(|m| !m.is_empty())
        {
            let allowed =
                "{}: one format serves all matmuls; set quant.weight.num_bits, q_type and group_size";
            return Err(Error::config(e.spelled, kind(&e.value), allowed));
        }
    }
    let mode_format = mode(t)?;
    let on = on.unwrap_or(t.any_given("quant.weight.")) && weight;
    if on && !qkv {
        let both = format!("{}` and `{}", t.spelled("quant.qkv.enabled"), t.spelled("quant.enabled"));
        return Err(Error::config(both, "false with true", "both true: all matmuls have one format"));
    }
    if per_row.is_some_and(|n| n > 1) {
        let allowed = "1 (one group per row); for smaller groups set quant.weight.group_size";
        return Err(Error::config(t.spelled("quant.weight.q_groups"), per_row.unwrap_or(1), allowed));
    }
    // Four bits, and nobody says how: fine groups. Who asks for one group per row gets it, with a warning.
    let fine =
        if bits == Some(4) { Groups::FINE } else { Groups { size: 0, asymmetric: false, ..Groups::FINE } };
    let size = group_size(t, given_size.or(per_row.map(|_| 0)).unwrap_or(fine.size as usize))?;
    let asymmetric = q_type.unwrap_or(fine.asymmetric && size == fine.size);
    let group = |bits| WeightFormat::Group(Groups { bits, size, asymmetric });
    let format = match (on, bits, dtype) {
        (true, None | Some(8), _) | (false, _, DataType::Int8) => Some(group(GroupBits::Eight)),
        (true, Some(4), DataType::Int8) => {
            let both = format!("{}` and `dtype", t.spelled("quant.weight.num_bits"));
            return Err(Error::config(both, "4 with int8", "8 bits with int8, or another dtype"));
        }
        (true, Some(4), _) => Some(group(GroupBits::Four)),
        (true, Some(n), _) => return Err(Error::config(t.spelled("quant.weight.num_bits"), n, "8 or 4")),
        (false, ..) => None,
    };
    let format = match (activation, format, mode_format) {
        (false, ..) | (true, None, Some(WeightFormat::W8A8)) => format,
        (true, ..) => Some(with_activations(t, format, given_size)?),
    };
    match (format, mode_format) {
        (Some(a), Some(b)) if a != b => {
            let quant = if on { t.spelled("quant.enabled") } else { "dtype".into() };
            let both = format!("{quant}` and `{}", t.spelled("quantization.quantization_mode"));
            Err(Error::config(both, format!("{a} with {b}"), "one format"))
        }
        (a, b) => Ok(a.or(b)),
    }
}

fn checkpoint(t: &mut Taker) -> Result<Option<CheckpointRef>> {
    match t.take("checkpoint") {
        None => Ok(None),
        Some(Entry { value: Value::String(path), spelled, .. }) if path.is_empty() => {
            Err(Error::config(spelled, "\"\"", "a path or a description"))
        }
        Some(Entry { value: Value::String(path), .. }) => Ok(Some(CheckpointRef::Path(path.into()))),
        Some(Entry { value: value @ Value::Object(_), .. }) => Ok(Some(CheckpointRef::Description(value))),
        Some(e) => Err(Error::config(e.spelled, kind(&e.value), "a path or a description")),
    }
}

fn injection_policy(t: &mut Taker) -> Result<Option<BTreeMap<String, Vec<String>>>> {
    let Some(e) = t.take("injection_policy") else { return Ok(None) };
    let allowed = "an object from class name to the suffixes of linears whose output is reduced";
    let Value::Object(map) = &e.value else { return Err(Error::config(e.spelled, kind(&e.value), allowed)) };
    let names = |v: &Value| match v {
        Value::String(one) => Some(vec![one.clone()]),
        Value::Array(all) => all.iter().map(|n| n.as_str().map(str::to_owned)).collect(),
        _ => None,
    };
    let pairs = map.iter().map(|(class, v)| names(v).filter(|n| !n.is_empty()).map(|n| (class.clone(), n)));
    match pairs.collect::<Option<BTreeMap<_, _>>>() {
        Some(policy) => Ok(Some(policy)),
        None => Err(Error::config(e.spelled, e.value, allowed)),
    }
}

/// Bytes that stay free where `memory_config` does not say how many: DeepSpeed's default.
const RESERVED: u64 = 1_000_000_000;

fn state(t: &mut Taker, c: &mut DeepSpeedConfig) -> Result<Option<StateConfig>> {
    let given = t.entries.keys().any(|k| k.starts_with("state_manager."));
    let tracked = t.count("state_manager.max_tracked_sequences", 1)?.unwrap_or(TRACKED);
    let tokens = t.count("state_manager.max_ragged_batch_size", 1)?.unwrap_or(768);
    let sequences =
        t.count("state_manager.max_ragged_sequence_count", 1)?.unwrap_or(512.min(tracked).min(tokens));
    if let Some(context) = t.count("state_manager.max_context", 1)? {
        if t.given("max_out_tokens") && context != c.max_out_tokens {
            let both =
                format!("{}` and `{}", t.spelled("state_manager.max_context"), t.spelled("max_out_tokens"));
            let got = format!("{context} with {}", c.max_out_tokens);
            return Err(Error::config(both, got, "one value: both are the longest sequence"));
        }
        c.max_out_tokens = context;
    } else if given && !t.given("max_out_tokens") {
        c.max_out_tokens = 8192;
    }
    let allocate = t.one_of("state_manager.memory_config.mode", &[("reserve", false), ("allocate", true)])?;
    let spelled = t.spelled("state_manager.memory_config.size");
    let size = t.take("state_manager.memory_config.size");
    let kv_reserve = match (allocate, &size) {
        (Some(true), _) => None,
        (_, None) => Some(RESERVED),
        (_, Some(e)) => match whole(&e.value) {
            Some(bytes) => Some(bytes),
            None => return Err(Error::config(spelled, &e.value, "a number of bytes, with mode reserve")),
        },
    };
    let kv_blocks = match (allocate, size) {
        (Some(true), Some(e)) => match whole(&e.value) {
            Some(n) if (1..=MAX_COUNT).contains(&n) => Some(n as usize),
            _ => return Err(Error::config(spelled, e.value, format!("1 to {MAX_COUNT} blocks"))),
        },
        (Some(true), None) => {
            return Err(Error::config(spelled, "missing", "a number of blocks, with mode allocate"));
        }
        _ => None,
    };
    if t.flag("state_manager.offload")? == Some(true) {
        let allowed = "false: the KV cache stays on the device";
        return Err(Error::config(t.spelled("state_manager.offload"), true, allowed));
    }
    let state = StateConfig {
        max_tracked_sequences: tracked,
        max_ragged_batch_size: tokens,
        max_ragged_sequence_count: sequences,
        kv_blocks,
        kv_reserve,
    };
    Ok(given.then_some(state))
}

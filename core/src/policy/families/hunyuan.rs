//! HunYuan 1, dense and with experts: LLaMA's blocks whose query and key heads are normed after they are
//! rotated. HunYuan 3 norms before, and chooses experts by sigmoids with a bias.

use super::llama::{NAMES, llama_as};
use crate::params::RouterScore;
use crate::policy::describe::{Described, LLAMA_LIKE, Switches};
use crate::policy::moe::{BY_BIASED_SIGMOID, BY_LOGIT, Routing, routed, shared_columns};
use crate::policy::*;

/// Dense and sparse blocks, and the part that all tokens share.
const PARTS: [(Slot, &str); 4] = [
    (Slot::Up, "mlp.gate_proj + mlp.up_proj ; mlp.shared_mlp.gate_proj + mlp.shared_mlp.up_proj"),
    (Slot::Down, "mlp.down_proj ; mlp.shared_mlp.down_proj"),
    (Slot::ExpertUp, "mlp.experts.{}.gate_proj + mlp.experts.{}.up_proj"),
    (Slot::ExpertDown, "mlp.experts.{}.down_proj"),
];

const HEAD_NORMS: [(Slot, &str); 2] =
    [(Slot::QNorm, "self_attn.query_layernorm"), (Slot::KNorm, "self_attn.key_layernorm")];

const HUNYUAN_NAMES: Names<'_> = Names { slots: &HEAD_NORMS, base: NAMES.slots, ..NAMES };

/// `model_type` hunyuan_v1_dense.
pub const HUNYUAN: Described = Described::new(&["hunyuan_v1_dense"], HUNYUAN_NAMES, hunyuan);

/// `model_type` hunyuan_v1_moe.
pub const HUNYUAN_MOE: Described = Described::new(
    &["hunyuan_v1_moe"],
    Names {
        slots: &[
            HEAD_NORMS[0],
            HEAD_NORMS[1],
            (Slot::Router, "mlp.gate.wg"),
            PARTS[0],
            PARTS[1],
            PARTS[2],
            PARTS[3],
        ],
        ..HUNYUAN_NAMES
    },
    hunyuan_moe,
);

/// `model_type` hy_v3.
pub const HY_V3: Described = Described::new(
    &["hy_v3"],
    Names {
        slots: &[
            (Slot::Router, "mlp.router.gate"),
            (Slot::ChoiceBias, "=mlp.expert_bias"),
            PARTS[0],
            PARTS[1],
            PARTS[2],
            PARTS[3],
        ],
        base: NAMES.slots,
        ..NAMES
    },
    hy_v3,
);

fn hunyuan(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let defaults = Switches { eps: 1e-5, ..LLAMA_LIKE };
    let mut spec = llama_as(&with_base(config)?, catalog, defaults)?;
    spec.each(|_, b| {
        let norm = b.attn_norm.map(|norm| QkNorm::new(norm, QkSpan::Head));
        b.qk_norm = norm.map(|norm| QkNorm { after_rope: true, ..norm });
    });
    Ok(spec)
}

/// The rotation that it calls dynamic, with an `alpha`, has a base of its own and is not stretched:
/// `theta * alpha^(d / (d - 2))` for heads of d columns.
fn with_base(config: &ModelConfig) -> Result<ModelConfig> {
    let Some(object) =
        ["rope_parameters", "rope_scaling"].into_iter().find(|name| config.get(name).is_some())
    else {
        return Ok(config.clone());
    };
    let own = config.section(object)?;
    let Some(alpha) = own.number_opt(&["alpha"])? else { return Ok(config.clone()) };
    if !matches!(own.text_opt(&["rope_type", "type"])?, Some("dynamic")) || alpha <= 0.0 {
        return Err(Error::config("rope alpha", alpha, "above 0, with rope_type \"dynamic\""));
    }
    let width = match config.size_opt(&["head_dim"])? {
        Some(width) => width,
        None => config.size(&["hidden_size"])? / config.size(&["num_attention_heads"])?.max(1),
    };
    if width <= 2 {
        return Err(Error::config("head_dim", width, "above 2, for a base by alpha"));
    }
    let theta = config.positive(&["rope_parameters.rope_theta", "rope_theta"], 10_000.0)?;
    let base = theta * alpha.powf(width as f64 / (width - 2) as f64);
    Ok(config.with(object, serde_json::Value::Null).with("rope_theta", base))
}

fn hunyuan_moe(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    // Blocks that read the keys and values of others.
    refuse(config, "use_cla")?;
    let mut flat = config.clone();
    for field in ["num_experts", "moe_topk", "num_shared_expert", "moe_intermediate_size"] {
        flat = with_one(&flat, field)?;
    }
    let config = &flat;
    let mut spec = hunyuan(config, catalog)?;
    let shared = config.size(&["intermediate_size"])?.checked_mul(config.index(&["num_shared_expert"], 1)?);
    let shared =
        shared.ok_or_else(|| Error::config("num_shared_expert", "too many", "a number that fits"))?;
    let skipped = config.index(&["moe_layer_num_skipped"], 0)?;
    if skipped > 0 {
        return Err(Error::config("moe_layer_num_skipped", skipped, "0"));
    }
    // One alone keeps its score.
    let renormalise = config.size(&["moe_topk"])? > 1;
    routed(config, &mut spec, Routing { renormalise, shared, ..BY_LOGIT })?;
    Ok(spec)
}

/// A field that lists a number for every layer, as one number.
fn with_one(config: &ModelConfig, field: &str) -> Result<ModelConfig> {
    let Some(list) = config.get(field).and_then(|value| value.as_array()) else { return Ok(config.clone()) };
    match list.split_first() {
        Some((first, rest)) if rest.iter().all(|other| other == first) => {
            Ok(config.with(field, first.clone()))
        }
        _ => Err(Error::config(field.to_string(), format!("{list:?}"), "the same number for every layer")),
    }
}

fn hy_v3(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let config = &rope::with_theta(config, 11_158_840.0);
    let mut spec = llama_as(config, catalog, Switches { eps: 1e-5, positions: 131_072, ..LLAMA_LIKE })?;
    if config.flag(&["qk_norm"], true)? {
        spec.each(|_, b| b.qk_norm = b.attn_norm.map(|norm| QkNorm::new(norm, QkSpan::Head)));
    }
    let choice_bias = config.flag(&["moe_router_enable_expert_bias"], true)?;
    let score = match config.flag(&["moe_router_use_sigmoid"], true)? {
        true => RouterScore::Sigmoid,
        false => RouterScore::Softmax,
    };
    let shared = shared_columns(config, 1)?;
    let own =
        Routing { score, choice_bias, groups: None, shared, dense: 1, scale: 2.826, ..BY_BIASED_SIGMOID };
    routed(config, &mut spec, own)?;
    Ok(spec)
}

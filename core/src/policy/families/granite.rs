//! Granite 3, and with experts, and the models of Granite 4 that have attention in every block: LLaMA's
//! blocks with four factors, of embeddings, of scores, of what each part adds to the residual stream, and (a
//! divisor) of logits.

use super::llama::{NAMES, llama_as, pairs};
use crate::policy::describe::{Described, LLAMA_LIKE};
use crate::policy::lacking;
use crate::policy::moe::{BY_LOGIT, Routing, routed};
use crate::policy::*;

/// `model_type` granite.
pub const GRANITE: Described = Described::new(&["granite"], NAMES, granite).layout(pairs);

/// All experts lie in one tensor: gate and up of the first, of the second, ...
const MOE_NAMES: Names<'_> = Names {
    slots: &[
        (Slot::Router, "block_sparse_moe.router.layer"),
        (Slot::ExpertUp, "block_sparse_moe.input_linear"),
        (Slot::ExpertDown, "block_sparse_moe.output_linear"),
    ],
    base: NAMES.slots,
    ..NAMES
};

/// The same next to a dense part, which is there without experts, too.
const HYBRID_NAMES: Names<'_> = Names {
    slots: &[
        (Slot::Up, "shared_mlp.input_linear"),
        (Slot::Down, "shared_mlp.output_linear"),
        MOE_NAMES.slots[0],
        MOE_NAMES.slots[1],
        MOE_NAMES.slots[2],
    ],
    base: NAMES.slots,
    ..NAMES
};

/// `model_type` granitemoehybrid, where no block has a recurrent state.
pub const GRANITE_HYBRID: Described = Described::new(&["granitemoehybrid"], HYBRID_NAMES, granite_hybrid);

/// `model_type` granitemoe.
pub const GRANITE_MOE: Described = Described::new(&["granitemoe"], MOE_NAMES, granite_moe).layout(pairs);

fn granite(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = llama_as(config, catalog, LLAMA_LIKE)?;
    let factor = |field| config.positive(&[field], 1.0).map(|factor| factor as f32);
    let (embeddings, scores) = (factor("embedding_multiplier")?, factor("attention_multiplier")?);
    let (branches, logits) = (factor("residual_multiplier")?, config.positive(&["logits_scaling"], 1.0)?);
    spec.embed.scale = Some(embeddings).filter(|factor| *factor != 1.0);
    spec.each(|_, b| {
        b.scores.scale = scores;
        b.branch_factor = Some(branches).filter(|factor| *factor != 1.0);
    });
    if let HeadSpec::Tokens { scale, .. } = &mut spec.head {
        *scale = (1.0 / logits) as f32;
    }
    Ok(spec)
}

fn granite_moe(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = granite(config, catalog)?;
    routed(config, &mut spec, Routing { renormalise: true, ..BY_LOGIT })?;
    Ok(spec)
}

fn granite_hybrid(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = granite(config, catalog)?;
    attention_everywhere(config, spec.blocks.len())?;
    match config.text_opt(&["position_embedding_type"])?.unwrap_or("nope") {
        "rope" => {}
        "nope" => {
            spec.ropes.clear();
            spec.each(|_, b| b.rope = None);
        }
        other => {
            let allowed = "\"rope\" or \"nope\"";
            return Err(Error::config("position_embedding_type", format!("\"{other}\""), allowed));
        }
    }
    let shared = config.size_opt(&["shared_intermediate_size"])?.unwrap_or(1024);
    spec.each(|_, b| b.mlp.inner = shared);
    if config.index(&["num_local_experts"], 8)? > 0 {
        routed(config, &mut spec, Routing { renormalise: true, shared, ..BY_LOGIT })?;
    }
    Ok(spec)
}

/// Refuses blocks with a recurrent state, which all are where nothing is said.
fn attention_everywhere(config: &ModelConfig, layers: usize) -> Result<()> {
    let fields = ["layer_types", "layers_block_type"];
    let Some((field, list)) = fields.into_iter().find_map(|field| Some((field, config.get(field)?))) else {
        return Err(recurrent(config));
    };
    let words: Option<Vec<&str>> = list.as_array().and_then(|list| list.iter().map(|v| v.as_str()).collect());
    let words = words.filter(|words| {
        words.len() == layers && words.iter().all(|word| ["attention", "mamba"].contains(word))
    });
    match words {
        Some(words) if words.contains(&"mamba") => Err(recurrent(config)),
        Some(_) => Ok(()),
        None => Err(Error::config(field, list, format!("{layers} times \"attention\" or \"mamba\""))),
    }
}

fn recurrent(config: &ModelConfig) -> Error {
    let model = format!("model_type \"{}\"", config.model_type());
    Error::NoPolicy { model, reasons: vec![lacking::reason(lacking::RECURRENT)] }
}

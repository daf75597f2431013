//! Experts in the feed-forward part: what the families that have them share.
//!
//! A configuration says how many there are, how many a token chooses, from which groups, and which blocks
//! stay dense; a family says what its configuration has no field for ([`Routing`]).

use super::*;
use crate::params::{ExpertGroups, GroupRank, Router, RouterScore};
use serde_json::Value;

/// What a family's routing has by itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Routing {
    /// From logits to scores.
    pub score: RouterScore,
    /// Whether weights are renormalised where `norm_topk_prob` is not there.
    pub renormalise: bool,
    /// Whether a bias is added to scores for the choice.
    pub choice_bias: bool,
    /// See [`Router::near`].
    pub near: Option<f32>,
    /// How groups are ranked; none where the family has no groups.
    pub groups: Option<GroupRank>,
    /// Groups, and chosen ones, where the configuration does not say.
    pub in_groups: [usize; 2],
    /// See [`MoeSpec::input_weighted`].
    pub input_weighted: bool,
    /// Factor of the weights, where the configuration does not say.
    pub scale: f64,
    /// Columns of a dense part next to the experts.
    pub shared: usize,
    /// How that part joins.
    pub join: Join,
    /// Dense blocks before the first sparse one, where the configuration does not say.
    pub dense: usize,
    /// Experts without weights, behind those that the configuration counts.
    pub identities: usize,
}

/// Chosen by logit, weights of a softmax over all.
pub(super) const BY_LOGIT: Routing = Routing {
    score: RouterScore::Softmax,
    renormalise: false,
    choice_bias: false,
    near: None,
    groups: None,
    in_groups: [1, 1],
    input_weighted: false,
    scale: 1.0,
    shared: 0,
    join: Join::Add,
    dense: 0,
    identities: 0,
};

/// DeepSeek 3's: sigmoids, chosen by their sum with a bias, in groups ranked by their two best.
pub(super) const BY_BIASED_SIGMOID: Routing = Routing {
    score: RouterScore::Sigmoid,
    renormalise: true,
    choice_bias: true,
    groups: Some(GroupRank::BestTwo),
    ..BY_LOGIT
};

const EXPERTS: &[&str] = &["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"];
const CHOSEN: &[&str] = &["num_experts_per_tok", "moe_topk", "moe_k"];
const INNER: &[&str] = &["moe_intermediate_size", "expert_hidden_dim", "intermediate_size"];
const ROUTED_SCALE: &[&str] =
    &["routed_scaling_factor", "router_scaling_factor", "route_scale", "moe_routed_scaling_factor"];
const SHARED: &[&str] = &["n_shared_experts", "num_shared_experts", "moe_num_shared_experts"];

/// Gives the sparse blocks their experts.
///
/// # Errors
/// `Config`, naming a field.
pub(super) fn routed(config: &ModelConfig, spec: &mut ModelSpec, own: Routing) -> Result<()> {
    let (experts, top_k) = (config.size(EXPERTS)?.saturating_add(own.identities), config.size(CHOSEN)?);
    check_experts(experts, spec.blocks.len())?;
    let most = experts.min(Router::MAX_TOP_K);
    if top_k > most {
        return Err(Error::config("num_experts_per_tok", top_k, format!("at most {most}")));
    }
    let score = match config.text_opt(&["scoring_func", "score_func", "expert_selection_fn"])? {
        None => own.score,
        Some("softmax") => RouterScore::Softmax,
        // dots.llm1 names its way to choose in the place of its scores.
        Some("sigmoid" | "noaux_tc") => RouterScore::Sigmoid,
        Some(other) => {
            return Err(Error::config("scoring_func", format!("\"{other}\""), "\"softmax\" or \"sigmoid\""));
        }
    };
    let router = Router {
        renormalise: config.flag(&["norm_topk_prob", "route_norm"], own.renormalise)?,
        scale: config.positive(ROUTED_SCALE, own.scale)? as f32,
        choice_bias: own.choice_bias,
        near: own.near,
        groups: match own.groups {
            Some(rank) => groups(config, (experts, top_k), rank, own.in_groups)?,
            None => None,
        },
        ..Router::new(experts, top_k, score)
    };
    if own.near.is_some() && (router.score != RouterScore::Softmax || router.renormalise) {
        let allowed = "a plain softmax, where experts are chosen one after the other";
        return Err(Error::config("norm_topk_prob", router.renormalise, allowed));
    }
    let most = Router::MAX_BY_SCORE;
    if router.is_by_score() && experts > most {
        return Err(Error::config(EXPERTS[0], experts, format!("at most {most}, chosen by score")));
    }
    let inner = config.size(INNER)?;
    let sparse = sparse_blocks(config, spec.blocks.len(), own.dense)?;
    spec.each(|i, b| {
        if sparse[i] {
            b.mlp.inner = own.shared;
            let Routing { join, input_weighted, identities, .. } = own;
            b.moe = Some(MoeSpec { join, input_weighted, identities, ..MoeSpec::new(router, inner) });
        }
    });
    Ok(())
}

/// Columns of the experts that all tokens share, in one dense part.
///
/// # Errors
/// `Config` for a number that is none.
pub(super) fn shared_columns(config: &ModelConfig, default: usize) -> Result<usize> {
    let field = SHARED.iter().find(|field| config.get(field).is_some());
    let count = field.map_or(Ok(default), |field| config.index(&[field], default))?;
    let columns = config.size(INNER)?.checked_mul(count);
    columns.ok_or_else(|| Error::config(SHARED[0], count, "a number of experts that fits"))
}

/// Groups of experts, as far as there is more than one.
fn groups(
    config: &ModelConfig,
    (experts, top_k): (usize, usize),
    rank: GroupRank,
    [count, chosen]: [usize; 2],
) -> Result<Option<ExpertGroups>> {
    let count = config.size_opt(&["n_group"])?.unwrap_or(count);
    let chosen = config.size_opt(&["topk_group"])?.unwrap_or(chosen);
    let most = ExpertGroups::MAX;
    if count > most || !experts.is_multiple_of(count) {
        return Err(Error::config("n_group", count, format!("a divisor of {experts}, at most {most}")));
    }
    if chosen > count || chosen * (experts / count) < top_k {
        let allowed = format!("at most {count}, with {top_k} experts or more in so many groups");
        return Err(Error::config("topk_group", chosen, allowed));
    }
    Ok((count > 1).then_some(ExpertGroups { count, chosen, rank }))
}

/// Which blocks have experts: as `mlp_layer_types` lists them; else all but the first ones
/// (`first_k_dense_replace`, `moe_layer_start_index`), those behind `moe_layer_end_index`, those in
/// `mlp_only_layers`, and those that a step (`decoder_sparse_step`, `moe_layer_interval`) leaves out.
fn sparse_blocks(config: &ModelConfig, layers: usize, dense: usize) -> Result<Vec<bool>> {
    if let Some(list) = config.get("mlp_layer_types") {
        let word = |v: &Value| match v.as_str() {
            Some("sparse") => Some(true),
            Some("dense") => Some(false),
            _ => None,
        };
        let words: Option<Vec<bool>> =
            list.as_array().and_then(|list| list.iter().map(word).collect::<Option<_>>());
        return match words {
            Some(words) if words.len() == layers => Ok(words),
            _ => {
                Err(Error::config("mlp_layer_types", list, format!("{layers} times \"dense\" or \"sparse\"")))
            }
        };
    }
    let every = config.index(&["moe_layer_freq"], 1)?;
    if every != 1 {
        return Err(Error::config("moe_layer_freq", every, "1"));
    }
    let first =
        config.index(&["first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"], dense)?;
    let last = match config.get("moe_layer_end_index") {
        Some(Value::Number(n)) if n.as_i64() == Some(-1) => layers,
        _ => config.index(&["moe_layer_end_index"], layers)?,
    };
    let step = config.size_opt(&["decoder_sparse_step", "moe_layer_interval"])?.unwrap_or(1);
    let listed: Vec<u32> = config.ids("mlp_only_layers")?;
    let sparse =
        |i: usize| i >= first && i <= last && (i + 1).is_multiple_of(step) && !listed.contains(&(i as u32));
    Ok((0..layers).map(sparse).collect())
}

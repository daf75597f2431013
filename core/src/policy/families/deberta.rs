//! DeBERTa v2 and v3: BERT's blocks, whose scores have two more terms, of a query and the distance to a key,
//! and of a key and the distance from a query (arXiv 2006.03654, 2111.09543). Queries and keys of distances
//! come from one normed table for all blocks, by a block's own matmul. No positions are added to tokens.
//!
//! Variants: a convolution next to the first block (v2 xlarge), one of the two terms alone, positions and
//! token types as in BERT, a narrower token table, and masked heads under the names of either class.

use super::bert::NAMES as BERT_NAMES;
use crate::params::Act;
use crate::policy::describe::{Described, encoder, refuse_gguf};
use crate::policy::task::{BERT_LIKE, Task, first_token, set_task, task, token_types};
use crate::policy::*;

/// `model_type` deberta-v2, which v3 has, too.
pub const DEBERTA_V2: Described = Described::new(
    &["deberta-v2"],
    Names {
        prefixes: &["deberta.", ""],
        slots: &[
            (Slot::ProjectIn, "embeddings.embed_proj"),
            (Slot::RelativeEmbed, "encoder.rel_embeddings"),
            (Slot::RelativeNorm, "encoder.LayerNorm"),
            (Slot::Qkv, "attention.self.query_proj + attention.self.key_proj + attention.self.value_proj"),
            (Slot::LayerConv, "/deberta.encoder.conv.conv, /encoder.conv.conv"),
            (Slot::LayerConvNorm, "/deberta.encoder.conv.LayerNorm, /encoder.conv.LayerNorm"),
            (Slot::Pooler, "/pooler.dense"),
            (Slot::HeadDense, "/cls.predictions.transform.dense ; /lm_predictions.lm_head.dense"),
            (Slot::HeadNorm, "/cls.predictions.transform.LayerNorm ; /lm_predictions.lm_head.LayerNorm"),
            (
                Slot::Head,
                "/cls.predictions.decoder!w, /cls.predictions!b > /cls.predictions.decoder!b ; \
                 /lm_predictions.lm_head ; /classifier ; /qa_outputs",
            ),
        ],
        base: BERT_NAMES.slots,
        // Heads of the pretraining, and positions that the model does not add.
        ignored: &[
            "*position_ids",
            "cls.predictions.decoder.*",
            "lm_predictions.*",
            "mask_predictions.*",
            "*embeddings.position_embeddings.weight",
            "pooler.dense.*",
        ],
        ..BERT_NAMES
    },
    deberta_v2,
);

fn deberta_v2(config: &ModelConfig, _: Catalog<'_>) -> Result<ModelSpec> {
    refuse_gguf(config)?;
    let mut spec = encoder(config, BERT_LIKE)?;
    let norm = spec.embed.norm;
    embedding(config, &mut spec)?;
    let terms = terms(config)?;
    spec.embed.relative = Some(relative_table(config, spec.max_positions, norm)?);
    let conv = conv(config, norm)?;
    let own_width = config.size_opt(&["attention_head_size"])?;
    spec.each(|layer, b| {
        b.disentangled = Some(terms);
        b.scores.scale = (1.0 / ((b.heads.k_dim * terms.terms()) as f64).sqrt()) as f32;
        b.conv = conv.filter(|_| layer == 0);
    });
    let (width, hidden) = (spec.blocks.first().map_or(0, |b| b.heads.k_dim), spec.hidden);
    if let Some(other) = own_width.filter(|own| *own != width) {
        return Err(Error::config("attention_head_size", other, format!("{width}")));
    }
    let pooled = config.size_opt(&["pooler_hidden_size"])?.unwrap_or(hidden);
    if pooled != hidden {
        return Err(Error::config("pooler_hidden_size", pooled, format!("{hidden}, the hidden size")));
    }
    let task = task(config, Task::Masked)?;
    // The class of `legacy: false` norms rows of the hidden size, which its table has to have.
    let legacy = config.flag(&["legacy"], true)?;
    let width = if legacy { spec.embed.width } else { hidden };
    if task == Task::Masked && width != spec.embed.width {
        return Err(Error::config("embedding_size", spec.embed.width, format!("{hidden} with `legacy` off")));
    }
    let act = spec.blocks.first().map_or(Act::Gelu, |b| b.mlp.act);
    let pool = first_token(hidden, config.act(&["pooler_hidden_act"], Act::Gelu)?);
    set_task(config, &mut spec, task, HeadTransform { act, norm, width, bias: true }, pool)?;
    Ok(spec)
}

/// Token rows, with what is added to them.
fn embedding(config: &ModelConfig, spec: &mut ModelSpec) -> Result<()> {
    if !config.flag(&["position_biased_input"], true)? {
        spec.embed.positions = None;
    }
    spec.embed.token_types = match config.get("type_vocab_size") {
        None => None,
        Some(_) => token_types(config)?,
    };
    spec.embed.width = config.size_opt(&["embedding_size"])?.unwrap_or(spec.hidden);
    // The sum is projected in the reference; tokens alone are the sum.
    let added = spec.embed.positions.is_some() || spec.embed.token_types.is_some();
    match added && spec.embed.width != spec.hidden {
        true => {
            let allowed =
                format!("{}, the hidden size, where positions or token types are added", spec.hidden);
            Err(Error::config("embedding_size", spec.embed.width, allowed))
        }
        false => Ok(()),
    }
}

/// The score terms of `pos_att_type`: a list, or words between bars.
fn terms(config: &ModelConfig) -> Result<Disentangled> {
    for (field, default) in [("relative_attention", false), ("share_att_key", false)] {
        if !config.flag(&[field], default)? {
            return Err(Error::config(field, false, "true"));
        }
    }
    let refused = |found: String| {
        Err(Error::config("pos_att_type", found, "\"c2p\", \"p2c\" or both, in a list or between bars"))
    };
    let words: Vec<String> = match config.get("pos_att_type") {
        Some(serde_json::Value::String(text)) => text.split('|').map(|word| word.trim().into()).collect(),
        Some(serde_json::Value::Array(list)) => {
            list.iter().map(|word| word.as_str().map_or_else(|| word.to_string(), str::to_string)).collect()
        }
        Some(other) => return refused(other.to_string()),
        None => return refused("none".into()),
    };
    if words.is_empty() || words.iter().any(|word| !["c2p", "p2c"].contains(&word.to_lowercase().as_str())) {
        return refused(format!("\"{}\"", words.join("|")));
    }
    let has = |term: &str| words.iter().any(|word| word.eq_ignore_ascii_case(term));
    Ok(Disentangled::new(has("c2p"), has("p2c")))
}

/// Most rows on either side of a table of distances; a bound against absurd files.
const MOST_ROWS: usize = 1 << 15;

/// The table of distances.
fn relative_table(config: &ModelConfig, positions: usize, norm: Option<NormSpec>) -> Result<RelativeTable> {
    let own = |field: &'static str| match config.number(&[field], -1.0)? {
        n if n < 1.0 => Ok(None),
        _ => config.size_opt(&[field]),
    };
    let most = own("max_relative_positions")?.unwrap_or(positions);
    let buckets = own("position_buckets")?;
    let (field, reach) = buckets.map_or(("max_relative_positions", most), |n| ("position_buckets", n));
    if reach > MOST_ROWS {
        return Err(Error::config(field, reach, format!("at most {MOST_ROWS}")));
    }
    // Half of the buckets are exact, and the logarithm begins with them.
    if let Some(buckets) = buckets.filter(|n| *n < 4 || most < n / 2 + 2) {
        let allowed = format!("at least 4, and half of them less than {}", most.saturating_sub(1));
        return Err(Error::config("position_buckets", buckets, allowed));
    }
    let words = config.text_opt(&["norm_rel_ebd"])?.unwrap_or("none").to_lowercase();
    let norm = match words.trim() {
        "layer_norm" => norm,
        "none" => None,
        other => {
            return Err(Error::config("norm_rel_ebd", format!("\"{other}\""), "\"layer_norm\" or \"none\""));
        }
    };
    Ok(RelativeTable { most: buckets.map(|_| most), norm, ..RelativeTable::new(reach) })
}

/// The convolution next to the first block.
fn conv(config: &ModelConfig, norm: Option<NormSpec>) -> Result<Option<LayerConv>> {
    let Some(norm) = norm else { return Ok(None) };
    let kernel = config.index(&["conv_kernel_size"], 0)?;
    if kernel == 0 {
        return Ok(None);
    }
    if kernel % 2 == 0 || kernel > 255 {
        return Err(Error::config("conv_kernel_size", kernel, "0, or an odd number of at most 255"));
    }
    match config.index(&["conv_groups"], 1)? {
        1 => Ok(Some(LayerConv::new(kernel, config.act(&["conv_act"], Act::Tanh)?, norm))),
        groups => Err(Error::config("conv_groups", groups, "1")),
    }
}

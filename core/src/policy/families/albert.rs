//! ALBERT: BERT with a narrow embedding, all blocks of a group with the same weights.

use crate::params::Act;
use crate::policy::task::{Task, first_token, narrow, set_task, task, token_types};
use crate::policy::*;

const ALBERT_NAMES: Names<'_> = Names {
    prefixes: &["albert.", ""],
    // One layer per group: more of them are refused.
    block: "encoder.albert_layer_groups.{}.albert_layers.0.",
    slots: &[
        (Slot::TokenEmbed, "embeddings.word_embeddings"),
        (Slot::PositionEmbed, "embeddings.position_embeddings"),
        (Slot::TokenTypeEmbed, "embeddings.token_type_embeddings"),
        (Slot::EmbedNorm, "embeddings.LayerNorm"),
        (Slot::ProjectIn, "encoder.embedding_hidden_mapping_in"),
        (Slot::Qkv, "attention.query + attention.key + attention.value"),
        (Slot::AttnOut, "attention.dense"),
        (Slot::AttnNorm, "attention.LayerNorm"),
        (Slot::Up, "ffn"),
        (Slot::Down, "ffn_output"),
        (Slot::MlpNorm, "full_layer_layer_norm"),
        (Slot::Pooler, "pooler"),
        (Slot::HeadDense, "/predictions.dense"),
        (Slot::HeadNorm, "/predictions.LayerNorm"),
        (
            Slot::Head,
            "/predictions.decoder!w, /predictions!b > /predictions.decoder!b ; /classifier ; /qa_outputs",
        ),
    ],
    ignored: &["*position_ids", "predictions.decoder.*", "sop_classifier.*", "albert.pooler.*", "pooler.*"],
    ..Names::NONE
};

/// `model_type` albert.
#[derive(Debug, Clone, Copy)]
pub struct Albert;

impl InjectionPolicy for Albert {
    fn name(&self) -> &str {
        "albert"
    }

    fn fit(&self, config: &ModelConfig, _: Catalog<'_>) -> Fit {
        fit_by_type(config, &["albert"])
    }

    fn spec(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
        let inner = config.size_opt(&["inner_group_num"])?.unwrap_or(1);
        if inner != 1 {
            return Err(Error::config("inner_group_num", inner, "1"));
        }
        let mut spec = narrow(config)?;
        spec.embed.token_types = token_types(config)?;
        let act = spec.blocks.first().map_or(Act::Gelu, |b| b.mlp.act);
        let masked = HeadTransform { act, norm: spec.embed.norm, width: spec.embed.width, bias: true };
        let (task, pool) = (task(config, Task::Masked)?, first_token(spec.hidden, Act::Tanh));
        set_task(config, &mut spec, task, masked, pool)?;
        if task == Task::Bare && ALBERT_NAMES.has(config, catalog, Slot::Pooler, Part::Weight) {
            spec.pooler = Some(pool);
        }
        let (layers, groups) = (spec.blocks.len(), groups(config, &spec));
        let group = |layer: usize| layer * groups / layers;
        let first = |layer: usize| (0..layers).find(|l| group(*l) == group(layer)).unwrap_or(layer);
        let shared = (0..layers).map(first).collect();
        Ok(ModelSpec { arch: "albert".into(), shared, ..spec })
    }

    /// The first block of a group is bound to its tensors; the others have its operands.
    fn bindings(&self, spec: &ModelSpec, config: &ModelConfig, catalog: Catalog<'_>) -> Vec<Binding> {
        let groups = groups(config, spec);
        let blocks = spec.blocks.iter().take(groups).cloned().collect();
        let first = ModelSpec { blocks, shared: Vec::new(), ..spec.clone() };
        let owners: Vec<usize> = (0..spec.blocks.len()).filter(|l| spec.owner(*l) == *l).collect();
        let mut all = ALBERT_NAMES.bind(&first, config, catalog, QkvLayout::Concat);
        for binding in &mut all {
            binding.role.layer = binding.role.layer.and_then(|group| owners.get(group).copied());
        }
        all
    }

    fn ignored(&self) -> &[&str] {
        ALBERT_NAMES.ignored
    }
}

/// Groups of blocks; no more than blocks.
fn groups(config: &ModelConfig, spec: &ModelSpec) -> usize {
    let groups = config.size_opt(&["num_hidden_groups"]).ok().flatten().unwrap_or(1);
    groups.clamp(1, spec.blocks.len().max(1))
}

//! MPNet: BERT's blocks without token types, whose scores get a bias by distance, from one table of buckets
//! for all blocks.

use super::bert::NAMES as BERT_NAMES;
use crate::params::Act;
use crate::policy::describe::{Described, encoder, refuse_gguf};
use crate::policy::task::{BERT_LIKE, Task, first_token, set_task, task};
use crate::policy::*;

/// `model_type` mpnet.
pub const MPNET: Described = Described::new(
    &["mpnet"],
    Names {
        prefixes: &["mpnet.", ""],
        slots: &[
            (Slot::Qkv, "attention.attn.q + attention.attn.k + attention.attn.v"),
            (Slot::AttnOut, "attention.attn.o"),
            (Slot::AttnNorm, "attention.LayerNorm"),
            (Slot::PositionBias, "/mpnet.encoder.relative_attention_bias, /encoder.relative_attention_bias"),
            (Slot::Pooler, "/classifier.dense ; pooler.dense"),
            (Slot::HeadDense, "/lm_head.dense"),
            (Slot::HeadNorm, "/lm_head.layer_norm"),
            (
                Slot::Head,
                "/lm_head.decoder!w, /lm_head!b > /lm_head.decoder!b ; /classifier.out_proj ; /classifier ; /qa_outputs",
            ),
        ],
        base: BERT_NAMES.slots,
        ignored: &["*position_ids", "lm_head.decoder.*", "mpnet.pooler.*", "pooler.dense.*"],
        ..BERT_NAMES
    },
    mpnet,
);

/// Distances from here on are in the last bucket.
const MOST: usize = 128;

fn mpnet(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    refuse_gguf(config)?;
    let mut spec = encoder(config, BERT_LIKE)?;
    let buckets = config.size_opt(&["relative_attention_num_buckets"])?.unwrap_or(32);
    let buckets = BucketSpec { buckets, most: MOST, both: true, owner: 0 };
    encoder_decoder::check_buckets(buckets, spec.blocks.first().map_or(0, |b| b.heads.heads), 1)?;
    spec.each(|_, b| {
        b.buckets = Some(buckets);
        b.scores.relative = Some(buckets.relative());
    });
    // Positions begin behind the padding token's number, which is 1 whatever the configuration says.
    let rows = spec.max_positions;
    if rows <= 2 {
        return Err(Error::config("max_position_embeddings", rows, "at least 3"));
    }
    spec.embed.positions = Some(LearnedPositions { rows, offset: 2 });
    spec.max_positions = rows - 2;
    let (hidden, norm, task) = (spec.hidden, spec.embed.norm, task(config, Task::Masked)?);
    let pool = first_token(hidden, Act::Tanh);
    let masked = HeadTransform { act: Act::Gelu, norm, width: hidden, bias: true };
    set_task(config, &mut spec, task, masked, pool)?;
    if task == Task::Bare && MPNET.names.has(config, catalog, Slot::Pooler, Part::Weight) {
        spec.pooler = Some(pool);
    }
    Ok(spec)
}

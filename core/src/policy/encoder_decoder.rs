//! What families of an encoder and a decoder have in common.

use super::*;

/// A stack of equal blocks, without a head, positions and a last norm.
///
/// # Errors
/// `Config` for a vocabulary or a number of layers that no model has.
pub(super) fn stack(
    config: &ModelConfig,
    hidden: usize,
    block: BlockSpec,
    layers: usize,
) -> Result<ModelSpec> {
    if layers > MAX_LAYERS {
        return Err(Error::config("layers", layers, format!("at most {MAX_LAYERS}")));
    }
    Ok(ModelSpec {
        arch: String::new(),
        family: Family::Decoder,
        hidden,
        vocab: config.size(&["vocab_size"])?,
        max_positions: 1,
        embed: EmbedSpec::tokens(hidden),
        ropes: Vec::new(),
        placement: Placement::Pre,
        blocks: vec![block; layers],
        shared: Vec::new(),
        final_norm: None,
        project_out: None,
        pooler: None,
        head: HeadSpec::None,
        encoder: None,
        assumed: Vec::new(),
        group: None,
    })
}

/// Refuses what is not published with both stacks and a head.
///
/// # Errors
/// `Config` for another task, and for `is_encoder_decoder` switched off.
pub(super) fn check_task(config: &ModelConfig, ends: &[&str], allowed: &str) -> Result<()> {
    let name = config.architecture();
    if !(name.is_empty() || ends.iter().any(|end| name.ends_with(end))) {
        return Err(Error::config("architectures", format!("\"{name}\""), allowed));
    }
    match config.flag(&["is_encoder_decoder"], true)? {
        true => Ok(()),
        false => Err(Error::config("is_encoder_decoder", false, format!("true, for {allowed}"))),
    }
}

/// What the decoder begins with: its start token, and the one that generation forces behind it.
///
/// # Errors
/// `Config` for no start token, or one beyond the vocabulary.
pub(super) fn start(config: &ModelConfig) -> Result<Vec<u32>> {
    let vocab = config.size(&["vocab_size"])?;
    let id = |field: &'static str| -> Result<Option<u32>> {
        let Some(value) = config.get(field) else { return Ok(None) };
        let id = value.as_u64().filter(|id| *id < vocab as u64).and_then(|id| u32::try_from(id).ok());
        id.map(Some).ok_or_else(|| Error::config(field, value, format!("a token below {vocab}")))
    };
    let first = match id("decoder_start_token_id")? {
        Some(first) => first,
        None => id("bos_token_id")?
            .ok_or_else(|| Error::config("decoder_start_token_id", "missing", format!("below {vocab}")))?,
    };
    Ok([Some(first), id("forced_bos_token_id")?].into_iter().flatten().collect())
}

/// Buckets of distances, and biases of all heads and distances, that any model may have: bounds against
/// absurd files, whose table would not fit in memory.
const MOST_BUCKETS: usize = 1 << 16;
const MOST_BIASES: usize = 1 << 24;
/// Rows of a computed table of positions; as above.
const MOST_POSITIONS: usize = 1 << 16;

/// Refuses buckets that no distance falls into, and so many tables of distances, for so many heads, that no
/// device holds them.
///
/// # Errors
/// `Config`, naming the field.
pub(super) fn check_buckets(buckets: BucketSpec, heads: usize, tables: usize) -> Result<()> {
    let BucketSpec { buckets, most, both, .. } = buckets;
    let side = if both { buckets / 2 } else { buckets };
    if side < 2 || buckets > MOST_BUCKETS {
        let allowed = format!("{} to {MOST_BUCKETS}", if both { 4 } else { 2 });
        return Err(Error::config("relative_attention_num_buckets", buckets, allowed));
    }
    let (least, most_of_all) = (side / 2 + 1, MOST_BIASES / heads.max(1).saturating_mul(2 * tables.max(1)));
    if most < least || most >= most_of_all {
        let allowed =
            format!("{least} to {}, for {tables} tables of {heads} heads", most_of_all.saturating_sub(1));
        return Err(Error::config("relative_attention_max_distance", most, allowed));
    }
    Ok(())
}

/// Refuses more computed positions than any model has.
///
/// # Errors
/// `Config`.
pub(super) fn check_positions(rows: usize) -> Result<()> {
    match rows <= MOST_POSITIONS {
        true => Ok(()),
        false => Err(Error::config("max_position_embeddings", rows, format!("at most {MOST_POSITIONS}"))),
    }
}

//! Labels of texts and tokens: how many a configuration names, and the head of decoders that label texts.

use super::*;

/// How many labels.
pub(super) fn labels(config: &ModelConfig) -> Result<usize> {
    match config.get("id2label").and_then(|l| l.as_object()) {
        Some(listed) if !listed.is_empty() => Ok(listed.len()),
        _ => Ok(config.size_opt(&["num_labels"])?.unwrap_or(2)),
    }
}

/// The weight of a decoder's labels.
pub(super) const SCORE: &str = "score.weight";

/// Gives a decoder that labels texts its head: a linear layer without a bias, over the last token that is not
/// padding.
///
/// # Errors
/// `Config` for tasks of decoders that are not known.
pub(super) fn set_decoder_task(config: &ModelConfig, spec: &mut ModelSpec) -> Result<()> {
    let name = config.architecture();
    if let Some(task) = ["ForTokenClassification", "ForQuestionAnswering"].iter().find(|t| name.ends_with(*t))
    {
        let allowed = "of a decoder ...ForCausalLM, ...ForSequenceClassification, ...Model";
        return Err(Error::config(
            "architectures",
            format!("\"{name}\""),
            format!("{allowed}, not ...{task}"),
        ));
    }
    if !name.ends_with("ForSequenceClassification") {
        return Ok(());
    }
    let padding = config.get("pad_token_id").and_then(|id| id.as_u64()).and_then(|id| u32::try_from(id).ok());
    let from = padding.map_or(PoolSource::Last, PoolSource::LastExcept);
    spec.pooler = Some(PoolSpec { from, norm: None, dense: None, act: None });
    spec.head = HeadSpec::Labels { count: labels(config)?, bias: false };
    Ok(())
}

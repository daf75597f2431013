//! Baichuan 1 and 2: LLaMA's blocks with q, k and v in one tensor. Source: its published configuration and
//! modelling file.

use super::llama::NAMES;
use crate::policy::describe::{Described, LLAMA_LIKE, decoder};
use crate::policy::*;

/// `model_type` baichuan.
pub const BAICHUAN: Described = Described::new(
    &["baichuan"],
    Names { slots: &[(Slot::Qkv, "self_attn.W_pack")], base: NAMES.slots, ..NAMES },
    baichuan,
);

/// 7B rotates; 13B, whose configuration has no `max_position_embeddings`, has the linear position bias. The
/// second generation (`z_loss_weight`) normalises the head's rows.
fn baichuan(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = decoder(config, LLAMA_LIKE)?;
    if config.get("max_position_embeddings").is_some() {
        spec.rotate(config, catalog, RopeStyle::Half, None)?;
    } else {
        spec.max_positions = config.size_opt(&["model_max_length"])?.unwrap_or(4096);
        spec.alibi(8.0, 1.0)?;
    }
    if config.get("z_loss_weight").is_some()
        && let HeadSpec::Tokens { unit_rows, .. } = &mut spec.head
    {
        *unit_rows = true;
    }
    Ok(spec)
}

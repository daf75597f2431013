//! What a run reads and computes, from the plan.
//!
//! Of experts a token reads and multiplies with those that it chooses. Which ones is not known: bytes and
//! operations are those expected where every expert is as likely as any other, and tokens choose for
//! themselves.

use super::expected::share_read;
use engraft::Result;
use engraft::engraft_core::backend::Backend;
use engraft::engraft_core::engine::Engine;
use engraft::engraft_core::inject::{InjectionPlan, PlanRow};
use engraft::engraft_core::policy::{Family, ModelSpec, Slot};

/// Floating-point operations and bytes.
pub struct Work {
    pub parameters: u64,
    /// Ranks that share the model: bytes and operations are rank 0's, whose plan is known.
    pub ranks: usize,
    /// Bytes of all weights that steps read.
    pub weight_bytes: u64,
    /// Of those, what the experts of each block have.
    experts: Vec<Experts>,
    /// Of the KV cache, when full.
    pub kv_bytes: u64,
    pub prefill_flops: f64,
    /// Of one token.
    pub decode_flops: f64,
}

/// A matrix of all experts of a block.
struct Experts {
    bytes: f64,
    /// The share of them that a token chooses.
    chosen: f64,
}

impl Work {
    /// Of a model in an engine of one of so many ranks, for prompts of `prompt` tokens and decode steps whose
    /// sequences have `at` tokens.
    pub fn new<B: Backend>(
        engine: &Engine<B>,
        ranks: usize,
        parameters: u64,
        [prompt, at]: [usize; 2],
    ) -> Result<Self> {
        let (model, config) = (engine.model(), engine.config());
        let plan = InjectionPlan::new(engine.backend().as_ref(), model, config.dtype, config.kv_dtype)?;
        let (mut body, mut head, mut source, mut weight_bytes) = (0.0, 0.0, 0.0, 0);
        let mut experts = Vec::new();
        let tied = plan.rows.iter().any(|r| r.slot == "head (tied)");
        for row in &plan.rows {
            let Some([rows, cols]) = row.shape else { continue };
            let chosen = chosen(&model.spec, row);
            let flops = 2.0 * rows as f64 * cols as f64 * chosen;
            // What an encoder reads, and what is made of its rows: once for a text.
            if row.slot.starts_with("encoder_") || row.slot == "cross_key_value" {
                source += flops;
                continue;
            }
            match row.slot.as_str() {
                "token_embed" if tied => weight_bytes += row.bytes as u64,
                // Of these a step reads only the rows that it looks up.
                "token_embed" | "position_embed" | "token_type_embed" => continue,
                _ => weight_bytes += row.bytes as u64,
            }
            if chosen < 1.0 {
                experts.push(Experts { bytes: row.bytes as f64, chosen });
            }
            match row.slot.as_str() {
                "token_embed" => {}
                "head" | "head (tied)" => head += flops,
                _ => body += flops,
            }
        }
        let (prompt, own) = (prompt as f64, attention(&model.spec));
        let decodes = body + head + own * at as f64;
        let (prefill_flops, decode_flops) = match (&model.spec.encoder, model.spec.family) {
            (_, Family::Encoder) => (prompt * (body + own * prompt), 0.0),
            // The decoder's first token, behind all of the text.
            (Some(encoder), _) => {
                let text = prompt * (source + attention(&encoder.stack) * prompt);
                (text + body + head + own * (prompt + 1.0), decodes)
            }
            (None, _) => (prompt * body + head + own * prompt * (prompt + 1.0) / 2.0, decodes),
        };
        let kv_bytes = if model.spec.family == Family::Encoder { 0 } else { kv_bytes(engine) };
        Ok(Self { parameters, ranks, weight_bytes, experts, kv_bytes, prefill_flops, decode_flops })
    }

    /// Bytes of weights that a step of so many tokens is expected to read.
    pub fn read_by(&self, tokens: usize) -> f64 {
        let left = |e: &Experts| e.bytes * (1.0 - share_read(e.chosen, tokens));
        self.weight_bytes as f64 - self.experts.iter().map(left).sum::<f64>()
    }

    /// What all ranks do: not known where there are several, as other ranks' parts are not rank 0's.
    pub fn known(&self, of_rank_0: f64) -> f64 {
        if self.ranks == 1 { of_rank_0 } else { f64::NAN }
    }

    /// Whose bytes are meant.
    pub fn whose(&self) -> &'static str {
        if self.ranks == 1 { "" } else { " by rank 0" }
    }
}

/// The share of a matrix that a token is multiplied with: of experts those that it chooses, else all of it.
fn chosen(spec: &ModelSpec, row: &PlanRow) -> f64 {
    let of_experts = [Slot::ExpertUp, Slot::ExpertDown].iter().any(|slot| slot.name() == row.slot);
    let moe = row.layer.filter(|_| of_experts).and_then(|layer| spec.blocks[layer].moe);
    moe.map_or(1.0, |moe| moe.router.top_k as f64 / moe.router.experts as f64)
}

fn kv_bytes<B: Backend>(engine: &Engine<B>) -> u64 {
    let config = engine.config();
    let keeping = engine.model().spec.blocks.iter().filter(|b| b.kv_from.is_none());
    let bytes = |width| config.kv_dtype.head_bytes(width);
    let of_token: usize =
        keeping.map(|b| b.heads.kv_heads * (bytes(b.heads.k_dim) + bytes(b.heads.v_dim))).sum();
    (config.pool_pages() * config.page_size * of_token) as u64
}

/// Operations of one query per key, all layers: two for the score and two for the sum, per column and head.
fn attention(spec: &ModelSpec) -> f64 {
    let layer = |h: &engraft::engraft_core::params::Heads| 2.0 * (h.heads * (h.k_dim + h.v_dim)) as f64;
    spec.blocks.iter().map(|b| layer(&b.heads)).sum()
}

#[cfg(test)]
mod tests {
    use super::{Experts, Work};

    #[test]
    fn more_tokens_read_more_experts() {
        let work = Work {
            parameters: 0,
            ranks: 1,
            weight_bytes: 1000,
            experts: vec![Experts { bytes: 800.0, chosen: 0.25 }],
            kv_bytes: 0,
            prefill_flops: 0.0,
            decode_flops: 0.0,
        };
        assert_eq!(work.read_by(1), 400.0);
        // A quarter of the experts, and a quarter of the others.
        assert_eq!(work.read_by(2), 200.0 + 200.0 + 150.0);
        assert!((work.read_by(64) - 1000.0).abs() < 1e-4);
    }
}

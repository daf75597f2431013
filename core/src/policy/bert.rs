//! BERT: a bidirectional encoder with post-norms, learned positions and token types.
//!
//! Forms: `bert.` prefix or none, LayerNorm's `weight`/`bias` or the older `gamma`/`beta`, GGUF's names. The head goes by
//! `architectures`: masked tokens, labels of the pooled first token, or none.

use super::*;
use crate::ops::{Act, NormKind, Scores};
use crate::{Error, Result};

/// The policy of `model_type` bert.
#[derive(Debug, Clone, Copy)]
pub struct Bert;

/// Slot, published names that fill its rows, and GGUF's, for what every block has.
const BLOCK: [(Slot, &[(&str, &str)]); 6] = [
    (Slot::AttnNorm, &[("attention.output.LayerNorm", "attn_output_norm")]),
    (
        Slot::Qkv,
        &[
            ("attention.self.query", "attn_q"),
            ("attention.self.key", "attn_k"),
            ("attention.self.value", "attn_v"),
        ],
    ),
    (Slot::AttnOut, &[("attention.output.dense", "attn_output")]),
    (Slot::MlpNorm, &[("output.LayerNorm", "layer_output_norm")]),
    (Slot::Up, &[("intermediate.dense", "ffn_up")]),
    (Slot::Down, &[("output.dense", "ffn_down")]),
];

/// Slot, published name (below the prefix, if it begins with `~`) and GGUF's (where it has one), outside the blocks.
const OUTSIDE: [(Slot, &str, &str); 7] = [
    (Slot::TokenEmbed, "~embeddings.word_embeddings", "token_embd"),
    (Slot::PositionEmbed, "~embeddings.position_embeddings", "position_embd"),
    (Slot::KindEmbed, "~embeddings.token_type_embeddings", "token_types"),
    (Slot::EmbedNorm, "~embeddings.LayerNorm", "token_embd_norm"),
    (Slot::Pooler, "~pooler.dense", ""),
    (Slot::HeadDense, "cls.predictions.transform.dense", ""),
    (Slot::HeadNorm, "cls.predictions.transform.LayerNorm", ""),
];

/// `weight` or `bias` of a module under every prefix and spelling.
fn names(hf: &str, gguf: &str, part: Part) -> Vec<String> {
    let (now, old) = if part == Part::Weight { ("weight", "gamma") } else { ("bias", "beta") };
    let bases = match hf.strip_prefix('~') {
        Some(hf) => vec![format!("bert.{hf}"), hf.to_string()],
        None => vec![hf.to_string()],
    };
    let mut all: Vec<String> = bases.iter().map(|b| format!("{b}.{now}")).collect();
    if hf.ends_with("LayerNorm") {
        all.extend(bases.iter().map(|b| format!("{b}.{old}")));
    }
    if !gguf.is_empty() {
        all.push(format!("{gguf}.{now}"));
    }
    all
}

/// Head and pooler of the named architecture.
fn head(config: &ModelConfig, catalog: Catalog<'_>, act: Act, norm: NormSpec) -> Result<(HeadSpec, bool)> {
    match config.architecture() {
        "BertForMaskedLM" | "BertForPreTraining" => {
            let tied = config.flag(&["tie_word_embeddings"], true)?;
            Ok((HeadSpec::Tokens { tied, bias: true, transform: Some((act, norm)) }, false))
        }
        "BertForSequenceClassification" => {
            let listed = config.get("id2label").and_then(|l| l.as_object()).map(|l| l.len());
            let count =
                listed.map_or_else(|| Ok(config.size_opt(&["num_labels"])?.unwrap_or(2)), Ok::<_, Error>)?;
            Ok((HeadSpec::Labels { count }, true))
        }
        "BertModel" | "" => {
            let there = names("~pooler.dense", "", Part::Weight).iter().any(|n| catalog.find(n).is_some());
            Ok((HeadSpec::None, there))
        }
        other => {
            let known = "BertModel, BertForMaskedLM, BertForPreTraining, BertForSequenceClassification";
            Err(Error::config("architectures", format!("\"{other}\""), known))
        }
    }
}

impl InjectionPolicy for Bert {
    fn name(&self) -> &str {
        "bert"
    }

    fn fit(&self, config: &ModelConfig, _: Catalog<'_>) -> Fit {
        fit_by_type(config, &["bert"])
    }

    fn spec(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
        refuse(config, "is_decoder")?;
        refuse(config, "add_cross_attention")?;
        let kind = config.text_opt(&["position_embedding_type"])?.unwrap_or("absolute");
        if kind != "absolute" {
            return Err(Error::config("position_embedding_type", format!("\"{kind}\""), "\"absolute\""));
        }
        let hidden = config.size(&["hidden_size"])?;
        let heads = even_heads(config, &["num_attention_heads"], hidden)?;
        let rows = config.size(&["max_position_embeddings"])?;
        let eps = config.positive(&["layer_norm_eps"], 1e-12)? as f32;
        let norm = NormSpec { kind: NormKind::Layer, eps, bias: true, plus_one: false };
        let act = config.act(&["hidden_act"], Act::Gelu)?;
        let (head, pooler) = head(config, catalog, act, norm)?;
        let block = BlockSpec {
            heads,
            scores: Scores {
                scale: (1.0 / (heads.k_dim as f64).sqrt()) as f32,
                causal: false,
                window: None,
                soft_cap: None,
                alibi: None,
            },
            qk_norm: None,
            rope: None,
            attn_norm: norm,
            mlp_norm: norm,
            mlp: MlpSpec { inner: config.size(&["intermediate_size"])?, act, gated: false },
            bias: [true; 4],
        };
        let kinds = match config.get("type_vocab_size").and_then(|n| n.as_u64()) {
            Some(0) => None,
            _ => Some(config.size_opt(&["type_vocab_size"])?.unwrap_or(2)),
        };
        let positions = Some(LearnedPositions { rows, offset: 0 });
        Ok(ModelSpec {
            arch: "bert".into(),
            family: Family::Encoder,
            hidden,
            vocab: config.size(&["vocab_size"])?,
            max_positions: rows,
            embed: EmbedSpec { width: hidden, positions, kinds, norm: Some(norm) },
            ropes: Vec::new(),
            placement: Placement::Post,
            blocks: vec![block; layers(config, &["num_hidden_layers"])?],
            final_norm: None,
            project_out: None,
            pooler,
            head,
        })
    }

    fn bindings(&self, spec: &ModelSpec, _: &ModelConfig, catalog: Catalog<'_>) -> Vec<Binding> {
        let mut all = Vec::new();
        for part in [Part::Weight, Part::Bias] {
            for (slot, hf, gguf) in OUTSIDE {
                let shard = if slot == Slot::TokenEmbed { Shard::Vocab } else { Shard::Replicated };
                all.push(Binding::single(Role::of(slot, part), names(hf, gguf, part), shard));
            }
            for (layer, block) in spec.blocks.iter().enumerate() {
                for (slot, rows) in BLOCK {
                    let source = |(hf, gguf): &(&str, &str)| {
                        let (hf, gguf) =
                            (format!("~encoder.layer.{layer}.{hf}"), format!("blk.{layer}.{gguf}"));
                        TensorSource::plain(names(&hf, &gguf, part))
                    };
                    let sources = rows.iter().map(source).collect();
                    all.push(Binding::rows(
                        Role::block(layer, slot, part),
                        sources,
                        block_shard(slot, block),
                    ));
                }
            }
            // The decoder's bias is the same parameter under a second name, which old files lack or repeat.
            let (bias, again) = ("cls.predictions.bias", "cls.predictions.decoder.bias");
            let (name, shard) = match (spec.head, part) {
                (HeadSpec::Labels { .. }, part) => {
                    (format!("classifier.{}", part.suffix()), Shard::Replicated)
                }
                (_, Part::Weight) => ("cls.predictions.decoder.weight".to_string(), Shard::Vocab),
                _ => (if catalog.find(bias).is_some() { bias } else { again }.to_string(), Shard::Vocab),
            };
            all.push(Binding::single(Role::of(Slot::Head, part), vec![name], shard));
        }
        bound_roles(spec, all)
    }

    fn ignored(&self) -> &[&str] {
        &[
            "*position_ids",
            "cls.seq_relationship.*",
            "cls.predictions.decoder.*",
            "bert.pooler.*",
            "pooler.dense.*",
        ]
    }
}

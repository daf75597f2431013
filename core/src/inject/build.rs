//! From operands by role to a model.

use crate::backend::{Backend, Linear, Prepared, Stream};
use crate::mem::Buf;
use crate::model::{
    Block, Embedding, Experts, Filter, Head, Mlp, Model, Norm, Pooler, RopeTable, Transform, angles,
};
use crate::policy::{BlockSpec, HeadSpec, Join, ModelSpec, NormSpec, Part, QkNorm, QkSpan, Role, Slot};
use crate::weights::Operands;
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Builds a model; every operand must be used.
///
/// # Errors
/// `Binding` when a role is open or an operand is left over.
pub fn build<B: Backend>(
    backend: &Arc<B>,
    spec: ModelSpec,
    mut operands: Operands<B::Weight>,
    positions: usize,
) -> Result<Model<B>> {
    let mut taker = Taker { left: operands.prepared, arch: spec.arch.clone() };
    let embed = embedding(&spec, &mut taker)?;
    let mut blocks: Vec<Arc<Block<B::Weight>>> = Vec::with_capacity(spec.blocks.len());
    for (layer, block) in spec.blocks.iter().enumerate() {
        let built = match blocks.get(spec.owner(layer)) {
            Some(owner) => owner.clone(),
            None => Arc::new(build_block(layer, block, &mut taker, &mut operands.per_head)?),
        };
        blocks.push(built);
    }
    let final_norm = taker.norm_opt(spec.final_norm, None, Slot::FinalNorm)?;
    let project_out = match spec.project_out {
        Some(_) => Some(taker.linear(None, Slot::ProjectOut)?),
        None => None,
    };
    let head = build_head(&spec, &mut taker)?;
    taker.finish()?;
    let ropes = build_ropes(backend, &spec, operands.rope_factors.as_deref(), positions)?;
    Ok(Model::new(spec, embed, ropes, blocks, final_norm, project_out, head))
}

/// Hands operands out, each once.
struct Taker<W> {
    left: BTreeMap<Role, Prepared<W>>,
    arch: String,
}

impl<W> Taker<W> {
    fn error(&self, what: &str, names: Vec<String>) -> Error {
        Error::Binding { policy: self.arch.clone(), what: what.into(), names }
    }

    fn take(&mut self, layer: Option<usize>, slot: Slot, part: Part) -> Result<Prepared<W>> {
        let role = Role { layer, slot, part };
        self.left.remove(&role).ok_or_else(|| self.error("an operand is missing", vec![role.to_string()]))
    }

    fn take_opt(&mut self, layer: Option<usize>, slot: Slot, part: Part) -> Option<Prepared<W>> {
        self.left.remove(&Role { layer, slot, part })
    }

    fn linear(&mut self, layer: Option<usize>, slot: Slot) -> Result<Linear<W>> {
        let weight = self.take(layer, slot, Part::Weight)?;
        Ok(Linear { weight, bias: self.take_opt(layer, slot, Part::Bias) })
    }

    fn norm(&mut self, spec: NormSpec, layer: Option<usize>, slot: Slot) -> Result<Norm<W>> {
        let weight = self.take(layer, slot, Part::Weight)?;
        let bias = if spec.bias { Some(self.take(layer, slot, Part::Bias)?) } else { None };
        Ok(Norm { spec, weight, bias })
    }

    fn norm_opt(
        &mut self,
        spec: Option<NormSpec>,
        layer: Option<usize>,
        slot: Slot,
    ) -> Result<Option<Norm<W>>> {
        spec.map(|spec| self.norm(spec, layer, slot)).transpose()
    }

    fn finish(self) -> Result<()> {
        if self.left.is_empty() {
            return Ok(());
        }
        let names = self.left.keys().map(Role::to_string).collect();
        Err(self.error("operands are left over", names))
    }
}

fn embedding<W>(spec: &ModelSpec, t: &mut Taker<W>) -> Result<Embedding<W>> {
    Ok(Embedding {
        spec: spec.embed.clone(),
        tokens: match spec.embed.patches {
            None => Some(t.take(None, Slot::TokenEmbed, Part::Weight)?),
            Some(_) => None,
        },
        patches: spec.embed.patches.map(|_| t.linear(None, Slot::PatchEmbed)).transpose()?,
        project: match spec.embed.width == spec.hidden {
            true => None,
            false => Some(t.linear(None, Slot::ProjectIn)?),
        },
        kinds: t.take_opt(None, Slot::KindEmbed, Part::Weight),
        positions: t.take_opt(None, Slot::PositionEmbed, Part::Weight),
        norm: t.norm_opt(spec.embed.norm, None, Slot::EmbedNorm)?,
    })
}

fn build_block<W>(
    layer: usize,
    spec: &BlockSpec,
    t: &mut Taker<W>,
    per_head: &mut BTreeMap<Role, Vec<Prepared<W>>>,
) -> Result<Block<W>> {
    let l = Some(layer);
    Ok(Block {
        attn_norm: t.norm_opt(spec.attn_norm, l, Slot::AttnNorm)?,
        filter: match spec.filter {
            None => None,
            Some(filter) => Some(Filter {
                first: t.linear(l, Slot::FilterIn)?,
                second: t.linear(l, Slot::FilterOut)?,
                norm: t.norm(filter.norm, l, Slot::FilterNorm)?,
                value: t.linear(l, Slot::Value)?,
            }),
        },
        qkv: t.linear(l, Slot::Qkv)?,
        qk_norm: match spec.qk_norm {
            None => None,
            Some(QkNorm { norm, span: QkSpan::OwnHead }) => {
                let mut heads = |slot| {
                    let weights = per_head.remove(&Role::block(layer, slot, Part::Weight));
                    let norms = weights.into_iter().flatten();
                    norms.map(|weight| Norm { spec: norm, weight, bias: None }).collect()
                };
                Some((heads(Slot::QNorm), heads(Slot::KNorm)))
            }
            Some(QkNorm { norm, .. }) => {
                Some((vec![t.norm(norm, l, Slot::QNorm)?], vec![t.norm(norm, l, Slot::KNorm)?]))
            }
        },
        attn_out: t.linear(l, Slot::AttnOut)?,
        attn_post: t.norm_opt(spec.attn_post, l, Slot::AttnPostNorm)?,
        mlp_norm: t.norm_opt(spec.mlp_norm, l, Slot::MlpNorm)?,
        mlp: match spec.mlp.inner {
            0 => None,
            _ => Some(Mlp { up: t.linear(l, Slot::Up)?, down: t.linear(l, Slot::Down)? }),
        },
        experts: match spec.moe {
            None => None,
            Some(moe) => Some(Experts {
                spec: moe,
                router: t.linear(l, Slot::Router)?,
                up: t.linear(l, Slot::ExpertUp)?,
                down: t.linear(l, Slot::ExpertDown)?,
                join: match moe.join {
                    Join::Add => None,
                    _ => Some(t.linear(l, Slot::Join)?),
                },
            }),
        },
        mlp_post: t.norm_opt(spec.mlp_post, l, Slot::MlpPostNorm)?,
        spec: spec.clone(),
    })
}

fn build_head<W>(spec: &ModelSpec, t: &mut Taker<W>) -> Result<Head<W>> {
    let pooler = match spec.pooler {
        None => None,
        Some(pool) => Some(Pooler {
            norm: t.norm_opt(pool.norm, None, Slot::PoolNorm)?,
            dense: pool.dense.map(|_| t.linear(None, Slot::Pooler)).transpose()?,
            act: pool.act,
        }),
    };
    let transform = match spec.head.transform() {
        None => None,
        Some(transform) => Some(Transform {
            dense: t.linear(None, Slot::HeadDense)?,
            act: transform.act,
            norm: t.norm_opt(transform.norm, None, Slot::HeadNorm)?,
        }),
    };
    let weight = match spec.head {
        HeadSpec::Tokens { tied: false, .. } | HeadSpec::Labels { .. } => {
            Some(t.take(None, Slot::Head, Part::Weight)?)
        }
        _ => None,
    };
    Ok(Head { spec: spec.head, pooler, transform, weight, bias: t.take_opt(None, Slot::Head, Part::Bias) })
}

fn build_ropes<B: Backend>(
    backend: &Arc<B>,
    spec: &ModelSpec,
    factors: Option<&[f32]>,
    positions: usize,
) -> Result<Vec<RopeTable<B::Mem>>> {
    let mut stream = backend.stream()?;
    let mut tables = Vec::new();
    for rope in &spec.ropes {
        let host = angles(rope, factors, positions)?;
        let mut table = Buf::new(backend.alloc(host.len() * 4)?, host.len())?;
        stream.upload(&host, table.view_mut())?;
        tables.push(RopeTable::new(table, positions, rope));
    }
    stream.sync()?;
    Ok(tables)
}

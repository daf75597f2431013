//! From operands by role to a model.

use crate::backend::{Backend, Mem, Stream};
use crate::mem::{Buf, Device, Weight};
use crate::model::{
    Altup, Apart, Block, ConvOfLayer, Cross, Embedding, Experts, Filter, Fused, Head, HeadNorms, Index,
    InputOfLayer, InputsOfLayers, Latent, Laurel, Mlp, Model, Norm, Pooler, Positions, Projection, Relative,
    RopeTable, RowParallel, Stem, Streams, Transform, angles,
};
use crate::params::ExpertShare;
use crate::policy::{
    AltupSpec, BlockSpec, ConvSpec, CrossSpec, FilterSpec, Group, GroupBlock, HeadSpec, IndexSpec, Join,
    LatentSpec, LaurelSpec, LayerConv, LayerInput, ModelSpec, MoeSpec, NormSpec, Part, PositionConv, QkNorm,
    QkSpan, Role, Slot, StemSpec,
};
use crate::weights::Operands;
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Builds a model; every operand must be used.
///
/// # Errors
/// `Binding` when a role is open or an operand is left over.
pub fn build<D: Device>(
    spec: ModelSpec,
    operands: Operands<D::Weight>,
    ropes: Vec<Vec<RopeTable<D::Mem>>>,
) -> Result<Model<D>> {
    let computed = operands.positions.iter().flatten();
    let weights = operands.prepared.values().flatten().chain(computed);
    let weight_bytes = weights.map(|weight| weight.device_bytes() as u64).sum();
    let query_factors = operands.query_factors;
    let (left, end_factors) = (operands.prepared, operands.end_factors);
    let mut taker = Taker { encoder: false, left, end_factors, arch: spec.arch.clone() };
    let ([positions, of_encoder], mut ropes) = (operands.positions, ropes.into_iter());
    let own_ropes = ropes.next().unwrap_or_default();
    let mut model = build_stack(spec, &mut taker, own_ropes, positions)?;
    if let Some(encoder) = model.spec.encoder.clone() {
        taker.encoder = true;
        let ropes = ropes.next().unwrap_or_default();
        model.encoder = Some(Box::new(build_stack(encoder.stack, &mut taker, ropes, of_encoder)?));
    }
    taker.finish()?;
    (model.query_factors, model.weight_bytes) = (query_factors, weight_bytes);
    Ok(model)
}

/// A model, or the encoder next to it.
fn build_stack<D: Device>(
    spec: ModelSpec,
    taker: &mut Taker<D>,
    ropes: Vec<RopeTable<D::Mem>>,
    positions: Option<D::Weight>,
) -> Result<Model<D>> {
    let embed = embedding(&spec, positions, taker)?;
    let mut blocks: Vec<Arc<Block<D>>> = Vec::with_capacity(spec.blocks.len());
    for (layer, block) in spec.blocks.iter().enumerate() {
        let built = match blocks.get(spec.owner(layer)) {
            Some(owner) => owner.clone(),
            None => Arc::new(build_block(layer, block, spec.group.as_ref(), taker, &blocks)?),
        };
        blocks.push(built);
    }
    let final_norm = taker.norm_opt(spec.final_norm, None, Slot::FinalNorm)?;
    let project_out = match spec.project_out {
        Some(_) => Some(taker.linear(None, Slot::ProjectOut)?),
        None => None,
    };
    let head = build_head(&spec, taker)?;
    let streams = spec.altup().map(|altup| build_streams(altup, taker)).transpose()?;
    Ok(Model {
        spec,
        embed,
        streams,
        ropes,
        blocks,
        final_norm,
        project_out,
        head,
        encoder: None,
        query_factors: None,
        origin: None,
        fingerprint: None,
        weight_bytes: 0,
        own: Vec::new(),
    })
}

/// Hands operands out, each once.
struct Taker<D: Device> {
    /// Whether those of the encoder next to a decoder.
    encoder: bool,
    left: BTreeMap<Role, Vec<D::Weight>>,
    end_factors: BTreeMap<Role, f32>,
    arch: String,
}

impl<D: Device> Taker<D> {
    fn role(&self, layer: Option<usize>, slot: Slot, part: Part) -> Role {
        Role { encoder: self.encoder, layer, slot, part }
    }

    fn error(&self, what: &str, names: Vec<String>) -> Error {
        Error::Binding { policy: self.arch.clone(), what: what.into(), names }
    }

    fn take(&mut self, layer: Option<usize>, slot: Slot, part: Part) -> Result<D::Weight> {
        let role = self.role(layer, slot, part);
        let taken = self.take_opt(layer, slot, part);
        taken.ok_or_else(|| self.error("an operand is missing, or in several parts", vec![role.to_string()]))
    }

    fn take_opt(&mut self, layer: Option<usize>, slot: Slot, part: Part) -> Option<D::Weight> {
        let role = self.role(layer, slot, part);
        match self.left.get(&role)?.len() {
            1 => self.left.remove(&role)?.pop(),
            _ => None,
        }
    }

    /// A fused operand, in as many parts as it has formats; its bias in the same.
    fn fused(&mut self, layer: Option<usize>, slot: Slot) -> Result<Fused<D>> {
        self.each(layer, slot).map(Fused::new)
    }

    /// An operand in several parts, its bias in the same.
    fn each(&mut self, layer: Option<usize>, slot: Slot) -> Result<Vec<Projection<D>>> {
        let [weight, bias] = [Part::Weight, Part::Bias].map(|part| self.role(layer, slot, part));
        let weights = self.left.remove(&weight).unwrap_or_default();
        let biases = self.left.remove(&bias);
        if weights.is_empty() || biases.as_ref().is_some_and(|biases| biases.len() != weights.len()) {
            return Err(self.error("an operand is missing, or in other parts", vec![weight.to_string()]));
        }
        let mut biases = biases.into_iter().flatten();
        Ok(weights.into_iter().map(|weight| Projection { weight, bias: biases.next() }).collect())
    }

    fn linear(&mut self, layer: Option<usize>, slot: Slot) -> Result<Projection<D>> {
        let weight = self.take(layer, slot, Part::Weight)?;
        Ok(Projection { weight, bias: self.take_opt(layer, slot, Part::Bias) })
    }

    /// A projection whose inputs ranks share; where `some` says so, this one may have none.
    fn row_parallel(&mut self, layer: Option<usize>, slot: Slot, some: bool) -> Result<RowParallel<D>> {
        let weight = match some {
            true => Some(self.take(layer, slot, Part::Weight)?),
            false => None,
        };
        Ok(RowParallel { weight, bias: self.take_opt(layer, slot, Part::Bias) })
    }

    fn norm(&mut self, spec: NormSpec, layer: Option<usize>, slot: Slot) -> Result<Norm<D>> {
        let weight = if spec.weighted { Some(self.take(layer, slot, Part::Weight)?) } else { None };
        let bias = if spec.bias { Some(self.take(layer, slot, Part::Bias)?) } else { None };
        Ok(Norm { spec, weight, bias })
    }

    fn norm_opt(
        &mut self,
        spec: Option<NormSpec>,
        layer: Option<usize>,
        slot: Slot,
    ) -> Result<Option<Norm<D>>> {
        spec.map(|spec| self.norm(spec, layer, slot)).transpose()
    }

    /// The factor that a block ends with.
    fn end_factor(&self, spec: &BlockSpec, layer: usize) -> Result<Option<f32>> {
        if !spec.end_factor {
            return Ok(None);
        }
        let role = self.role(Some(layer), Slot::EndFactor, Part::Weight);
        let found = self.end_factors.get(&role).copied();
        found.map(Some).ok_or_else(|| self.error("an operand is missing", vec![role.to_string()]))
    }

    fn finish(self) -> Result<()> {
        if self.left.is_empty() {
            return Ok(());
        }
        let names = self.left.keys().map(Role::to_string).collect();
        Err(self.error("operands are left over", names))
    }
}

fn embedding<D: Device>(
    spec: &ModelSpec,
    positions: Option<D::Weight>,
    t: &mut Taker<D>,
) -> Result<Embedding<D>> {
    Ok(Embedding {
        spec: spec.embed.clone(),
        tokens: match spec.embed.reads_tokens() && !spec.embed.shared {
            true => Some(t.take(None, Slot::TokenEmbed, Part::Weight)?),
            false => None,
        },
        stem: spec.embed.stem.as_ref().map(|stem| build_stem(stem, t)).transpose()?,
        patches: spec.embed.patches.map(|_| t.linear(None, Slot::PatchEmbed)).transpose()?,
        project: match spec.embed.projects(spec.hidden) {
            true => Some(t.linear(None, Slot::ProjectIn)?),
            false => None,
        },
        token_types: t.take_opt(None, Slot::TokenTypeEmbed, Part::Weight),
        positions: positions.or_else(|| t.take_opt(None, Slot::PositionEmbed, Part::Weight)),
        norm: t.norm_opt(spec.embed.norm, None, Slot::EmbedNorm)?,
        relative: match spec.embed.relative {
            Some(table) => Some(Relative {
                spec: table,
                table: t.take(None, Slot::RelativeEmbed, Part::Weight)?,
                norm: t.norm_opt(table.norm, None, Slot::RelativeNorm)?,
            }),
            None => None,
        },
        layers: match spec.embed.layers {
            Some(layers) => Some(InputsOfLayers {
                spec: layers,
                table: t.take(None, Slot::LayerEmbed, Part::Weight)?,
                project: t.linear(None, Slot::LayerProject)?,
                norm: t.norm(layers.norm, None, Slot::LayerProjectNorm)?,
            }),
            None => None,
        },
    })
}

fn build_stem<D: Device>(spec: &StemSpec, t: &mut Taker<D>) -> Result<Stem<D>> {
    let mut conv = |(i, conv): (usize, &ConvSpec)| {
        let projection = t.linear(Some(i), Slot::Conv)?;
        Ok((projection, t.norm_opt(conv.norm.map(|norm| norm.norm), Some(i), Slot::ConvNorm)?))
    };
    let convs = spec.convs.iter().enumerate().map(&mut conv).collect::<Result<_>>()?;
    let positions = match spec.positions {
        Some(PositionConv { norm, .. }) => {
            let groups = t.each(None, Slot::PositionConv)?;
            Some(Positions { groups, norm: t.norm_opt(norm, None, Slot::PositionNorm)? })
        }
        None => None,
    };
    Ok(Stem { spec: spec.clone(), convs, positions })
}

fn build_block<D: Device>(
    layer: usize,
    spec: &BlockSpec,
    group: Option<&Group>,
    t: &mut Taker<D>,
    before: &[Arc<Block<D>>],
) -> Result<Block<D>> {
    let l = Some(layer);
    let of_group = group.and_then(|group| group.blocks.get(layer));
    let (heads, inner) = (spec.heads.heads > 0, spec.mlp.inner > 0);
    Ok(Block {
        altup: spec.altup.map(|altup| build_altup(altup, l, t)).transpose()?,
        attn_norm: t.norm_opt(spec.attn_norm, l, Slot::AttnNorm)?,
        laurel: spec.laurel.map(|laurel| build_laurel(laurel, l, t)).transpose()?,
        filter: spec.filter.map(|filter| build_filter(filter, l, heads, t)).transpose()?,
        latent: spec.latent.map(|latent| build_latent(latent, layer, heads, t)).transpose()?,
        index: build_index(spec, l, t)?,
        qkv: match heads && spec.latent.is_none() {
            true => t.fused(l, Slot::Qkv)?,
            false => Fused::new(Vec::new()),
        },
        qk_norm: spec.qk_norm.map(|norm| build_head_norms(spec, norm, layer, t)).transpose()?,
        value_norm: spec.value_norm.map(|spec| Norm { spec, weight: None, bias: None }),
        bias: match spec.buckets.filter(|_| heads) {
            Some(buckets) if buckets.owner == layer => {
                Some(Arc::new(t.take(l, Slot::PositionBias, Part::Weight)?))
            }
            Some(buckets) => before.get(buckets.owner).and_then(|owner| owner.bias.clone()),
            None => None,
        },
        sinks: if heads { t.take_opt(l, Slot::Sinks, Part::Weight) } else { None },
        attn_gate: spec.attn_gate.filter(|_| heads).map(|_| t.linear(l, Slot::AttnGate)).transpose()?,
        attn_out: t.row_parallel(l, Slot::AttnOut, heads)?,
        attn_post: t.norm_opt(spec.attn_post, l, Slot::AttnPostNorm)?,
        cross: spec.cross.as_ref().map(|cross| build_cross(cross, l, heads, t)).transpose()?,
        mlp_norm: t.norm_opt(spec.mlp_norm, l, Slot::MlpNorm)?,
        mlp: match of_group.map_or(inner, |group| group.dense) {
            false => None,
            true => Some(Mlp {
                up: if inner { t.fused(l, Slot::Up)? } else { Fused::new(Vec::new()) },
                constants: t.take_opt(l, Slot::ActConstants, Part::Weight),
                down: t.row_parallel(l, Slot::Down, inner)?,
            }),
        },
        experts: spec.moe.map(|moe| build_experts(moe, of_group, l, t)).transpose()?,
        mlp_post: t.norm_opt(spec.mlp_post, l, Slot::MlpPostNorm)?,
        input: spec.input.map(|input| build_input(input, l, t)).transpose()?,
        end_factor: t.end_factor(spec, layer)?,
        conv: spec.conv.map(|conv| build_conv(conv, l, t)).transpose()?,
        rank: group.map_or(0, |group| group.rank.index),
        one_exchange: of_group.is_some_and(|group| group.one_exchange),
        whole_norms: of_group.and_then(|group| group.whole_norms.clone()),
        whole_gates: of_group.and_then(|group| group.whole_gates.clone()),
        spec: spec.clone(),
    })
}

fn build_streams<D: Device>(spec: AltupSpec, t: &mut Taker<D>) -> Result<Streams<D>> {
    let mut all = |slot| (1..spec.inputs).map(|i| t.linear(Some(i - 1), slot)).collect::<Result<_>>();
    Ok(Streams { spec, project: all(Slot::AltupProject)?, unembed: all(Slot::AltupUnembed)? })
}

fn build_altup<D: Device>(spec: AltupSpec, l: Option<usize>, t: &mut Taker<D>) -> Result<Altup<D>> {
    Ok(Altup {
        spec,
        norm: t.norm(spec.norm, l, Slot::AltupNorm)?,
        router: t.linear(l, Slot::AltupRouter)?,
        predict: t.linear(l, Slot::AltupPredict)?,
        correct: t.linear(l, Slot::AltupCorrect)?,
        scale: t.take_opt(l, Slot::AltupScale, Part::Weight),
    })
}

fn build_laurel<D: Device>(spec: LaurelSpec, l: Option<usize>, t: &mut Taker<D>) -> Result<Laurel<D>> {
    Ok(Laurel {
        spec,
        left: t.linear(l, Slot::LaurelLeft)?,
        right: t.linear(l, Slot::LaurelRight)?,
        norm: t.norm(spec.norm, l, Slot::LaurelNorm)?,
    })
}

fn build_input<D: Device>(spec: LayerInput, l: Option<usize>, t: &mut Taker<D>) -> Result<InputOfLayer<D>> {
    Ok(InputOfLayer {
        spec,
        gate: t.linear(l, Slot::LayerGate)?,
        out: t.linear(l, Slot::LayerOut)?,
        norm: t.norm(spec.norm, l, Slot::LayerOutNorm)?,
    })
}

fn build_conv<D: Device>(spec: LayerConv, l: Option<usize>, t: &mut Taker<D>) -> Result<ConvOfLayer<D>> {
    let conv = t.linear(l, Slot::LayerConv)?;
    Ok(ConvOfLayer { spec, conv, norm: t.norm(spec.norm, l, Slot::LayerConvNorm)? })
}

fn build_cross<D: Device>(
    spec: &CrossSpec,
    l: Option<usize>,
    heads: bool,
    t: &mut Taker<D>,
) -> Result<Cross<D>> {
    Ok(Cross {
        spec: spec.clone(),
        norm: t.norm_opt(spec.norm, l, Slot::CrossNorm)?,
        query: if heads { Some(t.linear(l, Slot::CrossQuery)?) } else { None },
        key_value: if heads { t.fused(l, Slot::CrossKeyValue)? } else { Fused::new(Vec::new()) },
        out: t.row_parallel(l, Slot::CrossOut, heads)?,
    })
}

fn build_filter<D: Device>(
    spec: FilterSpec,
    l: Option<usize>,
    heads: bool,
    t: &mut Taker<D>,
) -> Result<Filter<D>> {
    Ok(Filter {
        first: t.linear(l, Slot::FilterIn)?,
        second: t.linear(l, Slot::FilterOut)?,
        norm: t.norm(spec.norm, l, Slot::FilterNorm)?,
        value: if heads { Some(t.linear(l, Slot::Value)?) } else { None },
    })
}

fn build_latent<D: Device>(
    spec: LatentSpec,
    layer: usize,
    heads: bool,
    t: &mut Taker<D>,
) -> Result<Latent<D>> {
    let l = Some(layer);
    let mut of_heads = |slot| {
        let role = t.role(l, slot, Part::Weight);
        t.left.remove(&role).unwrap_or_default()
    };
    let (key_up, value_up) = (of_heads(Slot::KeyUp), of_heads(Slot::ValueUp));
    let query_down = match spec.query_rank {
        Some(_) => Some((t.linear(l, Slot::QueryDown)?, t.norm(spec.norm, l, Slot::QueryDownNorm)?)),
        None => None,
    };
    Ok(Latent {
        spec,
        query_down,
        query_up: if heads { Some(t.linear(l, Slot::QueryUp)?) } else { None },
        down: t.linear(l, Slot::LatentDown)?,
        norm: t.norm(spec.norm, l, Slot::LatentNorm)?,
        key_up,
        value_up,
    })
}

fn build_index<D: Device>(spec: &BlockSpec, l: Option<usize>, t: &mut Taker<D>) -> Result<Option<Index<D>>> {
    let Some(index) = spec.index.and_then(IndexSpec::own) else { return Ok(None) };
    let rank = spec.latent.and_then(|latent| latent.query_rank);
    let query_rank = rank.ok_or_else(|| Error::internal("an index without two matmuls of queries"))?;
    Ok(Some(Index {
        spec: index,
        query_rank,
        query: t.linear(l, Slot::IndexQuery)?,
        key: t.linear(l, Slot::IndexKey)?,
        norm: t.norm(index.norm, l, Slot::IndexKeyNorm)?,
        factors: t.linear(l, Slot::IndexFactors)?,
    }))
}

fn build_head_norms<D: Device>(
    block: &BlockSpec,
    QkNorm { norm, span, .. }: QkNorm,
    layer: usize,
    t: &mut Taker<D>,
) -> Result<(HeadNorms<D>, HeadNorms<D>)> {
    let mut norms = |slot| match span {
        QkSpan::OwnHead => {
            let role = t.role(Some(layer), slot, Part::Weight);
            let weights = t.left.remove(&role);
            let norms = weights.into_iter().flatten();
            Ok(norms.map(|weight| Norm { spec: norm, weight: Some(weight), bias: None }).collect())
        }
        _ => Ok::<_, Error>(vec![t.norm(norm, Some(layer), slot)?]),
    };
    let keys = if block.kv_from.is_some() { Vec::new() } else { norms(Slot::KNorm)? };
    Ok((norms(Slot::QNorm)?, keys))
}

fn build_experts<D: Device>(
    spec: MoeSpec,
    of_group: Option<&GroupBlock>,
    l: Option<usize>,
    t: &mut Taker<D>,
) -> Result<Experts<D>> {
    let of_rank = of_group.and_then(|group| group.experts);
    let share = of_rank.unwrap_or(ExpertShare::whole(spec.with_weights()));
    let some = !share.experts().is_empty() && spec.inner > 0;
    let parts = of_group.is_some_and(|group| group.expert_parts);
    let biases = if parts { t.take_opt(l, Slot::ExpertDown, Part::Bias) } else { None };
    let mut own = |slot| some.then(|| t.linear(l, slot)).transpose();
    Ok(Experts {
        spec,
        share,
        parts,
        biases,
        up: own(Slot::ExpertUp)?,
        down: own(Slot::ExpertDown)?,
        router: t.linear(l, Slot::Router)?,
        choice_bias: t.take_opt(l, Slot::ChoiceBias, Part::Weight),
        apart: match spec.apart {
            Some(apart) => Some(Apart {
                spec: apart,
                router: t.norm(apart.norm, l, Slot::RouterNorm)?,
                experts: t.norm(apart.norm, l, Slot::ExpertNorm)?,
                dense_post: t.norm(apart.norm, l, Slot::DensePostNorm)?,
                expert_post: t.norm(apart.norm, l, Slot::ExpertPostNorm)?,
            }),
            None => None,
        },
        factors: t.take_opt(l, Slot::ExpertFactors, Part::Weight),
        join: match spec.join {
            Join::Add | Join::Mean | Join::NextBlock => None,
            _ => Some(t.linear(l, Slot::Join)?),
        },
    })
}

fn build_head<D: Device>(spec: &ModelSpec, t: &mut Taker<D>) -> Result<Head<D>> {
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
        // A rank may have no row of the vocabulary.
        HeadSpec::Tokens { tied: false, .. } if spec.group.is_some() => {
            t.take_opt(None, Slot::Head, Part::Weight)
        }
        HeadSpec::Tokens { tied: false, .. } | HeadSpec::Labels { .. } => {
            Some(t.take(None, Slot::Head, Part::Weight)?)
        }
        _ => None,
    };
    let bias = t.take_opt(None, Slot::Head, Part::Bias);
    Ok(Head { spec: spec.head, pooler, transform, weight, bias, group: spec.group.clone() })
}

/// The rotary tables of a model, and of the encoder next to it, filled.
pub(super) fn build_ropes<B: Backend>(
    backend: &Arc<B>,
    spec: &ModelSpec,
    factors: Option<&[f32]>,
    positions: usize,
) -> Result<Vec<Vec<RopeTable<Mem<B>>>>> {
    let mut stream = backend.stream()?;
    let mut stacks = Vec::new();
    for stack in spec.stacks() {
        let mut tables = Vec::new();
        let positions = positions.min(stack.max_positions);
        for rope in &stack.ropes {
            let host = angles(rope, factors, positions)?;
            let mut table = Buf::new(backend.alloc(host.len() * 4)?, host.len())?;
            stream.upload(&host, table.view_mut())?;
            tables.push(RopeTable::new(table, positions, rope));
        }
        stacks.push(tables);
    }
    stream.sync()?;
    Ok(stacks)
}

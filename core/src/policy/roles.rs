//! Which operands a model of a given shape has, and their sizes: what resolving, loading and building agree
//! on.

use super::altup_spec::AltupSpec;
use super::binding::{Part, Role};
use super::moe_spec::Join;
use super::norm_spec::{NormSpec, QkSpan};
use super::rope_spec::RopeScaling;
use super::slot::Slot;
use super::spec::{BlockSpec, Family, HeadSpec, ModelSpec, Project};
use super::stem::StemSpec;

impl ModelSpec {
    /// Columns that the head reads.
    pub fn out_width(&self) -> usize {
        self.project_out.unwrap_or(self.hidden)
    }

    /// Whether its steps sample: a decoder whose tokens have logits.
    pub fn samples(&self) -> bool {
        self.family == Family::Decoder && self.head.is_per_token()
    }

    /// Columns of the logits; 0 without a head.
    pub fn logit_cols(&self) -> usize {
        match self.head {
            HeadSpec::None => 0,
            HeadSpec::Tokens { count, .. } | HeadSpec::Labels { count, .. } => count,
        }
    }

    /// Columns of the pooled row; 0 without a pooler.
    pub fn pooled_cols(&self) -> usize {
        self.pooler.map_or(0, |p| p.dense.map_or(self.out_width(), |d| d.0))
    }

    /// Factors of queries of the first `positions` that the model has, where any block has some.
    pub fn query_factors(&self, positions: usize) -> Option<Vec<f32>> {
        let growth = self.blocks.iter().find_map(|block| block.query_growth)?;
        Some((0..self.max_positions.min(positions)).map(|position| growth.at(position)).collect())
    }

    /// The stack that a role is of: the model itself, or the encoder next to it.
    pub fn stack_of(&self, role: &Role) -> &ModelSpec {
        match &self.encoder {
            Some(encoder) if role.encoder => &encoder.stack,
            _ => self,
        }
    }

    /// The convolutions that its encoder begins with, where that reads sound: its own, or the one next to it.
    pub fn stem(&self) -> Option<&StemSpec> {
        let stack = self.encoder.as_ref().map_or(self, |encoder| &encoder.stack);
        stack.embed.stem.as_ref()
    }

    /// The model, and the encoder next to it.
    pub fn stacks(&self) -> Vec<&ModelSpec> {
        [Some(self), self.encoder.as_ref().map(|encoder| &encoder.stack)].into_iter().flatten().collect()
    }

    /// The first `positions` of the computed ones that the model has, `[positions, columns of the sum]`.
    pub fn position_table(&self, positions: usize) -> Option<Vec<f32>> {
        let sinusoids = self.embed.sinusoids?;
        Some(sinusoids.table(self.max_positions.min(positions), self.embed.sum_width(self.hidden)))
    }

    /// Positions of the longest sequence: of an encoder's rows, where there is one, and the decoder's.
    pub fn context(&self) -> usize {
        let rows = self.encoder.as_ref().map_or(0, |encoder| encoder.stack.max_positions);
        self.max_positions.saturating_add(rows)
    }

    /// Experts of a role's block that have weights.
    pub(super) fn experts(&self, role: &Role) -> Option<usize> {
        Some(self.block_of(role)?.moe?.with_weights())
    }

    /// The block that a role is of.
    pub(crate) fn block_of(&self, role: &Role) -> Option<&BlockSpec> {
        self.stack_of(role).blocks.get(role.layer.filter(|_| role.slot.in_block())?)
    }

    /// `(rows, cols, whether it has a bias)` of a matmul.
    fn linear_shape(&self, role: &Role) -> Option<(usize, usize, bool)> {
        if role.slot.in_block() {
            return block_linear(self.block_of(role)?, role.slot, self.hidden);
        }
        Some(match role.slot {
            Slot::ProjectIn if self.embed.projects(self.hidden) => {
                (self.hidden, self.embed.width, self.embed.project == Project::Sum)
            }
            Slot::PatchEmbed => (self.hidden, self.embed.patches?.values(), false),
            Slot::Conv => {
                let (stem, number) = (self.embed.stem.as_ref()?, role.layer?);
                (stem.convs.get(number)?.outputs, stem.window(number), stem.convs.get(number)?.bias)
            }
            Slot::PositionConv => {
                let positions = self.embed.stem.as_ref()?.positions?;
                (self.hidden, self.hidden / positions.groups.max(1) * positions.kernel, true)
            }
            Slot::LayerProject => (self.layer_columns()?, self.hidden, false),
            Slot::AltupProject | Slot::AltupUnembed => {
                self.altup().map(|_| (self.hidden, self.hidden, false))?
            }
            Slot::ProjectOut => (self.project_out?, self.hidden, false),
            Slot::Pooler => {
                let (rows, bias) = self.pooler?.dense?;
                (rows, self.out_width(), bias)
            }
            Slot::HeadDense => (self.head.transform()?.width, self.hidden, self.head.transform()?.bias),
            Slot::Head => match self.head {
                HeadSpec::Tokens { count, bias, transform, .. } => {
                    (count, transform.map_or(self.out_width(), |t| t.width), bias)
                }
                HeadSpec::Labels { count, bias } => (count, self.pooled_cols(), bias),
                HeadSpec::None => return None,
            },
            _ => return None,
        })
    }

    /// Several residual streams, where it has them.
    pub fn altup(&self) -> Option<AltupSpec> {
        self.blocks.first()?.altup.filter(|altup| altup.inputs > 0)
    }

    /// Columns of the widest hidden state: of several residual streams all of them, side by side.
    pub fn state_columns(&self) -> usize {
        let streams = self.altup().map_or(1, |altup| altup.inputs);
        self.hidden.saturating_mul(streams).max(self.out_width())
    }

    /// Columns of the inputs of all blocks' own, side by side.
    pub fn layer_columns(&self) -> Option<usize> {
        self.embed.layers.map(|layers| layers.width * self.blocks.len())
    }

    fn norm_of(&self, role: &Role) -> Option<(NormSpec, usize)> {
        let block = || self.block_of(role);
        Some(match role.slot {
            Slot::EmbedNorm => (self.embed.norm?, self.embed.sum_width(self.hidden)),
            Slot::ConvNorm => {
                let conv = self.embed.stem.as_ref()?.convs.get(role.layer?)?;
                (conv.norm?.norm, conv.outputs)
            }
            Slot::PositionNorm => (self.embed.stem.as_ref()?.positions?.norm?, self.hidden),
            Slot::RelativeNorm => (self.embed.relative?.norm?, self.hidden),
            Slot::LayerConvNorm => (block()?.conv?.norm, self.hidden),
            Slot::LayerProjectNorm => (self.embed.layers?.norm, self.embed.layers?.width),
            Slot::LayerOutNorm => (block()?.input?.norm, self.hidden),
            Slot::AltupNorm => (block()?.altup?.norm, self.hidden),
            Slot::LaurelNorm => (block()?.laurel?.norm, self.hidden),
            Slot::RouterNorm | Slot::ExpertNorm | Slot::DensePostNorm | Slot::ExpertPostNorm => {
                (block()?.moe?.apart?.norm, self.hidden)
            }
            Slot::AttnNorm => (block()?.attn_norm?, self.hidden),
            Slot::AttnPostNorm => (block()?.attn_post?, self.hidden),
            Slot::CrossNorm => (block()?.cross.as_ref()?.norm?, self.hidden),
            Slot::MlpNorm => (block()?.mlp_norm?, self.hidden),
            Slot::MlpPostNorm => (block()?.mlp_post?, self.hidden),
            Slot::FilterNorm => (block()?.filter?.norm, self.hidden),
            Slot::QueryDownNorm => (block()?.latent?.norm, block()?.latent?.query_rank?),
            Slot::LatentNorm => (block()?.latent?.norm, block()?.heads.v_dim),
            Slot::IndexKeyNorm => (block()?.index?.own()?.norm, block()?.index?.width),
            Slot::KNorm if block()?.kv_from.is_some() => return None,
            Slot::QNorm | Slot::KNorm => {
                let (norm, heads) = (block()?.qk_norm?, block()?.heads);
                let all = if role.slot == Slot::QNorm { heads.q_cols() } else { heads.k_cols() };
                (norm.norm, if norm.span == QkSpan::Head { heads.k_dim } else { all })
            }
            Slot::FinalNorm => (self.final_norm?, self.hidden),
            Slot::PoolNorm => (self.pooler?.norm?, self.hidden),
            Slot::HeadNorm => {
                let transform = self.head.transform()?;
                (transform.norm?, transform.width)
            }
            _ => return None,
        })
    }

    /// `(rows, cols)` that a role's operand has, or none if the model has no such role. Vectors are
    /// `(1, cols)`.
    pub fn shape(&self, role: &Role) -> Option<(usize, usize)> {
        if role.encoder {
            return self.encoder.as_ref()?.stack.shape(&Role { encoder: false, ..*role });
        }
        if let Some((norm, cols)) = self.norm_of(role) {
            let there = if role.part == Part::Weight { norm.weighted } else { norm.bias };
            return there.then_some((1, cols));
        }
        if let Some((rows, cols, bias)) = self.linear_shape(role) {
            return match role.part {
                Part::Weight => Some((rows, cols)),
                Part::Bias => bias.then_some((1, rows)),
            };
        }
        if role.part == Part::Bias {
            return None;
        }
        let sum = self.embed.sum_width(self.hidden);
        match role.slot {
            Slot::TokenEmbed if self.embed.reads_tokens() && !self.embed.shared => {
                Some((self.vocab, self.embed.width))
            }
            Slot::RelativeEmbed => Some((self.embed.relative?.rows(), self.hidden)),
            Slot::LayerEmbed => Some((self.embed.layers?.rows, self.layer_columns()?)),
            Slot::PositionEmbed => Some((self.embed.positions?.rows, sum)),
            Slot::TokenTypeEmbed => Some((self.embed.token_types?, sum)),
            Slot::PositionBias => {
                let (block, layer) = (self.block_of(role)?, role.layer?);
                let buckets = block.buckets.filter(|buckets| buckets.owner == layer)?;
                Some((block.heads.heads, buckets.relative().span()))
            }
            Slot::Sinks => self.block_of(role)?.sinks.then_some((1, self.block_of(role)?.heads.heads)),
            Slot::ActConstants => self.block_of(role)?.mlp.xielu.then_some((1, 4)),
            Slot::EndFactor => self.block_of(role)?.end_factor.then_some((1, 1)),
            Slot::AltupScale => self.block_of(role)?.altup?.scaled.then_some((1, self.hidden)),
            Slot::ExpertFactors => {
                let moe = self.block_of(role)?.moe?;
                moe.factors.then_some((moe.router.experts, 1))
            }
            Slot::ChoiceBias => {
                let router = self.block_of(role)?.moe?.router;
                router.choice_bias.then_some((1, router.experts))
            }
            Slot::RopeFactors => {
                let stored = self.ropes.iter().find(|r| r.scaling == RopeScaling::Stored)?;
                Some((1, stored.columns / 2))
            }
            _ => None,
        }
    }

    /// `(rows, cols)` of a role's tensors together: its operand's, but for the matrix that both keys and
    /// values of latent attention are made by, with the rows of each head's key, then those of its value, and
    /// for biases of scores, whose rows are buckets.
    pub fn stored_shape(&self, role: &Role) -> Option<(usize, usize)> {
        let of_heads = self.block_of(role).and_then(|block| Some((block.heads, block.latent?)));
        if let (Slot::PositionBias, Some(block)) = (role.slot, self.block_of(role)) {
            return self.shape(role).and(block.buckets).map(|b| (b.buckets, block.heads.heads));
        }
        match (role.slot, of_heads) {
            (Slot::KeyUp | Slot::ValueUp, Some((heads, latent))) if !latent.apart => {
                Some((heads.heads * (latent.plain + latent.value), heads.v_dim))
            }
            _ => self.shape(role),
        }
    }

    /// Rows of the parts that a role's operand stands for: q, k, v; gate, up; the same of every expert; else
    /// one. Tensor parallelism shards every part, and a file has one tensor for each part or one for all.
    /// Lengths, for a bias; none without such a role.
    pub fn parts(&self, role: &Role) -> Option<Vec<usize>> {
        let (rows, cols) = self.shape(role)?;
        let block = || self.block_of(role);
        Some(match role.slot {
            Slot::Qkv => {
                let h = block()?.heads;
                let parts = [h.q_cols(), h.k_cols(), h.v_cols()];
                parts[..block()?.qkv_parts()].to_vec()
            }
            Slot::CrossKeyValue => vec![block()?.heads.k_cols(), block()?.heads.v_cols()],
            Slot::ActConstants => vec![1; cols],
            Slot::Up if block()?.mlp.gated => vec![block()?.mlp.inner; 2],
            Slot::ExpertUp => {
                let moe = block()?.moe?;
                vec![moe.inner; moe.with_weights() * (1 + usize::from(block()?.mlp.gated))]
            }
            Slot::ExpertDown => vec![self.hidden; block()?.moe?.with_weights()],
            _ if role.is_vector() => vec![cols],
            _ => vec![rows],
        })
    }

    /// The block whose operands block `layer` has.
    pub fn owner(&self, layer: usize) -> usize {
        self.shared.get(layer).map_or(layer, |owner| layer.min(*owner))
    }

    /// Every role that must be filled for this model to run, in the order in which it runs: an encoder's
    /// first.
    pub fn roles(&self) -> Vec<Role> {
        let of_encoder = self.encoder.iter().flat_map(|encoder| encoder.stack.own_roles());
        of_encoder.map(Role::in_encoder).chain(self.own_roles()).collect()
    }

    /// How many operands a slot has that is numbered.
    fn count_of(&self, slot: Slot) -> usize {
        match slot {
            Slot::AltupProject | Slot::AltupUnembed => self.altup().map_or(0, |altup| altup.inputs - 1),
            _ => self.embed.stem.as_ref().map_or(0, |stem| stem.convs.len()),
        }
    }

    /// Those of this stack alone.
    pub(super) fn own_roles(&self) -> Vec<Role> {
        let mut roles = Vec::new();
        for slot in Slot::ALL {
            let layers: Vec<Option<usize>> = match slot {
                _ if slot.is_numbered() => (0..self.count_of(slot)).map(Some).collect(),
                _ if slot.in_block() => {
                    (0..self.blocks.len()).filter(|l| self.owner(*l) == *l).map(Some).collect()
                }
                _ => vec![None],
            };
            for layer in layers {
                for part in [Part::Weight, Part::Bias] {
                    let role = Role { encoder: false, layer, slot, part };
                    let shared = slot == Slot::Head && part == Part::Weight && self.head.is_tied();
                    if !shared && self.shape(&role).is_some() {
                        roles.push(role);
                    }
                }
            }
        }
        roles
    }
}

/// A matmul inside a block.
fn block_linear(b: &BlockSpec, slot: Slot, hidden: usize) -> Option<(usize, usize, bool)> {
    let dense = b.mlp.inner > 0;
    let halves = 1 + usize::from(b.mlp.gated);
    Some(match slot {
        Slot::FilterIn => (b.filter?.middle, 2 * hidden, true),
        Slot::FilterOut => (hidden, 2 * b.filter?.middle, true),
        Slot::Value if b.filter.is_some() => (b.heads.v_cols(), hidden, b.bias[0]),
        Slot::QueryDown => (b.latent?.query_rank?, hidden, b.bias[0]),
        Slot::QueryUp => {
            let latent = b.latent?;
            (b.heads.heads * latent.query(b.heads), latent.query_rank.unwrap_or(hidden), false)
        }
        Slot::LatentDown => (b.latent.map(|_| b.heads.k_dim)?, hidden, b.bias[0]),
        Slot::KeyUp => (b.heads.heads * b.heads.v_dim, b.latent?.plain, false),
        Slot::ValueUp => (b.heads.heads * b.latent?.value, b.heads.v_dim, false),
        Slot::IndexQuery => {
            let index = b.index?.own()?;
            (index.heads * index.width, b.latent?.query_rank?, false)
        }
        Slot::IndexKey => (b.index?.own()?.width, hidden, false),
        Slot::IndexFactors => (b.index?.own()?.heads, hidden, false),
        Slot::Qkv if b.latent.is_some() => return None,
        Slot::Qkv => (b.qkv_cols(), hidden, b.bias[0]),
        Slot::LayerConv => (hidden, hidden * b.conv?.kernel, true),
        Slot::LayerGate => (b.input?.width, hidden, false),
        Slot::LayerOut => (hidden, b.input?.width, false),
        Slot::AltupRouter => (b.altup?.inputs, hidden, false),
        Slot::AltupPredict => (b.altup?.inputs.saturating_mul(b.altup?.inputs), b.altup?.inputs, false),
        Slot::AltupCorrect => (b.altup?.inputs, b.altup?.inputs, false),
        Slot::LaurelLeft => (b.laurel?.rank, hidden, false),
        Slot::LaurelRight => (hidden, b.laurel?.rank, false),
        Slot::AttnGate => (if b.attn_gate?.per_head { b.heads.heads } else { b.out_cols() }, hidden, false),
        Slot::AttnOut => (hidden, b.out_cols(), b.bias[1]),
        Slot::CrossQuery => (b.heads.q_cols(), hidden, b.cross.as_ref()?.bias[0]),
        Slot::CrossKeyValue => (b.heads.k_cols() + b.heads.v_cols(), hidden, b.cross.as_ref()?.bias[1]),
        Slot::CrossOut => (hidden, b.out_cols(), b.cross.as_ref()?.bias[2]),
        Slot::Up if dense => (b.mlp.inner * halves, hidden, b.bias[2]),
        Slot::Down if dense => (hidden, b.mlp.inner, b.bias[3]),
        Slot::Router => (b.moe?.router.experts, hidden, b.moe?.router.bias),
        Slot::ExpertUp => (b.moe?.with_weights() * b.moe?.inner * halves, hidden, b.moe?.bias),
        Slot::ExpertDown => (b.moe?.with_weights() * hidden, b.moe?.inner, b.moe?.bias),
        Slot::Join => match b.moe?.join {
            Join::Add | Join::Mean | Join::NextBlock => return None,
            Join::Gated => (1, hidden, false),
            Join::Mixed => (2, hidden, true),
        },
        _ => return None,
    })
}

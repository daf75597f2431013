//! Tables of names: from a slot to the tensors that fill it, in a notation short enough for one line per
//! slot.
//!
//! | notation | meaning |
//! | --- | --- |
//! | `a + b` | rows of `a`, then rows of `b` |
//! | `a, b` | other spellings of one tensor: exactly one is there |
//! | `a > b` | the same, but `a` wins where both are there |
//! | `a ; b` | other alternatives of the whole slot: the first that the file has |
//! | `/a` | not below the table's prefixes |
//! | `a!w`, `a!b` | for the weight (bias) only |
//! | `=a` | the whole name: no `.weight` follows |
//! | `{}` | every expert, or every head, one after the other; the number of a convolution, from 1 |
//! | `a + b!w` | where `b` has no bias but `a` has one: zeros |
//! | `{%2}` | inside blocks: which of two blocks of one module, 0 or 1 |
//!
//! Names inside blocks stand below `prefix + block`, where `{}` is the layer, and `{/2}` the module of which
//! the layer is one of two blocks. A norm `x` may also be spelt `x.gamma`, `x.beta`. GGUF files have their
//! own names, the same for all families: `gguf`. Data flows from here to `resolve`.

use super::*;
use crate::mem::Stored;

/// A family's names.
#[derive(Debug, Clone, Copy)]
pub struct Names<'a> {
    /// What may stand before every name, in all published variants.
    pub prefixes: &'a [&'a str],
    /// Before names inside blocks; `{}` is the layer, `{/2}` half of it.
    pub block: &'a str,
    /// Slot and names.
    pub slots: &'a [(Slot, &'a str)],
    /// The table that `slots` is laid over: names of the slots that it leaves out.
    pub base: &'a [(Slot, &'a str)],
    /// Known to be unused: patterns.
    pub ignored: &'a [&'a str],
    /// Whether the linear weights of blocks are stored `[inputs, outputs]`.
    pub transposed: bool,
    /// How all experts lie in one tensor.
    pub experts: ExpertLayout,
    /// Whether the gate stands behind up where both are one tensor.
    pub gate_behind: bool,
    /// What names of this stack begin with in GGUF files: `enc.` and `dec.` of an encoder with a decoder.
    pub gguf: &'a str,
}

/// How all experts lie in one tensor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExpertLayout {
    /// `[experts, outputs, inputs]`, gate before up.
    #[default]
    Rows,
    /// Outputs of gate and up by turns; where they are not packed, `[experts, inputs, outputs]` (gpt-oss).
    ByTurns,
    /// Gate before up; where they are not packed, `[experts, inputs, outputs]` (Llama 4).
    Transposed,
}

impl Names<'_> {
    /// No names; linear weights of blocks are stored `[outputs, inputs]`.
    pub(super) const NONE: Names<'static> = Names {
        prefixes: &[""],
        block: "",
        slots: &[],
        base: &[],
        ignored: &[],
        transposed: false,
        experts: ExpertLayout::Rows,
        gate_behind: false,
        gguf: "",
    };
}

/// How a fused q|k|v lies in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkvLayout {
    /// All of q, all of k, all of v.
    Concat,
    /// One after the other for every query head.
    PerHead,
    /// The queries of a key/value head, its key, its value.
    PerKvHead,
    /// `blocks` times q, v, k of an equal share of the heads (CodeGen, which was trained on as many devices).
    Blocks(usize),
    /// q, k, v of every row of a head (Megatron's checkpoint version 1).
    PerRow,
    /// q, k and v are tensors of their own, but the rows of q's and k's together are, for every head, its
    /// query, then its key (Yuan's shared QK).
    SharedQk,
    /// Not fused; within every head of q and k rotary pairs lie side by side where halves are wanted (GGUF's
    /// LLaMA).
    Pairs,
}

impl QkvLayout {
    /// The row order of source `i` of `count`.
    fn order(self, heads: Heads, i: usize, count: usize) -> RowOrder {
        let Heads { heads, kv_heads, k_dim, v_dim } = heads;
        let grouped = |groups, widths, take| RowOrder::Grouped { groups, widths, take };
        match (self, count) {
            (QkvLayout::Pairs, 3) if i < 2 => {
                RowOrder::PairsInterleaved { heads: if i == 0 { heads } else { kv_heads } }
            }
            (QkvLayout::SharedQk, _) => RowOrder::Plain,
            (QkvLayout::PerHead, 1) => grouped(heads, [k_dim, k_dim, v_dim], [0, 1, 2]),
            (QkvLayout::PerKvHead, 1) => {
                grouped(kv_heads, [heads / kv_heads * k_dim, k_dim, v_dim], [0, 1, 2])
            }
            (QkvLayout::Blocks(n), 1) => {
                let share = heads * k_dim / n;
                grouped(n, [share; 3], [0, 2, 1])
            }
            (QkvLayout::PerRow, 1) => grouped(heads * k_dim, [1; 3], [0, 1, 2]),
            _ => RowOrder::Plain,
        }
    }
}

impl Names<'_> {
    /// Whether any spelling of a slot's operand is in the file; inside blocks: of the first one.
    pub fn has(&self, config: &ModelConfig, catalog: Catalog<'_>, slot: Slot, part: Part) -> bool {
        let role = Role { encoder: false, layer: slot.in_block().then_some(0), slot, part };
        let sources = match config.is_gguf() {
            true => gguf::sources(role, self.gguf, (Placement::Pre, true), catalog),
            false => self.sources(role, catalog, 1),
        };
        sources.iter().flatten().any(|n| catalog.find(n).is_some())
    }

    /// The bindings of all roles of `spec` but those of an encoder next to it.
    pub fn bind(
        &self,
        spec: &ModelSpec,
        config: &ModelConfig,
        catalog: Catalog<'_>,
        layout: QkvLayout,
    ) -> Vec<Binding> {
        let labelled = spec.family == Family::Decoder && matches!(spec.head, HeadSpec::Labels { .. });
        let bind = |role: Role| {
            let block = spec.block_of(&role);
            let of_slot = |b: &BlockSpec| match role.slot {
                Slot::QNorm => b.heads.heads,
                Slot::KNorm => b.heads.kv_heads,
                _ => b.moe.map_or(1, |m| m.with_weights()),
            };
            let experts = block.map_or(1, of_slot);
            let names = match config.is_gguf() {
                true => {
                    let gated = block.is_some_and(|b| b.mlp.gated);
                    gguf::sources(role, self.gguf, (spec.placement, gated), catalog)
                }
                false if labelled && role.slot == Slot::Head => vec![vec![labels::SCORE.into()]],
                false => self.sources(role, catalog, experts),
            };
            let (names, count) = of_block(block, role.slot, names);
            let order = |i| match (role.slot, block) {
                (Slot::Qkv, Some(b)) => layout.order(b.heads, i, count),
                _ => RowOrder::Plain,
            };
            let zeros = without_bias(spec, &role, &names);
            // A convolution may have a tensor of lengths next to its weight, and has one bias.
            let all = zeros.is_none() && role.slot != Slot::PositionConv;
            let sources = names.into_iter().filter(|names| all || !names.is_empty()).enumerate();
            let sources = sources.map(|(i, names)| TensorSource { names, order: order(i) }).collect();
            let mut binding = Binding::rows(role, sources, shard_of(spec, &role, block));
            if let Some(zeros) = zeros {
                binding.order = zeros;
            }
            if let Some(order) =
                block.and_then(|b| self.order_of_rows(role.slot, b, layout, (count, config.is_gguf())))
            {
                binding.order = order;
            }
            let by_turns = self.experts == ExpertLayout::ByTurns && !config.is_gguf();
            if by_turns && role.slot == Slot::ExpertUp {
                binding.order = RowOrder::PairsInterleaved { heads: experts };
            }
            match self.is_transposed(&binding, catalog) && !config.is_gguf() {
                true => binding.transposed(),
                false => binding,
            }
        };
        spec.own_roles().into_iter().map(bind).collect()
    }

    /// The order of an operand's rows where it is not that of its `count` tensors.
    fn order_of_rows(
        &self,
        slot: Slot,
        block: &BlockSpec,
        layout: QkvLayout,
        (count, gguf): (usize, bool),
    ) -> Option<RowOrder> {
        let grouped = |groups, width, take| RowOrder::Grouped { groups, widths: [width, width, 0], take };
        match slot {
            Slot::Qkv if layout == QkvLayout::SharedQk => {
                Some(grouped(block.heads.heads, block.heads.k_dim, [0, 1, 2]))
            }
            Slot::ExpertUp if gguf && count == 2 => {
                Some(RowOrder::Spread { parts: 2, pieces: block.moe.map_or(1, |m| m.with_weights()) })
            }
            Slot::Up if self.gate_behind && count == 1 => Some(grouped(1, block.mlp.inner, [1, 0, 2])),
            _ => None,
        }
    }

    /// Whether an operand is stored `[inputs, outputs]`.
    fn is_transposed(&self, binding: &Binding, catalog: Catalog<'_>) -> bool {
        let plain = |name: &String| {
            catalog.find(name).is_some_and(|tensor| !matches!(tensor.stored, Stored::Block(_)))
        };
        match binding.role.slot {
            _ if binding.role.part != Part::Weight => false,
            Slot::Qkv | Slot::AttnOut | Slot::Up | Slot::Down => self.transposed,
            Slot::ExpertUp | Slot::ExpertDown if self.experts != ExpertLayout::Rows => {
                binding.sources.iter().flat_map(|source| &source.names).any(plain)
            }
            _ => false,
        }
    }

    /// Per source of a role its spellings.
    pub(super) fn sources(&self, role: Role, catalog: Catalog<'_>, experts: usize) -> Vec<Vec<String>> {
        let Some((_, alternatives)) = self.slots.iter().chain(self.base).find(|(slot, _)| *slot == role.slot)
        else {
            return Vec::new();
        };
        let mut alternatives = alternatives
            .split(" ; ")
            .map(|alternative| self.alternative(alternative, role, catalog, experts));
        let Some(first) = alternatives.next() else { return Vec::new() };
        let there =
            |alternative: &Vec<Vec<String>>| alternative.iter().flatten().any(|n| catalog.find(n).is_some());
        if there(&first) {
            return first;
        }
        alternatives.find(there).unwrap_or(first)
    }

    fn alternative(
        &self,
        alternative: &str,
        role: Role,
        catalog: Catalog<'_>,
        experts: usize,
    ) -> Vec<Vec<String>> {
        let many = matches!(role.slot, Slot::ExpertUp | Slot::ExpertDown | Slot::QNorm | Slot::KNorm);
        let per_expert = many && alternative.contains("{}");
        let count = if per_expert { experts } else { 1 };
        let mut sources = Vec::new();
        for expert in 0..count {
            let number = if role.slot.is_numbered() { role.layer.unwrap_or(0) } else { expert };
            for source in alternative.split(" + ") {
                let spelt =
                    source.replace("{}", &number.to_string()).replace("{+1}", &(number + 1).to_string());
                let mut ranks = spelt.split(" > ").map(|rank| self.spellings(rank, role));
                let first = ranks.next().unwrap_or_default();
                let there = |names: &Vec<String>| names.iter().any(|n| catalog.find(n).is_some());
                let chosen = if there(&first) { None } else { ranks.find(there) };
                sources.push(chosen.unwrap_or(first));
            }
        }
        sources
    }

    fn spellings(&self, names: &str, role: Role) -> Vec<String> {
        let mut all = Vec::new();
        for name in names.split(", ") {
            let (name, only) = match name.rsplit_once('!') {
                Some((name, "w")) => (name, Some(Part::Weight)),
                Some((name, "b")) => (name, Some(Part::Bias)),
                _ => (name, None),
            };
            if only.is_some_and(|part| part != role.part) {
                continue;
            }
            let (name, whole) = name.strip_prefix('=').map_or((name, false), |n| (n, true));
            let endings: &[&str] = match (whole, role.part, role.slot.is_norm()) {
                (true, ..) => &[""],
                (_, Part::Weight, true) => &[".weight", ".gamma"],
                (_, Part::Weight, false) => &[".weight"],
                (_, Part::Bias, true) => &[".bias", ".beta"],
                (_, Part::Bias, false) => &[".bias"],
            };
            let bases = self.bases(name, role.layer.filter(|_| role.slot.in_block()));
            all.extend(endings.iter().flat_map(|e| bases.iter().map(move |base| format!("{base}{e}"))));
        }
        all
    }

    /// A name below every prefix.
    fn bases(&self, name: &str, layer: Option<usize>) -> Vec<String> {
        if let Some(name) = name.strip_prefix('/') {
            return vec![name.to_string()];
        }
        let numbered = |text: &str, l: usize| {
            let halves = text.replace("{/2}", &(l / 2).to_string()).replace("{%2}", &(l % 2).to_string());
            halves.replace("{}", &l.to_string())
        };
        let below = layer.map_or(name.to_string(), |l| numbered(self.block, l) + &numbered(name, l));
        self.prefixes.iter().map(|p| format!("{p}{below}")).collect()
    }
}

/// The sources of a block's operand, and their number: of queries, keys and values, those that it does not
/// make otherwise.
fn of_block(block: Option<&BlockSpec>, slot: Slot, mut names: Vec<Vec<String>>) -> (Vec<Vec<String>>, usize) {
    if let (Slot::Qkv, Some(block), 3) = (slot, block, names.len()) {
        names.truncate(block.qkv_parts());
    }
    let count = names.len();
    (names, count)
}

/// How the rows of an operand are shared by ranks.
fn shard_of(spec: &ModelSpec, role: &Role, block: Option<&BlockSpec>) -> Shard {
    match (block, role.slot) {
        (Some(block), slot) => block_shard(slot, block),
        (None, Slot::TokenEmbed) => Shard::Vocab,
        (None, Slot::Head) if matches!(spec.head, HeadSpec::Tokens { .. }) => Shard::Vocab,
        (None, _) => Shard::Replicated,
    }
}

/// Where a bias of several parts has zeros for the one part that no name is given for.
fn without_bias(spec: &ModelSpec, role: &Role, names: &[Vec<String>]) -> Option<RowOrder> {
    let parts = spec.parts(role).filter(|parts| role.part == Part::Bias && parts.len() == names.len())?;
    let mut unnamed = (0..names.len()).filter(|i| names[*i].is_empty());
    match (unnamed.next(), unnamed.next()) {
        (Some(i), None) if names.len() > 1 => {
            Some(RowOrder::WithZeros { at: parts[..i].iter().sum(), count: parts[i] })
        }
        _ => None,
    }
}

/// The same with strings of its own: tables that come from files, or that rules have put together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct OwnedNames {
    pub prefixes: Vec<String>,
    pub block: String,
    pub slots: Vec<(Slot, String)>,
    pub transposed: bool,
    pub experts: ExpertLayout,
    pub gate_behind: bool,
}

impl OwnedNames {
    /// Lends the table.
    pub fn with<R>(&self, use_it: impl FnOnce(Names<'_>) -> R) -> R {
        let prefixes: Vec<&str> = self.prefixes.iter().map(String::as_str).collect();
        let slots: Vec<(Slot, &str)> = self.slots.iter().map(|(s, n)| (*s, n.as_str())).collect();
        use_it(Names {
            prefixes: &prefixes,
            block: &self.block,
            slots: &slots,
            transposed: self.transposed,
            experts: self.experts,
            gate_behind: self.gate_behind,
            ..Names::NONE
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const NAMES: Names<'_> = Names {
        prefixes: &["m.", ""],
        block: "h.{}.",
        slots: &[
            (Slot::Qkv, "q + k, key + v ; qkv"),
            (Slot::AttnNorm, "ln"),
            (Slot::Head, "/head.out!w, /head!b > /head.out!b"),
            (Slot::TokenTypeEmbed, "=cls"),
            (Slot::ExpertUp, "e.{}.g + e.{}.u"),
        ],
        base: &[(Slot::Qkv, "behind the table's own"), (Slot::FinalNorm, "norm")],
        ..Names::NONE
    };

    #[test]
    fn two_blocks_of_one_module() {
        let slots: &[(Slot, &str)] = &[(Slot::AttnOut, "a.{%2}.o")];
        let names = Names { block: "l.{/2}.", slots, base: &[], ..NAMES };
        let of = |layer| {
            let role = Role::block(layer, Slot::AttnOut, Part::Weight);
            names.sources(role, Catalog::new(&[]), 1).concat()
        };
        assert_eq!(of(4), ["m.l.2.a.0.o.weight", "l.2.a.0.o.weight"]);
        assert_eq!(of(5), ["m.l.2.a.1.o.weight", "l.2.a.1.o.weight"]);
    }

    fn sources(names: &[&str], role: Role) -> Vec<Vec<String>> {
        let mut tensors: Vec<TensorInfo> = names
            .iter()
            .map(|n| TensorInfo { name: n.to_string(), shape: vec![1], stored: Stored::F32 })
            .collect();
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        NAMES.sources(role, Catalog::new(&tensors), 2)
    }

    #[test]
    fn the_notation() {
        let qkv = Role::block(3, Slot::Qkv, Part::Weight);
        let split = sources(&["h.3.q.weight"], qkv);
        assert_eq!(split.len(), 3);
        assert_eq!(split[1], ["m.h.3.k.weight", "h.3.k.weight", "m.h.3.key.weight", "h.3.key.weight"]);
        assert_eq!(sources(&["m.h.3.qkv.weight"], qkv), [["m.h.3.qkv.weight", "h.3.qkv.weight"]]);
        let norm = sources(&[], Role::block(0, Slot::AttnNorm, Part::Bias));
        assert_eq!(norm, [["m.h.0.ln.bias", "h.0.ln.bias", "m.h.0.ln.beta", "h.0.ln.beta"]]);
        let head = |names: &[&str], part| sources(names, Role::of(Slot::Head, part)).concat();
        assert_eq!(head(&[], Part::Weight), ["head.out.weight"]);
        assert_eq!(head(&["head.bias", "head.out.bias"], Part::Bias), ["head.bias"]);
        assert_eq!(head(&["head.out.bias"], Part::Bias), ["head.out.bias"]);
        assert_eq!(sources(&[], Role::of(Slot::TokenTypeEmbed, Part::Weight)), [["m.cls", "cls"]]);
        let experts = sources(&[], Role::block(1, Slot::ExpertUp, Part::Weight));
        let second: Vec<&str> = experts.iter().map(|s| s[1].as_str()).collect();
        assert_eq!(second, ["h.1.e.0.g.weight", "h.1.e.0.u.weight", "h.1.e.1.g.weight", "h.1.e.1.u.weight"]);
        assert_eq!(sources(&[], Role::of(Slot::FinalNorm, Part::Weight))[0][0], "m.norm.weight");
        assert!(sources(&[], Role::of(Slot::Pooler, Part::Weight)).is_empty());
    }
}

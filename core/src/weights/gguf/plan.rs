//! What a GGUF file of a model in Hugging Face's names will say, and what its reader will make of it.

use super::mix::Mixed;
use super::parts::{FileTensor, GgufOptions, Part, checked, pieces_of};
use super::words::words;
use crate::checkpoint::gguf::{Metadata, Value as Meta, config as read_config, describe};
use crate::checkpoint::{ModelFiles, TensorInfo};
use crate::config::ModelConfig;
use crate::mem::{Float, Stored, WeightFormat};
use crate::policy::{
    Catalog, ModelSpec, Part as RolePart, Registry, Resolved, Role, RopeScaling, RowOrder, Slot, gguf_names,
    resolve,
};
use crate::weights::LoadOptions;
use crate::{Error, Result};

/// The model at hand, and what is asked for.
pub(super) struct Planning<'a> {
    pub files: &'a ModelFiles,
    pub registry: &'a Registry,
    pub spec: &'a ModelSpec,
    pub resolved: &'a [Resolved<'a>],
    pub load: LoadOptions,
    pub options: &'a GgufOptions,
}

impl Planning<'_> {
    /// Metadata, tensors, and what they are made of.
    pub fn plan(&self, config: &ModelConfig) -> Result<(Metadata, Vec<TensorInfo>, Vec<Part>)> {
        let mut metadata = describe(&words(self.spec, config)?)?;
        let name = self.files.path.file_name().map(|name| name.to_string_lossy().into_owned());
        if let (None, Some(name)) = (metadata.get("general.name"), name) {
            metadata.insert("general.name".into(), Meta::String(name));
        }
        let none = crate::checkpoint::gguf::Tokenizer::default();
        let tokenizer = self.options.tokenizer.as_ref();
        if let Some(found) = tokenizer.map(|found| found.tokens.len()).filter(|n| *n != self.spec.vocab) {
            let allowed = format!("{}, the rows of the token table", self.spec.vocab);
            return Err(Error::config("tokens of the tokenizer", found, allowed));
        }
        tokenizer.unwrap_or(&none).put(&mut metadata);
        let (mut infos, mut parts) = (Vec::new(), Vec::new());
        let names: Vec<String> = (0..self.resolved.len()).flat_map(|one| self.names(one)).collect();
        let mixed = self.options.mixed(&metadata, names.iter().map(String::as_str))?;
        for one in 0..self.resolved.len() {
            let (tensors, rows) = self.operand(one, mixed.as_ref())?;
            infos.extend(tensors);
            parts.push(Part::Operand { one, order: RowOrder::Plain, tensors: rows });
        }
        if let Some(divisors) = self.spec.ropes.iter().find_map(|rope| rope.divisors()) {
            let role = Role::of(Slot::RopeFactors, RolePart::Weight);
            let name = gguf_names(role, (self.spec.placement, false), false).concat();
            let shape = vec![divisors.len()];
            infos.push(TensorInfo { name: name.clone(), shape, stored: Stored::F32 });
            parts.push(Part::Values(name, divisors));
        }
        self.in_order_of_reader(&metadata, &infos, &mut parts)?;
        Ok((metadata, infos, parts))
    }

    /// The names of an operand's tensors; none where GGUF has no name for it.
    fn names(&self, one: usize) -> Vec<String> {
        let role = self.resolved[one].binding.role;
        let block = self.spec.block_of(&role);
        let how = (self.spec.placement, block.is_some_and(|block| block.mlp.gated));
        gguf_names(role, how, block.is_some_and(|block| block.moe.is_some()))
    }

    /// The tensors of an operand.
    fn operand(&self, one: usize, mixed: Option<&Mixed>) -> Result<(Vec<TensorInfo>, Vec<FileTensor>)> {
        let Self { spec, resolved, .. } = self;
        let names = self.names(one);
        let one = &resolved[one];
        let role = one.binding.role;
        let (Some((rows, cols)), false) = (spec.stored_shape(&role), names.is_empty()) else {
            let from = one.tensors.first().map_or("the model", |tensor| tensor.name.as_str());
            return Err(Error::tensor(from, format!("is {role}, which GGUF has no name for")));
        };
        let count = if role.is_vector() { cols } else { rows };
        let outputs = match spec.parts(&role).filter(|parts| parts.len() == names.len()) {
            Some(parts) => parts,
            None if count.is_multiple_of(names.len()) => vec![count / names.len(); names.len()],
            None => {
                return Err(Error::tensor(&names[0], format!("{count} rows for {} tensors", names.len())));
            }
        };
        let pieces = pieces_of(self.files.source.as_ref(), (spec, resolved), one, self.load)?;
        let (mut infos, mut tensors, mut start) = (Vec::new(), Vec::new(), 0);
        for (name, count) in names.into_iter().zip(outputs) {
            let outputs = start..start + count;
            start = outputs.end;
            let piece =
                pieces.iter().find(|p| p.outputs.start <= outputs.start && outputs.end <= p.outputs.end);
            let Some(piece) = piece else {
                return Err(Error::tensor(name, format!("{role} is stored in several formats")));
            };
            let of_mix = || mixed.map(|mixed| mixed.format(&name, cols));
            let format = match role.slot {
                _ if role.is_vector() || rows == 1 => WeightFormat::Plain(Float::F32),
                Slot::TokenEmbed => self.options.embeddings.or_else(of_mix).unwrap_or(piece.format),
                _ if one.binding.quantize => of_mix().unwrap_or(piece.format),
                _ => piece.format,
            };
            let (format, stored) = checked(&name, cols, format)?;
            let shape = shape(spec, &role, count, cols, rows);
            infos.push(TensorInfo { name: name.clone(), shape, stored });
            tensors.push(FileTensor { name, format, outputs, order: RowOrder::Plain });
        }
        Ok((infos, tensors))
    }

    /// Puts rows in the orders in which the reader of such a file takes them, once it is certain that it
    /// reads the model at hand.
    fn in_order_of_reader(
        &self,
        metadata: &Metadata,
        infos: &[TensorInfo],
        parts: &mut [Part],
    ) -> Result<()> {
        let mut sorted = infos.to_vec();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        let catalog = Catalog::new(&sorted);
        let config = ModelConfig::new(read_config(metadata, &sorted)?)?;
        let policy = self.registry.choose(&config, catalog)?;
        let read = policy.spec(&config, catalog)?;
        let arch = metadata.str("general.architecture")?.unwrap_or_default();
        if let Some([own, found]) = difference(self.spec, &read) {
            let allowed = format!("`{found}`, for which alone GGUF's architecture {arch} has words");
            return Err(Error::config("a part of the model's description", format!("`{own}`"), allowed));
        }
        let found = resolve(policy.as_ref(), &read, &config, catalog)?;
        for part in parts {
            let Part::Operand { one, order, tensors } = part else { continue };
            let role = self.resolved[*one].binding.role;
            let Some(target) = found.iter().find(|target| target.binding.role == role) else {
                return Err(Error::internal(format!("the reader has no {role}")));
            };
            *order = target.binding.order;
            for (i, rows) in tensors.iter_mut().enumerate() {
                let place = target.tensors.iter().position(|tensor| tensor.name == rows.name);
                if place != Some(i) {
                    return Err(Error::internal(format!("the reader takes {} otherwise", rows.name)));
                }
                rows.order = target.binding.sources[i].order;
            }
        }
        Ok(())
    }
}

/// The shape of `count` rows.
fn shape(spec: &ModelSpec, role: &Role, count: usize, cols: usize, rows: usize) -> Vec<usize> {
    let experts = match role.slot {
        Slot::ExpertUp | Slot::ExpertDown => spec.block_of(role).and_then(|block| block.moe),
        _ => None,
    };
    match experts.map(|moe| moe.with_weights().max(1)) {
        Some(experts) if !role.is_vector() => vec![experts, count / experts, cols],
        _ if role.is_vector() => vec![count],
        // As llama.cpp's converter has them.
        _ if rows == 1 => vec![cols],
        _ => vec![count, cols],
    }
}

/// Where two descriptions differ first; not in their names, nor in where a stretched rotation is kept.
fn difference(own: &ModelSpec, read: &ModelSpec) -> Option<[String; 2]> {
    let plain = |spec: &ModelSpec| {
        let mut spec = ModelSpec { arch: String::new(), assumed: Vec::new(), ..spec.clone() };
        for rope in &mut spec.ropes {
            if matches!(rope.scaling, RopeScaling::Llama3 { .. }) {
                rope.scaling = RopeScaling::Stored;
            }
        }
        spec
    };
    let (own, read) = (plain(own), plain(read));
    if own == read {
        return None;
    }
    let lines = |spec: &ModelSpec| format!("{spec:#?}").lines().map(str::to_owned).collect::<Vec<_>>();
    let (own, read) = (lines(&own), lines(&read));
    let at = own.iter().zip(&read).position(|(a, b)| a != b)?;
    // A value in brackets is on the next line.
    let shown = |lines: &[String]| {
        let opens = |line: &&String| line.ends_with('(') || line.ends_with('{') || line.ends_with('[');
        let more = lines[at..].iter().take_while(opens).count();
        let lines = lines[at..].iter().take(more + 1).map(|line| line.trim());
        lines.collect::<Vec<_>>().join(" ").trim_end_matches(',').to_string()
    };
    Some([shown(&own), shown(&read)])
}

//! LoRA files, fused into weights while those are read (arXiv 2106.09685).
//!
//! `w + scale * alpha / rank * up down`, in f64, rounded to f32: a weight that a file changes is kept in f32.
//! Alpha is a tensor of the module, or a field of the file's header, or else the rank.
//! Files spell modules in three ways: kohya's with underscores, whose blocks may be counted as the first code
//! of Stable Diffusion did, or named as in that of FLUX and Stable Diffusion 3, where several modules of
//! diffusers are one; PEFT's and older diffusers' with the names of tensors. A module that no component has
//! is an error.

use engraft_core::checkpoint::{ModelFiles, Source, TensorInfo, safetensors};
use engraft_core::mem::Stored;
use engraft_core::quant::plain;
use engraft_core::{Error, Result};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use super::{original, sgm};
use header::Header;

mod header;

/// A LoRA file and how much it counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Lora {
    /// A safetensors file.
    pub file: PathBuf,
    /// Factor of what it adds.
    pub scale: f64,
}

/// What a file says of one module.
#[derive(Debug, Clone, Default)]
struct Pair {
    /// `[rank, inputs]`, of convolutions `[rank, inputs, lines, columns]`.
    down: Option<(Vec<usize>, Vec<f32>)>,
    /// `[outputs, rank]`.
    up: Option<(Vec<usize>, Vec<f32>)>,
    alpha: Option<f64>,
    /// What the file's header says in the place of `alpha / rank`.
    factor: Option<f64>,
}

/// Endings of names, and which part of a module they are.
const ENDS: [(&str, Side); 7] = [
    (".lora_down.weight", Side::Down),
    (".lora_up.weight", Side::Up),
    (".lora_A.weight", Side::Down),
    (".lora_B.weight", Side::Up),
    (".lora.down.weight", Side::Down),
    (".lora.up.weight", Side::Up),
    (".alpha", Side::Alpha),
];

#[derive(Debug, Clone, Copy)]
enum Side {
    Down,
    Up,
    Alpha,
}

/// Components by the beginnings of names: dotted names, then those with underscores.
const COMPONENTS: [(&str, Component); 14] = [
    ("unet.", Component::Named("unet")),
    ("transformer.", Component::Named("transformer")),
    ("text_encoder_3.", Component::Named("text_encoder_3")),
    ("text_encoder_2.", Component::Named("text_encoder_2")),
    ("text_encoder.", Component::Named("text_encoder")),
    ("diffusion_model.", Component::Model),
    ("base_model.model.", Component::Model),
    ("lora_unet_", Component::Model),
    ("lora_transformer_", Component::Named("transformer")),
    ("lora_te3_", Component::T5),
    ("lora_te2_", Component::Named("text_encoder_2")),
    ("lora_te1_", Component::Named("text_encoder")),
    ("lora_te_", Component::Named("text_encoder")),
    ("text_encoders.clip_l.transformer.", Component::Named("text_encoder")),
];

/// What the beginning of a name stands for.
#[derive(Debug, Clone, Copy)]
enum Component {
    Named(&'static str),
    /// What a pipeline predicts noise with.
    Model,
    /// Its T5.
    T5,
}

/// What a pipeline's components are that files have one name for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spelled {
    /// `unet` or `transformer`.
    pub model: &'static str,
    /// The text encoder that is a T5; none has a name of its own where there is none.
    pub t5: &'static str,
}

/// A file that was read: what is left of it until components have taken theirs.
pub(super) struct Read {
    name: String,
    scale: f64,
    /// By component and module, as the file spells it.
    pairs: BTreeMap<(&'static str, String), Pair>,
}

/// What is added to a weight.
#[derive(Debug)]
struct Delta {
    factor: f64,
    rank: usize,
    down: Vec<f32>,
    up: Vec<f32>,
}

/// Component, module and part of a tensor of `file`.
///
/// # Errors
/// `Tensor` for a name that is not understood.
fn place<'n>(name: &'n str, file: &str, spelled: Spelled) -> Result<(&'static str, &'n str, Side)> {
    let unknown = || Error::tensor(name, format!("of {file} is no part of a LoRA that is known"));
    let end = ENDS.iter().find_map(|(end, side)| Some((name.strip_suffix(end)?, *side)));
    let (module, side) = end.ok_or_else(unknown)?;
    let of = COMPONENTS.iter().find_map(|(start, of)| Some((*of, module.strip_prefix(start)?)));
    let (component, module) = of.ok_or_else(unknown)?;
    let component = match component {
        Component::Named(component) => component,
        Component::Model => spelled.model,
        Component::T5 => spelled.t5,
    };
    Ok((component, module, side))
}

/// Gives pairs the factors of the header of `file`.
fn scale(file: &str, pairs: &mut BTreeMap<(&'static str, String), Pair>, header: &Header) -> Result<()> {
    for ((component, module), pair) in pairs {
        // A pair without matrices is refused once its module is known.
        let Some(rank) = pair.down.as_ref().and_then(|(shape, _)| shape.first()) else { continue };
        pair.factor = header.factor(component, module, *rank)?;
        if pair.factor.is_some() && pair.alpha.is_some() {
            let what = format!("of {file}: has an alpha of its own next to that of {}", header::KEY);
            return Err(Error::tensor(module, what));
        }
    }
    Ok(())
}

impl Read {
    /// Reads a file.
    ///
    /// # Errors
    /// What reading it raises; `Tensor` for a name that is not understood and for a module whose alpha is
    /// both in a tensor and in the header; those of [`Header::of`] and [`Header::factor`].
    pub fn open(lora: &Lora, spelled: Spelled) -> Result<Self> {
        let name = lora.file.display().to_string();
        if !lora.scale.is_finite() {
            return Err(Error::config("lora", lora.scale, "a number"));
        }
        let bytes = engraft_core::file::whole(&lora.file, u64::MAX)?;
        let mut pairs: BTreeMap<(&'static str, String), Pair> = BTreeMap::new();
        for found in safetensors::parse(&name, &bytes)? {
            let tensor = &found.info;
            let (component, module, side) = place(&tensor.name, &name, spelled)?;
            // The rank of a matrix without values could be any number.
            if tensor.elements() == 0 {
                let what = format!("of {name} has no values: its shape is {:?}", tensor.shape);
                return Err(Error::tensor(&*tensor.name, what));
            }
            let mut values = vec![0.0; tensor.elements()];
            let own = &bytes[found.start as usize..found.end as usize];
            plain::to_f32(tensor.stored, own, &mut values)?;
            let pair = pairs.entry((component, module.to_string())).or_default();
            match side {
                Side::Down => pair.down = Some((tensor.shape.clone(), values)),
                Side::Up => pair.up = Some((tensor.shape.clone(), values)),
                Side::Alpha => pair.alpha = values.first().map(|x| f64::from(*x)),
            }
        }
        if let Some(text) = safetensors::metadata(&name, &bytes, header::KEY)? {
            scale(&name, &mut pairs, &Header::of(&name, &text)?)?;
        }
        Ok(Self { name, scale: lora.scale, pairs })
    }

    /// Refuses a file of which something was not taken.
    ///
    /// # Errors
    /// `Binding`, with the modules.
    pub fn check_all_taken(&self) -> Result<()> {
        let names: Vec<String> = self.pairs.keys().map(|(of, module)| format!("{of} {module}")).collect();
        match names.is_empty() {
            true => Ok(()),
            false => Err(Error::Binding {
                policy: self.name.clone(),
                what: "no component has these modules".into(),
                names,
            }),
        }
    }

    /// Takes what there is for a component whose modules are `known`, by their names with underscores.
    fn take(&mut self, component: &str, known: &Modules<'_>) -> Result<Vec<(String, Delta)>> {
        let mine: Vec<(&'static str, String)> = self
            .pairs
            .keys()
            .filter(|(of, module)| *of == component && known.find(module).is_some())
            .cloned()
            .collect();
        let mut taken = Vec::new();
        for key in mine {
            let (Some(pair), Some(found)) = (self.pairs.remove(&key), known.find(&key.1)) else { continue };
            taken.extend(self.deltas(&key.1, pair, &found)?);
        }
        Ok(taken)
    }

    /// What a module's pair adds to each of the tensors that it is here.
    fn deltas(&self, module: &str, pair: Pair, found: &Found<'_>) -> Result<Vec<(String, Delta)>> {
        let no = |what: String| Err(Error::tensor(module, format!("of {}: {what}", self.name)));
        let (Some((down_shape, down)), Some((up_shape, mut up))) = (pair.down, pair.up) else {
            return no("has one of the two matrices of a LoRA".into());
        };
        let rank = down_shape.first().copied().unwrap_or(0);
        let outputs = |tensor: &TensorInfo| tensor.shape.first().copied().unwrap_or(0);
        // Of a weight without values they could be any number, too.
        let all = found.tensors.iter().fold(0, |all: usize, tensor| all.saturating_add(outputs(tensor)));
        let odd = found.tensors.iter().any(|tensor| {
            let inputs = tensor.elements().checked_div(outputs(tensor)).unwrap_or(0);
            inputs == 0 || rank.checked_mul(inputs) != Some(down.len())
        });
        if rank == 0 || odd || all.checked_mul(rank) != Some(up.len()) {
            let shapes: Vec<&[usize]> = found.tensors.iter().map(|tensor| &tensor.shape[..]).collect();
            let weights = if let [one] = shapes[..] { format!("{one:?}") } else { format!("{shapes:?}") };
            return no(format!("shapes {down_shape:?} and {up_shape:?} for a weight {weights}"));
        }
        if found.swapped {
            let half = all / 2 * rank;
            up.rotate_left(half);
        }
        let factor = match pair.factor {
            Some(factor) => self.scale * factor,
            None => self.scale * pair.alpha.unwrap_or(rank as f64) / rank as f64,
        };
        let mut rows = up.chunks(rank);
        let one = |tensor: &&TensorInfo| {
            let up = rows.by_ref().take(outputs(tensor)).flatten().copied().collect();
            (tensor.name.clone(), Delta { factor, rank, down: down.clone(), up })
        };
        Ok(found.tensors.iter().map(one).collect())
    }
}

/// The tensors that a module of a file is here: one, or several whose outputs are one after the other there.
struct Found<'a> {
    tensors: Vec<&'a TensorInfo>,
    /// Whether the halves of the outputs have changed places.
    swapped: bool,
}

/// A component's weights by the ways that files spell their modules.
struct Modules<'a> {
    tensors: HashMap<String, &'a TensorInfo>,
    layers: usize,
    /// The last block of a transformer.
    last: Option<usize>,
}

impl<'a> Modules<'a> {
    fn new(files: &'a ModelFiles) -> Self {
        let weights = files.source.tensors().iter();
        let named = weights.filter_map(|t| Some((t.name.strip_suffix(".weight")?.replace('.', "_"), t)));
        let number = |field: &str| files.config.get(field).and_then(serde_json::Value::as_u64);
        let layers = number("layers_per_block").unwrap_or(2) as usize;
        let last = number("num_layers").and_then(|blocks| (blocks as usize).checked_sub(1));
        Self { tensors: named.collect(), layers, last }
    }

    fn find(&self, module: &str) -> Option<Found<'a>> {
        let flat = module.replace('.', "_");
        let other = sgm::diffusers(&flat, self.layers);
        // Text encoders are stored with and without the first word.
        let bare = flat.strip_prefix("text_model_");
        let names = [Some(flat.as_str()), other.as_deref(), bare];
        let one = names.into_iter().flatten().find_map(|name| self.tensors.get(name).copied());
        if let Some(tensor) = one {
            return Some(Found { tensors: vec![tensor], swapped: false });
        }
        let original::Modules { names, swapped } = original::diffusers(&flat, self.last)?;
        let tensors = names.iter().map(|name| self.tensors.get(name).copied());
        Some(Found { tensors: tensors.collect::<Option<_>>()?, swapped })
    }
}

/// A source with something added to some of its tensors.
struct Fused {
    base: Box<dyn Source>,
    tensors: Vec<TensorInfo>,
    deltas: HashMap<String, Vec<Delta>>,
}

/// Adds to a component's weights what the files say of them.
///
/// # Errors
/// `Tensor` for matrices of other shapes.
pub(super) fn fuse(mut files: ModelFiles, component: &str, loras: &mut [Read]) -> Result<ModelFiles> {
    let mut deltas: HashMap<String, Vec<Delta>> = HashMap::new();
    let known = Modules::new(&files);
    for lora in loras {
        for (tensor, delta) in lora.take(component, &known)? {
            deltas.entry(tensor).or_default().push(delta);
        }
    }
    if !deltas.is_empty() {
        let mut tensors = files.source.tensors().to_vec();
        tensors.iter_mut().filter(|t| deltas.contains_key(&t.name)).for_each(|t| t.stored = Stored::F32);
        files.source = Box::new(Fused { base: files.source, tensors, deltas });
    }
    Ok(files)
}

impl Source for Fused {
    fn file(&self) -> &str {
        self.base.file()
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        let (Some(deltas), Some(tensor)) = (self.deltas.get(name), self.base.find(name)) else {
            return self.base.bytes(name);
        };
        let mut values = vec![0.0; tensor.elements()];
        plain::to_f32(tensor.stored, &self.base.bytes(name)?, &mut values)?;
        let mut sums: Vec<f64> = values.iter().map(|x| f64::from(*x)).collect();
        let inputs = values.len() / tensor.shape.first().copied().unwrap_or(1).max(1);
        for Delta { factor, rank, down, up } in deltas {
            for (row, ups) in sums.chunks_mut(inputs.max(1)).zip(up.chunks(*rank)) {
                for (up, downs) in ups.iter().zip(down.chunks(inputs.max(1))) {
                    let by = factor * f64::from(*up);
                    row.iter_mut().zip(downs).for_each(|(sum, x)| *sum += by * f64::from(*x));
                }
            }
        }
        Ok(Cow::Owned(sums.into_iter().flat_map(|x| (x as f32).to_le_bytes()).collect()))
    }

    fn release(&self, name: &str) {
        self.base.release(name);
    }

    fn total_bytes(&self) -> u64 {
        self.base.total_bytes()
    }

    fn notes(&self) -> &[String] {
        self.base.notes()
    }
}

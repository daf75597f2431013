//! What the files of an unknown model leave open although the numbers depend on it: the order of a fused
//! q, k, v, how positions count, which tokens are seen, and a class that a family computes otherwise. Each
//! refuses the model by name until a user accepts it.

use super::families::FAMILIES;
use super::*;
use serde_json::Value;

/// One of them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Doubt {
    /// What a user accepts it by: a field of the configuration, or a module of a block.
    pub name: String,
    /// What the files say.
    pub says: Value,
    /// What they would have to say.
    pub allowed: String,
}

impl Doubt {
    fn new(name: &str, says: impl Into<Value>, allowed: impl Into<String>) -> Self {
        Self { name: name.into(), says: says.into(), allowed: allowed.into() }
    }
}

/// Types whose configuration has nothing but known fields, and whose code rotates neighbours instead of
/// halves.
const ROTATE_NEIGHBOURS: &[&str] = &["helium"];

/// How classes of decoders end that give logits of tokens.
const DECODERS: [&str; 2] = ["ForCausalLM", "LMHeadModel"];

/// Switches that say whether tokens see later ones. `is_decoder` is not among them: published decoders have
/// it off.
const CAUSAL: [&str; 3] = ["is_causal", "causal", "use_causal_mask"];

/// Switches of the rotation.
const ROTATED: [&str; 3] = ["use_rope", "rotary", "use_rotary_embeddings"];

/// Fields that a model has because it rotates.
const ROTATION: [&str; 8] = [
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "rotary_emb_base",
    "rope_base",
    "partial_rotary_factor",
    "rotary_pct",
    "rope_pct",
];

/// Whether a field is a switch that agrees with what is assumed where it is on; off it is a doubt, or says
/// nothing.
pub(super) fn agrees(field: &str) -> bool {
    field == "is_decoder" || CAUSAL.contains(&field) || ROTATED.contains(&field)
}

/// What is open about a model that would be computed as `spec`, whose heads rotate or not.
pub(super) fn of(config: &ModelConfig, catalog: Catalog<'_>, rotates: bool, spec: &ModelSpec) -> Vec<Doubt> {
    let all = [
        neighbours(config),
        class(config, catalog, spec),
        switched_off(config, &CAUSAL, "true: here no token attends to a later one"),
        if rotates { positions(config, catalog) } else { None },
    ];
    all.into_iter().flatten().collect()
}

/// A module that holds q, k and v, of which it is assumed how they lie.
pub(super) fn fused(module: &str, how: &str) -> Doubt {
    let allowed = format!(
        "q, k and v in tensors of their own, or a table (--policy) whose `qkv` says how they lie: by parts, by \
         heads or by groups, no file says it; accepted, it holds {how}"
    );
    Doubt::new(module, "q, k and v in one tensor", allowed)
}

fn neighbours(config: &ModelConfig) -> Option<Doubt> {
    let kind = config.model_type();
    let allowed = "a type whose heads rotate by halves: the code of this one rotates neighbours";
    ROTATE_NEIGHBOURS.contains(&kind).then(|| Doubt::new("model_type", kind, allowed))
}

/// A class that is no decoder's, or whose family computes something else than `spec`.
fn class(config: &ModelConfig, catalog: Catalog<'_>, spec: &ModelSpec) -> Option<Doubt> {
    let class = config.architecture();
    if class.is_empty() {
        return None;
    }
    let Some(stem) = DECODERS.iter().find_map(|end| class.strip_suffix(*end)) else {
        let allowed = format!("the class of a decoder, ...{}", DECODERS.join(" or ..."));
        return Some(Doubt::new("architectures", class, allowed));
    };
    let plain = |name: &str| -> String {
        name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
    };
    let stem = plain(stem);
    let mut types = FAMILIES.iter().flat_map(|family| family.types.iter().map(move |kind| (family, *kind)));
    let (family, kind) =
        types.find(|(family, kind)| [*kind, family.name].iter().any(|name| plain(name) == stem))?;
    let own = (family.spec)(&config.with("model_type", kind), catalog);
    let same = own.is_ok_and(|own| {
        ModelSpec { arch: spec.arch.clone(), assumed: spec.assumed.clone(), ..own } == *spec
    });
    let allowed = format!("a class that computes what is assumed: `model_type` \"{kind}\" computes this one");
    (!same).then(|| Doubt::new("architectures", class, allowed))
}

/// The first of these switches that is off.
fn switched_off(config: &ModelConfig, switches: &[&str], allowed: &str) -> Option<Doubt> {
    let off = |field: &&&str| config.get(field) == Some(&Value::Bool(false));
    switches.iter().find(off).map(|field| Doubt::new(field, false, allowed))
}

/// A rotation that is switched off or that nothing speaks of, where no table has the positions.
fn positions(config: &ModelConfig, catalog: Catalog<'_>) -> Option<Doubt> {
    let off = switched_off(config, &ROTATED, "true, or a table of positions in the file");
    let named = ROTATION.iter().any(|field| config.get(field).is_some());
    let stored = catalog.tensors().iter().any(|tensor| tensor.name.ends_with("inv_freq"));
    let allowed = "a base, or a table of positions in the file: without either, positions may count by slopes \
                   (ALiBi) or not at all";
    off.or_else(|| (!named && !stored).then(|| Doubt::new("rope_theta", Value::Null, allowed)))
}

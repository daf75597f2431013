//! Reading a configuration once for all families: sizes under every published spelling, and a whole model
//! from a few switches. A family's file says what is different about it.
//!
//! Not here: names (`names`), rotary settings (`rope`).

use super::*;
use crate::params::{Act, NormKind};

pub(super) const HIDDEN: &[&str] = &["hidden_size", "n_embd", "d_model", "n_embed", "dim"];
pub(super) const HEADS: &[&str] = &["num_attention_heads", "n_head", "n_heads", "num_heads"];
pub(super) const KV_HEADS: &[&str] = &["num_key_value_heads", "n_kv_heads"];
pub(super) const LAYERS: &[&str] = &["num_hidden_layers", "n_layer", "n_layers", "num_layers"];
pub(super) const VOCAB: &[&str] = &["vocab_size", "padded_vocab_size"];
pub(super) const POSITIONS: &[&str] =
    &["max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"];
pub(super) const INNER: &[&str] =
    &["intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim"];
pub(super) const ACT: &[&str] = &["hidden_activation", "hidden_act", "activation_function", "activation"];
pub(super) const EPS: &[&str] = &[
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "norm_epsilon",
    "norm_eps",
    "layernorm_epsilon",
];

/// A policy made of tables and one function.
#[derive(Debug, Clone, Copy)]
pub struct Described {
    /// Short name for messages.
    pub name: &'static str,
    /// Values of `model_type`.
    pub types: &'static [&'static str],
    /// The class in `architectures` that says the family where a configuration has no `model_type`.
    pub class: Option<&'static str>,
    /// Names.
    pub names: Names<'static>,
    /// Names of the encoder next to a decoder.
    pub encoder: Option<Names<'static>>,
    /// How a fused q|k|v lies in the file.
    pub layout: fn(&ModelConfig) -> QkvLayout,
    /// The model's shape.
    pub spec: fn(&ModelConfig, Catalog<'_>) -> Result<ModelSpec>,
}

impl Described {
    /// A policy for these values of `model_type`, named after the first; a fused q|k|v lies part after part.
    pub(super) const fn new(
        types: &'static [&'static str],
        names: Names<'static>,
        spec: fn(&ModelConfig, Catalog<'_>) -> Result<ModelSpec>,
    ) -> Self {
        Self { name: types[0], types, class: None, names, encoder: None, layout: |_| QkvLayout::Concat, spec }
    }

    /// The same of configurations that are published without a `model_type`, by their class.
    pub(super) const fn class(self, class: &'static str) -> Self {
        Self { class: Some(class), ..self }
    }

    /// Whether the class alone says that it is this family.
    fn is_by_class(&self, config: &ModelConfig) -> bool {
        config.model_type().is_empty() && self.class.is_some_and(|class| class == config.architecture())
    }

    /// The same with an encoder of these names next to it.
    pub(super) const fn encoder(self, names: Names<'static>) -> Self {
        Self { encoder: Some(names), ..self }
    }

    /// The bindings of the encoder next to a decoder; none without one.
    pub(super) fn of_encoder(
        &self,
        spec: &ModelSpec,
        config: &ModelConfig,
        catalog: Catalog<'_>,
    ) -> Vec<Binding> {
        let (Some(names), Some(encoder)) = (self.encoder, &spec.encoder) else { return Vec::new() };
        let bindings = names.bind(&encoder.stack, config, catalog, QkvLayout::Concat).into_iter();
        bindings.map(|binding| Binding { role: binding.role.in_encoder(), ..binding }).collect()
    }

    /// The same with another layout of q|k|v.
    pub(super) const fn layout(self, layout: fn(&ModelConfig) -> QkvLayout) -> Self {
        Self { layout, ..self }
    }
}

impl InjectionPolicy for Described {
    fn name(&self) -> &str {
        self.name
    }

    fn fit(&self, config: &ModelConfig, _: Catalog<'_>) -> Fit {
        match self.is_by_class(config) {
            true => Fit::Yes { specificity: 10 },
            false => fit_by_type(config, self.types),
        }
    }

    fn why(&self, config: &ModelConfig) -> String {
        match self.is_by_class(config) {
            true => format!("it is the family of the class \"{}\"", config.architecture()),
            false => format!("it is the family of model_type \"{}\"", config.model_type()),
        }
    }

    fn spec(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
        let mut spec = ModelSpec { arch: self.name.into(), ..(self.spec)(config, catalog)? };
        if spec.family == Family::Decoder {
            labels::set_decoder_task(config, &mut spec)?;
        }
        resolve::say_what_drafts(&mut spec, config)?;
        Ok(spec)
    }

    fn bindings(&self, spec: &ModelSpec, config: &ModelConfig, catalog: Catalog<'_>) -> Vec<Binding> {
        // The encoder alone is published, too.
        if let (Some(names), Family::Encoder) = (self.encoder, spec.family) {
            return names.bind(spec, config, catalog, QkvLayout::Concat);
        }
        let mut bindings = self.of_encoder(spec, config, catalog);
        bindings.extend(self.names.bind(spec, config, catalog, (self.layout)(config)));
        bindings
    }

    fn ignored(&self) -> &[&str] {
        self.names.ignored
    }
}

/// What most families agree on; where a family differs it changes the [`ModelSpec`] that comes out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Switches {
    /// The norms.
    pub norm: NormKind,
    /// Epsilon where the configuration names none.
    pub eps: f64,
    /// The activation where the configuration names none.
    pub act: Act,
    /// Gated feed-forward part.
    pub gated: bool,
    /// Biases of qkv, attention output, up, down.
    pub bias: [bool; 4],
    /// Whether the head shares the token table where the configuration does not say.
    pub tied: bool,
    /// Where norms stand.
    pub placement: Placement,
    /// Positions where the configuration names none.
    pub positions: usize,
    /// Whether heads together are as wide as the hidden size where no width is named.
    pub even: bool,
}

/// RMSNorm before gated SiLU, no biases, an own head.
pub(crate) const LLAMA_LIKE: Switches = Switches {
    norm: NormKind::Rms,
    eps: 1e-6,
    act: Act::Silu,
    gated: true,
    bias: [false; 4],
    tied: false,
    placement: Placement::Pre,
    positions: 2048,
    even: false,
};

/// LayerNorm with bias before plain GELU, biases everywhere, a shared head.
pub(crate) const GPT_LIKE: Switches = Switches {
    norm: NormKind::Layer,
    eps: 1e-5,
    act: Act::GeluTanh,
    gated: false,
    bias: [true; 4],
    tied: true,
    placement: Placement::Pre,
    positions: 2048,
    even: true,
};

/// Whether a model of `heads` has the key/value heads that were found.
pub(crate) fn kv_heads(heads: usize, kv_heads: usize) -> Result<usize> {
    match kv_heads > 0 && heads.is_multiple_of(kv_heads) {
        true => Ok(kv_heads),
        false => Err(Error::config("num_key_value_heads", kv_heads, format!("a divisor of {heads}"))),
    }
}

/// Heads as most configurations state them.
fn heads(config: &ModelConfig, hidden: usize, even: bool) -> Result<Heads> {
    let width = config.size_opt(&["head_dim"])?;
    let heads = match (width, even) {
        (None, true) => even_heads(config, HEADS, hidden)?.heads,
        _ => head_count(config, HEADS)?,
    };
    let kv_heads = kv_heads(heads, config.size_opt(KV_HEADS)?.unwrap_or(heads))?;
    let width = width.unwrap_or(hidden / heads);
    Ok(Heads { heads, kv_heads, k_dim: width, v_dim: width })
}

/// Number of blocks.
pub(crate) fn layer_count(config: &ModelConfig) -> Result<usize> {
    layers(config, LAYERS)
}

/// A decoder: uniform blocks without positions of any kind, four times as wide inside where nothing is said.
pub(crate) fn decoder(config: &ModelConfig, s: Switches) -> Result<ModelSpec> {
    let hidden = config.size(HIDDEN)?;
    let eps = config.positive(EPS, s.eps)? as f32;
    let bias = s.norm == NormKind::Layer;
    let norm = NormSpec { kind: s.norm, eps, bias, plus_one: false, weighted: true };
    let inner = config.size_opt(INNER)?.unwrap_or(4 * hidden);
    let mlp = MlpSpec::new(inner, config.act(ACT, s.act)?, s.gated);
    let block = BlockSpec { bias: s.bias, ..BlockSpec::new(heads(config, hidden, s.even)?, norm, mlp) };
    let vocab = config.size(VOCAB)?;
    let tied = config.flag(&["tie_word_embeddings"], s.tied)?;
    Ok(ModelSpec {
        arch: String::new(),
        family: Family::Decoder,
        hidden,
        vocab,
        max_positions: config.size_opt(POSITIONS)?.unwrap_or(s.positions),
        embed: EmbedSpec::tokens(hidden),
        ropes: Vec::new(),
        placement: s.placement,
        blocks: vec![block; layer_count(config)?],
        final_norm: Some(norm),
        shared: Vec::new(),
        project_out: None,
        pooler: None,
        head: HeadSpec::tokens(vocab, tied, false),
        encoder: None,
        assumed: Vec::new(),
        group: None,
    })
}

/// An encoder: the same without a mask, with post-norms, learned positions and no head.
pub(crate) fn encoder(config: &ModelConfig, s: Switches) -> Result<ModelSpec> {
    refuse(config, "is_decoder")?;
    refuse(config, "add_cross_attention")?;
    let kind = config.text_opt(&["position_embedding_type"])?.unwrap_or("absolute");
    if kind != "absolute" {
        return Err(Error::config("position_embedding_type", format!("\"{kind}\""), "\"absolute\""));
    }
    let mut spec = decoder(config, s)?;
    let rows = config.size(POSITIONS)?;
    spec.family = Family::Encoder;
    spec.each(|_, b| b.scores.causal = false);
    spec.embed.positions = Some(LearnedPositions { rows, offset: 0 });
    spec.embed.norm = spec.blocks.first().and_then(|b| b.attn_norm);
    (spec.final_norm, spec.head) = (None, HeadSpec::None);
    Ok(spec)
}

impl ModelSpec {
    /// Changes every block; the first argument is its number.
    pub(crate) fn each(&mut self, change: impl Fn(usize, &mut BlockSpec)) {
        self.blocks.iter_mut().enumerate().for_each(|(i, b)| change(i, b));
    }

    /// Rotates the heads of every block by one table; none of `columns` rotates whole heads.
    pub(crate) fn rotate(
        &mut self,
        config: &ModelConfig,
        catalog: Catalog<'_>,
        style: RopeStyle,
        columns: Option<usize>,
    ) -> Result<()> {
        let width = self.blocks.first().map_or(0, |b| b.heads.k_dim);
        let columns = columns.unwrap_or(width);
        if columns > width {
            return Err(Error::config("rotary_dim (rotated columns)", columns, format!("at most {width}")));
        }
        self.ropes = vec![rope::read(config, catalog, style, columns, self.max_positions)?];
        self.each(|_, b| b.rope = Some(0));
        Ok(())
    }

    /// Rotates the first `factor` of every head, as `partial_rotary_factor` or its older names say.
    pub(crate) fn rotate_part(
        &mut self,
        config: &ModelConfig,
        catalog: Catalog<'_>,
        style: RopeStyle,
        default: f64,
    ) -> Result<()> {
        let fields =
            ["rope_parameters.partial_rotary_factor", "partial_rotary_factor", "rotary_pct", "rope_pct"];
        let factor = config.number(&fields, default)?;
        if !(factor > 0.0 && factor <= 1.0) {
            return Err(Error::config("partial_rotary_factor", factor, "a number above 0, at most 1"));
        }
        let width = self.blocks.first().map_or(0, |b| b.heads.k_dim);
        self.rotate(config, catalog, style, Some((factor * width as f64) as usize))
    }

    /// Hides keys outside the window in the blocks that `layer_types` names, else in those that `by_default`
    /// takes.
    pub(crate) fn slide(&mut self, config: &ModelConfig, by_default: impl Fn(usize) -> bool) -> Result<()> {
        let Some(window) = config.get("sliding_window").filter(|w| w.as_u64() != Some(0)) else {
            return Ok(());
        };
        let allowed = || Error::config("sliding_window", window, "a whole number below 2^32");
        let window = window.as_u64().and_then(|w| u32::try_from(w).ok()).ok_or_else(allowed)?;
        let slides = sliding_layers(config, self.blocks.len())?;
        self.each(|i, b| {
            if slides.as_ref().map_or_else(|| by_default(i), |s| s[i]) {
                b.scores.window = Some(window);
            }
        });
        Ok(())
    }

    /// Holds queries, keys and values within the limit that the configuration has, if any.
    pub(crate) fn limit_heads(&mut self, config: &ModelConfig, field: &'static str) -> Result<()> {
        let Some(value) = config.get(field) else { return Ok(()) };
        let limit = value.as_f64().map(|limit| limit as f32).filter(|l| *l > 0.0 && l.is_finite());
        let limit = limit.ok_or_else(|| Error::config(field, value, "a number above 0"))?;
        self.each(|_, b| b.qkv_limit = Some(limit));
        Ok(())
    }

    /// Slopes of the linear position bias on every head, their largest exponent `max_bias`, times `factor`.
    pub(crate) fn alibi(&mut self, max_bias: f64, factor: f64) -> Result<()> {
        let heads = self.blocks.first().map_or(0, |b| b.heads.heads);
        check_heads(HEADS, heads)?;
        let slopes = alibi_slopes(heads, max_bias).into_iter().map(|s| (s * factor) as f32);
        let slopes: std::sync::Arc<[f32]> = slopes.collect();
        self.each(|_, b| b.scores.alibi = Some(slopes.clone()));
        Ok(())
    }

    /// Learned positions of the model's length.
    pub(crate) fn learn_positions(&mut self) {
        self.embed.positions = Some(LearnedPositions { rows: self.max_positions, offset: 0 });
    }
}

/// Refuses a GGUF file of a family whose names and metadata there are not known.
///
/// # Errors
/// `Config`, naming the family.
pub(crate) fn refuse_gguf(config: &ModelConfig) -> Result<()> {
    match config.is_gguf() {
        true => Err(Error::config(
            "general.architecture",
            format!("\"{}\"", config.model_type()),
            "a family that is read from GGUF; of this one the published folder is",
        )),
        false => Ok(()),
    }
}

/// A configuration whose windows are as long as this where it names no length.
///
/// # Errors
/// `Config` for none: the family's local blocks have one.
pub(crate) fn with_window(config: &ModelConfig, window: u64) -> Result<ModelConfig> {
    match config.fields().find(|(name, _)| *name == "sliding_window") {
        None => Ok(config.with("sliding_window", window)),
        Some((_, value)) if value.as_u64().is_some_and(|n| n > 0) => Ok(config.clone()),
        Some((_, value)) => Err(Error::config("sliding_window", value, "a whole number above 0")),
    }
}

/// Per layer whether `layer_types` calls it sliding; none without the field.
///
/// # Errors
/// `Config` for a list of another length or with other words.
pub(crate) fn sliding_layers(config: &ModelConfig, layers: usize) -> Result<Option<Vec<bool>>> {
    let Some(list) = config.get("layer_types") else { return Ok(None) };
    let word = |v: &serde_json::Value| match v.as_str() {
        Some("sliding_attention") => Some(true),
        Some("full_attention") => Some(false),
        _ => None,
    };
    let words: Option<Vec<bool>> = list.as_array().and_then(|l| l.iter().map(word).collect());
    match words {
        Some(words) if words.len() == layers => Ok(Some(words)),
        _ => {
            let allowed = format!("{layers} times \"sliding_attention\" or \"full_attention\"");
            Err(Error::config("layer_types", list, allowed))
        }
    }
}

/// Slopes of ALiBi (arXiv 2108.12409): `2^(-max_bias i / n)` for `i` in `1..=n`; when the number of heads is
/// no power of two, those of the power below, then every other one of the power above.
pub(crate) fn alibi_slopes(heads: usize, max_bias: f64) -> Vec<f64> {
    let slope = |i: usize, n: usize| libm::exp2(-max_bias * i as f64 / n as f64);
    let below = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    let first = (1..=below).map(|i| slope(i, below));
    first.chain((0..heads - below).map(|i| slope(2 * i + 1, 2 * below))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_of_powers_and_of_other_counts() {
        assert_eq!(alibi_slopes(4, 8.0), [0.25, 0.0625, 0.015625, 0.00390625]);
        assert_eq!(alibi_slopes(6, 8.0)[4..], [0.5, 0.125]);
        assert_eq!(alibi_slopes(1, 8.0), [0.00390625]);
        assert!(alibi_slopes(0, 8.0).is_empty());
    }
}

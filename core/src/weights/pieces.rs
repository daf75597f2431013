//! Which weights an operand becomes: one, unless its rows are stored in several formats, or every head has
//! its own. Known from headers alone, so that a plan and a loaded model cannot differ.

use super::{LoadOptions, format_of};
use crate::Result;
use crate::checkpoint::Source;
use crate::mem::{Float, WeightFormat};
use crate::policy::{HeadSpec, ModelSpec, Part, QkSpan, Resolved, Role, RowOrder, Slot};
use std::ops::Range;

/// A weight that holds some outputs of an operand.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Piece {
    /// The operand's, with its outputs where there are several pieces: `layer 3 qkv.weight 0..768`.
    pub name: String,
    /// Rows of the whole operand; of a vector its elements.
    pub outputs: Range<usize>,
    /// Rows of the operand's parts (q, k, v) in it.
    pub parts: Vec<usize>,
    /// The tensors that it is made of.
    pub sources: Range<usize>,
    /// What it is multiplied from.
    pub format: WeightFormat,
}

/// The pieces of an operand, one of `resolved`, in the order of their outputs.
///
/// # Errors
/// `Tensor` for an element type that cannot be used.
pub(crate) fn pieces(
    source: &dyn Source,
    spec: &ModelSpec,
    resolved: &[Resolved<'_>],
    one: &Resolved<'_>,
    options: LoadOptions,
) -> Result<Vec<Piece>> {
    let role = one.binding.role;
    let whole = whole(source, spec, one, options)?;
    if let Some(width) = head_width(spec, &role) {
        let heads = whole.outputs.len() / width.max(1);
        let of = |head: usize| {
            let outputs = head * width..(head + 1) * width;
            let name = if role.is_vector() { whole.name.clone() } else { named(&role, &outputs) };
            Piece { name, parts: vec![width], outputs, ..whole.clone() }
        };
        return Ok((0..heads).map(of).collect());
    }
    let format = whole.format;
    let rows = match role.part {
        Part::Weight => by_format(source, spec, one, options)?,
        // As its matrix is.
        Part::Bias => {
            let matrix = Role { part: Part::Weight, ..role };
            match resolved.iter().find(|other| other.binding.role == matrix) {
                Some(matrix) => by_format(source, spec, matrix, options)?,
                None => Vec::new(),
            }
        }
    };
    match rows.len() {
        0 | 1 => Ok(vec![whole]),
        _ if role.part == Part::Bias => {
            let all = whole.sources;
            let of = |piece: Piece| {
                let name = named(&role, &piece.outputs);
                Piece { name, format, sources: all.clone(), ..piece }
            };
            Ok(rows.into_iter().map(of).collect())
        }
        _ => Ok(rows),
    }
}

/// A name for some outputs of a role's operand.
fn named(role: &Role, outputs: &Range<usize>) -> String {
    format!("{role} {}..{}", outputs.start, outputs.end)
}

/// Outputs of a head (of a group of columns) that has a weight of its own: a norm's values, or a matrix.
pub(super) fn head_width(spec: &ModelSpec, role: &Role) -> Option<usize> {
    if role.slot == Slot::PositionConv {
        let stack = spec.stack_of(role);
        return Some(stack.hidden / stack.embed.stem.as_ref()?.positions?.groups.max(1));
    }
    let block = spec.block_of(role)?;
    match role.slot {
        Slot::KeyUp => return Some(block.heads.v_dim),
        Slot::ValueUp => return Some(block.head_out()),
        _ => {}
    }
    let own = block.qk_norm?.span == QkSpan::OwnHead && matches!(role.slot, Slot::QNorm | Slot::KNorm);
    own.then_some(block.heads.k_dim)
}

/// The operand as one weight.
///
/// # Errors
/// As [`pieces`].
pub(super) fn whole(
    source: &dyn Source,
    spec: &ModelSpec,
    one: &Resolved<'_>,
    options: LoadOptions,
) -> Result<Piece> {
    let role = one.binding.role;
    let stored = spec.shape(&role).map_or(0, |(rows, cols)| if role.is_vector() { cols } else { rows });
    let outputs = match (role.slot, spec.stack_of(&role).embed.positions) {
        // Row 0 of the operand is position 0.
        (Slot::PositionEmbed, Some(learned)) => stored.saturating_sub(learned.offset),
        _ => stored,
    };
    let parts = spec.parts(&role).unwrap_or_else(|| vec![outputs]);
    let f32 = WeightFormat::Plain(Float::F32);
    let sources = 0..one.tensors.len();
    let of = |format| Piece { name: role.to_string(), outputs: 0..outputs, parts, sources, format };
    let format = match chosen(source, spec, one, options) {
        _ if role.is_vector() || role.slot == Slot::PositionBias => f32,
        Some(format) => format,
        // Rows of length 1 are divided as f32.
        None if matches!(spec.head, HeadSpec::Tokens { unit_rows: true, .. }) && role.slot == Slot::Head => {
            f32
        }
        None => {
            // A tap's length multiplies it in f32.
            if role.slot == Slot::PositionConv && one.tensors.len() > 1 {
                return Ok(of(f32));
            }
            let mut formats = one.tensors.iter().map(|tensor| format_of(&tensor.name, tensor.stored));
            let first = formats.next().unwrap_or(Ok(f32))?;
            let turned = || !spec.block_of(&role).and_then(|block| block.latent).is_some_and(|own| own.apart);
            if role.slot == Slot::KeyUp && !matches!(first, WeightFormat::Plain(_)) && turned() {
                return Ok(of(f32));
            }
            // Where several formats cannot be kept apart they become f32.
            formats.try_fold(first, |all, next| next.map(|next| if next == all { all } else { f32 }))?
        }
    };
    Ok(of(format))
}

/// The format that all of an operand has, whatever its tensors are stored in.
fn chosen(
    source: &dyn Source,
    spec: &ModelSpec,
    one: &Resolved<'_>,
    options: LoadOptions,
) -> Option<WeightFormat> {
    let role = one.binding.role;
    let cols = spec.shape(&role).map_or(0, |(_, cols)| cols);
    let asked = options.quantized(&one.binding).map(|format| format.of_columns(cols));
    asked.or_else(|| source.ready_format(&role.to_string()))
}

/// Runs of tensors of one format each; none or one where the operand stays whole: it has one format, its
/// tensors are not one part (q, k, v) each, or outputs of several are paired by something else than a matmul
/// of the attention or the dense feed-forward part.
pub(super) fn by_format(
    source: &dyn Source,
    spec: &ModelSpec,
    one: &Resolved<'_>,
    options: LoadOptions,
) -> Result<Vec<Piece>> {
    let (role, parts) = (one.binding.role, spec.parts(&one.binding.role).unwrap_or_default());
    let kept_apart = matches!(role.slot, Slot::Qkv | Slot::CrossKeyValue | Slot::Up)
        && one.binding.order == RowOrder::Plain;
    if !kept_apart || one.tensors.len() != parts.len() || chosen(source, spec, one, options).is_some() {
        return Ok(Vec::new());
    }
    let (mut pieces, mut start): (Vec<Piece>, usize) = (Vec::new(), 0);
    for (i, (tensor, part)) in one.tensors.iter().zip(&parts).enumerate() {
        let (format, end) = (format_of(&tensor.name, tensor.stored)?, start + part);
        match pieces.last_mut().filter(|last| last.format == format) {
            Some(last) => {
                (last.outputs.end, last.sources.end) = (end, i + 1);
                last.parts.push(*part);
            }
            None => {
                let (name, parts) = (String::new(), vec![*part]);
                pieces.push(Piece { name, outputs: start..end, parts, sources: i..i + 1, format });
            }
        }
        start = end;
    }
    pieces.iter_mut().for_each(|piece| piece.name = named(&role, &piece.outputs));
    Ok(pieces)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::checkpoint::TensorInfo;
    use crate::config::ModelConfig;
    use crate::mem::Stored;
    use crate::policy::{Binding, Catalog, Registry, Shard};
    use serde_json::json;
    use std::borrow::Cow;

    /// A file of which nothing but the header is read.
    struct Headers(Vec<TensorInfo>);

    impl Source for Headers {
        fn file(&self) -> &str {
            "headers"
        }
        fn tensors(&self) -> &[TensorInfo] {
            &self.0
        }
        fn bytes(&self, _: &str) -> Result<Cow<'_, [u8]>> {
            Ok(Cow::Borrowed(&[]))
        }
        fn release(&self, _: &str) {}
        fn total_bytes(&self) -> u64 {
            0
        }
    }

    /// Baichuan 2 divides the rows of its head, as f32: what is packed for must be that.
    #[test]
    fn a_head_of_rows_of_length_1_is_f32() {
        let (name, shape) = ("lm_head.weight".to_string(), vec![48, 32]);
        let files = Headers(vec![TensorInfo { name: name.clone(), shape, stored: Stored::Bf16 }]);
        let role = Role::of(Slot::Head, Part::Weight);
        let binding = Binding::single(role, vec![name], Shard::Replicated);
        let one = Resolved { binding, tensors: files.0.iter().collect() };
        let quantized = WeightFormat::Plain(Float::F16);
        for (unit_rows, quantize, want) in [
            (false, None, WeightFormat::Plain(Float::Bf16)),
            (true, None, WeightFormat::Plain(Float::F32)),
            (true, Some(quantized), quantized),
        ] {
            let mut config = json!({
                "model_type": "baichuan", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
                "num_attention_heads": 2, "vocab_size": 48, "rms_norm_eps": 1e-6, "max_position_embeddings": 64,
            });
            if unit_rows {
                config["z_loss_weight"] = json!(0);
            }
            let (config, catalog) = (ModelConfig::new(config).unwrap(), Catalog::new(files.tensors()));
            let policy = Registry::default().choose(&config, catalog).unwrap();
            let spec = policy.spec(&config, catalog).unwrap();
            let options = LoadOptions { quantize, ..LoadOptions::default() };
            let all = pieces(&files, &spec, &[], &one, options).unwrap();
            assert_eq!(all.iter().map(|piece| piece.format).collect::<Vec<_>>(), [want], "{unit_rows}");
        }
    }
}

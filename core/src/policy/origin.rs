//! Where a model came from: the policy that described it, why that one, and which tensors fill which operand.

use super::{InjectionPolicy, Resolved, RowOrder, Shard, Slot};
use crate::config::ModelConfig;
use crate::error::shown_on_a_line;
use std::fmt;

/// Which policy described a model, and what it made of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Origin {
    /// The policy's name.
    pub policy: String,
    /// Why it was chosen.
    pub why: String,
    /// Operands in the order in which the model uses them.
    pub filled: Vec<Filled>,
}

/// An operand and the tensors that fill it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Filled {
    /// The block; none outside.
    pub layer: Option<usize>,
    /// Slot and part: `qkv.weight`.
    pub operand: String,
    /// Tensors of the checkpoint, whose rows stand one after the other.
    pub tensors: Vec<String>,
    /// What else is done to the rows; empty where they are taken as they are.
    pub order: String,
    /// How tensor parallelism shards the operand.
    pub shard: String,
}

impl Origin {
    /// What `policy` resolved for the model of `config`.
    pub fn new(policy: &dyn InjectionPolicy, config: &ModelConfig, resolved: &[Resolved<'_>]) -> Self {
        let filled = resolved.iter().map(Filled::new).collect();
        Self { policy: policy.name().to_string(), why: policy.why(config), filled }
    }
}

impl Filled {
    fn new(resolved: &Resolved<'_>) -> Self {
        let Resolved { binding, tensors } = resolved;
        let of_sources = binding.sources.iter().map(|s| s.order);
        let mut done: Vec<String> = Vec::new();
        for order in of_sources.chain([binding.order]) {
            let text = order_text(order);
            // The sources of an operand are usually alike: said once.
            if !text.is_empty() && !done.contains(&text) {
                done.push(text);
            }
        }
        if binding.transposed {
            done.push("transposed".into());
        }
        Self {
            layer: binding.role.layer,
            operand: binding.role.operand(),
            tensors: tensors.iter().map(|t| t.name.clone()).collect(),
            order: done.join(", "),
            shard: match binding.role.slot {
                Slot::ExpertUp | Slot::ExpertDown => "experts".into(),
                _ => shard_text(binding.shard),
            },
        }
    }

    /// The same without its layer: `{}` stands for the number in names.
    fn anywhere(&self) -> Filled {
        let Some(layer) = self.layer else { return self.clone() };
        let tensors = self.tensors.iter().map(|name| without_layer(name, layer)).collect();
        Filled { layer: None, tensors, ..self.clone() }
    }

    /// The tensors as a sum; of many (experts), the first and the last.
    fn sum(&self) -> String {
        const MOST: usize = 4;
        match &self.tensors[..] {
            [first, .., last] if self.tensors.len() > MOST => {
                format!(
                    "{} + ... + {} ({} tensors)",
                    shown_on_a_line(first),
                    shown_on_a_line(last),
                    self.tensors.len()
                )
            }
            all => all.iter().map(|name| shown_on_a_line(name)).collect::<Vec<_>>().join(" + "),
        }
    }
}

/// How rows are reordered, in words; empty where they are not.
fn order_text(order: RowOrder) -> String {
    match order {
        RowOrder::Plain => String::new(),
        RowOrder::PairsInterleaved { heads } => format!("rotary pairs of {heads} heads de-interleaved"),
        RowOrder::Grouped { groups, widths: [a, b, c], .. } => {
            format!("taken out of {groups} groups of {a} + {b} + {c} rows")
        }
        RowOrder::Spread { parts, pieces } => format!("{pieces} pieces of {parts} runs interleaved"),
        RowOrder::WithZeros { at, count } => format!("{count} zeros in front of element {at}"),
    }
}

/// The sharding in words.
fn shard_text(shard: Shard) -> String {
    match shard {
        Shard::Replicated => "replicated".into(),
        Shard::Columns { unit } => format!("column, units of {unit}"),
        Shard::Rows { grain } => format!("row, grains of {grain}"),
        Shard::Vocab => "column, rows of the vocabulary".into(),
    }
}

/// A name with `{}` for the first part that is the layer's number.
fn without_layer(name: &str, layer: usize) -> String {
    let number = layer.to_string();
    let mut left = 1;
    let parts = name.split('.').map(|part| match part == number && left > 0 {
        true => {
            left -= 1;
            "{}"
        }
        false => part,
    });
    parts.collect::<Vec<&str>>().join(".")
}

impl fmt::Display for Origin {
    /// One line per operand and run of layers that are filled alike. Names of tensors are shown without
    /// control characters, of long ones the beginning and the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs: Vec<(Option<usize>, Option<usize>, Filled)> = Vec::new();
        for one in &self.filled {
            let same = one.anywhere();
            // A layer's weight and bias stand next to each other: the run that goes on may not be the last.
            let next = |to: &Option<usize>| to.is_some_and(|to| one.layer == Some(to + 1));
            match runs.iter_mut().rev().find(|(_, to, have)| next(to) && *have == same) {
                Some((_, to, _)) => *to = one.layer,
                None => runs.push((one.layer, one.layer, same)),
            }
        }
        write!(f, "{:<9} {:<21} tensors", "layer", "operand")?;
        for (from, to, one) in runs {
            let label = match (from, to) {
                (Some(a), Some(b)) if a != b => format!("{a}-{b}"),
                (Some(a), _) => a.to_string(),
                (None, _) => String::new(),
            };
            let order = if one.order.is_empty() { String::new() } else { format!("; {}", one.order) };
            write!(f, "\n{label:<9} {:<21} <- {}{order}; {}", one.operand, one.sum(), one.shard)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(layer: Option<usize>, operand: &str, tensors: &[&str]) -> Filled {
        Filled {
            layer,
            operand: operand.into(),
            tensors: tensors.iter().map(|t| t.to_string()).collect(),
            order: String::new(),
            shard: "row, grains of 64".into(),
        }
    }

    #[test]
    fn layers_that_are_filled_alike_are_one_line() {
        let experts = ["h.2.e.0.w", "h.2.e.1.w", "h.2.e.2.w", "h.2.e.3.w", "h.2.e.4.w"];
        let origin = Origin {
            policy: "any".into(),
            why: "it fits".into(),
            filled: vec![
                filled(None, "head.weight", &["out.w"]),
                filled(Some(0), "down.weight", &["h.0.e.0.w", "h.0.e.1.w"]),
                filled(Some(0), "down.bias", &["h.0.b"]),
                filled(Some(1), "down.weight", &["h.1.e.0.w", "h.1.e.1.w"]),
                filled(Some(1), "down.bias", &["h.1.b"]),
                filled(Some(2), "down.weight", &experts),
            ],
        };
        let text = origin.to_string();
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[0].contains("head.weight") && lines[0].contains("<- out.w; row"), "{text}");
        assert!(
            lines[1].starts_with("0-1 ") && lines[1].contains("<- h.{}.e.0.w + h.{}.e.1.w; row"),
            "{text}"
        );
        assert!(lines[2].starts_with("0-1 ") && lines[2].contains("down.bias"), "{text}");
        assert!(lines[3].contains("h.{}.e.0.w + ... + h.{}.e.4.w (5 tensors)"), "{text}");
    }

    #[test]
    fn names_of_tensors_stay_on_their_line_and_are_bounded() {
        let hostile = format!("w\u{1b}[2J\n{}", "x".repeat(400_000));
        let few = filled(None, "head.weight", &[hostile.as_str()]);
        let many = filled(None, "down.weight", &[hostile.as_str(); 9]);
        let origin = Origin { policy: "any".into(), why: "it fits".into(), filled: vec![few, many] };
        let text = origin.to_string();
        assert!(text.len() < 6_000 && text.lines().count() == 3, "{} bytes", text.len());
        assert!(!text.contains('\u{1b}') && text.contains("<- w\\u{1b}[2J\\nxxx"), "{text:?}");
    }

    #[test]
    fn only_the_layers_own_number_is_left_out() {
        assert_eq!(without_layer("model.layers.3.experts.3.w1", 3), "model.layers.{}.experts.3.w1");
        assert_eq!(without_layer("model.norm.weight", 3), "model.norm.weight");
    }
}

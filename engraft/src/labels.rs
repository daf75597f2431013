//! What a classifier's outputs are called, and how logits become scores.

use engraft_core::policy::HeadSpec;
use serde_json::Value;

/// The labels of a model that labels texts, as its configuration names them; `LABEL_0`, ... where it does
/// not.
///
/// [`TextGenerator::labels`](crate::TextGenerator::labels) has an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels {
    names: Vec<String>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One of several: shares of 1.
    One,
    /// Each by itself: a probability each.
    Many,
    /// A number: the logit itself.
    Number,
}

/// A label and its score.
///
/// [`TextGenerator::classify`](crate::TextGenerator::classify) gives it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Label {
    /// Its name.
    pub name: String,
    /// A share of 1 (softmax); a probability of its own (sigmoid) with `problem_type`
    /// `multi_label_classification` or a single label; the logit itself of a regression.
    pub score: f64,
}

/// What a classifier says of a text.
///
/// [`TextGenerator::classify`](crate::TextGenerator::classify) has an example.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Classification {
    /// Every label with its score, in the order of the model's outputs.
    pub labels: Vec<Label>,
    /// The model's outputs.
    pub logits: Vec<f32>,
}

impl Classification {
    /// The label with the highest output.
    pub fn best(&self) -> Option<&Label> {
        let places = 0..self.logits.len();
        self.labels.get(places.rev().max_by(|a, b| self.logits[*a].total_cmp(&self.logits[*b]))?)
    }
}

impl Labels {
    /// Those of a model with this configuration and head; none if it does not label texts.
    pub(crate) fn of(config: &Value, head: HeadSpec) -> Option<Self> {
        let HeadSpec::Labels { count, .. } = head else { return None };
        let name = |i: usize| config["id2label"][i.to_string()].as_str().map(str::to_owned);
        let kind = match config["problem_type"].as_str() {
            Some("multi_label_classification") => Kind::Many,
            Some("regression") => Kind::Number,
            _ if count == 1 => Kind::Many,
            _ => Kind::One,
        };
        let names = (0..count).map(|i| name(i).unwrap_or_else(|| format!("LABEL_{i}"))).collect();
        Some(Self { names, kind })
    }

    /// Their names, in the order of the model's outputs.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The labels that a model's outputs for one text mean: those of
    /// [`EngineHandle::classify`](crate::EngineHandle::classify).
    pub fn classify(&self, logits: Vec<f32>) -> Classification {
        let wide = || logits.iter().map(|x| f64::from(*x));
        let most = wide().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = wide().map(|x| (x - most).exp()).sum();
        let score = |x: f64| match self.kind {
            Kind::One => (x - most).exp() / sum,
            Kind::Many => 1.0 / (1.0 + (-x).exp()),
            Kind::Number => x,
        };
        let labels = self.names.iter().zip(wide());
        let labels = labels.map(|(name, x)| Label { name: name.clone(), score: score(x) }).collect();
        Classification { labels, logits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn scores(config: Value, logits: &[f32]) -> Vec<f64> {
        let labels = Labels::of(&config, HeadSpec::Labels { count: logits.len(), bias: true });
        let labels = labels.map(|labels| labels.classify(logits.to_vec()).labels);
        labels.unwrap_or_default().iter().map(|label| label.score).collect()
    }

    #[test]
    fn a_single_label_is_a_sigmoid_unless_it_is_a_regression() {
        assert_eq!(scores(json!({}), &[0.0]), [0.5]);
        assert_eq!(scores(json!({"problem_type": "regression"}), &[-2.5]), [-2.5]);
        assert_eq!(scores(json!({}), &[1.0, 1.0]), [0.5, 0.5]);
        assert_eq!(scores(json!({"problem_type": "multi_label_classification"}), &[0.0, 0.0]), [0.5, 0.5]);
    }
}

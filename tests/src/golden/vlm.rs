//! Goldens of models that see images: of their samples those that are texts alone, as a causal model's.

use super::case::Tensor;
use engraft_core::{Error, Result};
use std::collections::BTreeMap;

/// The tensors of all samples without images under the names that causal models have, one sample after the
/// other, and how many samples have images.
pub(super) fn of_texts(all: &BTreeMap<String, Tensor>) -> Result<(BTreeMap<String, Tensor>, usize)> {
    let (mut texts, mut lengths, mut with_images) = (BTreeMap::new(), Vec::new(), 0);
    for sample in 0.. {
        let [inputs, outputs] = ["in", "out"].map(|side| format!("{side}.{sample}."));
        let ids = format!("{inputs}input_ids");
        let Some(prompt) = all.get(&ids) else { break };
        if all.keys().any(|name| name.starts_with(&inputs) && *name != ids) {
            with_images += 1;
            continue;
        }
        lengths.push(prompt.values.len() as f32);
        append(&mut texts, "input_ids", &[prompt.values.len()], &prompt.values)?;
        for (name, tensor) in all {
            let Some(name) = name.strip_prefix(&outputs) else { continue };
            // Tokens of a sample are a row.
            match name {
                "greedy_tokens" => append(&mut texts, name, &[1, tensor.values.len()], &tensor.values)?,
                _ => append(&mut texts, name, &tensor.shape, &tensor.values)?,
            }
        }
    }
    if !lengths.is_empty() {
        append(&mut texts, "lengths", &[lengths.len()], &lengths)?;
    }
    Ok((texts, with_images))
}

/// Adds rows to a tensor.
fn append(texts: &mut BTreeMap<String, Tensor>, name: &str, shape: &[usize], values: &[f32]) -> Result<()> {
    let [count, cols @ ..] = shape else { return Err(Error::tensor(name, "no shape".to_string())) };
    let Some(tensor) = texts.get_mut(name) else {
        texts.insert(name.to_string(), Tensor { shape: shape.to_vec(), values: values.to_vec() });
        return Ok(());
    };
    let [rows, of_others @ ..] = &mut tensor.shape[..] else {
        return Err(Error::tensor(name, "no shape".to_string()));
    };
    if of_others != cols {
        return Err(Error::tensor(name, format!("rows of {cols:?} behind rows of {of_others:?}")));
    }
    *rows += count;
    tensor.values.extend_from_slice(values);
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn samples_without_images_are_a_causal_models() {
        let of = |shape: &[usize], first: f32| {
            let count = shape.iter().product::<usize>();
            Tensor { shape: shape.to_vec(), values: (0..count).map(|i| first + i as f32).collect() }
        };
        let mut all = BTreeMap::new();
        for (sample, len) in [3, 2, 4].into_iter().enumerate() {
            let first = 100.0 * sample as f32;
            all.insert(format!("in.{sample}.input_ids"), of(&[1, len], first));
            all.insert(format!("out.{sample}.logits"), of(&[len, 5], first));
            all.insert(format!("out.{sample}.greedy_tokens"), of(&[2], first));
        }
        all.insert("in.1.pixel_values".into(), of(&[1], 0.0));
        let (texts, with_images) = of_texts(&all).unwrap();
        assert_eq!(with_images, 1);
        assert_eq!(texts["lengths"].values, [3.0, 4.0]);
        assert_eq!(texts["input_ids"].values, [0.0, 1.0, 2.0, 200.0, 201.0, 202.0, 203.0]);
        assert_eq!((texts["logits"].shape.as_slice(), texts["logits"].rows(3..4)[0]), (&[7, 5][..], 200.0));
        assert_eq!(texts["greedy_tokens"].rows(1..2), [200.0, 201.0]);
    }
}

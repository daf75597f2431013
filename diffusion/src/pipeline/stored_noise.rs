//! Noise of a file, in the place of a seed's: another program's, say, so that its picture can be made here.

use super::noise::{Noise, Purpose};
use engraft_core::checkpoint::safetensors;
use engraft_core::quant::plain;
use engraft_core::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// Largest file: the noise of a thousand steps of a picture of 2048 x 2048.
const MOST_BYTES: u64 = 1 << 32;

/// Unit noise of a safetensors file.
///
/// Its tensors are `latents`, which a run begins with, `posterior.0`, `posterior.1`, ... for the samplings of
/// a picture that is given, and `step`, with a row for each step, for schedulers that add noise. Each is
/// `[pictures, channels, lines, columns]`, as diffusers has latents, or `[pictures, rows, columns]`, as its
/// FLUX has them; `step` has the steps in front of that.
#[derive(Debug, Clone)]
pub struct StoredNoise {
    file: String,
    tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl StoredNoise {
    /// Reads a file.
    ///
    /// # Errors
    /// What reading it raises; `Tensor` for one that means nothing here and for values that are no numbers.
    pub fn open(path: &Path) -> Result<Self> {
        let file = path.display().to_string();
        let bytes = engraft_core::file::whole(path, MOST_BYTES)?;
        let mut tensors = BTreeMap::new();
        for found in safetensors::parse(&file, &bytes)? {
            let tensor = found.info;
            let mut values = vec![0.0; tensor.elements()];
            plain::to_f32(tensor.stored, &bytes[found.start as usize..found.end as usize], &mut values)?;
            let number = tensor.name.strip_prefix("posterior.").map(str::parse::<u32>);
            if !matches!(number, Some(Ok(_))) && !["latents", "step"].contains(&&*tensor.name) {
                let what = format!("of {file} is no noise: allowed are latents, posterior.0 and on, step");
                return Err(Error::tensor(tensor.name, what));
            }
            // Lines and columns could be any number, and no picture has as many.
            if values.is_empty() {
                let what = format!("of {file} has no values: its shape is {:?}", tensor.shape);
                return Err(Error::tensor(tensor.name, what));
            }
            if values.iter().any(|x| !x.is_finite()) {
                return Err(Error::tensor(tensor.name, format!("of {file} has values that are no numbers")));
            }
            tensors.insert(tensor.name, (tensor.shape, values));
        }
        Ok(Self { file, tensors })
    }

    /// A picture's rows in a tensor, or in one step of it.
    fn rows(&self, name: &str, step: Option<usize>, item: usize) -> Option<Vec<f32>> {
        let (shape, values) = self.tensors.get(name)?;
        let (shape, values) = match (step, &shape[..]) {
            (None, shape) => (shape, &values[..]),
            (Some(step), [steps, rest @ ..]) => {
                let each = values.len().checked_div(*steps)?;
                (rest, values.get(step * each..(step + 1) * each)?)
            }
            (Some(_), []) => return None,
        };
        let each = values.len().checked_div(*shape.first()?)?;
        let own = values.get(item * each..(item + 1) * each)?;
        match shape {
            [_, _, _] => Some(own.to_vec()),
            [_, channels, lines, columns] => {
                let pixels = lines * columns;
                let row = |pixel: usize| (0..*channels).map(move |channel| own[channel * pixels + pixel]);
                Some((0..pixels).flat_map(row).collect())
            }
            _ => None,
        }
    }
}

impl Noise for StoredNoise {
    /// # Errors
    /// `Tensor`, naming the file, for a tensor that is missing, has fewer pictures or steps, or another size.
    fn fill(&mut self, what: Purpose, item: usize, into: &mut [f32]) -> Result<()> {
        let (name, step) = match what {
            Purpose::Latents => ("latents".to_string(), None),
            Purpose::Posterior(k) => (format!("posterior.{k}"), None),
            Purpose::Step(step) => ("step".to_string(), Some(step)),
        };
        if let Some(own) = self.rows(&name, step, item).filter(|own| own.len() == into.len()) {
            into.copy_from_slice(&own);
            return Ok(());
        }
        let there = match self.tensors.get(&name) {
            Some((shape, _)) => format!("is {shape:?} in {}", self.file),
            None => format!("is not in {}", self.file),
        };
        let of_step = step.map_or(String::new(), |step| format!(" of step {}", step + 1));
        let needed = format!("{} values for picture {}{of_step}", into.len(), item + 1);
        Err(Error::tensor(name, format!("{there}; this run needs {needed}")))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn write(tensors: &[(&str, &[usize], &[f32])]) -> (tempfile::TempDir, std::path::PathBuf) {
        let mut header = serde_json::Map::new();
        let mut data = Vec::new();
        for (name, shape, values) in tensors {
            let begin = data.len();
            data.extend(values.iter().flat_map(|x| x.to_le_bytes()));
            let entry =
                serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]});
            header.insert(name.to_string(), entry);
        }
        let header = serde_json::Value::Object(header).to_string();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("noise.safetensors");
        let length = (header.len() as u64).to_le_bytes();
        std::fs::write(&path, [&length[..], header.as_bytes(), &data].concat()).unwrap();
        (folder, path)
    }

    /// Two pictures of two channels, two lines and one column.
    const VALUES: [f32; 8] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];

    #[test]
    fn rows_are_pixels_and_steps_come_first() {
        let (_kept, path) = write(&[
            ("latents", &[2, 2, 2, 1], &VALUES),
            ("posterior.1", &[2, 2, 2], &VALUES),
            ("step", &[2, 1, 2, 2, 1], &VALUES),
        ]);
        let mut noise = StoredNoise::open(&path).unwrap();
        let mut of = |what, item| {
            let mut values = [f32::NAN; 4];
            noise.fill(what, item, &mut values).map(|()| values)
        };
        assert_eq!(of(Purpose::Latents, 1).unwrap(), [4.0, 6.0, 5.0, 7.0]);
        assert_eq!(of(Purpose::Posterior(1), 1).unwrap(), [4.0, 5.0, 6.0, 7.0]);
        assert_eq!(of(Purpose::Step(1), 0).unwrap(), [4.0, 6.0, 5.0, 7.0]);
        for (what, item, words) in [
            (Purpose::Latents, 2, ["`latents`", "[2, 2, 2, 1]", "picture 3"]),
            (Purpose::Posterior(0), 0, ["`posterior.0`", "is not in", "picture 1"]),
            (Purpose::Step(2), 0, ["`step`", "[2, 1, 2, 2, 1]", "of step 3"]),
        ] {
            let error = of(what, item).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
        let error = noise.fill(Purpose::Latents, 0, &mut [0.0; 6]).unwrap_err().to_string();
        assert!(error.contains("6 values") && error.contains("noise.safetensors"), "{error}");
    }

    /// A shape without values has any number of lines: to go over them would take for ever.
    #[test]
    fn noise_without_values_is_refused() {
        let most = i64::MAX as usize;
        for (name, shape) in
            [("latents", [1, 0, most, 1]), ("latents", [1, 0, most, most]), ("step", [most, 0, 1, 1])]
        {
            let (_kept, path) = write(&[(name, &shape, &[])]);
            let error = StoredNoise::open(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("`{name}`")) && error.contains("has no values"), "{error}");
        }
    }

    #[test]
    fn what_is_no_noise_is_refused_by_name() {
        for (name, value, words) in [
            ("noise", 0.0, ["`noise`", "latents, posterior.0"]),
            ("posterior.x", 0.0, ["`posterior.x`", "is no noise"]),
            ("latents", f32::NAN, ["`latents`", "no numbers"]),
        ] {
            let (_kept, path) = write(&[(name, &[1, 1, 1, 1], &[value])]);
            let error = StoredNoise::open(&path).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }
}

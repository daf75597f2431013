//! Whole pipelines on a backend: every run of a case with the noise that the reference took, and its
//! tokenizers.

use super::golden::{Golden, Result, Verdict, json};
use super::requests::{Given, request};
use engraft_core::backend::{Backend, block_on};
use engraft_core::mem::Float;
use engraft_diffusion::{Folder, Images, Lora, Pipeline, PipelineOptions};
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// Runs of a pipeline. Errors of steps add up and are multiplied by the guidance, so all are in f32.
pub struct Runs<'a, B: Backend> {
    backend: &'a Arc<B>,
    folder: &'a Path,
    said: Value,
    /// With all that the folder has, and nothing else.
    plain: Option<Pipeline<B>>,
}

fn said(error: engraft_core::Error) -> String {
    error.to_string()
}

impl<'a, B: Backend> Runs<'a, B> {
    /// Those of a folder.
    ///
    /// # Errors
    /// What is wrong with `golden.json`.
    pub fn open(backend: &'a Arc<B>, folder: &'a Path) -> Result<Self> {
        Ok(Self { backend, folder, said: json(&folder.join("golden.json"))?, plain: None })
    }

    /// Their names.
    pub fn names(&self) -> Vec<String> {
        self.said["runs"].as_object().into_iter().flat_map(|runs| runs.keys().cloned()).collect()
    }

    fn load(&self, loras: Vec<Lora>, without: Vec<String>) -> Result<Pipeline<B>> {
        let options = PipelineOptions { dtype: Float::F32, loras, without, ..PipelineOptions::default() };
        Pipeline::load(self.backend, self.folder, &options).map_err(said)
    }

    /// Runs one of them and compares the latents after its last step, what is decoded of them, and the bytes.
    ///
    /// # Errors
    /// For an argument that is not understood; what loading and running raise.
    pub fn run(&mut self, name: &str) -> Result<Verdict> {
        let own = self.said["runs"][name].clone();
        let file = self.folder.join(format!("golden.{name}.safetensors"));
        let scale = own["call"]["cross_attention_kwargs"]["scale"].as_f64().unwrap_or(1.0);
        let lora = own["lora"].as_str().map(|file| Lora { file: self.folder.join(file), scale });
        let dropped = own["dropped"].as_array().into_iter().flatten();
        let dropped: Vec<String> = dropped.filter_map(|name| Some(name.as_str()?.to_string())).collect();
        let mut golden = Golden::open(&file, own, 2e-5)?;
        let images = match (lora.is_some() || !dropped.is_empty(), &mut self.plain) {
            (true, _) => images(&mut self.load(lora.into_iter().collect(), dropped)?, &golden)?,
            (false, Some(plain)) => images(plain, &golden)?,
            (false, None) => {
                let loaded = self.load(Vec::new(), Vec::new())?;
                images(self.plain.insert(loaded), &golden)?
            }
        };
        golden.compare_last_rows("latents", &images.latents)?;
        golden.compare_rows("decoded", &images.decoded)?;
        let bytes: Vec<f64> = images.rgb.concat().into_iter().map(f64::from).collect();
        golden.compare("image", &bytes)?;
        Ok(golden.verdict)
    }
}

fn images<B: Backend>(pipeline: &mut Pipeline<B>, golden: &Golden) -> Result<Images> {
    let (request, mut steps) = (request(golden)?, Vec::new());
    let images = block_on(pipeline.run(&request, &mut Given(golden), &mut |progress| {
        steps.push(progress.done);
        ControlFlow::Continue(())
    }));
    let images = images.map_err(said)?.ok_or("the run has ended early")?;
    if let Some(why) = pipeline.step_counts().refused {
        return Err(format!("steps cannot be captured: {why}"));
    }
    let calls = golden.get("timesteps")?.values.len();
    match steps.iter().copied().eq(1..=calls) {
        true => Ok(images),
        false => Err(format!("steps {steps:?} were seen, of {calls}")),
    }
}

/// Compares the ids of all texts of a pipeline's tokenizers, and gives how many there are.
///
/// # Errors
/// For a text with other ids, naming it; what reading the tokenizers raises.
pub fn tokenizers(folder: &Path) -> Result<usize> {
    let (all, opened) = (json(&folder.join("tokenizer_golden.json"))?, Folder::open(folder).map_err(said)?);
    let mut texts = 0;
    for (name, rows) in all.as_object().into_iter().flatten() {
        let (tokenizer, _) = opened.tokenizer(name).map_err(said)?;
        for row in rows.as_array().into_iter().flatten() {
            let ids = |field: &str| -> Vec<u32> {
                let ids = row[field].as_array().into_iter().flatten();
                ids.map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()).unwrap_or(u32::MAX)).collect()
            };
            let text = row["text"].as_str().unwrap_or_default();
            let whole = tokenizer.encode(text, true).map_err(said)?;
            let padded = ids("padded_24");
            let short = tokenizer.encode_truncated(text, true, padded.len()).map_err(said)?;
            if whole != ids("ids") || !padded.starts_with(&short) || short.is_empty() {
                return Err(format!("{name} has other ids for {text:?}: {whole:?}, {short:?}"));
            }
            texts += 1;
        }
    }
    Ok(texts)
}

//! The engine in a page: one model, one text at a time.
//!
//! The page fetches a model's files and hands their bytes over; [`Session::generate`] calls back with every
//! piece of text. Nothing blocks: reads from the device are awaited, and the page stays alive between steps.
//! Not here: the page itself (`page/`), the glue between it and this (`bind`).

use engraft_core::backend::Backend;
use engraft_core::checkpoint::{TokenizerFiles, open_bytes};
use engraft_core::config::{EngineConfig, ModelConfig};
use engraft_core::engine::{Engine, Request};
use engraft_core::inject::inject;
use engraft_core::policy::Registry;
use engraft_core::sample::SamplingParams;
use engraft_core::text::Tokenizer;
use engraft_core::weights::LoadOptions;
use engraft_core::{Error, Result};
use engraft_wgpu::{Wgpu, WgpuConfig};
use std::borrow::Cow;
use wasm_bindgen::prelude::{JsError, JsValue, wasm_bindgen};

/// Tokens that prompt and answer may have together; the model's own limit may be lower.
const MOST: usize = 1024;

/// A model that is ready.
#[wasm_bindgen]
pub struct Session {
    engine: Engine<Wgpu>,
    tokenizer: Tokenizer,
    stop_ids: Vec<u32>,
    device: String,
}

fn seen(e: Error) -> JsError {
    JsError::new(&e.to_string())
}

#[wasm_bindgen]
impl Session {
    /// Opens a model: `config.json`, `generation_config.json`, `model.safetensors`, `tokenizer.json`,
    /// `tokenizer_config.json`.
    ///
    /// # Errors
    /// Without a WebGPU adapter, and for models that the engine refuses.
    pub async fn open(
        config: Vec<u8>,
        generation: Vec<u8>,
        weights: Vec<u8>,
        tokenizer: Vec<u8>,
        tokenizer_config: Vec<u8>,
    ) -> std::result::Result<Session, JsError> {
        console_error_panic_hook::set_once();
        Self::from_files([config, generation, weights, tokenizer, tokenizer_config]).await.map_err(seen)
    }

    /// The device and what it was found to do, for people.
    pub fn device(&self) -> String {
        self.device.clone()
    }

    /// Continues `prompt` by at most `tokens` tokens. `on_text` is called with every piece of text; when it
    /// returns
    /// `false` the text ends. Gives the number of tokens sampled.
    ///
    /// # Errors
    /// For prompts that are too long and options out of range; when the device is lost.
    pub async fn generate(
        &mut self,
        prompt: String,
        tokens: u32,
        temperature: f32,
        seed: u32,
        on_text: js_sys::Function,
    ) -> std::result::Result<u32, JsError> {
        let sampling = match temperature > 0.0 {
            true => {
                SamplingParams { temperature, top_p: 0.9, seed: Some(seed.into()), ..SamplingParams::default() }
            }
            false => SamplingParams::default(),
        };
        let mut go_on = |text: &str| {
            let answer = on_text.call1(&JsValue::NULL, &JsValue::from_str(text));
            answer.is_ok_and(|a| a != JsValue::FALSE)
        };
        self.text(&prompt, tokens as usize, sampling, &mut go_on).await.map_err(seen)
    }
}

impl Session {
    async fn from_files(
        [config, generation, weights, tokenizer, tokenizer_config]: [Vec<u8>; 5],
    ) -> Result<Self> {
        let gpu = Wgpu::open(WgpuConfig { software: true, ..WgpuConfig::default() }).await?;
        let text = TokenizerFiles::from_bytes(Some(tokenizer.clone()), Some(&tokenizer_config), None)?;
        let files = open_bytes(&config, Some(&generation), Cow::Owned(weights), text)?;
        let settings: serde_json::Value =
            serde_json::from_slice(&tokenizer_config).map_err(|e| Error::text(e.to_string()))?;
        let tokenizer = Tokenizer::from_json(&tokenizer, &settings)?;
        let mut stop_ids = tokenizer.eos_ids().to_vec();
        stop_ids.extend(ModelConfig::new(files.config.clone())?.ids("eos_token_id")?);
        let model = inject(&gpu, &files, &Registry::default(), MOST, LoadOptions::default(), &mut |_, _| {})?;
        let sizes =
            EngineConfig { max_seqs: 1, max_step_tokens: 128, max_context: MOST, ..EngineConfig::default() };
        let device = format!("{}, bits {:?}", gpu.caps().device, gpu.numerics().mode);
        Ok(Self { engine: Engine::new(gpu, model, sizes)?, tokenizer, stop_ids, device })
    }

    async fn text(
        &mut self,
        prompt: &str,
        tokens: usize,
        sampling: SamplingParams,
        go_on: &mut dyn FnMut(&str) -> bool,
    ) -> Result<u32> {
        let ids = self.tokenizer.encode(prompt, true)?;
        let mut pieces = self.tokenizer.decode_stream();
        if self.engine.model().encoder.is_none() {
            pieces.prime(&ids)?;
        }
        let stop_ids = self.stop_ids.clone();
        let id = self.engine.put(Request {
            prompt: ids,
            max_new_tokens: tokens,
            sampling,
            stop_ids,
            ..Request::default()
        })?;
        let (mut out, mut sampled) = (Vec::new(), 0);
        while !self.engine.is_idle() {
            self.engine.step_async(&mut out).await?;
            for token in out.iter().filter(|o| o.id == id).filter_map(|o| o.token) {
                sampled += 1;
                let end = self.stop_ids.contains(&token);
                if !end && !go_on(&pieces.push(token)?) {
                    self.engine.cancel(id)?;
                }
            }
        }
        let rest = pieces.finish();
        if !rest.is_empty() {
            go_on(&rest);
        }
        Ok(sampled)
    }
}

//! What a DeepSpeed configuration means to a pipeline of diffusion.

use crate::image::ImageOptions;
use engraft_core::config::deepspeed::{DataType, DeepSpeedConfig, Warning};
use engraft_core::{Error, Result};

impl ImageOptions {
    /// Takes a checked DeepSpeed configuration: its element type, and whether steps are captured (DeepSpeed's
    /// defaults where it is silent: f16, and they are not). With it come warnings of what has no effect here.
    ///
    /// DeepSpeed puts its UNet, VAE and CLIP modules into every pipeline, whatever
    /// `replace_with_kernel_inject` says; here ops are fused likewise, and both values mean the same.
    ///
    /// # Errors
    /// `Config`, naming the setting, for what would change a result or a model and is not there: `int8` and
    /// quantization, several ranks, experts, a checkpoint, an injection policy.
    ///
    /// ```
    /// use engraft::{DeepSpeedConfig, Float, ImageOptions};
    ///
    /// let set = DeepSpeedConfig::builder().set("dtype", "bf16")?.set("enable_cuda_graph", true)?;
    /// let (options, warnings) = ImageOptions::default().deepspeed(&set.check()?.0)?;
    /// assert_eq!((options.dtype, options.graphs, warnings.len()), (Float::Bf16, true, 0));
    /// let ranks = DeepSpeedConfig::builder().tp_size(2).check()?.0;
    /// assert!(ImageOptions::default().deepspeed(&ranks).is_err());
    /// # Ok::<(), engraft::Error>(())
    /// ```
    pub fn deepspeed(mut self, config: &DeepSpeedConfig) -> Result<(Self, Vec<Warning>)> {
        refuse(config)?;
        self.dtype = config.dtype.activations();
        self.graphs = config.graphs;
        Ok((self, ignored(config)))
    }
}

/// Refuses what would change a result or a model.
fn refuse(config: &DeepSpeedConfig) -> Result<()> {
    let of_models = "none: a pipeline is the folder that is opened";
    let experts = config.moe != DeepSpeedConfig::default().moe;
    let quantized = config.quantize.map(|format| format.to_string());
    let given = [
        ("dtype", (config.dtype == DataType::Int8).then(|| "int8".to_string()), "fp16, bf16 or fp32"),
        ("tensor_parallel.tp_size", (config.tp_size > 1).then(|| config.tp_size.to_string()), "1"),
        ("quant", quantized, "none: weights of pictures are not quantized"),
        ("moe", experts.then(|| "experts".into()), "none: these models have no experts"),
        ("checkpoint", config.checkpoint.as_ref().map(|_| "given".into()), of_models),
        ("base_dir", (!config.base_dir.is_empty()).then(|| config.base_dir.clone()), of_models),
        ("config", config.model_config.as_ref().map(|_| "given".into()), of_models),
        ("training_mp_size", config.training_mp_size.map(|size| size.to_string()), of_models),
        (
            "save_mp_checkpoint_path",
            config.save_mp_checkpoint_path.as_ref().map(|path| path.display().to_string()),
            "none: pipelines are not written",
        ),
        (
            "injection_policy",
            config
                .injection_policy
                .as_ref()
                .map(|policy| policy.keys().cloned().collect::<Vec<_>>().join(", ")),
            "none: UNets, transformers, autoencoders and text encoders are known",
        ),
    ];
    match given.into_iter().find_map(|(field, got, allowed)| Some((field, got?, allowed))) {
        Some((field, got, allowed)) => Err(Error::config(field, got, allowed)),
        None => Ok(()),
    }
}

/// What has no effect, and changes no result.
fn ignored(config: &DeepSpeedConfig) -> Vec<Warning> {
    let tokens = "is about sequences of tokens, which pictures are not";
    let default = DeepSpeedConfig::default();
    let given = [
        ("tensor_parallel.tp_grain_size", config.tp_grain != default.tp_grain, "is about several ranks"),
        ("max_out_tokens", config.own_context, tokens),
        ("min_out_tokens", config.min_out_tokens != default.min_out_tokens, tokens),
        ("state_manager", config.state.is_some(), tokens),
    ];
    let given = given.into_iter().filter(|(_, given, _)| *given);
    given.map(|(field, _, what)| Warning::new(field, what)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use engraft_core::mem::Float;
    use serde_json::{Value, json};

    fn taken(of: &Value) -> Result<(ImageOptions, Vec<Warning>)> {
        let (config, _) = DeepSpeedConfig::builder().dictionary(of).unwrap().check().unwrap();
        ImageOptions::default().deepspeed(&config)
    }

    #[test]
    fn every_setting_counts_warns_or_is_refused() {
        assert_eq!(ImageOptions::default().dtype, Float::F32);
        assert!(ImageOptions::default().graphs);
        for (of, dtype, graphs) in [
            (json!({}), Float::F16, false),
            (json!({"dtype": "fp32", "replace_with_kernel_inject": true}), Float::F32, false),
            (json!({"dtype": "torch.bfloat16", "replace_with_kernel_inject": false}), Float::Bf16, false),
            (json!({"enable_cuda_graph": false}), Float::F16, false),
            (json!({"enable_cuda_graph": true}), Float::F16, true),
        ] {
            let (options, warnings) = taken(&of).unwrap();
            assert_eq!((options.dtype, options.graphs, warnings.len()), (dtype, graphs, 0), "{of}");
        }
        for (of, field) in [
            (json!({"tp": {"tp_grain_size": 32}}), "tensor_parallel.tp_grain_size"),
            (json!({"max_out_tokens": 2048}), "max_out_tokens"),
            (json!({"min_out_tokens": 8}), "min_out_tokens"),
            (json!({"state_manager": {"max_context": 64}}), "state_manager"),
        ] {
            let (_, warnings) = taken(&of).unwrap();
            assert!(warnings.iter().any(|warning| warning.field == field), "{of}: {warnings:?}");
        }
        for (of, field) in [
            (json!({"dtype": "int8"}), "dtype"),
            (json!({"tp": {"tp_size": 2}}), "tensor_parallel.tp_size"),
            (json!({"quant": {"enabled": true}}), "quant"),
            (json!({"quantization": {"quantization_mode": "int4"}}), "quant"),
            (json!({"moe": {"enabled": true, "ep_size": 1, "moe_experts": [4]}}), "moe"),
            (json!({"checkpoint": "model.json"}), "checkpoint"),
            (json!({"base_dir": "models"}), "base_dir"),
            (json!({"config": {"layers": 2}}), "config"),
            (json!({"training_mp_size": 2}), "training_mp_size"),
            (json!({"save_mp_checkpoint_path": "out"}), "save_mp_checkpoint_path"),
            (json!({"injection_policy": {"UNet2DConditionModel": "to_out.0"}}), "injection_policy"),
        ] {
            let error = taken(&of).map(drop).unwrap_err().to_string();
            assert!(error.contains(&format!("`{field}`")), "{of}: {error}");
        }
    }
}

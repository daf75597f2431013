//! Checkpoints that are published quantized: a configuration that says how, and a safetensors file, both
//! hostile. What is accepted is read to the end, each tensor as plain values.
//!
//! An input is the length of the configuration (as safetensors has it), the configuration and the file; the
//! seeds are one golden of each way of packing, of a few matrices each.

use engraft_core::{
    Error, Result,
    checkpoint::{self, Source, TokenizerFiles},
    quant::plain,
};
use std::path::Path;

/// Values that are read at once.
const MOST_VALUES: usize = 1 << 20;

/// Goldens, one of each way of packing.
const SEEDS: [&str; 8] = [
    "llama_awq",
    "llama_gptq",
    "llama_ct_w4a16_asym",
    "llama_ct_w8a8",
    "llama_ct_nvfp4",
    "llama_nf4_double",
    "qwen3_fp8",
    "gpt_oss_mxfp4",
];

/// See the module's head.
pub fn seeds() -> Result<Vec<Vec<u8>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let read = |path: &Path| std::fs::read(path).map_err(|e| Error::io(path, e));
    let seed = |name: &str| {
        let golden = folder.join(name);
        let (config, file) = (read(&golden.join("config.json"))?, read(&golden.join("model.safetensors"))?);
        Ok([&(config.len() as u64).to_le_bytes()[..], &config, &file].concat())
    };
    SEEDS.into_iter().map(seed).collect()
}

/// Configurations that say of the same tensors what cannot be: bits, groups and blocks of any size, methods
/// and lists without end.
pub fn hostile() -> Vec<Vec<u8>> {
    let Ok(seeds) = seeds() else { return Vec::new() };
    let most = "18446744073709551615";
    let long = "x".repeat(200_000);
    let said = [
        r#""gptq""#.to_string(),
        format!(r#"{{"quant_method":"{long}"}}"#),
        format!(r#"{{"quant_method":"gptq","bits":{most},"group_size":{most}}}"#),
        r#"{"quant_method":"gptq","bits":4,"group_size":0}"#.into(),
        r#"{"quant_method":"awq","bits":4,"group_size":-1,"zero_point":true}"#.into(),
        r#"{"quant_method":"fp8","weight_block_size":[0,0]}"#.into(),
        format!(r#"{{"quant_method":"fp8","weight_block_size":[{most},1]}}"#),
        format!(
            r#"{{"quant_method":"compressed-tensors","config_groups":{{{}}}}}"#,
            r#""a":{},"#.repeat(20_000) + r#""b":{}"#
        ),
        format!(r#"{{"quant_method":"compressed-tensors","config_groups":{}"#, "[".repeat(50_000)),
        format!(r#"{{"quant_method":"bitsandbytes","bnb_4bit_blocksize":{most}}}"#),
    ];
    let with = |seed: &Vec<u8>, said: &String| {
        let config = format!(r#"{{"model_type":"llama","quantization_config":{said}}}"#);
        let (_, file) = parts(seed)?;
        Some([&(config.len() as u64).to_le_bytes()[..], config.as_bytes(), file].concat())
    };
    seeds.iter().take(4).flat_map(|seed| said.iter().filter_map(|said| with(seed, said))).collect()
}

/// The configuration of an input, and the file.
fn parts(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = input.split_at_checked(8)?;
    let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
    rest.split_at_checked(length)
}

pub fn read(input: Vec<u8>) -> bool {
    opened(&input).is_some_and(|source| {
        let small = source.tensors().iter().filter(|tensor| tensor.elements() <= MOST_VALUES);
        let values = |tensor: &checkpoint::TensorInfo| {
            let mut out = vec![0.0; tensor.elements()];
            source.bytes(&tensor.name).and_then(|bytes| plain::to_f32(tensor.stored, &bytes, &mut out))
        };
        small.map(values).all(|read| read.is_ok())
    })
}

fn opened(input: &[u8]) -> Option<Box<dyn Source>> {
    let (config, file) = parts(input)?;
    let opened = checkpoint::open_bytes(config, None, file.to_vec().into(), TokenizerFiles::none());
    opened.ok().map(|files| files.source)
}

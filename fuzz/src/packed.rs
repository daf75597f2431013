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
    let (length, rest) = input.split_at_checked(8)?;
    let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
    let (config, file) = rest.split_at_checked(length)?;
    let opened = checkpoint::open_bytes(config, None, file.to_vec().into(), TokenizerFiles::none());
    opened.ok().map(|files| files.source)
}

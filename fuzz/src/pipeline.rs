//! Pipelines of pictures: the small files of a folder as diffusers has it, LoRA files, files of noise. What
//! is accepted makes a picture.
//!
//! An input of `pipeline` is a list of files as those of `folder` are; the first line may name the golden
//! pipeline whose weights and other files lie next to them. One of `lora` and `noise` is the file itself.

use crate::{
    folder::{ROOM, files, plain},
    model::CPU,
    samples,
};
use engraft_core::{Error, Result, backend::block_on, checkpoint::Access};
use engraft_cpu::Cpu;
use engraft_diffusion::{ImageRequest, Lora, Noise, Pipeline, PipelineOptions, Purpose, Seeded, StoredNoise};
use std::{
    fs, io,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

/// Golden pipelines whose weights are taken: with a UNet, and with transformers.
const BASES: [&str; 3] = ["sd1", "pixart_sigma", "flux_schnell"];
/// The pipeline whose weights LoRA files change.
const OF_LORAS: &str = "sd1_lora";
/// Files that an input may change.
const NAMES: [&str; 9] = [
    "model_index.json",
    "scheduler/scheduler_config.json",
    "unet/config.json",
    "transformer/config.json",
    "vae/config.json",
    "text_encoder/config.json",
    "text_encoder_2/config.json",
    "tokenizer/tokenizer_config.json",
    "tokenizer/special_tokens_map.json",
];

pub const WORDS: &[&str] = &[
    "=== sd1\n",
    "=== pixart_sigma\n",
    "=== flux_schnell\n",
    "=== model_index.json\n",
    "=== scheduler/scheduler_config.json\n",
    "=== unet/config.json\n",
    "=== transformer/config.json\n",
    "=== vae/config.json\n",
    "=== text_encoder/config.json\n",
    "\"_class_name\": \"StableDiffusionImg2ImgPipeline\"",
    "\"_class_name\": \"FluxPipeline\"",
    "\"_class_name\": \"PNDMScheduler\"",
    "\"block_out_channels\": [",
    "\"down_block_types\": [",
    "\"norm_num_groups\": ",
    "\"layers_per_block\": ",
    "\"attention_head_dim\": ",
    "\"transformer_layers_per_block\": ",
    "\"sample_size\": ",
    "\"scaling_factor\": ",
    "\"axes_dims_rope\": [",
    "\"num_layers\": ",
    "\"patch_size\": ",
    "\"model_max_length\": ",
    "\"force_upcast\": true",
    "null",
    "true",
    "-1",
    "1e999",
    "18446744073709551615",
    "[]",
    "{}",
    ",",
    ":",
];
pub const LORA: &[&str] = &[
    "\"F16\"",
    "\"F32\"",
    "\"shape\":[",
    "[0,0]",
    "\"data_offsets\":[",
    "__metadata__",
    "lora_adapter_metadata",
    "lora_unet_",
    "lora_te_",
    "unet.",
    "text_encoder.",
    ".lora_down.weight",
    ".lora_up.weight",
    ".lora_A.weight",
    ".lora.up.weight",
    ".alpha",
    "{\\\"unet.r\\\": 4}",
    "9223372036854775807",
    "null",
    ",",
    ":",
];
pub const NOISE: &[&str] = &[
    "\"latents\":",
    "\"step\":",
    "\"posterior.0\":",
    "\"posterior.1\":",
    "\"F32\"",
    "\"F16\"",
    "\"shape\":[",
    "[0,0]",
    "[1,4,2,2]",
    "[1,0,9223372036854775807,1]",
    "\u{0}\u{0}\u{c0}\u{7f}",
    ",",
    ":",
];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden-image/pipelines").join(name)
}

/// A copy of a golden pipeline, without what its test needs.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to.join(name))?;
        } else if !name.to_string_lossy().starts_with("golden") {
            fs::copy(entry.path(), to.join(name))?;
        }
    }
    Ok(())
}

/// The folder of a golden pipeline's copy.
fn place(name: &str) -> PathBuf {
    let place = ROOM.join(name);
    if !place.exists() {
        copy(&golden(name), &place).unwrap_or_else(|e| panic!("{}: {e}", place.display()));
    }
    place
}

fn options(loras: Vec<Lora>) -> PipelineOptions {
    PipelineOptions { access: Access::Read, loras, ..PipelineOptions::default() }
}

pub fn seeds() -> Result<Vec<Vec<u8>>> {
    let seed = |base: &str| {
        let mut all = format!("=== {base}\n").into_bytes();
        for name in NAMES {
            let path = golden(base).join(name);
            if path.exists() {
                all.extend(format!("=== {name}\n").bytes());
                all.extend(fs::read(&path).map_err(|e| Error::io(&path, e))?);
                all.push(b'\n');
            }
        }
        Ok(all)
    };
    BASES.into_iter().map(seed).collect()
}

/// Sizes that no weights have, lists without end, values that are none, names that lead elsewhere.
pub fn hostile() -> Vec<Vec<u8>> {
    let deep = "[".repeat(100_000);
    let long = "x".repeat(100_000);
    let file = |name: &str, text: &str| format!("=== sd1\n=== {name}\n{text}\n").into_bytes();
    let index = |text: &str| file("model_index.json", text);
    let unet =
        |text: &str| file("unet/config.json", &format!(r#"{{"in_channels":4,"out_channels":4,{text}}}"#));
    let vae = |text: &str| file("vae/config.json", &format!(r#"{{"latent_channels":4,{text}}}"#));
    let many = format!(r#""block_out_channels":[{}8],"down_block_types":[]"#, "8,".repeat(30_000));
    vec![
        index(&deep),
        index("[]"),
        index(&format!(r#"{{"_class_name":"{long}"}}"#)),
        index(r#"{"_class_name":"StableDiffusionPipeline","../unet":["diffusers","UNet2DConditionModel"]}"#),
        index(r#"{"_class_name":"StableDiffusionPipeline","unet":["diffusers","\u001b[31m"]}"#),
        index(r#"{"_class_name":"FluxPipeline","transformer":["diffusers","FluxTransformer2DModel"]}"#),
        unet(&many),
        unet(
            r#""block_out_channels":[18446744073709551615],"down_block_types":["DownBlock2D"],"up_block_types":["UpBlock2D"]"#,
        ),
        unet(
            r#""block_out_channels":[8],"layers_per_block":18446744073709551615,"down_block_types":["DownBlock2D"],"up_block_types":["UpBlock2D"]"#,
        ),
        unet(
            r#""block_out_channels":[8],"norm_num_groups":0,"down_block_types":["DownBlock2D"],"up_block_types":["UpBlock2D"]"#,
        ),
        unet(r#""block_out_channels":[],"down_block_types":[],"up_block_types":[]"#),
        vae(r#""block_out_channels":[8],"down_block_types":["DownEncoderBlock2D"],"norm_num_groups":0"#),
        vae(r#""scaling_factor":1e-320"#),
        file(
            "scheduler/scheduler_config.json",
            r#"{"_class_name":"DDIMScheduler","num_train_timesteps":1000000}"#,
        ),
        file("text_encoder/config.json", r#"{"hidden_size":18446744073709551615}"#),
        file("tokenizer/tokenizer_config.json", r#"{"model_max_length":1e30}"#),
        file("tokenizer/tokenizer_config.json", r#"{"model_max_length":0}"#),
    ]
}

/// Writes the files, those that are not given as the golden has them; the pipeline's folder.
fn written(input: &[u8]) -> io::Result<PathBuf> {
    let base = BASES.into_iter().zip(files(BASES, input)).find(|(_, named)| named.is_some());
    let base = base.map_or(BASES[0], |(name, _)| name);
    let place = place(base);
    for (name, given) in NAMES.into_iter().zip(files(NAMES, input)) {
        let own = golden(base).join(name);
        match given {
            Some(bytes) if own.exists() => fs::write(place.join(name), bytes)?,
            None if own.exists() => fs::copy(own, place.join(name)).map(drop)?,
            _ => {}
        }
    }
    Ok(place)
}

pub fn read(input: Vec<u8>) -> bool {
    let place = written(&input).unwrap_or_else(|e| panic!("the folder of a case: {e}"));
    match Pipeline::load(&*CPU, &place, &options(Vec::new())) {
        Ok(mut pipeline) => {
            run(&mut pipeline);
            true
        }
        Err(error) => {
            plain(&error.to_string());
            false
        }
    }
}

/// One step of the smallest picture that there is, or why not.
fn run(pipeline: &mut Pipeline<Cpu>) {
    let side = pipeline.factor();
    assert!(side > 0, "pictures are multiples of nothing");
    if side > 64 {
        return;
    }
    let request = ImageRequest { width: side, height: side, steps: Some(1), ..ImageRequest::new("a fox") };
    if let Err(error) = pipeline.check(&request) {
        plain(&error.to_string());
    }
    let made = block_on(pipeline.run(&request, &mut Seeded(1), &mut |_| ControlFlow::Continue(())));
    match made {
        Ok(Some(images)) => assert!(images.rgb.iter().all(|rgb| rgb.len() == 3 * side * side)),
        Ok(None) => panic!("a run that was not ended gives nothing"),
        Err(error) => plain(&error.to_string()),
    }
}

/// The published spellings.
pub fn lora_seeds() -> Result<Vec<Vec<u8>>> {
    let read = |name: &str| {
        let path = golden(OF_LORAS).join(format!("lora_{name}.safetensors"));
        fs::read(&path).map_err(|e| Error::io(&path, e))
    };
    ["peft", "old_diffusers", "kohya_alphas"].into_iter().map(read).collect()
}

/// Matrices without values, whose ranks are any number; halves of pairs; scales that are none.
pub fn hostile_loras() -> Vec<Vec<u8>> {
    let most = i64::MAX;
    let name = "lora_unet_down_blocks_0_attentions_0_proj_in";
    let pair = |down: &str, up: &str, metadata: &str| {
        let tensor = |end: &str, shape: &str| {
            format!(r#""{name}.{end}.weight":{{"dtype":"F32","shape":{shape},"data_offsets":[0,0]}}"#)
        };
        let header = format!("{{{metadata}{},{}}}", tensor("lora_down", down), tensor("lora_up", up));
        samples::safetensors(&header, &[])
    };
    let said =
        |text: &str| format!(r#""__metadata__":{{"lora_adapter_metadata":{}}},"#, serde_json::json!(text));
    vec![
        pair(&format!("[{most},0]"), &format!("[0,{most}]"), ""),
        pair(&format!("[0,{most}]"), &format!("[{most},0]"), ""),
        pair("[0]", "[0]", &said(r#"{"unet.r": 0}"#)),
        pair("[0]", "[0]", &said(r#"{"unet.rank_pattern": {"(a+)+$": 4}}"#)),
        pair("[0]", "[0]", &said(&"[".repeat(100_000))),
        samples::safetensors("{}", &[]),
        samples::safetensors(
            &format!(r#"{{"{name}.alpha":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}}}"#),
            &[],
        ),
        samples::safetensors(
            &format!(r#"{{"{name}.lora_up.weight":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#),
            &f32::NAN.to_le_bytes(),
        ),
    ]
}

pub fn read_lora(input: Vec<u8>) -> bool {
    let place = place(OF_LORAS);
    let file = ROOM.join("lora.safetensors");
    fs::write(&file, input).unwrap_or_else(|e| panic!("the file of a case: {e}"));
    match Pipeline::load(&*CPU, &place, &options(vec![Lora { file, scale: 0.5 }])) {
        Ok(_) => true,
        Err(error) => {
            plain(&error.to_string());
            false
        }
    }
}

fn noise(tensors: &[(&str, &str, usize)]) -> Vec<u8> {
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape, values) in tensors {
        let shape: serde_json::Value = serde_json::from_str(shape).unwrap_or_default();
        let entry =
            serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [end, end + 4 * values]});
        header.insert((*name).to_string(), entry);
        end += 4 * values;
    }
    let values: Vec<u8> = (0..end / 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
    samples::safetensors(&serde_json::Value::Object(header).to_string(), &values)
}

pub fn noise_seeds() -> Result<Vec<Vec<u8>>> {
    Ok(vec![
        noise(&[("latents", "[1,4,2,2]", 16)]),
        noise(&[("latents", "[2,2,2]", 8), ("posterior.0", "[2,2,2]", 8), ("step", "[2,2,2,1,2]", 16)]),
    ])
}

/// Shapes without values, whose lines and columns are any number; more dimensions or fewer than a picture
/// has.
pub fn hostile_noise() -> Vec<Vec<u8>> {
    let shapes = [
        "[1,0,9223372036854775807,1]",
        "[1,0,4611686018427387904,4611686018427387904]",
        "[9223372036854775807,0]",
        "[0,0,0,0]",
        "[0]",
    ];
    let of = |name| shapes.map(|shape| noise(&[(name, shape, 0)]));
    let one = [noise(&[("step", "[]", 1)]), noise(&[("posterior.4294967296", "[1]", 1)])];
    [of("latents"), of("step")].into_iter().flatten().chain(one).collect()
}

pub fn read_noise(input: Vec<u8>) -> bool {
    // Made by a target that runs before it, or here.
    let file = ROOM.join("noise.safetensors");
    let write = fs::create_dir_all(&*ROOM).and_then(|()| fs::write(&file, input));
    write.unwrap_or_else(|e| panic!("the file of a case: {e}"));
    let mut noise = match StoredNoise::open(&file) {
        Ok(noise) => noise,
        Err(error) => {
            plain(&error.to_string());
            return false;
        }
    };
    for what in [Purpose::Latents, Purpose::Posterior(0), Purpose::Posterior(usize::MAX), Purpose::Step(1)] {
        for (item, count) in [(0, 16), (1, 4), (3, 0)] {
            let mut values = vec![f32::NAN; count];
            match noise.fill(what, item, &mut values) {
                Ok(()) => assert!(values.iter().all(|x| x.is_finite()), "{what:?} of picture {item}"),
                Err(error) => plain(&error.to_string()),
            }
        }
    }
    true
}

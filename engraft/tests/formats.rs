//! Formats by the library's own calls: quantized while loading, converted, described by a DeepSpeed
//! configuration.

#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use engraft::engraft_core::checkpoint::{Access, copy_companions, open};
use engraft::engraft_core::quant::{decode_rows, encode_rows};
use engraft::engraft_core::weights::convert::{ConvertOptions, convert_model};
use engraft::{
    DeepSpeedConfigBuilder, Float, ForwardWant, GenerateOptions, ModelSource, Options, Pick, Registry,
    TextGenerator, WeightFormat,
};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::json;
use std::path::{Path, PathBuf};

const PROMPT: &str = "This package provides";

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("demo-model")
}

fn fresh(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("formats-{name}"));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

fn text(model: &TextGenerator) -> String {
    let options = GenerateOptions::new().max_new_tokens(24).greedy();
    model.generate(PROMPT, &options).unwrap().text().unwrap()
}

fn format(name: &str) -> Option<WeightFormat> {
    Some(name.parse().unwrap())
}

/// Columns of the model's narrowest matrices; others have three times as many.
const COLS: usize = 128;

/// Root mean square of what rounding to a format does to a weight, as part of the weight: of normal values in
/// rows as wide as the model's.
fn rounding(format: WeightFormat) -> f64 {
    let mut state = 9u64;
    let mut unit = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    // Sums of twelve are near enough to normal.
    let values: Vec<f32> = (0..COLS * 64).map(|_| (0..12).map(|_| unit()).sum()).collect();
    let mut bytes = vec![0; format.bytes(64, COLS)];
    encode_rows(format, COLS, &values, &mut bytes);
    let mut back = vec![0.0; values.len()];
    decode_rows(format, COLS, &bytes, &mut back).unwrap();
    relative(&back, &values)
}

/// Root mean square of a difference, as part of what it is a difference to.
fn relative(got: &[f32], want: &[f32]) -> f64 {
    let square = |v: f32| f64::from(v) * f64::from(v);
    let off: f64 = got.iter().zip(want).map(|(g, w)| square(g - w)).sum();
    (off / want.iter().map(|w| square(*w)).sum::<f64>()).sqrt()
}

/// Logits of every token of a text.
fn logits(quantize: Option<WeightFormat>) -> Vec<f32> {
    let model = Options::new().logit_rows(usize::MAX).quantize(quantize).open(ModelSource::Demo).unwrap();
    let plan = model.info().plan.to_string();
    if let Some(format) = quantize {
        // No row has a whole block of 256 values: the plan says what takes its place.
        assert!(plan.contains(&format.of_columns(COLS).to_string()), "{format}: {plan}");
    }
    let ids: Vec<u32> = (0..48).map(|i| (i * 37 + 5) % 2000).collect();
    let want = ForwardWant { logits: Pick::All, ..ForwardWant::default() };
    model.handle().forward([ids], want).unwrap().remove(0).logits
}

/// Every format that weights can be brought into while they are loaded; groups of their usual size, and of
/// smaller ones.
fn formats() -> Vec<WeightFormat> {
    let of_sizes = |format: WeightFormat| {
        let sizes = [32, 64].map(|size| format!("{}:{size}", format.name()).parse().ok());
        let sizes = sizes.into_iter().flatten().filter(move |sized| *sized != format);
        [format].into_iter().chain(sizes)
    };
    WeightFormat::all().flat_map(of_sizes).collect()
}

/// Logits differ from those of the stored weights as much as rounding differs a weight: the errors of the
/// ten matmuls' outputs (five layers, two each) that the residual stream adds up are independent, so that
/// they grow by the root of ten at most; a quarter of one is the least, or nothing was rounded.
#[test]
fn quantized_while_loading() {
    let (stored, all) = (logits(None), formats());
    // The default of `--quantize int4` among them.
    assert!(all.len() > 30 && all.contains(&format("int4a:32").unwrap()), "{all:?}");
    for format in all {
        let (weight, logit) = (rounding(format.of_columns(COLS)), relative(&logits(Some(format)), &stored));
        println!("{format}: weights {weight:.2e}, logits {logit:.2e}, {:.2} times", logit / weight.max(1e-9));
        assert!(logit <= 10f64.sqrt() * weight, "{format}: weights {weight:e}, logits {logit:e}");
        // The stored weights may be of a plain type's values.
        let plain = matches!(format, WeightFormat::Plain(_));
        assert!(plain || logit > 0.25 * weight, "{format}: weights {weight:e}, logits {logit:e}");
    }
}

#[test]
fn formats_by_name() {
    for name in [
        "f32",
        "bf16",
        "Q4_0",
        "Q4_K",
        "IQ4_XS",
        "w8a8",
        "int8",
        "int8a",
        "int4:32",
        "int4a:65536",
        "fp8",
        "fp6:128",
        "fp4:16",
        "mxfp4",
        "nf4:64",
    ] {
        assert_eq!(name.parse::<WeightFormat>().unwrap().to_string(), name);
    }
    // A name without a size is that of the usual one; every name stands in the message where none fits.
    let said = "int3".parse::<WeightFormat>().unwrap_err().to_string();
    for format in WeightFormat::all() {
        assert_eq!(format.name().parse::<WeightFormat>().unwrap(), format);
        assert_eq!(format.to_string().parse::<WeightFormat>().unwrap(), format);
        assert!(said.split([' ', ',']).any(|word| word == format.name()), "{format}: {said}");
    }
    for bad in [
        "",
        "int3",
        "int8:",
        "int8:0",
        "int8:31",
        "int8:65568",
        "int8:-32",
        "Q4_K_M",
        "q8_k",
        "int8:64:64",
        "q8_0:32",
        "fp8:16",
        "fp8a",
        "nf4:16",
        "mxfp4:64",
        "fp4:48",
    ] {
        let text = bad.parse::<WeightFormat>().unwrap_err().to_string();
        assert!(text.contains(&format!("\"{bad}\"")) && text.contains("int4a"), "{text}");
    }
}

#[test]
fn a_converted_model_says_the_same() {
    let files = open(&demo(), Access::default()).unwrap();
    // Four ranks own 32 columns each of the narrowest matmul: groups of 64 would be split, which is refused
    // by name.
    let options = ConvertOptions { world: 4, quantize: format("int8:64"), quantize_embeddings: false };
    let refused = convert_model(&files, &Registry::default(), &fresh("truncated"), options, &mut |_, _| {});
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("o_proj") && refused.contains("int8:64"), "{refused}");
    let formats = ["int8:32", "int4a:32", "w8a8", "fp8", "mxfp4", "Q4_K"]
        .map(|name| (name.split(':').next().unwrap(), format(name)));
    for (name, quantize) in [("plain", None)].into_iter().chain(formats) {
        let direct = text(&Options::new().quantize(quantize).open(ModelSource::Demo).unwrap());
        for world in [1, 2, 4] {
            let folder = fresh(&format!("{name}-{world}"));
            copy_companions(&files, &folder).unwrap();
            let options = ConvertOptions { world, quantize, quantize_embeddings: false };
            let done = convert_model(&files, &Registry::default(), &folder, options, &mut |_, _| {}).unwrap();
            assert!(done.operands > 10 && done.bytes > 100_000);
            // One rank merges the files; of several each loads its own, or its part of other degrees.
            for ranks in [1, 2, 4] {
                let model = Options::new().tp(ranks).open(folder.as_path()).unwrap();
                assert_eq!(text(&model), direct, "{name} for {world}, {ranks} ranks");
            }
        }
    }
}

#[test]
fn described_by_a_deepspeed_configuration() {
    let config = json!({
        "dtype": "fp32",
        "checkpoint": {"type": "ds_model", "checkpoints": ["model.safetensors"], "version": 1.0},
        "base_dir": demo().display().to_string(),
        "max_tokens": 128,
    });
    let (config, warnings) = DeepSpeedConfigBuilder::new().dictionary(&config).unwrap().check().unwrap();
    assert!(warnings.is_empty());
    let model = ModelSource::configured(&config).unwrap().unwrap();
    let model = Options::new().deepspeed(&config).unwrap().open(model).unwrap();
    assert_eq!(model.handle().info().max_context, 128);
    assert_eq!(text(&model), text(&engraft::demo().unwrap()));
    // Kernel injection is off unless asked for: the composed model, which says the same.
    let composed = |m: &TextGenerator| m.handle().info().plan.to_string().matches("composed:").count();
    assert!(composed(&model) > composed(&engraft::demo().unwrap()));

    // A description in a file; what it says of its degree must be what the configuration says.
    let folder = fresh("described");
    let description = json!({"checkpoints": ["model.safetensors"], "tp_size": 1, "base_dir": "elsewhere"});
    let file = folder.join("ds.json");
    std::fs::write(&file, description.to_string()).unwrap();
    let configured = |degree: u64| {
        let raw = DeepSpeedConfigBuilder::new()
            .dictionary(&json!({"training_mp_size": degree, "base_dir": demo().display().to_string()}))
            .unwrap()
            .checkpoint(&file);
        ModelSource::configured(&raw.check().unwrap().0)
    };
    assert!(configured(1).unwrap().is_some());
    let said = configured(2).unwrap_err().to_string();
    assert!(said.contains("training_mp_size") && said.contains("ds.json"), "{said}");

    // Ranks share a model and say what one says.
    let of = |degree: usize| {
        let (config, _) = DeepSpeedConfigBuilder::new().tp_size(degree).check().unwrap();
        text(&Options::new().deepspeed(&config).unwrap().open(ModelSource::Demo).unwrap())
    };
    assert_eq!(of(2), of(1));
    // Experts are whole on as many ranks as there are, or every rank has a part of each.
    let experts = |tp: usize, ep: usize| {
        let raw = DeepSpeedConfigBuilder::new().tp_size(tp).set("moe.ep_size", ep).unwrap();
        let options = Options::new().deepspeed(&raw.check().unwrap().0)?;
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/qwen2_moe");
        let handle = options.max_context(32).start(golden.as_path())?;
        Ok::<_, engraft::Error>(
            handle.info().group.clone().map(|group| (group.exchanges, group.exchange_bytes)),
        )
    };
    assert!(experts(2, 2).unwrap().is_some());
    assert!(experts(4, 2).unwrap().is_some());
    let said = experts(2, 4).unwrap_err().to_string();
    assert!(said.contains("`ep` is 4; allowed: 1, 2, for 2 ranks"), "{said}");
    let parts = |ep: usize| {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/qwen2_moe");
        let handle = Options::new().max_context(32).tp(2).ep(ep).start(golden.as_path()).unwrap();
        let group = handle.info().group.clone().unwrap();
        (group.exchange_bytes, group.ranks.iter().map(|rank| rank.experts).collect::<Vec<_>>())
    };
    let (whole, split) = (parts(2), parts(1));
    assert!(
        whole.0 < split.0 && whole.1.iter().sum::<usize>() * 2 == split.1.iter().sum::<usize>(),
        "{whole:?} {split:?}"
    );
    let (config, _) =
        DeepSpeedConfigBuilder::new().set("save_mp_checkpoint_path", "x").unwrap().check().unwrap();
    assert!(Options::new().deepspeed(&config).unwrap_err().to_string().contains("engraft convert"));
    let (config, _) = DeepSpeedConfigBuilder::new().check().unwrap();
    assert!(ModelSource::configured(&config).unwrap().is_none());
}

/// The demo model under a type of no known family, opened by a configuration with DeepSpeed's dictionary.
#[test]
fn an_unknown_model_by_deepspeeds_injection_policy() {
    let folder = fresh("injection-policy");
    for file in std::fs::read_dir(demo()).unwrap() {
        let file = file.unwrap().path();
        std::fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
    }
    let config = std::fs::read(folder.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    config["model_type"] = "unheard of".into();
    // Its matmuls have names of their own, which no rule knows: without the dictionary nothing places them.
    let renamed =
        |name: &str| name.replace("self_attn.o_proj", "self_attn.mix").replace("down_proj", "shrink");
    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let old = SafeTensors::deserialize(&bytes).unwrap();
    let new = old.tensors().into_iter().map(|(name, view)| (renamed(&name), view));
    std::fs::write(folder.join("model.safetensors"), serialize(new, None).unwrap()).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();

    let of_ranks = |dictionary: Option<serde_json::Value>, degree: usize| {
        let raw =
            DeepSpeedConfigBuilder::new().dictionary(&json!({"dtype": "fp32"})).unwrap().tp_size(degree);
        let raw = match dictionary {
            Some(dictionary) => raw.set("injection_dict", dictionary).unwrap(),
            None => raw,
        };
        Options::new().deepspeed(&raw.check().unwrap().0).unwrap().open(folder.as_path())
    };
    let open = |dictionary| of_ranks(dictionary, 1);
    let policy = || Some(json!({"UnheardOfBlock": ["self_attn.mix", "mlp.shrink"]}));
    // What the dictionary names is what ranks add up, as in DeepSpeed.
    assert_eq!(text(&of_ranks(policy(), 4).unwrap()), text(&engraft::demo().unwrap()));
    let model = open(policy()).unwrap();
    assert_eq!(text(&model), text(&engraft::demo().unwrap()));
    assert!(!model.handle().info().plan.assumed.is_empty() && model.handle().info().plan.arch == "automatic");
    let unplaced = open(None).unwrap_err().to_string();
    assert!(unplaced.contains("self_attn.mix"), "{unplaced}");
    // A name that is nowhere in the file is a mistake, also where a family knows the model.
    let wrong =
        open(Some(json!({"UnheardOfBlock": ["self_attn.mix", "mlp.absent"]}))).unwrap_err().to_string();
    assert!(wrong.contains("injection_policy") && wrong.contains("mlp.absent"), "{wrong}");
    let (config, _) = DeepSpeedConfigBuilder::new()
        .set("injection_policy", json!({"B": "c_proj"}))
        .unwrap()
        .check()
        .unwrap();
    let known = Options::new().deepspeed(&config).unwrap().open(ModelSource::Demo).unwrap_err().to_string();
    assert!(known.contains("injection_policy") && known.contains("c_proj"), "{known}");
}

#[test]
fn a_hub_id_in_the_shared_cache_needs_no_network() {
    let cache = fresh("hub");
    let home = cache.join("models--org--demo");
    let inside = home.join("snapshots/abc123");
    std::fs::create_dir_all(&inside).unwrap();
    std::fs::create_dir_all(home.join("refs")).unwrap();
    std::fs::write(home.join("refs/main"), "abc123").unwrap();
    for file in std::fs::read_dir(demo()).unwrap() {
        let file = file.unwrap().path();
        std::fs::copy(&file, inside.join(file.file_name().unwrap())).unwrap();
    }
    let source = ModelSource::parse("org/demo").cached(&cache);
    assert!(matches!(&source, ModelSource::Path(p) if *p == inside), "{source:?}");
    assert_eq!(text(&engraft::open(source).unwrap()), text(&engraft::demo().unwrap()));
    assert!(matches!(ModelSource::parse("org/other").cached(&cache), ModelSource::Hub(_)));
}

/// The demo model's head shares its table of tokens: in a format, both are.
#[test]
fn a_table_that_the_head_shares_is_quantized_where_it_is_asked_for() {
    let files = open(&demo(), Access::default()).unwrap();
    for name in ["int8", "Q4_0", "w8a8", "fp8"] {
        let options = || Options::new().dtype(Float::F32).quantize(format(name));
        let all = || options().quantize_embeddings(true);
        let memory = |options: Options| options.open(ModelSource::Demo).unwrap().info().memory.weights;
        assert!(memory(all()) < memory(options()), "{name}: the table is as large as before");
        let direct = text(&all().open(ModelSource::Demo).unwrap());
        // As a model whose table was rounded before: what its rows are, and what they are multiplied by.
        let rounded = fresh(&format!("rounded-{name}"));
        copy_companions(&files, &rounded).unwrap();
        round_table(&rounded, format(name).unwrap());
        if name != "w8a8" {
            assert_eq!(text(&options().open(rounded.as_path()).unwrap()), direct, "{name}");
        }
        let folder = fresh(&format!("table-{name}"));
        copy_companions(&files, &folder).unwrap();
        let (quantize, quantize_embeddings) = (format(name), true);
        let convert = ConvertOptions { world: 2, quantize, quantize_embeddings };
        convert_model(&files, &Registry::default(), &folder, convert, &mut |_, _| {}).unwrap();
        for ranks in [1, 2] {
            let model = Options::new().dtype(Float::F32).tp(ranks).open(folder.as_path()).unwrap();
            assert_eq!(text(&model), direct, "{name}, converted, {ranks} ranks");
            let model = all().tp(ranks).open(ModelSource::Demo).unwrap();
            assert_eq!(text(&model), direct, "{name}, {ranks} ranks");
        }
    }
}

/// Writes the demo model to a folder, its table of tokens as a format leaves it, in f32.
fn round_table(folder: &Path, format: WeightFormat) {
    const TABLE: &str = "model.embed_tokens.weight";
    let bytes = std::fs::read(demo().join("model.safetensors")).unwrap();
    let old = SafeTensors::deserialize(&bytes).unwrap();
    let table = old.tensor(TABLE).unwrap();
    let &[rows, cols] = table.shape() else { panic!("{:?}", table.shape()) };
    assert_eq!(table.dtype(), Dtype::BF16);
    let of_bf16 = |bytes: &[u8]| f32::from_bits(u32::from(bytes[1]) << 24 | u32::from(bytes[0]) << 16);
    let mut values: Vec<f32> = table.data().chunks_exact(2).map(of_bf16).collect();
    let mut rounded = vec![0; format.bytes(rows, cols)];
    encode_rows(format, cols, &values, &mut rounded);
    decode_rows(format, cols, &rounded, &mut values).unwrap();
    let values: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut all = old.tensors();
    all.retain(|(name, _)| name != TABLE);
    all.push((TABLE.into(), TensorView::new(Dtype::F32, vec![rows, cols], &values).unwrap()));
    std::fs::write(folder.join("model.safetensors"), serialize(all, None).unwrap()).unwrap();
}

//! A tiny Whisper of random weights with a real vocabulary, as a folder.

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Sizes: a window of 1 s is 40 frames of 16 bands and 20 rows of the encoder.
pub const RATE: usize = 1600;
const HIDDEN: usize = 32;
/// Timestamps that a vocabulary has behind its other tokens.
const TIMESTAMPS: usize = 1501;
pub const ROWS: usize = 20;

/// Vocabularies: of many languages, as older files have it without timestamps, of English alone.
pub const VOCABULARIES: [&str; 3] =
    ["whisper_tokenizer", "whisper_tokenizer_no_timestamps", "whisper_tokenizer_en"];

pub fn golden_of(vocabulary: &str, file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../audio/tests/golden").join(vocabulary).join(file)
}

/// What the reference says of a vocabulary.
pub fn goldens(vocabulary: &str) -> Value {
    serde_json::from_slice(&std::fs::read(golden_of(vocabulary, "golden.json")).unwrap()).unwrap()
}

/// Random numbers that are the same for ever.
pub fn numbers(count: usize, seed: u64, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale
    };
    (0..count).map(|_| next()).collect()
}

/// A folder with a model of many languages.
pub fn whisper(name: &str, generation: &Value) -> PathBuf {
    whisper_of(VOCABULARIES[0], name, generation)
}

/// A folder with a model of a vocabulary.
pub fn whisper_of(vocabulary: &str, name: &str, generation: &Value) -> PathBuf {
    let first_time = goldens(vocabulary)["begin"].as_u64().unwrap() as usize;
    let vocab = first_time + TIMESTAMPS;
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("speech-{name}"));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    let write = |file: &str, value: &Value| std::fs::write(path.join(file), value.to_string()).unwrap();
    write(
        "config.json",
        &json!({
            "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "is_encoder_decoder": true,
            "d_model": HIDDEN, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
            "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 16,
            "max_source_positions": ROWS, "max_target_positions": 24, "vocab_size": vocab, "activation_function": "gelu",
            "decoder_start_token_id": 621, "eos_token_id": 620, "bos_token_id": 620, "pad_token_id": 620,
        }),
    );
    write("generation_config.json", generation);
    write(
        "preprocessor_config.json",
        &json!({
            "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 16, "sampling_rate": RATE,
            "hop_length": 40, "n_fft": 100, "chunk_length": 1,
        }),
    );
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(golden_of(vocabulary, file), path.join(file)).unwrap();
    }
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("model.encoder.conv1.weight".into(), vec![HIDDEN, 16, 3]),
        ("model.encoder.conv1.bias".into(), vec![HIDDEN]),
        ("model.encoder.conv2.weight".into(), vec![HIDDEN, HIDDEN, 3]),
        ("model.encoder.conv2.bias".into(), vec![HIDDEN]),
        ("model.encoder.embed_positions.weight".into(), vec![ROWS, HIDDEN]),
        ("model.decoder.embed_positions.weight".into(), vec![24, HIDDEN]),
        ("model.decoder.embed_tokens.weight".into(), vec![vocab, HIDDEN]),
    ];
    let mut linear = |name: String, [rows, cols]: [usize; 2], bias: bool| {
        shapes.push((format!("{name}.weight"), if cols > 0 { vec![rows, cols] } else { vec![rows] }));
        if bias {
            shapes.push((format!("{name}.bias"), vec![rows]));
        }
    };
    for (stack, parts) in [("encoder", &["self_attn"][..]), ("decoder", &["self_attn", "encoder_attn"])] {
        let block = format!("model.{stack}.layers.0");
        for part in parts {
            for (matrix, bias) in [("q_proj", true), ("k_proj", false), ("v_proj", true), ("out_proj", true)]
            {
                linear(format!("{block}.{part}.{matrix}"), [HIDDEN, HIDDEN], bias);
            }
            linear(format!("{block}.{part}_layer_norm"), [HIDDEN, 0], true);
        }
        linear(format!("{block}.fc1"), [64, HIDDEN], true);
        linear(format!("{block}.fc2"), [HIDDEN, 64], true);
        linear(format!("{block}.final_layer_norm"), [HIDDEN, 0], true);
        linear(format!("model.{stack}.layer_norm"), [HIDDEN, 0], true);
    }
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_iter()
        .enumerate()
        .map(|(i, (name, shape))| {
            let mut values = numbers(shape.iter().product(), i as u64 + 3, 0.4);
            if name.ends_with("embed_tokens.weight") {
                // Mostly text, now and then a timestamp.
                let by = |id: usize| [1.0, 0.1, 0.7][usize::from(id >= 600) + usize::from(id >= first_time)];
                values.iter_mut().enumerate().for_each(|(i, x)| *x *= by(i / HIDDEN));
            }
            (name, shape, values.iter().flat_map(|x| x.to_le_bytes()).collect())
        })
        .collect();
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &path.join("model.safetensors")).unwrap();
    path
}

//! Speech by models that read samples: the goldens' Moonshine, and wav2vec 2.0 with labels of characters.
//! What they say makes no sense, so it is compared with what the same requests give one by one.

#![cfg(all(feature = "cpu", feature = "speech"))]
#![allow(clippy::unwrap_used, clippy::panic)]

use engraft::engraft_audio::{Segment, Sound};
use engraft::{EncoderInput, Event, Finish, Layers, Options, Request, SpeechOptions, Task, Transcriber};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const RATE: usize = 16_000;

/// A golden's model with files of its own beside it.
fn folder(golden: &str, name: &str, files: &[(&str, Value)]) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(golden);
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sound-{name}"));
    let _ = std::fs::remove_dir_all(&to);
    std::fs::create_dir_all(&to).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(from.join(file), to.join(file)).unwrap();
    }
    for (file, value) in files {
        std::fs::write(to.join(file), value.to_string()).unwrap();
    }
    to
}

fn extractor(normalize: bool) -> Value {
    json!({"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": RATE, "do_normalize": normalize})
}

fn moonshine(name: &str) -> PathBuf {
    let vocab: serde_json::Map<String, Value> =
        (0..61).map(|id| (if id < 3 { format!("<{id}>") } else { format!("w{id}") }, json!(id))).collect();
    let special = |id: u32| {
        json!({"id": id, "content": format!("<{id}>"), "special": true, "single_word": false,
        "lstrip": false, "rstrip": false, "normalized": false})
    };
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [special(0), special(1), special(2)], "pre_tokenizer": {"type": "WhitespaceSplit"},
        "decoder": null, "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<0>"},
    });
    let files = [("tokenizer.json", tokenizer), ("preprocessor_config.json", extractor(false))];
    folder("moonshine", name, &files)
}

fn characters() -> Value {
    let signs = "|ETAONIHSRDLUMWC".chars();
    let special = ["<pad>", "<s>", "</s>", "<unk>"].map(String::from).into_iter();
    special.chain(signs.map(String::from)).enumerate().map(|(id, sign)| (sign, json!(id))).collect()
}

fn labels(name: &str) -> PathBuf {
    let config = json!({"tokenizer_class": "Wav2Vec2CTCTokenizer", "word_delimiter_token": "|"});
    let files = [
        ("vocab.json", characters()),
        ("tokenizer_config.json", config),
        ("preprocessor_config.json", extractor(true)),
    ];
    folder("wav2vec2_base", name, &files)
}

fn transcriber(folder: &Path) -> Transcriber {
    Transcriber::new(Options::new().open(folder.to_str().unwrap()).unwrap()).unwrap()
}

/// Noise of so many seconds, quiet between two times.
fn sound(seconds: f64, quiet: std::ops::Range<f64>) -> Sound {
    let mut state = 7u32;
    let samples = (0..(seconds * RATE as f64) as usize).map(|i| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let loud = if quiet.contains(&(i as f64 / RATE as f64)) { 1e-6 } else { 0.4 };
        ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * loud
    });
    Sound::new(RATE as u32, samples.collect())
}

fn all(model: &Transcriber, sound: Sound) -> Vec<Segment> {
    model.transcribe(sound, &SpeechOptions::new()).unwrap().collect::<Result<_, _>>().unwrap()
}

#[test]
fn a_decoder_writes_what_its_own_request_gives() {
    let model = transcriber(&moonshine("decoder"));
    let sound = sound(1.2, 0.0..0.0);
    let request = Request {
        features: sound.samples.clone().into(),
        max_new_tokens: 9, // 6.5 a second, and one
        stop_ids: model.model().stop_ids().to_vec(),
        ..Request::default()
    };
    let (mut tokens, end) = written(&model, request);
    assert_eq!(end, Finish::Stop);
    let (features, decoder) = (sound.samples.clone().into(), tokens.clone());
    let whole = EncoderInput { features, decoder, ..EncoderInput::default() };
    let scores = model.model().handle().score([whole]).unwrap().remove(0);
    let mean = scores.iter().map(|x| f64::from(*x)).sum::<f64>() / tokens.len() as f64;
    tokens.retain(|id| *id != 2);
    let want = model.model().tokenizer().decode(&tokens, true).unwrap();
    assert!(!want.is_empty());
    let mut segments = model.transcribe(sound, &SpeechOptions::new().scores(true)).unwrap();
    let found = segments.next().unwrap().unwrap();
    assert_eq!((found.text.as_str(), found.start, found.end), (want.as_str(), 0.0, 1.2));
    let details = segments.details().unwrap().clone();
    assert_eq!((details.tokens, details.no_speech_prob), (tokens, None));
    let (got, ratio) = (details.avg_logprob.unwrap(), details.compression_ratio.unwrap());
    assert!((got - mean).abs() < 1e-4 && ratio > 0.0, "{got}, not {mean}; {ratio}");
    assert!(segments.next().is_none());
    assert_eq!(segments.incomplete(), 0);
}

/// The tokens of a request, and how it ended.
fn written(model: &Transcriber, request: Request) -> (Vec<u32>, Finish) {
    let mut tokens = Vec::new();
    for event in model.model().handle().submit(request).unwrap() {
        match event.unwrap() {
            Event::Token(id) => tokens.push(id),
            Event::Finished(finish) => return (tokens, finish),
            event => panic!("{event:?}"),
        }
    }
    panic!("a request without an end")
}

/// A decoder that comes to no end in as many tokens as a window may have: that something is missing is said.
#[test]
fn a_text_that_would_have_gone_on_is_counted() {
    let model = transcriber(&moonshine("ends"));
    let features = sound(1.2, 0.0..0.0).samples.into();
    let (tokens, _) = written(&model, Request { features, max_new_tokens: 9, ..Request::default() });
    let endless = moonshine("endless");
    let config = std::fs::read_to_string(endless.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["eos_token_id"] = (0..61).find(|id| !tokens.contains(id)).unwrap().into();
    std::fs::write(endless.join("config.json"), config.to_string()).unwrap();
    let model = transcriber(&endless);
    let mut segments = model.transcribe(sound(1.2, 0.0..0.0), &SpeechOptions::new()).unwrap();
    assert_eq!(segments.by_ref().count(), 1);
    assert_eq!(segments.incomplete(), 1);
}

#[test]
fn labels_become_characters_and_words() {
    let model = transcriber(&labels("labels"));
    let sound = sound(0.5, 0.0..0.0);
    let values: Vec<f64> = sound.samples.iter().map(|x| f64::from(*x)).collect();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / values.len() as f64;
    let features = values.iter().map(|x| ((x - mean) / (variance + 1e-7).sqrt()) as f32).collect();
    let input = EncoderInput { features, ..EncoderInput::default() };
    let logits = model.model().handle().encode([input], Layers::None).unwrap().remove(0).logits;
    let best = |row: &[f32]| (0..20).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
    let (mut text, mut before) = (String::new(), 0);
    for id in logits.chunks(20).map(best) {
        if id != before && id > 3 {
            text.push(
                "|ETAONIHSRDLUMWC".chars().nth(id - 4).map(|c| if c == '|' { ' ' } else { c }).unwrap(),
            );
        }
        before = id;
    }
    let found = all(&model, sound);
    assert_eq!(found.iter().map(|s| s.text.as_str()).collect::<Vec<_>>(), [text.trim()]);
    assert!(text.len() > 5, "{text}");
}

/// The reference has written feature extractors in three ways.
#[test]
fn extractors_are_found_wherever_the_reference_writes_them() {
    let (want, untyped, part) = (labels("extractor"), labels("untyped"), labels("part"));
    let config =
        json!({"sampling_rate": RATE, "do_normalize": true, "feature_size": 1, "padding_value": 0.0});
    std::fs::write(untyped.join("preprocessor_config.json"), config.to_string()).unwrap();
    std::fs::remove_file(part.join("preprocessor_config.json")).unwrap();
    let config = json!({"processor_class": "Wav2Vec2Processor", "feature_extractor": extractor(true)});
    std::fs::write(part.join("processor_config.json"), config.to_string()).unwrap();
    let [want, untyped, part] =
        [want, untyped, part].map(|folder| all(&transcriber(&folder), sound(0.5, 0.0..0.0)));
    assert!(!want[0].text.is_empty());
    assert_eq!((&untyped, &part), (&want, &want));
}

/// What is longer than a window is split where it is quietest in the window's last part, and nothing is lost.
/// A window is what a step of this engine has: 8,192 rows, 15.4 s.
#[test]
fn long_sounds_are_split_where_it_is_quiet() {
    let model = transcriber(&labels("long"));
    let long = sound(26.0, 13.0..13.4);
    let found = all(&model, long.clone());
    let [first, second] = &found[..] else { panic!("{} segments", found.len()) };
    assert!((13.0..13.4).contains(&first.end) && first.start == 0.0, "{first:?}");
    assert_eq!((second.start, second.end), (first.end, 26.0));
    let at = (first.end * RATE as f64).round() as usize;
    let part = Sound::new(RATE as u32, long.samples[at..].to_vec());
    assert_eq!(all(&model, part)[0].text, second.text);
    // Silence, and what makes no row of the encoder, say nothing.
    assert!(all(&model, sound(70.0, 0.0..70.0)).is_empty());
    assert!(all(&model, sound(0.001, 0.0..0.0)).is_empty());
}

#[test]
fn what_these_models_do_not_know_is_refused_by_name() {
    let model = transcriber(&moonshine("refused"));
    let refused = |options: SpeechOptions, what: &str| {
        let error = model.transcribe(sound(0.2, 0.0..0.0), &options).map(drop).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    refused(SpeechOptions::new().language("de"), "\"de\"; the model has no choice of languages");
    refused(SpeechOptions::new().task(Task::Translate), "translates nothing");
    refused(SpeechOptions::new().prompt("Ada"), "a prompt, temperatures and thresholds are Whisper's");
    refused(SpeechOptions::new().temperatures([0.0]), "a prompt, temperatures and thresholds are Whisper's");
    let open = |folder: PathBuf| engraft::open(folder.to_str().unwrap()).unwrap();
    let no = |folder: PathBuf, what: &str| {
        let error = Transcriber::new(open(folder)).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    let other = moonshine("other");
    let mel = json!({"feature_extractor_type": "WhisperFeatureExtractor"});
    std::fs::write(other.join("preprocessor_config.json"), mel.to_string()).unwrap();
    no(other, "feature extractor is another model's");
    let beyond = labels("beyond");
    let config = std::fs::read_to_string(beyond.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["pad_token_id"] = json!(20);
    std::fs::write(beyond.join("config.json"), config.to_string()).unwrap();
    no(beyond, "`pad_token_id` is 20; allowed: a label below 20");
    let bare = labels("bare");
    let config = std::fs::read_to_string(bare.join("config.json")).unwrap();
    std::fs::write(bare.join("config.json"), config.replace("Wav2Vec2ForCTC", "Wav2Vec2ForPreTraining"))
        .unwrap();
    let error = engraft::open(bare.to_str().unwrap()).map(drop).unwrap_err().to_string();
    assert!(error.contains("lm_head"), "{error}");
}

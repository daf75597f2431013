//! Speech by the library's own calls: a tiny Whisper of random weights with a real vocabulary. What it says
//! makes no sense, so it is compared with what the same requests give one by one.

#![cfg(all(feature = "cpu", feature = "speech"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod whisper;

use engraft::engraft_audio::{Extractor, LogMel, Segment, Sound, Timestamps, segments};
use engraft::engraft_core::checkpoint::{Access, copy_companions, open};
use engraft::{
    EncoderInput, Event, ForwardWant, Options, Pick, Request, SpeechOptions, Task, Tokenizer, Transcriber,
};
use serde_json::{Value, json};
use std::path::Path;
use whisper::{RATE, ROWS, golden, numbers, whisper};

fn goldens() -> Value {
    serde_json::from_slice(&std::fs::read(golden("golden.json")).unwrap()).unwrap()
}

fn transcriber(folder: &Path) -> Transcriber {
    Transcriber::new(Options::new().open(folder.to_str().unwrap()).unwrap()).unwrap()
}

/// 3.5 windows, of which the second is silent.
fn sound() -> Sound {
    let mut samples = numbers(RATE * 7 / 2, 5, 0.3);
    samples[RATE..2 * RATE].fill(0.0);
    Sound { rate: RATE as u32, samples }
}

fn mel() -> LogMel {
    let config = json!({"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 16,
        "sampling_rate": RATE, "hop_length": 40, "n_fft": 100, "chunk_length": 1});
    let Extractor::LogMel(mel) = Extractor::from_json(&config.to_string()).unwrap() else { panic!() };
    mel
}

/// What one window gives by a request of its own.
fn alone(model: &Transcriber, samples: &[f32], prompt: &[u32]) -> Vec<u32> {
    let features = mel().features(samples, RATE).into();
    let request = Request {
        features,
        decoder_prompt: prompt.to_vec(),
        max_new_tokens: 100,
        stop_ids: vec![620],
        ..Request::default()
    };
    let events = model.model().handle().submit(request).unwrap();
    let token = |event| if let Event::Token(id) = event { Some(id) } else { None };
    events.filter_map(|event| token(event.unwrap())).filter(|id| *id != 620).collect()
}

fn all(model: &Transcriber, options: &SpeechOptions) -> (Vec<Segment>, Option<String>) {
    let mut heard = model.transcribe(sound(), options).unwrap();
    let segments = heard.by_ref().collect::<Result<_, _>>().unwrap();
    let [seconds, done] = heard.progress();
    assert_eq!((seconds, done), (3.5, 3.5));
    (segments, heard.language())
}

#[test]
fn windows_side_by_side() {
    let model = transcriber(&whisper("windows", &json!({})));
    let options = SpeechOptions::new().language("de").task(Task::Translate).timestamps(false);
    let (found, language) = all(&model, &options);
    assert_eq!(language.as_deref(), Some("de"));
    let sound = sound().samples;
    let mut want = Vec::new();
    for (start, end) in [(0, RATE), (2 * RATE, 3 * RATE), (3 * RATE, 7 * RATE / 2)] {
        let tokens = alone(&model, &sound[start..end], &[624, 721, 726]);
        let text: Vec<u32> = tokens.into_iter().filter(|id| *id < 727).collect();
        let text = model.model().tokenizer().decode(&text, true).unwrap();
        want.push((start as f64 / RATE as f64, text));
    }
    let got: Vec<(f64, String)> = found.iter().map(|s| (s.start, s.text.clone())).collect();
    assert_eq!(got, want);
    assert!(found.iter().all(|s| s.start <= s.end && s.end <= 3.5), "{found:?}");
}

/// A window begins where the last whole segment of the one before ended.
#[test]
fn windows_by_timestamps_and_the_language_that_is_heard() {
    let model = transcriber(&whisper("timestamps", &json!({"is_multilingual": true})));
    let (found, language) = all(&model, &SpeechOptions::new());
    let (sound, mel) = (sound().samples, mel());
    let input =
        EncoderInput { features: mel.features(&sound[..RATE], RATE).into(), ..EncoderInput::default() };
    let want = ForwardWant { logits: Pick::Last, ..ForwardWant::default() };
    let logits = model.model().handle().forward([input], want).unwrap().remove(0).logits;
    let likeliest = (622..721).max_by(|a, b| logits[*a as usize].total_cmp(&logits[*b as usize])).unwrap();
    let name = model.model().tokenizer().decode(&[likeliest], false).unwrap();
    assert_eq!(format!("<|{}|>", language.unwrap()), name);
    let times = Timestamps { first: 727, step: 1.0 / ROWS as f64, window: 1.0 };
    let (mut at, mut texts, mut windows) = (0, Vec::new(), 0);
    while at < sound.len() {
        let window = &sound[at..sound.len().min(at + RATE)];
        if window.iter().all(|x| *x == 0.0) {
            at += RATE;
            continue;
        }
        let (found, heard) = segments(&alone(&model, window, &[likeliest, 722]), &times);
        let decoded = found.iter().map(|s| model.model().tokenizer().decode(&s.tokens, true).unwrap());
        texts.extend(decoded.filter(|text| !text.trim().is_empty()));
        at += (heard * RATE as f64).round() as usize;
        windows += 1;
    }
    assert_eq!(found.iter().map(|s| s.text.clone()).collect::<Vec<_>>(), texts);
    assert!(windows >= 3, "{windows}");
}

#[test]
fn what_cannot_be_transcribed_is_refused_by_name() {
    let english = transcriber(&whisper("english", &json!({"is_multilingual": false})));
    let refused = |options: SpeechOptions, what: &str| {
        let error = english.transcribe(sound(), &options).map(drop).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    refused(SpeechOptions::new().language("de"), "\"de\"; the model knows English alone");
    refused(SpeechOptions::new().language("xx"), "\"xx\" is not in the model's vocabulary");
    refused(SpeechOptions::new().language("startoftranscript"), "not in the model's vocabulary");
    refused(SpeechOptions::new().task(Task::Translate), "translates nothing");
    let silence = Sound { rate: RATE as u32, samples: vec![0.0; 10 * RATE] };
    assert_eq!(english.transcribe(silence, &SpeechOptions::new().language("en")).unwrap().count(), 0);
    let no = |error: engraft::Error, what: &str| assert!(error.to_string().contains(what), "{error}");
    no(Transcriber::new(engraft::demo().unwrap()).unwrap_err(), "reads no sound");
    let bare = whisper("bare", &json!({}));
    std::fs::remove_file(bare.join("preprocessor_config.json")).unwrap();
    no(
        Transcriber::new(engraft::open(bare.to_str().unwrap()).unwrap()).unwrap_err(),
        "says how sound is read",
    );
    // A prompt is no sound.
    let error = english.model().generate("Hello", &engraft::GenerateOptions::new()).map(drop).unwrap_err();
    no(error, "the encoder reads sound");
}

/// What is written next to a converted model holds how sound is read.
#[test]
fn a_converted_folder_keeps_the_feature_extractor() {
    let (from, to) = (whisper("from", &json!({})), whisper("to", &json!({})));
    std::fs::remove_file(to.join("preprocessor_config.json")).unwrap();
    copy_companions(&open(&from, Access::Map).unwrap(), &to).unwrap();
    assert_eq!(
        all(&transcriber(&to), &SpeechOptions::new()),
        all(&transcriber(&from), &SpeechOptions::new())
    );
}

#[test]
fn whispers_tokens_and_segments() {
    let goldens = goldens();
    let config = serde_json::from_slice(&std::fs::read(golden("tokenizer_config.json")).unwrap()).unwrap();
    let tokenizer = Tokenizer::from_json(&std::fs::read(golden("tokenizer.json")).unwrap(), &config).unwrap();
    let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
    let rows = |name: &str| goldens[name].as_array().unwrap().clone();
    for row in rows("encode") {
        let text = row["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, false).unwrap(), ids(&row["plain_ids"]), "{text:?}");
    }
    let times = Timestamps { first: 727, step: 0.02, window: 30.0 };
    let mut compared = 0;
    for row in rows("decode") {
        let all = ids(&row["ids"]);
        let text: Vec<u32> = all.iter().copied().filter(|id| *id < 727).collect();
        let behind = text.iter().position(|id| *id == 621).unwrap();
        assert_eq!(tokenizer.decode(&text[behind..], true).unwrap(), row["text_skip_special"], "{row}");
        // The reference counts windows where times go back; here each is read by itself.
        if ["two_segments", "single", "gap", "with_prompt"].contains(&row["name"].as_str().unwrap()) {
            let first = all.iter().position(|id| *id == 722).unwrap() + 1;
            let (found, _) = segments(&all[first..all.len() - 1], &times);
            let found: Vec<Value> = found
                .iter()
                .map(|found| {
                    let text = tokenizer.decode(&found.tokens, true).unwrap();
                    let [start, end] = found.times.map(|seconds| (seconds * 100.0).round() / 100.0);
                    json!({"text": text, "start": start, "end": end})
                })
                .collect();
            assert_eq!(Value::from(found), row["segments"], "{}", row["name"]);
            compared += 1;
        }
    }
    assert_eq!(compared, 4);
}

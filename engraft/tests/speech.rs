//! Speech by the library's own calls: a tiny Whisper of random weights with a real vocabulary. What it says
//! makes no sense, so it is compared with what the same requests give one by one.

#![cfg(all(feature = "cpu", feature = "speech"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod whisper;

use engraft::engraft_audio::{Extractor, LogMel, Segment, Sound, Timestamps, segments};
use engraft::engraft_core::checkpoint::{Access, copy_companions, open};
use engraft::engraft_core::sample::{Rules, TimeRules};
use engraft::{
    EncoderInput, Event, ForwardWant, Options, Pick, Request, SamplingParams, SpeechOptions, Task, Tokenizer,
    Transcriber,
};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use whisper::{RATE, ROWS, VOCABULARIES, golden_of, goldens, numbers, whisper, whisper_of};

fn transcriber(folder: &Path) -> Transcriber {
    Transcriber::new(Options::new().open(folder.to_str().unwrap()).unwrap()).unwrap()
}

/// 3.5 windows, of which the second is silent.
fn sound() -> Sound {
    let mut samples = numbers(RATE * 7 / 2, 5, 0.3);
    samples[RATE..2 * RATE].fill(0.0);
    Sound::new(RATE as u32, samples)
}

fn mel() -> LogMel {
    let config = json!({"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 16,
        "sampling_rate": RATE, "hop_length": 40, "n_fft": 100, "chunk_length": 1});
    let Extractor::LogMel(mel) = Extractor::from_json(&config.to_string()).unwrap() else { panic!() };
    mel
}

/// The features of a window, whose floor is that of the whole sound.
fn features(window: &[f32]) -> Vec<f32> {
    let (mel, sound) = (mel(), sound().samples);
    let all = sound.len() + RATE;
    mel.features_below(window, RATE, mel.peak(&sound, all, 0..all))
}

/// The likeliest tokens of every window by itself, whatever they are.
fn plain() -> SpeechOptions {
    SpeechOptions::new().temperatures([0.0]).no_speech_threshold(None).condition_on_previous_text(false)
}

/// What one window gives by a request of its own.
fn alone(model: &Transcriber, samples: &[f32], prompt: &[u32]) -> Vec<u32> {
    sampled(model, samples, prompt, (0.0, 0))
}

/// The same at a temperature, with a subsequence of random numbers. A prompt with 726 has no timestamps.
fn sampled(
    model: &Transcriber,
    samples: &[f32],
    prompt: &[u32],
    (temperature, subsequence): (f32, u32),
) -> Vec<u32> {
    let features = features(samples).into();
    let times = TimeRules { first: 727, none: 726, end: 620, max_initial: Some(ROWS as u32) };
    let times = (!prompt.contains(&726)).then_some(times);
    let rules = Rules { suppress: vec![621, 721, 722, 723, 724, 725], times, ..Rules::default() };
    let request = Request {
        features,
        decoder_prompt: prompt.to_vec(),
        // Half of the decoder's positions.
        max_new_tokens: 12,
        stop_ids: vec![620],
        rules: Some(Arc::new(rules)),
        sampling: SamplingParams { temperature, seed: Some(0), ..SamplingParams::default() },
        subsequence,
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
    let options = plain().language("de").task(Task::Translate).timestamps(false);
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
    let (found, language) = all(&model, &plain());
    let sound = sound().samples;
    let input = EncoderInput { features: features(&sound[..RATE]).into(), ..EncoderInput::default() };
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

/// Texts of the windows that are not silent.
fn texts(found: &[Segment]) -> Vec<String> {
    found.iter().map(|segment| segment.text.clone()).collect()
}

#[test]
fn a_prompt_and_the_text_before_stand_in_front() {
    let model = transcriber(&whisper("prompts", &json!({})));
    let (tokenizer, sound) = (model.model().tokenizer(), sound().samples);
    let before = tokenizer.encode(" Prolatus: the ferry leaves the harbour", false).unwrap();
    assert!(before.len() > 11, "longer than half of the 24 positions: {before:?}");
    let asked = plain().language("de").timestamps(false).prompt("  Prolatus: the ferry leaves the harbour ");
    for previous in [false, true] {
        let (found, _) = all(&model, &asked.clone().condition_on_previous_text(previous));
        let (mut before, mut want) = (before.clone(), Vec::new());
        for (start, end) in [(0, RATE), (2 * RATE, 3 * RATE), (3 * RATE, 7 * RATE / 2)] {
            let mut prompt = Vec::new();
            if !before.is_empty() {
                prompt.push(724);
                prompt.extend(&before[before.len().saturating_sub(11)..]);
            }
            prompt.extend([621, 624, 722, 726]);
            let tokens = alone(&model, &sound[start..end], &prompt);
            let text: Vec<u32> = tokens.into_iter().filter(|id| *id < 727).collect();
            want.push(tokenizer.decode(&text, true).unwrap());
            before.extend(text);
            if !previous {
                before.clear();
            }
        }
        assert_eq!(texts(&found), want, "{previous}");
    }
    // What was sampled at a high temperature is followed by nothing.
    let warm = asked.clone().prompt("").temperatures([0.6]).condition_on_previous_text(true);
    let apart = warm.clone().condition_on_previous_text(false);
    assert_eq!(texts(&all(&model, &warm).0), texts(&all(&model, &apart).0));
    let refused = model.transcribe(self::sound(), &asked.prompt("<|de|> x")).map(drop).unwrap_err();
    assert!(refused.to_string().contains("<|de|>, which is no text"), "{refused}");
}

#[test]
fn thresholds_decide_which_text_is_taken() {
    let model = transcriber(&whisper("thresholds", &json!({})));
    let sound = sound().samples;
    let first = |temperature: (f32, u32)| {
        let tokens = sampled(&model, &sound[..RATE], &[621, 622, 722, 726], temperature);
        let text: Vec<u32> = tokens.into_iter().filter(|id| *id < 727).collect();
        model.model().tokenizer().decode(&text, true).unwrap()
    };
    let (cold, warm) = (first((0.0, 0)), first((0.7, 1)));
    assert_ne!(cold, warm);
    let none = SpeechOptions::new().language("en").timestamps(false).temperatures([0.0, 0.7]);
    let none = none.compression_ratio_threshold(None).logprob_threshold(None).no_speech_threshold(None);
    let heard = |options: &SpeechOptions| texts(&all(&model, options).0);
    // The model's tokens have a probability of one in two thousand.
    assert_eq!(heard(&none)[0], cold);
    assert_eq!(heard(&none.clone().logprob_threshold(-50.0))[0], cold);
    assert_eq!(heard(&none.clone().logprob_threshold(-1.0))[0], warm);
    assert_eq!(heard(&none.clone().compression_ratio_threshold(50.0))[0], cold);
    assert_eq!(heard(&none.clone().compression_ratio_threshold(0.0))[0], warm);
    // No speech is likely enough: nothing is said, unless the text is believed; then no text is sampled anew.
    assert_eq!(heard(&none.clone().no_speech_threshold(0.0)), Vec::<String>::new());
    assert_eq!(heard(&none.clone().no_speech_threshold(0.0).logprob_threshold(-1.0)), Vec::<String>::new());
    assert_eq!(heard(&none.clone().no_speech_threshold(0.0).logprob_threshold(-50.0))[0], cold);
    assert_eq!(heard(&none.clone().no_speech_threshold(0.6).logprob_threshold(-1.0))[0], warm);
    let refused = |options: SpeechOptions, what: &str| {
        let error = model.check(&options).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    refused(none.clone().temperatures([]), "temperatures");
    refused(none.clone().temperatures([-0.5]), "-0.5");
    refused(none.no_speech_threshold(f64::NAN), "no_speech_threshold");
}

/// Lists of the files in the place of the words that say what is to be done.
#[test]
fn lists_of_suppressed_tokens_are_the_files() {
    let first = |name: &str, more: Value| {
        let model = transcriber(&whisper(name, &more));
        let options = plain().language("en").timestamps(false);
        (texts(&all(&model, &options).0)[0].clone(), model)
    };
    let (free, model) = first("free", json!({}));
    let token = alone(&model, &sound().samples[..RATE], &[621, 622, 722, 726])[0];
    let (begun, _) = first("begun", json!({"begin_suppress_tokens": [token], "suppress_tokens": []}));
    assert_ne!(begun, free);
    let others = (0..2228).filter(|id| *id != 300).collect::<Vec<u32>>();
    let (one, model) = first("one-word", json!({"suppress_tokens": others}));
    let word = model.model().tokenizer().decode(&[300], true).unwrap();
    assert!(one.contains(&word), "{one:?} of {word:?}");
    let folder = whisper("no-list", &json!({"suppress_tokens": [5000]}));
    let error = Transcriber::new(engraft::open(folder.to_str().unwrap()).unwrap()).unwrap_err().to_string();
    assert!(error.contains("suppress_tokens") && error.contains("5000"), "{error}");
}

/// `language`, `task` and `forced_decoder_ids` of `generation_config.json` count where a transcription names
/// none.
#[test]
fn languages_and_tasks_of_the_files_are_defaults() {
    // The small model says the same in many languages, by other logits.
    let asked = plain().timestamps(false).scores(true);
    let by = |files: Value, options: &SpeechOptions| {
        let model = transcriber(&whisper("defaults", &files));
        let mut heard = model.transcribe(sound(), options).unwrap();
        let mut found = Vec::new();
        while let Some(segment) = heard.next() {
            found.push((segment.unwrap(), heard.details().unwrap().avg_logprob));
        }
        (found, heard.language())
    };
    let named = |language: &str, task: Task| by(json!({}), &asked.clone().language(language).task(task));
    let (german, english) = (named("de", Task::Translate), named("English", Task::Transcribe));
    assert_eq!((german.1.as_deref(), english.1.as_deref()), (Some("de"), Some("en")));
    assert_ne!(german.0, english.0);
    let german_files = json!({"language": "german", "task": "translate"});
    let explicit = asked.clone().language("en").task(Task::Transcribe);
    assert_eq!(by(german_files.clone(), &explicit), english);
    for files in [
        german_files,
        json!({"language": "<|de|>", "task": "translate", "forced_decoder_ids": [[1, 622], [2, 722]]}),
        json!({"language": null, "forced_decoder_ids": [[1, 624], [2, 721], [3, 726]]}),
    ] {
        assert_eq!(by(files.clone(), &asked), german, "{files}");
    }
    // What is not known counts for nothing.
    let heard = by(json!({}), &asked);
    for files in [
        json!({"language": "klingon"}),
        json!({"language": 7, "task": "sing"}),
        json!({"forced_decoder_ids": [[1, 5]]}),
        json!({"forced_decoder_ids": [[1, null], [2, 722]]}),
    ] {
        assert_eq!(by(files.clone(), &asked), heard, "{files}");
    }
    // A model of English alone goes on without them.
    let files = json!({"is_multilingual": false, "task": "translate", "forced_decoder_ids": [[1, 726]]});
    transcriber(&whisper("defaults", &files)).check(&asked).unwrap();
}

/// A text has half of the decoder's positions at most, whatever a prompt leaves of them.
#[test]
fn a_text_has_half_of_the_positions() {
    let model = transcriber(&whisper("half", &json!({})));
    let mut heard = model.transcribe(sound(), &plain().language("de").timestamps(false)).unwrap();
    let mut counts = Vec::new();
    while let Some(segment) = heard.next() {
        segment.unwrap();
        counts.push(heard.details().unwrap().tokens.len());
    }
    assert!(counts.iter().all(|count| *count <= 12), "{counts:?}");
    assert!(heard.incomplete() > 0, "{counts:?}: none came to its most tokens");
}

/// Logits by a request for whole texts, of which the rules leave out the words that say what is to be done.
#[test]
fn windows_are_scored_as_openai_does() {
    let model = transcriber(&whisper("scores", &json!({})));
    let options = plain().language("de").timestamps(false).scores(true);
    let mut heard = model.transcribe(sound(), &options).unwrap();
    let (sound, handle) = (sound().samples, model.model().handle());
    for (start, end) in [(0, RATE), (2 * RATE, 3 * RATE), (3 * RATE, 7 * RATE / 2)] {
        let incomplete = heard.incomplete();
        let segment = heard.next().unwrap().unwrap();
        let details = heard.details().unwrap();
        assert_eq!((details.seek, details.temperature), ((start * 100 / RATE) as u64, 0.0));
        let prompt = [624, 722, 726];
        let tokens = alone(&model, &sound[start..end], &prompt);
        let text: Vec<u32> = tokens.iter().copied().filter(|id| *id < 727).collect();
        assert_eq!(details.tokens, text);
        // A window that ends where the context does has no token for it.
        let end_token = (heard.incomplete() == incomplete).then_some(620);
        let scored: Vec<u32> = tokens.iter().copied().chain(end_token).collect();
        let features: Arc<[f32]> = features(&sound[start..end]).into();
        let input = |decoder| EncoderInput { features: features.clone(), decoder, ..EncoderInput::default() };
        let rows = (prompt.len()..prompt.len() + scored.len()).collect();
        let want = ForwardWant { logits: Pick::Some(rows), ..ForwardWant::default() };
        let decoder = [&prompt[..], &scored[..scored.len() - 1]].concat();
        let logits = handle.forward([input(decoder)], want).unwrap().remove(0).logits;
        let logprob = |(row, id): (&[f32], &u32)| {
            let row: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
            let allowed = (0..row.len()).filter(|id| ![621, 721, 722, 723, 724, 725].contains(id));
            row[*id as usize] - allowed.map(|id| row[id].exp()).sum::<f64>().ln()
        };
        let sum: f64 = logits.chunks(logits.len() / scored.len()).zip(&scored).map(logprob).sum();
        let (got, want) = (details.avg_logprob.unwrap(), sum / (tokens.len() + 1) as f64);
        assert!((got - want).abs() < 1e-4, "{got} {want}");
        let want = ForwardWant { logits: Pick::Last, ..ForwardWant::default() };
        let first = handle.forward([input(Vec::new())], want).unwrap().remove(0).logits;
        let sum: f64 = first.iter().map(|x| f64::from(*x).exp()).sum();
        let (got, want) = (details.no_speech_prob.unwrap(), f64::from(first[725]).exp() / sum);
        assert!((got - want).abs() < 1e-6 && got > 0.0, "{got} {want}");
        let ratio = details.compression_ratio.unwrap();
        // A short text takes a few bytes more than it has, one that repeats itself fewer.
        assert!(ratio > 0.3 && ratio < 20.0, "{ratio} of {}", segment.text);
    }
    assert!(heard.next().is_none());
    // Without the question there is no answer.
    let mut warm = model.transcribe(self::sound(), &plain().temperatures([0.7])).unwrap();
    warm.next().unwrap().unwrap();
    let details = warm.details().unwrap();
    assert_eq!(details.temperature, 0.7);
    assert_eq!((details.avg_logprob, details.no_speech_prob, details.compression_ratio), (None, None, None));
    assert!(!details.tokens.is_empty());
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
    let silence = Sound::new(RATE as u32, vec![0.0; 10 * RATE]);
    assert_eq!(english.transcribe(silence, &SpeechOptions::new().language("en")).unwrap().count(), 0);
    let no = |error: engraft::Error, what: &str| assert!(error.to_string().contains(what), "{error}");
    no(Transcriber::new(engraft::demo().unwrap()).unwrap_err(), "reads no sound");
    let bare = whisper("bare", &json!({}));
    std::fs::remove_file(bare.join("preprocessor_config.json")).unwrap();
    no(
        Transcriber::new(engraft::open(bare.to_str().unwrap()).unwrap()).unwrap_err(),
        "says how sound is read",
    );
    // Another model's extractor is known before a sound is read.
    let other = whisper("other", &json!({}));
    let file = other.join("preprocessor_config.json");
    let mut extractor: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    extractor["feature_size"] = json!(80);
    std::fs::write(&file, extractor.to_string()).unwrap();
    no(
        Transcriber::new(engraft::open(other.to_str().unwrap()).unwrap()).unwrap_err(),
        "frames of 80; allowed",
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
    VOCABULARIES.iter().for_each(|vocabulary| tokens_and_segments(vocabulary));
}

fn tokens_and_segments(vocabulary: &str) {
    let goldens = goldens(vocabulary);
    let read = |file: &str| std::fs::read(golden_of(vocabulary, file)).unwrap();
    let config = serde_json::from_slice(&read("tokenizer_config.json")).unwrap();
    let tokenizer = Tokenizer::from_json(&read("tokenizer.json"), &config).unwrap();
    let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
    let rows = |name: &str| goldens[name].as_array().unwrap().clone();
    for row in rows("encode") {
        let text = row["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, false).unwrap(), ids(&row["plain_ids"]), "{vocabulary}: {text:?}");
    }
    let special = |name: &str| goldens["special"][name].as_u64().map(|id| id as u32);
    let (start, begin) =
        (special("<|startoftranscript|>").unwrap(), goldens["begin"].as_u64().unwrap() as u32);
    // What stands in front of the text: a model of English alone says no task.
    let last = if vocabulary.ends_with("_en") { Some(start) } else { special("<|transcribe|>") };
    let times = Timestamps { first: begin, step: 0.02, window: 30.0 };
    let mut compared = 0;
    for row in rows("decode") {
        let all = ids(&row["ids"]);
        let text: Vec<u32> = all.iter().copied().filter(|id| *id < begin).collect();
        let behind = text.iter().position(|id| *id == start).unwrap();
        assert_eq!(tokenizer.decode(&text[behind..], true).unwrap(), row["text_skip_special"], "{row}");
        // The reference counts windows where times go back; here each is read by itself.
        if ["two_segments", "single", "gap", "with_prompt"].contains(&row["name"].as_str().unwrap()) {
            let first = all.iter().position(|id| Some(*id) == last).unwrap() + 1;
            let (found, _) = segments(&all[first..all.len() - 1], &times);
            let found: Vec<Value> = found
                .iter()
                .map(|found| {
                    let text = tokenizer.decode(&found.tokens, true).unwrap();
                    let [start, end] = found.times.map(|seconds| (seconds * 100.0).round() / 100.0);
                    json!({"text": text, "start": start, "end": end})
                })
                .collect();
            assert_eq!(Value::from(found), row["segments"], "{vocabulary}: {}", row["name"]);
            compared += 1;
        }
    }
    assert_eq!(compared, 4, "{vocabulary}");
}

/// What older files and those of English alone do not say: a vocabulary without languages knows English
/// alone, and timestamps begin behind the last token where none has a name.
#[test]
fn what_a_vocabulary_lacks_is_known() {
    for vocabulary in VOCABULARIES {
        let model = transcriber(&whisper_of(vocabulary, vocabulary, &json!({})));
        let (heard, _) = all(&model, &plain());
        assert!(
            heard.len() > 1 && heard.iter().any(|segment| segment.start > 0.0),
            "{vocabulary}: {heard:?}"
        );
        let english = vocabulary.ends_with("_en");
        all(&model, &plain().language("english"));
        for refused in [SpeechOptions::new().language("de"), SpeechOptions::new().task(Task::Translate)] {
            match model.check(&refused) {
                Ok(()) => assert!(!english, "{vocabulary}"),
                Err(error) => {
                    assert!(english && error.to_string().contains("English alone"), "{vocabulary}: {error}");
                }
            }
        }
    }
}

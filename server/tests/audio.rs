//! `/v1/audio`: multipart requests with a file, held against the library's own transcription of the same
//! sound.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;
#[allow(dead_code, reason = "the library tests use more of it")]
#[path = "../../engraft/tests/whisper/mod.rs"]
mod whisper;

use common::{Answer, Running, config, start, start_with};
use engraft::engraft_audio::{Format, Limits, Segment, decode};
use engraft::{Options, SegmentDetails, SpeechOptions, Task, Transcriber};
use engraft_server::ServerConfig;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use whisper::{RATE, numbers, whisper};

const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";
const TRANSLATIONS: &str = "/v1/audio/translations";

/// A WAV file of one channel of 16 bits.
fn wav(samples: &[f32]) -> Vec<u8> {
    let data: Vec<u8> = samples.iter().flat_map(|x| ((x * 32767.0) as i16).to_le_bytes()).collect();
    let (rate, size) = (RATE as u32, data.len() as u32);
    let mut all = b"RIFF".to_vec();
    all.extend((36 + size).to_le_bytes());
    all.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    all.extend(rate.to_le_bytes());
    all.extend((2 * rate).to_le_bytes());
    all.extend(b"\x02\0\x10\0data");
    all.extend(size.to_le_bytes());
    all.extend(data);
    all
}

/// 3.5 windows, of which the second is silent.
fn sound() -> Vec<u8> {
    let mut samples = numbers(RATE * 7 / 2, 5, 0.3);
    samples[RATE..2 * RATE].fill(0.0);
    wav(&samples)
}

/// A multipart body with these texts, and a file unless it is empty.
fn multipart(texts: &[(&str, &str)], file: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    for (name, text) in texts {
        write!(all, "--line\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n").unwrap();
    }
    if !file.is_empty() {
        let head = "Content-Disposition: form-data; name=\"file\"; filename=\"talk.wav\"";
        write!(all, "--line\r\n{head}\r\nContent-Type: audio/wav\r\n\r\n").unwrap();
        all.extend(file);
        all.extend(b"\r\n");
    }
    all.extend(b"--line--\r\n");
    all
}

fn head(path: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: multipart/form-data; boundary=line\r\nContent-Length: {length}\r\n\r\n"
    )
}

fn post(server: &Running, path: &str, body: &[u8]) -> Answer {
    server.raw(&[head(path, body.len()).as_bytes(), body].concat())
}

fn options() -> Options {
    Options::new().max_seqs(8)
}

fn serving(folder: PathBuf, config: ServerConfig) -> Running {
    start_with(config, move || options().open(folder.to_str().unwrap()))
}

/// What the library hears in the sound: segments, the language, and in how many windows something is missing.
fn heard(folder: &Path, options: &SpeechOptions) -> (Vec<Segment>, Option<String>, usize) {
    let model = Transcriber::new(self::options().open(folder.to_str().unwrap()).unwrap()).unwrap();
    let mut segments = model.transcribe(decode(sound(), Limits::default()).unwrap(), options).unwrap();
    let all = segments.by_ref().collect::<Result<_, _>>().unwrap();
    (all, segments.language(), segments.incomplete())
}

/// What else the library says of those segments.
fn scored(folder: &Path) -> Vec<SegmentDetails> {
    let model = Transcriber::new(self::options().open(folder.to_str().unwrap()).unwrap()).unwrap();
    let sound = decode(sound(), Limits::default()).unwrap();
    let mut segments = model.transcribe(sound, &SpeechOptions::new().scores(true)).unwrap();
    let mut all = Vec::new();
    while segments.next().transpose().unwrap().is_some() {
        all.extend(segments.details().cloned());
    }
    all
}

fn hundredths(x: f32) -> f64 {
    (f64::from(x) * 100.0).round() / 100.0
}

fn text(segments: &[Segment]) -> String {
    segments.iter().map(|segment| segment.text.trim()).collect::<Vec<_>>().join(" ")
}

#[test]
fn every_format_is_what_the_library_hears() {
    let folder = whisper("formats", &json!({}));
    let (segments, language, incomplete) = heard(&folder, &SpeechOptions::new());
    // Noise has no end for such a model.
    assert!(incomplete > 0);
    assert!(segments.len() > 1, "{segments:?}");
    let server = serving(folder.clone(), config());
    let plain = post(&server, TRANSCRIPTIONS, &multipart(&[("model", "demo")], &sound()));
    let usage = json!({"type": "duration", "seconds": 4});
    let want = json!({"text": text(&segments), "usage": usage, "incomplete_windows": incomplete});
    assert_eq!(plain.json(), want);
    let asked = [("response_format", "verbose_json"), ("timestamp_granularities[]", "segment")];
    let verbose = post(&server, TRANSCRIPTIONS, &multipart(&asked, &sound())).json();
    assert_eq!(verbose["task"], "transcribe");
    assert_eq!((&verbose["language"], &verbose["duration"]), (&json!(language), &json!(3.5)));
    let all: Vec<Value> = serde_json::from_value(verbose["segments"].clone()).unwrap();
    assert_eq!(all.len(), segments.len());
    let scored = scored(&folder);
    for (at, ((got, want), details)) in all.iter().zip(&segments).zip(&scored).enumerate() {
        let want = json!({"id": at, "seek": details.seek, "start": want.start, "end": want.end,
            "text": want.text, "tokens": details.tokens, "temperature": hundredths(details.temperature),
            "avg_logprob": details.avg_logprob.unwrap(),
            "compression_ratio": details.compression_ratio.unwrap(),
            "no_speech_prob": details.no_speech_prob.unwrap()});
        assert_eq!(*got, want);
    }
    let formats = [
        ("text", Format::Text, "text/plain"),
        ("srt", Format::Srt, "text/plain"),
        ("vtt", Format::Vtt, "text/vtt"),
    ];
    for (name, format, kind) in formats {
        let answer = post(&server, TRANSCRIPTIONS, &multipart(&[("response_format", name)], &sound()));
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.text(), format.whole(&segments, language.as_deref(), 3.5), "{name}");
        assert!(answer.header("content-type").unwrap().starts_with(kind), "{name}: {}", answer.head);
    }
}

#[test]
fn languages_translations_and_requests_at_once() {
    let folder = whisper("tasks", &json!({}));
    let german = heard(&folder, &SpeechOptions::new().language("de")).0;
    let english = heard(&folder, &SpeechOptions::new().task(Task::Translate)).0;
    let server = serving(folder, config());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let asked = [("language", "de"), ("response_format", "verbose_json")];
                let answer = post(&server, TRANSCRIPTIONS, &multipart(&asked, &sound())).json();
                assert_eq!((&answer["text"], &answer["language"]), (&json!(text(&german)), &json!("de")));
                let answer = post(&server, TRANSLATIONS, &multipart(&asked[1..], &sound())).json();
                assert_eq!((&answer["text"], &answer["task"]), (&json!(text(&english)), &json!("translate")));
            });
        }
    });
    // What a translation is of, is heard.
    let answer = post(&server, TRANSLATIONS, &multipart(&[("language", "de")], &sound()));
    assert_eq!(answer.error(400)["param"], "language");
    // A model of one language writes it down, and translates nothing.
    let server = serving(whisper("one", &json!({"is_multilingual": false})), config());
    assert_eq!(post(&server, TRANSCRIPTIONS, &multipart(&[], &sound())).status, 200);
    let error = post(&server, TRANSLATIONS, &multipart(&[], &sound())).error(400);
    assert!(error["message"].as_str().unwrap().contains("translates nothing"), "{error}");
}

/// What is there of a file that ends early is heard, and the answer says that something is not.
#[test]
fn a_file_that_is_not_whole_is_heard_as_far_as_it_goes() {
    let server = serving(whisper("part", &json!({})), config());
    let whole = sound();
    // Of 3.5 s one is missing; of a rate of 0 the decoder would panic.
    let part = &whole[..whole.len() - 2 * RATE];
    let hear = |texts: &[(&str, &str)], file: &[u8]| post(&server, TRANSCRIPTIONS, &multipart(texts, file));
    let verbose = hear(&[("response_format", "verbose_json")], part).json();
    assert_eq!((&verbose["duration"], &verbose["missing_seconds"]), (&json!(2.5), &json!(1.0)));
    assert_eq!(hear(&[], part).json()["missing_seconds"], json!(1.0));
    assert!(hear(&[("stream", "true")], part).text().contains("\"missing_seconds\":1.0"));
    assert!(hear(&[], &whole).json().get("missing_seconds").is_none());
    let mut still = whole;
    still[24..28].fill(0);
    let error = hear(&[], &still).error(400);
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("`file` cannot be taken: the sample rate is 0; allowed: 1000 to"), "{message}");
}

#[test]
fn prompts_and_temperatures_are_the_librarys() {
    let folder = whisper("prompt", &json!({}));
    let server = serving(folder.clone(), config());
    let hear = |asked: &[(&str, &str)]| {
        let asked = [asked, &[("language", "de"), ("response_format", "verbose_json")]].concat();
        post(&server, TRANSCRIPTIONS, &multipart(&asked, &sound())).json()
    };
    let german = SpeechOptions::new().language("de");
    let plain = text(&heard(&folder, &german).0);
    // 0 is no one temperature: it begins the list.
    assert_eq!(hear(&[("temperature", "0"), ("prompt", "")])["text"], plain);
    let prompted = text(&heard(&folder, &german.clone().prompt("Names: Ada")).0);
    assert_eq!(hear(&[("prompt", "Names: Ada")])["text"], prompted);
    let warm = text(&heard(&folder, &german.temperatures([0.3])).0);
    let answer = hear(&[("temperature", "0.3")]);
    assert_eq!(answer["text"], warm);
    assert!(warm != plain && prompted != plain, "{plain:?}, {prompted:?}, {warm:?}");
    let segments = answer["segments"].as_array().unwrap();
    assert!(!segments.is_empty() && segments.iter().all(|one| one["temperature"] == 0.3), "{answer}");
}

#[test]
fn segments_are_streamed_as_they_are_heard() {
    let folder = whisper("stream", &json!({}));
    let (segments, _, incomplete) = heard(&folder, &SpeechOptions::new());
    let want = text(&segments);
    let server = serving(folder, config());
    let answer = post(&server, TRANSCRIPTIONS, &multipart(&[("stream", "true")], &sound()));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.header("content-type").unwrap().starts_with("text/event-stream"), "{}", answer.head);
    let text = answer.text();
    let events = text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap());
    let events: Vec<Value> = events.map(|event| serde_json::from_str(event).unwrap()).collect();
    let (last, deltas) = events.split_last().unwrap();
    assert!(deltas.len() > 1, "{events:?}");
    assert!(deltas.iter().all(|delta| delta["type"] == "transcript.text.delta"), "{events:?}");
    assert_eq!(deltas.iter().map(|delta| delta["delta"].as_str().unwrap()).collect::<String>(), want);
    assert_eq!((&last["type"], &last["text"]), (&json!("transcript.text.done"), &json!(want)));
    assert_eq!(last["incomplete_windows"], incomplete);
    assert!(answer.header("x-request-id").is_some(), "{}", answer.head);
    // What is wrong is said before a stream begins.
    let error = post(&server, TRANSCRIPTIONS, &multipart(&[("stream", "true")], b"no sound")).error(400);
    assert_eq!(error["param"], "file");
    let asked = [("stream", "true"), ("language", "xx")];
    post(&server, TRANSCRIPTIONS, &multipart(&asked, &sound())).error(400);
}

#[test]
fn what_cannot_be_transcribed_is_refused_by_name() {
    let server = serving(whisper("refused", &json!({})), ServerConfig { max_audio_seconds: 4, ..config() });
    let refused = |texts: &[(&str, &str)], file: &[u8], param: Value, what: &str| {
        let error = post(&server, TRANSCRIPTIONS, &multipart(texts, file)).error(400);
        assert_eq!(error["param"], param, "{error}");
        assert!(error["message"].as_str().unwrap().contains(what), "{error}");
    };
    refused(&[], b"", json!("file"), "missing");
    refused(&[], b"no sound at all", json!("file"), "neither WAV nor FLAC");
    refused(&[], &wav(&numbers(RATE * 5, 1, 0.3)), json!("file"), "longer than 4 s");
    refused(&[("language", "xx")], &sound(), Value::Null, "\"xx\" is not in the model's vocabulary");
    refused(&[("temperature", "1.5")], &sound(), json!("temperature"), "a number from 0 to 1");
    refused(&[("temperature", "warm")], &sound(), json!("temperature"), "warm");
    refused(&[("prompt", "Names: <|de|>")], &sound(), Value::Null, "<|de|>, which is no text");
    refused(&[("response_format", "ass")], &sound(), json!("response_format"), "verbose_json");
    refused(&[("stream", "true"), ("response_format", "srt")], &sound(), json!("response_format"), "stream");
    refused(&[("language", "de"), ("language", "en")], &sound(), json!("language"), "twice");
    refused(&[("voice", "x")], &sound(), json!("voice"), "not a field");
    let words = [("response_format", "verbose_json"), ("timestamp_granularities[]", "word")];
    refused(&words, &sound(), json!("timestamp_granularities"), "segments");
    refused(
        &[("timestamp_granularities[]", "segment")],
        &sound(),
        json!("timestamp_granularities"),
        "verbose_json",
    );
    let parts = vec![("user", "x"); 70];
    refused(&parts[..2], &sound(), json!("user"), "twice");
    let error = server.post(TRANSCRIPTIONS, &json!({"model": "demo"})).error(415);
    assert!(error["message"].as_str().unwrap().contains("multipart/form-data"), "{error}");
    // A body that ends in the middle of a part.
    let whole = multipart(&[], &sound());
    let error = post(&server, TRANSCRIPTIONS, &whole[..whole.len() / 2]).error(400);
    assert!(error["message"].as_str().unwrap().contains("cannot be read"), "{error}");
    let other = post(&server, TRANSCRIPTIONS, &multipart(&[("model", "other")], &sound())).error(404);
    assert_eq!(other["code"], "model_not_found");
    // Nothing of all this was kept: the same sound is heard.
    assert_eq!(post(&server, TRANSCRIPTIONS, &multipart(&[], &sound())).status, 200);
    // A model of texts hears nothing.
    let error = post(&start(config()), TRANSCRIPTIONS, &multipart(&[], &sound())).error(400);
    assert!(error["message"].as_str().unwrap().contains("reads no sound"), "{error}");
}

/// Ten minutes of noise take far longer than the limit, and far longer than a client waits.
#[test]
fn a_sound_ends_with_its_time_and_with_its_client() {
    let limit = Some(Duration::from_millis(300));
    let long = multipart(&[], &wav(&numbers(RATE * 600, 9, 0.3)));
    // One at a time: the others wait for their turn.
    let late = ServerConfig { request_timeout: limit, max_num_seqs: 1, ..config() };
    let server = serving(whisper("late", &json!({})), late);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let began = Instant::now();
                let error = post(&server, TRANSCRIPTIONS, &long).error(408);
                assert!(error["message"].as_str().unwrap().contains("the server's limit"), "{error}");
                assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
            });
        }
    });
    holds(&server, 0);
    let server = serving(whisper("gone", &json!({})), config());
    let mut stream = server.connect();
    stream.write_all(&[head(TRANSCRIPTIONS, long.len()).as_bytes(), &long].concat()).unwrap();
    holds(&server, 1);
    drop(stream);
    holds(&server, 0);
}

/// Waits until so many requests are in a server: a thread that hears leaves with its next token.
fn holds(server: &Running, count: u64) {
    let began = Instant::now();
    while server.get("/load").json()["server_load"] != count {
        assert!(began.elapsed() < Duration::from_secs(20), "{}", server.get("/load").text());
        std::thread::sleep(Duration::from_millis(10));
    }
}

//! `engraft transcribe` as a script uses it.

use crate::support::{engraft, fails, folder, misused, stderr, stdout};
use crate::whisper::{RATE, numbers, whisper};
#[allow(dead_code, reason = "the library tests use more of it")]
use serde_json::{Value, json};

/// A WAV file of 16 bits at twice the model's rate.
fn wav(name: &str, samples: &[f32]) -> String {
    let rate = 2 * RATE as u32;
    let data: Vec<u8> = samples.iter().flat_map(|x| ((x * 32_000.0) as i16).to_le_bytes()).collect();
    let mut bytes = b"RIFF".to_vec();
    bytes.extend((36 + data.len() as u32).to_le_bytes());
    bytes.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    bytes.extend([rate, 2 * rate].map(u32::to_le_bytes).concat());
    bytes.extend(b"\x02\0\x10\0data");
    bytes.extend((data.len() as u32).to_le_bytes());
    bytes.extend(data);
    let path = folder(name).join(name);
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_string()
}

#[test]
fn every_format_says_the_same() {
    let model = whisper("program", &json!({}));
    let sound = wav("talk.wav", &numbers(5 * RATE, 9, 0.3));
    let run = |format: &str| {
        let model = model.to_str().unwrap();
        let args = ["transcribe", &sound, "-m", model, "-l", "en", "--no-timestamps", "--format", format];
        stdout(&engraft(&args))
    };
    let json: Value = serde_json::from_str(&run("json")).unwrap();
    let segments = json["segments"].as_array().unwrap();
    assert_eq!((json["language"].as_str(), json["duration"].as_f64()), (Some("en"), Some(2.5)));
    assert!(!segments.is_empty() && segments.len() <= 3, "{json}");
    let texts: Vec<&str> = segments.iter().map(|s| s["text"].as_str().unwrap().trim()).collect();
    assert_eq!(run("text"), texts.iter().map(|text| format!("{text}\n")).collect::<String>());
    let (srt, vtt) = (run("srt"), run("vtt"));
    assert!(srt.starts_with("1\n00:00:0") && srt.contains(" --> 00:00:0"), "{srt}");
    assert!(vtt.starts_with("WEBVTT\n\n00:00:0"), "{vtt}");
}

/// Every flag of decoding changes what is written, or the model refuses it.
#[test]
fn flags_of_decoding_are_honoured() {
    let model = whisper("decoding", &json!({}));
    let sound = wav("decoding.wav", &numbers(3 * RATE, 9, 0.3));
    let run = |more: &[&str]| {
        let model = model.to_str().unwrap();
        let args = ["transcribe", &sound, "-m", model, "-l", "en", "--no-timestamps"];
        stdout(&engraft(&[&args[..], more].concat()))
    };
    let cold = ["--temperature", "0", "--no-speech-threshold", "none", "--no-previous-text"];
    let with = |more: &[&str]| run(&[&cold[..], more].concat());
    let first = |text: &str| text.lines().next().unwrap_or_default().to_string();
    assert!(!with(&[]).is_empty());
    assert_ne!(first(&with(&["--prompt", "Prolatus"])), first(&with(&[])));
    assert_ne!(run(&cold[..4]), with(&[]), "the text before counts unless it is switched off");
    let warm = ["--temperature", "0,1", "--no-speech-threshold", "none", "--no-previous-text"];
    assert_ne!(run(&warm), with(&[]));
    assert_ne!(run(&[&warm[..], &["--seed", "7"]].concat()), run(&warm));
    assert_eq!(run(&[&warm[..], &["--logprob-threshold", "-50"]].concat()), with(&[]));
    assert_eq!(
        run(&[&warm[..], &["--logprob-threshold", "none", "--compression-ratio-threshold", "none"]].concat()),
        with(&[])
    );
    assert_eq!(run(&["--temperature", "0", "--no-speech-threshold", "0"]), "");
}

#[test]
fn what_cannot_be_heard_is_said() {
    let model = whisper("refusing", &json!({}));
    let (model, sound) = (model.to_str().unwrap(), wav("silence.wav", &[0.0; 4000]));
    let silent = engraft(&["transcribe", &sound, "-m", model]);
    assert!(
        stdout(&silent).is_empty() && stderr(&silent).contains("nothing was heard in 1.2 s"),
        "{}",
        stderr(&silent)
    );
    fails(&["transcribe", "/no/such.wav", "-m", model], &["/no/such.wav"]);
    // What is left of a file that ends early is heard, and what is not is said.
    let part = folder("part").join("part.wav");
    std::fs::write(&part, &std::fs::read(&sound).unwrap()[..44 + 4_000]).unwrap();
    let part = engraft(&["transcribe", part.to_str().unwrap(), "-m", model]);
    let said = stderr(&part);
    assert!(said.contains("part.wav is not whole: 0.625 s") && !stderr(&silent).contains("whole"), "{said}");
    assert!(said.contains("nothing was heard in 0.6 s"), "{said}");
    let text = folder("no-sound").join("text.wav");
    std::fs::write(&text, "no sound").unwrap();
    fails(&["transcribe", text.to_str().unwrap(), "-m", model], &["text.wav", "neither WAV nor FLAC"]);
    fails(&["transcribe", &sound, "-m", model, "-l", "xx"], &["\"xx\"", "vocabulary"]);
    misused(&["transcribe", &sound, "-m", model, "--format", "mp3"], &["mp3", "srt"]);
    misused(&["transcribe", &sound, "-m", model, "--no-speech-threshold", "much"], &["much", "none"]);
    for wrong in ["-1", "nan", "0,inf", "warm"] {
        let words = ["--temperature", wrong.rsplit(',').next().unwrap()];
        misused(&["transcribe", &sound, "-m", "/no/such", "--temperature", wrong], &words);
    }
    misused(&["transcribe", &sound], &["demo model reads no sound"]);
    misused(&["transcribe"], &["FILE"]);
    let bench = ["bench", "--model", model, "--prompt-tokens", "3"];
    misused(&bench, &["--prompt-tokens 3", "exactly", "of a sound"]);
}

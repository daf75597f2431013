//! Hostile files: each is refused with a text that names what is wrong, without a panic and without taking
//! memory that the file's own size does not justify.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/hostile_files.rs"]
mod hostile_files;
#[path = "support/meter.rs"]
mod meter;
#[path = "support/samples.rs"]
mod samples;

use engraft_core::{
    checkpoint::{self, Source, TokenizerFiles, gguf, index, safetensors},
    quant::plain,
};

#[global_allocator]
static METER: meter::Meter = meter::Meter;

/// What parsing may take beyond twice the file: messages, counters, small tables.
const SLACK: usize = 64 << 10;

/// The refusal's text; fails if there is none, or if memory ran away.
fn refused<T>(what: &str, size: usize, parse: impl FnOnce() -> engraft_core::Result<T>) -> String {
    let (result, peak) = meter::peak(|| parse().err().map(|e| e.to_string()));
    assert!(peak <= 2 * size + SLACK, "{what}: {peak} bytes for a file of {size}");
    result.unwrap_or_else(|| panic!("{what}: was accepted"))
}

fn check(what: &str, message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "{what}: \"{message}\" does not say \"{word}\"");
    }
}

#[test]
fn safetensors_headers() {
    let cases = hostile_files::safetensors();
    assert!(cases.len() >= 30);
    for (what, bytes, words) in cases {
        let message = refused(what, bytes.len(), || safetensors::parse("m.safetensors", &bytes));
        check(what, &message, words);
        check(what, &message, &["m.safetensors"]);
    }
}

#[test]
fn gguf_headers() {
    let cases = hostile_files::gguf();
    assert!(cases.len() >= 40);
    for (what, bytes, words) in cases {
        check(what, &refused(what, bytes.len(), || gguf::parse("m.gguf", &bytes)), words);
    }
}

#[test]
fn indexes() {
    let cases = hostile_files::indexes();
    for (what, json, words) in cases {
        // Strings from JSON cost 24 bytes besides their text, so the bound of the binary formats is not for
        // these.
        let (result, peak) =
            meter::peak(|| index::parse("i.json", json.as_bytes()).map_err(|e| e.to_string()));
        assert!(peak <= 16 * json.len() + SLACK, "{what}: {peak} bytes for {}", json.len());
        check(what, &result.expect_err(what), words);
    }
}

#[test]
fn configurations() {
    let open = |config: &[u8]| {
        let tokenizer = TokenizerFiles::from_bytes(None, None, None)?;
        checkpoint::open_bytes(config, None, samples::small_safetensors().into(), tokenizer)
    };
    let deep = "[".repeat(100_000);
    for (what, config, words) in [
        ("empty", "", ["config.json", "not valid JSON"]),
        ("a list", "[]", ["config.json", "a list"]),
        ("nesting", deep.as_str(), ["config.json", "recursion"]),
        ("truncated", r#"{"model_type":"#, ["config.json", "not valid JSON"]),
        ("infinite", r#"{"a":1e999}"#, ["config.json", "range"]),
    ] {
        check(what, &refused(what, config.len(), || open(config.as_bytes())), &words);
    }
    check("not UTF-8", &refused("not UTF-8", 8, || open(b"{\"a\":\"\xff\"}")), &["config.json"]);
    let bad = TokenizerFiles::from_bytes(None, Some(br#"{"chat_template":7}"#), None).unwrap_err();
    check("template", &bad.to_string(), &["tokenizer_config.json", "chat_template"]);
}

#[test]
fn gguf_metadata_of_the_wrong_type() {
    let cases = hostile_files::gguf_metadata();
    for (what, bytes, words) in cases {
        let message = refused(what, bytes.len(), || checkpoint::open_gguf_bytes("m.gguf", bytes.into()));
        check(what, &message, words);
        check(what, &message, &["m.gguf"]);
    }
}

/// Reads everything that a file offers; what comes out does not matter, only that it does.
fn touch(source: &dyn Source) {
    for t in source.tensors() {
        let bytes = source.bytes(&t.name).unwrap();
        let mut out = vec![0.0; t.elements()];
        plain::to_f32(t.stored, &bytes, &mut out).unwrap();
        source.release(&t.name);
    }
}

fn open_safetensors(bytes: Vec<u8>) -> engraft_core::Result<()> {
    let tokenizer = TokenizerFiles::from_bytes(None, None, None)?;
    checkpoint::open_bytes(samples::CONFIG.as_bytes(), None, bytes.into(), tokenizer)
        .map(|m| touch(&*m.source))
}

fn open_gguf(bytes: Vec<u8>) -> engraft_core::Result<()> {
    checkpoint::open_gguf_bytes("m.gguf", bytes.into()).map(|m| touch(&*m.source))
}

#[test]
fn every_truncation_is_refused() {
    for (whole, open) in [
        (samples::small_safetensors(), open_safetensors as fn(Vec<u8>) -> _),
        (samples::small_gguf().unwrap(), open_gguf),
    ] {
        open(whole.clone()).unwrap();
        for len in (0..whole.len()).step_by(7).chain([whole.len() - 129]) {
            let message = refused(&format!("{len} bytes"), whole.len(), || open(whole[..len].to_vec()));
            assert!(message.len() > 10, "{message}");
        }
    }
}

#[test]
fn every_single_bit_flip_is_survived() {
    for (whole, open) in [
        (samples::small_safetensors(), open_safetensors as fn(Vec<u8>) -> _),
        (samples::small_gguf().unwrap(), open_gguf),
    ] {
        let mut refusals = 0;
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let (result, peak) = meter::peak(|| open(bytes).map_err(|e| e.to_string()));
            assert!(peak <= 2 * whole.len() + SLACK, "bit {bit}: {peak} bytes");
            if let Err(message) = result {
                assert!(message.len() > 10, "bit {bit}: {message}");
                refusals += 1;
            }
        }
        // Flips in tensor data and inside names are valid files; most of a header is not free to change.
        assert!(refusals > whole.len(), "{refusals} refusals");
    }
}

#[test]
fn a_long_vocabulary_takes_no_more_than_its_file() {
    use gguf::{Array, Strings, Value, write::Writer};
    let tokens: Strings = (0..100_000).map(|i| i.to_string()).collect();
    let bytes = Writer::new().pair("k", &Value::Array(Array::Strings(tokens))).finish();
    let (header, peak) = meter::peak(|| gguf::parse("m.gguf", &bytes).unwrap());
    assert!(peak <= bytes.len() + SLACK, "{peak} bytes for {}", bytes.len());
    let Some(Value::Array(Array::Strings(tokens))) = header.metadata.get("k") else { panic!("not a list") };
    assert_eq!((tokens.len(), tokens.get(99_999), tokens.get(100_000)), (100_000, Some("99999"), None));
}

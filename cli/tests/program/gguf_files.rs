//! `convert` to GGUF files: what they say is what the model at hand says.

use crate::support::{demo_copy, engraft, fails, folder, manifest, misused, stdout};
use std::fs;
use std::path::Path;

fn demo() -> String {
    manifest().join("../engraft/demo-model").to_str().unwrap().to_string()
}

fn generated(more: &[&str]) -> String {
    let line = ["generate", "This package provides", "-n", "12", "--temperature", "0"];
    stdout(&engraft(&[&line[..], more].concat()))
}

fn names(place: &Path) -> Vec<String> {
    let entries = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_file_says_what_the_folder_says() {
    let (place, demo) = (folder("gguf-files"), demo());
    let path = |name: &str| place.join(name).to_str().unwrap().to_string();
    let (plain, packed, again, named) = (path("a.gguf"), path("b.GGUF"), path("c.gguf"), path("d"));
    let said = stdout(&engraft(&["convert", &demo, "--out", &plain]));
    assert!(said.contains("a.gguf: 2.") && said.lines().count() == 1, "{said}");
    assert_eq!(generated(&["-m", &plain]), generated(&[]));
    stdout(&engraft(&["convert", &demo, "--out", &packed, "--quantize", "q8_0"]));
    assert_eq!(generated(&["-m", &packed]), generated(&["--quantize", "q8_0"]));
    stdout(&engraft(&["convert", &plain, "--out", &again, "--quantize", "q8_0"]));
    // The same tensors and pairs, in another order.
    assert_eq!(fs::metadata(&again).unwrap().len(), fs::metadata(&packed).unwrap().len());
    assert_eq!(generated(&["-m", &again]), generated(&["-m", &packed]));
    // Rows of 128 and 384 values have no block of 256.
    let large = path("e.gguf");
    stdout(&engraft(&["convert", &demo, "--out", &large, "--quantize", "q4_k"]));
    assert_eq!(generated(&["-m", &large]), generated(&["--quantize", "q5_0"]));
    fs::remove_file(&large).unwrap();
    // Of a mix the head and half of the values are in eight bits then.
    let of_mix = stdout(&engraft(&["convert", &demo, "--out", &large, "--quantize", "Q4_K_M"]));
    assert!(of_mix.contains("e.gguf: "), "{of_mix}");
    generated(&["-m", &large]);
    fs::remove_file(&large).unwrap();
    let table = ["--format", "gguf", "--token-embedding-type", "q4_0"];
    stdout(&engraft(&[&["convert", &demo, "--out", &named][..], &table].concat()));
    assert!(fs::metadata(&named).unwrap().len() < fs::metadata(&plain).unwrap().len());
    assert!(fs::read(&named).unwrap().starts_with(b"GGUF"));
    assert_eq!(names(&place), ["a.gguf", "b.GGUF", "c.gguf", "d"]);
}

#[test]
fn what_a_text_scores_before_and_after() {
    let place = folder("gguf-scored");
    let path = |name: &str| place.join(name).to_str().unwrap().to_string();
    let text = "This package provides a library for images. It contains the development files.\n".repeat(60);
    fs::write(path("text"), &text).unwrap();
    let line = |out: &str, more: &[&str]| {
        let (out, text, demo) = (path(out), path("text"), demo());
        let args = [&["convert", &demo, "--out", &out, "--score", &text][..], more].concat();
        let said = stdout(&engraft(&args));
        let scored: Vec<String> = said.lines().skip(1).map(|line| line[8..].to_string()).collect();
        assert!(
            said.contains("\nbefore: mean log-probability -") && said.contains("\nafter:  mean"),
            "{said}"
        );
        assert!(scored.len() == 2 && scored.iter().all(|line| line.contains("windows of 512")), "{said}");
        scored
    };
    let number = |line: &str| line.split([' ', ',']).nth(2).unwrap().parse::<f64>().unwrap();
    let [before, after] = &line("plain.gguf", &[])[..] else { panic!() };
    assert_eq!(before, after);
    let coarse = line("coarse.gguf", &["--quantize", "q4_0"]);
    assert_eq!(&coarse[0], before);
    assert!((number(&coarse[1]) - number(before)).abs() > 1e-4 && number(&coarse[1]) < -0.1, "{coarse:?}");
    // Windows of 512 tokens, of each the first is given: the sums are those of `score`.
    let ids: usize = before.split('(').nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(ids > 512, "{before}");
    // Of a folder as well.
    assert_eq!(&line("folder", &[])[1], before);
    fs::write(path("short"), "").unwrap();
    let (demo, out, short) = (demo(), path("x.gguf"), path("short"));
    fails(&["convert", &demo, "--out", &out, "--score", &short], &["short", "two or more"]);
    assert!(!place.join("x.gguf").exists());
}

#[test]
fn what_cannot_be_written_leaves_nothing() {
    let (place, demo) = (folder("gguf-refused"), demo());
    let out = place.join("x.gguf");
    let out = out.to_str().unwrap();
    let line = |more: &[&'static str]| [&["convert", &demo, "--out", out][..], more].concat();
    for format in ["int8:64", "w8a8", "mxfp4"] {
        let args = [&line(&["--quantize"])[..], &[format]].concat();
        fails(&args, &["quantize", "GGUF has a type for", "IQ4_NL"]);
    }
    misused(&line(&["--tp", "2"]), &["--tp", "one rank"]);
    misused(
        &line(&["--format", "folder", "--token-embedding-type", "q8_0"]),
        &["--token-embedding-type", "GGUF"],
    );
    misused(&line(&["--format", "folder", "--quantize", "q4_k_m"]), &["q4_k_m", "mixes", "GGUF"]);
    misused(&line(&["--quantize", "q4_k_x"]), &["q4_k_x", "Q4_K", "q4_k_m"]);
    misused(&["generate", "--quantize", "q4_k_m"], &["q4_k_m", "a mix is for a GGUF file"]);
    misused(&line(&["--format", "onnx"]), &["onnx", "gguf"]);
    let windowed = demo_copy("gguf-windowed");
    let config = fs::read_to_string(windowed.join("config.json")).unwrap();
    let config =
        config.replace("\"model_type\": \"llama\"", "\"model_type\": \"mistral\", \"sliding_window\": 64");
    fs::write(windowed.join("config.json"), config).unwrap();
    fails(&["convert", windowed.to_str().unwrap(), "--out", out], &["window", "llama"]);
    assert!(names(&place).is_empty(), "{:?}", names(&place));
    fs::write(out, "mine").unwrap();
    fails(&line(&[]), &["--out", "no file has"]);
    assert_eq!(fs::read(out).unwrap(), b"mine");
}

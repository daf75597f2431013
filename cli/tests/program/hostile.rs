//! The program and files that ask for too much, end in the middle, or say what is not honoured.

use crate::support::{demo_copy, engraft, folder, manifest, stderr, stdout, with_input};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

const PROMPT: &str = "This package provides";

/// Templates that overflowed the stack, ran on and on, or took all memory: the conversation goes on after
/// each.
#[test]
fn hostile_chat_templates_are_an_error_of_one_line() {
    let hostile = [
        "{% set ns=namespace(a=1) %}{% set ns.a=ns %}{{ ns }}",
        "{% set ns=namespace(x=1) %}{% for i in range(90000) %}{% set ns.x=[ns.x] %}{% endfor %}{{ ns.x }}",
        "{% for i in range(9999) %}{% set x = range(99999)|sort|list %}{% endfor %}",
        "{{ '{:>9999999999}'.format(1) }}",
        "{{ range(100000)|join('a'*100000) }}",
        "{% set ns=namespace(s='a') %}{% for i in range(60) %}{% set ns.s=ns.s~ns.s %}{% endfor %}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    ];
    let model = demo_copy("hostile-template");
    for template in hostile {
        fs::write(model.join("chat_template.jinja"), template).unwrap();
        let begin = std::time::Instant::now();
        let output = with_input(
            &["chat", "--model", model.to_str().unwrap(), "--max-new-tokens", "2"],
            "Hello\n/help\n",
        );
        let notes = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{template}: {notes}");
        assert!(notes.ends_with("error: 1 message could not be answered\n"), "{template}: {notes}");
        assert!(notes.contains("error: chat template, line 1: "), "{template}: {notes}");
        assert!(notes.contains("/retry"), "{template}: the conversation ended: {notes}");
        assert!(begin.elapsed().as_secs() < 20, "{template}: {:?}", begin.elapsed());
    }
}

/// A tokenizer of more tokens than the model has rows for is said to be another's; its own is not.
#[test]
fn a_tokenizer_that_does_not_fit_is_warned_of() {
    let golden = manifest().join("../tests/golden/llama");
    let model = folder("tokenizer-of-another");
    for file in ["config.json", "generation_config.json", "model.safetensors"] {
        fs::copy(golden.join(file), model.join(file)).unwrap();
    }
    let demo = manifest().join("../engraft/demo-model");
    for (from, warned) in [(&golden, false), (&demo, true)] {
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            fs::copy(from.join(file), model.join(file)).unwrap();
        }
        let output = engraft(&["generate", "-p", "a", "-n", "1", "--model", model.to_str().unwrap()]);
        let notes = stderr(&output);
        assert_eq!(notes.contains("it may be another model's tokenizer"), warned, "{notes}");
    }
}

#[test]
fn a_generation_file_is_followed_or_its_fields_are_named() {
    let model = demo_copy("generation-fields");
    let file = r#"{"eos_token_id": 0, "do_sample": true, "num_beams": 4, "bad_words_ids": [[5, 6]], "typical_p": 1.0}"#;
    fs::write(model.join("generation_config.json"), file).unwrap();
    let output = engraft(&[
        "generate",
        "--prompt",
        PROMPT,
        "--model",
        model.to_str().unwrap(),
        "--max-new-tokens",
        "2",
    ]);
    let notes = stderr(&output);
    assert!(output.status.success(), "{notes}");
    assert!(notes.contains("not honoured: bad_words_ids, num_beams"), "{notes}");
}

#[test]
fn messages_show_no_control_characters_and_no_whole_files() {
    let model = demo_copy("control-\u{1b}[31m-\u{7}");
    fs::remove_file(model.join("config.json")).unwrap();
    let output = engraft(&["plan", "--model", model.to_str().unwrap()]);
    let notes = stderr(&output);
    assert!(!notes.contains(['\u{1b}', '\u{7}']) && notes.contains("\\u{1b}[31m"), "{notes:?}");
    let policy = folder("long-policy").join("policy.json");
    fs::write(&policy, format!(r#"{{"name": "{}", "like": 5}}"#, "x".repeat(400_000))).unwrap();
    let output = engraft(&["plan", "--policy", policy.to_str().unwrap()]);
    assert!(!output.status.success() && output.stderr.len() < 8000, "{} bytes", output.stderr.len());
}

/// What a model's files call themselves reaches the terminal on its own line, without control characters.
#[test]
fn plans_show_no_control_characters_of_a_model() {
    let model = demo_copy("control-names");
    let file = model.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let field = "a\u{1b}[2J\nforged: b";
    config["model_type"] = json!("x\u{1b}]0;title\u{7}\nforged: policy");
    config["architectures"] = json!(["Own\u{1b}[31m\nforged: ForCausalLM"]);
    config[field] = json!(["\u{1b}"]);
    fs::write(&file, config.to_string()).unwrap();
    let plan = [&["plan"][..], &["plan", "--tensors"], &["generate", "--prompt", PROMPT, "-n", "1"]];
    for args in plan {
        let output =
            engraft(&[args, &["--model", model.to_str().unwrap(), "--accept-unknown", field]].concat());
        let text = format!("{}{}", stdout(&output), stderr(&output));
        assert!(!text.contains(['\u{1b}', '\u{7}']), "{args:?}: {text:?}");
        assert!(text.lines().all(|line| !line.starts_with("forged")), "{args:?}: {text}");
    }
}

#[test]
fn a_policys_long_name_is_shown_in_part() {
    let model = demo_copy("long-name");
    let file = model.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    config["model_type"] = json!("acme");
    fs::write(&file, config.to_string()).unwrap();
    let policy = model.join("policy.json");
    let name = format!("acme\u{1b}[31m\n{}", "x".repeat(400_000));
    fs::write(&policy, json!({"name": name, "like": "llama", "model_types": ["acme"]}).to_string()).unwrap();
    let (model, policy) = (model.to_str().unwrap(), policy.to_str().unwrap());
    let plan = [&["plan"][..], &["plan", "--tensors"], &["generate", "--prompt", PROMPT, "-n", "1"]];
    for args in plan {
        let output = engraft(&[args, &["--model", model, "--policy", policy]].concat());
        let text = format!("{}{}", stdout(&output), stderr(&output));
        assert!(text.len() < 16_000, "{args:?}: {} bytes", text.len());
        assert!(!text.contains('\u{1b}') && text.contains("acme\\u{1b}[31m"), "{args:?}: {text:?}");
    }
}

/// A file size limit stands for a full disk: both end a write in the middle.
#[cfg(target_os = "linux")]
#[test]
fn a_conversion_that_fails_leaves_nothing() {
    let place = folder("full-disk");
    let (out, model) = (place.join("out"), manifest().join("../engraft/demo-model"));
    let convert = |limit: &str| {
        let script = format!("trap '' XFSZ; ulimit -f {limit}; exec \"$0\" convert \"$1\" --out \"$2\"");
        let program = env!("CARGO_BIN_EXE_engraft");
        Command::new("sh").args(["-c", &script, program]).args([&model, &out]).output().unwrap()
    };
    let failed = convert("500");
    assert_eq!(failed.status.code(), Some(1), "{}", stderr(&failed));
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0, "something is left");
    fs::create_dir(&out).unwrap();
    let failed = convert("500");
    assert!(!failed.status.success() && fs::read_dir(&out).unwrap().count() == 0, "{}", stderr(&failed));
    assert!(convert("unlimited").status.success());
    assert_eq!(fs::read_dir(&place).unwrap().count(), 1, "the folder aside is left");
    let text = |model: &Path| {
        stdout(&engraft(&[
            "generate",
            "--prompt",
            PROMPT,
            "--model",
            model.to_str().unwrap(),
            "--temperature",
            "0",
        ]))
    };
    assert_eq!(text(&out), text(&model));
}

/// What a signal ends has time to remove its folder; what is killed has none, and is named by the next one.
#[cfg(target_os = "linux")]
#[test]
fn a_conversion_that_a_signal_ends_leaves_nothing() {
    let place = folder("ended");
    let (model, out) = (place.join("model"), place.join("out"));
    fs::create_dir(&model).unwrap();
    stdout(&engraft(&["write-shape", "--shape", "S", "--weights", "f32", "--out", model.to_str().unwrap()]));
    let mut child = Command::new(env!("CARGO_BIN_EXE_engraft"))
        .arg("convert")
        .args([model.as_path(), Path::new("--out"), &out, Path::new("--quantize=int4a:32")])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let aside = place.join(format!("out.partial-{}", child.id()));
    while !aside.exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be asked to");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert!(!aside.exists() && !out.exists(), "something is left");
    let left = place.join(format!("out.partial-{}", i32::MAX));
    fs::create_dir(&left).unwrap();
    let demo = manifest().join("../engraft/demo-model");
    let next = engraft(&["convert", demo.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert!(next.status.success() && left.exists(), "{}", stderr(&next));
    assert!(stderr(&next).contains(&format!("warning: {} is what", left.display())), "{}", stderr(&next));
}

/// A link to an empty folder stands for it; one to nothing is no place.
#[cfg(unix)]
#[test]
fn a_conversion_follows_a_link() {
    let place = folder("linked");
    let (real, link, lost) = (place.join("real"), place.join("link"), place.join("lost"));
    fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    std::os::unix::fs::symlink(place.join("absent"), &lost).unwrap();
    let demo = manifest().join("../engraft/demo-model");
    let convert = |out: &Path| engraft(&["convert", demo.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    stdout(&convert(&link));
    assert!(link.is_symlink() && real.join("config.json").is_file());
    let said = stderr(&convert(&lost));
    assert!(said.contains("a link to nothing") && said.contains("empty or new folder"), "{said}");
    assert_eq!(fs::read_dir(&place).unwrap().count(), 3, "something is left");
}

#[test]
fn files_are_read_where_they_may_not_be_mapped() {
    let model = manifest().join("../engraft/demo-model");
    let run = |more: &[&str]| {
        let model = model.to_str().unwrap();
        let mut args = vec!["generate", "--prompt", PROMPT, "--temperature", "0", "--model", model];
        args.extend(more);
        stdout(&engraft(&args))
    };
    assert_eq!(run(&["--no-mmap"]), run(&[]));
}

/// The program waits before a line of its log, headers read and no weight: the pipe is full. Then the file
/// becomes shorter.
#[cfg(target_os = "linux")]
#[test]
fn a_mapped_file_that_becomes_shorter_is_named() {
    let path = demo_copy("shrunk").join("model.safetensors");
    let model = path.parent().unwrap().to_str().unwrap().to_owned();
    let (mut log, writer) = std::io::pipe().unwrap();
    // As much as a pipe holds.
    let full = vec![b'.'; 1 << 16];
    (&writer).write_all(&full).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_engraft"))
        .args(["generate", "--prompt", PROMPT, "--model", &model])
        .env("ENGRAFT_LOG", "engraft=info")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(writer)
        .spawn()
        .unwrap();
    let process = format!("/proc/{}", child.id());
    let waits = || {
        let maps = fs::read_to_string(format!("{process}/maps")).unwrap();
        let threads = fs::read_dir(format!("{process}/task")).unwrap();
        let runs = |thread: &fs::DirEntry| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            !stat.rsplit(") ").next().unwrap_or_default().starts_with('S')
        };
        maps.contains("shrunk/model.safetensors") && !threads.flatten().any(|thread| runs(&thread))
    };
    let mut quiet = 0;
    while quiet < 20 {
        quiet = if waits() { quiet + 1 } else { 0 };
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let mut said = String::new();
    log.read_to_string(&mut said).unwrap();
    let said = said.trim_start_matches('.');
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(1), "{status}: {said}");
    assert!(said.contains("headers are read"), "it waited elsewhere: {said}");
    let named = "shrunk/model.safetensors became shorter while it was mapped; --no-mmap";
    assert!(said.contains(named), "{said}");
}

#[test]
fn four_bits_have_fine_groups_unless_others_are_named() {
    let run = |format: &str| {
        let output = engraft(&[
            "generate",
            "--prompt",
            PROMPT,
            "--temperature",
            "0",
            "--max-new-tokens",
            "4",
            "--quantize",
            format,
        ]);
        (stdout(&output), stderr(&output))
    };
    let (text, notes) = run("int4");
    assert_eq!(text, run("int4a:32").0);
    assert!(!notes.contains("warning"), "{notes}");
    for coarse in ["int4:64", "int4a:128", "int4:65536"] {
        let notes = run(coarse).1;
        assert!(notes.contains(&format!("warning: {coarse} is coarse")), "{notes}");
    }
}

#[test]
fn weights_that_are_no_numbers_are_refused_by_name() {
    let model = demo_copy("no-numbers");
    let path = model.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[header..].fill(0xFF);
    fs::write(&path, bytes).unwrap();
    let output = engraft(&["generate", "--prompt", PROMPT, "--model", model.to_str().unwrap()]);
    let notes = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{notes}");
    assert!(notes.contains(".weight") && notes.contains("NaN"), "{notes}");
}

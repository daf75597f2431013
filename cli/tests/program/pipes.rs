//! Pipes and devices where a file is named: what may come from a pipe is read to its end or its limit, all
//! else is refused without waiting for a writer.

use crate::support;
use crate::support::{engraft, folder, stderr, stdout};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const PROMPT: &str = "This package provides";
/// Far more than any of these runs takes; what waits for a writer, or reads without an end, takes for ever.
const LIMIT: Duration = Duration::from_secs(60);

/// The program within [`LIMIT`], and within 4 GB: a test that fails must not take all memory.
fn within(args: &[&str], input: Stdio) -> Output {
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -v 4000000; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_engraft")])
        .args(args)
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{args:?} took more than {LIMIT:?}");
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

/// A failure with one line that has all of `words`.
fn refused(args: &[&str], words: &[&str]) {
    refused_with(args, Stdio::null(), words);
}

fn refused_with(args: &[&str], input: Stdio, words: &[&str]) {
    let output = within(args, input);
    let said = stderr(&output);
    assert!(matches!(output.status.code(), Some(1 | 2)), "{args:?}: {:?}: {said}", output.status);
    let line = said.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    assert!(words.iter().all(|word| line.contains(word)), "{args:?}: {words:?} are not all in {said}");
}

/// A pipe that nothing writes to.
fn pipe(folder: &Path, name: &str) -> String {
    let path = folder.join(name);
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path.to_str().unwrap().to_string()
}

/// A pipe that gives `text` to whoever opens it.
fn written(folder: &Path, name: &str, text: &str) -> String {
    let path = pipe(folder, name);
    let (to, text) = (path.clone(), text.to_string());
    // A program that does not open the pipe leaves the thread waiting, not the test.
    thread::spawn(move || fs::write(to, text));
    path
}

#[test]
fn configurations_policies_and_models_are_regular_files() {
    let place = folder("pipes");
    let (json, toml) = (pipe(&place, "pipe.json"), pipe(&place, "pipe.toml"));
    let out = place.join("out").to_str().unwrap().to_string();
    let regular = "is not a regular file";
    for file in [&json, &toml] {
        refused(&["plan", "--config", file], &[file, regular]);
        refused(&["plan", "--policy", file], &[file, regular]);
        refused(&["plan", "--model", file], &[file, regular]);
        refused(&["convert", file, "--out", &out], &[file, regular]);
        refused(&["plan", "--backend", "cuda", "--cuda-driver", file], &["--cuda-driver", file, regular]);
    }
    // A device says that it has no bytes, and has no end.
    let endless = place.join("endless.json");
    std::os::unix::fs::symlink("/dev/zero", &endless).unwrap();
    let endless = endless.to_str().unwrap();
    refused(&["plan", "--config", endless], &[endless, regular]);
    refused(&["plan", "--policy", endless], &[endless, regular]);
    // A file with a hole is as long as it says.
    let long = place.join("long.json");
    File::create(&long).unwrap().set_len((16 << 20) + 1).unwrap();
    let long = long.to_str().unwrap();
    refused(&["plan", "--config", long], &["is 16777217 bytes long", "at most 16777216"]);
    refused(&["plan", "--policy", long], &["is 16777217 bytes long", "at most 4194304"]);
}

#[cfg(feature = "image")]
#[test]
fn pictures_and_loras_are_regular_files() {
    let place = folder("pipes-of-pictures");
    let (file, out) = (pipe(&place, "pipe"), place.join("out.png").to_str().unwrap().to_string());
    let model = support::manifest().join("../tests/golden-image/pipelines/sd1");
    let args = ["image", "-m", model.to_str().unwrap(), "-p", "a fox", "-o", &out];
    for flag in ["--init", "--control"] {
        refused(&[&args[..], &[flag, &file]].concat(), &[&file, "is not a regular file"]);
    }
    refused(&[&args[..], &["--lora", &file]].concat(), &[&file, "is no"]);
}

#[cfg(feature = "serve")]
#[test]
fn settings_and_templates_are_regular_files_and_keys_may_come_from_a_pipe() {
    let place = folder("pipes-of-serve");
    let file = pipe(&place, "pipe");
    let regular = "is not a regular file";
    refused(&["serve", "--settings", &file], &[&file, regular]);
    refused(&["serve", "--port", "0", "--chat-template", &file], &[&file, regular]);
    let keys = written(&place, "keys", "# none\n");
    refused(&["serve", "--port", "0", "--api-key-file", &keys], &["api-key-file", "without a key"]);
}

#[test]
fn prompts_and_lines_may_come_from_a_pipe() {
    let place = folder("pipes-of-texts");
    let greedy = ["generate", "--temperature", "0", "-n", "8"];
    let want = stdout(&engraft(&[&greedy[..], &["--prompt", PROMPT]].concat()));
    let prompt = written(&place, "prompt", &format!("{PROMPT}\n"));
    let output = within(&[&greedy[..], &["--prompt-file", &prompt]].concat(), Stdio::null());
    assert_eq!(stdout(&output), want);
    let lines = place.join("lines.txt");
    fs::write(&lines, "a text\nanother\n").unwrap();
    let want = stdout(&engraft(&["embed", "--plain", lines.to_str().unwrap()]));
    let lines = written(&place, "lines", "a text\nanother\n");
    assert_eq!(stdout(&within(&["embed", "--plain", &lines], Stdio::null())), want);
    assert_eq!(want.lines().count(), 2, "{want}");
}

#[test]
fn texts_without_an_end_have_a_limit() {
    let endless = || Stdio::from(File::open("/dev/zero").unwrap());
    let most = "has more than 67108864 bytes";
    refused(&["generate", "--prompt-file", "/dev/zero"], &["/dev/zero", most]);
    refused_with(&["generate", "--prompt-file", "-"], endless(), &["standard input", most]);
    refused_with(&["generate"], endless(), &["standard input", most]);
    refused(&["embed", "--plain", "/dev/zero"], &["/dev/zero, line 1", most]);
    refused_with(&["chat"], endless(), &["standard input", most]);
}

#[cfg(feature = "speech")]
#[test]
fn a_sound_may_come_from_a_pipe_and_from_no_device() {
    let place = folder("pipes-of-sounds");
    let sound = written(&place, "sound", "RIFF");
    refused(&["transcribe", &sound, "-m", "no/such/model"], &[&sound, "WAV"]);
    refused(&["transcribe", "/dev/zero", "-m", "no/such/model"], &["/dev/zero", "is a device"]);
}

#[cfg(target_os = "linux")]
#[test]
fn help_that_cannot_be_written_is_an_error() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_engraft")).arg("--help").stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("error: cannot write: "), "{}", stderr(&output));
}

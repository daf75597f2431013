//! What files of a model and prompts may cost the program: each of the hostile templates and tokenizers ends
//! within a second, and within 100 MB above what the program takes with an honest model. Time is the
//! processor's, of all threads: what else runs on the machine does not count.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../core/tests/support/hostile_text.rs"]
mod hostile_text;
mod support;

use std::fs;
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::{demo_copy, folder};

const MOST_TIME: Duration = Duration::from_secs(1);
const MOST_BYTES: i64 = 100_000_000;

/// What a run of the program came to.
struct Run {
    /// Of the processor.
    time: Duration,
    /// The largest resident size.
    bytes: i64,
    status: i32,
    said: String,
}

// Reason: `wait4` waits for the child, and says what it used.
#[allow(clippy::zombie_processes)]
fn run(args: &[&str], input: &str) -> Run {
    let mut child = Command::new(env!("CARGO_BIN_EXE_engraft"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that fails before it reads has closed the pipe.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let mut said = Vec::new();
    child.stderr.take().unwrap().read_to_end(&mut said).unwrap();
    let mut status = 0;
    let mut usage = MaybeUninit::zeroed();
    let id = child.id().try_into().unwrap();
    // SAFETY: the child is this process's own and nobody else waits for it; both places are valid, and an
    // all-zero `rusage` is one.
    let (waited, usage) = unsafe {
        let waited = libc::wait4(id, &raw mut status, 0, usage.as_mut_ptr());
        (waited, usage.assume_init())
    };
    assert_eq!(waited, id);
    let status = if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) };
    let said = String::from_utf8_lossy(&said).into_owned();
    let of = |time: libc::timeval| Duration::new(time.tv_sec as u64, 1000 * time.tv_usec as u32);
    Run { time: of(usage.ru_utime) + of(usage.ru_stime), bytes: 1024 * usage.ru_maxrss, status, said }
}

/// A run within the limits.
fn bounded(what: &str, honest: &Run, args: &[&str], input: &str) -> Run {
    let run = run(args, input);
    assert!(run.time < honest.time + MOST_TIME, "{what}: {:?}, {:?} of an honest one", run.time, honest.time);
    let more = run.bytes - honest.bytes;
    assert!(more < MOST_BYTES, "{what}: {more} bytes more than an honest one");
    run
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn hostile_templates_cost_a_conversation_no_more_than_their_limits() {
    let model = demo_copy("bounded-templates");
    let place = model.join("chat_template.jinja");
    let args = ["chat", "--model", text(&model), "--max-new-tokens", "2"];
    fs::write(&place, "{% for m in messages %}{{ m.content }}{% endfor %}").unwrap();
    let honest = run(&args, "Hello\n/help\n");
    assert_eq!(honest.status, 0, "{}", honest.said);
    let mut refused = 0;
    for template in hostile_text::TEMPLATES {
        fs::write(&place, template).unwrap();
        let run = bounded(template, &honest, &args, "Hello\n/help\n");
        // A message that could not be answered is said at the end of what a pipe gave.
        let failed = i32::from(run.said.contains("error: "));
        assert_eq!(run.status, failed, "{template}: {}", run.said);
        assert!(run.said.contains("/retry"), "{template}: the conversation ended: {}", run.said);
        assert!(!run.said.contains("panic"), "{template}: {}", run.said);
        assert!(run.said.len() < 16_000, "{template}: {} bytes of messages", run.said.len());
        refused += usize::from(run.said.contains("error: chat template, line 1: "));
    }
    // A few ask for little after all.
    assert!(refused * 10 > hostile_text::TEMPLATES.len() * 9, "{refused}");
}

#[test]
fn hostile_tokenizers_are_refused_within_the_same_limits() {
    let model = demo_copy("bounded-tokenizers");
    let args = ["generate", "--prompt", "This package", "-n", "1", "--model", text(&model)];
    let honest = run(&args, "");
    assert_eq!(honest.status, 0, "{}", honest.said);
    for (what, json, word) in hostile_text::tokenizers() {
        fs::write(model.join("tokenizer.json"), json).unwrap();
        let run = bounded(what, &honest, &args, "");
        assert_eq!(run.status, 1, "{what}: {}", run.said);
        assert!(run.said.contains(word) && run.said.contains("tokenizer.json"), "{what}: {}", run.said);
    }
}

#[test]
fn long_prompts_are_refused_within_the_same_limits() {
    let model = demo_copy("bounded-long-prompts");
    let prompt = model.join("prompt.txt");
    let honest = run(&["generate", "--prompt", "This package", "-n", "1", "--model", text(&model)], "");
    assert_eq!(honest.status, 0, "{}", honest.said);
    let args = ["generate", "--prompt-file", text(&prompt), "-n", "1", "--model", text(&model)];
    for (what, json, long, word) in hostile_text::long_prompts() {
        fs::write(model.join("tokenizer.json"), json).unwrap();
        fs::write(&prompt, long).unwrap();
        let run = bounded(what, &honest, &args, "");
        assert!(run.status == 1 && run.said.contains(word), "{what}: {}", run.said);
    }
}

#[test]
fn a_prompt_of_ten_megabytes_is_refused_before_it_is_tokenized() {
    let prompt = folder("bounded-prompt").join("prompt.txt");
    fs::write(&prompt, "This package provides words. ".repeat(10_000_000 / 29)).unwrap();
    let honest = run(&["generate", "--prompt", "This package", "-n", "1"], "");
    let run = bounded("a long prompt", &honest, &["generate", "--prompt-file", text(&prompt)], "");
    assert!(run.status == 1 && run.said.contains("tokens at least"), "{}", run.said);
}

//! What templates, tokenizers and prompts may cost a server: each of the hostile ones ends within a second
//! and 100 MB above the model, and `/health` answers meanwhile.
//!
//! Time is the processor's, of all threads of this process, where the system says it; memory is what all of
//! them have allocated. So tests wait for each other, and the client's part counts, too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
#[path = "../../core/tests/support/hostile_text.rs"]
mod hostile_text;
#[path = "../../core/tests/support/meter.rs"]
mod meter;

use common::{Running, config, read, request, start, start_with};
use engraft::Options;
use engraft_server::{Server, ServerConfig};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[global_allocator]
static METER: meter::Meter = meter::Meter;

const MOST_TIME: Duration = Duration::from_secs(1);
const MOST_BYTES: usize = 100_000_000;
/// A prompt of ten megabytes, and what stands around it.
const MOST_BODY: usize = 12 << 20;
/// Nanoseconds of a tick of `/proc`, which has a hundred a second.
const TICK: u64 = 10_000_000;

/// One measurement at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long this process has been at work since `begin`, whose ticks were `before`.
fn at_work(begin: Instant, before: Option<u64>) -> Duration {
    match (before, ticks()) {
        (Some(before), Some(now)) => Duration::from_nanos((now - before) * TICK),
        _ => begin.elapsed(),
    }
}

/// Ticks of all threads so far: fields 14 and 15 of `/proc/self/stat`, where the name of the program, which
/// may have blanks, is the second.
fn ticks() -> Option<u64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

/// What `work` gives, its time and its memory.
fn measured<T>(work: impl FnOnce() -> T) -> (T, (Duration, usize)) {
    let (begin, before) = (Instant::now(), ticks());
    let (out, peak) = meter::peak_of_all(work);
    (out, (at_work(begin, before), peak))
}

/// Runs `work` within the limits above what an honest one takes.
fn bounded<T>(what: &str, honest: (Duration, usize), work: impl FnOnce() -> T) -> T {
    let (out, (time, peak)) = measured(work);
    assert!(time < honest.0 + MOST_TIME, "{what}: {time:?}, {:?} of an honest one", honest.0);
    assert!(peak < honest.1 + MOST_BYTES, "{what}: {peak} bytes, {} of an honest one", honest.1);
    out
}

/// What the start of a server of the demo model takes.
fn honest_start() -> (Duration, usize) {
    let (server, cost) = measured(|| Server::bind(config(), common::demo).map(drop));
    server.unwrap();
    cost
}

/// Says that something has ended, however it did.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// The same of a request, while others ask whether the server is well: its status, and its text.
fn asked(what: &str, server: &Running, path: &str, body: &str) -> (u16, String) {
    let (ended, well) = (AtomicBool::new(false), AtomicUsize::new(0));
    let bytes = request(path, "Content-Type: application/json\r\n", body);
    let answer = std::thread::scope(|scope| {
        let health = || {
            // Once at least, and then as long as the request runs.
            loop {
                assert_eq!(server.get("/health").status, 200, "{what}");
                well.fetch_add(1, Relaxed);
                if ended.load(Relaxed) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        scope.spawn(health);
        // An answer beyond its limits ends the others' questions as well, or the test would never end.
        let _end = End(&ended);
        bounded(&format!("{what} at {path}"), (Duration::ZERO, 0), || {
            let mut stream = server.connect();
            stream.write_all(bytes.as_bytes()).unwrap();
            read(stream)
        })
    });
    assert!(well.load(Relaxed) > 0, "{what}");
    (answer.status, answer.text())
}

fn conversation() -> String {
    json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}).to_string()
}

#[test]
fn hostile_templates_end_their_request_within_their_limits() {
    let _alone = alone();
    let (honest, mut refused) = (honest_start(), 0);
    for template in hostile_text::TEMPLATES {
        let config = || ServerConfig { chat_template: Some((*template).into()), ..config() };
        // One that does not compile ends the server's start: that is bounded likewise.
        let bound = bounded(template, honest, || Server::bind(config(), common::demo).map(drop));
        if let Err(error) = bound {
            assert!(error.to_string().contains("template"), "{template}: {error}");
            refused += 1;
            continue;
        }
        let server = start(config());
        let (status, text) = asked(template, &server, "/v1/chat/completions", &conversation());
        // One that writes more than the context holds is refused for that.
        let named = ["chat template", "context_length_exceeded"].iter().any(|what| text.contains(what));
        assert!(status == 200 || status == 400 && named, "{template}: {text}");
        assert!(!text.contains("panic") && text.len() < 16_000, "{template}: {} bytes", text.len());
        refused += usize::from(status == 400);
        // The server is as it was.
        let body = json!({"prompt": "x", "max_tokens": 1});
        assert_eq!(server.post("/v1/completions", &body).status, 200, "{template}");
    }
    // A few ask for little after all.
    assert!(refused * 5 > hostile_text::TEMPLATES.len() * 4, "{refused}");
}

/// The demo model with another tokenizer.
fn with_tokenizer(name: &str, json: &str) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engraft/demo-model");
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bounded-{name}"));
    let _ = fs::remove_dir_all(&to);
    fs::create_dir_all(&to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    fs::write(to.join("tokenizer.json"), json).unwrap();
    to
}

fn load(folder: &Path) -> impl Fn() -> engraft::Result<engraft::TextGenerator> + Send + Sync + use<> {
    let folder = folder.to_str().unwrap().to_owned();
    move || Options::new().max_seqs(2).open(folder.as_str())
}

/// The start of a server includes its model: the limits are those above an honest one.
#[test]
fn hostile_tokenizers_end_the_start_within_their_limits() {
    let _alone = alone();
    let honest = honest_start();
    for (number, (what, json, word)) in hostile_text::tokenizers().into_iter().enumerate() {
        let folder = with_tokenizer(&format!("tokenizer-{number}"), &json);
        let start = || Server::bind(config(), load(&folder)).map(drop);
        let error = bounded(what, honest, start).expect_err(what).to_string();
        assert!(error.contains(word) && error.contains("tokenizer.json"), "{what}: {error}");
    }
}

#[test]
fn long_prompts_are_refused_within_the_same_limits() {
    let _alone = alone();
    let config = || ServerConfig { max_body_bytes: MOST_BODY, ..config() };
    for (number, (what, json, prompt, _)) in hostile_text::long_prompts().into_iter().enumerate() {
        let folder = with_tokenizer(&format!("prompt-{number}"), &json);
        let server = start_with(config(), load(&folder));
        let of = |field: &str, value: Value| json!({field: value, "max_tokens": 1}).to_string();
        let chat = json!([{"role": "user", "content": prompt}]);
        for (path, body) in
            [("/v1/completions", of("prompt", json!(prompt))), ("/v1/chat/completions", of("messages", chat))]
        {
            let (status, text) = asked(what, &server, path, &body);
            assert!(status == 400 && text.len() < 4096, "{what} at {path}: {status}, {} bytes", text.len());
        }
        let embedding = json!({"input": prompt}).to_string();
        let (status, text) = asked(what, &server, "/v1/embeddings", &embedding);
        assert!(status == 400, "{what}: {status}, {} bytes", text.len());
    }
}

//! Many requests at once, most of them well: every innocent answer equals the oracle, whatever the others do.
//!
//! `ENGRAFT_CAMPAIGN=100000 cargo test --release -p engraft-server --test campaign -- --nocapture` runs more
//! and prints what was counted; `ENGRAFT_SEED` sets the seed. From 10^5 requests on resident memory may not
//! grow by more than 5 % of what it is once a quarter has run: the clients live in the same process, and what
//! its allocator holds grows ever more slowly.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Running, config, demo, read, request, start};
use engraft::GenerateOptions;
use engraft_server::ServerConfig;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PROMPTS: [&str; 6] =
    ["This package provides", "A library for", "The GNU", "Tools to", "This is a", "network daemon"];
const JSON: &str = "Content-Type: application/json\r\n";

/// A small generator of numbers, so that a seed gives the campaign again.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// What a request asks for, and what the library gives for it.
struct Case {
    body: Value,
    want: String,
}

fn cases() -> Vec<Case> {
    let model = demo().unwrap();
    let mut all = Vec::new();
    for prompt in PROMPTS {
        for seed in 0..4 {
            for tokens in [1, 7, 30] {
                let options =
                    GenerateOptions::new().max_new_tokens(tokens).temperature(0.8).top_k(40).seed(seed);
                let want = model.generate(prompt, &options).unwrap().text().unwrap();
                let body = json!({"prompt": prompt, "max_tokens": tokens, "temperature": 0.8, "top_k": 40,
                    "seed": seed});
                all.push(Case { body, want });
            }
        }
    }
    all
}

fn innocent(server: &Running, case: &Case, stream: bool) {
    let mut body = case.body.clone();
    body["stream"] = json!(stream);
    let answer = server.post("/v1/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let (text, choices) = match stream {
        true => {
            let events = answer.events();
            let choices = events.iter().map(|event| event["choices"][0].clone()).collect();
            (common::text_of(&events, 0), choices)
        }
        false => {
            let choice = answer.json()["choices"][0].clone();
            (choice["text"].as_str().unwrap().to_owned(), vec![choice])
        }
    };
    assert_eq!(text, case.want, "{body}");
    let ends = choices.iter().filter(|choice: &&Value| choice["finish_reason"].is_string()).count();
    assert_eq!(ends, 1, "ends of {body}");
}

/// A client that goes away after some bytes.
fn vanished(server: &Running, case: &Case, after: usize, stream: bool) {
    let mut body = case.body.clone();
    (body["stream"], body["n"]) = (json!(stream), json!(3));
    let mut connection = server.connect();
    connection.write_all(request("/v1/completions", JSON, &body.to_string()).as_bytes()).unwrap();
    let mut bytes = vec![0; after];
    let _ = connection.set_read_timeout(Some(Duration::from_millis(20)));
    let _ = connection.read(&mut bytes);
}

fn malformed(server: &Running, which: u64) {
    let bad = match which % 6 {
        0 => request("/v1/completions", JSON, "{\"prompt\": "),
        1 => request("/v1/completions", JSON, "{\"prompt\": 7}"),
        2 => request("/v1/completions", JSON, "{\"prompt\": \"x\", \"temperature\": -3}"),
        3 => request("/v1/completions", JSON, "{\"prompt\": \"x\", \"nothing\": 1}"),
        4 => request("/v1/chat/completions", JSON, "{\"messages\": [{\"role\": \"user\"}]}"),
        _ => "GET /v1/completions HTTP/1.1\r\nConnection: close\r\nHost: localhost\r\n\r\n".into(),
    };
    let answer = server.raw(bad.as_bytes());
    assert!((400..500).contains(&answer.status), "{} {}", answer.status, answer.text());
    assert!(answer.json()["error"]["message"].is_string());
}

/// A client that sends or reads a byte at a time.
fn slow(server: &Running, case: &Case, sends: bool) {
    let mut connection = server.connect();
    let bytes = request("/v1/completions", JSON, &case.body.to_string());
    if !sends {
        connection.write_all(bytes.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(30));
        let answer = read(connection);
        assert_eq!(answer.json()["choices"][0]["text"], json!(case.want));
        return;
    }
    for part in bytes.as_bytes().chunks(bytes.len().div_ceil(12)) {
        connection.write_all(part).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(read(connection).json()["choices"][0]["text"], json!(case.want));
}

/// A client that closes its half of the connection: it is taken for one that went away.
fn half_closed(server: &Running, case: &Case) {
    let mut connection = server.connect();
    connection.write_all(request("/v1/completions", JSON, &case.body.to_string()).as_bytes()).unwrap();
    connection.shutdown(Shutdown::Write).unwrap();
    let mut line = String::new();
    let _ = BufReader::new(connection).read_line(&mut line);
    assert!(line.is_empty() || line.starts_with("HTTP/1.1 200"), "{line}");
}

fn resident_kib() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.trim().parse().ok())
}

/// What the clients share.
struct Campaign<'a> {
    server: &'a Running,
    cases: Vec<Case>,
    total: usize,
    seed: u64,
    begun: AtomicUsize,
    /// Of each kind: innocent, vanished, malformed, slow, half closed.
    ended: [AtomicUsize; 5],
    /// Another client has failed: the others need not go on.
    failed: AtomicBool,
    /// Resident memory once a quarter has run.
    warm: Mutex<Option<usize>>,
}

impl Campaign<'_> {
    /// Sends requests until all have been sent.
    fn client(&self, number: u64) {
        let mut numbers = Numbers(self.seed * 1000 + number);
        loop {
            let at = self.begun.fetch_add(1, Ordering::Relaxed);
            if at >= self.total || self.failed.load(Ordering::Relaxed) {
                return;
            }
            if at == self.total / 4 {
                *self.warm.lock().unwrap() = resident_kib();
            }
            let failing = Failing(&self.failed);
            let kind = self.one(&mut numbers);
            std::mem::forget(failing);
            self.ended[kind].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn one(&self, numbers: &mut Numbers) -> usize {
        let (server, case) = (self.server, &self.cases[numbers.below(self.cases.len() as u64) as usize]);
        match numbers.below(100) {
            0..20 => {
                let (after, stream) = (numbers.below(900) as usize, numbers.below(2) == 0);
                vanished(server, case, after, stream);
                1
            }
            20..25 => {
                malformed(server, numbers.below(6));
                2
            }
            25..28 => {
                slow(server, case, numbers.below(2) == 0);
                3
            }
            28..30 => {
                half_closed(server, case);
                4
            }
            _ => {
                innocent(server, case, numbers.below(2) == 0);
                0
            }
        }
    }
}

/// Dropped by a panic alone.
struct Failing<'a>(&'a AtomicBool);

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The sum of a metric over its labels.
fn sum(metrics: &str, name: &str) -> f64 {
    let values =
        metrics.lines().filter(|line| line.starts_with(name)).filter_map(|line| line.rsplit(' ').next());
    values.map(|value| value.parse::<f64>().unwrap()).sum()
}

/// Every sequence that was begun has ended once, and holds nothing; how many there were.
fn all_ended(server: &Running) -> f64 {
    let began = Instant::now();
    let load = || server.get("/load").json()["server_load"].as_u64().unwrap();
    while load() > 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "{} requests have not ended", load());
        std::thread::sleep(Duration::from_millis(20));
    }
    let held = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"];
    // What was cancelled is gone a step later.
    let mut metrics = server.get("/metrics").text();
    while held.iter().any(|name| sum(&metrics, name) != 0.0) {
        assert!(began.elapsed() < Duration::from_secs(60), "the engine still holds something: {metrics}");
        std::thread::sleep(Duration::from_millis(20));
        metrics = server.get("/metrics").text();
    }
    let (begun, ended) =
        (sum(&metrics, "vllm:request_params_n_count"), sum(&metrics, "vllm:request_success_total"));
    assert_eq!(begun, ended, "one end for each sequence");
    ended
}

#[test]
fn innocents_have_their_answers_whatever_others_do() {
    let number = |name: &str, default: usize| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is {text}; allowed: a whole number")),
        Err(_) => default,
    };
    let (total, seed) = (number("ENGRAFT_CAMPAIGN", 400), number("ENGRAFT_SEED", 1) as u64);
    let server = start(ServerConfig { max_queued: 4096, ..config() });
    let campaign = Campaign {
        server: &server,
        cases: cases(),
        total,
        seed,
        begun: AtomicUsize::new(0),
        ended: Default::default(),
        failed: AtomicBool::new(false),
        warm: Mutex::new(None),
    };
    let began = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let campaign = &campaign;
            scope.spawn(move || campaign.client(thread));
        }
    });
    let sequences = all_ended(&server);
    let ended = campaign.ended.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert_eq!(ended.iter().sum::<usize>(), total, "one end for each request");
    assert!(ended[0] * 2 > total, "{} innocents of {total}", ended[0]);
    let (warm, now) = (campaign.warm.lock().unwrap().unwrap_or(0), resident_kib().unwrap_or(0));
    println!(
        "{total} requests, seed {seed}, {:?}: {ended:?} innocent, vanished, malformed, slow, half closed; \
         {sequences} sequences; resident {warm} then {now} KiB",
        began.elapsed()
    );
    assert!(total < 100_000 || now <= warm + warm / 20, "resident memory grew from {warm} to {now} KiB");
}

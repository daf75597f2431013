//! Many requests at once, most of them well: every innocent answer equals the oracle, whatever the others do.
//!
//! `ENGRAFT_CAMPAIGN=100000 cargo test --release -p engraft-server --test campaign` runs more; `ENGRAFT_SEED`
//! sets the seed.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Running, config, demo, read, request, start};
use engraft::GenerateOptions;
use engraft_server::ServerConfig;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

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
    let text = match stream {
        true => common::text_of(&answer.events(), 0),
        false => answer.json()["choices"][0]["text"].as_str().unwrap().to_owned(),
    };
    assert_eq!(text, case.want, "{body}");
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
        _ => "GET /v1/completions HTTP/1.1\r\nConnection: close\r\nHost: x\r\n\r\n".into(),
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

#[test]
fn innocents_have_their_answers_whatever_others_do() {
    let number = |name: &str, default: usize| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (total, seed) = (number("ENGRAFT_CAMPAIGN", 400), number("ENGRAFT_SEED", 1) as u64);
    let server = start(ServerConfig { max_queued: 4096, ..config() });
    let cases = cases();
    let (done, innocents) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let warm = std::sync::Mutex::new(None);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (server, cases, done, innocents, warm) = (&server, &cases, &done, &innocents, &warm);
            scope.spawn(move || {
                let mut numbers = Numbers(seed * 1000 + thread);
                loop {
                    let at = done.fetch_add(1, Ordering::Relaxed);
                    if at >= total {
                        return;
                    }
                    if at == total / 4 {
                        *warm.lock().unwrap() = resident_kib();
                    }
                    let case = &cases[numbers.below(cases.len() as u64) as usize];
                    match numbers.below(100) {
                        0..20 => {
                            let (after, stream) = (numbers.below(900) as usize, numbers.below(2) == 0);
                            vanished(server, case, after, stream);
                        }
                        20..25 => malformed(server, numbers.below(6)),
                        25..28 => slow(server, case, numbers.below(2) == 0),
                        28..30 => half_closed(server, case),
                        _ => {
                            innocent(server, case, numbers.below(2) == 0);
                            innocents.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let load = || server.get("/load").json()["server_load"].as_u64().unwrap();
    for _ in 0..500 {
        if load() == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(load(), 0, "every request has ended");
    let metrics = server.get("/metrics").text();
    for name in ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"] {
        let line = metrics.lines().find(|l| l.starts_with(name)).unwrap();
        assert!(line.ends_with(" 0"), "{line}");
    }
    let count = innocents.load(Ordering::Relaxed);
    assert!(count * 2 > total, "{count} innocents of {total}");
    println!(
        "{total} requests, {count} innocents, resident {:?} then {:?} KiB",
        warm.lock().unwrap(),
        resident_kib()
    );
}

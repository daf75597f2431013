//! A campaign over HTTP, against a server in a process of its own whose engine fails over and over.
//!
//! `ENGRAFT_CAMPAIGN=100000 cargo test -p serve-http --test campaign -- --nocapture` runs as many requests
//! and prints what was counted; `ENGRAFT_SEED` sets the seed. A fifth of the clients go away somewhere, one
//! of twenty is malformed, some read slowly, close their half, send or read a byte a second; steps fail, the
//! engine's thread panics, the device is lost; in the end a signal comes while clients ask. Every innocent
//! client has the oracle's tokens in the end, asking again where a planned failure ended it; every sequence
//! ends once; at rest nothing is held, and (from 10^5 requests on) what the server's process has in memory
//! stays within 1 %.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod case;
mod client;
mod clients;

use case::{Came, World};
use client::{Server, post, read};
use clients::Campaign;
use serde_json::json;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// Parts of a campaign, with a rest behind each.
const PARTS: usize = 20;

fn number(name: &str, default: usize) -> usize {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is {text}; allowed: a whole number")),
        Err(_) => default,
    }
}

/// Waits until `done`.
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what} does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Nothing is left of any request.
fn at_rest(server: &Server) {
    eventually("the end of all requests", || {
        let held = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"];
        server.get("/load").text().contains(":0") && held.iter().all(|name| server.metric(name) == 0.0)
    });
}

#[test]
fn innocents_have_their_answers_whatever_clients_and_engines_do() {
    let (total, seed) = (number("ENGRAFT_CAMPAIGN", 1500), number("ENGRAFT_SEED", 1) as u64);
    // Some failures, however short it is, and some hundred of a long one.
    let faults = (total * 2).clamp(1000, 100_000).to_string();
    let server = Server::start(&["--faults", &faults, "--seed", &seed.to_string(), "--seqs", "8"]);
    let campaign = Campaign::new(&server, World::new(), seed);
    let (began, mut resident) = (Instant::now(), Vec::new());
    std::thread::scope(|scope| {
        let slowest = scope.spawn(|| campaign.slowest());
        for part in 0..PARTS {
            campaign.part(total / PARTS);
            at_rest(&server);
            resident.push(server.resident());
            println!(
                "{} requests, {:?}: {} kB resident",
                (part + 1) * total / PARTS,
                began.elapsed(),
                resident[part]
            );
        }
        campaign.stop();
        slowest.join().unwrap();
    });
    at_rest(&server);
    let (begun, ended) =
        (server.metric("vllm:request_params_n_count"), server.metric("vllm:request_success_total"));
    assert_eq!(begun, ended, "one end for each sequence");
    println!("seed {seed}, {:?}: {}; {ended} sequences", began.elapsed(), campaign.counted());
    campaign.is_as_planned(total);
    campaign.until_a_signal();
    let failed = campaign.failed();
    let (status, failures) = server.failures();
    assert!(status.success(), "a signal is no failure");
    println!("{failures} failures of engines ended {failed} attempts that ran");
    clients::explained(failed, failures);
    // An engine that has just been loaded has less than one that has run for long: the median of rests.
    let (warm, now) = (median(&resident[PARTS / 5..PARTS / 2]), median(&resident[PARTS * 7 / 10..]));
    let change = (now - warm) / warm;
    println!(
        "resident from a fifth to a half, and in the last three tenths: {warm} and {now} kB ({:+.2} %)",
        change * 100.0
    );
    assert!(total < 100_000 || change <= 0.01, "resident memory grew by {:.2} %", change * 100.0);
}

/// Reads `count` events of a stream.
fn events(stream: &mut std::net::TcpStream, count: usize) -> Vec<u8> {
    let (mut all, mut some) = (Vec::new(), [0; 4096]);
    while all.windows(6).filter(|window| window == b"data: ").count() < count {
        let n = stream.read(&mut some).unwrap();
        assert!(n > 0, "{}", String::from_utf8_lossy(&all));
        all.extend(&some[..n]);
    }
    all
}

/// At 250 ms a step there is time to see which step a client goes away in.
#[test]
fn pages_of_who_goes_away_are_free_one_collect_later() {
    let server = Server::start(&["--wait", "250", "--seqs", "4"]);
    for (what, n, prompt) in [("decode", 4, vec![5; 9]), ("prefill", 1, vec![7; 200])] {
        let body = json!({"prompt": prompt, "max_tokens": 40, "n": n, "ignore_eos": true, "stream": true,
            "temperature": 1, "seed": 1});
        let mut stream = server.connect().unwrap();
        stream.write_all(post("/v1/completions", &body.to_string()).as_bytes()).unwrap();
        match what {
            "decode" => drop(events(&mut stream, 8)),
            _ => eventually("its turn", || server.metric("vllm:num_requests_running") > 0.0),
        }
        drop(stream);
        // It is taken between two steps, and counted at once.
        eventually("the cancel", || server.metric("vllm:num_requests_running") == 0.0);
        let taken = server.metric("engraft:steps_total");
        eventually("its pages", || server.metric("vllm:kv_cache_usage_perc") == 0.0);
        let steps = server.metric("engraft:steps_total") - taken;
        println!("{what}: {steps} steps until its pages are free");
        // The one that was launched ahead.
        assert!(steps <= 1.0, "{what}: {steps} steps");
    }
}

#[test]
fn a_signal_lets_streams_end_and_takes_no_requests() {
    let world = World::new();
    let case = world.lasting(60);
    let server = Server::start(&["--wait", "10"]);
    let mut stream = server.connect().unwrap();
    stream.write_all(case.bytes(true, "before").as_bytes()).unwrap();
    let mut all = events(&mut stream, 2);
    server.terminate();
    eventually("the drain", || server.get("/ready").status == 503);
    assert_eq!(server.get("/live").status, 200);
    let late = server.raw(case.bytes(false, "late").as_bytes()).unwrap();
    assert_eq!((late.status, late.has_header("retry-after")), (503, true), "{}", late.text());
    stream.read_to_end(&mut all).unwrap();
    assert_eq!(case.judge(true, &client::answer(&all).unwrap()), Came::Right);
    assert!(server.ended().success());
    // No time: what still runs ends with an error in its stream.
    let server = Server::start(&["--wait", "50", "--drain", "100"]);
    let mut stream = server.connect().unwrap();
    stream.write_all(case.bytes(true, "long").as_bytes()).unwrap();
    let head = events(&mut stream, 2);
    server.terminate();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    let text = String::from_utf8_lossy(&[head, rest].concat()).into_owned();
    assert!(text.contains("the server ends") && !text.contains("[DONE]"), "{text}");
    assert!(server.ended().success());
}

/// The clients' half of the connection is closed, or the connection is, before anything was asked.
#[test]
fn connections_without_requests_end() {
    let server = Server::start(&[]);
    let nothing = server.connect().unwrap();
    nothing.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(read(nothing).is_none_or(|answer| answer.status == 408 || answer.status == 400));
    let many: Vec<_> = (0..200).map(|_| server.connect().unwrap()).collect();
    drop(many);
    assert_eq!(server.get("/health").status, 200);
}

/// A client that asks for much and reads nothing has what its connection holds, and is ended.
#[test]
fn who_takes_nothing_is_ended() {
    let server = Server::start(&["--idle", "--seqs", "128", "--context", "512", "--write", "300"]);
    let before = server.resident();
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 500, "n": 128, "ignore_eos": true, "stream": true,
        "return_token_ids": true, "skip_special_tokens": false, "request_id": "x".repeat(100)});
    let mut stream = server.connect().unwrap();
    stream.write_all(post("/v1/completions", &body.to_string()).as_bytes()).unwrap();
    eventually("its turn", || server.metric("vllm:request_params_n_count") > 0.0);
    let most = std::cell::Cell::new(before);
    eventually("its end", || {
        most.set(most.get().max(server.resident()));
        server.get("/load").text().contains(":0")
    });
    at_rest(&server);
    assert_eq!(server.metric("vllm:request_success_total"), 128.0);
    // The tokens that were not sent wait as tokens, a few bytes each.
    let grown = most.get() - before;
    println!("a client that reads nothing: {grown} kB");
    assert!(grown < 64_000.0, "{grown} kB");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(!String::from_utf8_lossy(&rest).contains("[DONE]"));
}

//! Answers that their clients read slowly or not at all: they count, they have bounded room, and their time.
//!
//! Over a Unix socket, whose buffers have a fixed size: TCP takes as much as it likes.

use crate::common::{Answer, answer, config, demo, eventually, request};
use engraft_server::{Server, ServerConfig, Stop};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const JSON: &str = "Content-Type: application/json\r\n";
/// More than these tests take.
const LONG: Duration = Duration::from_secs(600);

struct Serving {
    socket: PathBuf,
    stop: Stop,
    thread: Option<JoinHandle<engraft::Result<()>>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.end();
        let _ = self.thread.take().map(JoinHandle::join);
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Serving {
    fn new(name: &str, config: ServerConfig) -> Self {
        let socket = std::env::temp_dir().join(format!("engraft-{name}-{}.sock", std::process::id()));
        let config = ServerConfig { uds: Some(socket.clone()), write_timeout: LONG, ..config };
        let server = Server::bind(config, demo).unwrap();
        let stop = server.stop();
        Self { socket, stop, thread: Some(std::thread::spawn(move || server.run())) }
    }

    /// Sends a request, and reads nothing.
    fn asked(&self, path: &str, body: &Value) -> UnixStream {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(request(path, JSON, &body.to_string()).as_bytes()).unwrap();
        stream
    }

    fn load(&self) -> u64 {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.write_all(b"GET /load HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        read(stream).json()["server_load"].as_u64().unwrap()
    }
}

fn read(mut stream: UnixStream) -> Answer {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    answer(&all)
}

/// Requests whose answers have more than 500 kB: a socket and a connection hold less.
fn large() -> [(&'static str, Value); 3] {
    let text = "This package provides ".repeat(20_000);
    let many: Vec<Vec<u32>> = (0..1000).map(|id| vec![5 + id % 7]).collect();
    [
        ("/tokenize", json!({"prompt": text, "return_token_strs": true})),
        ("/v1/embeddings", json!({"input": many})),
        ("/rerank", json!({"query": "x", "documents": vec!["This package provides ".repeat(25); 1000]})),
    ]
}

#[test]
fn an_answer_counts_until_it_is_read_and_the_next_one_waits_for_its_room() {
    // Less than one large answer.
    let server = Serving::new("room", ServerConfig { max_unsent_bytes: 64 << 10, ..config() });
    for (path, body) in large() {
        let slow = server.asked(path, &body);
        // The first bytes are there once it is made.
        let mut first = [0; 15];
        (&slow).read_exact(&mut first).unwrap();
        assert_eq!(&first, b"HTTP/1.1 200 OK");
        let next = server.asked(path, &body);
        std::thread::sleep(Duration::from_millis(1500));
        assert_eq!(server.load(), 2, "{path}: an answer that is not read does not count");
        next.set_nonblocking(true).unwrap();
        let error = (&next).read(&mut [0; 16]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{path}: there was no room");
        next.set_nonblocking(false).unwrap();
        // Small ones go past.
        assert_eq!(read(server.asked("/tokenize", &json!({"prompt": "This"}))).status, 200);
        let mut rest = Vec::new();
        (&slow).read_to_end(&mut rest).unwrap();
        assert!(rest.len() > 500_000, "{path}: {} bytes", rest.len());
        assert_eq!(answer(&[&first[..], &rest].concat()).status, 200);
        let next = read(next);
        assert_eq!(next.status, 200);
        assert!(next.json().is_object());
        eventually("an empty server", || server.load() == 0);
    }
}

#[test]
fn a_server_that_drains_waits_for_answers_to_be_read() {
    for (path, body) in large() {
        let server = Serving::new("drained", config());
        let slow = server.asked(path, &body);
        let mut first = [0; 15];
        (&slow).read_exact(&mut first).unwrap();
        server.stop.drain();
        // Longer than what is left has behind the end.
        std::thread::sleep(Duration::from_secs(3));
        let mut rest = Vec::new();
        (&slow).read_to_end(&mut rest).unwrap();
        let whole = answer(&[&first[..], &rest].concat());
        assert!(whole.json().is_object(), "{path}");
    }
}

#[test]
fn a_server_ends_while_all_its_connections_are_in_use() {
    let mut server = Serving::new("ended", ServerConfig { max_connections: 1, ..config() });
    let (path, body) = &large()[1];
    let slow = server.asked(path, body);
    (&slow).read_exact(&mut [0; 15]).unwrap();
    let began = Instant::now();
    server.stop.end();
    let thread = server.thread.take().unwrap();
    eventually("the end", || thread.is_finished());
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    thread.join().unwrap().unwrap();
}

/// Its body is not asked for anything while it reads nothing.
#[test]
fn a_stream_that_is_not_read_has_its_time() {
    let limit = Duration::from_millis(300);
    let server = Serving::new("late", ServerConfig { request_timeout: Some(limit), ..config() });
    let body = json!({"prompt": "This package", "n": 64, "max_tokens": 400, "ignore_eos": true,
        "temperature": 1, "stream": true, "seed": 1, "return_token_ids": true, "request_id": "x".repeat(100)});
    let mut slow = server.asked("/v1/completions", &body);
    eventually("the request", || server.load() == 1);
    eventually("its end", || server.load() == 0);
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest);
    assert!(!String::from_utf8_lossy(&rest).contains("[DONE]"));
}

/// Texts that take the engine a while.
fn slow_texts() -> [(&'static str, Value); 3] {
    let texts: Vec<String> = (0..2048).map(|i| format!("{i} {}", "a package of texts ".repeat(30))).collect();
    [
        ("/v1/embeddings", json!({"input": texts})),
        ("/score", json!({"text_1": "a package", "text_2": texts})),
        ("/rerank", json!({"query": "a package", "documents": texts})),
    ]
}

#[test]
fn texts_have_their_time() {
    let limit = Duration::from_millis(300);
    let server = Serving::new("time", ServerConfig { request_timeout: Some(limit), ..config() });
    for (path, body) in slow_texts() {
        let began = Instant::now();
        let error = read(server.asked(path, &body)).error(408);
        assert!(error["message"].as_str().unwrap().contains("300ms"), "{path}: {error}");
        assert!(began.elapsed() < Duration::from_secs(10), "{path}: {:?}", began.elapsed());
        eventually("an empty server", || server.load() == 0);
    }
}

#[test]
fn texts_end_with_an_error_when_the_drain_is_over() {
    for (path, body) in slow_texts() {
        let server =
            Serving::new("over", ServerConfig { drain_timeout: Duration::from_millis(100), ..config() });
        let running = server.asked(path, &body);
        eventually("the request", || server.load() == 1);
        server.stop.drain();
        let error = read(running).error(503);
        assert!(error["message"].as_str().unwrap().contains("the server ends"), "{path}: {error}");
    }
}

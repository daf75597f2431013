//! A server in this process on a free port, and a client that writes bytes to a socket.

#![allow(dead_code)]

use engraft::{Result, TextGenerator};
use engraft_server::{Address, Model, Server, ServerConfig, Stop};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time for all of an answer. A time for each read bounds nothing: a stream's comments keep coming.
const ANSWER: Duration = Duration::from_secs(120);

/// A running server; dropping it ends it.
pub struct Running {
    pub address: SocketAddr,
    pub stop: Stop,
    thread: Option<JoinHandle<Result<()>>>,
}

/// An answer as it came.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

/// A configuration for a free port, with a template that writes the last message as it is.
pub fn config() -> ServerConfig {
    ServerConfig {
        port: 0,
        served_model_name: vec!["demo".into()],
        chat_template: Some("{{ bos_token }}{{ messages[-1]['content'] }}".into()),
        ..ServerConfig::default()
    }
}

pub fn demo() -> Result<TextGenerator> {
    engraft::Options::new().max_seqs(8).open(engraft::ModelSource::Demo)
}

pub fn start(config: ServerConfig) -> Running {
    start_with(config, demo)
}

pub fn start_with<M: Into<Model>>(
    config: ServerConfig,
    load: impl Fn() -> Result<M> + Send + Sync + 'static,
) -> Running {
    let server = Server::bind(config, load).unwrap();
    let Address::Tcp(address, _) = server.address().clone() else { panic!("{}", server.address()) };
    let stop = server.stop();
    Running { address, stop, thread: Some(std::thread::spawn(move || server.run())) }
}

impl Running {
    /// Waits for the end.
    pub fn join(mut self) {
        self.thread.take().unwrap().join().unwrap().unwrap();
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Sends a request of these bytes and reads its answer, whose connection closes behind it.
    pub fn raw(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        read(stream)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.raw(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())
    }

    pub fn post_text(&self, path: &str, headers: &str, body: &str) -> Answer {
        self.raw(request(path, headers, body).as_bytes())
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_text(path, "Content-Type: application/json\r\n", &body.to_string())
    }

    /// Sends a request whose answer is streamed, and returns the connection behind the head.
    pub fn open(&self, path: &str, body: &Value) -> BufReader<TcpStream> {
        let mut stream = self.connect();
        stream
            .write_all(request(path, "Content-Type: application/json\r\n", &body.to_string()).as_bytes())
            .unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 200"), "{line}");
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).unwrap();
        }
        reader
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub fn request(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    )
}

/// Reads an answer to its connection's end.
pub fn read(mut stream: TcpStream) -> Answer {
    let (mut all, mut some, began) = (Vec::new(), [0; 16 << 10], Instant::now());
    loop {
        let n = stream.read(&mut some).unwrap_or_else(|e| panic!("{e} after {}", clipped(&all)));
        if n == 0 {
            break;
        }
        all.extend(&some[..n]);
        assert!(began.elapsed() < ANSWER, "no end within {ANSWER:?}: {}", clipped(&all));
    }
    answer(&all)
}

/// An answer of these bytes.
pub fn answer(all: &[u8]) -> Answer {
    let at = all
        .windows(4)
        .position(|w| w == b"\r\n\r\n")
        .unwrap_or_else(|| panic!("an answer without a head: {:?}", String::from_utf8_lossy(all)));
    let head = String::from_utf8(all[..at].to_vec()).unwrap();
    let status = head[9..12].parse().unwrap();
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { unchunked(&all[at + 4..]) } else { all[at + 4..].to_vec() };
    Answer { status, head, body }
}

/// The end of what came.
fn clipped(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(400)..]).into_owned()
}

/// The bytes of chunks.
pub fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(end) = bytes.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            break;
        }
        all.extend(&bytes[end + 2..end + 2 + size]);
        bytes = &bytes[end + 2 + size + 2..];
    }
    all
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {} {}", self.head, self.text()))
    }

    /// The object of an error, with the status that was expected.
    pub fn error(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        self.json()["error"].clone()
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<String> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then(|| value.to_owned())
        })
    }

    /// The chunks of a stream, which ends with `[DONE]`.
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text());
        let text = self.text();
        let body = text.strip_suffix("data: [DONE]\n\n").unwrap_or_else(|| panic!("no end: {text}"));
        let events = body.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap());
        events.map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

/// The text of a continuation in the chunks of a stream.
pub fn text_of(events: &[Value], index: u64) -> String {
    let choices = events.iter().flat_map(|e| e["choices"].as_array().unwrap());
    let of = choices.filter(|choice| choice["index"] == index);
    of.map(|c| c["text"].as_str().or(c["delta"]["content"].as_str()).unwrap_or_default()).collect()
}

/// The value of the metric whose line begins so.
pub fn metric(server: &Running, name: &str) -> f64 {
    let text = server.get("/metrics").text();
    let line =
        text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}: {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Waits until `done`, for half a minute.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what} does not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}

//! Answers with pictures that their clients do not read: what is made and not sent is bounded.
//!
//! Over a Unix socket, whose buffers have a fixed size: TCP takes as much as it likes.

use crate::common::{Answer, answer, config, eventually, request};
use engraft::engraft_diffusion::engraft_image::encode_png;
use engraft::{ImageHandle, ImageOptions};
use engraft_server::{Server, ServerConfig};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PATH: &str = "/v1/images/generations";

struct Serving {
    socket: PathBuf,
    stop: engraft_server::Stop,
    thread: Option<std::thread::JoinHandle<engraft::Result<()>>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.end();
        let _ = self.thread.take().unwrap().join();
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Serving {
    fn new(name: &str, config: ServerConfig) -> Self {
        let socket = std::env::temp_dir().join(format!("engraft-{name}-{}.sock", std::process::id()));
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden-image/pipelines/sd1");
        let config = ServerConfig { uds: Some(socket.clone()), ..config };
        let load = move || ImageHandle::open(&folder, &ImageOptions::default());
        let server = Server::bind(config, load).unwrap();
        let stop = server.stop();
        Self { socket, stop, thread: Some(std::thread::spawn(move || server.run())) }
    }

    /// Sends bytes, and reads nothing.
    fn sent(&self, bytes: &[u8]) -> UnixStream {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    }

    fn asked(&self, body: &Value) -> UnixStream {
        self.sent(request(PATH, "Content-Type: application/json\r\n", &body.to_string()).as_bytes())
    }

    fn get(&self, path: &str) -> String {
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        read(self.sent(head.as_bytes())).text()
    }

    /// Pictures that were made.
    fn images(&self) -> u64 {
        let text = self.get("/metrics");
        let line = text.lines().find(|line| line.starts_with("engraft:images_total")).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    fn load(&self) -> Value {
        serde_json::from_str(&self.get("/load")).unwrap()
    }
}

fn read(mut stream: UnixStream) -> Answer {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    answer(&all)
}

/// Pictures of about 1 MB of base64: more than a socket and a connection hold.
fn large() -> Value {
    json!({"prompt": "a fox", "size": "256x256", "n": 4, "num_inference_steps": 1, "guidance_scale": 1,
        "seed": 1})
}

fn small() -> Value {
    json!({"prompt": "a fox", "size": "16x16", "num_inference_steps": 1, "seed": 2})
}

/// Less than one large answer: the next request waits for it.
fn own() -> ServerConfig {
    ServerConfig { chat_template: None, max_unsent_bytes: 64 << 10, max_queued: 1, ..config() }
}

#[test]
fn answers_that_are_not_read_keep_the_next_request_waiting() {
    let server = Serving::new("unsent", own());
    let slow = server.asked(&large());
    eventually("four pictures", || server.images() == 4);
    let next = server.asked(&small());
    eventually("both requests", || server.load()["server_load"] == 2);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(server.images(), 4, "more was made while an answer beyond the bound was not read");
    // A third one finds the queue full.
    let refused = read(server.asked(&small()));
    let error = refused.error(429);
    assert_eq!(error["code"], "rate_limit_exceeded", "{error}");
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    // The slow one has all of its answer, and then the next one its own.
    let read_late = read(slow);
    assert_eq!(read_late.status, 200);
    assert!(read_late.body.len() > 700_000, "{} bytes", read_late.body.len());
    assert_eq!(read_late.json()["data"].as_array().unwrap().len(), 4);
    let next = read(next);
    assert_eq!((next.status, next.json()["data"].as_array().unwrap().len()), (200, 1));
    assert_eq!(server.images(), 5);
}

#[test]
fn a_client_that_leaves_without_reading_frees_its_bytes() {
    let server = Serving::new("left", own());
    let slow = server.asked(&large());
    eventually("four pictures", || server.images() == 4);
    let next = server.asked(&small());
    drop(slow);
    assert_eq!(read(next).status, 200);
    eventually("an empty server", || server.load()["server_load"] == 0);
}

/// A request for an edit whose body comes in chunks: nothing says how long it is.
fn chunked() -> Vec<u8> {
    let image = encode_png(&[9; 16 * 16 * 3], 16, 16).unwrap();
    let mut body = Vec::new();
    for (name, text) in [("prompt", "a fox"), ("num_inference_steps", "2")] {
        write!(body, "--line\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n").unwrap();
    }
    let file = "Content-Disposition: form-data; name=\"image\"; filename=\"a.png\"";
    write!(body, "--line\r\n{file}\r\nContent-Type: image/png\r\n\r\n").unwrap();
    body.extend(image);
    body.extend(b"\r\n--line--\r\n");
    let head = "POST /v1/images/edits HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
        Content-Type: multipart/form-data; boundary=line\r\nTransfer-Encoding: chunked\r\n\r\n";
    [format!("{head}{:x}\r\n", body.len()).as_bytes(), &body, b"\r\n0\r\n\r\n"].concat()
}

#[test]
fn a_body_in_chunks_keeps_the_room_of_its_bytes() {
    // A body of the largest size takes all the room for bodies.
    let config = ServerConfig { max_body_bytes: 256 << 20, ..own() };
    let server = Serving::new("chunked", config);
    let slow = server.asked(&large());
    eventually("four pictures", || server.images() == 4);
    let next = server.sent(&chunked());
    eventually("both requests", || server.load()["server_load"] == 2);
    let error = read(server.asked(&json!({}))).error(400);
    assert!(error["message"].as_str().unwrap().contains("prompt"), "{error}");
    assert_eq!(read(slow).status, 200);
    let next = read(next);
    assert_eq!(next.status, 200, "{}", next.text());
}

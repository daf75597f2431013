//! A server in a process of its own, and a client that writes bytes to a socket.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Time for all of an answer.
const ANSWER: Duration = Duration::from_secs(120);

/// A server; dropping it ends it.
pub struct Server {
    child: Child,
    /// What it has not said yet.
    said: BufReader<ChildStdout>,
    pub address: String,
}

impl Server {
    /// A server with these flags.
    pub fn start(flags: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_serve-null"));
        // What threads that have ended leave in arenas of their own is the allocator's, and comes and goes.
        command.env("MALLOC_ARENA_MAX", "1").env("MALLOC_TRIM_THRESHOLD_", "0");
        let mut child = command.args(flags).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (mut line, mut said) = (String::new(), BufReader::new(child.stdout.take().unwrap()));
        said.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").expect("an address").to_owned();
        Self { child, said, address }
    }

    pub fn connect(&self) -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.set_write_timeout(Some(Duration::from_secs(60)))?;
        Ok(stream)
    }

    /// Sends bytes and reads an answer; none where the connection ends without one.
    pub fn raw(&self, bytes: &[u8]) -> Option<Answer> {
        let mut stream = self.connect().ok()?;
        stream.write_all(bytes).ok()?;
        read(stream)
    }

    pub fn get(&self, path: &str) -> Answer {
        let bytes = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        self.raw(bytes.as_bytes()).expect("an answer")
    }

    /// The sum of a metric over its labels.
    pub fn metric(&self, name: &str) -> f64 {
        let text = String::from_utf8(self.get("/metrics").body).unwrap();
        let lines = text.lines().filter(|line| line.strip_prefix(name).is_some_and(|l| l.starts_with('{')));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    /// Kilobytes that it has in memory.
    pub fn resident(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    pub fn terminate(&self) {
        let sent = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for its end, and for the number of failures that it says.
    pub fn failures(mut self) -> (ExitStatus, usize) {
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).unwrap();
        (self.ended(), rest.trim().parse().unwrap())
    }

    /// Waits for its end.
    pub fn ended(mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "the server does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
}

/// An answer as it came.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

/// Reads an answer to its connection's end; none where that comes before all of the head.
pub fn read(mut stream: TcpStream) -> Option<Answer> {
    let (mut all, mut some, began) = (Vec::new(), [0; 16 << 10], Instant::now());
    while let Ok(n) = stream.read(&mut some) {
        all.extend(&some[..n]);
        if n == 0 {
            break;
        }
        assert!(began.elapsed() < ANSWER, "no end within {ANSWER:?}: {}", String::from_utf8_lossy(&all));
    }
    answer(&all)
}

pub fn answer(all: &[u8]) -> Option<Answer> {
    let at = all.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = String::from_utf8(all[..at].to_vec()).unwrap();
    let status = head[9..12].parse().unwrap();
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { unchunked(&all[at + 4..]) } else { all[at + 4..].to_vec() };
    Some(Answer { status, head, body })
}

/// The bytes of chunks, as far as they came.
fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(end) = bytes.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        let whole = end + 2 + size + 2;
        if size == 0 || bytes.len() < whole {
            break;
        }
        all.extend(&bytes[end + 2..end + 2 + size]);
        bytes = &bytes[whole..];
    }
    all
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn has_header(&self, name: &str) -> bool {
        self.head.lines().any(|line| line.to_ascii_lowercase().starts_with(&format!("{name}:")))
    }

    /// What an error says.
    pub fn error(&self) -> String {
        let value: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        value["error"]["message"].as_str().unwrap_or_default().to_owned()
    }
}

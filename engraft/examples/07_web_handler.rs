//! Text over HTTP, streamed as it is sampled: one model, as many requests at once as there are connections.
//!
//! `cargo run --release -p engraft --example 07_web_handler [ADDRESS]`, then
//! `curl -N --data "This package provides" http://ADDRESS/`
//!
//! Without an address it asks itself a few times and ends. The server is the standard library's, a thread per
//! connection; in an async framework a handler returns `model.generate(&prompt, &options)?.into_stream()` as
//! its body, and the framework bounds heads, bodies, times and connections.

use engraft::{Error, GenerateOptions, Options, TextGenerator};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Why a request is not served: a status of HTTP, and the reason for whoever asked.
type Refusal = (&'static str, String);

/// Bytes of a request's head at most.
const LONGEST_HEAD: usize = 8 << 10;
/// Bytes of a prompt at most.
const LONGEST_BODY: usize = 64 << 10;
/// How long a client may take to send or to read something.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the example asks itself, and the status that it expects.
const ASKED: [(&str, &str, &str); 4] = [
    ("Content-Length: 21", "This package provides", "200"),
    ("Content-Length: 9999999", "", "413"),
    ("Content-Length: many", "", "400"),
    ("X-Nothing: 1", "", "411"),
];

fn main() -> Result<(), Failure> {
    // Requests of several threads run as one batch of up to so many; more of them wait.
    let model = Arc::new(Options::new().max_seqs(8).open(engraft::ModelSource::Demo)?);
    let address = std::env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0"))?;
    let here = listener.local_addr()?;
    eprintln!("http://{here}/");
    let asks = address.is_none().then(|| thread::spawn(move || ask(&here.to_string())));
    let connections = if asks.is_some() { ASKED.len() } else { usize::MAX };
    for connection in listener.incoming().take(connections) {
        let (connection, model) = (connection?, model.clone());
        thread::spawn(move || {
            if let Err(error) = handle(connection, &model) {
                eprintln!("a request failed: {error}");
            }
        });
    }
    if let Some(client) = asks {
        print!("{}", client.join().map_err(|_| "the client panicked")??);
    }
    Ok(())
}

/// Reads a prompt and writes its continuation, piece by piece.
fn handle(mut connection: TcpStream, model: &TextGenerator) -> Result<(), Failure> {
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    let options = GenerateOptions::new().max_new_tokens(64).stop("\n\n").no_special_in_user_text();
    // What is wrong with a request is said before anything runs.
    let begun = prompt(&mut connection)
        .and_then(|prompt| model.generate(&prompt, &options).map_err(|e| (status(&e), e.to_string())));
    let mut pieces = match begun {
        Ok(pieces) => pieces,
        Err((status, reason)) => {
            return Ok(write!(
                connection,
                "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n\
                 Content-Length: {}\r\nConnection: close\r\n\r\n{reason}\n",
                reason.len() + 1
            )?);
        }
    };
    write!(
        connection,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
    )?;
    // A client that goes away makes the write fail: the stream is dropped, and with it the request.
    pieces.try_for_each(|piece| Ok(connection.write_all(piece?.as_bytes())?))
}

/// Whose fault an error is.
fn status(error: &Error) -> &'static str {
    match error {
        Error::TextTooLong { .. } | Error::KvFull { .. } => "413 Content Too Large",
        Error::Internal { .. } | Error::DeviceLost { .. } => "500 Internal Server Error",
        _ => "400 Bad Request",
    }
}

/// The body of a request, by its `Content-Length`.
fn prompt(connection: &mut TcpStream) -> Result<String, Refusal> {
    let bad = |reason: String| ("400 Bad Request", reason);
    let mut reader = BufReader::new(connection);
    let (mut head, mut length) = (0, None);
    loop {
        let mut line = String::new();
        let room = (LONGEST_HEAD - head) as u64 + 1;
        let read = reader.by_ref().take(room).read_line(&mut line).map_err(|e| bad(e.to_string()))?;
        head += read;
        if head > LONGEST_HEAD {
            let reason = format!("the head has more than {LONGEST_HEAD} bytes");
            return Err(("431 Request Header Fields Too Large", reason));
        }
        match line.trim_end() {
            _ if read == 0 => return Err(bad("the request ends within its head".into())),
            "" => break,
            field => {
                if let Some((name, value)) = field.split_once(':')
                    && name.eq_ignore_ascii_case("content-length")
                {
                    let number = value.trim().parse::<usize>();
                    length = Some(number.map_err(|e| bad(format!("Content-Length {}: {e}", value.trim())))?);
                }
            }
        }
    }
    let Some(length) = length else {
        return Err(("411 Length Required", "a prompt needs a Content-Length".into()));
    };
    if length > LONGEST_BODY {
        let reason = format!("the prompt has {length} bytes; at most {LONGEST_BODY} are read");
        return Err(("413 Content Too Large", reason));
    }
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes).map_err(|e| bad(format!("the prompt of {length} bytes: {e}")))?;
    String::from_utf8(bytes).map_err(|e| bad(format!("the prompt is no UTF-8: {e}")))
}

/// What `curl` does, well and badly.
fn ask(address: &str) -> Result<String, Failure> {
    let mut seen = String::new();
    for (field, prompt, want) in ASKED {
        let mut connection = TcpStream::connect(address)?;
        write!(connection, "POST / HTTP/1.1\r\n{field}\r\n\r\n{prompt}")?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        let (head, text) = answer.split_once("\r\n\r\n").ok_or("an answer without a body")?;
        if !head.starts_with(&format!("HTTP/1.1 {want}")) {
            return Err(format!("{field}: {want} was expected, not {head}").into());
        }
        seen += &match want {
            "200" => format!("{prompt}{text}\n"),
            refused => format!("{refused}: {text}"),
        };
    }
    Ok(seen)
}

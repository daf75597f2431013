//! Text over HTTP, streamed as it is sampled: one model, as many requests at once as there are connections.
//!
//! `cargo run --release -p engraft --example 07_web_handler [ADDRESS]`, then
//! `curl -N --data "This package provides" http://ADDRESS/`
//!
//! Without an address it asks itself once and ends. The server is the standard library's, a thread per
//! connection; in an async framework a handler returns `model.generate(&prompt, &options)?.into_stream()` as
//! its body.

use engraft::{GenerateOptions, Options, TextGenerator};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Bytes of a prompt at most.
const LONGEST: usize = 64 << 10;

fn main() -> Result<(), Failure> {
    // Requests of several threads run as one batch of up to so many; more of them wait.
    let model = Arc::new(Options::new().max_seqs(8).open(engraft::ModelSource::Demo)?);
    let address = std::env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0"))?;
    let here = listener.local_addr()?;
    eprintln!("http://{here}/");
    let asks = address.is_none().then(|| thread::spawn(move || ask(&here.to_string())));
    for connection in listener.incoming() {
        let (connection, model) = (connection?, model.clone());
        let served = thread::spawn(move || {
            if let Err(error) = handle(connection, &model) {
                eprintln!("a request failed: {error}");
            }
        });
        if asks.is_some() {
            served.join().map_err(|_| "a handler panicked")?;
            break;
        }
    }
    if let Some(client) = asks {
        print!("{}", client.join().map_err(|_| "the client panicked")??);
    }
    Ok(())
}

/// Reads a prompt and writes its continuation, piece by piece.
fn handle(mut connection: TcpStream, model: &TextGenerator) -> Result<(), Failure> {
    let prompt = body(&mut connection)?;
    let options = GenerateOptions::new().max_new_tokens(64).stop("\n\n").no_special_in_user_text();
    let mut pieces = match model.generate(&prompt, &options) {
        Ok(pieces) => pieces,
        // What is wrong with a request is said before anything runs.
        Err(error) => {
            return Ok(write!(connection, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n{error}\n")?);
        }
    };
    write!(
        connection,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
    )?;
    // A client that goes away makes the write fail: the stream is dropped, and with it the request.
    pieces.try_for_each(|piece| Ok(connection.write_all(piece?.as_bytes())?))
}

/// The body of a request, by its `Content-Length`.
fn body(connection: &mut TcpStream) -> Result<String, Failure> {
    let mut reader = BufReader::new(connection);
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line)? > 2 {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
        line.clear();
    }
    let mut text = String::new();
    reader.take(LONGEST.min(length) as u64).read_to_string(&mut text)?;
    Ok(text)
}

/// What `curl` does.
fn ask(address: &str) -> Result<String, Failure> {
    let (mut connection, prompt) = (TcpStream::connect(address)?, "This package provides");
    write!(connection, "POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n{prompt}", prompt.len())?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    let (head, text) = answer.split_once("\r\n\r\n").ok_or("an answer without a body")?;
    match head.starts_with("HTTP/1.1 200") {
        true => Ok(format!("{prompt}{text}\n")),
        false => Err(head.to_string().into()),
    }
}

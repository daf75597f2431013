//! `serve-streams HOST:PORT STREAMS TOKENS`: so many streamed completions at once, each of so many tokens,
//! and how many tokens came a second, from the first connection to the last token. One thread looks at all
//! sockets in turn, so that the client takes little of what the server needs.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What a stream ends with.
const DONE: &[u8] = b"data: [DONE]\n\n";

struct Stream {
    socket: TcpStream,
    events: usize,
    /// The last bytes, which may be the beginning of an event or of the end.
    tail: Vec<u8>,
    ended: bool,
}

impl Stream {
    fn open(address: &str, tokens: usize, at: usize) -> std::io::Result<Self> {
        let body = format!(
            "{{\"prompt\": [{}, 7, 9, 11], \"max_tokens\": {tokens}, \"ignore_eos\": true, \"temperature\": 0, \
             \"skip_special_tokens\": false, \"stream\": true}}",
            5 + at
        );
        let mut socket = TcpStream::connect(address)?;
        write!(
            socket,
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, events: 0, tail: Vec::new(), ended: false })
    }

    /// Reads what is there; whether something was.
    fn look(&mut self, room: &mut [u8]) -> std::io::Result<bool> {
        let n = match self.socket.read(room) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        let (mark, old) = (b"data: {", self.tail.len());
        self.tail.extend_from_slice(&room[..n]);
        // Those that end behind what was looked at before.
        let marks = self.tail.windows(mark.len()).enumerate();
        self.events += marks.filter(|(at, window)| at + mark.len() > old && window == mark).count();
        self.ended |= self.tail.windows(DONE.len()).any(|window| window == DONE);
        self.tail.drain(..self.tail.len().saturating_sub(DONE.len() - 1));
        Ok(true)
    }
}

fn run() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [address, streams, tokens] = &args[..] else {
        return Err(std::io::Error::other("usage: serve-streams HOST:PORT STREAMS TOKENS"));
    };
    let number = |text: &String| text.parse::<usize>().map_err(std::io::Error::other);
    let (streams, tokens) = (number(streams)?, number(tokens)?);
    let began = Instant::now();
    let opened: std::io::Result<Vec<Stream>> =
        (0..streams).map(|at| Stream::open(address, tokens, at)).collect();
    let (mut all, mut room, mut last) = (opened?, vec![0; 64 << 10], began);
    while all.iter().any(|stream| !stream.ended) {
        for stream in all.iter_mut().filter(|stream| !stream.ended) {
            if stream.look(&mut room)? {
                last = Instant::now();
            }
        }
        // Often enough for a step, seldom enough for the server.
        std::thread::sleep(Duration::from_millis(2));
    }
    let seconds = (last - began).as_secs_f64();
    let events: usize = all.iter().map(|stream| stream.events).sum();
    let wanted = streams * tokens;
    println!(
        "{streams} streams of {tokens} tokens: {wanted} tokens in {events} events, {seconds:.3} s, {:.0} tokens/s",
        wanted as f64 / seconds
    );
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

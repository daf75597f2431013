//! What clients do, well and ill.

use crate::case::{Came, World};
use crate::client::{Server, post, read};
use serve_http::Dice;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Clients at once.
const CLIENTS: u64 = 8;
/// Requests at once, those of the slowest among them.
const AT_ONCE: usize = CLIENTS as usize + 1;
/// Attempts of a request: failures come often, but not as often as that.
const ATTEMPTS: usize = 200;
/// What a client of a byte a second waits for.
const SECOND: Duration = Duration::from_secs(1);
/// The server's limits and what a busy machine adds to them.
const SOON: Duration = Duration::from_secs(20);

/// Requests that no server should take.
const MALFORMED: [(&str, &str); 12] = [
    ("/v1/completions", "{\"prompt\": "),
    ("/v1/completions", "{\"prompt\": 7}"),
    ("/v1/completions", "{\"prompt\": [4000000000]}"),
    ("/v1/completions", "{\"prompt\": \"x\", \"temperature\": -3}"),
    ("/v1/completions", "{\"prompt\": \"x\", \"nothing\": 1}"),
    ("/v1/completions", "{\"prompt\": \"x\", \"max_tokens\": 1, \"max_tokens\": 2}"),
    ("/v1/completions", "{\"prompt\": \"\\ud800\"}"),
    ("/v1/completions", "[[[[[[[[[[[[[[[["),
    ("/v1/chat/completions", "{\"messages\": [{\"role\": \"user\"}]}"),
    ("/v1/embeddings", "{\"input\": []}"),
    ("/tokenize", "{}"),
    ("/v1/nothing", "{}"),
];

/// What the clients share.
pub struct Campaign<'a> {
    server: &'a Server,
    world: World,
    seed: u64,
    begun: AtomicUsize,
    ended: [AtomicUsize; WAYS.len()],
    /// Attempts that a planned failure ended.
    failed: AtomicUsize,
    stopped: AtomicBool,
}

const WAYS: [&str; 6] = ["innocent", "vanished", "malformed", "slow", "half closed", "a byte a second"];

/// Lets the other clients know of a panic.
struct Failing<'a>(&'a AtomicBool);

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Relaxed);
        }
    }
}

impl<'a> Campaign<'a> {
    pub fn new(server: &'a Server, world: World, seed: u64) -> Self {
        let (begun, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let ended = [const { AtomicUsize::new(0) }; WAYS.len()];
        Self { server, world, seed, begun, ended, failed, stopped: AtomicBool::new(false) }
    }

    /// Runs `count` requests.
    pub fn part(&self, count: usize) {
        let most = self.begun.load(Relaxed) + count;
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let dice = Dice::new(self.seed * 1_000_003 + client * 7919 + most as u64);
                scope.spawn(move || self.client(dice, most));
            }
        });
        self.begun.store(most, Relaxed);
    }

    fn client(&self, mut dice: Dice, most: usize) {
        let _failing = Failing(&self.stopped);
        loop {
            let at = self.begun.fetch_add(1, Relaxed);
            if at >= most || self.stopped.load(Relaxed) {
                return;
            }
            let way = match dice.below(100) {
                0..20 => self.vanished(&mut dice, at),
                20..25 => self.malformed(&mut dice),
                25..28 => self.slow(&mut dice, at),
                28..30 => self.half_closed(&mut dice, at),
                _ => self.innocent(&mut dice, at),
            };
            self.ended[way].fetch_add(1, Relaxed);
        }
    }

    fn innocent(&self, dice: &mut Dice, at: usize) -> usize {
        let (case, stream) = (self.world.any(dice), dice.once_in(2));
        self.until_right(at, |name| {
            let answer = self.server.raw(case.bytes(stream, name).as_bytes()).expect("an answer");
            case.judge(stream, &answer)
        });
        0
    }

    /// Asks until a planned failure is no answer any more.
    fn until_right(&self, at: usize, mut ask: impl FnMut(&str) -> Came) {
        for attempt in 0..ATTEMPTS {
            match ask(&format!("{at}-{attempt}")) {
                Came::Right => return,
                Came::Wrong(what) => panic!("{what}"),
                Came::Failed(said) => {
                    // Who comes while an engine is loaded comes again, as often as that takes.
                    let ran = !said.starts_with("the engine starts anew");
                    self.failed.fetch_add(usize::from(ran), Relaxed);
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
        panic!("request {at} fails each time");
    }

    /// A client that goes away: before all of its request, before its answer, or in the middle of it.
    fn vanished(&self, dice: &mut Dice, at: usize) -> usize {
        let (case, stream) = (self.world.any(dice), dice.once_in(2));
        let bytes = case.bytes(stream, &format!("{at}-v"));
        let sent = if dice.once_in(4) { dice.below(bytes.len()) } else { bytes.len() };
        let mut connection = self.server.connect().unwrap();
        connection.write_all(&bytes.as_bytes()[..sent]).unwrap();
        if sent == bytes.len() && dice.once_in(2) {
            let _ = connection.set_read_timeout(Some(Duration::from_millis(1 + dice.below(10) as u64)));
            let _ = connection.read(&mut vec![0; 1 + dice.below(900)]);
        }
        1
    }

    fn malformed(&self, dice: &mut Dice) -> usize {
        let (path, body) = dice.pick(&MALFORMED);
        let bytes = match dice.below(4) {
            0 => "GET /v1/completions HTTP/1.1\r\nConnection: close\r\nHost: localhost\r\n\r\n".into(),
            1 => format!("{}\u{0}\r\n\r\n", "x".repeat(dice.below(300))),
            _ => post(path, body),
        };
        // What is no HTTP may end without an answer; while the model is loaded anew nothing is looked at.
        if let Some(answer) = self.server.raw(bytes.as_bytes()) {
            let refused = (400..500).contains(&answer.status) || answer.status == 503;
            assert!(refused, "{bytes}: {} {}", answer.status, answer.text());
        }
        2
    }

    /// A client that sends or reads its bytes in many small parts.
    fn slow(&self, dice: &mut Dice, at: usize) -> usize {
        let (case, stream, sends) = (self.world.any(dice), dice.once_in(2), dice.once_in(2));
        let size = 1 + dice.below(60);
        self.until_right(at, |name| {
            let bytes = case.bytes(stream, name);
            let mut connection = self.server.connect().unwrap();
            for part in bytes.as_bytes().chunks(if sends { size } else { bytes.len() }) {
                connection.write_all(part).unwrap();
                std::thread::sleep(Duration::from_millis(u64::from(sends)));
            }
            let answer = if sends { read(connection) } else { read_slowly(connection, size) };
            case.judge(stream, &answer.expect("an answer"))
        });
        3
    }

    /// A client that closes its half of the connection counts as gone: it has all of its answer or not.
    fn half_closed(&self, dice: &mut Dice, at: usize) -> usize {
        let (case, stream) = (self.world.any(dice), dice.once_in(2));
        let mut connection = self.server.connect().unwrap();
        connection.write_all(case.bytes(stream, &format!("{at}-h")).as_bytes()).unwrap();
        connection.shutdown(Shutdown::Write).unwrap();
        if let Some(answer) = read(connection) {
            assert!([200, 500, 503].contains(&answer.status), "{} {}", answer.status, answer.text());
        }
        4
    }

    /// Clients of a byte a second, one after the other, as long as the others go on and each once at least.
    pub fn slowest(&self) {
        let _failing = Failing(&self.stopped);
        let mut dice = Dice::new(self.seed + 77);
        loop {
            let began = Instant::now();
            let mut head = self.server.connect().unwrap();
            for byte in b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Long: ".iter().cycle() {
                if head.write_all(&[*byte]).is_err() || is_over(&head) {
                    break;
                }
                assert!(began.elapsed() < SOON, "a head of a byte a second goes on");
                std::thread::sleep(SECOND);
            }
            let began = Instant::now();
            let mut body = self.server.connect().unwrap();
            let bytes = self.world.any(&mut dice).bytes(false, "drip");
            let at = bytes.find("\r\n\r\n").unwrap() + 4;
            body.write_all(&bytes.as_bytes()[..at]).unwrap();
            for byte in &bytes.as_bytes()[at..] {
                if body.write_all(&[*byte]).is_err() || is_over(&body) {
                    break;
                }
                assert!(began.elapsed() < SOON, "a body of a byte a second goes on");
                std::thread::sleep(SECOND);
            }
            if let Some(answer) = read(body) {
                assert_eq!(answer.status, 408, "{}", answer.text());
            }
            self.reads_a_byte_a_second(&mut dice);
            self.ended[5].fetch_add(3, Relaxed);
            if self.stopped.load(Relaxed) {
                return;
            }
        }
    }

    fn reads_a_byte_a_second(&self, dice: &mut Dice) {
        let case = self.world.any(dice);
        self.until_right(usize::MAX, |name| {
            let mut connection = self.server.connect().unwrap();
            connection.write_all(case.bytes(true, name).as_bytes()).unwrap();
            let mut all = vec![0; 4];
            for byte in &mut all {
                connection.read_exact(std::slice::from_mut(byte)).unwrap();
                std::thread::sleep(SECOND);
            }
            let _ = connection.read_to_end(&mut all);
            case.judge(true, &crate::client::answer(&all).expect("an answer"))
        });
    }

    pub fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }

    /// What was counted, in words.
    pub fn counted(&self) -> String {
        let ended = WAYS.iter().zip(&self.ended).map(|(way, n)| format!("{} {way}", n.load(Relaxed)));
        let ended: Vec<String> = ended.collect();
        format!("{}; {} attempts ended by planned failures", ended.join(", "), self.failed.load(Relaxed))
    }

    /// There was what there had to be.
    pub fn is_as_planned(&self, total: usize) {
        let ended = self.ended.each_ref().map(|count| count.load(Relaxed));
        assert_eq!(ended[..5].iter().sum::<usize>(), total, "one end for each request");
        assert!(ended[0] * 2 > total && ended[1] * 10 > total, "{ended:?}");
        assert!(ended[5] >= 3 && self.failed.load(Relaxed) > 0, "{}", self.counted());
    }

    /// Attempts that ran when an engine failed.
    pub fn failed(&self) -> usize {
        self.failed.load(Relaxed)
    }

    /// Asks until a signal, which comes soon, ends the server: who is answered is answered rightly.
    pub fn until_a_signal(&self) {
        let refused = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (mut dice, refused) = (Dice::new(self.seed + 31 * client), &refused);
                scope.spawn(move || {
                    for at in 0.. {
                        let (case, stream) = (self.world.any(&mut dice), dice.once_in(2));
                        let bytes = case.bytes(stream, &format!("{client}-{at}-s"));
                        let Some(answer) = self.server.raw(bytes.as_bytes()) else { break };
                        if answer.status == 503 && answer.error().contains("the server ends") {
                            refused.fetch_add(1, Relaxed);
                            break;
                        }
                        if let Came::Wrong(what) = case.judge(stream, &answer) {
                            panic!("while the server ends: {what}");
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(300));
            self.server.terminate();
        });
        println!("{} of {CLIENTS} clients were refused by the server that ended", refused.load(Relaxed));
    }
}

/// So many failures of engines explain so many failed attempts: each ends what ran, and what came before the
/// server had seen it.
pub fn explained(failed: usize, failures: usize) {
    let most = failures * AT_ONCE * 2;
    assert!(failed <= most, "{failed} attempts failed by {failures} failures, which end {most} at most");
}

/// Whether the other side has ended the connection, or answered.
fn is_over(connection: &TcpStream) -> bool {
    connection.set_nonblocking(true).unwrap();
    let over =
        connection.peek(&mut [0]).map_or_else(|e| e.kind() != std::io::ErrorKind::WouldBlock, |_| true);
    connection.set_nonblocking(false).unwrap();
    over
}

fn read_slowly(mut connection: TcpStream, size: usize) -> Option<crate::client::Answer> {
    let (mut all, mut part) = (Vec::new(), vec![0; size]);
    while let Ok(n) = connection.read(&mut part) {
        if n == 0 {
            break;
        }
        all.extend(&part[..n]);
        // Long enough to fall behind, not so long that a campaign waits for it.
        if all.len() < 40 * size {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    crate::client::answer(&all)
}

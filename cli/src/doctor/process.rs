//! A process that says what it finds in lines of JSON, read until it ends or its time is up.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// How long a process may take to be gone, once nothing is expected of it.
const GOING: Duration = Duration::from_secs(1);

/// Bytes of a line at most: a longer one is no record.
const LINE: u64 = 1 << 20;
/// Records that are kept of a process, and bytes of them.
const RECORDS: usize = 10_000;
const BYTES: usize = 64 << 20;
/// Lines that wait to be looked at.
const WAITING: usize = 16;

/// What came of a process.
#[derive(Debug, PartialEq)]
pub struct Said {
    /// Its lines.
    pub lines: Vec<Value>,
    /// How it ended.
    pub end: End,
}

/// How a process ended.
#[derive(Debug, PartialEq)]
pub enum End {
    /// By itself, with everything said.
    Done,
    /// It was stopped: its time was up.
    OutOfTime,
    /// Before it had said everything, and how.
    Broken(String),
}

/// Runs a process and reads its lines until `end` at most. One that says `{"end": true}` or
/// `{"failed": ...}` has said everything.
pub fn listen(command: &mut Command, end: Instant) -> Said {
    let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(e) => return Said { lines: Vec::new(), end: End::Broken(format!("it did not start: {e}")) },
    };
    let (sender, receiver) = sync_channel(WAITING);
    if let Some(stdout) = child.stdout.take() {
        // It ends with the process, or with this one.
        std::thread::spawn(move || send_lines(stdout, &sender));
    }
    let (mut lines, mut bytes): (Vec<Value>, usize) = (Vec::new(), 0);
    let outcome = loop {
        match receiver.recv_timeout(end.saturating_duration_since(Instant::now())) {
            // A driver may print what it likes.
            Ok(line) => {
                let record = serde_json::from_str(&line).ok().filter(Value::is_object);
                let room = lines.len() < RECORDS && bytes + line.len() <= BYTES;
                if let Some(record) = record.filter(|record| room || is_last(record)) {
                    bytes += line.len();
                    lines.push(record);
                }
            }
            Err(RecvTimeoutError::Timeout) => break None,
            Err(RecvTimeoutError::Disconnected) => break Some(gone(&mut child)),
        }
        if is_complete(&lines) {
            break Some(gone(&mut child));
        }
        // One that never stops printing has a line waiting at any time.
        if Instant::now() >= end {
            break None;
        }
    };
    let end = match outcome {
        _ if is_complete(&lines) => End::Done,
        Some(Some(status)) => End::Broken(format!("it ended: {status}")),
        Some(None) => End::Broken("it said no more and did not end".into()),
        None => {
            // A process that waits for a driver in the kernel cannot be stopped: it is not waited for.
            let _ = child.kill();
            gone(&mut child);
            End::OutOfTime
        }
    };
    Said { lines, end }
}

/// Whether a process has said everything.
fn is_complete(lines: &[Value]) -> bool {
    lines.last().is_some_and(is_last)
}

/// Whether nothing comes behind a record.
fn is_last(record: &Value) -> bool {
    record["end"] == true || record["failed"].is_string()
}

/// Sends each line that is not empty and not too long until there is no more, or no one to take it. Bytes
/// that are no UTF-8 are replaced: a driver may print what it likes.
fn send_lines(from: impl Read, to: &SyncSender<String>) {
    let mut reader = BufReader::new(from);
    let (mut line, mut too_long) = (Vec::new(), false);
    loop {
        line.clear();
        match reader.by_ref().take(LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let whole = line.ends_with(b"\n") || (line.len() as u64) < LINE;
        // A piece of a long line is left out, and so is its end.
        let skipped = too_long || !whole || line.trim_ascii().is_empty();
        too_long = !whole;
        if !skipped && to.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
            return;
        }
    }
}

/// Waits until a process is gone, and stops it where it stays; none where it cannot be stopped.
fn gone(child: &mut Child) -> Option<ExitStatus> {
    for stop in [false, true] {
        if stop {
            let _ = child.kill();
        }
        let end = Instant::now() + GOING;
        while Instant::now() < end {
            if let Ok(Some(status)) = child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    None
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Said {
        listen(Command::new("sh").args(["-c", script]), Instant::now() + limit)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_was_said_before_a_crash_is_kept() {
        let said = shell("echo '{\"a\": 1}'; echo 'no JSON'; echo 7; kill -SEGV $$", LONG);
        assert_eq!(said.lines, [serde_json::json!({"a": 1})]);
        assert!(matches!(&said.end, End::Broken(how) if how.contains("signal")), "{said:?}");
        let said = shell("exit 3", LONG);
        assert!(matches!(&said.end, End::Broken(how) if how.contains('3')), "{said:?}");
    }

    #[test]
    fn a_process_that_hangs_is_stopped_in_time() {
        let began = Instant::now();
        let said = shell("echo '{\"a\": 1}'; exec sleep 100", Duration::from_secs(2));
        assert_eq!((said.lines.len(), said.end), (1, End::OutOfTime));
        assert!(began.elapsed() < Duration::from_secs(50), "{:?}", began.elapsed());
    }

    #[test]
    fn bytes_that_are_no_text_and_empty_lines_end_nothing() {
        let (bytes, half) = ("printf '\\377\\n{\"a\": \"\\377\"}\\n\\n'", "printf 'half'");
        let said = shell(&format!("{bytes}; {half}; printf '\\n{{\"end\": true}}\\n'"), LONG);
        let want = [serde_json::json!({"a": "\u{fffd}"}), serde_json::json!({"end": true})];
        assert_eq!((said.lines.as_slice(), said.end), (&want[..], End::Done));
    }

    #[test]
    fn long_lines_and_many_records_are_left_out() {
        let long = "printf '{\"a\": \"'; head -c 3000000 /dev/zero | tr '\\0' x; echo '\"}'";
        let flood = "head -c 20000000 /dev/zero; echo";
        let said = shell(&format!("echo '{{}}'; {long}; {flood}; echo '{{\"end\": true}}'"), LONG);
        assert_eq!((said.lines.len(), said.end), (2, End::Done));
        let said = shell("yes '{}' | head -n 20000; echo '{\"end\": true}'", LONG);
        assert_eq!((said.lines.len(), said.end), (RECORDS + 1, End::Done));
    }

    #[test]
    fn a_process_that_never_stops_printing_is_stopped_in_time() {
        let began = Instant::now();
        let said = shell("exec yes", Duration::from_secs(1));
        assert_eq!((said.lines.len(), said.end), (0, End::OutOfTime));
        assert!(began.elapsed() < Duration::from_secs(50), "{:?}", began.elapsed());
    }

    #[test]
    fn everything_said_is_everything() {
        for end in ["{\"end\": true}", "{\"failed\": \"so\"}"] {
            let said = shell(&format!("echo '{{}}'; echo '{end}'"), LONG);
            assert_eq!((said.lines.len(), said.end), (2, End::Done));
        }
        let missing = listen(&mut Command::new("no-such-program"), Instant::now() + LONG);
        assert!(matches!(missing.end, End::Broken(how) if how.contains("did not start")));
    }
}

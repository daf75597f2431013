//! A process that says what it finds in lines of JSON, read until it ends or its time is up.

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long a process may take to be gone, once nothing is expected of it.
const GOING: Duration = Duration::from_secs(1);

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
    let (sender, receiver) = channel();
    if let Some(stdout) = child.stdout.take() {
        // It ends with the process, or with this one.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
    }
    let mut lines: Vec<Value> = Vec::new();
    let outcome = loop {
        match receiver.recv_timeout(end.saturating_duration_since(Instant::now())) {
            // A driver may print what it likes.
            Ok(line) => lines.extend(serde_json::from_str(&line).ok().filter(Value::is_object)),
            Err(RecvTimeoutError::Timeout) => break None,
            Err(RecvTimeoutError::Disconnected) => break Some(gone(&mut child)),
        }
        if is_complete(&lines) {
            break Some(gone(&mut child));
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
    lines.last().is_some_and(|line| line["end"] == true || line["failed"].is_string())
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
    fn everything_said_is_everything() {
        for end in ["{\"end\": true}", "{\"failed\": \"so\"}"] {
            let said = shell(&format!("echo '{{}}'; echo '{end}'"), LONG);
            assert_eq!((said.lines.len(), said.end), (2, End::Done));
        }
        let missing = listen(&mut Command::new("no-such-program"), Instant::now() + LONG);
        assert!(matches!(missing.end, End::Broken(how) if how.contains("did not start")));
    }
}

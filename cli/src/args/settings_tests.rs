//! Flags of a file next to those of a command line.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use super::Args;
use super::settings::{SERVE, SETTINGS, matches};
use std::ffi::OsString;
use std::io::Write;

/// Host, port, socket and sequences of a file and a command line; or what is wrong.
fn of(text: &str, typed: &[&str]) -> Result<String, String> {
    let mut file = tempfile::Builder::new().suffix("flags.toml").tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let path = file.path().to_str().unwrap();
    let given =
        ["engraft", SERVE, SETTINGS, path].into_iter().chain(typed.iter().copied()).map(OsString::from);
    let found = matches(Args::whole(), given).map_err(|error| error.to_string())?;
    let (_, serve) = found.subcommand().unwrap();
    let (host, port) = (serve.get_one::<String>("host").unwrap(), serve.get_one::<u16>("port").unwrap());
    let uds = serve.get_one::<std::path::PathBuf>("uds").map(|uds| uds.display().to_string());
    let seqs = serve.get_one::<usize>("max_num_seqs").unwrap();
    Ok(format!("{host} {port} {} {seqs}", uds.unwrap_or_default()))
}

#[test]
fn the_command_line_counts_before_the_file() {
    let file = "host = \"a\"\nport = 1\nmax-seqs = 2\nno-prefix-cache = false\n";
    assert_eq!(of(file, &[]).unwrap(), "a 1  2");
    assert_eq!(of(file, &["--port", "2", "--max-num-seqs=3"]).unwrap(), "a 2  3");
    // What the command line excludes is not in the file.
    assert_eq!(of(file, &["--uds", "s"]).unwrap(), "127.0.0.1 8000 s 2");
    assert_eq!(of("uds = \"s\"\n", &["--port", "7"]).unwrap(), "127.0.0.1 7  8");
    assert_eq!(of("model = \"a\"\n", &["b"]).unwrap(), "127.0.0.1 8000  8");
    // Each has one half of a pair.
    assert!(of("ssl-certfile = \"a\"\n", &["--ssl-keyfile", "b"]).is_ok());
}

#[test]
fn what_is_wrong_with_a_file_names_it() {
    for (text, said) in [
        ("prot = 1\n", "unexpected argument '--prot' found"),
        ("prot = false\n", "unexpected argument '--prot' found"),
        ("port = 70000\n", "invalid value '70000' for '--port <PORT>'"),
        ("port = false\n", "`port` takes a value, not false"),
        ("port = [[1]]\n", "`port` is neither a string"),
        ("settings = \"nofile.toml\"\n", "`settings` belongs on the command line"),
        ("help = true\n", "`help` belongs on the command line"),
        ("max-seqs = 2\nmax-num-seqs = 3\n", "'--max-num-seqs <N>' cannot be used multiple times"),
        ("uds = \"s\"\nport = 9\n", "cannot be used with"),
    ] {
        let error = of(text, &[]).unwrap_err();
        assert!(error.contains("flags.toml: ") && error.contains(said), "{text}: {error}");
        assert_eq!(error.matches("error: ").count(), 1, "{text}: {error}");
    }
}

#[test]
fn what_is_wrong_with_the_command_line_names_no_file() {
    for (typed, said) in [
        (&["--max-seqs", "2", "--max-num-seqs", "3"][..], "cannot be used multiple times"),
        (&["--port", "1", "--port", "2"], "cannot be used multiple times"),
        (&["--uds", "s", "--host", "0.0.0.0"], "cannot be used with"),
        (&["--prot", "1"], "unexpected argument '--prot'"),
    ] {
        let error = of("port = 1\n", typed).unwrap_err();
        assert!(!error.contains("flags.toml") && error.contains(said), "{typed:?}: {error}");
    }
}

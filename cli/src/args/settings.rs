//! Flags of `engraft serve` that a file holds.
//!
//! The file and the command line are first parsed apart: what is wrong is said of the one that it is in, and
//! a flag that one of them has twice, by whatever names, is refused. Together the command line counts before
//! the file, also where its flag excludes one of the file.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, Error};
use engraft::engraft_core::file;
use std::ffi::OsString;
use std::path::Path;

/// Bytes of a file of flags.
const MOST: u64 = 4 << 20;

/// The command whose flags a file may hold, and the flag that names the file.
const SERVE: &str = "serve";
const SETTINGS: &str = "--settings";

/// Flags that a file has no use for.
const TYPED: [&str; 3] = ["settings", "help", "version"];

/// A key of the file: its flag, as it would be typed; several times of a list.
struct Flag {
    name: String,
    typed: Vec<OsString>,
}

/// What the arguments of the process say, and for `serve` those of the file that `--settings` names.
///
/// # Errors
/// What is wrong with the arguments, or with the file and its name.
pub fn matches(command: Command, given: impl Iterator<Item = OsString>) -> Result<ArgMatches, Error> {
    let given: Vec<OsString> = given.collect();
    let apart = |given: &[OsString]| command.clone().try_get_matches_from(given);
    let Some((file, serve)) = named(&given).zip(command.find_subcommand(SERVE)) else { return apart(&given) };
    // What one of them lacks, the other may have.
    let lacks = |error: &Error| error.kind() == ErrorKind::MissingRequiredArgument;
    let typed = match apart(&given) {
        Ok(typed) => Some(typed),
        Err(error) if lacks(&error) => None,
        Err(error) => return Err(error),
    };
    let refused = |what: String| {
        let shown = Path::new(&file).display();
        command.clone().error(ErrorKind::ValueValidation, format!("{shown}: {what}"))
    };
    let text = file::text(Path::new(&file), MOST)
        .map_err(|e| command.clone().error(ErrorKind::ValueValidation, e))?;
    let mut flags = read(serve, &text).map_err(refused)?;
    let all = |flags: &[Flag], rest: &[OsString]| {
        let flags = flags.iter().flat_map(|flag| flag.typed.iter());
        given[..2].iter().chain(flags).chain(rest).cloned().collect::<Vec<_>>()
    };
    if let Err(error) = apart(&all(&flags, &[]))
        && !lacks(&error)
    {
        return Err(refused(first_part(&error)));
    }
    if let Some((_, typed)) = typed.as_ref().and_then(ArgMatches::subcommand) {
        flags.retain(|flag| !excluded(serve, flag, typed));
    }
    let given = all(&flags, &given[2..]);
    command.mut_subcommand(SERVE, |serve| serve.args_override_self(true)).try_get_matches_from(given)
}

/// The file that the command line names.
fn named(given: &[OsString]) -> Option<OsString> {
    given.get(1).filter(|command| *command == SERVE)?;
    given.iter().enumerate().find_map(|(at, arg)| match arg.to_str()?.strip_prefix(SETTINGS)? {
        "" => given.get(at + 1).cloned(),
        rest => rest.strip_prefix('=').map(OsString::from),
    })
}

/// The flags of a file, or what is wrong with it.
fn read(serve: &Command, text: &str) -> Result<Vec<Flag>, String> {
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| e.to_string())?;
    table
        .into_iter()
        .map(|(key, value)| {
            let name = key.replace('_', "-");
            if TYPED.contains(&name.as_str()) {
                return Err(format!("`{key}` belongs on the command line"));
            }
            let values = match value {
                toml::Value::Array(all) => all,
                value => vec![value],
            };
            let typed = values.iter().filter_map(|value| typed(serve, &key, &name, value).transpose());
            Ok(Flag { typed: typed.collect::<Result<_, _>>()?, name })
        })
        .collect()
}

/// A value with its flag as it would be typed; none for a switch that is off.
fn typed(serve: &Command, key: &str, name: &str, value: &toml::Value) -> Result<Option<OsString>, String> {
    let flag = match value {
        toml::Value::String(text) => format!("--{name}={text}"),
        toml::Value::Integer(n) => format!("--{name}={n}"),
        toml::Value::Float(x) => format!("--{name}={x}"),
        toml::Value::Boolean(true) => format!("--{name}"),
        toml::Value::Boolean(false) => match flag_of(serve, name) {
            Some(arg) if arg.get_action().takes_values() => {
                return Err(format!("`{key}` takes a value, not false"));
            }
            Some(_) => return Ok(None),
            // That there is no such flag is said where it is parsed.
            None => format!("--{name}"),
        },
        _ => {
            return Err(format!("`{key}` is neither a string, a number, true, false, nor a list of these"));
        }
    };
    Ok(Some(flag.into()))
}

/// The flag of a name, or of one of its other names.
fn flag_of<'a>(serve: &'a Command, name: &str) -> Option<&'a Arg> {
    let has = |arg: &&Arg| {
        let others = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(name) || others.contains(&name)
    };
    serve.get_arguments().find(has)
}

/// Whether a flag of the command line excludes one of the file.
fn excluded(serve: &Command, flag: &Flag, typed: &ArgMatches) -> bool {
    let Some(of_file) = flag_of(serve, &flag.name) else { return false };
    let conflicts = |one: &Arg, other: &Arg| {
        serve.get_arg_conflicts_with(one).iter().any(|found| found.get_id() == other.get_id())
    };
    serve.get_arguments().any(|arg| {
        typed.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
            && (conflicts(arg, of_file) || conflicts(of_file, arg))
    })
}

/// What an error says, without how the command is used.
fn first_part(error: &Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let ends = ["\n\nUsage:", "\n\nFor more information"];
    let end = ends.iter().filter_map(|end| text.find(end)).min().unwrap_or(text.len());
    text[..end].trim_end().to_string()
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::Args;
    use super::*;
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
}

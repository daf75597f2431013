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
pub const SERVE: &str = "serve";
pub const SETTINGS: &str = "--settings";

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

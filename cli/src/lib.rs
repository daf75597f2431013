//! The program `engraft`: arguments in, the library's calls, people's text out.
//!
//! What a script reads (a continuation, a table, JSON) goes to standard output, everything else to standard
//! error. Exit status: 0, 1 for a failure, 2 for wrong usage, 75 where a rank is missing.
//!
//! One file per subcommand, `args.rs` for all flags, `output.rs` for what the screen shows. A command returns
//! a `Failure` (`failure.rs`); only this file turns one into text and an exit status.
//!
//! A library with one function, so that a program for machines without Rust can have this one in it. (The
//! feature `fuzzing` shows this repository's fuzzer what reads settings and lines.)

mod answer;
mod args;
mod bench;
mod chat;
mod convert;
mod doctor;
#[cfg(unix)]
mod environment;
mod failure;
#[cfg(unix)]
mod follow;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod generate;
#[cfg(unix)]
mod group;
#[cfg(feature = "image")]
mod image;
mod input;
mod lines;
mod output;
mod plan;
#[cfg(feature = "serve")]
mod serve;
mod shrunk;
mod texts;
#[cfg(feature = "speech")]
mod transcribe;
mod unfinished;
mod values;

use args::Command;
use clap::CommandFactory;
use engraft::{Error, GROUP_LOST};
use failure::{Failure, one_line};
use std::fmt;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{LevelFilter, ParseError};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The program: reads the arguments of the process, and gives its exit status.
pub fn main() -> ExitCode {
    let args = match args::Args::of_process() {
        Ok(args) => args,
        Err(said) => return parsed(&said),
    };
    logging();
    shrunk::install();
    #[cfg(unix)]
    let followed = follow::follow(&args.command);
    #[cfg(not(unix))]
    let followed = None;
    #[cfg(unix)]
    let led = args.command.model().map(|(model, _)| model.device.group.led.clone());
    let outcome = followed.unwrap_or_else(|| run(args.command));
    #[cfg(unix)]
    if let Some(led) = led {
        group::wait(&led);
    }
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // The reader went away (`engraft generate ... | head`): nothing is wrong.
        Err(Failure::Run(Error::Io { source, .. })) if source.kind() == ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        #[cfg(feature = "serve")]
        Err(Failure::Interrupted) => {
            report("a second signal ended the requests that ran");
            ExitCode::from(130)
        }
        Err(Failure::Run(error)) => {
            report(&format!("{}{}", one_line(&error.to_string()), hint(&error)));
            // A launcher that sees it may start the group anew.
            if matches!(error, Error::Comm { .. }) { ExitCode::from(GROUP_LOST) } else { ExitCode::FAILURE }
        }
        Err(Failure::Usage(text)) => {
            report(&format!("{}\n\nFor more information, try '--help'.", one_line(&text)));
            ExitCode::from(2)
        }
    }
}

/// Prints what clap says in the place of arguments: help, a version, or what is wrong with them.
fn parsed(said: &clap::Error) -> ExitCode {
    match said.print() {
        Err(e) if !said.use_stderr() && e.kind() != ErrorKind::BrokenPipe => {
            report(&format!("cannot write: {e}"));
            ExitCode::FAILURE
        }
        _ => ExitCode::from(said.exit_code().try_into().unwrap_or(2)),
    }
}

fn run(command: Command) -> failure::Outcome {
    match command {
        Command::Generate(args) => generate::run(&args),
        Command::Chat(args) => chat::run(&args),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run(&args),
        #[cfg(feature = "speech")]
        Command::Transcribe(args) => transcribe::run(&args),
        #[cfg(feature = "image")]
        Command::Image(args) => image::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Embed(args) => texts::embed(&args),
        Command::Score(args) => texts::score(&args),
        Command::Classify(args) => texts::classify(&args),
        Command::Answer(args) => answer::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::ReportDevice(args) => doctor::report_device(&args),
        Command::Completions(args) => completions(&args),
        Command::WriteShape(args) => bench::write_shape(&args),
    }
}

fn completions(args: &args::CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::Args::command(), "engraft", &mut script);
    output::emit(&String::from_utf8_lossy(&script))
}

/// Warnings, or what `ENGRAFT_LOG` asks for (`debug`, `engraft_core=trace`), to standard error.
fn logging() {
    let wanted = std::env::var("ENGRAFT_LOG").ok().filter(|text| !text.is_empty());
    let (filter, refused) = match filter(wanted.as_deref().unwrap_or("warn")) {
        Ok(filter) => (filter, None),
        Err(what) => (EnvFilter::new("warn"), Some(what)),
    };
    let lines = tracing_subscriber::fmt().event_format(LogLines).with_env_filter(filter);
    lines.with_writer(std::io::stderr).init();
    if let Some(what) = refused {
        output::note(&format!(
            "warning: ENGRAFT_LOG is not understood ({what}), so warnings are shown; \
             allowed: off, error, warn, info, debug, trace, TARGET=LEVEL"
        ));
    }
}

/// What is logged, or what is wrong with it. A word alone is a level: as the name of a target, which the
/// parser takes any other word for, it would switch all warnings off.
fn filter(wanted: &str) -> Result<EnvFilter, String> {
    let parts: Vec<&str> = wanted.split(',').map(str::trim).collect();
    let mut words = parts.iter().filter(|part| !part.contains(['=', '[']));
    if let Some(word) = words.find(|word| word.parse::<LevelFilter>().is_err()) {
        return Err(format!("`{}` is no level", one_line(word)));
    }
    parts.join(",").parse().map_err(|e: ParseError| e.to_string())
}

/// A warning reads like one of the program's own; other lines name their level and module. What a file made
/// long or put ends of lines into stays one line.
struct LogLines;

impl<S, N> FormatEvent<S, N> for LogLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let about = event.metadata();
        match *about.level() {
            Level::WARN => write!(out, "warning: ")?,
            Level::ERROR => write!(out, "error: ")?,
            level => write!(out, "{}: {}: ", level.as_str().to_lowercase(), about.target())?,
        }
        let mut fields = String::new();
        context.format_fields(Writer::new(&mut fields), event)?;
        writeln!(out, "{}", one_line(&fields))
    }
}

/// What helps against an error, where a flag does.
fn hint(error: &Error) -> &'static str {
    match error {
        Error::NoPolicy { .. } => {
            "; a table given by --policy FILE describes an architecture that is not built in (docs/add_a_policy.md)"
        }
        _ => "",
    }
}

fn report(text: &str) {
    // When standard error is closed, the exit status is all that is left.
    let _ = writeln!(std::io::stderr(), "error: {text}");
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_a_filter_is_a_level() {
        for word in ["warning", "verbose", "engraft_core", "warn,loud", "engraft=debug, all"] {
            let wrong = word.rsplit(',').next().unwrap().trim();
            assert_eq!(filter(word).unwrap_err(), format!("`{wrong}` is no level"));
        }
        assert!(filter("engraft=loud").is_err());
        for word in ["warn", "OFF", "3", "debug,", "warn, engraft_core=trace", "engraft[load]=info"] {
            assert!(filter(word).is_ok(), "{word}");
        }
    }
}

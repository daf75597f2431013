//! `engraft chat`: a conversation.
//!
//! At a terminal lines are edited and remembered (rustyline); from a pipe they are read plainly, one message
//! a line. Ctrl-C ends an answer, at the prompt it clears the line; Ctrl-D leaves. Answers go to standard
//! output, all else to standard error. A model without a chat template is no reason to leave: it continues
//! what is typed.

use super::args::ChatArgs;
use super::failure::{Failure, Outcome, one_line};
use super::generate::introduce;
use super::input;
use super::output::{bold, dim, emit, note, note_inline, plural, summary};
use engraft::{Error, GenerateOptions, Message, TextGenerator, TextStream};
use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};
use std::io::{IsTerminal, stderr, stdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const HELP: &str = "\
/system TEXT  set the system message and start over; without TEXT: none
/retry        answer the last message again
/reset        forget the conversation
/stats        show or hide the counts after an answer
/help         this
/quit         leave (also Ctrl-D)
A line that ends in \\ goes on in the next. Ctrl-C ends an answer.";

/// Why a model without a template has no system message.
const NO_SYSTEM: &str = "the model has no chat template, so it reads no system message";

pub fn run(args: &ChatArgs) -> Outcome {
    let model = args.model.open()?;
    introduce(&model, &args.model);
    if !model.has_chat_template() {
        if args.system.is_some() {
            return Err(Failure::Usage(format!("--system: {NO_SYSTEM}")));
        }
        note("This model has no chat template: it is no assistant, so it just continues what you type.");
        if args.model.is_demo() {
            note("It writes package descriptions; try: This package provides");
        }
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = interrupted.clone();
    // The first ends an answer, and whoever reads the flag takes it back; a second one before that ends the
    // program.
    let caught = move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    };
    ctrlc::set_handler(caught).map_err(|e| Error::internal(format!("Ctrl-C cannot be caught: {e}")))?;
    let mut lines = Lines::open()?;
    if lines.is_terminal() {
        note(&dim("/help lists commands, /quit leaves"));
    }
    converse(&mut lines, Talk::new(model, args, interrupted))
}

/// Answers all lines. A script that pipes messages in learns from the status that one failed.
fn converse(lines: &mut Lines, mut talk: Talk) -> Outcome {
    let mut failed = 0;
    while let Some(line) = lines.next()? {
        match talk.line(&line) {
            Ok(true) => {}
            Ok(false) => break,
            // What is wrong with one message (too long, say) does not end the conversation.
            Err(Failure::Run(error)) if !matches!(error, Error::Io { .. } | Error::DeviceLost { .. }) => {
                failed += 1;
                note(&format!("error: {}", one_line(&error.to_string())));
            }
            Err(failure) => return Err(failure),
        }
    }
    match failed {
        0 => Ok(()),
        _ if lines.is_terminal() => Ok(()),
        _ => Err(Error::text(format!("{} could not be answered", plural(failed, "message"))).into()),
    }
}

/// What was typed.
enum Line {
    Text(String),
    /// Ctrl-C: what was begun is dropped.
    Cleared,
    End,
}

/// Where lines come from.
enum Lines {
    Terminal(Box<DefaultEditor>),
    Pipe,
}

impl Lines {
    fn open() -> Result<Self, Failure> {
        if !stdin().is_terminal() {
            return Ok(Lines::Pipe);
        }
        let config = Config::builder().auto_add_history(true).build();
        let editor = DefaultEditor::with_config(config).map_err(editor_error)?;
        Ok(Lines::Terminal(Box::new(editor)))
    }

    fn is_terminal(&self) -> bool {
        matches!(self, Lines::Terminal(_))
    }

    /// The next message; lines that end in a backslash are joined. None at the end of input.
    fn next(&mut self) -> Result<Option<String>, Failure> {
        let mut message = String::new();
        loop {
            let prompt = if message.is_empty() { "> " } else { ". " };
            match self.read(prompt)? {
                Line::End => return Ok((!message.is_empty()).then_some(message)),
                Line::Cleared => message.clear(),
                Line::Text(line) => match line.strip_suffix('\\') {
                    Some(start) => {
                        message.push_str(start);
                        message.push('\n');
                    }
                    None => return Ok(Some(message + &line)),
                },
            }
        }
    }

    fn read(&mut self, prompt: &str) -> Result<Line, Failure> {
        match self {
            Lines::Pipe => {
                let place = "standard input";
                let line = input::line(&mut stdin().lock(), &|| place.to_string())?;
                let line = String::from_utf8(line).map_err(|_| Error::format(place, "is not UTF-8"))?;
                let text = line.trim_end_matches(['\n', '\r']).to_string();
                Ok(if line.is_empty() { Line::End } else { Line::Text(text) })
            }
            Lines::Terminal(editor) => match editor.readline(prompt) {
                Ok(line) => Ok(Line::Text(line)),
                Err(ReadlineError::Interrupted) => Ok(Line::Cleared),
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(error) => Err(editor_error(error)),
            },
        }
    }
}

fn editor_error(error: ReadlineError) -> Failure {
    Error::io("standard input", std::io::Error::other(error)).into()
}

struct Talk {
    model: TextGenerator,
    options: GenerateOptions,
    system: Option<String>,
    messages: Vec<Message>,
    /// The last line, for models without a template.
    last: String,
    show_stats: bool,
    interrupted: Arc<AtomicBool>,
}

impl Talk {
    fn new(model: TextGenerator, args: &ChatArgs, interrupted: Arc<AtomicBool>) -> Self {
        let mut options = args.sampling.options(args.max_new_tokens);
        options.no_special_in_user_text = args.no_special_in_user_text;
        let mut talk = Self {
            model,
            options,
            system: args.system.clone(),
            messages: Vec::new(),
            last: String::new(),
            show_stats: true,
            interrupted,
        };
        talk.reset();
        talk
    }

    fn reset(&mut self) {
        self.messages = self.system.iter().map(|text| Message::new("system", text.as_str())).collect();
        self.last.clear();
    }

    /// Runs a command or answers a message; false to leave.
    fn line(&mut self, line: &str) -> Result<bool, Failure> {
        let line = line.trim();
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        match command {
            "" => {}
            "/quit" | "/exit" | "/bye" => return Ok(false),
            "/help" | "/?" => note(HELP),
            "/reset" => {
                self.reset();
                note("the conversation starts over");
            }
            "/system" if !self.model.has_chat_template() => note(&format!("warning: {NO_SYSTEM}")),
            "/system" => {
                self.system = Some(rest.trim()).filter(|t| !t.is_empty()).map(str::to_owned);
                self.reset();
                match &self.system {
                    Some(text) => note(&format!("system message: {text}")),
                    None => note("no system message; the model's template may have its own"),
                }
            }
            "/stats" => {
                self.show_stats = !self.show_stats;
                note(if self.show_stats { "counts are shown" } else { "counts are hidden" });
            }
            "/retry" => self.retry()?,
            c if c.starts_with('/') => note(&format!("{c} is no command; /help lists them")),
            _ => self.say(line)?,
        }
        Ok(true)
    }

    fn retry(&mut self) -> Outcome {
        if self.messages.last().is_some_and(|m| m.role == "assistant") {
            self.messages.pop();
        }
        let again = match self.messages.last() {
            Some(m) if m.role == "user" => self.messages.pop().map(|m| m.content),
            _ => Some(self.last.clone()).filter(|l| !l.is_empty()),
        };
        let Some(text) = again else {
            note("nothing was said yet");
            return Ok(());
        };
        // The same seed would give the same answer; without one, every answer has its own.
        self.options.seed = self.options.seed.map(|seed| seed.wrapping_add(1));
        self.say(&text)
    }

    fn say(&mut self, text: &str) -> Outcome {
        if !self.model.has_chat_template() {
            self.last = text.to_string();
            let stream = self.model.generate(text, &self.options)?;
            if stderr().is_terminal() {
                note_inline(&bold(text));
            }
            return self.answer(stream).map(drop);
        }
        self.messages.push(Message::new("user", text));
        let answered = self.model.chat(&self.messages, &self.options).map_err(Failure::from);
        match answered.and_then(|stream| self.answer(stream)) {
            Ok(answer) => {
                self.messages.push(Message::new("assistant", answer));
                Ok(())
            }
            Err(failure) => {
                // As if it had not been said: the next message may be shorter.
                self.messages.pop();
                Err(failure)
            }
        }
    }

    /// Shows an answer as it comes, until its end or Ctrl-C.
    fn answer(&self, mut stream: TextStream) -> Result<String, Failure> {
        self.interrupted.store(false, Ordering::Relaxed);
        let mut answer = String::new();
        let mut stopped = false;
        for piece in stream.by_ref() {
            let piece = piece?;
            emit(&piece)?;
            answer.push_str(&piece);
            stopped = self.interrupted.swap(false, Ordering::Relaxed);
            if stopped {
                break;
            }
        }
        if !answer.ends_with('\n') {
            emit("\n")?;
        }
        if self.show_stats {
            let end = if stopped { ", stopped" } else { "" };
            note(&dim(&format!("{}{end}", summary(stream.stats()))));
        }
        Ok(answer)
    }
}

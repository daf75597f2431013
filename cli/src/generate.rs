//! `engraft generate`: one prompt, one continuation.

use super::args::{GenerateArgs, ModelArgs};
use super::failure::{Failure, Outcome, one_line};
use super::input::{self, MOST_TEXT};
use super::output::{bold, bytes, count, dim, emit, json, note, note_inline, summary};
use engraft::{Float, ModelInfo, TextGenerator, TextStream};
use serde_json::json;
use std::io::{IsTerminal, stderr, stdin, stdout};
use std::path::Path;

pub fn run(args: &GenerateArgs) -> Outcome {
    let prompt = prompt(args)?;
    let model = args.model.open()?;
    let mut options = args.sampling.options(args.max_new_tokens);
    options.stop = args.stop.clone();
    options.no_special_in_user_text = args.no_special_in_user_text;
    options.decoder_prompt = args.decoder_prompt.clone();
    if args.json {
        let mut stream = model.generate(&prompt, &options)?;
        let text = stream.text()?;
        let name = args.model.hub_id().unwrap_or_else(|| model.info().name.clone());
        return json(&report((&model, &name), &prompt, &text, &stream));
    }
    introduce(&model, &args.model);
    let mut stream = model.generate(&prompt, &options)?;
    let on_screen = stdout().is_terminal() && stderr().is_terminal();
    if on_screen {
        // The prompt is no part of standard output; on one screen both read as one text.
        note_inline(&bold(&prompt));
    }
    let mut ends_line = true;
    for piece in stream.by_ref() {
        let piece = piece?;
        emit(&piece)?;
        ends_line = piece.ends_with('\n');
    }
    if !ends_line && stdout().is_terminal() {
        note("");
    }
    let mut line = summary(stream.stats());
    if let Some(seed) = stream.sampling().seed.filter(|_| !stream.sampling().is_greedy()) {
        line.push_str(&format!(", seed {seed}"));
    }
    note(&dim(&line));
    Ok(())
}

/// The prompt as it was given; the last line end of a file or of standard input is not part of it.
fn prompt(args: &GenerateArgs) -> Result<String, Failure> {
    if let Some(text) = args.text.as_ref().or(args.prompt.as_ref()) {
        return Ok(text.clone());
    }
    let no_prompt = |why: &str| {
        let how = "engraft generate \"TEXT\", --prompt TEXT, --prompt-file FILE, or a text on standard input";
        Err(Failure::Usage(format!("{why}; a prompt comes by {how}")))
    };
    let text = match &args.prompt_file {
        Some(path) => input::text(path, MOST_TEXT)?,
        None if stdin().is_terminal() => return no_prompt("no prompt"),
        None => input::text(Path::new("-"), MOST_TEXT)?,
    };
    let end = text.strip_suffix('\n').map_or(text.as_str(), |t| t.strip_suffix('\r').unwrap_or(t));
    match end.is_empty() && args.prompt_file.is_none() {
        true => no_prompt("standard input is empty"),
        false => Ok(end.to_string()),
    }
}

/// One line about who answers.
pub(super) fn introduce(model: &TextGenerator, args: &ModelArgs) {
    let (info, demo) = (model.info(), args.is_demo());
    let file = Path::new(&info.name).file_name().map_or(info.name.as_str().into(), |f| f.to_string_lossy());
    let name = match args.hub_id() {
        Some(id) => id,
        None if demo => "demo model (embedded; --model takes another)".into(),
        None => file.into_owned(),
    };
    let line = format!(
        "{name}: {}, {} parameters, {} of weights, {} on {}, loaded in {:.2} s",
        info.arch,
        count(info.parameters),
        bytes(weight_bytes(info)),
        info.plan.backend,
        device(info),
        info.load_seconds
    );
    // The names are a file's and a policy's.
    note(&dim(&one_line(&line)));
    if !demo && info.plan.backend.starts_with("cuda") && info.plan.dtype == Float::F32 {
        note(&dim("activations are f32, which tensor cores do not multiply; --dtype bf16 or f16 takes them"));
    }
}

/// Bytes of the weights of all ranks.
fn weight_bytes(info: &ModelInfo) -> u64 {
    match &info.group {
        Some(group) => group.ranks.iter().map(|rank| rank.bytes as u64).sum(),
        None => info.plan.bytes() as u64,
    }
}

/// What a rank runs on, and how many ranks there are.
fn device(info: &ModelInfo) -> String {
    match &info.group {
        Some(group) => format!("{} ranks of {}", group.ranks.len(), info.device),
        None => info.device.clone(),
    }
}

fn report(
    (model, name): (&TextGenerator, &str),
    prompt: &str,
    text: &str,
    stream: &TextStream,
) -> serde_json::Value {
    let (info, stats, sampling) = (model.info(), stream.stats(), stream.sampling());
    json!({
        "model": name,
        "backend": info.plan.backend,
        "dtype": info.plan.dtype,
        "kv_dtype": info.plan.kv_dtype,
        "prompt": prompt,
        "text": text,
        "tokens": stats.tokens,
        "prompt_tokens": stats.prompt_tokens,
        "finish": stats.finish.as_ref().map(|f| f.name()),
        "ended_by": stats.finish.as_ref().map(|f| f.to_string()),
        "sampling": {
            "temperature": shown(sampling.temperature),
            "top_k": sampling.top_k,
            "top_p": shown(sampling.top_p),
            "min_p": shown(sampling.min_p),
            "repetition_penalty": shown(sampling.repetition_penalty),
            "seed": sampling.seed,
        },
        "timings": {
            "load_seconds": info.load_seconds,
            "prompt_seconds": stats.prompt_seconds,
            "prompt_tokens_per_second": stats.prompt_rate(),
            "decode_seconds": stats.decode_seconds,
            "decode_tokens_per_second": stats.decode_rate(),
        },
    })
}

/// The number as it was typed: `0.9`, not the f32's digits in f64.
pub(super) fn shown(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(x.into())
}

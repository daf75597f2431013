//! `engraft convert`: a model in the own pre-sharded format, or as a GGUF file.
//!
//! It is written to a folder next to the place that was asked for, brought to the disk, and renamed
//! (`unfinished.rs`): what has that name is a whole model, whatever happened on the way.

mod scored;

use super::args::{ConvertArgs, ConvertFormat, named_text, warn_of_coarse_groups};
use super::failure::{Failure, Outcome};
use super::output::{Loading, bytes, emit, plural};
use super::unfinished::Unfinished;
use engraft::engraft_core::checkpoint::{Layout, copy_companions};
use engraft::engraft_core::checkpoint::{TokenizerFiles, gguf};
use engraft::engraft_core::weights::convert::{ConvertOptions, convert_model};
use engraft::engraft_core::weights::gguf::{GgufFormat, GgufOptions, plan_gguf};
use engraft::{Error, ModelFiles, Options, Result, Tokenizer};
use scored::{Scored, Text};
use std::fs;
use std::path::{Path, PathBuf};

pub fn run(args: &ConvertArgs) -> Outcome {
    warn_of_coarse_groups(args.one_format());
    let text = args.score.as_deref().map(Text::read).transpose()?;
    match args.written() {
        ConvertFormat::Folder => folder(args, text.as_ref()),
        ConvertFormat::Gguf => file(args, text.as_ref()),
    }
}

fn folder(args: &ConvertArgs, text: Option<&Text>) -> Outcome {
    if args.token_embedding_type.is_some() {
        return Err(Failure::Usage("--token-embedding-type is for a GGUF file (--format gguf)".into()));
    }
    let registry = args.policies.registry()?;
    let files = named_text(&args.model)?.open()?;
    let (out, exists) = place(&args.out)?;
    if let Some(GgufFormat::Mix(mix)) = args.quantize {
        return Err(Failure::Usage(format!("--quantize {mix}: mixes are for a GGUF file (--format gguf)")));
    }
    let (quantize, quantize_embeddings) = (args.one_format(), args.quantize_embeddings);
    let options = ConvertOptions { world: args.tp, quantize, quantize_embeddings };
    let mut loading = Loading::default();
    let mut progress = |done, total| loading.show(done, total);
    // Before a model that is scored starts threads.
    let aside = Unfinished::new(&out)?;
    let before = text.map(|text| scored(args, &args.model, text)).transpose()?;
    copy_companions(&files, aside.path())?;
    let done = convert_model(&files, &registry, aside.path(), options, &mut progress)?;
    aside.publish(&out, exists)?;
    let ranks = plural(args.tp, "rank");
    emit(&format!(
        "{}: {} operands for {ranks}, {}\n",
        args.out.display(),
        done.operands,
        bytes(done.bytes)
    ))?;
    compared(args, &out, text, before)
}

/// A GGUF file. What headers say is checked before anything is written.
fn file(args: &ConvertArgs, text: Option<&Text>) -> Outcome {
    if args.tp != 1 {
        return Err(Failure::Usage(format!("--tp {}: a GGUF file is for one rank", args.tp)));
    }
    if args.out.symlink_metadata().is_ok() {
        return Err(Error::config("--out", args.out.display(), "a name that no file has").into());
    }
    let registry = args.policies.registry()?;
    let files = named_text(&args.model)?.open()?;
    let tokenizer = lists(&files, Options::new().registry(registry.clone()).describe(&files)?.vocab)?;
    // A mix has its own for the table.
    let embeddings = args.token_embedding_type.or(args.one_format().filter(|_| args.quantize_embeddings));
    let options = GgufOptions { quantize: args.quantize, embeddings, tokenizer };
    let plan = plan_gguf(&files, &registry, &options)?;
    let mut loading = Loading::default();
    let aside = Unfinished::new(&args.out)?;
    let before = text.map(|text| scored(args, &args.model, text)).transpose()?;
    let written = aside.path().join("model.gguf");
    let done = plan.write(&written, &mut |done, total| loading.show(done, total))?;
    aside.publish_file(&written, &args.out)?;
    emit(&format!("{}: {}\n", args.out.display(), bytes(done.bytes)))?;
    compared(args, &args.out, text, before)
}

/// The tokenizer of a folder as a GGUF file has it; none where there is none, or the file at hand has it.
fn lists(files: &ModelFiles, rows: usize) -> Result<Option<gguf::Tokenizer>> {
    let TokenizerFiles::HuggingFace { tokenizer_json, vocabulary, chat_template, .. } = &files.tokenizer
    else {
        return Ok(None);
    };
    if files.layout == Layout::Gguf || (tokenizer_json.is_none() && vocabulary.is_none()) {
        return Ok(None);
    }
    let name = files.path.display().to_string();
    let tokenizer = Tokenizer::from_files(&name, files.tokenizer.clone())?;
    let template = chat_template.as_deref().or(tokenizer.chat_template());
    tokenizer.to_gguf(rows, (&files.config, &files.generation), template).map(Some)
}

/// What a text's tokens score in a model.
fn scored(args: &ConvertArgs, model: &str, text: &Text) -> Result<Scored, Failure> {
    let options = Options::new().registry(args.policies.registry()?);
    text.scored(options, named_text(model)?)
}

/// Prints what the text scored before, and scores after.
fn compared(args: &ConvertArgs, out: &Path, text: Option<&Text>, before: Option<Scored>) -> Outcome {
    let (Some(text), Some(before)) = (text, before) else { return Ok(()) };
    emit(&format!("before: {before}\n"))?;
    let options = Options::new().registry(args.policies.registry()?);
    emit(&format!("after:  {}\n", text.scored(options, out.into())?))
}

/// Where the model goes, and whether there is an empty folder. A link stands for its folder: no other folder
/// can take the link's own place.
fn place(out: &Path) -> Result<(PathBuf, bool)> {
    let no = |got: String| Error::config("--out", got, "an empty or new folder");
    if !out.exists() {
        return match out.symlink_metadata() {
            Ok(_) => Err(no(format!("{}, a link to nothing", out.display()))),
            Err(_) => Ok((out.to_owned(), false)),
        };
    }
    let io = |e| Error::io(out, e);
    match fs::read_dir(out).map_err(io)?.next() {
        Some(_) => Err(no(out.display().to_string())),
        None => Ok((fs::canonicalize(out).map_err(io)?, true)),
    }
}

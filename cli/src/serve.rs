//! `engraft serve`: a model behind HTTP.

use super::args::{LimitArgs, ModelArgs, ServeArgs};
use super::failure::{Failure, Outcome};
use super::output::{Loading, dim, note};
use engraft::{Error, Result, TextGenerator};
#[cfg(feature = "image")]
use engraft::{Float, ImageHandle, ImageOptions, ModelSource};
use engraft_server::{Model, Server};
use std::path::Path;
#[cfg(feature = "image")]
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The demo model has no chat template: as in `engraft chat`, it continues what was said last.
const DEMO_TEMPLATE: &str = "{{ bos_token }}{{ messages[-1]['content'] }}";

pub fn run(args: &ServeArgs) -> Outcome {
    let mut config = args.config()?;
    let demo = args.path.is_none() && args.model.is_demo();
    if config.served_model_name.is_empty() {
        config.served_model_name = names(args.name());
    }
    if demo && config.chat_template.is_none() {
        config.chat_template = Some(DEMO_TEMPLATE.into());
    }
    #[cfg(feature = "image")]
    let pipeline = pipeline(args)?;
    #[cfg(feature = "image")]
    if pipeline.is_none() && !args.lora.is_empty() {
        let what = "--lora is for pipelines that make pictures: a folder with model_index.json";
        return Err(Failure::Usage(what.into()));
    }
    let (path, model, seqs) = (args.path.clone(), args.model.clone(), config.max_num_seqs);
    let name = args.name().unwrap_or("the demo model").to_owned();
    let (first, reads_sound) = (AtomicBool::new(true), Arc::new(AtomicBool::new(false)));
    let sound = reads_sound.clone();
    let load = move || -> Result<Model> {
        #[cfg(feature = "image")]
        if let Some((folder, options)) = &pipeline {
            return ImageHandle::open(folder, options).map(Model::from);
        }
        let opened = open(&model, path.as_deref(), seqs, first.swap(false, Ordering::Relaxed))
            // What is wrong with a field of its files does not say whose field it is.
            .inspect_err(|_| note(&format!("{} cannot be opened:", name.escape_debug())))?;
        sound.store(opened.info().sound.is_some(), Ordering::Relaxed);
        Ok(opened.into())
    };
    let server = Server::bind(config, load)?;
    let name = server.names().join(", ");
    warn_of_limits(&args.limits, &name, [reads_sound.load(Ordering::Relaxed), server.makes_pictures()]);
    if demo {
        note(&dim("demo model (embedded; --model takes another): it writes package descriptions"));
    }
    if server.makes_pictures() {
        let turns = "one request after the other, whatever --max-num-seqs says";
        note(&dim(&format!(
            "a pipeline: {} makes its pictures, {turns}",
            server.picture_routes().join(", ")
        )));
    } else if !server.has_chat_template() {
        note("This model has no chat template: /v1/chat/completions refuses; --chat-template gives one.");
    }
    note(&format!("{name} answers at {}/v1 (Ctrl-C to end)", server.address()));
    if server.run_until_signal()? { Ok(()) } else { Err(Failure::Interrupted) }
}

/// Names limits that say nothing to the model.
fn warn_of_limits(limits: &LimitArgs, name: &str, [reads_sound, makes_pictures]: [bool; 2]) {
    for (of_sound, counts) in [(true, reads_sound), (false, makes_pictures)] {
        let what = if of_sound { "reads no sound" } else { "makes no pictures" };
        for flag in limits.of(of_sound).into_iter().filter(|_| !counts) {
            note(&format!("warning: {flag} counts for nothing: {name} {what}"));
        }
    }
}

/// The folder of a pipeline, where one is named, and how it is opened.
///
/// # Errors
/// `Usage` for flags that say nothing to a pipeline.
#[cfg(feature = "image")]
fn pipeline(args: &ServeArgs) -> Result<Option<(PathBuf, ImageOptions)>, Failure> {
    let Some(name) = args.name() else { return Ok(None) };
    let ModelSource::Path(folder) = super::args::named(name)? else { return Ok(None) };
    if !folder.join("model_index.json").is_file() {
        return Ok(None);
    }
    if let Some(flag) = args.model.of_texts() {
        return Err(Failure::Usage(format!("{flag} says nothing to a pipeline that makes pictures: {name}")));
    }
    let (model, device) = (&args.model, &args.model.device);
    let (backend, threads, access) = (device.backend()?, device.threads, model.access());
    let dtype = device.dtype.unwrap_or(Float::F32);
    let (loras, graphs) = (args.lora.clone(), !device.no_graphs);
    let options = ImageOptions { backend, threads, dtype, access, loras, graphs, ..ImageOptions::default() };
    Ok(Some((folder, options)))
}

/// How requests may call a model: as the command line does, and by the last part of that.
fn names(given: Option<&str>) -> Vec<String> {
    let Some(given) = given else { return vec!["demo".into()] };
    let mut names = vec![given.to_owned()];
    if let Some(last) = Path::new(given).file_name().map(|last| last.to_string_lossy().into_owned())
        && last != given
    {
        names.push(last);
    }
    names
}

/// Opens the model, the first time with a progress bar.
fn open(model: &ModelArgs, path: Option<&str>, seqs: usize, shown: bool) -> Result<TextGenerator> {
    let (source, options) = model.read(path).map_err(|failure| match failure {
        Failure::Run(error) => error,
        other => Error::text(other.to_string()),
    })?;
    let options = options.max_seqs(seqs);
    let mut loading = Loading::default();
    let progress = move |done, total| {
        if shown {
            loading.show(done, total);
        }
    };
    options.progress(progress).open(source)
}

//! Finding a model's files: which weights a folder holds, its configuration and tokenizer.
//!
//! Order in a folder: `model.safetensors`, its index, the same two with the name that diffusers gives them
//! (`diffusion_pytorch_model`), then `pytorch_model.bin` and its index, the same two of diffusers, then the
//! only other safetensors file or index, the only GGUF file, the only other file of PyTorch's, or Meta's
//! `consolidated.00.pth`, `consolidated.01.pth`, ... (one per rank).
//! Anything ambiguous is an error that lists what is there.

use super::{
    Access, Layout, ModelFiles, Source, TokenizerFiles, VocabularyFiles,
    contents::pytorch,
    deepspeed::{self, Description, Files, Order},
    gguf, index, json, packed,
    ready::{MANIFEST, Ready},
    safetensors, sentence,
    storage::Storage,
    torch,
};
use crate::{Error, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Field of a configuration that holds what other files say of a feature extractor for sound, so that a
/// converted model keeps it.
const EXTRACTOR: &str = "engraft_extractor";
/// Largest `tokenizer.json`.
const MAX_TOKENIZER: usize = 256 << 20;
/// A file of an older tokenizer: a SentencePiece model, a vocabulary, merges.
const MAX_PIECES: usize = 64 << 20;
/// Largest `chat_template.jinja`.
const MAX_TEMPLATE: usize = 4 << 20;
const INDEX: &str = ".safetensors.index.json";
/// PyTorch's names of weights, and those of diffusers.
const TORCH: [&str; 2] = ["pytorch_model.bin", "diffusion_pytorch_model.bin"];
/// Endings of PyTorch's files.
const TORCH_ENDS: [&str; 4] = [".bin", ".pt", ".pth", ".ckpt"];
/// What Meta's models have in the place of `config.json`.
const PARAMS: &str = "params.json";
/// What training leaves next to the weights in the same format.
const NOT_WEIGHTS: [&str; 4] = ["training_args", "optimizer", "scheduler", "rng_state"];

/// What files of ggml begin with that are older than GGUF: Whisper's still are.
const OLD_GGML: &[u8] = b"lmgg";
/// A GGUF file without tensors: the tokenizer of a converted model whose original was GGUF.
pub(super) const TOKENIZER: &str = "tokenizer.gguf";

/// What a folder's weights are.
enum Weights {
    Single(PathBuf),
    Index(PathBuf),
    Gguf(PathBuf),
    Torch(PathBuf),
    /// Meta's files, one per tensor-parallel rank.
    Ranks(Vec<PathBuf>),
    /// DeepSpeed's files, in the folder of one tag.
    Tag,
}

/// See [`super::open`].
pub(super) fn open(path: &Path, access: Access) -> Result<ModelFiles> {
    let meta = std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
    if meta.is_dir() {
        if path.join(MANIFEST).is_file() {
            return converted(path, access);
        }
        if deepspeed::is_deepspeed(path) {
            return sharded(path, Files::deepspeed(path)?, Order::default(), access);
        }
        if deepspeed::is_megatron(path) {
            let order = Order { version: None, megatron: true };
            return sharded(path, Files::megatron(path)?, order, access);
        }
        return match find_weights(path)? {
            Weights::Gguf(file) => gguf::model(path.to_owned(), Storage::open(&file, access)?),
            Weights::Single(file) => hugging_face(path, path, |_| {
                Ok(Box::new(safetensors::single(Storage::open(&file, access)?)?))
            }),
            Weights::Torch(file) => {
                hugging_face(path, path, |_| Ok(Box::new(pytorch(Storage::open(&file, access)?)?)))
            }
            Weights::Index(file) => hugging_face(path, path, |_| {
                let bytes = crate::file::whole(&file, index::MAX_INDEX as u64)?;
                Ok(Box::new(index::open(path, &file.display().to_string(), &bytes, access)?))
            }),
            Weights::Ranks(files) => hugging_face(path, path, |_| {
                let place = path.display().to_string();
                Ok(deepspeed::open(&place, &Files::of_ranks(files), Order::default(), access)?.source)
            }),
            // What all tags share lies next to their folders.
            Weights::Tag => {
                let home = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                sharded(home, Files::tagged(path.to_owned())?, Order::default(), access)
            }
        };
    }
    let storage = Storage::open(path, access)?;
    if storage.range(0, storage.len().min(4))?.as_ref() == gguf::MAGIC {
        return gguf::model(path.to_owned(), storage);
    }
    no_old_ggml(&storage)?;
    let folder = path.parent().unwrap_or(Path::new("."));
    match path.extension().and_then(|e| e.to_str()) {
        Some("safetensors") => hugging_face(path, folder, |_| Ok(Box::new(safetensors::single(storage)?))),
        Some("gguf") => Err(Error::format(storage.name(), "does not begin with \"GGUF\"")),
        _ if torch::is_torch(&storage.range(0, storage.len().min(64))?) => {
            hugging_face(path, folder, |_| Ok(Box::new(pytorch(storage)?)))
        }
        Some("json") => of_json(path, storage.name(), access),
        _ => Err(Error::format(
            storage.name(),
            "is not a model that can be read; expected: a folder with config.json (or Meta's params.json) and weights, \
             a .gguf file, a .safetensors or PyTorch file next to its config.json, or DeepSpeed's JSON description",
        )),
    }
}

/// DeepSpeed's description of a checkpoint, which a model's configuration is not.
fn of_json(path: &Path, name: &str, access: Access) -> Result<ModelFiles> {
    if super::read_configuration(path)?.is_some() {
        let what =
            "is a model's configuration alone; expected: the folder with its weights (a plan needs none)";
        return Err(Error::format(name, what));
    }
    described(name, &description(path)?, &Description::folder(path), None, access)
}

/// Refuses files of ggml that are older than GGUF.
fn no_old_ggml(storage: &Storage) -> Result<()> {
    if storage.range(0, storage.len().min(4))?.as_ref() != OLD_GGML {
        return Ok(());
    }
    let what = "is in ggml's format of before GGUF, as whisper.cpp's .bin files are, which is not read; expected: \
                the folder with config.json that it was converted from";
    Err(Error::format(storage.name(), what))
}

/// Decides which weights of a folder are meant.
fn find_weights(folder: &Path) -> Result<Weights> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|e| Error::io(folder, e))? {
        let entry = entry.map_err(|e| Error::io(folder, e))?;
        if let Ok(name) = entry.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort_unstable();
    let there = |name: &str| names.binary_search_by(|n| n.as_str().cmp(name)).is_ok();
    for stem in ["model", "diffusion_pytorch_model"] {
        let (single, index) = (format!("{stem}.safetensors"), format!("{stem}{INDEX}"));
        if there(&single) {
            return Ok(Weights::Single(folder.join(single)));
        }
        if there(&index) {
            return Ok(Weights::Index(folder.join(index)));
        }
    }
    for single in TORCH {
        let index = format!("{single}.index.json");
        if there(single) {
            return Ok(Weights::Torch(folder.join(single)));
        }
        if there(&index) {
            return Ok(Weights::Index(folder.join(index)));
        }
    }
    let ending =
        |end: &str| names.iter().filter(|n| n.ends_with(end)).map(String::as_str).collect::<Vec<_>>();
    let place = folder.display().to_string();
    let (indexes, singles, ggufs) = (ending(INDEX), ending(".safetensors"), ending(".gguf"));
    match (indexes.as_slice(), singles.as_slice(), ggufs.as_slice()) {
        ([index], _, _) => Ok(Weights::Index(folder.join(index))),
        ([], [single], _) => Ok(Weights::Single(folder.join(single))),
        ([], [], [gguf]) => Ok(Weights::Gguf(folder.join(gguf))),
        ([], [], []) => torch_weights(folder, place, &names),
        ([], [], several) => Err(Error::format(
            place,
            format!("holds several GGUF files ({}); name the one that is meant", several.join(", ")),
        )),
        _ => {
            let all = [indexes, singles].concat();
            let what = format!(
                "holds several safetensors files ({}) and neither model.safetensors nor model{INDEX}; \
                 a sharded model needs its index, else name the file that is meant",
                shorten(&all)
            );
            Err(Error::format(place, what))
        }
    }
}

fn shorten(names: &[&str]) -> String {
    let more = names.len().saturating_sub(4);
    let shown = names[..names.len() - more].join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

/// The PyTorch weights of a folder that has nothing else.
fn torch_weights(folder: &Path, place: String, names: &[String]) -> Result<Weights> {
    let [single, _] = TORCH;
    let weights = |n: &&str| {
        TORCH_ENDS.iter().any(|end| n.ends_with(end)) && !NOT_WEIGHTS.iter().any(|w| n.starts_with(w))
    };
    let found: Vec<&str> = names.iter().map(String::as_str).filter(weights).collect();
    if found.iter().any(|name| deepspeed::is_of_tag(name)) {
        return Ok(Weights::Tag);
    }
    let numbered = |(i, n): (usize, &&str)| **n == format!("consolidated.{i:02}.pth");
    if found.len() > 1 && found.iter().enumerate().all(numbered) {
        return Ok(Weights::Ranks(found.iter().map(|n| folder.join(n)).collect()));
    }
    match found[..] {
        [one] => Ok(Weights::Torch(folder.join(one))),
        [] => Err(Error::format(
            place,
            "holds no weights; expected: model.safetensors or pytorch_model.bin, the .index.json of either with its \
             shards, a .gguf file, or DeepSpeed's `latest`",
        )),
        _ => {
            let what = format!(
                "holds several PyTorch files ({}) and neither {single} nor {single}.index.json; name the file that is meant",
                shorten(&found)
            );
            Err(Error::format(place, what))
        }
    }
}

/// See [`super::read_description`].
pub(super) fn description(path: &Path) -> Result<Value> {
    let file = path.display().to_string();
    let value = json::object(&file, &crate::file::whole(path, json::MAX_CONFIG as u64)?, json::MAX_CONFIG)?;
    if !deepspeed::is_description(&value) {
        let what = "has no `checkpoints`, so it is no DeepSpeed description; name the model's folder instead";
        return Err(Error::format(file, what));
    }
    Ok(value)
}

/// See [`super::open_description`].
pub(super) fn described(
    file: &str,
    value: &Value,
    folder: &Path,
    base: Option<&str>,
    access: Access,
) -> Result<ModelFiles> {
    let Description { files, base, order } = Description::parse(file, value, folder, base)?;
    sharded(folder, (files, base), order, access)
}

/// A converted model: the original's `config.json` and tokenizer lie next to its operands.
fn converted(folder: &Path, access: Access) -> Result<ModelFiles> {
    let source = Ready::open(folder, access)?;
    let layout = if source.is_gguf() { Layout::Gguf } else { Layout::HuggingFace };
    let mut model = hugging_face(folder, folder, |_| Ok(Box::new(source)))?;
    model.layout = layout;
    let tokenizer = folder.join(TOKENIZER);
    if tokenizer.is_file() {
        let found = gguf::model(tokenizer.clone(), Storage::open(&tokenizer, Access::Read)?)?;
        model.tokenizer = found.tokenizer;
    }
    Ok(model)
}

/// A checkpoint in shards; `config.json` lies in `folder` or next to the shards. Without one, what Megatron's
/// own files say of the model serves.
fn sharded(
    folder: &Path,
    (files, inside): (Files, PathBuf),
    order: Order,
    access: Access,
) -> Result<ModelFiles> {
    let place = folder.display().to_string();
    let there = |f: &&Path| f.join("config.json").exists();
    // The configuration comes first: it may say in which order the ranks' fused rows are merged.
    let (mut model, version) = match [inside.as_path(), folder].into_iter().find(there) {
        Some(home) => {
            let mut version = None;
            let model = hugging_face(home, home, |config| {
                let opened = deepspeed::open(&place, &files, order.with(&place, config)?, access)?;
                version = Some(opened.version);
                Ok(opened.source)
            })?;
            (model, version)
        }
        None => {
            let opened = deepspeed::open(&place, &files, Order { megatron: true, ..order }, access)?;
            let model = match deepspeed::config(&opened.facts) {
                Some(config) => ModelFiles {
                    path: folder.to_owned(),
                    layout: Layout::HuggingFace,
                    config,
                    generation: json::empty(),
                    tokenizer: TokenizerFiles::named("", None, None, None)?,
                    source: opened.source,
                },
                // Says that config.json is missing.
                None => hugging_face(folder, folder, |_| Ok(opened.source))?,
            };
            (model, Some(opened.version))
        }
    };
    // The order that merged the ranks is the order that the rows are read in.
    if let (Some(config), Some(version)) = (model.config.as_object_mut(), version) {
        config.insert("checkpoint_version".into(), version.into());
    }
    Ok(model)
}

/// Configuration and tokenizer of a folder, and the weights that `weights` opens, knowing the configuration.
fn hugging_face(
    path: &Path,
    folder: &Path,
    weights: impl FnOnce(&Value) -> Result<Box<dyn Source>>,
) -> Result<ModelFiles> {
    let configuration = |name: &'static str| -> Result<Option<(&'static str, Vec<u8>)>> {
        let found = read_optional(&folder.join(name), json::MAX_CONFIG)?;
        Ok(found.map(|bytes| (name, bytes)))
    };
    let found = match configuration("config.json")? {
        Some(found) => Some(found),
        None => configuration(PARAMS)?,
    };
    let Some((name, config)) = found else {
        let what = "config.json is missing; it (or Meta's params.json) must lie next to the weights";
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        return Err(Error::format(folder.display().to_string(), what));
    };
    let named = |name: &str| folder.join(name).display().to_string();
    let mut config = json::object(&named(name), &config, json::MAX_CONFIG)?;
    if let Some(fields) = config.as_object_mut() {
        insert_others(folder, fields)?;
    }
    let generation = match read_optional(&folder.join("generation_config.json"), json::MAX_CONFIG)? {
        Some(bytes) => json::object(&named("generation_config.json"), &bytes, json::MAX_CONFIG)?,
        None => json::empty(),
    };
    let tokenizer = tokenizer_files(folder, &config)?;
    let source = weights(&config)?;
    let source = packed::unpacked(&mut config, source)?;
    Ok(ModelFiles {
        path: path.to_owned(),
        layout: Layout::HuggingFace,
        config,
        generation,
        tokenizer,
        source,
    })
}

/// The tokenizer of a folder, as found; `config` is the model's.
pub(super) fn tokenizer_files(folder: &Path, config: &Value) -> Result<TokenizerFiles> {
    let named = |name: &str| folder.join(name).display().to_string();
    let template = match read_optional(&folder.join("chat_template.jinja"), MAX_TEMPLATE)? {
        Some(bytes) => Some(
            String::from_utf8(bytes)
                .map_err(|_| Error::format(named("chat_template.jinja"), "is not UTF-8"))?,
        ),
        None => None,
    };
    let mut tokenizer = TokenizerFiles::named(
        &named(""),
        read_optional(&folder.join("tokenizer.json"), MAX_TOKENIZER)?,
        read_optional(&folder.join("tokenizer_config.json"), json::MAX_CONFIG)?.as_deref(),
        template,
    )?;
    if let TokenizerFiles::HuggingFace { tokenizer_json: None, vocabulary, .. } = &mut tokenizer {
        *vocabulary = vocabulary_files(folder, named(""), config)?;
    }
    Ok(tokenizer)
}

/// What other files of a folder say of the model, as fields of its configuration.
fn insert_others(folder: &Path, fields: &mut serde_json::Map<String, Value>) -> Result<()> {
    if let Some(said) = sentence::read(folder, |path| read_optional(path, json::MAX_CONFIG))? {
        fields.insert(sentence::FIELD.into(), said);
    }
    if let Some(extractor) = extractor(folder)? {
        fields.insert(EXTRACTOR.into(), extractor);
    }
    Ok(())
}

/// What a folder says of a feature extractor: a file of its own or, by newer versions of the reference, a
/// part of the processor's. The oldest files of models that read samples name no type.
fn extractor(folder: &Path) -> Result<Option<Value>> {
    for (name, part) in
        [("preprocessor_config.json", None), ("processor_config.json", Some("feature_extractor"))]
    {
        let path = folder.join(name);
        let Some(bytes) = read_optional(&path, json::MAX_CONFIG)? else { continue };
        let mut file = json::object(&path.display().to_string(), &bytes, json::MAX_CONFIG)?;
        let extractor = match part {
            Some(part) => file.get_mut(part).map(Value::take),
            None => Some(file),
        };
        let hears = |value: &Value| {
            value.get("feature_extractor_type").is_some_and(Value::is_string)
                || value.get("sampling_rate").is_some_and(Value::is_number)
        };
        if let Some(extractor) = extractor.filter(hears) {
            return Ok(Some(extractor));
        }
    }
    Ok(None)
}

/// The files of an older tokenizer, where they are there.
fn vocabulary_files(folder: &Path, place: String, config: &Value) -> Result<Option<Box<VocabularyFiles>>> {
    let mut files = Vec::new();
    for name in VocabularyFiles::names() {
        files.extend(read_optional(&folder.join(name), MAX_PIECES)?.map(|bytes| (name, bytes)));
    }
    let model_type = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let found = match VocabularyFiles::new(place.clone(), model_type, files) {
        None => VocabularyFiles::of_unknown_ranks(place, model_type.into(), unknown_ranks(folder)?),
        found => found,
    };
    Ok(found.map(|files| Box::new(files.of_model(config))))
}

/// Names of a folder's files of ranks that have none of the known names, sorted.
fn unknown_ranks(folder: &Path) -> Result<Vec<String>> {
    let failed = |e| Error::io(folder, e);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".tiktoken") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// A file's bytes, where it is there. What a link to nowhere was for is lost, which no model may lose
/// silently.
fn read_optional(path: &Path, limit: usize) -> Result<Option<Vec<u8>>> {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    match path.symlink_metadata() {
        Ok(meta) if meta.is_symlink() && !path.exists() => {
            let what = "is a link that leads nowhere; expected: a file, or none of this name";
            Err(Error::format(path.display().to_string(), what))
        }
        Ok(_) => crate::file::whole(path, limit as u64).map(Some),
        Err(e) if matches!(e.kind(), NotFound | NotADirectory) => Ok(None),
        Err(e) => Err(Error::io(path, e)),
    }
}

/// See [`super::copy_companions`].
pub(super) fn copy_companions(files: &ModelFiles, to: &Path) -> Result<()> {
    let write = |name: &str, bytes: &[u8]| {
        let path = to.join(name);
        std::fs::write(&path, bytes).map_err(|e| Error::io(path, e))
    };
    write("config.json", files.config.to_string().as_bytes())?;
    write("generation_config.json", files.generation.to_string().as_bytes())?;
    match &files.tokenizer {
        TokenizerFiles::HuggingFace { tokenizer_json, tokenizer_config, chat_template, vocabulary } => {
            if let Some(bytes) = tokenizer_json {
                write("tokenizer.json", bytes)?;
            }
            if tokenizer_config.is_object() {
                write("tokenizer_config.json", tokenizer_config.to_string().as_bytes())?;
            }
            if let Some(text) = chat_template {
                write("chat_template.jinja", text.as_bytes())?;
            }
            for (name, bytes) in vocabulary.iter().flat_map(|files| files.all()) {
                write(name, bytes)?;
            }
        }
        TokenizerFiles::Gguf(_) => {
            let path = gguf_file(files)?;
            write(TOKENIZER, &gguf::without_tensors(&Storage::open(&path, Access::default())?)?)?;
        }
    }
    Ok(())
}

/// The file whose metadata a model's tokenizer is in.
fn gguf_file(files: &ModelFiles) -> Result<PathBuf> {
    let inside = files.path.join(TOKENIZER);
    match (inside.is_file(), files.path.is_dir()) {
        (true, _) => Ok(inside),
        (false, true) => match find_weights(&files.path)? {
            Weights::Gguf(file) => Ok(file),
            _ => Err(Error::internal("a GGUF tokenizer without a GGUF file")),
        },
        (false, false) => Ok(files.path.clone()),
    }
}

/// See [`super::gguf_metadata`].
pub(super) fn gguf_metadata(files: &ModelFiles) -> Result<gguf::Metadata> {
    gguf::own_metadata(&Storage::open(&gguf_file(files)?, Access::default())?)
}

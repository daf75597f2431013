//! The texts of a folder, and which of them is most like a question.
//!
//! `cargo run --release -p engraft --example 09_embed_folder -- FOLDER "QUESTION" [MODEL]`
//!
//! Without arguments it looks for this repository's page about GPUs in `docs`. The demo model was made to
//! continue texts, so that its vectors say little; an embedding model such as
//! `sentence-transformers/all-MiniLM-L6-v2` is a folder, or with the feature `hub` that name.

use engraft::{EmbedOptions, Error, ModelSource, Options, Result};
use std::path::PathBuf;

/// Texts that run together.
const BATCH: usize = 32;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");
    let folder = args.next().unwrap_or_else(|| docs.into());
    let question = args.next().unwrap_or_else(|| "How do I run a model on a GPU?".into());
    let model = args.next().map_or(ModelSource::Demo, ModelSource::from);

    // The model's files say how vectors are made. Longer texts than the model takes count by their beginning.
    let model = Options::new().max_seqs(8).truncate_texts(true).open(model)?;
    let texts = texts(&folder)?;
    let how = EmbedOptions::new();
    let asked = model.embed(&[question.as_str()], &how)?.remove(0);

    let mut found = Vec::new();
    for batch in texts.chunks(BATCH) {
        let contents: Vec<&str> = batch.iter().map(|(_, text)| text.as_str()).collect();
        for ((path, _), vector) in batch.iter().zip(model.embed(&contents, &how)?) {
            // Vectors have length 1: this is their cosine.
            let likeness: f32 = vector.iter().zip(&asked).map(|(a, b)| a * b).sum();
            found.push((likeness, path));
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!("{question}");
    for (likeness, path) in found.iter().take(5) {
        println!("{likeness:.3} {}", path.display());
    }
    Ok(())
}

/// The text files of a folder.
fn texts(folder: &str) -> Result<Vec<(PathBuf, String)>> {
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|e| Error::io(folder, e))? {
        let path = entry.map_err(|e| Error::io(folder, e))?.path();
        if path.extension().is_some_and(|e| e == "txt" || e == "md") {
            let text = std::fs::read_to_string(&path).map_err(|e| Error::io(&path, e))?;
            texts.push((path, text));
        }
    }
    texts.sort();
    Ok(texts)
}

//! How well a model predicts a text: what a conversion costs is the difference.

use super::super::failure::Failure;
use super::super::input;
use engraft::{Error, ModelSource, Options};
use std::fmt;
use std::path::{Path, PathBuf};

/// Tokens that are read at once; the first of them is given.
const WINDOW: usize = 512;

/// A text in a file.
pub(super) struct Text {
    path: PathBuf,
    text: String,
}

/// The mean over a text's tokens.
pub(super) struct Scored {
    mean: f64,
    tokens: usize,
    window: usize,
}

impl Text {
    /// Reads it.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        Ok(Self { path: path.to_owned(), text: input::text(path, input::MOST_TEXT)? })
    }

    /// What its tokens score, window by window.
    pub fn scored(&self, options: Options, model: ModelSource) -> Result<Scored, Failure> {
        let files = model.open()?;
        let window = options.describe(&files)?.max_positions.min(WINDOW);
        let model = options.max_context(window).logit_rows(usize::MAX).open(files)?;
        let ids = model.tokenizer().encode(&self.text, true)?;
        let (mut sum, mut tokens) = (0.0, 0);
        // One window at a time: the logits of all its tokens are in memory.
        for ids in ids.chunks(window).filter(|ids| ids.len() > 1) {
            for scores in model.handle().score([ids.to_vec()])? {
                sum += scores.iter().map(|p| f64::from(*p)).sum::<f64>();
                tokens += scores.len();
            }
        }
        if tokens == 0 {
            let what = format!("has {} tokens; two or more are scored", ids.len());
            return Err(Error::format(self.path.display().to_string(), what).into());
        }
        Ok(Scored { mean: sum / tokens as f64, tokens, window })
    }
}

impl fmt::Display for Scored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mean, tokens, window } = self;
        let perplexity = (-mean).exp();
        write!(
            f,
            "mean log-probability {mean:.5}, perplexity {perplexity:.4} ({tokens} tokens, windows of {window})"
        )
    }
}

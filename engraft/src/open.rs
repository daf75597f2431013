//! From options to a running model.

use crate::generator::TextGenerator;
use crate::handle::{EngineHandle, Start};
use crate::labels::Labels;
use crate::options::Options;
use crate::sentence::Sentence;
use crate::source::ModelSource;
use crate::text;
use engraft_core::Result;
use engraft_core::checkpoint::{ModelFiles, TokenizerFiles};
use engraft_core::inject::describe;
use engraft_core::policy::ModelSpec;

impl TextGenerator {
    /// Texts for the engine behind `handle`, which may run on any backend ([`EngineHandle::over`]): the
    /// tokenizer, the chat template and the rest of what `files` say of texts. They have to be the model's
    /// own.
    ///
    /// ```
    /// # fn main() -> engraft::Result<()> {
    /// use engraft::{GenerateOptions, Options, TextGenerator};
    ///
    /// let handle = Options::new().start(engraft::demo_files()?)?;
    /// let model = TextGenerator::over(handle, engraft::demo_files()?)?;
    /// let options = GenerateOptions::new().max_new_tokens(6).greedy();
    /// let text = model.generate("This package", &options)?.text()?;
    /// assert_eq!(text, engraft::demo()?.generate("This package", &options)?.text()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// No tokenizer, or one that is broken; `Config` for what the files say of texts and cannot be honoured.
    pub fn over(handle: EngineHandle, mut files: ModelFiles) -> Result<Self> {
        let tokenizer = std::mem::replace(&mut files.tokenizer, TokenizerFiles::none());
        let (name, config) = (files.path.display().to_string(), &files.config);
        let mut processor = text::TextProcessor::new(&name, tokenizer, config, &files.generation)?;
        processor.fits(&name, handle.info().vocab);
        let (labels, sentence) = (Labels::of(config, handle.head()), Sentence::of(config)?);
        let model = Self::new(handle, processor, labels, sentence, false);
        #[cfg(feature = "speech")]
        let model = model.with_speech(crate::speech_files::SpeechFiles::of(config, &files.generation));
        Ok(model)
    }
}

impl Options {
    /// What a model is, as the policies of these options see it, before a weight is read.
    ///
    /// # Errors
    /// `NoPolicy` where none knows the model, `Config` for what the one that does refuses.
    ///
    /// ```
    /// # fn main() -> engraft::Result<()> {
    /// use engraft::{ModelSource, Options};
    ///
    /// let files = ModelSource::Demo.open()?;
    /// let options = Options::new();
    /// assert_eq!(options.describe(&files)?.arch, "llama");
    /// let model = options.open(files)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn describe(&self, files: &ModelFiles) -> Result<ModelSpec> {
        Ok(describe(files, &self.registry)?.0)
    }

    /// Opens a model for text.
    ///
    /// # Errors
    /// Unreadable or broken files, a model that no policy knows, no tokenizer, a backend that this build
    /// lacks, no memory: each as an [`crate::Error`] that names it.
    pub fn open(self, model: impl Into<ModelSource>) -> Result<TextGenerator> {
        let mut files = model.into().open()?;
        let tokenizer = std::mem::replace(&mut files.tokenizer, TokenizerFiles::none());
        let generation = std::mem::take(&mut files.generation);
        let config = files.config.clone();
        #[cfg(feature = "speech")]
        let speech = crate::speech_files::SpeechFiles::of(&config, &generation);
        let name = files.path.display().to_string();
        // The tokenizer is built while the engine's thread reads the weights.
        let truncate = self.truncate_texts;
        let starting = Start::spawn(files, self)?;
        let processor = text::TextProcessor::new(&name, tokenizer, &config, &generation);
        let handle = starting.wait()?;
        let (labels, sentence) = (Labels::of(&config, handle.head()), Sentence::of(&config)?);
        let mut processor = processor?;
        processor.fits(&name, handle.info().vocab);
        let model = TextGenerator::new(handle, processor, labels, sentence, truncate);
        #[cfg(feature = "speech")]
        let model = model.with_speech(speech);
        Ok(model)
    }

    /// Carries out the orders of rank 0 as another rank of [`Options::processes`], until the engine there is
    /// gone.
    ///
    /// # Errors
    /// As [`Options::open`], but for the tokenizer; `Comm` with a rank that is missing; `Config` where this
    /// is no rank that follows.
    #[cfg(unix)]
    pub fn follow(self, model: impl Into<ModelSource>) -> Result<()> {
        match self.processes.as_ref().map(|processes| processes.place.rank) {
            Some(rank) if rank > 0 => crate::handle::follow(model.into().open()?, self),
            rank => {
                let got = rank.map_or_else(|| "none".to_string(), |rank| rank.to_string());
                Err(engraft_core::Error::config("rank", got, "1 and more, of `Options::processes`"))
            }
        }
    }

    /// Opens a model without its text side: token ids in, token ids (or an encoder's states) out.
    ///
    /// # Errors
    /// As [`Options::open`], but for the tokenizer.
    pub fn start(self, model: impl Into<ModelSource>) -> Result<EngineHandle> {
        let files: ModelFiles = model.into().open()?;
        Start::spawn(files, self)?.wait()
    }
}

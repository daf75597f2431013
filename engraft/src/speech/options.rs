//! What is asked of a transcription.

use crate::Caller;

/// What a model makes of speech.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Task {
    /// Text in the language that is spoken.
    #[default]
    Transcribe,
    /// Text in English.
    Translate,
}

/// How a sound is transcribed.
///
/// ```
/// use engraft::SpeechOptions;
///
/// let options = SpeechOptions::new().language("de").timestamps(false);
/// assert_ne!(options, SpeechOptions::new());
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct SpeechOptions {
    pub(super) language: Option<String>,
    pub(super) task: Task,
    pub(super) timestamps: bool,
    pub(super) caller: Caller,
}

impl Default for SpeechOptions {
    fn default() -> Self {
        Self { language: None, task: Task::Transcribe, timestamps: true, caller: Caller::default() }
    }
}

impl SpeechOptions {
    /// The language is heard in the first window, segments have their times.
    pub fn new() -> Self {
        Self::default()
    }

    /// The language that is spoken, as the model's tokens spell it: `en`, `de`, ...
    pub fn language(mut self, language: impl Into<String>) -> Self {
        self.language = Some(language.into());
        self
    }

    /// What the model makes of the speech.
    pub fn task(mut self, task: Task) -> Self {
        self.task = task;
        self
    }

    /// Whether segments are found by the model's timestamps; else each window is one, as it always is of
    /// models whose vocabulary has no timestamps.
    pub fn timestamps(mut self, on: bool) -> Self {
        self.timestamps = on;
        self
    }

    /// Who it is for: windows share the engine as the requests of the same tenant and priority do.
    pub fn on_behalf_of(mut self, caller: Caller) -> Self {
        self.caller = caller;
        self
    }
}

//! Languages by name, and what a model's `generation_config.json` says of language and task.

use super::options::Task;
use super::words::Words;
use crate::TextGenerator;
use engraft_core::Error;
use serde_json::Value;

/// What a task may be.
const TASKS: &str = "transcribe, or translate by a model of several languages";
/// What forced tokens may be.
const FORCED: &str = "[[1, a language], [2, a task], [3, <|notimestamps|>]], or null in their places";

/// What counts where a transcription names no language or no task.
#[derive(Debug, Default)]
pub(super) struct Defaults {
    /// The token of a language.
    pub language: Option<u32>,
    pub task: Task,
}

impl Defaults {
    /// Those of a model's files, and what of them is not known: `language` and `task`; where a file has
    /// neither, `forced_decoder_ids`, as the reference reads them (`transformers`,
    /// `generation_whisper.py`).
    pub fn of(model: &TextGenerator, words: &Words) -> (Self, Vec<Error>) {
        let (mut found, mut unknown) = (Self::default(), Vec::new());
        let files = &model.speech;
        if let Some(said) = &files.language {
            let english = said.as_str().is_some_and(|name| code(name) == "en");
            let known = said.as_str().filter(|_| words.multilingual || english);
            found.language = known.and_then(|name| language(model, words, name));
            // A model of English alone need not have a token for it.
            if found.language.is_none() && (words.multilingual || !english) {
                unknown.push(Error::config("language", said, "a language that the model knows"));
            }
        }
        match files.task.as_ref().map(|said| (said, said.as_str())) {
            None | Some((_, Some("transcribe"))) => {}
            Some((_, Some("translate"))) if words.multilingual => found.task = Task::Translate,
            Some((said, _)) => unknown.push(Error::config("task", said, TASKS)),
        }
        let forced = files.forced.as_ref().filter(|_| files.language.is_none() && files.task.is_none());
        if let Some(said) = forced
            && found.force(words, said).is_none()
        {
            unknown.push(Error::config("forced_decoder_ids", said, FORCED));
        }
        (found, unknown)
    }

    /// Takes tokens by their positions; none where one of them is not known.
    fn force(&mut self, words: &Words, said: &Value) -> Option<()> {
        let mut known = Some(());
        for pair in said.as_array()? {
            let [position, token] = pair.as_array()?.as_slice() else { return None };
            let id = token.as_u64().and_then(|id| u32::try_from(id).ok());
            match (position.as_u64()?, id) {
                (_, None) if token.is_null() => {}
                // A transcription says itself whether it has timestamps.
                (_, Some(id)) if id == words.no_timestamps => {}
                (1, Some(id)) if words.multilingual && words.languages().contains(&id) => {
                    self.language = Some(id);
                }
                (2, Some(id)) if words.multilingual && id == words.translate => self.task = Task::Translate,
                (2, Some(id)) if words.multilingual && id == words.transcribe => {}
                _ => known = None,
            }
        }
        known
    }
}

/// The token of a language by its code (`de`), its token (`<|de|>`) or its English name (`german`), in any
/// case; none where the model does not have it.
pub(super) fn language(model: &TextGenerator, words: &Words, name: &str) -> Option<u32> {
    let code = code(name);
    let token = model.tokenizer().token_id(&format!("<|{code}|>"));
    token.filter(|id| words.languages().contains(id))
}

/// The code of a language.
pub(super) fn code(name: &str) -> String {
    let name = name.to_lowercase();
    let bare = name.strip_prefix("<|").and_then(|name| name.strip_suffix("|>")).unwrap_or(&name);
    NAMES.iter().find(|(name, _)| *name == bare).map_or(bare, |(_, code)| *code).to_string()
}

/// English names of Whisper's languages, and their codes.
const NAMES: [(&str, &str); 112] = [
    ("english", "en"),
    ("chinese", "zh"),
    ("mandarin", "zh"),
    ("german", "de"),
    ("spanish", "es"),
    ("castilian", "es"),
    ("russian", "ru"),
    ("korean", "ko"),
    ("french", "fr"),
    ("japanese", "ja"),
    ("portuguese", "pt"),
    ("turkish", "tr"),
    ("polish", "pl"),
    ("catalan", "ca"),
    ("valencian", "ca"),
    ("dutch", "nl"),
    ("flemish", "nl"),
    ("arabic", "ar"),
    ("swedish", "sv"),
    ("italian", "it"),
    ("indonesian", "id"),
    ("hindi", "hi"),
    ("finnish", "fi"),
    ("vietnamese", "vi"),
    ("hebrew", "he"),
    ("ukrainian", "uk"),
    ("greek", "el"),
    ("malay", "ms"),
    ("czech", "cs"),
    ("romanian", "ro"),
    ("moldavian", "ro"),
    ("moldovan", "ro"),
    ("danish", "da"),
    ("hungarian", "hu"),
    ("tamil", "ta"),
    ("norwegian", "no"),
    ("thai", "th"),
    ("urdu", "ur"),
    ("croatian", "hr"),
    ("bulgarian", "bg"),
    ("lithuanian", "lt"),
    ("latin", "la"),
    ("maori", "mi"),
    ("malayalam", "ml"),
    ("welsh", "cy"),
    ("slovak", "sk"),
    ("telugu", "te"),
    ("persian", "fa"),
    ("latvian", "lv"),
    ("bengali", "bn"),
    ("serbian", "sr"),
    ("azerbaijani", "az"),
    ("slovenian", "sl"),
    ("kannada", "kn"),
    ("estonian", "et"),
    ("macedonian", "mk"),
    ("breton", "br"),
    ("basque", "eu"),
    ("icelandic", "is"),
    ("armenian", "hy"),
    ("nepali", "ne"),
    ("mongolian", "mn"),
    ("bosnian", "bs"),
    ("kazakh", "kk"),
    ("albanian", "sq"),
    ("swahili", "sw"),
    ("galician", "gl"),
    ("marathi", "mr"),
    ("punjabi", "pa"),
    ("panjabi", "pa"),
    ("sinhala", "si"),
    ("sinhalese", "si"),
    ("khmer", "km"),
    ("shona", "sn"),
    ("yoruba", "yo"),
    ("somali", "so"),
    ("afrikaans", "af"),
    ("occitan", "oc"),
    ("georgian", "ka"),
    ("belarusian", "be"),
    ("tajik", "tg"),
    ("sindhi", "sd"),
    ("gujarati", "gu"),
    ("amharic", "am"),
    ("yiddish", "yi"),
    ("lao", "lo"),
    ("uzbek", "uz"),
    ("faroese", "fo"),
    ("haitian creole", "ht"),
    ("haitian", "ht"),
    ("pashto", "ps"),
    ("pushto", "ps"),
    ("turkmen", "tk"),
    ("nynorsk", "nn"),
    ("maltese", "mt"),
    ("sanskrit", "sa"),
    ("luxembourgish", "lb"),
    ("letzeburgesch", "lb"),
    ("myanmar", "my"),
    ("burmese", "my"),
    ("tibetan", "bo"),
    ("tagalog", "tl"),
    ("malagasy", "mg"),
    ("assamese", "as"),
    ("tatar", "tt"),
    ("hawaiian", "haw"),
    ("lingala", "ln"),
    ("hausa", "ha"),
    ("bashkir", "ba"),
    ("javanese", "jw"),
    ("sundanese", "su"),
    ("cantonese", "yue"),
];

#[cfg(test)]
mod tests {
    use super::code;

    #[test]
    fn languages_have_codes_tokens_and_names() {
        for (name, want) in [
            ("hi", "hi"),
            ("<|hi|>", "hi"),
            ("Hindi", "hi"),
            ("haitian creole", "ht"),
            ("Cantonese", "yue"),
            ("no", "no"),
            ("klingon", "klingon"),
            ("<|hi", "<|hi"),
        ] {
            assert_eq!(code(name), want, "{name}");
        }
    }
}

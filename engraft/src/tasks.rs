//! Whole texts in: vectors, log-probabilities, labels, answers.

use crate::answer::{Answer, AnswerOptions, Candidates};
use crate::embed::EmbedOptions;
use crate::labels::{Classification, Labels};
use crate::{EncoderInput, ForwardWant, Pick, TextGenerator};
use engraft_core::policy::{Family, HeadSpec, TokenHead};
use engraft_core::text::PairWindow;
use engraft_core::{Error, Result};

/// Windows over a context that are in memory, and run, at once.
const WINDOWS: usize = 32;

impl TextGenerator {
    /// One vector per text: its last hidden states pooled, as `options` and the model's files say.
    ///
    /// Of sentence-transformers' files, `1_Pooling/config.json` says which states count unless `options` do,
    /// `sentence_bert_config.json` how many tokens a text may have, and the default prompt of
    /// `config_sentence_transformers.json` stands before every text.
    ///
    /// # Errors
    /// `Text` for what the tokenizer cannot express and for texts that are longer than these files allow;
    /// `Config` for a pooling of theirs that is not there; those of
    /// [`EngineHandle::embed`](crate::EngineHandle::embed).
    ///
    /// ```
    /// # fn main() -> engraft::Result<()> {
    /// use engraft::EmbedOptions;
    ///
    /// let model = engraft::demo()?;
    /// let texts = ["a library for images", "pictures in Python"];
    /// let vectors = model.embed(&texts, &EmbedOptions::new())?;
    /// let cosine: f32 = vectors[0].iter().zip(&vectors[1]).map(|(a, b)| a * b).sum();
    /// assert!(cosine.abs() <= 1.001);
    /// # Ok(())
    /// # }
    /// ```
    pub fn embed<T: AsRef<str>>(&self, texts: &[T], options: &EmbedOptions) -> Result<Vec<Vec<f32>>> {
        let ids =
            texts.iter().map(|text| self.tokenize_to_embed(text.as_ref())).collect::<Result<Vec<_>>>()?;
        self.handle().embed(ids, &self.embed_options(options)?)
    }

    /// The same options with the pooling of the model's files where they name none, for
    /// [`EngineHandle::embed`](crate::EngineHandle::embed).
    ///
    /// # Errors
    /// `Config`, naming what the files ask for, where that is not there.
    pub fn embed_options(&self, options: &EmbedOptions) -> Result<EmbedOptions> {
        let pooling = options.pooling.map_or_else(|| self.sentence.pooling(), Ok)?;
        Ok(EmbedOptions { pooling: Some(pooling), ..*options })
    }

    /// Token ids of a text as [`embed`](Self::embed) reads it: as [`tokenize`](Self::tokenize), with the
    /// prompt and the limit of the model's files.
    ///
    /// # Errors
    /// `Text` for what the tokenizer cannot express or truncate, and `TextTooLong`.
    pub fn tokenize_to_embed(&self, text: &str) -> Result<Vec<u32>> {
        let (text, context) = (self.sentence.text(text), self.longest_text());
        let stated = self.sentence.max_tokens.filter(|most| *most < context);
        let most = stated.unwrap_or(context);
        if self.truncate {
            return self.tokenizer().encode_truncated(&text, true, most);
        }
        let whose = |error| match (error, stated) {
            (Error::TextTooLong { bytes, tokens, .. }, Some(most)) => {
                let file = "`max_seq_length` of the model's sentence_bert_config.json";
                let allowed = format!("{most} by {file}; truncation is an option");
                Error::TextTooLong { bytes, tokens, allowed }
            }
            (error, _) => self.whose_limit(error),
        };
        self.tokenizer().encode_at_most(&text, true, most).map_err(whose)
    }

    /// Log-probabilities (base e) of every token of a text but the first, given those before it, by a
    /// decoder. [`Options::logit_rows`](crate::Options::logit_rows) makes long texts faster.
    ///
    /// # Errors
    /// `Text` for what the tokenizer cannot express; those of
    /// [`EngineHandle::score`](crate::EngineHandle::score).
    ///
    /// ```
    /// # fn main() -> engraft::Result<()> {
    /// use engraft::{ModelSource, Options};
    ///
    /// let model = Options::new().logit_rows(usize::MAX).open(ModelSource::Demo)?;
    /// let scores = model.score(&["This package provides", "provides package This"])?;
    /// let mean = |all: &[f32]| all.iter().sum::<f32>() / all.len() as f32;
    /// assert!(mean(&scores[0]) > mean(&scores[1]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn score<T: AsRef<str>>(&self, texts: &[T]) -> Result<Vec<Vec<f32>>> {
        self.handle().score(self.ids(texts)?)
    }

    /// Log-probabilities (base e) of every token of a text that a decoder writes behind what its encoder
    /// reads, the model's first stop token included, where it has one: pairs of what is read and what is
    /// written. The second is tokenized as it stands, as
    /// [`GenerateOptions::decoder_prompt`](crate::GenerateOptions::decoder_prompt) is (a language code in
    /// front of it, where the model wants one), behind what the model's files force.
    ///
    /// # Errors
    /// `Architecture` for models without an encoder next to a decoder, and for a Marian without `target.spm`,
    /// whose targets have pieces of their own; `Text` for what the tokenizer cannot express; those of
    /// [`EngineHandle::score`](crate::EngineHandle::score).
    ///
    /// ```no_run
    /// # fn main() -> engraft::Result<()> {
    /// let model = engraft::Options::new().logit_rows(usize::MAX).open("google/flan-t5-small")?;
    /// let scores = model.score_pairs(&[("translate English to German: The house.", "Das Haus.")])?;
    /// println!("{:.2}", scores[0].iter().sum::<f32>());
    /// # Ok(())
    /// # }
    /// ```
    pub fn score_pairs<S: AsRef<str>, T: AsRef<str>>(&self, pairs: &[(S, T)]) -> Result<Vec<Vec<f32>>> {
        let inputs = pairs.iter().map(|(read, written)| self.tokenize_pair(read.as_ref(), written.as_ref()));
        self.handle().score(inputs.collect::<Result<Vec<_>>>()?)
    }

    /// Token ids of a pair as [`score_pairs`](Self::score_pairs) has them.
    ///
    /// # Errors
    /// As there.
    pub fn tokenize_pair(&self, read: &str, written: &str) -> Result<EncoderInput> {
        let info = self.info();
        if info.encoder_layers == 0 || info.sound.is_some() {
            return Err(self.cannot("score_pairs", "the model has no encoder of texts next to its decoder"));
        }
        let Some(tokenizer) = self.target_tokenizer() else {
            let reason =
                "what it writes has pieces of its own, and there is no target.spm, or a tokenizer.json";
            return Err(self.cannot("score_pairs", reason));
        };
        let forced = info.decoder_start.iter().skip(1).copied();
        let text = tokenizer.encode_at_most(written, false, info.max_context)?;
        let decoder = forced.chain(text).chain(self.stop_ids().first().copied()).collect();
        Ok(EncoderInput { ids: self.tokenize(read)?, decoder, ..EncoderInput::default() })
    }

    /// The labels of a model that labels texts; none of any other.
    ///
    /// ```
    /// # fn main() -> engraft::Result<()> {
    /// let model = engraft::demo()?;
    /// match model.labels() {
    ///     Some(labels) => println!("it tells apart {}", labels.names().join(", ")),
    ///     None => println!("{} labels no texts", model.info().arch),
    /// }
    /// # assert!(model.labels().is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn labels(&self) -> Option<&Labels> {
        self.labels.as_ref()
    }

    /// Labels texts, by a sequence classifier (encoder or decoder).
    ///
    /// # Errors
    /// `Architecture` for models without such a head; `Text` for what the tokenizer cannot express;
    /// `Request`, numbered by text, for empty or too long ones.
    ///
    /// ```no_run
    /// # fn main() -> engraft::Result<()> {
    /// let model = engraft::open("distilbert/distilbert-base-uncased-finetuned-sst-2-english")?;
    /// for one in model.classify(&["What a film!", "Two hours too long."])? {
    ///     if let Some(best) = one.best() {
    ///         println!("{} {:.3}", best.name, best.score);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn classify<T: AsRef<str>>(&self, texts: &[T]) -> Result<Vec<Classification>> {
        let labels = self.labels().ok_or_else(|| {
            self.cannot(
                "classify",
                "the model has no classification head (expected ...ForSequenceClassification)",
            )
        })?;
        let logits = self.handle().classify(self.ids(texts)?)?;
        logits.iter().try_for_each(|logits| finite(logits))?;
        Ok(logits.into_iter().map(|logits| labels.classify(logits)).collect())
    }

    /// Looks for the answer to `question` in `context`, by a model for extractive question answering; the
    /// best first, none where no span is possible.
    ///
    /// # Errors
    /// `Architecture` for models without such a head; `Text` for an empty context, a question that leaves no
    /// room for one, and what the tokenizer cannot express; `Config` for options of 0.
    ///
    /// ```no_run
    /// # fn main() -> engraft::Result<()> {
    /// use engraft::AnswerOptions;
    ///
    /// let model = engraft::open("deepset/roberta-base-squad2")?;
    /// let context = "The Rhine rises in the Swiss canton of Graubünden.";
    /// let options = AnswerOptions::new().top_k(3).handle_impossible_answer(true);
    /// for answer in model.answer("Where does the Rhine rise?", context, &options)? {
    ///     println!("{:.3} {}", answer.score, answer.text);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn answer(&self, question: &str, context: &str, options: &AnswerOptions) -> Result<Vec<Answer>> {
        if !matches!(self.handle().head(), HeadSpec::Tokens { of: TokenHead::Span, .. }) {
            return Err(
                self.cannot("answer", "its head gives no spans; that of a ...ForQuestionAnswering does")
            );
        }
        for (field, value) in [("top_k", options.top_k), ("max_answer_len", options.max_answer_len)] {
            if value == 0 {
                return Err(Error::config(field, 0, "at least 1"));
            }
        }
        let (window, stride) = options.window(self.handle().longest_text());
        let mut windows = self.tokenizer().pair_windows(question, context, window, stride)?;
        let want = ForwardWant { hidden: Pick::None, logits: Pick::All };
        let mut candidates = Candidates::new(context, options);
        loop {
            let group: Vec<PairWindow> = windows.by_ref().take(WINDOWS).collect();
            if group.is_empty() {
                return Ok(candidates.best());
            }
            let texts = group.iter().map(|window| self.typed(window)).collect::<Vec<_>>();
            let logits = self.handle().forward(texts, want.clone())?;
            for (window, one) in group.iter().zip(&logits) {
                finite(&one.logits)?;
                candidates.add(window, &one.logits);
            }
        }
    }

    /// A window as the model reads it: without token types, if it has none.
    fn typed(&self, window: &PairWindow) -> EncoderInput {
        let types = if self.handle().token_types() > 1 { window.token_type_ids.clone() } else { Vec::new() };
        EncoderInput { ids: window.ids.clone(), token_type_ids: types, ..EncoderInput::default() }
    }

    /// Token ids of a text as `embed`, `score` and `classify` read it: with what the model wants around it,
    /// truncated where [`Options::truncate_texts`](crate::Options::truncate_texts) says so.
    ///
    /// # Errors
    /// `Text` for what the tokenizer cannot express or truncate.
    ///
    /// ```
    /// # fn main() -> engraft::Result<()> {
    /// use engraft::{ModelSource, Options};
    ///
    /// let model = Options::new().truncate_texts(true).max_context(8).open(ModelSource::Demo)?;
    /// assert_eq!(model.tokenize(&"a library for images ".repeat(9))?.len(), 8);
    /// # Ok(())
    /// # }
    /// ```
    pub fn tokenize(&self, text: &str) -> Result<Vec<u32>> {
        match self.truncate {
            true => self.tokenizer().encode_truncated(text, true, self.longest_text()),
            // What is longer than the context is refused by the engine, with the text's number.
            false => self.tokenizer().encode(text, true),
        }
    }

    /// How many tokens a text may have.
    fn longest_text(&self) -> usize {
        match self.info().family {
            Family::Encoder => self.handle().longest_text(),
            _ => self.info().max_context,
        }
    }

    fn ids<T: AsRef<str>>(&self, texts: &[T]) -> Result<Vec<Vec<u32>>> {
        texts.iter().map(|text| self.tokenize(text.as_ref())).collect()
    }

    fn cannot(&self, op: &str, reason: &str) -> Error {
        Error::Architecture { op: op.into(), arch: self.info().arch.clone(), reason: reason.into() }
    }
}

/// Scores of logits that are no numbers would name a winner by chance.
fn finite(logits: &[f32]) -> Result<()> {
    match logits.iter().find(|x| !x.is_finite()) {
        Some(x) => {
            Err(Error::text(format!("a logit of the model is {x}; labels and answers need finite ones")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::finite;

    #[test]
    fn logits_that_are_no_numbers_are_refused() {
        assert!(finite(&[0.0, -3.5]).is_ok());
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = finite(&[1.0, wrong]).map_err(|e| e.to_string());
            assert!(error.is_err_and(|e| e.contains(&wrong.to_string())), "{wrong}");
        }
    }
}

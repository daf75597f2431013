//! Answers to questions: spans of a context, chosen by start and end logits as Hugging Face's pipeline
//! `question-answering` chooses them.
//!
//! Of every window, starts and ends are a softmax over the context's tokens and the class token, in f64; a
//! span scores the two probabilities' product, "no answer" that of the class token twice. Spans grow to whole
//! words; those that become the same piece of the context are one answer, with the best of their scores.

use engraft_core::text::PairWindow;
use std::ops::Range;

/// How an answer is looked for. The names are those of Hugging Face's pipeline.
///
/// [`TextGenerator::answer`](crate::TextGenerator::answer) has an example.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AnswerOptions {
    /// Answers to return at most, the best first.
    pub top_k: usize,
    /// Tokens of an answer at most.
    pub max_answer_len: usize,
    /// Whether "the context does not say", an empty answer, is among the candidates.
    pub handle_impossible_answer: bool,
    /// Tokens of a window, question and special tokens included; less where the model cannot.
    pub max_seq_len: usize,
    /// Tokens that two windows share; none: half a window, at most 128.
    pub doc_stride: Option<usize>,
}

impl Default for AnswerOptions {
    fn default() -> Self {
        Self {
            top_k: 1,
            max_answer_len: 15,
            handle_impossible_answer: false,
            max_seq_len: 384,
            doc_stride: None,
        }
    }
}

impl AnswerOptions {
    /// The best answer of at most 15 tokens, in windows of 384.
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers to return at most.
    pub fn top_k(mut self, answers: usize) -> Self {
        self.top_k = answers;
        self
    }

    /// Tokens of an answer at most.
    pub fn max_answer_len(mut self, tokens: usize) -> Self {
        self.max_answer_len = tokens;
        self
    }

    /// Lets an empty answer win: the context does not say.
    pub fn handle_impossible_answer(mut self, on: bool) -> Self {
        self.handle_impossible_answer = on;
        self
    }

    /// Tokens of a window, question and special tokens included.
    pub fn max_seq_len(mut self, tokens: usize) -> Self {
        self.max_seq_len = tokens;
        self
    }

    /// Tokens that two windows share.
    pub fn doc_stride(mut self, tokens: usize) -> Self {
        self.doc_stride = Some(tokens);
        self
    }

    /// Tokens of a window, and those that two share, where a model takes `most`.
    pub(crate) fn window(&self, most: usize) -> (usize, usize) {
        let window = self.max_seq_len.min(most);
        (window, self.doc_stride.unwrap_or((window / 2).min(128)))
    }
}

/// A piece of a context that answers a question.
///
/// [`TextGenerator::answer`](crate::TextGenerator::answer) gives it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Answer {
    /// The piece; empty where the context does not say.
    pub text: String,
    /// From 0 to 1.
    pub score: f64,
    /// Where it stands in the context, in bytes.
    pub bytes: Range<usize>,
}

/// The best pieces of a context so far, of windows that are added one after the other.
pub(crate) struct Candidates<'a> {
    context: &'a str,
    options: &'a AnswerOptions,
    /// Different pieces, the best first, as many as may be answers.
    found: Vec<(Range<usize>, f64)>,
    /// The least score that "no answer" has in any window.
    null: f64,
}

impl<'a> Candidates<'a> {
    pub fn new(context: &'a str, options: &'a AnswerOptions) -> Self {
        Self { context, options, found: Vec::new(), null: f64::INFINITY }
    }

    /// Adds what `logits`, `[tokens, 2]` of a window, give.
    pub fn add(&mut self, window: &PairWindow, logits: &[f32]) {
        let [starts, ends] = [0, 1].map(|which| probabilities(window, logits, which));
        if window.class_token {
            self.null = self.null.min(starts[0] * ends[0]);
        }
        let [starts, ends] = [&starts[1..], &ends[1..]];
        for (s, start) in starts.iter().enumerate() {
            for (e, end) in ends.iter().enumerate().skip(s).take(self.options.max_answer_len) {
                self.found.push((window.words[s].start..window.words[e].end, start * end));
            }
        }
        // Equal pieces side by side, the best of them first. What is not among the best of this window and
        // those before it cannot be among the best of all.
        self.found.sort_by(|(a, x), (b, y)| (a.start, a.end).cmp(&(b.start, b.end)).then(y.total_cmp(x)));
        self.found.dedup_by(|(a, _), (b, _)| a == b);
        self.keep_best();
    }

    /// The answers.
    pub fn best(mut self) -> Vec<Answer> {
        if self.options.handle_impossible_answer && self.null.is_finite() {
            self.found.push((0..0, self.null));
            self.keep_best();
        }
        let text = |bytes: &Range<usize>| self.context.get(bytes.clone()).unwrap_or_default().to_string();
        let found = self.found.into_iter();
        found.map(|(bytes, score)| Answer { text: text(&bytes), score, bytes }).collect()
    }

    fn keep_best(&mut self) {
        self.found.sort_by(|(_, x), (_, y)| y.total_cmp(x));
        self.found.truncate(self.options.top_k);
    }
}

/// Softmax of one of the two logits over the class token, which comes first (0 without one), and the second
/// text's tokens.
fn probabilities(window: &PairWindow, logits: &[f32], which: usize) -> Vec<f64> {
    let of = |token: usize| logits.get(2 * token + which).map_or(f64::NEG_INFINITY, |x| f64::from(*x));
    let class = if window.class_token { of(0) } else { f64::NEG_INFINITY };
    let all: Vec<f64> = std::iter::once(class).chain(window.second.clone().map(of)).collect();
    let most = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = all.iter().map(|x| (x - most).exp()).sum();
    all.iter().map(|x| (x - most).exp() / sum).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use engraft_core::text::Tokenizer;
    use serde_json::{Value, json};

    /// A tokenizer of words, with a class token in front and separators, as BERT's.
    pub(crate) fn words(vocab: &[&str]) -> Tokenizer {
        let all: serde_json::Map<String, Value> =
            vocab.iter().enumerate().map(|(i, word)| (word.to_string(), json!(i))).collect();
        let special = |name: &str| {
            let id = vocab.iter().position(|word| *word == name).unwrap();
            json!({"id": name, "ids": [id], "tokens": [name]})
        };
        let (class, end) = (
            json!({"SpecialToken": {"id": "[CLS]", "type_id": 0}}),
            json!({"SpecialToken": {"id": "[SEP]", "type_id": 0}}),
        );
        let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": null,
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [class, text("A"), end],
                "pair": [class, text("A"), end, text("B"), end],
                "special_tokens": {"[CLS]": special("[CLS]"), "[SEP]": special("[SEP]")},
            },
            "model": {"type": "WordLevel", "vocab": all, "unk_token": vocab[0]},
        });
        Tokenizer::from_json(file.to_string().as_bytes(), &Value::Null).unwrap()
    }

    /// `[CLS] who [SEP] red or blue [SEP]` with these logits per token.
    fn window(context: &str, logits: &[[f32; 2]]) -> Vec<(PairWindow, Vec<f32>)> {
        let tokenizer = words(&["[UNK]", "[CLS]", "[SEP]", "who", "red", "or", "blue"]);
        let mut windows = tokenizer.encode_pair("who", context, 64, 0).unwrap();
        assert_eq!(windows[0].ids.len(), logits.len());
        vec![(windows.remove(0), logits.concat())]
    }

    fn best(context: &str, windows: &[(PairWindow, Vec<f32>)], options: &AnswerOptions) -> Vec<Answer> {
        let mut all = Candidates::new(context, options);
        windows.iter().for_each(|(window, logits)| all.add(window, logits));
        all.best()
    }

    /// Every span by the definition: the outer matrix of two softmaxes over all tokens, where those that are
    /// neither the context's nor the class token have a logit of -10000.
    fn spans(first: usize, last: usize, logits: &[[f32; 2]]) -> Vec<(f64, usize, usize)> {
        let softmax = |which: usize| {
            let masked =
                logits.iter().enumerate().map(|(i, l)| match i == 0 || (first..=last).contains(&i) {
                    true => f64::from(l[which]),
                    false => -10_000.0,
                });
            let all: Vec<f64> = masked.collect();
            let most = all.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = all.iter().map(|x| (x - most).exp()).sum();
            all.iter().map(|x| (x - most).exp() / sum).collect::<Vec<f64>>()
        };
        let (start, end) = (softmax(0), softmax(1));
        let mut all: Vec<_> = (first..=last)
            .flat_map(|s| (s..=last).map(move |e| (s, e)))
            .map(|(s, e)| (start[s] * end[e], s, e))
            .collect();
        all.push((start[0] * end[0], 0, 0));
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        all
    }

    const LOGITS: [[f32; 2]; 7] =
        [[1.5, 1.0], [9.0, 9.0], [7.0, 8.0], [2.0, -1.0], [0.5, 0.25], [-1.0, 3.0], [8.0, 8.0]];

    #[test]
    fn answers_are_the_spans_of_the_outer_matrix_best_first() {
        let context = "red or blue";
        let windows = window(context, &LOGITS);
        let all = best(context, &windows, &AnswerOptions::new().top_k(99).handle_impossible_answer(true));
        let want = spans(3, 5, &LOGITS);
        assert_eq!(all.len(), 7);
        let text =
            |s: usize, e: usize| if s == 0 { "" } else { &context[[0, 4, 7][s - 3]..[3, 6, 11][e - 3]] };
        for (got, (score, s, e)) in all.iter().zip(&want) {
            assert!((got.score - score).abs() < 1e-12, "{got:?}, not {score}");
            assert_eq!((got.text.as_str(), &context[got.bytes.clone()]), (text(*s, *e), text(*s, *e)));
        }
        let one = best(context, &windows, &AnswerOptions::new());
        assert_eq!((one.len(), one[0].text.as_str()), (1, "red or blue"));
        let short = best(context, &windows, &AnswerOptions::new().max_answer_len(1).top_k(99));
        assert_eq!(short.iter().map(|a| a.text.as_str()).collect::<Vec<_>>(), ["blue", "red", "or"]);
    }

    #[test]
    fn no_answer_wins_where_its_score_is_the_best_of_the_window_that_has_it_least() {
        let context = "red or blue";
        let mut sure = LOGITS;
        sure[0] = [20.0, 20.0];
        let options = AnswerOptions::new().handle_impossible_answer(true);
        let nothing = best(context, &window(context, &sure), &options);
        assert_eq!((nothing[0].text.as_str(), nothing[0].bytes.clone()), ("", 0..0));
        assert_ne!(best(context, &window(context, &sure), &AnswerOptions::new())[0].text, "");
        // One window that has an answer is enough.
        let both = [window(context, &sure), window(context, &LOGITS)].concat();
        let answers = best(context, &both, &options.top_k(99));
        assert_eq!(answers[0].text, "red or blue");
        // The same piece of both windows is one answer.
        assert_eq!(answers.len(), 7);
        // Few answers are the first of many: what is forgotten after a window was not among them.
        for top_k in 1..7 {
            let options = AnswerOptions::new().handle_impossible_answer(true).top_k(top_k);
            assert_eq!(best(context, &both, &options), answers[..top_k]);
        }
    }
}

//! Two texts as one input: a question, and windows over the text that its answer is looked for in.

use super::tokenizer::Tokenizer;
use super::vocabulary::guarded;
use crate::{Error, Result};
use std::ops::Range;
use tokenizers::{EncodeInput, Encoding};

/// Bytes of both texts together: 32 are kept of every token.
const MOST: usize = 4 << 20;

/// The first of two texts with a part of the second, as a model reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PairWindow {
    /// Token ids of both, with the special tokens around them.
    pub ids: Vec<u32>,
    /// The type of every token.
    pub token_type_ids: Vec<u32>,
    /// Which of the tokens are the second text's.
    pub second: Range<usize>,
    /// Per token of the second text the bytes of its word there; of the token alone where words are not
    /// known.
    pub words: Vec<Range<usize>>,
    /// Whether the first token belongs to neither text: a class token.
    pub class_token: bool,
}

/// Windows over the second of two texts, each made when it is asked for.
///
/// [`Tokenizer::pair_windows`] gives it.
#[derive(Debug)]
pub struct PairWindows<'t> {
    pair: Pair,
    second: &'t str,
    /// Tokens of the second text in a window, and those between the starts of two windows.
    room: usize,
    step: usize,
    /// Where the next window begins; none after the last.
    next: Option<usize>,
}

/// Both texts tokenized, before they are split into windows.
#[derive(Debug)]
struct Pair {
    ids: Vec<u32>,
    token_type_ids: Vec<u32>,
    bytes: Vec<Range<usize>>,
    words: Vec<Option<u32>>,
    second: Range<usize>,
    class_token: bool,
}

impl Tokenizer {
    /// Token ids of two texts and the special tokens that a model wants around them, in windows of at most
    /// `window` tokens: each has all of `first`, and `stride` tokens of `second` are in two windows.
    ///
    /// # Errors
    /// [`Error::Text`] if there is nothing in `second`, if `first` leaves no more than `stride` tokens of a
    /// window, for texts of more than 4 MiB together, and as [`encode`](Self::encode).
    pub fn encode_pair(
        &self,
        first: &str,
        second: &str,
        window: usize,
        stride: usize,
    ) -> Result<Vec<PairWindow>> {
        Ok(self.pair_windows(first, second, window, stride)?.collect())
    }

    /// [`encode_pair`](Self::encode_pair), one window after the other: of a long text with a wide stride all
    /// windows together take a multiple of its size.
    ///
    /// # Errors
    /// As [`encode_pair`](Self::encode_pair).
    pub fn pair_windows<'t>(
        &self,
        first: &str,
        second: &'t str,
        window: usize,
        stride: usize,
    ) -> Result<PairWindows<'t>> {
        let pair = self.pair(first, second)?;
        let around = pair.ids.len() - pair.second.len();
        let room = window.saturating_sub(around);
        if room <= stride {
            return Err(Error::text(format!(
                "the first text takes {around} of {window} tokens, special tokens included; {room} are left for \
                 the second, which needs more than the stride of {stride} that windows share"
            )));
        }
        let next = Some(pair.second.start);
        Ok(PairWindows { pair, second, room, step: room - stride, next })
    }

    fn pair(&self, first: &str, second: &str) -> Result<Pair> {
        let bytes = first.len().saturating_add(second.len());
        if bytes > MOST {
            return Err(Error::text(format!(
                "two texts of {bytes} bytes together; at most {MOST} are allowed"
            )));
        }
        // The second text is tokenized part by part, the first with the first of these.
        self.check_length(first)?;
        let (part, mut rest) = self.part(second)?;
        let mut pair = Pair::of(self, &self.encoding((first, part), true)?)?;
        while !rest.is_empty() {
            let from = second.len() - rest.len();
            let (part, behind) = self.part(rest)?;
            pair.extend(self, &self.encoding(part, false)?, from);
            rest = behind;
        }
        Ok(pair)
    }

    fn encoding<'t>(&self, input: impl Into<EncodeInput<'t>>, add_special: bool) -> Result<Encoding> {
        let encode = || self.vocabulary().model.encode(input, add_special).map_err(|e| e.to_string());
        guarded(encode).map_err(|what| Error::text(format!("encode: {what}")))
    }
}

impl Iterator for PairWindows<'_> {
    type Item = PairWindow;

    fn next(&mut self) -> Option<PairWindow> {
        let (from, last) = (self.next?, self.pair.second.end);
        let to = last.min(from + self.room);
        self.next = (to < last).then_some(from + self.step);
        Some(self.pair.window(from..to, self.second))
    }
}

impl Pair {
    fn of(tokenizer: &Tokenizer, encoding: &Encoding) -> Result<Self> {
        let sequences = encoding.get_sequence_ids();
        let is_second = |s: &Option<usize>| *s == Some(1);
        let (Some(start), Some(last)) =
            (sequences.iter().position(is_second), sequences.iter().rposition(is_second))
        else {
            return Err(Error::text("the second text, in which an answer is looked for, has no tokens"));
        };
        if !sequences[start..=last].iter().all(is_second) {
            return Err(Error::text("this tokenizer does not keep the tokens of the second text together"));
        }
        Ok(Pair {
            ids: tokenizer.vocabulary().ids(encoding),
            token_type_ids: encoding.get_type_ids().to_vec(),
            bytes: encoding.get_offsets().iter().map(|(from, to)| *from..*to).collect(),
            words: encoding.get_word_ids().to_vec(),
            second: start..last + 1,
            class_token: sequences.first() == Some(&None),
        })
    }

    /// Puts the tokens of a further part of the second text, which begins at byte `from`, behind the others.
    fn extend(&mut self, tokenizer: &Tokenizer, encoding: &Encoding, from: usize) {
        let at = self.second.end;
        let token_type = self.token_type_ids[self.second.start];
        let words = self.words[self.second.clone()].iter().flatten().max().map_or(0, |last| last + 1);
        let ids = tokenizer.vocabulary().ids(encoding);
        self.second.end += ids.len();
        let bytes = encoding.get_offsets().iter().map(|(begin, end)| from + begin..from + end);
        let word_ids = encoding.get_word_ids().iter().map(|word| word.map(|word| words + word));
        drop(self.token_type_ids.splice(at..at, std::iter::repeat_n(token_type, ids.len())));
        drop(self.bytes.splice(at..at, bytes));
        drop(self.words.splice(at..at, word_ids));
        drop(self.ids.splice(at..at, ids));
    }

    /// Everything around the second text, and `part` of it.
    fn window(&self, part: Range<usize>, second: &str) -> PairWindow {
        let (start, behind) = (self.second.start, self.second.end..self.ids.len());
        let with = |all: &[u32]| [&all[..start], &all[part.clone()], &all[behind.clone()]].concat();
        PairWindow {
            ids: with(&self.ids),
            token_type_ids: with(&self.token_type_ids),
            second: start..start + part.len(),
            words: self.words(part.clone(), second),
            class_token: self.class_token,
        }
    }

    /// Per token of `part` the bytes of its word, as far as that is in `part`.
    fn words(&self, part: Range<usize>, second: &str) -> Vec<Range<usize>> {
        let (mut words, mut from) = (Vec::with_capacity(part.len()), part.start);
        while from < part.end {
            let word = self.words[from];
            let other = |at: &usize| word.is_none() || self.words[*at] != word;
            let to = (from + 1..part.end).find(other).unwrap_or(part.end);
            let bytes = whole_characters(self.bytes[from].start..self.bytes[to - 1].end, second);
            words.extend(std::iter::repeat_n(bytes, to - from));
            from = to;
        }
        words
    }
}

/// Tokens may split a character: the bytes of all that they touch.
fn whole_characters(bytes: Range<usize>, text: &str) -> Range<usize> {
    let (mut from, mut to) = (bytes.start, bytes.end.min(text.len()));
    while !text.is_char_boundary(from) {
        from -= 1;
    }
    while !text.is_char_boundary(to) {
        to += 1;
    }
    from..to.max(from)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// BERT's kind: pieces of words, `[CLS] a [SEP] b [SEP]`, types 0 and 1.
    fn bert() -> Tokenizer {
        let words = ["[UNK]", "[CLS]", "[SEP]", "who", "is", "here", "##in", "caf", "##e", "a", "b", "c"];
        let vocab: serde_json::Map<String, Value> =
            words.iter().enumerate().map(|(i, word)| (word.to_string(), json!(i))).collect();
        let special = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
        let text = |id: &str, type_id: u32| json!({"Sequence": {"id": id, "type_id": type_id}});
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "decoder": null,
            "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                "strip_accents": null, "lowercase": true},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [special("[CLS]"), text("A", 0), special("[SEP]")],
                "pair": [special("[CLS]"), text("A", 0), special("[SEP]"), text("B", 1),
                    {"SpecialToken": {"id": "[SEP]", "type_id": 1}}],
                "special_tokens": {
                    "[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]},
                    "[SEP]": {"id": "[SEP]", "ids": [2], "tokens": ["[SEP]"]},
                },
            },
            "model": {"type": "WordPiece", "vocab": vocab, "unk_token": "[UNK]",
                "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
        });
        Tokenizer::from_json(file.to_string().as_bytes(), &Value::Null).unwrap()
    }

    #[test]
    fn tokens_know_their_words_in_the_second_text() {
        let second = "A café, herein";
        let windows = bert().encode_pair("Who is", second, 64, 0).unwrap();
        assert_eq!(windows.len(), 1);
        let one = &windows[0];
        assert_eq!(one.ids, [1, 3, 4, 2, 9, 7, 8, 0, 5, 6, 2]);
        assert_eq!(one.token_type_ids, [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]);
        assert!(one.class_token && one.second == (4..10));
        let words: Vec<&str> = one.words.iter().map(|bytes| &second[bytes.clone()]).collect();
        assert_eq!(words, ["A", "café", "café", ",", "herein", "herein"]);
    }

    #[test]
    fn windows_share_a_stride_and_cover_everything_once() {
        let second = "a b c a b c a";
        // Four tokens go around: [CLS] who [SEP] ... [SEP].
        let windows = bert().encode_pair("who", second, 8, 1).unwrap();
        let parts: Vec<&[u32]> = windows.iter().map(|w| &w.ids[w.second.clone()]).collect();
        assert_eq!(parts, [&[9, 10, 11, 9][..], &[9, 10, 11, 9]]);
        assert!(windows.iter().all(|w| w.ids.len() == 8 && w.ids[..3] == [1, 3, 2] && w.ids[7] == 2));
        assert_eq!(windows[1].words.iter().map(|b| b.start).collect::<Vec<_>>(), [6, 8, 10, 12]);
        assert_eq!(bert().encode_pair("who", second, 7, 0).unwrap().len(), 3);
        let word = bert().encode_pair("who", "herein", 5, 0).unwrap();
        // A word that two windows share is in each what that window has of it.
        assert_eq!(word.iter().map(|w| w.words.clone()).collect::<Vec<_>>(), [[0..4], [4..6]]);
    }

    /// Windows come one by one, and a text that is one word takes no longer than one of many.
    #[test]
    fn a_window_takes_time_in_proportion_to_its_tokens() {
        let most = 200_000;
        let text = "in".repeat(most);
        let pair = Pair {
            ids: vec![0; most],
            token_type_ids: vec![0; most],
            bytes: (0..most).map(|i| 2 * i..2 * i + 2).collect(),
            words: vec![Some(0); most],
            second: 0..most,
            class_token: false,
        };
        let begun = std::time::Instant::now();
        let words = pair.words(0..most, &text);
        assert!(words.iter().all(|bytes| *bytes == (0..text.len())));
        // 4e10 comparisons, if it were quadratic.
        assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
        let mut windows = bert().pair_windows("who", "a b c a b c a", 8, 1).unwrap();
        assert!(windows.next().is_some() && windows.next().is_some() && windows.next().is_none());
    }

    /// A long text is tokenized in parts, and has the tokens, words and places of one that is not.
    #[test]
    fn parts_of_a_long_second_text_are_put_together() {
        let tokenizer = bert();
        let second = "a café, herein c ".repeat(9000);
        assert!(!tokenizer.part(&second).unwrap().1.is_empty(), "one part");
        let pair = tokenizer.pair("who is", &second).unwrap();
        let whole = tokenizer.vocabulary().model.encode(("who is", second.as_str()), true).unwrap();
        let found = pair.ids.len();
        assert!(pair.ids == whole.get_ids(), "{found} tokens, {} at once, or others", whole.get_ids().len());
        assert!(pair.token_type_ids == whole.get_type_ids(), "types of {found} tokens differ");
        assert_eq!(pair.second, 4..pair.ids.len() - 1);
        for (at, (from, to)) in whole.get_offsets().iter().enumerate() {
            assert_eq!(pair.bytes[at], *from..*to, "token {at}");
        }
        let changes =
            |words: &[Option<u32>]| words.windows(2).map(|two| two[0] == two[1]).collect::<Vec<_>>();
        assert_eq!(changes(&pair.words), changes(whole.get_word_ids()));
    }

    #[test]
    fn what_leaves_no_room_is_refused_with_the_numbers() {
        let of = |first: &str, second: &str, window, stride| {
            bert().encode_pair(first, second, window, stride).unwrap_err().to_string()
        };
        let text = of("who is here", "a b", 8, 2);
        let parts = ["6 of 8 tokens", "2 are left", "stride of 2"];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        assert!(of("who", " ", 8, 1).contains("no tokens"));
        assert!(of("who", "a", 3, 0).contains("0 are left"));
        assert!(of("who", &"a ".repeat(3 << 20), 8, 1).contains("4194304 are allowed"));
    }
}

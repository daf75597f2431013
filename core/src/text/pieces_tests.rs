//! Splitting changes no token, and the least number of tokens is none too many.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::text::tokenizer::tests::{CASES, golden, oracle};

/// Texts with everything that splitting words knows, of two pieces and more.
fn long_texts() -> Vec<String> {
    let parts = [
        "It's the dog's tail, we'll see THEY'RE here. ",
        "x y z 12345 6 78 9.5 ",
        "\n\n  indented\n\tand tabbed \r\n end. ",
        "naïve café 😀 日本語 текст \u{301}e ",
        "a  b   c    d ",
        "!!! ...?  (yes) [no] {so} ",
        "word<|endoftext|> word </s> word <s>",
    ];
    let mut state = 7u64;
    let mut mixed = String::new();
    while mixed.len() < 150_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        mixed.push_str(parts[(state >> 33) as usize % parts.len()]);
    }
    vec![mixed, "word ".repeat(30_000), "no".repeat(50_000) + " cut here " + &"at".repeat(30_000)]
}

#[test]
fn pieces_have_the_tokens_of_the_whole() {
    let mut split = 0;
    for case in CASES {
        let (tokenizer, oracle) = (golden(case), oracle(case));
        let pieces = Pieces::of(&oracle, &known_splits()).unwrap();
        for text in long_texts() {
            let parts = pieces.split(&text).unwrap();
            assert_eq!(parts.concat(), text);
            if pieces.splittable {
                split += 1;
                assert!(parts.len() > 1, "{case}: {} bytes in one piece", text.len());
                let want = oracle.encode_fast(text.as_str(), true).unwrap();
                assert!(tokenizer.encode(&text, true).unwrap() == want.get_ids(), "{case}: tokens differ");
            }
        }
    }
    // Three texts by GPT-2's (RoBERTa's, too), Llama 3's and Qwen's ways of splitting.
    assert_eq!(split, 12);
}

#[test]
fn the_least_number_of_tokens_is_none_too_many() {
    let mut known = 0;
    for case in CASES {
        let oracle = oracle(case);
        let pieces = Pieces::of(&oracle, &known_splits()).unwrap();
        known += usize::from(pieces.longest.is_some());
        let mut texts = vec![
            " ".repeat(5000),
            "e\u{301}".repeat(500),
            "\u{1112}\u{1161}\u{11ab}".repeat(500),
            String::new(),
        ];
        texts.extend(oracle.get_vocab(true).into_keys().take(300));
        texts.extend(["\n".repeat(999), "<s>".repeat(99), "<|endoftext|>   ".repeat(99)]);
        for text in texts {
            let (least, found) =
                (pieces.least(&text), oracle.encode_fast(text.as_str(), false).unwrap().len());
            assert!(least <= found, "{case}: {text:?} has {found} tokens, not {least} at least");
        }
    }
    // BERT drops blanks, and CLIP joins them; the others keep every byte.
    assert_eq!(known, CASES.len() - 2);
}

#[test]
fn letters_of_bytes_are_the_inverse_of_bytes_of_letters() {
    for byte in 0..=u8::MAX {
        assert_eq!(crate::text::stages::visible_to_byte(byte_to_visible(byte)), Some(byte));
    }
}

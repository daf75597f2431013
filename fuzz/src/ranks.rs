//! Files of ranks: read as each family does, and used.

use engraft_core::{Result, checkpoint::VocabularyFiles, text::Tokenizer};
use serde_json::{Value, json};

/// The digits of base 64.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn encoded(bytes: &[u8]) -> String {
    let group = |group: &[u8]| {
        let byte = |at: usize| group.get(at).map_or(0, |byte| usize::from(*byte));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let sign = |at: usize| match at > group.len() {
            true => '=',
            false => char::from(LETTERS[bits >> (18 - 6 * at) & 63]),
        };
        (0..4).map(sign).collect::<String>()
    };
    bytes.chunks(3).map(group).collect()
}

/// All bytes, and a few tokens made of them.
fn tokens() -> Vec<Vec<u8>> {
    let more = ["ab", " a", " ab", "the", " the", "aa", "aab", "</s>", "é", " fer"];
    let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
    bytes.chain(more.iter().map(|token| token.as_bytes().to_vec())).collect()
}

fn tekken(tokens: &[Vec<u8>]) -> Vec<u8> {
    let entry = |(rank, token): (usize, &Vec<u8>)| json!({"rank": rank, "token_bytes": encoded(token)});
    let vocab: Vec<Value> = tokens.iter().enumerate().map(entry).collect();
    let special = json!([
        {"rank": 1, "token_str": "<s>", "is_control": true},
        {"rank": 2, "token_str": "</s>", "is_control": true},
    ]);
    let config = json!({"pattern": r" ?\p{L}+|\p{N}|\s+(?!\S)|[^\p{L}\p{N}]+", "version": "v7",
        "default_vocab_size": 20 + tokens.len(), "default_num_special_tokens": 20});
    json!({"config": config, "vocab": vocab, "special_tokens": special}).to_string().into_bytes()
}

fn lines(tokens: &[Vec<u8>]) -> Vec<u8> {
    let line = |(rank, token): (usize, &Vec<u8>)| format!("{} {rank}\n", encoded(token));
    tokens.iter().enumerate().map(line).collect::<String>().into_bytes()
}

pub fn seeds() -> Result<Vec<Vec<u8>>> {
    Ok(vec![tekken(&tokens()), lines(&tokens())])
}

/// Tokens that take time with the square of their length, as long as they may be and longer; an expression
/// that tries all ways to split a text; more special tokens than there may be.
pub fn hostile() -> Vec<Vec<u8>> {
    let with = |longest: usize, count: usize| {
        let runs = (0..count).map(|less| vec![b'a'; longest - less]);
        tokens().into_iter().chain(runs).collect::<Vec<_>>()
    };
    let file = tekken(&tokens());
    let changed = |from: &str, to: &str| String::from_utf8_lossy(&file).replace(from, to).into_bytes();
    vec![
        lines(&with(1024, 60)),
        lines(&with(1025, 1)),
        tekken(&with(1000, 60)),
        changed(r" ?\\p{L}+", r"(a?){30}a{30}|(a+)+$"),
        changed("\"default_num_special_tokens\":20", "\"default_num_special_tokens\":4000000000"),
        changed("\"default_vocab_size\":286", "\"default_vocab_size\":18446744073709551615"),
    ]
}

/// Makes ids of a text and a text of the ids.
pub fn read(input: Vec<u8>) -> bool {
    let text = "The ferry leaves </s> aab 12345\u{1F600} 漢字 <|im_end|>\r\n ".repeat(5);
    let mut accepted = false;
    for (name, class) in [
        ("tekken.json", "PreTrainedTokenizer"),
        ("qwen.tiktoken", "QWenTokenizer"),
        ("tiktoken.model", "TikTokenTokenizer"),
        ("tokenizer.model", "PreTrainedTokenizerFast"),
    ] {
        let files = VocabularyFiles::new("", "", [(name, input.clone())]);
        // As many tokens as a seed has, with Llama 3's special ones.
        let files = files.map(|files| files.of_model(&json!({"vocab_size": 266 + 256})));
        let end = json!({"content": "[EOS]", "special": true});
        let begin = json!({"content": "[BOS]", "special": true});
        let config = json!({"tokenizer_class": class, "added_tokens_decoder": {"266": end, "267": begin}});
        let tokenizer = files.and_then(|files| Tokenizer::from_vocabulary(&files, &config).ok());
        let Some(tokenizer) = tokenizer else { continue };
        accepted = true;
        if let Ok(ids) = tokenizer.encode_at_most(&text, true, 10_000) {
            assert!(ids.len() <= 10_000, "a limit on tokens holds");
            let _ = tokenizer.decode(&ids, false);
        }
        let _ = tokenizer.shield(&text).map(|text| tokenizer.encode_shielded(&text, true, 1000));
    }
    accepted
}

//! Files of ranks against joining by rank itself, on random tables and texts; and files that are none.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::collections::HashMap;

/// Numbers below `n`, the same in each run.
pub(super) struct Random(pub u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn word(&mut self, longest: usize) -> String {
        let letters = 1 + self.below(longest);
        (0..letters).map(|_| ["a", "b", "é"][self.below(3)]).collect()
    }
}

/// All bytes and random strings of a few letters and blanks, in random order: most parts of a token are
/// tokens of higher rank, or none.
pub(super) fn table(random: &mut Random, more: usize) -> Vec<Vec<u8>> {
    let mut tokens: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
    while tokens.len() < 256 + more {
        let blank = ["", " "][random.below(2)];
        let token = (blank.to_string() + &random.word(5)).into_bytes();
        if !tokens.contains(&token) {
            tokens.push(token);
        }
    }
    for at in (1..tokens.len()).rev() {
        tokens.swap(at, random.below(at + 1));
    }
    tokens
}

pub(super) fn by_token(tokens: &[Vec<u8>]) -> HashMap<Vec<u8>, u32> {
    (0..).zip(tokens).map(|(rank, token)| (token.clone(), rank)).collect()
}

/// Joins neighbours whose concatenation has the lowest rank, of equal ones the first, until there are none.
pub(super) fn joined(ranks: &HashMap<Vec<u8>, u32>, word: &str) -> Vec<u32> {
    let (word, rank) = (word.as_bytes(), |bytes: &[u8]| ranks.get(bytes).copied());
    if let Some(whole) = rank(word) {
        return vec![whole];
    }
    let mut parts: Vec<Vec<u8>> = word.iter().map(|byte| vec![*byte]).collect();
    loop {
        let pairs = parts.windows(2).enumerate();
        let best = pairs.filter_map(|(at, pair)| Some((rank(&pair.concat())?, at))).min();
        let Some((_, at)) = best else { break };
        let right = parts.remove(at + 1);
        parts[at].extend(right);
    }
    parts.iter().map(|part| rank(part).unwrap()).collect()
}

pub(super) fn lines(tokens: &[Vec<u8>]) -> Vec<u8> {
    let line = |(rank, token): (usize, &Vec<u8>)| format!("{} {rank}\n", STANDARD.encode(token));
    tokens.iter().enumerate().map(line).collect::<String>().into_bytes()
}

const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A `tekken.json` of some tokens, of which the last ones are not the model's.
fn tekken(tokens: &[Vec<u8>], unused: usize) -> Value {
    let entry = |(rank, token): (usize, &Vec<u8>)| json!({"rank": rank, "token_bytes": STANDARD.encode(token), "token_str": String::from_utf8(token.clone()).ok()});
    json!({
        "config": {"pattern": TEKKEN, "num_vocab_tokens": tokens.len(), "version": "v3",
            "default_vocab_size": 30 + tokens.len() - unused, "default_num_special_tokens": 30},
        "vocab": tokens.iter().enumerate().map(entry).collect::<Vec<_>>(),
    })
}

fn read(name: &'static str, bytes: Vec<u8>, config: &Value) -> Result<Tokenizer> {
    let files = VocabularyFiles::new("m/", "", [(name, bytes)]).unwrap();
    Tokenizer::from_vocabulary(&files, config)
}

fn of_class(class: &str) -> Value {
    json!({"tokenizer_class": class})
}

/// A text of words with a blank between, and what the ranks give.
pub(super) fn text(random: &mut Random, ranks: &HashMap<Vec<u8>, u32>) -> (String, Vec<u32>) {
    let mut text = random.word(12);
    let mut ids = joined(ranks, &text);
    for _ in 0..random.below(6) {
        let word = format!(" {}", random.word(12));
        ids.extend(joined(ranks, &word));
        text.push_str(&word);
    }
    (text, ids)
}

#[test]
fn ids_are_those_of_joining_by_rank() {
    let mut random = Random(7);
    for round in 0..8 {
        let tokens = table(&mut random, 20 + 30 * round);
        let ranks = by_token(&tokens);
        let kimi = of_class("TikTokenTokenizer");
        let tokenizers = [
            (read("qwen.tiktoken", lines(&tokens), &of_class("QWenTokenizer")).unwrap(), 0),
            (read("tekken.json", tekken(&tokens, 0).to_string().into_bytes(), &Value::Null).unwrap(), 30),
            (read("tiktoken.model", lines(&tokens), &with_ends(&kimi, tokens.len())).unwrap(), 0),
        ];
        for _ in 0..60 {
            let (text, ids) = text(&mut random, &ranks);
            for (tokenizer, offset) in &tokenizers {
                let want: Vec<u32> = ids.iter().map(|id| id + offset).collect();
                assert_eq!(tokenizer.encode(&text, false).unwrap(), want, "{text:?}");
                assert_eq!(tokenizer.decode(&want, true).unwrap(), text);
            }
        }
    }
}

/// Kimi's configuration with its special tokens behind so many ranks.
fn with_ends(config: &Value, count: usize) -> Value {
    let mut config = config.clone();
    let token = |text: &str, special: bool| json!({"content": text, "special": special});
    config["auto_map"] = json!({"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", null]});
    config["added_tokens_decoder"] = json!({
        (count.to_string()): token("[BOS]", true),
        ((count + 1).to_string()): token("[EOS]", true),
        ((count + 2).to_string()): token("<|im_end|>", true),
        ((count + 5).to_string()): token("<|tool|>", false),
    });
    config
}

const TEXTS: [&str; 7] = [
    "",
    "The ferry's 12345 passengers  — naïve ones —\n\n\tleave.\r\n",
    "漢字かなABC混合, 123 ",
    "ÀÉÎ déjà\u{301} vu 😀👩\u{200d}👩",
    "fn main() { println!(\"{}\", 1_000); }   ",
    "\u{0}\u{7f}\u{ad} \u{feff}",
    "I'LL we've IT'S",
];

#[test]
fn texts_come_back() {
    let tokens = table(&mut Random(3), 100);
    let n = tokens.len();
    let tekken = read("tekken.json", tekken(&tokens, 0).to_string().into_bytes(), &Value::Null).unwrap();
    let kimi = with_ends(&of_class("TikTokenTokenizer"), n);
    let kimi = read("tiktoken.model", lines(&tokens), &kimi).unwrap();
    for text in TEXTS {
        for tokenizer in [&tekken, &kimi] {
            let ids = tokenizer.encode(text, false).unwrap();
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
        }
    }
    // Qwen's texts are composed first.
    let qwen = read("qwen.tiktoken", lines(&tokens), &of_class("QWenTokenizer")).unwrap();
    let ids = qwen.encode("de\u{301}", false).unwrap();
    assert_eq!(qwen.decode(&ids, false).unwrap(), "dé");
    // Digits are apart, and an ending from its word.
    let words = ["The", " ferry", "'s", " ", "1", "2", "3", "4", "5", " passengers", " ", " —", " naïve"];
    let words = [&words[..], &[" ones", " —\n\n", "\tleave", ".\r\n"]].concat();
    assert_eq!(words.concat(), TEXTS[1]);
    let ranks = by_token(&tokens);
    let ids: Vec<u32> = words.iter().flat_map(|word| joined(&ranks, word)).collect();
    assert_eq!(qwen.encode(TEXTS[1], false).unwrap(), ids);
}

#[test]
fn special_tokens_are_the_familys() {
    let mut tokens = table(&mut Random(5), 40);
    // A token that is spelt as a special one.
    tokens.push(b"</s>".to_vec());
    let n = tokens.len() as u32;
    let file = tekken(&tokens, 0);
    let tokenizer = read("tekken.json", file.to_string().into_bytes(), &Value::Null).unwrap();
    assert_eq!((tokenizer.bos_token(), tokenizer.eos_token()), (Some("<s>"), Some("</s>")));
    assert_eq!(tokenizer.eos_ids(), [2]);
    assert_eq!(tokenizer.encode("[INST]a[/INST]", true).unwrap()[..2], [1, 3]);
    assert_eq!(tokenizer.encode("</s><SPECIAL_29>", false).unwrap(), [2, 29]);
    assert_eq!(tokenizer.decode(&[29 + n, 2], false).unwrap(), "</s></s>");
    // Listed special tokens, one of them shown in texts; and tokens that the model does not have.
    let mut listed = tekken(&tokens, 1);
    listed["special_tokens"] = json!([
        {"rank": 1, "token_str": "<s>", "is_control": true},
        {"rank": 2, "token_str": "</s>", "is_control": true},
        {"rank": 7, "token_str": "[THINK]", "is_control": false},
    ]);
    let tokenizer = read("tekken.json", listed.to_string().into_bytes(), &Value::Null).unwrap();
    assert_eq!(tokenizer.encode("[THINK]<SPECIAL_0>", true).unwrap(), [1, 7, 0]);
    assert_eq!(tokenizer.decode(&[1, 7, 0], true).unwrap(), "[THINK]");

    let qwen = read("qwen.tiktoken", lines(&tokens), &of_class("QWenTokenizer")).unwrap();
    let ids = qwen.encode("<|im_start|><|extra_204|><|im_end|>", true).unwrap();
    assert_eq!(ids, [n + 1, n + 207, n + 2]);
    assert_eq!(qwen.eos_ids(), [n, n + 2]);
    let kimi = with_ends(&of_class("TikTokenTokenizer"), tokens.len());
    let kimi = read("tiktoken.model", lines(&tokens), &kimi).unwrap();
    let reserved = format!("<|tool|><|reserved_token_{}|>", n + 255);
    assert_eq!(kimi.encode(&reserved, true).unwrap(), [n + 5, n + 255]);
    assert_eq!(kimi.decode(&[n + 5, n + 255, n + 2], true).unwrap(), "<|tool|>");
    assert_eq!(kimi.eos_ids(), [n + 1, n + 2]);
    // Runs of Chinese characters are words of their own.
    let ranks = by_token(&tokens);
    let words = [joined(&ranks, "漢字"), joined(&ranks, "ab")].concat();
    assert_eq!(kimi.encode("漢字ab", false).unwrap(), words);
}

#[test]
fn broken_tables_are_refused_by_name() {
    let tokens = table(&mut Random(9), 10);
    let (good, class) = (String::from_utf8(lines(&tokens)).unwrap(), of_class("QWenTokenizer"));
    let error = |text: String| {
        let error = read("qwen.tiktoken", text.into_bytes(), &class).unwrap_err().to_string();
        assert!(error.contains("m/qwen.tiktoken"), "{error}");
        error
    };
    // An end of a line behind the last one, or none.
    assert!(read("qwen.tiktoken", good.trim_end().as_bytes().to_vec(), &class).is_ok());
    for (line, part) in [
        ("YWJjYWJj 4294967296000", "rank 4294967296000; ranks of 267 tokens are those below 267"),
        ("YWJjYWJj 267", "rank 267; ranks"),
        ("YWJjYWJj 5", "rank 5 stands twice"),
        ("YQ== 266", "are the same token"),
        ("Y*== 266", "line 267 has a token that is not base 64"),
        ("YQ=== 266", "line 267 has a token that is not base 64"),
        (" 266", "rank 266 has 0 bytes"),
        ("YWJj", "line 267 is not a token, a blank and a rank"),
        ("YWJj -1", "line 267 has a rank"),
        ("YWJj 99999999999999999999", "line 267 has a rank"),
    ] {
        let text = error(format!("{good}{line}\n"));
        assert!(text.contains(part), "{line}: {text}");
    }
    assert!(error(String::new()).contains("the byte 0x00 is no token"));
    assert!(error("é".into()).contains("line 1"));
    let long = STANDARD.encode([b'a'; 1025]);
    assert!(error(format!("{good}{long} 266")).contains("1025 bytes; allowed are 1 to 1024"));
    let invalid = read("qwen.tiktoken", vec![0xFF, 0xFE], &class).unwrap_err().to_string();
    assert!(invalid.contains("utf-8"), "{invalid}");
}

#[test]
fn unknown_families_are_refused_by_name() {
    let tokens = table(&mut Random(9), 10);
    let refused =
        |name: &'static str, config: &Value| read(name, lines(&tokens), config).unwrap_err().to_string();
    let text = refused("tiktoken.model", &of_class("GLMTokenizer"));
    assert!(text.contains("GLMTokenizer") && text.contains("QWenTokenizer"), "{text}");
    let text = refused("tiktoken.model", &Value::Null);
    assert!(text.contains("model_type"), "{text}");
    let mut other = of_class("TikTokenTokenizer");
    other["auto_map"] = json!({"AutoTokenizer": ["tokenization_other.TikTokenTokenizer", null]});
    let text = refused("tiktoken.model", &other);
    assert!(text.contains("tokenization_other") && text.contains("tokenization_kimi"), "{text}");
    let text = refused("tiktoken.model", &of_class("QWenTokenizer"));
    assert!(text.contains("m/qwen.tiktoken") && text.contains("missing"), "{text}");
    let mut bad = with_ends(&of_class("TikTokenTokenizer"), tokens.len());
    bad["added_tokens_decoder"]["3"] = json!({"content": "x"});
    assert!(refused("tiktoken.model", &bad).contains("`3` in added_tokens_decoder"));
    let mut bad = with_ends(&of_class("TikTokenTokenizer"), tokens.len());
    bad["eos_token"] = json!("[GONE]");
    assert!(refused("tiktoken.model", &bad).contains("`[GONE]`"));
    // Files of ranks under other names.
    let folder = std::env::temp_dir().join(format!("engraft-ranks-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("hy.tiktoken"), lines(&tokens)).unwrap();
    let files = crate::checkpoint::open_tokenizer(&folder).unwrap();
    let text = Tokenizer::from_files("m", files).map(drop).unwrap_err().to_string();
    assert!(text.contains("hy.tiktoken") && text.contains("qwen.tiktoken"), "{text}");
    std::fs::rename(folder.join("hy.tiktoken"), folder.join("qwen.tiktoken")).unwrap();
    std::fs::write(folder.join("tokenizer_config.json"), of_class("QWenTokenizer").to_string()).unwrap();
    let files = crate::checkpoint::open_tokenizer(&folder).unwrap();
    let ids = Tokenizer::from_files("m", files).unwrap().encode("ab", false).unwrap();
    assert_eq!(ids, joined(&by_token(&tokens), "ab"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn broken_tekken_files_are_refused_by_name() {
    let tokens = table(&mut Random(9), 10);
    let good = tekken(&tokens, 0);
    let error = |change: &dyn Fn(&mut Value)| {
        let mut file = good.clone();
        change(&mut file);
        let error = read("tekken.json", file.to_string().into_bytes(), &Value::Null).unwrap_err().to_string();
        assert!(error.contains("m/tekken.json"), "{error}");
        error
    };
    let listed = |rank: u64, text: &str| json!({"rank": rank, "token_str": text});
    for unknown in [json!("v99"), json!("99"), json!(99), json!("v1"), json!("v".repeat(1 << 16)), json!({})]
    {
        let said = error(&|f| f["config"]["version"] = unknown.clone());
        let found: String = unknown.to_string().chars().take(40).collect();
        assert!(said.contains(&format!("config.version is {found}; allowed are v3, v7, v11")), "{said}");
    }
    for known in [json!("v7"), json!("v11"), json!("v13"), json!("v15"), Value::Null] {
        let mut file = good.clone();
        file["config"]["version"] = known;
        read("tekken.json", file.to_string().into_bytes(), &Value::Null).unwrap();
    }
    assert!(error(&|f| f["vocab"][7]["rank"] = json!(8)).contains("token 7 of `vocab` has rank 8"));
    assert!(error(&|f| f["vocab"][7]["token_bytes"] = json!("?")).contains("rank 7 is not base 64"));
    assert!(error(&|f| f["vocab"][7] = json!({"rank": 7})).contains("token_bytes"));
    assert!(error(&|f| f["config"]["pattern"] = json!("(")).contains("config.pattern"));
    assert!(error(&|f| f["config"]["pattern"] = json!("a".repeat(5000))).contains("5000 bytes"));
    assert!(error(&|f| f["config"]["default_vocab_size"] = json!(30)).contains("default_vocab_size is 30"));
    assert!(error(&|f| f["config"]["default_vocab_size"] = json!(297)).contains("allowed are 31 to 296"));
    assert!(error(&|f| f["config"]["default_num_special_tokens"] = json!(u64::MAX)).contains("special"));
    assert!(error(&|f| f["config"]["default_vocab_size"] = json!(250)).contains("is no token"));
    assert!(error(&|f| f["special_tokens"] = json!([listed(30, "x")])).contains("`x` has rank 30"));
    assert!(error(&|f| f["special_tokens"] = json!([listed(1, "<s>")])).contains("`</s>` is none"));
    let twice = json!([listed(1, "<s>"), listed(1, "</s>")]);
    assert!(error(&|f| f["special_tokens"] = twice.clone()).contains("rank 1 is that of two"));
    let twice = json!([listed(1, "<s>"), listed(3, "<s>"), listed(2, "</s>")]);
    assert!(error(&|f| f["special_tokens"] = twice.clone()).contains("both `<s>`"));
    let hidden = json!([listed(1, "<s>"), listed(2, "</s>"), listed(3, "\u{120}")]);
    assert!(error(&|f| f["special_tokens"] = hidden.clone()).contains("special token 3 is"));
    let empty = json!([listed(1, "<s>"), listed(2, "</s>"), listed(3, "")]);
    assert!(error(&|f| f["special_tokens"] = empty.clone()).contains("special token 3 has 0 bytes"));
    // Bytes changed and ends missing anywhere.
    let file = good.to_string().into_bytes();
    for i in 0..60 {
        let mut changed = file.clone();
        let at = (i * 7919 * 31) % changed.len();
        changed[at] ^= 1 << (i % 8);
        changed.truncate(changed.len() * (i + 30) / 60);
        if let Ok(tokenizer) = read("tekken.json", changed, &Value::Null) {
            let ids = tokenizer.encode("ab <s> naïve", true).unwrap();
            let _ = tokenizer.decode(&ids, false);
        }
    }
}

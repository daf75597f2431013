//! The field's words: no identifier, message or page uses a word of our own where the field has a usual one.
//!
//! Reads the sources of this repository. Identifiers are split into their words (`take_outputs`,
//! `TakeOutputs`) and held to [`WORDS`] and [`PLACES`]; so are the messages of shipped crates, the help of
//! the program, the pages, and the Rust examples in comments and on pages. Comments are left to review. A
//! finding names file, line, word, and what to write instead.

mod lexer;

use conformance::sources::{Source, sources};
use lexer::{Kind, Token};

/// Words that mean something else to everyone who knows the field, and what to write instead.
const WORDS: [(&[&str], &str); 16] = [
    (&["product", "products"], "matmul, gemm; `dot_product` is the field's own"),
    (&["drawn", "draw", "draws", "drawing"], "sampled, sample; generate for cases of tests"),
    (&["cut", "cuts", "cutting"], "shard over ranks, split or chunk a list, truncate a text or file"),
    (&["form", "forms", "formed"], "layout or format of a weight, variant of an instruction"),
    (&["desk", "desks"], "worker"),
    (&["told", "tell", "tells"], "event, reply, report"),
    (&["obey", "obeys"], "handle, run"),
    (&["voice", "voices"], "the name of what it is: processor, tokenizer"),
    (&["mutter", "mutters"], "print, note"),
    (&["nobody"], "none, missing"),
    (&["meet", "meets", "met"], "sync, reduce, join, reconverge"),
    (&["beside"], "extra, others"),
    (&["stash"], "scratch, a buffer"),
    (&["kin"], "the like, others of its family"),
    (&["door", "doors"], "interface, wrapper, entry"),
    (&["through"], "by, via, or what happens: normed, forward"),
];

/// Identifiers that hold one of [`WORDS`] for a reason.
const ALLOWED: [(&str, &str); 8] = [
    ("dot_product", "the field's own word"),
    ("dot_products", "the field's own word"),
    ("DotProductInputAllKHR", "SPIR-V's name"),
    ("DotProductInput4x8BitKHR", "SPIR-V's name"),
    ("DotProductInput4x8BitPackedKHR", "SPIR-V's name"),
    ("DotProductKHR", "SPIR-V's name"),
    ("PhysicalDeviceShaderIntegerDotProductFeatures", "Vulkan's name"),
    ("shader_integer_dot_product", "Vulkan's name"),
];

/// Words that pages may use: products of two numbers.
const PHRASES: [&str; 7] = [
    "dot product",
    "the left product",
    "code products",
    "product of the scales",
    "every product guarded",
    "guarded products",
    "products of four bytes",
];

/// Words with one meaning: where they may stand, or where they may not.
const PLACES: [Place; 6] = [
    Place {
        words: &["parity", "landed"],
        only: &[],
        never: &["kernels/cuda/"],
        instead: "a barrier has a phase, copies are committed and waited for",
    },
    Place {
        words: &["patch", "patches"],
        only: &[
            "core/src/engine/encode.rs",
            "core/src/engine/runner.rs",
            "core/src/inject/build.rs",
            "core/src/model/",
            "core/src/policy/",
            "diffusion/src/",
            "tests/tests/unchanged_bits/ranks.rs",
        ],
        never: &[],
        instead: "a patch is a square of an image; page tables are edited, words are scattered",
    },
    Place {
        words: &["captured"],
        only: &["backend-", "core/src/engine/", "core/src/graph/", "diffusion/", "tests/"],
        never: &["core/src/engine/kept.rs"],
        instead: "captured are graphs; logits and hidden states are kept, text is rendered",
    },
    Place {
        words: &["stream", "streams"],
        only: &[],
        never: &["core/src/sample/", "kernels/cuda/", "shaders/wgsl/"],
        instead: "a stream is a queue of a device, or text as it comes; Philox has subsequences",
    },
    Place {
        words: &["kinds"],
        only: &[],
        never: &["core/src/engine/", "core/src/mem/", "core/src/model/", "engraft/src/", "tests/src/golden/"],
        instead: "token_type_ids",
    },
    Place {
        words: &["kinds"],
        only: &[],
        never: &["core/src/policy/families/", "core/src/policy/spec.rs", "core/src/policy/task.rs"],
        instead: "token_types",
    },
];

struct Place {
    words: &'static [&'static str],
    /// Beginnings of paths; empty: everywhere.
    only: &'static [&'static str],
    never: &'static [&'static str],
    instead: &'static str,
}

/// Names that no type of ours may have.
const TYPES: [(&str, &str); 9] = [
    ("Rows", "rows are those of a matrix: say which matrix"),
    ("From", "shadows `std::convert::From`"),
    ("Into", "shadows `std::convert::Into`"),
    ("Option", "shadows `std::option::Option`"),
    ("Vec", "shadows `std::vec::Vec`"),
    ("String", "shadows `std::string::String`"),
    ("Box", "shadows `std::boxed::Box`"),
    ("Iterator", "shadows `std::iter::Iterator`"),
    ("Clone", "shadows `std::clone::Clone`"),
];

/// Crates whose messages users read.
const SHIPPED: [&str; 14] = [
    "audio/src/",
    "backend-cpu/src/",
    "backend-cuda/src/",
    "backend-wgpu/src/",
    "cli/src/",
    "core/src/",
    "diffusion/src/",
    "engraft/src/",
    "engraft/web/",
    "image/src/",
    "kernels/src/",
    "ranks/src/",
    "server/src/",
    "shaders/src/",
];

/// Sources with these endings; goldens are others' files.
fn files(endings: &[&str]) -> Vec<Source> {
    let mut all = sources(endings);
    let of_others = ["tests/golden/", "tests/golden-image/"];
    all.retain(|source| !of_others.iter().any(|folder| source.name.starts_with(folder)));
    all
}

/// The words of an identifier, in lower case: of `CUDA_ARCH`, of `tableEdits`, of `HostMatrix`, of `f16x2`.
fn words(identifier: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), String::new());
    let letters: Vec<char> = identifier.chars().collect();
    for (i, &c) in letters.iter().enumerate() {
        let begins = c.is_uppercase()
            && i > 0
            && (letters[i - 1].is_lowercase() || letters.get(i + 1).is_some_and(|n| n.is_lowercase()));
        if !c.is_alphabetic() || begins {
            words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
        }
        if c.is_alphabetic() {
            word.extend(c.to_lowercase());
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

fn instead_of(word: &str) -> Option<&'static str> {
    WORDS.iter().find(|(words, _)| words.contains(&word)).map(|(_, instead)| *instead)
}

fn below(file: &str, paths: &[&str]) -> bool {
    paths.iter().any(|path| file.starts_with(path))
}

/// What is wrong with an identifier of a file.
fn misnamed(file: &str, name: &str) -> Option<(String, &'static str)> {
    if ALLOWED.iter().any(|(allowed, _)| *allowed == name) {
        return None;
    }
    for word in words(name) {
        if let Some(instead) = instead_of(&word) {
            return Some((word, instead));
        }
        for place in PLACES.iter().filter(|place| place.words.contains(&word.as_str())) {
            let outside = !place.only.is_empty() && !below(file, place.only);
            if outside || below(file, place.never) {
                return Some((word, place.instead));
            }
        }
    }
    None
}

/// What is wrong with a text that users read.
fn misworded(text: &str) -> Vec<(String, &'static str)> {
    let mut text = text.to_lowercase();
    for phrase in PHRASES {
        text = text.replace(phrase, " ");
    }
    // "through" and "meet" are plain English; "nobody" and "tell" are, too.
    let plain = ["through", "meet", "meets", "met", "nobody", "tell", "tells"];
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-').map(str::to_owned);
    let words = words.filter(|word| !plain.contains(&word.as_str()));
    words.filter_map(|word| instead_of(&word).map(|instead| (word, instead))).collect()
}

fn is_test(file: &str) -> bool {
    file.ends_with("tests.rs") || file.contains("/tests/") || file.starts_with("tests/")
}

/// Findings in the tokens of one source.
fn in_source(file: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let tokens = lexer::tokens(text);
    let shipped = below(file, &SHIPPED) && !is_test(file);
    for (i, token) in tokens.iter().enumerate() {
        let Token { kind, text, line } = token;
        let before = |n: usize| i.checked_sub(n).map_or("", |at| tokens[at].text.as_str());
        let said = |(word, instead): (String, &str)| {
            format!("{file}:{line}: `{word}` in `{text}`; write: {instead}")
        };
        match kind {
            // `iter.product()` is std's.
            Kind::Identifier if text == "product" && before(1) == "." => {}
            // What foreign crates call theirs.
            Kind::Identifier if text == "render_captured" && before(1) == "." => {}
            Kind::Identifier => {
                let defines = ["struct", "enum", "trait", "type", "union"].contains(&before(1));
                let associated = before(1) == "type" && text != "Rows";
                let shadows = TYPES.iter().find(|(name, _)| defines && !associated && name == text);
                found.extend(shadows.map(|(name, why)| said((name.to_string(), why))));
                found.extend(misnamed(file, text).map(said));
            }
            Kind::Message if shipped => found.extend(misworded(text).into_iter().map(said)),
            // The program's help is made of doc comments.
            Kind::Doc if file.starts_with("cli/src/args") => {
                found.extend(misworded(text).into_iter().map(said))
            }
            _ => {}
        }
    }
    found
}

/// The Rust examples of a text, each on its own lines, everything else left out: of doc comments, or of a
/// page, where a block without a language is no Rust.
fn examples(text: &str, page: bool) -> String {
    let (mut code, mut rust) = (false, false);
    let example = |line: &str| {
        let trimmed = line.trim_start();
        let inner = match page {
            true => Some(line),
            false => trimmed.strip_prefix("///").or_else(|| trimmed.strip_prefix("//!")),
        };
        let Some(inner) = inner.map(|inner| inner.strip_prefix(' ').unwrap_or(inner)) else {
            (code, rust) = (false, false);
            return String::new();
        };
        if let Some(language) = inner.strip_prefix("```") {
            code = !code;
            let attributes = ["rust", "no_run", "ignore", "should_panic", "compile_fail"];
            let named = language.split(',').any(|word| attributes.contains(&word.trim()));
            rust = code && (named || (!page && language.trim().is_empty()));
            return String::new();
        }
        // Hidden lines count, too; attributes keep their mark.
        let shown = inner.strip_prefix("# ").unwrap_or(inner);
        if rust { shown.to_owned() } else { String::new() }
    };
    text.lines().map(example).collect::<Vec<_>>().join("\n")
}

/// Findings in the text of a page; code on it is held by its source, and Rust by [`examples`].
fn on_page(file: &str, text: &str) -> Vec<String> {
    let (mut found, mut code) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        code ^= line.starts_with("```");
        if !code {
            // Tags of HTML are no words.
            let plain: String = line.split('<').map(|part| part.rsplit('>').next().unwrap_or(part)).collect();
            let wrong = misworded(if file.ends_with(".html") { &plain } else { line }).into_iter();
            found.extend(
                wrong.map(|(word, instead)| format!("{file}:{}: `{word}`; write: {instead}", number + 1)),
            );
        }
    }
    found
}

#[test]
fn identifiers_and_messages_use_the_fields_words() {
    let all = files(&[".rs", ".wgsl", ".cu", ".cuh"]);
    assert!(all.len() > 700, "{} sources", all.len());
    let found: Vec<String> = all.iter().flat_map(|source| in_source(&source.name, &source.text)).collect();
    assert!(found.is_empty(), "{} words of our own:\n  {}", found.len(), found.join("\n  "));
}

#[test]
fn examples_use_the_fields_words() {
    let (rust, mut pages) = (files(&[".rs"]), files(&[".md"]));
    pages.retain(|page| page.name != "CHANGELOG.md");
    let of = |source: &Source| examples(&source.text, source.name.ends_with(".md"));
    let all: Vec<(&str, String)> =
        rust.iter().chain(&pages).map(|source| (source.name.as_str(), of(source))).collect();
    let seen =
        |end: &str| all.iter().filter(|(name, code)| name.ends_with(end) && !code.trim().is_empty()).count();
    assert!(seen(".rs") > 20 && seen(".md") > 3, "{} and {} files have examples", seen(".rs"), seen(".md"));
    let found: Vec<String> = all.iter().flat_map(|(name, code)| in_source(name, code)).collect();
    assert!(found.is_empty(), "{} words of our own:\n  {}", found.len(), found.join("\n  "));
}

#[test]
fn pages_use_the_fields_words() {
    let mut all = files(&[".md", ".html"]);
    // The changelog names what was renamed.
    all.retain(|page| page.name != "CHANGELOG.md");
    assert!(all.iter().any(|page| page.name == "docs/numerics.md"));
    let found: Vec<String> = all.iter().flat_map(|page| on_page(&page.name, &page.text)).collect();
    assert!(found.is_empty(), "{} words of our own:\n  {}", found.len(), found.join("\n  "));
}

#[test]
fn names_of_files_use_the_fields_words() {
    let all = files(&[".rs", ".wgsl", ".cu", ".cuh", ".md"]);
    let stem = |file: &str| file.rsplit('/').next().unwrap().split('.').next().unwrap().to_owned();
    let wrong =
        all.iter().filter_map(|Source { name, .. }| misnamed(name, &stem(name)).map(|found| (name, found)));
    let found: Vec<String> =
        wrong.map(|(file, (word, instead))| format!("{file}: `{word}`; write: {instead}")).collect();
    assert!(found.is_empty(), "{}", found.join("\n  "));
}

/// Most columns of a line of comment.
const WIDEST: usize = 110;

/// Lines of comment that are too wide. Rows of tables have no second line to go on in.
fn wide(file: &str, text: &str) -> Vec<String> {
    let lines = text.lines().enumerate().filter(|(_, line)| {
        let content =
            line.trim_start().strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!', ' ']));
        content.is_some_and(|rest| !rest.starts_with('|')) && line.chars().count() > WIDEST
    });
    lines.map(|(number, line)| format!("{file}:{}: {} columns", number + 1, line.chars().count())).collect()
}

#[test]
fn comments_have_at_most_110_columns() {
    let all = files(&[".rs", ".wgsl", ".cu", ".cuh"]);
    let found: Vec<String> = all.iter().flat_map(|source| wide(&source.name, &source.text)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    let (long, row) = (format!("    /// {}", "x".repeat(103)), format!("//! | {} |", "x".repeat(120)));
    assert_eq!(wide("a.rs", &format!("{row}\n{}\n{long}", &long[1..])), ["a.rs:3: 111 columns"]);
}

/// Every word and every place, planted: a rule that sees nothing would hold for everything.
#[test]
fn planted_words_are_found() {
    for (words, _) in WORDS {
        for word in words {
            let mut camel = word.to_string();
            camel[..1].make_ascii_uppercase();
            for name in [
                word.to_string(),
                format!("a_{word}"),
                format!("{word}2_b"),
                camel.clone(),
                format!("My{camel}X"),
            ] {
                let text = format!("fn f() {{\n    let {name} = 1;\n}}");
                let found = in_source("core/src/x.rs", &text);
                assert!(found.len() == 1 && found[0].starts_with("core/src/x.rs:2: "), "{name}: {found:?}");
            }
        }
    }
    for place in PLACES {
        let text = format!("let {} = 1;", place.words[0]);
        let outside = place.never.first().map_or("cli/src/x.rs".to_owned(), |path| format!("{path}x.rs"));
        let outside = if place.words == ["captured"] { "core/src/text/x.rs".to_owned() } else { outside };
        assert_eq!(in_source(&outside, &text).len(), 1, "{outside}: {text}");
        let inside = place.only.last().map_or("cli/src/x.rs".to_owned(), |path| format!("{path}x.rs"));
        assert!(in_source(&inside, &text).is_empty(), "{inside}: {text}");
    }
    for (name, _) in TYPES {
        assert_eq!(in_source("a.rs", &format!("pub struct {name}<T>(T);")).len(), 1, "{name}");
    }
    assert_eq!(in_source("cli/src/x.rs", "note(\"3 tokens drawn\\n\");").len(), 1);
    assert_eq!(in_source("cli/src/args.rs", "/// Tokens to draw at most\nn: u32,").len(), 1);
    let example = "/// ```\n/// # let drawn = 1;\n/// ```\n/// ```text\n/// cut\n/// ```\nfn f() {}";
    let found = in_source("core/src/x.rs", &examples(example, false));
    assert!(found.len() == 1 && found[0].starts_with("core/src/x.rs:2: `drawn`"), "{found:?}");
    let page = "# Cut\n```\ncut\n```\n```rust\nlet told = 1;\n```\n";
    let found = in_source("docs/x.md", &examples(page, true));
    assert!(found.len() == 1 && found[0].starts_with("docs/x.md:6: `told`"), "{found:?}");
    assert_eq!(on_page("docs/x.md", "a\nA product of it is cut.").len(), 2);
    assert_eq!(on_page("x.html", "<form id=\"form\">drawn</form>").len(), 1);
}

#[test]
fn the_fields_own_words_pass() {
    let text = "// what was drawn, /* told\nfn dot_product<'a>(x: &'a [f32]) -> f32 { x.iter().product() }\n\
                /* draw /* cut */ */ impl From<X> for Y { type Item = u8; }\n\
                let format = \"a dot product\"; information(platform, transform, Rows::new(), '\\'');";
    assert_eq!(in_source("core/src/x.rs", text), [""; 0]);
    let strings = "f(\"drawn\", r#\"a \"cut\" b\"#, b\"told\", 'd');";
    assert_eq!(in_source("core/src/x.rs", strings).len(), 3);
    assert_eq!(in_source("core/tests/x.rs", strings), [""; 0]);
    assert_eq!(in_source("shaders/wgsl/x.wgsl", "{#- what was drawn -#}\nlet a = 1;"), [""; 0]);
    assert_eq!(
        on_page("docs/x.md", "well-formed; `{dx} * {dw}`: the product of the scales\n```\ncut\n```"),
        [""; 0]
    );
}

#[test]
fn identifiers_are_split_into_words() {
    assert_eq!(words("takeHTTPForms_of2Cut"), ["take", "http", "forms", "of", "cut"]);
    assert_eq!(words("_CUDA_FORMAT"), ["cuda", "format"]);
    assert_eq!(words("QkvRopeAppend"), ["qkv", "rope", "append"]);
}

//! Chat templates and tokenizers that ask for too much: for tests of the reader and as seeds of the fuzzer.
#![allow(dead_code, reason = "each program that includes this uses a part of it")]

/// Templates that overflowed the stack, ran for minutes or took all memory in a template engine without
/// limits.
pub const TEMPLATES: &[&str] = &[
    // Values that lead to themselves.
    "{% set ns=namespace(a=1) %}{% set ns.a=ns %}{{ ns }}",
    "{% set ns=namespace(a=1) %}{% set ns.a=ns %}{{ ns|tojson }}",
    "{% set a=namespace(x=1) %}{% set b=namespace(x=a) %}{% set a.x=b %}{{ a == b }}",
    "{% set ns=namespace(a=1) %}{% set ns.a=[ns] %}{{ ns }}",
    // Nested without bound: printed, written as JSON, compared, dropped.
    "{% set ns=namespace(x=1) %}{% for i in range(90000) %}{% set ns.x=[ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns=namespace(x=1) %}{% for i in range(20000) %}{% set ns.x={'a': ns.x} %}{% endfor %}{{ ns.x|tojson }}",
    "{% set ns=namespace(x=1,y=1) %}{% for i in range(90000) %}{% set ns.x=[ns.x] %}{% set ns.y=[ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
    "{% set ns=namespace(x=1) %}{% for a in range(4) %}{% for i in range(99999) %}{% set ns.x=[ns.x] %}{% endfor %}{% endfor %}",
    "{% set ns=namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x=ns.x|select %}{% endfor %}{{ ns.x|list }}",
    "{% set ns=namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x=ns.x[::1] %}{% endfor %}{{ ns.x }}",
    "{% set ns=namespace(x=[]) %}{% for i in range(99999) %}{% set p=ns.x %}{% macro m() %}{{ p }}{% endmacro %}{% set ns.x=m %}{% endfor %}{{ ns.x() }}",
    "{% set ns=namespace(x=['a']) %}{% for i in range(64) %}{% set ns.x=[ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    // Panics.
    "{% for m in [][::-1] %}{% endfor %}{{ ''[::-1] }}{{ [1][5::-1] }}{{ 'é'[-9:9:-3] }}",
    "{% set n='nan'|float %}{{ [n,4,n,n,5,3,n,n,n,8,n,n,1,n,n,n,5,3,n,n,0,n,6,0,n,3,5,n,n,n,n,n,5,n,4,4,1,5,3,8,n,1,n,n,n,n,0,n,n,n,n,8,6,n,n,3,n,n,n,n,5,n,9,n]|sort }}",
    "{% set a=9007199254740991 %}{% set b,c,d,f=a+1,a+2,a+3,9007199254740992.0 %}{{ [b,f,c,b,f,f,f,c,b,a,b,b,a,f,a,d,d,d,b,a,c,c,d,a,b,f,c,c,b,b,b,b,f,b,a,f,f,b,c,c,a,b,b,d,a,c,b,f,d,c,f,c,a,f,b,d,b,b,d,f,f,a,a,d]|sort }}",
    "{{ 'aaaaaaaaaa'|truncate(-170141183460469231731687303715884105727 - 1) }}",
    // Time.
    "{% for i in range(9999) %}{% set x = range(99999)|sort|list %}{% endfor %}",
    "{% set s = 'a b '*1000000 %}{% for i in range(9999) %}{% set x = s.split() %}{% endfor %}",
    "{% set s = 'ab'*1000000 %}{% for i in range(9999) %}{% set x = s.replace('a', 'b') %}{{ s.find('c') }}{{ 'c' in s }}{{ s.count('c') }}{% endfor %}",
    "{% set s = 'ab'*1000000 %}{% for i in range(9999) %}{% set x = s|upper|title|length %}{{ s.isalpha() }}{{ s[-1] }}{{ s == s }}{% endfor %}",
    "{% set ns=namespace(d={}) %}{% for i in range(99999) %}{% set ns.d = dict(ns.d, a=i) %}{% endfor %}",
    "{% for i in range(99999) %}{% set d = dict(range(9999)|batch(2)) %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{{ range(99999)|unique|list|length }}{% endfor %}",
    "{{ range(99999)|map('string')|map('length')|sum }}{{ (range(99999)|join(','))*9999 }}",
    "{% set s = 'a'*9000000 %}{% for i in range(99999) %}{% set x = 'a'.find(s) %}{% set y = 'a' in s %}{% endfor %}",
    "{% set s = '%(' ~ 'a'*9000000 ~ ')s' %}{% set d = {'a'*9000000: 1} %}{% for i in range(99999) %}{% set x = s % d %}{% endfor %}",
    "{% set s = '0'*9000000 %}{% for i in range(99999) %}{% set x = s|int %}{% endfor %}",
    "{% set s = '0'*9000000 %}{% for i in range(99999) %}{% set x = [[1]]|map(attribute=s)|list %}{% endfor %}",
    "{% set s = 'a'*9000000 %}{% set d = {'b': 1} %}{% for i in range(99999) %}{% set x = d[s] %}{{ s|length }}{{ s is lower }}{% endfor %}",
    "{% set u='a'*1000 %}{% set p=u*1000~'c' %}{% set t=(u*1000~'b',)*100000 %}{{ p.startswith(t) }}",
    "{% set u='a'*1000 %}{% set p=u*1000~'c' %}{% set t=(u*1000~'b',)*100000 %}{{ p.endswith(t) }}",
    "{% set s='a'*100000 %}{% for i in range(99999) %}{% set x = s.count('a') %}{{ s.isalpha() }}{{ s is upper }}{% endfor %}",
    "{% set l=[1]*100000 %}{% for i in range(99999) %}{{ l.count(1) }}{{ l|min }}{{ l|sum }}{% endfor %}",
    "{% set l=range(9999)|list %}{% for i in range(9999) %}{% set x = l|sort(reverse=true)|sort %}{% endfor %}",
    "{% set d = dict(range(1000)|map('string')|batch(2)) %}{% for i in range(99999) %}{{ d|tojson(sort_keys=true)|length }}{{ d.zzz }}{% endfor %}",
    "{% for i in range(99999) %}{% set x = 1.7e308|round(300) %}{% endfor %}",
    "{% for i in range(99999) %}{% set x = '%.400f' % 1.7e308 %}{% set x = '%.400g' % 1.2e-300 %}{{ '{:.400e}'.format(0.1) }}{% endfor %}",
    "{% for i in range(99999) %}{% set x = [2.670405756230503e65, 1e23]*500 %}{{ x }}{{ x|tojson }}{% endfor %}",
    "{% for i in range(99999) %}{% set x = range(99)|batch(1)|list %}{{ dict(range(98)|batch(2)).items() }}{% endfor %}",
    "{% set s='a' %}{% for i in range(99999) %}{% set x = s.zzz %}{% set y = zzz %}{% for z in [] %}{% endfor %}{% endfor %}",
    "{% set s='\\u0001\\u2028😀<'*1000 %}{% for i in range(9999) %}{% set x = [s]|string|e|urlencode %}{{ s|tojson(ensure_ascii=true) }}{% endfor %}",
    // Memory by one call.
    "{% set s = 'a'*9000000 %}{% for i in range(9999) %}{% set n = namespace({s: 1}) %}{% endfor %}",
    "{{ [[1]]|tojson(separators=('a'*9000000, 'b'*5000000)) }}",
    "{{ raise_exception('a'*9000000) }}",
    "{{ \"{:>9999999999}\".format(1) }}",
    "{{ \"%9999999999d\" % 1 }}",
    "{{ \"%.9999999999f\" % 1 }}",
    "{{ \"a\"|indent(99999999999) }}",
    "{{ [1]|batch(9999999999, 0) }}",
    "{{ [1]|slice(9999999999) }}",
    "{{ [1]|slice(9999999999, 0) }}",
    "{{ [[1]]|tojson(indent=9999999999) }}",
    "{{ [[1]]|tojson(indent='a'*9999999) }}",
    "{{ range(100000)|join(\"a\"*100000) }}",
    "{{ 'a'*99999999999 }}",
    "{{ [1]*99999999999 }}",
    "{{ 'a'.center(99999999999) }}",
    "{{ 'a'.ljust(99999999999) }}",
    "{{ 'a'|center(99999999999) }}",
    "{{ '5'.zfill(99999999999) }}",
    "{{ range(99999999999) }}",
    "{{ 10**99999999999 }}",
    "{{ 10.0**300|round(300) }}",
    "{{ 1|round(-99999999999) }}",
    "{{ strftime_now('%255d'*200000) }}",
    "{{ ([1]*430000)|map(attribute='😀'*60)|list }}",
    "{% set s='a '*500000 %}{{ s.rsplit()|length }}{{ s.rsplit('a')|length }}{{ s.split()|length }}",
    "{% set ns=namespace(s='a'*1000) %}{% for i in range(14) %}{% set ns.s=ns.s~ns.s %}{% endfor %}{{ raise_exception(ns.s) }}",
    "{% set ns=namespace(s='a'*1000) %}{% for i in range(14) %}{% set ns.s=ns.s~ns.s %}{% endfor %}{{ []|join(ns.s) }}{{ ('%(' ~ ns.s ~ ')s') % {'a': 1} }}",
    // Memory step by step.
    "{% set ns=namespace(s='a') %}{% for i in range(60) %}{% set ns.s=ns.s~ns.s %}{% endfor %}{{ ns.s }}",
    "{% set ns=namespace(s='a') %}{% for i in range(60) %}{% set ns.s=ns.s.replace('a','aa') %}{% endfor %}",
    "{% set ns=namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s=ns.s+ns.s %}{% endfor %}",
    "{% set s = 'ab'*4000000 %}{{ s|list|length }}{{ s.split('a')|length }}{{ s[::-1]|length }}",
    "{% set s = 'ab'*4000000 %}{{ s.rsplit('a')|length }}{{ s|tojson }}{{ s|e }}{{ [s, s, s] }}",
    "{% set ns=namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l=ns.l+['a'*1000] %}{% endfor %}",
    "{% for a in range(1000) %}{{ 'x' * 1000000 }}{% endfor %}",
    // Recursion.
    "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "{% macro f(x) %}{% call f(x) %}{{ caller() }}{% endcall %}{% endmacro %}{{ f(1) }}",
    "{% macro f(x) %}{% for i in [1] %}{% if true %}{{ g(x) }}{% endif %}{% endfor %}{% endmacro %}{% macro g(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% for x in [1] recursive %}{{ loop(loop) }}{% endfor %}",
    "{{ 'a'|map('map', 'map', 'map', 'upper')|list }}",
];

/// A small tokenizer with these parts, written as JSON.
fn tokenizer(normalizer: &str, pre_tokenizer: &str, post_processor: &str, decoder: &str) -> String {
    format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":{normalizer},"pre_tokenizer":{pre_tokenizer},
"post_processor":{post_processor},"decoder":{decoder},"model":{{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,
"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"vocab":{{"a":0,"b":1,"ab":2}},"merges":["a b"]}}}}"#
    )
}

fn sequence(kind: &str, step: &str, times: usize) -> String {
    format!(r#"{{"type":"Sequence","{kind}":[{}]}}"#, vec![step; times].join(","))
}

fn replace(content: &str) -> String {
    format!(r#"{{"type":"Replace","pattern":{{"String":"a"}},"content":"{content}"}}"#)
}

/// A tokenizer with another model.
fn with_model(normalizer: &str, pre_tokenizer: &str, model: &str) -> String {
    let file = tokenizer(normalizer, pre_tokenizer, "null", "null");
    let at = file.find(r#""model":"#).unwrap_or(file.len());
    format!(r#"{}"model":{model}}}"#, &file[..at])
}

/// A model of Unigram with these pieces behind the unknown one.
fn unigram(pieces: impl Iterator<Item = String>) -> String {
    let pieces: Vec<String> = pieces.map(|piece| format!(r#",["{piece}",-1.0]"#)).collect();
    format!(
        r#"{{"type":"Unigram","unk_id":0,"byte_fallback":false,"vocab":[["<unk>",0.0]{}]}}"#,
        pieces.concat()
    )
}

/// Pieces of one letter, each longer by one.
fn runs(longest: usize) -> impl Iterator<Item = String> {
    (1..=longest).map(|n| "a".repeat(n))
}

/// BPE's model with one more token.
fn with_token(token: &str, id: usize) -> String {
    format!(r#"{{"type":"BPE","vocab":{{"a":0,"b":1,"{token}":{id}}},"merges":[]}}"#)
}

/// An honest one of the same kind.
pub fn honest_tokenizer() -> String {
    let normalizer = sequence("normalizers", &replace("ab"), 2);
    let template = r#"{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"b","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],"special_tokens":{"b":{"id":"b","ids":[1],"tokens":["b"]}}}"#;
    tokenizer(&normalizer, r#"{"type":"WhitespaceSplit"}"#, template, r#"{"type":"Fuse"}"#)
}

/// Descriptions that made gigabytes or minutes of a short text, and a word of the refusal.
pub fn tokenizers() -> Vec<(&'static str, String, &'static str)> {
    let normalizer = |value: &str| tokenizer(value, "null", "null", "null");
    let words = |value: &str| tokenizer("null", value, "null", "null");
    let byte_level = r#"{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}"#;
    let metaspace = r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":false}"#;
    let ids = vec!["1"; 1000].join(",");
    let names = vec![r#""b""#; 1000].join(",");
    let special = r#"{"SpecialToken":{"id":"b","type_id":0}}"#;
    let first = r#"{"Sequence":{"id":"A","type_id":0}}"#;
    let template = |places: &str| {
        format!(
            r#"{{"type":"TemplateProcessing","single":[{places}],"pair":[{first}],"special_tokens":{{"b":{{"id":"b","ids":[{ids}],"tokens":[{names}]}}}}}}"#
        )
    };
    let many = vec![special; 100_000].join(",") + "," + first;
    let twice = vec![first; 30].join(",");
    let pieces = tokenizer("null", "null", &template(&many), "null");
    let sequences =
        tokenizer("null", "null", &template(&twice).replace(&ids, "1").replace(&names, r#""b""#), "null");
    let word_piece =
        normalizer("null").replace("\"BPE\"", "\"WordPiece\",\"max_input_chars_per_word\":99999999");
    let nested =
        format!("{}{}{}", r#"{"type":"Sequence","normalizers":["#.repeat(50), replace("aa"), "]}".repeat(50));
    vec![
        ("a long replacement", normalizer(&replace(&"b".repeat(1 << 20))), "bytes in a string"),
        (
            "growing replacements",
            normalizer(&sequence("normalizers", &replace("aaaaaaaaaa"), 12)),
            "lengthen",
        ),
        ("doubling replacements", normalizer(&sequence("normalizers", &replace("aa"), 30)), "lengthen"),
        ("nested sequences", normalizer(&nested), "steps"),
        (
            "untyped replacements",
            normalizer(
                &sequence("normalizers", &replace("aaaaaaaaaa"), 12).replace(r#""type":"Sequence","#, ""),
            ),
            "lengthen",
        ),
        ("a template of many tokens", pieces, "more than 4096 values"),
        ("a template of many texts", sequences, "times the text stands"),
        ("byte levels", words(&sequence("pretokenizers", byte_level, 2000)), "more than 4096 values"),
        ("a few byte levels", words(&sequence("pretokenizers", byte_level, 20)), "lengthen"),
        ("metaspaces", words(&sequence("pretokenizers", metaspace, 20)), "lengthen"),
        (
            "a long prefix",
            normalizer(&format!(r#"{{"type":"Prepend","prepend":"{}"}}"#, "a".repeat(9999))),
            "bytes in a string",
        ),
        ("a long word", word_piece, "max_input_chars_per_word"),
        (
            "growing decoders",
            tokenizer("null", "null", "null", &sequence("decoders", &replace("aaaaaaaaaa"), 12)),
            "lengthen",
        ),
        // Seconds for kilobytes; a stack that overflowed; a long token for each letter.
        (
            "pieces that begin one another",
            with_model("null", "null", &unigram(runs(500))),
            "begin one another",
        ),
        ("runs of growing length", with_model("null", "null", &unigram(runs(600))), "in a piece of Unigram"),
        (
            "a long piece",
            with_model("null", "null", &unigram(std::iter::once("a".repeat(1 << 17)))),
            "in a piece of Unigram",
        ),
        (
            "a long token",
            with_model("null", "null", &with_token(&"c".repeat(1 << 17), 0)),
            "bytes in a token",
        ),
        ("tokens of one id", with_model("null", "null", &with_token(&"c".repeat(4096), 0)), "one token's"),
    ]
}

/// Tokenizers that are read, and prompts that took minutes or gigabytes with them, and a word of the refusal.
pub fn long_prompts() -> Vec<(&'static str, String, String, &'static str)> {
    let long = |text: &str| text.repeat(10_000_000 / text.len());
    let at_once = "without a place to split";
    let at_least = "tokens at least";
    let growing = tokenizer(&replace(&"b".repeat(256)), "null", "null", "null");
    let words = r#"{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}]}"#;
    let letters = unigram(["▁", "a", "b", "ab", "▁ab"].into_iter().map(String::from));
    let by_words = with_model("null", words, &letters);
    let without_words = with_model("null", "null", &letters);
    let word_piece = with_model(
        r#"{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true}"#,
        r#"{"type":"BertPreTokenizer"}"#,
        r###"{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":{"[UNK]":0,"word":1,"##s":2}}"###,
    );
    let close = with_model("null", words, &unigram(runs(55)));
    vec![
        ("a replacement of 256", growing.clone(), "a".repeat(60_000), at_once),
        // As much as is tokenized at once.
        ("a replacement of 256, shorter", growing, "a".repeat(1700), at_least),
        ("words of WordPiece", word_piece.clone(), long("words word "), at_least),
        ("unknown words of WordPiece", word_piece.clone(), long("渡轮离开，"), at_least),
        ("one word of WordPiece", word_piece, "s".repeat(10_000_000), at_once),
        ("words of Unigram", by_words.clone(), long("ab ba "), at_least),
        ("unknown words of Unigram", by_words.clone(), long("zz yy "), at_least),
        ("an unknown word of Unigram", by_words, "z".repeat(10_000_000), at_once),
        ("Unigram without words", without_words.clone(), long("ab ba "), at_least),
        ("unknown Unigram without words", without_words, long("zz yy "), at_once),
        ("pieces that begin one another", close, "a".repeat(700_000), at_least),
    ]
}

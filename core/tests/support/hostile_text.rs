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
    ]
}

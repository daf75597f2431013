//! Expressions and statements as Python's library renders them, and what is refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;

fn render(source: &str) -> Result<String, String> {
    let messages = r#"[{"role": "user", "content": "Hi <b>"}, {"role": "assistant", "content": "Yes'"}]"#;
    let messages: Data = serde_json::from_str(messages).unwrap();
    let said = [Data::from("<s>"), Data::from("</s>"), Data::Bool(true), Data::Null];
    let variables = [
        ("messages", &messages),
        ("bos_token", &said[0]),
        ("eos_token", &said[1]),
        ("add_generation_prompt", &said[2]),
        ("tools", &said[3]),
    ];
    let message = |e: Fail| format!("line {}: {}", e.line.unwrap_or(0), e.text);
    Template::new(source).map_err(message)?.render(&variables, Some(0)).map_err(message)
}

/// `cases.json`: templates and what Jinja2 3.1.6 makes of them, in its sandbox, with `json.dumps` as
/// `tojson`.
#[test]
fn expressions_exactly() {
    let cases: Vec<(String, String)> = serde_json::from_str(include_str!("cases.json")).unwrap();
    assert!(cases.len() >= 25);
    let mut wrong = Vec::new();
    for (source, want) in cases {
        let got = render(&source);
        if got.as_ref() != Ok(&want) {
            wrong.push(format!("{source}\n  got  {got:?}\n  want {want:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn errors_say_what_and_where() {
    let cases = [
        ("a\n{{ nothing.x }}", "line 2: 'nothing' is undefined"),
        ("{{ messages[0].nothing.x }}", "'dict object' has no attribute 'nothing'"),
        ("{{ 'a' + 1 }}", "`str` + `int`"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ 'a' | nonsense }}", "filter `nonsense`"),
        ("{{ 1 is nonsense }}", "test `nonsense`"),
        ("{{ 'a'.nonsense() }}", "has no attribute 'nonsense'"),
        ("{{ '%d' % 'x' }}", "a number is expected"),
        ("{{ '%s %s' % 'x' }}", "not enough arguments"),
        ("{{ '%s' % (1, 2) }}", "not all arguments"),
        ("{{ {[1]: 2} }}", "a list cannot be a key"),
        ("{{ 170141183460469231731687303715884105727 + 1 }}", "128 bits"),
        ("{{ messages | tojson(bogus=1) }}", "argument `bogus`"),
        ("{% set messages.x = 1 %}", "a namespace's can"),
        ("{% for a, b in [[1]] %}{% endfor %}", "1 values for 2 names"),
        ("{% macro f() %}{% endmacro %}{{ f(1) }}", "arguments too many"),
        ("{% if %}", "line 1: unexpected end of a tag"),
        ("\n{% for x in y %}", "`endfor` is missing"),
        ("{% endif %}", "tag `endif` is not known or closes nothing"),
        ("{% include 'x' %}", "tag `include`"),
        ("{{ 'open }}", "a string is not closed"),
        ("{{ (1 }}", "unexpected `}`"),
        ("{% break %}", "outside of a loop"),
        ("{{ 1 ? 2 }}", "unexpected character '?'"),
        ("{# open", "comment is not closed"),
    ];
    for (source, words) in cases {
        let error = render(source).unwrap_err();
        assert!(error.contains(words), "{source}: {error}");
    }
}

#[test]
fn containers_and_namespaces_hold_plain_data() {
    for source in [
        "{% set ns = namespace() %}{% set ns.a = ns %}",
        "{% set ns = namespace() %}{{ [ns] }}",
        "{% set ns = namespace() %}{{ {'a': ns} }}",
        "{% set ns = namespace() %}{% set other = namespace(a=ns) %}",
        "{% for x in [1] %}{{ [loop] }}{% endfor %}",
        "{% macro f() %}{% endmacro %}{{ [f] }}",
        "{{ [messages[0].items] }}",
        "{{ [range] }}",
    ] {
        let error = render(source).unwrap_err();
        assert!(error.contains("is not supported"), "{source}: {error}");
    }
}

#[test]
fn nesting_is_bounded_where_it_grows() {
    let grows =
        "{% set ns = namespace(x=1) %}{% for i in range(N) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}";
    assert!(render(&grows.replace('N', "129")).unwrap().starts_with("[[[[["));
    assert!(render(&grows.replace('N', "131")).unwrap_err().contains("130 lists inside one another"));
    let parens = |n: usize| format!("{{{{ {}1{} }}}}", "(".repeat(n), ")".repeat(n));
    assert_eq!(render(&parens(25)).unwrap(), "1");
    assert!(render(&parens(100)).unwrap_err().contains("nesting"));
    // Long is not deep.
    let long = format!("{{{{ 0{} }}}}", " + 1".repeat(20_000));
    assert_eq!(render(&long).unwrap(), "20000");
}

#[test]
fn the_deepest_templates_need_little_stack() {
    let recursion = "{% macro f(n) %}{% if true %}{% for x in [1] %}{{ ((f(n) | upper) ~ 'x') }}{% endfor %}{% endif %}{% endmacro %}{{ f(1) }}";
    let nested = format!("{}x{}", "{% if (((true))) %}".repeat(50), "{% endif %}".repeat(50));
    let parens = format!("{{{{ {}1{} }}}}", "-(".repeat(17), ")".repeat(17));
    let printed = "{% set ns = namespace(x={'a': 1}) %}{% for i in range(128) %}{% set ns.x = {'b': ns.x} %}{% endfor %}{{ ns.x }}{{ ns.x | tojson(indent=1) | length }}{{ ns.x == ns.x }}";
    let work = move || {
        assert!(render(recursion).unwrap_err().contains("recursion of more than"));
        assert_eq!(render(&nested).unwrap(), "x");
        assert_eq!(render(&parens).unwrap(), "-1");
        assert!(render(printed).unwrap().ends_with("True"));
    };
    // The main thread of a browser's worker has 1 MiB.
    std::thread::Builder::new().stack_size(768 << 10).spawn(work).unwrap().join().unwrap();
}

#[test]
fn shared_parts_are_paid_for_at_each_visit() {
    let shared =
        "{% set ns = namespace(x=['a']) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    for end in ["{{ ns.x }}", "{{ ns.x | tojson }}", "{{ ns.x == ns.x }}", "{{ [ns.x, ns.x] | sort }}"] {
        let error = render(&format!("{shared}{end}")).unwrap_err();
        assert!(error.contains("more than"), "{end}: {error}");
    }
    assert_eq!(render(&format!("{shared}ok")).unwrap(), "ok");
}

#[test]
fn the_last_value_of_a_key_counts_in_its_first_place() {
    let data: Data =
        serde_json::from_str(r#"{"b": 1, "a": [true, null, -2.5], "b": 18446744073709551615}"#).unwrap();
    let want = vec![
        ("b".to_owned(), Data::Int(18_446_744_073_709_551_615)),
        ("a".to_owned(), Data::List(vec![Data::Bool(true), Data::Null, Data::Float(-2.5)])),
    ];
    assert_eq!(data, Data::Object(want));
}

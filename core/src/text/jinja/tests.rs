//! Expressions and statements as Python's library renders them, and what is refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::budget::{Budget, OVERHEAD};
use super::value::{Entries, Items, Sink, Space, Value, undefined};
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
fn what_is_not_a_number_stands_behind_all_numbers() {
    let cases = [
        ("{{ [n, 2, n, 1.5, n] | sort }}", "[1.5, 2, nan, nan, nan]"),
        ("{{ [n, 2, 1] | sort(reverse=true) }}", "[nan, 2, 1]"),
        ("{{ [[n, 2], [n, 1], [0]] | sort }}", "[[0], [nan, 1], [nan, 2]]"),
        ("{{ {'a': n, 'b': 1} | dictsort(by='value') }}", "[('b', 1), ('a', nan)]"),
        ("{{ [n, 2] | max }} {{ [2, n] | max }} {{ [n, 2] | min }} {{ [2, n] | min }}", "nan nan 2 2"),
        // Each is a group of its own, and none is lost.
        ("{% for k, g in [{'k': n}, {'k': 1}]|groupby('k') %}{{ k }}{{ g|length }},{% endfor %}", "11,nan1,"),
        ("{{ n < 1 }} {{ n <= n }} {{ 1 is lt n }} {{ n == n }}", "False False False False"),
        ("{{ n != n }} {{ [0, n] < [1, n] }} {{ [1, n] < [1, 2] }}", "True True False"),
    ];
    for (source, want) in cases {
        let got = render(&format!("{{% set n = 'nan' | float %}}{source}"));
        assert_eq!(got.as_deref(), Ok(want), "{source}");
    }
    // As floats all three would be equal to the second.
    let large = "{{ [9007199254740993, 9007199254740992.0, 9007199254740991] | sort }}";
    let sorted = "[9007199254740991, 9007199254740992.0, 9007199254740993]";
    assert_eq!(render(large).as_deref(), Ok(sorted));
    assert!(render("{{ [3, 'a', 1] | sort }}").unwrap_err().contains("cannot be ordered"));
}

#[test]
fn a_width_may_be_any_number() {
    let least = "{{ 'aaaaaaaaaa' | truncate(-170141183460469231731687303715884105727 - 1) }}";
    assert_eq!(render(least).as_deref(), Ok("..."));
    for c in ["x", "é"] {
        for width in [0, 1, 63, 64, 65, 128, 200] {
            let padded = render(&format!("{{{{ 'a'.ljust({width}, '{c}') }}}}")).unwrap();
            assert_eq!(padded, format!("a{}", c.repeat(usize::max(width, 1) - 1)), "{width}");
        }
    }
}

#[test]
fn limits_do_not_depend_on_the_template() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    let error = render(endless).unwrap_err();
    assert!(error.contains("steps of work"), "{error}");
    let padded = format!("{endless}{{#{}#}}", "x".repeat(200_000));
    assert_eq!(render(&padded).unwrap_err(), error);
}

/// Each of these did its work for a few steps: in one call, or in several that each did as much.
#[test]
fn work_is_counted_wherever_it_is_done() {
    let names = |count: usize| (0..count).map(|i| format!("a{i}=0")).collect::<Vec<_>>().join(",");
    let often = |call: &str| format!("{{% for i in range(6000) %}}{{% set x = {call} %}}{{% endfor %}}");
    let affix = "{% set t = ('b' * 999,) * 90000 %}{{ ('a' * 1000).startswith(t) }}";
    let cases = [
        affix.to_owned(),
        affix.replace("startswith", "endswith"),
        format!("{{% set x = ('{{z}}' * 9999).format({}, z=1) %}}", names(2000)),
        format!("{{% macro m({0}) %}}{{% endmacro %}}{{{{ m({0}) }}}}", names(3000)),
        often("1.5 | round(300)"),
        often("'%.400f' % 1.5"),
        often("'%.400g' % 1.5"),
        often("'{:.300e}'.format(1.5)"),
        "{{ [0.5] * 70000 }}".to_owned(),
        "{% set s = 'a' * 9000 %}{% for i in range(300) %}{{ s.isalpha() }}{% endfor %}".to_owned(),
        "{% set s = 'a' * 9000 %}{% for i in range(300) %}{{ s is upper }}{% endfor %}".to_owned(),
    ];
    for source in cases {
        let error = render(&source).unwrap_err();
        assert!(error.contains("steps of work"), "{}: {error}", source.chars().take(90).collect::<String>());
    }
}

#[test]
fn a_format_of_a_date_is_short() {
    let error = render("{{ strftime_now('%255d' * 100) }}").unwrap_err();
    assert!(error.contains("a format of 500 bytes; 256 are allowed"), "{error}");
    let raised = render("{{ raise_exception('é' * 9000) }}").unwrap_err();
    assert_eq!(raised.chars().filter(|&c| c == 'é').count(), 2000, "{raised}");
}

/// What lives counts the room that it has, and gives all of it back.
#[test]
fn what_is_granted_is_given_back() {
    const MOST: usize = 100_000;
    let budget = Budget::new(1_000_000, MOST);
    let kept = budget.hold(MOST / 2).unwrap();
    let all_back = |what: &str| {
        assert!(budget.hold(MOST / 2 + 1).is_err(), "{what}: more is given back than was granted");
        assert!(budget.hold(MOST / 2).is_ok(), "{what}: less is given back than was granted");
    };
    for count in [0, 1, 2, 3, 17, 60] {
        let mut text = Sink::new(&budget).unwrap();
        let mut items = Items::new(&budget).unwrap();
        let mut entries = Entries::new(&budget).unwrap();
        let space = Space::new(&budget).unwrap();
        for i in 0..count {
            text.char('é').unwrap();
            text.fill('x', i).unwrap();
            items.push(Value::Int(1)).unwrap();
            entries.push(Value::Int(i as i128), Value::None).unwrap();
            space.set(&format!("name {i}"), Value::None).unwrap();
        }
        let said = undefined(&["'", "name", "' is undefined"], &budget).unwrap();
        assert!(budget.hold(MOST / 2 - 4 * OVERHEAD).is_err(), "{count}: what lives does not count");
        drop((text.value(), items.list(), entries.value(), space, said));
        all_back(&format!("{count} of each"));
        let mut text = Sink::new(&budget).unwrap();
        text.fill('é', count).unwrap();
        assert_eq!(text.into_text().chars().count(), count);
        all_back(&format!("the finished text of {count}"));
    }
    drop(kept);
    assert!(budget.hold(MOST).is_ok());
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

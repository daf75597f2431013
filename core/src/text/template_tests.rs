//! Templates: what models ship, Python's habits, and hostile ones.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;

fn render(source: &str, extra: Option<&Value>) -> Result<String> {
    let messages = [Message::new("user", "Hi <b>"), Message::new("assistant", "Yes'")];
    ChatTemplate::new(source, Some("<s>"), Some("</s>"))?.render(&messages, true, extra)
}

#[test]
fn chatml_as_smollm_ships_it() {
    let source = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe kind<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    assert_eq!(
        render(source, None).unwrap(),
        "<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\nHi <b><|im_end|>\n<|im_start|>assistant\nYes'<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn blocks_trim_as_in_python() {
    let source = "{{ bos_token }}\n{% for m in messages %}\n    {% if m.role == 'user' %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\nend{{ eos_token }}\n";
    assert_eq!(render(source, None).unwrap(), "<s>\nHi <b>\nend</s>");
}

#[test]
fn methods_and_functions_of_python() {
    let cases = [
        ("{{ messages[0].content.upper() }}", "HI <B>"),
        ("{{ messages[0]['content'].split(' ')[-1] }}", "<b>"),
        ("{{ ' x '.strip() + 'ab'.replace('a', 'c') }}", "xcb"),
        ("{{ messages[0].get('role') }}", "user"),
        ("{% for k, v in {'b': 1, 'a': 2}.items() %}{{ k }}{{ v }}{% endfor %}", "b1a2"),
        (
            "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
            "user",
        ),
        ("{{ messages[0].content | tojson }}", "\"Hi <b>\""),
        ("{{ {'b': [1, 'x\\'&'], 'a': none} | tojson }}", "{\"b\": [1, \"x'&\"], \"a\": null}"),
        ("{{ '\\\\u003c' | tojson }}", "\"\\\\u003c\""),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ tools is none }} {{ 'x' if tools else 'y' }} {{ nothing is defined }}", "True y False"),
        ("{% generation %}a{% endgeneration %}b", "ab"),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "2",
        ),
        ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(1) }}", "[1]"),
    ];
    for (source, want) in cases {
        assert_eq!(render(source, None).unwrap(), want, "{source}");
    }
    let year = render("{{ strftime_now('%Y') }}", None).unwrap();
    assert!(year.parse::<u32>().unwrap() >= 2024, "{year}");
}

#[test]
fn extra_variables_reach_the_template_but_never_replace_ours() {
    let extra = json!({"tools": [{"name": "f"}], "enable_thinking": false, "messages": [], "bos_token": "X"});
    let source = "{{ tools[0].name }} {{ enable_thinking }} {{ messages | length }} {{ bos_token }}";
    assert_eq!(render(source, Some(&extra)).unwrap(), "f False 2 <s>");
    assert!(render(source, Some(&json!([1]))).is_err());
}

#[test]
fn errors_name_the_line() {
    let text = |source: &str| render(source, None).unwrap_err().to_string();
    assert!(text("a\nb\n{% if %}").contains("line 3"));
    let raised = text("\n{{ raise_exception('roles must alternate') }}");
    assert!(raised.contains("line 2") && raised.contains("roles must alternate"), "{raised}");
    let raised = text("\n\n{{ messages[0].content.no_such_method() }}");
    assert!(raised.contains("line 3"), "{raised}");
    assert!(text("{{ strftime_now('%!') }}").contains("%!"));
}

#[test]
fn hostile_templates_end() {
    let loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}";
    assert!(render(loops, None).unwrap_err().to_string().contains("fuel"));
    let recursion = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
    assert!(render(recursion, None).is_err());
    let mutual = "{% macro f(x) %}{% for i in [1] %}{% if true %}{{ g(x) }}{% endif %}{% endfor %}{% endmacro %}{% macro g(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
    assert!(render(mutual, None).is_err());
    let itself = "{% include 'chat_template' %}";
    assert!(render(itself, None).is_err());
    let tree = "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}";
    assert!(render(tree, None).is_err());
    let large = "{% for a in range(1000) %}{{ 'x' * 1000000 }}{% endfor %}";
    assert!(render(large, None).unwrap_err().to_string().contains("bytes"));
    let nested = format!("{}1{}", "{{ (".to_owned() + &"(".repeat(100_000), ")".repeat(100_001) + " }}");
    assert!(render(&nested, None).is_err());
    let long = format!("{}{{{{ 'open }}}}", "x".repeat(70_000));
    assert!(render(&long, None).unwrap_err().to_string().contains("longest of 70011 bytes"));
    let blocks = "{% if true %}".repeat(100_000);
    assert!(render(&blocks, None).is_err());
}

#[test]
fn long_tags_are_refused_and_long_strings_are_not() {
    let new = |source: &str| ChatTemplate::new(source, None, None);
    let terms = " %t".repeat(16_000);
    for hidden in ["", "{% raw %}{{ ' {% endraw %}", "{# ' #}", "{{ {'a': {'b': 1}} }}", "{{ '\\'' }}", "{"] {
        let text = new(&format!("{hidden}{{% if a{terms} %}}{{% endif %}}")).unwrap_err().to_string();
        assert!(text.contains("longest tag") && text.contains("4096"), "{hidden}: {text}");
    }
    let inside = new(&format!("{{{{ {{'a': {{'b': 1}}}}[0{terms}] }}}}")).unwrap_err().to_string();
    assert!(inside.contains("longest tag"), "{inside}");
    let words = "word ".repeat(4000);
    assert!(new(&format!("{{{{ '{words}%}} }}}} \\' {words}' }}}}")).is_ok());
    let text = new(&"word\n".repeat(54_000)).unwrap_err().to_string();
    assert!(text.contains("270000 bytes"), "{text}");
}

//! Templates: what models ship, Python's habits, and the published goldens exactly. Hostile ones:
//! `tests/text.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use serde_json::json;
use std::path::Path;

fn render(source: &str, extra: Option<&Value>) -> Result<String> {
    let messages = [Message::new("user", "Hi <b>"), Message::new("assistant", "Yes'")];
    ChatTemplate::new(source, Some("<s>"), Some("</s>"))?.render(&messages, true, extra)
}

/// A field of an object.
fn field<'a>(data: &'a Data, name: &str) -> Option<&'a Data> {
    match data {
        Data::Object(fields) => fields.iter().find(|(key, _)| key == name).map(|(_, value)| value),
        _ => None,
    }
}

fn text(data: Option<&Data>) -> &str {
    match data {
        Some(Data::Text(text)) => text,
        other => panic!("{other:?} is no text"),
    }
}

#[test]
fn goldens_exactly() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/chat_templates");
    let (mut runs, mut wrong) = (0, Vec::new());
    for case in [
        "blocks",
        "chatml",
        "date",
        "format",
        "harmony",
        "image_parts",
        "loop_controls",
        "macros",
        "tests_filters",
        "tojson",
        "tools_reasoning",
        "xml_tools",
    ] {
        let read = |name: &str| std::fs::read_to_string(folder.join(case).join(name)).unwrap();
        let golden: Data = serde_json::from_str(&read("golden.json")).unwrap();
        assert_eq!(text(field(&golden, "now")), "2026-03-07T09:05:03", "the time below");
        let [bos, eos] = ["bos_token", "eos_token"].map(|name| Some(text(field(&golden, name))));
        let template = ChatTemplate::new(&read("chat_template.jinja"), bos, eos).unwrap();
        let Some(Data::List(all)) = field(&golden, "runs") else { panic!("{case}: no runs") };
        for (i, run) in all.iter().enumerate() {
            let (messages, arguments) = (field(run, "messages").unwrap(), field(run, "arguments").unwrap());
            let prompt = field(arguments, "add_generation_prompt") == Some(&Data::Bool(true));
            let got = template
                .render_at(messages, prompt, arguments, Some(1_772_874_303))
                .map_err(|e| e.to_string());
            let right = match (&got, field(run, "rendered"), text_of(field(run, "error"))) {
                (Ok(got), Some(Data::Text(want)), None) => got == want,
                (Err(got), _, Some("TemplateError")) => got.contains(text(field(run, "message"))),
                (Err(got), _, Some("ValueError")) => got.contains("without messages"),
                _ => false,
            };
            runs += 1;
            if !right {
                wrong.push(format!("{case} {i}: got {got:?}\n  want {:?}", field(run, "rendered")));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {runs}\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(runs, 44);
}

/// How many texts the messages hold.
fn texts(data: &Data) -> usize {
    match data {
        Data::List(items) => items.iter().map(texts).sum(),
        Data::Object(fields) => {
            let field = |(name, value): &(String, Data)| match (name.as_str(), value) {
                ("content" | "text", Data::Text(_)) => 1,
                _ => texts(value),
            };
            fields.iter().map(field).sum()
        }
        _ => 0,
    }
}

/// The messages with more behind each text.
fn lengthened(data: &Data, more: &str) -> Data {
    match data {
        Data::List(items) => Data::List(items.iter().map(|item| lengthened(item, more)).collect()),
        Data::Object(fields) => {
            let field = |(name, value): &(String, Data)| match (name.as_str(), value) {
                ("content" | "text", Data::Text(text)) => (name.clone(), Data::Text(format!("{text}{more}"))),
                _ => (name.clone(), lengthened(value, more)),
            };
            Data::Object(fields.iter().map(field).collect())
        }
        other => other.clone(),
    }
}

/// What a rendering may cost is enough for a megabyte in the messages, whatever a published template does.
#[test]
fn published_templates_render_long_messages() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/chat_templates");
    let mut runs = 0;
    for case in std::fs::read_dir(folder).unwrap() {
        let case = case.unwrap().path();
        let read = |name: &str| std::fs::read_to_string(case.join(name)).unwrap();
        let golden: Data = serde_json::from_str(&read("golden.json")).unwrap();
        let template = ChatTemplate::new(&read("chat_template.jinja"), Some("<s>"), Some("</s>")).unwrap();
        let Some(Data::List(all)) = field(&golden, "runs") else { panic!("{}: no runs", case.display()) };
        for run in all.iter().filter(|run| text_of(field(run, "rendered")).is_some()) {
            let (messages, arguments) = (field(run, "messages").unwrap(), field(run, "arguments").unwrap());
            let line = "The quick brown fox jumps over the lazy dog. ";
            let more = line.repeat(1_000_000 / line.len() / texts(messages).max(1));
            let got = template.render_at(&lengthened(messages, &more), true, arguments, Some(0));
            if let Err(error) = got {
                panic!("{}: {error}", case.display());
            }
            runs += 1;
        }
    }
    assert!(runs > 30, "{runs}");
}

#[test]
fn a_panic_is_an_error() {
    let error = caught::<()>(|| panic!("planted")).unwrap_err().to_string();
    assert!(error.contains("chat template: a panic of the engine"), "{error}");
}

fn text_of(data: Option<&Data>) -> Option<&str> {
    data.filter(|d| !matches!(d, Data::Null)).map(|d| text(Some(d)))
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
    assert_eq!(render(&source.replace('\n', "\r\n"), None).unwrap(), "<s>\nHi <b>\nend</s>");
}

#[test]
fn keys_keep_their_order() {
    assert_eq!(
        render("{{ messages | tojson }}", None).unwrap(),
        r#"[{"role": "user", "content": "Hi <b>"}, {"role": "assistant", "content": "Yes'"}]"#
    );
    let template = ChatTemplate::new("{{ messages | tojson }}{{ tools | tojson }}", None, None).unwrap();
    let messages: Data = serde_json::from_str(r#"[{"role": "user", "name": "z", "content": "c"}]"#).unwrap();
    let extra: Data =
        serde_json::from_str(r#"{"tools": [{"type": "f", "name": "n", "about": "x"}]}"#).unwrap();
    assert_eq!(
        template.render_data(&messages, true, &extra).unwrap(),
        r#"[{"role": "user", "name": "z", "content": "c"}][{"type": "f", "name": "n", "about": "x"}]"#
    );
}

#[test]
fn extra_variables_reach_the_template_but_never_replace_ours() {
    let extra = json!({"tools": [{"name": "f"}], "enable_thinking": false, "messages": [], "bos_token": "X"});
    let source = "{{ tools[0].name }} {{ enable_thinking }} {{ messages | length }} {{ bos_token }}";
    assert_eq!(render(source, Some(&extra)).unwrap(), "f False 2 <s>");
    assert_eq!(render("{{ tools is none }} {{ documents is none }}", None).unwrap(), "True True");
    assert!(render(source, Some(&json!([1]))).is_err());
}

#[test]
fn a_conversation_has_messages() {
    let last = "{{ messages[-1].content }}{% for m in messages[::-1] %}{{ m.role }}{% endfor %}";
    let template = ChatTemplate::new(last, None, None).unwrap();
    assert!(template.render(&[], true, None).unwrap_err().to_string().contains("at least one"));
    assert!(template.render_data(&Data::from("x"), true, &Data::Null).is_err());
    assert_eq!(template.render(&[Message::new("user", "x")], true, None).unwrap(), "xuser");
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
    let long = "word\n".repeat(54_000);
    assert!(text(&long).contains("270000 bytes"));
    let year = render("{{ strftime_now('%Y') }}", None).unwrap();
    assert!(year.parse::<u32>().unwrap() >= 2024, "{year}");
}

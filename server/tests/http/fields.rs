//! Every field of a request is honoured, accepted without effect, or refused by name; errors are OpenAI's.

use crate::common::{Running, config, start};
use engraft_server::ServerConfig;
use serde_json::{Value, json};

fn completion(extra: (&str, Value)) -> Value {
    let mut body = json!({"prompt": "This package", "max_tokens": 2, "temperature": 0});
    body[extra.0] = extra.1;
    body
}

fn chat(extra: (&str, Value)) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "This package"}], "max_tokens": 2});
    body[extra.0] = extra.1;
    body
}

fn refused(server: &Running, path: &str, body: &Value, param: &str) -> String {
    let error = server.post(path, body).error(400);
    assert_eq!(
        (&error["param"], &error["type"]),
        (&json!(param), &json!("invalid_request_error")),
        "{error}"
    );
    let message = error["message"].as_str().unwrap().to_owned();
    assert!(message.contains(&format!("`{param}`")), "{message}");
    message
}

#[test]
fn neutral_values_pass_and_others_are_refused_by_name() {
    let server = start(config());
    for (name, neutral, other) in [
        ("frequency_penalty", json!(0), json!(0.5)),
        ("presence_penalty", json!(0.0), json!(-1)),
        ("logit_bias", json!({}), json!({"5": 1})),
        ("logprobs", json!(false), json!(true)),
        ("top_logprobs", json!(0), json!(3)),
        ("tools", json!([]), json!([{"type": "function", "function": {"name": "f"}}])),
        ("tool_choice", json!("none"), json!("required")),
        ("response_format", json!({"type": "text"}), json!({"type": "json_object"})),
        ("store", json!(false), json!(true)),
        ("modalities", json!(["text"]), json!(["text", "audio"])),
        ("service_tier", json!("auto"), json!("flex")),
        ("min_tokens", json!(0), json!(1)),
        ("use_beam_search", json!(false), json!(true)),
        ("reasoning_effort", json!("none"), json!("high")),
        ("spaces_between_special_tokens", json!(true), json!(false)),
    ] {
        let answer = server.post("/v1/chat/completions", &chat((name, neutral)));
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        refused(&server, "/v1/chat/completions", &chat((name, other)), name);
        let null = server.post("/v1/chat/completions", &chat((name, Value::Null)));
        assert_eq!(null.status, 200, "{name}: null is the same as absent");
    }
}

#[test]
fn what_cannot_be_honoured_is_refused_and_null_is_absent() {
    let server = start(config());
    for name in [
        "prompt_logprobs",
        "allowed_token_ids",
        "structured_outputs",
        "kv_transfer_params",
        "mirostat",
        "typical_p",
        "top_n_sigma",
        "xtc_probability",
        "dry_multiplier",
        "watermarking",
        "suffix",
        "logprobs",
    ] {
        refused(&server, "/v1/completions", &completion((name, json!(1))), name);
        let null = server.post("/v1/completions", &completion((name, Value::Null)));
        assert_eq!(null.status, 200, "{name}: {}", null.text());
    }
    for name in ["audio", "prediction", "web_search_options", "moderation", "chat_template"] {
        refused(&server, "/v1/chat/completions", &chat((name, json!({"a": 1}))), name);
    }
}

#[test]
fn what_has_no_effect_changes_nothing() {
    let server = start(config());
    let mut body = json!({"messages": [{"role": "user", "content": "This package"}], "max_tokens": 8, "seed": 3,
        "temperature": 1});
    let text = |body: &Value| {
        let answer = server.post("/v1/chat/completions", body).json();
        answer["choices"][0]["message"]["content"].as_str().map(str::to_owned).unwrap()
    };
    let plain = text(&body);
    for (name, value) in [
        ("user", json!("u")),
        ("metadata", json!({"a": "b"})),
        ("safety_identifier", json!("s")),
        ("prompt_cache_key", json!("k")),
        ("parallel_tool_calls", json!(true)),
        ("session_id", json!("s")),
    ] {
        body[name] = value;
    }
    assert_eq!(text(&body), plain);
}

#[test]
fn unknown_fields_are_named_or_dropped_where_that_is_allowed() {
    let server = start(config());
    let body = completion(("temperatur", json!(1)));
    let message = refused(&server, "/v1/completions", &body, "temperatur");
    assert!(message.contains("not a field"), "{message}");
    let nested = completion(("stream", json!(true)));
    let mut nested = nested;
    nested["stream_options"] = json!({"usage": true});
    refused(&server, "/v1/completions", &nested, "stream_options.usage");
    let mut message = chat(("n", json!(1)));
    message["messages"][0]["text"] = json!("x");
    refused(&server, "/v1/chat/completions", &message, "messages[0].text");
    let lenient = start(ServerConfig { allow_unknown_fields: true, ..config() });
    assert_eq!(lenient.post("/v1/completions", &body).status, 200);
}

#[test]
fn wrong_values_name_the_field_the_value_and_what_is_allowed() {
    let server = start(config());
    for (name, value, said) in [
        ("temperature", json!(-1), "-1"),
        ("temperature", json!("hot"), "\"hot\""),
        ("top_p", json!(1.5), "1.5"),
        ("min_p", json!(1), "1"),
        ("top_k", json!(-2), "-2"),
        ("repetition_penalty", json!(0), "0"),
        ("max_tokens", json!(-1), "-1"),
        ("max_tokens", json!(1.5), "1.5"),
        ("n", json!(0), "0"),
        ("n", json!(1000), "1000"),
        ("seed", json!(0.5), "0.5"),
        ("priority", json!(1_i64 << 31), "2147483648"),
        ("priority", json!("high"), "from -2147483648 to 2147483647"),
        ("stop", json!([""]), "empty"),
        ("stop", json!(vec!["x"; 17]), "17"),
        ("stop", json!(7), "7"),
        ("stop_token_ids", json!([-1]), "-1"),
        ("stop_token_ids", json!([2, 4_000_000_000_u32]), "has 4000000000; allowed: ids below"),
        ("stream", json!("yes"), "\"yes\""),
        ("stream_options", json!({}), "stream"),
        ("best_of", json!(2), "2"),
        ("request_id", json!("a b"), "ASCII"),
        ("request_id", json!(""), "1 to 128"),
        ("user", json!(5), "5; allowed: a string"),
        ("prompt", json!([]), "not understood"),
        ("prompt", json!([[]]), "not understood"),
        ("prompt", json!({"a": 1}), "not understood"),
        ("prompt", json!([1, "a"]), "not understood"),
    ] {
        let message = refused(&server, "/v1/completions", &completion((name, value)), name);
        assert!(message.contains(said), "{message}");
    }
    let beyond = server.post("/v1/completions", &completion(("prompt", json!([4_000_000])))).error(400);
    assert!(beyond["message"].as_str().unwrap().contains("4000000"), "{beyond}");
    let mut both = chat(("max_completion_tokens", json!(3)));
    refused(&server, "/v1/chat/completions", &both, "max_tokens");
    both["max_tokens"] = json!(3);
    assert_eq!(server.post("/v1/chat/completions", &both).status, 200);
}

#[test]
fn wrong_messages_name_their_place() {
    let server = start(config());
    for (messages, param) in [
        (json!([]), "messages"),
        (json!("hello"), "messages"),
        (json!([{"content": "x"}]), "messages[0].role"),
        (json!([{"role": "user"}]), "messages[0].content"),
        (json!([{"role": "tool", "content": "x"}]), "messages[0].role"),
        (
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
            "messages[0].content",
        ),
    ] {
        refused(&server, "/v1/chat/completions", &json!({"messages": messages}), param);
    }
    for part in [json!({"type": "text"}), json!({"type": "text", "text": 5})] {
        let body = json!({"messages": [{"role": "user", "content": [part]}]});
        let message = refused(&server, "/v1/chat/completions", &body, "messages[0].content");
        assert!(message.contains("has the part {\"") && message.contains("`text`"), "{message}");
    }
    for (name, value) in [("metadata", json!("m")), ("parallel_tool_calls", json!(0))] {
        refused(&server, "/v1/chat/completions", &chat((name, value)), name);
    }
}

#[test]
fn statuses_are_those_of_the_protocol() {
    let server = start(config());
    let json_type = "Content-Type: application/json\r\n";
    let missing = server.post("/v1/completions", &completion(("model", json!("gpt-9")))).error(404);
    assert_eq!((&missing["code"], &missing["param"]), (&json!("model_not_found"), &json!("model")));
    assert!(missing["message"].as_str().unwrap().contains("demo"), "{missing}");
    server.get("/v1/nothing").error(404);
    server.get("/v1/completions").error(405);
    server.post_text("/v1/completions", "Content-Type: text/plain\r\n", "{}").error(415);
    let error = server.post_text("/v1/completions", "", "{}").error(415);
    assert!(error["message"].as_str().unwrap().contains("missing"), "{error}");
    for body in ["", "{", "[1]", "{\"prompt\": \"\\ud800\"}", &"[".repeat(100_000)] {
        server.post_text("/v1/completions", json_type, body).error(400);
    }
    // A field that stands twice has no value that counts.
    let twice = r#"{"prompt": "a", "max_tokens": 1, "max_tokens": 2}"#;
    let error = server.post_text("/v1/completions", json_type, twice).error(400);
    assert!(error["message"].as_str().unwrap().contains("`max_tokens` stands twice"), "{error}");
    let plain = completion(("n", json!(1))).to_string();
    for (coding, status) in [("gzip", 415), ("identity, br", 415), ("identity", 200)] {
        let headers = format!("{json_type}Content-Encoding: {coding}\r\n");
        let answer = server.post_text("/v1/completions", &headers, &plain);
        assert_eq!(answer.status, status, "{coding}: {}", answer.text());
    }
    let small = start(ServerConfig { max_body_bytes: 1000, ..config() });
    let large = format!("{{\"prompt\": \"{}\"}}", "x".repeat(1000));
    small.post_text("/v1/completions", json_type, &large).error(413);
    let chunked = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{json_type}Transfer-Encoding: chunked\r\n\r\n\
         {:x}\r\n{large}\r\n0\r\n\r\n",
        large.len()
    );
    small.raw(chunked.as_bytes()).error(413);
}

#[test]
fn the_document_lists_the_fields_that_are_there() {
    let server = start(config());
    let document = server.get("/openapi.json").json();
    let schema = &document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]
        ["schema"];
    assert_eq!(schema["additionalProperties"], json!(false));
    for (name, said) in [
        ("documents", "template"),
        ("messages", "Honoured"),
        ("user", "without effect"),
        ("tools", "Neutral"),
        ("audio", "Refused"),
    ] {
        let text = schema["properties"][name]["description"].as_str().unwrap();
        assert!(text.contains(said), "{name}: {text}");
    }
}

/// Of a server that listens for its own machine and has no keys.
#[test]
fn pages_of_other_sites_ask_nothing() {
    let server = start(config());
    let body = json!({"prompt": "This", "max_tokens": 1}).to_string();
    let post = |headers: &str| {
        server.post_text("/v1/completions", &format!("Content-Type: application/json\r\n{headers}"), &body)
    };
    assert_eq!(post("").status, 200);
    assert_eq!(post("Sec-Fetch-Site: same-origin\r\nOrigin: http://localhost\r\n").status, 200);
    let refused = post("Sec-Fetch-Site: cross-site\r\nOrigin: https://evil.example\r\n");
    assert!(refused.error(403)["message"].as_str().unwrap().contains("--allowed-host evil.example"));
    let rebound = |line: &str, config: engraft_server::ServerConfig| {
        let bytes = format!("{line} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
        start(config).raw(bytes.as_bytes())
    };
    assert_eq!(rebound("GET /v1/models", config()).error(403)["type"], "permission_error");
    for path in ["/health", "/live", "/ready", "/metrics"] {
        assert_eq!(rebound(&format!("GET {path}"), config()).status, 200, "{path}");
    }
    let named = ServerConfig { allowed_hosts: vec!["evil.example".into()], ..config() };
    assert_eq!(rebound("GET /v1/models", named).status, 200);
    let everywhere = ServerConfig { host: "0.0.0.0".into(), ..config() };
    assert_eq!(rebound("GET /v1/models", everywhere).status, 200);
}

/// Also where the prompt is made by a template.
#[test]
fn a_long_conversation_is_truncated() {
    let server = start(config());
    let mut body = json!({"messages": [{"role": "user", "content": "This package provides ".repeat(9000)}],
        "max_tokens": 1});
    let error = server.post("/v1/chat/completions", &body).error(400);
    assert_eq!(error["code"], "context_length_exceeded");
    body["truncate_prompt_tokens"] = json!(100);
    let answer = server.post("/v1/chat/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["usage"]["prompt_tokens"], 100);
}

#[test]
fn errors_name_their_fields_and_every_response_its_request() {
    let server = start(config());
    let ids = vec![5; 1 << 16];
    let error = server.post("/v1/embeddings", &json!({"input": [ids]})).error(400);
    assert_eq!(
        (&error["param"], &error["code"]),
        (&json!("input"), &json!("context_length_exceeded")),
        "{error}"
    );
    let error = server.post("/v1/embeddings", &json!({"input": [[4_000_000]]})).error(400);
    assert_eq!(error["param"], "input", "{error}");
    let error = server.post("/v1/completions", &json!({"prompt": [4_000_000], "max_tokens": 1})).error(400);
    assert_eq!(error["param"], "prompt", "{error}");
    let long = "This package provides ".repeat(9000);
    for (path, body, param) in [
        ("/v1/embeddings", json!({"input": &long}), "input"),
        ("/score", json!({"text_1": "x", "text_2": &long}), "text_2"),
        ("/rerank", json!({"query": "x", "documents": [&long]}), "documents"),
    ] {
        let error = server.post(path, &body).error(400);
        assert_eq!(
            (&error["param"], &error["code"]),
            (&json!(param), &json!("context_length_exceeded")),
            "{error}"
        );
    }
    let mut names = std::collections::BTreeSet::new();
    for answer in [
        server.get("/health"),
        server.get("/nothing"),
        server.post("/v1/embeddings", &json!({"input": "x"})),
        server.post("/score", &json!({"text_1": "x", "text_2": "y"})),
        server.post("/tokenize", &json!({"prompt": "x"})),
        server.post("/v1/completions", &json!({"prompt": 7})),
        server.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 1, "request_id": "own"})),
    ] {
        names.insert(answer.header("x-request-id").unwrap_or_else(|| panic!("no name: {}", answer.head)));
    }
    assert!(names.len() == 7 && names.contains("own"), "{names:?}");
}

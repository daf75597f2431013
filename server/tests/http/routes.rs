//! The other routes: vectors, scores, what the server says of itself, the page, Unix sockets.

use crate::common::{Running, config, demo, metric, start, start_with};
use base64::Engine;
use engraft::{EmbedOptions, Event, Options, Request};
use engraft_server::{Server, ServerConfig};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const TEXTS: [&str; 3] = ["a library for images", "pictures in Python", "network daemon"];

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

#[test]
fn embeddings_are_the_librarys_as_numbers_and_as_base64() {
    let server = start(config());
    let want = demo().unwrap().embed(&TEXTS, &EmbedOptions::new()).unwrap();
    let answer = server.post("/v1/embeddings", &json!({"model": "demo", "input": TEXTS})).json();
    assert_eq!(answer["data"].as_array().unwrap().len(), 3);
    for (one, want) in answer["data"].as_array().unwrap().iter().zip(&want) {
        assert_eq!(&floats(&one["embedding"]), want);
    }
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() > 3);
    let body = json!({"input": TEXTS[0], "encoding_format": "base64", "dimensions": want[0].len()});
    let text = server.post("/v1/embeddings", &body).json()["data"][0]["embedding"].clone();
    let bytes = base64::engine::general_purpose::STANDARD.decode(text.as_str().unwrap()).unwrap();
    let back: Vec<f32> = bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(back, want[0]);
    for (name, value) in [("dimensions", json!(3)), ("encoding_format", json!("hex")), ("input", json!([]))] {
        let mut body = json!({"input": "x"});
        body[name] = value;
        assert_eq!(server.post("/v1/embeddings", &body).error(400)["param"], json!(name));
    }
}

#[test]
fn scores_are_cosines_of_an_embedding_model_and_order_documents() {
    let server = start(config());
    let vectors = demo().unwrap().embed(&TEXTS, &EmbedOptions::new()).unwrap();
    let cosine = |a: usize, b: usize| vectors[a].iter().zip(&vectors[b]).map(|(x, y)| x * y).sum::<f32>();
    let body = json!({"text_1": TEXTS[0], "text_2": &TEXTS[1..]});
    for path in ["/score", "/v1/score"] {
        let answer = server.post(path, &body).json();
        let scores: Vec<f32> = (0..2).map(|i| answer["data"][i]["score"].as_f64().unwrap() as f32).collect();
        assert!(
            (scores[0] - cosine(0, 1)).abs() < 1e-5 && (scores[1] - cosine(0, 2)).abs() < 1e-5,
            "{answer}"
        );
    }
    let pairs = json!({"text_1": &TEXTS[..2], "text_2": &TEXTS[1..]});
    let answer = server.post("/score", &pairs).json();
    assert!((answer["data"][1]["score"].as_f64().unwrap() as f32 - cosine(1, 2)).abs() < 1e-5, "{answer}");
    let body = json!({"query": TEXTS[1], "documents": [TEXTS[2], {"text": TEXTS[1]}, TEXTS[0]], "top_n": 2});
    let results = server.post("/v1/rerank", &body).json()["results"].clone();
    assert_eq!(results.as_array().unwrap().len(), 2);
    assert_eq!((&results[0]["index"], &results[0]["document"]["text"]), (&json!(1), &json!(TEXTS[1])));
    assert!(results[0]["relevance_score"].as_f64() > results[1]["relevance_score"].as_f64());
    server.post("/score", &json!({"text_1": ["a", "b"], "text_2": ["c"]})).error(400);
    server.post("/rerank", &json!({"query": "a", "documents": [3]})).error(400);
}

#[test]
fn an_encoder_embeds_and_refuses_to_generate() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/bert");
    let server = start_with(config(), move || Options::new().open(folder));
    assert_eq!(server.post("/v1/embeddings", &json!({"input": [[2, 17, 45, 3]]})).status, 200);
    let error = server.post("/v1/completions", &json!({"prompt": [2, 3], "max_tokens": 1})).error(400);
    assert!(error["message"].as_str().unwrap().contains("encoder"), "{error}");
}

/// T5 with a tokenizer that has a word for every token.
fn t5() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("t5");
    std::fs::create_dir_all(&dir).unwrap();
    for file in ["config.json", "model.safetensors"] {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/t5");
        std::fs::copy(golden.join(file), dir.join(file)).unwrap();
    }
    let words: serde_json::Map<_, _> = (0..307).map(|id| (format!("w{id}"), json!(id))).collect();
    let model = json!({"type": "WordLevel", "unk_token": "w2", "vocab": words});
    let tokenizer = json!({"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model});
    std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    dir
}

#[test]
fn a_decoder_begins_with_what_a_request_says() {
    let folder = t5();
    let load = move || Options::new().open(folder.as_path());
    let model = load().unwrap();
    let server = start_with(config(), load);
    let ids = |decoder_prompt: Vec<u32>| -> Value {
        let request =
            Request { prompt: vec![5, 9, 3], decoder_prompt, max_new_tokens: 6, ..Request::default() };
        let token = |event| match event {
            Ok(Event::Token(id)) => Some(id),
            _ => None,
        };
        model.handle().submit(request).unwrap().filter_map(token).collect::<Vec<u32>>().into()
    };
    let asked = |decoder: Value| {
        let mut body = json!({"prompt": [5, 9, 3], "max_tokens": 6, "temperature": 0, "ignore_eos": true});
        body["return_token_ids"] = json!(true);
        body["decoder_prompt"] = decoder;
        server.post("/v1/completions", &body)
    };
    let (plain, led) = (ids(Vec::new()), ids(vec![7, 11]));
    assert_ne!(plain, led);
    assert_eq!(asked(Value::Null).json()["choices"][0]["token_ids"], plain);
    assert_eq!(asked(json!([7, 11])).json()["choices"][0]["token_ids"], led);
    assert_eq!(asked(json!("w7 w11")).json()["choices"][0]["token_ids"], led);
    let several = asked(json!([[7], [11]])).error(400);
    assert_eq!(several["param"], "decoder_prompt", "{several}");
    let alone =
        start(config()).post("/v1/completions", &json!({"prompt": "x", "decoder_prompt": "y"})).error(400);
    assert_eq!(alone["param"], "decoder_prompt", "{alone}");
}

#[test]
fn the_server_says_what_it_is() {
    let server =
        start(ServerConfig { served_model_name: vec!["demo".into(), "org/demo".into()], ..config() });
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"][1]["id"], "org/demo");
    assert_eq!(server.get("/v1/models/org/demo").json()["object"], "model");
    server.get("/v1/models/other").error(404);
    assert_eq!(server.get("/version").json()["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(server.get("/load").json()["server_load"], 0);
    assert_eq!(server.get("/v1/loads").json()[0]["num_waiting_reqs"], 0);
    let named = json!({"model": "org/demo", "prompt": "x", "max_tokens": 1});
    assert_eq!(server.post("/v1/completions", &named).json()["model"], "org/demo");
}

#[test]
fn the_page_asks_for_nothing_from_elsewhere() {
    let server = start(config());
    let (page, again) = (server.get("/"), server.get("/"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    let nonce = |policy: &str| policy.split("'nonce-").nth(1).unwrap().split('\'').next().unwrap().to_owned();
    let text = page.text();
    assert!(text.contains(&format!("<script nonce=\"{}\">", nonce(&policy))));
    assert_ne!(nonce(&policy), nonce(&again.header("content-security-policy").unwrap()));
    for elsewhere in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!text.contains(elsewhere), "{elsewhere}");
    }
}

#[test]
fn tokenize_reads_conversations_as_chat_does() {
    let server = start(config());
    let messages = json!([{"role": "user", "content": "This package"}]);
    let tokens = server.post("/tokenize", &json!({"messages": messages, "return_token_strs": true})).json();
    assert_eq!(tokens["token_strs"].as_array().unwrap().len() as u64, tokens["count"].as_u64().unwrap());
    let body = json!({"messages": messages, "max_tokens": 1, "return_token_ids": true});
    let choice = server.post("/v1/chat/completions", &body).json()["choices"][0].clone();
    assert_eq!(choice["prompt_token_ids"], tokens["tokens"]);
    server.post("/tokenize", &json!({"prompt": "a", "messages": messages})).error(400);
    server.post("/detokenize", &json!({"tokens": ["a"]})).error(400);
    let beyond = server.post("/detokenize", &json!({"tokens": [65, 4_000_000_000_u32]})).error(400);
    let said = beyond["message"].as_str().unwrap();
    assert!(said.contains("`tokens` has 4000000000; allowed: ids below"), "{said}");
}

#[test]
fn a_template_that_raises_ends_its_request_alone() {
    // Those that ask for too much: `bounded.rs`.
    let source = "{{ raise_exception('no such conversation') }}";
    let server = start(ServerConfig { chat_template: Some(source.into()), ..config() });
    let body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1});
    let error = server.post("/v1/chat/completions", &body).error(400);
    assert!(error["message"].as_str().unwrap().contains("no such conversation"), "{error}");
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 1})).status, 200);
    let broken = ServerConfig { chat_template: Some("{% for".into()), ..config() };
    assert!(Server::bind(broken, demo).map(drop).unwrap_err().to_string().contains("template"));
    let none = start(ServerConfig { chat_template: None, ..config() });
    let body = json!({"messages": [{"role": "user", "content": "x"}]});
    let error = none.post("/v1/chat/completions", &body).error(400);
    assert!(error["message"].as_str().unwrap().contains("--chat-template"), "{error}");
}

#[test]
fn a_final_message_is_continued() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}\
        {% if add_generation_prompt %}<assistant>{% endif %}";
    let server = start(ServerConfig { chat_template: Some(template.into()), ..config() });
    let prompt = |body: Value| {
        let tokens = server.post("/tokenize", &body).json()["tokens"].clone();
        server.post("/detokenize", &json!({"tokens": tokens})).json()["prompt"].as_str().unwrap().to_owned()
    };
    let messages = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well, "}]);
    let plain = prompt(json!({"messages": messages}));
    assert!(plain.ends_with("Well, </s><assistant>"), "{plain}");
    let continued = prompt(json!({"messages": messages, "continue_final_message": true}));
    assert!(continued.ends_with("Well,"), "{continued}");
    let both = json!({"messages": messages, "continue_final_message": true, "add_generation_prompt": true});
    server.post("/tokenize", &both).error(400);
}

/// The demo model's control token, of id 0.
const END: &str = "<|endoftext|>";

/// A conversation of one message with these fields.
fn message(fields: Value) -> Value {
    let mut message = json!({"role": "user", "content": "x"});
    for (name, value) in fields.as_object().unwrap() {
        message[name] = value.clone();
    }
    json!({"messages": [message]})
}

/// A conversation with more fields.
fn conversation(name: &str, value: Value) -> Value {
    let mut body = message(json!({}));
    body[name] = value;
    body
}

/// Two servers whose template writes all of a request behind one control token of its own: one that takes
/// what it writes as it is, and one that shields it.
fn open_and_shielded() -> [Running; 2] {
    let template = "{{ bos_token }}{% for m in messages %}{{ m.role }}{{ m.name }}{{ m.reasoning_content }}\
        {{ m.content }}{% endfor %}{{ documents | tojson }}{{ style }}{{ (more or 0) | tojson }}";
    [false, true].map(|no_special_in_user_text| {
        let chat_template = Some(template.into());
        start(ServerConfig { chat_template, no_special_in_user_text, ..config() })
    })
}

#[test]
fn texts_of_requests_become_no_control_tokens() {
    let [open, shielded] = open_and_shielded();
    let ids = |server: &Running, body: &Value| server.post("/tokenize", body).json()["tokens"].clone();
    let control = |ids: &Value| ids.as_array().unwrap().iter().filter(|id| id.as_u64() == Some(0)).count();
    for body in [
        message(json!({"content": END})),
        message(json!({"content": [{"type": "text", "text": END}]})),
        message(json!({"role": "system", "content": END})),
        message(json!({"role": "developer", "content": END})),
        message(json!({"role": "assistant", "reasoning_content": END})),
        message(json!({"role": "assistant", "thinking": END})),
        message(json!({"name": END})),
        conversation("documents", json!([{"title": END}, [END]])),
        conversation("documents", json!([{END: 1}])),
        conversation("chat_template_kwargs", json!({"style": END})),
        conversation("chat_template_kwargs", json!({"more": {"tools": [{"description": END}]}})),
        json!({"prompt": format!("This {END}")}),
    ] {
        let (taken, kept) = (ids(&open, &body), ids(&shielded, &body));
        assert!(control(&taken) > 1, "{body} is no attack: {taken}");
        assert_eq!(control(&kept), 1, "{body}: {kept}");
    }
    for honest in [message(json!({"name": "a < b"})), json!({"prompt": "This package [x]"})] {
        assert_eq!(ids(&shielded, &honest), ids(&open, &honest));
    }
    for (path, mut body) in
        [("/v1/chat/completions", message(json!({"name": END}))), ("/v1/completions", json!({"prompt": END}))]
    {
        body["max_tokens"] = json!(1);
        body["return_token_ids"] = json!(true);
        let prompt =
            |server: &Running| server.post(path, &body).json()["choices"][0]["prompt_token_ids"].clone();
        let (taken, kept) = (prompt(&open), prompt(&shielded));
        assert!(control(&taken) > 1, "{path}: {taken}");
        assert_eq!(control(&kept), 1, "{path}: {kept}");
    }
}

#[test]
fn roles_that_the_api_does_not_know_are_refused_where_texts_are_shielded() {
    let [open, shielded] = open_and_shielded();
    for role in [END, "ipython", "User", ""] {
        let body = message(json!({"role": role}));
        for path in ["/tokenize", "/v1/chat/completions"] {
            let error = shielded.post(path, &body).error(400);
            assert_eq!(error["param"], "messages[0].role", "{error}");
            let said = error["message"].as_str().unwrap();
            assert!(said.contains(&json!(role).to_string()) && said.contains("assistant"), "{said}");
        }
        // Templates may know more.
        assert_eq!(open.post("/tokenize", &body).status, 200, "{role}");
    }
}

#[cfg(unix)]
#[test]
fn a_unix_socket_serves_and_is_gone_afterwards() {
    use std::io::{Read, Write};
    let path = std::env::temp_dir().join(format!("engraft-{}.sock", std::process::id()));
    // One that was left behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let server = Server::bind(ServerConfig { uds: Some(path.clone()), ..config() }, demo).unwrap();
    assert_eq!(server.address().to_string(), format!("unix:{}", path.display()));
    let stop = server.stop();
    let running = std::thread::spawn(move || server.run());
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    stop.end();
    running.join().unwrap().unwrap();
    assert!(!path.exists());
}

#[cfg(not(feature = "tls"))]
#[test]
fn certificates_are_refused_where_there_is_no_tls() {
    let config = ServerConfig { tls: Some(("a.pem".into(), "b.pem".into())), ..config() };
    let error = Server::bind(config, demo).map(drop).unwrap_err().to_string();
    assert!(error.contains("ssl-certfile") && error.contains("`tls`"), "{error}");
}

#[test]
fn every_token_that_a_step_computes_is_counted() {
    let server = start(config());
    let name = |end: &str| format!("vllm:iteration_tokens_total_{end}");
    let mut want = 0;
    for (at, prompt) in ["a", "This package provides", "x y z", "This package provides"].iter().enumerate() {
        let body = json!({"prompt": prompt, "max_tokens": 3 + at, "ignore_eos": true, "temperature": 0,
            "cache_salt": at.to_string()});
        let usage = server.post("/v1/completions", &body).json()["usage"].clone();
        // What is sampled last is read by no step.
        want += usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap() - 1;
    }
    let said = |name: &str| metric(&server, name);
    assert_eq!(said(&name("sum")), want as f64);
    let sequences = said("vllm:request_prompt_tokens_count");
    assert_eq!(
        said("vllm:prompt_tokens_total") + said("vllm:generation_tokens_total") - sequences,
        want as f64
    );
    // 3 + 4 + 5 + 6 steps, of which each sequence has one for its prompt.
    assert_eq!(said(&name("count")), 18.0);
    let text = server.get("/metrics").text();
    let bucket = |le: &str| {
        let end = format!("le=\"{le}\"}} ");
        let line = text.lines().find(|line| line.starts_with(&name("bucket")) && line.contains(&end));
        line.unwrap_or_else(|| panic!("{le}: {text}")).rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    assert!(bucket("1") >= 14, "{text}");
    assert_eq!((bucket("16384"), bucket("+Inf")), (18, 18));
    let bounds = text.lines().filter(|line| line.starts_with(&name("bucket"))).count();
    assert_eq!(bounds, 14, "those of vLLM, and the rest");
}

//! Completions and chat over a socket: what is streamed equals what is not, and both what the library gives.

use crate::common::{config, demo, start, text_of};
use engraft::{GenerateOptions, TextFinish};
use serde_json::{Value, json};

const PROMPT: &str = "This package provides";

fn options(seed: u64) -> GenerateOptions {
    GenerateOptions::new().max_new_tokens(24).temperature(0.9).top_k(50).top_p(0.95).seed(seed)
}

fn sampled(seed: u64) -> Value {
    json!({"model": "demo", "prompt": PROMPT, "max_tokens": 24, "temperature": 0.9, "top_k": 50, "top_p": 0.95, "seed": seed})
}

/// The header has what the field takes.
#[test]
fn a_seed_comes_back_as_it_was_given() {
    let server = start(config());
    let mut body = sampled(0);
    for seed in [-1_i64, -(1 << 53) + 1, (1 << 53) - 1] {
        body["seed"] = json!(seed);
        let answer = server.post("/v1/completions", &body);
        assert_eq!(answer.header("x-engraft-seed"), Some(seed.to_string()), "{}", answer.text());
    }
}

#[test]
fn a_completion_is_the_librarys_text_streamed_or_not() {
    let server = start(config());
    let model = demo().unwrap();
    for seed in [1, 2, 3] {
        let want = model.generate(PROMPT, &options(seed)).unwrap().text().unwrap();
        let whole = server.post("/v1/completions", &sampled(seed));
        assert_eq!(whole.status, 200, "{}", whole.text());
        let answer = whole.json();
        assert_eq!(answer["choices"][0]["text"], json!(want));
        assert_eq!(answer["object"], "text_completion");
        assert_eq!(whole.header("x-engraft-seed"), Some(seed.to_string()));
        let mut body = sampled(seed);
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let streamed = server.post("/v1/completions", &body);
        assert_eq!(streamed.header("content-type").unwrap(), "text/event-stream; charset=utf-8");
        let events = streamed.events();
        assert_eq!(text_of(&events, 0), want);
        let (last, before) = events.split_last().unwrap();
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"], answer["usage"]);
        assert!(before.iter().all(|e| e["usage"].is_null() && e.get("usage").is_some()));
        let reasons: Vec<&Value> = before.iter().map(|e| &e["choices"][0]["finish_reason"]).collect();
        assert_eq!(reasons.last().unwrap(), &&answer["choices"][0]["finish_reason"]);
        assert!(reasons[..reasons.len() - 1].iter().all(|r| r.is_null()));
    }
}

#[test]
fn a_chat_begins_with_its_role_and_equals_the_completion() {
    let server = start(config());
    let mut body = sampled(5);
    let text = server.post("/v1/completions", &body).json()["choices"][0]["text"].clone();
    body.as_object_mut().unwrap().remove("prompt");
    body["messages"] = json!([{"role": "user", "content": [{"type": "text", "text": PROMPT}]}]);
    let whole = server.post("/v1/chat/completions", &body).json();
    assert_eq!(whole["object"], "chat.completion");
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["role"], "assistant");
    // A conversation's answer stands on its own: its first word has no blank in front.
    let trimmed = |v: &Value| v.as_str().unwrap().trim_start().to_owned();
    assert_eq!(trimmed(&message["content"]), trimmed(&text));
    body["stream"] = json!(true);
    let events = server.post("/v1/chat/completions", &body).events();
    assert_eq!(events[0]["object"], "chat.completion.chunk");
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert!(events.iter().all(|e| e.get("usage").is_none()), "no usage was asked for");
    assert_eq!(json!(text_of(&events, 0)), message["content"]);
    let last = events.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"]);
}

#[test]
fn n_continuations_are_those_of_n_subsequences() {
    let server = start(config());
    let model = demo().unwrap();
    let mut body = sampled(7);
    body["n"] = json!(3);
    let answer = server.post("/v1/completions", &body).json();
    let texts: Vec<&str> =
        answer["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert_eq!(texts.len(), 3);
    assert_ne!(texts[0], texts[1]);
    let ids = model.tokenizer().encode(PROMPT, true).unwrap();
    for (subsequence, text) in texts.iter().enumerate() {
        let sampling = engraft::SamplingParams {
            temperature: 0.9,
            top_k: 50,
            top_p: 0.95,
            seed: Some(7),
            ..engraft::SamplingParams::default()
        };
        let request = engraft::Request {
            prompt: ids.clone(),
            max_new_tokens: 24,
            sampling,
            stop_ids: model.stop_ids().to_vec(),
            subsequence: subsequence as u32,
            ..engraft::Request::default()
        };
        let mut detokenizer = model.tokenizer().decode_stream();
        detokenizer.prime(&ids).unwrap();
        let mut want = String::new();
        for event in model.handle().submit(request).unwrap() {
            if let engraft::Event::Token(id) = event.unwrap()
                && !model.stop_ids().contains(&id)
            {
                want.push_str(&detokenizer.push(id).unwrap());
            }
        }
        want.push_str(&detokenizer.finish());
        assert_eq!(*text, want, "continuation {subsequence}");
    }
    // Two prompts with two continuations each, streamed.
    body["n"] = json!(2);
    body["prompt"] = json!([PROMPT, "A library for"]);
    body["stream"] = json!(true);
    let events = server.post("/v1/completions", &body).events();
    assert_eq!(text_of(&events, 0), texts[0]);
    assert_eq!(text_of(&events, 1), texts[1]);
    assert_ne!(text_of(&events, 2), texts[0]);
    assert!(!text_of(&events, 3).is_empty());
}

#[test]
fn stop_strings_and_stop_tokens_end_a_text() {
    let server = start(config());
    let model = demo().unwrap();
    let greedy = GenerateOptions::new().max_new_tokens(24).greedy();
    let mut stream = model.generate(PROMPT, &greedy).unwrap();
    let whole = stream.text().unwrap();
    let tokens = stream.stats().tokens.clone();
    // A stop string over several pieces of the text.
    let chars: Vec<char> = whole.chars().collect();
    let stop: String = chars[chars.len() / 2..chars.len() / 2 + 6].iter().collect();
    let before = whole.split(&stop).next().unwrap();
    let mut want = model.generate(PROMPT, &greedy.clone().stop(&*stop)).unwrap();
    assert_eq!(
        (want.text().unwrap().as_str(), &want.stats().finish),
        (before, &Some(TextFinish::StopString(stop.clone())))
    );
    for stream in [false, true] {
        for (keep, text) in [(false, before.to_owned()), (true, format!("{before}{stop}"))] {
            let body = json!({"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "stop": [stop, "never"],
                "include_stop_str_in_output": keep, "stream": stream});
            let answer = server.post("/v1/completions", &body);
            let (found, choice) = match stream {
                true => (text_of(&answer.events(), 0), answer.events().last().unwrap()["choices"][0].clone()),
                false => {
                    let choice = answer.json()["choices"][0].clone();
                    (choice["text"].as_str().unwrap().to_owned(), choice)
                }
            };
            assert_eq!(found, text);
            assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!(stop)));
        }
    }
    // The token counts as sampled, its text does not come.
    let body = json!({"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "stop_token_ids": [tokens[3]],
        "return_token_ids": true});
    let choice = server.post("/v1/completions", &body).json()["choices"][0].clone();
    let first = tokens.iter().position(|t| *t == tokens[3]).unwrap();
    assert_eq!(choice["stop_reason"], json!(tokens[3]));
    assert_eq!(choice["token_ids"], json!(tokens[..=first]));
}

#[test]
fn a_prompt_of_ids_is_that_of_its_text_and_echo_puts_it_in_front() {
    let server = start(config());
    let ids = server.post("/tokenize", &json!({"prompt": PROMPT})).json();
    assert_eq!(ids["count"], json!(ids["tokens"].as_array().unwrap().len()));
    let back = server.post("/detokenize", &json!({"tokens": ids["tokens"]})).json();
    assert!(back["prompt"].as_str().unwrap().contains(PROMPT), "{back}");
    let of = |prompt: &Value, echo: bool| {
        let body = json!({"prompt": prompt, "max_tokens": 8, "temperature": 0, "echo": echo});
        server.post("/v1/completions", &body).json()["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let plain = of(&json!(PROMPT), false);
    assert_eq!(of(&ids["tokens"], false), plain);
    assert_eq!(of(&json!([ids["tokens"]]), false), plain);
    assert_eq!(of(&json!(PROMPT), true), format!("{PROMPT}{plain}"));
}

#[test]
fn lengths_end_as_asked_and_what_is_too_long_says_so() {
    let server = start(config());
    let body = |prompt: &str, most: Value| json!({"prompt": prompt, "max_tokens": most, "temperature": 0});
    let answer = server.post("/v1/completions", &body(PROMPT, Value::Null)).json();
    assert_eq!(
        (&answer["usage"]["completion_tokens"], &answer["choices"][0]["finish_reason"]),
        (&json!(16), &json!("length"))
    );
    let none = server.post("/v1/completions", &body(PROMPT, json!(0))).json();
    assert_eq!(none["usage"]["completion_tokens"], 0);
    let most = server.get("/v1/models").json()["data"][0]["max_model_len"].as_u64().unwrap();
    for (prompt, tokens) in [(PROMPT.repeat(9), json!(most)), (PROMPT.repeat(9000), json!(1))] {
        let error = server.post("/v1/completions", &body(&prompt, tokens)).error(400);
        assert_eq!((&error["code"], &error["param"]), (&json!("context_length_exceeded"), &json!("prompt")));
        assert!(error["message"].as_str().unwrap().contains(&most.to_string()), "{error}");
    }
    let kept = json!({"prompt": PROMPT.repeat(9000), "truncate_prompt_tokens": 5, "max_tokens": 1});
    assert_eq!(server.post("/v1/completions", &kept).json()["usage"]["prompt_tokens"], 5);
}

#[test]
fn usage_has_the_tokens_that_came_from_the_prefix_cache() {
    let text = "This package provides ".repeat(12);
    let paths = [
        ("/v1/completions", json!({"prompt": text, "max_tokens": 2})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": text}], "max_tokens": 2})),
    ];
    for (path, mut body) in paths {
        let server = start(config());
        let hits = || {
            let metrics = server.get("/metrics").text();
            let line = metrics.lines().find(|l| l.starts_with("vllm:prefix_cache_hits_total")).unwrap();
            line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
        };
        let cached = |usage: &Value| usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        let first = server.post(path, &body).json();
        assert_eq!(cached(&first["usage"]), 0);
        let mut before = hits();
        body["n"] = json!(2);
        for stream in [false, true] {
            body["stream"] = json!(stream);
            let usage = match stream {
                false => server.post(path, &body).json()["usage"].clone(),
                true => {
                    body["stream_options"] = json!({"include_usage": true});
                    server.post(path, &body).events().last().unwrap()["usage"].clone()
                }
            };
            let (found, prompt) = (cached(&usage), usage["prompt_tokens"].as_u64().unwrap());
            assert!(found > 0 && found < prompt, "{usage}");
            assert_eq!(found, hits() - before, "{path} {stream}");
            before = hits();
        }
    }
}

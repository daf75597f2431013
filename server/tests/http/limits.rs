//! Limits: keys, queues, slow and vanished clients, the end of the server.

use crate::common::{config, demo, eventually, metric, read, request, start, start_with};
use engraft_server::{ApiKey, ServerConfig};
use serde_json::{Value, json};
use std::io::{BufRead, Read, Write};
use std::time::{Duration, Instant};

/// A request that runs for a while.
fn long(n: usize) -> Value {
    json!({"prompt": "This package", "n": n, "max_tokens": 400, "ignore_eos": true, "temperature": 1,
        "stream": true, "seed": 1})
}

#[test]
fn keys_open_all_but_health() {
    let keys = vec![ApiKey::new("search", "sk-1"), ApiKey::new("chat", "sk-22")];
    let server = start(ServerConfig { api_keys: keys, ..config() });
    for path in ["/health", "/live", "/ready"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    let body = json!({"prompt": "This package", "max_tokens": 1}).to_string();
    let with = |header: &str| {
        let headers = format!("Content-Type: application/json\r\n{header}");
        server.post_text("/v1/completions", &headers, &body)
    };
    for header in
        ["", "Authorization: Bearer sk-\r\n", "Authorization: Basic sk-1\r\n", "x-api-key: sk-2\r\n"]
    {
        let answer = with(header);
        assert_eq!(answer.error(401)["code"], "invalid_api_key");
        assert_eq!(answer.header("www-authenticate").unwrap(), "Bearer");
    }
    for header in ["Authorization: Bearer sk-1\r\n", "authorization: bearer sk-22\r\n", "x-api-key: sk-1\r\n"]
    {
        assert_eq!(with(header).status, 200, "{header}");
    }
    server.get("/metrics").error(401);
    server.get("/v1/models").error(401);
}

#[test]
fn a_full_queue_is_answered_with_429() {
    let server = start(ServerConfig { max_num_seqs: 8, max_queued: 2, ..config() });
    let mut first = server.open("/v1/completions", &long(10));
    let answer = server.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 1}));
    let error = answer.error(429);
    assert_eq!((&error["type"], &error["code"]), (&json!("rate_limit_error"), &json!("rate_limit_exceeded")));
    let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait));
    // Once the first one has ended there is room.
    let mut rest = String::new();
    first.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("[DONE]"));
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 1})).status, 200);
    // More than ever has room: to come again is of no use.
    let answer = server.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 1, "n": 11}));
    let error = answer.error(400);
    assert!(
        error["message"].as_str().unwrap().contains("11 sequences at once; this server allows 10"),
        "{error}"
    );
    assert!(answer.header("retry-after").is_none(), "{}", answer.head);
    let tokens = start(ServerConfig { max_queued_tokens: 40, ..config() });
    let _running = tokens.open("/v1/completions", &long(1));
    let many = json!({"prompt": "This package provides ".repeat(20), "max_tokens": 1});
    tokens.post("/v1/completions", &many).error(429);
}

/// Also of requests that ask for no number of tokens.
#[test]
fn tokens_of_an_answer_have_a_limit() {
    let server = start(ServerConfig { max_output_tokens: Some(5), ..config() });
    let chat = json!({"messages": [{"role": "user", "content": "This package"}], "ignore_eos": true});
    let text = json!({"prompt": "This package", "ignore_eos": true});
    for (path, body) in [("/v1/chat/completions", chat), ("/v1/completions", text)] {
        let with = |most: Value| {
            let mut body = body.clone();
            body["max_tokens"] = most;
            server.post(path, &body)
        };
        for (most, count) in [(Value::Null, 5), (json!(3), 3)] {
            let answer = with(most).json();
            assert_eq!(answer["usage"]["completion_tokens"], count, "{path}: {answer}");
        }
        assert_eq!(with(json!(6)).error(400)["param"], "max_tokens", "{path}");
    }
    // A larger one changes nothing.
    let server = start(ServerConfig { max_output_tokens: Some(100), ..config() });
    let text = json!({"prompt": "This package", "ignore_eos": true});
    assert_eq!(server.post("/v1/completions", &text).json()["usage"]["completion_tokens"], 16);
}

#[test]
fn a_key_has_its_share() {
    let keys = vec![ApiKey::new("a", "ka"), ApiKey::new("b", "kb")];
    let server = start(ServerConfig { api_keys: keys, max_per_key: Some(1), ..config() });
    let post = |key: &str, body: &Value| {
        let headers = format!("Content-Type: application/json\r\nAuthorization: Bearer {key}\r\n");
        request("/v1/completions", &headers, &body.to_string())
    };
    let mut running = server.connect();
    running.write_all(post("ka", &long(8)).as_bytes()).unwrap();
    running.read_exact(&mut [0; 64]).unwrap();
    let short = json!({"prompt": "x", "max_tokens": 1});
    server.raw(post("ka", &short).as_bytes()).error(429);
    assert_eq!(server.raw(post("kb", &short).as_bytes()).status, 200);
}

#[test]
fn who_goes_away_is_cancelled_streaming_waiting_or_not() {
    let server = start(config());
    let body = |stream: bool| {
        let mut body = long(32);
        body["stream"] = json!(stream);
        body
    };
    for stream in [true, false] {
        let before = metric(&server, "vllm:generation_tokens_total");
        let mut connection = server.connect();
        let bytes =
            request("/v1/completions", "Content-Type: application/json\r\n", &body(stream).to_string());
        connection.write_all(bytes.as_bytes()).unwrap();
        eventually("a running request", || metric(&server, "vllm:num_requests_running") > 0.0);
        drop(connection);
        eventually("the end", || {
            metric(&server, "vllm:num_requests_running") == 0.0
                && server.get("/load").json()["server_load"] == 0
        });
        let sampled = metric(&server, "vllm:generation_tokens_total") - before;
        assert!(sampled < 32.0 * 400.0, "{sampled} tokens: all of them were sampled");
        assert_eq!(metric(&server, "vllm:kv_cache_usage_perc"), 0.0);
    }
    let text = server.get("/metrics").text();
    let aborted = text.lines().find(|l| l.contains("finished_reason=\"abort\"")).unwrap();
    assert!(aborted.ends_with(" 64"), "{aborted}");
}

#[test]
fn texts_of_who_goes_away_are_not_read() {
    let server = start(config());
    let texts: Vec<String> = (0..1000).map(|i| format!("{i} {}", "a package of texts ".repeat(12))).collect();
    let steps = || metric(&server, "engraft:steps_total");
    for (path, body) in [
        ("/v1/embeddings", json!({"input": texts})),
        ("/score", json!({"text_1": "a package", "text_2": texts})),
    ] {
        let before = steps();
        assert_eq!(server.post(path, &body).status, 200);
        let whole = steps() - before;
        let mut connection = server.connect();
        let bytes = request(path, "Content-Type: application/json\r\n", &body.to_string());
        connection.write_all(bytes.as_bytes()).unwrap();
        eventually("a running call", || metric(&server, "vllm:num_requests_running") > 0.0);
        drop(connection);
        eventually("the end", || {
            metric(&server, "vllm:num_requests_running") + metric(&server, "vllm:num_requests_waiting") == 0.0
                && server.get("/load").json()["server_load"] == 0
        });
        let run = steps() - before - whole;
        assert!(run < whole * 0.75, "{path}: {run} steps, {whole} of all texts");
    }
    assert_eq!(server.post("/v1/embeddings", &json!({"input": "x"})).status, 200);
}

#[test]
fn heads_and_bodies_have_their_time() {
    let quick = Duration::from_millis(300);
    let server = start(ServerConfig { header_timeout: quick, body_timeout: quick, ..config() });
    // A head that comes a byte at a time.
    let mut slow = server.connect();
    let began = Instant::now();
    let mut ended = false;
    for byte in b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n".iter().cycle() {
        if slow.write_all(&[*byte]).is_err() {
            ended = true;
            break;
        }
        std::thread::sleep(Duration::from_millis(30));
        if began.elapsed() > Duration::from_secs(5) {
            break;
        }
    }
    assert!(ended, "the connection is still open after {:?}", began.elapsed());
    // A body that never comes whole.
    let mut stuck = server.connect();
    stuck
        .write_all(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
            Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
        )
        .unwrap();
    let answer = read(stuck);
    answer.error(408);
    assert_eq!(answer.header("x-should-retry").unwrap(), "false");
    let huge = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "y".repeat(1_000_000));
    let mut large = server.connect();
    let _ = large.write_all(huge.as_bytes());
    let mut line = String::new();
    let _ = std::io::BufReader::new(large).read_line(&mut line);
    assert!(line.is_empty() || line.starts_with("HTTP/1.1 431"), "{line}");
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_request_has_its_time() {
    let server = start(ServerConfig { request_timeout: Some(Duration::from_millis(50)), ..config() });
    let mut body = long(64);
    body["stream"] = json!(false);
    let error = server.post("/v1/completions", &body).error(408);
    assert!(error["message"].as_str().unwrap().contains("50ms"), "{error}");
    let mut stream = server.open("/v1/completions", &long(64));
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let last = text.rsplit("data: ").next().unwrap();
    assert!(last.contains("\"error\"") && !text.contains("[DONE]"), "{last}");
}

#[test]
fn a_drain_lets_requests_end_and_takes_none() {
    let server = start(config());
    // A connection that is kept open, and one that comes later.
    let mut stream = server.open("/v1/completions", &long(8));
    server.stop.drain();
    assert_eq!(server.get("/live").status, 200);
    assert_eq!(server.get("/ready").status, 503);
    let refused = server.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 1}));
    refused.error(503);
    assert!(refused.header("retry-after").is_some());
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("data: [DONE]"), "{text}");
    server.join();
}

#[test]
fn the_end_of_a_drain_ends_what_runs_with_an_error() {
    let server = start(ServerConfig { drain_timeout: Duration::from_millis(20), ..config() });
    let mut stream = server.open("/v1/completions", &long(64));
    server.stop.drain();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("\"error\"") && text.contains("the server ends"), "{text}");
    server.join();
}

#[test]
fn salts_and_keys_keep_prompts_apart() {
    let keys = vec![ApiKey::new("a", "ka"), ApiKey::new("b", "kb")];
    let hits = |share: bool, second: &str, salt: Value| {
        let server = start(ServerConfig { api_keys: keys.clone(), share_prefixes: share, ..config() });
        let post = |key: &str, salt: &Value| {
            let body =
                json!({"prompt": "This package provides ".repeat(12), "max_tokens": 1, "cache_salt": salt});
            let headers = format!("Content-Type: application/json\r\nAuthorization: Bearer {key}\r\n");
            assert_eq!(server.post_text("/v1/completions", &headers, &body.to_string()).status, 200);
        };
        post("ka", &Value::Null);
        post(second, &salt);
        let request =
            "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nx-api-key: ka\r\n\r\n";
        let text = server.raw(request.as_bytes()).text();
        let line = text.lines().find(|l| l.starts_with("vllm:prefix_cache_hits_total")).unwrap().to_owned();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert!(hits(false, "ka", Value::Null) > 0.0);
    assert_eq!(hits(false, "kb", Value::Null), 0.0);
    assert!(hits(true, "kb", Value::Null) > 0.0);
    assert_eq!(hits(true, "kb", json!("own")), 0.0);
}

#[test]
fn a_later_request_of_smaller_priority_is_served_first() {
    let one = || engraft::Options::new().max_seqs(1).open(engraft::ModelSource::Demo);
    let server = start_with(ServerConfig { max_num_seqs: 1, ..config() }, one);
    let waiting =
        |count: f64| eventually("a queue", || metric(&server, "vllm:num_requests_waiting") == count);
    let paths = [
        ("/v1/completions", json!({"prompt": "This package"})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "This package"}]})),
    ];
    for (path, body) in paths {
        let first = server.open("/v1/completions", &long(1));
        let order = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for (at, priority) in [5, 0, -3].into_iter().enumerate() {
                let (server, order, mut body) = (&server, &order, body.clone());
                (body["priority"], body["max_tokens"], body["ignore_eos"]) =
                    (json!(priority), json!(200), json!(true));
                scope.spawn(move || {
                    let answer = server.post(path, &body);
                    order.lock().unwrap().push(priority);
                    assert_eq!(answer.status, 200, "{}", answer.text());
                });
                waiting(at as f64 + 1.0);
            }
            drop(first);
        });
        assert_eq!(*order.lock().unwrap(), [-3, 0, 5], "{path}");
    }
}

/// One after the other: texts wait as requests do, and no longer than their priority says.
#[test]
fn texts_have_priorities_too() {
    let one = || engraft::Options::new().max_seqs(1).open(engraft::ModelSource::Demo);
    let server = start_with(ServerConfig { max_num_seqs: 1, ..config() }, one);
    let waiting =
        |count: f64| eventually("a queue", || metric(&server, "vllm:num_requests_waiting") == count);
    let text = json!({"prompt": "This package", "max_tokens": 200, "ignore_eos": true});
    let calls = [
        ("/v1/embeddings", json!({"input": "This package"})),
        ("/score", json!({"text_1": "This", "text_2": "package"})),
        ("/rerank", json!({"query": "This", "documents": ["package"]})),
    ];
    for ((path, body), priority) in calls.into_iter().flat_map(|call| [(call.clone(), -3), (call, 5)]) {
        let running =
            |count: f64| eventually("the place", || metric(&server, "vllm:num_requests_running") == count);
        running(0.0);
        let first = server.open("/v1/completions", &long(1));
        running(1.0);
        let order = std::sync::Mutex::new(Vec::new());
        let noted = |priority: i32| order.lock().unwrap().push(priority);
        let post = |path: &str, mut body: Value, priority: i32| {
            body["priority"] = json!(priority);
            let answer = server.post(path, &body);
            noted(priority);
            assert_eq!(answer.status, 200, "{}", answer.text());
        };
        // Whoever comes second ends when the first has long been noted: a text counts from its first token
        // where it is to come first, from its end where it is not.
        let continued = || match priority < 0 {
            true => post("/v1/completions", text.clone(), 0),
            false => {
                let mut streamed = text.clone();
                (streamed["priority"], streamed["stream"]) = (json!(0), json!(true));
                let mut reader = server.open("/v1/completions", &streamed);
                let mut line = String::new();
                while !line.starts_with("data:") {
                    line.clear();
                    assert!(reader.read_line(&mut line).unwrap() > 0, "no token came");
                }
                noted(0);
                std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| post(path, body, priority));
            eventually("a queue", || metric(&server, "vllm:num_requests_waiting") >= 1.0);
            let texts = metric(&server, "vllm:num_requests_waiting");
            scope.spawn(continued);
            waiting(texts + 1.0);
            drop(first);
        });
        let wanted = if priority < 0 { [priority, 0] } else { [0, priority] };
        assert_eq!(*order.lock().unwrap(), wanted, "{path}");
    }
}

#[test]
fn metrics_are_those_that_routers_read() {
    let server = start(config());
    let body = json!({"prompt": "This package", "max_tokens": 5, "temperature": 0, "ignore_eos": true});
    assert_eq!(server.post("/v1/completions", &body).status, 200);
    let prompt = demo().unwrap().tokenizer().encode("This package", true).unwrap().len();
    assert_eq!(metric(&server, "vllm:prompt_tokens_total"), prompt as f64);
    assert_eq!(metric(&server, "vllm:generation_tokens_total"), 5.0);
    assert_eq!(metric(&server, "vllm:time_to_first_token_seconds_count"), 1.0);
    assert_eq!(metric(&server, "vllm:inter_token_latency_seconds_count"), 4.0);
    assert_eq!(metric(&server, "vllm:num_requests_waiting"), 0.0);
    assert_eq!(metric(&server, "vllm:request_queue_time_seconds_count"), 1.0);
    let queued = metric(&server, "vllm:request_queue_time_seconds_sum");
    assert!(queued > 0.0 && queued <= metric(&server, "vllm:time_to_first_token_seconds_sum"), "{queued}");
    let text = server.get("/metrics").text();
    for name in
        ["vllm:kv_cache_usage_perc", "vllm:cache_config_info", "vllm:e2e_request_latency_seconds_bucket"]
    {
        let line = text.lines().find(|l| l.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
        assert!(line.contains("model_name=\"demo\"") && line.contains("engine=\"0\""), "{line}");
    }
    let ended = text.lines().find(|l| l.starts_with("vllm:request_success_total")).unwrap();
    assert!(ended.contains("finished_reason=\"length\"") && ended.ends_with(" 1"), "{ended}");
    // Sequences that join a prompt waited as long as it did.
    let several = json!({"prompt": "This package", "max_tokens": 5, "n": 3, "seed": 1, "temperature": 1});
    assert_eq!(server.post("/v1/completions", &several).status, 200);
    for name in ["request_queue_time_seconds", "time_to_first_token_seconds", "e2e_request_latency_seconds"] {
        assert_eq!(metric(&server, &format!("vllm:{name}_count")), 4.0, "{name}");
    }
}

/// Of vLLM's and our own; the labels of some are there once something was counted.
#[test]
fn metrics_have_their_names_and_types() {
    let server = start(config());
    let body = json!({"prompt": "This package", "max_tokens": 2, "ignore_eos": true});
    assert_eq!(server.post("/v1/completions", &body).status, 200);
    let text = server.get("/metrics").text();
    let found: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let want = [
        "engraft:http_responses_total counter",
        "engraft:steps_total counter",
        "vllm:cache_config_info gauge",
        "vllm:corrupted_requests_total counter",
        "vllm:e2e_request_latency_seconds histogram",
        "vllm:generation_tokens_total counter",
        "vllm:inter_token_latency_seconds histogram",
        "vllm:iteration_tokens_total histogram",
        "vllm:kv_cache_usage_perc gauge",
        "vllm:num_preemptions_total counter",
        "vllm:num_requests_running gauge",
        "vllm:num_requests_waiting gauge",
        "vllm:prefix_cache_hits_total counter",
        "vllm:prefix_cache_queries_total counter",
        "vllm:prompt_tokens_total counter",
        "vllm:request_decode_time_seconds histogram",
        "vllm:request_generation_tokens histogram",
        "vllm:request_inference_time_seconds histogram",
        "vllm:request_params_max_tokens histogram",
        "vllm:request_params_n histogram",
        "vllm:request_prefill_time_seconds histogram",
        "vllm:request_prompt_tokens histogram",
        "vllm:request_queue_time_seconds histogram",
        "vllm:request_success_total counter",
        "vllm:request_time_per_output_token_seconds histogram",
        "vllm:time_to_first_token_seconds histogram",
    ];
    assert_eq!(found, want);
}

/// As vLLM's: from admission on.
#[test]
fn times_of_prefill_and_inference_are_without_the_queue() {
    let one = || engraft::Options::new().max_seqs(1).open(engraft::ModelSource::Demo);
    let server = start_with(ServerConfig { max_num_seqs: 1, ..config() }, one);
    let first = server.open("/v1/completions", &long(1));
    let short = json!({"prompt": "This", "max_tokens": 2, "ignore_eos": true});
    std::thread::scope(|scope| {
        let second = scope.spawn(|| server.post("/v1/completions", &short).status);
        eventually("a queue", || metric(&server, "vllm:num_requests_waiting") == 1.0);
        std::thread::sleep(Duration::from_millis(100));
        drop(first);
        assert_eq!(second.join().unwrap(), 200);
    });
    eventually("both ends", || metric(&server, "vllm:request_inference_time_seconds_count") == 2.0);
    let sum = |name: &str| metric(&server, &format!("vllm:{name}_sum"));
    let (queue, first, prefill) = (
        sum("request_queue_time_seconds"),
        sum("time_to_first_token_seconds"),
        sum("request_prefill_time_seconds"),
    );
    assert!(queue > 0.1 && (first - queue - prefill).abs() < 0.005, "{queue} {first} {prefill}");
    let (whole, inference) = (sum("e2e_request_latency_seconds"), sum("request_inference_time_seconds"));
    assert!(prefill < inference && inference <= whole - queue + 0.001, "{inference} {whole} {queue}");
}

#[test]
fn who_serves_in_order_refuses_priorities() {
    let server = start(ServerConfig { priorities: false, ..config() });
    for (path, mut body) in [
        ("/v1/completions", json!({"prompt": "x", "max_tokens": 1})),
        ("/v1/embeddings", json!({"input": "x"})),
    ] {
        body["priority"] = json!(0);
        assert_eq!(server.post(path, &body).status, 200);
        body["priority"] = json!(-1);
        let error = server.post(path, &body).error(400);
        assert_eq!((&error["param"], &error["code"]), (&json!("priority"), &json!("unsupported_parameter")));
        assert!(error["message"].as_str().unwrap().contains("--scheduling-policy"), "{error}");
    }
}

/// Calls that wait for the engine leave threads to others.
#[test]
fn many_calls_for_vectors_leave_threads_to_others() {
    let server = start(ServerConfig { max_queued_tokens: usize::MAX, ..config() });
    let texts: Vec<String> = (0..500).map(|i| format!("{i} {}", "a package of texts ".repeat(12))).collect();
    let bytes =
        request("/v1/embeddings", "Content-Type: application/json\r\n", &json!({"input": texts}).to_string());
    let calls: Vec<_> = (0..100)
        .map(|_| {
            let mut connection = server.connect();
            connection.write_all(bytes.as_bytes()).unwrap();
            connection
        })
        .collect();
    let load = || server.get("/load").json()["server_load"].as_u64().unwrap();
    // Most of them, before the first ones have ended.
    eventually("many calls", || load() >= 70);
    assert_eq!(server.post("/tokenize", &json!({"prompt": "This package"})).status, 200);
    assert!(load() > 64, "it waited for calls: {} are left", load());
    drop(calls);
    eventually("an empty server", || load() == 0);
}

#[test]
fn bodies_have_room_together() {
    let most = 200 << 20;
    let server = start(ServerConfig { max_body_bytes: most, ..config() });
    let head = |length: usize| {
        format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    // One that promises much and sends little has the room until its time is over.
    let mut first = server.connect();
    first.write_all((head(most) + "{").as_bytes()).unwrap();
    eventually("a refusal", || server.raw((head(100 << 20) + "{").as_bytes()).status == 429);
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 1})).status, 200);
    drop(first);
    eventually("room", || {
        let mut second = server.connect();
        second.write_all((head(100 << 20) + "{").as_bytes()).unwrap();
        second.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        second.read(&mut [0; 16]).is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock)
    });
}

/// What a few bytes of a request could make of the server's memory.
#[cfg(target_os = "linux")]
#[test]
fn small_bodies_ask_for_no_large_memory() {
    let server = start(config());
    let before = peak_kib();
    let long = "x".repeat(3 << 20);
    let many = vec!["a"; 1 << 20];
    for (path, body, param) in [
        ("/v1/completions", json!({"prompt": "x", "n": 128, "stop": [&long]}), "stop"),
        (
            "/v1/completions",
            json!({"prompt": "x", "n": 128, "stop_token_ids": vec![5; 2 << 20]}),
            "stop_token_ids",
        ),
        ("/v1/completions", json!({"prompt": "x", "n": 128, "cache_salt": &long}), "cache_salt"),
        ("/rerank", json!({"query": &long, "documents": &many}), "documents"),
        ("/score", json!({"text_1": &long, "text_2": &many}), "text_2"),
        ("/score", json!({"text_1": &many[..1 << 19], "text_2": &many[..1 << 19]}), "text_2"),
        ("/v1/embeddings", json!({"input": &many}), "input"),
    ] {
        let error = server.post(path, &body).error(400);
        assert_eq!(error["param"], json!(param), "{path}: {error}");
    }
    // The query is there once, however many documents there are.
    let error = server.post("/rerank", &json!({"query": &long, "documents": vec!["a"; 2048]})).error(400);
    assert!(error["message"].as_str().unwrap().contains("token"), "{error}");
    let grown = peak_kib() - before;
    assert!(grown < 700 << 10, "{grown} KiB");
    for (stop, status) in [("x".repeat(2048), 200), ("x".repeat(2049), 400)] {
        let body = json!({"prompt": "This package", "max_tokens": 1, "stop": stop});
        assert_eq!(server.post("/v1/completions", &body).status, status);
    }
}

/// The most memory that this process had.
#[cfg(target_os = "linux")]
fn peak_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

//! `/v1/images/generations`: held against the library's own pictures of the same seeds.

use crate::common::{Running, config, demo, eventually, metric, request, start, start_with};
use crate::pictures::{alike, files, library, made, own, pipeline, serving};
use engraft::engraft_diffusion::ImageRequest;
use engraft::{Error, ImageHandle, ImageOptions, named_scheduler};
use engraft_server::{Model, Server, ServerConfig};
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PATH: &str = "/v1/images/generations";

/// Waits until so many requests are in a server.
fn holds(server: &Running, count: u64) {
    eventually("the load", || server.get("/load").json()["server_load"] == count);
}

/// Steps that take minutes.
fn long() -> Value {
    json!({"prompt": "a fox", "size": "48x48", "n": 10, "num_inference_steps": 500, "seed": 1})
}

/// A server on which those steps are allowed, and pictures made one by one.
fn patient() -> ServerConfig {
    ServerConfig { max_image_steps: 500, max_image_pixels: 48 * 48, ..own() }
}

/// Sends a request and does not wait for its answer.
fn sent(server: &Running, body: &Value) -> TcpStream {
    let mut stream = server.connect();
    let headers = "Content-Type: application/json\r\n";
    stream.write_all(request(PATH, headers, &body.to_string()).as_bytes()).unwrap();
    stream
}

#[test]
fn pictures_are_those_of_the_library() {
    let mut model = library("sd1");
    let (seed, prompt) = (11, "a small brown fox");
    let same = |guidance: f64| ImageRequest {
        prompts: vec![prompt.into(); 2],
        negative: Some(vec!["fog".into()]),
        width: 40,
        height: 32,
        steps: Some(3),
        guidance: Some(guidance),
        ..ImageRequest::new("")
    };
    let want = files(&mut model, &same(6.3), seed);
    assert_ne!(want[0], want[1]);
    // At once, and one after the other.
    let servers =
        [4 << 20, 40 * 32].map(|max_image_pixels| serving("sd1", ServerConfig { max_image_pixels, ..own() }));
    let body = |guidance: f64| {
        json!({"model": "demo", "prompt": prompt, "negative_prompt": "fog", "n": 2, "size": "40x32", "seed": seed,
            "num_inference_steps": 3, "guidance_scale": guidance, "response_format": "b64_json",
            "output_format": "png", "quality": "auto", "style": "vivid", "background": "auto",
            "moderation": "auto", "output_compression": 100, "user": "someone", "stream": false})
    };
    for server in &servers {
        let answer = server.post(PATH, &body(6.3));
        alike(&made(&answer), &want, "other pictures than the library's");
        let said = answer.json();
        assert_eq!((&said["size"], &said["output_format"]), (&json!("40x32"), &json!("png")));
        assert!(said["created"].as_u64().unwrap() > 1_600_000_000, "{}", said["created"]);
        assert!(said.get("shortened_texts").is_none());
        assert_eq!(answer.header("x-engraft-seed").unwrap(), "11");
        assert!(answer.header("x-request-id").is_some(), "{}", answer.head);
    }
    let server = &servers[0];
    // The scheduler of this folder adds a step.
    assert_eq!(metric(server, "engraft:images_total"), 2.0);
    assert_eq!(metric(server, "engraft:image_steps_total"), 4.0);
    assert_eq!(metric(server, "engraft:image_request_seconds_count"), 1.0);
    assert_eq!(metric(&servers[1], "engraft:image_steps_total"), 8.0);
    // The second one alone, under its own seed.
    let mut alone = body(6.3);
    (alone["n"], alone["seed"]) = (json!(1), json!(12));
    assert_eq!(made(&server.post(PATH, &alone)), want[1..]);
    // All other fields count.
    let other = ImageRequest {
        guidance_rescale: 0.5,
        clip_skip: 1,
        scheduler: Some(named_scheduler(model.scheduler(), "ddim").unwrap()),
        ..same(9.0)
    };
    let mut asked = body(9.0);
    (asked["guidance_rescale"], asked["clip_skip"], asked["scheduler"]) =
        (json!(0.5), json!(1), json!("ddim"));
    alike(&made(&server.post(PATH, &asked)), &files(&mut model, &other, seed), "other fields");
}

#[test]
fn what_a_request_does_not_say_is_the_pipelines() {
    let mut model = library("lcm");
    let server = serving("lcm", own());
    let answer = server.post(PATH, &json!({"prompt": "a fox", "num_inference_steps": 2}));
    let seed = answer.header("x-engraft-seed").unwrap().parse().unwrap();
    let side = model.side().unwrap();
    let plain = ImageRequest { width: side, height: side, steps: Some(2), ..ImageRequest::new("a fox") };
    assert_eq!(made(&answer), files(&mut model, &plain, seed));
    assert_eq!(answer.json()["size"], format!("{side}x{side}"));
    let auto = json!({"prompt": "a fox", "num_inference_steps": 2, "size": "auto", "seed": seed});
    assert_eq!(made(&server.post(PATH, &auto)), made(&answer));
    // Where so many pixels are not allowed, as many as are; the same of steps.
    let few = ServerConfig { max_image_pixels: 300, max_image_steps: 2, ..own() };
    let server = serving("sd1", few);
    assert_eq!(server.post(PATH, &json!({"prompt": ""})).json()["size"], "16x16");
    assert_eq!(metric(&server, "engraft:image_steps_total"), 3.0);
    // A text that is too long for the model is read as far as that goes, and this is said.
    let long = json!({"prompt": "a fox ".repeat(40), "n": 2, "num_inference_steps": 1});
    let said = server.post(PATH, &long).json()["shortened_texts"].clone();
    assert_eq!((said.as_array().unwrap().len(), &said[0]["tokens_read"]), (1, &json!(24)), "{said}");
    assert!(said[0]["text"].as_str().unwrap().starts_with("a fox a fox"), "{said}");
}

#[test]
fn flux_has_a_guidance_of_its_own() {
    let mut model = library("flux");
    let same = ImageRequest {
        negative: Some(vec!["fog".into()]),
        width: 24,
        height: 16,
        steps: Some(2),
        true_guidance: Some(3.0),
        text_tokens: Some(9),
        ..ImageRequest::new("a fox")
    };
    let server = serving("flux", own());
    let mut body = json!({"prompt": "a fox", "negative_prompt": "fog", "size": "24x16", "num_inference_steps": 2,
        "true_cfg_scale": 3, "max_sequence_length": 9, "seed": 5});
    assert_eq!(made(&server.post(PATH, &body)), files(&mut model, &same, 5));
    for (field, value, param, what) in [
        ("true_cfg_scale", Value::Null, "negative_prompt", "`true_cfg_scale` above 1"),
        ("true_cfg_scale", json!(1), "negative_prompt", "counts for nothing"),
        ("negative_prompt", Value::Null, "true_cfg_scale", "without `negative_prompt`"),
        ("size", json!("20x16"), "size", "multiple of 8"),
        ("size", json!("+24x16"), "size", "is +24x16; allowed"),
        ("size", json!("24x0016"), "size", "is 24x0016; allowed"),
    ] {
        let mut wrong = body.clone();
        wrong[field] = value;
        refused(&server, &wrong, param, what);
    }
    // Nothing is asked for by an empty text.
    (body["negative_prompt"], body["true_cfg_scale"]) = (json!(""), Value::Null);
    assert_eq!(server.post(PATH, &body).status, 200);
    // The distilled one reads no guidance at all.
    let body = json!({"prompt": "a fox", "size": "24x16", "num_inference_steps": 1, "guidance_scale": 3});
    refused(&serving("flux_schnell", own()), &body, "guidance_scale", "this model reads none");
}

/// A request that is refused because of a field.
fn refused(server: &Running, body: &Value, param: &str, what: &str) {
    let error = server.post(PATH, body).error(400);
    assert_eq!(error["param"], param, "{body}: {error}");
    assert!(error["message"].as_str().unwrap().contains(what), "{body}: {error}");
}

#[test]
fn what_cannot_be_honoured_is_refused_by_name() {
    let server = serving("sd1", own());
    let with = |field: &str, value: Value| {
        let mut body = json!({"prompt": "a fox", "size": "16x16", "num_inference_steps": 1});
        body[field] = value;
        body
    };
    for (field, value, what) in [
        ("prompt", Value::Null, "is missing"),
        ("prompt", json!(["a fox"]), "a string"),
        ("prompt", json!("a".repeat(32_001)), "32001 characters; allowed: 32000"),
        ("negative_prompt", json!("a".repeat(32_001)), "32001 characters"),
        ("n", json!(0), "from 1 to 10"),
        ("n", json!(11), "is 11"),
        ("size", json!("17x16"), "17x16; allowed: auto, WIDTHxHEIGHT: both a multiple of 4"),
        ("size", json!("large"), "large"),
        ("size", json!("0x16"), "0x16"),
        ("size", json!("16x16x16"), "16x16x16"),
        ("size", json!("4096x4096"), "4194304 pixels at most"),
        ("size", json!("99999999999999999999x4"), "multiple of 4"),
        ("num_inference_steps", json!(0), "from 1 to 200"),
        ("num_inference_steps", json!(201), "201"),
        ("guidance_scale", json!("much"), "from 0 to 1000"),
        ("guidance_rescale", json!(1.5), "from 0 to 1"),
        ("seed", json!(-1), "from 0"),
        ("seed", json!(0.5), "whole number"),
        ("scheduler", json!("nix"), "nix; allowed: ddim, pndm, euler"),
        ("clip_skip", json!(9), "is 9; allowed: less than the 2 layers"),
        ("max_sequence_length", json!(8), "this model reads none"),
        ("true_cfg_scale", json!(2), "reads `guidance_scale` alone"),
        ("response_format", json!("url"), "nothing is stored"),
        ("output_format", json!("webp"), "pictures are PNG files"),
        ("output_compression", json!(50), "PNG"),
        ("quality", json!("hd"), "num_inference_steps"),
        ("style", json!("natural"), "the prompt"),
        ("background", json!("transparent"), "opaque"),
        ("moderation", json!("low"), "nothing judges"),
        ("stream", json!(true), "does not have it"),
        ("partial_images", json!(1), "does not have it"),
        ("image", json!("x"), "begins with a picture"),
        ("strength", json!(0.5), "/v1/images/edits"),
        ("width", json!(16), "size says it"),
        ("steps", json!(2), "num_inference_steps says it"),
        ("lora", json!("x"), "LoRA"),
        ("tools", json!([]), "not a field"),
    ] {
        refused(&server, &with(field, value), field, what);
    }
    let mut body = with("negative_prompt", json!("fog"));
    body["guidance_scale"] = json!(1);
    refused(&server, &body, "negative_prompt", "`guidance_scale` has to be above 1");
    let error = server.post(PATH, &with("model", json!("other"))).error(404);
    assert_eq!(error["code"], "model_not_found");
    refused(&serving("lcm", own()), &with("negative_prompt", json!("fog")), "negative_prompt", "has none");
    // No step was done for any of them.
    assert_eq!(metric(&server, "engraft:image_steps_total"), 0.0);
    let open = serving("sd1", ServerConfig { allow_unknown_fields: true, ..own() });
    assert_eq!(open.post(PATH, &with("tools", json!([]))).status, 200);
}

#[test]
fn a_pipeline_answers_nothing_else() {
    let server = serving("sd1", own());
    let chat = json!({"messages": [{"role": "user", "content": "x"}]});
    for (path, body) in [
        ("/v1/chat/completions", chat),
        ("/v1/completions", json!({"prompt": "x"})),
        ("/v1/embeddings", json!({"input": "x"})),
        ("/tokenize", json!({"prompt": "x"})),
        ("/score", json!({"text_1": "a", "text_2": "b"})),
    ] {
        let error = server.post(path, &body).error(400);
        assert!(error["message"].as_str().unwrap().contains(PATH), "{path}: {error}");
    }
    for path in ["/health", "/ready", "/live", "/"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    let models = server.get("/v1/models").json();
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["max_model_len"]),
        (&json!("demo"), &Value::Null)
    );
    assert_eq!(server.get("/v1/models/demo").json()["object"], "model");
    assert_eq!(server.get("/v1/loads").json()[0]["num_reqs"], 0);
    let fields = server.get("/openapi.json").json()["paths"][PATH]["post"]["requestBody"]["content"]
        ["application/json"]["schema"]
        .clone();
    assert_eq!(fields["required"], json!(["prompt"]));
    assert!(fields["properties"]["negative_prompt"].is_object(), "{fields}");
    assert!(!server.get("/metrics").text().contains("cache_config_info"));
    // A model of texts makes no pictures.
    let error = start(config()).post(PATH, &json!({"prompt": "a fox"})).error(400);
    assert!(error["message"].as_str().unwrap().contains("model_index.json"), "{error}");
}

#[test]
fn what_needs_more_than_a_text_is_refused_before_it_is_served() {
    for (name, config, what) in [
        ("sd1_controlnet", own(), "this pipeline has a ControlNet"),
        ("sd1", config(), "chat-template"),
        ("none", own(), "model_index.json"),
    ] {
        let folder = pipeline(name);
        let load = move || ImageHandle::open(&folder, &ImageOptions::default());
        let error = Server::bind(config, load).map(drop).unwrap_err();
        assert!(error.to_string().contains(what), "{name}: {error}");
    }
    // A loader may choose.
    let both = |pictures: bool| -> Result<Model, Error> {
        match pictures {
            true => Ok(ImageHandle::open(pipeline("lcm"), &ImageOptions::default())?.into()),
            false => Ok(demo()?.into()),
        }
    };
    for pictures in [true, false] {
        let server = Server::bind(own(), move || both(pictures)).unwrap();
        assert_eq!((server.makes_pictures(), server.has_chat_template()), (pictures, false));
    }
}

#[test]
fn a_client_that_leaves_ends_the_work_between_two_steps() {
    let server = serving("sd1", patient());
    let running = sent(&server, &long());
    eventually("a step", || metric(&server, "engraft:image_steps_total") > 0.0);
    let waiting = sent(&server, &long());
    holds(&server, 2);
    let load = server.get("/v1/loads").json()[0].clone();
    assert_eq!((&load["num_reqs"], &load["num_waiting_reqs"]), (&json!(2), &json!(1)));
    assert_eq!(metric(&server, "vllm:num_requests_running"), 1.0);
    assert_eq!(metric(&server, "vllm:num_requests_waiting"), 1.0);
    // First who waits, then who runs.
    drop(waiting);
    holds(&server, 1);
    drop(running);
    holds(&server, 0);
    let steps = metric(&server, "engraft:image_steps_total");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(metric(&server, "engraft:image_steps_total"), steps);
    assert!(steps < 5_000.0, "{steps} steps: all of them were done");
    assert_eq!(metric(&server, "engraft:images_total"), 0.0);
    assert_eq!(metric(&server, "vllm:request_success_total{engine=\"0\",finished_reason=\"abort\""), 2.0);
    // The next one has its turn.
    let small = json!({"prompt": "a fox", "size": "16x16", "num_inference_steps": 1});
    assert_eq!(server.post(PATH, &small).status, 200);
}

#[test]
fn a_request_ends_with_its_time_in_the_queue_as_well() {
    let limit = Some(Duration::from_millis(300));
    let server = serving("sd1", ServerConfig { request_timeout: limit, ..patient() });
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let began = Instant::now();
                let error = server.post(PATH, &long()).error(408);
                assert!(error["message"].as_str().unwrap().contains("the server's limit"), "{error}");
                assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
            });
        }
    });
    holds(&server, 0);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_request_waits_for_a_pipeline_that_is_loaded_again() {
    let shared: Arc<Mutex<Option<ImageHandle>>> = Arc::default();
    let kept = shared.clone();
    let server = start_with(own(), move || {
        let handle = ImageHandle::open(pipeline("sd1"), &ImageOptions::default())?;
        *kept.lock().unwrap() = Some(handle.clone());
        Ok(handle)
    });
    let handle = shared.lock().unwrap().clone().unwrap();
    let plain = ImageRequest { width: 16, height: 16, steps: Some(1), ..ImageRequest::new("a fox") };
    handle.generate(plain, 1, |_| panic!("planted")).unwrap_err();
    assert!(!handle.is_alive());
    let small = json!({"prompt": "a fox", "size": "16x16", "num_inference_steps": 1});
    assert_eq!(made(&server.post(PATH, &small)).len(), 1);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_full_queue_is_answered_with_429() {
    let server = serving("sd1", ServerConfig { max_queued: 1, ..patient() });
    let running = sent(&server, &long());
    holds(&server, 1);
    let waiting = sent(&server, &long());
    holds(&server, 2);
    let small = json!({"prompt": "a fox", "size": "16x16", "num_inference_steps": 1});
    let answer = server.post(PATH, &small);
    let error = answer.error(429);
    assert_eq!(error["code"], "rate_limit_exceeded");
    assert!(error["message"].as_str().unwrap().contains("2 requests are in it, 2 are allowed"), "{error}");
    let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    drop((running, waiting));
    holds(&server, 0);
    assert_eq!(server.post(PATH, &small).status, 200);
}

#[test]
fn requests_at_once_have_their_own_pictures() {
    let mut model = library("sd1");
    let body = |seed: u64| {
        let size = if seed.is_multiple_of(2) { "16x16" } else { "24x16" };
        json!({"prompt": format!("fox {seed}"), "size": size, "num_inference_steps": 2, "seed": seed})
    };
    let want: Vec<_> = (0..6u64)
        .map(|seed| {
            let width = if seed.is_multiple_of(2) { 16 } else { 24 };
            let request = ImageRequest {
                width,
                height: 16,
                steps: Some(2),
                ..ImageRequest::new(format!("fox {seed}"))
            };
            files(&mut model, &request, seed)
        })
        .collect();
    let server = serving("sd1", own());
    std::thread::scope(|scope| {
        for (seed, want) in want.iter().enumerate() {
            let server = &server;
            scope.spawn(move || {
                let answer = server.post(PATH, &body(seed as u64));
                alike(&made(&answer), want, &format!("seed {seed}"));
            });
        }
    });
    assert_eq!(metric(&server, "engraft:images_total"), 6.0);
}

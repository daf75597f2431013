//! Requests of the server: JSON of every route, multipart bodies. A server of the demo model, on a backend
//! that computes nothing, answers them over a socket; what it holds meanwhile counts, whatever thread holds
//! it.
//!
//! An input is a line `METHOD PATH CONTENT-TYPE` and the body. Its head is made here: HTTP itself is read by
//! others' code.

use engraft::EngineConfig;
use engraft_core::{Error, Result};
use engraft_server::{Address, Server, ServerConfig};
use null_backend::Null;
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::OnceLock,
    time::Duration,
};

/// Time for an answer, beyond what a case may take.
const ANSWER: Duration = Duration::from_secs(10);
/// Tokens of a context.
const CONTEXT: usize = 128;

static SERVER: OnceLock<SocketAddr> = OnceLock::new();

pub const WORDS: &[&str] = &[
    "POST /v1/chat/completions application/json\n",
    "POST /v1/completions application/json\n",
    "POST /v1/embeddings application/json\n",
    "POST /v1/score application/json\n",
    "POST /v1/rerank application/json\n",
    "POST /tokenize application/json\n",
    "POST /detokenize application/json\n",
    "POST /v1/audio/transcriptions multipart/form-data; boundary=line\n",
    "POST /v1/images/edits multipart/form-data; boundary=line\n",
    "POST /v1/images/generations application/json\n",
    "\"model\":\"demo\"",
    "\"prompt\":",
    "\"messages\":[",
    "\"role\":\"user\",\"content\":",
    "{\"type\":\"text\",\"text\":\"a\"}",
    "\"stream\":true",
    "\"stream_options\":{\"include_usage\":true}",
    "\"stop\":[",
    "\"logit_bias\":{\"3\":-100}",
    "\"logprobs\":5",
    "\"n\":4",
    "\"max_tokens\":",
    "\"temperature\":1e-5",
    "\"top_p\":",
    "\"seed\":",
    "\"tools\":[",
    "\"response_format\":{\"type\":\"json_object\"}",
    "\"chat_template_kwargs\":{",
    "\"encoding_format\":\"base64\"",
    "\"dimensions\":",
    "\"priority\":",
    "--line\r\n",
    "--line--\r\n",
    "Content-Disposition: form-data; name=\"",
    "; filename=\"a\"\r\n",
    "\r\n\r\n",
    "\\ud800",
    "\\u0000",
    "1e999",
    "-1",
    "18446744073709551615",
    "null",
    "true",
    "[",
    "]",
    "{",
    "}",
    "\"",
    ",",
    ":",
];

/// The server's address; it runs until the program ends.
fn server() -> SocketAddr {
    *SERVER.get_or_init(|| started().unwrap_or_else(|e| panic!("the server: {e}")))
}

fn started() -> Result<SocketAddr> {
    let config = ServerConfig {
        port: 0,
        served_model_name: vec!["demo".into()],
        chat_template: Some("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}".into()),
        max_num_seqs: 4,
        max_output_tokens: Some(4),
        max_n: 4,
        max_body_bytes: 1 << 20,
        max_audio_seconds: 1,
        ..ServerConfig::default()
    };
    let server = Server::bind(config, || {
        let engine =
            EngineConfig { max_context: CONTEXT, max_seqs: 4, page_size: 8, ..EngineConfig::default() };
        Ok(serve_http::over(&Null::new(), engine)?.0)
    })?;
    let Address::Tcp(address, _) = server.address().clone() else {
        return Err(Error::internal("a server without a port"));
    };
    std::thread::spawn(move || server.run());
    Ok(address)
}

/// A multipart body of texts and a file.
fn multipart(path: &str, texts: &[(&str, &str)], file: &str) -> Vec<u8> {
    let mut all = format!("POST {path} multipart/form-data; boundary=line\n");
    for (name, text) in texts {
        all += &format!("--line\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n");
    }
    all += &format!(
        "--line\r\nContent-Disposition: form-data; name=\"{file}\"; filename=\"a\"\r\n\
         Content-Type: application/octet-stream\r\n\r\nRIFF\r\n--line--\r\n"
    );
    all.into_bytes()
}

/// A request of each route that a model of texts answers. Those that draw tokens name their seed: of some the
/// null backend gives none, which is an error.
pub fn seeds() -> Result<Vec<Vec<u8>>> {
    let json = [
        (
            "/v1/chat/completions",
            r#"{"model":"demo","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"This"}]}],"max_tokens":2,"temperature":0.7,"seed":1}"#,
        ),
        (
            "/v1/chat/completions",
            r#"{"messages":[{"role":"user","content":"a"}],"stream":true,"stream_options":{"include_usage":true},"max_completion_tokens":2,"stop":["b"],"seed":1}"#,
        ),
        (
            "/v1/completions",
            r#"{"prompt":["This package",[3,4,5]],"max_tokens":2,"n":2,"echo":true,"seed":1}"#,
        ),
        (
            "/v1/completions",
            r#"{"prompt":[3,4],"max_tokens":1,"stream":true,"return_token_ids":true,"seed":1}"#,
        ),
        ("/tokenize", r#"{"prompt":"This package","return_token_strs":true}"#),
        ("/tokenize", r#"{"messages":[{"role":"user","content":"a"}],"add_generation_prompt":true}"#),
        ("/detokenize", r#"{"tokens":[3,4,5]}"#),
    ];
    let json = json.map(|(path, body)| format!("POST {path} application/json\n{body}").into_bytes());
    Ok([&json[..], &[b"GET /v1/models \n".to_vec()]].concat())
}

/// What is refused, or asks for more than there is: bodies that nest, stand in each other, have thousands of
/// parts; routes of other models.
pub fn hostile() -> Vec<Vec<u8>> {
    let post = |path: &str, body: &str| format!("POST {path} application/json\n{body}").into_bytes();
    let part = "--line\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n";
    let parts = |body: &str| {
        format!("POST /v1/images/edits multipart/form-data; boundary=line\n{body}--line--\r\n").into_bytes()
    };
    let transcriptions = [("model", "demo"), ("temperature", "0"), ("timestamp_granularities[]", "segment")];
    let many = |item: &str, count: usize| vec![item; count].join(",");
    vec![
        post("/v1/chat/completions", &"[".repeat(100_000)),
        post(
            "/v1/chat/completions",
            &format!(r#"{{"messages":[{}]}}"#, many(r#"{"role":"user","content":""}"#, 8_000)),
        ),
        post(
            "/v1/chat/completions",
            &format!(
                r#"{{"messages":[{{"role":"user","content":[{}]}}]}}"#,
                many(r#"{"type":"text","text":"a"}"#, 9_000)
            ),
        ),
        post(
            "/v1/chat/completions",
            r#"{"messages":[{"role":"\u0000","content":null}],"tools":[{}],"n":2147483648}"#,
        ),
        post("/v1/completions", &format!(r#"{{"prompt":[{}]}}"#, many("[3]", 50_000))),
        post("/v1/completions", &format!(r#"{{"prompt":"{}"}}"#, "a ".repeat(120_000))),
        post("/v1/completions", &format!(r#"{{"prompt":"a","stop":[{}]}}"#, many("\"b\"", 50_000))),
        post(
            "/v1/completions",
            r#"{"prompt":[4294967296,-1],"max_tokens":18446744073709551615,"temperature":1e999}"#,
        ),
        post("/v1/completions", &format!(r#"{{{}"prompt":"a"}}"#, r#""prompt":"a","#.repeat(15_000))),
        post(
            "/v1/embeddings",
            &format!(r#"{{"input":[{}],"encoding_format":"base64"}}"#, many("\"a\"", 50_000)),
        ),
        post("/v1/score", &format!(r#"{{"text_1":"a","text_2":[{}]}}"#, many("\"a\"", 50_000))),
        post("/v1/rerank", r#"{"query":"a","documents":["a",{"text":"b"}],"top_n":-1}"#),
        post("/detokenize", &format!(r#"{{"tokens":[{}]}}"#, many("4294967295", 20_000))),
        post("/v1/images/generations", r#"{"prompt":"a","n":10,"size":"99999x99999"}"#),
        multipart("/v1/audio/transcriptions", &transcriptions, "file"),
        multipart("/v1/images/edits", &[("prompt", "a"), ("n", "1")], "image"),
        parts(&part.repeat(4_000)),
        parts(&format!("--line\r\n{}\r\n1\r\n", "a: b\r\n".repeat(30_000))),
        parts(&format!(
            "--line\r\nContent-Disposition: form-data; name=\"{}\"\r\n\r\n1\r\n",
            "a".repeat(200_000)
        )),
        b"POST /v1/images/edits multipart/form-data; boundary=\n--\r\n".to_vec(),
        b"POST /v1/images/edits multipart/form-data\n--line--".to_vec(),
        b"POST /v1/completions text/plain\n{}".to_vec(),
        b"DELETE /v1/completions application/json\n{}".to_vec(),
        b"GET /v1/models/%ff%00/../.. \n".to_vec(),
    ]
}

pub fn read(input: Vec<u8>) -> bool {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (line, body) = (&input[..end], input.get(end + 1..).unwrap_or_default());
    let mut words =
        line.splitn(3, |byte| *byte == b' ').map(|word| String::from_utf8_lossy(word).into_owned());
    let [method, path, kind] = std::array::from_fn(|_| words.next().unwrap_or_default());
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {kind}\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    let status = ask(&[head.as_bytes(), body].concat());
    // One that is no request to HTTP, whose connection may go away before the answer is read.
    let status = status.unwrap_or(400);
    assert!(status < 500, "status {status}");
    let health = ask(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!(health, Some(200), "the server is not well");
    status == 200
}

/// The status of an answer, read to its end.
fn ask(request: &[u8]) -> Option<u16> {
    let mut stream = TcpStream::connect(server()).unwrap_or_else(|e| panic!("the server's socket: {e}"));
    // Without it a case would last until the watchdog ends the program.
    let timeout = stream.set_read_timeout(Some(ANSWER));
    assert!(timeout.is_ok(), "{timeout:?}");
    // What is refused by its head is not read to the end.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let waited = read
        .is_err_and(|e| matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut));
    assert!(!waited, "no end of an answer: {}", String::from_utf8_lossy(&answer[..answer.len().min(400)]));
    let line = answer.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    std::str::from_utf8(line).ok()?.parse().ok()
}

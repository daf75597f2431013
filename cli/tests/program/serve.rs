//! `engraft serve`: from the command line to an answer over HTTP, and to its end by a signal.

#[cfg(feature = "image")]
use base64::{Engine, engine::general_purpose::STANDARD};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// A running server, ended when the test is.
struct Serving {
    child: Child,
    address: String,
    said: String,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engraft"));
    command.arg("serve").stderr(Stdio::piped());
    command
}

fn serve(args: &[&str]) -> Serving {
    let mut child = program().args(args).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let (mut said, mut line) = (String::new(), String::new());
    while lines.read_line(&mut line).unwrap() > 0 {
        said += &line;
        if let Some((_, rest)) = line.split_once("http://") {
            let address = rest.split('/').next().unwrap().to_owned();
            // Later lines are read, so that the program can write them.
            std::thread::spawn(move || lines.read_to_string(&mut String::new()));
            return Serving { child, address, said };
        }
        line.clear();
    }
    let status = child.wait().unwrap();
    panic!("no address, {status}: {said}");
}

fn ask(address: &str, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        stream,
        "{head} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    )
    .unwrap();
    write!(stream, "Content-Length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_demo_model_chats_over_http_and_a_signal_ends_it() {
    let mut serving = serve(&["--port", "0"]);
    assert!(serving.said.contains("demo"), "{}", serving.said);
    let body = "{\"messages\": [{\"role\": \"user\", \"content\": \"This package\"}], \"max_tokens\": 4, \"stream\": true}";
    let answer = ask(&serving.address, "POST /v1/chat/completions", body);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("data: [DONE]"), "{answer}");
    let pid = serving.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(serving.child.wait().unwrap().success());
}

#[test]
fn a_second_signal_ends_what_still_runs_and_the_status_says_so() {
    let mut serving = serve(&["--port", "0"]);
    let prompts = vec!["\"This package\""; 16].join(",");
    let length = "\"n\": 8, \"max_tokens\": 480, \"ignore_eos\": true, \"stream\": true";
    let body = format!("{{\"prompt\": [{prompts}], {length}}}");
    let mut stream = TcpStream::connect(&serving.address).unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    let pid = serving.child.id().to_string();
    let signal = || assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    signal();
    // Two signals that wait for the process at once are one.
    while ask(&serving.address, "GET /ready", "").starts_with("HTTP/1.1 200") {}
    signal();
    assert_eq!(serving.child.wait().unwrap().code(), Some(130));
}

#[test]
fn a_file_holds_flags_and_the_command_line_counts_before_it() {
    let folder = std::env::temp_dir().join(format!("engraft-serve-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (file, keys) = (folder.join("engraft.toml"), folder.join("keys"));
    std::fs::write(&keys, "search:sk-1\n").unwrap();
    let text = format!(
        "port = 1\nserved-model-name = [\"one\", \"two\"]\nmax_num_seqs = 2\nno-prefix-cache = true\napi-key-file = {:?}\n",
        keys.display().to_string()
    );
    std::fs::write(&file, text).unwrap();
    let file = file.display().to_string();
    let serving = serve(&["--settings", &file, "--port=0"]);
    assert!(serving.said.contains("one, two"), "{}", serving.said);
    assert!(ask(&serving.address, "GET /v1/models", "").starts_with("HTTP/1.1 401"));
    assert!(ask(&serving.address, "GET /ready", "").starts_with("HTTP/1.1 200"));
    drop(serving);
    for (text, said) in [
        ("prot = 1\n", "engraft.toml: unexpected argument '--prot'"),
        ("port = [[1]]\n", "engraft.toml: `port`"),
        ("port =\n", "engraft.toml: "),
        ("settings = \"none.toml\"\n", "engraft.toml: `settings`"),
        ("max-seqs = 2\nmax-num-seqs = 3\n", "engraft.toml: the argument '--max-num-seqs"),
    ] {
        std::fs::write(folder.join("engraft.toml"), text).unwrap();
        let output = program().args(["--settings", &file]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(said), "{error}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[cfg(feature = "image")]
#[test]
fn a_pipeline_makes_pictures_over_http() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden-image/pipelines/sd1");
    let serving = serve(&[folder, "--port", "0", "--max-image-pixels", "256", "--max-image-steps", "2"]);
    assert!(serving.said.contains("/v1/images/generations"), "{}", serving.said);
    let answer =
        ask(&serving.address, "POST /v1/images/generations", "{\"prompt\": \"a fox\", \"model\": \"sd1\"}");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"16x16\""), "{answer}");
    let answer = ask(
        &serving.address,
        "POST /v1/images/generations",
        "{\"prompt\": \"a fox\", \"num_inference_steps\": 3}",
    );
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("from 1 to 2"), "{answer}");
    for (args, said) in [
        (&["--max-context", "64"][..], "--max-context"),
        (&["--quantize", "int8"], "--quantize"),
        (&["--no-prefix-cache"], "--no-prefix-cache"),
    ] {
        let output = program().arg(folder).args(args).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(said) && error.contains("makes pictures"), "{error}");
    }
}

#[cfg(feature = "image")]
#[test]
fn pictures_over_http_have_the_lora_files_of_the_flag() {
    use engraft::engraft_diffusion::engraft_image::encode_png;
    use engraft::engraft_diffusion::{ImageRequest, Lora};
    use engraft::{ImageGenerator, ImageOptions};

    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden-image/pipelines/sdxl");
    let file = format!("{folder}/lora_kohya_sgm.safetensors");
    let made = |scale: Option<f64>| {
        let loras = scale.map(|scale| Lora { file: file.clone().into(), scale }).into_iter().collect();
        let mut model = ImageGenerator::open(folder, &ImageOptions { loras, ..Default::default() }).unwrap();
        let request = ImageRequest { width: 16, height: 16, steps: Some(1), ..ImageRequest::new("a fox") };
        let images = model.generate(&request, 7, |_| {}).unwrap();
        encode_png(&images.rgb[0], 16, 16).unwrap()
    };
    let body = "{\"prompt\": \"a fox\", \"size\": \"16x16\", \"num_inference_steps\": 1, \"seed\": 7}";
    let over_http = |flags: &[&str]| {
        let serving = serve(&[&[folder, "--port", "0"], flags].concat());
        let answer = ask(&serving.address, "POST /v1/images/generations", body);
        let (_, rest) = answer.split_once("\"b64_json\":\"").unwrap_or_else(|| panic!("{answer}"));
        STANDARD.decode(rest.split('"').next().unwrap()).unwrap()
    };
    let half = format!("{file}@0.5");
    assert_ne!(made(Some(0.5)), made(None), "the file changes the picture");
    assert_eq!(over_http(&["--lora", &half]), made(Some(0.5)));
    for (args, said) in [
        (vec!["--lora", &file], "folder with model_index.json"),
        (vec![folder, "--lora", "/no/such.safetensors"], "/no/such.safetensors"),
    ] {
        let output = program().args(&args).args(["--port", "0"]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(said), "{args:?}: {error}");
    }
}

#[cfg(feature = "image")]
#[test]
fn limits_of_other_models_are_warned_of() {
    let limits = ["--max-audio-seconds", "9", "--max-image-steps", "3"];
    let warned = |model: &[&str]| {
        let said = serve(&[model, &["--port", "0"], &limits].concat()).said.clone();
        ["--max-audio-seconds", "--max-image-steps"]
            .map(|flag| said.contains(&format!("warning: {flag} counts for nothing")))
    };
    let pipeline = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden-image/pipelines/sd1");
    assert_eq!(warned(&[]), [true; 2]);
    assert_eq!(warned(&[pipeline]), [true, false]);
    assert!(!serve(&["--port", "0"]).said.contains("counts for nothing"));
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_served() {
    for (args, said) in [
        (&["--ssl-certfile", "a.pem"][..], "--ssl-keyfile"),
        (&["--api-key-file", "/nonexistent/keys"], "/nonexistent/keys"),
        (&["--prefix-cache-scope", "none"], "key, all"),
        (&["path/to/nothing", "--port", "0"], "path/to/nothing"),
        (&["--host", "256.0.0.1", "--port", "0"], "256.0.0.1"),
        (&["--uds", "s", "--host", "0.0.0.0", "--port", "9"], "cannot be used with"),
        (&["--no-prefix-cache", "--prefix-cache-scope", "all"], "--prefix-cache-scope"),
        (&["--max-seqs", "2", "--max-num-seqs", "3"], "--max-num-seqs <N>' cannot be used multiple times"),
        (&["--served-model-name", ""], "--served-model-name"),
        (&["--max-body-bytes", "0"], "--max-body-bytes"),
    ] {
        let output = program().args(args).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(said), "{args:?}: {error}");
    }
}

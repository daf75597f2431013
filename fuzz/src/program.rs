//! What the program reads besides files of models: settings of the server, lines of JSON.

use crate::folder::ROOM;
use engraft_core::Result;

pub const SETTINGS: &[&str] = &[
    "host = '::1'\n",
    "port = 0\n",
    "uds = 's.sock'\n",
    "model = 'm'\n",
    "api_key = ['a:b']\n",
    "api-key-file = '/dev/null'\n",
    "served_model_name = ['a', 'b']\n",
    "max_num_seqs = ",
    "max-body-bytes = 8388608\n",
    "request_timeout = 0.5\n",
    "no_special_in_user_text = true\n",
    "chat_template = '{{ x }}'\n",
    "quantize = 'int4a:32'\n",
    "lora = ['a@0.5']\n",
    "settings = 'x'\n",
    "help = true\n",
    "[serve]\n",
    "[[a]]\n",
    "a.a.a = ",
    "\"\"\"",
    "'''",
    "\\u0000",
    "\\uD800",
    "1979-05-27T07:32:00Z",
    "inf",
    "-nan",
    "0x7fffffffffffffff",
    "1e999",
    "-1",
    "true",
    "false",
    "[",
    "]",
    "{",
    "}",
    "=",
    "\n",
];
pub const LINES: &[&str] = &[
    "{\"text\": \"a\"}\n",
    "{\"text\": \"a\", \"target\": \"b\", \"id\": 1}\n",
    "{\"question\": \"a\", \"context\": \"b\"}\n",
    "\"text\":",
    "\"target\":",
    "\"id\":",
    "\"question\":",
    "\"context\":",
    "\u{feff}",
    "\r\n",
    "\n",
    "\\ud800",
    "\\u0000",
    "1e999",
    "null",
    "[[[[[[[[",
    "{\"a\":{\"a\":",
    "\"",
    ",",
    ":",
    "}",
];

pub fn settings_seeds() -> Result<Vec<Vec<u8>>> {
    let usual = "model = 'path/to/model'\nport = 8080\nhost = '0.0.0.0'\napi_key = ['one:sk-1', 'two:sk-2']\n\
                 max_num_seqs = 16\nno-special-in-user-text = true\nallow_unknown_fields = false\n";
    let limits =
        "served_model_name = ['a', 'b']\nmax_queued = 4\nmax_body_bytes = 8388608\nquantize = \"int4a:32\"\n";
    Ok([usual, limits, ""].iter().map(|text| text.as_bytes().to_vec()).collect())
}

/// Keys that have no end, lists in each other, values that stand twice, what no flag can be.
pub fn hostile_settings() -> Vec<Vec<u8>> {
    [
        format!("{} = 1", vec!["a"; 50_000].join(".")),
        format!("model = {}{}", "[".repeat(9_000), "]".repeat(9_000)),
        format!("model = '{}'", "x".repeat(200_000)),
        format!("{} = 1", "k".repeat(200_000)),
        format!("api_key = [{}]", "'a:b',".repeat(20_000)),
        (0..9_000).map(|i| format!("k{i} = 0\n")).collect(),
        "port = 1\nport = 2\n".into(),
        "port = 99999999999\nmax_num_seqs = -1\nrequest_timeout = inf\n".into(),
        "'\u{1b}[31m' = '\u{7}'\n".replace('\u{1b}', "\\u001b"),
        "\"--help\" = true\n".into(),
        "\"\" = 1\n".into(),
        "\"model=x --port\" = 1\n".into(),
        "\u{feff}port = 1\n".into(),
    ]
    .into_iter()
    .map(String::into_bytes)
    .collect()
}

/// Writes the file and takes it as `engraft serve --settings` does, up to what the flags ask for.
pub fn settings(input: Vec<u8>) -> bool {
    let file = ROOM.join("settings.toml");
    let write = std::fs::create_dir_all(&*ROOM).and_then(|()| std::fs::write(&file, input));
    write.unwrap_or_else(|e| panic!("the file of a case: {e}"));
    engraft_cli::fuzzing::settings(&file)
}

pub fn lines_seeds() -> Result<Vec<Vec<u8>>> {
    let single = "\"a text\"\n{\"text\": \"another\", \"id\": {\"a\": [1, null]}}\r\n\n";
    let pairs =
        "{\"id\": 7, \"text\": \"a\", \"target\": \"b\"}\n{\"question\": \"who?\", \"context\": \"he\"}";
    Ok([single, pairs].iter().map(|text| text.as_bytes().to_vec()).collect())
}

/// Lines without end, and fields that nest or stand again and again.
pub fn hostile_lines() -> Vec<Vec<u8>> {
    [
        "[".repeat(100_000),
        r#"{"text":"#.repeat(50_000),
        format!("{{{}\"text\":\"a\"}}", "\"text\":\"a\",".repeat(20_000)),
        format!("{{\"id\":{}{},\"text\":\"a\"}}", "[".repeat(100), "]".repeat(100)),
        format!("\"{}\"", "\\u0041".repeat(40_000)),
        "\n".repeat(200_000),
        "\"\\ud800\"\n{\"text\": 1e999}\n{\"id\": -0, \"text\": \"\\u0000\"}".into(),
    ]
    .into_iter()
    .map(String::into_bytes)
    .collect()
}

pub fn lines(input: Vec<u8>) -> bool {
    let (taken, all) = engraft_cli::fuzzing::lines(&input);
    assert!(taken <= all && all <= 1 + input.iter().filter(|byte| **byte == b'\n').count());
    taken > 0
}

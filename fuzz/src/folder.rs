//! The small files of a folder: what sentence-transformers' say of the vector of a text, how a model samples,
//! the words of its labels. Read from a real folder, as users' are.
//!
//! An input is a list of files, each behind a line `=== name`; a name that no reader asks for is left out, so
//! that an input writes nowhere else.

use crate::{samples, sentence::Sentence};
use engraft_core::{
    Result,
    checkpoint::{self, Access, ModelFiles},
    sample::{FileRules, SamplingParams, not_honoured},
};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::LazyLock,
};

/// Files that are read; every module's path but the pooling's leads nowhere.
const NAMES: [&str; 8] = [
    "config.json",
    "params.json",
    "generation_config.json",
    "tokenizer_config.json",
    "modules.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
];
/// What stands before a name.
const MARK: &[u8] = b"=== ";

/// A folder of this process alone.
pub static ROOM: LazyLock<PathBuf> =
    LazyLock::new(|| std::env::temp_dir().join(format!("engraft-fuzz-{}", std::process::id())));
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| ROOM.join("model"));

pub fn seeds() -> Result<Vec<Vec<u8>>> {
    let usual = r#"=== config.json
{"model_type":"bert","architectures":["BertModel"],"hidden_size":4,"id2label":{"0":"no","1":"yes"}}
=== modules.json
[{"idx":0,"name":"0","path":"","type":"sentence_transformers.models.Transformer"},
{"idx":1,"name":"1","path":"1_Pooling","type":"sentence_transformers.models.Pooling"},
{"idx":2,"name":"2","path":"2_Normalize","type":"sentence_transformers.models.Normalize"}]
=== 1_Pooling/config.json
{"word_embedding_dimension":4,"pooling_mode_cls_token":false,"pooling_mode_mean_tokens":true,"include_prompt":true}
=== sentence_bert_config.json
{"max_seq_length":256,"do_lower_case":true}
=== config_sentence_transformers.json
{"prompts":{"query":"search: ","document":""},"default_prompt_name":"query"}
"#;
    let newer = r#"=== config.json
{}
=== modules.json
[{"type":"a.Pooling","path":"1_Pooling"},{"type":"a.Dense","path":"2_Dense"}]
=== 1_Pooling/config.json
{"pooling_mode":["cls","mean"],"include_prompt":false}
=== generation_config.json
{"do_sample":true,"temperature":0.6,"top_p":0.9,"top_k":20,"repetition_penalty":1.1,"num_beams":4,"eos_token_id":[1,2]}
=== tokenizer_config.json
{"model_max_length":1000000000000000019884624838656,"eos_token":{"content":"</s>"}}
"#;
    Ok([usual, newer].iter().map(|text| text.as_bytes().to_vec()).collect())
}

/// Files that lead out of their folder, nest without end, or hold what no limit or word can be.
pub fn hostile() -> Vec<Vec<u8>> {
    let pooling = |json: &str| {
        format!(
            "=== config.json\n{{}}\n=== modules.json\n[{{\"type\":\"Pooling\",\"path\":\"1_Pooling\"}}]\n=== 1_Pooling/config.json\n{json}\n"
        )
    };
    let modules = |json: &str| format!("=== config.json\n{{}}\n=== modules.json\n{json}\n");
    let deep = format!("{}{}", "[".repeat(90_000), "]".repeat(90_000));
    let many = format!("[{}]", vec![r#"{"type":"a.Dense"}"#; 9_000].join(","));
    let settings = |json: &str| modules("[]") + "=== sentence_bert_config.json\n" + json;
    let prompts = |json: &str| modules("[]") + "=== config_sentence_transformers.json\n" + json;
    let all = [
        modules(r#"[{"type":"a.Pooling","path":"../../../../etc"}]"#),
        modules(r#"[{"type":"a.Pooling","path":"/dev/zero"}]"#),
        modules(r#"[{"type":"a.Pooling","path":"1_Pooling/./../.."}]"#),
        modules(r#"[{"type":"a.Pooling","path":"\u0000"}]"#),
        modules(r#"[{"type":"....","path":""},{"type":"","path":""}]"#),
        modules(&many),
        modules(&deep),
        pooling(&deep),
        pooling(&format!(r#"{{"pooling_mode":"{}"}}"#, "x".repeat(200_000))),
        pooling(r#"{"pooling_mode":[1,null,"max","max"],"include_prompt":"no"}"#),
        settings(r#"{"max_seq_length":18446744073709551615}"#),
        settings(r#"{"max_seq_length":-1,"do_lower_case":"yes"}"#),
        settings(r#"{"max_seq_length":0.5}"#),
        prompts(r#"{"prompts":{"a":{}},"default_prompt_name":"a"}"#),
        prompts(r#"{"prompts":[],"default_prompt_name":"\u001b[31m"}"#),
    ];
    all.into_iter().map(String::into_bytes).collect()
}

/// Writes the files, opens the model and asks for all that the files decide.
pub fn read(input: Vec<u8>) -> bool {
    write(&input).unwrap_or_else(|e| panic!("the folder of a case: {e}"));
    let opened = checkpoint::open(&FOLDER, Access::Read);
    if let Err(error) = &opened {
        plain(&error.to_string());
    }
    opened.is_ok_and(|model| {
        sampling(&model);
        sentence(&model);
        true
    })
}

/// What is said of a hostile file shows neither its control characters nor the whole of it.
pub fn plain(message: &str) {
    assert!(message.len() < 4096, "a message of {} bytes", message.len());
    assert!(!message.contains(|c: char| c.is_control() && c != '\n'), "{message:?}");
}

fn sampling(model: &ModelFiles) {
    match SamplingParams::from_generation_config(&model.generation) {
        Ok(params) => assert!(params.validate().is_ok(), "what a file gives is valid"),
        Err(error) => plain(&error.to_string()),
    }
    match FileRules::of(&model.generation) {
        Ok(mut rules) => {
            rules.retain_below(9);
            let asked = rules.of_request(4);
            assert!(asked.is_none_or(|rules| rules.check(9).is_ok()), "what is kept is in the vocabulary");
        }
        Err(error) => plain(&error.to_string()),
    }
    let named = not_honoured(&model.generation);
    assert!(named.is_sorted() && named.iter().all(|name| model.generation.get(name).is_some()));
}

fn sentence(model: &ModelFiles) {
    match Sentence::of(&model.config) {
        Err(error) => plain(&error.to_string()),
        Ok(said) => {
            assert!(said.max_tokens != Some(0), "a limit without room");
            if let Err(error) = said.pooling() {
                plain(&error.to_string());
            }
            let text = said.text("Wide STREETS");
            let end = if said.lower_case { "wide streets" } else { "Wide STREETS" };
            assert!(text.ends_with(end), "the text is lost behind its prompt");
        }
    }
}

/// Makes the folder what the input describes, with weights that are always the same.
fn write(input: &[u8]) -> io::Result<()> {
    fs::create_dir_all(FOLDER.join("1_Pooling"))?;
    let weights = FOLDER.join("model.safetensors");
    if !weights.exists() {
        fs::write(weights, samples::small_safetensors())?;
    }
    let files = files(NAMES, input);
    for (name, bytes) in NAMES.into_iter().zip(files) {
        match bytes {
            Some(bytes) => fs::write(FOLDER.join(name), bytes)?,
            None => remove(&FOLDER.join(name))?,
        }
    }
    Ok(())
}

/// What stands behind the line of each name.
pub fn files<const N: usize>(names: [&str; N], input: &[u8]) -> [Option<Vec<u8>>; N] {
    let mut files = [const { None }; N];
    let mut at = None;
    for line in input.split_inclusive(|byte| *byte == b'\n') {
        if let Some(name) = line.strip_prefix(MARK) {
            at = names.into_iter().position(|known| known.as_bytes() == name.trim_ascii_end());
            at.into_iter().for_each(|at: usize| files[at] = Some(Vec::new()));
        } else if let Some(Some(bytes)) = at.map(|at: usize| &mut files[at]) {
            bytes.extend(line);
        }
    }
    files
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Removes the folder.
pub fn clear() {
    // Nothing is lost if it stays: it lies among the system's temporary files.
    let _ = fs::remove_dir_all(&*ROOM);
}

//! `embed`, `score` and `classify`: a line of JSON in, a line of JSON out.

use crate::support::models::classifier;
use crate::support::with_input;
use engraft::{EmbedOptions, EncoderInput, Layers, ModelSource, Options, Pooling};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

fn lines(args: &[&str], input: &str) -> Vec<Value> {
    let output = with_input(args, input);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A line is wrong, for a reason with all of `words`; of `(all, good)` lines the good ones are answered. Its
/// answer.
fn wrong(args: &[&str], input: &str, (all, good): (usize, usize), line: usize, words: &[&str]) -> Value {
    let output = with_input(args, input);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: ") && last.contains("1 of "), "{said}");
    let text = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (bad, fine): (Vec<&Value>, Vec<&Value>) = answers.iter().partition(|a| a.get("error").is_some());
    assert_eq!((answers.len(), fine.len()), (all, good), "{text}");
    assert_eq!(bad[0]["line"], line);
    let why = bad[0]["error"].as_str().unwrap();
    assert!(words.iter().all(|word| why.contains(word)), "{why}");
    bad[0].clone()
}

/// Status 1 and one line that has all of `words`.
fn fails(args: &[&str], input: &str, words: &[&str]) {
    let output = with_input(args, input);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let last = text.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: ") && words.iter().all(|word| last.contains(word)), "{text}");
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

#[test]
fn embeddings_are_the_librarys_in_the_order_of_the_lines() {
    let model = engraft::demo().unwrap();
    // More than a group of lines.
    let texts: Vec<String> = (0..70).map(|i| format!("This package provides {i} libraries")).collect();
    let ids = texts.iter().map(|text| model.tokenizer().encode(text, true).unwrap());
    let want = model.handle().embed(ids, &EmbedOptions::new()).unwrap();
    let input: String =
        texts.iter().map(|text| format!("{}\n", json!({"text": text, "id": [text.len()]}))).collect();
    let got = lines(&["embed"], &input);
    assert_eq!(got.len(), 70);
    for ((got, want), text) in got.iter().zip(&want).zip(&texts) {
        assert_eq!(got["id"], json!([text.len()]));
        assert_eq!(floats(&got["embedding"]), *want);
    }
    let plain = lines(
        &["embed", "--plain", "--pooling", "last", "--no-normalize"],
        &format!("{}\n\n{}", texts[3], texts[4]),
    );
    let ids = texts[3..5].iter().map(|text| model.tokenizer().encode(text, true).unwrap());
    let want =
        model.handle().embed(ids, &EmbedOptions::new().pooling(Pooling::Last).normalize(false)).unwrap();
    let raw = lines(&["embed", "--plain", "--pooling", "last", "--raw"], &texts[3]);
    assert_eq!(raw[0], plain[0], "the name of earlier versions");
    assert_eq!(plain.iter().map(|line| floats(&line["embedding"])).collect::<Vec<_>>(), want);
    assert_eq!(lines(&["embed"], ""), Vec::<Value>::new());
}

#[test]
fn scores_are_the_librarys() {
    let model = Options::new().logit_rows(usize::MAX).open(ModelSource::Demo).unwrap();
    let text = "This package provides a library";
    let want = model.handle().score(vec![model.tokenizer().encode(text, true).unwrap()]).unwrap().remove(0);
    let got = lines(&["score"], &format!("{}\n\"x\"\n", json!(text)));
    assert_eq!(floats(&got[0]["logprobs"]), want);
    assert_eq!(got[0]["tokens"], want.len() + 1);
    let sum: f64 = want.iter().map(|p| f64::from(*p)).sum();
    assert!((got[0]["logprob"].as_f64().unwrap() - sum).abs() < 1e-9);
    assert!((got[0]["perplexity"].as_f64().unwrap().ln() + sum / want.len() as f64).abs() < 1e-9);
    assert!(got[0].get("id").is_none() && got.len() == 2);
}

#[test]
fn wrong_lines_are_named() {
    for command in ["embed", "score"] {
        wrong(&[command], "\"fine\"\nnot json\n\"fine\"\n", (3, 2), 2, &["--plain"]);
        let answer = wrong(&[command], "\n{\"id\": 3}\n", (1, 0), 2, &["`text`"]);
        assert_eq!(answer["id"], 3);
        wrong(&[command], "{\"text\": \"a\", \"label\": 1}\n", (1, 0), 1, &["`label`", "text, id"]);
        wrong(&[command], "17\n", (1, 0), 1, &["JSON string"]);
        wrong(&[command], "{\"text\": \"a\", \"text\": \"b\"}\n", (1, 0), 1, &["`text` stands twice"]);
        for (file, hint) in [("/no/such/file", "--plain"), ("/", "is a folder")] {
            let output = with_input(&[command, file], "");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code() == Some(2) && said.contains(file) && said.contains(hint), "{said}");
        }
        let long = "package ".repeat(2000);
        let text = format!("short\n\n{long}\nshort\n");
        wrong(&[command, "--plain"], &text, (3, 2), 3, &["tokens", "512"]);
        // Or as much of it as the model takes.
        let answers = lines(&[command, "--plain", "--truncate"], &text);
        assert_eq!(answers.len(), 3);
        let short = lines(&[command, "--plain", "--truncate", "--max-context", "8"], &long);
        let eight = if command == "score" { short[0]["tokens"] == 8 } else { short != [answers[1].clone()] };
        assert!(eight, "{short:?}");
    }
    fails(&["classify"], "\"x\"\n", &["classify", "llama", "ForSequenceClassification"]);
}

/// What some editors begin a file with is no part of its first line, whether that is JSON or not.
#[test]
fn a_byte_order_mark_is_left_out() {
    for args in [&["score"][..], &["score", "--plain"]] {
        let marked = lines(args, "\u{feff}\"a\"\n\"b\"\n");
        assert_eq!(marked, lines(args, "\"a\"\n\"b\"\n"));
    }
    assert_eq!(with_input(&["score"], "\"\"\n").stdout.windows(4).filter(|w| *w == b"-0.0").count(), 0);
}

#[test]
fn an_answers_line_begins_with_its_id() {
    for input in ["{\"text\": \"a\", \"id\": {\"n\": 1}}\n", "{\"text\": 3, \"id\": {\"n\": 1}}\n"] {
        let text = String::from_utf8(with_input(&["embed"], input).stdout).unwrap();
        assert!(text.starts_with(r#"{"id":{"n":1},""#), "{text}");
        serde_json::from_str::<Value>(&text).unwrap();
    }
}

/// What the tokenizer refuses, and what is no text at all, names its line; lines before it are answered.
#[test]
fn lines_that_cannot_be_tokenized_are_named() {
    let folder = classifier("unknown-words", |_| {});
    let file = folder.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    tokenizer["model"]["unk_token"] = json!("not in the vocabulary");
    fs::write(&file, tokenizer.to_string()).unwrap();
    let args = ["classify", "-m", folder.to_str().unwrap()];
    wrong(&args, "\"w5\"\n\"w6 strange\"\n\"w7\"\n", (3, 2), 2, &["encode: "]);
    let latin = folder.join("latin1.txt");
    fs::write(&latin, b"fine\n\xe9\n").unwrap();
    wrong(&["embed", "--plain", latin.to_str().unwrap()], "", (2, 1), 2, &["UTF-8"]);
}

/// The check before a weight is read goes by the same policies as the loading: those of `--config`, too.
#[test]
fn a_configurations_policy_counts_before_a_weight_is_read() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("policy-of-a-configuration.json");
    fs::write(&file, json!({"injection_policy": {"Layer": ["attn.no_such_module"]}}).to_string()).unwrap();
    for command in ["classify", "answer"] {
        fails(&[command, "--config", file.to_str().unwrap()], "", &["no_such_module"]);
    }
}

/// What sentence-transformers' files say of an embedding model is honoured, or refused by name.
#[test]
fn embedding_models_are_read_as_their_files_say() {
    let folder = classifier("sentences", |_| {});
    let write = |name: &str, value: Value| {
        fs::create_dir_all(folder.join("1_Pooling")).unwrap();
        fs::write(folder.join(name), value.to_string()).unwrap();
    };
    let kind = |name: &str, path: &str| json!({"path": path, "type": format!("sentence_transformers.models.{name}")});
    write("modules.json", json!([kind("Transformer", ""), kind("Pooling", "1_Pooling")]));
    write(
        "1_Pooling/config.json",
        json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}),
    );
    write("sentence_bert_config.json", json!({"max_seq_length": 4, "do_lower_case": true}));
    let prompts = json!({"prompts": {"query": "w9 "}, "default_prompt_name": "query"});
    write("config_sentence_transformers.json", prompts);

    let handle = Options::new().start(folder.as_path()).unwrap();
    let want = |ids: &[u32], pooling| {
        handle.embed([ids.to_vec()], &EmbedOptions::new().pooling(pooling)).unwrap().remove(0)
    };
    let embed = |args: &[&str], text: &str| {
        let args = [&["embed", "--plain", "-m", folder.to_str().unwrap()], args].concat();
        floats(&lines(&args, text)[0]["embedding"])
    };
    assert_eq!(embed(&[], "W5 w7\n"), want(&[9, 5, 7], Pooling::First));
    assert_eq!(embed(&["--pooling", "mean"], "w5 w7\n"), want(&[9, 5, 7], Pooling::Mean));
    assert_eq!(embed(&["--truncate"], "w5 w7 w8 w6 w4\n"), want(&[9, 5, 7, 8], Pooling::First));
    let args = ["embed", "--plain", "-m", folder.to_str().unwrap()];
    wrong(&args, "w5\nw5 w7 w8 w6\n", (2, 1), 2, &["5 tokens", "allowed: 4", "max_seq_length"]);
    // The library reads the same, and a converted model keeps it.
    let model = engraft::open(folder.as_path()).unwrap();
    assert_eq!(model.embed(&["W5 w7"], &EmbedOptions::new()).unwrap(), [want(&[9, 5, 7], Pooling::First)]);
    let converted = folder.join("converted");
    let out = ["convert", folder.to_str().unwrap(), "--out", converted.to_str().unwrap()];
    assert!(with_input(&out, "").status.success());
    let again = engraft::open(converted.as_path()).unwrap().embed(&["W5 w7"], &EmbedOptions::new()).unwrap();
    assert_eq!(again, [want(&[9, 5, 7], Pooling::First)]);

    write("1_Pooling/config.json", json!({"pooling_mode_max_tokens": true}));
    fails(&args, "w5\n", &["pooling_mode", "max", "cls, mean, lasttoken", "--pooling"]);
    write(
        "modules.json",
        json!([kind("Transformer", ""), kind("Pooling", "1_Pooling"), kind("Dense", "2_Dense")]),
    );
    fails(&args, "w5\n", &["modules.json", "Dense", "--pooling"]);
    assert_eq!(embed(&["--pooling", "first"], "w5 w7\n"), want(&[9, 5, 7], Pooling::First));
}

#[test]
fn labels_are_those_of_the_configuration() {
    let folder = classifier("classifier", |_| {});
    let handle = Options::new().start(folder.as_path()).unwrap();
    let texts: [&[u32]; 2] = [&[5, 9, 200], &[7, 1]];
    let encoded =
        handle.encode(texts.iter().map(|ids| EncoderInput::from(ids.to_vec())), Layers::Last).unwrap();
    let model = folder.to_str().unwrap();
    let got = lines(&["classify", "-m", model], "\"w5 w9 w200\"\n{\"id\": \"b\", \"text\": \"w7 w1\"}\n");
    assert_eq!((got.len(), &got[1]["id"]), (2, &json!("b")));
    for (got, want) in got.iter().zip(&encoded) {
        assert_eq!(floats(&got["logits"]), want.logits);
        let best = (0..3).max_by(|a, b| want.logits[*a].total_cmp(&want.logits[*b])).unwrap();
        assert_eq!(got["label"], ["bad", "fair", "good"][best]);
        let scores: Vec<f64> =
            ["bad", "fair", "good"].iter().map(|l| got["scores"][l].as_f64().unwrap()).collect();
        assert!((scores.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        let odds = f64::from(want.logits[0]) - f64::from(want.logits[2]);
        assert!(((scores[0] / scores[2]).ln() - odds).abs() < 1e-6);
        assert_eq!(got["score"], got["scores"][got["label"].as_str().unwrap()]);
    }
    // Labels that do not shut each other out have a probability each.
    let many = classifier("many", |config| config["problem_type"] = json!("multi_label_classification"));
    let got = lines(&["classify", "-m", many.to_str().unwrap()], "\"w5 w9 w200\"\n");
    let want = 1.0 / (1.0 + (-f64::from(encoded[0].logits[1])).exp());
    assert!((got[0]["scores"]["fair"].as_f64().unwrap() - want).abs() < 1e-12);
    let number = classifier("number", |config| config["problem_type"] = json!("regression"));
    let got = lines(&["classify", "-m", number.to_str().unwrap()], "\"w5 w9 w200\"\n");
    assert_eq!(got[0]["scores"]["good"].as_f64().unwrap() as f32, encoded[0].logits[2]);
}

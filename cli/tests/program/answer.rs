//! `answer`: a question and a context on a line, the piece of the context that answers it on another.

use crate::support::models::answerer;
use crate::support::with_input;
use engraft::AnswerOptions;
use serde_json::{Value, json};
use std::path::Path;

const CONTEXT: &str = "w7 wé w40 w9 w11 w30 w31 w32 w33 w8 w77";

#[test]
fn answers_are_the_librarys_with_places_in_characters() {
    let folder = answerer("answerer");
    let model = engraft::open(folder.as_path()).unwrap();
    let options = AnswerOptions::new().top_k(4).max_answer_len(3).handle_impossible_answer(true);
    let want = model.answer("w20 w21", CONTEXT, &options).unwrap();
    assert_eq!(want.len(), 4);
    assert!(want.windows(2).all(|pair| pair[0].score >= pair[1].score));
    let line = json!({"question": "w20 w21", "context": CONTEXT, "id": 7});
    let run = |more: &[&str]| {
        let output = with_input(
            &[&["answer", "-m", folder.to_str().unwrap()], more].concat(),
            &format!("{line}\n\n{line}"),
        );
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    };
    let got = run(&["--top-k", "4", "--max-answer-len", "3", "--handle-impossible-answer"]);
    assert_eq!(got.len(), 2);
    assert_eq!((&got[0], &got[0]["id"]), (&got[1], &json!(7)));
    assert_eq!(got[0]["answers"].as_array().unwrap().len(), 4);
    for (got, want) in got[0]["answers"].as_array().unwrap().iter().zip(&want) {
        assert_eq!((&got["answer"], &got["score"]), (&json!(want.text), &json!(want.score)));
        let place = |name: &str| got[name].as_u64().unwrap() as usize;
        let characters: Vec<char> = CONTEXT.chars().collect();
        assert_eq!(characters[place("start")..place("end")].iter().collect::<String>(), want.text);
    }
    assert_eq!(got[0]["answer"], json!(want[0].text));
    let one = run(&["--max-answer-len", "3"]);
    assert!(one[0].get("answers").is_none());
    assert!(one[0]["answer"].as_str().unwrap().split(' ').count() <= 3);
}

#[test]
fn windows_of_a_long_context_are_all_looked_at() {
    let folder = answerer("long");
    let model = engraft::open(folder.as_path()).unwrap();
    // Longer than the model's positions.
    let context = (0..90).map(|i| format!("w{}", 3 + i * 7 % 200)).collect::<Vec<_>>().join(" ");
    assert!(model.info().max_context < 90);
    let options = AnswerOptions::new().max_seq_len(20).doc_stride(4).top_k(2000);
    let all = model.answer("w5 w6", &context, &options).unwrap();
    let covered = |at: usize| all.iter().any(|a| a.bytes.contains(&at));
    assert!((0..context.len()).filter(|at| context.as_bytes()[*at] != b' ').all(covered));
}

#[test]
fn wrong_lines_and_wrong_models_are_named() {
    let folder = answerer("wrong");
    let folder = folder.to_str().unwrap();
    let fails = |args: &[&str], input: &str, words: &[&str]| {
        let output = with_input(args, input);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        let last = text.lines().last().unwrap_or_default();
        assert!(last.starts_with("error: ") && words.iter().all(|word| last.contains(word)), "{text}");
    };
    // A line is wrong; the one behind it is answered.
    let wrong = |line: &str, words: &[&str]| {
        let fine = r#"{"question": "w5", "context": "w6"}"#;
        let output = with_input(&["answer", "-m", folder], &format!("{line}\n{fine}\n"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains("1 of 2 lines"), "{said}");
        let text = String::from_utf8(output.stdout).unwrap();
        let answers: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(answers.len() == 2 && answers[1].get("answer").is_some(), "{text}");
        assert_eq!(answers[0]["line"].as_u64(), Some(1 + line.matches('\n').count() as u64));
        let why = answers[0]["error"].as_str().unwrap();
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
    };
    wrong("\"x\"", &["question", "context"]);
    wrong("\n{\"question\": \"w5\"}", &["`context`"]);
    wrong(r#"{"question": "w5", "context": "w6", "text": ""}"#, &["`text`", "question, context, id"]);
    let long = format!("{{\"question\": \"{}\", \"context\": \"w6\"}}", "w5 ".repeat(90));
    wrong(&long, &["93 of 33 tokens"]);
    fails(&["answer"], "{}", &["answer", "llama", "ForQuestionAnswering"]);
    fails(&["classify", "-m", folder], "\"w5\"\n", &["classify", "ForSequenceClassification"]);
    let model = engraft::open(Path::new(folder)).unwrap();
    let text = model.answer("w5", "w6", &AnswerOptions::new().top_k(0)).unwrap_err().to_string();
    assert!(text.contains("top_k"), "{text}");
}

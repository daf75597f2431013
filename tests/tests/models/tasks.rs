//! Heads of tasks on the bodies of goldens: labels of texts by decoders, spans of answers by encoders. The
//! oracle is the golden's last hidden state times the head's weights, in f64.

use conformance::dice::Dice;
use conformance::golden::Case;
use engraft_core::Error;
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{EncoderInput, Engine, ForwardWant, Layers, Pick, Pooling, Request, Want};
use engraft_core::inject::inject;
use engraft_core::policy::{Family, HeadSpec, Registry, TokenHead};
use engraft_core::weights::LoadOptions;
use engraft_cpu::{Cpu, CpuConfig};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Rows of labels.
const LABELS: usize = 3;

fn case(name: &str) -> Case {
    Case::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name)).unwrap()
}

/// The golden with another head: tensors that `keep` lets stay, and those of `head` in f32.
fn with_head(
    case: &Case,
    class: &str,
    change: impl Fn(&mut Value),
    keep: impl Fn(&str) -> bool,
    head: &[(&str, Vec<usize>, Vec<f32>)],
) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(case.dir.join("config.json")).unwrap()).unwrap();
    config["architectures"] = json!([class]);
    change(&mut config);
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let bytes = fs::read(case.dir.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut all: BTreeMap<String, TensorView<'_>> =
        file.iter().filter(|(name, _)| keep(name)).map(|(name, view)| (name.to_string(), view)).collect();
    let head: Vec<(&str, &[usize], Vec<u8>)> = head
        .iter()
        .map(|(name, shape, values)| {
            (*name, &shape[..], values.iter().flat_map(|v| v.to_le_bytes()).collect())
        })
        .collect();
    for (name, shape, bytes) in &head {
        all.insert(name.to_string(), TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap());
    }
    safetensors::serialize_to_file(all, None, &folder.path().join("model.safetensors")).unwrap();
    folder
}

fn engine(folder: &Path, config: EngineConfig) -> Result<Engine<Cpu>, Error> {
    let backend = Cpu::new(CpuConfig::default())?;
    let files = checkpoint::open(folder, Access::default())?;
    let positions = config.max_context;
    let model =
        inject(&backend, &files, &Registry::default(), positions, LoadOptions::default(), &mut |_, _| {})?;
    Engine::new(backend, model, config)
}

fn config(case: &Case) -> EngineConfig {
    EngineConfig {
        max_seqs: 3,
        max_step_tokens: case.prompts.iter().map(|p| p.ids.len()).sum::<usize>(),
        max_context: case.longest() + 2,
        logit_rows: Some(usize::MAX),
        ..EngineConfig::default()
    }
}

fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut dice = Dice::new(seed);
    (0..count).map(|_| dice.unit()).collect()
}

/// `weight [rows, cols] x + bias`, and the sum of magnitudes of every row.
fn linear(weight: &[f32], bias: &[f32], x: &[f32]) -> Vec<(f64, f64)> {
    let rows = weight.chunks(x.len()).enumerate();
    let row = |(i, row): (usize, &[f32])| {
        let first = f64::from(bias.get(i).copied().unwrap_or(0.0));
        let terms = row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
        terms.fold((first, first.abs()), |(sum, all), term| (sum + term, all + term.abs()))
    };
    rows.map(row).collect()
}

fn check(name: &str, got: &[f32], want: &[(f64, f64)]) {
    assert_eq!(got.len(), want.len(), "{name}");
    for (got, (want, size)) in got.iter().zip(want) {
        assert!((f64::from(*got) - want).abs() <= 3e-5 * size.max(1.0), "{name}: {got}, not {want} ({size})");
    }
}

fn logits() -> ForwardWant {
    ForwardWant { hidden: Pick::None, logits: Pick::Last }
}

/// Decoders among the goldens that are one file of safetensors.
fn decoders() -> Vec<Case> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden");
    let mut all = conformance::golden::find(&root).unwrap();
    all.retain(|dir| dir.join("model.safetensors").exists());
    let cases = all.iter().filter_map(|dir| Case::read(dir).ok());
    cases.filter(|case| case.kind == "causal" && case.tensors.contains_key("hidden_states.0")).collect()
}

fn last_hidden(case: &Case) -> &conformance::golden::Tensor {
    let number = |name: &String| name.strip_prefix("hidden_states.").and_then(|n| n.parse::<usize>().ok());
    let last = case.tensors.keys().filter_map(number).max().unwrap();
    &case.tensors[&format!("hidden_states.{last}")]
}

#[test]
fn decoders_label_texts_by_the_last_token_that_is_no_padding() {
    let cases = decoders();
    let mut families = 0;
    for case in &cases {
        // The reference's last state is that of several streams, before they become what a head reads.
        if case.architecture == "Gemma3nForCausalLM" {
            continue;
        }
        let hidden = last_hidden(case);
        let score = random(LABELS * hidden.cols(), 5);
        let head = [("score.weight", vec![LABELS, hidden.cols()], score.clone())];
        let labelled = |pad: Value| {
            let labels = json!({"0": "a", "1": "b", "2": "c"});
            with_head(
                case,
                "XForSequenceClassification",
                |config| (config["id2label"], config["pad_token_id"]) = (labels.clone(), pad.clone()),
                |name| !name.contains("lm_head") && !name.contains("embed_out"),
                &head,
            )
        };
        let folder = labelled(Value::Null);
        let mut model = engine(folder.path(), config(case)).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        assert_eq!(model.model().spec.family, Family::Decoder);
        let texts: Vec<EncoderInput> = case.prompts.iter().map(|p| p.ids.clone().into()).collect();
        let got = model.forward_texts(&texts, &logits()).unwrap();
        let rows = case.rows();
        for (one, rows) in got.iter().zip(&rows) {
            let want = linear(&score, &[], hidden.rows(rows.end - 1..rows.end));
            check(&case.name, &one.logits, &want);
        }
        // In small chunks, the same bits.
        let chunks = EngineConfig { max_step_tokens: 3, ..config(case) };
        let again = engine(folder.path(), chunks).unwrap().forward_texts(&texts, &logits()).unwrap();
        assert_eq!(again, got, "{}", case.name);
        families += 1;
    }
    assert!(families >= 20, "{families} goldens of decoders; are they there?");
}

#[test]
fn padding_changes_no_label_and_leaves_hidden_states_alone() {
    let case = case("llama");
    let hidden = last_hidden(&case);
    let score = random(LABELS * hidden.cols(), 6);
    let head = [("score.weight", vec![LABELS, hidden.cols()], score)];
    // An id that no prompt ends with.
    let pad = (0..).find(|id| case.prompts.iter().all(|p| !p.ids.contains(id))).unwrap();
    let change = |config: &mut Value| {
        (config["num_labels"], config["pad_token_id"]) = (json!(LABELS), json!(pad));
    };
    let keep = |name: &str| !name.starts_with("lm_head");
    let folder = with_head(&case, "LlamaForSequenceClassification", change, keep, &head);
    let mut model = engine(folder.path(), config(&case)).unwrap();
    let texts: Vec<EncoderInput> = case.prompts.iter().map(|p| p.ids.clone().into()).collect();
    let padded: Vec<EncoderInput> =
        case.prompts.iter().map(|p| [&p.ids[..], &[pad, pad]].concat().into()).collect();
    let plain = model.forward_texts(&texts, &logits()).unwrap();
    assert_eq!(model.forward_texts(&padded, &logits()).unwrap(), plain);
    let both = ForwardWant { hidden: Pick::Last, logits: Pick::Last };
    for ((one, plain), text) in model.forward_texts(&padded, &both).unwrap().iter().zip(&plain).zip(&padded) {
        assert_eq!(one.logits, plain.logits);
        assert_eq!(one.hidden[0].len(), text.ids.len() * hidden.cols());
    }
    // A text of padding alone is read at its first token, as in the reference.
    let one = model.forward_texts(&[vec![pad].into(), vec![pad; 3].into()], &logits()).unwrap();
    assert_eq!(one[0], one[1]);
    // A request that only wants logits rides in steps of few rows: it has the one row of its labels.
    let small = EngineConfig { max_seqs: 1, ..config(&case) };
    let mut small = engine(folder.path(), small).unwrap();
    for (text, plain) in texts.iter().zip(&plain) {
        let want = Want { logits: true, hidden: Layers::None, logprobs: false };
        let request = Request { prompt: text.ids.clone(), max_new_tokens: 0, want, ..Request::default() };
        let id = small.put(request).unwrap();
        small.run().unwrap();
        assert_eq!(small.take_kept(id).unwrap().logits, plain.logits);
    }
    // What it is not for is refused by name.
    let texts: Vec<Vec<u32>> = vec![case.prompts[0].ids.clone()];
    let request = Request { prompt: texts[0].clone(), max_new_tokens: 1, ..Request::default() };
    for error in [model.score(&texts).map(drop).unwrap_err(), model.put(request).map(drop).unwrap_err()] {
        assert!(error.to_string().contains("`classify` is for it"), "{error}");
    }
    assert!(model.embed(&padded, Pooling::Model, false).unwrap_err().to_string().contains("no pooler"));
    for class in ["LlamaForTokenClassification", "LlamaForQuestionAnswering"] {
        let folder = with_head(&case, class, |_| {}, |_| true, &[]);
        let error = engine(folder.path(), config(&case)).map(drop).unwrap_err().to_string();
        assert!(error.contains("architectures") && error.contains(class), "{error}");
    }
}

/// Numbers that the model computes wrongly are not handed out as results.
#[test]
fn a_text_whose_rows_are_nan_is_an_error() {
    let case = case("llama");
    let cols = last_hidden(&case).cols();
    let broken = [vec![1.0; cols - 1], vec![f32::NAN]].concat();
    let head = [("model.norm.weight", vec![cols], broken)];
    let folder = with_head(&case, "LlamaForCausalLM", |_| {}, |_| true, &head);
    let mut model = engine(folder.path(), config(&case)).unwrap();
    let texts: Vec<EncoderInput> = case.prompts.iter().map(|p| p.ids.clone().into()).collect();
    let ids: Vec<Vec<u32>> = case.prompts.iter().map(|p| p.ids.clone()).collect();
    for error in [
        model.forward_texts(&texts, &logits()).map(drop).unwrap_err(),
        model.embed(&texts, Pooling::Mean, true).map(drop).unwrap_err(),
        model.score(&ids).map(drop).unwrap_err(),
    ] {
        assert!(
            matches!(error, Error::Request { id: 0, .. }) && error.to_string().contains("NaN"),
            "{error}"
        );
    }
}

#[test]
fn encoders_give_starts_and_ends_of_answers() {
    let kinds = [
        ("bert", "BertForQuestionAnswering", "bert."),
        ("roberta", "RobertaForQuestionAnswering", "roberta."),
        ("distilbert", "DistilBertForQuestionAnswering", "distilbert."),
        ("electra", "ElectraForQuestionAnswering", "electra."),
        ("albert", "AlbertForQuestionAnswering", "albert."),
    ];
    for (name, class, prefix) in kinds {
        let case = case(name);
        let hidden = last_hidden(&case);
        let (weight, bias) = (random(2 * hidden.cols(), 7), random(2, 8));
        let head = [
            ("qa_outputs.weight", vec![2, hidden.cols()], weight.clone()),
            ("qa_outputs.bias", vec![2], bias.clone()),
        ];
        let folder = with_head(&case, class, |_| {}, |tensor| tensor.starts_with(prefix), &head);
        let mut model = engine(folder.path(), config(&case)).unwrap_or_else(|e| panic!("{class}: {e}"));
        assert!(matches!(model.model().spec.head, HeadSpec::Tokens { of: TokenHead::Span, count: 2, .. }));
        let text = |p: &conformance::golden::Prompt| EncoderInput {
            ids: p.ids.clone(),
            token_type_ids: p.token_type_ids.clone(),
            ..EncoderInput::default()
        };
        let texts: Vec<EncoderInput> = case.prompts.iter().map(text).collect();
        let want = ForwardWant { hidden: Pick::None, logits: Pick::All };
        for (one, rows) in model.forward_texts(&texts, &want).unwrap().iter().zip(case.rows()) {
            let want: Vec<_> =
                rows.clone().flat_map(|row| linear(&weight, &bias, hidden.rows(row..row + 1))).collect();
            check(class, &one.logits, &want);
        }
        let three = |config: &mut Value| config["num_labels"] = json!(3);
        let folder = with_head(&case, class, three, |tensor| tensor.starts_with(prefix), &head);
        let error = engine(folder.path(), config(&case)).map(drop).unwrap_err().to_string();
        assert!(error.contains("num_labels") && error.contains('3'), "{error}");
    }
}

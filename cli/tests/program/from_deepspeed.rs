//! `docs/from_deepspeed.md` with the program: its JSON blocks are the file of `--config`, and every command
//! and flag that it names is run. `engraft/tests/from_deepspeed.rs` has the library's part.

use crate::shards;
use crate::support;
use crate::support::models::{answerer, classifier, mixture};
use crate::support::{folder, manifest, stderr, stdout};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::{Mutex, OnceLock, PoisonError};

const PAGE: &str = include_str!("../../../docs/from_deepspeed.md");

fn json_blocks() -> Vec<&'static str> {
    PAGE.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// Commands and flags of what has been run here: of runs that ended well, and commands that were refused by
/// name.
static RAN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

fn note<'a>(words: impl Iterator<Item = &'a str>) {
    RAN.lock().unwrap_or_else(PoisonError::into_inner).extend(words.map(str::to_owned));
}

/// A command in a folder, which is noted if it ends well.
fn in_folder(place: &Path, args: &[&str], input: &str) -> Output {
    let output = support::in_folder(place, args, input);
    if output.status.success() {
        let flags = args.iter().skip(1).filter(|word| word.starts_with("--"));
        note(args.iter().take(1).chain(flags).copied());
    }
    output
}

/// What this file has run, each part once: by its own test, or by the one that asks what has been run.
struct Part(OnceLock<()>, fn());

impl Part {
    const fn new(run: fn()) -> Self {
        Self(OnceLock::new(), run)
    }

    fn run(&self) {
        self.0.get_or_init(self.1);
    }
}

static ENGINES: Part = Part::new(take_the_blocks_about_engines);
static CHECKPOINT: Part = Part::new(take_the_block_about_checkpoints);
static TAG: Part = Part::new(convert_the_folder_of_a_tag);
#[cfg(feature = "image")]
static PICTURE: Part = Part::new(make_pictures);

fn golden() -> PathBuf {
    manifest().join("../tests/golden/llama").canonicalize().unwrap()
}

/// The line of JSON that a command answers with.
fn line(place: &Path, args: &[&str], input: &str) -> Value {
    let text = stdout(&in_folder(place, args, input));
    assert_eq!(text.lines().count(), 1, "{args:?}: {text}");
    serde_json::from_str(&text).unwrap()
}

/// The tokens that a command generates greedily.
fn tokens(place: &Path, args: &[&str]) -> Value {
    let greedy = ["generate", "--prompt", "a b c", "-n", "6", "--temperature", "0", "--json"];
    let mut answer = line(place, &[&greedy[..], args].concat(), "");
    let tokens = answer["tokens"].take();
    assert_eq!(tokens.as_array().map(Vec::len), Some(6), "{args:?}: {tokens}");
    tokens
}

/// Each of the commands that take `--config` and any model, with the file `ds.json` of a folder.
fn run_commands(place: &Path) {
    let configured = |args: &[&str], input: &str| {
        let output = in_folder(place, &[args, &["--config", "ds.json"]].concat(), input);
        let text = stdout(&output);
        assert!(!text.trim().is_empty(), "{args:?}: {}", stderr(&output));
        text
    };
    configured(&["generate", "--prompt", "...", "-n", "8", "--temperature", "0"], "");
    configured(&["chat", "-n", "8", "--temperature", "0"], "This package\n/quit\n");
    let plan = configured(&["plan"], "");
    assert!(plan.contains("activations f16"), "{plan}");
    let embedded = line(place, &["embed", "--config", "ds.json"], "\"a text\"\n");
    assert!(embedded["embedding"].as_array().unwrap().len() >= 64, "{embedded}");
    let scored = line(place, &["score", "--config", "ds.json"], "\"a text\"\n");
    assert!(scored["logprob"].as_f64().unwrap() < 0.0, "{scored}");
}

#[test]
fn every_command_takes_the_blocks_about_engines() {
    ENGINES.run();
}

fn take_the_blocks_about_engines() {
    let place = folder("page-engines");
    let (labels, answers) = (classifier("page-labels", |_| {}), answerer("page-answers"));
    let (labels, answers) = (labels.to_str().unwrap(), answers.to_str().unwrap());
    let embed = |more: &[&str]| line(&place, &[&["embed"], more].concat(), "\"a text\"\n");
    let plain = embed(&[]);
    for (block, format) in json_blocks()[..2].iter().zip(["int8:128", "int4a:32"]) {
        fs::write(place.join("ds.json"), block).unwrap();
        run_commands(&place);
        let plan = stdout(&in_folder(&place, &["plan", "--config", "ds.json"], ""));
        assert!(plan.contains(&format!(" {format} ")), "{plan}");
        // It counts for what is computed, too.
        assert_ne!(embed(&["--config", "ds.json"]), plain);
        let classify = ["classify", "-m", labels, "--config", "ds.json"];
        let labelled = line(&place, &classify, "\"w5 w9 w200\"\n");
        assert!(["bad", "fair", "good"].contains(&labelled["label"].as_str().unwrap()), "{labelled}");
        let question = "{\"question\": \"w20 w21\", \"context\": \"w7 w40 w9 w11\"}\n";
        let answered = line(&place, &["answer", "-m", answers, "--config", "ds.json"], question);
        assert!(!answered["answer"].as_str().unwrap().is_empty(), "{answered}");
    }
    // What is refused, and what counts before the file.
    let config = place.join("ds.json");
    support::misused(&["bench", "--config", config.to_str().unwrap()], &["bench takes no --config"]);
    note(["bench"].into_iter());
    let generate = ["generate", "--config", "ds.json", "--prompt", "This package", "-n", "2"];
    let flags = ["--tp", "2", "--max-context", "64"];
    let output = in_folder(&place, &[&generate[..], &flags].concat(), "");
    let said = stderr(&output);
    assert!(output.status.success() && said.contains("--max-context 64 counts before"), "{said}");
    parts_of_experts(&place);
}

/// Of a model with experts every rank has a part of each, or some whole ones; the tokens are those of one.
fn parts_of_experts(place: &Path) {
    let model = mixture("page-experts");
    let model = ["--model", model.to_str().unwrap()];
    let want = tokens(place, &model);
    let [whole, parts] = [&["--tp", "2"][..], &["--tp", "2", "--ep", "1"]].map(|flags| {
        let flags = [&model[..], flags].concat();
        assert_eq!(tokens(place, &flags), want, "{flags:?}");
        let output = in_folder(place, &[&["plan"], &flags[..]].concat(), "");
        let (plan, said) = (stdout(&output), stderr(&output));
        assert!(!said.contains("has no effect"), "{flags:?}: {said}");
        plan.split_once("rank ").map(|(_, table)| table.to_string()).unwrap_or_else(|| panic!("{plan}"))
    });
    assert_ne!(whole, parts, "every rank has as much of the experts as before");
}

#[test]
fn every_command_takes_the_block_about_checkpoints_where_its_files_lie() {
    CHECKPOINT.run();
}

fn take_the_block_about_checkpoints() {
    let place = folder("page-checkpoint");
    shards::write_shards(&golden(), &place.join("shards"));
    fs::write(place.join("ds.json"), json_blocks()[2]).unwrap();
    fs::write(place.join("plain.json"), "{}").unwrap();
    run_commands(&place);
    let whole = ["--model", golden().to_str().unwrap(), "--config", "plain.json"].map(str::to_owned);
    let whole = whole.each_ref().map(String::as_str);
    assert_eq!(tokens(&place, &["--config", "ds.json"]), tokens(&place, &whole));
}

#[test]
fn the_folder_of_a_tag_is_a_model_and_is_converted() {
    TAG.run();
}

fn convert_the_folder_of_a_tag() {
    let place = folder("page-tag");
    shards::write_tag(&golden(), &place.join("folder"), "global_step7");
    let model = ["--model", "folder/global_step7"];
    let output = in_folder(&place, &[&["plan"], &model[..]].concat(), "");
    assert!(!output.status.success() && stderr(&output).contains("extra.weight"), "{}", stderr(&output));
    let model = [&model[..], &["--ignore-tensors", "*"]].concat();
    let golden = golden();
    let want = tokens(&place, &["--model", golden.to_str().unwrap()]);
    assert_eq!(tokens(&place, &model), want);
    let convert = ["convert", "folder/global_step7", "--ignore-tensors", "*", "--tp", "2", "--out", "ranks"];
    assert!(stdout(&in_folder(&place, &convert, "")).contains("2 ranks"));
    for degree in ["1", "2"] {
        let ranks = ["--model", "ranks", "--ignore-tensors", "*", "--tp", degree];
        assert_eq!(tokens(&place, &ranks), want, "{degree} ranks");
    }
}

#[cfg(feature = "image")]
#[test]
fn a_picture_is_made_in_the_element_type_that_is_named() {
    PICTURE.run();
}

/// How two files differ, if they do.
#[cfg(feature = "image")]
fn differing(got: &[u8], want: &[u8]) -> Option<String> {
    let at = got.iter().zip(want).position(|(a, b)| a != b).unwrap_or(got.len().min(want.len()));
    let (lengths, bytes) = ((got.len(), want.len()), (got.get(at), want.get(at)));
    (got != want).then(|| format!("of {lengths:?} bytes byte {at} is the first to differ: {bytes:?}"))
}

#[cfg(feature = "image")]
fn make_pictures() {
    let place = folder("page-picture");
    let model = manifest().join("../tests/golden-image/pipelines/sd1").canonicalize().unwrap();
    let model = model.to_str().unwrap();
    let size = ["--size", "40x32", "--steps", "2", "--seed", "5"];
    let picture = |dtype: &str, out: &str| {
        let args = ["image", "--model", model, "--prompt", "a fox", "--dtype", dtype, "--out", out];
        assert_eq!(stdout(&in_folder(&place, &[&args[..], &size].concat(), "")), format!("{out}\n"));
        fs::read(place.join(out)).unwrap()
    };
    let half = picture("f16", "half.png");
    assert!(differing(&half, &picture("f32", "single.png")).is_some(), "the same picture in f16 and f32");
    // The page's block about pipelines: its type counts, and that steps are captured.
    fs::write(place.join("ds.json"), json_blocks()[3]).unwrap();
    let begin = ["image", "--model", model, "--prompt", "a fox", "--config", "ds.json"];
    let configured = |more: &[&str], out: &str| {
        let output = in_folder(&place, &[&begin[..], &["--out", out], &size[..], more].concat(), "");
        assert_eq!(stdout(&output), format!("{out}\n"));
        (fs::read(place.join(out)).unwrap(), stderr(&output))
    };
    let (by_file, said) = configured(&[], "configured.png");
    assert_eq!(differing(&by_file, &half), None, "by the file and by --dtype f16");
    assert!(!said.contains("warning: `enable_cuda_graph`"), "{said}");
    let (op_by_op, _) = configured(&["--no-graphs"], "op-by-op.png");
    assert_eq!(differing(&op_by_op, &half), None, "without captured steps and with them");
    let (by_flag, said) = configured(&["--dtype", "f32"], "flag.png");
    assert!(differing(&by_flag, &half).is_some(), "--dtype f32 gives the picture in f16");
    assert!(said.contains("--dtype f32 counts before `dtype` f16 of ds.json"), "{said}");
    for (block, what) in [(json_blocks()[0], "tp_size"), (json_blocks()[2], "checkpoint")] {
        let block = block.replace("\"tp_size\": 1", "\"tp_size\": 2");
        fs::write(place.join("ds.json"), block).unwrap();
        let output = in_folder(&place, &[&begin[..], &["--out", "no.png"], &size[..]].concat(), "");
        let said = stderr(&output);
        assert!(!output.status.success() && said.contains(what) && said.contains("ds.json"), "{said}");
        assert!(!place.join("no.png").exists());
    }
}

/// What the page has between backticks, its blocks left out.
#[cfg(feature = "image")]
fn quoted() -> impl Iterator<Item = &'static str> {
    PAGE.split("```").step_by(2).flat_map(|text| text.split('`').skip(1).step_by(2))
}

/// A flag or a command that comes to the page needs a run in this file that ends well.
#[cfg(feature = "image")]
#[test]
fn every_command_and_flag_of_the_page_is_run_here() {
    let help = stdout(&support::engraft(&["--help"]));
    let list =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let heads = list.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let commands: BTreeSet<&str> = heads.filter_map(|line| line.split_whitespace().next()).collect();
    let mut named: BTreeSet<&str> = BTreeSet::new();
    for text in quoted() {
        let command = text.strip_prefix("engraft ").map_or(text, |rest| rest.split(' ').next().unwrap());
        if text.starts_with("engraft ") {
            assert!(commands.contains(command), "`{text}`: there is no command {command}");
        }
        named.extend(commands.get(command));
        named.extend(text.split_whitespace().filter(|word| word.starts_with("--")));
    }
    assert!(named.len() >= 15 && named.contains("convert") && named.contains("--ep"), "{named:?}");
    for part in [&ENGINES, &CHECKPOINT, &TAG, &PICTURE] {
        part.run();
    }
    let ran = RAN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let missing: Vec<&&str> = named.iter().filter(|word| !ran.contains(**word)).collect();
    assert!(missing.is_empty(), "the page names {missing:?}, which nothing here has run; run: {ran:?}");
}

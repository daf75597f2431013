//! The program from outside: what goes to which stream, exit statuses, messages of one line.

use crate::support::{
    demo_copy, engraft, fails, failure, folder, manifest, misused, stderr, stdout, with_input,
};
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};

const PROMPT: &str = "This package provides";

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(&engraft(args))).unwrap()
}

#[test]
fn the_same_seed_prints_the_same_text_and_nothing_else() {
    let run = |seed: &str| stdout(&engraft(&["generate", "--prompt", PROMPT, "--seed", seed]));
    let first = run("7");
    assert_eq!(first, run("7"));
    assert!(first.len() > 20 && !first.contains(PROMPT) && !first.contains("tokens/s"), "{first}");
    assert!((8..14).any(|seed| run(&seed.to_string()) != first), "the seed changes nothing");
    let output = engraft(&["generate", "--prompt", PROMPT, "--seed", "7", "--threads", "1"]);
    assert_eq!(stdout(&output), first, "the number of threads changes the text");
    assert!(stderr(&output).contains("tokens/s") && stderr(&output).contains("seed 7"));
}

#[test]
fn greedy_text_is_the_reference_implementations() {
    let golden = manifest().join("../tests/golden/real/demo-model.json");
    let golden: Value = serde_json::from_slice(&fs::read(golden).unwrap()).unwrap();
    let prompts = golden["prompts"].as_array().unwrap();
    assert!(prompts.len() >= 3);
    for prompt in prompts {
        let want = prompt["greedy_ids"].as_array().unwrap();
        let safe = prompt["greedy_safe_tokens"].as_u64().unwrap() as usize;
        let text = prompt["text"].as_str().unwrap();
        let count = want.len().to_string();
        let got =
            json(&["generate", "--prompt", text, "--temperature", "0", "--max-new-tokens", &count, "--json"]);
        assert_eq!(got["prompt_tokens"].as_u64().unwrap() as usize, prompt["ids"].as_array().unwrap().len());
        assert_eq!(got["tokens"].as_array().unwrap()[..safe], want[..safe], "{text}");
        if safe == want.len() {
            assert_eq!(got["text"], prompt["greedy_text"], "{text}");
        }
    }
}

#[test]
fn a_prompt_from_a_file_or_standard_input_is_the_same_prompt() {
    let want = stdout(&engraft(&["generate", "--prompt", PROMPT, "--temperature", "0"]));
    let file = folder("prompt").join("prompt.txt");
    fs::write(&file, format!("{PROMPT}\n")).unwrap();
    let file = file.to_str().unwrap();
    assert_eq!(stdout(&engraft(&["generate", "--prompt-file", file, "--temperature", "0"])), want);
    let piped = with_input(&["generate", "--prompt-file", "-", "--temperature", "0"], PROMPT);
    assert_eq!(stdout(&piped), want);
    // Standard input where nothing else is named, a prompt by its place, short flags.
    assert_eq!(stdout(&with_input(&["generate", "--temperature", "0"], &format!("{PROMPT}\n"))), want);
    assert_eq!(stdout(&engraft(&["generate", PROMPT, "--temperature", "0"])), want);
    assert_eq!(stdout(&engraft(&["generate", "-p", PROMPT, "-n", "128", "--temperature", "0"])), want);
}

#[test]
fn json_has_text_tokens_finish_and_timings() {
    let got = json(&["generate", "--prompt", PROMPT, "--seed", "3", "--max-new-tokens", "9", "--json"]);
    assert_eq!(got["tokens"].as_array().unwrap().len(), 9);
    assert_eq!((got["finish"].as_str(), got["prompt_tokens"].as_u64()), (Some("length"), Some(4)));
    assert_eq!(got["sampling"]["seed"], 3);
    // What the demo model's generation_config.json says.
    assert_eq!(
        (got["sampling"]["temperature"].as_f64(), got["sampling"]["top_p"].as_f64()),
        (Some(0.7), Some(0.9))
    );
    assert!(got["timings"]["decode_tokens_per_second"].as_f64().unwrap() > 0.0);
    assert!(!got["text"].as_str().unwrap().is_empty());
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let whole = stdout(&engraft(&["generate", "--prompt", PROMPT, "--temperature", "0"]));
    let stop = "D-Bus interface";
    let truncated = whole.find(stop).expect("the greedy text has the stop string");
    let args =
        ["generate", "--prompt", PROMPT, "--temperature", "0", "--stop", "never", "--stop", stop, "--json"];
    let got = json(&args);
    assert_eq!(got["text"].as_str().unwrap(), &whole[..truncated]);
    assert_eq!(got["finish"], "stop");
    assert!(got["ended_by"].as_str().unwrap().contains(stop));
}

#[test]
fn activations_in_16_bits_still_make_text() {
    for dtype in ["f16", "bf16"] {
        let text =
            stdout(&engraft(&["generate", "--prompt", PROMPT, "--temperature", "0", "--dtype", dtype]));
        assert!(text.contains("package"), "{dtype}: {text}");
    }
}

#[test]
fn a_folder_is_the_same_model_as_the_embedded_one() {
    let model = demo_copy("folder");
    let model = model.to_str().unwrap();
    let want = stdout(&engraft(&["generate", "--prompt", PROMPT, "--temperature", "0"]));
    for flag in ["--model", "-m"] {
        assert_eq!(
            stdout(&engraft(&["generate", flag, model, "--prompt", PROMPT, "--temperature", "0"])),
            want
        );
    }
}

#[test]
fn broken_models_fail_with_one_line() {
    fails(&["generate", "--prompt", "x", "--model", "/no/such/model"], &["/no/such/model"]);
    fails(&["plan", "--model", "/no/such/model.gguf"], &["/no/such/model.gguf"]);

    let truncated = demo_copy("truncated");
    let weights = fs::read(truncated.join("model.safetensors")).unwrap();
    fs::write(truncated.join("model.safetensors"), &weights[..weights.len() / 2]).unwrap();
    fails(
        &["generate", "--prompt", "x", "--model", truncated.to_str().unwrap()],
        &["data_offsets", "the file has"],
    );

    let unknown = demo_copy("unknown");
    let config = fs::read_to_string(unknown.join("config.json")).unwrap();
    fs::write(
        unknown.join("config.json"),
        config.replace("\"llama\"", "\"lama\"").replace("\"hidden_size\"", "\"size\""),
    )
    .unwrap();
    fails(
        &["plan", "--model", unknown.to_str().unwrap()],
        &["no injection policy", "\"lama\"", "--policy FILE"],
    );

    let missing = demo_copy("missing");
    fs::remove_file(missing.join("config.json")).unwrap();
    fails(&["plan", "--model", missing.to_str().unwrap()], &["config.json"]);

    let mute = demo_copy("mute");
    fs::remove_file(mute.join("tokenizer.json")).unwrap();
    fails(&["generate", "--prompt", "x", "--model", mute.to_str().unwrap()], &["tokenizer.json"]);

    let text = folder("text").join("model.gguf");
    fs::write(&text, "this is no model").unwrap();
    fails(&["generate", "--prompt", "x", "--model", text.to_str().unwrap()], &["model.gguf", "GGUF"]);
}

#[test]
fn requests_that_cannot_be_served_fail_with_one_line() {
    let long = "package ".repeat(2000);
    fails(&["generate", "--prompt", &long], &["tokens at least", "512"]);
    fails(&["generate", "--prompt-file", "/no/such/file"], &["/no/such/file"]);
    // What the argument says is no reason: each machine has one of these. No machine has such a device.
    let refused = |backend: &str, reasons: &[&str]| {
        let said = failure(&["generate", "--prompt", "x", "--backend", backend]);
        assert!(reasons.iter().any(|reason| said.contains(reason)), "{said}: none of {reasons:?}");
    };
    let of_cuda: &[&str] = if cfg!(feature = "cuda") {
        &["no CUDA driver was found", "the driver finds no NVIDIA GPU", "allowed: cuda to cuda:", "is needed"]
    } else {
        &["no cuda backend"]
    };
    refused("cuda:65535", of_cuda);
    let of_wgpu: &[&str] = if cfg!(feature = "wgpu") {
        &["no adapter was found", "no adapter has this in its name; found: "]
    } else {
        &["no wgpu backend"]
    };
    refused("wgpu:no such adapter", of_wgpu);
}

#[test]
fn an_unknown_field_refuses_the_model_until_it_is_accepted() {
    let model = demo_copy("unknown");
    let file = model.join("config.json");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    config["model_type"] = "unheard of".into();
    config["no_rope_layers"] = vec![1, 0].into();
    fs::write(&file, config.to_string()).unwrap();
    let plan = ["plan", "--model", model.to_str().unwrap()];
    fails(&plan, &["no_rope_layers", "accept_unknown"]);
    let accepted = stdout(&engraft(&[&plan[..], &["--accept-unknown", "no_rope_layers"]].concat()));
    assert!(accepted.contains("`no_rope_layers` ([1,0]) is accepted and not read"), "{accepted}");
    fails(&["plan", "--accept-unknown", "no_rope_layers"], &["accept_unknown", "no_rope_layers"]);
}

#[test]
fn tensors_are_ignored_by_name() {
    let plan = stdout(&engraft(&["plan", "--ignore-tensors", "*"]));
    assert!(plan.contains("tensors that nothing takes are ignored: *"), "{plan}");
    fails(&["plan", "--ignore-tensors", "no.such.*"], &["`ignore_tensors`", "\"no.such.*\""]);
}

#[cfg(not(feature = "hub"))]
#[test]
fn a_hub_id_says_which_feature_it_needs() {
    fails(&["generate", "--prompt", "x", "--model", "org/some-model"], &["org/some-model", "`hub`"]);
}

#[test]
fn wrong_usage_has_status_2() {
    misused(&[], &["Usage"]);
    misused(&["generate"], &["standard input is empty", "--prompt"]);
    misused(&["generate", "a", "--prompt", "b"], &["cannot be used with"]);
    misused(&["generate", "a", "--seed", "-1"], &["--seed", "0 to 18446744073709551615", "a new one"]);
    misused(&["generate", "a", "--seed", "x"], &["0 to 18446744073709551615"]);
    misused(&["completions", "dos"], &["bash", "zsh", "fish"]);
    misused(&["generate", "--prompt", "a", "--prompt-file", "b"], &["cannot be used with"]);
    misused(&["generate", "--prompt", "a", "--backend", "tpu"], &["tpu", "cpu", "cuda", "wgpu"]);
    misused(&["generate", "--prompt", "a", "--dtype", "f8"], &["f32, f16, bf16"]);
    misused(&["generate", "--prompt", "a", "--temperature", "-1"], &["greedy"]);
    misused(&["generate", "--prompt", "a", "--temperature", "nan"], &["greedy"]);
    misused(&["generate", "--prompt", "a", "--top-p", "0"], &["allowed"]);
    misused(&["generate", "--prompt", "a", "--min-p", "1"], &["allowed"]);
    misused(&["generate", "--prompt", "a", "--stop", ""], &["empty"]);
    misused(&["bench", "--shape", "huge"], &["tiny", "llama-8b"]);
    misused(&["bench", "--shape", "S", "--model", "x"], &["cannot be used with"]);
    misused(&["serve-nothing"], &["serve-nothing"]);
}

#[test]
fn the_demo_models_plan() {
    let want = fs::read_to_string(manifest().join("tests/snapshots/plan-demo.txt")).unwrap();
    // Kernels are named by the instruction set; the snapshot has the usual one.
    let got = stdout(&engraft(&["plan"])).replace("_portable", "_avx2").replace("_avx512", "_avx2");
    assert_eq!(got, want, "if this is meant: cargo run -- plan > cli/tests/snapshots/plan-demo.txt");
    let plan = json(&["plan", "--json"]);
    assert_eq!(plan["arch"], "llama");
    assert_eq!(plan["origin"]["policy"], "llama");
    let filled = plan["origin"]["filled"].as_array().unwrap();
    let down = filled.iter().find(|f| f["operand"] == "down.weight" && f["layer"] == 3).unwrap();
    assert_eq!(down["tensors"], serde_json::json!(["model.layers.3.mlp.down_proj.weight"]));
    assert_eq!(down["shard"], "row, grains of 64");
    assert!(
        plan["rows"].as_array().unwrap().iter().all(|r| r["kernel"].is_string() != r["composed"].is_string())
    );
}

#[test]
fn the_plan_lists_tensors_when_asked() {
    let short = stdout(&engraft(&["plan"]));
    let long = stdout(&engraft(&["plan", "--tensors"]));
    let list = long.strip_prefix(&short).expect("the list stands below the plan");
    let line = |operand: &str| list.lines().find(|l| l.contains(operand)).unwrap_or_else(|| panic!("{list}"));
    let attention = "model.layers.{}.self_attn";
    let want = format!(
        "<- {attention}.q_proj.weight + {attention}.k_proj.weight + {attention}.v_proj.weight; column, units of 32"
    );
    let got = line("qkv.weight");
    assert!(got.starts_with("0-4 ") && got.ends_with(&want), "{got}");
    assert!(line("mlp_norm.weight").ends_with("post_attention_layernorm.weight; replicated"), "{list}");
    assert!(line("token_embed.weight").contains("<- model.embed_tokens.weight; column"), "{list}");
}

#[test]
fn chat_without_a_terminal_reads_lines_and_continues_plain_text() {
    let output = with_input(
        &["chat", "--temperature", "0"],
        &format!("/help\n{PROMPT}\n/what\n/retry\n/quit\nnot read\n"),
    );
    let (text, notes) = (stdout(&output), stderr(&output));
    let want = stdout(&engraft(&["generate", "--prompt", PROMPT, "--temperature", "0"]));
    assert_eq!(text, format!("{want}{want}"));
    assert!(notes.contains("no chat template") && notes.contains("/reset"), "{notes}");
    assert!(notes.contains("/what is no command"), "{notes}");
}

/// What is typed ahead, or pasted, is read line by line: nothing of it is lost between two prompts. `script`
/// (part of every Debian) gives the program a terminal.
#[cfg(target_os = "linux")]
#[test]
fn chat_at_a_terminal_reads_every_line_of_one_write() {
    let program = format!("{} chat -n 4 --seed 1", env!("CARGO_BIN_EXE_engraft"));
    let mut child = std::process::Command::new("script")
        .args(["-qec", &program, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("script (bsdutils) is installed");
    let mut input = child.stdin.take().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    let typed = b"/stats\r/one\r/two\rThis package\r/stats\r/quit\r";
    std::io::Write::write_all(&mut input, typed).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).replace("\r\n", "\n");
    assert!(output.status.success(), "{text}");
    let places: Vec<Option<usize>> =
        ["counts are hidden", "/one is no command", "/two is no command", "counts are shown"]
            .iter()
            .map(|said| text.find(said))
            .collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}: {text}");
}

#[test]
fn the_help_of_quantize_lists_what_its_error_allows() {
    let help = stdout(&engraft(&["generate", "--help"]));
    let error = stderr(&engraft(&["generate", "--quantize", "q9"]));
    let allowed = error.split("allowed: ").nth(1).unwrap().split(" (").next().unwrap();
    let start = help.find("--quantize <").unwrap();
    let flag = help[start..].split("\n      --").next().unwrap();
    assert!(allowed.split(", ").count() > 10, "{allowed}");
    for name in allowed.split(", ") {
        assert!(flag.contains(&name.to_lowercase()), "{name}: {flag}");
    }
}

/// Help of every command, as a terminal of 80 columns gets it.
#[test]
fn help_fits_80_columns_and_colours_are_for_terminals() {
    let all = stdout(&engraft(&["--help"]));
    let commands = all.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| !l.is_empty());
    let names: Vec<&str> =
        commands.filter(|l| !l.starts_with("   ")).filter_map(|l| l.split_whitespace().next()).collect();
    assert!(names.len() >= 11 && names.contains(&"classify"), "{names:?}");
    assert!(all.contains("Exit status") && all.contains("ENGRAFT_LOG"), "{all}");
    for name in names {
        let mut program = Command::new(env!("CARGO_BIN_EXE_engraft"));
        let output = program.args(["help", name]).env("COLUMNS", "80").output().unwrap();
        let text = stdout(&output);
        let long: Vec<&str> = text.lines().filter(|l| l.chars().count() > 80).collect();
        assert!(long.is_empty(), "{name}: {long:?}");
        assert!(!text.contains('\x1b'), "{name}: {text}");
    }
    let output = engraft(&["generate", PROMPT, "-n", "2", "--seed", "1"]);
    assert!(!stdout(&output).contains('\x1b') && !stderr(&output).contains('\x1b'));
}

#[test]
fn shells_complete_commands_and_flags() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&engraft(&["completions", shell]));
        assert!(["generate", "classify", "max-new-tokens"].iter().all(|w| script.contains(w)), "{shell}");
    }
}

#[test]
fn logs_go_to_standard_error_and_a_wrong_filter_is_reported() {
    let run = |filter: &str| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_engraft"));
        program.args(["generate", PROMPT, "-n", "1"]).env("ENGRAFT_LOG", filter).output().unwrap()
    };
    assert!(stderr(&run("engraft=loud")).contains("warning: ENGRAFT_LOG"));
    let info = stderr(&run("info"));
    assert!(info.contains("info: engraft::handle::worker: demo-model is loaded arch="), "{info}");
    assert!(stderr(&run("debug")).contains("debug: engraft_core::inject::injector: "));
    for fine in ["", "debug", "engraft_core=trace"] {
        assert!(!stderr(&run(fine)).contains("warning: ENGRAFT_LOG"), "{fine}");
    }
}

#[test]
fn doctor_names_backends_and_libraries() {
    let text = stdout(&engraft(&["doctor"]));
    for word in ["backends", "cpu", "libcuda.so.1", "libvulkan.so.1", "memory"] {
        assert!(text.contains(word), "{text}");
    }
    let report = json(&["doctor", "--json"]);
    assert_eq!(report["backends"]["cpu"], true);
    assert!(report["cpu"]["threads"].as_u64().unwrap() >= 1);
}

#[test]
fn bench_measures_a_random_shape() {
    for weights in ["f32", "q8_0"] {
        let args = [
            "bench",
            "--shape",
            "tiny",
            "--weights",
            weights,
            "--batch",
            "1,3",
            "--prompt-tokens",
            "24",
            "--decode",
            "6",
            "--repeat",
            "1",
            "--profile",
            "--json",
        ];
        let report = json(&args);
        let batches = report["batches"].as_array().unwrap();
        assert_eq!(batches.len(), 2);
        for batch in batches {
            assert!(batch["prefill_tokens_per_second"].as_f64().unwrap() > 0.0);
            assert!(batch["decode_share_of_read"].as_f64().unwrap() > 0.0);
            assert_eq!(batch["step_seconds"].as_array().unwrap().len(), 1);
        }
        assert!(report["limits"]["fma_gflop_per_second"].as_f64().unwrap() > 0.0);
        assert!(!report["profile"]["decode"]["by_op"].as_array().unwrap().is_empty());
        // Embedding (tied), two layers of q, k, v, o, gate, up, down: 4 bytes or 34 per 32 values.
        let values = 256 * 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64);
        let bytes = if weights == "f32" { values * 4 } else { values / 32 * 34 };
        assert_eq!(report["weight_bytes_per_step"], bytes);
    }
}

/// Of experts a step reads those that its tokens choose: two of four here, by one token.
#[test]
fn bench_counts_the_experts_that_are_chosen() {
    let sizes = ["--prompt-tokens", "8", "--decode", "4", "--batch", "1,4", "--repeat", "1", "--json"];
    let mixtral = manifest().join("../tests/golden/mixtral");
    let report = json(&[&["bench", "--model", mixtral.to_str().unwrap()][..], &sizes[..]].concat());
    let [all, step] = ["weight_bytes", "weight_bytes_per_step"].map(|key| report[key].as_u64().unwrap());
    // Gate, up and down of four experts in two layers, 64 by 72, in bf16.
    let experts = 2 * 4 * 3 * 64 * 72 * 2;
    assert_eq!(all - step, experts / 2);
    let read = |batch: usize| {
        let batch = &report["batches"][batch];
        batch["decode_gb_per_second"].as_f64().unwrap() * batch["step_seconds"][0].as_f64().unwrap() * 1e9
    };
    assert!((read(0) / step as f64 - 1.0).abs() < 1e-6);
    assert!((read(1) / (all as f64 - experts as f64 / 16.0) - 1.0).abs() < 1e-6);
}

/// Sizes that were not named shrink to what the model takes; those that were named are refused by name.
#[test]
fn bench_fits_the_model() {
    let report = json(&["bench", "--repeat", "1", "--json"]);
    assert_eq!((report["prompt"].as_u64(), report["decode"].as_u64()), (Some(383), Some(128)), "of 512");
    let report = json(&["bench", "--repeat", "1", "--json", "--prompt-tokens", "500"]);
    assert_eq!((report["prompt"].as_u64(), report["decode"].as_u64()), (Some(500), Some(11)));
    let report = json(&["bench", "--repeat", "1", "--json", "--decode", "4", "--max-context", "64"]);
    assert_eq!((report["prompt"].as_u64(), report["decode"].as_u64()), (Some(58), Some(4)));
    let sizes = ["--prompt-tokens", "500", "--decode", "100"];
    misused(&[&["bench"], &sizes[..]].concat(), &["--prompt-tokens 500", "--decode 100", "has 512"]);
    let small = ["--decode", "100", "--max-context", "64"];
    misused(&[&["bench"], &small[..]].concat(), &["--decode 100", "--max-context is 64"]);
}

/// Prompts that take longer to be read than the first sequence was to decode: all decode together anyway,
/// and each batch is reported as it ends.
#[test]
fn bench_waits_until_all_sequences_decode() {
    let args = ["bench", "--batch", "9", "--prompt-tokens", "64", "--decode", "2", "--max-step-tokens", "16"];
    let output = engraft(&[&args[..], &["--repeat", "2", "--json", "--no-mmap"]].concat());
    let report: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let batch = &report["batches"][0];
    assert!(batch["decode_tokens_per_second"].as_f64().unwrap() > 0.0, "{batch}");
    assert_eq!(report["dtype"], "f32");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("run 1 of 2, batch 9: prefill ") && said.contains("run 2 of 2"), "{said}");
}

/// Ranks are threads, and say what one says.
#[test]
fn ranks_share_a_model() {
    let with = |more: &[&str]| {
        let args = [
            "generate",
            "--prompt",
            "This package",
            "--max-new-tokens",
            "12",
            "--seed",
            "7",
            "--threads",
            "2",
        ];
        engraft(&[&args[..], more].concat())
    };
    let one = stdout(&with(&[]));
    for degree in ["1", "2", "4", "8"] {
        assert_eq!(stdout(&with(&["--tp", degree])), one, "{degree} ranks");
    }
    assert_eq!(stdout(&with(&["--tp", "2", "--no-graphs", "--max-step-tokens", "3"])), one);
    misused(&["generate", "x", "--tp", "3"], &["--tp", "1, 2, 4, 8"]);
    let two = with(&["--tp", "2"]);
    let (said, alone) = (String::from_utf8_lossy(&two.stderr), with(&[]));
    // All weights of the model, and what every rank keeps of them besides.
    assert!(said.contains("2 ranks of 1 thread, ") && !said.contains("1 threads"), "{said}");
    let megabytes = |text: &str| {
        let words: Vec<&str> = text.split_whitespace().collect();
        let at = words.windows(3).position(|w| w[1..] == ["of", "weights,"] || w[2] == "weights,").unwrap();
        words[at - 1].parse::<f64>().unwrap_or_else(|_| words[at].parse().unwrap())
    };
    let (two, one) = (megabytes(&said), megabytes(&String::from_utf8_lossy(&alone.stderr)));
    assert!(two >= one && two < 1.5 * one, "{two} of {one}");
    let report = json(&["bench", "--shape", "tiny", "--tp", "2", "--decode", "2", "--repeat", "1", "--json"]);
    assert!(report["batches"][0]["decode_tokens_per_second"].as_f64().unwrap() > 0.0, "{report}");
    // What is known of rank 0 is not shown for all.
    assert!(report["ranks"] == 2 && report["batches"][0]["decode_gflop_per_second"].is_null(), "{report}");
    let plan = stdout(&engraft(&["plan", "--tp", "2"]));
    assert!(plan.contains("\nrank 0: ") && plan.contains("2 ranks, "), "{plan}");
    let experts = with(&["--tp", "4", "--ep", "2"]);
    let said = String::from_utf8_lossy(&experts.stderr);
    assert!(said.contains("warning: `ep`: 2 has no effect: the model has no experts"), "{said}");
}

#[test]
fn bench_measures_texts_of_an_encoder() {
    let bert = manifest().join("../tests/golden/bert");
    let bert = bert.to_str().unwrap();
    let args =
        ["bench", "--model", bert, "--batch", "1,4", "--prompt-tokens", "9", "--repeat", "1", "--profile"];
    let report = json(&[&args[..], &["--json"]].concat());
    for (batch, size) in report["batches"].as_array().unwrap().iter().zip([1.0, 4.0]) {
        let seconds = batch["batch_seconds"][0].as_f64().unwrap();
        assert!((batch["texts_per_second"].as_f64().unwrap() * seconds - size).abs() < 1e-6 * size);
        assert!(batch["share_of_fma"].as_f64().unwrap() > 0.0 && batch.get("step_seconds").is_none());
    }
    let ops = report["profile"]["prefill"]["by_op"].as_array().unwrap();
    assert!(ops.iter().any(|op| op["op"] == "attend_dense"), "{ops:?}");
    let text = stdout(&engraft(&args));
    assert!(text.contains("texts/s") && !text.contains("decode"), "{text}");
    // More tokens than the model has positions.
    misused(&["bench", "--model", bert, "--prompt-tokens", "4000"], &["4000", "--prompt-tokens", "context"]);
}

#[test]
fn converting_and_quantizing() {
    let out = folder("converted");
    let (out, demo) = (out.to_str().unwrap(), manifest().join("../engraft/demo-model"));
    let demo = demo.to_str().unwrap();
    let said = stdout(&engraft(&["convert", demo, "--out", out, "--tp", "2", "--quantize", "int8:64"]));
    assert!(said.contains("2 ranks") && said.lines().count() == 1, "{said}");
    let plan = json(&["plan", out, "--json"]).to_string();
    assert!(plan.contains("int8"), "{plan}");
    let line = ["generate", "--prompt", PROMPT, "--max-new-tokens", "8", "--temperature", "0"];
    let direct = stdout(&engraft(&[&line[..], &["--quantize", "int8:64"]].concat()));
    assert_eq!(stdout(&engraft(&[&line[..], &["--model", out]].concat())), direct);
    fails(&["convert", demo, "--out", out], &["--out", "empty or new folder"]);
    fails(&["convert", "absent", "--out", out], &["absent"]);
    misused(&["convert", demo, "--out", out, "--tp", "3"], &["--tp", "1, 2, 4, 8"]);
    misused(&["plan", "--quantize", "int8:40"], &["--quantize", "int8:40", "multiple of 32"]);
}

#[test]
fn a_hub_id_is_found_in_the_shared_cache() {
    let cache = folder("hub-cache");
    let inside = cache.join("models--org--demo/snapshots/0a1b");
    fs::create_dir_all(cache.join("models--org--demo/refs")).unwrap();
    fs::create_dir_all(&inside).unwrap();
    fs::write(cache.join("models--org--demo/refs/main"), "0a1b").unwrap();
    for file in fs::read_dir(manifest().join("../engraft/demo-model")).unwrap() {
        let file = file.unwrap().path();
        fs::copy(&file, inside.join(file.file_name().unwrap())).unwrap();
    }
    let run = |id: &str| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_engraft"));
        program.args(["plan", id]).env("HF_HUB_CACHE", &cache);
        program.stdin(Stdio::null()).output().unwrap()
    };
    assert!(stdout(&run("org/demo")).contains("llama"));
    let generate = |more: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_engraft"));
        program.args(["generate", PROMPT, "-n", "1", "-m", "hf:org/demo"]).args(more);
        program.env("HF_HUB_CACHE", &cache).stdin(Stdio::null()).output().unwrap()
    };
    // Its name is its id, not that of the folder of the cache.
    let said = stderr(&generate(&[]));
    assert!(said.contains("org/demo: llama, ") && !said.contains("0a1b"), "{said}");
    let report: Value = serde_json::from_str(&stdout(&generate(&["--json"]))).unwrap();
    assert_eq!(report["model"], "org/demo");
    #[cfg(not(feature = "hub"))]
    assert!(stderr(&run("org/absent")).contains("cargo feature `hub`"));
}

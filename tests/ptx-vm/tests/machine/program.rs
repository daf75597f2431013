//! The program, as the documentation calls it.

use std::process::{Command, Output};

/// Runs `ptx-vm run FILE KERNEL` with the words that follow.
fn run(file: &str, kernel: &str, words: &str) -> Output {
    let path = format!("{}/tests/ptx/{file}", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_ptx-vm"));
    command.args(["run", &path, kernel]).args(words.split_whitespace()).output().unwrap()
}

/// `docs/cuda_without_a_gpu.md`: the command on the page reports the race, and ends well on the correct
/// kernel.
#[cfg(in_repository)]
#[test]
fn the_page_shows_a_race() {
    let page = include_str!("../../../../docs/cuda_without_a_gpu.md");
    let words = "--grid 5 --block 64 random:1000 empty:20 empty:4 zeros:4 u32:1000";
    for part in [
        "grid.no_fence.ptx last_block_sum --grid 5 --block 64",
        "random:1000 empty:20 empty:4 zeros:4 u32:1000",
    ] {
        assert!(page.contains(part), "{part}");
    }
    let race = run("grid.no_fence.ptx", "last_block_sum", words);
    let said = String::from_utf8(race.stderr).unwrap();
    assert!(!race.status.success());
    let shown = page.split("u32:1000\n").nth(1).unwrap().split("```").next().unwrap();
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        one_line(&said).starts_with(&one_line(shown)),
        "the page shows\n{shown}\nand the program says\n{said}"
    );
    let right = run("grid.ptx", "last_block_sum", words);
    assert!(right.status.success() && String::from_utf8(right.stdout).unwrap().starts_with("5 blocks"));
}

#[test]
fn mistakes_in_words_are_named() {
    for (words, part) in [
        ("--grid 0", "parameter"),
        ("--schedule sideways", "sideways"),
        ("u32:many", "u32:many"),
        ("seven", "seven"),
    ] {
        let out = run("grid.ptx", "last_block_sum", words);
        let said = String::from_utf8(out.stderr).unwrap();
        assert!(!out.status.success() && said.contains(part), "{words}: {said}");
    }
}

//! How a failure says what to type to see it again: the variables of the environment that decide what a run
//! is on, and the number of the case.

/// The variable that names one case of every trial, by its seed: the others are left out.
pub const CASE: &str = "ENGRAFT_CASE";
/// The variable of test programs that names the backends that must be there.
pub const REQUIRE: &str = "ENGRAFT_REQUIRE";
/// The variable that has every kernel of a CUDA device waited for.
pub const BLOCKING: &str = "ENGRAFT_BLOCKING";
/// The variable that sets how many seconds one wait for a CUDA device may take.
pub const WAIT_LIMIT: &str = "ENGRAFT_WAIT_LIMIT";
/// The variable that has no case left out for want of time (`.ci/full`).
pub const FULL: &str = "ENGRAFT_FULL";
/// The variable that gives the software driver the cases of a real device.
pub const AS_HARDWARE: &str = "ENGRAFT_AS_HARDWARE";

/// What decides which devices there are, how they are run, which cases are taken, and, for the software
/// drivers of Vulkan, how they compile.
const ENVIRONMENT: [&str; 11] = [
    REQUIRE,
    BLOCKING,
    WAIT_LIMIT,
    AS_HARDWARE,
    FULL,
    "ENGRAFT_SEED",
    "ENGRAFT_SAMPLE",
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
    "GALLIVM_PERF",
    "LP_NATIVE_VECTOR_WIDTH",
];

/// A command in the environment of this run: `NAME='value' ... command`.
pub fn line(command: &str) -> String {
    in_environment(|name| std::env::var(name).ok(), command)
}

fn in_environment(value: impl Fn(&str) -> Option<String>, command: &str) -> String {
    let set = ENVIRONMENT.iter().filter_map(|name| Some((name, value(name)?)));
    // A quote within quotes, as shells take it.
    let words = set.map(|(name, value)| format!("{name}='{}' ", value.replace('\'', "'\\''")));
    words.chain([command.to_string()]).collect()
}

/// The command that runs one case of a trial of the test `ops`.
pub fn case_of(trial: &str, seed: u64) -> String {
    let command = format!("cargo test -p conformance --test ops -- --exact {trial}");
    format!("{CASE}={seed} {}", line(&command))
}

/// The case that the environment names, where it names one.
///
/// # Errors
/// What it names is no number.
pub fn case() -> Result<Option<u64>, String> {
    match std::env::var(CASE) {
        Ok(text) => text.parse().map(Some).map_err(|e| format!("{CASE}={text}: the seed of a case, {e}")),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::{case_of, in_environment};

    #[test]
    fn what_decides_about_devices_is_repeated() {
        let value = |name: &str| match name {
            "ENGRAFT_REQUIRE" => Some("cuda:soft:random7".to_string()),
            "VK_DRIVER_FILES" => Some("/a folder/it's.json".to_string()),
            _ => None,
        };
        assert_eq!(
            in_environment(value, "cargo test"),
            "ENGRAFT_REQUIRE='cuda:soft:random7' VK_DRIVER_FILES='/a folder/it'\\''s.json' cargo test"
        );
        assert_eq!(in_environment(|_| None, "cargo test"), "cargo test");
    }

    #[test]
    fn a_case_is_named_by_its_seed_and_its_trial() {
        let said = case_of("cpu::linear::f32", 1_048_577);
        assert!(said.starts_with("ENGRAFT_CASE=1048577 "), "{said}");
        assert!(said.ends_with("cargo test -p conformance --test ops -- --exact cpu::linear::f32"), "{said}");
    }
}

//! The browser build: `cargo xtask web [--serve PORT] [--std-source FOLDER]`.
//!
//! Compiles `engraft/web` to wasm32, makes its JavaScript side, and puts both next to the page and the demo
//! model in
//! `target/web/site`. Where the toolchain has no standard library for wasm32 and rustup cannot bring it, the
//! library is built from source, and the command says so: from the toolchain's own sources (component
//! `rust-src`), or from a folder that is named.

#[path = "web_serve.rs"]
mod serve;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

const TARGET: &str = "wasm32-unknown-unknown";

type Outcome<T> = Result<T, String>;

/// Runs the command.
pub fn run(args: impl Iterator<Item = String>) -> ExitCode {
    match all(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("web: {what}");
            ExitCode::FAILURE
        }
    }
}

fn all(mut args: impl Iterator<Item = String>) -> Outcome<()> {
    let (mut port, mut sources, mut only_serve) = (None, None, false);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} wants a value"));
        match arg.as_str() {
            "--serve" => port = Some(value()?.parse::<u16>().map_err(|e| format!("--serve: {e}"))?),
            "--std-source" => sources = Some(PathBuf::from(value()?)),
            "--no-build" => only_serve = true,
            other => {
                return Err(format!(
                    "{other} is not known; --serve PORT, --std-source FOLDER, --no-build are"
                ));
            }
        }
    }
    let target = PathBuf::from(std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into()));
    let site = target.join("web").join("site");
    if !only_serve {
        build(&target.join("web"), &site, sources)?;
    }
    match port {
        Some(port) => serve::serve(&site, port),
        None => Ok(()),
    }
}

fn build(target: &Path, site: &Path, sources: Option<PathBuf>) -> Outcome<()> {
    let mut cargo = cargo("engraft/web/Cargo.toml", target, &["build", "--target", TARGET]);
    cargo.env("RUSTFLAGS", "--cfg getrandom_backend=\"wasm_js\"");
    if !std_is_here()? && !rustup_brings_it() {
        let library = match sources {
            Some(folder) => folder,
            None => std_sources()?,
        };
        println!("no standard library for {TARGET} here: it is built from {}", library.display());
        // The compiler is a stable one; building its own library is what it would not do unasked.
        cargo.args(["-Zbuild-std=std,panic_abort"]).env("RUSTC_BOOTSTRAP", "1");
        cargo.env("__CARGO_TESTS_ONLY_SRC_ROOT", absolute(&library)?);
    }
    finish(cargo)?;
    let wasm = target.join(TARGET).join("release").join("engraft_web.wasm");
    std::fs::create_dir_all(site).map_err(|e| format!("{}: {e}", site.display()))?;
    let mut bind = self::cargo("engraft/web/bind/Cargo.toml", &target.join("bind"), &["run"]);
    bind.arg("--").args([&wasm, site]);
    finish(bind)?;
    copy_all(Path::new("engraft/web/page"), site, |_| true)?;
    let model = site.join("demo-model");
    std::fs::create_dir_all(&model).map_err(|e| format!("{}: {e}", model.display()))?;
    let wanted = |name: &str| name.ends_with(".json") || name.ends_with(".safetensors");
    copy_all(Path::new("engraft/demo-model"), &model, wanted)?;
    let size = |name: &str| std::fs::metadata(site.join(name)).map_or(0, |m| m.len());
    println!(
        "{}: {} KB of wasm, {} KB of script; `cargo xtask web --no-build --serve 8000` serves it",
        site.display(),
        size("engraft_web_bg.wasm") / 1000,
        size("engraft_web.js") / 1000
    );
    Ok(())
}

fn cargo(manifest: &str, target: &Path, what: &[&str]) -> Command {
    let mut cargo = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    cargo
        .args(&what[..1])
        .args(["--release", "--quiet", "--locked", "--manifest-path", manifest])
        .args(&what[1..]);
    // Flags that are meant for this machine's programs are none for the browser's.
    cargo.env("CARGO_TARGET_DIR", target).env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    cargo
}

fn finish(mut command: Command) -> Outcome<()> {
    let name = format!("{command:?}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name}: {status}")),
        Err(e) => Err(format!("{name}: {e}")),
    }
}

/// What a program prints, in one line.
fn asked(program: &str, args: &[&str]) -> Outcome<String> {
    let output = Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_string()),
        false => Err(format!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr))),
    }
}

fn std_is_here() -> Outcome<bool> {
    let folder = asked("rustc", &["--print", "target-libdir", "--target", TARGET])?;
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(false) };
    Ok(entries.flatten().any(|e| e.file_name().to_string_lossy().starts_with("libstd-")))
}

fn rustup_brings_it() -> bool {
    let mut rustup = Command::new("rustup");
    rustup.args(["target", "add", TARGET]).stdout(Stdio::null()).stderr(Stdio::null());
    rustup.status().is_ok_and(|s| s.success()) && std_is_here().unwrap_or(false)
}

/// The folder `library` of the compiler's sources.
fn std_sources() -> Outcome<PathBuf> {
    let own = PathBuf::from(asked("rustc", &["--print", "sysroot"])?).join("lib/rustlib/src/rust/library");
    if own.join("std").is_dir() {
        return Ok(own);
    }
    let version = asked("rustc", &["--version"])?;
    Err(format!(
        "no standard library for {TARGET} and no sources of it next to {version}; `rustup target add {TARGET}`, \
         `rustup component add rust-src`, or --std-source FOLDER (the folder `library` of that compiler's sources)"
    ))
}

fn absolute(path: &Path) -> Outcome<PathBuf> {
    std::fs::canonicalize(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn copy_all(from: &Path, to: &Path, wanted: impl Fn(&str) -> bool) -> Outcome<()> {
    let fail = |e: std::io::Error| format!("{}: {e}", from.display());
    for entry in std::fs::read_dir(from).map_err(fail)?.flatten() {
        let name = entry.file_name();
        if wanted(&name.to_string_lossy()) && entry.path().is_file() {
            std::fs::copy(entry.path(), to.join(&name)).map_err(fail)?;
        }
    }
    Ok(())
}

//! `cargo xtask kernels`: from `kernels/cuda/*.cu` to checked-in PTX, manifests and the gate on resources.
//!
//! The compiler is pinned and comes from its Python wheel, installed by `pip` into an ignored folder; nothing
//! of a CUDA toolkit is needed. Sources are handed over in memory under fixed names, so the text does not
//! depend on the machine. PTX is kept compressed, one file per stem and architecture; every stem has its own
//! manifest in text, written together with its PTX: two people who work on two kernels never meet in a file.
//! `--check` writes nothing: it compares texts, names every stale file, and holds what `ptxas` reports
//! against `kernels/limits.txt`.

mod manifest;
mod nvrtc;
mod packed;
mod ptxas;
mod wheels;

use manifest::Manifest;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How it is called.
pub const USAGE: &str = "cargo xtask kernels [--check] [--only STEM] [--wheel DIR] [--no-ptxas]";

/// A failure, for people.
pub type Outcome<T> = Result<T, String>;

#[derive(Debug, Default)]
struct Options {
    check: bool,
    only: Option<String>,
    wheel: Option<PathBuf>,
    no_ptxas: bool,
}

fn options(mut args: impl Iterator<Item = String>) -> Outcome<Options> {
    let mut options = Options::default();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--check" => options.check = true,
            "--no-ptxas" => options.no_ptxas = true,
            "--only" => options.only = Some(args.next().ok_or("--only needs a stem")?),
            "--wheel" => options.wheel = Some(args.next().ok_or("--wheel needs a folder")?.into()),
            other => return Err(format!("unknown option '{other}'\nusage: {USAGE}")),
        }
    }
    Ok(options)
}

/// Exit status when a compiler's wheel cannot be had: a caller may go on without this chore, and has to say
/// so.
const NO_WHEEL: u8 = 3;

/// Runs the chore.
pub fn main(args: impl Iterator<Item = String>) -> ExitCode {
    let said = |why: String, code: ExitCode| {
        eprintln!("{why}");
        code
    };
    let options = match options(args) {
        Ok(options) => options,
        Err(why) => return said(why, ExitCode::from(2)),
    };
    let tools = match tools(&options) {
        Ok(tools) => tools,
        Err(why) => return said(why, ExitCode::from(NO_WHEEL)),
    };
    match run(&options, &tools) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => said(why, ExitCode::FAILURE),
    }
}

/// Where the compiler's libraries and the assembler are.
struct Tools {
    nvrtc: PathBuf,
    ptxas: Option<PathBuf>,
}

fn tools(options: &Options) -> Outcome<Tools> {
    let wheel = options.wheel.as_deref();
    let ptxas = if options.no_ptxas { None } else { Some(wheels::ptxas(wheel)?) };
    Ok(Tools { nvrtc: wheels::nvrtc(wheel)?, ptxas })
}

/// One `.cu` file and the architectures it is compiled for.
struct Source {
    stem: String,
    file: String,
    text: String,
    arches: &'static [&'static str],
}

fn read(path: &Path) -> Outcome<String> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Files of a folder with this ending, by name.
fn files(folder: &Path, ending: &str) -> Outcome<Vec<(String, PathBuf)>> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut found: Vec<(String, PathBuf)> = entries
        .flatten()
        .map(|e| (e.file_name().to_string_lossy().into_owned(), e.path()))
        .filter(|(name, _)| name.ends_with(ending))
        .collect();
    found.sort();
    Ok(found)
}

fn sources(folder: &Path, only: Option<&str>) -> Outcome<Vec<Source>> {
    let mut sources = Vec::new();
    for (file, path) in files(folder, ".cu")? {
        let name = file.trim_end_matches(".cu");
        let (stem, arches): (&str, &[&str]) = match name.strip_suffix(".90a") {
            Some(stem) => (stem, &["compute_90a"]),
            None => (name, &["compute_80", "compute_90a"]),
        };
        if only.is_none_or(|o| o == stem) {
            sources.push(Source { stem: stem.into(), text: read(&path)?, file, arches });
        }
    }
    match (sources.is_empty(), only) {
        (true, Some(stem)) => Err(format!("no kernels/cuda/{stem}.cu")),
        _ => Ok(sources),
    }
}

fn run(options: &Options, tools: &Tools) -> Outcome<()> {
    let root = Path::new("kernels");
    let headers: Vec<(String, String)> = files(&root.join("cuda"), ".cuh")?
        .into_iter()
        .map(|(name, path)| Ok((name, read(&path)?)))
        .collect::<Outcome<_>>()?;
    let sources = sources(&root.join("cuda"), options.only.as_deref())?;
    let (compiler, assembler) = (nvrtc::Compiler::load(&tools.nvrtc)?, tools.ptxas.as_deref());
    let limits = ptxas::limits(&read(&root.join("limits.txt"))?)?;
    let mut modules = compile(&sources, &headers, &compiler, assembler)?.into_iter();
    // A stem may have two sources (one of them for 90a alone): its manifest covers both.
    let mut stems: BTreeMap<String, Manifest> = BTreeMap::new();
    let (mut stale, mut over) = (Vec::new(), Vec::new());
    for source in &sources {
        let manifest = stems.entry(source.stem.clone()).or_default();
        manifest.source(&source.file, &source.text, &headers);
        for (arch, (ptx, resources)) in source.arches.iter().zip(modules.by_ref()) {
            let path = root.join("ptx").join(format!("{}.{arch}.ptx.gz", source.stem));
            place(options.check, &path, &ptx, &mut stale)?;
            manifest.module(arch, &ptx, resources.as_ref().map(|r| &r.entries));
            over.extend(resources.iter().flat_map(|r| ptxas::over(r, arch, &limits)));
        }
        eprintln!("{}: {} entries", source.file, manifest.entries());
    }
    for (stem, mut manifest) in stems {
        let path = root.join("ptx").join(format!("{stem}.json"));
        if assembler.is_none() {
            manifest.keep_resources(&path);
        }
        place(options.check, &path, &manifest.text()?, &mut stale)?;
    }
    if options.only.is_none() {
        stale.extend(orphans(root, &sources)?);
    }
    report(&stale, &over)?;
    if options.check {
        let gated = if assembler.is_some() {
            "registers, spills and warnings are within limits.txt"
        } else {
            "not assembled"
        };
        eprintln!("{} sources: PTX and manifests are what they give; {gated}", sources.len());
    }
    Ok(())
}

/// A PTX text and what the assembler says of it.
type Compiled = (String, Option<ptxas::Assembled>);

/// Every source for each of its architectures, in their order; as many at a time as there are cores.
fn compile(
    sources: &[Source],
    headers: &[(String, String)],
    compiler: &nvrtc::Compiler,
    assembler: Option<&Path>,
) -> Outcome<Vec<Compiled>> {
    let jobs: Vec<(&Source, &str)> =
        sources.iter().flat_map(|s| s.arches.iter().map(move |arch| (s, *arch))).collect();
    let one = |(source, arch): (&Source, &str)| -> Outcome<Compiled> {
        let ptx = compiler.compile(&source.file, &source.text, headers, arch)?;
        let resources = assembler.map(|tool| ptxas::resources(tool, &source.file, &ptx, arch)).transpose()?;
        Ok((ptx, resources))
    };
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(at) else { return done };
            done.push((at, one(*job)));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let parts = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|w| w.join()).collect::<Result<Vec<_>, _>>()
    });
    let parts = parts.map_err(|_| "a compiling thread panicked".to_string())?;
    let in_order: BTreeMap<usize, Outcome<Compiled>> = parts.into_iter().flatten().collect();
    in_order.into_values().collect()
}

/// Writes a generated file, or notes that it is not what the sources give.
fn place(check: bool, path: &Path, text: &str, stale: &mut Vec<String>) -> Outcome<()> {
    let compressed = path.extension().is_some_and(|ending| ending == "gz");
    let old = if compressed { packed::read(path) } else { read(path) };
    // The text decides: another version of the encoder may write other bytes for it.
    if old.is_ok_and(|old| old == text) {
        return Ok(());
    }
    if check {
        stale.push(format!("{} is not what the sources give", path.display()));
        return Ok(());
    }
    let bytes = if compressed { packed::pack(text)? } else { text.as_bytes().to_vec() };
    std::fs::write(path, bytes).map_err(|e| format!("{}: {e}", path.display()))
}

/// Generated files whose source is gone.
fn orphans(root: &Path, sources: &[Source]) -> Outcome<Vec<String>> {
    let known = |name: &str| {
        sources.iter().any(|s| {
            name == format!("{}.json", s.stem)
                || s.arches.iter().any(|arch| name == format!("{}.{arch}.ptx.gz", s.stem))
        })
    };
    let here = files(&root.join("ptx"), "")?;
    Ok(here.into_iter().filter(|(n, _)| !known(n)).map(|(n, _)| format!("ptx/{n} has no source")).collect())
}

fn report(stale: &[String], over: &[String]) -> Outcome<()> {
    match stale.is_empty() && over.is_empty() {
        true => Ok(()),
        false => Err([stale, over].concat().join("\n")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_compressed_file_is_stale_by_its_text() {
        let path = std::env::temp_dir().join(format!("engraft-place-{}.ptx.gz", std::process::id()));
        let mut stale = Vec::new();
        place(true, &path, "one", &mut stale).unwrap();
        assert_eq!(stale.len(), 1, "an absent file is stale");
        place(false, &path, "one", &mut stale).unwrap();
        assert_eq!(packed::read(&path).unwrap(), "one");
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes, packed::pack("one").unwrap(), "equal texts give equal files");
        // The same text by another encoder: the level is in the header.
        let mut other = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
        std::io::Write::write_all(&mut other, b"one").unwrap();
        let other = other.finish().unwrap();
        assert_ne!(other, bytes);
        std::fs::write(&path, &other).unwrap();
        place(false, &path, "one", &mut stale).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), other, "a text that has not changed is not written");
        place(true, &path, "one", &mut stale).unwrap();
        assert_eq!(stale.len(), 1);
        place(true, &path, "two", &mut stale).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        place(true, &path, "one", &mut stale).unwrap();
        assert_eq!(stale.len(), 3, "another text and a damaged file are stale");
        std::fs::remove_file(&path).unwrap();
    }
}

//! What the packages say of themselves: one minimum Rust version, everything that a registry asks for, and
//! nothing published that hangs on something unpublished.

use conformance::sources::{Source, below};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Packages outside of the workspace: what is built for the browser.
const OUTSIDE: [&str; 2] = ["engraft/web", "engraft/web/bind"];
/// What every package takes from the workspace.
const INHERITED: [&str; 4] = ["version", "edition", "rust-version", "license"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn manifest(folder: &str) -> Table {
    let path = root().join(folder).join("Cargo.toml");
    fs::read_to_string(&path).unwrap().parse().unwrap()
}

fn workspace() -> Table {
    manifest("").remove("workspace").unwrap().try_into().unwrap()
}

/// The members' manifests by folder.
fn members() -> BTreeMap<String, Table> {
    let all = workspace();
    let folders = all["members"].as_array().unwrap().iter();
    folders.map(|f| f.as_str().unwrap().to_string()).map(|f| (f.clone(), manifest(&f))).collect()
}

/// Whether a package goes to the registry.
fn published(package: &Value) -> bool {
    package.get("publish").and_then(Value::as_bool) != Some(false)
}

fn inherits(value: Option<&Value>) -> bool {
    value.and_then(|v| v.get("workspace")).and_then(Value::as_bool) == Some(true)
}

/// What is missing or wrong in a manifest of the workspace.
fn faults(manifest: &Table) -> Vec<String> {
    let package = &manifest["package"];
    let mut wrong: Vec<String> =
        INHERITED.iter().filter(|field| !inherits(package.get(field))).map(|f| f.to_string()).collect();
    if !inherits(manifest.get("lints")) {
        wrong.push("lints".into());
    }
    if package.get("description").and_then(Value::as_str).is_none_or(str::is_empty) {
        wrong.push("description".into());
    }
    if published(package) {
        // Its own, or the workspace's.
        let own = |value: &Value| value.is_array() || value.as_str() == Some("README.md");
        let there = |field: &&&str| inherits(package.get(field)) || package.get(field).is_some_and(own);
        wrong
            .extend(["readme", "keywords", "categories"].iter().filter(|f| !there(f)).map(|f| f.to_string()));
    }
    wrong
}

#[test]
fn packages_say_what_a_registry_asks_for() {
    let members = members();
    assert!(members.values().filter(|m| published(&m["package"])).count() >= 8);
    let broken: Vec<_> = members.iter().map(|(f, m)| (f, faults(m))).filter(|(_, w)| !w.is_empty()).collect();
    assert!(broken.is_empty(), "{broken:?}");
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let text = fs::read_to_string(root().join(licence)).unwrap();
        for (folder, _) in members.iter().filter(|(_, m)| published(&m["package"])) {
            assert_eq!(fs::read_to_string(root().join(folder).join(licence)).unwrap(), text, "{folder}");
        }
    }
    // What the registry allows.
    let shared = &workspace()["package"];
    let keywords: Vec<&str> =
        shared["keywords"].as_array().unwrap().iter().map(|k| k.as_str().unwrap()).collect();
    assert!(
        keywords.len() <= 5 && keywords.iter().all(|k| k.len() <= 20 && !k.contains(' ')),
        "{keywords:?}"
    );
}

#[test]
fn a_manifest_that_lacks_something_is_seen() {
    let whole = "package = { version.workspace = true, edition.workspace = true, rust-version.workspace = true, \
                 license.workspace = true, description = 'x', readme.workspace = true, keywords.workspace = true, \
                 categories = ['science'] }\nlints.workspace = true\n";
    let of = |text: &str| faults(&text.parse().unwrap());
    assert_eq!(of(whole), Vec::<String>::new());
    assert_eq!(
        of(&whole.replace("rust-version.workspace = true", "rust-version = '1.80'")),
        ["rust-version"]
    );
    assert_eq!(of(&whole.replace("readme.workspace = true, ", "")), ["readme"]);
    assert_eq!(of(&whole.replace("readme.workspace = true", "publish = false")), Vec::<String>::new());
    assert_eq!(of(&whole.replace("lints.workspace = true\n", "")), ["lints"]);
}

/// Compiled with one toolchain, the minimum version is held by clippy's `incompatible_msrv`; here it is one
/// number.
#[test]
fn the_minimum_rust_version_is_one() {
    let shared = &workspace()["package"];
    let number = |text: &str| -> Vec<u32> { text.split('.').map(|n| n.parse().unwrap()).collect() };
    let minimum = shared["rust-version"].as_str().unwrap();
    for folder in OUTSIDE {
        let package = &manifest(folder)["package"];
        for field in ["rust-version", "edition", "license"] {
            assert_eq!(package[field], shared[field], "{field} of {folder}");
        }
        assert!(!published(package), "{folder}");
    }
    let toolchain: Table = fs::read_to_string(root().join("rust-toolchain.toml")).unwrap().parse().unwrap();
    assert!(number(toolchain["toolchain"]["channel"].as_str().unwrap()) >= number(minimum));
    assert_eq!(workspace()["lints"]["clippy"]["incompatible_msrv"].as_str(), Some("deny"));
    let page = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    assert!(page.contains(&format!("Rust {minimum}")), "CONTRIBUTING.md does not name Rust {minimum}");
}

/// Every package that a build without the feature `hub` may compile says of itself that it takes the minimum
/// version; clippy sees our own sources alone.
#[test]
fn dependencies_take_the_minimum_rust_version() {
    let number = |text: &str| -> Vec<u32> { text.split('.').take(2).map(|n| n.parse().unwrap()).collect() };
    let minimum = number(workspace()["package"]["rust-version"].as_str().unwrap());
    // Not offline: a first build has not fetched what only these features need.
    let output = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(["--features", "engraft/cuda,engraft/wgpu", "--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100, "{}", packages.len());
    let newer: Vec<String> = packages
        .iter()
        .filter(|p| p["rust_version"].as_str().is_some_and(|version| number(version) > minimum))
        .map(|p| format!("{} {} needs Rust {}", p["name"], p["version"], p["rust_version"]))
        .collect();
    assert!(newer.is_empty(), "{newer:?}");
}

/// A published package depends on published ones, by version; what its tests alone need goes by path, and
/// Cargo leaves that out of the archive.
#[test]
fn published_packages_stand_on_published_ones() {
    let members = members();
    let private: Vec<String> = members
        .values()
        .filter(|m| !published(&m["package"]))
        .map(|m| m["package"]["name"].as_str().unwrap().to_string())
        .collect();
    assert!(private.iter().any(|name| name == "conformance"));
    let lane = fs::read_to_string(root().join(".ci/run")).unwrap();
    let packaged = lane.lines().find_map(|l| l.strip_prefix("published=(")?.strip_suffix(')')).unwrap();
    let mut packaged: Vec<&str> = packaged.split(' ').collect();
    packaged.sort_unstable();
    let mut names = Vec::new();
    for (folder, manifest) in members.iter().filter(|(_, m)| published(&m["package"])) {
        names.push(manifest["package"]["name"].as_str().unwrap());
        let table = |kind: &str| manifest.get(kind).and_then(Value::as_table).cloned().unwrap_or_default();
        for kind in ["dependencies", "build-dependencies"] {
            let wrong: Vec<String> = table(kind).keys().filter(|d| private.contains(d)).cloned().collect();
            assert!(wrong.is_empty(), "{kind} of {folder}: {wrong:?}");
        }
        for (name, value) in table("dev-dependencies").iter().filter(|(name, _)| private.contains(name)) {
            let by_path = value.get("path").is_some() && value.get("version").is_none();
            assert!(by_path, "{folder} names {name} by a version");
        }
    }
    names.sort_unstable();
    assert_eq!(names, packaged, "what .ci/run packages");
}

/// Lines that name a server of packages.
fn hosts(text: &str) -> Vec<&str> {
    const SERVERS: [&str; 7] = [
        "//deb.",
        "//ftp.",
        "//archive.ubuntu",
        "//snapshot.debian",
        "//registry.npmjs",
        "//files.pythonhosted",
        "//static.crates",
    ];
    text.lines().filter(|line| SERVERS.iter().any(|server| line.contains(server))).collect()
}

/// Scripts and tools take packages from where a machine is configured to take them.
#[test]
fn no_script_names_a_server_of_packages() {
    let folders = [".ci", "xtask", "tests/gpu", "kernels", "shaders", "engraft/web"];
    let files: Vec<Source> = folders.iter().flat_map(|folder| below(folder, &|_| true)).collect();
    assert!(files.iter().any(|file| file.name == ".ci/lane-wgpu") && files.len() > 50);
    let named: Vec<String> = files
        .iter()
        .flat_map(|file| hosts(&file.text).into_iter().map(|line| format!("{}: {line}", file.name)))
        .collect();
    assert!(named.is_empty(), "{}", named.join("\n"));
    assert_eq!(hosts("a\ndeb http://deb.example.org/x bookworm main\nb").len(), 1);
}

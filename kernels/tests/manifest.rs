//! The manifests against what lies beside them: sources and texts have not changed since they were compiled.

#![allow(clippy::unwrap_used)]

use engraft_kernels::{MODULES, entries, named, param_bytes, single, waits_for_others};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::path::Path;

fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn sources_and_texts_are_those_of_the_manifest() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert!(!MODULES.is_empty());
    for module in MODULES {
        let path = root.join("ptx").join(format!("{}.json", module.stem));
        let manifest: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let about = &manifest["modules"][module.arch];
        assert_eq!(about["sha256"], hash(module.ptx), "{} for {}", module.stem, module.arch);
        let listed = about["entries"].as_object().unwrap();
        let mut here: Vec<&str> = entries(module.ptx).collect();
        here.sort_unstable();
        assert_eq!(listed.keys().map(String::as_str).collect::<Vec<_>>(), here);
        for (file, known) in manifest["sources"].as_object().unwrap() {
            let text = std::fs::read_to_string(root.join("cuda").join(file)).unwrap();
            assert_eq!(*known, hash(&text), "{file} has changed: run `cargo xtask kernels`");
        }
    }
}

/// Launches on Hopper overlap: one entry that does not wait would read what is not written yet.
#[test]
fn every_entry_stands_alone_and_waits_for_the_launches_before_it() {
    for module in MODULES {
        for entry in entries(module.ptx) {
            let text = single(module.ptx, entry).unwrap();
            assert_eq!(entries(&text).collect::<Vec<_>>(), [entry]);
            assert!(param_bytes(&text, entry).unwrap() > 0);
            let waits = waits_for_others(&text);
            assert_eq!(waits, module.arch == "compute_90a", "{entry} for {}", module.arch);
            let parsed = ptx_vm::Module::parse(&text);
            assert!(parsed.is_ok(), "{entry} for {}: {:?}", module.arch, parsed.err());
        }
        assert!(single(module.ptx, "nothing").is_none());
    }
}

#[test]
fn entries_say_which_source_they_are_in() {
    for module in MODULES {
        for entry in entries(module.ptx) {
            assert_eq!(engraft_kernels::stem_of(entry), module.stem, "{entry}");
        }
    }
}

#[test]
fn a_name_means_the_entries_that_fit_it() {
    let all = |name: &str| named(name, (9, 0)).collect::<Vec<_>>();
    assert_eq!(all("rows_patch"), ["rows_patch"]);
    let products = ["n8", "n16", "n32", "n64", "small", "wide"].map(|cut| format!("gemm_{cut}_bf16"));
    assert_eq!(all("gemm_*_bf16"), products);
    assert_eq!(all("linear_strict*_f32"), ["linear_strict_f32", "linear_strict_many_f32"]);
    assert_eq!(all("attention_dense_whole_f16_*").len(), 2);
    for nothing in ["rows_patc", "gemm_*_f8", "nothing_*", "", "*"] {
        assert!(all(nothing).is_empty(), "{nothing}");
    }
    assert_eq!(named("rows_patch", (7, 5)).count(), 0);
}

//! The manifest of one stem: what its PTX was made of and what its entries take.

use super::ptxas::{Report, Resources};
use super::{Outcome, wheels};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::path::Path;

/// What is known of one stem.
#[derive(Debug, Default)]
pub struct Manifest {
    sources: Map<String, Value>,
    modules: Map<String, Value>,
}

/// SHA-256 in hexadecimal.
fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `(entry, most threads of a block)` for every entry of a text; 0 where the source states none.
fn entries(ptx: &str) -> Vec<(String, u32)> {
    let mut found: Vec<(String, u32)> = Vec::new();
    for line in ptx.lines() {
        if let Some(rest) = line.trim_start().strip_prefix(".visible .entry ") {
            found.push((rest.split('(').next().unwrap_or(rest).trim().to_string(), 0));
        }
        if let (Some(rest), Some(last)) = (line.trim_start().strip_prefix(".maxntid "), found.last_mut()) {
            last.1 = rest.split(',').filter_map(|n| n.trim().parse::<u32>().ok()).product();
        }
    }
    found
}

impl Manifest {
    /// Notes a source and the headers that it names (or that those name).
    pub fn source(&mut self, file: &str, text: &str, headers: &[(String, String)]) {
        if self.sources.insert(file.to_string(), hash(text).into()).is_some() {
            return;
        }
        for (name, body) in headers {
            if text.contains(&format!("#include \"{name}\"")) {
                self.source(name, body, headers);
            }
        }
    }

    /// Notes a compiled text.
    pub fn module(&mut self, arch: &str, ptx: &str, report: Option<&Report>) {
        let mut all = Map::new();
        for (entry, threads) in entries(ptx) {
            let mut about = json!({ "max_threads": threads });
            if let Some(Resources { registers, spills, stack, shared }) = report.and_then(|r| r.get(&entry)) {
                about["registers"] = (*registers).into();
                about["spills"] = (*spills).into();
                about["stack"] = (*stack).into();
                about["shared"] = (*shared).into();
            }
            all.insert(entry, about);
        }
        self.modules.insert(arch.into(), json!({ "sha256": hash(ptx), "entries": all }));
    }

    /// Takes over the resources of the manifest at `path` for texts that have not changed since.
    pub fn keep_resources(&mut self, path: &Path) {
        let old = std::fs::read_to_string(path).ok().and_then(|t| serde_json::from_str::<Value>(&t).ok());
        let Some(old) = old else { return };
        for (arch, module) in &mut self.modules {
            if old["modules"][arch]["sha256"] == module["sha256"] {
                *module = old["modules"][arch].clone();
            }
        }
    }

    /// Entries of the module with the most.
    pub fn entries(&self) -> usize {
        self.modules.values().filter_map(|m| Some(m["entries"].as_object()?.len())).max().unwrap_or(0)
    }

    /// The file's text.
    pub fn text(&self) -> Outcome<String> {
        let all = json!({
            "compiler": wheels::NVRTC, "assembler": wheels::PTXAS, "sources": self.sources, "modules": self.modules,
        });
        serde_json::to_string_pretty(&all).map(|text| text + "\n").map_err(|e| e.to_string())
    }
}

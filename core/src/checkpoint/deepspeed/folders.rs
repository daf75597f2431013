//! Folders that training programs leave: DeepSpeed's with `latest`, Megatron's with its iteration.
//!
//! DeepSpeed: `latest` holds a tag; in the folder of that name lie `mp_rank_XX_model_states.pt`, one per
//! rank, and for mixtures of experts `*expert_E_mp_rank_XX_model_states.pt` with the experts' own tensors.
//! Megatron:
//! `latest_checkpointed_iteration.txt` holds a number N (or "release"); shards are
//! `iter_N/mp_rank_XX/model_optim_rng.pt` (older: `model_rng.pt`).

use super::files::Files;
use crate::file::open_regular;
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

const LATEST: &str = "latest";
const ITERATION: &str = "latest_checkpointed_iteration.txt";
/// Longest tag.
const MAX_TAG: usize = 256;

/// Whether DeepSpeed wrote a folder.
pub(in crate::checkpoint) fn is_deepspeed(folder: &Path) -> bool {
    folder.join(LATEST).is_file()
}

/// Whether Megatron wrote a folder.
pub(in crate::checkpoint) fn is_megatron(folder: &Path) -> bool {
    folder.join(ITERATION).is_file()
}

/// Whether a file is one that DeepSpeed writes into a tag's folder.
pub(in crate::checkpoint) fn is_of_tag(name: &str) -> bool {
    name.starts_with("mp_rank_") && name.ends_with("_model_states.pt")
}

impl Files {
    /// The files of DeepSpeed's folder, and the folder of the tag.
    pub(in crate::checkpoint) fn deepspeed(folder: &Path) -> Result<(Files, PathBuf)> {
        let tag = tag(&folder.join(LATEST))?;
        Self::tagged(folder.join(tag))
    }

    /// The files of one tag's folder, and that folder.
    pub(in crate::checkpoint) fn tagged(inside: PathBuf) -> Result<(Files, PathBuf)> {
        let names = names(&inside)?;
        let mut ranks: BTreeMap<usize, Vec<PathBuf>> = BTreeMap::new();
        for name in &names {
            let Some(stem) = name.strip_suffix("_model_states.pt") else { continue };
            if let Some(("" | "_", number)) =
                stem.rsplit_once("mp_rank_").map(|(before, n)| (if before.is_empty() { "" } else { "_" }, n))
                && let Ok(rank) = number.parse()
                && (stem.starts_with("mp_rank_") || stem.contains("expert_"))
            {
                ranks.entry(rank).or_default().push(inside.join(name));
            }
        }
        let place = inside.display().to_string();
        if ranks.is_empty() {
            let what = match names.iter().find(|n| n.starts_with("zero_pp_rank_") || n.starts_with("layer_"))
            {
                Some(n) if n.starts_with("zero") => format!(
                    "holds ZeRO-3 partitions ({n}) and no mp_rank_XX_model_states.pt; join them with DeepSpeed's zero_to_fp32.py"
                ),
                Some(n) => format!(
                    "holds pipeline layers ({n}), which are not supported; convert them to one state_dict"
                ),
                None => "holds no mp_rank_XX_model_states.pt".to_string(),
            };
            return Err(Error::format(place, what));
        }
        Ok((Files { whole: Vec::new(), ranks: gapless(&place, ranks)? }, inside))
    }

    /// The files of Megatron's folder, and the folder of the iteration.
    pub(in crate::checkpoint) fn megatron(folder: &Path) -> Result<(Files, PathBuf)> {
        let file = folder.join(ITERATION);
        let tag = tag(&file)?;
        let inside = match tag.parse::<u64>() {
            Ok(n) => folder.join(format!("iter_{n:07}")),
            Err(_) if tag == "release" => folder.join(tag),
            Err(_) => {
                let what = format!("is \"{tag}\"; an iteration or \"release\" is expected");
                return Err(Error::format(file.display().to_string(), what));
            }
        };
        let place = inside.display().to_string();
        let mut ranks: BTreeMap<usize, Vec<PathBuf>> = BTreeMap::new();
        for name in names(&inside)? {
            let Some(number) = name.strip_prefix("mp_rank_") else { continue };
            let Ok(rank) = number.parse() else {
                let what = format!(
                    "has {name}, a rank of a pipeline; only tensor-parallel ranks (mp_rank_XX) can be merged"
                );
                return Err(Error::format(place, what));
            };
            let shard = ["model_optim_rng.pt", "model_rng.pt"].map(|f| inside.join(&name).join(f));
            match shard.into_iter().find(|p| p.is_file()) {
                Some(path) => ranks.entry(rank).or_default().push(path),
                None => return Err(Error::format(place, format!("has {name} without model_optim_rng.pt"))),
            }
        }
        if ranks.is_empty() {
            return Err(Error::format(place, "holds no mp_rank_XX"));
        }
        Ok((Files { whole: Vec::new(), ranks: gapless(&place, ranks)? }, inside))
    }
}

/// Ranks 0, 1, 2, ... without a gap.
fn gapless(place: &str, ranks: BTreeMap<usize, Vec<PathBuf>>) -> Result<Vec<Vec<PathBuf>>> {
    match ranks.keys().enumerate().find(|(i, rank)| i != *rank) {
        Some((missing, _)) => Err(Error::format(place, format!("mp_rank_{missing:02} is missing"))),
        None => Ok(ranks.into_values().collect()),
    }
}

/// The one word that a file holds; it names a folder, so it may not lead anywhere else.
fn tag(file: &Path) -> Result<String> {
    let (open, _) = open_regular(file)?;
    let mut text = String::new();
    open.take(MAX_TAG as u64 + 16).read_to_string(&mut text).map_err(|e| Error::io(file, e))?;
    let tag = text.trim();
    let plain =
        !matches!(tag, "" | "." | "..") && !tag.contains(['/', '\\', ':', '\0']) && tag.len() <= MAX_TAG;
    if plain {
        return Ok(tag.to_owned());
    }
    let shown: String = tag.chars().take(40).collect();
    Err(Error::format(
        file.display().to_string(),
        format!("is \"{shown}\"; the name of a folder next to it is expected"),
    ))
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|e| Error::io(folder, e))? {
        if let Ok(name) = entry.map_err(|e| Error::io(folder, e))?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

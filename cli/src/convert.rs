//! `engraft convert`: a model in the own pre-sharded format.
//!
//! It is written to a folder next to the one that was asked for, brought to the disk, and renamed
//! (`unfinished.rs`): a folder of that name is a whole model, whatever happened on the way.

use super::args::{ConvertArgs, named_text, warn_of_coarse_groups};
use super::failure::Outcome;
use super::output::{Loading, bytes, emit, plural};
use super::unfinished::Unfinished;
use engraft::engraft_core::checkpoint::copy_companions;
use engraft::engraft_core::weights::convert::{ConvertOptions, convert_model};
use engraft::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

pub fn run(args: &ConvertArgs) -> Outcome {
    warn_of_coarse_groups(args.quantize);
    let registry = args.policies.registry()?;
    let files = named_text(&args.model)?.open()?;
    let (out, exists) = place(&args.out)?;
    let options = ConvertOptions { world: args.tp, quantize: args.quantize };
    let mut loading = Loading::default();
    let mut progress = |done, total| loading.show(done, total);
    let aside = Unfinished::new(&out)?;
    copy_companions(&files, aside.path())?;
    let done = convert_model(&files, &registry, aside.path(), options, &mut progress)?;
    aside.publish(&out, exists)?;
    let ranks = plural(args.tp, "rank");
    emit(&format!("{}: {} operands for {ranks}, {}\n", args.out.display(), done.operands, bytes(done.bytes)))
}

/// Where the model goes, and whether there is an empty folder. A link stands for its folder: no other folder
/// can take the link's own place.
fn place(out: &Path) -> Result<(PathBuf, bool)> {
    let no = |got: String| Error::config("--out", got, "an empty or new folder");
    if !out.exists() {
        return match out.symlink_metadata() {
            Ok(_) => Err(no(format!("{}, a link to nothing", out.display()))),
            Err(_) => Ok((out.to_owned(), false)),
        };
    }
    let io = |e| Error::io(out, e);
    match fs::read_dir(out).map_err(io)?.next() {
        Some(_) => Err(no(out.display().to_string())),
        None => Ok((fs::canonicalize(out).map_err(io)?, true)),
    }
}

//! `engraft convert`: a model in the own pre-sharded format.
//!
//! It is written to a folder next to the one that was asked for, brought to the disk, and renamed: a folder
//! of that name is a whole model, whatever happened on the way.

use super::args::{ConvertArgs, named, warn_of_coarse_groups};
use super::failure::Outcome;
use super::output::{Loading, bytes, emit, plural};
use engraft::engraft_core::checkpoint::copy_companions;
use engraft::engraft_core::weights::convert::{ConvertOptions, convert_model};
use engraft::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

pub fn run(args: &ConvertArgs) -> Outcome {
    warn_of_coarse_groups(args.quantize);
    let registry = args.policies.registry()?;
    let files = named(&args.model)?.open()?;
    let exists = args.out.exists();
    if exists && fs::read_dir(&args.out).map_err(|e| Error::io(&args.out, e))?.next().is_some() {
        return Err(Error::config("--out", args.out.display(), "an empty or new folder").into());
    }
    let options = ConvertOptions { world: args.tp, quantize: args.quantize };
    let mut loading = Loading::default();
    let mut progress = |done, total| loading.show(done, total);
    let aside = Aside::new(&args.out)?;
    copy_companions(&files, &aside.0)?;
    let done = convert_model(&files, &registry, &aside.0, options, &mut progress)?;
    aside.publish(&args.out, exists)?;
    let ranks = plural(args.tp, "rank");
    emit(&format!("{}: {} operands for {ranks}, {}\n", args.out.display(), done.operands, bytes(done.bytes)))
}

/// A folder next to the one that is asked for; gone with its content unless it is published.
struct Aside(PathBuf);

impl Aside {
    fn new(out: &Path) -> Result<Self> {
        let mut name = out.components().as_path().as_os_str().to_owned();
        name.push(format!(".partial-{}", std::process::id()));
        let path = PathBuf::from(name);
        fs::create_dir_all(&path).map_err(|e| Error::io(&path, e))?;
        Ok(Aside(path))
    }

    /// Brings every file to the disk and gives the folder its name.
    fn publish(self, out: &Path, exists: bool) -> Result<()> {
        for entry in fs::read_dir(&self.0).map_err(|e| Error::io(&self.0, e))? {
            let path = entry.map_err(|e| Error::io(&self.0, e))?.path();
            let file = fs::OpenOptions::new().append(true).open(&path);
            file.and_then(|file| file.sync_all()).map_err(|e| Error::io(&path, e))?;
        }
        if exists {
            fs::remove_dir(out).map_err(|e| Error::io(out, e))?;
        }
        fs::rename(&self.0, out).map_err(|e| Error::io(out, e))
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        // After publishing there is none; else what is left is half a model.
        let _ = fs::remove_dir_all(&self.0);
    }
}

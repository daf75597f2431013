//! `engraft convert`: a model in the own pre-sharded form.

use super::args::{ConvertArgs, named, registry};
use super::failure::Outcome;
use super::output::{Loading, bytes, emit, plural};
use engraft::Error;
use engraft::core::checkpoint::copy_companions;
use engraft::core::weights::convert::{ConvertOptions, convert_model};

pub fn run(args: &ConvertArgs) -> Outcome {
    let registry = registry(&args.policy)?;
    let files = named(&args.model).open()?;
    std::fs::create_dir_all(&args.out).map_err(|e| Error::io(&args.out, e))?;
    let mut inside = std::fs::read_dir(&args.out).map_err(|e| Error::io(&args.out, e))?;
    if inside.next().is_some() {
        return Err(Error::config("--out", args.out.display(), "an empty or new folder").into());
    }
    let options = ConvertOptions { world: args.tp, quantize: args.quantize };
    let mut loading = Loading::default();
    let mut progress = |done, total| loading.show(done, total);
    copy_companions(&files, &args.out)?;
    let done = convert_model(&files, &registry, &args.out, options, &mut progress)?;
    let ranks = plural(args.tp, "rank");
    emit(&format!("{}: {} operands for {ranks}, {}\n", args.out.display(), done.operands, bytes(done.bytes)))
}

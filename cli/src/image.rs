//! `engraft image`: a prompt in, PNG files out.

use super::args::ImageArgs;
use super::failure::{Failure, Outcome};
use super::output::{emit, emit_bytes, note, plural};
use engraft::engraft_core::{checkpoint::Access, file};
use engraft::engraft_diffusion::engraft_image::{
    self, Class, Mask, Picture, PictureLimits, SchedulerConfig, skipped_steps,
};
use engraft::engraft_diffusion::{Control, ImageRequest, Init, Noise, Outline, Seeded, StoredNoise};
use engraft::{DeepSpeedConfigBuilder, Error, Float, ImageGenerator, ImageOptions, named_scheduler};
use indicatif::{ProgressBar, ProgressStyle};
use std::hash::{BuildHasher, RandomState};
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The side of pictures of a model whose files say none.
const SIDE: usize = 512;

/// Standard output as a place.
const STDOUT: &str = "-";

pub fn run(args: &ImageArgs) -> Outcome {
    check_name(args)?;
    // What is wrong with a picture or a place is said before the model is read.
    let init = args.init.as_deref().map(read).transpose()?;
    let mask = args.mask.as_deref().map(|path| read_by(path, engraft_image::decode_mask)).transpose()?;
    let control = args.control.as_deref().map(read).transpose()?;
    check_place(&args.out)?;
    let (mut noise, of_noise) = noise(args)?;
    let options = options(args)?;
    let (mut model, request) = open(args, &options, Given { init, mask, control })?;
    let (began, bar) = (Instant::now(), bar());
    let mut pace = Pace { steps: 0, ended: None };
    let images = model.generate_until(&request, noise.as_mut(), |progress| {
        pace.step(progress.of);
        bar.set_length(progress.of as u64);
        bar.set_position(progress.done as u64);
        ControlFlow::Continue(())
    })?;
    let images = images.ok_or_else(|| Error::internal("a run without an end that nothing ended"))?;
    let pace_said = pace.text();
    bar.finish_and_clear();
    for (text, tokens) in &images.shortened {
        let begin: String = text.chars().take(40).collect();
        note(&format!("warning: of \"{begin}...\" the first {tokens} tokens are read"));
    }
    for field in &images.unused {
        note(&format!("warning: {field} counts for nothing without guidance"));
    }
    let ImageRequest { width, height, .. } = request;
    for (i, rgb) in images.rgb.iter().enumerate() {
        let place = place(&args.out, i, images.rgb.len());
        write(&place, &engraft_image::encode_png(rgb, width, height).map_err(|e| in_file(&place, &e))?)?;
    }
    let seconds = began.elapsed().as_secs_f64();
    let steps = plural(steps_asked(&request, &model, pace.steps)?, "step");
    note(&format!("{width} x {height}, {steps}, {of_noise}, {seconds:.1} s{pace_said}"));
    Ok(())
}

/// Where noise comes from, and how that is said.
fn noise(args: &ImageArgs) -> Result<(Box<dyn Noise>, String), Failure> {
    if let Some(file) = &args.noise {
        return Ok((Box::new(StoredNoise::open(file)?), format!("noise of {}", file.display())));
    }
    let seed = args.seed.unwrap_or_else(fresh_seed);
    Ok((Box::new(Seeded(seed)), format!("seed {seed}")))
}

/// The model and what is asked of it: what cannot be is refused before a weight is read, as far as that is
/// known by then.
fn open(
    args: &ImageArgs,
    options: &ImageOptions,
    given: Given,
) -> Result<(ImageGenerator, ImageRequest), Failure> {
    let (mut given, mut asked, mut misused) = (Some(given), None, None);
    let model = ImageGenerator::open_for(&args.model, options, |outline| {
        let Some(given) = given.take() else { return Err(Error::internal("a pipeline is opened twice")) };
        match request(args, outline, given) {
            Ok(request) => outline.check(asked.insert(request)),
            Err(failure) => {
                misused = Some(failure);
                Err(Error::internal("the command line is wrong"))
            }
        }
    });
    match (model, asked, misused) {
        (_, _, Some(failure)) => Err(failure),
        (Ok(model), Some(request), None) => Ok((model, request)),
        (Ok(_), None, None) => Err(Error::internal("a pipeline without an outline").into()),
        (Err(error), ..) => Err(error.into()),
    }
}

/// How long the parts of a run take. Its first step is left out: texts are read, and on GPUs steps captured,
/// before it ends.
struct Pace {
    /// How often the model is called in all.
    steps: usize,
    /// When the first call and the last one so far ended, and how many came between them.
    ended: Option<(Instant, Instant, u32)>,
}

impl Pace {
    /// A step has ended, of so many.
    fn step(&mut self, of: usize) {
        let now = Instant::now();
        self.steps = of;
        self.ended = Some(self.ended.map_or((now, now, 0), |(first, _, more)| (first, now, more + 1)));
    }

    /// What is said when the pictures are there.
    fn text(&self) -> String {
        let Some((first, last, more)) = self.ended else { return String::new() };
        let decode = last.elapsed().as_secs_f64();
        let step = match more {
            0 => String::new(),
            _ => format!("{:.3} s a step, ", (last - first).as_secs_f64() / f64::from(more)),
        };
        format!(" ({step}{decode:.3} s to decode)")
    }
}

/// What the flags say of where and how pictures are computed.
fn options(args: &ImageArgs) -> Result<ImageOptions, Failure> {
    let options = ImageOptions {
        backend: args.backend.clone(),
        threads: args.threads,
        dtype: args.dtype.unwrap_or(Float::F32),
        access: if args.no_mmap { Access::Read } else { Access::default() },
        loras: args.lora.clone(),
        controlnet: args.controlnet.clone(),
        without: args.without.clone(),
        vae_tiling: args.vae_tiling,
        ..ImageOptions::default()
    };
    let mut options = configured(args, options)?;
    options.graphs &= !args.no_graphs;
    Ok(options)
}

/// The steps that were asked for, of a run that called the model so many times: PNDM's first step calls it
/// more often.
fn steps_asked(request: &ImageRequest, model: &ImageGenerator, calls: usize) -> Result<usize, Failure> {
    if request.scheduler.as_ref().unwrap_or(model.scheduler()).class() != Class::Pndm {
        return Ok(calls);
    }
    let steps = request.steps.unwrap_or(model.defaults().steps);
    let skipped = request.init.as_ref().map(|init| skipped_steps(steps, init.strength)).transpose();
    let skipped = skipped.map_err(|e| Error::internal(e.to_string()))?.unwrap_or(0);
    Ok(calls.min(steps - skipped))
}

/// Writes a picture, and where it is.
fn write(place: &Path, png: &[u8]) -> Outcome {
    if place == Path::new(STDOUT) {
        return emit_bytes(png);
    }
    std::fs::write(place, png).map_err(|e| Error::io(place, e))?;
    emit(&format!("{}\n", place.display()))
}

/// Refuses several pictures on standard output, and warns of a name that a PNG file has not.
fn check_name(args: &ImageArgs) -> Outcome {
    let (out, count) = (&args.out, args.prompt.len());
    match (out == Path::new(STDOUT), count) {
        (true, 1) => Ok(()),
        (true, _) => {
            let what = format!("--out -: standard output takes one picture, and there are {count}");
            Err(Failure::Usage(format!("{what}: name a file, which becomes NAME-1.png, NAME-2.png, ...")))
        }
        // Of several pictures names end so anyway.
        (false, 1) if !out.extension().is_some_and(|end| end.eq_ignore_ascii_case("png")) => {
            note(&format!("warning: {} does not end in .png; a PNG file is written", out.display()));
            Ok(())
        }
        (false, _) => Ok(()),
    }
}

/// What a DeepSpeed configuration makes of the options; a type on the command line counts before.
fn configured(args: &ImageArgs, options: ImageOptions) -> Result<ImageOptions, Failure> {
    let Some(file) = &args.config else { return Ok(options) };
    let no = |error: Error| match error {
        Error::Config { .. } => Error::format(file.display().to_string(), error.to_string()),
        other => other,
    };
    let read = DeepSpeedConfigBuilder::new().file(file).and_then(DeepSpeedConfigBuilder::check);
    let (config, mut warnings) = read.map_err(no)?;
    let (mut options, others) = options.deepspeed(&config).map_err(no)?;
    warnings.extend(others);
    warnings.iter().for_each(|warning| note(&format!("warning: {warning}")));
    if let Some(dtype) = args.dtype.filter(|dtype| *dtype != options.dtype) {
        let (own, file) = (options.dtype, file.display());
        note(&format!("warning: --dtype {dtype} counts before `dtype` {own} of {file}"));
        options.dtype = dtype;
    }
    Ok(options)
}

/// The pictures that are given.
struct Given {
    init: Option<Picture>,
    mask: Option<Mask>,
    control: Option<Picture>,
}

/// What the flags ask for, at the size of a picture that is given, else at the model's.
fn request(
    args: &ImageArgs,
    model: &Outline,
    Given { init, mask, control }: Given,
) -> Result<ImageRequest, Failure> {
    let side = model.side.unwrap_or(SIDE);
    let own = init.as_ref().or(control.as_ref()).map(|picture| (picture.width, picture.height));
    let (width, height) = args.size.or(own).unwrap_or((side, side));
    let of = |picture: &Picture| (picture.width, picture.height);
    let of_mask = mask.as_ref().map(|mask| (mask.width, mask.height));
    let given =
        [("--init", init.as_ref().map(of)), ("--mask", of_mask), ("--control", control.as_ref().map(of))];
    for (flag, size) in given {
        if let Some((columns, lines)) = size.filter(|size| *size != (width, height)) {
            let what = format!("{flag} is {columns} x {lines}, the result {width} x {height}");
            return Err(Failure::Usage(format!("{what}: give a picture of that size")));
        }
    }
    let mask = mask.map(|mask| mask.values);
    Ok(ImageRequest {
        prompts: args.prompt.clone(),
        negative: (!args.negative.is_empty()).then(|| args.negative.clone()),
        steps: args.steps,
        guidance: args.guidance,
        true_guidance: args.true_guidance,
        text_tokens: args.text_tokens,
        instruction: args.instruction.clone(),
        guidance_rescale: args.guidance_rescale,
        clip_skip: args.clip_skip,
        scheduler: scheduler(args, &model.scheduler)?,
        init: init.map(|Picture { rgb, .. }| Init { rgb, strength: args.strength, mask }),
        control: control
            .map(|Picture { rgb, .. }| Control { scale: args.control_scale, ..Control::new(rgb) }),
        width,
        height,
        ..ImageRequest::new("")
    })
}

/// A bar where a terminal shows it.
fn bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} {bar:32} {pos}/{len} {eta}");
    ProgressBar::new(0)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message("steps")
}

fn in_file(file: &Path, error: &engraft_image::Error) -> Error {
    Error::format(file.display().to_string(), error.to_string())
}

/// The picture of a file.
fn read(path: &Path) -> Result<Picture, Failure> {
    read_by(path, engraft_image::decode)
}

/// What a decoder makes of a file.
fn read_by<T>(
    path: &Path,
    decode: impl Fn(&[u8], PictureLimits) -> engraft_image::Result<T>,
) -> Result<T, Failure> {
    let limits = PictureLimits::default();
    let bytes = file::whole(path, limits.bytes as u64)?;
    Ok(decode(&bytes, limits).map_err(|e| in_file(path, &e))?)
}

/// Refuses a place that nothing can be written to.
fn check_place(out: &Path) -> Outcome {
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (folder.is_dir(), out.is_dir()) {
        (false, _) => Err(Failure::Usage(format!("--out {}: there is no such folder", out.display()))),
        (_, true) => Err(Failure::Usage(format!("--out {}: is a folder; a file is expected", out.display()))),
        _ => Ok(()),
    }
}

/// Where picture `i` of `count` goes.
fn place(out: &Path, i: usize, count: usize) -> PathBuf {
    if count == 1 {
        return out.to_owned();
    }
    let stem = out.file_stem().map_or(String::new(), |stem| stem.to_string_lossy().into_owned());
    out.with_file_name(format!("{stem}-{}.png", i + 1))
}

/// The scheduler that is named, with the settings of the folder's.
fn scheduler(args: &ImageArgs, own: &SchedulerConfig) -> Result<Option<SchedulerConfig>, Failure> {
    let Some(name) = &args.scheduler else { return Ok(None) };
    let other = named_scheduler(own, name);
    Ok(Some(other.map_err(|e| Failure::Usage(format!("--scheduler {name}: {e}")))?))
}

/// A seed for this run.
fn fresh_seed() -> u64 {
    u64::from(RandomState::new().hash_one(0) as u32)
}

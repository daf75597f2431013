//! `engraft transcribe`: a file of sound in, its text out as it is heard.

use super::args::{Threshold, TranscribeArgs, TranscribeTask};
use super::failure::{Failure, Outcome};
use super::generate::introduce;
use super::input;
use super::output::{emit, note};
use engraft::engraft_audio::{Format, Limits, Segment, Sound, decode};
use engraft::{Error, SpeechOptions, Task, Transcriber};
use std::path::Path;

/// Bytes of a sound: a WAV file can say no greater length.
const MOST: u64 = 4 << 30;

pub fn run(args: &TranscribeArgs) -> Outcome {
    if args.model.is_demo() {
        return Err(Failure::Usage("the demo model reads no sound; -m names a model that does".into()));
    }
    // What is wrong with the file is said before the model is read.
    let sound = read(&args.file)?;
    let model = Transcriber::new(args.model.open()?)?;
    introduce(model.model(), &args.model);
    let options = options(args);
    let duration = sound.seconds();
    let mut heard = model.transcribe(sound, &options)?;
    let mut all: Vec<Segment> = Vec::new();
    emit(args.format.head())?;
    while let Some(segment) = heard.next().transpose()? {
        emit(&args.format.segment(all.len(), &segment))?;
        all.push(segment);
    }
    let language = heard.language();
    if args.format == Format::Json {
        emit(&args.format.whole(&all, language.as_deref(), duration))?;
    }
    if all.is_empty() {
        note(&format!("nothing was heard in {duration:.1} s"));
    }
    Ok(())
}

/// What is asked for; what is not said is the library's.
fn options(args: &TranscribeArgs) -> SpeechOptions {
    let mut options = SpeechOptions::new().timestamps(!args.no_timestamps).prompt(&args.prompt);
    if let Some(task) = args.task {
        options = options.task(match task {
            TranscribeTask::Transcribe => Task::Transcribe,
            TranscribeTask::Translate => Task::Translate,
        });
    }
    if let Some(language) = &args.language {
        options = options.language(language);
    }
    if args.no_previous_text {
        options = options.condition_on_previous_text(false);
    }
    if !args.temperature.is_empty() {
        options = options.temperatures(args.temperature.iter().copied());
    }
    if let Some(Threshold(most)) = args.compression_ratio_threshold {
        options = options.compression_ratio_threshold(most);
    }
    if let Some(Threshold(least)) = args.logprob_threshold {
        options = options.logprob_threshold(least);
    }
    if let Some(Threshold(most)) = args.no_speech_threshold {
        options = options.no_speech_threshold(most);
    }
    if let Some(seed) = args.seed {
        options = options.seed(seed);
    }
    options
}

/// The sound of a file, a pipe or standard input.
fn read(path: &Path) -> Result<Sound, Failure> {
    if path != Path::new("-") {
        no_device(path)?;
    }
    let bytes = input::whole(path, MOST)?;
    let named = |e: engraft::engraft_audio::Error| Error::format(path.display().to_string(), e.to_string());
    let sound = decode(bytes, Limits::default()).map_err(named)?;
    if sound.missing > 0.0 {
        // In milliseconds that have begun.
        let missing = (sound.missing * 1e3).ceil() / 1e3;
        let what = format!("is not whole: {missing:.3} s that its header announces are missing");
        note(&format!("warning: {} {what}", path.display()));
    }
    Ok(sound)
}

/// Refuses a device, which may have no end: sounds may be as long as memory.
#[cfg(unix)]
fn no_device(path: &Path) -> Outcome {
    use std::os::unix::fs::FileTypeExt;
    let kind = std::fs::metadata(path).map_err(|e| Error::io(path, e))?.file_type();
    if kind.is_char_device() || kind.is_block_device() {
        let what = "is a device; a file or a pipe is expected";
        return Err(Error::format(path.display().to_string(), what).into());
    }
    Ok(())
}

/// Only Unix has devices among its files.
#[cfg(not(unix))]
fn no_device(_: &Path) -> Outcome {
    Ok(())
}

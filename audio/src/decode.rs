//! WAV and FLAC to samples.

use crate::header;
use crate::{Error, Result};
use std::any::Any;
use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use symphonia::core::audio::SampleBuffer;
use symphonia::core::codecs::{CODEC_TYPE_FLAC, DecoderOptions};
use symphonia::core::errors::Error as Symphonia;
use symphonia::core::formats::FormatOptions;
use symphonia::core::io::MediaSourceStream;
use symphonia::core::meta::MetadataOptions;
use symphonia::core::probe::Hint;

/// What a sound may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Seconds at most.
    pub seconds: f64,
    /// Samples of a channel at most.
    pub samples: usize,
    /// Channels at most.
    pub channels: usize,
}

impl Default for Limits {
    /// Four hours, at the rate of studios where it is higher; as many channels as a room's microphones.
    fn default() -> Self {
        Self { seconds: 4.0 * 3600.0, samples: 4 * 3600 * 48_000, channels: 32 }
    }
}

/// Rates that a file may have, in hertz.
const RATES: std::ops::RangeInclusive<u32> = 1_000..=768_000;

/// One channel of samples in -1..=1.
#[derive(Debug, Clone, PartialEq)]
pub struct Sound {
    /// Samples of a second.
    pub rate: u32,
    /// The samples.
    pub samples: Vec<f32>,
    /// Seconds that the file's header announces and that are not there: the file is not whole.
    pub missing: f64,
}

impl Sound {
    /// A sound of which nothing is missing.
    pub fn new(rate: u32, samples: Vec<f32>) -> Self {
        Self { rate, samples, missing: 0.0 }
    }

    /// Length in seconds.
    pub fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(self.rate)
    }
}

/// Decodes a WAV file (integers of 8 to 32 bits, floats) or a FLAC file; several channels become their mean.
/// Memory grows with what is there, not with what a header announces. A file that ends before its header
/// says is decoded as far as it goes, and [`Sound::missing`] says what is not there; lengths of writers that
/// do not know them (0, 2 GiB and more of WAV) announce nothing.
///
/// # Errors
/// `Decode` for what is neither, is damaged, or has no samples; `Limit` for a sound that is too long, of a
/// rate or with channels beyond what is possible.
///
/// ```
/// let error = engraft_audio::decode(b"no sound".to_vec(), engraft_audio::Limits::default()).unwrap_err();
/// assert!(error.to_string().starts_with("the sound cannot be decoded"));
/// ```
pub fn decode(bytes: Vec<u8>, limits: Limits) -> Result<Sound> {
    let (bytes, header) = header::bare(bytes)?;
    if let Some(header) = &header {
        check_rate(header.rate)?;
        check_channels(header.channels, limits)?;
    }
    // The decoder panics at some headers: of FLAC at a rate of 0.
    let decoded = catch_unwind(AssertUnwindSafe(|| read(bytes, limits)));
    let (samples, rate, frames) = decoded.unwrap_or_else(|panic| {
        Err(Error::Decode(format!("its header is impossible ({})", said(&*panic))))
    })?;
    let announced = header.map_or(frames, |header| header.frames).unwrap_or_default();
    let missing = announced.saturating_sub(samples.len() as u64) as f64 / f64::from(rate);
    match samples.iter().position(|sample| !sample.is_finite()) {
        _ if samples.is_empty() => Err(Error::Decode("it has no samples".into())),
        Some(at) => Err(Error::Decode(format!("sample {at} is {}", samples[at]))),
        None => Ok(Sound { missing, ..Sound::new(rate, samples) }),
    }
}

/// What a panic said.
fn said(panic: &dyn Any) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("the decoder panicked")
}

fn check_rate(rate: u32) -> Result<()> {
    match RATES.contains(&rate) {
        true => Ok(()),
        false => {
            let allowed = format!("{} to {} Hz", RATES.start(), RATES.end());
            Err(Error::limit("the sample rate", rate, allowed))
        }
    }
}

fn check_channels(channels: usize, limits: Limits) -> Result<()> {
    match (1..=limits.channels).contains(&channels) {
        true => Ok(()),
        false => Err(Error::limit("the number of channels", channels, format!("1 to {}", limits.channels))),
    }
}

/// Samples, their rate, and how many the header announces.
fn read(bytes: Vec<u8>, limits: Limits) -> Result<(Vec<f32>, u32, Option<u64>)> {
    let stream = MediaSourceStream::new(Box::new(Cursor::new(bytes)), Default::default());
    let (format, metadata) = (FormatOptions::default(), MetadataOptions::default());
    let probed = symphonia::default::get_probe().format(&Hint::new(), stream, &format, &metadata);
    let mut format = probed.map_err(|e| Error::Decode(format!("neither WAV nor FLAC ({e})")))?.format;
    let track = format.default_track().ok_or_else(|| Error::Decode("no track of sound".into()))?;
    let (id, params) = (track.id, track.codec_params.clone());
    let rate = params.sample_rate.ok_or_else(|| Error::Decode("no sample rate".into()))?;
    check_rate(rate)?;
    let decoder = symphonia::default::get_codecs().make(&params, &DecoderOptions::default());
    let mut decoder = decoder.map_err(|e| Error::Decode(e.to_string()))?;
    let mut samples: Vec<f32> = Vec::new();
    loop {
        let packet = match format.next_packet() {
            Ok(packet) => packet,
            Err(Symphonia::IoError(e)) if e.kind() == std::io::ErrorKind::UnexpectedEof => break,
            Err(e) => return Err(Error::Decode(e.to_string())),
        };
        if packet.track_id() != id {
            continue;
        }
        let decoded = decoder.decode(&packet).map_err(|e| Error::Decode(e.to_string()))?;
        let channels = decoded.spec().channels.count();
        check_channels(channels, limits)?;
        let mut buffer = SampleBuffer::<f32>::new(decoded.capacity() as u64, *decoded.spec());
        buffer.copy_interleaved_ref(decoded);
        let frames = buffer.samples().chunks_exact(channels);
        samples.extend(frames.map(|frame| frame.iter().sum::<f32>() / channels as f32));
        check_length(samples.len(), rate, limits)?;
    }
    // That of WAV is read from the header, which knows lengths that mean none.
    Ok((samples, rate, params.n_frames.filter(|_| params.codec == CODEC_TYPE_FLAC)))
}

fn check_length(samples: usize, rate: u32, limits: Limits) -> Result<()> {
    if samples > limits.samples {
        let (got, allowed) = (format!("longer than {} samples", limits.samples), limits.samples);
        return Err(Error::limit("the sound", got, format!("at most {allowed} samples")));
    }
    if samples > (limits.seconds * f64::from(rate)) as usize {
        let (got, allowed) = (format!("longer than {} s", limits.seconds), limits.seconds);
        return Err(Error::limit("the sound", got, format!("at most {allowed} s")));
    }
    Ok(())
}

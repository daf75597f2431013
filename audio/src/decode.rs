//! WAV and FLAC to samples.

use crate::{Error, Result};
use std::io::Cursor;
use symphonia::core::audio::SampleBuffer;
use symphonia::core::codecs::DecoderOptions;
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
}

impl Sound {
    /// Length in seconds.
    pub fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(self.rate)
    }
}

/// Decodes a WAV file (integers of 8 to 32 bits, floats) or a FLAC file; several channels become their mean.
/// Memory grows with what is there, not with what a header announces.
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
    let stream = MediaSourceStream::new(Box::new(Cursor::new(bytes)), Default::default());
    let (format, metadata) = (FormatOptions::default(), MetadataOptions::default());
    let probed = symphonia::default::get_probe().format(&Hint::new(), stream, &format, &metadata);
    let mut format = probed.map_err(|e| Error::Decode(format!("neither WAV nor FLAC ({e})")))?.format;
    let track = format.default_track().ok_or_else(|| Error::Decode("no track of sound".into()))?;
    let (id, params) = (track.id, track.codec_params.clone());
    let rate = params.sample_rate.ok_or_else(|| Error::Decode("no sample rate".into()))?;
    if !RATES.contains(&rate) {
        return Err(Error::limit(
            "the sample rate",
            rate,
            format!("{} to {} Hz", RATES.start(), RATES.end()),
        ));
    }
    let decoder = symphonia::default::get_codecs().make(&params, &DecoderOptions::default());
    let mut decoder = decoder.map_err(|e| Error::Decode(e.to_string()))?;
    let most = (limits.seconds * f64::from(rate)) as usize;
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
        if channels == 0 || channels > limits.channels {
            let allowed = format!("1 to {}", limits.channels);
            return Err(Error::limit("the number of channels", channels, allowed));
        }
        let mut buffer = SampleBuffer::<f32>::new(decoded.capacity() as u64, *decoded.spec());
        buffer.copy_interleaved_ref(decoded);
        let frames = buffer.samples().chunks_exact(channels);
        samples.extend(frames.map(|frame| frame.iter().sum::<f32>() / channels as f32));
        if samples.len() > limits.samples {
            let allowed = format!("at most {} samples", limits.samples);
            return Err(Error::limit(
                "the sound",
                format!("longer than {} samples", limits.samples),
                allowed,
            ));
        }
        if samples.len() > most {
            let allowed = format!("at most {} s", limits.seconds);
            return Err(Error::limit("the sound", format!("longer than {} s", limits.seconds), allowed));
        }
    }
    match samples.iter().position(|sample| !sample.is_finite()) {
        _ if samples.is_empty() => Err(Error::Decode("it has no samples".into())),
        Some(at) => Err(Error::Decode(format!("sample {at} is {}", samples[at]))),
        None => Ok(Sound { rate, samples }),
    }
}

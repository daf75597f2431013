//! Files of sound: WAV and FLAC. What is decoded is resampled, too, where it is short.

use crate::folder::plain;
use engraft_audio::{Limits, decode};
use engraft_core::{Error, Result};
use std::path::Path;

/// Small enough that a file of constant samples, which FLAC stores in a few bytes, ends at its limit.
const LIMITS: Limits = Limits { seconds: 60.0, samples: 1 << 18, channels: 8 };
/// Samples that are resampled, of rates that are a multiple of this: others take millions of weights.
const RESAMPLED: (usize, u32) = (2048, 50);
/// A rate of models.
const RATE: u32 = 16_000;

pub const WORDS: &[&str] = &[
    "RIFF",
    "RIFX",
    "RF64",
    "WAVE",
    "fmt ",
    "data",
    "LIST",
    "INFO",
    "fact",
    "ID3\u{4}",
    "fLaC",
    "\u{0}\u{0}\u{0}\u{22}",
    "\u{4}\u{0}\u{0}\u{20}",
    "\u{6}\u{0}\u{0}\u{20}",
    "\u{1}\u{0}\u{1}\u{0}",
    "\u{3}\u{0}\u{1}\u{0}",
    "\u{0}\u{0}\u{0}\u{0}",
    "\u{10}\u{0}\u{0}\u{0}",
];

/// What a WAV file says of its samples: format tag, channels, rate, bits.
type Head = (u16, u16, u32, u16);

/// A WAV file with chunks in front of its samples.
fn wav((tag, channels, rate, bits): Head, chunks: &[u8], length: u32, data: &[u8]) -> Vec<u8> {
    let frame = channels.wrapping_mul(bits.div_ceil(8));
    [
        &b"RIFF"[..],
        &(36 + chunks.len() as u32).wrapping_add(length).to_le_bytes(),
        b"WAVEfmt \x10\0\0\0",
        &[tag, channels].map(u16::to_le_bytes).concat(),
        &[rate, rate.wrapping_mul(u32::from(frame))].map(u32::to_le_bytes).concat(),
        &[frame, bits].map(u16::to_le_bytes).concat(),
        chunks,
        b"data",
        &length.to_le_bytes(),
        data,
    ]
    .concat()
}

fn flac() -> Result<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../audio/tests/tone.flac");
    std::fs::read(&path).map_err(|e| Error::io(&path, e))
}

pub fn seeds() -> Result<Vec<Vec<u8>>> {
    let whole = |head: Head, bytes: usize| wav(head, b"", bytes as u32, &vec![7; bytes]);
    let floats: Vec<u8> = [-0.5f32, 0.25].repeat(8).into_iter().flat_map(f32::to_le_bytes).collect();
    let info = b"LIST\x10\0\0\0INFOISFT\x04\0\0\0abc\0";
    Ok(vec![
        whole((1, 1, 16_000, 16), 64),
        whole((1, 2, 44_100, 24), 96),
        whole((1, 1, 8_000, 8), 33),
        wav((3, 1, 22_050, 32), info, floats.len() as u32, &floats),
        flac()?,
    ])
}

/// Sizes, rates and numbers of channels that cannot be, chunks that are longer than their file.
pub fn hostile() -> Vec<Vec<u8>> {
    let zeros = [0; 64];
    let list = |length: u32| [&b"LIST"[..], &length.to_le_bytes(), b"INFOISFT\xff\xff\xff\xff"].concat();
    let pages = |block: [u8; 4]| [&b"fLaC"[..], &block, &[0xff; 34]].concat();
    let mut all = vec![
        wav((1, 1, 0, 16), b"", 64, &zeros),
        wav((1, 0, 16_000, 16), b"", 64, &zeros),
        wav((1, u16::MAX, 16_000, 16), b"", 64, &zeros),
        wav((1, 1, u32::MAX, u16::MAX), b"", 64, &zeros),
        wav((3, 1, 16_000, 64), b"", u32::MAX, &zeros),
        wav((0xfffe, 8, 16_000, 32), b"", 64, &zeros),
        wav((17, 2, 16_000, 4), b"", 64, &zeros),
        wav((1, 1, 16_000, 16), &list(u32::MAX), 64, &zeros),
        wav((1, 1, 16_000, 16), &list(20), 64, &zeros),
        wav((1, 1, 16_000, 16), &b"junk\0\0\0\0".repeat(20_000), 64, &zeros),
        pages([0, 0, 0, 34]),
        // A picture and a comment of 16 MB that are not there.
        pages([6, 0xff, 0xff, 0xff]),
        pages([4, 0xff, 0xff, 0xff]),
        b"ID3\x04\0\0\x7f\x7f\x7f\x7f".to_vec(),
    ];
    if let Ok(tone) = flac() {
        let mut of_rate_0 = tone.clone();
        of_rate_0[18..20].fill(0);
        of_rate_0[20] &= 0x0f;
        let mut large_blocks = tone;
        large_blocks[8..12].fill(0xff);
        all.extend([of_rate_0, large_blocks]);
    }
    all
}

pub fn read(input: Vec<u8>) -> bool {
    match decode(input, LIMITS) {
        Err(error) => {
            plain(&error.to_string());
            false
        }
        Ok(sound) => {
            assert!(
                !sound.samples.is_empty() && sound.samples.len() <= LIMITS.samples,
                "{}",
                sound.samples.len()
            );
            assert!(sound.missing >= 0.0 && sound.samples.iter().all(|x| x.is_finite()));
            if sound.samples.len() <= RESAMPLED.0 && sound.rate.is_multiple_of(RESAMPLED.1) {
                match sound.at(RATE) {
                    Ok(other) => assert_eq!(other.rate, RATE),
                    Err(error) => plain(&error.to_string()),
                }
            }
            true
        }
    }
}

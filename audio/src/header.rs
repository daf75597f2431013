//! What headers say, where the decoder would panic or keep it to itself, and files without what is no sound.
//!
//! The decoder allocates names, comments and pictures by the lengths that their headers announce: 4 GB for a
//! file of a hundred bytes, which ends a process that may not have as much. None of it is needed, so the
//! decoder gets none.

use crate::{Error, Result};
use std::ops::Range;

/// Lengths from here on are those of writers to a pipe, which do not know theirs.
const UNKNOWN: u32 = 0x7fff_0000;

/// Bytes in front of a chunk's content: its name and its length.
const CHUNK: usize = 8;
/// Bytes of a format's chunk at most; the longest that is known has 50.
const MOST_FORMAT: usize = 128;
/// Bytes of FLAC's first block, which says what all frames are, and of what stands in front of each block.
const STREAM_INFO: usize = 34;
const BLOCK: usize = 4;
/// Marks the last block in front of the frames.
const LAST: u8 = 0x80;

/// The header of a WAV file.
#[derive(Debug, Clone, PartialEq)]
pub struct WavHeader {
    /// Channels.
    pub channels: usize,
    /// Samples of a second.
    pub rate: u32,
    /// Samples of a channel; none where the header does not say.
    pub frames: Option<u64>,
    /// Where the chunk of its format lies.
    format: Range<usize>,
    /// Where the chunk of its samples begins.
    data: usize,
}

impl WavHeader {
    /// The header of `bytes`; none of what is no WAV file, or has no samples.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        if !is_wav(bytes) {
            return None;
        }
        let (mut at, mut found) = (12, None);
        loop {
            let (name, length) = (bytes.get(at..at + 4)?, u32_at(bytes, at + 4)?);
            let content = at + CHUNK;
            match name {
                b"fmt " => found = Some(at..content.checked_add(length as usize)?),
                b"data" => {
                    let format = found.filter(|format| format.len() <= CHUNK + MOST_FORMAT)?;
                    let of = |place: usize| u32_at(bytes.get(format.clone())?, CHUNK + place);
                    let (channels, rate, frame) = (of(0)? >> 16, of(4)?, of(12)? & 0xffff);
                    let known = (1..UNKNOWN).contains(&length) && frame > 0;
                    let frames = known.then(|| u64::from(length / frame));
                    return Some(Self { channels: channels as usize, rate, frames, format, data: at });
                }
                _ => {}
            }
            // Chunks begin at even places.
            at = content.checked_add((length as usize).checked_next_multiple_of(2)?)?;
        }
    }

    /// The file with its format and its samples alone, of which there are as many as it has.
    fn bare(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        let there = u32::try_from(bytes.len() - self.data - CHUNK).unwrap_or(u32::MAX);
        let length = u32_at(&bytes, self.data + 4).map_or(there, |length| length.min(there));
        bytes[self.data + 4..self.data + CHUNK].copy_from_slice(&length.to_le_bytes());
        let mut format = bytes[self.format.clone()].to_vec();
        // Chunks begin at even places.
        format.resize(format.len().next_multiple_of(2), 0);
        bytes.splice(12..self.data, format);
        bytes
    }
}

fn is_wav(bytes: &[u8]) -> bool {
    bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(&b"WAVE"[..])
}

/// A file with what its samples need alone, and the header of a WAV file.
///
/// # Errors
/// `Decode` for what is neither WAV nor FLAC, or has no samples.
pub fn bare(mut bytes: Vec<u8>) -> Result<(Vec<u8>, Option<WavHeader>)> {
    if let Some(tag) = tag(&bytes) {
        bytes.drain(..tag.min(bytes.len()));
    }
    if is_wav(&bytes) {
        let header = WavHeader::read(&bytes).ok_or_else(|| no("a WAV file without a format and samples"))?;
        return Ok((header.bare(bytes), Some(header)));
    }
    if !bytes.starts_with(b"fLaC") {
        return Err(no("neither WAV nor FLAC"));
    }
    let blocks = blocks(&bytes).ok_or_else(|| no("a FLAC file whose header is not whole"))?;
    bytes.drain(b"fLaC".len() + BLOCK + STREAM_INFO..blocks);
    bytes[b"fLaC".len()] |= LAST;
    Ok((bytes, None))
}

fn no(what: &str) -> Error {
    Error::Decode(what.into())
}

/// Bytes of a tag of ID3 in front of a file, which some programs write: four times seven bits, a head, and
/// where it says so a foot.
fn tag(bytes: &[u8]) -> Option<usize> {
    let [_, _, _, _, _, flags, size @ ..] =
        bytes.first_chunk::<10>().filter(|head| head.starts_with(b"ID3"))?;
    let size = size.iter().fold(0, |size, byte| size << 7 | usize::from(byte & 0x7f));
    Some(size + if flags & 0x10 == 0 { 10 } else { 20 })
}

/// Where the frames of a FLAC file begin: behind its blocks, the first of which says what the frames are.
fn blocks(bytes: &[u8]) -> Option<usize> {
    let mut at = b"fLaC".len();
    loop {
        let [kind, length @ ..] = bytes.get(at..)?.first_chunk::<BLOCK>()?;
        let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        let first = at == b"fLaC".len();
        if first && (kind & !LAST, length) != (0, STREAM_INFO) {
            return None;
        }
        at += BLOCK + length;
        if at > bytes.len() {
            return None;
        }
        if kind & LAST != 0 {
            return Some(at);
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with this length of its data, behind a chunk of an odd length.
    fn wav(length: u32) -> Vec<u8> {
        let mut bytes = b"RIFF\xff\xff\xff\xffWAVEjunk\x03\0\0\0abc\0fmt \x10\0\0\0\x01\0\x02\0".to_vec();
        bytes.extend(8_000_u32.to_le_bytes());
        bytes.extend(b"\0\x7d\0\0\x04\0\x10\0data");
        bytes.extend(length.to_le_bytes());
        bytes
    }

    #[test]
    fn lengths_that_writers_know_count() {
        let of = |length| {
            WavHeader::read(&wav(length)).map(|header| (header.channels, header.rate, header.frames))
        };
        assert_eq!(of(4_000), Some((2, 8_000, Some(1_000))));
        for unknown in [0, 0x7fff_0000, 0x7fff_ffff, u32::MAX] {
            assert_eq!(of(unknown), Some((2, 8_000, None)), "{unknown}");
        }
    }

    #[test]
    fn a_bare_file_has_its_format_and_as_many_samples_as_there_are() {
        let bytes = [&wav(4_000)[..], &[7; 6]].concat();
        let (bare, header) = bare(bytes.clone()).unwrap_or_default();
        assert_eq!(header.and_then(|header| header.frames), Some(1_000));
        let format = bytes.len() - 6 - 8 - 24;
        let want = [&bytes[..12], &bytes[format..format + 24], b"data\x06\0\0\0", &[7; 6]].concat();
        assert_eq!(bare, want);
    }

    #[test]
    fn a_bare_file_of_flac_has_one_block() {
        let block = |kind: u8, length: usize| [&[kind, 0, 0, length as u8][..], &vec![9; length]].concat();
        let tag = [&b"ID3\x04\0\0\0\0\x01\x02"[..], &[5; 130]].concat();
        let blocks = [block(0, 34), block(4, 7), block(LAST | 6, 3)].concat();
        let file = [&tag[..], b"fLaC", &blocks, b"frames"].concat();
        let want = [&b"fLaC"[..], &block(LAST, 34), b"frames"].concat();
        assert_eq!(bare(file.clone()).map(|(bytes, _)| bytes), Ok(want));
        let frames = file.len() - 6;
        assert!((0..frames).all(|end| bare(file[..end].to_vec()).is_err()));
        let elsewhere = [&b"fLaC"[..], &block(4, 7), &block(LAST, 34)].concat();
        assert!(bare(elsewhere).is_err());
    }

    #[test]
    fn what_is_no_header_is_none() {
        let whole = wav(4_000);
        for end in 0..whole.len() {
            assert_eq!(WavHeader::read(&whole[..end]), None, "{end} bytes");
        }
        assert_eq!(WavHeader::read(b"RIFF\0\0\0\0WAVEjunk\xff\xff\xff\xff"), None);
    }
}

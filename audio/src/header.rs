//! What the header of a WAV file says, where the decoder would panic or keep it to itself.

/// Lengths from here on are those of writers to a pipe, which do not know theirs.
const UNKNOWN: u32 = 0x7fff_0000;

/// The header of a WAV file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WavHeader {
    /// Samples of a second.
    pub rate: u32,
    /// Samples of a channel; none where the header does not say.
    pub frames: Option<u64>,
}

impl WavHeader {
    /// The header of `bytes`; none of what is no WAV file, or has no samples.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.get(..4)? != b"RIFF" || bytes.get(8..12)? != b"WAVE" {
            return None;
        }
        let (mut rest, mut format) = (&bytes[12..], None);
        loop {
            let (name, length) = (rest.get(..4)?, u32_at(rest, 4)?);
            let content = &rest[8..];
            match name {
                b"fmt " => format = Some((u32_at(content, 4)?, u32_at(content, 12)? & 0xffff)),
                b"data" => {
                    let (rate, frame) = format?;
                    let known = (1..UNKNOWN).contains(&length) && frame > 0;
                    return Some(Self { rate, frames: known.then(|| u64::from(length / frame)) });
                }
                _ => {}
            }
            // Chunks begin at even places.
            rest = content.get((length as usize).checked_next_multiple_of(2)?..)?;
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
        let of = |length| WavHeader::read(&wav(length)).map(|header| (header.rate, header.frames));
        assert_eq!(of(4_000), Some((8_000, Some(1_000))));
        for unknown in [0, 0x7fff_0000, 0x7fff_ffff, u32::MAX] {
            assert_eq!(of(unknown), Some((8_000, None)), "{unknown}");
        }
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

//! PTX out of fat binaries, which hold code for several devices: what `nvcc` embeds in a program and
//! `fatbinary` makes.
//!
//! A fat binary is a head (magic, size of the head, bytes of the entries) and entries; each has a head of its
//! own (kind, size of the head, bytes, compression, version, architecture). NVIDIA does not document the
//! layout; this one was read off what `fatbinary` 13.0 writes in each of its compression modes.

use std::io::Read;

/// The magic of a fat binary.
const MAGIC: u32 = 0xBA55_ED50;
/// The magic of the structure by which a program refers to one.
const WRAPPER: u32 = 0x4662_43B1;
/// Bytes of a fat binary's head.
const HEAD: usize = 16;
/// Bytes of an entry's head that are read here.
const ENTRY: usize = 80;
/// The kind of an entry that holds PTX.
const PTX: u16 = 1;
/// Flags of an entry: compressed as an LZ4 block, as a Zstandard frame.
const LZ4: u64 = 0x2000;
const ZSTD: u64 = 0x8000;
/// No text is larger than this: a few kilobytes may unfold to any size.
const LARGEST: usize = 1 << 26;
/// Bytes that a byte of LZ4 unfolds to at most.
const LZ4_RATIO: usize = 255;

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Whether bytes begin a fat binary.
pub fn begins(bytes: &[u8]) -> bool {
    word(bytes, 0) == Some(MAGIC)
}

/// Whether bytes begin the structure that refers to one.
pub fn refers(bytes: &[u8]) -> bool {
    word(bytes, 0) == Some(WRAPPER)
}

/// The address in that structure, once all of it is there.
pub fn referred(bytes: &[u8]) -> Option<u64> {
    long(bytes, 8)
}

/// The size of a fat binary, once its head is there.
pub fn size(bytes: &[u8]) -> Option<usize> {
    let head = u16::from_le_bytes(*bytes.get(6..)?.first_chunk()?);
    let entries = long(bytes, 8)?;
    (bytes.len() >= HEAD).then_some(usize::from(head).saturating_add(usize::try_from(entries).ok()?))
}

/// The PTX for the newest architecture that a device of this compute capability runs; none when there is
/// none, or it cannot be read.
pub fn text(bytes: &[u8], capability: u32) -> Option<String> {
    let end = size(bytes)?.min(bytes.len());
    let mut at = usize::from(u16::from_le_bytes(*bytes.get(6..)?.first_chunk()?));
    let mut best: Option<(u32, String)> = None;
    while at.checked_add(ENTRY).is_some_and(|next| next <= end) {
        let entry = bytes.get(at..end)?;
        let kind = u16::from_le_bytes(*entry.first_chunk()?);
        let (head, size) = (word(entry, 4)? as usize, usize::try_from(long(entry, 8)?).ok()?);
        let architecture = word(entry, 28)?;
        if kind == PTX && architecture <= capability && best.as_ref().is_none_or(|b| b.0 < architecture) {
            best = Some((architecture, content(entry, head, size)?));
        }
        at = at.checked_add(head)?.checked_add(size)?;
        if head == 0 {
            return None;
        }
    }
    best.map(|(_, text)| text)
}

/// The text of an entry.
fn content(entry: &[u8], head: usize, size: usize) -> Option<String> {
    let stored = entry.get(head..head.checked_add(size)?)?;
    let (packed, flags, whole) = (word(entry, 16)? as usize, long(entry, 40)?, long(entry, 56)?);
    let whole = usize::try_from(whole).ok().filter(|&n| n <= LARGEST)?;
    let bytes = match flags & (LZ4 | ZSTD) {
        0 => stored.to_vec(),
        LZ4 => {
            let block = stored.get(..packed)?;
            // As much as it says is allocated before it is read.
            let whole = Some(whole).filter(|&n| n <= block.len().saturating_mul(LZ4_RATIO))?;
            lz4_flex::block::decompress(block, whole).ok()?
        }
        ZSTD => {
            let mut out = Vec::new();
            let frame = ruzstd::decoding::StreamingDecoder::new(stored.get(..packed)?).ok()?;
            frame.take(whole as u64).read_to_end(&mut out).ok()?;
            out
        }
        _ => return None,
    };
    let mut text = String::from_utf8(bytes).ok()?;
    text.truncate(text.trim_end_matches('\0').len());
    Some(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const PLAIN: &[u8] = include_bytes!("../tests/common/kernels.plain.fatbin");
    const FAST: &[u8] = include_bytes!("../tests/common/kernels.lz4.fatbin");
    const SMALL: &[u8] = include_bytes!("../tests/common/kernels.zstd.fatbin");
    const TEXT: &str = include_str!("../tests/common/kernels.ptx");

    /// The lines without comments, which `fatbinary` leaves out.
    fn code(text: &str) -> Vec<&str> {
        let bare = text.lines().map(|l| l.split("//").next().unwrap_or_default().trim());
        bare.filter(|l| !l.is_empty()).collect()
    }

    #[test]
    fn every_compression_holds_the_same_text() {
        for (bytes, name) in [(PLAIN, "plain"), (FAST, "lz4"), (SMALL, "zstd")] {
            assert!(begins(bytes) && size(bytes) == Some(bytes.len()), "{name}");
            assert_eq!(code(&text(bytes, 90).unwrap()), code(TEXT), "{name}");
            assert_eq!(text(bytes, 80), None, "{name}: for a newer device");
        }
    }

    /// Machine code for 8.0, PTX for 8.0, 9.0 and 10.0; and machine code alone.
    #[test]
    fn the_newest_text_that_the_device_runs_is_taken() {
        const SEVERAL: &[u8] = include_bytes!("../tests/common/several.fatbin");
        const MACHINE: &[u8] = include_bytes!("../tests/common/several.machine.fatbin");
        for (capability, target) in
            [(70, None), (80, Some("sm_80")), (86, Some("sm_80")), (90, Some("sm_90")), (120, Some("sm_100"))]
        {
            let text = text(SEVERAL, capability);
            let line = text.as_ref().and_then(|t| t.lines().find_map(|l| l.strip_prefix(".target ")));
            assert_eq!(line.map(str::trim), target, "{capability}");
        }
        assert!(begins(MACHINE) && size(MACHINE) == Some(MACHINE.len()));
        assert_eq!(text(MACHINE, 90), None);
    }

    /// What an entry says of the size of its text is no reason to allocate it, or to unfold more.
    #[test]
    fn a_text_is_as_large_as_its_entry_says_and_no_larger_than_its_bytes_can_be() {
        for (bytes, most) in [(FAST, FAST.len() * LZ4_RATIO), (SMALL, LARGEST)] {
            let at = usize::from(u16::from_le_bytes([bytes[6], bytes[7]])) + 56;
            let with = |whole: usize| {
                let mut changed = bytes.to_vec();
                changed[at..at + 8].copy_from_slice(&(whole as u64).to_le_bytes());
                text(&changed, 90)
            };
            assert_eq!(with(most + 1), None);
            assert!(with(16).is_none_or(|text| text.len() <= 16));
        }
    }

    #[test]
    fn broken_ones_hold_nothing() {
        for bytes in [PLAIN, FAST, SMALL] {
            for part in [0, 3, 15, 17, 40, 95, 97, bytes.len() / 2] {
                let part = &bytes[..part];
                let _ = size(part);
                assert_eq!(text(part, 90), None);
            }
            for at in 0..96 {
                let mut changed = bytes.to_vec();
                changed[at] ^= 0xff;
                // Any answer, and no panic.
                let _ = (size(&changed), text(&changed, 90));
            }
        }
    }
}

//! Pictures and masks: PNG and JPEG.
//!
//! A PNG file is read as it is, and once more with the checksums of its chunks put right, so that mutations
//! reach what they guard.

use crate::folder::plain;
use engraft_core::{Error, Result};
use engraft_image::{PictureLimits, decode, decode_mask, dimensions, encode_png};
use image::{ExtendedColorType, ImageEncoder, codecs};

const LIMITS: PictureLimits = PictureLimits { bytes: 1 << 20, pixels: 1 << 16 };
const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

pub const WORDS: &[&str] = &[
    "IHDR",
    "PLTE",
    "IDAT",
    "IEND",
    "tRNS",
    "gAMA",
    "iCCP",
    "zTXt",
    "iTXt",
    "acTL",
    "fcTL",
    "fdAT",
    "eXIf",
    "\u{0}\u{0}\u{0}\u{0}",
    "\u{0}\u{0}\u{0}\u{1}",
    "\u{0}\u{1}\u{0}\u{0}",
    "\u{8}\u{2}\u{0}\u{0}\u{1}",
    "\u{10}\u{6}\u{0}\u{0}\u{0}",
    "\u{1}\u{3}\u{0}\u{0}\u{0}",
    "JFIF",
    "Exif",
    "Adobe",
    "ICC_PROFILE",
];

/// Widths and heights of 16 x 8 pixels, in all layouts of colours.
pub fn seeds() -> Result<Vec<Vec<u8>>> {
    use ExtendedColorType::{L8, La16, Rgb8, Rgb16, Rgba8};
    let no = |e: image::ImageError| Error::internal(e.to_string());
    let mut all = vec![encode_png(&[7; 3 * 4 * 2], 4, 2).map_err(|e| Error::internal(e.to_string()))?];
    for (colours, bytes) in [(L8, 1), (La16, 4), (Rgb8, 3), (Rgb16, 6), (Rgba8, 4)] {
        let values: Vec<u8> = (0..16 * 8 * bytes).map(|i| (i * 37) as u8).collect();
        let mut file = Vec::new();
        codecs::png::PngEncoder::new(&mut file).write_image(&values, 16, 8, colours).map_err(no)?;
        all.push(file);
    }
    for (colours, bytes) in [(L8, 1), (Rgb8, 3)] {
        let values: Vec<u8> = (0..16 * 8 * bytes).map(|i| (i * 37) as u8).collect();
        let mut file = Vec::new();
        let encoder = codecs::jpeg::JpegEncoder::new_with_quality(&mut file, 70);
        encoder.write_image(&values, 16, 8, colours).map_err(no)?;
        all.push(file);
    }
    Ok(all)
}

/// A chunk with its checksum.
fn chunk(name: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let named = [&name[..], data].concat();
    [&(data.len() as u32).to_be_bytes()[..], &named, &crc32fast::hash(&named).to_be_bytes()].concat()
}

/// Sizes without end, a million chunks' worth of empty ones, a palette that is not there, scans without data.
pub fn hostile() -> Vec<Vec<u8>> {
    let head = |width: u32, height: u32, rest: [u8; 5]| {
        let data = [&width.to_be_bytes()[..], &height.to_be_bytes(), &rest].concat();
        [SIGNATURE, &chunk(b"IHDR", &data)].concat()
    };
    let end = || chunk(b"IEND", b"");
    let png = |head: Vec<u8>, chunks: &[u8]| [&head[..], chunks, &end()].concat();
    let jpeg = |height: u16, width: u16, rest: &[u8]| {
        let size = [height.to_be_bytes(), width.to_be_bytes()].concat();
        [&b"\xff\xd8\xff\xc0\0\x0b\x08"[..], &size, b"\x01\x01\x11\0", rest].concat()
    };
    vec![
        png(head(u32::MAX, u32::MAX, [8, 2, 0, 0, 0]), b""),
        png(head(0x7fff_ffff, 1, [16, 6, 0, 0, 0]), b""),
        png(head(0, 0, [8, 2, 0, 0, 0]), b""),
        png(head(256, 256, [1, 3, 0, 0, 1]), &chunk(b"IDAT", &[0; 8])),
        png(head(4, 4, [7, 9, 9, 9, 9]), b""),
        png(head(4, 4, [8, 2, 0, 0, 0]), &chunk(b"IDAT", b"").repeat(15_000)),
        png(head(4, 4, [8, 2, 0, 0, 0]), &chunk(b"acTL", &[0xff; 8])),
        png(head(4, 4, [8, 2, 0, 0, 0]), &chunk(b"iCCP", b"a\0\0\x78\x9c\x4b\x04\0")),
        [SIGNATURE, b"\xff\xff\xff\xffIHDR"].concat(),
        jpeg(u16::MAX, u16::MAX, b"\xff\xda\0\x08\x01\x01\0\0\x3f\0"),
        jpeg(0, 16, b"\xff\xda\0\x08\x01\x01\0\0\x3f\0"),
        jpeg(16, 16, &b"\xff\xe1\0\x02".repeat(20_000)),
        jpeg(16, 16, b"\xff\xdb\0\x02\xff\xc4\0\x02\xff\xd9"),
    ]
}

pub fn read(input: Vec<u8>) -> bool {
    let repaired = repaired(&input);
    let accepted = decoded(&input);
    repaired.is_some_and(|repaired| decoded(&repaired)) || accepted
}

fn decoded(file: &[u8]) -> bool {
    let size = dimensions(file, LIMITS);
    let mask = decode_mask(file, LIMITS);
    if let Ok(mask) = &mask {
        assert_eq!(mask.values.len(), mask.width * mask.height);
        assert!(mask.values.iter().all(|x| (0.0..=1.0).contains(x)), "a mask beyond 0 to 1");
    }
    match decode(file, LIMITS) {
        Ok(picture) => {
            let (width, height) = (picture.width, picture.height);
            assert_eq!(size.ok(), Some((width, height)), "the head has another size");
            assert!(mask.is_ok_and(|mask| (mask.width, mask.height) == (width, height)));
            assert!(width * height <= LIMITS.pixels as usize && picture.rgb.len() == width * height * 3);
            assert!(picture.rgb.iter().all(|x| (0.0..=1.0).contains(x)), "a picture beyond 0 to 1");
            true
        }
        Err(error) => {
            plain(&error.to_string());
            false
        }
    }
}

/// A PNG file whose chunks have their checksums.
fn repaired(file: &[u8]) -> Option<Vec<u8>> {
    let mut rest = file.strip_prefix(SIGNATURE)?;
    let mut all = SIGNATURE.to_vec();
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let Some((named, behind)) = length.checked_add(4).and_then(|named| behind.split_at_checked(named))
        else {
            break;
        };
        all.extend((length as u32).to_be_bytes());
        all.extend(named);
        all.extend(crc32fast::hash(named).to_be_bytes());
        rest = behind.get(4..).unwrap_or_default();
    }
    all.extend(rest);
    Some(all)
}

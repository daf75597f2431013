//! Pictures, whole and damaged.
#![allow(clippy::unwrap_used)]

use engraft_image::{Picture, PictureLimits, decode, decode_mask, dimensions, encode_png, to_bytes};
use image::{ExtendedColorType, ImageEncoder, codecs};
use proptest::prelude::*;

fn read(bytes: &[u8]) -> Result<Picture, String> {
    decode(bytes, PictureLimits::default()).map_err(|e| e.to_string())
}

fn png(values: &[u8], width: u32, height: u32, color: ExtendedColorType) -> Vec<u8> {
    let mut file = Vec::new();
    codecs::png::PngEncoder::new(&mut file).write_image(values, width, height, color).unwrap();
    file
}

fn jpeg(values: &[u8], width: u32, height: u32, color: ExtendedColorType) -> Vec<u8> {
    let mut file = Vec::new();
    let encoder = codecs::jpeg::JpegEncoder::new_with_quality(&mut file, 95);
    encoder.write_image(values, width, height, color).unwrap();
    file
}

#[test]
fn every_kind_of_png_becomes_three_channels() {
    use ExtendedColorType::{L8, L16, La8, La16, Rgb8, Rgb16, Rgba8, Rgba16};
    let eight = |values: &[u8]| values.iter().map(|x| f32::from(*x) / 255.0).collect::<Vec<f32>>();
    let wide = |values: &[u16]| values.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
    let sixteen = |values: &[u16]| values.iter().map(|x| f32::from(*x) / 65535.0).collect::<Vec<f32>>();
    let [x, y] = [[1u8, 2, 3], [250, 128, 0]];
    for (file, want) in [
        (png(&[7, 9], 2, 1, L8), eight(&[7, 7, 7, 9, 9, 9])),
        (png(&[7, 0, 9, 255], 2, 1, La8), eight(&[7, 7, 7, 9, 9, 9])),
        (png(&[x, y].concat(), 2, 1, Rgb8), eight(&[x, y].concat())),
        (png(&[1, 2, 3, 0, 250, 128, 0, 9], 2, 1, Rgba8), eight(&[x, y].concat())),
        (png(&wide(&[300, 65535]), 2, 1, L16), sixteen(&[300, 300, 300, 65535, 65535, 65535])),
        (png(&wide(&[300, 0]), 1, 1, La16), sixteen(&[300; 3])),
        (png(&wide(&[300, 1, 65535]), 1, 1, Rgb16), sixteen(&[300, 1, 65535])),
        (png(&wide(&[300, 1, 65535, 5]), 1, 1, Rgba16), sixteen(&[300, 1, 65535])),
    ] {
        let got = read(&file).unwrap();
        assert_eq!((got.width * got.height * 3, &got.rgb), (want.len(), &want));
    }
}

#[test]
fn masks_are_white_or_transparent_where_a_picture_may_change() {
    use ExtendedColorType::{L8, L16, La8, Rgb8, Rgba8, Rgba16};
    let wide = |values: &[u16]| values.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
    for (file, want) in [
        (png(&[0, 255], 2, 1, L8), [0.0, 1.0]),
        (png(&[255, 255, 255, 0, 0, 255], 2, 1, Rgb8), [1.0, 1.0 / 3.0]),
        (png(&wide(&[0, 65535]), 2, 1, L16), [0.0, 1.0]),
        // A hole in a black picture, and one in a white one: colours do not count.
        (png(&[0, 0, 0, 0, 0, 0, 0, 255], 2, 1, Rgba8), [1.0, 0.0]),
        (png(&[255, 0, 255, 255], 2, 1, La8), [1.0, 0.0]),
        (png(&wide(&[1, 2, 3, 65535, 1, 2, 3, 0]), 2, 1, Rgba16), [0.0, 1.0]),
        // Nothing is transparent: colours count.
        (png(&[0, 0, 0, 255, 255, 255, 255, 255], 2, 1, Rgba8), [0.0, 1.0]),
    ] {
        let mask = decode_mask(&file, PictureLimits::default()).unwrap();
        assert_eq!((mask.width, mask.height, &mask.values[..]), (2, 1, &want[..]));
        assert_eq!(dimensions(&file, PictureLimits::default()).unwrap(), (2, 1));
    }
    let large = png(&[7; 12], 4, 3, L8);
    let few = PictureLimits { pixels: 11, ..PictureLimits::default() };
    let small = PictureLimits { bytes: large.len() - 1, ..PictureLimits::default() };
    for limits in [few, small] {
        let said = dimensions(&large, limits).unwrap_err().to_string();
        assert!(said.contains("allowed"), "{said}");
        assert_eq!(decode_mask(&large, limits).unwrap_err().to_string(), said);
    }
    // What stands in front of the pixels is enough for a size, and not for a picture.
    let head = &large[..45];
    assert_eq!(dimensions(head, PictureLimits::default()).unwrap(), (4, 3));
    assert!(decode_mask(head, PictureLimits::default()).is_err());
}

#[test]
fn jpeg_in_colour_and_grey() {
    let colour = read(&jpeg(&[200, 100, 50].repeat(64), 8, 8, ExtendedColorType::Rgb8)).unwrap();
    for pixel in colour.rgb.chunks(3) {
        for (got, want) in pixel.iter().zip([200.0, 100.0, 50.0]) {
            assert!((got * 255.0 - want).abs() < 4.0, "{pixel:?}");
        }
    }
    let grey = read(&jpeg(&[77; 64], 8, 8, ExtendedColorType::L8)).unwrap();
    assert_eq!((grey.width, grey.height, grey.rgb.len()), (8, 8, 192));
    assert!(grey.rgb.iter().all(|x| (x * 255.0 - 77.0).abs() < 2.0));
}

#[test]
fn what_is_written_is_read_again() {
    let values: Vec<u8> = (0..5 * 3 * 3).map(|i| (i * 37 % 256) as u8).collect();
    let file = encode_png(&values, 5, 3).unwrap();
    let got = read(&file).unwrap();
    assert_eq!((got.width, got.height), (5, 3));
    let model: Vec<f32> = got.rgb.iter().map(|x| 2.0 * x - 1.0).collect();
    assert_eq!(to_bytes(&model), values);
    assert_eq!(encode_png(&values, 5, 3).unwrap(), file);
    for (width, height) in [(5, 4), (0, 0), (usize::MAX, 3), (1 << 40, 1)] {
        let error = encode_png(&values, width, height).unwrap_err().to_string();
        assert!(error.contains("is 45"), "{error}");
    }
    assert!(encode_png(&[], 0, 5).is_err());
}

#[test]
fn values_become_bytes_by_rounding_to_even() {
    // (k + 1/2) / 255 * 2 - 1 lies between two bytes.
    assert_eq!(to_bytes(&[-9.0, -1.0, -0.999, 0.0, 0.5, 1.0, 9.0]), [0, 0, 0, 128, 191, 255, 255]);
    assert_eq!(to_bytes(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]), [0, 255, 0]);
    for byte in 0..=255u8 {
        assert_eq!(to_bytes(&[f32::from(byte) / 255.0 * 2.0 - 1.0]), [byte]);
    }
}

/// A PNG header of any size, with the checksum that it needs, and no data.
fn header(width: u32, height: u32) -> Vec<u8> {
    let mut file = png(&[0], 1, 1, ExtendedColorType::L8);
    file[16..20].copy_from_slice(&width.to_be_bytes());
    file[20..24].copy_from_slice(&height.to_be_bytes());
    let mut crc = u32::MAX;
    for byte in &file[12..29] {
        crc ^= u32::from(*byte);
        (0..8).for_each(|_| crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 });
    }
    file[29..33].copy_from_slice(&(!crc).to_be_bytes());
    file
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let gif = b"GIF89a\x01\0\x01\0\0\0\0;";
    let whole = png(&[1, 2, 3].repeat(400), 20, 20, ExtendedColorType::Rgb8);
    for (bytes, what) in [
        (&b""[..], "neither PNG nor JPEG"),
        (b"a text", "neither PNG nor JPEG"),
        (gif, "neither PNG nor JPEG, but Gif"),
        (&whole[..whole.len() / 2], "cannot be decoded"),
        (&header(1 << 30, 1 << 30), "1073741824 x 1073741824"),
        (&header(100_000, 100_000), "100000 x 100000"),
        (&header(0, 5), "cannot be decoded"),
    ] {
        let error = read(bytes).unwrap_err();
        assert!(error.contains(what), "{error}");
    }
    let small = PictureLimits { bytes: 100, pixels: 399 };
    let error = decode(&whole, PictureLimits { bytes: whole.len(), ..small }).unwrap_err().to_string();
    assert!(error.contains("20 x 20") && error.contains("399"), "{error}");
    let long = [whole, vec![0; 100]].concat();
    assert!(decode(&long, small).unwrap_err().to_string().contains("at most 100 bytes"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    /// Whatever is changed or truncated, there is a picture or an error.
    #[test]
    fn damaged_files_never_panic(
        missing in 0usize..600,
        changes in proptest::collection::vec((0usize..700, any::<u8>()), 0..6),
        jpg in any::<bool>(),
    ) {
        let values: Vec<u8> = (0..300).map(|i| (i * 7 % 256) as u8).collect();
        let mut bytes = match jpg {
            true => jpeg(&values, 10, 10, ExtendedColorType::Rgb8),
            false => png(&values, 10, 10, ExtendedColorType::Rgb8),
        };
        bytes.truncate(bytes.len().saturating_sub(missing));
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        if let Ok(picture) = read(&bytes) {
            prop_assert_eq!(picture.rgb.len(), picture.width * picture.height * 3);
        }
    }
}

//! Pictures: PNG and JPEG to values that models read, and what models write to PNG.
//!
//! Sizes are read before anything is allocated for them, so a small file cannot ask for much memory. Whatever
//! a file holds, three channels come out: grey is repeated, an alpha channel is dropped.

use crate::error::{Error, Result};
use image::{DynamicImage, ExtendedColorType, ImageDecoder, ImageEncoder, ImageFormat, ImageReader};
use std::io::Cursor;

/// What a picture may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PictureLimits {
    /// Bytes of the file at most.
    pub bytes: usize,
    /// Pixels at most.
    pub pixels: u64,
}

impl Default for PictureLimits {
    /// 64 MiB, 64 megapixels.
    fn default() -> Self {
        Self { bytes: 64 << 20, pixels: 64 << 20 }
    }
}

/// A picture in red, green and blue.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    /// Columns.
    pub width: usize,
    /// Lines.
    pub height: usize,
    /// Values in 0 to 1, `[height, width, 3]`.
    pub rgb: Vec<f32>,
}

/// Where a picture may change.
#[derive(Debug, Clone, PartialEq)]
pub struct Mask {
    /// Columns.
    pub width: usize,
    /// Lines.
    pub height: usize,
    /// Values in 0 to 1, `[height, width]`: how much each pixel is meant.
    pub values: Vec<f32>,
}

/// A decoder that has read a file's head, within limits.
fn opened(bytes: &[u8], limits: PictureLimits) -> Result<impl ImageDecoder + '_> {
    if bytes.len() > limits.bytes {
        return Err(Error::limit("file size", bytes.len(), format!("at most {} bytes", limits.bytes)));
    }
    let format = match image::guess_format(bytes) {
        Ok(format @ (ImageFormat::Png | ImageFormat::Jpeg)) => format,
        Ok(other) => return Err(Error::Picture(format!("neither PNG nor JPEG, but {other:?}"))),
        Err(_) => return Err(Error::Picture("neither PNG nor JPEG".into())),
    };
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut most = image::Limits::default();
    // Four channels of 16 bits, and the decoder's own buffers.
    most.max_alloc = Some(limits.pixels.saturating_mul(16).saturating_add(1 << 20));
    reader.limits(most);
    let decoder = reader.into_decoder().map_err(damaged)?;
    let (width, height) = decoder.dimensions();
    let pixels = u64::from(width) * u64::from(height);
    if pixels == 0 || pixels > limits.pixels {
        let allowed = format!("1 to {} pixels", limits.pixels);
        return Err(Error::limit("size", format!("{width} x {height}"), allowed));
    }
    Ok(decoder)
}

fn damaged(error: image::ImageError) -> Error {
    Error::Picture(error.to_string())
}

/// Width and height of a PNG or JPEG file, of which the head alone is read.
///
/// # Errors
/// As [`decode`], as far as the head shows it.
///
/// ```
/// use engraft_image::{PictureLimits, dimensions, encode_png};
///
/// # fn main() -> engraft_image::Result<()> {
/// let file = encode_png(&[0; 3 * 2 * 3], 3, 2)?;
/// assert_eq!(dimensions(&file, PictureLimits::default())?, (3, 2));
/// # Ok(())
/// # }
/// ```
pub fn dimensions(bytes: &[u8], limits: PictureLimits) -> Result<(usize, usize)> {
    let (width, height) = opened(bytes, limits)?.dimensions();
    Ok((width as usize, height as usize))
}

/// Decodes a PNG or JPEG file that says where a picture may change.
///
/// Of a file with transparent pixels `1 - alpha`, as OpenAI's masks have it; of any other the mean of the
/// three channels: what is white may change.
///
/// # Errors
/// As [`decode`].
pub fn decode_mask(bytes: &[u8], limits: PictureLimits) -> Result<Mask> {
    let picture = DynamicImage::from_decoder(opened(bytes, limits)?).map_err(damaged)?;
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    let alpha = match &picture {
        DynamicImage::ImageLumaA16(x) => last_channel(x.as_raw(), 2, 65535.0),
        DynamicImage::ImageRgba16(x) => last_channel(x.as_raw(), 4, 65535.0),
        DynamicImage::ImageLumaA8(x) => last_channel(x.as_raw(), 2, 255.0),
        DynamicImage::ImageRgba8(x) => last_channel(x.as_raw(), 4, 255.0),
        _ => Vec::new(),
    };
    let values = match alpha.iter().any(|alpha| *alpha < 1.0) {
        true => alpha.iter().map(|alpha| 1.0 - alpha).collect(),
        // A grey picture has three equal channels.
        false => colours(&picture)?.chunks(3).map(|pixel| pixel.iter().sum::<f32>() / 3.0).collect(),
    };
    Ok(Mask { width, height, values })
}

/// Decodes a PNG or JPEG file.
///
/// `value / 255`, for files of 16 bits `value / 65535`. Grey is repeated over three channels, alpha is
/// dropped without blending. Colour profiles are not applied.
///
/// # Errors
/// `Limit` for a file or a picture that is too large, `Picture` for what is neither format or is damaged.
///
/// ```
/// let error = engraft_image::decode(b"no picture", engraft_image::PictureLimits::default()).unwrap_err();
/// assert!(error.to_string().starts_with("the picture cannot be decoded: neither PNG nor JPEG"));
/// ```
pub fn decode(bytes: &[u8], limits: PictureLimits) -> Result<Picture> {
    let picture = DynamicImage::from_decoder(opened(bytes, limits)?).map_err(damaged)?;
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    Ok(Picture { width, height, rgb: colours(&picture)? })
}

/// Three channels in 0 to 1.
fn colours(picture: &DynamicImage) -> Result<Vec<f32>> {
    Ok(match picture {
        DynamicImage::ImageLuma16(x) => spread(x.as_raw(), 1, 65535.0),
        DynamicImage::ImageLumaA16(x) => spread(x.as_raw(), 2, 65535.0),
        DynamicImage::ImageRgb16(x) => spread(x.as_raw(), 3, 65535.0),
        DynamicImage::ImageRgba16(x) => spread(x.as_raw(), 4, 65535.0),
        DynamicImage::ImageLuma8(x) => spread(x.as_raw(), 1, 255.0),
        DynamicImage::ImageLumaA8(x) => spread(x.as_raw(), 2, 255.0),
        DynamicImage::ImageRgb8(x) => spread(x.as_raw(), 3, 255.0),
        DynamicImage::ImageRgba8(x) => spread(x.as_raw(), 4, 255.0),
        other => return Err(Error::Picture(format!("its colours are {:?}", other.color()))),
    })
}

/// The last of so many channels in 0 to 1.
fn last_channel<T: Copy + Into<f64>>(values: &[T], channels: usize, largest: f64) -> Vec<f32> {
    values.chunks_exact(channels).map(|pixel| (pixel[channels - 1].into() / largest) as f32).collect()
}

/// Pixels of one to four channels as three channels in 0 to 1.
fn spread<T: Copy + Into<f64>>(values: &[T], channels: usize, largest: f64) -> Vec<f32> {
    let mut rgb = Vec::with_capacity(values.len() / channels * 3);
    for pixel in values.chunks_exact(channels) {
        let of = |channel: usize| (pixel[channel].into() / largest) as f32;
        rgb.extend(if channels < 3 { [of(0); 3] } else { [of(0), of(1), of(2)] });
    }
    rgb
}

/// What a decoder of latents writes, as bytes: `round(255 * clamp(x / 2 + 1/2, 0, 1))`, halves to even; what
/// is no number becomes 0. The order of the values stays, so channels that are last stay last.
///
/// ```
/// assert_eq!(engraft_image::to_bytes(&[-2.0, -1.0, 0.0, 1.0, f32::NAN]), [0, 0, 128, 255, 0]);
/// ```
pub fn to_bytes(values: &[f32]) -> Vec<u8> {
    let byte = |x: f32| (255.0 * (x / 2.0 + 0.5).clamp(0.0, 1.0)).round_ties_even() as u8;
    values.iter().map(|x| byte(*x)).collect()
}

/// Encodes bytes `[height, width, 3]` as PNG. The file is a function of the bytes.
///
/// # Errors
/// `Argument` for a size that has no pixels or is not that of the bytes, `Picture` where encoding fails.
pub fn encode_png(rgb: &[u8], width: usize, height: usize) -> Result<Vec<u8>> {
    let want = width.checked_mul(height).and_then(|pixels| pixels.checked_mul(3));
    let sides = (u32::try_from(width), u32::try_from(height));
    let (Ok(columns), Ok(lines), true) = (sides.0, sides.1, want == Some(rgb.len()) && !rgb.is_empty())
    else {
        let allowed = format!("{width} x {height} x 3 and at least 3");
        return Err(Error::argument("the number of bytes", rgb.len(), allowed));
    };
    let mut file = Vec::new();
    let encoder = image::codecs::png::PngEncoder::new(&mut file);
    let written = encoder.write_image(rgb, columns, lines, ExtendedColorType::Rgb8);
    written.map_err(|e| Error::Picture(format!("encoding failed: {e}")))?;
    Ok(file)
}

//! Files of sound, whole and damaged.
#![allow(clippy::unwrap_used)]

#[path = "../../core/tests/support/meter.rs"]
mod meter;

use engraft_audio::{Limits, decode};
use proptest::prelude::*;

#[global_allocator]
static METER: meter::Meter = meter::Meter;

/// A WAV file: format tag, channels, rate, bits, data.
fn wav(tag: u16, channels: u16, rate: u32, bits: u16, data: &[u8]) -> Vec<u8> {
    let frame = channels * bits.div_ceil(8);
    let mut bytes = b"RIFF".to_vec();
    bytes.extend((36 + data.len() as u32).to_le_bytes());
    bytes.extend(b"WAVEfmt ");
    bytes.extend(16u32.to_le_bytes());
    bytes.extend([tag, channels].map(u16::to_le_bytes).concat());
    bytes.extend([rate, rate * u32::from(frame)].map(u32::to_le_bytes).concat());
    bytes.extend([frame, bits].map(u16::to_le_bytes).concat());
    bytes.extend(b"data");
    bytes.extend((data.len() as u32).to_le_bytes());
    bytes.extend(data);
    bytes
}

fn read(bytes: Vec<u8>) -> Result<engraft_audio::Sound, String> {
    decode(bytes, Limits { seconds: 10.0, channels: 8, ..Limits::default() }).map_err(|e| e.to_string())
}

#[test]
fn integers_and_floats_of_every_width() {
    let of = |bits: u16| -> Vec<u8> {
        [-0.5f64, 0.25]
            .iter()
            .flat_map(|x| match bits {
                8 => vec![(128.0 + x * 128.0) as u8],
                16 => ((x * 32768.0) as i16).to_le_bytes().to_vec(),
                24 => ((x * 8_388_608.0) as i32).to_le_bytes()[..3].to_vec(),
                _ => ((x * 2_147_483_648.0) as i32).to_le_bytes().to_vec(),
            })
            .collect()
    };
    for bits in [8, 16, 24, 32] {
        let sound = read(wav(1, 1, 16_000, bits, &of(bits))).unwrap();
        assert_eq!((sound.rate, &sound.samples[..]), (16_000, &[-0.5, 0.25][..]), "{bits} bits");
    }
    let floats: Vec<u8> = [-0.5f32, 0.25].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(read(wav(3, 1, 8_000, 32, &floats)).unwrap().samples, [-0.5, 0.25]);
    let doubles: Vec<u8> = [-0.5f64, 0.25].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(read(wav(3, 1, 8_000, 64, &doubles)).unwrap().samples, [-0.5, 0.25]);
    // Channels become their mean.
    assert_eq!(read(wav(1, 2, 8_000, 16, &of(16))).unwrap().samples, [-0.125]);
}

fn flac_of_rate_0() -> Vec<u8> {
    let mut bytes = include_bytes!("tone.flac").to_vec();
    bytes[18..20].fill(0);
    bytes[20] &= 0x0f;
    bytes
}

/// The header of a file that ends early announces more than is there.
#[test]
fn what_is_missing_of_a_file_is_said() {
    let whole = wav(1, 2, 16_000, 16, &[0; 64_000]);
    let missing = |bytes: &[u8]| read(bytes.to_vec()).map(|sound| (sound.samples.len(), sound.missing));
    assert_eq!(missing(&whole), Ok((16_000, 0.0)));
    assert_eq!(missing(&whole[..44 + 32_000]), Ok((8_000, 0.5)));
    // Writers to a pipe do not know their length.
    for unknown in [0_u32, u32::MAX] {
        let mut piped = whole.clone();
        piped[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        piped[40..44].copy_from_slice(&unknown.to_le_bytes());
        match unknown {
            0 => assert!(missing(&piped).unwrap_err().contains("no samples")),
            _ => assert_eq!(missing(&piped), Ok((16_000, 0.0))),
        }
    }
    let mut flac = include_bytes!("tone.flac").to_vec();
    assert_eq!(missing(&flac), Ok((800, 0.0)));
    // 36 bits of STREAMINFO: 800 samples become 16,800.
    flac[22..26].copy_from_slice(&16_800_u32.to_be_bytes());
    assert_eq!(missing(&flac), Ok((800, 1.0)));
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let silence = vec![0u8; 2 * 16_000 * 11];
    for (bytes, what) in [
        (Vec::new(), "neither WAV nor FLAC"),
        (b"ID3 and no sound at all, whatever its name says".to_vec(), "neither WAV nor FLAC"),
        (wav(1, 1, 16_000, 16, &[]), "no samples"),
        (wav(1, 1, 16_000, 16, &silence), "longer than 10 s"),
        (wav(1, 1, 5, 16, &[0; 8]), "sample rate is 5"),
        (wav(1, 1, 0, 16, &[0; 200]), "sample rate is 0; allowed: 1000 to 768000 Hz"),
        // No bytes stand in front of the header, and FLAC's rate has 20 bits of its own.
        ([b"junk".to_vec(), wav(1, 1, 0, 16, &[0; 200])].concat(), "cannot be decoded"),
        (flac_of_rate_0(), "cannot be decoded"),
        (wav(3, 1, 16_000, 32, &f32::NAN.to_le_bytes()), "sample 0 is NaN"),
    ] {
        let error = read(bytes).unwrap_err();
        assert!(error.contains(what), "{error}");
    }
}

/// A header may announce 4 GB of a name, a comment or a picture, and frames of 64 KB: nothing is allocated
/// for what is not there.
#[test]
fn what_is_announced_and_not_there_takes_no_memory() {
    const MOST: usize = 1 << 20;
    let silence = wav(1, 1, 16_000, 16, &[0; 64]);
    let list = [&b"LIST\x14\0\0\0INFOISFT\xff\xff\xff\xffabcdefgh"[..], &silence[36..]].concat();
    let named = [&silence[..36], &list].concat();
    let mut wide = wav(1, 1, 16_000, 16, &[0; 64]);
    wide[32..34].fill(0xff);
    wide[40..44].copy_from_slice(&(1u32 << 30).to_le_bytes());
    let tone = include_bytes!("tone.flac");
    let with = |kind: u8, content: &[u8]| {
        let head = [&[kind, 0, 0, content.len() as u8][..], content].concat();
        let mut file = [&tone[..42], &head, &tone[42..]].concat();
        // The first block is not the last one any more.
        file[4] = 0;
        file
    };
    let comment = [&[0; 4][..], &1u32.to_le_bytes(), &[0xff; 4]].concat();
    let picture = [&[0; 4][..], &[0xff; 4]].concat();
    for (what, file) in [
        ("a name", named),
        ("frames", wide),
        ("a comment", with(4, &comment)),
        ("a picture", with(6, &picture)),
    ] {
        let (result, peak) = meter::peak(|| read(file));
        assert!(peak < MOST, "{what}: {peak} bytes, {:?}", result.map(|sound| sound.samples.len()));
    }
    // What stands in front of a sound or next to it does not change it.
    let tagged = [&b"ID3\x04\0\0\0\0\0\x03abc"[..], &with(4, &comment)].concat();
    assert_eq!(read(tagged), read(tone.to_vec()));
    let titled = [&silence[..36], b"LIST\x10\0\0\0INFOISFT\x04\0\0\0abc\0", &silence[36..]].concat();
    assert_eq!(read(titled).map(|sound| sound.samples.len()), Ok(32));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Whatever is changed or truncated, there is a sound or an error.
    #[test]
    fn damaged_files_never_panic(
        missing in 0usize..600,
        changes in proptest::collection::vec((0usize..600, any::<u8>()), 0..6),
        flac in any::<bool>(),
    ) {
        let mut bytes = wav(1, 2, 44_100, 16, &[7u8; 156]);
        if flac {
            bytes = include_bytes!("tone.flac").to_vec();
        }
        bytes.truncate(bytes.len().saturating_sub(missing));
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        let _ = read(bytes);
    }
}

/// 0.05 s of a tone of 440 Hz at half the largest value, 16 kHz.
#[test]
fn flac() {
    let sound = read(include_bytes!("tone.flac").to_vec()).unwrap();
    assert_eq!((sound.rate, sound.samples.len()), (16_000, 800));
    for (i, x) in sound.samples.iter().enumerate() {
        let want = 0.5 * (2.0 * std::f64::consts::PI * 440.0 * i as f64 / 16_000.0).sin();
        assert!((f64::from(*x) - want).abs() < 1e-4, "{i}: {x}, {want}");
    }
}

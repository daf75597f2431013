//! Packing has an exact inverse, and costs next to nothing in bytes.

use crate::machine::Dice;
use crate::weights::{random, whole};
use engraft_kernels::bytes::Bytes;
use engraft_kernels::columns::Columns;
use engraft_kernels::file_rows::FileRows;
use engraft_kernels::pack::Layout;
use engraft_kernels::params::Format;
use proptest::prelude::*;

const FORMATS: [(Format, &[usize]); 17] = [
    (Format::F16, &[0]),
    (Format::Bf16, &[0]),
    (Format::Q8_0, &[0]),
    (Format::Q4_0, &[0]),
    (Format::Q4_1, &[0]),
    (Format::Q5_0, &[0]),
    (Format::Q5_1, &[0]),
    (Format::Int8, &[0, 32, 64, 128]),
    (Format::Int8a, &[0, 32, 64, 192]),
    (Format::Int4, &[0, 32, 64, 128]),
    (Format::Int4a, &[0, 32, 64, 256]),
    (Format::Fp8, &[0, 32, 64, 128]),
    (Format::Fp4, &[16]),
    (Format::Mxfp4, &[32]),
    (Format::Q4K, &[0]),
    (Format::Q5K, &[0]),
    (Format::Q6K, &[0]),
];

proptest! {
    #[test]
    fn unpacking_gives_the_file_back(
        n in 1usize..70, parts in 1usize..4, k in 1usize..600, gated: bool, seed: u64, pick in 0usize..64
    ) {
        let (format, groups) = FORMATS[pick % FORMATS.len()];
        let group = groups[pick % groups.len()];
        // Experts have no gated weights.
        let parts = if gated { 1 } else { parts };
        let n = parts * if gated { n.next_multiple_of(2) } else { n };
        let k = k.next_multiple_of(whole(format));
        let w = random(format, group, n, k, &mut Dice(seed));
        let mut layout = Layout::of(format, group, n, k, gated).unwrap();
        if parts > 1 {
            layout = layout.in_parts(parts).unwrap();
        }
        prop_assert_eq!(w.file.len(), n * layout.row_bytes());
        prop_assert_eq!(layout.tiles(), parts * (n / parts).div_ceil(16));
        let mut codes = vec![1; layout.code_bytes()];
        let mut scales = vec![1; layout.scale_bytes()];
        // In two parts, as several threads would.
        let middle = layout.tiles() / 2;
        let (a, b) = codes.split_at_mut(middle * layout.tile_bytes());
        let (c, d) = scales.split_at_mut(middle * layout.tile_scale_bytes());
        // The file in two parts, too, as fused weights come.
        let first = n / 3 * layout.row_bytes();
        let file = FileRows::new([&w.file[..first], &w.file[first..]], layout.row_bytes()).unwrap();
        prop_assert!(layout.pack(0..middle, &file, a, c));
        prop_assert!(layout.pack(middle..layout.tiles(), &file, b, d));
        let mut back = vec![0xff; w.file.len()];
        prop_assert!(layout.unpack(&codes, &scales, &mut back));
        prop_assert_eq!(&back, &w.file);
        let one = FileRows::new([&w.file[..]], layout.row_bytes()).unwrap();
        let (mut all, mut of_all) = (vec![2; codes.len()], vec![2; scales.len()]);
        prop_assert!(layout.pack(0..layout.tiles(), &one, &mut all, &mut of_all));
        prop_assert_eq!(all, codes);
        prop_assert_eq!(of_all, scales);
    }
}

proptest! {
    #[test]
    fn columns_give_the_file_back(n in 1usize..100, k in 1usize..70, seed: u64) {
        let columns = Columns { n, k };
        let mut dice = Dice(seed);
        let file: Vec<u8> = (0..columns.file_bytes()).map(|_| dice.bits() as u8).collect();
        let mut packed = vec![1; columns.bytes()];
        let rows = FileRows::new([&file[..]], k * 4).unwrap();
        let (a, b) = packed.split_at_mut(columns.tiles() / 2 * columns.tile_bytes());
        prop_assert!(columns.pack(0..columns.tiles() / 2, &rows, a));
        prop_assert!(columns.pack(columns.tiles() / 2..columns.tiles(), &rows, b));
        let (row, at) = (n - 1, k - 1);
        let line = row / 32 * columns.tile_bytes() + (at * 32 + row % 32) * 4;
        prop_assert_eq!(&packed[line..line + 4], &file[(row * k + at) * 4..][..4]);
        let mut back = vec![0xff; file.len()];
        prop_assert!(columns.unpack(&packed, &mut back));
        prop_assert_eq!(&back, &file);
        prop_assert!(!columns.unpack(&packed[1..], &mut back));
        let short = FileRows::new([&file[k * 4..]], k * 4).unwrap();
        prop_assert!(!columns.pack(0..columns.tiles(), &short, &mut packed));
        prop_assert!(!columns.pack(0..columns.tiles(), &rows, &mut packed[1..]));
    }
}

proptest! {
    #[test]
    fn bytes_give_the_file_back(n in 1usize..40, blocks in 1usize..20, seed: u64) {
        let bytes = Bytes { n, k: blocks * 32 };
        let mut dice = Dice(seed);
        let file: Vec<u8> = (0..bytes.file_bytes()).map(|_| dice.bits() as u8).collect();
        let mut packed = vec![1; bytes.bytes()];
        let rows = FileRows::new([&file[..]], blocks * 34).unwrap();
        let (codes, scales) = packed.split_at_mut(n * bytes.k);
        let ((a, b), (c, d)) =
            (codes.split_at_mut(n / 2 * bytes.k), scales.split_at_mut(n / 2 * bytes.scale_bytes()));
        prop_assert!(bytes.pack(0..n / 2, &rows, a, c));
        prop_assert!(bytes.pack(n / 2..n, &rows, b, d));
        let last = &file[file.len() - 34..];
        let codes = n * bytes.k;
        prop_assert_eq!(&packed[codes - 32..codes], &last[2..]);
        let scale = packed.len() - (blocks.next_multiple_of(8) - blocks) * 2;
        prop_assert_eq!(&packed[scale - 2..scale], &last[..2]);
        prop_assert!(packed[scale..].iter().all(|v| *v == 0));
        let mut back = vec![0xff; file.len()];
        prop_assert!(bytes.unpack(&packed, &mut back));
        prop_assert_eq!(&back, &file);
        prop_assert!(!bytes.unpack(&packed[1..], &mut back));
        let (codes, scales) = packed.split_at_mut(n * bytes.k);
        prop_assert!(!bytes.pack(0..n + 1, &rows, codes, scales));
        prop_assert!(!bytes.pack(0..n, &rows, &mut codes[1..], scales));
        let odd = Bytes { n, k: bytes.k + 1 };
        prop_assert!(!odd.pack(0..n, &rows, codes, scales));
    }
}

#[test]
fn whole_shapes_take_hardly_more_than_their_file() {
    for (format, groups) in FORMATS {
        for &group in groups {
            let layout = Layout::of(format, group, 1536, 768, false).unwrap();
            let (packed, file) = (layout.code_bytes() + layout.scale_bytes(), 1536 * layout.row_bytes());
            // Bytes of 256 values that kernels need in more places than a file has them.
            let more = match format {
                Format::Mxfp4 => 8,
                Format::Q4K | Format::Q5K => 32,
                Format::Q6K => 14,
                _ => 0,
            };
            assert_eq!(packed, file + 1536 * 768 / 256 * more, "{} groups of {group}", format.name());
        }
    }
}

#[test]
fn what_cannot_be_packed_is_refused_with_a_reason() {
    let refused = |format, group, n, k, gated| Layout::of(format, group, n, k, gated).unwrap_err();
    assert!(refused(Format::F32, 0, 16, 64, false).contains("f32"));
    assert!(refused(Format::Q3K, 0, 16, 256, false).contains("K-quants of 2"));
    assert!(refused(Format::Q6K, 0, 16, 288, false).contains("whole"));
    assert!(refused(Format::Fp4, 32, 16, 256, false).contains("groups of 16"));
    assert!(refused(Format::Fp8, 16, 16, 256, false).contains("groups"));
    assert!(refused(Format::Fp8E5m2, 0, 16, 256, false).contains("e5m2"));
    assert!(refused(Format::Nf4, 64, 16, 256, false).contains("NF4"));
    assert!(refused(Format::Int4, 96, 16, 256, false).contains("groups"));
    assert!(refused(Format::Q8_0, 0, 16, 40, false).contains("whole"));
    assert!(refused(Format::F16, 0, 17, 64, true).contains("gate"));
    let layout = Layout::of(Format::F16, 0, 16, 64, false).unwrap();
    let parts = |layout: Layout, parts| layout.in_parts(parts).unwrap_err();
    assert!(parts(layout, 3).contains("evenly") && parts(layout, 0).contains("evenly"));
    assert!(parts(Layout::of(Format::F16, 0, 16, 64, true).unwrap(), 2).contains("gated"));
    assert!(parts(layout.in_parts(2).unwrap(), 2).contains("parts"));
    let rows = |file| FileRows::new([file], 128).unwrap();
    assert!(!layout.pack(0..1, &rows(&[0; 15 * 128]), &mut [0; 2048], &mut []));
    assert!(!layout.pack(0..2, &rows(&[0; 2048]), &mut [0; 4096], &mut []));
    assert!(layout.pack(0..1, &rows(&[0; 2048]), &mut [0; 2048], &mut []));
}

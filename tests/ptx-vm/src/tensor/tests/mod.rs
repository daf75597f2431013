//! Boxes against a model that walks element by element and swizzles by the tables printed in the PTX manual.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod ptx;

use super::address::Run;
use super::bulk;
use super::map::{self, DataType, Interleave, MapError, OobFill, Promotion, Swizzle, TensorMap};

pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        low + (self.next() % (high - low + 1) as u64) as i64
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[(self.next() % from.len() as u64) as usize]
    }
}

/// The manual's tables: which 16-byte chunk stands at each place of a 128-byte line.
const LINES_32: [[usize; 8]; 2] = [[0, 1, 2, 3, 4, 5, 6, 7], [1, 0, 3, 2, 5, 4, 7, 6]];
const LINES_64: [[usize; 8]; 4] =
    [[0, 1, 2, 3, 4, 5, 6, 7], [1, 0, 3, 2, 5, 4, 7, 6], [2, 3, 0, 1, 6, 7, 4, 5], [3, 2, 1, 0, 7, 6, 5, 4]];
const LINES_128: [[usize; 8]; 8] = [
    [0, 1, 2, 3, 4, 5, 6, 7],
    [1, 0, 3, 2, 5, 4, 7, 6],
    [2, 3, 0, 1, 6, 7, 4, 5],
    [3, 2, 1, 0, 7, 6, 5, 4],
    [4, 5, 6, 7, 0, 1, 2, 3],
    [5, 4, 7, 6, 1, 0, 3, 2],
    [6, 7, 4, 5, 2, 3, 0, 1],
    [7, 6, 5, 4, 3, 2, 1, 0],
];

/// Where byte `address` of the unswizzled image goes.
fn by_table(swizzle: Swizzle, address: usize) -> usize {
    let (line, chunk, byte) = (address / 128, address % 128 / 16, address % 16);
    let row: &[usize; 8] = match swizzle {
        Swizzle::None => return address,
        Swizzle::Bytes32 => &LINES_32[line % 2],
        Swizzle::Bytes64 => &LINES_64[line % 4],
        Swizzle::Bytes128 => &LINES_128[line % 8],
    };
    line * 128 + row.iter().position(|&c| c == chunk).unwrap() * 16 + byte
}

/// One element of a box: global address if inside, and the place of each of its bytes in shared memory.
pub struct Place {
    pub global: Option<u64>,
    pub shared: Vec<usize>,
}

/// The box, element by element.
pub fn model(map: &TensorMap, coordinates: &[i32], shared: usize) -> Vec<Place> {
    let rank = map.rank as usize;
    let size = map.data_type.bytes() as usize;
    let mut out = Vec::new();
    let inner = map.box_dims[0] as usize * size;
    let pitch = match map.swizzle {
        Swizzle::None => inner,
        swizzle => inner.max(swizzle.width() as usize),
    };
    let mut index = [0u32; 5];
    let mut row = 0;
    loop {
        for x in 0..map.box_dims[0] {
            index[0] = x;
            let mut inside = true;
            let mut global = map.address;
            for i in 0..rank {
                let step = if i == 0 { 1 } else { map.element_strides[i] };
                let at = i64::from(coordinates[i]) + i64::from(index[i] * step);
                inside &= at >= 0 && (at as u64) < map.dims[i];
                let stride = if i == 0 { size as u64 } else { map.strides[i - 1] };
                global = global.wrapping_add((at as u64).wrapping_mul(stride));
            }
            let place = |byte| by_table(map.swizzle, shared + row * pitch + x as usize * size + byte);
            out.push(Place { global: inside.then_some(global), shared: (0..size).map(place).collect() });
        }
        row += 1;
        let mut i = 1;
        loop {
            if i >= rank {
                return out;
            }
            index[i] += 1;
            if index[i] < map.box_dims[i].div_ceil(map.element_strides[i]) {
                break;
            }
            index[i] = 0;
            i += 1;
        }
    }
}

pub fn random_map(numbers: &mut Numbers) -> TensorMap {
    let data_type = numbers.pick(&[
        DataType::U8,
        DataType::Bf16,
        DataType::F16,
        DataType::F32,
        DataType::F64,
        DataType::S32,
    ]);
    let swizzle = numbers.pick(&[Swizzle::None, Swizzle::Bytes32, Swizzle::Bytes64, Swizzle::Bytes128]);
    let rank = numbers.between(1, 5) as usize;
    let size = u64::from(data_type.bytes());
    let most = if swizzle == Swizzle::None { 160 } else { swizzle.width() };
    let inner = numbers.between(1, i64::from(most / 16)) as u32 * 16 / data_type.bytes();
    let dims: Vec<u64> = (0..rank).map(|i| numbers.between(1, if i == 0 { 100 } else { 9 }) as u64).collect();
    let mut strides = Vec::new();
    let mut pitch = dims[0] * size;
    for dim in &dims[1..] {
        pitch = pitch.next_multiple_of(16) + 16 * numbers.between(0, 1) as u64;
        strides.push(pitch);
        pitch *= dim;
    }
    let boxes: Vec<u32> =
        (0..rank).map(|i| if i == 0 { inner.min(256) } else { numbers.between(1, 5) as u32 }).collect();
    let mut map = TensorMap::tiled(data_type, 0x7f00_0000_1000, &dims, &strides, &boxes);
    for step in &mut map.element_strides[1..rank] {
        *step = numbers.pick(&[1, 1, 2, 3]);
    }
    map.swizzle = swizzle;
    if data_type.is_float() {
        map.fill = numbers.pick(&[OobFill::Zeros, OobFill::Nan]);
    }
    map
}

#[test]
fn loads_and_stores_move_what_the_element_model_moves() {
    let mut numbers = Numbers(1);
    let (mut outside, mut inside) = (0, 0);
    for _ in 0..3000 {
        let map = random_map(&mut numbers);
        map.check().unwrap();
        let coordinates: Vec<i32> =
            (0..map.rank as usize).map(|i| numbers.between(-4, map.dims[i] as i64 + 2) as i32).collect();
        let shared = 128 * numbers.between(0, 9) as usize;
        let runs = map.runs(&coordinates, shared as u32).unwrap();
        let size = map.data_type.bytes() as usize;
        let mut got = std::collections::HashMap::new();
        for Run { global, shared, bytes } in runs {
            assert!(bytes > 0);
            for byte in 0..bytes {
                let from = global.map(|g| g + u64::from(byte));
                assert!(got.insert((shared + byte) as usize, from).is_none(), "{map:?}: a shared byte twice");
            }
        }
        assert_eq!(got.len() as u32, map.box_bytes());
        let places = model(&map, &coordinates, shared);
        assert_eq!(places.len() * size, got.len());
        let highest = got.keys().max().unwrap();
        assert!(*highest < shared + map.shared_bytes() as usize);
        for place in places {
            for (byte, at) in place.shared.iter().enumerate() {
                assert_eq!(got[at], place.global.map(|g| g + byte as u64), "{map:?} at {coordinates:?}");
            }
            if place.global.is_some() { inside += 1 } else { outside += 1 }
        }
    }
    assert!(outside > 10_000 && inside > 10_000, "{inside} inside, {outside} outside");
}

#[test]
fn rows_inside_a_plain_tensor_are_one_run_each() {
    let map = TensorMap::tiled(DataType::Bf16, 0x1000, &[64, 100], &[256], &[32, 3]);
    let run = |global, shared| Run { global: Some(global), shared, bytes: 64 };
    assert_eq!(
        map.runs(&[16, 7], 256).unwrap(),
        [run(0x1000 + 7 * 256 + 32, 256), run(0x1000 + 8 * 256 + 32, 320), run(0x1000 + 9 * 256 + 32, 384)]
    );
    // A tensor without gaps: the whole box in one piece.
    let dense = TensorMap::tiled(DataType::Bf16, 0x1000, &[32, 100], &[64], &[32, 3]);
    assert_eq!(
        dense.runs(&[0, 98], 0).unwrap(),
        [
            Run { global: Some(0x1000 + 98 * 64), shared: 0, bytes: 128 },
            Run { global: None, shared: 128, bytes: 64 },
        ]
    );
    assert_eq!([map.box_bytes(), map.shared_bytes()], [192, 192]);
}

#[test]
fn far_coordinates_are_outside_and_nothing_overflows() {
    let mut map = TensorMap::tiled(
        DataType::U8,
        0xffff_ffff_ffff_0000,
        &[1 << 32, 1 << 32, 2],
        &[16, (1 << 40) - 16],
        &[256, 2, 1],
    );
    for at in [[i32::MIN; 3], [i32::MAX; 3], [-1; 3], [i32::MAX, 0, 0]] {
        let runs = map.runs(&at, 0).unwrap();
        let covered: u32 = runs.iter().map(|run| run.bytes).sum();
        assert_eq!(covered, 512, "{at:?}");
        assert_eq!(runs.iter().all(|run| run.global.is_none()), at[2] != 0, "{at:?}");
    }
    map.element_strides = [8; 5];
    assert_eq!(map.box_count(0), 256);
    assert_eq!(map.box_count(1), 1);
}

#[test]
fn fills_are_zero_or_the_types_nan() {
    let mut map = TensorMap::tiled(DataType::Bf16, 0, &[8], &[], &[8]);
    assert_eq!(map.fill_element(), [0; 8]);
    map.fill = OobFill::Nan;
    assert_eq!(map.fill_element()[..2], [0xff, 0x7f]);
    map.data_type = DataType::F32;
    assert_eq!(map.fill_element()[..4], [0xff, 0xff, 0xff, 0x7f]);
}

#[test]
fn what_cannot_be_copied_is_named() {
    let map = TensorMap::tiled(DataType::F32, 0, &[64, 64], &[256], &[32, 8]);
    let text = |result: Result<Vec<Run>, MapError>| result.unwrap_err().to_string();
    assert!(text(map.runs(&[0], 0)).contains("number of coordinates is 1"));
    assert!(text(map.runs(&[0, 0], 64)).contains("shared address is 0x40"));
    assert!(text(TensorMap { data_type: DataType::Tf32, ..map }.runs(&[0, 0], 0)).contains("tf32"));
    let interleaved = TensorMap { interleave: Interleave::Bytes16, ..map };
    assert!(text(interleaved.runs(&[0, 0], 0)).contains("interleaved"));
}

#[test]
fn maps_survive_their_encoding() {
    let mut numbers = Numbers(2);
    for _ in 0..2000 {
        let mut map = random_map(&mut numbers);
        map.promotion =
            numbers.pick(&[Promotion::None, Promotion::Bytes64, Promotion::Bytes128, Promotion::Bytes256]);
        let bytes = map.encode().unwrap();
        assert_eq!(TensorMap::decode(&bytes), Ok(map));
        let mut broken = bytes;
        broken[numbers.between(0, 127) as usize] ^= 1 << numbers.between(0, 7);
        assert!(matches!(TensorMap::decode(&broken), Err(MapError::NotAMap(_))));
    }
    assert!(matches!(TensorMap::decode(&[0; map::BYTES]), Err(MapError::NotAMap(_))));
    let largest = TensorMap::tiled(DataType::U8, 16, &[1 << 32; 5], &[(1 << 40) - 16; 4], &[256; 5]);
    assert_eq!(TensorMap::decode(&largest.encode().unwrap()), Ok(largest));
}

#[test]
fn every_rule_of_the_driver_is_held() {
    let good = TensorMap::tiled(DataType::Bf16, 0x100, &[64, 8, 8], &[128, 1024], &[64, 8, 1]);
    assert_eq!(good.check(), Ok(()));
    let broken = |change: &dyn Fn(&mut TensorMap)| {
        let mut map = good;
        change(&mut map);
        assert_eq!(map.check().is_err(), map.encode().is_err());
        map.check().unwrap_err().to_string()
    };
    assert!(broken(&|m| m.rank = 0).contains("rank is 0"));
    assert!(broken(&|m| m.rank = 6).contains("rank is 6"));
    assert!(broken(&|m| m.address = 8).contains("global address is 0x8"));
    assert!(broken(&|m| m.dims[1] = 0).contains("dimension 1 is 0"));
    assert!(broken(&|m| m.dims[2] = (1 << 32) + 1).contains("dimension 2"));
    assert!(broken(&|m| m.strides[0] = 120).contains("stride of dimension 1 is 120"));
    assert!(broken(&|m| m.strides[1] = 1 << 40).contains("stride of dimension 2"));
    assert!(broken(&|m| m.box_dims[0] = 0).contains("box dimension 0 is 0"));
    assert!(broken(&|m| m.box_dims[1] = 257).contains("box dimension 1 is 257"));
    assert!(broken(&|m| m.box_dims[0] = 12).contains("bytes is 24"));
    assert!(broken(&|m| m.element_strides[1] = 9).contains("element stride 1 is 9"));
    assert!(broken(&|m| m.element_strides[2] = 0).contains("element stride 2 is 0"));
    assert!(broken(&|m| m.swizzle = Swizzle::Bytes64).contains("at most the swizzle's 64"));
    let nan = |m: &mut TensorMap| (m.data_type, m.fill) = (DataType::U16, OobFill::Nan);
    assert!(broken(&nan).contains("NaN for U16"));
    let wide = |m: &mut TensorMap| m.interleave = Interleave::Bytes32;
    assert!(broken(&wide).contains("swizzle is None"));
    assert!(
        broken(&|m| (m.interleave, m.strides[0]) = (Interleave::Bytes32, 144)).contains("multiple of 32")
    );
    assert!(broken(&|m| (m.interleave, m.rank) = (Interleave::Bytes16, 2)).contains("3 to 5"));
    // Fitting the swizzle exactly is right, and entries beyond the rank do not count.
    assert_eq!(TensorMap { swizzle: Swizzle::Bytes128, ..good }.check(), Ok(()));
    assert_eq!(TensorMap { rank: 1, dims: [64, 0, 0, 0, 0], ..good }.check(), Ok(()));
    assert!(DataType::from_code(13).unwrap_err().to_string().contains("data type is 13"));
    assert_eq!(Swizzle::from_code(3), Ok(Swizzle::Bytes128));
    for code in 0..13 {
        assert_eq!(DataType::from_code(code).unwrap().code(), code);
    }
}

#[test]
fn bulk_copies_are_whole_units_and_masks_name_blocks() {
    assert_eq!(bulk::check(0x20, 0x30, 0x40), Ok(()));
    assert!(bulk::check(0x28, 0x30, 0x40).unwrap_err().contains("destination is 0x28"));
    assert!(bulk::check(0x20, 0x31, 0x40).unwrap_err().contains("source"));
    assert!(bulk::check(0x20, 0x30, 0x41).unwrap_err().contains("size"));
    assert_eq!(bulk::multicast(0b1010, 4), Ok(vec![1, 3]));
    assert!(bulk::multicast(0b1010, 2).unwrap_err().contains("names block 3"));
    assert!(bulk::multicast(0, 2).is_err());
}

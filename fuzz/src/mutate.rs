//! Mutations: of bits, of lengths, of numbers in text, by dictionary, by splicing.

/// A small deterministic generator (xorshift64*).
pub struct Random(u64);

impl Random {
    /// Any seed will do.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `n`; zero for `n` = 0.
    fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.next() >> 11) as usize % n }
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Longest input.
const MAX_LEN: usize = 1 << 18;

/// Numbers that readers get wrong.
const NUMBERS: [u64; 18] = [
    0,
    1,
    2,
    7,
    31,
    32,
    33,
    255,
    65_536,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    1 << 40,
    1 << 60,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 31,
    u64::MAX,
];

/// A seed with one to six mutations. With `text_header` (safetensors) half the cases get the length in front
/// put right again, so that mutations reach the header's JSON.
pub fn mutated(r: &mut Random, seeds: &[Vec<u8>], words: &[&str], text_header: bool) -> Vec<u8> {
    let seed = r.pick(seeds);
    let length = seed.split_first_chunk::<8>().filter(|_| text_header && r.below(2) == 0);
    let Some((length, rest)) = length else { return several(r, seed.clone(), seeds, words) };
    let (text, data) = rest.split_at(rest.len().min(u64::from_le_bytes(*length) as usize));
    let text = several(r, text.to_vec(), seeds, words);
    [&(text.len() as u64).to_le_bytes()[..], &text, data].concat()
}

fn several(r: &mut Random, mut bytes: Vec<u8>, seeds: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    for _ in 0..=r.below(6) {
        once(r, &mut bytes, seeds, words);
    }
    bytes.truncate(MAX_LEN);
    bytes
}

fn once(r: &mut Random, bytes: &mut Vec<u8>, seeds: &[Vec<u8>], words: &[&str]) {
    let at = r.below(bytes.len());
    match r.below(11) {
        0 if !bytes.is_empty() => bytes[at] ^= 1 << r.below(8),
        1 if !bytes.is_empty() => bytes[at] = r.next() as u8,
        2 => bytes.truncate(at),
        3 => number_in_place(r, bytes, at),
        4 => number_in_text(r, bytes, at),
        5 => {
            let word = r.pick(words).as_bytes();
            let end = (at + if r.below(2) == 0 { 0 } else { word.len() }).min(bytes.len());
            bytes.splice(at..end, word.iter().copied());
        }
        6 => {
            let other = r.pick(seeds);
            let from = r.below(other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        7 => {
            // Repeats a part: names, pairs and brackets come twice.
            let end = at + r.below(64.min(bytes.len() - at) + 1);
            let most = if r.below(20) == 0 { 2000 } else { 2 };
            let part = bytes[at..end].repeat(1 + r.below(most));
            bytes.splice(end..end, part);
        }
        8 => {
            let end = at + r.below(32.min(bytes.len() - at) + 1);
            bytes.drain(at..end);
        }
        9 => bytes.extend((0..r.below(64)).map(|i| i as u8)),
        _ => {
            let (from, n) = (r.below(bytes.len()), r.below(16));
            let part: Vec<u8> = bytes.iter().skip(from).take(n).copied().collect();
            for (to, b) in bytes.iter_mut().skip(at).zip(part) {
                *to = b;
            }
        }
    }
}

/// Overwrites 4 or 8 bytes, as length fields are.
fn number_in_place(r: &mut Random, bytes: &mut [u8], at: usize) {
    let len = bytes.len() as u64;
    let n = match r.below(4) {
        0 => len.wrapping_add(r.below(5) as u64).wrapping_sub(2),
        1 => r.below(64) as u64,
        _ => *r.pick(&NUMBERS),
    };
    let width = *r.pick(&[4, 8]);
    for (to, b) in bytes.iter_mut().skip(at).zip(&n.to_le_bytes()[..width]) {
        *to = *b;
    }
}

/// Replaces the next run of digits.
fn number_in_text(r: &mut Random, bytes: &mut Vec<u8>, at: usize) {
    let Some(start) = (at..bytes.len()).find(|i| bytes[*i].is_ascii_digit()) else { return };
    let end = (start..bytes.len()).find(|i| !bytes[*i].is_ascii_digit()).unwrap_or(bytes.len());
    let text = match r.below(4) {
        0 => format!("-{}", r.pick(&NUMBERS)),
        1 => format!("{}", r.below(128)),
        2 => format!("{}e{}", r.below(9), r.below(400)),
        _ => format!("{}", r.pick(&NUMBERS)),
    };
    bytes.splice(start..end, text.bytes());
}

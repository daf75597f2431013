//! Floating-point conversions: `%f`, `%e`, `%g`, `%a`.

use super::{Conversion, pad, sign};

/// Writes a number.
pub(super) fn write(out: &mut Vec<u8>, mut c: Conversion, letter: u8, value: f64) {
    let upper = letter.is_ascii_uppercase();
    let mut sign = sign(&c, value.is_sign_negative()).to_owned();
    let size = value.abs();
    let text = if !value.is_finite() {
        c.zero = false;
        if value.is_nan() { "nan".into() } else { "inf".into() }
    } else {
        match letter.to_ascii_lowercase() {
            b'f' => fixed(size, c.precision.unwrap_or(6), c.alternate),
            b'e' => exponential(size, c.precision.unwrap_or(6), c.alternate),
            b'g' => shorter(size, c.precision.unwrap_or(6).max(1), c.alternate),
            _ => {
                sign.push_str("0x");
                hexadecimal(size, c.precision, c.alternate)
            }
        }
    };
    let (sign, text) = if upper { (sign.to_uppercase(), text.to_uppercase()) } else { (sign, text) };
    pad(out, &c, sign.as_bytes(), text.as_bytes());
}

fn fixed(value: f64, precision: usize, point: bool) -> String {
    let dot = if point && precision == 0 { "." } else { "" };
    format!("{value:.precision$}{dot}")
}

/// Digits and the exponent of ten of the rounded number.
fn scientific(value: f64, precision: usize) -> (String, i32) {
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    (digits.to_owned(), exponent.parse().unwrap_or(0))
}

fn exponential(value: f64, precision: usize, point: bool) -> String {
    let (digits, exponent) = scientific(value, precision);
    let dot = if point && precision == 0 { "." } else { "" };
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}{dot}e{sign}{:02}", exponent.abs())
}

/// `%g`: the exponent decides which of the two it is, and zeros at the end go.
fn shorter(value: f64, significant: usize, alternate: bool) -> String {
    let exponent = scientific(value, significant - 1).1;
    let plain = exponent >= -4 && exponent < significant as i32;
    let text = if plain {
        fixed(value, (significant as i32 - 1 - exponent) as usize, alternate)
    } else {
        exponential(value, significant - 1, alternate)
    };
    if alternate {
        return text;
    }
    let (digits, tail) = text.split_at(text.find('e').unwrap_or(text.len()));
    let digits =
        if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits };
    format!("{digits}{tail}")
}

/// `%a` behind its `0x`: one digit, the fraction in hexadecimal, the exponent of two.
fn hexadecimal(value: f64, precision: Option<usize>, point: bool) -> String {
    const FRACTION: u32 = 52;
    let bits = value.to_bits();
    let field = (bits >> FRACTION) as i32;
    let (mut mantissa, exponent) = match (field, bits << 12) {
        (0, 0) => (0, 0),
        (0, _) => (bits, -1022),
        _ => (bits & ((1 << FRACTION) - 1) | 1 << FRACTION, field - 1023),
    };
    let digits = precision.unwrap_or(13);
    if digits < 13 {
        // To nearest, halves to even.
        let dropped = FRACTION - 4 * digits as u32;
        let (rest, half) = (mantissa & ((1 << dropped) - 1), 1u64 << (dropped - 1));
        mantissa >>= dropped;
        mantissa += u64::from(rest > half || rest == half && mantissa & 1 == 1);
        mantissa <<= dropped;
    }
    let fraction = format!("{:013x}", mantissa & ((1 << FRACTION) - 1));
    let fraction = match precision {
        None => fraction.trim_end_matches('0').to_owned(),
        Some(n) => format!("{fraction:0<n$}")[..n].to_owned(),
    };
    let dot = if point || !fraction.is_empty() { "." } else { "" };
    format!("{}{dot}{fraction}p{exponent:+}", mantissa >> FRACTION)
}

//! C's formatted text, as CUDA's device `printf` writes it: pure functions over the bytes of a format.
//!
//! CUDA documents the conversions `c d i o u x X p e E f F g G a A s %` with the flags `# 0 - + space`, a
//! width (also `*`), a precision, and the lengths `h l ll`. Anything else is written as it stands, and so is
//! every conversion behind the thirty-second argument.

mod real;

/// Arguments that a call may have; further conversions are written as they stand.
const ARGUMENTS: usize = 32;
/// Characters that a width or a precision may ask for; more is a mistake of the format.
const WIDEST: usize = 1 << 16;

/// Where the arguments of a call come from, one after another.
pub(crate) trait Arguments {
    /// What reading can fail with.
    type Error;
    /// The next argument of so many bytes, 4 or 8.
    fn next(&mut self, bytes: u32) -> Result<u64, Self::Error>;
    /// The string at an address, at most so many bytes of it.
    fn string(&mut self, address: u64, most: usize) -> Result<Vec<u8>, Self::Error>;
}

/// One conversion: `%-08.3lld`.
#[derive(Debug, Clone, Copy, Default)]
struct Conversion {
    alternate: bool,
    zero: bool,
    left: bool,
    plus: bool,
    space: bool,
    width: usize,
    precision: Option<usize>,
    /// The argument has 8 bytes.
    long: bool,
    /// Bits of an integer that count: 16 with `h`, 8 with `hh`.
    kept: u32,
}

/// The text of a call, and the number of arguments it took.
pub(crate) fn text<A: Arguments>(format: &[u8], arguments: &mut A) -> Result<(Vec<u8>, u32), A::Error> {
    let (mut out, mut taken, mut at) = (Vec::new(), 0, 0);
    while at < format.len() {
        if format[at] != b'%' {
            out.push(format[at]);
            at += 1;
            continue;
        }
        let end = conversion_end(&format[at..]) + at;
        let whole = &format[at..end];
        match whole {
            b"%%" => out.push(b'%'),
            _ if !convert(whole, arguments, &mut taken, &mut out)? => out.extend(whole),
            _ => {}
        }
        at = end;
    }
    Ok((out, taken as u32))
}

/// The length of what begins with a percent sign, with its letter.
fn conversion_end(text: &[u8]) -> usize {
    let part = |c: &u8| matches!(c, b'#' | b' ' | b'+' | b'-' | b'*' | b'.' | b'h' | b'l' | b'0'..=b'9');
    let inner = text[1..].iter().take_while(|c| part(c)).count();
    text.len().min(inner + 2)
}

/// Writes one conversion; false when it is none, or one argument too many.
fn convert<A: Arguments>(
    whole: &[u8],
    arguments: &mut A,
    taken: &mut usize,
    out: &mut Vec<u8>,
) -> Result<bool, A::Error> {
    let Some((&letter, head)) = whole[1..].split_last() else { return Ok(false) };
    let stars = head.iter().filter(|&&c| c == b'*').count();
    if !b"cdiouxXpeEfFgGaAs".contains(&letter) || stars > 2 || *taken + stars >= ARGUMENTS {
        return Ok(false);
    }
    let mut star = || arguments.next(4).map(|n| n as u32 as i32);
    let Some(mut c) = read_head(head, &mut star)? else { return Ok(false) };
    *taken += stars + 1;
    let real = b"eEfFgGaA".contains(&letter);
    let bytes = if c.long || real || matches!(letter, b's' | b'p') { 8 } else { 4 };
    let bits = arguments.next(bytes)?;
    match letter {
        b'c' => {
            c.zero = false;
            pad(out, &c, b"", &[bits as u8]);
        }
        b's' => {
            c.zero = false;
            let text = match bits {
                0 => b"(null)".to_vec(),
                address => arguments.string(address, c.precision.unwrap_or(usize::MAX))?,
            };
            pad(out, &c, b"", &text[..text.len().min(c.precision.unwrap_or(usize::MAX))]);
        }
        b'p' if bits == 0 => {
            c.zero = false;
            pad(out, &c, b"", b"(nil)");
        }
        b'p' => integer(out, Conversion { alternate: true, kept: 64, ..c }, b'x', bits),
        _ if real => real::write(out, c, letter, f64::from_bits(bits)),
        _ => integer(out, c, letter, bits),
    }
    Ok(true)
}

/// Flags, width, precision and length; none when they are no conversion's.
fn read_head<E>(head: &[u8], star: &mut dyn FnMut() -> Result<i32, E>) -> Result<Option<Conversion>, E> {
    let mut c = Conversion { kept: 64, ..Conversion::default() };
    let mut rest = head;
    while let Some((&flag, tail)) = rest.split_first().filter(|(c, _)| b"#0-+ ".contains(c)) {
        match flag {
            b'#' => c.alternate = true,
            b'0' => c.zero = true,
            b'-' => c.left = true,
            b'+' => c.plus = true,
            _ => c.space = true,
        }
        rest = tail;
    }
    // A negative width is the flag `-` with a width; a negative precision is none.
    let mut number = |rest: &mut &[u8]| -> Result<i32, E> {
        if let Some(tail) = rest.strip_prefix(b"*") {
            *rest = tail;
            return star();
        }
        let digits = rest.iter().take_while(|c| c.is_ascii_digit()).count();
        let value =
            rest[..digits].iter().fold(0i32, |n, d| n.saturating_mul(10).saturating_add(i32::from(d - b'0')));
        *rest = &rest[digits..];
        Ok(value)
    };
    let width = number(&mut rest)?;
    c.left |= width < 0;
    c.width = (width.unsigned_abs() as usize).min(WIDEST);
    if let Some(tail) = rest.strip_prefix(b".") {
        rest = tail;
        c.precision = usize::try_from(number(&mut rest)?).ok().map(|n| n.min(WIDEST));
    }
    match rest {
        b"" => {}
        b"h" => c.kept = 16,
        b"hh" => c.kept = 8,
        b"l" | b"ll" => c.long = true,
        _ => return Ok(None),
    }
    if !c.long {
        c.kept = c.kept.min(32);
    }
    Ok(Some(c))
}

/// Writes an integer.
fn integer(out: &mut Vec<u8>, mut c: Conversion, letter: u8, bits: u64) {
    let shift = 64 - c.kept;
    let signed = matches!(letter, b'd' | b'i');
    let (negative, value) = if signed {
        let value = (bits << shift) as i64 >> shift;
        (value < 0, value.unsigned_abs())
    } else {
        (false, bits << shift >> shift)
    };
    let mut digits = match letter {
        b'x' => format!("{value:x}"),
        b'X' => format!("{value:X}"),
        b'o' => format!("{value:o}"),
        _ => format!("{value}"),
    };
    if let Some(precision) = c.precision {
        // A precision takes the place of the flag `0`, and nothing is the text of a zero without digits.
        c.zero = false;
        if precision == 0 && value == 0 {
            digits.clear();
        }
        digits.insert_str(0, &"0".repeat(precision.saturating_sub(digits.len())));
    }
    if letter == b'o' && c.alternate && !digits.starts_with('0') {
        digits.insert(0, '0');
    }
    let sign = match letter {
        b'd' | b'i' => sign(&c, negative),
        b'x' if c.alternate && value != 0 => "0x",
        b'X' if c.alternate && value != 0 => "0X",
        _ => "",
    };
    pad(out, &c, sign.as_bytes(), digits.as_bytes());
}

fn sign(c: &Conversion, negative: bool) -> &'static str {
    match (negative, c.plus, c.space) {
        (true, ..) => "-",
        (_, true, _) => "+",
        (.., true) => " ",
        _ => "",
    }
}

/// Writes sign and text in the width that was asked for.
fn pad(out: &mut Vec<u8>, c: &Conversion, sign: &[u8], text: &[u8]) {
    let missing = c.width.saturating_sub(sign.len() + text.len());
    let zero = c.zero && !c.left;
    if !zero && !c.left {
        out.extend(std::iter::repeat_n(b' ', missing));
    }
    out.extend(sign);
    if zero {
        out.extend(std::iter::repeat_n(b'0', missing));
    }
    out.extend(text);
    if c.left {
        out.extend(std::iter::repeat_n(b' ', missing));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;

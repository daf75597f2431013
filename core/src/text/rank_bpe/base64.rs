//! Base 64 as files of ranks have it: the usual alphabet, padded to whole groups.

/// The bytes of a text, if it is base 64.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let body = text.trim_end_matches('=');
    // A group of four has at most two signs of padding.
    if !text.len().is_multiple_of(4) || text.len() - body.len() > 2 {
        return None;
    }
    let (mut out, mut bits, mut count) = (Vec::with_capacity(body.len() / 4 * 3 + 2), 0u32, 0);
    for byte in body.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        (bits, count) = ((bits << 6 | u32::from(value)) & 0x00FF_FFFF, count + 6);
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    Some(out)
}

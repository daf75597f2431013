//! What the linker makes: a container of this driver's own, with PTX in it and a hash over it.

const MAGIC: &[u8; 16] = b"engraft-softlink";

/// The container of some texts: the same bytes for the same texts.
pub fn seal(texts: &[String]) -> Box<[u8]> {
    let mut body = Vec::new();
    for text in texts {
        body.extend((text.len() as u64).to_le_bytes());
        body.extend(text.as_bytes());
    }
    let mut bytes = MAGIC.to_vec();
    bytes.extend((body.len() as u64).to_le_bytes());
    bytes.extend(hash(&body).to_le_bytes());
    bytes.extend(body);
    bytes.into()
}

/// FNV-1a: tells damage, not malice.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3))
}

/// The size in bytes of a container that begins with these bytes, if they are the beginning of one.
pub fn size(head: &[u8]) -> Option<usize> {
    let rest = head.strip_prefix(MAGIC)?;
    let total = u64::from_le_bytes(*rest.first_chunk::<8>()?);
    usize::try_from(total).ok()?.checked_add(HEAD)
}

/// These bytes may be the beginning of a container whose size is not known yet.
pub fn begins(bytes: &[u8]) -> bool {
    bytes.len() < HEAD && bytes.starts_with(MAGIC)
}

/// Bytes to read before [`size`] can answer.
const HEAD: usize = MAGIC.len() + 16;

/// Whether these bytes are a container, or were one.
pub fn is_one(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// The texts of a container, or nothing when it is none or damaged.
pub fn open(bytes: &[u8]) -> Option<Vec<String>> {
    let (kept, mut rest) = bytes.get(MAGIC.len() + 8..size(bytes)?)?.split_first_chunk::<8>()?;
    if u64::from_le_bytes(*kept) != hash(rest) {
        return None;
    }
    let mut texts = Vec::new();
    while !rest.is_empty() {
        let (length, tail) = rest.split_first_chunk::<8>()?;
        let (text, tail) = tail.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        texts.push(String::from_utf8(text.to_vec()).ok()?);
        rest = tail;
    }
    Some(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_opens_to_its_texts_and_a_truncated_or_changed_one_does_not() {
        let texts = vec!["one".to_owned(), String::new(), "three".to_owned()];
        let sealed = seal(&texts);
        assert_eq!(open(&sealed), Some(texts));
        for len in 0..sealed.len() {
            assert_eq!(open(&sealed[..len]), None, "{len} bytes");
        }
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(open(&changed), None, "byte {at}");
        }
    }
}

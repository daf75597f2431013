//! The directory of a zip archive whose members are stored, as `torch.save` writes them: where each member's
//! bytes lie.
//!
//! The central directory decides; a member's local header is only asked how long it is itself. Plain and
//! zip64 records. Refused: compression, encryption, several disks, names that come twice, ranges outside the
//! file. Source: PKWARE's APPNOTE 6.3.10, sections 4.3 and 4.5.3.

use crate::checkpoint::storage::Storage;
use crate::{Error, Result};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// First bytes of an archive.
pub(super) const MAGIC: &[u8] = b"PK\x03\x04";
/// Most members.
const MAX_MEMBERS: u64 = 1 << 20;
/// Bytes of the record that ends an archive, without its comment.
const END: usize = 22;
/// Longest comment.
const COMMENT: u64 = 0xffff;
/// "See the zip64 record."
const ELSEWHERE: u64 = 0xffff_ffff;

/// A stored member, as the central directory has it.
#[derive(Debug, Clone, Copy)]
struct Member {
    /// Where its local header begins.
    header: u64,
    size: u64,
}

/// Members of an archive by name.
pub(super) struct Archive<'a> {
    storage: &'a Storage,
    members: BTreeMap<String, Member>,
}

/// Little-endian numbers at fixed places of a slice whose length has been checked.
struct Record<'a>(Cow<'a, [u8]>);

impl Record<'_> {
    fn number(&self, at: usize, width: usize) -> u64 {
        let bytes = self.0.get(at..at + width).unwrap_or_default();
        bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
    }
}

impl<'a> Archive<'a> {
    /// Reads the central directory.
    pub(super) fn open(storage: &'a Storage) -> Result<Self> {
        let bad = |what: String| Error::format(storage.name(), what);
        let (start, size, count) = directory(storage)?;
        if count > MAX_MEMBERS {
            return Err(bad(format!("the archive has {count} members; at most {MAX_MEMBERS} are allowed")));
        }
        let end = start.checked_add(size).filter(|end| *end <= storage.len());
        let Some(end) = end else {
            let len = storage.len();
            return Err(bad(format!(
                "the archive's directory is at {start}, {size} bytes long, beyond the file's {len}"
            )));
        };
        let bytes = storage.range(start, end)?;
        let (mut members, mut at) = (BTreeMap::new(), 0);
        for i in 0..count {
            let (name, member, used) =
                member(&bytes[at..]).map_err(|what| bad(format!("member {i}: {what}")))?;
            at += used;
            if members.insert(name.clone(), member).is_some() {
                return Err(bad(format!("the archive has two members `{name}`")));
            }
        }
        Ok(Self { storage, members })
    }

    /// Names, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// Where a member's bytes lie; `None` if there is no such member.
    pub(super) fn place(&self, name: &str) -> Result<Option<(u64, u64)>> {
        let Some(member) = self.members.get(name) else { return Ok(None) };
        let bad = |what: &str| Error::format(self.storage.name(), format!("member `{name}` {what}"));
        let front = member.header.checked_add(30).filter(|end| *end <= self.storage.len());
        let front = front.ok_or_else(|| bad("begins beyond the end of the file"))?;
        let local = Record(self.storage.range(member.header, front)?);
        if !local.0.starts_with(MAGIC) {
            return Err(bad("has no header where the directory places it"));
        }
        let start = front + local.number(26, 2) + local.number(28, 2);
        match start.checked_add(member.size).filter(|end| *end <= self.storage.len()) {
            Some(end) => Ok(Some((start, end))),
            None => Err(bad("ends beyond the end of the file: the file is truncated")),
        }
    }
}

/// Start, size and member count of the central directory.
fn directory(storage: &Storage) -> Result<(u64, u64, u64)> {
    let bad = |what: &str| Error::format(storage.name(), what);
    let from = storage.len().saturating_sub(END as u64 + COMMENT);
    let tail = storage.range(from, storage.len())?;
    let truncated = "is a zip archive without an end record: the file is truncated";
    // The record whose comment ends where the file ends.
    let at = (0..(tail.len() + 1).saturating_sub(END)).rev().find(|&i| {
        tail[i..].starts_with(b"PK\x05\x06")
            && i + END + usize::from(u16::from_le_bytes([tail[i + 20], tail[i + 21]])) == tail.len()
    });
    let at = at.ok_or_else(|| bad(truncated))?;
    let end = Record(Cow::Borrowed(&tail[at..]));
    if end.number(4, 2) != end.number(6, 2) {
        return Err(bad("is one disk of several of a zip archive"));
    }
    let plain = (end.number(16, 4), end.number(12, 4), end.number(10, 2));
    let at = from + at as u64;
    let Some(locator) = at.checked_sub(20) else { return Ok(plain) };
    let locator = Record(storage.range(locator, at)?);
    if !locator.0.starts_with(b"PK\x06\x07") {
        return Ok(plain);
    }
    let start = locator.number(8, 8);
    let stop = start.checked_add(56).filter(|stop| *stop <= storage.len());
    let record =
        Record(storage.range(start, stop.ok_or_else(|| bad("its zip64 record lies beyond the end"))?)?);
    if !record.0.starts_with(b"PK\x06\x06") {
        return Err(bad("has no zip64 record where its locator points"));
    }
    Ok((record.number(48, 8), record.number(40, 8), record.number(32, 8)))
}

/// One entry of the central directory and its length.
fn member(bytes: &[u8]) -> Result<(String, Member, usize), String> {
    let record = Record(Cow::Borrowed(bytes));
    if bytes.len() < 46 || !bytes.starts_with(b"PK\x01\x02") {
        return Err("its entry in the archive's directory is broken".into());
    }
    let [name, extra, comment] = [28, 30, 32].map(|at| record.number(at, 2) as usize);
    let used = 46 + name + extra + comment;
    let text = bytes.get(46..46 + name).filter(|_| used <= bytes.len());
    let text = text.ok_or("its entry in the archive's directory is truncated")?;
    let text = std::str::from_utf8(text).map_err(|_| "its name is not UTF-8")?.to_owned();
    if record.number(8, 2) & 1 != 0 {
        return Err(format!("`{text}` is encrypted"));
    }
    let (mut packed, mut size, mut header) =
        (record.number(20, 4), record.number(24, 4), record.number(42, 4));
    let extra = &bytes[46 + name..46 + name + extra];
    let mut wide = zip64(extra);
    for field in [&mut size, &mut packed, &mut header] {
        if *field == ELSEWHERE {
            *field = wide.next().ok_or_else(|| format!("`{text}` lacks its zip64 sizes"))?;
        }
    }
    match record.number(10, 2) {
        0 if packed == size => Ok((text, Member { header, size }, used)),
        0 => Err(format!("`{text}` is stored, but has sizes {packed} and {size}")),
        method => Err(format!("`{text}` is compressed (method {method}); only stored members can be read")),
    }
}

/// The 8-byte numbers of the zip64 extra field.
fn zip64(mut extra: &[u8]) -> impl Iterator<Item = u64> {
    let mut found: &[u8] = &[];
    while extra.len() >= 4 {
        let id = u16::from_le_bytes([extra[0], extra[1]]);
        let size = usize::from(u16::from_le_bytes([extra[2], extra[3]]));
        let body = &extra[4..];
        let (body, rest) = body.split_at(size.min(body.len()));
        if id == 1 {
            found = body;
            break;
        }
        extra = rest;
    }
    found.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect::<Vec<_>>().into_iter()
}

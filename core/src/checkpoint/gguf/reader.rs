//! A cursor over the front of a GGUF file: takes values off, and says what was being read when it cannot.

use super::{
    format::{MAX_ARRAY, MAX_STRING},
    metadata::{Array, Kind, Numbers, Strings, Value},
};

/// Why reading stopped.
#[derive(Debug)]
pub(super) enum Stop {
    /// The file goes on, but the slice does not: come back with more of it.
    Short,
    /// The file is broken.
    Bad(String),
    /// One tensor is broken: its name and what is wrong.
    Tensor(String, String),
}

/// The cursor.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    file_len: u64,
}

impl<'a> Reader<'a> {
    /// Over the front of a file of `file_len` bytes.
    pub(super) fn new(bytes: &'a [u8], file_len: u64) -> Self {
        Self { bytes, at: 0, file_len }
    }

    /// Position in the file.
    pub(super) fn at(&self) -> u64 {
        self.at as u64
    }

    /// The file's length.
    pub(super) fn file_len(&self) -> u64 {
        self.file_len
    }

    /// The next `n` bytes; `what` is written only into an error.
    pub(super) fn take(&mut self, n: u64, what: impl FnOnce() -> String) -> Result<&'a [u8], Stop> {
        let left = self.file_len.saturating_sub(self.at());
        if n > left {
            return Err(Stop::Bad(format!(
                "is truncated at byte {} in the {}: {n} bytes are needed, {left} are left",
                self.at,
                what()
            )));
        }
        let rest = self.bytes.get(self.at..).ok_or(Stop::Short)?;
        // n is at most the file's length; a slice shorter than that is the only way to fail here.
        let n = usize::try_from(n).map_err(|_| Stop::Short)?;
        let taken = rest.get(..n).ok_or(Stop::Short)?;
        self.at += n;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: impl FnOnce() -> String) -> Result<[u8; N], Stop> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    /// An unsigned 32-bit number.
    pub(super) fn u32(&mut self, what: impl FnOnce() -> String) -> Result<u32, Stop> {
        self.array(what).map(u32::from_le_bytes)
    }

    /// An unsigned 64-bit number.
    pub(super) fn u64(&mut self, what: impl FnOnce() -> String) -> Result<u64, Stop> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A count of things that each take at least `least` bytes: limited, and compared with what is left of
    /// the file.
    pub(super) fn count(&mut self, what: &str, limit: u64, least: u64) -> Result<usize, Stop> {
        let n = self.u64(|| what.into())?;
        self.check_count(n, what, limit, least)
    }

    fn check_count(&self, n: u64, what: &str, limit: u64, least: u64) -> Result<usize, Stop> {
        if n > limit {
            return Err(Stop::Bad(format!("{what} is {n}; at most {limit} is allowed")));
        }
        let left = self.file_len.saturating_sub(self.at());
        match n.checked_mul(least) {
            Some(bytes) if bytes <= left => usize::try_from(n).map_err(|_| Stop::Short),
            _ => Err(Stop::Bad(format!("{what} is {n}, too many for the {left} bytes that are left"))),
        }
    }

    /// A string of at most `limit` bytes.
    pub(super) fn string(&mut self, limit: u64, what: impl Fn() -> String) -> Result<String, Stop> {
        let at = self.at;
        let bytes = self.string_bytes(limit, &what)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(Stop::Bad(format!("{} at byte {at} is not UTF-8", what()))),
        }
    }

    fn string_bytes(&mut self, limit: u64, what: &dyn Fn() -> String) -> Result<&'a [u8], Stop> {
        let n = self.u64(|| format!("length of the {}", what()))?;
        if n > limit {
            return Err(Stop::Bad(format!("{} is {n} bytes long; at most {limit} are allowed", what())));
        }
        self.take(n, what)
    }

    /// The value of a metadata pair: its type, then itself.
    pub(super) fn value(&mut self, key: &str) -> Result<Value, Stop> {
        let what = || format!("value of `{key}`");
        let kind = self.u32(|| format!("type of `{key}`"))?;
        Ok(match kind {
            8 => Value::String(self.string(MAX_STRING, what)?),
            9 => Value::Array(self.list(key)?),
            _ => {
                let kind = number_kind(kind, key)?;
                let bytes = self.take(kind.bytes() as u64, what)?;
                let found = Numbers::new(kind, bytes.to_vec());
                match found.first() {
                    Some(value) => value,
                    None => return Err(Stop::Bad(bad_bool(key))),
                }
            }
        })
    }

    fn list(&mut self, key: &str) -> Result<Array, Stop> {
        let kind = self.u32(|| format!("element type of `{key}`"))?;
        let n = self.u64(|| format!("length of `{key}`"))?;
        let what = format!("length of `{key}`");
        match kind {
            8 => {
                let n = self.check_count(n, &what, MAX_ARRAY, 8)?;
                self.strings(key, n).map(Array::Strings)
            }
            9 => {
                Err(Stop::Bad(format!("`{key}` is a list of lists; lists of numbers or strings are allowed")))
            }
            _ => {
                let kind = number_kind(kind, key)?;
                let n = self.check_count(n, &what, MAX_ARRAY, kind.bytes() as u64)?;
                let bytes = self.take((n * kind.bytes()) as u64, || format!("list `{key}`"))?;
                if kind == Kind::Bool && bytes.iter().any(|&b| b > 1) {
                    return Err(Stop::Bad(bad_bool(key)));
                }
                Ok(Array::Numbers(Numbers::new(kind, bytes.to_vec())))
            }
        }
    }

    /// Walks the strings twice, so that one exact allocation holds them all.
    fn strings(&mut self, key: &str, n: usize) -> Result<Strings, Stop> {
        let start = self.at;
        let mut total = 0usize;
        for i in 0..n {
            total += self.string_bytes(MAX_STRING, &|| format!("element {i} of `{key}`"))?.len();
        }
        if u32::try_from(total).is_err() {
            return Err(Stop::Bad(format!(
                "`{key}` holds {total} bytes of text; at most {} are allowed",
                u32::MAX
            )));
        }
        self.at = start;
        let mut strings = Strings::with_capacity(n, total);
        for i in 0..n {
            let bytes = self.string_bytes(MAX_STRING, &|| format!("element {i} of `{key}`"))?;
            let text = std::str::from_utf8(bytes)
                .map_err(|_| Stop::Bad(format!("element {i} of `{key}` is not UTF-8")))?;
            strings.push(text);
        }
        Ok(strings)
    }
}

fn bad_bool(key: &str) -> String {
    format!("`{key}` has a boolean that is neither 0 nor 1")
}

fn number_kind(kind: u32, key: &str) -> Result<Kind, Stop> {
    Kind::from_number(kind)
        .ok_or_else(|| Stop::Bad(format!("`{key}` has value type {kind}; types 0 to 12 exist")))
}

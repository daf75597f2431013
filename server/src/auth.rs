//! Keys of clients: a file of names and secrets, compared in constant time.

use crate::error::ApiError;
use axum::http::{HeaderMap, header};
use engraft::{Error, Result};
use subtle::ConstantTimeEq;

/// A secret that opens the server, and the name that logs and the prefix cache know it by.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// The name.
    pub name: String,
    secret: String,
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKey({})", self.name)
    }
}

impl ApiKey {
    /// A key.
    pub fn new(name: impl Into<String>, secret: impl Into<String>) -> Self {
        Self { name: name.into(), secret: secret.into() }
    }

    /// The keys of a file: a line each, `name:secret` or a secret alone, which is named by its line; empty
    /// lines and those behind `#` are none.
    ///
    /// # Errors
    /// `Config` for a file without a key, an empty secret, one that no header can carry, and a name or a
    /// secret that comes twice.
    ///
    /// ```
    /// use engraft_server::ApiKey;
    ///
    /// let keys = ApiKey::parse("# team keys\nsearch:sk-1\nsk-2\n")?;
    /// assert_eq!(keys, [ApiKey::new("search", "sk-1"), ApiKey::new("line 3", "sk-2")]);
    /// assert!(ApiKey::parse("# none\n").is_err());
    /// # Ok::<(), engraft::Error>(())
    /// ```
    pub fn parse(text: &str) -> Result<Vec<Self>> {
        let mut keys: Vec<Self> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let place = format!("line {}", number + 1);
            let (name, secret) = line.split_once(':').unwrap_or((&place, line));
            let (name, secret) = (name.trim(), secret.trim());
            if secret.is_empty() || name.is_empty() {
                return Err(Error::config("api-key-file", format!("{place} without a key"), "name:key"));
            }
            if keys.iter().any(|key| key.name == name) {
                return Err(Error::config(
                    "api-key-file",
                    format!("the name {name} twice"),
                    "different names",
                ));
            }
            keys.push(Self::new(name, secret));
        }
        Self::check(&keys, "api-key-file")?;
        match keys.is_empty() {
            true => Err(Error::config("api-key-file", "without a key", "a line with name:key at least")),
            false => Ok(keys),
        }
    }

    /// Refuses secrets that no header can carry, and two names for one; what is wrong is said without them.
    pub(crate) fn check(keys: &[Self], field: &str) -> Result<()> {
        for (at, key) in keys.iter().enumerate() {
            if !key.secret.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
                let found = format!("a key with other characters than visible ASCII, that of {}", key.name);
                return Err(Error::config(field, found, "visible ASCII, which a header can carry"));
            }
            if let Some(same) = keys[..at].iter().find(|other| other.secret == key.secret) {
                let found = format!("one key under two names, {} and {}", same.name, key.name);
                return Err(Error::config(field, found, "a key of its own for each name"));
            }
        }
        Ok(())
    }
}

/// The name of the key that a request carries (`Authorization: Bearer` or `x-api-key`); empty where no key
/// is needed.
///
/// # Errors
/// 401.
pub fn key_of(headers: &HeaderMap, keys: &[ApiKey]) -> Result<String, ApiError> {
    if keys.is_empty() {
        return Ok(String::new());
    }
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, secret) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(secret.trim())
    });
    let given = bearer.or_else(|| headers.get("x-api-key")?.to_str().ok());
    let Some(given) = given else {
        return Err(ApiError::unauthorized("a key is needed: Authorization: Bearer KEY"));
    };
    let mut found = None;
    for key in keys {
        // All keys are looked at, whichever it is.
        if bool::from(key.secret.as_bytes().ct_eq(given.as_bytes())) {
            found = Some(key);
        }
    }
    found.map(|key| key.name.clone()).ok_or_else(|| ApiError::unauthorized("the key is not known"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_no_client_can_send_or_two_share_are_refused_without_their_secrets() {
        for (text, said) in [
            ("a:geh\u{e9}im\n", "other characters than visible ASCII, that of a;"),
            ("sk-1\nsecr\tet\n", "that of line 2;"),
            ("a:secret\nb:other\nc:secret\n", "one key under two names, a and c"),
            ("a:secret\na:other\n", "the name a twice"),
        ] {
            let error = ApiKey::parse(text).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("api-key-file"), "{error}");
            assert!(!error.contains("secr") && !error.contains("geh"), "{error}");
        }
        assert_eq!(ApiKey::parse("a:of two\nb:of three").unwrap().len(), 2);
    }
}

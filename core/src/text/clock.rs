//! The date for templates that print it (`strftime_now`): UTC, without a time zone database.

use crate::{Error, Result};

/// Seconds since 1970-01-01 00:00 UTC; none where the platform has no clock (the browser's plain wasm
/// target).
#[cfg(not(target_family = "wasm"))]
pub(super) fn unix_seconds() -> Option<i64> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_secs()).ok()
}

/// Seconds since 1970-01-01 00:00 UTC; none where the platform has no clock (the browser's plain wasm
/// target).
#[cfg(target_family = "wasm")]
pub(super) fn unix_seconds() -> Option<i64> {
    None
}

/// A moment written by C's `strftime` rules.
///
/// # Errors
/// A directive that is unknown, or a moment beyond the calendar.
pub(super) fn strftime(format: &str, unix: i64) -> Result<String> {
    let bad = |e: jiff::Error| Error::text(format!("strftime_now: `{}`: {e}", format.escape_default()));
    let at = jiff::Timestamp::from_second(unix).map_err(bad)?;
    jiff::fmt::strtime::format(format, &at.to_zoned(jiff::tz::TimeZone::UTC)).map_err(bad)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_known_moments() {
        let all = "%Y-%m-%d %H:%M:%S %a %A %b %B %j %-d %e %I%p %y %F %T %%";
        let at = |unix| strftime(all, unix).unwrap();
        assert_eq!(
            at(0),
            "1970-01-01 00:00:00 Thu Thursday Jan January 001 1  1 12AM 70 1970-01-01 00:00:00 %"
        );
        assert_eq!(
            at(1_709_210_096),
            "2024-02-29 12:34:56 Thu Thursday Feb February 060 29 29 12PM 24 2024-02-29 12:34:56 %"
        );
        assert_eq!(strftime("%F %T %a", 4_107_542_399).unwrap(), "2100-02-28 23:59:59 Sun");
        assert!(at(-1).starts_with("1969-12-31 23:59:59 Wed"));
        assert!(strftime("%!", 0).unwrap_err().to_string().contains("%!"));
        assert!(strftime("%", 0).is_err());
    }
}

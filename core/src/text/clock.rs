//! The date for templates that print it (`strftime_now`): UTC, without a time zone database.

use crate::{Error, Result};

/// Seconds since 1970-01-01 00:00 UTC; none where the platform has no clock (the browser's plain wasm target).
#[cfg(not(target_family = "wasm"))]
pub(super) fn unix_seconds() -> Option<i64> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_secs()).ok()
}

/// Seconds since 1970-01-01 00:00 UTC; none where the platform has no clock (the browser's plain wasm target).
#[cfg(target_family = "wasm")]
pub(super) fn unix_seconds() -> Option<i64> {
    None
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A moment written by C's `strftime` rules.
///
/// # Errors
/// A directive other than `%Y %y %m %d %e %j %B %b %h %A %a %H %I %M %S %p %F %T %%`; a `-` after `%` drops padding.
pub(super) fn strftime(format: &str, unix: i64) -> Result<String> {
    let (day, second) = (unix.div_euclid(86_400), unix.rem_euclid(86_400));
    let (year, month, date, day_of_year) = civil(day);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let month_name = MONTHS[month as usize - 1];
    // 1970-01-01 was a Thursday.
    let day_name = DAYS[(day + 4).rem_euclid(7) as usize];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let bare = directive == Some('-');
        if bare {
            directive = chars.next();
        }
        let two = |v: i64| if bare { v.to_string() } else { format!("{v:02}") };
        let piece = match directive {
            Some('Y') => year.to_string(),
            Some('y') => two(year.rem_euclid(100)),
            Some('m') => two(month),
            Some('d') => two(date),
            Some('e') => format!("{date:>2}"),
            Some('j') if bare => day_of_year.to_string(),
            Some('j') => format!("{day_of_year:03}"),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('H') => two(hour),
            Some('I') => two((hour + 11) % 12 + 1),
            Some('M') => two(minute),
            Some('S') => two(second),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('F') => format!("{year}-{month:02}-{date:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('%') => "%".to_owned(),
            other => {
                let found = other.map(String::from).unwrap_or_default();
                return Err(Error::text(format!(
                    "strftime_now: directive `%{found}` is not one of YymdejBbhAaHIMSpFT%"
                )));
            }
        };
        out.push_str(&piece);
    }
    Ok(out)
}

/// Year, month, day of the month and day of the year of a day counted from 1970-01-01 (Gregorian calendar).
fn civil(day: i64) -> (i64, i64, i64, i64) {
    // Whole 400-year cycles first, then year by year: at most 400 steps, and nothing to get wrong.
    const CYCLE: i64 = 146_097;
    let leap = |y: i64| y % 4 == 0 && (y % 100 != 0 || y % 400 == 0);
    let (mut year, mut left) = (1970 + 400 * day.div_euclid(CYCLE), day.rem_euclid(CYCLE));
    while left >= 365 + i64::from(leap(year)) {
        left -= 365 + i64::from(leap(year));
        year += 1;
    }
    let (day_of_year, mut month) = (left + 1, 1);
    for length in [31, 28 + i64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1, day_of_year)
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
        assert!(at(4_107_542_399).starts_with("2100-02-28 23:59:59 Sun"));
        assert!(at(-1).starts_with("1969-12-31 23:59:59 Wed"));
        assert!(strftime("%Q", 0).unwrap_err().to_string().contains("%Q"));
        assert!(strftime("%", 0).is_err());
    }
}

//! What the operating system says of the machine, without a word on whose it is.

use serde_json::{Value, json};
use std::time::Duration;

/// Vector instructions that the CPU has and kernels use.
#[cfg(target_arch = "x86_64")]
pub fn cpu_features() -> Vec<&'static str> {
    let have = [
        ("avx", is_x86_feature_detected!("avx")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
        ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
    ];
    have.into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
pub fn cpu_features() -> Vec<&'static str> {
    Vec::new()
}

pub fn cpu_model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find_map(|l| l.strip_prefix("model name"));
    line.and_then(|l| l.split_once(':')).map_or("unknown model".into(), |(_, name)| name.trim().to_string())
}

/// Threads that run at once.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Bytes of memory, all and available, where the system says.
pub fn memory() -> (Option<u64>, Option<u64>) {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let read = |name: &str| {
        let line = info.lines().find_map(|l| l.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
    };
    (read("MemTotal:"), read("MemAvailable:"))
}

/// The operating system, for a report.
pub fn operating_system() -> Value {
    let (release, names) = ("/proc/sys/kernel/osrelease", "/etc/os-release");
    let read = |path: &str| std::fs::read_to_string(path).ok();
    json!({
        "name": std::env::consts::OS,
        "arch": std::env::consts::ARCH,
        "kernel": read(release).map(|text| number(&text).to_string()),
        "distribution": read(names).and_then(|text| distribution(&text)),
    })
}

/// The number at the start of a version: what a user builds may have any name behind it.
fn number(version: &str) -> &str {
    let end = version.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(version.len());
    version[..end].trim_end_matches('.')
}

/// The name of a distribution in `os-release`.
fn distribution(os_release: &str) -> Option<String> {
    let line = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(line.trim_matches('"').to_string())
}

/// A time since 1970 in UTC, as RFC 3339 writes it.
pub fn utc(since: Duration) -> String {
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day since 1970: years are counted from a 1 March, so that a leap day ends one.
fn date(days: u64) -> (u64, u64, u64) {
    const CENTURIES: u64 = 146_097;
    // From 0000-03-01 on.
    let days = days + 719_468;
    let (era, day) = (days / CENTURIES, days % CENTURIES);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_dates() {
        let at = |seconds: u64| utc(Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_709_251_200), "2024-03-01T00:00:00Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn names_behind_a_version_are_left_out() {
        assert_eq!(number("6.8.0-45-generic\n"), "6.8.0");
        assert_eq!(number("5.15.-mine"), "5.15");
        assert_eq!(number(""), "");
        let text = "NAME=\"Debian\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n";
        assert_eq!(distribution(text).as_deref(), Some("Debian GNU/Linux 12 (bookworm)"));
    }
}

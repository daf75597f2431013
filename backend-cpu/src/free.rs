//! How much memory is free: what Linux could hand out without swapping, and no more than the limits of the
//! control groups that this process is in (a container's, a service's) leave.
//!
//! What a group holds of files counts as free, as it does in `MemAvailable`: it is read again when needed. A
//! model that was mapped would otherwise fill its container.
//!
//! Depends on no other file of this package: `tests/kernels` compiles it with its tests.

use std::path::{Path, PathBuf};

/// Names of a group's files: its limit, what it holds, and of that the pages of files.
struct Names {
    most: &'static str,
    held: &'static str,
    files: [&'static str; 2],
}

const V2: Names =
    Names { most: "memory.max", held: "memory.current", files: ["inactive_file", "active_file"] };
const V1: Names = Names {
    most: "memory.limit_in_bytes",
    held: "memory.usage_in_bytes",
    files: ["total_inactive_file", "total_active_file"],
};

/// Bytes that are free; none where the system does not say.
pub(crate) fn free_bytes() -> Option<u64> {
    let available = available(&std::fs::read_to_string("/proc/meminfo").ok()?)?;
    let groups = groups(&std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default());
    let read = |path: PathBuf| std::fs::read_to_string(path).ok();
    let left = groups.iter().filter_map(|(folder, names)| {
        let stat = read(folder.join("memory.stat")).unwrap_or_default();
        left(&read(folder.join(names.most))?, &read(folder.join(names.held))?, &stat, names)
    });
    Some(left.fold(available, u64::min))
}

/// `MemAvailable` of `/proc/meminfo`.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The folders of the groups in `/proc/self/cgroup` and of those around them, in both versions. Inside a
/// container a path may be the host's: then only the root is there.
fn groups(cgroup: &str) -> Vec<(PathBuf, &'static Names)> {
    let mut all = Vec::new();
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, names) = match controllers {
            "" => ("/sys/fs/cgroup", &V2),
            _ if controllers.split(',').any(|one| one == "memory") => ("/sys/fs/cgroup/memory", &V1),
            _ => continue,
        };
        let inside = Path::new(path.trim_start_matches('/'));
        all.extend(inside.ancestors().map(|folder| (Path::new(root).join(folder), names)));
    }
    all
}

/// What a group's limit leaves; none without one.
fn left(most: &str, held: &str, stat: &str, names: &Names) -> Option<u64> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let value = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(number).unwrap_or(0)
    };
    let files: u64 = names.files.iter().map(|name| value(name)).sum();
    Some(number(most)?.saturating_sub(number(held)?.saturating_sub(files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_available_is_read() {
        let text =
            "MemTotal:       16000000 kB\nMemFree: 12 kB\nMemAvailable:    8000000 kB\nBuffers: 1 kB\n";
        assert_eq!(available(text), Some(8_000_000 * 1024));
        assert_eq!(available("MemFree: 12 kB\n"), None);
        assert_eq!(available("MemAvailable: many kB\n"), None);
    }

    #[test]
    fn limits_of_groups_leave_what_they_do_not_hold() {
        let stat = "anon 100\nfile 50\ninactive_file 30\nactive_file 15\ninactive_file_other 7\n";
        assert_eq!(left("1000\n", "145\n", stat, &V2), Some(900));
        assert_eq!(left("max\n", "145\n", stat, &V2), None);
        assert_eq!(left("100\n", "400\n", "", &V2), Some(0));
        assert_eq!(left("1000", "300", "total_inactive_file 200\ninactive_file 9\n", &V1), Some(900));
        assert_eq!(left("1000", "nothing", stat, &V2), None);
    }

    #[test]
    fn groups_are_looked_for_up_to_the_root() {
        let folders = |text: &str| {
            let all = groups(text).into_iter();
            all.map(|(folder, names)| format!("{}/{}", folder.display(), names.most)).collect::<Vec<_>>()
        };
        let v2 = folders("0::/a.slice/b\n");
        assert_eq!(v2.len(), 3);
        assert_eq!(v2[0], "/sys/fs/cgroup/a.slice/b/memory.max");
        assert_eq!(v2[1], "/sys/fs/cgroup/a.slice/memory.max");
        assert!(v2[2].starts_with("/sys/fs/cgroup/"));
        let v1 = folders("9:cpu,cpuacct:/x\n7:hugetlb,memory:/docker/x\nno line\n");
        assert_eq!(v1[0], "/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes");
        assert_eq!(v1.len(), 3);
        assert!(folders("").is_empty());
    }
}

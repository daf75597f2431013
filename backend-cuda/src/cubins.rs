//! Compiled kernels on disk: what the driver's compiler made of a text, for the next start.
//!
//! A file is found by the entry, its text, the device's name and compute capability, and the driver's
//! version; see [`engraft_core::file::sealed`]. That it is as it was written is known before the driver reads
//! it, which takes an image's length from the image.
//!
//! The disk never fails a load: whatever it refuses, the kernel is compiled. The first refusal is warned
//! about.

use engraft_core::file::sealed::{self, Key, Sealed};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// At most more than any kernel is compiled to.
const SORT: Sealed = Sealed { magic: b"engraft-cubin-1\n", most: 64 << 20 };

/// Whom kernels are compiled for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// The device's name.
    pub device: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// The driver's version, as it says it.
    pub driver: i32,
}

/// A folder of compiled kernels.
#[derive(Debug)]
pub(crate) struct Cubins {
    folder: PathBuf,
    target: Target,
    complained: AtomicBool,
}

impl Cubins {
    /// Kernels for `target` in `folder`, which need not exist yet and is shared with other targets.
    pub fn new(folder: PathBuf, target: Target) -> Self {
        Self { folder, target, complained: AtomicBool::new(false) }
    }

    /// Of what an image depends on.
    fn key(&self, entry: &str, ptx: &str) -> Key {
        let Target { device, capability: (major, minor), driver } = &self.target;
        sealed::key([entry, device, &format!("{major}.{minor} {driver}"), ptx])
    }

    fn path(&self, entry: &str, key: &Key) -> PathBuf {
        self.folder.join(format!("{entry}-{}.cubin", sealed::hex(key)))
    }

    /// The image that was kept for this text, if there is a whole one.
    pub fn find(&self, entry: &str, ptx: &str) -> Option<Vec<u8>> {
        let key = self.key(entry, ptx);
        let path = self.path(entry, &key);
        match SORT.read(&path, &key) {
            Ok(image) => Some(image),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => {
                tracing::warn!(entry, file = %path.display(), "a compiled kernel cannot be used and is compiled anew: {e}");
                None
            }
        }
    }

    /// Keeps an image, as far as the disk lets.
    pub fn keep(&self, entry: &str, ptx: &str, image: &[u8]) {
        let key = self.key(entry, ptx);
        if let Err(e) = SORT.write(&self.path(entry, &key), &key, image)
            && !self.complained.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(folder = %self.folder.display(), "compiled kernels are not kept: {e}");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use tracing::span;

    fn target() -> Target {
        Target { device: "NVIDIA H200".into(), capability: (9, 0), driver: 13000 }
    }

    fn only_file(folder: &Path) -> PathBuf {
        let files: Vec<_> = fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files[0].clone()
    }

    #[test]
    fn an_image_is_found_by_all_that_it_depends_on() {
        let folder = tempfile::tempdir().unwrap();
        let open = |target| Cubins::new(folder.path().join("kernels"), target);
        let cubins = open(target());
        assert_eq!(cubins.find("norm_x", "text"), None, "there is no folder yet");
        cubins.keep("norm_x", "text", b"image");
        assert_eq!(open(target()).find("norm_x", "text").as_deref(), Some(&b"image"[..]));
        assert_eq!(cubins.find("norm_x", "text "), None, "another text");
        assert_eq!(cubins.find("norm_y", "text"), None, "another entry");
        for other in [
            Target { driver: 13010, ..target() },
            Target { capability: (9, 1), ..target() },
            Target { device: "NVIDIA H100".into(), ..target() },
        ] {
            assert_eq!(open(other.clone()).find("norm_x", "text"), None, "{other:?}");
        }
        let name = only_file(&folder.path().join("kernels")).file_name().unwrap().to_owned();
        assert!(name.to_str().unwrap().starts_with("norm_x-") && name.to_str().unwrap().ends_with(".cubin"));
    }

    /// Counts warnings.
    struct Warnings(Arc<AtomicUsize>);

    impl tracing::Subscriber for Warnings {
        fn enabled(&self, about: &tracing::Metadata<'_>) -> bool {
            *about.level() == tracing::Level::WARN
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    fn warnings(of: impl FnOnce()) -> usize {
        let count = Arc::new(AtomicUsize::new(0));
        tracing::subscriber::with_default(Warnings(count.clone()), of);
        count.load(Ordering::Relaxed)
    }

    /// Warnings where there is no reason (nothing was kept yet; it can be kept), of a damaged file, and of a
    /// folder that is none, asked three times.
    fn heard() -> [usize; 4] {
        let folder = tempfile::tempdir().unwrap();
        let cubins = Cubins::new(folder.path().into(), target());
        let find = || assert_eq!(cubins.find("norm_x", "text"), None);
        let keep = || cubins.keep("norm_x", "text", b"image");
        let quiet = [warnings(find), warnings(keep)];
        fs::write(only_file(folder.path()), b"damaged").unwrap();
        let damaged = warnings(find);
        let nowhere = Cubins::new(only_file(folder.path()), target());
        let refused = warnings(|| (0..3).for_each(|_| nowhere.keep("norm_x", "text", b"image")));
        [quiet[0], quiet[1], damaged, refused]
    }

    #[test]
    fn what_goes_wrong_is_warned_about_once() {
        // The first thread that logs at a callsite decides for all whether a subscriber is interested.
        // Another test may just have cached that none is: then no event arrives until the cache is rebuilt.
        let tries: Vec<[usize; 4]> = (0..20)
            .map(|_| {
                tracing::callsite::rebuild_interest_cache();
                let heard = heard();
                std::thread::sleep(std::time::Duration::from_millis(10));
                heard
            })
            .collect();
        let most = |i: usize| tries.iter().map(|heard| heard[i]).max().unwrap();
        assert_eq!([most(0), most(1), most(2), most(3)], [0, 0, 1, 1], "{tries:?}");
        assert_eq!(tries[19], [0, 0, 1, 1], "{tries:?}");
    }

    #[test]
    fn a_file_that_is_damaged_or_another_s_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let cubins = Cubins::new(folder.path().into(), target());
        cubins.keep("norm_x", "text", b"some image");
        let path = only_file(folder.path());
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(cubins.find("norm_x", "text"), None);
        // What is found damaged is replaced.
        cubins.keep("norm_x", "text", b"some image");
        assert_eq!(cubins.find("norm_x", "text").as_deref(), Some(&b"some image"[..]));
        // A good file in another's place.
        fs::rename(&path, cubins.path("norm_x", &cubins.key("norm_x", "other"))).unwrap();
        assert_eq!(cubins.find("norm_x", "other"), None);
    }

    #[test]
    fn a_disk_that_refuses_is_no_failure() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"not a folder").unwrap();
        let cubins = Cubins::new(file.join("kernels"), target());
        cubins.keep("norm_x", "text", b"image");
        assert!(cubins.complained.load(Ordering::Relaxed));
        assert_eq!(cubins.find("norm_x", "text"), None);
        // A folder in a file's place.
        let cubins = Cubins::new(folder.path().join("kernels"), target());
        fs::create_dir_all(cubins.path("norm_x", &cubins.key("norm_x", "text"))).unwrap();
        assert_eq!(cubins.find("norm_x", "text"), None);
        cubins.keep("norm_x", "text", b"image");
        assert!(cubins.complained.load(Ordering::Relaxed));
    }
}

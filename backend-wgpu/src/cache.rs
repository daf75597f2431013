//! Compiled pipelines on disk: what the driver's compiler made of shaders, for the next start.
//!
//! A device has one file, found by its adapter, driver, their versions, and the version of this package; see
//! [`engraft_core::file::sealed`].
//!
//! The disk never fails a start: whatever it refuses, pipelines are compiled, and a warning says so.

use crate::device::Gpu;
use engraft_core::Result;
use engraft_core::backend::block_on;
use engraft_core::file::sealed::{self, Key, Sealed};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// At most more than the pipelines of some thousand models.
const SORT: Sealed = Sealed { magic: b"engraft-wgpu-01\n", most: 256 << 20 };

/// The compiled pipelines of one device.
#[derive(Debug)]
pub(crate) struct Cache {
    /// What compilations take from and add to.
    pub pipelines: wgpu::PipelineCache,
    file: PathBuf,
    key: Key,
    /// Pipelines that were compiled since the file was written; the driver had some of them from it.
    fresh: AtomicU64,
    /// Hash of the file's content.
    held: AtomicU64,
}

impl Cache {
    /// The cache of a device in `folder`, which need not exist yet. None, with a warning, where the adapter
    /// has no such thing.
    pub fn open(gpu: &Gpu, about: &wgpu::AdapterInfo, folder: &Path) -> Result<Option<Self>> {
        if !gpu.device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            tracing::debug!("{}: compiled pipelines are kept by the driver, if at all", gpu.name);
            return Ok(None);
        }
        let key = key(about);
        let file = folder.join(format!("wgpu-{}.pipelines", sealed::hex(&key)));
        let found = match SORT.read(&file, &key) {
            Ok(bytes) => Some(bytes),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => {
                tracing::warn!(file = %file.display(), "compiled pipelines cannot be used and are made anew: {e}");
                None
            }
        };
        let scope = gpu.device.push_error_scope(wgpu::ErrorFilter::Validation);
        // SAFETY: the bytes are those that `get_data` gave for this adapter and driver: the key is theirs,
        // and the hash in front says that they were not changed.
        let pipelines = unsafe {
            gpu.device.create_pipeline_cache(&wgpu::PipelineCacheDescriptor {
                label: Some("pipelines"),
                data: found.as_deref(),
                fallback: true,
            })
        };
        if let Some(e) = block_on(async { Ok(scope.pop().await) })? {
            tracing::warn!("{}: no pipelines are kept: {e}", gpu.name);
            return Ok(None);
        }
        let held = AtomicU64::new(found.as_deref().map_or(0, hash));
        Ok(Some(Self { pipelines, file, key, fresh: AtomicU64::new(0), held }))
    }

    /// A pipeline was compiled.
    pub fn grew(&self) {
        self.fresh.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes what was compiled since the last time, as far as the disk lets.
    pub fn keep(&self) {
        if self.fresh.swap(0, Ordering::Relaxed) == 0 {
            return;
        }
        let Some(bytes) = self.pipelines.get_data() else { return };
        let hash = hash(&bytes);
        if self.held.swap(hash, Ordering::Relaxed) == hash {
            return;
        }
        let Err(e) = SORT.write(&self.file, &self.key, &bytes) else { return };
        tracing::warn!(file = %self.file.display(), "compiled pipelines are not kept: {e}");
        if e.kind() == ErrorKind::FileTooLarge {
            // With all that is in it no new one would ever be kept.
            let _ = std::fs::remove_file(&self.file);
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.keep();
    }
}

/// Of a content, within this process.
fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Of what compiled pipelines depend on.
fn key(about: &wgpu::AdapterInfo) -> Key {
    let numbers = format!("{:?} {} {}", about.backend, about.vendor, about.device);
    sealed::key([&about.name, &numbers, &about.driver, &about.driver_info, env!("CARGO_PKG_VERSION")])
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::tests::opened_as;
    use crate::{Wgpu, WgpuConfig};
    use engraft_core::backend::{Backend, Coverage};
    use engraft_core::mem::Float;
    use engraft_core::ops::{NormOpKind, OpKind, Signature};
    use std::fs;

    /// The key that a file's name has.
    fn key_of(file: &Path) -> Key {
        let name = file.file_stem().unwrap().to_str().unwrap().strip_prefix("wgpu-").unwrap();
        std::array::from_fn(|i| u8::from_str_radix(&name[2 * i..2 * i + 2], 16).unwrap())
    }

    /// The norm's kernels.
    fn ready(gpu: &Wgpu) {
        let signature = Signature::new(OpKind::from(NormOpKind::Norm), Float::F32, 64, 64);
        let Coverage::Native(kernel) = gpu.coverage(&signature) else { panic!("no norm") };
        gpu.ready(&[kernel]).unwrap();
    }

    #[test]
    #[ignore = "needs a wgpu adapter"]
    fn pipelines_are_kept_from_start_to_start_and_a_damaged_file_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let config = || WgpuConfig { kernel_cache: Some(folder.path().into()), ..WgpuConfig::default() };
        let only = || {
            let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().path()).collect();
            assert_eq!(files.len(), 1, "{files:?}");
            files[0].clone()
        };
        ready(&opened_as(config()));
        let file = only();
        let whole = fs::read(&file).unwrap();
        assert!(whole.starts_with(SORT.magic));
        for end in [whole.len(), whole.len() - 1, SORT.magic.len(), 0] {
            fs::write(&file, &whole[..end]).unwrap();
            let gpu = opened_as(config());
            ready(&gpu);
            // As a signal would end the program: what is ready is kept by then.
            std::mem::forget(gpu);
            assert_eq!(only(), file);
            let now = fs::read(&file).unwrap();
            assert!(SORT.read(&file, &key_of(&file)).is_ok(), "{end} bytes");
            assert!(
                now.len() > SORT.magic.len() && (end == whole.len() || now != whole[..end]),
                "{end} bytes"
            );
        }
        // A start that adds nothing writes nothing: as much as the driver says the same of the same.
        let (before, content) = (fs::metadata(&file).unwrap().modified().unwrap(), fs::read(&file).unwrap());
        ready(&opened_as(config()));
        let after = (fs::metadata(&file).unwrap().modified().unwrap(), fs::read(&file).unwrap());
        assert!(after.0 == before || after.1 != content, "the same was written again");
        // Nothing is kept unless it is asked for.
        ready(&opened_as(WgpuConfig::default()));
        assert_eq!(fs::metadata(only()).unwrap().modified().unwrap(), after.0);
    }
}

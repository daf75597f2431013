//! Compiled pipelines on disk: what the driver's compiler made of shaders, for the next start.
//!
//! A device has one file. Its name has the SHA-256 of what its content depends on: adapter, driver, their
//! versions, and the version of this package. So nothing is ever out of date: what changes is not found, and
//! a file may be deleted at any time. In front of the driver's bytes stands their own SHA-256 (with the
//! key's): a file that is truncated, damaged or another's is distinguished from a good one here, before a
//! driver reads it. Files are written under a name of their own and renamed, so that no reader sees half of
//! one.
//!
//! The disk never fails a start: whatever it refuses, pipelines are compiled, and a warning says so.

use crate::device::Gpu;
use engraft_core::Result;
use engraft_core::backend::block_on;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const MAGIC: &[u8; 16] = b"engraft-wgpu-01\n";
/// Bytes before the driver's: the magic and the hash.
const HEAD: usize = 16 + 32;
/// More than the pipelines of some thousand models; what is longer is neither read nor written.
const MOST_BYTES: u64 = 256 << 20;

/// The compiled pipelines of one device.
#[derive(Debug)]
pub(crate) struct Cache {
    /// What compilations take from and add to.
    pub pipelines: wgpu::PipelineCache,
    file: PathBuf,
    key: [u8; 32],
    /// Pipelines that the file lacks.
    fresh: AtomicU64,
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
        let file = folder.join(name(&key));
        let found = match read(&file, &key) {
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
        Ok(Some(Self { pipelines, file, key, fresh: AtomicU64::new(0) }))
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
        if let Err(e) = write(&self.file, &self.key, &bytes) {
            tracing::warn!(file = %self.file.display(), "compiled pipelines are not kept: {e}");
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.keep();
    }
}

/// Hash of what compiled pipelines depend on.
fn key(about: &wgpu::AdapterInfo) -> [u8; 32] {
    let numbers = format!("{:?} {} {}", about.backend, about.vendor, about.device);
    let mut hash = Sha256::new();
    for part in [&about.name, &numbers, &about.driver, &about.driver_info, env!("CARGO_PKG_VERSION")] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

fn name(key: &[u8; 32]) -> String {
    let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("wgpu-{hex}.pipelines")
}

fn seal(key: &[u8; 32], bytes: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(key).chain_update(bytes).finalize().into()
}

fn read(path: &Path, key: &[u8; 32]) -> io::Result<Vec<u8>> {
    let damaged = |what: String| Err(io::Error::new(ErrorKind::InvalidData, what));
    let about = fs::metadata(path)?;
    if !about.is_file() || about.len() > MOST_BYTES + HEAD as u64 {
        return damaged(format!("not a file of at most {MOST_BYTES} bytes"));
    }
    let mut head = fs::read(path)?;
    if head.len() <= HEAD {
        return damaged(format!("{} bytes; there must be more than {HEAD}", head.len()));
    }
    let bytes = head.split_off(HEAD);
    match head.starts_with(MAGIC) && head[MAGIC.len()..] == seal(key, &bytes) {
        true => Ok(bytes),
        false => damaged("its content is not what was written".into()),
    }
}

/// Numbers of files that this process writes at a time.
static NEXT: AtomicU64 = AtomicU64::new(0);

fn write(to: &Path, key: &[u8; 32], bytes: &[u8]) -> io::Result<()> {
    if bytes.len() as u64 > MOST_BYTES {
        let what = format!("{} bytes; at most {MOST_BYTES} are kept", bytes.len());
        return Err(io::Error::new(ErrorKind::FileTooLarge, what));
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let temporary = to.with_extension(format!("{}-{number}", std::process::id()));
    let mut file = fs::File::create_new(&temporary)?;
    let parts = [&MAGIC[..], &seal(key, bytes), bytes];
    let written = parts.iter().try_for_each(|part| file.write_all(part));
    let renamed = written.and_then(|()| fs::rename(&temporary, to));
    if renamed.is_err() {
        // Why the cache is not written says more than why a part of it stays.
        let _ = fs::remove_file(&temporary);
    }
    renamed
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

    #[test]
    fn a_file_that_is_truncated_or_changed_or_another_s_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new").join(name(&[7; 32]));
        write(&path, &[7; 32], b"some pipelines").unwrap();
        assert_eq!(read(&path, &[7; 32]).unwrap(), b"some pipelines");
        let whole = fs::read(&path).unwrap();
        for end in 0..whole.len() {
            fs::write(&path, &whole[..end]).unwrap();
            assert!(read(&path, &[7; 32]).is_err(), "{end} bytes");
        }
        for at in 0..whole.len() {
            let mut wrong = whole.clone();
            wrong[at] ^= 4;
            fs::write(&path, &wrong).unwrap();
            assert!(read(&path, &[7; 32]).is_err(), "byte {at}");
        }
        // What is found damaged is replaced; another's is none.
        write(&path, &[7; 32], b"others").unwrap();
        assert_eq!(read(&path, &[7; 32]).unwrap(), b"others");
        assert!(read(&path, &[8; 32]).is_err());
        let names: Vec<_> =
            fs::read_dir(path.parent().unwrap()).unwrap().map(|f| f.unwrap().file_name()).collect();
        assert_eq!(names, [path.file_name().unwrap()], "temporary files stay");
    }

    #[test]
    fn a_disk_that_refuses_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"not a folder").unwrap();
        assert!(write(&file.join("x.pipelines"), &[0; 32], b"some").is_err());
        // A folder in the file's place: it is written, and cannot be renamed.
        let taken = folder.path().join("taken.pipelines");
        fs::create_dir(&taken).unwrap();
        assert!(write(&taken, &[0; 32], b"some").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
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
        assert!(whole.len() > HEAD && whole.starts_with(MAGIC));
        for end in [whole.len(), whole.len() - 1, HEAD, 0] {
            fs::write(&file, &whole[..end]).unwrap();
            let gpu = opened_as(config());
            ready(&gpu);
            // As a signal would end the program: what is ready is kept by then.
            std::mem::forget(gpu);
            assert_eq!(only(), file);
            assert!(fs::read(&file).unwrap().len() > HEAD, "{end} bytes");
        }
        // Nothing is kept unless it is asked for.
        let elsewhere = folder.path().join("none");
        drop(opened_as(WgpuConfig::default()));
        assert!(!elsewhere.exists());
    }
}

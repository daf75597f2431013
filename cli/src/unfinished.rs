//! Folders that are written aside and renamed when they are whole.
//!
//! What is not whole is removed, also where Ctrl-C, SIGTERM or SIGHUP ends the process: the signals are
//! blocked and a thread waits for them, so that it may do more than a handler may. A process that is killed
//! leaves its folder; the next one of the same name says so.

use super::output::note;
use engraft::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// What stands between the name of the folder and the number of the process.
const MARK: &str = ".partial-";

/// A folder next to the one that is asked for; gone with its content unless it is published.
pub(super) struct Unfinished {
    folder: PathBuf,
    /// Held while the folder is removed or gets its name, so that a signal finds the whole or nothing of it.
    ending: Arc<Mutex<()>>,
}

impl Unfinished {
    /// Of a process one at most, before it starts threads.
    ///
    /// # Errors
    /// `Io`.
    pub fn new(out: &Path) -> Result<Self> {
        warn_of_others(out);
        let mut name = out.components().as_path().as_os_str().to_owned();
        name.push(format!("{MARK}{}", std::process::id()));
        let folder = PathBuf::from(name);
        let ending = Arc::new(Mutex::new(()));
        signals::then(folder.clone(), ending.clone())?;
        fs::create_dir_all(&folder).map_err(|e| Error::io(&folder, e))?;
        Ok(Self { folder, ending })
    }

    /// Where to write.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Brings every file to the disk and gives the folder its name; `exists`: there is an empty one.
    ///
    /// # Errors
    /// `Io`.
    pub fn publish(self, out: &Path, exists: bool) -> Result<()> {
        for entry in fs::read_dir(&self.folder).map_err(|e| Error::io(&self.folder, e))? {
            let path = entry.map_err(|e| Error::io(&self.folder, e))?.path();
            let file = fs::OpenOptions::new().append(true).open(&path);
            file.and_then(|file| file.sync_all()).map_err(|e| Error::io(&path, e))?;
        }
        let _ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        if exists {
            fs::remove_dir(out).map_err(|e| Error::io(out, e))?;
        }
        fs::rename(&self.folder, out).map_err(|e| Error::io(out, e))
    }
}

impl Unfinished {
    /// Brings a file in the folder to the disk and gives it the name that was asked for; the folder goes.
    ///
    /// # Errors
    /// `Io`.
    pub fn publish_file(self, written: &Path, out: &Path) -> Result<()> {
        let file = fs::OpenOptions::new().append(true).open(written);
        file.and_then(|file| file.sync_all()).map_err(|e| Error::io(written, e))?;
        let _ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        fs::rename(written, out).map_err(|e| Error::io(out, e))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // A signal that came before ends the process with its own status: it keeps the lock.
        let _ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        // After publishing there is none; else what is left is half a model.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Names what processes that were killed have left of the same folder.
fn warn_of_others(out: &Path) {
    for left in others(out) {
        note(&format!("warning: {} is what an unfinished run has left; it can be removed", left.display()));
    }
}

/// Folders of `out` whose process is gone.
fn others(out: &Path) -> Vec<PathBuf> {
    let out: PathBuf = out.components().collect();
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Some(start) = out.file_name().map(|name| format!("{}{MARK}", name.to_string_lossy())) else {
        return Vec::new();
    };
    let gone = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let process = name.and_then(|name| name.strip_prefix(&start)?.parse::<i32>().ok());
        process.is_some_and(|process| process > 0 && !signals::lives(process))
    };
    let mut found: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).filter(gone).collect();
    found.sort();
    found
}

#[cfg(unix)]
mod signals {
    use super::{Arc, Error, Mutex, PathBuf, PoisonError, Result, fs};
    use std::io;
    use std::mem::MaybeUninit;

    /// Removes the folder and ends the process when a signal asks for its end. Signals that are ignored, as
    /// `nohup` asks for, stay so.
    pub fn then(folder: PathBuf, ending: Arc<Mutex<()>>) -> Result<()> {
        let mut awaited = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `sigemptyset` initializes the set before it is read; all pointers are valid for the calls,
        // a null pointer stands where nothing is to be written or set, and the signals are known ones.
        let awaited = unsafe {
            libc::sigemptyset(awaited.as_mut_ptr());
            let mut awaited = awaited.assume_init();
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
                libc::sigaction(signal, std::ptr::null(), &raw mut action);
                if action.sa_sigaction != libc::SIG_IGN {
                    libc::sigaddset(&raw mut awaited, signal);
                }
            }
            match libc::pthread_sigmask(libc::SIG_BLOCK, &raw const awaited, std::ptr::null_mut()) {
                0 => awaited,
                error => return Err(Error::io("signals", io::Error::from_raw_os_error(error))),
            }
        };
        let wait = move || {
            let mut signal = 0;
            // SAFETY: an initialized set, and a place for the signal.
            if unsafe { libc::sigwait(&raw const awaited, &raw mut signal) } != 0 {
                return;
            }
            let _ending = ending.lock().unwrap_or_else(PoisonError::into_inner);
            // What another thread writes meanwhile may need another round.
            for _ in 0..100 {
                if fs::remove_dir_all(&folder).is_ok() || !folder.exists() {
                    break;
                }
            }
            std::process::exit(128 + signal);
        };
        let thread = std::thread::Builder::new().name("signals".into()).spawn(wait);
        thread.map(drop).map_err(|e| Error::io("a thread that waits for signals", e))
    }

    /// Whether there is a process of this number.
    pub fn lives(process: i32) -> bool {
        // SAFETY: signal 0 is sent to none; it asks whether it could be.
        let sent = unsafe { libc::kill(process, 0) };
        sent == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
    }
}

#[cfg(not(unix))]
mod signals {
    use super::{Arc, Error, Mutex, PathBuf, PoisonError, Result, fs};

    /// Removes the folder and ends the process on Ctrl-C.
    pub fn then(folder: PathBuf, ending: Arc<Mutex<()>>) -> Result<()> {
        let caught = move || {
            let _ending = ending.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = fs::remove_dir_all(&folder);
            std::process::exit(130);
        };
        ctrlc::set_handler(caught).map_err(|e| Error::internal(format!("Ctrl-C cannot be caught: {e}")))
    }

    /// It may be: nothing here says it.
    pub fn lives(_: i32) -> bool {
        true
    }
}

#[cfg(test)]
#[cfg(unix)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_processes_that_are_gone_are_found() {
        let place = tempfile::tempdir().unwrap();
        let out = place.path().join("model");
        // No process has so great a number; this one and what is no number are others'.
        let names = [format!("{}", i32::MAX), std::process::id().to_string(), "x".into(), "0".into()];
        for name in names {
            fs::create_dir(place.path().join(format!("model{MARK}{name}"))).unwrap();
        }
        fs::create_dir(place.path().join(format!("other{MARK}{}", i32::MAX))).unwrap();
        let want = place.path().join(format!("model{MARK}{}", i32::MAX));
        assert_eq!(others(&out), std::slice::from_ref(&want));
        assert_eq!(others(&out.join("")), [want]);
    }

    /// A folder in the making, without what waits for signals.
    fn unfinished(place: &Path) -> Unfinished {
        let folder = place.join("aside");
        fs::create_dir(&folder).unwrap();
        Unfinished { folder, ending: Arc::default() }
    }

    /// A device keeps nothing: the system refuses to bring it to the disk, where it is asked to. So a name
    /// that is given although a file is not on the disk shows.
    #[cfg(target_os = "linux")]
    #[test]
    fn nothing_has_its_name_before_every_file_is_on_the_disk() {
        let place = tempfile::tempdir().unwrap();
        let out = place.path().join("model");
        for (names, exists) in [(&["a", "b", "engraft.json"], false), (&["engraft.json", "z", "y"], true)] {
            let aside = unfinished(place.path());
            names.iter().for_each(|name| fs::write(aside.path().join(name), name).unwrap());
            std::os::unix::fs::symlink("/dev/null", aside.path().join("c")).unwrap();
            if exists {
                fs::create_dir(&out).unwrap();
            }
            let error = aside.publish(&out, exists).unwrap_err().to_string();
            assert!(error.contains("aside/c: "), "{error}");
            let left: Vec<_> =
                fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert_eq!(
                left,
                if exists { vec![out.clone()] } else { vec![] },
                "a name for what is not on the disk"
            );
        }
        assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
        let aside = unfinished(place.path());
        let (written, file) = (aside.path().join("model.gguf"), place.path().join("model.gguf"));
        std::os::unix::fs::symlink("/dev/null", &written).unwrap();
        let error = aside.publish_file(&written, &file).unwrap_err().to_string();
        assert!(error.contains("model.gguf: ") && file.symlink_metadata().is_err(), "{error}");
        // What can be brought to the disk gets its name.
        let aside = unfinished(place.path());
        fs::write(aside.path().join("a"), "a").unwrap();
        aside.publish(&out, true).unwrap();
        assert_eq!(fs::read(out.join("a")).unwrap(), b"a");
    }
}

//! What was launched since it was last waited for: a fault surfaces later, wherever the driver is asked for
//! something next.

use crate::mem::lock;
use crate::modules::Function;
use cudarc::driver::sys::CUstream;
use std::sync::{Arc, Mutex};

/// Something that runs on the device.
#[derive(Debug, Clone)]
pub(crate) enum Running {
    /// A kernel of this package.
    Kernel(Arc<Function>),
    /// A call of a library, whose kernels have no names here.
    Library(&'static str),
}

impl Running {
    fn name(&self) -> &str {
        match self {
            Self::Kernel(function) => &function.entry,
            Self::Library(name) => name,
        }
    }

    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Kernel(a), Self::Kernel(b)) => Arc::ptr_eq(a, b),
            (Self::Library(a), Self::Library(b)) => a == b,
            _ => false,
        }
    }
}

/// What the streams of a device have in flight: of each the newest of each kind.
#[derive(Debug, Default)]
pub(crate) struct Trail(Mutex<Vec<(usize, Running)>>);

impl Trail {
    /// More kinds than any model has.
    const MOST: usize = 64;

    /// Notes a launch on a stream.
    pub fn push(&self, stream: CUstream, running: Running) {
        let (stream, mut all) = (stream as usize, lock(&self.0));
        // The newest last. A step has a dozen kinds, found from the end.
        match all.iter().rposition(|(s, r)| *s == stream && r.is(&running)) {
            Some(at) => all[at..].rotate_left(1),
            None => {
                if all.len() == Self::MOST {
                    all.remove(0);
                }
                all.push((stream, running));
            }
        }
    }

    /// Forgets what a stream had in flight: it was waited for, or is gone.
    pub fn clear(&self, stream: CUstream) {
        lock(&self.0).retain(|(s, _)| *s != stream as usize);
    }

    /// Words behind what the driver says; empty where nothing was in flight.
    pub fn describe(&self) -> String {
        let all = lock(&self.0);
        let names: Vec<String> = all.iter().map(|(_, r)| format!("`{}`", r.name())).collect();
        match names.as_slice() {
            [] => String::new(),
            [name] => format!(" in kernel {name}"),
            _ => format!(" in one of the kernels that were in flight, the newest last: {}", names.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Running, Trail};
    use std::ptr::without_provenance_mut as stream;

    #[test]
    fn a_trail_names_the_newest_of_each_kind_and_forgets_by_stream() {
        let trail = Trail::default();
        assert_eq!(trail.describe(), "");
        for (of, name) in [(1, "a"), (1, "b"), (1, "a"), (2, "c")] {
            trail.push(stream(of), Running::Library(name));
        }
        assert!(trail.describe().ends_with("the newest last: `b`, `a`, `c`"), "{}", trail.describe());
        trail.clear(stream(1));
        assert_eq!(trail.describe(), " in kernel `c`");
    }
}

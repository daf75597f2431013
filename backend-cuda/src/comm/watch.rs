//! What waits for the device look at meanwhile: whether the ranks that its work waits for still live.

use crate::mem::lock;
use engraft_core::Result;
use std::fmt::Debug;
use std::sync::{Mutex, Weak};
use std::time::Duration;

/// A place in a group whose exchanges run on the device.
pub(crate) trait Watched: Debug + Send + Sync {
    /// Looks at the group after a wait of so long. Where a rank is missing, the exchanges in flight are
    /// ended, so that the wait comes to an end; whether that has happened.
    fn look(&self, waited: Duration) -> bool;

    /// An error where exchanges were ended: what they have left is no result.
    fn sound(&self) -> Result<()>;
}

/// The place of a device's rank, once it has one.
#[derive(Debug, Default)]
pub(crate) struct Watch(Mutex<Option<Weak<dyn Watched>>>);

impl Watch {
    /// Has waits look at this from now on; false where another one that lives is looked at.
    pub fn set(&self, watched: Weak<dyn Watched>) -> bool {
        let mut place = lock(&self.0);
        let free = place.as_ref().is_none_or(|old| old.strong_count() == 0);
        if free {
            *place = Some(watched);
        }
        free
    }

    /// [`Watched::look`]; false where there is nothing to look at.
    pub fn look(&self, waited: Duration) -> bool {
        let watched = lock(&self.0).as_ref().and_then(Weak::upgrade);
        watched.is_some_and(|watched| watched.look(waited))
    }

    /// [`Watched::sound`].
    ///
    /// # Errors
    /// `Comm` with the rank that is missing.
    pub fn sound(&self) -> Result<()> {
        let watched = lock(&self.0).as_ref().and_then(Weak::upgrade);
        watched.map_or(Ok(()), |watched| watched.sound())
    }
}

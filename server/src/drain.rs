//! The phases of a server: it serves, it lets running requests end, it has ended.

use std::future::Future;
use std::pin::Pin;
use tokio::sync::watch;

/// What a server does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It takes requests.
    Serving,
    /// It takes none; those that run go on.
    Draining,
    /// Those that still run end with an error.
    Ended,
}

/// The phase, shared by all parts of a server.
#[derive(Debug, Clone)]
pub struct Life(watch::Sender<Phase>);

impl Default for Life {
    fn default() -> Self {
        Self(watch::Sender::new(Phase::Serving))
    }
}

impl Life {
    /// The phase now.
    pub fn phase(&self) -> Phase {
        *self.0.borrow()
    }

    /// Goes on to `phase`; never back.
    pub fn advance(&self, phase: Phase) {
        self.0.send_if_modified(|now| {
            let later = phase > *now;
            *now = phase.max(*now);
            later
        });
    }

    /// Waits until the server is in `phase` or a later one.
    pub fn reached(&self, phase: Phase) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let mut changes = self.0.subscribe();
        Box::pin(async move {
            // An error means that the sender is gone, and the server with it.
            let _ = changes.wait_for(|now| *now >= phase).await;
        })
    }
}

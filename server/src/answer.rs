//! Large answers: their request counts as being in the server until they are sent, and their bytes as taken.

use crate::admission::Permit;
use crate::patience::{Connection, Due};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// Room for answers is counted in these bytes.
const UNIT: usize = 1 << 10;
/// Bytes that are handed on at once: a connection asks for more once it has sent most of those before. Of one
/// piece it would take all, and this body would be gone long before it is sent.
const PIECE: usize = 32 << 10;

/// Time that the reader of an answer has, whatever its length.
const LEAST: Duration = Duration::from_secs(60);
/// Bytes of an answer that its reader takes in a second at least.
const RATE: usize = 64 << 10;

/// The room of so many bytes.
pub fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes / UNIT + 1).unwrap_or(u32::MAX)
}

/// A body that holds the place of its request until all of it is handed on, or its client is gone; its room,
/// if it is so large that it has some, becomes free piece by piece.
#[derive(Debug)]
pub struct Placed {
    left: Bytes,
    _place: Permit,
    room: Option<OwnedSemaphorePermit>,
    _due: Option<Due>,
}

impl Placed {
    /// A body of these bytes, in the room that it may have taken at most.
    pub fn new(bytes: impl Into<Bytes>, place: Permit, room: Option<OwnedSemaphorePermit>) -> Self {
        let mut body = Self { left: bytes.into(), _place: place, room, _due: None };
        body.free();
        body
    }

    /// Ends the connection where the reader has not taken this body in time: others wait for its room.
    pub fn due(mut self, connection: &Connection) -> Self {
        let time = LEAST + Duration::from_secs((self.left.len() / RATE) as u64);
        self._due = Some(connection.due(time));
        self
    }

    /// Frees what bytes that are left do not take.
    fn free(&mut self) {
        let Some(room) = &mut self.room else { return };
        let free = room.num_permits().saturating_sub(kib(self.left.len()) as usize);
        drop(room.split(free));
    }
}

impl Body for Placed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let count = self.left.len().min(PIECE);
        if count == 0 {
            return Poll::Ready(None);
        }
        let piece = self.left.split_to(count);
        self.free();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.len() as u64)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::admission::Admission;
    use crate::config::ServerConfig;
    use std::sync::Arc;
    use std::task::Waker;
    use tokio::sync::Semaphore;

    #[test]
    fn a_request_counts_until_its_answer_is_handed_on() {
        let admission = Admission::new(&ServerConfig::default());
        let place = || admission.enter("", 1, 0).unwrap();
        let all = Arc::new(Semaphore::new(100));
        let room = |count| all.clone().try_acquire_many_owned(count).unwrap();
        let mut body = Placed::new(vec![7_u8; PIECE + 1], place(), Some(room(100)));
        // What it does not take is free at once.
        assert_eq!(all.available_permits(), 100 - 33);
        assert_eq!(body.size_hint().exact(), Some(PIECE as u64 + 1));
        let mut context = Context::from_waker(Waker::noop());
        let mut sizes = Vec::new();
        while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut context) {
            sizes.push(frame.data_ref().map_or(0, Bytes::len));
            assert_eq!(admission.requests(), 1);
        }
        assert_eq!(sizes, [PIECE, 1]);
        assert_eq!(all.available_permits(), 99);
        assert!(body.is_end_stream());
        drop(body);
        assert_eq!(admission.requests(), 0);
        // A client that is gone reads nothing.
        drop(Placed::new(vec![7_u8; 9000], place(), Some(room(9))));
        // Small ones have no room.
        drop(Placed::new(vec![7_u8; 9], place(), None));
        assert_eq!((admission.requests(), all.available_permits()), (0, 100));
    }
}

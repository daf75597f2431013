//! Channels and threads of the hand-over between callers and an engine's thread, named in one place:
//! `tests/handover` compiles the files that use them over others, whose schedules it controls.

pub(crate) use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
pub(crate) use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
pub(crate) use std::thread;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A caller whose request the thread has not taken when it ends hears of that all the same: what lies in
    /// a channel is dropped with its receiver. The standard library does so without promising it.
    #[test]
    fn a_message_is_dropped_with_its_receiver_while_senders_are_there() {
        let (sender, receiver) = channel();
        let (events, mut received) = unbounded::<u32>();
        sender.send(events).unwrap();
        drop(receiver);
        assert!(received.try_recv().is_err_and(|error| error.is_closed()), "somebody may still send");
        assert!(sender.send(unbounded().0).is_err());
    }
}

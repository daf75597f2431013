//! What processes of a group say to each other, and how it lies on a stream.
//!
//! A frame is 12 bytes and a payload: `EGR`, the protocol's number, the payload's bytes and its CRC-32,
//! little endian; the payload is a message in postcard's encoding. A frame that is too long, damaged, of
//! another protocol or no message ends the link: nothing of it is used.

use engraft_core::config::EngineConfig;
use engraft_core::engine::StepOrder;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::path::PathBuf;

/// The protocol's number: another for whatever changes a message.
pub(crate) const PROTOCOL: u8 = 2;
/// Most bytes of a frame by which ranks introduce themselves.
pub(crate) const MOST_HELLO: usize = 1 << 16;
/// Most bytes of any other frame: orders with pixels, and parts of exchanges.
pub(crate) const MOST_FRAME: usize = 1 << 30;

const HEAD: usize = 12;

/// The first frame of every link, to whom listens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Hello {
    /// A rank joins rank 0.
    Join(Join),
    /// A rank opens the link on which both exchange parts.
    Peer { token: String, rank: usize },
}

/// Who joins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Join {
    /// Of the program.
    pub version: String,
    /// Of the group.
    pub token: String,
    pub rank: usize,
    pub world: usize,
    /// Name and value of what must be the same on all ranks.
    pub facts: Vec<(String, String)>,
    /// Alike on ranks that can map one file.
    pub memory: String,
    /// Where it listens for ranks that exchange parts with it.
    pub listens: String,
}

/// What rank 0 says to a rank that has joined.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum ToFollower<'a> {
    /// It has no place in the group.
    Refused(String),
    /// All have joined.
    Welcome(Welcome),
    /// The engine's checked configuration: once, before the first order.
    Config(Box<EngineConfig>),
    /// A step.
    Order(Box<Cow<'a, StepOrder>>),
    /// A rank is missing.
    Failed { rank: usize, what: String },
    /// Rank 0 lives.
    Ping,
    /// The engine is gone in good order.
    End,
}

/// How the group exchanges parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Welcome {
    /// Over a file that all map.
    Mapped(PathBuf),
    /// Over a link between any two: where each rank listens.
    Linked(Vec<String>),
}

/// What a rank says to rank 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum ToLeader {
    /// It has its place on the board.
    Placed,
    /// It has read its model.
    Loaded,
    /// It has its runner.
    Ready,
    /// A rank is missing.
    Failed { rank: usize, what: String },
    /// It lives.
    Ping,
}

/// A message as it lies on a stream.
pub(crate) fn frame(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = postcard::to_extend(message, vec![0; HEAD]).map_err(io::Error::other)?;
    let head = head(&bytes[HEAD..])?;
    bytes[..HEAD].copy_from_slice(&head);
    Ok(bytes)
}

fn head(payload: &[u8]) -> io::Result<[u8; HEAD]> {
    let len = u32::try_from(payload.len()).ok().filter(|len| *len as usize <= MOST_FRAME);
    let len = len.ok_or_else(|| io::Error::other(format!("a message of {} bytes", payload.len())))?;
    let mut head = [0; HEAD];
    head[..3].copy_from_slice(b"EGR");
    head[3] = PROTOCOL;
    head[4..8].copy_from_slice(&len.to_le_bytes());
    head[8..].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
    Ok(head)
}

/// Sends bytes as a payload.
pub(crate) fn send_bytes(to: &mut impl Write, payload: &[u8]) -> io::Result<()> {
    to.write_all(&head(payload)?)?;
    to.write_all(payload)
}

/// Sends a message.
pub(crate) fn send(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    to.write_all(&frame(message)?)
}

/// The next payload, of at most so many bytes.
pub(crate) fn receive_bytes(from: &mut impl Read, most: usize, payload: &mut Vec<u8>) -> io::Result<()> {
    let mut head = [0; HEAD];
    from.read_exact(&mut head)?;
    let no = |what: String| Err(io::Error::new(io::ErrorKind::InvalidData, what));
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if &head[..3] != b"EGR" {
        return no("what was sent is no message of a rank".into());
    }
    if head[3] != PROTOCOL {
        return no(format!("speaks protocol {}, {PROTOCOL} expected", head[3]));
    }
    let (len, sum) = (word(4) as usize, word(8));
    if len > most {
        return no(format!("a message of {len} bytes, at most {most} allowed"));
    }
    payload.clear();
    // What was announced may never come: memory grows with what does.
    let came = from.take(len as u64).read_to_end(payload)?;
    if came < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match crc32fast::hash(payload) == sum {
        true => Ok(()),
        false => no("a message is damaged".into()),
    }
}

/// The next message, of at most so many bytes.
pub(crate) fn receive<T: DeserializeOwned>(from: &mut impl Read, most: usize) -> io::Result<T> {
    let mut payload = Vec::new();
    receive_bytes(from, most, &mut payload)?;
    let no = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    match postcard::take_from_bytes(&payload) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(no(format!("{} bytes behind a message", rest.len()))),
        Err(error) => Err(no(format!("what was sent is no message of a rank: {error}"))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order() -> StepOrder {
        let mut order = StepOrder::default();
        let shape = engraft_core::mem::StepShape { tokens: 3, seqs: 2, rows: 1, ..Default::default() };
        order.words.begin(shape);
        order.number = 7;
        (order.copies, order.seen, order.values) = (vec![(1, 2)], vec![5, u32::MAX], vec![1.5, f32::NAN]);
        order
    }

    #[test]
    fn orders_arrive_as_they_were_sent() {
        let sent = order();
        let bytes = frame(&ToFollower::Order(Box::new(Cow::Borrowed(&sent)))).unwrap();
        let ToFollower::Order(got) = receive(&mut &*bytes, MOST_FRAME).unwrap() else {
            panic!("another message")
        };
        assert_eq!((got.number, &got.words), (7, &sent.words));
        assert_eq!((&got.copies, &got.seen), (&sent.copies, &sent.seen));
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&got.values), bits(&sent.values));
    }

    #[test]
    fn what_is_no_frame_is_named() {
        let error = |bytes: &[u8], most| receive::<Hello>(&mut &*bytes, most).unwrap_err().to_string();
        let good = frame(&Hello::Peer { token: "t".into(), rank: 1 }).unwrap();
        assert_eq!(error(b"GET / HTTP/1.1\r\n", 100), "what was sent is no message of a rank");
        let mut other = good.clone();
        other[3] = 9;
        assert_eq!(error(&other, 100), format!("speaks protocol 9, {PROTOCOL} expected"));
        assert_eq!(error(&good, 2), "a message of 4 bytes, at most 2 allowed");
        let mut damaged = good.clone();
        damaged[13] ^= 1;
        assert_eq!(error(&damaged, 100), "a message is damaged");
        let mut long = vec![0; HEAD];
        long.extend(postcard::to_extend(&Hello::Peer { token: "t".into(), rank: 1 }, vec![]).unwrap());
        long.push(0);
        let head = head(&long[HEAD..]).unwrap();
        long[..HEAD].copy_from_slice(&head);
        assert_eq!(error(&long, 100), "1 bytes behind a message");
        assert!(error(&good[..good.len() - 1], 100).contains("end of file") || good.len() < HEAD);
    }

    /// Words whose number is another than their shape says would be read beyond their end.
    #[test]
    fn words_of_another_number_than_their_shape_are_refused() {
        let mut bytes = frame(&ToFollower::Order(Box::new(Cow::Owned(order())))).unwrap();
        // Message, number, then the tokens of the shape.
        assert_eq!(bytes[HEAD..HEAD + 3], [3, 7, 3]);
        bytes[HEAD + 2] = 4;
        let head = head(&bytes[HEAD..]).unwrap();
        bytes[..HEAD].copy_from_slice(&head);
        let error = receive::<ToFollower>(&mut &*bytes, MOST_FRAME).unwrap_err().to_string();
        assert!(error.contains("no message of a rank"), "{error}");
    }

    proptest! {
        #[test]
        fn garbage_is_an_error(mut bytes in prop::collection::vec(any::<u8>(), 0..200), framed in any::<bool>()) {
            if framed {
                let head = head(&bytes).unwrap();
                bytes.splice(0..0, head);
            }
            let _ = receive::<Hello>(&mut &*bytes, MOST_HELLO);
            let _ = receive::<ToLeader>(&mut &*bytes, MOST_FRAME);
            let _ = receive::<ToFollower>(&mut &*bytes, MOST_FRAME);
        }
    }
}

//! Stop strings on streamed text.
//!
//! The rule is about characters, not about tokens, so how the text is split into pieces cannot matter: **the
//! stop string that is complete first wins; of several that end at the same place, the longest**. The text
//! before it is given out, it and everything after it is not. What may still become a stop string is held
//! back, and only that.
//!
//! The machine is Aho and Corasick's automaton over bytes (CACM 18, 1975): its state is the longest suffix of
//! the text that begins some stop string, so the state's depth is exactly what must be held, and a byte costs
//! amortised constant time whatever the number of strings. Held text begins where a stop string could begin,
//! which is never inside a character.

use std::collections::{HashMap, VecDeque};

use crate::{Error, Result};

/// What a piece of text led to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopEvent {
    /// Text that is certainly part of the output.
    pub emit: String,
    /// Index of the stop string that ended the text.
    pub stopped: Option<usize>,
}

/// Finds stop strings in text that arrives in pieces.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    nodes: Vec<Node>,
    state: usize,
    held: String,
    stopped: Option<usize>,
}

#[derive(Debug, Clone, Default)]
struct Node {
    next: HashMap<u8, usize>,
    /// The longest proper suffix that is a node, too.
    fallback: usize,
    depth: usize,
    /// Longest stop string that ends here: its index and length.
    found: Option<(usize, usize)>,
}

impl StopMatcher {
    /// A matcher for `stops`; with none, everything passes.
    ///
    /// # Errors
    /// [`Error::Config`] if a stop string is empty (it would end every text at once).
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self> {
        let mut nodes = vec![Node::default()];
        for (index, stop) in stops.iter().enumerate() {
            let stop = stop.as_ref();
            if stop.is_empty() {
                return Err(Error::config(
                    "stop",
                    format!("\"\" at place {index}"),
                    "strings that are not empty",
                ));
            }
            let mut at = 0;
            for &byte in stop.as_bytes() {
                let (fresh, depth) = (nodes.len(), nodes[at].depth + 1);
                at = *nodes[at].next.entry(byte).or_insert(fresh);
                if at == fresh {
                    nodes.push(Node { depth, ..Node::default() });
                }
            }
            // The same string twice: the first one counts.
            nodes[at].found.get_or_insert((index, stop.len()));
        }
        link(&mut nodes);
        Ok(StopMatcher { nodes, state: 0, held: String::new(), stopped: None })
    }

    /// Takes the next piece. After a stop nothing more is emitted.
    pub fn push(&mut self, text: &str) -> StopEvent {
        if self.stopped.is_some() {
            return StopEvent { emit: String::new(), stopped: self.stopped };
        }
        let before = self.held.len();
        for (i, &byte) in text.as_bytes().iter().enumerate() {
            self.state = step(&self.nodes, self.state, byte);
            if let Some((index, len)) = self.nodes[self.state].found {
                // The held text covers the longest candidate, hence this one's start.
                let mut emit = std::mem::take(&mut self.held);
                let keep = before + i + 1 - len;
                match keep.checked_sub(before) {
                    Some(more) => emit.push_str(&text[..more]),
                    None => emit.truncate(keep),
                }
                self.stopped = Some(index);
                return StopEvent { emit, stopped: self.stopped };
            }
        }
        self.held.push_str(text);
        let sure = self.held.len() - self.nodes[self.state].depth;
        let rest = self.held.split_off(sure);
        StopEvent { emit: std::mem::replace(&mut self.held, rest), stopped: None }
    }

    /// The text still held back: the stream has ended, so it is no stop string.
    pub fn finish(&mut self) -> String {
        self.state = 0;
        std::mem::take(&mut self.held)
    }
}

fn step(nodes: &[Node], mut at: usize, byte: u8) -> usize {
    loop {
        match nodes[at].next.get(&byte) {
            Some(&next) => return next,
            None if at == 0 => return 0,
            None => at = nodes[at].fallback,
        }
    }
}

/// Breadth first: fallbacks of shorter nodes are ready when longer ones need them.
fn link(nodes: &mut [Node]) {
    let mut queue = VecDeque::from([0]);
    while let Some(at) = queue.pop_front() {
        for (byte, child) in nodes[at].next.clone() {
            let fallback = if at == 0 { 0 } else { step(nodes, nodes[at].fallback, byte) };
            nodes[child].fallback = fallback;
            // A node's own string is longer than any that its suffixes end.
            nodes[child].found = nodes[child].found.or(nodes[fallback].found);
            queue.push_back(child);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Search in the whole text: the first end, then the longest.
    fn naive(text: &str, stops: &[String]) -> (String, Option<usize>) {
        for end in 0..=text.len() {
            let mut best: Option<usize> = None;
            for (i, s) in stops.iter().enumerate() {
                if text.as_bytes()[..end].ends_with(s.as_bytes())
                    && best.is_none_or(|b| stops[b].len() < s.len())
                {
                    best = Some(i);
                }
            }
            if let Some(i) = best {
                return (text[..end - stops[i].len()].to_owned(), Some(i));
            }
        }
        (text.to_owned(), None)
    }

    fn stream(pieces: &[String], stops: &[String]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops).unwrap();
        let mut out = String::new();
        for piece in pieces {
            let event = matcher.push(piece);
            out += &event.emit;
            if event.stopped.is_some() {
                assert_eq!(matcher.push("more"), StopEvent { emit: String::new(), stopped: event.stopped });
                assert_eq!(matcher.finish(), "");
                return (out, event.stopped);
            }
        }
        (out + &matcher.finish(), None)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn equals_a_search_in_the_whole_text(
            pieces in prop::collection::vec("[abé😀]{0,4}", 0..12),
            stops in prop::collection::vec("[abé😀]{1,4}", 0..5),
        ) {
            prop_assert_eq!(stream(&pieces, &stops), naive(&pieces.concat(), &stops));
        }

        #[test]
        fn holds_back_no_more_than_it_must(text in "[ab]{0,12}", stops in prop::collection::vec("[ab]{2,4}", 1..4)) {
            let mut matcher = StopMatcher::new(&stops).unwrap();
            let event = matcher.push(&text);
            if event.stopped.is_none() {
                let held = matcher.finish();
                prop_assert_eq!(event.emit + &held, text.clone());
                let longest = (0..=text.len()).find(|&i| stops.iter().any(|s| s.starts_with(&text[i..]))).unwrap();
                prop_assert_eq!(held, &text[longest..]);
            }
        }
    }

    #[test]
    fn the_first_complete_string_wins_and_the_longest_of_a_tie() {
        let stops = ["abc".to_owned(), "b".to_owned()];
        assert_eq!(stream(&["xabc".into()], &stops), ("xa".into(), Some(1)));
        let stops = ["bc".to_owned(), "abc".to_owned(), "abc".to_owned()];
        assert_eq!(stream(&["xa".into(), "b".into(), "cd".into()], &stops), ("x".into(), Some(1)));
    }

    #[test]
    fn an_empty_stop_string_is_refused() {
        assert!(StopMatcher::new(&["a", ""]).unwrap_err().to_string().contains("place 1"));
        assert_eq!(StopMatcher::new::<&str>(&[]).unwrap().push("abc").emit, "abc");
    }
}

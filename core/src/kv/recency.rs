//! Numbers in the order in which they were used. Every operation takes constant time.

/// Of a number that is not in the order.
const OUT: [u32; 2] = [u32::MAX; 2];

/// Numbers from the one that was used longest ago to the one used last.
#[derive(Debug, Clone)]
pub(super) struct Recency {
    /// What is before each number and behind it, as places of this list: a number is one behind its place. At
    /// place 0 both ends meet.
    links: Vec<[u32; 2]>,
}

impl Recency {
    pub(super) fn new() -> Self {
        Self { links: vec![[0; 2]] }
    }

    /// Puts a number at the end, wherever it was.
    pub(super) fn append(&mut self, number: u32) {
        self.remove(number);
        self.insert(number, self.links[0][0]);
    }

    /// Takes a number out; whether it was there.
    pub(super) fn remove(&mut self, number: u32) -> bool {
        let Some(link) = self.links.get_mut(number as usize + 1).filter(|link| **link != OUT) else {
            return false;
        };
        let [before, behind] = std::mem::replace(link, OUT);
        self.links[before as usize][1] = behind;
        self.links[behind as usize][0] = before;
        true
    }

    /// Puts a number where another is, which goes; at the end where the other is not there.
    pub(super) fn replace(&mut self, gone: u32, number: u32) {
        self.remove(number);
        let link = self.links.get(gone as usize + 1).filter(|link| **link != OUT);
        let before = link.map_or(self.links[0][0], |link| link[0]);
        self.remove(gone);
        self.insert(number, before);
    }

    /// Puts a number that is not there behind a place.
    fn insert(&mut self, number: u32, before: u32) {
        let place = number as usize + 1;
        if self.links.len() <= place {
            self.links.resize(place + 1, OUT);
        }
        let behind = std::mem::replace(&mut self.links[before as usize][1], place as u32);
        self.links[behind as usize][0] = place as u32;
        self.links[place] = [before, behind];
    }

    /// The numbers, the one that was used longest ago first.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        let behind = |place: u32| Some(self.links[place as usize][1]).filter(|behind| *behind > 0);
        std::iter::successors(behind(0), move |place| behind(*place)).map(|place| place - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a plain list.
        #[test]
        fn the_order_agrees_with_a_list(ops in proptest::collection::vec((0u8..4, 0u32..8, 0u32..8), 0..60)) {
            let (mut order, mut list) = (Recency::new(), Vec::new());
            for (op, number, other) in ops {
                match op {
                    0 => prop_assert_eq!(order.remove(number), list.contains(&number)),
                    1 if number != other => order.replace(other, number),
                    _ => order.append(number),
                }
                list.retain(|there| *there != number);
                match list.iter().position(|there| *there == other) {
                    _ if op == 0 => {}
                    Some(at) if op == 1 && number != other => list[at] = number,
                    _ => list.push(number),
                }
                prop_assert_eq!(order.iter().collect::<Vec<_>>(), list.clone());
            }
        }
    }
}

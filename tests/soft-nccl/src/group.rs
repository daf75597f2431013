//! A group of ranks: who has come, what each has called, and what becomes of it.

use crate::Order;
use crate::settings;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// `ncclFloat32`, the type of sums.
pub const F32: i32 = 7;

/// What a rank calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub name: &'static str,
    /// Elements that a rank sends.
    pub count: usize,
    pub dtype: i32,
    /// `ncclRedOp_t`; 0 where there is none.
    pub op: i32,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { name, count, dtype, op } = self;
        write!(f, "{name} of {count} elements of type {dtype}, operation {op}")
    }
}

/// A collective that ranks come to.
#[derive(Default)]
struct Meeting {
    arrived: BTreeMap<usize, (Call, Vec<u8>)>,
    out: Option<Arc<Vec<u8>>>,
    left: usize,
}

#[derive(Default)]
struct State {
    joined: Vec<bool>,
    finalized: Vec<bool>,
    gone: Vec<bool>,
    meetings: BTreeMap<u64, Meeting>,
    failed: Option<String>,
}

/// Ranks that were made by one id.
pub struct Group {
    pub world: usize,
    order: Order,
    patience: Duration,
    state: Mutex<State>,
    news: Condvar,
}

fn groups() -> MutexGuard<'static, Vec<Weak<Group>>> {
    static GROUPS: Mutex<Vec<Weak<Group>>> = Mutex::new(Vec::new());
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Groups that live.
pub fn all() -> Vec<Arc<Group>> {
    groups().iter().filter_map(Weak::upgrade).collect()
}

impl Group {
    pub fn new(world: usize) -> Arc<Self> {
        let none = || vec![false; world];
        let state = State { joined: none(), finalized: none(), gone: none(), ..State::default() };
        let (order, patience) = (settings::order(), settings::patience());
        let group = Arc::new(Self { world, order, patience, state: Mutex::new(state), news: Condvar::new() });
        groups().push(Arc::downgrade(&group));
        group
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A rank comes; why not, if it cannot.
    pub fn join(&self, rank: usize) -> Result<(), String> {
        let mut state = self.lock();
        match state.joined.get_mut(rank) {
            Some(joined) if !*joined => *joined = true,
            Some(_) => return Err(format!("rank {rank} has joined already")),
            None => return Err(format!("rank {rank} of {}", self.world)),
        }
        self.news.notify_all();
        Ok(())
    }

    /// Whether nothing is waited for: all have come, and where one has announced its end all have; the reason
    /// of the failure, if there was one.
    pub fn health(&self) -> Result<bool, String> {
        let State { failed, joined, finalized, .. } = &*self.lock();
        let all = |ranks: &[bool]| ranks.iter().all(|rank| *rank);
        let ending = finalized.contains(&true);
        failed.clone().map_or_else(|| Ok(all(joined) && (!ending || all(finalized))), Err)
    }

    /// Whether all have come.
    pub fn all_joined(&self) -> bool {
        self.lock().joined.iter().all(|joined| *joined)
    }

    /// A rank announces its end.
    pub fn finalize(&self, rank: usize) {
        self.lock().finalized[rank] = true;
    }

    /// All ranks have failed for this reason; the first one is kept.
    pub fn fail(&self, why: &str) {
        self.lock().failed.get_or_insert_with(|| why.to_string());
        self.news.notify_all();
    }

    /// A rank ends what it waits for. The others learn nothing of it, as by NCCL inside a machine.
    pub fn leave(&self, rank: usize) {
        self.lock().gone[rank] = true;
        self.news.notify_all();
    }

    /// Comes to collective `number` with what the rank sends; waits for all others, and gives the result to
    /// `out`, which is filled with ones where there is none.
    pub fn come(&self, number: u64, rank: usize, call: Call, sent: &[u8], out: &mut [u8]) {
        out.fill(0xff);
        let mut state = self.lock();
        if state.failed.is_none() {
            self.arrive(&mut state, number, rank, call, sent);
        }
        let began = Instant::now();
        loop {
            let State { failed, gone, meetings, .. } = &mut *state;
            let Some(meeting) = meetings.get_mut(&number) else { return };
            if let Some(result) = &meeting.out {
                out.copy_from_slice(&result[..out.len()]);
                meeting.left += 1;
                if meeting.left == self.world {
                    meetings.remove(&number);
                }
                return;
            }
            if failed.is_some() || gone[rank] {
                return;
            }
            if began.elapsed() > self.patience {
                let missing = (0..self.world).find(|other| !meeting.arrived.contains_key(other));
                let missing = missing.unwrap_or_default();
                *failed =
                    Some(format!("collective {number}: rank {missing} never came; rank {rank} calls {call}"));
                self.news.notify_all();
                return;
            }
            let nap = Duration::from_millis(50).min(self.patience);
            state = self.news.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn arrive(&self, state: &mut State, number: u64, rank: usize, call: Call, sent: &[u8]) {
        let meeting = state.meetings.entry(number).or_default();
        if let Some((other, (theirs, _))) = meeting.arrived.iter().find(|(_, (theirs, _))| *theirs != call) {
            let text = format!("collective {number}: rank {rank} calls {call}; rank {other} calls {theirs}");
            state.failed.get_or_insert(text);
            self.news.notify_all();
            return;
        }
        meeting.arrived.insert(rank, (call, sent.to_vec()));
        if meeting.arrived.len() == self.world {
            let parts: Vec<&[u8]> = meeting.arrived.values().map(|(_, part)| &part[..]).collect();
            let result = match call.name {
                "ncclAllGather" => parts.concat(),
                _ => sums(&parts, self.order, number),
            };
            meeting.out = Some(Arc::new(result));
            self.news.notify_all();
        }
    }
}

/// Sums of f32 by an order.
fn sums(parts: &[&[u8]], order: Order, number: u64) -> Vec<u8> {
    let value = |rank: usize, i: usize| {
        let at = &parts[rank][4 * i..];
        f32::from_ne_bytes([at[0], at[1], at[2], at[3]])
    };
    let (world, count) = (parts.len(), parts[0].len() / 4);
    let sum = |i: usize| {
        let values = |first: usize| (0..world).map(move |k| value((first + k) % world, i));
        let fold = |first: usize| values(first).reduce(|sum, v| sum + v).unwrap_or_default();
        match order {
            Order::Ring => fold(i * world / count),
            Order::Tree => {
                let mut nodes: Vec<f32> = values(0).collect();
                while nodes.len() > 1 {
                    nodes = nodes
                        .chunks(2)
                        .map(|pair| pair.iter().copied().reduce(|a, b| a + b).unwrap_or_default())
                        .collect();
                }
                nodes[0]
            }
            Order::Random => {
                let mut nodes: Vec<f32> = values(0).collect();
                let mut seed = (number << 32) + i as u64;
                while nodes.len() > 1 {
                    // SplitMix64.
                    seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
                    let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                    let one = nodes.swap_remove(mixed as usize % nodes.len());
                    let at = (mixed >> 32) as usize % nodes.len();
                    nodes[at] += one;
                }
                nodes[0]
            }
        }
    };
    (0..count).flat_map(|i| sum(i).to_ne_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(order: Order, values: &[f32]) -> u32 {
        let parts: Vec<[u8; 4]> = values.iter().map(|v| v.to_ne_bytes()).collect();
        let parts: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
        let sum = sums(&parts, order, 1);
        f32::from_ne_bytes([sum[0], sum[1], sum[2], sum[3]]).to_bits()
    }

    /// The orders are unlike each other, and each is what it is called.
    #[test]
    fn orders_of_sums() {
        let values = [1e8f32, -1e8, 3.0, 0.25];
        assert_eq!(bits(Order::Tree, &values), ((1e8f32 - 1e8) + (3.0f32 + 0.25)).to_bits());
        let other = [3.0f32, 1e8, -1e8, 0.25];
        assert_eq!(bits(Order::Ring, &other), (((3.0f32 + 1e8) - 1e8) + 0.25).to_bits());
        let (mut unlike, mut all) = (0, 0);
        for i in 0..200u32 {
            let values = [1.0f32, 1e7, -1e7, 0.1].map(|v| v * (1.0 + i as f32 / 7.0));
            let sums = Order::ALL.map(|order| bits(order, &values));
            unlike += usize::from(sums[0] != sums[1]) + usize::from(sums[2] != sums[1]);
            all += 2;
        }
        assert!(unlike > all / 10, "{unlike} of {all}");
    }
}

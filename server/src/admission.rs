//! How much may be in the server at once: sequences, prompt tokens, requests of a key.

use crate::config::ServerConfig;
use crate::error::ApiError;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Ends of requests by which the rate of the server is estimated.
const ENDS: usize = 32;

/// What is in the server.
#[derive(Debug)]
pub struct Admission {
    most_sequences: usize,
    running: usize,
    most_tokens: usize,
    most_per_key: Option<usize>,
    load: Mutex<Load>,
}

#[derive(Debug, Default)]
struct Load {
    sequences: usize,
    tokens: usize,
    requests: usize,
    per_key: BTreeMap<String, usize>,
    ends: VecDeque<Instant>,
}

/// The place of a request; dropping it frees the place.
#[derive(Debug)]
pub struct Permit {
    admission: Arc<Admission>,
    /// None: it is counted as a request in the server alone.
    key: Option<String>,
    sequences: usize,
    tokens: usize,
}

impl Admission {
    /// The limits of a configuration.
    pub fn new(config: &ServerConfig) -> Arc<Self> {
        Arc::new(Self {
            most_sequences: config.max_num_seqs.saturating_add(config.max_queued),
            running: config.max_num_seqs,
            most_tokens: config.max_queued_tokens,
            most_per_key: config.max_per_key,
            load: Mutex::default(),
        })
    }

    /// A place for a request of a key with `sequences` continuations and `tokens` of prompts.
    ///
    /// # Errors
    /// 429, with the seconds after which there will be room at the present rate; 400 for more sequences than
    /// ever have room.
    pub fn enter(self: &Arc<Self>, key: &str, sequences: usize, tokens: usize) -> Result<Permit, ApiError> {
        if sequences > self.most_sequences {
            let (most, running) = (self.most_sequences, self.running);
            let what =
                format!("the request asks for {sequences} sequences at once; this server allows {most}");
            let why = format!("{running} that run and {} that wait", most - running);
            return Err(ApiError::bad(format!("{what}: {why}")));
        }
        let mut load = self.load();
        let of_key = load.per_key.get(key).copied().unwrap_or_default();
        if let Some(most) = self.most_per_key.filter(|most| of_key >= *most) {
            return Err(ApiError::too_many(format!("this key has {most} requests running, its limit"), 1));
        }
        let full = load.sequences > 0
            && (load.sequences + sequences > self.most_sequences || load.tokens + tokens > self.most_tokens);
        if full {
            let (found, most) = (load.sequences, self.most_sequences);
            let message = match load.tokens + tokens {
                // Of pictures.
                0 => format!("the queue is full: {found} requests are in it, {most} are allowed"),
                _ => format!(
                    "the queue is full: {found} sequences with {} prompt tokens are in it, {most} and {} are allowed",
                    load.tokens, self.most_tokens
                ),
            };
            return Err(ApiError::too_many(message, load.seconds_to_room(self.running)));
        }
        load.sequences += sequences;
        load.tokens += tokens;
        load.requests += 1;
        *load.per_key.entry(key.into()).or_default() += 1;
        Ok(Permit { admission: self.clone(), key: Some(key.into()), sequences, tokens })
    }

    /// A place for a request that the engine has nothing to do with: the server's end waits for its answer.
    pub fn stay(self: &Arc<Self>) -> Permit {
        self.load().requests += 1;
        Permit { admission: self.clone(), key: None, sequences: 0, tokens: 0 }
    }

    /// Requests in the server.
    pub fn requests(&self) -> usize {
        self.load().requests
    }

    fn load(&self) -> MutexGuard<'_, Load> {
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Load {
    /// What waits, by the rate at which requests ended lately.
    fn seconds_to_room(&self, running: usize) -> u64 {
        let (Some(first), waiting) = (self.ends.front(), self.sequences.saturating_sub(running)) else {
            return 1;
        };
        let rate = self.ends.len() as f64 / first.elapsed().as_secs_f64().max(0.001);
        (waiting as f64 / rate).ceil().clamp(1.0, 60.0) as u64
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut load = self.admission.load();
        load.sequences -= self.sequences;
        load.tokens -= self.tokens;
        load.requests -= 1;
        let Some(key) = &self.key else { return };
        if let Some(count) = load.per_key.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                load.per_key.remove(key);
            }
        }
        load.ends.push_back(Instant::now());
        if load.ends.len() > ENDS {
            load.ends.pop_front();
        }
    }
}

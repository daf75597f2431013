//! The life of a process that is a rank.

use super::harm::Harm;
use super::struck::{EXCHANGES, Struck};
use engraft_core::Result;
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Request};
use engraft_core::inject::inject;
use engraft_core::model::Model;
use engraft_core::policy::{Rank, Registry};
use engraft_core::sample::SamplingParams;
use engraft_core::weights::LoadOptions;
use engraft_cpu::Cpu;
use engraft_ranks::{Place, follow, lead};
use std::collections::BTreeSet;
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// The status of a rank whose group has failed.
pub const FAILED: i32 = 75;

/// Where in a run a rank fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// While it reads its model.
    Load,
    /// At an exchange, from 1.
    Exchange(usize),
    /// While nothing is computed.
    Idle,
}

/// What a process is asked to be.
#[derive(Debug, Clone)]
pub struct Asked {
    pub rank: usize,
    pub world: usize,
    pub linked: bool,
    pub patience: Duration,
    pub meeting: String,
    /// Of this rank.
    pub harm: Harm,
    pub point: Point,
}

impl Asked {
    /// As words of an environment.
    pub fn words(&self) -> String {
        let point = match self.point {
            Point::Load => "load".to_string(),
            Point::Exchange(number) => number.to_string(),
            Point::Idle => "idle".into(),
        };
        let Self { rank, world, linked, patience, meeting, harm, .. } = self;
        format!("{rank} {world} {linked} {} {meeting} {} {point}", patience.as_millis(), harm.name())
    }

    /// Of such words.
    pub fn of_words(words: &str) -> Option<Self> {
        let words: Vec<&str> = words.split(' ').collect();
        let [rank, world, linked, patience, meeting, harm, point] = words[..] else { return None };
        Some(Self {
            rank: rank.parse().ok()?,
            world: world.parse().ok()?,
            linked: linked.parse().ok()?,
            patience: Duration::from_millis(patience.parse().ok()?),
            meeting: meeting.into(),
            harm: Harm::named(harm)?,
            point: match point {
                "load" => Point::Load,
                "idle" => Point::Idle,
                number => Point::Exchange(number.parse().ok()?),
            },
        })
    }

    fn place(&self) -> Result<Place> {
        let place = Place::new(self.rank, self.world, self.meeting.parse()?, "failures");
        let join_within = Duration::from_secs(20);
        Ok(Place { step_within: self.patience, linked: self.linked, join_within, ..place })
    }

    fn load(&self, rank: Rank) -> Result<(Arc<Struck>, Model<Cpu>)> {
        let at = match self.point {
            Point::Exchange(number) => number,
            Point::Load | Point::Idle => 0,
        };
        if self.point == Point::Load {
            self.harm.alone();
        }
        let backend = Struck::new(self.harm, at)?;
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/llama");
        let files = checkpoint::open(&golden, Access::default())?;
        let options = LoadOptions { rank: rank.index, world: rank.world, ..LoadOptions::default() };
        let model = inject(&backend, &files, &Registry::default(), 40, options, &mut |_, _| {})?;
        Ok((backend, model))
    }

    /// Is that rank; the status that the process ends with.
    pub fn run(&self) -> i32 {
        let done = self.place().and_then(|place| match self.rank {
            0 => self.lead(&place),
            _ => follow(
                &place,
                || Ok(()),
                |rank| self.load(rank),
                || {
                    println!("abandoned");
                    std::process::exit(FAILED);
                },
            )
            .map(|()| 0),
        });
        println!("exchanges {}", EXCHANGES.load(SeqCst));
        done.unwrap_or_else(|error| {
            println!("error {error}");
            FAILED
        })
    }

    /// Rank 0: a short run of requests that overlap; says what becomes of each.
    fn lead(&self, place: &Place) -> Result<i32> {
        let config = EngineConfig {
            max_context: 40,
            max_seqs: 3,
            max_step_tokens: 4,
            page_size: 8,
            page_seed: Some(1),
            ..EngineConfig::default()
        };
        let asked = self.clone();
        let mut engine = lead(place, || Ok(()), config, move |rank| asked.load(rank))?;
        engine.set_auditing(true);
        let mut open = BTreeSet::new();
        let mut status = requests(&mut engine, &mut open);
        if self.point == Point::Idle {
            println!("idle");
            let _ = std::io::stdout().flush();
            // Until the other process has had its harm done.
            let _ = std::io::stdin().lock().read_line(&mut String::new());
            status = requests(&mut engine, &mut open);
        }
        let (free, all) = engine.free_pages();
        println!("pages {free} {all}");
        println!("open {}", open.len());
        Ok(status)
    }
}

/// The request that comes in this turn.
fn request(turn: usize) -> Option<Request> {
    let (first, length, max_new_tokens) = match turn {
        0 => (7, 5, 3),
        1 => (19, 1, 2),
        3 => (31, 3, 2),
        _ => return None,
    };
    let sampling = SamplingParams { temperature: 0.8, seed: Some(turn as u64), ..SamplingParams::default() };
    Some(Request {
        prompt: (first..first + length).collect(),
        max_new_tokens,
        sampling,
        ..Request::default()
    })
}

/// Runs them, and says of each how it ends: by its tokens, or by its error.
fn requests(engine: &mut Engine<Struck>, open: &mut BTreeSet<u64>) -> i32 {
    let (mut out, mut status, mut turn) = (Vec::new(), 0, 0);
    while turn < 4 || !engine.is_idle() {
        if let Some(request) = request(turn) {
            match engine.put(request) {
                Ok(id) => drop(open.insert(id)),
                Err(error) => println!("refused {error}"),
            }
        }
        turn += 1;
        if let Err(error) = engine.step(&mut out) {
            status = FAILED;
            for id in engine.take_failed() {
                println!("failed {id} {error}");
                open.remove(&id);
            }
        }
        for output in &out {
            println!("token {} {:?}", output.id, output.token);
            if output.finish.is_some() {
                println!("done {}", output.id);
                open.remove(&output.id);
            }
        }
    }
    status
}

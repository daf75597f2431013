//! The scheduler, the pool of pages, the tables and the prefix tree of the engine, in every order of events.
//!
//! Requests come, steps are launched and collected or fail, sampled tokens end texts or do not, requests are
//! cancelled, preempted and forked, pages are evicted: stateright visits every state that these can lead to.
//! The code is the engine's own. What a device does is modelled here: every slot of a page holds the text
//! that leads to it, so that a step that reads what it should not is seen at once.
//!
//! States that differ in nothing but the numbers of pages and rows, or in when a prefix was last used, count
//! as one: any page that may be evicted is, so that every order of use is covered. The same goes for how many
//! steps have passed without a preemption: that enough have, and admission sets less aside, is an event that
//! may come at any time, so many times as `quiet` says.
//!
//! What is not covered: sizes beyond those given, a store for evicted pages, and two forks, cancels and
//! preemptions of each: with three requests that did not end in ten minutes.
//!
//! Tests run three requests in five pages, with a fork, a cancel and a preemption anywhere; two of which the
//! first comes as two continuations; three of different priorities; and three with a share that falls. Five
//! requests in eight pages are some five million states with as many of each, and take half an hour on two
//! cores (`model-check 5 8 1 1`).

mod key;
mod world;

pub use world::{Action, World};

use stateright::{Checker, Expectation, Model, Property};
use std::time::Instant;

/// How much there is of everything.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Requests that come.
    pub requests: usize,
    /// Forks, cancels and preemptions by number, of each at most so many.
    pub each: usize,
    /// How often so many steps pass without a preemption that admission sets less aside, at most.
    pub quiet: usize,
    /// Pages of two positions.
    pub pages: usize,
    /// Steps that are launched before the one before is collected.
    pub ahead: usize,
    /// Whether the first request comes as two continuations of one prompt.
    pub together: bool,
    /// Whether the requests have different priorities.
    pub priorities: bool,
}

impl Model for Sizes {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(*self)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        // A world that went wrong is the end of its path.
        if world.fault().is_none() {
            world.actions(actions);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        next.act(action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("steps read and write what is theirs", |_, world: &World| {
                world.fault().is_none()
            }),
            Property::always("every page and every row is accounted for", |_, world: &World| {
                world.is_accounted_for()
            }),
            Property::always("every request ends and gives its pages back", |_, world: &World| {
                world.fault().is_some() || world.clone().drains()
            }),
            Property::sometimes("a prefix is found", |_, world: &World| world.kv().stats().hit > 0),
            Property::sometimes("a step preempts", |_, world: &World| world.preempted_by_a_step()),
            Property::sometimes("a page waits for its step", |_, world: &World| {
                !world.kv().fenced().is_empty()
            }),
        ];
        if self.together {
            properties
                .push(Property::sometimes("a continuation joins", |_, world: &World| world.has_joined()));
        }
        properties
    }
}

/// Visits every state; prints how many there are, and returns that with what was seen on the way.
///
/// # Panics
/// Where a property does not hold, with the events that lead there.
pub fn visit(sizes: Sizes) -> (usize, Vec<&'static str>) {
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    let begin = Instant::now();
    let checker = sizes.checker().threads(threads).spawn_dfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{sizes:?}: {states} states, {depth} deep, {:.1} s", begin.elapsed().as_secs_f64());
    let mut seen = Vec::new();
    for property in sizes.properties() {
        match property.expectation {
            Expectation::Sometimes => seen.extend(checker.discovery(property.name).map(|_| property.name)),
            _ => checker.assert_no_discovery(property.name),
        }
    }
    println!("  seen: {seen:?}");
    (states, seen)
}

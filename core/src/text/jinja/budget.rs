//! What a rendering may cost, and why it ends early.
//!
//! Every step of the evaluator counts as work, and so do the bytes that it touches; every string, list and
//! dictionary counts the bytes that it has room for while it lives. Nothing is built before its bytes are
//! granted, so that no template can take more than its share, however it asks. A step takes 60 ns at most in
//! a build of the `dev` profile: what takes longer counts as several.

use std::cell::Cell;
use std::rc::Rc;

/// Why a template cannot be compiled or rendered.
#[derive(Debug)]
pub(in crate::text) struct Fail {
    /// What is wrong.
    pub text: String,
    /// The line of the innermost tag, once it is known.
    pub line: Option<usize>,
}

/// Result of everything here.
pub(in crate::text) type Res<T> = Result<T, Fail>;

impl Fail {
    /// A failure whose line is not known yet.
    pub fn new(text: impl Into<String>) -> Self {
        Fail { text: text.into(), line: None }
    }

    /// With its line, unless it has one.
    pub fn at(mut self, line: usize) -> Self {
        self.line.get_or_insert(line);
        self
    }
}

impl Fail {
    /// Says in what it happened.
    pub fn of(self, what: &str, name: &str) -> Self {
        let name: String = name.chars().take(60).collect();
        Fail { text: format!("{what} `{name}`: {}", self.text), ..self }
    }
}

/// Shorthand for a failure as a result.
pub(super) fn fail<T>(text: impl Into<String>) -> Res<T> {
    Err(Fail::new(text))
}

/// What one rendering has left.
#[derive(Debug)]
pub(super) struct Budget {
    steps: Cell<u64>,
    most_steps: u64,
    live: Cell<usize>,
    most_bytes: usize,
}

/// Bytes copied or compared that count as one step.
const COPIED_PER_STEP: usize = 64;
/// Bytes looked at character by character that count as one step.
const SCANNED_PER_STEP: usize = 16;

impl Budget {
    pub fn new(most_steps: u64, most_bytes: usize) -> Rc<Self> {
        Rc::new(Budget { steps: Cell::new(0), most_steps, live: Cell::new(0), most_bytes })
    }

    /// Counts `steps`.
    pub fn work(&self, steps: usize) -> Res<()> {
        let steps = self.steps.get().saturating_add(steps as u64);
        self.steps.set(steps);
        if steps > self.most_steps {
            return fail(format!("more than {} steps of work", self.most_steps));
        }
        Ok(())
    }

    /// Counts the work of copying or comparing `bytes`.
    pub fn touch(&self, bytes: usize) -> Res<()> {
        self.work(1 + bytes / COPIED_PER_STEP)
    }

    /// Counts the work of looking at `bytes` character by character.
    pub fn scan(&self, bytes: usize) -> Res<()> {
        self.work(1 + bytes / SCANNED_PER_STEP)
    }

    /// Grants `bytes` of memory, which [`give`](Self::give) takes back.
    pub fn take(&self, bytes: usize) -> Res<()> {
        let live = self.live.get().saturating_add(bytes);
        if live > self.most_bytes {
            return fail(format!("more than {} bytes of strings, lists and output", self.most_bytes));
        }
        self.live.set(live);
        Ok(())
    }

    /// Grants `bytes` until the result is dropped.
    pub fn hold(self: &Rc<Self>, bytes: usize) -> Res<Held> {
        self.take(bytes)?;
        Ok(Held { budget: self.clone(), bytes })
    }

    /// Takes back what was granted.
    pub fn give(&self, bytes: usize) {
        self.live.set(self.live.get().saturating_sub(bytes));
    }
}

/// Bytes that a string, list or dictionary costs besides its content.
pub(super) const OVERHEAD: usize = 96;

/// Memory that a function needs for a while.
#[derive(Debug)]
pub(super) struct Held {
    budget: Rc<Budget>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.give(self.bytes);
    }
}

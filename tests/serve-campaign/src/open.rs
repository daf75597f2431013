//! A request that is being read: what it may give, and what it gives.

use crate::Report;
use crate::caller::Shared;
use crate::failures::Ended;
use conformance::null::PLANNED;
use engraft::{Error, Event, Finish, Request, SamplingParams, Tokens, Want};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A channel that has not closed so long behind a last event never does.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a request is not forked.
const NO_FORK: [&str; 6] = [
    "it has ended",
    "requests wait for their turn",
    "waits for its next step",
    "not running",
    "tokens are still being read",
    "sequences run already",
];
/// Why a request is not saved, or not preempted.
const NO_SAVE: [&str; 3] = ["it has ended", "neither running nor waiting", "keeps logits or hidden states"];

/// What a caller has seen.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub report: Report,
    /// Requests that a planned failure has ended.
    pub ended: Vec<Ended>,
}

/// The bytes of a request, and how it may go on.
pub(crate) type Saved = (Vec<u8>, Vec<Answer>);

/// How a request goes on if nothing disturbs it.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Tokens that it had sampled before its first event.
    begun: Vec<u32>,
    /// Those of its events.
    tokens: Vec<u32>,
    finish: Finish,
}

/// What a request was begun by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Made {
    Put,
    Forked,
    Restored,
}

/// A request that is being read.
pub(crate) struct Open {
    tokens: Tokens,
    pub request: Request,
    made: Made,
    /// What it may give: of a fork an answer for every place that it may have been forked at.
    answers: Vec<Answer>,
    pub seen: Vec<u32>,
    /// Whether what it keeps has come.
    kept: bool,
    /// Whether it was saved, and preempted, while it was there.
    saved: bool,
    preempted: bool,
    /// Tokens behind which its caller leaves.
    pub leave: Option<usize>,
}

impl Open {
    fn new(tokens: Tokens, request: Request, made: Made, answers: Vec<Answer>) -> Self {
        let (kept, saved, preempted) = (false, false, false);
        Self { tokens, request, made, answers, seen: Vec::new(), kept, saved, preempted, leave: None }
    }

    /// A request that was handed in.
    pub(crate) fn put(tokens: Tokens, request: Request, shared: &Shared) -> Self {
        let (given, finish) = shared.oracle.answer(&request);
        let answer = Answer { begun: Vec::new(), tokens: given, finish };
        Self::new(tokens, request, Made::Put, vec![answer])
    }

    /// One that was saved, and goes on as one of these.
    pub(crate) fn restored(tokens: Tokens, request: Request, answers: Vec<Answer>) -> Self {
        Self::new(tokens, request, Made::Restored, answers)
    }

    /// What goes on from it: nothing is kept of that, and it may wait as long as it has to.
    pub(crate) fn rest_of_it(&self) -> Request {
        Request { want: Want::default(), start_within: None, ..self.request.clone() }
    }

    /// Tokens that it gives at most.
    pub(crate) fn longest(&self) -> usize {
        self.answers.iter().map(|answer| answer.tokens.len()).max().unwrap_or(0)
    }

    /// Token rows that it takes alone. Nothing follows the last token: no step runs it.
    fn rows(&self) -> u64 {
        let begun = self.answers.first().map_or(0, |answer| answer.begun.len());
        (self.request.prompt.len() + begun + self.seen.len().saturating_sub(1)) as u64
    }

    /// An error, with what is known of it.
    pub(crate) fn about(&self, what: &str) -> String {
        let Self { request, made, answers, seen, .. } = self;
        format!("{what}\n  {made:?}: {request:?}\n  heard {seen:?}\n  expected {answers:?}")
    }

    /// Reads an event; whether it is the last.
    pub(crate) fn read(&mut self, shared: &Shared, heard: &mut Heard) -> Result<bool, String> {
        let ended = self.hear(shared, heard).map_err(|what| self.about(&what))?;
        if ended {
            self.has_one_end().map_err(|what| self.about(&what))?;
            heard.report.ends += 1;
        }
        Ok(ended)
    }

    /// Waits until nothing can follow the last event, and nothing has.
    ///
    /// `next` says nothing behind the last event, whatever lies in the channel. The channel does, where it is
    /// printed: it is closed once the engine's thread has given its end up and all that came was read.
    fn has_one_end(&self) -> Result<(), String> {
        let begin = Instant::now();
        while !format!("{:?}", self.tokens).contains("Receiver { closed: true }") {
            if begin.elapsed() > PATIENCE {
                return Err(format!("something behind its end, or more may come: {:?}", self.tokens));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn hear(&mut self, shared: &Shared, heard: &mut Heard) -> Result<bool, String> {
        match self.tokens.next() {
            None => return Err("nothing, and no end before".into()),
            Some(Ok(Event::Token(token))) => {
                heard.report.tokens += 1;
                self.take(token)?;
                return Ok(false);
            }
            Some(Ok(Event::Kept(kept))) => {
                let values = self.rows() as usize * shared.hidden;
                let lens: Vec<usize> = kept.hidden.iter().map(Vec::len).collect();
                if self.kept || self.request.want == Want::default() || lens != [values] {
                    return Err(format!("keeps {lens:?} values, [{values}] expected"));
                }
                self.kept = true;
                return Ok(false);
            }
            Some(Ok(Event::Finished(Finish::Expired))) => {
                if self.request.start_within.is_none() || !self.seen.is_empty() {
                    return Err("it ran, or may wait for ever, and expired".into());
                }
                heard.report.expired += 1;
            }
            Some(Ok(Event::Finished(finish))) => self.finish(finish, &mut heard.report)?,
            Some(Ok(other)) => return Err(format!("{other:?}")),
            Some(Err(error)) => self.hear_error(&error, shared, heard)?,
        }
        Ok(true)
    }

    fn take(&mut self, token: u32) -> Result<(), String> {
        self.seen.push(token);
        let Self { answers, seen, kept, .. } = self;
        let seen: &[u32] = seen;
        let fits = |answer: &Answer| answer.tokens.starts_with(seen);
        if *kept || !answers.iter().any(fits) {
            return Err("another token than alone".into());
        }
        answers.retain(fits);
        Ok(())
    }

    /// It has ended by itself.
    fn finish(&self, finish: Finish, report: &mut Report) -> Result<(), String> {
        let right = |answer: &Answer| answer.tokens == self.seen && answer.finish == finish;
        if !self.answers.iter().any(right) {
            return Err(format!("ended by {finish:?}"));
        }
        let keeps = self.request.want != Want::default() && finish != Finish::NoToken;
        if self.kept != keeps {
            return Err("what it keeps did not come, or came unasked".into());
        }
        match finish {
            Finish::NoToken => report.without_token += 1,
            _ => {
                report.whole += 1;
                report.rows[1] += self.rows();
            }
        }
        let (forked, restored) = (self.made == Made::Forked, self.made == Made::Restored);
        let verbs = [forked, restored, self.saved, self.preempted];
        report.verbs.iter_mut().zip(verbs).for_each(|(sum, one)| *sum += u64::from(one));
        Ok(())
    }

    fn hear_error(&self, error: &Error, shared: &Shared, heard: &mut Heard) -> Result<(), String> {
        let (said, report) = (error.to_string(), &mut heard.report);
        if said.contains("none of the logits is above -infinity") {
            return self.finish(Finish::NoToken, report).map_err(|_| said);
        }
        let no_fork = match error {
            Error::KvFull { .. } => true,
            Error::Request { what, .. } => NO_FORK.iter().any(|why| what.contains(why)),
            _ => false,
        };
        if no_fork && self.made == Made::Forked && self.seen.is_empty() {
            report.declined += 1;
            return Ok(());
        }
        if !said.contains(PLANNED) {
            return Err(format!("an error that was not planned: {said}"));
        }
        if said.contains("the engine panicked") || said.contains("device lost") {
            shared.over.store(true, Relaxed);
            report.lost += 1;
            return Ok(());
        }
        report.failed += 1;
        let sampling = &self.request.sampling;
        let name = (sampling.seed.unwrap_or(0) as u32, self.request.subsequence);
        let at_once = self.made != Made::Put && self.seen.is_empty();
        heard.ended.push(Ended { name, at_once, what: self.about(&said) });
        Ok(())
    }

    /// Forks it; none where its answer is not known to one place.
    pub(crate) fn fork(
        &self,
        sampling: SamplingParams,
        subsequence: u32,
        shared: &Shared,
    ) -> Result<Option<Self>, String> {
        let [answer] = &self.answers[..] else { return Ok(None) };
        let request = Request { sampling, subsequence, ..self.rest_of_it() };
        // Where it stands is the engine's to say: behind what was heard, and before its last token. A prompt
        // is read once its first token is sampled.
        let least = self.seen.len().max(usize::from(self.made == Made::Put));
        let most = answer.tokens.len().saturating_sub(usize::from(answer.finish != Finish::NoToken));
        let at = |sampled: usize| {
            let begun = [&answer.begun[..], &answer.tokens[..sampled]].concat();
            let (tokens, finish) = shared.oracle.rest(&request, &begun);
            Answer { begun, tokens, finish }
        };
        let answers: Vec<Answer> = (least..=most).map(at).collect();
        let tokens = self.tokens.fork(sampling, subsequence).map_err(|error| format!("a fork: {error}"))?;
        Ok(Some(Self::new(tokens, request, Made::Forked, answers)))
    }

    /// Saves it: the bytes, and how they go on; none where it has ended, or keeps something, or a failure
    /// was planned.
    pub(crate) fn save(&mut self) -> Result<Option<Saved>, String> {
        let saved = match self.tokens.save() {
            Ok(saved) => saved,
            Err(error) => return excused(&error).map(|()| None),
        };
        let at = saved.sampled;
        if self.request.want != Want::default() || at < self.seen.len() {
            return Err(format!("was saved with {at} tokens"));
        }
        let there = self.answers.iter().filter(|answer| answer.tokens.len() >= at);
        let behind = there.map(|Answer { begun, tokens, finish }| {
            let (sampled, rest) = tokens.split_at(at);
            Answer { begun: [&begun[..], sampled].concat(), tokens: rest.to_vec(), finish: *finish }
        });
        let behind: Vec<Answer> = behind.collect();
        if behind.is_empty() {
            return Err(format!("was saved with {at} tokens, more than it has"));
        }
        self.saved = true;
        Ok(Some((saved.bytes, behind)))
    }

    /// Takes its pages.
    pub(crate) fn preempt(&mut self) -> Result<(), String> {
        match self.tokens.preempt() {
            Ok(ran) => self.preempted |= ran,
            Err(error) => excused(&error)?,
        }
        Ok(())
    }
}

/// Whether this may be said of a request that is to be saved or preempted.
fn excused(error: &Error) -> Result<(), String> {
    let said = error.to_string();
    match said.contains(PLANNED) || NO_SAVE.iter().any(|why| said.contains(why)) {
        true => Ok(()),
        false => Err(format!("an error that was not planned: {said}")),
    }
}

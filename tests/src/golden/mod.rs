//! Whole models against outputs of the reference implementation.
//!
//! `case` reads a golden directory, `run` puts it through the real engine and compares every tensor, `expect`
//! knows which cases may be skipped and why, `judge` puts the three together; `pictures` does the same for
//! schedulers, models and pipelines of text-to-image. What the directories hold: `golden/README.md`,
//! `golden-image/README.md`.

mod case;
mod clip;
mod expect;
mod judge;
mod launches;
mod pictures;
mod run;
mod seq2seq;
mod sound;
mod t5;
mod vlm;

pub use case::{Case, Prompt, Tensor, find};
pub use expect::{Close, Expectations};
pub use judge::{Outcome, Report, judge};
pub use launches::{Launches, complaints, since};
pub use pictures::Pictures;
pub use run::{Greedy, Types, Verdict, load_rank, open, open_with, run};

//! Pictures from any thread: a channel to the thread that owns the pipeline.
//!
//! A pipeline stays on one thread, as an engine does (streams of a device may not move). Calls run there one
//! after the other, in the order in which they came. A panic ends its call and the thread: what it leaves of
//! the pipeline is only dropped. The thread ends when the last handle is gone, too.

use crate::image::{ImageGenerator, ImageOptions};
use engraft_core::{Error, Result};
use engraft_diffusion::engraft_image::SchedulerConfig;
use engraft_diffusion::{Defaults, ImageRequest, Images, Progress, Seeded};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// What is known of a pipeline that is open.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ImageInfo {
    /// The path it was opened by.
    pub name: String,
    /// Sizes of pictures are multiples of this.
    pub factor: usize,
    /// The side of the pictures that it was trained with, where its files say so.
    pub side: Option<usize>,
    /// The scheduler that runs take unless they name another.
    pub scheduler: SchedulerConfig,
    /// What runs take where a request does not say.
    pub defaults: Defaults,
}

/// What the thread does with its pipeline; whether it goes on.
type Job = Box<dyn FnOnce(&mut ImageGenerator) -> ControlFlow<()> + Send>;

/// A pipeline on a thread of its own; clones share it, from any thread.
///
/// Calls block until their result is there: an async program makes them in its runtime's `spawn_blocking`.
///
/// ```
/// use engraft::engraft_diffusion::ImageRequest;
/// use engraft::{ImageHandle, ImageOptions};
/// use std::ops::ControlFlow;
///
/// # fn main() -> engraft::Result<()> {
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden-image/pipelines/sd1");
/// let handle = ImageHandle::open(folder, &ImageOptions::default())?; // a folder of diffusers
/// let small = ImageRequest { width: 16, height: 16, steps: Some(2), ..ImageRequest::new("a fox") };
/// let made = handle.generate(small.clone(), 7, |_| ControlFlow::Continue(()))?;
/// assert_eq!(made.map_or(0, |images| images.rgb[0].len()), 16 * 16 * 3);
/// // A run ends between two steps where its callback says so.
/// assert!(handle.generate(small, 7, |_| ControlFlow::Break(()))?.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ImageHandle {
    jobs: Sender<Job>,
    info: Arc<ImageInfo>,
    ended: Arc<AtomicBool>,
}

impl std::fmt::Debug for ImageHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageHandle").field("info", &self.info).finish_non_exhaustive()
    }
}

/// What is left to say when the thread no longer answers.
fn gone() -> Error {
    Error::internal("the thread that makes pictures has ended")
}

/// Loads a pipeline, and serves until no handle is left.
fn work(
    path: &Path,
    options: &ImageOptions,
    inbox: &Receiver<Job>,
    ready: &Sender<Result<ImageInfo>>,
) -> Result<()> {
    let mut model = ImageGenerator::open(path, options)?;
    let info = ImageInfo {
        name: path.display().to_string(),
        factor: model.factor(),
        side: model.side(),
        scheduler: model.scheduler().clone(),
        defaults: model.defaults(),
    };
    if ready.send(Ok(info)).is_ok() {
        for job in inbox {
            if job(&mut model).is_break() {
                break;
            }
        }
    }
    Ok(())
}

impl ImageHandle {
    /// Loads a folder with `model_index.json` on a thread of its own.
    ///
    /// # Errors
    /// As [`ImageGenerator::open`].
    pub fn open(path: impl AsRef<Path>, options: &ImageOptions) -> Result<Self> {
        let (path, options) = (path.as_ref().to_owned(), options.clone());
        let ((jobs, inbox), (ready, opened)) = (channel(), channel());
        let body = move || {
            if let Err(error) = work(&path, &options, &inbox, &ready) {
                // The receiver waits: errors come before the pipeline is ready.
                let _ = ready.send(Err(error));
            }
        };
        thread::Builder::new()
            .name("engraft-images".into())
            .spawn(body)
            .map_err(|e| Error::io("the thread that makes pictures", e))?;
        let info = opened.recv().unwrap_or_else(|_| Err(gone()))?;
        Ok(Self { jobs, info: Arc::new(info), ended: Arc::default() })
    }

    /// The pipeline.
    pub fn info(&self) -> &ImageInfo {
        &self.info
    }

    /// Whether its thread still takes calls: after a panic it does not.
    pub fn is_alive(&self) -> bool {
        !self.ended.load(Ordering::Relaxed)
    }

    /// Makes pictures of the prompts: picture `i` has the seed `seed + i`, and so the bits that it has alone.
    /// `watch` is called after every step, and may end the run, which gives nothing then.
    ///
    /// # Errors
    /// As [`ImageGenerator::generate`]; `Internal` for a panic, and when the thread has ended.
    pub fn generate(
        &self,
        request: ImageRequest,
        seed: u64,
        watch: impl FnMut(Progress) -> ControlFlow<()> + Send + 'static,
    ) -> Result<Option<Images>> {
        self.call(move |model| model.generate_until(&request, &mut Seeded(seed), watch))
    }

    /// Whether the pipeline can run such a request, as far as that is known before its texts are read and its
    /// steps are counted; waits for the runs before.
    ///
    /// # Errors
    /// `Config`, naming the field; `Internal` when the thread has ended.
    pub fn check(&self, request: ImageRequest) -> Result<()> {
        self.call(move |model| model.check(&request))
    }

    /// Does something with the pipeline, on its thread.
    fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut ImageGenerator) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, received) = channel();
        let ended = self.ended.clone();
        let job = move |model: &mut ImageGenerator| {
            let done = catch_unwind(AssertUnwindSafe(|| work(model)));
            let next = if done.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
            if next.is_break() {
                // Before the answer: whoever gets it may ask.
                ended.store(true, Ordering::Relaxed);
            }
            let panicked = || Err(Error::internal("making pictures panicked"));
            // Whoever asked may be gone.
            let _ = reply.send(done.unwrap_or_else(|_| panicked()));
            next
        };
        // A thread that is gone drops the job, and `recv` says so.
        let _ = self.jobs.send(Box::new(job));
        received.recv().unwrap_or_else(|_| {
            self.ended.store(true, Ordering::Relaxed);
            Err(gone())
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden-image/pipelines/sd1");

    fn small(text: &str) -> ImageRequest {
        ImageRequest { width: 16, height: 16, steps: Some(2), ..ImageRequest::new(text) }
    }

    #[test]
    fn calls_of_several_threads_give_what_a_pipeline_gives() {
        let handle = ImageHandle::open(FOLDER, &ImageOptions::default()).unwrap();
        let mut model = ImageGenerator::open(FOLDER, &ImageOptions::default()).unwrap();
        assert_eq!((handle.info().factor, handle.info().side), (model.factor(), model.side()));
        assert_eq!(handle.info().defaults, model.defaults());
        let texts = ["a fox", "a dog", "a hat"];
        thread::scope(|scope| {
            let made = texts.map(|text| {
                let handle = handle.clone();
                scope.spawn(move || handle.generate(small(text), 7, |_| ControlFlow::Continue(())))
            });
            for (text, made) in texts.iter().zip(made) {
                let images = made.join().unwrap().unwrap().unwrap();
                assert_eq!(images.rgb, model.generate(&small(text), 7, |_| {}).unwrap().rgb, "{text}");
            }
        });
    }

    #[test]
    fn a_run_ends_where_it_is_asked_to_and_wrong_requests_end_themselves_alone() {
        let handle = ImageHandle::open(FOLDER, &ImageOptions::default()).unwrap();
        assert!(handle.generate(small("a fox"), 7, |_| ControlFlow::Break(())).unwrap().is_none());
        let odd = ImageRequest { width: 17, ..small("a fox") };
        for error in [
            handle.check(odd.clone()).unwrap_err(),
            handle.generate(odd, 7, |_| ControlFlow::Continue(())).map(drop).unwrap_err(),
        ] {
            assert!(error.to_string().contains("`width` is 17"), "{error}");
        }
        assert!(handle.check(small("a fox")).is_ok() && handle.is_alive());
        let none = ImageHandle::open("no/such/folder", &ImageOptions::default()).map(drop).unwrap_err();
        assert!(none.to_string().contains("no/such/folder"), "{none}");
    }

    #[test]
    fn a_panic_ends_its_call_and_the_thread() {
        let handle = ImageHandle::open(FOLDER, &ImageOptions::default()).unwrap();
        let error = handle.generate(small("a fox"), 7, |_| unreachable!("planted")).map(drop).unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
        assert!(!handle.is_alive());
        let error = handle.check(small("a fox")).unwrap_err();
        assert!(error.to_string().contains("has ended"), "{error}");
    }
}

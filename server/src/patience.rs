//! Connections that end when their readers take nothing for too long, or an answer too slowly.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// What ends a connection while it waits for its reader; its requests have it among their extensions.
#[derive(Debug, Clone, Default)]
pub struct Connection(Arc<Notify>);

/// A time limit of an answer, which counts until this is dropped.
#[derive(Debug)]
pub struct Due(JoinHandle<()>);

impl Connection {
    /// Waits until a time limit is over.
    pub async fn overdue(&self) {
        self.0.notified().await;
    }

    /// Ends the connection after `time`. A body cannot do so itself: it is not polled while a write waits.
    pub fn due(&self, time: Duration) -> Due {
        let connection = self.0.clone();
        Due(tokio::spawn(async move {
            sleep(time).await;
            connection.notify_one();
        }))
    }
}

impl Drop for Due {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Bytes that a reader who is behind takes in a second at least, on the mean: less than the slowest lines
/// carry, and more than it takes to hold a place for ever.
const RATE: u64 = 4 << 10;

/// `T` with a limit on the time that a write may wait, and on how long its reader may be behind: twice that
/// time, and a second more for each [`RATE`] bytes that were taken since then.
#[derive(Debug)]
pub struct Patient<T> {
    inner: T,
    limit: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
    behind: Option<Behind>,
}

/// A reader who has not taken all that there is to take.
#[derive(Debug)]
struct Behind {
    since: Instant,
    taken: u64,
}

impl<T> Patient<T> {
    /// `inner`, whose writes may wait for `limit`.
    pub fn new(inner: T, limit: Duration) -> Self {
        Self { inner, limit, waiting: None, behind: None }
    }

    /// A write that took so many bytes, or waits.
    fn written(
        &mut self,
        context: &mut Context<'_>,
        done: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if done.is_pending() {
            return self.wait(context);
        }
        self.waiting = None;
        if let (Some(behind), Poll::Ready(Ok(count))) = (&mut self.behind, &done) {
            behind.taken += *count as u64;
        }
        done
    }

    /// All that was written is handed on, or waits.
    fn flushed(&mut self, context: &mut Context<'_>, done: Poll<io::Result<()>>) -> Poll<io::Result<()>> {
        if done.is_pending() {
            return self.wait(context);
        }
        (self.waiting, self.behind) = (None, None);
        done
    }

    fn wait<R>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<R>> {
        let Self { limit, waiting, behind, .. } = self;
        let waiting = waiting.get_or_insert_with(|| {
            let now = Instant::now();
            let Behind { since, taken } = behind.get_or_insert(Behind { since: now, taken: 0 });
            let last = *since + *limit * 2 + Duration::from_millis(*taken * 1000 / RATE);
            Box::pin(sleep_until(last.min(now + *limit)))
        });
        waiting.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Patient<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Patient<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.written(context, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.written(context, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.inner).poll_flush(context);
        self.flushed(context, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.inner).poll_shutdown(context);
        self.flushed(context, done)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
    }

    /// Time is the test's own: it goes on where all tasks wait.
    fn paused<T>(work: impl Future<Output = T>) -> T {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap().block_on(work)
    }

    /// Reads so many bytes every 50 ms until `written` has ended.
    async fn slowly(theirs: &mut DuplexStream, count: usize) {
        let mut some = vec![0; count];
        loop {
            sleep(Duration::from_millis(50)).await;
            theirs.read_exact(&mut some).await.unwrap();
        }
    }

    /// A byte now and then keeps no place.
    #[test]
    fn a_reader_that_is_behind_for_long_ends_the_connection() {
        paused(async {
            let (ours, mut theirs) = duplex(8);
            let mut ours = Patient::new(ours, Duration::from_millis(100));
            let began = Instant::now();
            let written = tokio::select! {
                written = ours.write_all(&[0; 1000]) => written,
                () = slowly(&mut theirs, 1) => unreachable!("it reads for ever"),
            };
            assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
            let time = began.elapsed();
            assert!((200..=250).contains(&time.as_millis()), "{time:?}");
        });
    }

    /// The bytes that it takes give it time, and who has taken all begins anew.
    #[test]
    fn a_reader_that_is_behind_and_takes_enough_is_waited_for() {
        paused(async {
            let (ours, mut theirs) = duplex(1 << 10);
            let mut ours = Patient::new(ours, Duration::from_millis(100));
            tokio::select! {
                // 5 KiB in half a second: more than 4 KiB in a second.
                written = ours.write_all(&[0; 6 << 10]) => written.unwrap(),
                () = slowly(&mut theirs, 512) => unreachable!("it reads for ever"),
            }
            ours.flush().await.unwrap();
            assert!(ours.behind.is_none());
        });
    }

    #[test]
    fn a_reader_that_takes_nothing_ends_the_connection() {
        run(async {
            let (ours, _theirs) = duplex(8);
            let mut ours = Patient::new(ours, Duration::from_millis(50));
            let began = std::time::Instant::now();
            let error = ours.write_all(&[0; 100]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(began.elapsed() >= Duration::from_millis(50));
        });
    }

    #[test]
    fn a_slow_reader_is_waited_for() {
        run(async {
            let (ours, mut theirs) = duplex(8);
            let mut ours = Patient::new(ours, Duration::from_millis(200));
            let reader = async {
                let mut all: Vec<u8> = Vec::new();
                while all.len() < 40 {
                    // Longer than the limit in all, shorter each time.
                    sleep(Duration::from_millis(60)).await;
                    let mut some = [0; 8];
                    let n = theirs.read(&mut some).await.unwrap();
                    all.extend(&some[..n]);
                }
                all.len()
            };
            let (written, read) = tokio::join!(ours.write_all(&[7; 40]), reader);
            written.unwrap();
            assert_eq!(read, 40);
        });
    }
}

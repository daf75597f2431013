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
use tokio::time::{Sleep, sleep};

/// What ends a connection while it waits for its reader; its requests have it among their extensions.
#[derive(Debug, Clone, Default)]
pub struct Connection(Arc<Notify>);

/// A time limit of an answer, which counts until this is dropped.
#[derive(Debug)]
#[cfg_attr(not(any(test, feature = "images")), allow(dead_code))]
pub struct Due(JoinHandle<()>);

impl Connection {
    /// Waits until a time limit is over.
    pub async fn overdue(&self) {
        self.0.notified().await;
    }

    /// Ends the connection after `time`. A body cannot do so itself: it is not polled while a write waits.
    #[cfg(any(test, feature = "images"))]
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

/// `T` with a limit on the time that a write may wait.
#[derive(Debug)]
pub struct Patient<T> {
    inner: T,
    limit: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<T> Patient<T> {
    /// `inner`, whose writes may wait for `limit`.
    pub fn new(inner: T, limit: Duration) -> Self {
        Self { inner, limit, waiting: None }
    }

    fn within<R>(&mut self, context: &mut Context<'_>, done: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if done.is_ready() {
            self.waiting = None;
            return done;
        }
        let limit = self.limit;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(limit)));
        match waiting.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
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
        self.within(context, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.within(context, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.inner).poll_flush(context);
        self.within(context, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.inner).poll_shutdown(context);
        self.within(context, done)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
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

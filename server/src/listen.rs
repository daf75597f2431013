//! Connections: TCP, TLS or a Unix socket, each served by HTTP/1.1 within limits.

use crate::config::ServerConfig;
use crate::drain::{Life, Phase};
use crate::patience::{Connection, Patient};
use crate::tls::Tls;
use axum::Router;
use axum::http::Request;
use engraft::{Error, Result};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::fmt;
#[cfg(unix)]
use std::io::ErrorKind;
use std::net::SocketAddr;
#[cfg(unix)]
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

/// Bytes that a connection holds each way, a request's head among them.
const BUFFER: usize = 64 << 10;
/// Time for what is left to be written when the server ends.
const LAST_WRITES: Duration = Duration::from_secs(2);

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// An address, with whether connections are encrypted.
    Tcp(SocketAddr, bool),
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address, false) => write!(f, "http://{address}"),
            Address::Tcp(address, true) => write!(f, "https://{address}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// Removes the file of a Unix socket, unless something else has its place by now.
    pub(crate) fn leave(&self) {
        #[cfg(unix)]
        if let Address::Unix(path) = self
            && is_socket(path).is_ok_and(|socket| socket)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

enum Socket {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(tokio::net::UnixListener),
}

/// A socket that listens.
pub struct Listener {
    socket: Socket,
    tls: Option<Tls>,
    /// Where.
    pub address: Address,
    connections: Arc<Semaphore>,
}

impl Listener {
    /// Listens where the configuration says.
    ///
    /// # Errors
    /// `Io`, naming the address; `Format` for certificates.
    pub async fn bind(config: &ServerConfig) -> Result<Self> {
        let tls = config.tls.as_ref().map(Tls::new).transpose()?;
        let (socket, address) = match &config.uds {
            Some(path) => unix(path).await?,
            None => {
                let named = format!("{}:{}", config.host, config.port);
                let failed = |source| Error::Io { path: named.clone().into(), source };
                let listener =
                    TcpListener::bind((config.host.as_str(), config.port)).await.map_err(failed)?;
                let address = listener.local_addr().map_err(failed)?;
                (Socket::Tcp(listener), Address::Tcp(address, tls.is_some()))
            }
        };
        let connections = Arc::new(Semaphore::new(config.max_connections));
        Ok(Self { socket, tls, address, connections })
    }

    /// Takes connections until the server has ended, and waits for what is left to be written.
    pub async fn serve(&self, router: Router, config: &ServerConfig, life: &Life) {
        let mut ended = life.reached(Phase::Ended);
        loop {
            // The end comes also while every place is taken.
            let place = tokio::select! {
                () = &mut ended => break,
                place = self.connections.clone().acquire_owned() => place,
            };
            let Ok(place) = place else { break };
            let limits = Limits { router: router.clone(), config: config.clone(), life: life.clone(), place };
            tokio::select! {
                () = &mut ended => break,
                accepted = self.accept(limits) => if let Err(error) = accepted {
                    // Too many open files, say: it passes.
                    tracing::warn!("a connection could not be taken: {error}");
                    sleep(Duration::from_millis(50)).await;
                },
            }
        }
        let most = u32::try_from(config.max_connections).unwrap_or(u32::MAX);
        let _ = timeout(LAST_WRITES, self.connections.acquire_many(most)).await;
        self.address.leave();
    }

    async fn accept(&self, limits: Limits) -> std::io::Result<()> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                let _ = stream.set_nodelay(true);
                match self.tls.clone() {
                    None => drop(tokio::spawn(limits.serve(stream))),
                    Some(tls) => drop(tokio::spawn(limits.encrypted(tls, stream))),
                }
            }
            #[cfg(unix)]
            Socket::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                drop(tokio::spawn(limits.serve(stream)));
            }
        }
        Ok(())
    }
}

/// Whether a socket is there, and no link to one.
#[cfg(unix)]
fn is_socket(path: &Path) -> std::io::Result<bool> {
    use std::os::unix::fs::FileTypeExt;
    Ok(std::fs::symlink_metadata(path)?.file_type().is_socket())
}

#[cfg(unix)]
async fn unix(path: &PathBuf) -> Result<(Socket, Address)> {
    let failed = |source| Error::Io { path: path.clone(), source };
    match is_socket(path) {
        // A socket that a server left behind refuses connections.
        Ok(true) => {
            let left = tokio::net::UnixStream::connect(path).await;
            if left.is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused) {
                std::fs::remove_file(path).map_err(failed)?;
            }
        }
        Ok(false) => {
            let found = format!("{}, which is there and is no socket", path.display());
            return Err(Error::config(
                "uds",
                found,
                "a path where nothing is, or a socket that a server left",
            ));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let listener = tokio::net::UnixListener::bind(path).map_err(failed)?;
    Ok((Socket::Unix(listener), Address::Unix(path.clone())))
}

#[cfg(not(unix))]
async fn unix(path: &PathBuf) -> Result<(Socket, Address)> {
    Err(Error::Unsupported {
        op: format!("uds {}", path.display()),
        backend: "HTTP".into(),
        reason: "this system has no Unix sockets".into(),
    })
}

/// What a connection is served by, and its place.
struct Limits {
    router: Router,
    config: ServerConfig,
    life: Life,
    place: OwnedSemaphorePermit,
}

impl Limits {
    async fn encrypted(self, tls: Tls, stream: TcpStream) {
        match timeout(self.config.header_timeout, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.serve(stream).await,
            Ok(Err(error)) => tracing::debug!("no TLS connection: {error}"),
            Err(_) => tracing::debug!("no TLS connection in time"),
        }
    }

    async fn serve<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(self, stream: T) {
        let Self { router, config, life, place } = self;
        let (ends, routes) = (Connection::default(), TowerToHyperService::new(router));
        let own = ends.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(own.clone());
            routes.call(request)
        });
        let io = TokioIo::new(Patient::new(stream, config.write_timeout));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(config.header_timeout)
            .max_buf_size(BUFFER)
            .serve_connection(io, service);
        let served = async {
            let mut connection = std::pin::pin!(connection);
            let mut draining = life.reached(Phase::Draining);
            let done = tokio::select! {
                done = &mut connection => Some(done),
                () = &mut draining, if life.phase() == Phase::Serving => None,
            };
            match done {
                Some(done) => done,
                None => {
                    // What runs goes on; an idle connection ends.
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        };
        tokio::select! {
            done = served => if let Err(error) = done {
                tracing::debug!("a connection ended: {error}");
            },
            () = ends.overdue() => tracing::debug!("a connection ended: an answer was read too slowly"),
        }
        drop(place);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::admission::Admission;
    use crate::answer::Placed;
    use axum::body::Body;
    use axum::http::Response;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    /// The client of a connection whose server answers with 1 MiB in `room`.
    async fn asked(admission: &Arc<Admission>, room: &Arc<Semaphore>) -> DuplexStream {
        let (admission, room) = (admission.clone(), room.clone());
        let answer = move |request: Request<Body>| {
            let place = admission.enter("", 1, 0).unwrap();
            let room = room.clone().try_acquire_many_owned(1025).unwrap();
            let body = Placed::new(vec![7_u8; 1 << 20], place, Some(room));
            let body = body.due(request.extensions().get::<Connection>().unwrap());
            async move { Response::new(Body::new(body)) }
        };
        let place = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        // No limit but that of the answer counts.
        let write_timeout = Duration::from_secs(300);
        let (config, life) = (ServerConfig { write_timeout, ..ServerConfig::default() }, Life::default());
        let limits = Limits { router: Router::new().route("/", get(answer)), config, life, place };
        let (ours, mut theirs) = duplex(4 << 10);
        drop(tokio::spawn(limits.serve(ours)));
        theirs.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
        theirs
    }

    /// Time is the test's own: it goes on where all tasks wait.
    #[test]
    fn who_reads_an_answer_too_slowly_keeps_no_room() {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap().block_on(async {
            let admission = Admission::new(&ServerConfig::default());
            let room = Arc::new(Semaphore::new(1025));
            let mut slow = asked(&admission, &room).await;
            // 60 s and 16 s for 1 MiB.
            for (at, requests) in [(29, 1), (58, 1), (87, 0)] {
                sleep(Duration::from_secs(29)).await;
                assert_eq!(admission.requests(), requests, "after {at} s");
                slow.read_exact(&mut [0; 1 << 10]).await.unwrap();
            }
            assert_eq!(room.available_permits(), 1025);
            let mut rest = Vec::new();
            slow.read_to_end(&mut rest).await.unwrap();
            assert!(rest.len() <= 4 << 10, "{} bytes", rest.len());
            // Who is slow for a while and then takes all of it has all of it.
            let mut fast = asked(&admission, &room).await;
            sleep(Duration::from_secs(29)).await;
            let mut all = Vec::new();
            fast.read_to_end(&mut all).await.unwrap();
            assert!(all.len() > 1 << 20, "{} bytes", all.len());
            assert_eq!((admission.requests(), room.available_permits()), (0, 1025));
        });
    }

    /// What no server has left behind is not a server's to remove.
    #[cfg(unix)]
    #[test]
    fn only_sockets_make_room_for_a_socket() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let folder = std::env::temp_dir().join(format!("engraft-uds-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (socket, file, link) = (folder.join("socket"), folder.join("file"), folder.join("link"));
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        std::fs::write(&file, "precious").unwrap();
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        let bind = |path: &Path| {
            let config = ServerConfig { uds: Some(path.into()), ..ServerConfig::default() };
            runtime.block_on(Listener::bind(&config)).map(|listener| listener.address)
        };
        for path in [&file, &link, &folder] {
            let error = bind(path).unwrap_err().to_string();
            assert!(error.contains("is no socket") && error.contains("uds"), "{error}");
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
        assert!(link.is_symlink());
        // The socket that was left; then a server's own goes with it, and no file that came later does.
        let address = bind(&socket).unwrap();
        address.leave();
        assert!(!socket.exists());
        std::fs::write(&socket, "another's").unwrap();
        address.leave();
        assert!(socket.exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

//! Streams between processes: Unix sockets on one machine, TCP between machines.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// How long a dial waits before the next, at first and at most.
const BACKOFF: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];
/// How long one dial may take.
const DIAL: Duration = Duration::from_secs(5);

/// Where the ranks of a group meet.
///
/// ```
/// use engraft_ranks::Meeting;
///
/// let meeting: Meeting = "node-0:29501".parse()?;
/// assert_eq!(meeting, Meeting::Tcp("node-0:29501".into()));
/// assert_eq!("unix:/run/group".parse::<Meeting>()?.to_string(), "unix:/run/group");
/// assert!("node-0".parse::<Meeting>().is_err());
/// # Ok::<(), engraft_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meeting {
    /// A Unix socket: ranks of one machine.
    Unix(PathBuf),
    /// `host:port` of rank 0.
    Tcp(String),
}

impl fmt::Display for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => f.write_str(address),
        }
    }
}

impl FromStr for Meeting {
    type Err = engraft_core::Error;

    fn from_str(text: &str) -> engraft_core::Result<Self> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let port =
            text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
        match port {
            Some(Ok(port)) if port > 0 => Ok(Self::Tcp(text.to_string())),
            _ => Err(engraft_core::Error::config("leader", format!("{text:?}"), "host:port, unix:PATH")),
        }
    }
}

/// A word that no other process has.
pub(crate) fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

/// Accepts links.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl Listener {
    /// Listens where the group meets.
    pub fn at(meeting: &Meeting) -> io::Result<Self> {
        match meeting {
            Meeting::Unix(path) => Self::at_path(path),
            // The name is for those who dial; the port is reached by every address of this machine.
            Meeting::Tcp(address) => {
                let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0);
                let all = [SocketAddr::from(([0u16; 8], port)), SocketAddr::from(([0u8; 4], port))];
                let listener = TcpListener::bind(&all[..])?;
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(listener))
            }
        }
    }

    /// Listens beside `link`, where ranks of its machine, or of its network, can dial; says the address, too.
    pub fn alongside(link: &Link, meeting: &Meeting, rank: usize) -> io::Result<(Self, Meeting)> {
        match (link, meeting) {
            (Link::Tcp(stream), _) => {
                let listener = TcpListener::bind((stream.local_addr()?.ip(), 0))?;
                listener.set_nonblocking(true)?;
                let address = listener.local_addr()?.to_string();
                Ok((Self::Tcp(listener), Meeting::Tcp(address)))
            }
            (Link::Unix(_), Meeting::Unix(path)) => {
                // Of one process: two that claim one rank are named by rank 0.
                let path = PathBuf::from(format!("{}.{rank}-{:08x}", path.display(), random() as u32));
                Ok((Self::at_path(&path)?, Meeting::Unix(path)))
            }
            (Link::Unix(_), Meeting::Tcp(_)) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn at_path(path: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(Self::Unix(listener, path.to_path_buf()))
    }

    /// A link that has come; none where none has.
    pub fn accept(&self) -> io::Result<Option<Link>> {
        let accepted = match self {
            Self::Unix(listener, _) => listener.accept().map(|(stream, _)| Link::Unix(stream)),
            Self::Tcp(listener) => listener.accept().map(|(stream, _)| Link::Tcp(stream)),
        };
        match accepted {
            Ok(link) => link.ready().map(Some),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A stream to another rank.
#[derive(Debug)]
pub(crate) enum Link {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Link {
    /// Dials until somebody answers, at most until `deadline`; `given_up` is asked between two dials.
    pub fn dial(
        meeting: &Meeting,
        deadline: Instant,
        given_up: &mut dyn FnMut() -> engraft_core::Result<()>,
    ) -> engraft_core::Result<Self> {
        let mut wait = BACKOFF[0];
        loop {
            let error = match Self::connect(meeting).and_then(Self::ready) {
                Ok(link) => return Ok(link),
                Err(error) => error,
            };
            given_up()?;
            if Instant::now() + wait > deadline {
                return Err(engraft_core::Error::io(meeting.to_string(), error));
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(BACKOFF[1]);
        }
    }

    fn connect(meeting: &Meeting) -> io::Result<Self> {
        match meeting {
            Meeting::Unix(path) => UnixStream::connect(path).map(Self::Unix),
            // Names are looked up at every dial: they may be known late.
            Meeting::Tcp(address) => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
                for address in address.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, DIAL) {
                        Ok(stream) => return Ok(Self::Tcp(stream)),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    /// Set up as all links are.
    fn ready(self) -> io::Result<Self> {
        match &self {
            Self::Unix(stream) => stream.set_nonblocking(false)?,
            Self::Tcp(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
            }
        }
        Ok(self)
    }

    /// Another handle of the same stream.
    pub fn another(&self) -> io::Result<Self> {
        match self {
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
        }
    }

    /// How long a read and a write may take.
    pub fn patience(&self, read: Option<Duration>, write: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => {
                stream.set_read_timeout(read)?;
                stream.set_write_timeout(write)
            }
            Self::Tcp(stream) => {
                stream.set_read_timeout(read)?;
                stream.set_write_timeout(write)
            }
        }
    }

    /// Ends the stream for both sides and for all handles.
    pub fn shut(&self) {
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Read for Link {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(to),
            Self::Tcp(stream) => stream.read(to),
        }
    }
}

impl Write for Link {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(from),
            Self::Tcp(stream) => stream.write(from),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

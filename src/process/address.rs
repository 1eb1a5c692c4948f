//! `Address` and `Stream`: where an instance listens, and a connection to it.

use std::{
    fmt, io,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use tokio::net::{TcpStream, UnixStream};

/// Where an instance listens.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Address {
    /// On a loopback port.
    Tcp(SocketAddr),
    /// On a Unix socket.
    Unix(Arc<Path>),
}

impl Address {
    pub(super) fn port(port: u16) -> Self {
        Address::Tcp((Ipv4Addr::LOCALHOST, port).into())
    }

    /// Absolute: the child may run in another directory.
    pub(super) fn path(path: &Path) -> Self {
        let absolute = std::path::absolute(path);
        Address::Unix(absolute.unwrap_or_else(|_| path.to_owned()).into())
    }

    /// Opens a connection.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub async fn connect(&self) -> io::Result<Stream> {
        match self {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Ok(Stream(Kind::Tcp(TokioIo::new(stream))))
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).await?;
                Ok(Stream(Kind::Unix(TokioIo::new(stream))))
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => path.display().fmt(f),
        }
    }
}

/// A connection to an instance, for hyper (`hyper::rt::Read` and `Write`).
#[derive(Debug)]
pub struct Stream(Kind);

#[derive(Debug)]
enum Kind {
    Tcp(TokioIo<TcpStream>),
    Unix(TokioIo<UnixStream>),
}

impl Stream {
    /// The process at the other end, where the system says.
    #[cfg(target_os = "linux")]
    pub(super) fn peer(&self) -> Option<i32> {
        match &self.0 {
            Kind::Tcp(_) => None,
            Kind::Unix(io) => io.inner().peer_cred().ok()?.pid(),
        }
    }
}

macro_rules! either {
    ($stream:expr, $io:ident => $poll:expr) => {
        match &mut $stream.get_mut().0 {
            Kind::Tcp($io) => {
                let $io = Pin::new($io);
                $poll
            }
            Kind::Unix($io) => {
                let $io = Pin::new($io);
                $poll
            }
        }
    };
}

impl Read for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self, io => io.poll_read(cx, buf))
    }
}

impl Write for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        either!(self, io => io.poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, io => io.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, io => io.poll_shutdown(cx))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.0 {
            Kind::Tcp(io) => io.is_write_vectored(),
            Kind::Unix(io) => io.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self, io => io.poll_write_vectored(cx, bufs))
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

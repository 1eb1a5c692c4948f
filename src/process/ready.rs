//! `Ready` and `Probe`: how to tell that a child is ready, and that it is well.

use std::{fmt, future::Future, pin::Pin, str::FromStr, sync::Arc};

use hyper::{Request, StatusCode, header::HOST, rt::Read, rt::Write};
use hyper_util::rt::TokioExecutor;

use super::{
    Protocol,
    address::{Address, Stream},
    command::Invalid,
};
use crate::error::BoxError;

/// When a child is ready.
///
/// Each text form is what [`FromStr`] reads: those of [`Probe`], and `line:TEXT`.
#[derive(Debug, Clone)]
pub struct Ready(pub(super) How);

#[derive(Debug, Clone)]
pub(super) enum How {
    Probe(Probe),
    Line(Arc<str>),
}

impl Ready {
    /// When it accepts connections: [`Probe::connect`].
    pub fn connect() -> Self {
        Probe::connect().into()
    }

    /// When it answers `GET path` with a status of success: [`Probe::http`].
    pub fn http(path: impl Into<Arc<str>>) -> Self {
        Probe::http(path).into()
    }

    /// When it has printed a line that contains `text`, to stdout or stderr, and then accepts
    /// connections.
    ///
    /// For children that listen before they can serve, and say when they can. A child that buffers
    /// its output, as many do that do not write to a terminal, says it late.
    pub fn line(text: impl Into<Arc<str>>) -> Self {
        Self(How::Line(text.into()))
    }

    pub(super) fn is_connect(&self) -> bool {
        matches!(&self.0, How::Probe(Probe(Kind::Connect)))
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        match &self.0 {
            How::Probe(probe) => probe.validate(),
            How::Line(text) if text.is_empty() => Err(Invalid("ready by an empty line".into())),
            How::Line(text) if text.contains('\n') => Err(Invalid(
                "ready by a line with a line break in it, which no line has".into(),
            )),
            How::Line(_) => Ok(()),
        }
    }
}

impl From<Probe> for Ready {
    fn from(probe: Probe) -> Self {
        Self(How::Probe(probe))
    }
}

impl FromStr for Ready {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let ready = match text.strip_prefix("line:") {
            Some(line) => Self::line(line),
            None => text.parse::<Probe>().map(Self::from).map_err(|_| {
                Invalid(format!(
                    "ready = {text:?}: expected `connect`, `http:/PATH`, `http:/PATH=STATUS` or \
                     `line:TEXT`"
                ))
            })?,
        };
        ready.validate()?;
        Ok(ready)
    }
}

/// One question to a child, on a connection of its own.
///
/// | | text |
/// |---|---|
/// | [`connect`](Self::connect) | `connect` |
/// | [`http`](Self::http) | `http:/healthz` |
/// | [`http_status`](Self::http_status) | `http:/healthz=204` |
/// | [`custom`](Self::custom) | |
#[derive(Clone)]
pub struct Probe(Kind);

#[derive(Clone)]
enum Kind {
    Connect,
    Http { path: Arc<str>, status: Wanted },
    Custom { name: Arc<str>, ask: Arc<Ask> },
}

type Ask = dyn Fn(Address) -> Asked + Send + Sync;
type Asked = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Success,
    Exactly(StatusCode),
    Any,
}

impl Probe {
    /// It accepts connections.
    pub const fn connect() -> Self {
        Self(Kind::Connect)
    }

    /// It answers `GET path` with a status of success (200 to 299), in the protocol that it is
    /// called by.
    pub fn http(path: impl Into<Arc<str>>) -> Self {
        Self::get(path, Wanted::Success)
    }

    /// It answers `GET path` with `status`.
    pub fn http_status(path: impl Into<Arc<str>>, status: StatusCode) -> Self {
        Self::get(path, Wanted::Exactly(status))
    }

    /// It answers `GET path` at all.
    pub fn any_answer(path: impl Into<Arc<str>>) -> Self {
        Self::get(path, Wanted::Any)
    }

    /// `ask` says so. Asked only once the child accepts connections; [`Address::connect`] opens one.
    /// `name` stands for it in errors.
    ///
    /// Each question is dropped when its bound is over.
    pub fn custom<F, Fut, E>(name: impl Into<Arc<str>>, ask: F) -> Self
    where
        F: Fn(Address) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let ask = move |address| -> Asked {
            let asked = ask(address);
            Box::pin(async { asked.await.map_err(Into::into) })
        };
        Self(Kind::Custom {
            name: name.into(),
            ask: Arc::new(ask),
        })
    }

    fn get(path: impl Into<Arc<str>>, status: Wanted) -> Self {
        Self(Kind::Http {
            path: path.into(),
            status,
        })
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        match &self.0 {
            Kind::Http { path, .. } if !path.starts_with('/') => Err(Invalid(format!(
                "probe: the path {path:?} does not begin with `/`"
            ))),
            Kind::Http { path, .. } if path.parse::<hyper::Uri>().is_err() => {
                Err(Invalid(format!("probe: {path:?} is no path of a URL")))
            }
            _ => Ok(()),
        }
    }

    /// Asks on `stream`, which was opened just now.
    pub(super) async fn ask(
        &self,
        address: &Address,
        stream: Stream,
        protocol: Protocol,
    ) -> Result<(), BoxError> {
        match &self.0 {
            Kind::Connect => Ok(()),
            Kind::Custom { ask, .. } => {
                drop(stream);
                ask(address.clone()).await
            }
            Kind::Http { path, status } => {
                let got = get(stream, path, protocol).await?;
                let well = match status {
                    Wanted::Success => got.is_success(),
                    Wanted::Exactly(status) => got == *status,
                    Wanted::Any => true,
                };
                if well {
                    return Ok(());
                }
                Err(format!("{self} was answered with {got}").into())
            }
        }
    }
}

/// `GET path`, and the status of the answer.
async fn get<S>(stream: S, path: &str, protocol: Protocol) -> Result<StatusCode, BoxError>
where
    S: Read + Write + Send + Unpin + 'static,
{
    use hyper::client::conn::{http1, http2};
    let response = match protocol {
        Protocol::Http1 => {
            let request = Request::get(path)
                .header(HOST, "localhost")
                .body(String::new())?;
            let (mut sender, connection) = http1::handshake(stream).await?;
            let mut answer = std::pin::pin!(sender.send_request(request));
            tokio::select! {
                biased;
                response = &mut answer => response,
                // It may end with the answer, which is then there.
                _ = connection => answer.await,
            }
        }
        Protocol::H2c => {
            let uri = format!("http://localhost{path}");
            let request = Request::get(uri).body(String::new())?;
            let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
            let mut answer = std::pin::pin!(sender.send_request(request));
            tokio::select! {
                biased;
                response = &mut answer => response,
                _ = connection => answer.await,
            }
        }
    };
    Ok(response?.status())
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Connect => f.write_str("connect"),
            Kind::Http { path, status } => {
                write!(f, "http:{path}")?;
                match status {
                    Wanted::Exactly(status) => write!(f, "={}", status.as_u16()),
                    Wanted::Success | Wanted::Any => Ok(()),
                }
            }
            Kind::Custom { name, .. } => f.write_str(name),
        }
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Probe({self})")
    }
}

impl FromStr for Probe {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let invalid = || {
            Invalid(format!(
                "probe {text:?}: expected `connect`, `http:/PATH` or `http:/PATH=STATUS`"
            ))
        };
        if text == "connect" {
            return Ok(Self::connect());
        }
        let http = text.strip_prefix("http:").ok_or_else(invalid)?;
        // A path may contain `=`; only a status behind the last one is a status.
        let status = http.rsplit_once('=').and_then(|(path, status)| {
            let status = StatusCode::from_bytes(status.as_bytes()).ok()?;
            Some((path, status))
        });
        let probe = match status {
            Some((path, status)) => Self::http_status(path, status),
            None => Self::http(http),
        };
        probe.validate().map_err(|_| invalid())?;
        Ok(probe)
    }
}

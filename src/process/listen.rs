//! `Listen`: where a child listens.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use super::{address::Address, command::Invalid};

/// Longest path of a Unix socket that every system takes, in bytes.
const LONGEST_PATH: usize = 103;

/// Where a child listens, and who opens the socket.
///
/// | | the child listens on | it learns of it by | as text |
/// |---|---|---|---|
/// | [`free_port`](Self::free_port) | a loopback port that was free at its start | `{port}` | `port` |
/// | [`port`](Self::port) | always the same loopback port | `{port}`, or by itself | `port:8080` |
/// | [`unix`](Self::unix) | a socket in a private directory, new at each start | `{socket}` | `unix` |
/// | [`unix_at`](Self::unix_at) | always the same socket | `{socket}`, or by itself | `unix:/run/x.sock` |
///
/// Choose [`unix`](Self::unix) for programs that can: there is no port to be stolen. A free port
/// can be taken by somebody else between its choice and the child's `bind`; then another is tried,
/// and the stranger is not mistaken for the child. [`handed`](Self::handed) has no such gap: the
/// host opens the socket and the child inherits it, by systemd's protocol (`handed:port`,
/// `handed:unix:/run/x.sock` …).
///
/// ```
/// use tower_on_demand::process::Listen;
///
/// assert_eq!("handed:port".parse(), Ok(Listen::free_port().handed()));
/// assert!("port:http".parse::<Listen>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    pub(super) place: Place,
    handed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    Port(Option<u16>),
    Unix(Option<PathBuf>),
}

impl Listen {
    const fn at(place: Place) -> Self {
        Self {
            place,
            handed: false,
        }
    }

    /// On a loopback port that is free at its start.
    pub const fn free_port() -> Self {
        Self::at(Place::Port(None))
    }

    /// On the loopback port `port`. While somebody else has it, starts fail and say who.
    pub const fn port(port: u16) -> Self {
        Self::at(Place::Port(Some(port)))
    }

    /// On a Unix socket in a directory of its own, which only this user can enter.
    pub const fn unix() -> Self {
        Self::at(Place::Unix(None))
    }

    /// On the Unix socket `path`. A stale socket there is removed; while somebody listens on it,
    /// starts fail and say so.
    pub fn unix_at(path: impl Into<PathBuf>) -> Self {
        Self::at(Place::Unix(Some(path.into())))
    }

    /// The host opens the socket, and the child inherits it as file descriptor 3: systemd's
    /// socket activation, with `LISTEN_FDS=1` and `LISTEN_PID` the child's own.
    ///
    /// The program is started through `sh`, which the protocol needs: only the child knows its own
    /// pid. The host keeps no copy of the socket.
    #[must_use]
    pub fn handed(mut self) -> Self {
        self.handed = true;
        self
    }

    pub(super) const fn is_handed(&self) -> bool {
        self.handed
    }

    pub(super) const fn is_unix(&self) -> bool {
        matches!(self.place, Place::Unix(_))
    }

    /// The place is chosen at each start and handed over by a placeholder.
    pub(super) const fn must_be_told(&self) -> bool {
        !self.handed && matches!(self.place, Place::Port(None) | Place::Unix(None))
    }

    /// The address, if it is always the same.
    pub(super) fn always(&self) -> Option<Address> {
        match &self.place {
            Place::Port(Some(port)) => Some(Address::port(*port)),
            Place::Unix(Some(path)) => Some(Address::path(path)),
            Place::Port(None) | Place::Unix(None) => None,
        }
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        match &self.place {
            Place::Port(Some(0)) => Err(Invalid(
                "port 0 is no port: listen on `port` for one that is free".into(),
            )),
            Place::Unix(Some(path)) => check_path(path),
            Place::Port(_) | Place::Unix(None) => Ok(()),
        }
    }
}

pub(super) fn check_path(path: &Path) -> Result<(), Invalid> {
    let length = path.as_os_str().len();
    if length == 0 {
        return Err(Invalid("the path of the socket is empty".into()));
    }
    if path.as_os_str().as_encoded_bytes().contains(&0) {
        return Err(Invalid("the path of the socket contains a NUL byte".into()));
    }
    if length > LONGEST_PATH {
        return Err(Invalid(format!(
            "the path of the socket has {length} bytes, more than the {LONGEST_PATH} it may have: {}",
            path.display()
        )));
    }
    Ok(())
}

/// As [`FromStr`] reads it.
impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.handed {
            f.write_str("handed:")?;
        }
        match &self.place {
            Place::Port(None) => f.write_str("port"),
            Place::Port(Some(port)) => write!(f, "port:{port}"),
            Place::Unix(None) => f.write_str("unix"),
            Place::Unix(Some(path)) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Listen {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let (handed, place) = match text.strip_prefix("handed:") {
            Some(place) => (true, place),
            None => (false, text),
        };
        let listen = match place.split_once(':') {
            None if place == "port" => Self::free_port(),
            None if place == "unix" => Self::unix(),
            Some(("port", port)) => Self::port(port.parse().map_err(|_| {
                Invalid(format!(
                    "listen = {text:?}: {port:?} is no port, a number from 1 to 65535"
                ))
            })?),
            Some(("unix", path)) => Self::unix_at(path),
            _ => {
                return Err(Invalid(format!(
                    "listen = {text:?}: expected `port`, `port:NUMBER`, `unix`, `unix:PATH`, \
                     or one of them after `handed:`"
                )));
            }
        };
        listen.validate()?;
        Ok(Self { handed, ..listen })
    }
}

//! Where one instance listens: chosen before its start, kept while it is there.

use std::{
    collections::BTreeSet,
    fs, io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::{
        fd::OwnedFd,
        unix::{
            fs::FileTypeExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::Path,
    sync::Arc,
};

use tempfile::TempDir;

use super::{
    address::Address,
    listen::{Listen, Place, check_path},
};
use crate::sync::{Mutex, lock};

/// Ports of our own children, chosen and perhaps not bound yet.
static PORTS: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Runs `f` while no child of ours is between its fork and its exec.
///
/// Such a child has copies of all open sockets, those that are just being closed as well: a port that
/// was bound to see whether it is free would still be taken.
pub(super) fn between_forks<R>(f: impl FnOnce() -> R) -> R {
    static FORK: Mutex<()> = Mutex::new(());
    let _alone = lock(&FORK);
    f()
}

/// An address, and what it takes. Dropping it gives that back.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) address: Address,
    _port: Option<Reserved>,
    _socket: Option<Socket>,
}

/// What a child is started with.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) held: Held,
    /// The socket it inherits.
    pub(super) inherits: Option<OwnedFd>,
}

#[derive(Debug)]
struct Reserved(u16);

impl Drop for Reserved {
    fn drop(&mut self) {
        lock(&PORTS).remove(&self.0);
    }
}

/// The file of a Unix socket.
#[derive(Debug)]
struct Socket {
    path: Arc<Path>,
    /// Removed with all that is in it.
    _dir: Option<TempDir>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Why there is no place to listen, in words.
#[derive(Debug)]
pub(super) struct NoPlace {
    pub(super) what: String,
    pub(super) source: Option<io::Error>,
}

impl Prepared {
    pub(super) fn new(listen: &Listen) -> Result<Self, NoPlace> {
        between_forks(|| match &listen.place {
            Place::Port(port) => Self::port(*port, listen.is_handed()),
            Place::Unix(_) => Self::unix(listen),
        })
    }

    fn port(port: Option<u16>, handed: bool) -> Result<Self, NoPlace> {
        let (listener, reserved) = match port {
            Some(port) => (bind(port).map_err(|error| taken(port, error))?, None),
            None => {
                let (listener, reserved) = free_port().map_err(|error| NoPlace {
                    what: "no loopback port could be had".to_owned(),
                    source: Some(error),
                })?;
                (listener, Some(reserved))
            }
        };
        let address = listener.local_addr().map_err(|error| NoPlace {
            what: "the socket has no address".to_owned(),
            source: Some(error),
        })?;
        Ok(Self {
            held: Held {
                address: Address::Tcp(address),
                _port: reserved,
                _socket: None,
            },
            inherits: handed.then(|| listener.into()),
        })
    }

    fn unix(listen: &Listen) -> Result<Self, NoPlace> {
        let (path, dir): (Arc<Path>, _) = match listen.always() {
            Some(Address::Unix(path)) => {
                clear(&path)?;
                (path, None)
            }
            _ => {
                let dir = private_dir()?;
                (dir.path().join("socket").into(), Some(dir))
            }
        };
        check_path(&path).map_err(|invalid| NoPlace {
            what: invalid.to_string(),
            source: None,
        })?;
        let socket = Socket {
            path: path.clone(),
            _dir: dir,
        };
        let inherits = match listen.is_handed() {
            true => {
                let listener = UnixListener::bind(&path).map_err(|error| NoPlace {
                    what: format!("the socket {} could not be opened", path.display()),
                    source: Some(error),
                })?;
                Some(listener.into())
            }
            false => None,
        };
        Ok(Self {
            held: Held {
                address: Address::Unix(path),
                _port: None,
                _socket: Some(socket),
            },
            inherits,
        })
    }
}

fn bind(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

/// Whether somebody has the port.
pub(super) fn is_taken(address: &Address) -> bool {
    match address {
        Address::Tcp(address) => {
            let bound = between_forks(|| bind(address.port()).map(drop));
            matches!(bound, Err(error) if error.kind() == io::ErrorKind::AddrInUse)
        }
        Address::Unix(_) => false,
    }
}

fn taken(port: u16, error: io::Error) -> NoPlace {
    if error.kind() != io::ErrorKind::AddrInUse {
        return NoPlace {
            what: format!("port {port} cannot be listened on"),
            source: Some(error),
        };
    }
    NoPlace {
        what: format!("port {port} is in use{}", by_whom(&Address::port(port))),
        source: None,
    }
}

/// ` by NAME (pid N)`, where that is known.
fn by_whom(address: &Address) -> String {
    #[cfg(target_os = "linux")]
    if let Some(holder) = super::linux::listener(address) {
        return format!(" by {holder}");
    }
    let _ = address;
    String::new()
}

fn free_port() -> io::Result<(TcpListener, Reserved)> {
    let mut tries = 0;
    loop {
        let listener = bind(0)?;
        let port = listener.local_addr()?.port();
        tries += 1;
        if lock(&PORTS).insert(port) {
            return Ok((listener, Reserved(port)));
        }
        if tries == 100 {
            return Err(io::ErrorKind::AddrInUse.into());
        }
    }
}

/// A directory for one socket. Not in `TMPDIR` if that makes the path too long.
fn private_dir() -> Result<TempDir, NoPlace> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("on-demand-");
    let made = builder.tempdir();
    let short = |dir: &TempDir| check_path(&dir.path().join("socket")).is_ok();
    match made {
        Ok(dir) if short(&dir) => Ok(dir),
        _ => builder.tempdir_in("/tmp").map_err(|error| NoPlace {
            what: "no directory for its socket could be made".to_owned(),
            source: Some(error),
        }),
    }
}

/// Removes a socket that nobody listens on any more.
fn clear(path: &Path) -> Result<(), NoPlace> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
            return match parent {
                Some(dir) if !dir.is_dir() => Err(NoPlace {
                    what: format!(
                        "the directory of its socket, {}, does not exist",
                        dir.display()
                    ),
                    source: None,
                }),
                _ => Ok(()),
            };
        }
        Err(error) => {
            return Err(NoPlace {
                what: format!("the socket {} cannot be looked at", path.display()),
                source: Some(error),
            });
        }
    };
    if !found.file_type().is_socket() {
        return Err(NoPlace {
            what: format!("{} exists and is no socket", path.display()),
            source: None,
        });
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(|error| NoPlace {
                what: format!("the stale socket {} cannot be removed", path.display()),
                source: Some(error),
            }),
        _ => {
            let whose = by_whom(&Address::Unix(path.into()));
            Err(NoPlace {
                what: format!("the socket {} is in use{whose}", path.display()),
                source: None,
            })
        }
    }
}

//! Loopback ports: free ones, and the ones that a data folder keeps.
//!
//! Ports are taken from *below* the range from which the kernel serves outgoing
//! connections. A port from inside that range may be free when a server is stopped
//! and lent to some connection when the server wants it back.

use std::{
    env,
    fs::{self, File, TryLockError},
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    ops::RangeInclusive,
    path::Path,
    sync::{Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};

use crate::{Error, Ports, random};

/// How many random ports are tried before giving up.
const TRIES: usize = 200;

/// The server that a port belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Postgres,
    Nats,
    Redis,
    PgBouncer,
}

/// A port, and whether losing it to another program is an error or bad luck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    /// Fixed by the caller or by an earlier start: others rely on this number.
    Kept(u16),
    /// Chosen just now: another one is as good.
    Fresh(u16),
}

/// The content of `ports.toml`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stored {
    postgres: Option<u16>,
    nats: Option<u16>,
    redis: Option<u16>,
    pgbouncer: Option<u16>,
}

/// The ports that this process was given.
static TAKEN: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// A random loopback port that nobody listens on, below the ephemeral range. While this process lives
/// nobody else is given it here: whoever is to listen may take a while until it does.
pub fn free_port() -> Result<u16, Error> {
    let range = range();
    let width = u64::from(range.end() - range.start()) + 1;
    for _ in 0..TRIES {
        let offset = u64::from_ne_bytes(random::bytes()?) % width;
        let Ok(offset) = u16::try_from(offset) else {
            continue;
        };
        let port = range.start() + offset;
        if is_free(port) && take(port) {
            return Ok(port);
        }
    }
    Err(Error::NoPort {
        low: *range.start(),
        high: *range.end(),
    })
}

/// Keeps the port from everybody else who asks, until this process ends. `false`: somebody has it.
fn take(port: u16) -> bool {
    let folder = env::temp_dir().join("tasuki-ports");
    let mark = fs::create_dir_all(&folder).and_then(|()| {
        let path = folder.join(port.to_string());
        File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
    });
    // Without a place for marks chance decides, as it does among other programs.
    let Ok(mark) = mark else { return true };
    match mark.try_lock() {
        Ok(()) => {
            let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
            taken.push(mark);
            true
        }
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => true,
    }
}

/// Whether a server could listen on the port right now.
pub(crate) fn is_free(port: u16) -> bool {
    // std sets SO_REUSEADDR, as the servers do, so old connections don't count.
    match TcpListener::bind(loopback(port)) {
        Ok(_) => true,
        Err(error) => error.kind() != io::ErrorKind::AddrInUse,
    }
}

/// The loopback address with the port.
pub(crate) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

impl Port {
    pub(crate) fn number(self) -> u16 {
        match self {
            Self::Kept(port) | Self::Fresh(port) => port,
        }
    }
}

impl Stored {
    /// Reads the file of a folder; a missing one is empty.
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(Error::folder(path)(error)),
        };
        toml::from_str(&text).map_err(|error| Error::Damaged {
            path: path.to_owned(),
            why: error.message().to_owned(),
        })
    }

    /// The port that `owner` is to use: fixed, else kept, else a fresh one.
    pub(crate) fn choose(&self, owner: Owner, fixed: Ports) -> Result<Port, Error> {
        let (fixed, kept) = match owner {
            Owner::Postgres => (fixed.postgres, self.postgres),
            Owner::Nats => (fixed.nats, self.nats),
            Owner::Redis => (fixed.redis, self.redis),
            Owner::PgBouncer => (None, self.pgbouncer),
        };
        match fixed.or(kept) {
            Some(port) => Ok(Port::Kept(port)),
            None => free_port().map(Port::Fresh),
        }
    }

    /// Remembers the port of `owner`.
    pub(crate) fn set(&mut self, owner: Owner, port: u16) {
        *self.place(owner) = Some(port);
    }

    /// Forgets the port of `owner`.
    pub(crate) fn clear(&mut self, owner: Owner) {
        *self.place(owner) = None;
    }

    /// Writes the file of a folder.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Error> {
        let text = toml::to_string(self).map_err(|error| Error::Damaged {
            path: path.to_owned(),
            why: error.to_string(),
        })?;
        // A crash in the middle must not leave half a file: write beside it, then rename.
        let beside = path.with_extension("toml.new");
        fs::write(&beside, text)
            .and_then(|()| fs::rename(&beside, path))
            .map_err(Error::folder(path))
    }

    fn place(&mut self, owner: Owner) -> &mut Option<u16> {
        match owner {
            Owner::Postgres => &mut self.postgres,
            Owner::Nats => &mut self.nats,
            Owner::Redis => &mut self.redis,
            Owner::PgBouncer => &mut self.pgbouncer,
        }
    }
}

fn range() -> RangeInclusive<u16> {
    const LOW: u16 = 20_000;
    const HIGH: u16 = 32_000;
    let ephemeral = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse::<u16>().ok());
    match ephemeral {
        Some(first) if first > LOW + 1_000 => LOW..=HIGH.min(first - 1),
        // The kernel lends nearly every port: there is no better place.
        Some(_) | None => LOW..=HIGH,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_can_be_bound_and_is_not_ephemeral() {
        let port = free_port().unwrap();

        assert!(range().contains(&port));
        let taken = TcpListener::bind(loopback(port)).unwrap();
        assert!(!is_free(port));
        drop(taken);
        assert!(is_free(port));
    }

    #[test]
    fn a_port_is_given_to_one_who_asks() {
        let port = free_port().unwrap();
        assert!(is_free(port), "nobody listens yet");
        assert!(!take(port));
    }

    #[test]
    fn a_fixed_port_wins_over_a_kept_one_and_a_kept_one_over_chance() {
        let mut stored = Stored::default();
        let fixed = Ports {
            nats: Some(4),
            ..Ports::default()
        };

        assert!(matches!(
            stored.choose(Owner::Nats, Ports::default()).unwrap(),
            Port::Fresh(_)
        ));
        stored.set(Owner::Nats, 5);
        assert_eq!(
            stored.choose(Owner::Nats, Ports::default()).unwrap(),
            Port::Kept(5)
        );
        assert_eq!(stored.choose(Owner::Nats, fixed).unwrap(), Port::Kept(4));
    }
}

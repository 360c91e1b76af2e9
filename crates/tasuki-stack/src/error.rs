//! The one error of this crate. Each message is a sentence for the person at the
//! terminal: what is wrong, where, and what to do about it.

use std::{io, path::PathBuf, time::Duration};

/// Why a private stack, a server of it or a tool that breaks it could not do as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A server's program is not on this machine.
    #[error(
        "{binary} is missing: version {needed} or newer is needed, run `scripts/setup` to install it"
    )]
    Missing {
        /// The program that was looked for.
        binary: &'static str,
        /// The oldest version that will do.
        needed: String,
    },
    /// A server's program is there, but too old.
    #[error(
        "{binary} is too old: {} is version {found}, but {needed} or newer is needed, run `scripts/setup` to install it",
        path.display()
    )]
    TooOld {
        /// The program that was looked for.
        binary: &'static str,
        /// Where the newest one was found.
        path: PathBuf,
        /// Its version.
        found: String,
        /// The oldest version that will do.
        needed: String,
    },
    /// Another process holds the data folder.
    #[error(
        "the data folder {} is in use by process {pid}: stop that process or choose another folder",
        dir.display()
    )]
    Locked {
        /// The folder.
        dir: PathBuf,
        /// What the lock file says about its holder.
        pid: String,
    },
    /// The data folder can't be made, read or written.
    #[error(
        "the data folder can't be used, because of {} ({}): make it writable or choose another folder",
        path.display(),
        reason(source)
    )]
    Folder {
        /// The file or folder that failed.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file of the data folder does not say what it should.
    #[error("{} is damaged ({why}): correct it, or remove it to have it made again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A folder that was not made by this crate would have been wiped.
    #[error(
        "{} is not empty and was not made by a private stack, so it is not wiped: choose another folder",
        dir.display()
    )]
    NotOurs {
        /// The folder.
        dir: PathBuf,
    },
    /// The user that PostgreSQL runs as can't reach the data folder.
    #[error(
        "user {user}, who runs PostgreSQL because root may not, can't reach {}: choose a data folder below directories that others may enter (mode o+x)",
        dir.display()
    )]
    Unreachable {
        /// The unprivileged user.
        user: String,
        /// The folder.
        dir: PathBuf,
    },
    /// Root has no unprivileged user to run PostgreSQL as.
    #[error(
        "PostgreSQL must not run as root, and neither user `postgres` nor user `nobody` exists: create one of them"
    )]
    NoUser,
    /// The port of a server is held by something else.
    #[error(
        "port {port} of {server} is taken by another program: stop that program, or choose another port for {server}"
    )]
    PortTaken {
        /// The server that wanted it.
        server: &'static str,
        /// The port.
        port: u16,
    },
    /// No port is free.
    #[error("no loopback port between {low} and {high} is free")]
    NoPort {
        /// The lowest port that was tried.
        low: u16,
        /// The highest port that was tried.
        high: u16,
    },
    /// A program could not be started at all.
    #[error("{program} could not be started: {source}")]
    Spawn {
        /// The program.
        program: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A server or a helper ended by itself while it should have come up.
    #[error("{server} ended while it was starting ({status}); the end of its log {}:\n{tail}", log.display())]
    Died {
        /// The server or helper.
        server: &'static str,
        /// Its exit status.
        status: String,
        /// Its log file.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// A server runs, but does not answer as it should before the deadline.
    #[error("{server} was not ready after {waited:?}: {why}; its log is {}", log.display())]
    NotReady {
        /// The server.
        server: &'static str,
        /// How long was waited.
        waited: Duration,
        /// What it last answered.
        why: String,
        /// Its log file.
        log: PathBuf,
    },
    /// A server is not running, so there is nothing to signal.
    #[error("{server} is not running")]
    NotRunning {
        /// The server.
        server: &'static str,
    },
    /// The processes of a server did not reach the asked state.
    #[error("{server} could not be {done} within {waited:?}")]
    Signal {
        /// The server.
        server: &'static str,
        /// The state, as a participle: stopped, killed, paused, resumed.
        done: &'static str,
        /// How long was waited.
        waited: Duration,
    },
    /// A request to a server that should have worked did not.
    #[error("{server} refused to {what}: {why}")]
    Refused {
        /// The server.
        server: &'static str,
        /// What was asked.
        what: &'static str,
        /// What it answered.
        why: String,
    },
    /// A proxy could not be set up or changed.
    #[error("the proxy to port {port} failed")]
    Proxy {
        /// The port that it leads to.
        port: u16,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Turns an I/O error at `path` into one that names it; for `map_err`.
    pub(crate) fn folder(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Folder {
            path: path.into(),
            source,
        }
    }
}

/// The plain words of an I/O error, without its number.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((plain, _)) => plain.to_lowercase(),
        None => text,
    }
}

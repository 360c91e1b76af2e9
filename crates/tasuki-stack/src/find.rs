//! Finds the servers' programs and their versions on this machine.
//!
//! The first one that is new enough wins, in this order: the project's own tools,
//! the PATH, and the places where Debian hides PostgreSQL and PgBouncer.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{process::Command, time::timeout};

use crate::{Error, Options};

/// A program that takes longer to say its version is not a server.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where Debian puts servers, and where only root's PATH leads.
const SYSTEM: &str = "/usr/sbin";

/// A kind of program, and the oldest version that will do.
#[derive(Debug)]
pub(crate) struct Wanted {
    binary: &'static str,
    /// The folder of the project's tools that holds it.
    package: &'static str,
    needed: Version,
    /// A folder with one folder per version, each with a `bin`.
    versions: Option<&'static str>,
}

pub(crate) const POSTGRES: Wanted = Wanted {
    binary: "postgres",
    package: "postgresql",
    needed: Version(15, 0, 0),
    versions: Some("/usr/lib/postgresql"),
};

pub(crate) const NATS: Wanted = Wanted {
    binary: "nats-server",
    package: "nats",
    needed: Version(2, 10, 0),
    versions: None,
};

pub(crate) const REDIS: Wanted = Wanted {
    binary: "redis-server",
    package: "redis",
    needed: Version(7, 0, 0),
    versions: None,
};

pub(crate) const PGBOUNCER: Wanted = Wanted {
    binary: "pgbouncer",
    package: "pgbouncer",
    needed: Version(1, 18, 0),
    versions: None,
};

/// A program that will do.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    pub(crate) version: String,
}

/// Major, minor, patch; what a program leaves out is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32, u32);

/// Finds a program that is new enough.
pub(crate) async fn find(wanted: &Wanted, options: &Options) -> Result<Found, Error> {
    let mut best: Option<(Version, PathBuf, String)> = None;
    for path in candidates(wanted, options) {
        let Some((version, text)) = ask(&path).await else {
            continue;
        };
        if version >= wanted.needed {
            return Ok(Found {
                path,
                version: text,
            });
        }
        if best.as_ref().is_none_or(|(other, ..)| *other < version) {
            best = Some((version, path, text));
        }
    }
    let needed = wanted.needed.to_string();
    Err(match best {
        Some((_, path, found)) => Error::TooOld {
            binary: wanted.binary,
            path,
            found,
            needed,
        },
        None => Error::Missing {
            binary: wanted.binary,
            needed,
        },
    })
}

fn candidates(wanted: &Wanted, options: &Options) -> Vec<PathBuf> {
    let tools = tools(&options.tools).into_iter().flat_map(|tools| {
        let package = tools.join(wanted.package);
        [package.join("bin"), package, tools.join("bin"), tools]
    });
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let versions = wanted.versions.map(newest_first).unwrap_or_default();
    tools
        .chain(path)
        .chain(versions)
        .chain([PathBuf::from(SYSTEM)])
        .map(|dir| dir.join(wanted.binary))
        // Links are not resolved: Redis is one file that looks at the name it is called by.
        .filter_map(|path| std::path::absolute(path).ok())
        .filter(|path| path.is_file())
        .collect()
}

/// The folder of the project's tools; a relative one is looked for upwards.
fn tools(tools: &Path) -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    here.ancestors()
        .map(|dir| dir.join(tools))
        .find(|dir| dir.is_dir())
}

fn newest_first(root: &str) -> Vec<PathBuf> {
    let mut versions: Vec<(Version, PathBuf)> = fs::read_dir(root)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let (version, _) = parse(entry.file_name().to_str()?)?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort();
    versions.into_iter().rev().map(|(_, dir)| dir).collect()
}

async fn ask(path: &Path) -> Option<(Version, String)> {
    let output = Command::new(path)
        .arg("--version")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(PATIENCE, output).await.ok()?.ok()?;
    parse(&String::from_utf8_lossy(&output.stdout))
}

/// The first number in the text, as in `nats-server: v2.15.1` or `Redis server v=7.0.15 sha=…`.
fn parse(text: &str) -> Option<(Version, String)> {
    let start = text.find(|letter: char| letter.is_ascii_digit())?;
    let number: String = text
        .get(start..)?
        .chars()
        .take_while(|letter| letter.is_ascii_digit() || *letter == '.')
        .collect();
    let number = number.trim_end_matches('.').to_owned();
    let mut parts = number.split('.').map_while(|part| part.parse().ok());
    let version = Version(
        parts.next()?,
        parts.next().unwrap_or(0),
        parts.next().unwrap_or(0),
    );
    Some((version, number))
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(major, minor, _) = self;
        match minor {
            0 => write!(f, "{major}"),
            minor => write!(f, "{major}.{minor}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_says_its_version_in_its_own_way() {
        let parsed = |text| parse(text).unwrap();

        assert_eq!(
            parsed("postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)"),
            (Version(15, 13, 0), "15.13".to_owned())
        );
        assert_eq!(
            parsed("nats-server: v2.15.1"),
            (Version(2, 15, 1), "2.15.1".to_owned())
        );
        assert_eq!(
            parsed("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0"),
            (Version(7, 0, 15), "7.0.15".to_owned())
        );
        assert_eq!(
            parsed("PgBouncer 1.18.0\nlibevent 2.1.12-stable"),
            (Version(1, 18, 0), "1.18.0".to_owned())
        );
        assert_eq!(parsed("postgres (PostgreSQL) 18beta1").0, Version(18, 0, 0));
        assert!(parse("command not found").is_none());
    }
}

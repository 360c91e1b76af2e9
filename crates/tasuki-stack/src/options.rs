//! What a caller can choose about a stack.

use std::path::{Path, PathBuf};

/// Where a stack lives and how it is set up.
///
/// ```
/// use tasuki_stack::{Options, Ports};
///
/// let options = Options::new(".tasuki/run")
///     .durable()
///     .ports(Ports { postgres: Some(25432), ..Ports::default() });
/// # drop(options);
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) dir: PathBuf,
    pub(crate) tools: PathBuf,
    pub(crate) ports: Ports,
    pub(crate) durability: Durability,
    pub(crate) lifetime: Lifetime,
    pub(crate) wipe: bool,
}

/// Ports that are fixed by the caller; what is `None` is chosen at the first start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// The port of PostgreSQL.
    pub postgres: Option<u16>,
    /// The client port of NATS.
    pub nats: Option<u16>,
    /// The port of Redis.
    pub redis: Option<u16>,
}

/// What survives a crash of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Everything that was acknowledged; servers ask for a password.
    Durable,
    /// Perhaps nothing: for tests that never look behind a crash of the machine.
    Fast,
}

/// What becomes of the data when the stack ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// The next start finds it again.
    Kept,
    /// The folder is removed when its last server is stopped or dropped.
    Throwaway,
}

impl Options {
    /// A stack with its data in `dir`, fast settings and free ports; the data is kept.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            tools: PathBuf::from(".tasuki/tools"),
            ports: Ports::default(),
            durability: Durability::Fast,
            lifetime: Lifetime::Kept,
            wipe: false,
        }
    }

    /// Everything that was acknowledged survives a crash; servers ask for a password.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durability = Durability::Durable;
        self
    }

    /// No waiting for the disk: for ordinary tests. This is the default.
    #[must_use]
    pub fn fast(mut self) -> Self {
        self.durability = Durability::Fast;
        self
    }

    /// The folder with servers that were installed for this project alone.
    /// The default `.tasuki/tools`, like any relative path, is also looked for in
    /// the parents of the current directory, because tests run inside a package.
    #[must_use]
    pub fn tools(mut self, dir: impl Into<PathBuf>) -> Self {
        self.tools = dir.into();
        self
    }

    /// Fixes ports instead of choosing free ones.
    #[must_use]
    pub fn ports(mut self, ports: Ports) -> Self {
        self.ports = ports;
        self
    }

    /// Removes the folder when the last server of the stack is stopped or dropped.
    #[must_use]
    pub fn throwaway(mut self) -> Self {
        self.lifetime = Lifetime::Throwaway;
        self
    }

    /// Removes what an earlier stack left in the folder before the start. A folder
    /// with other things in it is refused, not wiped.
    #[must_use]
    pub fn wiped(mut self) -> Self {
        self.wipe = true;
        self
    }

    /// The data folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The same choices for another folder; ports are not taken along.
    #[must_use]
    pub(crate) fn elsewhere(&self, dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            ports: Ports::default(),
            ..self.clone()
        }
    }
}

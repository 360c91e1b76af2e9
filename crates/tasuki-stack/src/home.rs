//! The data folder of a stack: who holds it, its ports and its passwords.
//!
//! ```text
//! <dir>/lock            held while the stack runs; says whose process it is
//! <dir>/ports.toml      chosen at the first start, used again at the next
//! <dir>/secrets.toml    passwords, for the owner's eyes only
//! <dir>/postgres/  nats/  redis/         data
//! <dir>/postgres.log  nats.log  redis.log
//! ```
//!
//! Invariant: a process that belongs to the folder runs only while the lock is held.
//! What a killed owner left behind is therefore ours to end, which [`Home::claim`] does.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::{
    Error, Options,
    options::{Durability, Lifetime},
    port::{Owner, Port, Stored},
    postgres,
    process::{self, Spawner},
    procfs, random,
};

const LOCK: &str = "lock";
const SECRETS: &str = "secrets.toml";

/// How long the servers of a killed owner may take to vanish.
const LEFTOVER_DEADLINE: Duration = Duration::from_secs(10);

/// A folder that is held by this process until it is dropped.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) options: Options,
    pub(crate) secrets: Secrets,
    pub(crate) spawner: Spawner,
    dir: PathBuf,
    name: String,
    ports: Mutex<Stored>,
    throwaway: AtomicBool,
    lock: File,
}

/// The passwords of the servers.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Secrets {
    pub(crate) postgres: String,
    pub(crate) nats: String,
    pub(crate) nats_system: String,
    pub(crate) redis: String,
}

impl Home {
    /// Takes hold of the folder, and ends what a killed owner left running in it.
    pub(crate) async fn claim(options: &Options) -> Result<Self, Error> {
        Self::adopt(options, None).await
    }

    /// The same with the passwords of another stack, for a folder that will hold a copy of it.
    pub(crate) async fn adopt(options: &Options, secrets: Option<&Secrets>) -> Result<Self, Error> {
        let dir = make(&options.dir)?;
        let known = dir.join(LOCK).exists();
        if options.wipe && !known && !is_empty(&dir)? {
            return Err(Error::NotOurs { dir });
        }
        let lock = lock(&dir)?;
        end_leftovers(&dir).await?;
        if options.wipe {
            wipe(&dir)?;
        }
        let file = dir.join(SECRETS);
        if let Some(secrets) = secrets {
            secrets.save(&file)?;
        }
        let secrets = Secrets::load(&file)?;
        let ports = Mutex::new(Stored::read(&dir.join("ports.toml"))?);
        Ok(Self {
            options: options.clone(),
            secrets,
            spawner: Spawner::start()?,
            name: name(&dir),
            dir,
            ports,
            throwaway: AtomicBool::new(options.lifetime == Lifetime::Throwaway),
            lock,
        })
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.join(name)
    }

    /// A name that no other folder on this machine has.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The mark of this owner's processes: another one has another process id.
    pub(crate) fn mark(&self) -> String {
        format!("{}-{}", self.name, std::process::id())
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.options.durability == Durability::Durable
    }

    pub(crate) fn is_throwaway(&self) -> bool {
        self.throwaway.load(Ordering::Relaxed)
    }

    /// Makes it a folder that is removed at the end, after all.
    pub(crate) fn discard(&self) {
        self.throwaway.store(true, Ordering::Relaxed);
    }

    /// The port for a server: the fixed one, else the kept one, else a fresh one, which is kept.
    pub(crate) fn port(&self, owner: Owner) -> Result<Port, Error> {
        let mut stored = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        let port = stored.choose(owner, self.options.ports)?;
        stored.set(owner, port.number());
        stored.write(&self.path("ports.toml"))?;
        Ok(port)
    }

    /// Forgets a fresh port that was lost to another program.
    pub(crate) fn forget_port(&self, owner: Owner) {
        let mut stored = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        stored.clear(owner);
    }

    /// Makes a folder in this one.
    pub(crate) fn make(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.path(name);
        fs::create_dir_all(&path).map_err(Error::folder(&path))?;
        Ok(path)
    }

    /// Writes a file that may hold passwords.
    pub(crate) fn write_private(&self, name: &str, text: &str) -> Result<PathBuf, Error> {
        let path = self.path(name);
        write_private(&path, text)?;
        Ok(path)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.is_throwaway() {
            postgres::release_memory(&self.path(postgres::DATA));
            if let Err(error) = fs::remove_dir_all(&self.dir) {
                tracing::warn!(dir = %self.dir.display(), %error, "throwaway folder not removed");
            }
        }
        // Closing the file is not enough: a child that is just being started by another
        // thread has a copy of it for a moment.
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(dir = %self.dir.display(), %error, "lock not released");
        }
    }
}

impl Secrets {
    fn load(path: &Path) -> Result<Self, Error> {
        match fs::read_to_string(path) {
            Ok(text) => toml::from_str(&text).map_err(|error| Error::Damaged {
                path: path.to_owned(),
                why: error.message().to_owned(),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let secrets = Self {
                    postgres: random::password()?,
                    nats: random::password()?,
                    nats_system: random::password()?,
                    redis: random::password()?,
                };
                secrets.save(path)?;
                Ok(secrets)
            }
            Err(error) => Err(Error::folder(path)(error)),
        }
    }

    fn save(&self, path: &Path) -> Result<(), Error> {
        let text = toml::to_string(self).map_err(|error| Error::Damaged {
            path: path.to_owned(),
            why: error.to_string(),
        })?;
        // A crash in the middle must not leave half a file: write beside it, then rename.
        let beside = path.with_extension("toml.new");
        write_private(&beside, &text)?;
        fs::rename(&beside, path).map_err(Error::folder(path))
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets(…)")
    }
}

fn make(dir: &Path) -> Result<PathBuf, Error> {
    fs::create_dir_all(dir).map_err(Error::folder(dir))?;
    let dir = dir.canonicalize().map_err(Error::folder(dir))?;
    if dir.to_str().is_none() {
        // The servers' configuration files could not name it.
        let source = io::Error::other("its name is not valid UTF-8");
        return Err(Error::Folder { path: dir, source });
    }
    Ok(dir)
}

fn is_empty(dir: &Path) -> Result<bool, Error> {
    let mut entries = fs::read_dir(dir).map_err(Error::folder(dir))?;
    Ok(entries.next().is_none())
}

fn lock(dir: &Path) -> Result<File, Error> {
    let path = dir.join(LOCK);
    let mut file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path)
        .map_err(Error::folder(&path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            file.read_to_string(&mut pid)
                .map_err(Error::folder(&path))?;
            return Err(Error::Locked {
                dir: dir.to_owned(),
                pid: pid.trim().to_owned(),
            });
        }
        Err(TryLockError::Error(error)) => return Err(Error::folder(path)(error)),
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(Error::folder(path))?;
    Ok(file)
}

/// Ends the servers that still run on the folder although nobody holds it: their
/// owner was killed a moment ago, or a busy backend has not noticed yet.
async fn end_leftovers(dir: &Path) -> Result<(), Error> {
    let title = format!("postgres: {}-", name(dir));
    let data = format!("\0{}\0", dir.join(postgres::DATA).display());
    let nats = format!("\0{}", dir.join("nats").display());
    let redis = format!("{}", dir.join("redis.conf").display());
    let gone = process::until(LEFTOVER_DEADLINE, || {
        let left = [
            procfs::find("postgres", &[&title, &data]),
            procfs::find("nats-server", &[&nats]),
            procfs::find("redis-server", &[&redis]),
        ]
        .concat();
        for pid in &left {
            tracing::debug!(pid, "ending a server that its owner left behind");
            procfs::signal(*pid, Signal::KILL);
        }
        left.is_empty()
    });
    if gone.await {
        return Ok(());
    }
    Err(Error::Signal {
        server: "what an earlier stack left behind",
        done: "killed",
        waited: LEFTOVER_DEADLINE,
    })
}

fn wipe(dir: &Path) -> Result<(), Error> {
    postgres::release_memory(&dir.join(postgres::DATA));
    for entry in fs::read_dir(dir).map_err(Error::folder(dir))? {
        let path = entry.map_err(Error::folder(dir))?.path();
        if path.file_name() == Some(LOCK.as_ref()) {
            continue;
        }
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(&path).map_err(Error::folder(&path))?;
        } else {
            fs::remove_file(&path).map_err(Error::folder(&path))?;
        }
    }
    Ok(())
}

fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    let mut file = File::options()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(Error::folder(path))?;
    // The mode above counts only for a new file.
    file.set_permissions(fs::Permissions::from_mode(0o600))
        .and_then(|()| file.write_all(text.as_bytes()))
        .map_err(Error::folder(path))
}

/// A short name for a folder: FNV-1a over its path, the same in every build.
fn name(dir: &Path) -> String {
    let hash = dir
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("tasuki-{hash:016x}")
}

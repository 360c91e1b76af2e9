//! One `tasuki up` per run folder: who holds it may write its log and `env`.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::private_file;

/// The run folder, held until this is dropped; `env` goes with it.
#[derive(Debug)]
pub(super) struct Claim {
    env: PathBuf,
    // The lock is released when the file is closed, also by a crash.
    _lock: File,
}

impl Claim {
    /// Takes hold of the folder, and removes what a killed predecessor left in it.
    pub(super) fn on(run_dir: &Path) -> anyhow::Result<Self> {
        let unusable = || format!("the run folder {} can't be used", run_dir.display());
        std::fs::create_dir_all(run_dir).with_context(unusable)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut lock = options.open(run_dir.join("lock")).with_context(unusable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                lock.read_to_string(&mut pid).unwrap_or_default();
                let (dir, pid) = (run_dir.display(), pid.trim());
                bail!(
                    "another `tasuki up` (process {pid}) uses {dir}: stop it, or set stack.run-dir"
                );
            }
            Err(TryLockError::Error(error)) => return Err(error).with_context(unusable),
        }
        let pid = std::process::id().to_string();
        lock.set_len(0).with_context(unusable)?;
        lock.rewind().with_context(unusable)?;
        lock.write_all(pid.as_bytes()).with_context(unusable)?;
        let env = run_dir.join("env");
        private_file::remove_if_there(&env).with_context(unusable)?;
        Ok(Self { env, _lock: lock })
    }

    /// Removes `env`.
    pub(super) fn take_back(&self) {
        private_file::remove_if_there(&self.env).unwrap_or_default();
    }

    /// Where `env` is written once everything is ready.
    pub(super) fn env(&self) -> &Path {
        &self.env
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.take_back();
    }
}

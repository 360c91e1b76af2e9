//! Files with secrets: the owner's alone, and there whole or not at all.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;

/// Puts `text` at `path`, readable by nobody else. A reader finds the old file or the new one.
pub(crate) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let draft = path.with_extension("draft");
    let written = || -> std::io::Result<()> {
        remove_if_there(&draft)?;
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, path)
    };
    written().with_context(|| format!("{} can't be written", path.display()))
}

/// Removes `path`; that there is none is as good.
pub(crate) fn remove_if_there(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

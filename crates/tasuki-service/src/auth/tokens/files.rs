//! The folder of a key ring: one PKCS#8 PEM per key, named `<kid>.pem`.
//!
//! A key appears in one step (written aside, then renamed) and never changes. Who adds or
//! removes keys holds the lock file, so that two processes that start at once agree on the
//! first key. Reading needs no lock and no write access: the folder may be a mounted secret.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::EncodingKey;
use secrecy::{ExposeSecret, SecretString};
use uuid::Uuid;

use super::Error;

/// Permissions of everybody else.
const OTHERS: u32 = 0o007;

/// Both halves of a key.
pub(super) struct Pair {
    pub(super) private: EncodingKey,
    pub(super) public: Vec<u8>,
}

/// The kids in `folder`, oldest first. A missing folder has none.
pub(super) fn list(folder: &Path) -> Result<Vec<Uuid>, Error> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io(folder)(error)),
    };
    let mut kids = Vec::new();
    for entry in entries {
        let path = entry.map_err(Error::io(folder))?.path();
        let hidden = path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !hidden && path.extension() == Some(OsStr::new("pem")) {
            kids.push(kid(&path).ok_or(Error::BadKey(path))?);
        }
    }
    kids.sort_unstable();
    Ok(kids)
}

/// Reads a key; `None` when it has been removed in the meantime.
pub(super) fn read(folder: &Path, kid: Uuid) -> Result<Option<Pair>, Error> {
    let path = file(folder, kid);
    let (mode, pem) = match fs::metadata(&path).and_then(|data| Ok((data.mode(), fs::read(&path)?)))
    {
        Ok(read) => read,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(path)(error)),
    };
    if mode & OTHERS != 0 {
        return Err(Error::Exposed(path));
    }
    let bad = || Error::BadKey(path.clone());
    let private = EncodingKey::from_ed_pem(&pem).map_err(|_not_a_key| bad())?;
    let pair = Ed25519KeyPair::from_pkcs8(private.as_bytes()).map_err(|_not_a_key| bad())?;
    let public = pair.public_key().as_ref().to_vec();
    Ok(Some(Pair { private, public }))
}

/// Makes a key and puts it into `folder` in one step. Hold the [`lock`].
pub(super) fn create(folder: &Path, kid: Uuid) -> Result<(), Error> {
    let pem = generate()?;
    let aside = folder.join(format!(".{kid}.new"));
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&aside)
        .and_then(|mut file| {
            file.write_all(pem.expose_secret().as_bytes())?;
            file.sync_all()
        });
    written.map_err(Error::io(&aside))?;
    let path = file(folder, kid);
    fs::rename(&aside, &path).map_err(Error::io(path))?;
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(Error::io(folder))
}

/// Removes a key. Hold the [`lock`].
pub(super) fn remove(folder: &Path, kid: Uuid) -> Result<(), Error> {
    let path = file(folder, kid);
    fs::remove_file(&path).map_err(Error::io(path))
}

/// Makes the folder, for the owner alone, where it is missing.
pub(super) fn make_folder(folder: &Path) -> Result<(), Error> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(Error::io(folder))
}

/// Waits for the right to add or remove keys; dropping it gives it back, and so does dying.
pub(super) fn lock(folder: &Path) -> Result<File, Error> {
    let path = folder.join(".lock");
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path);
    opened
        .and_then(|file| file.lock().map(|()| file))
        .map_err(Error::io(path))
}

fn file(folder: &Path, kid: Uuid) -> PathBuf {
    folder.join(format!("{kid}.pem"))
}

fn kid(path: &Path) -> Option<Uuid> {
    let stem = path.file_stem()?.to_str()?;
    let kid = Uuid::try_parse(stem).ok()?;
    // One name per kid: upper case, braces or missing dashes would be a second one.
    (kid.to_string() == stem).then_some(kid)
}

fn generate() -> Result<SecretString, Error> {
    let pair = Ed25519KeyPair::generate().map_err(|_unspecified| Error::Crypto)?;
    let der = pair.to_pkcs8v1().map_err(|_unspecified| Error::Crypto)?;
    // 48 bytes are one line of base64.
    let body = STANDARD.encode(der.as_ref());
    Ok(format!("-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n").into())
}
